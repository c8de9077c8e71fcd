//! Values as MongoDB's messages and index bounds print them.

use std::borrow::Cow;
use std::fmt::Write;

use pinion_bson::{BinarySubtype, RawBsonRef, RawDocument};

use crate::limits::MAX_QUOTED_BYTES;
use crate::value::{array_document, elements};

/// `{ a: 1, b: "x" }`
pub fn document_text(document: &RawDocument) -> String {
    let mut out = String::new();
    write_document(&mut out, document, false);
    out
}

/// A value alone.
pub fn value_text(value: RawBsonRef<'_>) -> String {
    let mut out = String::new();
    write_value(&mut out, value);
    out
}

/// `name: value`
pub fn element_text(name: &str, value: RawBsonRef<'_>) -> String {
    let mut out = format!("{name}: ");
    write_value(&mut out, value);
    out
}

/// A text as messages quote it. Of a long one they have the beginning: it would be copied with
/// every error around it.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_QUOTED_BYTES {
        return text.into();
    }
    let end = text.floor_char_boundary(MAX_QUOTED_BYTES);
    format!("{}...", &text[..end]).into()
}

fn write_document(out: &mut String, document: &RawDocument, is_array: bool) {
    let (open, close) = if is_array { ('[', ']') } else { ('{', '}') };
    out.push(open);
    let mut first = true;
    for (name, value) in elements(document) {
        out.push_str(if first { " " } else { ", " });
        first = false;
        if !is_array {
            out.push_str(name);
            out.push_str(": ");
        }
        write_value(out, value);
    }
    if !first {
        out.push(' ');
    }
    out.push(close);
}

fn write_value(out: &mut String, value: RawBsonRef<'_>) {
    // Writing to a string cannot fail.
    let _ = match value {
        RawBsonRef::Double(v) => {
            write_double(out, v);
            Ok(())
        }
        RawBsonRef::String(v) | RawBsonRef::Symbol(v) => {
            out.push('"');
            out.push_str(v);
            out.push('"');
            Ok(())
        }
        RawBsonRef::Document(v) => {
            write_document(out, v, false);
            Ok(())
        }
        RawBsonRef::Array(v) => {
            write_document(out, array_document(v), true);
            Ok(())
        }
        RawBsonRef::Boolean(v) => write!(out, "{v}"),
        RawBsonRef::Null => write!(out, "null"),
        RawBsonRef::Undefined => write!(out, "undefined"),
        RawBsonRef::RegularExpression(v) => {
            write!(out, "/{}/{}", v.pattern.as_str(), v.options.as_str())
        }
        RawBsonRef::JavaScriptCode(v) => write!(out, "{v}"),
        RawBsonRef::JavaScriptCodeWithScope(v) => {
            let _ = write!(out, "CodeWScope( {}, ", v.code);
            write_document(out, v.scope, false);
            write!(out, ")")
        }
        RawBsonRef::Int32(v) => write!(out, "{v}"),
        RawBsonRef::Int64(v) => write!(out, "{v}"),
        RawBsonRef::Timestamp(v) => write!(out, "Timestamp({}, {})", v.time, v.increment),
        RawBsonRef::Binary(v) if v.subtype == BinarySubtype::Uuid && v.bytes.len() == 16 => {
            let _ = write!(out, "UUID(\"");
            for (at, byte) in v.bytes.iter().enumerate() {
                let dash = if matches!(at, 4 | 6 | 8 | 10) {
                    "-"
                } else {
                    ""
                };
                let _ = write!(out, "{dash}{byte:02x}");
            }
            write!(out, "\")")
        }
        RawBsonRef::Binary(v) => {
            let _ = write!(out, "BinData({}, ", u8::from(v.subtype));
            for byte in v.bytes {
                let _ = write!(out, "{byte:02X}");
            }
            write!(out, ")")
        }
        RawBsonRef::ObjectId(v) => write!(out, "ObjectId('{}')", v.to_hex()),
        RawBsonRef::DateTime(v) => write!(out, "new Date({})", v.timestamp_millis()),
        RawBsonRef::Decimal128(v) => write!(out, "{v}"),
        RawBsonRef::MaxKey => write!(out, "MaxKey"),
        RawBsonRef::MinKey => write!(out, "MinKey"),
        RawBsonRef::DbPointer(_) => write!(out, "DBRef"),
    };
}

/// A double as `%.16g` prints it, with `.0` where that leaves neither point nor exponent.
pub(crate) fn write_double(out: &mut String, v: f64) {
    let text = format_general(v, 16);
    out.push_str(&text);
    if !text.contains(['.', 'n', 'i']) || text.contains("nan") || text.contains("inf") {
        out.push_str(".0");
    }
}

/// C's `%.{precision}g`.
pub(crate) fn format_general(v: f64, precision: usize) -> String {
    if v.is_nan() {
        return "nan".into();
    }
    if v.is_infinite() {
        return if v > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if v == 0.0 {
        return if v.is_sign_negative() {
            "-0".into()
        } else {
            "0".into()
        };
    }
    let scientific = format!("{:.*e}", precision - 1, v);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |s: &str| {
        if s.contains('.') {
            s.trim_end_matches('0').trim_end_matches('.').to_string()
        } else {
            s.to_string()
        }
    };
    if exponent < -4 || exponent >= precision as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
    } else {
        let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
        trim(&format!("{v:.decimals$}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawBinaryRef, rawdoc};

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = "é".repeat(MAX_QUOTED_BYTES);
        let cut = shortened(&long[..]);
        assert!(cut.len() <= MAX_QUOTED_BYTES + 3 && cut.ends_with("é..."));
    }

    #[test]
    fn documents_print_as_in_messages() {
        fn check(document: pinion_bson::RawDocumentBuf, expected: &str) {
            assert_eq!(document_text(&document), expected);
        }
        check(rawdoc! {}, "{}");
        check(
            rawdoc! { "a": 1, "b": "x", "c": [1, 2.0, {}], "d": [] },
            r#"{ a: 1, b: "x", c: [ 1, 2.0, {} ], d: [] }"#,
        );
        check(
            rawdoc! { "a": 1.5, "b": 1e30, "c": f64::NAN },
            "{ a: 1.5, b: 1e+30.0, c: nan.0 }",
        );
        let binary = |subtype, bytes: &[u8]| {
            let mut out = pinion_bson::DocBuilder::new();
            out.append("a", RawBsonRef::Binary(RawBinaryRef { subtype, bytes }));
            out.finish()
        };
        let bytes: Vec<u8> = (0..16).map(|n| n * 16).collect();
        check(
            binary(BinarySubtype::Uuid, &bytes),
            r#"{ a: UUID("00102030-4050-6070-8090-a0b0c0d0e0f0") }"#,
        );
        check(
            binary(BinarySubtype::Uuid, &bytes[..2]),
            "{ a: BinData(4, 0010) }",
        );
        check(
            binary(BinarySubtype::Generic, &bytes[..2]),
            "{ a: BinData(0, 0010) }",
        );
    }

    #[test]
    fn doubles_print_as_percent_g() {
        for (value, expected) in [
            (0.1, "0.1"),
            (1.0, "1"),
            (1e15, "1000000000000000"),
            (1e16, "1e+16"),
            (1e-5, "1e-05"),
            (123.456, "123.456"),
        ] {
            assert_eq!(format_general(value, 16), expected);
        }
    }
}
