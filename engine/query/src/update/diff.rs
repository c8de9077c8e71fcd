//! The difference of two documents in the delta form of oplog entries, and its application.
//!
//! `{$v: 2, diff: {...}}` where a document's diff has the sections `d` (deleted fields), `u` (changed values), `i` (new
//! fields, in their order) and `s<field>` (a diff of a nested value); an array's has `a: true`, `l` (the new length) and
//! `u<index>` and `s<index>` entries.

use pinion_bson::{
    DocBuilder, MAX_USER_DOCUMENT_BYTES, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, RawElem,
    RawElems,
};
use pinion_wire::Result;
use rustc_hash::FxHashMap;

use super::path::Part;
use super::{Kind, Update};
use crate::error::error;
use crate::limits::MAX_FOLLOWED_PATHS;
use crate::value::{array_document, elements, field};

/// The `o` of an entry, `{$v: 2, diff}`, that turns `old` into `new`; `None` when that would be no smaller than `new` itself,
/// which is then logged whole.
pub fn diff(old: &RawDocument, new: &RawDocument) -> Option<RawDocumentBuf> {
    let entry = entry_of(document_diff(old, new, &Guide::Size)?);
    (entry.as_bytes().len() < new.as_bytes().len()).then_some(entry)
}

fn entry_of(sections: RawDocumentBuf) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("$v", RawBsonRef::Int32(2));
    out.append("diff", RawBsonRef::Document(&sections));
    out.finish()
}

impl Update {
    /// The `o` of an entry of this update, which made `new` of `old`; `None` where the new document is logged whole. Of
    /// operators there is always a diff, and it names what they name: change streams tell of an update by it.
    pub fn diff(&self, old: &RawDocument, new: &RawDocument) -> Option<RawDocumentBuf> {
        match &self.kind {
            Kind::Replacement(_) => None,
            Kind::Pipeline(_) | Kind::Diff(_) => diff(old, new),
            Kind::Operators { entries, .. } => {
                // That many are not followed; what they name is found by what they have changed.
                let paths = match entries.len() <= MAX_FOLLOWED_PATHS {
                    true => entries.iter().map(|entry| entry.path.parts()).collect(),
                    false => Vec::new(),
                };
                let sections = document_diff(old, new, &Guide::Paths(paths))?;
                // Names of many items make a diff larger than what they are in, which an entry may not have room for.
                let entry = entry_of(sections);
                (entry.as_bytes().len() <= MAX_USER_DOCUMENT_BYTES).then_some(entry)
            }
        }
    }
}

/// How far down a diff goes.
enum Guide<'u> {
    /// As far as that makes it smaller.
    Size,
    /// As far as operators reach: the ends of their paths below the present place. Below that nothing is taken apart.
    Paths(Vec<&'u [Part]>),
}

