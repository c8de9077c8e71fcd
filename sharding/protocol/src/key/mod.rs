//! Shard keys: the pattern that a collection is sharded by, and the key that a document, a filter
//! or a bound has under it.
//!
//! Source: sharding document, "Routing"; the rules and their messages are MongoDB's.

mod bytes;
mod filter;
mod ranges;
#[cfg(test)]
mod tests;

use pinion_bson::{DocBuilder, Number, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_keystring::{Builder, Ordering, decode};
use pinion_query::{MAX_KEY_PATTERN_FIELDS, document_text, hash_value};
use pinion_wire::{Error, ErrorCode, Result};

pub use bytes::KeyBytes;
pub use ranges::MatchedKeys;

use bytes::{MAX_KEY, MIN_KEY};

/// How documents are spread over shards: ascending fields, of which one may be hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardKeyPattern {
    fields: Vec<KeyField>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyField {
    path: String,
    is_hashed: bool,
}

/// The value of one field of a key that an index holds.
#[derive(Clone, Copy, Debug)]
pub enum IndexedValue<'a> {
    /// As documents have it.
    Plain(RawBsonRef<'a>),
    /// As a hashed index stores it.
    Hashed(RawBsonRef<'a>),
}

impl ShardKeyPattern {
    /// Reads a pattern as `shardCollection` and `config.collections` have it.
    ///
    /// # Errors
    /// `BadValue` for a pattern that no collection can be sharded by.
    pub fn parse(pattern: &RawDocument) -> Result<ShardKeyPattern> {
        if pattern.is_empty() {
            return Err(Error::bad_value("Shard key is empty"));
        }
        let mut fields: Vec<KeyField> = Vec::new();
        for (name, value) in pinion_bson::elements(pattern) {
            check_path(name)?;
            let is_hashed = matches!(value, RawBsonRef::String("hashed"));
            let is_one = Number::from_value(value).is_some_and(|n| n.to_i64_saturating() == 1);
            let is_second_hash = is_hashed && fields.iter().any(|field| field.is_hashed);
            if is_second_hash || !(is_hashed || is_one) {
                return Err(Error::bad_value(format!(
                    "Shard key {} can contain at most one 'hashed' field, and/or multiple \
                     numerical fields set to a value of 1. Failed to parse field {name}",
                    document_text(pattern)
                )));
            }
            if fields.iter().any(|field| field.path == name) {
                return Err(Error::bad_value(format!(
                    "Shard key {} contains the field {name} twice",
                    document_text(pattern)
                )));
            }
            fields.push(KeyField {
                path: name.to_owned(),
                is_hashed,
            });
        }
        if fields.len() > MAX_KEY_PATTERN_FIELDS {
            return Err(Error::bad_value(format!(
                "Shard key has {} fields, the maximum is {MAX_KEY_PATTERN_FIELDS}",
                fields.len()
            )));
        }
        Ok(ShardKeyPattern { fields })
    }

    /// Whether `unique: true` can be kept.
    ///
    /// # Errors
    /// `InvalidOptions` where a field is hashed.
    pub fn check_unique(&self) -> Result<()> {
        match self.is_hashed() {
            false => Ok(()),
            true => Err(Error::new(
                ErrorCode::INVALID_OPTIONS,
                "Hashed shard keys cannot be declared unique. It's possible to ensure uniqueness on \
                 the hashed field by declaring an additional (non-hashed) unique index on the field.",
            )),
        }
    }

    /// `{a: 1, b: "hashed"}`.
    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        for field in &self.fields {
            match field.is_hashed {
                true => out.append(&field.path, "hashed"),
                false => out.append(&field.path, 1i32),
            };
        }
        out.finish()
    }

    pub fn is_hashed(&self) -> bool {
        self.hashed_at().is_some()
    }

    /// The place of the hashed field, if there is one.
    pub fn hashed_at(&self) -> Option<usize> {
        self.fields.iter().position(|field| field.is_hashed)
    }

    /// The paths in their order.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &str> {
        self.fields.iter().map(|field| &*field.path)
    }

    /// Below all keys, and the first chunk's lower bound.
    pub fn min(&self) -> KeyBytes {
        KeyBytes::of(&vec![MIN_KEY; self.fields.len()])
    }

    /// The last chunk's upper bound. A key that equals it belongs to that chunk too.
    pub fn max(&self) -> KeyBytes {
        KeyBytes::of(&vec![MAX_KEY; self.fields.len()])
    }

    /// The key of a document. A field that is missing is null.
    ///
    /// # Errors
    /// `ShardKeyNotFound` where an array, or a regular expression, is at a path or on its way.
    pub fn key_of(&self, document: &RawDocument) -> Result<KeyBytes> {
        let built = self.built_key_of(document);
        built.map(|key| KeyBytes::built(&key)).ok_or_else(|| {
            Error::new(
                ErrorCode::SHARD_KEY_NOT_FOUND,
                "Shard key cannot contain array values or array descendants.",
            )
        })
    }

    /// As `key_of`; `None` for a document without a key.
    pub(crate) fn built_key_of(&self, document: &RawDocument) -> Option<Builder> {
        let value = |field: &KeyField| match value_at(document, &field.path) {
            Found::Array => None,
            Found::Missing => Some(RawBsonRef::Null),
            Found::Value(value) => is_key_value(value).then_some(value),
        };
        self.build(value, self.fields.len())
    }

    /// The key of the values that an index has for a document, one for each field of the pattern in
    /// its order. `None` where an ascending field is known by its hash alone, and where their
    /// number is another.
    pub fn key_of_values<'a>(
        &self,
        values: impl IntoIterator<Item = IndexedValue<'a>>,
    ) -> Option<KeyBytes> {
        let mut key = Builder::new(Ordering::ascending());
        let mut values = values.into_iter();
        for field in &self.fields {
            match (values.next()?, field.is_hashed) {
                (IndexedValue::Plain(value), false) | (IndexedValue::Hashed(value), true) => {
                    key.append(value);
                }
                (IndexedValue::Plain(value), true) => {
                    key.append(RawBsonRef::Int64(hash_value(value)));
                }
                (IndexedValue::Hashed(_), false) => return None,
            }
        }
        values.next().is_none().then(|| KeyBytes::built(&key))
    }

    /// The key of values that are looked up by their paths; `None` as soon as one is.
    fn key_by<'a>(
        &self,
        mut value: impl FnMut(&str) -> Option<RawBsonRef<'a>>,
    ) -> Option<KeyBytes> {
        let built = self.build(|field| value(&field.path), self.fields.len())?;
        Some(KeyBytes::built(&built))
    }

    /// The first `count` components by the values of their fields; `None` as soon as one is.
    fn build<'a>(
        &self,
        mut value: impl FnMut(&KeyField) -> Option<RawBsonRef<'a>>,
        count: usize,
    ) -> Option<Builder> {
        let mut key = Builder::new(Ordering::ascending());
        for field in &self.fields[..count] {
            let value = value(field)?;
            match field.is_hashed {
                true => key.append(RawBsonRef::Int64(hash_value(value))),
                false => key.append(value),
            };
        }
        Some(key)
    }

    /// The bound of a chunk or a zone: `{a: 5, b: <hash>}`. Values are those of keys, hashed ones
    /// as 64-bit integers.
    ///
    /// # Errors
    /// `BadValue` where its fields are not those of the pattern, and where a hashed field has
    /// neither an integer nor MinKey or MaxKey.
    pub fn bound(&self, document: &RawDocument) -> Result<KeyBytes> {
        let mut key = Builder::new(Ordering::ascending());
        let mut fields = self.fields.iter();
        let mismatch = || {
            Error::bad_value(format!(
                "{} is no bound of the shard key pattern {}",
                document_text(document),
                document_text(&self.to_bson())
            ))
        };
        for (name, value) in pinion_bson::elements(document) {
            let field = fields.next().filter(|field| field.path == name);
            let field = field.ok_or_else(mismatch)?;
            let is_hash = matches!(
                value,
                RawBsonRef::Int64(_) | RawBsonRef::MinKey | RawBsonRef::MaxKey
            );
            if field.is_hashed && !is_hash {
                return Err(mismatch());
            }
            key.append(value);
        }
        match fields.next() {
            None => Ok(KeyBytes::built(&key)),
            Some(_) => Err(mismatch()),
        }
    }

    /// A bound that may have the first fields of the pattern alone, as those of zones: what is
    /// missing is MinKey, and MaxKey in the bound above all keys.
    ///
    /// # Errors
    /// As [`ShardKeyPattern::bound`], and `BadValue` for an empty document.
    pub fn extended_bound(&self, document: &RawDocument) -> Result<KeyBytes> {
        let count = pinion_bson::field_count(document).min(self.fields.len());
        if count == 0 {
            return self.bound(document);
        }
        let prefix = ShardKeyPattern {
            fields: self.fields[..count].to_vec(),
        };
        Ok(self.refined_bound(&prefix, &prefix.bound(document)?))
    }

    /// The document of a key or a bound: values with the types that they had.
    ///
    /// # Panics
    /// For a key of another pattern.
    pub fn document(&self, key: &KeyBytes) -> RawDocumentBuf {
        let values = decode(key.as_bytes(), Ordering::ascending(), &key.type_bits())
            .expect("a key was made by a pattern");
        let mut out = DocBuilder::new();
        let mut values = pinion_bson::raw_elements(&values);
        for field in &self.fields {
            let value = values.next().expect("a key has a value for each field");
            out.append_elem_as(&field.path, &value);
        }
        out.finish()
    }

    /// Whether its fields begin with all of the other's: what refining a key asks for.
    pub fn extends(&self, other: &ShardKeyPattern) -> bool {
        self.fields.starts_with(&other.fields)
    }

    /// A bound under `other`, which this one extends, as it is under this one: what is added is
    /// MinKey, and MaxKey in the bound above all keys.
    pub fn refined_bound(&self, other: &ShardKeyPattern, bound: &KeyBytes) -> KeyBytes {
        assert!(self.extends(other), "a key is refined by more fields");
        let added = self.fields.len() - other.fields.len();
        let filler = match *bound == other.max() {
            true => MAX_KEY,
            false => MIN_KEY,
        };
        bound.followed_by(&vec![filler; added])
    }

    /// Whether an index with this key pattern holds documents in the order of the shard key: it
    /// begins with all of its fields, each of the same kind.
    pub fn is_prefix_of_index(&self, index: &RawDocument) -> bool {
        let mut elements = pinion_bson::elements(index);
        self.fields.iter().all(|field| match elements.next() {
            Some((name, RawBsonRef::String(kind))) => {
                field.is_hashed && name == field.path && kind == "hashed"
            }
            Some((name, value)) => {
                let is_one = Number::from_value(value).is_some_and(|n| n.to_i64_saturating() == 1);
                !field.is_hashed && name == field.path && is_one
            }
            None => false,
        })
    }

    /// Whether a unique index with this key pattern can be kept: it begins with `_id`, or with the
    /// shard key's fields.
    pub fn is_unique_index_possible(&self, index: &RawDocument) -> bool {
        let mut names = pinion_bson::elements(index).map(|(name, _)| name);
        if names.clone().next() == Some("_id") {
            return true;
        }
        self.fields
            .iter()
            .all(|field| names.next() == Some(&*field.path))
    }
}

