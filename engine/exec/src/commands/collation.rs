//! Which collation an operation has: the one it asks for, or that of its collection.

use std::sync::Arc;

use pinion_bson::RawArray;
use pinion_catalog::{core_catalog, for_each_source};
use pinion_collation::Collation;
use pinion_query::{Variables, parse_collation};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Namespace};

use crate::acquire::check_view;

/// What an operation says of its collation.
#[derive(Clone, Debug, Default)]
pub(crate) enum CollationOption {
    /// Nothing: it has that of its collection.
    #[default]
    Nothing,
    /// This one; none is the simple one, by the bytes of strings.
    For(Option<Arc<Collation>>),
}

impl CollationOption {
    /// Reads the option `collation`. An empty document asks for nothing.
    pub(super) fn read(reader: &FieldReader<'_, '_>) -> Result<CollationOption> {
        match reader.opt_doc("collation")? {
            Some(spec) if !spec.is_empty() => parse_collation(spec).map(CollationOption::For),
            _ => Ok(CollationOption::Nothing),
        }
    }

    /// The collation beside this default.
    pub(super) fn or(&self, default: Option<&Arc<Collation>>) -> Option<Arc<Collation>> {
        match self {
            CollationOption::Nothing => default.cloned(),
            CollationOption::For(collation) => collation.clone(),
        }
    }

    /// The variables with the collation beside this default.
    pub(super) fn variables(
        &self,
        variables: &Variables,
        default: Option<&Arc<Collation>>,
    ) -> Variables {
        Variables {
            collation: self.or(default),
            ..variables.clone()
        }
    }
}

/// Refuses a pipeline that reads views with another collation than theirs. Views that are read
/// through those are examined when they are.
pub(super) fn check_sources(
    db: &str,
    stages: &RawArray,
    collation: Option<&Arc<Collation>>,
) -> Result<()> {
    let catalog = core_catalog().current();
    let mut sources = Vec::new();
    for_each_source(stages, &mut |name| sources.push(name));
    for source in sources {
        let Ok(ns) = Namespace::new(db, source) else {
            continue;
        };
        if let Some(view) = catalog.resolve_view(&ns)? {
            check_view(&ns, &view, collation)?;
        }
    }
    Ok(())
}
