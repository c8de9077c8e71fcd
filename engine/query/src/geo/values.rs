//! The values that a path of a geospatial index reaches: arrays on the way are walked, one at its
//! end is given whole.

use pinion_bson::{RawBsonRef, RawDocument};

use crate::path::{Component, Path};
use crate::value::{array_document, elements, field};

/// Calls `visit` with each value at the path, and notes which components of the path are arrays
/// that were walked.
pub(crate) fn values_at<'a>(
    document: &'a RawDocument,
    path: &Path,
    arrays: &mut Vec<u16>,
    visit: &mut dyn FnMut(RawBsonRef<'a>),
) {
    walk(document, path.components(), 0, arrays, visit);
}

fn walk<'a>(
    document: &'a RawDocument,
    components: &[Component],
    at: usize,
    arrays: &mut Vec<u16>,
    visit: &mut dyn FnMut(RawBsonRef<'a>),
) {
    let Some(value) = field(document, &components[at].name) else {
        return;
    };
    let Some(next) = components.get(at + 1) else {
        return visit(value);
    };
    match value {
        RawBsonRef::Document(inner) => walk(inner, components, at + 1, arrays, visit),
        RawBsonRef::Array(array) if next.index.is_some() => {
            walk(array_document(array), components, at + 1, arrays, visit)
        }
        RawBsonRef::Array(array) => {
            if let Err(place) = arrays.binary_search(&(at as u16)) {
                arrays.insert(place, at as u16);
            }
            for (_, item) in elements(array_document(array)) {
                match item {
                    RawBsonRef::Document(inner) => walk(inner, components, at + 1, arrays, visit),
                    RawBsonRef::Array(inner) => {
                        walk(array_document(inner), components, at + 1, arrays, visit)
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
}
