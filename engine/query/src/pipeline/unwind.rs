//! `$unwind`

use pinion_bson::{
    DocBuilder, ElementType, RawBsonRef, RawDocument, RawDocumentBuf, RawElem, RawElems,
};
use pinion_wire::Result;

use smallvec::SmallVec;

use super::Document;
use super::step::{Accepted, Produced, Step};
use crate::error::error;
use crate::expression::check_field_path;
use crate::value::{elements, is_nullish, type_name};
use crate::work::{ITEM, spend, spend_bytes};

/// A document that one value makes is given this much room at once, if the one it comes from has as
/// much.
const EXPECTED_BYTES: usize = 4096;

/// The stage's parsed specification.
#[derive(Clone, Debug)]
pub(super) struct Unwind {
    path: Vec<String>,
    index: Option<Vec<String>>,
    preserve: bool,
}

impl Unwind {
    pub(super) fn parse(spec: RawBsonRef<'_>) -> Result<Unwind> {
        let (mut path, mut index, mut preserve) = (None, None, false);
        match spec {
            RawBsonRef::String(text) => path = Some(text),
            RawBsonRef::Document(document) => {
                for (name, value) in elements(document) {
                    match (name, value) {
                        ("path", RawBsonRef::String(text)) => path = Some(text),
                        ("path", other) => {
                            return Err(error(
                                28808,
                                format!(
                                    "expected a string as the path for $unwind stage, got {}",
                                    type_name(other)
                                ),
                            ));
                        }
                        ("preserveNullAndEmptyArrays", RawBsonRef::Boolean(value)) => {
                            preserve = value
                        }
                        ("preserveNullAndEmptyArrays", other) => {
                            return Err(error(
                                28809,
                                format!(
                                    "expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage, got {}",
                                    type_name(other)
                                ),
                            ));
                        }
                        ("includeArrayIndex", RawBsonRef::String(text)) if !text.is_empty() => {
                            index = Some(text)
                        }
                        ("includeArrayIndex", other) => {
                            return Err(error(
                                28810,
                                format!(
                                    "expected a non-empty string for the includeArrayIndex  option to $unwind stage, got {}",
                                    type_name(other)
                                ),
                            ));
                        }
                        _ => {
                            return Err(error(
                                28811,
                                format!("unrecognized option to $unwind stage: {name}"),
                            ));
                        }
                    }
                }
            }
            other => {
                return Err(error(
                    15981,
                    format!(
                        "expected either a string or an object as specification for $unwind stage, got {}",
                        type_name(other)
                    ),
                ));
            }
        }
        let path = path
            .filter(|p| !p.is_empty())
            .ok_or_else(|| error(28812, "no path specified to $unwind stage"))?;
        let Some(path) = path.strip_prefix('$') else {
            return Err(error(
                28818,
                format!("path option to $unwind stage should be prefixed with a '$': {path}"),
            ));
        };
        if path.contains('\0') {
            return Err(error(
                16419,
                "field path must not contain embedded null characters",
            ));
        }
        check_field_path(path)?;
        if let Some(index) = index {
            if index.starts_with('$') {
                return Err(error(
                    28822,
                    format!(
                        "includeArrayIndex option to $unwind stage should not be prefixed with a '$': {index}"
                    ),
                ));
            }
            check_field_path(index)?;
        }
        let split = |text: &str| text.split('.').map(String::from).collect::<Vec<_>>();
        Ok(Unwind {
            path: split(path),
            index: index.map(split),
            preserve,
        })
    }
}

/// `$unwind` at work.
#[derive(Debug)]
pub(super) struct Unwinding {
    unwind: Unwind,
    /// The document whose array gives an item at a time.
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    document: Document,
    place: Place,
    /// Where in the array the next item is, by bytes and by items.
    position: usize,
    index: i64,
}

impl Unwinding {
    pub(super) fn new(unwind: Unwind) -> Unwinding {
        Unwinding {
            unwind,
            current: None,
        }
    }
}

impl Step for Unwinding {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        let place = Place::find(document, &self.unwind.path)?;
        let found = place.as_ref().and_then(|place| place.element(document));
        match (place, found) {
            (Some(place), Some(found)) if found.kind == ElementType::Array => {
                let position = RawElems::new(found.value).position();
                if RawElems::new(found.value).next().is_some() {
                    self.current = Some(Current {
                        document: document.clone(),
                        place,
                        position,
                        index: 0,
                    });
                    return Ok(Accepted::Gives);
                }
                if !self.unwind.preserve {
                    return Ok(Accepted::Kept);
                }
                spend_bytes(document.as_bytes().len())?;
                let without = place.replaced(document, None);
                Ok(Accepted::Made(self.unwind.with_index(without, None).into()))
            }
            (_, found) => {
                let nullish = found
                    .and_then(|found| found.to_value())
                    .is_none_or(is_nullish);
                if nullish && !self.unwind.preserve {
                    return Ok(Accepted::Kept);
                }
                if self.unwind.index.is_none() {
                    return Ok(Accepted::Passed);
                }
                spend_bytes(document.as_bytes().len())?;
                let indexed = self
                    .unwind
                    .with_index(RawDocument::to_owned(document), None);
                Ok(Accepted::Made(indexed.into()))
            }
        }
    }

    fn give(&mut self) -> Result<Produced> {
        let Some(current) = &mut self.current else {
            return Ok(Produced::Nothing);
        };
        let document = &current.document;
        let array = current.place.element(document).expect("it was there");
        let mut items = RawElems::resume(array.value, current.position);
        let Some(item) = items.next() else {
            self.current = None;
            return Ok(Produced::Nothing);
        };
        // Each is a copy of all the rest of the document.
        let rest = document.as_bytes().len() - array.value.len();
        spend_bytes(rest + item.value.len())?;
        let unwound = current.place.replaced(document, Some(&item));
        let unwound = self.unwind.with_index(unwound, Some(current.index));
        current.position = items.position();
        current.index += 1;
        Ok(Produced::Document(
            Document::from(unwound).made_of(document),
        ))
    }
}

