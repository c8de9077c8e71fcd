//! Application of a difference in the delta form of oplog entries; see `diff.rs` for the form.

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, RawElems};
use pinion_wire::Result;
use rustc_hash::FxHashMap;

use crate::error::error;
use crate::value::{elements, field};

fn malformed(what: &str) -> pinion_wire::Error {
    error(4770500, format!("malformed oplog diff: {what}"))
}

/// The document that `diff` (the whole `{$v: 2, diff: ...}`, or its `diff` alone) makes of `old`.
///
/// # Errors
/// 4770500 for what is no diff.
pub fn apply_diff(old: &RawDocument, diff: &RawDocument) -> Result<RawDocumentBuf> {
    apply_document(old, sections_of(diff)?)
}

/// The sections of a diff. Older programs wrote the whole `{$v: 2, diff: ...}` into the field
/// `diff` of such a document.
pub(crate) fn sections_of(diff: &RawDocument) -> Result<&RawDocument> {
    match (field(diff, "$v"), field(diff, "diff")) {
        (Some(RawBsonRef::Int32(2)), Some(RawBsonRef::Document(sections))) => {
            match (field(sections, "$v"), field(sections, "diff")) {
                (Some(RawBsonRef::Int32(2)), Some(RawBsonRef::Document(inner))) => Ok(inner),
                _ => Ok(sections),
            }
        }
        (None, _) => Ok(diff),
        _ => Err(malformed("not of version 2")),
    }
}

/// This many names are looked through one after the other.
const FEW_NAMES: usize = 16;

/// Values by their names. Each is looked for once for every field of a document, so that many need
/// a table.
struct Named<'d> {
    values: Vec<(&'d str, RawBsonRef<'d>)>,
    places: FxHashMap<&'d str, usize>,
    was_found: Vec<bool>,
}

impl<'d> Named<'d> {
    fn new(values: Vec<(&'d str, RawBsonRef<'d>)>) -> Named<'d> {
        let mut places = FxHashMap::default();
        if values.len() > FEW_NAMES {
            for (at, (name, _)) in values.iter().enumerate() {
                places.entry(*name).or_insert(at);
            }
        }
        let was_found = vec![false; values.len()];
        Named {
            values,
            places,
            was_found,
        }
    }

    fn section(diff: &'d RawDocument, name: &str) -> Result<Named<'d>> {
        match field(diff, name) {
            Some(RawBsonRef::Document(section)) => Ok(Named::new(elements(section).collect())),
            Some(_) => Err(malformed("a section is not a document")),
            None => Ok(Named::new(Vec::new())),
        }
    }

    /// The differences of the values of fields.
    fn nested(diff: &'d RawDocument) -> Named<'d> {
        let nested = elements(diff);
        let nested = nested.filter_map(|(name, value)| Some((name.strip_prefix('s')?, value)));
        Named::new(nested.collect())
    }

    fn find(&mut self, name: &str) -> Option<RawBsonRef<'d>> {
        let at = match self.values.len() > FEW_NAMES {
            true => self.places.get(name).copied(),
            false => self.values.iter().position(|(other, _)| *other == name),
        }?;
        self.was_found[at] = true;
        Some(self.values[at].1)
    }

    /// Those that no field has.
    fn rest(&self) -> impl Iterator<Item = (&'d str, RawBsonRef<'d>)> {
        let values = self.values.iter().zip(&self.was_found);
        values
            .filter(|(_, was_found)| !**was_found)
            .map(|(value, _)| *value)
    }
}

fn apply_document(old: &RawDocument, diff: &RawDocument) -> Result<RawDocumentBuf> {
    let mut deletes = Named::section(diff, "d")?;
    let mut updates = Named::section(diff, "u")?;
    let mut inserts = Named::section(diff, "i")?;
    let mut nested = Named::nested(diff);
    let mut out = DocBuilder::with_capacity(old.as_bytes().len() + diff.as_bytes().len());
    for elem in RawElems::new(old.as_bytes()) {
        let name = elem.name_str().unwrap_or_default();
        let updated = updates.find(name);
        if deletes.find(name).is_some() || inserts.find(name).is_some() {
            continue;
        }
        if let Some(value) = updated {
            out.append(name, value);
            continue;
        }
        match nested.find(name) {
            Some(RawBsonRef::Document(nested)) => {
                let value = apply_nested(elem.to_value(), nested)?;
                out.append(name, value.as_raw_bson_ref());
            }
            Some(_) => return Err(malformed("a difference is not a document")),
            None => {
                out.append_elem(&elem);
            }
        }
    }
    // An update of a field that is not there makes it, so that an entry can be applied twice.
    for (name, value) in updates.rest() {
        out.append(name, value);
    }
    for (name, value) in &inserts.values {
        out.append(name, *value);
    }
    Ok(out.finish())
}

fn apply_nested(old: Option<RawBsonRef<'_>>, diff: &RawDocument) -> Result<RawBson> {
    if field(diff, "a") == Some(RawBsonRef::Boolean(true)) {
        let old: Vec<RawBsonRef<'_>> = match old {
            Some(RawBsonRef::Array(array)) => crate::value::items(array).collect(),
            _ => Vec::new(),
        };
        return apply_array(old, diff);
    }
    let empty = RawDocumentBuf::new();
    let old = match old {
        Some(RawBsonRef::Document(document)) => document,
        _ => &*empty,
    };
    Ok(RawBson::Document(apply_document(old, diff)?))
}

fn apply_array(old: Vec<RawBsonRef<'_>>, diff: &RawDocument) -> Result<RawBson> {
    let mut values: Vec<RawBson> = old.into_iter().map(RawBson::from).collect();
    for (name, value) in elements(diff) {
        if name == "a" {
            continue;
        }
        if name == "l" {
            let len = crate::number::exact_i64(value).and_then(|l| usize::try_from(l).ok());
            values.truncate(len.ok_or_else(|| malformed("a negative length"))?);
            continue;
        }
        let mut chars = name.chars();
        let kind = chars.next();
        let index: usize = chars
            .as_str()
            .parse()
            .map_err(|_| malformed("an entry of an array has no index"))?;
        if index
            > values
                .len()
                .saturating_add(crate::limits::MAX_ARRAY_PADDING)
        {
            return Err(malformed("an index is out of range"));
        }
        if values.len() <= index {
            values.resize(index + 1, RawBson::Null);
        }
        values[index] = match (kind, value) {
            (Some('u'), value) => value.into(),
            (Some('s'), RawBsonRef::Document(nested)) => {
                apply_nested(Some(values[index].as_raw_bson_ref()), nested)?
            }
            _ => return Err(malformed("an unknown entry of an array")),
        };
    }
    Ok(super::array::build(&values))
}
