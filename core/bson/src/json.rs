//! Extended JSON (version 2) for logs and administrative output, relaxed and canonical.

use core::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bson::{Decimal128, RawBsonRef, RawDocument};

use crate::decimal::Decimal;
use crate::limits::MAX_DEPTH;
use crate::view::{RawElems, View, with_view};

/// Which of the two formats is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonMode {
    /// Numbers and dates as people write them; their types are lost.
    Relaxed,
    /// Every value with its type.
    Canonical,
}

/// The document as one line of extended JSON.
pub fn to_extended_json(document: &RawDocument, mode: JsonMode) -> String {
    to_extended_json_limited(document, mode, usize::MAX)
}

/// The document as one line of extended JSON, cut off with `...` soon after `max_bytes`: for logs,
/// whose lines must not grow with what clients send.
pub fn to_extended_json_limited(
    document: &RawDocument,
    mode: JsonMode,
    max_bytes: usize,
) -> String {
    let mut writer = Writer {
        out: String::new(),
        mode,
        max_bytes,
    };
    writer.value(View::Document(document.as_bytes()), 0);
    writer.finish()
}

/// One value as extended JSON.
pub fn value_to_json(value: RawBsonRef<'_>, mode: JsonMode) -> String {
    let mut writer = Writer {
        out: String::new(),
        mode,
        max_bytes: usize::MAX,
    };
    with_view(value, |view| writer.value(view, 0));
    writer.finish()
}

struct Writer {
    out: String,
    mode: JsonMode,
    max_bytes: usize,
}

impl Writer {
    fn finish(mut self) -> String {
        if self.is_full() {
            let mut end = self.max_bytes;
            while !self.out.is_char_boundary(end) {
                end -= 1;
            }
            self.out.truncate(end);
            self.out.push_str("...");
        }
        self.out
    }

    fn is_full(&self) -> bool {
        self.out.len() > self.max_bytes
    }

    fn value(&mut self, view: View<'_>, depth: usize) {
        let relaxed = self.mode == JsonMode::Relaxed;
        match view {
            View::Double(v) if relaxed && v.is_finite() => self.display(format_args!("{v:?}")),
            View::Double(v) if v.is_nan() => self.wrapped("$numberDouble", "NaN"),
            View::Double(v) if v.is_infinite() => {
                self.wrapped(
                    "$numberDouble",
                    if v > 0.0 { "Infinity" } else { "-Infinity" },
                );
            }
            View::Double(v) => self.display(format_args!("{{\"$numberDouble\":\"{v:?}\"}}")),
            View::Int32(v) if relaxed => self.display(format_args!("{v}")),
            View::Int64(v) if relaxed => self.display(format_args!("{v}")),
            View::Int32(v) => self.display(format_args!("{{\"$numberInt\":\"{v}\"}}")),
            View::Int64(v) => self.display(format_args!("{{\"$numberLong\":\"{v}\"}}")),
            View::Decimal128(v) => {
                let canonical = Decimal::unpack(Decimal128::from_bytes(v)).pack();
                self.display(format_args!("{{\"$numberDecimal\":\"{canonical}\"}}"));
            }
            View::String(v) => self.text(v),
            View::Symbol(v) => {
                self.raw("{\"$symbol\":");
                self.text(v);
                self.raw("}");
            }
            View::Document(bytes) => self.document(bytes, depth),
            View::Array(bytes) => self.array(bytes, depth),
            View::Binary { subtype, bytes } => {
                self.raw("{\"$binary\":{\"base64\":\"");
                // Four characters for three bytes: no more input than the limit can show.
                let shown = bytes.len().min(self.max_bytes);
                STANDARD.encode_string(&bytes[..shown], &mut self.out);
                self.display(format_args!("\",\"subType\":\"{subtype:02x}\"}}}}"));
            }
            View::Undefined => self.raw("{\"$undefined\":true}"),
            View::ObjectId(id) => self.object_id(id),
            View::Boolean(v) => self.raw(if v { "true" } else { "false" }),
            View::DateTime(millis) => self.date(millis, relaxed),
            View::Null => self.raw("null"),
            View::Regex { pattern, options } => {
                self.raw("{\"$regularExpression\":{\"pattern\":");
                self.text(pattern);
                self.raw(",\"options\":");
                self.text(options);
                self.raw("}}");
            }
            View::DbPointer { namespace, id } => {
                self.raw("{\"$dbPointer\":{\"$ref\":");
                self.text(namespace);
                self.raw(",\"$id\":");
                self.object_id(id);
                self.raw("}}");
            }
            View::Code(code) => {
                self.raw("{\"$code\":");
                self.text(code);
                self.raw("}");
            }
            View::CodeWithScope { code, scope } => {
                self.raw("{\"$code\":");
                self.text(code);
                self.raw(",\"$scope\":");
                self.document(scope, depth + 1);
                self.raw("}");
            }
            View::Timestamp(v) => {
                let (seconds, increment) = (v >> 32, v & u64::from(u32::MAX));
                self.display(format_args!(
                    "{{\"$timestamp\":{{\"t\":{seconds},\"i\":{increment}}}}}"
                ));
            }
            View::MinKey => self.raw("{\"$minKey\":1}"),
            View::MaxKey => self.raw("{\"$maxKey\":1}"),
        }
    }

