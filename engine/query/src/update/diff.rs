//! The difference of two documents in the delta form of oplog entries, and its application.
//!
//! `{$v: 2, diff: {...}}` where a document's diff has the sections `d` (deleted fields), `u` (changed values), `i` (new
//! fields, in their order) and `s<field>` (a diff of a nested value); an array's has `a: true`, `l` (the new length) and
//! `u<index>` and `s<index>` entries.

use pinion_bson::{
    DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, RawElem, RawElems,
};
use pinion_wire::Result;
use rustc_hash::FxHashMap;

use crate::error::error;
use crate::value::{array_document, elements, field};

/// What turns `old` into `new`; `None` when that would be no smaller than `new` itself, which is then logged whole.
pub fn diff(old: &RawDocument, new: &RawDocument) -> Option<RawDocumentBuf> {
    let mut out = DocBuilder::new();
    out.append("$v", RawBsonRef::Int32(2));
    let sections = document_diff(old, new)?;
    out.append("diff", RawBsonRef::Document(&sections));
    let entry = out.finish();
    if entry.as_bytes().len() >= new.as_bytes().len() {
        None
    } else {
        Some(entry)
    }
}

/// Whether two fields hold the same bytes.
fn same(a: &RawElem<'_>, b: &RawElem<'_>) -> bool {
    a.kind == b.kind && a.value == b.value
}

/// Where the fields of a document are by their names.
struct Places<'a> {
    fields: &'a [RawElem<'a>],
    /// The first and the last of a name; empty where the fields are few enough to be looked through.
    by_name: FxHashMap<&'a [u8], (usize, usize)>,
}

/// So many fields are looked through one after the other.
const FEW_FIELDS: usize = 32;

impl<'a> Places<'a> {
    fn of(fields: &'a [RawElem<'a>]) -> Places<'a> {
        let mut by_name = FxHashMap::default();
        if fields.len() > FEW_FIELDS {
            for (at, field) in fields.iter().enumerate() {
                by_name.entry(field.name).or_insert((at, at)).1 = at;
            }
        }
        Places { fields, by_name }
    }

    /// The first and the last place of a name.
    fn of_name(&self, name: &[u8]) -> Option<(usize, usize)> {
        if self.fields.len() > FEW_FIELDS {
            return self.by_name.get(name).copied();
        }
        let is_it = |field: &RawElem<'_>| field.name == name;
        let first = self.fields.iter().position(is_it)?;
        Some((first, self.fields.iter().rposition(is_it)?))
    }
}

fn document_diff(old: &RawDocument, new: &RawDocument) -> Option<RawDocumentBuf> {
    let old: Vec<RawElem<'_>> = RawElems::new(old.as_bytes()).collect();
    let new: Vec<RawElem<'_>> = RawElems::new(new.as_bytes()).collect();
    let mut deletes = DocBuilder::new();
    let mut updates = DocBuilder::new();
    let mut inserts = DocBuilder::new();
    let mut nested: Vec<(String, RawDocumentBuf)> = Vec::new();
    let (mut i, mut j) = (0, 0);
    // Fields that stay keep their order; what stands elsewhere now is deleted and inserted at the end.
    let places = Places::of(&new);
    while i < old.len() && j < new.len() {
        if old[i].name == new[j].name {
            field_diff(&old[i], &new[j], &mut updates, &mut nested)?;
            i += 1;
            j += 1;
        } else if places
            .of_name(old[i].name)
            .is_none_or(|(first, _)| first < j)
        {
            deletes.append(old[i].name_str()?, RawBsonRef::Boolean(false));
            i += 1;
        } else {
            // The new document has something in front of this field: what is left moves behind it.
            break;
        }
    }
    for elem in &old[i..] {
        let stays = places.of_name(elem.name).is_some_and(|(_, last)| last >= j);
        if !stays {
            deletes.append(elem.name_str()?, RawBsonRef::Boolean(false));
        }
    }
    for elem in &new[j..] {
        inserts.append_elem(elem);
    }
    let mut out = DocBuilder::new();
    for (name, section) in [("d", deletes), ("u", updates), ("i", inserts)] {
        if !section.is_empty() {
            let section = section.finish();
            out.append(name, RawBsonRef::Document(&section));
        }
    }
    for (name, diff) in &nested {
        out.append(&format!("s{name}"), RawBsonRef::Document(diff));
    }
    Some(out.finish())
}

