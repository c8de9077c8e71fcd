//! Wildcard indexes: which paths they hold, and the keys of a document under all of them.
//!
//! A key is a path and the value there, `{$_path, value}`, in place of the field of the pattern
//! that stands for all. Arrays give a key for each item under the array's own path; an array inside
//! an array is a value; an empty array is undefined.

use std::collections::BTreeSet;
use std::ops::Bound;

use pinion_bson::{RawBson, RawBsonRef, RawDocument};
use pinion_wire::Result;
use smallvec::SmallVec;

use super::kind::is_wildcard_field;
use super::{IndexKey, IndexKeys, IndexSpec, MultikeyPaths};
use crate::error::error;
use crate::expression::Variables;
use crate::keygen::single_key;
use crate::limits::MAX_INDEX_KEYS_PER_DOCUMENT;
use crate::projection::Projection;
use crate::value::{array_document, elements, field, is_empty, is_true};
use crate::work;

/// What a key costs beside its path's bytes.
const KEY: work::Units = 20 * work::STEP;

/// The name of a key's path among its values.
pub(crate) const PATH_FIELD: &str = "$_path";

/// The paths that a wildcard index holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WildcardFields {
    /// The place of the wildcard in the pattern.
    pub position: usize,
    only: bool,
    paths: BTreeSet<Box<str>>,
}

/// How much of what lies at a path and below it an index holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    All,
    Some,
    Nothing,
}

impl WildcardFields {
    /// Reads the pattern of a wildcard index and its projection.
    pub(super) fn parse(key: &RawDocument, projection: Option<&RawDocument>) -> WildcardFields {
        let (position, name) = elements(key)
            .map(|(name, _)| name)
            .enumerate()
            .find(|(_, name)| is_wildcard_field(name))
            .expect("a wildcard index has a wildcard");
        if let Some(scope) = name.strip_suffix(".$**") {
            return WildcardFields {
                position,
                only: true,
                paths: BTreeSet::from([scope.into()]),
            };
        }
        let mut fields = WildcardFields {
            position,
            only: false,
            paths: BTreeSet::new(),
        };
        let mut id = false;
        if let Some(projection) = projection {
            let mut flags = Vec::new();
            collect(projection, "", &mut flags);
            id = flags.iter().any(|(path, flag)| path == "_id" && *flag);
            flags.retain(|(path, _)| path != "_id");
            // With `_id` alone nothing else shows what is meant.
            fields.only = flags.iter().any(|(_, flag)| *flag) || (flags.is_empty() && id);
            fields.paths = flags.into_iter().map(|(path, _)| path.into()).collect();
        }
        // The `_id` is held only where it is named.
        if fields.only == id {
            fields.paths.insert("_id".into());
        }
        fields
    }

    fn held(&self, path: &str) -> Held {
        let named = std::iter::once(path.len())
            .chain(path.match_indices('.').map(|(at, _)| at))
            .any(|end| self.paths.contains(&path[..end]));
        let below = || {
            let from = format!("{path}.");
            let bounds = (Bound::Included(&*from), Bound::Unbounded);
            let next = self.paths.range::<str, _>(bounds).next();
            next.is_some_and(|next| next.starts_with(&*from))
        };
        match (named, self.only) {
            (true, true) => Held::All,
            (true, false) => Held::Nothing,
            (false, _) if below() => Held::Some,
            (false, true) => Held::Nothing,
            (false, false) => Held::All,
        }
    }

    /// Whether the index holds whatever a document has at this path.
    pub(crate) fn holds(&self, path: &str) -> bool {
        match self.held(path) {
            Held::All => true,
            // What is left out lies deeper; what is left has its keys.
            Held::Some => !self.only,
            Held::Nothing => false,
        }
    }
}

/// The paths of a projection with their flags.
fn collect(projection: &RawDocument, prefix: &str, out: &mut Vec<(String, bool)>) {
    for (name, value) in elements(projection) {
        let path = format!("{prefix}{name}");
        match value {
            RawBsonRef::Document(inner) => collect(inner, &format!("{path}."), out),
            value => out.push((path, is_true(value))),
        }
    }
}

/// Checks the projection of a wildcard index: it includes or excludes, and computes nothing.
///
/// # Errors
/// Those of a projection.
pub fn check_wildcard_projection(projection: &RawDocument) -> Result<()> {
    // The `_id` may be named either way beside both.
    let mut others = pinion_bson::DocBuilder::new();
    for (name, value) in elements(projection) {
        if name != "_id" {
            others.append(name, value);
        }
    }
    let others = others.finish();
    if is_empty(&others) {
        return Ok(());
    }
    let parsed = Projection::parse_aggregation(&others, &Variables::default())?;
    if parsed.computes() {
        return Err(error(
            51271,
            "Bad projection specification, cannot use computed fields in a wildcardProjection",
        ));
    }
    Ok(())
}

