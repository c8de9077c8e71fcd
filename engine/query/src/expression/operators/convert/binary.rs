//! Conversions from and to binary data.

use std::borrow::Cow;
use std::fmt::Write;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use pinion_bson::{Binary, BinarySubtype, ElementType, RawBinaryRef, RawBson, RawBsonRef};
use pinion_wire::Result;

use super::{Target, Value, described, failure};
use crate::error::error;
use crate::number::exact_i64;
use crate::text::shortened;
use crate::value::{is_number, type_name};

/// How text stands for binary data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Base64,
    Base64Url,
    Hex,
    Utf8,
    Uuid,
    /// A UUID as such, other data in base64; for text that is made, not read.
    Auto,
}

impl Format {
    pub(super) fn parse(value: &Value<'_>) -> Result<Option<Format>> {
        let name = match value.as_ref() {
            _ if value.is_nullish() => return Ok(None),
            Some(RawBsonRef::String(name)) => name,
            _ => {
                return Err(error(
                    4_341_114,
                    format!(
                        "$convert requires that 'format' be a string, found: {}",
                        described(value)
                    ),
                ));
            }
        };
        Ok(Some(match name {
            "base64" => Format::Base64,
            "base64url" => Format::Base64Url,
            "hex" => Format::Hex,
            "utf8" => Format::Utf8,
            "uuid" => Format::Uuid,
            "auto" => Format::Auto,
            other => {
                return Err(error(
                    4_341_125,
                    format!(
                        "Invalid 'format' argument for $convert: {}",
                        shortened(other)
                    ),
                ));
            }
        }))
    }
}

/// The order of the bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    pub(super) fn parse(value: &Value<'_>) -> Result<ByteOrder> {
        match value.as_ref() {
            _ if value.is_nullish() => Ok(ByteOrder::Little),
            Some(RawBsonRef::String("little")) => Ok(ByteOrder::Little),
            Some(RawBsonRef::String("big")) => Ok(ByteOrder::Big),
            Some(RawBsonRef::String(other)) => Err(error(
                9_130_002,
                format!(
                    "Invalid 'byteOrder' argument for $convert: {}",
                    shortened(other)
                ),
            )),
            _ => Err(error(
                9_130_001,
                format!(
                    "$convert requires that 'byteOrder' be a string, found: {}",
                    described(value)
                ),
            )),
        }
    }
}

/// The subtype that a number names.
pub(super) fn subtype(value: RawBsonRef<'_>) -> Result<BinarySubtype> {
    if !is_number(value) {
        return Err(error(
            4_341_108,
            format!(
                "$convert's 'subtype' argument must be a number, but is {}",
                type_name(value)
            ),
        ));
    }
    let number = exact_i64(value)
        .and_then(|n| i32::try_from(n).ok())
        .ok_or_else(|| {
            error(
                4_341_106,
                "In $convert, numeric 'subtype' argument is not an integer",
            )
        })?;
    match u8::try_from(number) {
        Ok(known @ (0..=9 | 128)) => Ok(BinarySubtype::from(known)),
        _ => Err(error(
            4_341_107,
            format!(
                "In $convert, numeric value for 'subtype' does not correspond to a BinData type: {number}"
            ),
        )),
    }
}

/// Binary data as it is, unless another subtype is wanted.
pub(super) fn with_subtype(data: RawBinaryRef<'_>, subtype: BinarySubtype) -> Result<RawBson> {
    if data.subtype == subtype {
        return Ok(RawBsonRef::Binary(data).into());
    }
    Err(failure(
        "Conversions between different BinData subtypes are not supported",
    ))
}

fn missing_format(from: &str, to: &str) -> pinion_wire::Error {
    error(
        4_341_115,
        format!("Format must be specified when converting from '{from}' to '{to}'"),
    )
}

/// A number or text as binary data; `None` for other types.
pub(super) fn from_value(value: RawBsonRef<'_>, target: Target) -> Option<Result<RawBson>> {
    let number = |little: &[u8]| {
        let mut bytes = little.to_vec();
        if target.order == ByteOrder::Big {
            bytes.reverse();
        }
        bytes
    };
    let bytes = match value {
        RawBsonRef::Int32(v) => number(&v.to_le_bytes()),
        RawBsonRef::Int64(v) => number(&v.to_le_bytes()),
        RawBsonRef::Double(v) => number(&v.to_le_bytes()),
        RawBsonRef::String(text) => {
            let format = target
                .format
                .ok_or_else(|| missing_format("string", "binData"));
            match format.and_then(|format| from_text(text, format, target.subtype)) {
                Ok(bytes) => bytes,
                Err(e) => return Some(Err(e)),
            }
        }
        _ => return None,
    };
    Some(Ok(RawBson::Binary(Binary {
        subtype: target.subtype,
        bytes,
    })))
}

