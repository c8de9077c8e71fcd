//! Field-by-field reading of one document: each field is asked for once, and one that is never
//! asked for is an unknown field.

use std::cell::Cell;

use pinion_bson::{
    BinarySubtype, ObjectId, RawArray, RawBsonRef, RawDocument, RawElem, Values, raw_elements,
    values,
};
use pinion_clock::Timestamp;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::errors::{
    Path, Types, bad_enumeration, duplicate_field, idl_type_name, missing_field, out_of_bounds,
    unknown_field, wrong_type,
};
use super::generic::{is_generic_name, whole_number};
use super::namespace::Namespace;
use super::numbers::{f64_lossy, i32_clamped, i64_clamped, is_number, truthy};
use crate::error::{Error, ErrorCode, Result};
use crate::limits::MAX_COMMAND_FIELDS;

/// A reader of a command document; generic arguments are passed over.
pub type CommandReader<'d> = FieldReader<'d, 'd>;

/// Reads the fields of a document by name.
///
/// `opt_` methods give `None` for a field that is absent, null or undefined, as MongoDB's IDL does;
/// the others refuse then. Every method that names a field marks it as known; `finish` refuses when
/// a field is left that no method has named.
pub struct FieldReader<'d, 'p> {
    path: Path<'p>,
    generic_allowed: bool,
    fields: SmallVec<[Field<'d>; 12]>,
}

/// Up to this number of fields their names are compared one by one.
const FEW_FIELDS: usize = 32;

/// A field as it stands in the document; its value is decoded when it is asked for.
struct Field<'d> {
    elem: RawElem<'d>,
    known: Cell<bool>,
}

impl<'d> Field<'d> {
    fn name(&self) -> &'d str {
        self.elem.name_str().unwrap_or_default()
    }

    fn value(&self) -> Option<RawBsonRef<'d>> {
        self.elem.to_value()
    }
}

impl<'d> FieldReader<'d, 'd> {
    /// A reader of a command's body. Generic arguments (`$db`, `lsid`, ...) are skipped unless
    /// asked for.
    pub fn new(command: &'d str, body: &'d RawDocument) -> Result<CommandReader<'d>> {
        FieldReader::read(Path::root(command), body, true)
    }
}

impl<'d, 'p> FieldReader<'d, 'p> {
    /// A reader of a document below a command: no generic argument is expected in it.
    pub fn object(path: Path<'p>, document: &'d RawDocument) -> Result<FieldReader<'d, 'p>> {
        FieldReader::read(path, document, false)
    }

    fn read(
        path: Path<'p>,
        document: &'d RawDocument,
        generic_allowed: bool,
    ) -> Result<FieldReader<'d, 'p>> {
        let mut fields: SmallVec<[Field<'d>; 12]> = SmallVec::new();
        let mut names = FxHashSet::default();
        for elem in raw_elements(document).take(MAX_COMMAND_FIELDS) {
            let is_duplicate = if fields.len() < FEW_FIELDS {
                fields.iter().any(|field| field.elem.name == elem.name)
            } else {
                if names.is_empty() {
                    names.extend(fields.iter().map(|field| field.elem.name));
                }
                !names.insert(elem.name)
            };
            if is_duplicate {
                return Err(duplicate_field(
                    path.field(elem.name_str().unwrap_or_default()),
                ));
            }
            fields.push(Field {
                elem,
                known: Cell::new(false),
            });
        }
        Ok(FieldReader {
            path,
            generic_allowed,
            fields,
        })
    }

    /// Where this document stands.
    pub fn path(&self) -> &Path<'p> {
        &self.path
    }

