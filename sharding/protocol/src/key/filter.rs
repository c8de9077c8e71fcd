//! The shard key that a filter names by equalities.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_query::has_strings;
use pinion_wire::Result;

use super::{Found, KeyBytes, ShardKeyPattern, is_key_value, value_at};
use crate::chunk::ChunkRange;

/// What every document that a filter matches equals: a path and its value. Where a path is named
/// twice, both are kept.
type Equalities<'a> = Vec<(&'a str, RawBsonRef<'a>)>;

impl ShardKeyPattern {
    /// The one key that all documents have which the filter matches. `None` where it does not
    /// follow from equalities. With another collation than the simple one, an equality with what
    /// holds strings matches several keys.
    pub fn key_of_filter(
        &self,
        filter: &RawDocument,
        has_simple_collation: bool,
    ) -> Option<KeyBytes> {
        let equalities = equalities_of(filter);
        self.key_by(|path| equal_value(&equalities, path, has_simple_collation))
    }

    /// The range of keys of the documents that the filter matches, as far as it follows from
    /// equalities with the first fields of the key. `None`: it may be any.
    pub fn range_of_filter(
        &self,
        filter: &RawDocument,
        has_simple_collation: bool,
    ) -> Option<ChunkRange> {
        let equalities = equalities_of(filter);
        let value = |path: &str| equal_value(&equalities, path, has_simple_collation);
        let known = self.fields.iter().take_while(|f| value(&f.path).is_some());
        let count = known.count();
        if count == 0 {
            return None;
        }
        let prefix = KeyBytes::built(&self.build(|field| value(&field.path), count)?);
        let max = prefix.after();
        Some(ChunkRange { min: prefix, max })
    }

    /// The key of the document that a replacement leaves or makes: its own, but for an `_id` that
    /// only the filter names.
    ///
    /// # Errors
    /// As [`ShardKeyPattern::key_of`].
    pub fn key_of_replacement(
        &self,
        filter: &RawDocument,
        replacement: &RawDocument,
    ) -> Result<KeyBytes> {
        let has_id = pinion_bson::get(replacement, "_id").is_some();
        let needs_id = self
            .fields
            .iter()
            .any(|field| field.path == "_id" || field.path.starts_with("_id."));
        if has_id || !needs_id {
            return self.key_of(replacement);
        }
        let equalities = equalities_of(filter);
        let Some(id) = equal_value(&equalities, "_id", true) else {
            return self.key_of(replacement);
        };
        let mut whole = pinion_bson::DocBuilder::with_capacity(replacement.as_bytes().len());
        whole.append_raw("_id", id).append_all(replacement);
        self.key_of(&whole.finish())
    }
}

/// The one value that a path has in each document matched; `None` where several are named, or it
/// is no value of a key.
fn equal_value<'a>(
    equalities: &Equalities<'a>,
    path: &str,
    has_simple_collation: bool,
) -> Option<RawBsonRef<'a>> {
    let mut found: Option<RawBsonRef<'a>> = None;
    for (name, value) in equalities {
        let value = if *name == path {
            *value
        } else {
            // The whole of a document around it is named.
            let Some(rest) = path.strip_prefix(name).and_then(|r| r.strip_prefix('.')) else {
                continue;
            };
            match value {
                RawBsonRef::Document(outer) => match value_at(outer, rest) {
                    Found::Value(value) => value,
                    Found::Missing | Found::Array => return None,
                },
                _ => return None,
            }
        };
        if found.is_some_and(|other| !pinion_bson::values_equal(other, value)) {
            return None;
        }
        found = Some(value);
    }
    found.filter(|value| is_key_value(*value) && (has_simple_collation || !has_strings(*value)))
}

fn equalities_of(filter: &RawDocument) -> Equalities<'_> {
    let mut out = Vec::new();
    add_equalities(filter, &mut out);
    out
}

fn add_equalities<'a>(filter: &'a RawDocument, out: &mut Equalities<'a>) {
    for (name, value) in pinion_bson::elements(filter) {
        match (name, value) {
            ("$and", RawBsonRef::Array(parts)) => {
                for part in pinion_bson::values(parts) {
                    if let RawBsonRef::Document(part) = part {
                        add_equalities(part, out);
                    }
                }
            }
            ("$or", RawBsonRef::Array(parts)) => {
                let mut parts = pinion_bson::values(parts);
                if let (Some(RawBsonRef::Document(only)), None) = (parts.next(), parts.next()) {
                    add_equalities(only, out);
                }
            }
            (operator, _) if operator.starts_with('$') => {}
            (path, RawBsonRef::Document(inner)) if is_operators(inner) => {
                add_operators(path, inner, out);
            }
            (_, RawBsonRef::RegularExpression(_)) => {}
            (path, value) => out.push((path, value)),
        }
    }
}

fn add_operators<'a>(path: &'a str, operators: &'a RawDocument, out: &mut Equalities<'a>) {
    for (name, value) in pinion_bson::elements(operators) {
        match (name, value) {
            ("$eq", value) => out.push((path, value)),
            ("$in", RawBsonRef::Array(values)) => {
                let mut values = pinion_bson::values(values);
                if let (Some(only), None) = (values.next(), values.next()) {
                    out.push((path, only));
                }
            }
            _ => {}
        }
    }
}

/// Whether a field's value is made of operators: a DBRef is none.
fn is_operators(document: &RawDocument) -> bool {
    match pinion_bson::elements(document).next() {
        Some((name, _)) => name.starts_with('$') && !matches!(name, "$ref" | "$id" | "$db"),
        None => false,
    }
}
