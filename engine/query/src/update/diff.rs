//! The difference of two documents in the delta form of oplog entries.
//!
//! `{$v: 2, diff: {...}}` where a document's diff has the sections `d` (deleted fields), `u`
//! (changed values), `i` (new fields, in their order) and `s<field>` (a diff of a nested value); an
//! array's has `a: true`, `l` (the new length) and `u<index>` and `s<index>` entries.

use std::cell::OnceCell;

use pinion_bson::{
    DocBuilder, MAX_USER_DOCUMENT_BYTES, RawBsonRef, RawDocument, RawDocumentBuf, RawElem, RawElems,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::parse::Entry;
use super::path::Part;
use super::{Kind, Update};
use crate::limits::MAX_FOLLOWED_PATHS;
use crate::value::array_document;

/// The `o` of an entry, `{$v: 2, diff}`, that turns `old` into `new`; `None` when that would be no
/// smaller than `new` itself, which is then logged whole.
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
    /// The `o` of an entry of this update, which made `new` of `old`; `None` where the new document
    /// is logged whole. Of operators there is always a diff that an entry has room for, unless what
    /// they change is a field whose name the document has twice. It names what they name: change
    /// streams describe an update by it.
    pub fn diff(&self, old: &RawDocument, new: &RawDocument) -> Option<RawDocumentBuf> {
        match &self.kind {
            Kind::Replacement(_) | Kind::Logged(_) => None,
            Kind::Pipeline(_) | Kind::Diff(_) => diff(old, new),
            Kind::Operators { entries, .. } => {
                // That many are not followed; what they name is found by what they have changed.
                let paths = match entries.len() <= MAX_FOLLOWED_PATHS {
                    true => entries.iter().map(Reach::of).collect(),
                    false => Vec::new(),
                };
                let sections = document_diff(old, new, &Guide::Paths(paths))?;
                // Names of many items make a diff larger than what they are in, which an entry may
                // not have room for.
                let entry = entry_of(sections);
                match entry.as_bytes().len() <= MAX_USER_DOCUMENT_BYTES {
                    true => Some(entry),
                    false => diff(old, new),
                }
            }
        }
    }
}

/// Where an operator reaches, below some place.
#[derive(Clone, Copy)]
struct Reach<'u> {
    path: &'u [Part],
    /// It adds items at the end of the array there, and does nothing else.
    appends: bool,
}

impl<'u> Reach<'u> {
    fn of(entry: &'u Entry) -> Reach<'u> {
        Reach {
            path: entry.path.parts(),
            appends: entry.operator.appends(),
        }
    }
}

/// How far down a diff goes.
enum Guide<'u> {
    /// As far as that makes it smaller.
    Size,
    /// As far as operators reach. Below that nothing is taken apart.
    Paths(Vec<Reach<'u>>),
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
        let below = paths
            .iter()
            .filter_map(|reach| match reach.path.split_first() {
                Some((first, path)) if leads(first) => Some(Reach { path, ..*reach }),
                _ => None,
            });
        Guide::Paths(below.collect())
    }

    /// The operator that names this very place: there is one at most.
    fn end(&self) -> Option<Reach<'u>> {
        match self {
            Guide::Size => None,
            Guide::Paths(paths) => paths.iter().find(|reach| reach.path.is_empty()).copied(),
        }
    }

    /// The indexes that operators name in an array; `None` where they name all of its items, or
    /// none is known.
    fn indexes(&self) -> Option<FxHashSet<usize>> {
        let Guide::Paths(paths) = self else {
            return None;
        };
        let index = |reach: &Reach<'_>| match reach.path.first() {
            Some(Part::Name(name)) => name.parse().ok(),
            _ => None,
        };
        paths.iter().map(index).collect()
    }
}

/// Whether two fields hold the same bytes.
fn same(a: &RawElem<'_>, b: &RawElem<'_>) -> bool {
    a.kind == b.kind && a.value == b.value
}

/// Where the fields of a document are by their names.
struct Places<'a> {
    fields: &'a [RawElem<'a>],
    /// The first and the last of a name. Fields that are few are looked through instead.
    by_name: OnceCell<FxHashMap<&'a [u8], (usize, usize)>>,
}

/// This many fields are looked through one after the other.
const FEW_FIELDS: usize = 32;

impl<'a> Places<'a> {
    fn of(fields: &'a [RawElem<'a>]) -> Places<'a> {
        Places {
            fields,
            by_name: OnceCell::new(),
        }
    }

    /// The first and the last place of a name.
    fn of_name(&self, name: &[u8]) -> Option<(usize, usize)> {
        if self.fields.len() > FEW_FIELDS {
            let by_name = self.by_name.get_or_init(|| {
                let mut by_name = FxHashMap::default();
                for (at, field) in self.fields.iter().enumerate() {
                    by_name.entry(field.name).or_insert((at, at)).1 = at;
                }
                by_name
            });
            return by_name.get(name).copied();
        }
        let is_it = |field: &RawElem<'_>| field.name == name;
        let first = self.fields.iter().position(is_it)?;
        Some((first, self.fields.iter().rposition(is_it)?))
    }

    /// Whether the field at this place is the only one of its name.
    fn is_only(&self, at: usize) -> bool {
        self.of_name(self.fields[at].name) == Some((at, at))
    }
}

