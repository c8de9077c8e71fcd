//! `$serializeEJSON` and `$deserializeEJSON`: values and the documents by which extended JSON
//! describes their types.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pinion_bson::{
    Decimal, DocBuilder, ElementType, MAX_DEPTH, ObjectId, RawBson, RawBsonRef, RawDocument,
    RawDocumentBuf, View, rawdoc, with_view,
};
use pinion_wire::{Error, Result};

use super::Value;
use super::convert::{from_text, number_text};
use crate::error::{error, failed_to_parse};
use crate::limits::check_value_bytes;
use crate::value::{count, elements, field, first, is_nullish, items};
use crate::work::{STEP, spend, spend_bytes};

/// The first millisecond of the year 10000, which has no text.
const YEAR_10000: i64 = 253_402_300_800_000;

/// Gives nothing where the input is null.
pub(super) fn serialize<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [input, relaxed] = values else {
        return Ok(Value::null());
    };
    let relaxed = match relaxed.as_ref() {
        None => false,
        Some(RawBsonRef::Boolean(relaxed)) => relaxed,
        Some(other) if is_nullish(other) => false,
        Some(_) => {
            return Err(failed_to_parse(format!(
                "$serializeEJSON requires 'relaxed' to be a boolean, found: {}",
                relaxed.type_name()
            )));
        }
    };
    written(input, |out, value| {
        Serializer { relaxed }.put(out, Place::Field(""), value, 0)
    })
}

/// Gives nothing where the input is null.
pub(super) fn deserialize<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    written(&values[0], |out, value| {
        read(out, Place::Field(""), value, 0)
    })
}

/// The value that is written for an input.
fn written<'a>(
    input: &Value<'_>,
    write: impl FnOnce(&mut DocBuilder, RawBsonRef<'_>) -> Result<()>,
) -> Result<Value<'a>> {
    let Some(value) = input.as_ref().filter(|value| !is_nullish(*value)) else {
        return Ok(Value::Missing);
    };
    spend_bytes(input.bytes())?;
    let mut out = DocBuilder::new();
    write(&mut out, value)?;
    Ok(Value::wrapped(out))
}

/// Where in a document or an array the next value is written.
#[derive(Clone, Copy)]
enum Place<'n> {
    Field(&'n str),
    Item,
}

impl Place<'_> {
    fn put(self, out: &mut DocBuilder, value: RawBsonRef<'_>) -> Result<()> {
        with_view(value, |view| self.put_view(out, view))
    }

    fn put_view(self, out: &mut DocBuilder, view: View<'_>) -> Result<()> {
        match self {
            Place::Field(name) => out.append_view(name, view),
            Place::Item => out.push_view(view),
        };
        check_value_bytes(out.len())
    }

    fn start_document(self, out: &mut DocBuilder) {
        match self {
            Place::Field(name) => out.start_document(name),
            Place::Item => out.push_document(),
        };
    }

    fn start_array(self, out: &mut DocBuilder) {
        match self {
            Place::Field(name) => out.start_array(name),
            Place::Item => out.push_array(),
        };
    }
}

fn failure(message: impl std::fmt::Display) -> Error {
    error(241, format!("{message} with no onError value"))
}

fn check_depth(depth: usize, operator: &str) -> Result<()> {
    spend(STEP)?;
    match depth < MAX_DEPTH {
        true => Ok(()),
        false => Err(failure(format!(
            "The result of {operator} would nest deeper than {MAX_DEPTH} levels"
        ))),
    }
}

struct Serializer {
    relaxed: bool,
}

impl Serializer {
    fn put(
        &self,
        out: &mut DocBuilder,
        place: Place<'_>,
        value: RawBsonRef<'_>,
        depth: usize,
    ) -> Result<()> {
        check_depth(depth, "$serializeEJSON")?;
        match value {
            RawBsonRef::Document(document) => {
                place.start_document(out);
                for (name, value) in elements(document) {
                    self.put(out, Place::Field(name), value, depth + 1)?;
                }
                out.end();
            }
            RawBsonRef::Array(array) => {
                place.start_array(out);
                for item in items(array) {
                    self.put(out, Place::Item, item, depth + 1)?;
                }
                out.end();
            }
            RawBsonRef::JavaScriptCodeWithScope(code) => {
                place.start_document(out);
                out.append("$code", code.code);
                let scope = RawBsonRef::Document(code.scope);
                self.put(out, Place::Field("$scope"), scope, depth + 1)?;
                out.end();
            }
            plain if self.is_plain(plain) => place.put(out, plain)?,
            other => place.put(out, RawBsonRef::Document(&self.wrapped(other)))?,
        }
        check_value_bytes(out.len())
    }

    /// Whether JSON has the type itself.
    fn is_plain(&self, value: RawBsonRef<'_>) -> bool {
        match value {
            RawBsonRef::String(_) | RawBsonRef::Boolean(_) | RawBsonRef::Null => true,
            RawBsonRef::Int32(_) | RawBsonRef::Int64(_) => self.relaxed,
            RawBsonRef::Double(v) => self.relaxed && v.is_finite(),
            _ => false,
        }
    }