    fn document(&mut self, bytes: &[u8], depth: usize) {
        self.raw("{");
        self.elements(bytes, depth, true);
        self.raw("}");
    }

    fn array(&mut self, bytes: &[u8], depth: usize) {
        self.raw("[");
        self.elements(bytes, depth, false);
        self.raw("]");
    }

    /// Documents that were never validated may nest deeper than any stack: those are cut.
    fn elements(&mut self, bytes: &[u8], depth: usize, named: bool) {
        if depth > MAX_DEPTH {
            self.raw("...");
            return;
        }
        for (i, elem) in RawElems::new(bytes).enumerate() {
            if self.is_full() {
                return;
            }
            if i > 0 {
                self.raw(",");
            }
            if named {
                self.text(elem.name);
                self.raw(":");
            }
            match elem.view() {
                Some(view) => self.value(view, depth + 1),
                None => self.raw("null"),
            }
        }
    }

    fn raw(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn display(&mut self, arguments: core::fmt::Arguments<'_>) {
        self.out
            .write_fmt(arguments)
            .expect("writing to a string cannot fail");
    }

    fn wrapped(&mut self, name: &str, value: &str) {
        self.display(format_args!("{{\"{name}\":\"{value}\"}}"));
    }

    fn object_id(&mut self, id: [u8; 12]) {
        self.raw("{\"$oid\":\"");
        for byte in id {
            self.display(format_args!("{byte:02x}"));
        }
        self.raw("\"}");
    }

    fn text(&mut self, bytes: &[u8]) {
        let shown = &bytes[..bytes.len().min(self.max_bytes)];
        self.raw("\"");
        for chunk in shown.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '"' => self.raw("\\\""),
                    '\\' => self.raw("\\\\"),
                    '\n' => self.raw("\\n"),
                    '\r' => self.raw("\\r"),
                    '\t' => self.raw("\\t"),
                    c if (c as u32) < 0x20 || c == '\u{7f}' => {
                        self.display(format_args!("\\u{:04x}", c as u32))
                    }
                    c => self.out.push(c),
                }
            }
            if !chunk.invalid().is_empty() {
                self.out.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.raw("\"");
    }

