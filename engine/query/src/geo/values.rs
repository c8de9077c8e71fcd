//! The values that a path of a geospatial index reaches: arrays on the way are walked, one at its end is given whole.

use pinion_bson::{RawBsonRef, RawDocument};

use crate::path::{Component, Path};
use crate::value::{array_document, elements, field};

/// Calls `visit` with each value at the path.
pub(crate) fn values_at<'a>(
    document: &'a RawDocument,
    path: &Path,
    visit: &mut dyn FnMut(RawBsonRef<'a>),
) {
    walk(document, path.components(), visit);
}

fn walk<'a>(
    document: &'a RawDocument,
    components: &[Component],
    visit: &mut dyn FnMut(RawBsonRef<'a>),
) {
    let Some((component, rest)) = components.split_first() else {
        return;
    };
    let Some(value) = field(document, &component.name) else {
        return;
    };
    let Some(next) = rest.first() else {
        return visit(value);
    };
    match value {
        RawBsonRef::Document(inner) => walk(inner, rest, visit),
        RawBsonRef::Array(array) if next.index.is_some() => {
            walk(array_document(array), rest, visit)
        }
        RawBsonRef::Array(array) => {
            for (_, item) in elements(array_document(array)) {
                match item {
                    RawBsonRef::Document(inner) => walk(inner, rest, visit),
                    RawBsonRef::Array(inner) => walk(array_document(inner), rest, visit),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}
