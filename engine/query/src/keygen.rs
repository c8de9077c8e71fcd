//! The keys a document has under a pattern of paths: what indexes store and sorts compare.
//!
//! An array on the way gives one key for each of its items. Only one array may be expanded; fields
//! that reach the same array are expanded together. A missing value is null, an empty array is
//! undefined.

use pinion_bson::{ElementType, RawBsonRef, RawDocument, values_equal};
use smallvec::{SmallVec, smallvec};

use crate::limits::MAX_INDEX_KEYS_PER_DOCUMENT;
use crate::path::{Component, Path};
use crate::value::{array_document, elements, field};
use crate::work::Units;

/// The values of one key, in the order of the pattern.
pub type Key<'a> = SmallVec<[RawBsonRef<'a>; 4]>;

/// The components of each field's path that were arrays, by field.
pub type ArrayComponents = Vec<Vec<u16>>;

/// Why a document has no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyError {
    /// Two arrays would have to be expanded.
    Parallel(String, String),
    /// A numeric component names both an array position and a field of the array's items.
    Ambiguous { field: String, array: String },
    /// More keys than one document may have.
    TooMany,
    /// Refused for the work that it would take.
    Refused,
}

/// All keys of a document.
#[derive(Debug, Default)]
pub(crate) struct Keys<'a> {
    pub keys: Vec<Key<'a>>,
    /// Set when an array was met that may give more than one key.
    pub multikey: Option<ArrayComponents>,
}

/// What is known in advance about a numeric component that selects an array's item.
#[derive(Clone, Default)]
struct Positional<'a, 'p> {
    item: Option<RawBsonRef<'a>>,
    array: Option<&'a RawDocument>,
    rest: &'p [Component],
    value: Option<RawBsonRef<'a>>,
}

struct Generator<'a, 'p> {
    paths: &'p [Path],
    skip_all_missing: bool,
    out: Keys<'a>,
}

/// What an array's item costs for each field of the pattern: its key is made, compared with others,
/// and stored.
const ITEM: Units = 20 * crate::work::STEP;

/// The keys of a document. With `skip_all_missing` a key none of whose fields exists is left out
/// (sparse indexes).
pub(crate) fn keys<'a>(
    document: &'a RawDocument,
    paths: &[Path],
    skip_all_missing: bool,
) -> Result<Keys<'a>, KeyError> {
    if let Some((key, missing)) = single_key(document, paths) {
        let keys = if skip_all_missing && missing == paths.len() {
            Vec::new()
        } else {
            vec![key]
        };
        return Ok(Keys {
            keys,
            multikey: None,
        });
    }
    let mut generator = Generator {
        paths,
        skip_all_missing,
        out: Keys::default(),
    };
    let rest: SmallVec<[&[Component]; 4]> = paths.iter().map(Path::components).collect();
    let fixed: Key<'a> = smallvec![RawBsonRef::Null; paths.len()];
    generator.expand(rest, fixed, Some(document), 0, &[])?;
    let mut keys = generator.out.keys;
    dedup(&mut keys);
    Ok(Keys {
        keys,
        multikey: generator.out.multikey,
    })
}

/// The key of a document without arrays on the paths, and how many of its fields are missing.
pub(crate) fn single_key<'a>(
    document: &'a RawDocument,
    paths: &[Path],
) -> Option<(Key<'a>, usize)> {
    let mut key: Key<'a> = SmallVec::with_capacity(paths.len());
    let mut missing = 0;
    for path in paths {
        let mut current = document;
        let mut value = None;
        let components = path.components();
        for (at, component) in components.iter().enumerate() {
            match field(current, &component.name) {
                Some(RawBsonRef::Array(_)) => return None,
                Some(RawBsonRef::Document(inner)) if at + 1 < components.len() => current = inner,
                Some(found) if at + 1 == components.len() => value = Some(found),
                _ => break,
            }
        }
        missing += usize::from(value.is_none());
        key.push(value.unwrap_or(RawBsonRef::Null));
    }
    Some((key, missing))
}

/// Follows a path up to its end or to an array; `rest` is then what is left.
fn extract<'a>(mut document: &'a RawDocument, rest: &mut &[Component]) -> Option<RawBsonRef<'a>> {
    loop {
        let (component, after) = rest.split_first()?;
        let value = field(document, &component.name);
        *rest = after;
        match value? {
            RawBsonRef::Document(inner) if !after.is_empty() => document = inner,
            value @ RawBsonRef::Array(_) => return Some(value),
            value if after.is_empty() => return Some(value),
            _ => return None,
        }
    }
}