    fn date(&mut self, millis: i64, relaxed: bool) {
        /// The first millisecond of the year 10000.
        const YEAR_10000: i64 = 253_402_300_800_000;
        if !relaxed || !(0..YEAR_10000).contains(&millis) {
            self.display(format_args!(
                "{{\"$date\":{{\"$numberLong\":\"{millis}\"}}}}"
            ));
            return;
        }
        let (days, millis) = (millis / 86_400_000, millis % 86_400_000);
        let (year, month, day) = civil_from_days(days);
        let (seconds, millis) = (millis / 1000, millis % 1000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        self.display(format_args!(
            "{{\"$date\":\"{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}"
        ));
        if millis != 0 {
            self.display(format_args!(".{millis:03}"));
        }
        self.raw("Z\"}");
    }
}

/// Year, month and day of a day counted from 1970-01-01, not before it.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    // Counted from March 0000, so that the leap day ends a year; 400 years are 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + carry, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{DateTime, RawBson, RawDocumentBuf, rawbson, rawdoc};

    fn check(value: RawBson, relaxed: &str, canonical: &str) {
        assert_eq!(
            value_to_json(value.as_raw_bson_ref(), JsonMode::Relaxed),
            relaxed
        );
        assert_eq!(
            value_to_json(value.as_raw_bson_ref(), JsonMode::Canonical),
            canonical
        );
    }

    #[test]
    fn values() {
        check(rawbson!(1), "1", r#"{"$numberInt":"1"}"#);
        check(rawbson!(-5i64), "-5", r#"{"$numberLong":"-5"}"#);
        check(rawbson!(1.0), "1.0", r#"{"$numberDouble":"1.0"}"#);
        check(
            rawbson!(f64::NEG_INFINITY),
            r#"{"$numberDouble":"-Infinity"}"#,
            r#"{"$numberDouble":"-Infinity"}"#,
        );
        check(
            rawbson!("a\"\\\n\u{1}é"),
            r#""a\"\\\n\u0001é""#,
            r#""a\"\\\n\u0001é""#,
        );
        check(rawbson!([true, null]), "[true,null]", "[true,null]");
        let date = |millis| RawBson::DateTime(DateTime::from_millis(millis));
        check(
            date(0),
            r#"{"$date":"1970-01-01T00:00:00Z"}"#,
            r#"{"$date":{"$numberLong":"0"}}"#,
        );
        check(
            date(-1),
            r#"{"$date":{"$numberLong":"-1"}}"#,
            r#"{"$date":{"$numberLong":"-1"}}"#,
        );
        let leap = 1_709_210_096_789;
        check(
            date(leap),
            r#"{"$date":"2024-02-29T12:34:56.789Z"}"#,
            r#"{"$date":{"$numberLong":"1709210096789"}}"#,
        );
        let binary = RawBson::Binary(bson::Binary {
            subtype: bson::spec::BinarySubtype::Uuid,
            bytes: vec![1, 2, 255],
        });
        let text = r#"{"$binary":{"base64":"AQL/","subType":"04"}}"#;
        check(binary, text, text);
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let mut expected = (1970, 1, 1);
        for day in 0..146_097 {
            assert_eq!(civil_from_days(day), expected);
            let (year, month, day) = expected;
            let leap = year % 4 == 0 && year % 100 != 0 || year % 400 == 0;
            let last = [
                31,
                if leap { 29 } else { 28 },
                31,
                30,
                31,
                30,
                31,
                31,
                30,
                31,
                30,
                31,
            ][month as usize - 1];
            expected = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (_, day) if day == last => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
        }
    }

    #[test]
    fn long_output_is_cut() {
        let mut document = RawDocumentBuf::new();
        document.append(bson::raw::cstr!("text"), "é".repeat(1_000_000));
        let json = to_extended_json_limited(&document, JsonMode::Relaxed, 100);
        assert!(json.len() <= 103 && json.ends_with("..."), "{}", json.len());
        let small = rawdoc! { "a": { "b": [1, "x"] } };
        assert_eq!(
            to_extended_json_limited(&small, JsonMode::Relaxed, 100),
            r#"{"a":{"b":[1,"x"]}}"#
        );
        let mut deep = rawdoc! {};
        for _ in 0..5000 {
            deep = rawdoc! { "a": deep };
        }
        assert!(to_extended_json(&deep, JsonMode::Relaxed).contains("..."));
    }
}
