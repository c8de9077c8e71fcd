//! A document opened only where an update touches it.

use std::borrow::Cow;

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use crate::value::{elements, items};

/// A value of the document under update: raw until something inside it changes.
#[derive(Clone, Debug)]
pub(super) enum Slot<'a> {
    Raw(RawBsonRef<'a>),
    Owned(RawBson),
    Document(Vec<(Cow<'a, str>, Slot<'a>)>),
    Array(Vec<Slot<'a>>),
}

impl<'a> Slot<'a> {
    pub(super) fn open(document: &'a RawDocument) -> Slot<'a> {
        Slot::Document(
            elements(document)
                .map(|(name, value)| (Cow::Borrowed(name), Slot::Raw(value)))
                .collect(),
        )
    }

    /// Opens a document or an array one level; other values stay as they are.
    pub(super) fn expand(&mut self) {
        let opened = match self {
            Slot::Raw(RawBsonRef::Document(document)) => Slot::open(document),
            Slot::Raw(RawBsonRef::Array(array)) => {
                Slot::Array(items(array).map(Slot::Raw).collect())
            }
            Slot::Owned(RawBson::Document(document)) => Slot::Document(
                elements(document)
                    .map(|(name, value)| (Cow::Owned(name.to_string()), Slot::Owned(value.into())))
                    .collect(),
            ),
            Slot::Owned(RawBson::Array(array)) => Slot::Array(
                items(array)
                    .map(|value| Slot::Owned(value.into()))
                    .collect(),
            ),
            _ => return,
        };
        *self = opened;
    }

    /// The value where it is not opened.
    pub(super) fn raw(&self) -> Option<RawBsonRef<'_>> {
        match self {
            Slot::Raw(value) => Some(*value),
            Slot::Owned(value) => Some(value.as_raw_bson_ref()),
            Slot::Document(_) | Slot::Array(_) => None,
        }
    }

    /// The value, built where it is opened.
    pub(super) fn to_value(&self) -> RawBson {
        match self {
            Slot::Raw(value) => (*value).into(),
            Slot::Owned(value) => value.clone(),
            opened => {
                let mut builder = DocBuilder::new();
                opened.write("", &mut builder);
                let document = builder.finish();
                crate::value::first(&document).map_or(RawBson::Null, |(_, value)| value.into())
            }
        }
    }

    /// MongoDB's name of the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Slot::Document(_) => "object",
            Slot::Array(_) => "array",
            Slot::Raw(value) => crate::value::type_name(*value),
            Slot::Owned(value) => crate::value::type_name(value.as_raw_bson_ref()),
        }
    }

    pub(super) fn is_array(&self) -> bool {
        match self {
            Slot::Array(_) => true,
            Slot::Document(_) => false,
            other => matches!(other.raw(), Some(RawBsonRef::Array(_))),
        }
    }

    pub(super) fn is_document(&self) -> bool {
        match self {
            Slot::Document(_) => true,
            Slot::Array(_) => false,
            other => matches!(other.raw(), Some(RawBsonRef::Document(_))),
        }
    }

    pub(super) fn write(&self, name: &str, out: &mut DocBuilder) {
        match self {
            Slot::Raw(value) => {
                out.append(name, *value);
            }
            Slot::Owned(value) => {
                out.append(name, value.as_raw_bson_ref());
            }
            Slot::Document(fields) => {
                out.start_document(name);
                for (name, value) in fields {
                    value.write(name, out);
                }
                out.end();
            }
            Slot::Array(values) => {
                out.start_array(name);
                for value in values {
                    value.push(out);
                }
                out.end();
            }
        }
    }

    fn push(&self, out: &mut DocBuilder) {
        match self {
            Slot::Raw(value) => {
                out.push(*value);
            }
            Slot::Owned(value) => {
                out.push(value.as_raw_bson_ref());
            }
            Slot::Document(fields) => {
                out.push_document();
                for (name, value) in fields {
                    value.write(name, out);
                }
                out.end();
            }
            Slot::Array(values) => {
                out.push_array();
                for value in values {
                    value.push(out);
                }
                out.end();
            }
        }
    }
}

/// The whole document, `_id` first.
pub(super) fn finish(root: &Slot<'_>, capacity: usize) -> RawDocumentBuf {
    let mut out = DocBuilder::with_capacity(capacity + 64);
    if let Slot::Document(fields) = root {
        for (name, value) in fields.iter().filter(|(name, _)| name == "_id") {
            value.write(name, &mut out);
        }
        for (name, value) in fields.iter().filter(|(name, _)| name != "_id") {
            value.write(name, &mut out);
        }
    }
    out.finish()
}

/// `{name: value}` as messages print an element.
pub(super) fn element_braces(name: &str, slot: &Slot<'_>) -> String {
    format!(
        "{{{}}}",
        crate::text::element_text(name, slot.to_value().as_raw_bson_ref())
    )
}
