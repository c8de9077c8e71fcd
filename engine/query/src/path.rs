//! Dotted paths and the walk of a filter's path through a document, arrays included.
//!
//! The walk gives the values that MongoDB's `ElementPath` iterator gives, in its order: a predicate
//! holds when it holds for one of them.

use pinion_bson::{RawArray, RawBsonRef, RawDocument};

use crate::limits::ACCOUNTED_ITEMS;
use crate::value::{array_document, elements, field, items};
use crate::work;

/// One component of a dotted path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Component {
    pub name: Box<str>,
    /// The array position the name denotes when it is written as a plain number.
    pub index: Option<usize>,
}

/// A dotted path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    text: Box<str>,
    components: Box<[Component]>,
}

/// The array position that a path component denotes: digits without leading zeros.
pub(crate) fn array_index(name: &str) -> Option<usize> {
    let bytes = name.as_bytes();
    let plain = match bytes {
        [] => false,
        [b'0'] => true,
        [b'0', ..] => false,
        _ => bytes.iter().all(u8::is_ascii_digit),
    };
    if plain { name.parse().ok() } else { None }
}

impl Path {
    pub(crate) fn parse(text: &str) -> Path {
        let components = text
            .split('.')
            .map(|name| Component {
                name: name.into(),
                index: array_index(name),
            })
            .collect();
        Path {
            text: text.into(),
            components,
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn components(&self) -> &[Component] {
        &self.components
    }
}

/// What the walk does with an array that the path ends at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafArrays {
    /// Give each element and then the array.
    Traverse,
    /// Give the array only.
    Keep,
}

/// Calls `visit` with each value the path reaches (`None` for a missing one) and the position in
/// the outermost array that was traversed implicitly; stops as soon as it answers true and returns
/// whether it did.
pub(crate) fn walk<'a>(
    document: &'a RawDocument,
    path: &[Component],
    leaf: LeafArrays,
    visit: &mut dyn FnMut(Option<RawBsonRef<'a>>, Option<u32>) -> bool,
) -> bool {
    // An empty path does not occur: a path has at least one component.
    let Some((component, rest)) = path.split_first() else {
        return false;
    };
    walk_from(field(document, &component.name), rest, leaf, visit)
}

/// The same walk from the value of the path's first component on.
pub(crate) fn walk_from<'a>(
    mut found: Option<RawBsonRef<'a>>,
    mut rest: &[Component],
    leaf: LeafArrays,
    visit: &mut dyn FnMut(Option<RawBsonRef<'a>>, Option<u32>) -> bool,
) -> bool {
    loop {
        match (found, rest) {
            (Some(RawBsonRef::Document(inner)), [component, after @ ..]) => {
                found = field(inner, &component.name);
                rest = after;
            }
            (Some(RawBsonRef::Array(array)), []) => return visit_array(array, leaf, visit),
            (Some(RawBsonRef::Array(array)), rest) => {
                return walk_array(array_document(array), rest, leaf, visit);
            }
            (found, []) => return visit(found, None),
            _ => return visit(None, None),
        }
    }
}

/// Visits an array that the path ends at.
fn visit_array<'a>(
    array: &'a RawArray,
    leaf: LeafArrays,
    visit: &mut dyn FnMut(Option<RawBsonRef<'a>>, Option<u32>) -> bool,
) -> bool {
    if leaf == LeafArrays::Traverse {
        for (position, value) in items(array).enumerate() {
            if visit(Some(value), Some(position as u32)) {
                return true;
            }
            // A call that was refused for its work fails for that alone, whatever its result.
            if position % ACCOUNTED_ITEMS == ACCOUNTED_ITEMS - 1
                && work::spend(ACCOUNTED_ITEMS as work::Units * work::ITEM).is_err()
            {
                return true;
            }
        }
    }
    visit(Some(RawBsonRef::Array(array)), None)
}

/// The walk inside an array where `rest` is still to be followed.
fn walk_array<'a>(
    items: &'a RawDocument,
    rest: &[Component],
    leaf: LeafArrays,
    visit: &mut dyn FnMut(Option<RawBsonRef<'a>>, Option<u32>) -> bool,
) -> bool {
    for (position, (_, value)) in elements(items).enumerate() {
        if let RawBsonRef::Document(inner) = value {
            // The outermost implicit position is the one that is reported.
            let mut outermost =
                |value: Option<RawBsonRef<'a>>, _: Option<u32>| visit(value, Some(position as u32));
            if walk(inner, rest, leaf, &mut outermost) {
                return true;
            }
        }
        if rest[0].index == Some(position) {
            let stopped = match (&rest[1..], value) {
                // A position that the path names is not one that the walk has found.
                ([], _) => visit(Some(value), None),
                (after, RawBsonRef::Document(inner)) => walk(inner, after, leaf, visit),
                (after, RawBsonRef::Array(array)) => {
                    walk_array(array_document(array), after, leaf, visit)
                }
                _ => false,
            };
            if stopped {
                return true;
            }
        }
    }
    false
}
