//! `$unwind`

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use crate::error::error;
use crate::expression::check_field_path;
use crate::value::{elements, field, is_nullish, items, type_name};

/// A document that one value makes is given this much room at once, if the one it comes from has as much.
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

    /// Calls `out` with a document for each item of the array, but for so many at its front; `out` says whether to go on.
    pub(super) fn apply(
        &self,
        document: &RawDocument,
        skip: usize,
        mut out: impl FnMut(usize, RawDocumentBuf) -> Result<bool>,
    ) -> Result<()> {
        let one = match value_at(document, &self.path) {
            Some(RawBsonRef::Array(array)) if !array.is_empty() => {
                for (at, item) in items(array).enumerate().skip(skip) {
                    if !out(at, self.build(document, Some(item), Some(at as i64)))? {
                        break;
                    }
                }
                return Ok(());
            }
            Some(RawBsonRef::Array(_)) | None if self.preserve => self.build(document, None, None),
            Some(value) if !is_nullish(value) && !matches!(value, RawBsonRef::Array(_)) => {
                self.with_index(document.to_owned(), None)
            }
            Some(value) if is_nullish(value) && self.preserve => {
                self.with_index(document.to_owned(), None)
            }
            _ => return Ok(()),
        };
        if skip > 0 {
            return Ok(());
        }
        out(0, one).map(|_| ())
    }

    fn build(
        &self,
        document: &RawDocument,
        item: Option<RawBsonRef<'_>>,
        at: Option<i64>,
    ) -> RawDocumentBuf {
        let names: Vec<&str> = self.path.iter().map(String::as_str).collect();
        self.with_index(set_path(document, &names, item), at)
    }

    fn with_index(&self, document: RawDocumentBuf, at: Option<i64>) -> RawDocumentBuf {
        match &self.index {
            None => document,
            Some(path) => {
                let names: Vec<&str> = path.iter().map(String::as_str).collect();
                set_path(
                    &document,
                    &names,
                    Some(at.map_or(RawBsonRef::Null, RawBsonRef::Int64)),
                )
            }
        }
    }
}

/// The value at a path through documents alone.
fn value_at<'a>(document: &'a RawDocument, path: &[String]) -> Option<RawBsonRef<'a>> {
    let (name, rest) = path.split_first()?;
    match field(document, name)? {
        value if rest.is_empty() => Some(value),
        RawBsonRef::Document(inner) => value_at(inner, rest),
        _ => None,
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
