//! Which collation an operation has: the one it asks for, or that of its collection.

use std::sync::Arc;

use pinion_collation::Collation;
use pinion_query::{Variables, parse_collation};
use pinion_wire::Result;
use pinion_wire::idl::FieldReader;

/// What an operation says of its collation.
#[derive(Clone, Debug, Default)]
pub enum CollationOption {
    /// Nothing: it has that of its collection.
    #[default]
    Nothing,
    /// This one; none is the simple one, by the bytes of strings.
    For(Option<Arc<Collation>>),
}

impl CollationOption {
    /// Reads the option `collation`. An empty document asks for nothing.
    ///
    /// # Errors
    /// The document is no collation.
    pub fn read(reader: &FieldReader<'_, '_>) -> Result<CollationOption> {
        match reader.opt_doc("collation")? {
            Some(spec) if !spec.is_empty() => parse_collation(spec).map(CollationOption::For),
            _ => Ok(CollationOption::Nothing),
        }
    }

    /// The collation beside this default.
    pub fn or(&self, default: Option<&Arc<Collation>>) -> Option<Arc<Collation>> {
        match self {
            CollationOption::Nothing => default.cloned(),
            CollationOption::For(collation) => collation.clone(),
        }
    }

    /// The variables with the collation beside this default.
    pub fn variables(&self, variables: &Variables, default: Option<&Arc<Collation>>) -> Variables {
        Variables {
            collation: self.or(default),
            ..variables.clone()
        }
    }
}