fn field_diff(
    old: &RawElem<'_>,
    new: &RawElem<'_>,
    updates: &mut DocBuilder,
    nested: &mut Vec<(String, RawDocumentBuf)>,
) -> Option<()> {
    if same(old, new) {
        return Some(());
    }
    let name = new.name_str()?;
    if let Some(diff) = nested_diff(old, new) {
        nested.push((name.to_string(), diff));
    } else {
        updates.append_elem(new);
    }
    Some(())
}

/// The diff of two documents or arrays where it is smaller than the new value.
fn nested_diff(old: &RawElem<'_>, new: &RawElem<'_>) -> Option<RawDocumentBuf> {
    let diff = match (old.to_value()?, new.to_value()?) {
        (RawBsonRef::Document(a), RawBsonRef::Document(b)) => document_diff(a, b)?,
        (RawBsonRef::Array(a), RawBsonRef::Array(b)) => {
            array_diff(array_document(a), array_document(b))?
        }
        _ => return None,
    };
    (diff.as_bytes().len() < new.value.len()).then_some(diff)
}

fn array_diff(old: &RawDocument, new: &RawDocument) -> Option<RawDocumentBuf> {
    let old: Vec<RawElem<'_>> = RawElems::new(old.as_bytes()).collect();
    let new: Vec<RawElem<'_>> = RawElems::new(new.as_bytes()).collect();
    let mut out = DocBuilder::new();
    out.append("a", RawBsonRef::Boolean(true));
    if new.len() < old.len() {
        out.append("l", RawBsonRef::Int32(new.len() as i32));
    }
    for (index, elem) in new.iter().enumerate() {
        match old.get(index) {
            Some(before) if same(before, elem) => {}
            Some(before) => match nested_diff(before, elem) {
                Some(diff) => {
                    out.append(&format!("s{index}"), RawBsonRef::Document(&diff));
                }
                None => {
                    out.append_elem_as(&format!("u{index}"), elem);
                }
            },
            None => {
                out.append_elem_as(&format!("u{index}"), elem);
            }
        }
    }
    Some(out.finish())
}

fn malformed(what: &str) -> pinion_wire::Error {
    error(4770500, format!("malformed oplog diff: {what}"))
}

/// The document that `diff` (the whole `{$v: 2, diff: ...}`, or its `diff` alone) makes of `old`.
pub fn apply_diff(old: &RawDocument, diff: &RawDocument) -> Result<RawDocumentBuf> {
    let sections = match (field(diff, "$v"), field(diff, "diff")) {
        (Some(RawBsonRef::Int32(2)), Some(RawBsonRef::Document(sections))) => sections,
        (None, _) => diff,
        _ => return Err(malformed("not of version 2")),
    };
    apply_document(old, sections)
}

