//! The error texts of MongoDB's IDL parsers, and the dotted path they name.

use std::fmt;

use pinion_bson::{ElementType, RawBsonRef};

use crate::error::{Error, ErrorCode};

/// Where in a command document an object stands: `update`, `update.updates.3`,
/// `update.updates.3.q`.
///
/// It is a chain of borrowed segments, so that nothing is allocated unless an error is made.
#[derive(Clone, Copy, Debug)]
pub struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    segment: Segment<'p>,
}

#[derive(Clone, Copy, Debug)]
enum Segment<'p> {
    Name(&'p str),
    Index(usize),
}

impl<'p> Path<'p> {
    /// A path of one segment: usually the command's name.
    pub const fn root(name: &'p str) -> Path<'p> {
        Path {
            parent: None,
            segment: Segment::Name(name),
        }
    }

    pub const fn field(&'p self, name: &'p str) -> Path<'p> {
        Path {
            parent: Some(self),
            segment: Segment::Name(name),
        }
    }

    pub const fn index(&'p self, index: usize) -> Path<'p> {
        Path {
            parent: Some(self),
            segment: Segment::Index(index),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}.")?;
        }
        match self.segment {
            Segment::Name(name) => f.write_str(name),
            Segment::Index(index) => write!(f, "{index}"),
        }
    }
}

/// The types a field accepts, as the error text lists them.
#[derive(Clone, Copy, Debug)]
pub enum Types {
    One(&'static str),
    Many(&'static [&'static str]),
}

impl Types {
    /// MongoDB's safeInt, safeInt64, exactInt64 and safeDouble.
    pub const NUMBER: Types = Types::Many(&["long", "int", "decimal", "double"]);
    /// MongoDB's safeBool.
    pub const BOOL_OR_NUMBER: Types = Types::Many(&["bool", "long", "int", "decimal", "double"]);
    pub const BOOL: Types = Types::One("bool");
    pub const STRING: Types = Types::One("string");
    pub const OBJECT: Types = Types::One("object");
    pub const ARRAY: Types = Types::One("array");
    pub const LONG: Types = Types::One("long");
    pub const INT: Types = Types::One("int");
    pub const TIMESTAMP: Types = Types::One("timestamp");
    pub const DATE: Types = Types::One("date");
    pub const BIN_DATA: Types = Types::One("binData");
    pub const OBJECT_ID: Types = Types::One("objectId");

    /// Whether a value is of one of these types.
    pub fn accept(self, value: RawBsonRef<'_>) -> bool {
        let found = idl_type_name(value.element_type());
        match self {
            Types::One(name) => name == found,
            Types::Many(names) => names.contains(&found),
        }
    }
}

/// The name of a type in these texts.
pub fn idl_type_name(kind: ElementType) -> &'static str {
    match kind {
        ElementType::Double => "double",
        ElementType::String => "string",
        ElementType::EmbeddedDocument => "object",
        ElementType::Array => "array",
        ElementType::Binary => "binData",
        ElementType::Undefined => "undefined",
        ElementType::ObjectId => "objectId",
        ElementType::Boolean => "bool",
        ElementType::DateTime => "date",
        ElementType::Null => "null",
        ElementType::RegularExpression => "regex",
        ElementType::DbPointer => "dbPointer",
        ElementType::JavaScriptCode => "javascript",
        ElementType::Symbol => "symbol",
        ElementType::JavaScriptCodeWithScope => "javascriptWithScope",
        ElementType::Int32 => "int",
        ElementType::Timestamp => "timestamp",
        ElementType::Int64 => "long",
        ElementType::Decimal128 => "decimal",
        ElementType::MinKey => "minKey",
        ElementType::MaxKey => "maxKey",
    }
}

/// "BSON field 'find.limit' is the wrong type 'string', expected types '[long, int, decimal,
/// double']". The quote and the bracket at the end stand in this order in MongoDB's text too.
#[cold]
pub fn wrong_type(path: Path<'_>, found: RawBsonRef<'_>, expected: Types) -> Error {
    let found = idl_type_name(found.element_type());
    Error::type_mismatch(match expected {
        Types::One(name) => {
            format!("BSON field '{path}' is the wrong type '{found}', expected type '{name}'")
        }
        Types::Many(names) => format!(
            "BSON field '{path}' is the wrong type '{found}', expected types '[{}']",
            names.join(", ")
        ),
    })
}

#[cold]
pub fn unknown_field(path: Path<'_>) -> Error {
    Error::new(
        ErrorCode::IDL_UNKNOWN_FIELD,
        format!("BSON field '{path}' is an unknown field."),
    )
}

#[cold]
pub fn missing_field(path: Path<'_>) -> Error {
    Error::new(
        ErrorCode::IDL_FAILED_TO_PARSE,
        format!("BSON field '{path}' is missing but a required field"),
    )
}

#[cold]
pub fn duplicate_field(path: Path<'_>) -> Error {
    Error::new(
        ErrorCode::IDL_DUPLICATE_FIELD,
        format!("BSON field '{path}' is a duplicate field"),
    )
}

/// "BSON field 'limit' value must be >= 0, actual value '-1'". MongoDB names the field alone here.
#[cold]
pub(super) fn out_of_bounds(field: &str, relation: &str, bound: i64, actual: i64) -> Error {
    Error::bad_value(format!(
        "BSON field '{field}' value must be {relation} {bound}, actual value '{actual}'"
    ))
}

#[cold]
pub(super) fn bad_enumeration(path: Path<'_>, value: &str) -> Error {
    Error::bad_value(format!(
        "Enumeration value '{value}' for field '{path}' is not a valid value."
    ))
}