/// The sections that turn `old` into `new`; `None` where no sections do: they identify fields by
/// their names, so what changes must have a name of its own.
fn document_diff(
    old: &RawDocument,
    new: &RawDocument,
    guide: &Guide<'_>,
) -> Option<RawDocumentBuf> {
    let old: Vec<RawElem<'_>> = RawElems::new(old.as_bytes()).collect();
    let new: Vec<RawElem<'_>> = RawElems::new(new.as_bytes()).collect();
    let (places_before, places) = (Places::of(&old), Places::of(&new));
    let mut deletes = DocBuilder::new();
    let mut updates = DocBuilder::new();
    let mut inserts = DocBuilder::new();
    let mut nested: Vec<(&str, RawDocumentBuf)> = Vec::new();
    let (mut i, mut j) = (0, 0);
    // Fields that stay keep their order; what stands elsewhere now is deleted and inserted at the
    // end.
    while i < old.len() && j < new.len() {
        if old[i].name == new[j].name {
            if !same(&old[i], &new[j]) {
                if !places_before.is_only(i) || !places.is_only(j) {
                    return None;
                }
                let name = new[j].name_str()?;
                match nested_diff(&old[i], &new[j], &guide.below(name, false)) {
                    Some(diff) => nested.push((name, diff)),
                    None => {
                        updates.append_elem(&new[j]);
                    }
                }
            }
            i += 1;
            j += 1;
        } else if places
            .of_name(old[i].name)
            .is_none_or(|(first, _)| first < j)
        {
            append_deleted(i, &places_before, &mut deletes)?;
            i += 1;
        } else {
            // The new document has something in front of this field: what is left moves behind it.
            break;
        }
    }
    for (at, elem) in old.iter().enumerate().skip(i) {
        let stays = places.of_name(elem.name).is_some_and(|(_, last)| last >= j);
        if !stays {
            append_deleted(at, &places_before, &mut deletes)?;
        }
    }
    for (at, elem) in new.iter().enumerate().skip(j) {
        if !places.is_only(at) {
            return None;
        }
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

fn append_deleted(at: usize, places: &Places<'_>, deletes: &mut DocBuilder) -> Option<()> {
    if !places.is_only(at) {
        return None;
    }
    deletes.append(places.fields[at].name_str()?, RawBsonRef::Boolean(false));
    Some(())
}

/// The diff of two documents or arrays, where the guide leads into them.
fn nested_diff(old: &RawElem<'_>, new: &RawElem<'_>, guide: &Guide<'_>) -> Option<RawDocumentBuf> {
    let end = guide.end();
    let diff = match (old.to_value()?, new.to_value()?) {
        (RawBsonRef::Document(a), RawBsonRef::Document(b)) if end.is_none() => {
            document_diff(a, b, guide)?
        }
        (RawBsonRef::Array(a), RawBsonRef::Array(b)) => {
            let (a, b) = (array_document(a), array_document(b));
            if end.is_some_and(|end| !end.appends || !is_appended(a, b)) {
                return None;
            }
            array_diff(a, b, guide)
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

fn array_diff(old: &RawDocument, new: &RawDocument, guide: &Guide<'_>) -> RawDocumentBuf {
    let old: Vec<RawElem<'_>> = RawElems::new(old.as_bytes()).collect();
    let new: Vec<RawElem<'_>> = RawElems::new(new.as_bytes()).collect();
    let mut out = DocBuilder::new();
    out.append("a", RawBsonRef::Boolean(true));
    if new.len() < old.len() {
        out.append("l", RawBsonRef::Int32(new.len() as i32));
    }
    // In front of an item that an operator puts behind the end there are nulls, which no operator
    // has named.
    let named = match new.len() > old.len() + 1 && guide.end().is_none() {
        true => guide.indexes(),
        false => None,
    };
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
                let is_padding = index + 1 < new.len()
                    && elem.to_value() == Some(RawBsonRef::Null)
                    && named.as_ref().is_some_and(|named| !named.contains(&index));
                if !is_padding {
                    out.append_elem_as(&format!("u{index}"), elem);
                }
            }
        }
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::update::apply_diff;
    use pinion_bson::rawdoc;

    #[track_caller]
    fn check(old: RawDocumentBuf, new: RawDocumentBuf, expected: Option<RawDocumentBuf>) {
        let found = document_diff(&old, &new, &Guide::Size).expect("a diff");
        if let Some(expected) = expected {
            assert_eq!(found, expected, "{old:?} to {new:?}");
        }
        assert_eq!(
            apply_diff(&old, &found).expect("applies"),
            new,
            "{old:?} with {found:?}"
        );
        let again = apply_diff(&new, &found).expect("applies twice");
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
