//! A server parameter as data: its name, when it may be set, how it is shown, and how a value is
//! checked.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_runtime::sync::Notify;
use pinion_wire::{Error, ErrorCode, Result};

/// When a parameter may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAt {
    /// It describes the process.
    Never,
    /// At the start alone.
    Startup,
    /// At the start, and while the process runs.
    Always,
}

impl SetAt {
    /// Whether it may be set at the start.
    pub fn startup(self) -> bool {
        self != SetAt::Never
    }

    /// Whether it may be set while the process runs.
    pub fn runtime(self) -> bool {
        self == SetAt::Always
    }
}

/// A parameter. The crate that owns what it sets gives its row.
#[derive(Clone, Copy)]
pub struct Row {
    pub name: &'static str,
    pub set_at: SetAt,
    /// Whether the value of the command line may have a fraction.
    pub takes_fraction: bool,
    /// Appends this core's value of the parameter named first, under the second name.
    pub append: fn(&str, &str, &mut DocBuilder),
    /// Checks a value for the parameter of this name.
    pub parse: fn(&str, RawBsonRef<'_>) -> Result<Setting>,
}

impl Row {
    /// A parameter that may be set at the start and while the process runs.
    pub const fn always(
        name: &'static str,
        append: fn(&str, &str, &mut DocBuilder),
        parse: fn(&str, RawBsonRef<'_>) -> Result<Setting>,
    ) -> Row {
        Row {
            name,
            set_at: SetAt::Always,
            takes_fraction: false,
            append,
            parse,
        }
    }

    /// A parameter that may be set at the start alone.
    pub const fn startup(
        name: &'static str,
        append: fn(&str, &str, &mut DocBuilder),
        parse: fn(&str, RawBsonRef<'_>) -> Result<Setting>,
    ) -> Row {
        let row = Row::always(name, append, parse);
        Row {
            set_at: SetAt::Startup,
            ..row
        }
    }

    /// A parameter that describes the process.
    pub const fn never(name: &'static str, append: fn(&str, &str, &mut DocBuilder)) -> Row {
        let row = Row::always(name, append, |name, _| Err(unrecognized(name)));
        Row {
            set_at: SetAt::Never,
            ..row
        }
    }

    /// Appends this core's value under a name.
    pub fn append_as(&self, name: &str, out: &mut DocBuilder) {
        (self.append)(self.name, name, out);
    }

    /// Whether the value is true or false.
    pub fn is_flag(&self) -> bool {
        let mut out = DocBuilder::new();
        self.append_as("value", &mut out);
        let shown = out.finish();
        matches!(
            pinion_bson::get(&shown, "value"),
            Some(RawBsonRef::Boolean(_))
        )
    }
}

/// The error for a name that no parameter has which could be set.
pub(super) fn unrecognized(name: &str) -> Error {
    Error::new(
        ErrorCode::INVALID_OPTIONS,
        format!("attempted to set unrecognized parameter [{name}], use help:true to see options "),
    )
}

/// A checked value of a parameter, in a form that every core takes.
#[derive(Clone)]
pub struct Setting(Arc<dyn Fn() + Send + Sync>);

impl Setting {
    /// `set` gives the value to the core that calls it.
    pub fn new(set: impl Fn() + Send + Sync + 'static) -> Setting {
        Setting(Arc::new(set))
    }

    /// Sets the value on this core, and wakes the tasks that wait for a time that it may give.
    pub fn apply(&self) {
        (self.0)();
        parameter_changes().0.notify_all();
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Setting(..)")
    }
}

/// Wakes what waits for a time that a parameter of this core gives, so that it looks at that again.
#[derive(Default)]
pub struct ParameterChanges(pub Notify);

/// This core's.
pub fn parameter_changes() -> Rc<ParameterChanges> {
    pinion_runtime::core_local()
}