    fn wrapped(&self, value: RawBsonRef<'_>) -> RawDocumentBuf {
        match value {
            RawBsonRef::Int32(v) => rawdoc! { "$numberInt": v.to_string() },
            RawBsonRef::Int64(v) => rawdoc! { "$numberLong": v.to_string() },
            RawBsonRef::Double(_) => rawdoc! { "$numberDouble": double_text(value) },
            RawBsonRef::Decimal128(v) => {
                rawdoc! { "$numberDecimal": Decimal::unpack(v).pack().to_string() }
            }
            RawBsonRef::ObjectId(v) => rawdoc! { "$oid": v.to_hex() },
            RawBsonRef::DateTime(v) => self.date(v.timestamp_millis()),
            RawBsonRef::Binary(data) => rawdoc! { "$binary": {
                "base64": STANDARD.encode(data.bytes),
                "subType": format!("{:02x}", u8::from(data.subtype)),
            } },
            RawBsonRef::RegularExpression(v) => rawdoc! { "$regularExpression": {
                "pattern": v.pattern.as_str(),
                "options": v.options.as_str(),
            } },
            RawBsonRef::Timestamp(v) => {
                let mut out = DocBuilder::new();
                out.start_document("$timestamp");
                out.append("t", whole(v.time))
                    .append("i", whole(v.increment));
                out.end();
                out.finish()
            }
            RawBsonRef::JavaScriptCode(code) => rawdoc! { "$code": code },
            RawBsonRef::Symbol(text) => rawdoc! { "$symbol": text },
            RawBsonRef::MinKey => rawdoc! { "$minKey": 1 },
            RawBsonRef::MaxKey => rawdoc! { "$maxKey": 1 },
            RawBsonRef::Undefined => rawdoc! { "$undefined": true },
            other => with_view(other, pointer),
        }
    }

    fn date(&self, millis: i64) -> RawDocumentBuf {
        if self.relaxed
            && (0..YEAR_10000).contains(&millis)
            && let Ok(text) = super::date::iso_text(millis)
        {
            return rawdoc! { "$date": text };
        }
        rawdoc! { "$date": { "$numberLong": millis.to_string() } }
    }
}

/// The document of a DBPointer, the one type that has no other here.
fn pointer(view: View<'_>) -> RawDocumentBuf {
    let View::DbPointer { namespace, id } = view else {
        return RawDocumentBuf::new();
    };
    let id = ObjectId::from_bytes(id).to_hex();
    rawdoc! { "$dbPointer": {
        "$ref": String::from_utf8_lossy(namespace).as_ref(),
        "$id": { "$oid": id },
    } }
}

/// An int where it fits.
fn whole(value: u32) -> RawBsonRef<'static> {
    match i32::try_from(value) {
        Ok(small) => RawBsonRef::Int32(small),
        Err(_) => RawBsonRef::Int64(i64::from(value)),
    }
}

/// A double's digits, with a fraction where it is whole.
fn double_text(value: RawBsonRef<'_>) -> String {
    let text = number_text(value);
    match text.bytes().all(|c| c.is_ascii_digit() || c == b'-') {
        true => format!("{text}.0"),
        false => text,
    }
}

/// Writes what a value stands for.
fn read(out: &mut DocBuilder, place: Place<'_>, value: RawBsonRef<'_>, depth: usize) -> Result<()> {
    check_depth(depth, "$deserializeEJSON")?;
    match value {
        RawBsonRef::Document(document) => match first(document) {
            Some((name, operand)) if WRAPPERS.contains(&name) => {
                unwrap(out, place, document, name, operand, depth)
            }
            _ => {
                place.start_document(out);
                for (name, value) in elements(document) {
                    read(out, Place::Field(name), value, depth + 1)?;
                }
                out.end();
                check_value_bytes(out.len())
            }
        },
        RawBsonRef::Array(array) => {
            place.start_array(out);
            for item in items(array) {
                read(out, Place::Item, item, depth + 1)?;
            }
            out.end();
            check_value_bytes(out.len())
        }
        other => place.put(out, other),
    }
}

const WRAPPERS: &[&str] = &[
    "$numberInt",
    "$numberLong",
    "$numberDouble",
    "$numberDecimal",
    "$oid",
    "$date",
    "$binary",
    "$uuid",
    "$regularExpression",
    "$timestamp",
    "$code",
    "$symbol",
    "$dbPointer",
    "$minKey",
    "$maxKey",
    "$undefined",
];