impl<'a, 'p> Generator<'a, 'p> {
    fn expand(
        &mut self,
        mut rest: SmallVec<[&'p [Component]; 4]>,
        mut fixed: Key<'a>,
        document: Option<&'a RawDocument>,
        mut missing: usize,
        positional: &[Positional<'a, 'p>],
    ) -> Result<(), KeyError> {
        let mut array: Option<(&'a RawDocument, &'p str)> = None;
        let mut through: SmallVec<[usize; 4]> = SmallVec::new();
        let mut expand_items = true;
        for i in 0..rest.len() {
            let Some(component) = rest[i].first() else {
                continue;
            };
            let (value, nested) =
                self.next_value(document, positional.get(i), &mut rest[i], component)?;
            match value {
                None => {
                    fixed[i] = RawBsonRef::Null;
                    rest[i] = &[];
                    missing += 1;
                }
                Some(RawBsonRef::Array(found)) => {
                    let found = array_document(found);
                    through.push(i);
                    let name = self.array_name(i, rest[i]);
                    match array {
                        None => array = Some((found, name)),
                        Some((other, _))
                            if std::ptr::eq(
                                found.as_bytes().as_ptr(),
                                other.as_bytes().as_ptr(),
                            ) => {}
                        Some((_, other)) => {
                            return Err(KeyError::Parallel(name.to_string(), other.to_string()));
                        }
                    }
                    expand_items &= !nested;
                }
                Some(value) => fixed[i] = value,
            }
        }
        let Some((items, _)) = array else {
            if !(self.skip_all_missing && missing == rest.len()) {
                if self.out.keys.len() >= MAX_INDEX_KEYS_PER_DOCUMENT {
                    return Err(KeyError::TooMany);
                }
                self.out.keys.push(fixed);
            }
            return Ok(());
        };
        let array_value = RawBsonRef::Array(pinion_bson::array_of(items));
        let mut components: SmallVec<[Option<u16>; 4]> = smallvec![None; rest.len()];
        if crate::value::is_empty(items) {
            for &i in &through {
                components[i] = self.component(i, rest[i], expand_items || !rest[i].is_empty());
                if rest[i].is_empty() {
                    fixed[i] = RawBsonRef::Undefined;
                }
            }
            self.record(&components);
            return self.expand(rest, fixed, None, missing, &[]);
        }
        let mut sub: SmallVec<[Positional<'a, 'p>; 4]> =
            smallvec![Positional::default(); rest.len()];
        for &i in &through {
            let Some(component) = rest[i].first() else {
                components[i] = self.component(i, rest[i], expand_items);
                continue;
            };
            let Some(item) = component.index.and_then(|_| field(items, &component.name)) else {
                components[i] = self.component(i, rest[i], true);
                continue;
            };
            let mut after = rest[i];
            let value = extract(items, &mut after);
            sub[i] = Positional {
                item: Some(item),
                array: Some(items),
                rest: after,
                value,
            };
        }
        self.record(&components);
        for (_, item) in elements(items) {
            crate::work::spend(ITEM * rest.len() as Units).map_err(|_| KeyError::Refused)?;
            let mut fixed = fixed.clone();
            for &i in &through {
                if rest[i].is_empty() {
                    fixed[i] = if expand_items { item } else { array_value };
                }
            }
            let inner = match item {
                RawBsonRef::Document(inner) => Some(inner),
                _ => None,
            };
            self.expand(rest.clone(), fixed, inner, missing, &sub)?;
        }
        Ok(())
    }

    /// The value a field reaches next, and whether it is an array inside an array selected by
    /// position.
    fn next_value(
        &self,
        document: Option<&'a RawDocument>,
        positional: Option<&Positional<'a, 'p>>,
        rest: &mut &'p [Component],
        component: &Component,
    ) -> Result<(Option<RawBsonRef<'a>>, bool), KeyError> {
        let has_field = document.is_some_and(|d| field(d, &component.name).is_some());
        let selected = positional.and_then(|p| p.item.map(|item| (p, item)));
        match (has_field, selected) {
            (true, Some((position, _))) => Err(KeyError::Ambiguous {
                field: component.name.to_string(),
                array: position
                    .array
                    .map(crate::text::document_text)
                    .unwrap_or_default(),
            }),
            (true, None) => Ok((document.and_then(|d| extract(d, rest)), false)),
            (false, Some((position, item))) => {
                *rest = position.rest;
                Ok((position.value, item.element_type() == ElementType::Array))
            }
            (false, None) => Ok((None, false)),
        }
    }

    /// The component of field `i` in front of `rest`, as a multikey component.
    fn component(&self, i: usize, rest: &[Component], multikey: bool) -> Option<u16> {
        multikey.then(|| (self.paths[i].components().len() - rest.len() - 1) as u16)
    }

    fn array_name(&self, i: usize, rest: &[Component]) -> &'p str {
        let components = self.paths[i].components();
        &components[components.len() - rest.len() - 1].name
    }

    fn record(&mut self, components: &[Option<u16>]) {
        if components.iter().all(Option::is_none) {
            return;
        }
        let fields = self.paths.len();
        let multikey = self
            .out
            .multikey
            .get_or_insert_with(|| vec![Vec::new(); fields]);
        for (i, component) in components.iter().enumerate() {
            if let Some(component) = component
                && let Err(at) = multikey[i].binary_search(component)
            {
                multikey[i].insert(at, *component);
            }
        }
    }
}

/// Drops keys equal to another one.
fn dedup(keys: &mut Vec<Key<'_>>) {
    if keys.len() < 2 {
        return;
    }
    keys.sort_by(|a, b| {
        let orders = a
            .iter()
            .zip(b.iter())
            .map(|(x, y)| pinion_bson::compare_values(*x, *y));
        orders
            .into_iter()
            .find(|o| o.is_ne())
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    keys.dedup_by(|a, b| a.iter().zip(b.iter()).all(|(x, y)| values_equal(*x, *y)));
}