/// Whether a field of a key may have the value.
fn is_key_value(value: RawBsonRef<'_>) -> bool {
    !matches!(
        value,
        RawBsonRef::Array(_) | RawBsonRef::RegularExpression(_)
    )
}

enum Found<'a> {
    Missing,
    /// At the path's end, or on the way.
    Array,
    Value(RawBsonRef<'a>),
}

fn value_at<'a>(document: &'a RawDocument, path: &str) -> Found<'a> {
    let mut document = document;
    let mut rest = path;
    loop {
        let (first, after) = match rest.split_once('.') {
            Some((first, after)) => (first, Some(after)),
            None => (rest, None),
        };
        match (pinion_bson::get(document, first), after) {
            (Some(RawBsonRef::Array(_)), _) => return Found::Array,
            (Some(value), None) => return Found::Value(value),
            (Some(RawBsonRef::Document(inner)), Some(after)) => (document, rest) = (inner, after),
            _ => return Found::Missing,
        }
    }
}

fn check_path(path: &str) -> Result<()> {
    let bad = |what: &str| Err(Error::bad_value(format!("Field {path} {what}")));
    if path.is_empty() {
        return bad("is empty");
    }
    for (at, part) in path.split('.').enumerate() {
        if part.is_empty() {
            return bad("contains empty parts");
        }
        // A DBRef's fields.
        let is_reference = at > 0 && matches!(part, "$db" | "$id" | "$ref");
        if part.starts_with('$') && !is_reference {
            return bad("contains parts that start with '$'");
        }
    }
    Ok(())
}