/// Writes the value that a document describes by its type's name.
fn unwrap(
    out: &mut DocBuilder,
    place: Place<'_>,
    document: &RawDocument,
    name: &str,
    operand: RawBsonRef<'_>,
    depth: usize,
) -> Result<()> {
    let wrong = || {
        failure(format!(
            "Invalid extended JSON in $deserializeEJSON: {}",
            crate::text::document_text(document)
        ))
    };
    let text = |value: RawBsonRef<'_>| match value {
        RawBsonRef::String(text) => Ok(text.to_owned()),
        _ => Err(wrong()),
    };
    let number = |to| {
        let text = text(operand)?;
        from_text(&text, to).map_err(|_| wrong())
    };
    if let ("$code", Some(scope), 2) = (name, field(document, "$scope"), count(document)) {
        let code = text(operand)?;
        let RawBsonRef::Document(scope) = scope else {
            return Err(wrong());
        };
        let mut read_scope = DocBuilder::new();
        for (name, value) in elements(scope) {
            read(&mut read_scope, Place::Field(name), value, depth + 1)?;
        }
        let scope = read_scope.finish();
        let (code, scope) = (code.as_bytes(), scope.as_bytes());
        return place.put_view(out, View::CodeWithScope { code, scope });
    }
    if count(document) != 1 {
        return Err(wrong());
    }
    let value = match name {
        "$numberInt" => number(ElementType::Int32)?,
        "$numberLong" => number(ElementType::Int64)?,
        "$numberDouble" => number(ElementType::Double)?,
        "$numberDecimal" => number(ElementType::Decimal128)?,
        "$oid" => RawBson::ObjectId(object_id(&text(operand)?).ok_or_else(wrong)?),
        "$date" => RawBson::DateTime(pinion_bson::DateTime::from_millis(
            millis(operand).ok_or_else(wrong)?,
        )),
        "$symbol" => RawBson::Symbol(text(operand)?),
        "$code" => RawBson::JavaScriptCode(text(operand)?),
        "$minKey" if is_one(operand) => RawBson::MinKey,
        "$maxKey" if is_one(operand) => RawBson::MaxKey,
        "$undefined" if operand == RawBsonRef::Boolean(true) => RawBson::Undefined,
        _ => return unwrap_compound(out, place, name, operand).unwrap_or_else(|| Err(wrong())),
    };
    place.put(out, value.as_raw_bson_ref())
}

/// Writes a value of several parts; `None` where they are not those of its type.
fn unwrap_compound(
    out: &mut DocBuilder,
    place: Place<'_>,
    name: &str,
    operand: RawBsonRef<'_>,
) -> Option<Result<()>> {
    if name == "$uuid" {
        let RawBsonRef::String(text) = operand else {
            return None;
        };
        let uuid = pinion_bson::Uuid::parse_str(text).ok()?;
        let (subtype, bytes) = (4, &uuid.bytes()[..]);
        return Some(place.put_view(out, View::Binary { subtype, bytes }));
    }
    let RawBsonRef::Document(parts) = operand else {
        return None;
    };
    let text = |name| match field(parts, name)? {
        RawBsonRef::String(text) if count(parts) == 2 => Some(text),
        _ => None,
    };
    Some(match name {
        "$binary" => {
            let bytes = &STANDARD.decode(text("base64")?).ok()?[..];
            let subtype = u8::from_str_radix(text("subType")?, 16).ok()?;
            place.put_view(out, View::Binary { subtype, bytes })
        }
        "$regularExpression" => {
            let (pattern, options) = (text("pattern")?, text("options")?);
            if [pattern, options].iter().any(|text| text.contains('\0')) {
                return None;
            }
            let (pattern, options) = (pattern.as_bytes(), options.as_bytes());
            place.put_view(out, View::Regex { pattern, options })
        }
        "$timestamp" => {
            let part = |name| u32::try_from(crate::number::exact_i64(field(parts, name)?)?).ok();
            let (time, increment) = (part("t")?, part("i")?);
            if count(parts) != 2 {
                return None;
            }
            let bits = u64::from(time) << 32 | u64::from(increment);
            place.put_view(out, View::Timestamp(bits))
        }
        "$dbPointer" => {
            let namespace = text("$ref")?.as_bytes();
            let id = match field(parts, "$id")? {
                RawBsonRef::ObjectId(id) => id,
                RawBsonRef::Document(id) => match (first(id)?, count(id)) {
                    (("$oid", RawBsonRef::String(text)), 1) => object_id(text)?,
                    _ => return None,
                },
                _ => return None,
            };
            let id = id.bytes();
            place.put_view(out, View::DbPointer { namespace, id })
        }
        _ => return None,
    })
}

fn object_id(text: &str) -> Option<ObjectId> {
    ObjectId::parse_str(text).ok()
}

fn is_one(value: RawBsonRef<'_>) -> bool {
    crate::number::exact_i64(value) == Some(1)
}

/// The milliseconds of a date: as text, or as a long in either form.
fn millis(operand: RawBsonRef<'_>) -> Option<i64> {
    match operand {
        RawBsonRef::String(text) => super::date_text::moment(text).ok(),
        RawBsonRef::Int32(_) | RawBsonRef::Int64(_) => crate::number::exact_i64(operand),
        RawBsonRef::Document(long) => match (first(long)?, count(long)) {
            (("$numberLong", RawBsonRef::String(text)), 1) => text.parse().ok(),
            _ => None,
        },
        _ => None,
    }
}
