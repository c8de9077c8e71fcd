//! All parameters of a process, by their names.

use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_bson::RawBsonRef;
use pinion_wire::Result;

use super::row::{Row, Setting, unrecognized};

/// The parameters that a process has. Every core has the same.
pub struct ParameterRegistry(BTreeMap<&'static str, Row>);

/// This process's parameters.
///
/// # Panics
/// Before the process is open on this core.
pub fn parameter_registry() -> Rc<ParameterRegistry> {
    pinion_runtime::core_local()
}

impl ParameterRegistry {
    /// A registry of these parameters.
    ///
    /// # Panics
    /// Two have one name.
    pub fn of(rows: impl IntoIterator<Item = Row>) -> ParameterRegistry {
        let mut by_name = BTreeMap::new();
        for row in rows {
            let other = by_name.insert(row.name, row);
            assert!(other.is_none(), "two parameters are named {}", row.name);
        }
        ParameterRegistry(by_name)
    }

    /// The parameter of this name.
    pub fn find(&self, name: &str) -> Option<&Row> {
        self.0.get(name)
    }

    /// All of them, in the order of their names.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.0.values()
    }

    /// Checks a value for the parameter of this name.
    ///
    /// # Errors
    /// `InvalidOptions` where there is none that could be set; what is wrong with the value.
    pub fn parse(&self, name: &str, value: RawBsonRef<'_>) -> Result<Setting> {
        let row = self.find(name).ok_or_else(|| unrecognized(name))?;
        (row.parse)(name, value)
    }
}

#[cfg(test)]
mod tests {
    use pinion_wire::ErrorCode;

    use super::*;

    const FLAG: Row = Row::startup(
        "flag",
        |_, name, out| {
            out.append(name, true);
        },
        |_, _| Ok(Setting::new(|| ())),
    );
    const FIXED: Row = Row::never("fixed", |_, name, out| {
        out.append(name, 1i32);
    });

    #[test]
    fn parameters_are_found_by_their_names() {
        let registry = ParameterRegistry::of([FLAG, FIXED]);
        let names: Vec<&str> = registry.rows().map(|row| row.name).collect();
        assert_eq!(names, ["fixed", "flag"]);
        let flag = registry.find("flag").expect("there is one");
        assert!(flag.is_flag() && flag.set_at.startup() && !flag.set_at.runtime());
        assert!(registry.parse("flag", RawBsonRef::Null).is_ok());
        for name in ["fixed", "other"] {
            let error = registry.parse(name, RawBsonRef::Null).expect_err(name);
            assert_eq!(error.code, ErrorCode::INVALID_OPTIONS);
        }
    }

    #[test]
    #[should_panic(expected = "two parameters are named flag")]
    fn a_name_is_given_once() {
        ParameterRegistry::of([FLAG, FLAG]);
    }
}
