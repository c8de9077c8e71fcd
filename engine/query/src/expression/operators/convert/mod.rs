//! Conversions between types: `$convert` and `$toString` to `$toUUID`.

mod binary;
mod double_text;
mod number;

use pinion_bson::{
    BinarySubtype, DateTime, ElementType, Number, ObjectId, RawBson, RawBsonRef, RawDocument,
    type_from_alias, type_from_number,
};
use pinion_wire::{Error, Result};

use super::{Arity, Operator, Value};
use crate::error::{bad_value, error, failed_to_parse};
use crate::expression::parse::{Expr, Guarded, Parser};
use crate::number::exact_i64;
use crate::text::{shortened, value_text};
use crate::value::{elements, is_nullish, is_number, type_name};

pub(super) use number::{from_text, number_text};

use binary::{ByteOrder, Format};

macro_rules! conversion {
    ($name:literal, $to:ident) => {
        Operator {
            name: $name,
            arity: Arity::One,
            evaluate: |v| {
                converted(
                    &v[0],
                    Target {
                        to: ElementType::$to,
                        subtype: BinarySubtype::Generic,
                        format: Some(Format::Auto),
                        order: ByteOrder::Little,
                    },
                )
            },
        }
    };
}

pub(super) const OPERATORS: &[Operator] = &[
    conversion!("$toString", String),
    conversion!("$toInt", Int32),
    conversion!("$toLong", Int64),
    conversion!("$toDouble", Double),
    conversion!("$toDecimal", Decimal128),
    conversion!("$toBool", Boolean),
    conversion!("$toDate", DateTime),
    conversion!("$toObjectId", ObjectId),
    Operator {
        name: "$toUUID",
        arity: Arity::One,
        evaluate: |v| {
            converted(
                &v[0],
                Target {
                    to: ElementType::Binary,
                    subtype: BinarySubtype::Uuid,
                    format: Some(Format::Uuid),
                    order: ByteOrder::Little,
                },
            )
        },
    },
];

/// What a value is converted to, and how binary data stands for text and numbers.
#[derive(Clone, Copy, Debug)]
struct Target {
    to: ElementType,
    subtype: BinarySubtype,
    format: Option<Format>,
    order: ByteOrder,
}

fn converted<'a>(value: &Value<'a>, target: Target) -> Result<Value<'a>> {
    match value.as_ref() {
        Some(value) if !is_nullish(value) => convert(value, target).map(Value::owned),
        _ => Ok(Value::null()),
    }
}

static CONVERT: Operator = Operator {
    name: "$convert",
    arity: Arity::Any,
    evaluate: convert_with,
};

/// `$convert`: the input, the target, the format, the byte order.
pub(super) fn parse(parser: &mut Parser<'_>, _: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let RawBsonRef::Document(document) = operand else {
        return Err(failed_to_parse(format!(
            "$convert expects an object of named arguments but found: {}",
            type_name(operand)
        )));
    };
    const ARGUMENTS: [&str; 6] = ["input", "to", "format", "byteOrder", "onError", "onNull"];
    let mut given: [Option<Expr>; 6] = Default::default();
    for (field, value) in elements(document) {
        let place = ARGUMENTS.iter().position(|argument| *argument == field);
        let place = place.ok_or_else(|| {
            failed_to_parse(format!("$convert found an unknown argument: {field}"))
        })?;
        if field == "to" {
            check_target_form(value)?;
        }
        given[place] = Some(parser.parse(value)?);
    }
    let [input, to, format, order, on_error, on_null] = given;
    let missing = |name: &str| failed_to_parse(format!("Missing '{name}' parameter to $convert"));
    let or_null = |argument: Option<Expr>| argument.unwrap_or(Expr::Remove);
    Ok(Expr::Guarded(Box::new(Guarded {
        operator: &CONVERT,
        arguments: vec![
            input.ok_or_else(|| missing("input"))?,
            to.ok_or_else(|| missing("to"))?,
            or_null(format),
            or_null(order),
        ],
        on_error,
        on_null,
    })))
}

/// Refuses an object that names no type. An operator may still give one.
fn check_target_form(to: RawBsonRef<'_>) -> Result<()> {
    let RawBsonRef::Document(to) = to else {
        return Ok(());
    };
    let is_operator = elements(to)
        .next()
        .is_some_and(|(name, _)| name.starts_with('$'));
    if is_operator {
        return Ok(());
    }
    check_target_fields(to)
}

fn check_target_fields(to: &RawDocument) -> Result<()> {
    let known = |name: &str| matches!(name, "type" | "subtype");
    if let Some((name, _)) = elements(to).find(|(name, _)| !known(name)) {
        return Err(failed_to_parse(format!(
            "$convert's 'to' argument contains an unknown field: {name}"
        )));
    }
    match elements(to).any(|(name, _)| name == "type") {
        true => Ok(()),
        false => Err(failed_to_parse(
            "Missing 'type' in the 'to' argument of $convert",
        )),
    }
}