fn from_text(text: &str, format: Format, subtype: BinarySubtype) -> Result<Vec<u8>> {
    if (format == Format::Uuid) != (subtype == BinarySubtype::Uuid) {
        return Err(failure(
            "Only the UUID format is allowed with the UUID subtype, and with no other",
        ));
    }
    let bytes = match format {
        Format::Base64 => base64(&alphabet::STANDARD, DecodePaddingMode::RequireCanonical)
            .decode(text)
            .ok(),
        Format::Base64Url => base64(&alphabet::URL_SAFE, DecodePaddingMode::Indifferent)
            .decode(text)
            .ok(),
        Format::Hex => hex_bytes(text),
        Format::Utf8 => Some(text.as_bytes().to_vec()),
        Format::Uuid => uuid_bytes(text),
        Format::Auto => None,
    };
    bytes.ok_or_else(|| {
        failure(format!(
            "Input string '{}' is invalid for the requested format",
            shortened(text)
        ))
    })
}

fn base64(alphabet: &alphabet::Alphabet, padding: DecodePaddingMode) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new()
        .with_encode_padding(padding == DecodePaddingMode::RequireCanonical)
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(padding);
    GeneralPurpose::new(alphabet, config)
}

fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return None;
    };
    pairs
        .iter()
        .map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?))
        .collect()
}

/// The bytes of `01234567-89ab-cdef-0123-456789abcdef`.
fn uuid_bytes(text: &str) -> Option<Vec<u8>> {
    let groups: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    if lengths != [8, 4, 4, 4, 12] {
        return None;
    }
    hex_bytes(&groups.concat())
}

fn uuid_text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        let dash = if matches!(at, 4 | 6 | 8 | 10) {
            "-"
        } else {
            ""
        };
        // Writing to a string cannot fail.
        let _ = write!(out, "{dash}{byte:02x}");
    }
    out
}

/// Binary data as text or as a number; `None` for other types.
pub(super) fn to_value(data: RawBinaryRef<'_>, target: Target) -> Option<Result<RawBson>> {
    let bytes = stored(data);
    let result = match target.to {
        ElementType::String => target
            .format
            .ok_or_else(|| missing_format("binData", "string"))
            .and_then(|format| to_text(data.subtype, &bytes, format))
            .map(RawBson::String),
        ElementType::Int32 => integer(&bytes, 4, target.order).map(|n| RawBson::Int32(n as i32)),
        ElementType::Int64 => integer(&bytes, 8, target.order).map(RawBson::Int64),
        ElementType::Double => double(&bytes, target.order).map(RawBson::Double),
        _ => return None,
    };
    Some(result)
}

/// The bytes as they are stored: the old generic subtype has a length in front of them.
fn stored<'d>(data: RawBinaryRef<'d>) -> Cow<'d, [u8]> {
    if data.subtype != BinarySubtype::BinaryOld {
        return Cow::Borrowed(data.bytes);
    }
    let length = (data.bytes.len() as i32).to_le_bytes();
    Cow::Owned([&length, data.bytes].concat())
}

fn to_text(subtype: BinarySubtype, bytes: &[u8], format: Format) -> Result<String> {
    let is_uuid = subtype == BinarySubtype::Uuid && bytes.len() == 16;
    let standard = || base64(&alphabet::STANDARD, DecodePaddingMode::RequireCanonical);
    Ok(match format {
        Format::Auto if is_uuid => uuid_text(bytes),
        Format::Auto | Format::Base64 => standard().encode(bytes),
        Format::Base64Url => {
            base64(&alphabet::URL_SAFE, DecodePaddingMode::Indifferent).encode(bytes)
        }
        Format::Hex => bytes.iter().fold(String::new(), |mut out, byte| {
            let _ = write!(out, "{byte:02X}");
            out
        }),
        Format::Utf8 => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => return Err(failure("BinData does not represent a valid UTF-8 string")),
        },
        Format::Uuid if is_uuid => uuid_text(bytes),
        Format::Uuid => return Err(failure("BinData is no UUID")),
    })
}

fn wrong_length(length: usize) -> pinion_wire::Error {
    failure(format!(
        "Failed to convert BinData to a number: its length of {length} bytes is not allowed"
    ))
}

/// Big-endian bytes, of data in either order.
fn big_endian(bytes: &[u8], order: ByteOrder) -> Vec<u8> {
    match order {
        ByteOrder::Big => bytes.to_vec(),
        ByteOrder::Little => bytes.iter().rev().copied().collect(),
    }
}

/// A signed integer of 1, 2, 4 or 8 bytes.
fn integer(bytes: &[u8], most: usize, order: ByteOrder) -> Result<i64> {
    if !matches!(bytes.len(), 1 | 2 | 4 | 8) || bytes.len() > most {
        return Err(wrong_length(bytes.len()));
    }
    let bytes = big_endian(bytes, order);
    let negative = bytes[0] & 0x80 != 0;
    let start = if negative { -1_i64 } else { 0 };
    Ok(bytes
        .iter()
        .fold(start, |number, byte| number << 8 | i64::from(*byte)))
}

/// A double, or the shorter form of one.
fn double(bytes: &[u8], order: ByteOrder) -> Result<f64> {
    let bytes = big_endian(bytes, order);
    match (
        <[u8; 4]>::try_from(&bytes[..]),
        <[u8; 8]>::try_from(&bytes[..]),
    ) {
        (Ok(short), _) => Ok(f64::from(f32::from_be_bytes(short))),
        (_, Ok(full)) => Ok(f64::from_be_bytes(full)),
        _ => Err(wrong_length(bytes.len())),
    }
}