    /// The value of a field whatever its type, null included; `None` if it is absent.
    pub fn value(&self, name: &str) -> Option<RawBsonRef<'d>> {
        let field = self
            .fields
            .iter()
            .find(|field| field.elem.name == name.as_bytes())?;
        field.known.set(true);
        field.value()
    }

    /// True if the field is present, even if it is null.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    fn present(&self, name: &str) -> Option<RawBsonRef<'d>> {
        self.value(name)
            .filter(|value| !matches!(value, RawBsonRef::Null | RawBsonRef::Undefined))
    }

    /// The error for a field of a wrong type.
    pub fn wrong_type(&self, name: &str, found: RawBsonRef<'_>, expected: Types) -> Error {
        wrong_type(self.path.field(name), found, expected)
    }

    fn required<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| missing_field(self.path.field(name)))
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: Types,
        convert: impl FnOnce(RawBsonRef<'d>) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.present(name) {
            None => Ok(None),
            Some(value) => match convert(value) {
                Some(converted) => Ok(Some(converted)),
                None => Err(self.wrong_type(name, value, expected)),
            },
        }
    }

    pub fn opt_str(&self, name: &str) -> Result<Option<&'d str>> {
        self.typed(name, Types::STRING, |value| value.as_str())
    }

    pub fn str(&self, name: &str) -> Result<&'d str> {
        self.opt_str(name)
            .and_then(|value| self.required(name, value))
    }

    pub fn opt_doc(&self, name: &str) -> Result<Option<&'d RawDocument>> {
        self.typed(name, Types::OBJECT, |value| value.as_document())
    }

    pub fn doc(&self, name: &str) -> Result<&'d RawDocument> {
        self.opt_doc(name)
            .and_then(|value| self.required(name, value))
    }

    /// An object with the text that MongoDB gives for `filter`, `sort`, `projection`, ... of find:
    /// null is refused too.
    pub fn opt_owned_doc(&self, name: &str) -> Result<Option<&'d RawDocument>> {
        match self.value(name) {
            None => Ok(None),
            Some(RawBsonRef::Document(document)) => Ok(Some(document)),
            Some(_) => Err(Error::type_mismatch(format!(
                "Expected field {name}to be of type object"
            ))),
        }
    }

    pub fn opt_array(&self, name: &str) -> Result<Option<&'d RawArray>> {
        self.typed(name, Types::ARRAY, |value| value.as_array())
    }

    pub fn array(&self, name: &str) -> Result<&'d RawArray> {
        self.opt_array(name)
            .and_then(|value| self.required(name, value))
    }

    /// A boolean and nothing else.
    pub fn opt_bool(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, Types::BOOL, |value| value.as_bool())
    }

    pub fn bool(&self, name: &str) -> Result<bool> {
        self.opt_bool(name)
            .and_then(|value| self.required(name, value))
    }

    /// A boolean, or a number whose zero is false (MongoDB's `safeBool`).
    pub fn opt_safe_bool(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, Types::BOOL_OR_NUMBER, |value| {
            (is_number(value) || matches!(value, RawBsonRef::Boolean(_))).then(|| truthy(value))
        })
    }

    /// A boolean or a number, as the commands read it that no IDL describes: what is there has a
    /// value, so null is refused.
    pub fn opt_given_bool(&self, name: &str) -> Result<Option<bool>> {
        match self.value(name) {
            None => Ok(None),
            Some(value) if Types::BOOL_OR_NUMBER.accept(value) => Ok(Some(truthy(value))),
            Some(value) => Err(Error::type_mismatch(format!(
                "Expected boolean or number type for field \"{name}\", found {}",
                idl_type_name(value.element_type())
            ))),
        }
    }

    /// A boolean in the form of MongoDB's `optionalBool`: null and numbers are refused, and the
    /// text of the error is another.
    pub fn opt_flag(&self, name: &str) -> Result<Option<bool>> {
        match self.value(name) {
            None => Ok(None),
            Some(RawBsonRef::Boolean(flag)) => Ok(Some(flag)),
            Some(value) => Err(Error::type_mismatch(format!(
                "Field '{name}' should be a boolean value, but found: {}",
                idl_type_name(value.element_type())
            ))),
        }
    }

    /// Any number, converted as MongoDB's `safeInt64` is.
    pub fn opt_i64(&self, name: &str) -> Result<Option<i64>> {
        self.typed(name, Types::NUMBER, i64_clamped)
    }

    /// A whole number within 64 bits; another number is FailedToParse.
    pub fn opt_whole_number(&self, name: &str) -> Result<Option<i64>> {
        self.typed(name, Types::NUMBER, |value| {
            is_number(value).then(|| whole_number(name, value))
        })?
        .transpose()
    }

    pub fn i64(&self, name: &str) -> Result<i64> {
        self.opt_i64(name)
            .and_then(|value| self.required(name, value))
    }

    /// Any number, converted as MongoDB's `safeInt` is.
    pub fn opt_i32(&self, name: &str) -> Result<Option<i32>> {
        self.typed(name, Types::NUMBER, i32_clamped)
    }

    /// A 64-bit integer and no other number.
    pub fn opt_long(&self, name: &str) -> Result<Option<i64>> {
        self.typed(name, Types::LONG, |value| match value {
            RawBsonRef::Int64(n) => Some(n),
            _ => None,
        })
    }

    pub fn long(&self, name: &str) -> Result<i64> {
        self.opt_long(name)
            .and_then(|value| self.required(name, value))
    }

    /// A 32-bit integer and no other number.
    pub fn opt_int(&self, name: &str) -> Result<Option<i32>> {
        self.typed(name, Types::INT, |value| value.as_i32())
    }

    /// Any number as double.
    pub fn opt_f64(&self, name: &str) -> Result<Option<f64>> {
        self.typed(name, Types::NUMBER, f64_lossy)
    }

    /// Any number that is not below zero (`limit`, `skip`, `batchSize`).
    pub fn opt_non_negative(&self, name: &str) -> Result<Option<i64>> {
        self.opt_at_least(name, 0)
    }

    /// Any number that is not below `least`.
    pub fn opt_at_least(&self, name: &str, least: i64) -> Result<Option<i64>> {
        match self.opt_i64(name)? {
            Some(n) if n < least => Err(out_of_bounds(name, ">=", least, n)),
            n => Ok(n),
        }
    }

    /// Any number within `least..=most`.
    pub fn opt_between(&self, name: &str, least: i64, most: i64) -> Result<Option<i64>> {
        match self.opt_at_least(name, least)? {
            Some(n) if n > most => Err(out_of_bounds(name, "<=", most, n)),
            n => Ok(n),
        }
    }

    pub fn opt_timestamp(&self, name: &str) -> Result<Option<Timestamp>> {
        self.typed(name, Types::TIMESTAMP, |value| {
            value
                .as_timestamp()
                .map(|t| Timestamp::new(t.time, t.increment))
        })
    }

    /// Milliseconds since the Unix epoch.
    pub fn opt_date_ms(&self, name: &str) -> Result<Option<i64>> {
        self.typed(name, Types::DATE, |value| {
            value.as_datetime().map(|date| date.timestamp_millis())
        })
    }

    pub fn opt_object_id(&self, name: &str) -> Result<Option<ObjectId>> {
        self.typed(name, Types::OBJECT_ID, |value| value.as_object_id())
    }

    /// A UUID: binary data of subtype 4 and 16 bytes.
    pub fn opt_uuid(&self, name: &str) -> Result<Option<[u8; 16]>> {
        let Some(value) = self.present(name) else {
            return Ok(None);
        };
        uuid_of(self.path.field(name), value).map(Some)
    }

    /// The bytes of binary data of any subtype.
    pub fn opt_binary(&self, name: &str) -> Result<Option<&'d [u8]>> {
        self.typed(name, Types::BIN_DATA, |value| match value {
            RawBsonRef::Binary(binary) => Some(binary.bytes),
            _ => None,
        })
    }

    /// One of a set of strings.
    pub fn opt_one_of<T: Copy>(&self, name: &str, values: &[(&str, T)]) -> Result<Option<T>> {
        let Some(text) = self.opt_str(name)? else {
            return Ok(None);
        };
        match values.iter().find(|(known, _)| *known == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => Err(bad_enumeration(self.path.field(name), text)),
        }
    }

    /// The name of a collection, usually the value of the command's own field.
    pub fn collection(&self, name: &str) -> Result<&'d str> {
        match self.value(name) {
            None => Err(missing_field(self.path.field(name))),
            Some(RawBsonRef::String(text)) => Ok(text),
            Some(other) => Err(Error::new(
                ErrorCode::INVALID_NAMESPACE,
                format!(
                    "collection name has invalid type {}",
                    idl_type_name(other.element_type())
                ),
            )),
        }
    }

    /// The namespace of a command that names a collection in its own field.
    pub fn namespace(&self, name: &str, db: &str) -> Result<Namespace> {
        Namespace::new(db, self.collection(name)?)
    }

    /// The namespace of a command that only looks for the collection that it names in its own
    /// field.
    pub fn sought(&self, name: &str, db: &str) -> Result<Namespace> {
        Namespace::sought(db, self.collection(name)?)
    }

    /// A document below this one.
    pub fn opt_object<'s>(&'s self, name: &'s str) -> Result<Option<FieldReader<'d, 's>>> {
        match self.opt_doc(name)? {
            None => Ok(None),
            Some(document) => FieldReader::object(self.path.field(name), document).map(Some),
        }
    }

    /// The elements of an array that are to be documents.
    pub fn opt_objects<'s>(&'s self, name: &'s str) -> Result<Option<Objects<'d, 's>>> {
        let array = self.opt_array(name)?;
        Ok(array.map(|array| Objects::new(self.path.field(name), array)))
    }

    /// Refuses the first field that is none of these. An unknown field is reported before one that
    /// is missing, which `finish` comes too late for.
    pub fn only(&self, names: &[&str]) -> Result<()> {
        match self
            .fields
            .iter()
            .find(|field| !names.contains(&field.name()))
        {
            Some(field) => Err(unknown_field(self.path.field(field.name()))),
            None => Ok(()),
        }
    }

    /// Marks fields as known without reading them.
    pub fn ignore(&self, names: &[&str]) {
        for name in names {
            self.value(name);
        }
    }

    /// Refuses a field that MongoDB has and this server does not have. A value of a type that
    /// MongoDB refuses there is of a wrong type here too.
    pub fn unsupported(&self, name: &str, expected: Types) -> Result<()> {
        self.unsupported_unless(name, expected, |_| false)
    }

    /// Refuses such a field unless its value asks for nothing: false, zero, an empty object or
    /// array.
    pub fn unsupported_unless_empty(&self, name: &str, expected: Types) -> Result<()> {
        self.unsupported_unless(name, expected, |value| match value {
            RawBsonRef::Document(document) => document.is_empty(),
            RawBsonRef::Array(array) => array.is_empty(),
            other => !truthy(other),
        })
    }

    /// Refuses such a field unless it is null or `harmless` accepts its value.
    fn unsupported_unless(
        &self,
        name: &str,
        expected: Types,
        harmless: impl FnOnce(RawBsonRef<'d>) -> bool,
    ) -> Result<()> {
        match self.present(name) {
            Some(value) if !expected.accept(value) => Err(self.wrong_type(name, value, expected)),
            Some(value) if !harmless(value) => Err(Error::new(
                ErrorCode::NOT_IMPLEMENTED,
                format!(
                    "BSON field '{}' is not supported by this server",
                    self.path.field(name)
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The fields in order, without marking them.
    pub fn iter(&self) -> impl Iterator<Item = (&'d str, RawBsonRef<'d>)> + '_ {
        self.fields
            .iter()
            .filter_map(|field| Some((field.name(), field.value()?)))
    }

    /// Refuses the first field that no method has named.
    pub fn finish(&self) -> Result<()> {
        for field in &self.fields {
            let allowed =
                field.known.get() || (self.generic_allowed && is_generic_name(field.elem.name));
            if !allowed {
                return Err(unknown_field(self.path.field(field.name())));
            }
        }
        Ok(())
    }
}

/// The documents of an array, each with its index; null and undefined are passed over, as MongoDB's
/// IDL does, and an element of another type is an error that names its path ("insert.documents.0").
pub struct Objects<'d, 's> {
    path: Path<'s>,
    array: Values<'d>,
    at: usize,
}

impl<'d, 's> Objects<'d, 's> {
    /// The documents of the array at this path.
    pub(crate) fn new(path: Path<'s>, array: &'d RawArray) -> Objects<'d, 's> {
        Objects {
            path,
            array: values(array),
            at: 0,
        }
    }

    /// The path of the array, from which that of an element is made for a `FieldReader::object`.
    pub fn path(&self) -> Path<'s> {
        self.path
    }
}

impl<'d> Iterator for Objects<'d, '_> {
    type Item = Result<(usize, &'d RawDocument)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let element = self.array.next()?;
            let at = self.at;
            self.at += 1;
            return Some(match element {
                RawBsonRef::Null | RawBsonRef::Undefined => continue,
                RawBsonRef::Document(document) => Ok((at, document)),
                other => Err(wrong_type(self.path.index(at), other, Types::OBJECT)),
            });
        }
    }
}

/// The UUID at this path.
pub(super) fn uuid_of(path: Path<'_>, value: RawBsonRef<'_>) -> Result<[u8; 16]> {
    let RawBsonRef::Binary(binary) = value else {
        return Err(wrong_type(path, value, Types::BIN_DATA));
    };
    if binary.subtype != BinarySubtype::Uuid {
        return Err(Error::type_mismatch(format!(
            "BSON field '{path}' is the wrong binData type '{}', expected type 'UUID'",
            subtype_name(binary.subtype)
        )));
    }
    binary.bytes.try_into().map_err(|_| {
        Error::new(
            ErrorCode::INVALID_UUID,
            "uuid must be a 16-byte binary field with UUID (4) subtype",
        )
    })
}

fn subtype_name(subtype: BinarySubtype) -> &'static str {
    match subtype {
        BinarySubtype::Generic => "general",
        BinarySubtype::Function => "function",
        BinarySubtype::BinaryOld => "binary (deprecated)",
        BinarySubtype::UuidOld => "UUID (deprecated)",
        BinarySubtype::Uuid => "UUID",
        BinarySubtype::Md5 => "MD5",
        BinarySubtype::Encrypted => "encrypt",
        BinarySubtype::Column => "column",
        BinarySubtype::Sensitive => "sensitive",
        BinarySubtype::Vector => "vector",
        _ => "user-defined",
    }
}

#[cfg(test)]
mod tests;