/// Gives nothing where the input is null.
fn convert_with<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [input, to, format, order] = values else {
        return Ok(Value::null());
    };
    let named = match to.as_ref() {
        None => None,
        Some(to) if is_nullish(to) => None,
        Some(RawBsonRef::Document(target)) => {
            check_target_fields(target)?;
            Some(target_type(crate::value::field(target, "type"))?)
        }
        named => Some(target_type(named)?),
    };
    let input = match input.as_ref() {
        Some(input) if !is_nullish(input) => input,
        _ => return Ok(Value::Missing),
    };
    let to_type = match named {
        None => return Ok(Value::null()),
        Some(Some(to_type)) => to_type,
        Some(None) => return Err(unsupported(input, "missing")),
    };
    let subtype = to
        .as_document()
        .and_then(|target| crate::value::field(target, "subtype"));
    let target = Target {
        to: to_type,
        subtype: subtype.map_or(Ok(BinarySubtype::Generic), binary::subtype)?,
        format: Format::parse(format)?,
        order: ByteOrder::parse(order)?,
    };
    convert(input, target).map(Value::owned)
}

/// The type that a value names; `None` for that of what is missing, which has a number too.
fn target_type(value: Option<RawBsonRef<'_>>) -> Result<Option<ElementType>> {
    match value {
        Some(RawBsonRef::String(alias)) => type_from_alias(alias)
            .map(Some)
            .ok_or_else(|| bad_value(format!("Unknown type name: {alias}"))),
        Some(number) if is_number(number) => {
            let code = exact_i64(number).and_then(|n| i32::try_from(n).ok());
            let code = code.ok_or_else(|| {
                failed_to_parse("In $convert, numeric 'to' argument is not an integer")
            })?;
            if code == 0 {
                return Ok(None);
            }
            type_from_number(code).map(Some).ok_or_else(|| {
                failed_to_parse(format!(
                    "In $convert, numeric value for 'to' does not correspond to a BSON type: {code}"
                ))
            })
        }
        other => Err(failed_to_parse(format!(
            "$convert's 'to' argument must be a string or number, but is {}",
            other.map_or("missing", type_name)
        ))),
    }
}

fn failure(message: impl std::fmt::Display) -> Error {
    error(241, format!("{message} in $convert with no onError value"))
}

fn unsupported(value: RawBsonRef<'_>, to: &str) -> Error {
    failure(format!(
        "Unsupported conversion from {} to {to}",
        type_name(value)
    ))
}

fn convert(value: RawBsonRef<'_>, target: Target) -> Result<RawBson> {
    let to = target.to;
    let unsupported = || unsupported(value, pinion_bson::type_name(to));
    match (to, value) {
        (ElementType::Binary, RawBsonRef::Binary(data)) => {
            return binary::with_subtype(data, target.subtype);
        }
        (_, same) if same.element_type() == to => return Ok(same.into()),
        (ElementType::Binary, source) => {
            return binary::from_value(source, target).ok_or_else(unsupported)?;
        }
        (ElementType::Boolean, RawBsonRef::Binary(_)) => return Ok(RawBson::Boolean(true)),
        (_, RawBsonRef::Binary(data)) => {
            return binary::to_value(data, target).ok_or_else(unsupported)?;
        }
        _ => {}
    }
    let number = Number::from_value(value);
    Ok(match (to, value) {
        (ElementType::Boolean, RawBsonRef::String(_)) => RawBson::Boolean(true),
        (ElementType::Boolean, other) => RawBson::Boolean(crate::value::is_true(other)),
        (ElementType::String, RawBsonRef::Boolean(v)) => RawBson::String(v.to_string()),
        (ElementType::String, RawBsonRef::ObjectId(v)) => RawBson::String(v.to_hex()),
        (ElementType::String, RawBsonRef::DateTime(v)) => {
            RawBson::String(super::date::iso_text(v.timestamp_millis())?)
        }
        (ElementType::String, v) if number.is_some() => RawBson::String(number_text(v)),
        (ElementType::ObjectId, RawBsonRef::String(text)) => match ObjectId::parse_str(text) {
            Ok(id) => RawBson::ObjectId(id),
            Err(_) => return Err(no_object_id(text)),
        },
        (ElementType::DateTime, _) => RawBson::DateTime(DateTime::from_millis(
            moment(value).ok_or_else(unsupported)??,
        )),
        (
            ElementType::Int32 | ElementType::Int64 | ElementType::Double | ElementType::Decimal128,
            _,
        ) => number::to_number(value, to).ok_or_else(unsupported)??,
        _ => return Err(unsupported()),
    })
}

/// The error for a text that is no ObjectId.
fn no_object_id(text: &str) -> Error {
    const DIGITS: usize = 24;
    let why = match text.len() {
        DIGITS => "Invalid character found in hex string".to_owned(),
        length => {
            format!(
                "Invalid string length for parsing to OID, expected {DIGITS} but found {length}"
            )
        }
    };
    let text = shortened(text);
    error(
        241,
        format!("Failed to parse objectId '{text}' in $convert with no onError value: {why}"),
    )
}

/// The milliseconds of what stands for a moment.
fn moment(value: RawBsonRef<'_>) -> Option<Result<i64>> {
    Some(match value {
        RawBsonRef::ObjectId(v) => Ok(super::date::object_id_millis(v)),
        RawBsonRef::Timestamp(v) => Ok(i64::from(v.time) * 1000),
        RawBsonRef::String(text) => super::date_text::moment(text),
        RawBsonRef::Int32(_) => return None,
        number => number::whole(Number::from_value(number)?, i64::MIN, i64::MAX),
    })
}

/// A value with its type, as errors describe it.
fn described(value: &Value<'_>) -> String {
    format!(
        "{} with value {}",
        value.type_name(),
        value_text(value.or_null())
    )
}