impl<'u> Guide<'u> {
    /// The guide below a field, or below an item of an array.
    fn below(&self, name: &str, is_item: bool) -> Guide<'u> {
        let Guide::Paths(paths) = self else {
            return Guide::Size;
        };
        let leads = |part: &Part| match part {
            Part::Name(part) => **part == *name,
            Part::Matched | Part::All | Part::Filtered(_) => is_item,
        };
        let below = paths.iter().filter_map(|path| match path.split_first() {
            Some((first, rest)) if leads(first) => Some(rest),
            _ => None,
        });
        Guide::Paths(below.collect())
    }

    /// Whether an operator names this very place.
    fn ends_here(&self) -> bool {
        matches!(self, Guide::Paths(paths) if paths.iter().any(|path| path.is_empty()))
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

fn document_diff(
    old: &RawDocument,
    new: &RawDocument,
    guide: &Guide<'_>,
) -> Option<RawDocumentBuf> {
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
            field_diff(&old[i], &new[j], guide, &mut updates, &mut nested)?;
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
    guide: &Guide<'_>,
    updates: &mut DocBuilder,
    nested: &mut Vec<(String, RawDocumentBuf)>,
) -> Option<()> {
    if same(old, new) {
        return Some(());
    }
    let name = new.name_str()?;
    if let Some(diff) = nested_diff(old, new, &guide.below(name, false)) {
        nested.push((name.to_string(), diff));
    } else {
        updates.append_elem(new);
    }
    Some(())
}

/// The diff of two documents or arrays, where the guide leads into them.
fn nested_diff(old: &RawElem<'_>, new: &RawElem<'_>, guide: &Guide<'_>) -> Option<RawDocumentBuf> {
    let ends = guide.ends_here();
    let diff = match (old.to_value()?, new.to_value()?) {
        (RawBsonRef::Document(a), RawBsonRef::Document(b)) if !ends => document_diff(a, b, guide)?,
        (RawBsonRef::Array(a), RawBsonRef::Array(b)) => {
            let (a, b) = (array_document(a), array_document(b));
            if ends && !is_appended(a, b) {
                return None;
            }
            array_diff(a, b, guide)?
        }
        _ => return None,
    };
    let is_wanted = match guide {
        Guide::Size => diff.as_bytes().len() < new.value.len(),
        Guide::Paths(_) => true,
    };
    is_wanted.then_some(diff)
}

/// Whether an array has become another one by more items at its end alone.
fn is_appended(old: &RawDocument, new: &RawDocument) -> bool {
    let mut new = RawElems::new(new.as_bytes());
    RawElems::new(old.as_bytes()).all(|before| new.next().is_some_and(|now| same(&before, &now)))
}

fn array_diff(old: &RawDocument, new: &RawDocument, guide: &Guide<'_>) -> Option<RawDocumentBuf> {
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
            Some(before) => match nested_diff(before, elem, &guide.below(&index.to_string(), true))
            {
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
    apply_document(old, sections_of(diff)?)
}

/// The sections of a diff. Older programs wrote the whole `{$v: 2, diff: ...}` into the field `diff` of such a document.
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
        let found = document_diff(&old, &new, &Guide::Size).expect("a diff");
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
    fn what_operators_name_is_in_their_diff() {
        let check = |old: RawDocumentBuf, update: RawDocumentBuf, expected: RawDocumentBuf| {
            let parsed = Update::parse(RawBsonRef::Document(&update)).expect("an update");
            let context = super::super::UpdateContext {
                now_ms: 0,
                timestamp: pinion_bson::Timestamp {
                    time: 1,
                    increment: 1,
                },
                insert: false,
                position: None,
            };
            let new = parsed
                .apply(&old, &context)
                .expect("applies")
                .expect("changes");
            let o = parsed.diff(&old, &new).expect("a diff");
            let entry = rawdoc! { "$v": 2, "diff": expected };
            assert_eq!(o, entry, "{old:?} by {update:?}");
            assert_eq!(apply_diff(&old, &o).expect("applies"), new);
            // As older programs have it.
            let nested = rawdoc! { "$v": 2, "diff": o };
            assert_eq!(apply_diff(&old, &nested).expect("applies"), new);
        };
        check(
            rawdoc! { "_id": 1, "a": 1 },
            rawdoc! { "$inc": { "a": 1 } },
            rawdoc! { "u": { "a": 2 } },
        );
        check(
            rawdoc! { "_id": 1, "a": { "b": 1 } },
            rawdoc! { "$set": { "a.b": 2, "a.c": 3 } },
            rawdoc! { "sa": { "u": { "b": 2 }, "i": { "c": 3 } } },
        );
        check(
            rawdoc! { "_id": 1, "a": { "b": 1, "c": 2 } },
            rawdoc! { "$set": { "a": { "b": 1, "c": 3 } } },
            rawdoc! { "u": { "a": { "b": 1, "c": 3 } } },
        );
        check(
            rawdoc! { "_id": 1, "l": [1, 2] },
            rawdoc! { "$push": { "l": 3 } },
            rawdoc! { "sl": { "a": true, "u2": 3 } },
        );
        check(
            rawdoc! { "_id": 1, "l": [1, 2, 3] },
            rawdoc! { "$pull": { "l": 2 } },
            rawdoc! { "u": { "l": [1, 3] } },
        );
        check(
            rawdoc! { "_id": 1, "l": [{ "n": 1, "m": 1 }, { "n": 1 }] },
            rawdoc! { "$set": { "l.$[].n": 2, "l.1.k": 3 }, "$unset": { "l.0.m": 1 } },
            rawdoc! { "sl": { "a": true, "s0": { "d": { "m": false }, "u": { "n": 2 } }, "s1": { "u": { "n": 2 }, "i": { "k": 3 } } } },
        );
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