impl Unwind {
    fn with_index(&self, document: RawDocumentBuf, at: Option<i64>) -> RawDocumentBuf {
        let Some(path) = &self.index else {
            return document;
        };
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        let at = at.map_or(RawBsonRef::Null, RawBsonRef::Int64);
        set_path(&document, &names, Some(at))
    }
}

/// Where an element is in a document, by bytes.
#[derive(Debug)]
struct Place {
    /// Where the documents begin, with their lengths, that the element lies in.
    documents: SmallVec<[usize; 4]>,
    /// Where the element is: its type, its name, its value.
    start: usize,
    end: usize,
}

impl Place {
    /// The place of the element at a path through documents alone.
    fn find(document: &RawDocument, path: &[String]) -> Result<Option<Place>> {
        let bytes = document.as_bytes();
        let mut documents = SmallVec::new();
        let mut base = 0;
        for (depth, name) in path.iter().enumerate() {
            documents.push(base);
            let Some((start, end, kind)) = find_element(&bytes[base..], name)? else {
                return Ok(None);
            };
            if depth + 1 == path.len() {
                return Ok(Some(Place {
                    documents,
                    start: base + start,
                    end: base + end,
                }));
            }
            if kind != ElementType::EmbeddedDocument {
                return Ok(None);
            }
            // Its value is behind its type, its name and the end of the name.
            base += start + name.len() + 2;
        }
        Ok(None)
    }

    /// The element itself.
    fn element<'a>(&self, document: &'a RawDocument) -> Option<RawElem<'a>> {
        let inner = *self.documents.last().expect("the document itself");
        RawElems::resume(&document.as_bytes()[inner..], self.start - inner).next()
    }

    /// The document with another value in the element's place, or without the element.
    fn replaced(&self, document: &RawDocument, value: Option<&RawElem<'_>>) -> RawDocumentBuf {
        let bytes = document.as_bytes();
        let element = self.element(document).expect("it was there");
        let size = value.map_or(0, |value| 2 + element.name.len() + value.value.len());
        let mut out = Vec::with_capacity(bytes.len() - (self.end - self.start) + size);
        out.extend_from_slice(&bytes[..self.start]);
        if let Some(value) = value {
            out.push(value.kind as u8);
            out.extend_from_slice(element.name);
            out.push(0);
            out.extend_from_slice(value.value);
        }
        out.extend_from_slice(&bytes[self.end..]);
        let change = size as i32 - (self.end - self.start) as i32;
        for place in &self.documents {
            let length: &mut [u8] = &mut out[*place..*place + 4];
            let old = i32::from_le_bytes(length.try_into().expect("four bytes"));
            length.copy_from_slice(&(old + change).to_le_bytes());
        }
        RawDocumentBuf::from_bytes(out).expect("only a value was exchanged")
    }
}

/// Where the first element of this name begins and ends, and its type.
fn find_element(document: &[u8], name: &str) -> Result<Option<(usize, usize, ElementType)>> {
    let mut elements = RawElems::new(document);
    loop {
        spend(ITEM)?;
        let start = elements.position();
        let Some(element) = elements.next() else {
            return Ok(None);
        };
        if element.name == name.as_bytes() {
            return Ok(Some((start, elements.position(), element.kind)));
        }
    }
}

/// The document with the value at a path set, or taken out.
fn set_path(
    document: &RawDocument,
    path: &[&str],
    value: Option<RawBsonRef<'_>>,
) -> RawDocumentBuf {
    // Of a long document most is the array, and each of its values makes a new one.
    let room = document.as_bytes().len().min(EXPECTED_BYTES);
    let mut out = DocBuilder::with_capacity(room);
    write_path(document, path, value, &mut out);
    out.finish()
}

fn write_path(
    document: &RawDocument,
    path: &[&str],
    value: Option<RawBsonRef<'_>>,
    out: &mut DocBuilder,
) {
    let Some((name, rest)) = path.split_first() else {
        return;
    };
    let mut found = false;
    for (other, old) in elements(document) {
        if other != *name {
            out.append(other, old);
            continue;
        }
        found = true;
        match (old, value) {
            (_, Some(value)) if rest.is_empty() => {
                out.append(name, value);
            }
            (_, None) if rest.is_empty() => {}
            (RawBsonRef::Document(inner), value) => {
                out.start_document(name);
                write_path(inner, rest, value, out);
                out.end();
            }
            (_, Some(value)) => {
                out.start_document(name);
                write_path(&RawDocumentBuf::new(), rest, Some(value), out);
                out.end();
            }
            (old, None) => {
                out.append(name, old);
            }
        }
    }
    if let (false, Some(value)) = (found, value) {
        if rest.is_empty() {
            out.append(name, value);
        } else {
            out.start_document(name);
            write_path(&RawDocumentBuf::new(), rest, Some(value), out);
            out.end();
        }
    }
}