/// Checks that no field of a compound wildcard index is among those that its wildcard stands for.
///
/// # Errors
/// `CannotCreateIndex`.
pub fn check_wildcard_overlap(key: &RawDocument, projection: Option<RawBsonRef<'_>>) -> Result<()> {
    let projection = projection.and_then(|projection| projection.as_document());
    let fields = WildcardFields::parse(key, projection);
    for (name, _) in elements(key).filter(|(name, _)| !is_wildcard_field(name)) {
        if fields.held(name) != Held::Nothing {
            return Err(error(
                67,
                format!(
                    "The field '{name}' of a compound wildcard index must not be among those that its wildcard field stands for: {}",
                    crate::text::document_text(key)
                ),
            ));
        }
    }
    Ok(())
}

pub(super) fn keys<'a>(document: &'a RawDocument, index: &IndexSpec) -> Result<IndexKeys<'a>> {
    let fields = index.wildcard().expect("a wildcard index has its fields");
    let position = fields.position;
    let (before, after) = (&index.paths()[..position], &index.paths()[position + 1..]);
    let single = |paths: &[crate::path::Path]| -> Result<Vec<RawBson>> {
        let Some((key, _)) = single_key(document, paths) else {
            return Err(error(
                7_246_301,
                format!(
                    "The fields of a compound wildcard index beside its wildcard must not be arrays: {}",
                    crate::text::document_text(&index.key)
                ),
            ));
        };
        Ok(key.into_iter().map(RawBson::from).collect())
    };
    let mut walk = Walk {
        fields,
        path: String::new(),
        before: single(before)?,
        after: single(after)?,
        keys: Vec::new(),
        arrays: BTreeSet::new(),
    };
    walk.fields_of(document)?;
    // A document none of whose fields the wildcard stands for is found by the other fields.
    if walk.keys.is_empty() && index.fields() > 1 {
        walk.push(RawBson::MinKey, RawBson::MinKey)?;
    }
    Ok(IndexKeys {
        multikey: MultikeyPaths::of_arrays(walk.arrays),
        keys: walk.keys,
    })
}

struct Walk<'w, 'a> {
    fields: &'w WildcardFields,
    path: String,
    before: Vec<RawBson>,
    after: Vec<RawBson>,
    keys: Vec<IndexKey<'a>>,
    arrays: BTreeSet<Box<str>>,
}

impl Walk<'_, '_> {
    /// The keys of a document's fields; whether it has any that the index holds.
    fn fields_of(&mut self, document: &RawDocument) -> Result<bool> {
        let mut any = false;
        for (name, value) in elements(document) {
            work::spend(work::ITEM)?;
            // No path leads to a name with a dot.
            if name.contains('.') {
                continue;
            }
            let end = self.path.len();
            if end > 0 {
                self.path.push('.');
            }
            self.path.push_str(name);
            any |= self.value(value, false)?;
            self.path.truncate(end);
        }
        Ok(any)
    }

    /// The keys of a value at the path; whether the index holds anything of it.
    fn value(&mut self, value: RawBsonRef<'_>, in_array: bool) -> Result<bool> {
        let held = self.fields.held(&self.path);
        if held == Held::Nothing {
            return Ok(false);
        }
        match value {
            RawBsonRef::Array(array) if !in_array => {
                self.arrays.insert(self.path.as_str().into());
                let items = array_document(array);
                if is_empty(items) {
                    self.leaf(held, RawBson::Undefined)?;
                }
                for (_, item) in elements(items) {
                    work::spend(work::ITEM)?;
                    self.value(item, true)?;
                }
            }
            RawBsonRef::Document(inner) => {
                // What is left of a document all of whose fields are excluded is an empty one.
                if !self.fields_of(inner)? {
                    self.leaf(held, RawBson::Document(pinion_bson::RawDocumentBuf::new()))?;
                }
            }
            value => self.leaf(held, value.into())?,
        }
        Ok(true)
    }

    fn leaf(&mut self, held: Held, value: RawBson) -> Result<()> {
        // Of an index of paths that lie deeper this value is no part.
        if held == Held::Some && self.fields.only {
            return Ok(());
        }
        self.push(RawBson::String(self.path.clone()), value)
    }

    fn push(&mut self, path: RawBson, value: RawBson) -> Result<()> {
        work::spend(KEY)?;
        work::spend_bytes(self.path.len())?;
        if self.keys.len() >= MAX_INDEX_KEYS_PER_DOCUMENT {
            return Err(crate::sort::key_error(crate::keygen::KeyError::TooMany));
        }
        let mut key: SmallVec<[RawBson; 4]> = SmallVec::new();
        key.extend(self.before.iter().cloned());
        key.push(path);
        key.push(value);
        key.extend(self.after.iter().cloned());
        self.keys.push(IndexKey::Owned(key));
        Ok(())
    }
}

/// The projection of a wildcard index out of its specification.
pub(super) fn projection_of(listed: &RawDocument) -> Option<&RawDocument> {
    match field(listed, "wildcardProjection")? {
        RawBsonRef::Document(projection) => Some(projection),
        _ => None,
    }
}