fn apply_document(old: &RawDocument, diff: &RawDocument) -> Result<RawDocumentBuf> {
    let empty = RawDocumentBuf::new();
    let section = |name: &str| match field(diff, name) {
        Some(RawBsonRef::Document(section)) => Ok(section),
        Some(_) => Err(malformed("a section is not a document")),
        None => Ok(&*empty),
    };
    let (deletes, updates, inserts) = (section("d")?, section("u")?, section("i")?);
    let mut out = DocBuilder::with_capacity(old.as_bytes().len() + diff.as_bytes().len());
    for elem in RawElems::new(old.as_bytes()) {
        let name = elem.name_str().unwrap_or_default();
        if field(deletes, name).is_some() || field(inserts, name).is_some() {
            continue;
        }
        if let Some(value) = field(updates, name) {
            out.append(name, value);
            continue;
        }
        match field(diff, &format!("s{name}")) {
            Some(RawBsonRef::Document(nested)) => {
                let value = apply_nested(elem.to_value(), nested)?;
                out.append(name, value.as_raw_bson_ref());
            }
            _ => {
                out.append_elem(&elem);
            }
        }
    }
    // An update of a field that is not there makes it, so that an entry can be applied twice.
    for (name, value) in elements(updates).filter(|(name, _)| field(old, name).is_none()) {
        out.append(name, value);
    }
    for (name, value) in elements(inserts) {
        out.append(name, value);
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
        if index > crate::limits::MAX_ARRAY_PADDING {
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

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawdoc;

    #[track_caller]
    fn check(old: RawDocumentBuf, new: RawDocumentBuf, expected: Option<RawDocumentBuf>) {
        let found = document_diff(&old, &new).expect("a diff");
        if let Some(expected) = expected {
            assert_eq!(found, expected, "{old:?} to {new:?}");
        }
        assert_eq!(
            apply_document(&old, &found).expect("applies"),
            new,
            "{old:?} with {found:?}"
        );
        let again = apply_document(&new, &found).expect("applies twice");
        assert_eq!(again, new, "{found:?} applied twice");
    }

    #[test]
    fn many_fields_are_found_as_few_are() {
        let made = |names: &[usize]| {
            let mut out = DocBuilder::new();
            for &name in names {
                out.append(&format!("field{name}"), name as i32);
            }
            out.finish()
        };
        let all: Vec<usize> = (0..3 * FEW_FIELDS).collect();
        let mut moved = all.clone();
        moved.swap(5, 70);
        let reversed: Vec<usize> = all.iter().rev().copied().collect();
        for new in [&moved, &reversed, &all[10..].to_vec(), &all[..40].to_vec()] {
            check(made(&all), made(new), None);
            check(made(new), made(&all), None);
        }
        let (few, many) = (made(&all[..FEW_FIELDS]), made(&all[..=FEW_FIELDS]));
        for document in [&few, &many] {
            let fields: Vec<RawElem<'_>> = RawElems::new(document.as_bytes()).collect();
            let places = Places::of(&fields);
            assert_eq!(places.of_name(b"field7"), Some((7, 7)));
            assert_eq!(places.of_name(b"field"), None);
        }
    }

    #[test]
    fn sections() {
        check(rawdoc! { "a": 1 }, rawdoc! { "a": 1 }, Some(rawdoc! {}));
        check(
            rawdoc! { "a": 1, "b": 2 },
            rawdoc! { "a": 1, "b": 3 },
            Some(rawdoc! { "u": { "b": 3 } }),
        );
        check(
            rawdoc! { "a": 1 },
            rawdoc! { "a": 1, "c": 3 },
            Some(rawdoc! { "i": { "c": 3 } }),
        );
        check(
            rawdoc! { "a": 1, "b": 2 },
            rawdoc! { "b": 2 },
            Some(rawdoc! { "d": { "a": false } }),
        );
        check(rawdoc! { "a": 1, "b": 2 }, rawdoc! { "b": 2, "a": 1 }, None);
        check(
            rawdoc! { "a": 1, "b": 2, "c": 3 },
            rawdoc! { "x": 0, "a": 1, "c": 3, "b": 2 },
            None,
        );
        check(
            rawdoc! { "o": { "long": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "n": 1 } },
            rawdoc! { "o": { "long": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "n": 2 } },
            Some(rawdoc! { "so": { "u": { "n": 2 } } }),
        );
        check(
            rawdoc! { "l": ["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 1, 2] },
            rawdoc! { "l": ["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", 5] },
            Some(rawdoc! { "sl": { "a": true, "l": 2, "u1": 5 } }),
        );
        check(
            rawdoc! { "l": [{ "k": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "n": 1 }] },
            rawdoc! { "l": [{ "k": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "n": 2 }, 7] },
            Some(rawdoc! { "sl": { "a": true, "s0": { "u": { "n": 2 } }, "u1": 7 } }),
        );
    }
}
