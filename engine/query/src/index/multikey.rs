//! What is known of arrays among the documents of an index.

use std::collections::BTreeSet;

use crate::keygen::ArrayComponents;
use crate::limits::MAX_WILDCARD_ARRAYS;

/// Where documents of an index have arrays; never unlearned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultikeyPaths {
    /// For each field of the pattern the components of its path that are arrays in some document.
    Fields(ArrayComponents),
    /// The paths of arrays in some document: of a wildcard index.
    Arrays(BTreeSet<Box<str>>),
    /// Some document has several keys, of any field.
    Anywhere,
}

impl MultikeyPaths {
    /// What a wildcard index knows of these arrays; nothing where there are none, and no more than
    /// that there are any where they are too many to be listed.
    pub(crate) fn of_arrays(arrays: BTreeSet<Box<str>>) -> Option<MultikeyPaths> {
        match arrays.len() {
            0 => None,
            few if few <= MAX_WILDCARD_ARRAYS => Some(MultikeyPaths::Arrays(arrays)),
            _ => Some(MultikeyPaths::Anywhere),
        }
    }

    /// Whether an array may stand at this path in some document.
    pub(crate) fn is_array(&self, path: &str) -> bool {
        match self {
            MultikeyPaths::Arrays(arrays) => arrays.contains(path),
            MultikeyPaths::Fields(_) => false,
            MultikeyPaths::Anywhere => true,
        }
    }

    /// Whether an array may stand at this component of a field's path in some document.
    pub(crate) fn is_component(&self, field: usize, component: usize) -> bool {
        match self {
            MultikeyPaths::Fields(fields) => fields[field].contains(&(component as u16)),
            MultikeyPaths::Arrays(_) | MultikeyPaths::Anywhere => true,
        }
    }

    /// Whether an array may stand anywhere on a field's path.
    pub(crate) fn is_field(&self, field: usize) -> bool {
        match self {
            MultikeyPaths::Fields(fields) => !fields[field].is_empty(),
            MultikeyPaths::Arrays(_) | MultikeyPaths::Anywhere => true,
        }
    }

    /// Whether all that `found` says is known already.
    pub fn contains(&self, found: &MultikeyPaths) -> bool {
        match (self, found) {
            (MultikeyPaths::Anywhere, _) => true,
            (MultikeyPaths::Fields(known), MultikeyPaths::Fields(found)) => known
                .iter()
                .zip(found)
                .all(|(known, found)| found.iter().all(|component| known.contains(component))),
            (MultikeyPaths::Arrays(known), MultikeyPaths::Arrays(found)) => found.is_subset(known),
            _ => false,
        }
    }

    /// Adds what a document says; true when it was not known before.
    pub fn merge(&mut self, found: &MultikeyPaths) -> bool {
        if self.contains(found) {
            return false;
        }
        match (&mut *self, found) {
            (MultikeyPaths::Fields(known), MultikeyPaths::Fields(found)) => {
                for (known, found) in known.iter_mut().zip(found) {
                    for component in found {
                        if let Err(at) = known.binary_search(component) {
                            known.insert(at, *component);
                        }
                    }
                }
            }
            (MultikeyPaths::Arrays(known), MultikeyPaths::Arrays(found)) => {
                known.extend(found.iter().cloned());
                if known.len() > MAX_WILDCARD_ARRAYS {
                    *self = MultikeyPaths::Anywhere;
                }
            }
            (known, _) => *known = MultikeyPaths::Anywhere,
        }
        true
    }
}
