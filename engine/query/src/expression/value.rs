//! The value of an expression: missing, borrowed from a document, or made by the expression.

use std::rc::Rc;

use pinion_bson::{DocBuilder, RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::operators::NamedZone;
use crate::value::{field, is_nullish, is_true, items};

/// What an expression evaluates to.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    Missing,
    Ref(RawBsonRef<'a>),
    Owned(Rc<RawBson>),
    /// The text that names a time zone, with the zone.
    Zone(&'a NamedZone),
}

impl<'a> Value<'a> {
    /// The value, unless it is missing.
    pub fn as_ref(&self) -> Option<RawBsonRef<'_>> {
        match self {
            Value::Missing => None,
            Value::Ref(value) => Some(*value),
            Value::Owned(value) => Some(value.as_raw_bson_ref()),
            Value::Zone(zone) => Some(RawBsonRef::String(zone.name())),
        }
    }

    /// The value as one of its own; what an expression made is not copied unless it is shared.
    pub(crate) fn into_owned(self) -> Option<RawBson> {
        match self {
            Value::Owned(value) => Some(Rc::unwrap_or_clone(value)),
            other => other.as_ref().map(RawBson::from),
        }
    }

    /// The value with missing read as null.
    pub(crate) fn or_null(&self) -> RawBsonRef<'_> {
        self.as_ref().unwrap_or(RawBsonRef::Null)
    }

    /// The bytes of a text, binary data, a document or an array; other values count as none.
    pub(crate) fn bytes(&self) -> usize {
        self.as_ref().map_or(0, crate::value::bytes)
    }

    pub(crate) fn null() -> Value<'a> {
        Value::Ref(RawBsonRef::Null)
    }

    pub(crate) fn boolean(value: bool) -> Value<'a> {
        Value::Ref(RawBsonRef::Boolean(value))
    }

    pub(crate) fn int(value: i32) -> Value<'a> {
        Value::Ref(RawBsonRef::Int32(value))
    }

    /// An int where it fits, else a long.
    pub(crate) fn integer(value: i64) -> Value<'a> {
        match i32::try_from(value) {
            Ok(small) => Value::Ref(RawBsonRef::Int32(small)),
            Err(_) => Value::Ref(RawBsonRef::Int64(value)),
        }
    }

    pub(crate) fn string(value: impl Into<String>) -> Value<'a> {
        Value::Owned(Rc::new(RawBson::String(value.into())))
    }

    pub(crate) fn document(value: RawDocumentBuf) -> Value<'a> {
        Value::Owned(Rc::new(RawBson::Document(value)))
    }

    pub(crate) fn owned(value: RawBson) -> Value<'a> {
        Value::Owned(Rc::new(value))
    }

    /// An array of these values, missing ones as null.
    pub(crate) fn array<'v>(values: impl IntoIterator<Item = RawBsonRef<'v>>) -> Value<'a> {
        let mut builder = DocBuilder::new();
        builder.start_array("");
        for value in values {
            builder.push(value);
        }
        builder.end();
        Value::wrapped(builder)
    }

    /// The first field of what a builder wrote.
    pub(crate) fn wrapped(builder: DocBuilder) -> Value<'a> {
        let document = builder.finish();
        match crate::value::first(&document) {
            Some((_, value)) => Value::owned(value.into()),
            None => Value::Missing,
        }
    }

    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Value::Missing)
    }

    /// Missing, null or undefined.
    pub(crate) fn is_nullish(&self) -> bool {
        self.as_ref().is_none_or(is_nullish)
    }

    pub(crate) fn is_true(&self) -> bool {
        self.as_ref().is_some_and(is_true)
    }

    pub(crate) fn as_array(&self) -> Option<&RawArray> {
        match self.as_ref() {
            Some(RawBsonRef::Array(array)) => Some(array),
            _ => None,
        }
    }

    pub(crate) fn as_document(&self) -> Option<&RawDocument> {
        match self.as_ref() {
            Some(RawBsonRef::Document(document)) => Some(document),
            _ => None,
        }
    }

    /// The items of an array value, each as a value of its own.
    pub(crate) fn item_values(&self) -> Vec<Value<'a>> {
        match self {
            Value::Ref(RawBsonRef::Array(array)) => items(array).map(Value::Ref).collect(),
            other => match other.as_array() {
                Some(array) => items(array).map(|item| Value::copied(item)).collect(),
                None => Vec::new(),
            },
        }
    }

    /// The field of a document value.
    pub(crate) fn field(&self, name: &str) -> Value<'a> {
        match self {
            Value::Ref(RawBsonRef::Document(document)) => {
                field(document, name).map_or(Value::Missing, Value::Ref)
            }
            other => match other.as_document().and_then(|d| field(d, name)) {
                Some(value) => Value::copied(value),
                None => Value::Missing,
            },
        }
    }

    /// A value that borrows from something shorter-lived than the document.
    pub(crate) fn copied(value: RawBsonRef<'_>) -> Value<'a> {
        match value {
            RawBsonRef::Double(v) => Value::Ref(RawBsonRef::Double(v)),
            RawBsonRef::Int32(v) => Value::Ref(RawBsonRef::Int32(v)),
            RawBsonRef::Int64(v) => Value::Ref(RawBsonRef::Int64(v)),
            RawBsonRef::Boolean(v) => Value::Ref(RawBsonRef::Boolean(v)),
            RawBsonRef::Null => Value::Ref(RawBsonRef::Null),
            RawBsonRef::Undefined => Value::Ref(RawBsonRef::Undefined),
            RawBsonRef::DateTime(v) => Value::Ref(RawBsonRef::DateTime(v)),
            RawBsonRef::Timestamp(v) => Value::Ref(RawBsonRef::Timestamp(v)),
            RawBsonRef::ObjectId(v) => Value::Ref(RawBsonRef::ObjectId(v)),
            RawBsonRef::Decimal128(v) => Value::Ref(RawBsonRef::Decimal128(v)),
            RawBsonRef::MinKey => Value::Ref(RawBsonRef::MinKey),
            RawBsonRef::MaxKey => Value::Ref(RawBsonRef::MaxKey),
            other => Value::owned(other.into()),
        }
    }

    /// MongoDB's name of the type, "missing" for none.
    pub(crate) fn type_name(&self) -> &'static str {
        self.as_ref().map_or("missing", crate::value::type_name)
    }
}
