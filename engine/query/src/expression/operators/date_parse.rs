//! Dates read from text by a format: `$dateFromString`.

use pinion_bson::{DateTime, RawBsonRef};
use pinion_wire::Result;

use super::Value;
use super::date_text::{self, Read, failed, moment_of};
use super::timezone::Zone;
use crate::error::error;
use crate::text::value_text;

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

/// `$dateFromString`: the text, its format, the time zone. Gives nothing where the text is null.
pub(super) fn from_string<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [text, format, zone] = values else {
        return Ok(Value::null());
    };
    // A wrong format or zone is reported whatever the text is.
    let format_given = !format.is_missing();
    if format_given && !format.is_nullish() {
        let Some(RawBsonRef::String(format)) = format.as_ref() else {
            return Err(error(
                40684,
                format!(
                    "$dateFromString requires that 'format' be a string, found: {} with value {}",
                    format.type_name(),
                    value_text(format.or_null())
                ),
            ));
        };
        check_format(format)?;
    }
    let zone_given = !zone.is_missing();
    let zone = Zone::of_argument(zone, zone_given)?;
    if text.is_nullish() {
        return Ok(Value::Missing);
    }
    let millis = match text.as_ref() {
        Some(RawBsonRef::String(text)) => {
            let Some(zone) = zone else {
                return Ok(Value::null());
            };
            let read = match format.as_ref() {
                Some(RawBsonRef::String(format)) => with_format(text, format),
                _ if format_given => return Ok(Value::null()),
                _ => date_text::read(text),
            };
            read.and_then(|read| moment_of(text, read, &zone))
        }
        _ => Err(error(
            241,
            format!(
                "$dateFromString requires that 'dateString' be a string, found: {} with value {}",
                text.type_name(),
                value_text(text.or_null())
            ),
        )),
    };
    Ok(Value::Ref(RawBsonRef::DateTime(DateTime::from_millis(
        millis?,
    ))))
}

fn check_format(format: &str) -> Result<()> {
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            continue;
        }
        match chars.next() {
            Some(
                'b' | 'B' | 'd' | 'G' | 'H' | 'j' | 'L' | 'm' | 'M' | 'S' | 'u' | 'V' | 'Y' | 'z'
                | 'Z' | '%',
            ) => {}
            Some(other) => {
                return Err(error(
                    18536,
                    format!("Invalid format character '%{other}' in format string"),
                ));
            }
            None => return Err(error(18535, "Unmatched '%' at end of format string")),
        }
    }
    Ok(())
}

/// Takes up to `most` digits off the front, at least one.
fn digits(rest: &mut &str, most: usize) -> Option<i64> {
    let length = rest
        .bytes()
        .take(most)
        .take_while(u8::is_ascii_digit)
        .count();
    let (number, after) = rest.split_at(length);
    *rest = after;
    number.parse().ok()
}

/// Takes a month's name or its three letters off the front.
fn month_name(rest: &mut &str) -> Option<i64> {
    let length = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
    let (name, after) = rest.split_at(length);
    let lower = name.to_ascii_lowercase();
    let month = MONTHS
        .iter()
        .position(|full| lower == *full || lower == full[..3])?;
    *rest = after;
    Some(month as i64 + 1)
}

/// `Z`, `+02`, `+0230` or `+02:30` off the front.
fn offset(rest: &mut &str) -> Option<Zone> {
    if let Some(after) = rest.strip_prefix(['Z', 'z']) {
        *rest = after;
        return Some(Zone::UTC);
    }
    let length = 1 + rest
        .bytes()
        .skip(1)
        .take(5)
        .take_while(|b| b.is_ascii_digit() || *b == b':')
        .count();
    let (text, after) = rest.split_at_checked(length)?;
    if !text.starts_with(['+', '-']) {
        return None;
    }
    let offset = Zone::named(text)?;
    *rest = after;
    Some(offset)
}

fn with_format(text: &str, format: &str) -> Result<Read> {
    let wrong = || failed(text, &format!("it does not match the format '{format}'"));
    let mut read = Read::default();
    let mut rest = text;
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            rest = rest.strip_prefix(c).ok_or_else(wrong)?;
            continue;
        }
        let specifier = chars.next().unwrap_or('%');
        let (place, most) = match specifier {
            'Y' => (&mut read.year, 4),
            'm' => (&mut read.month, 2),
            'd' => (&mut read.day, 2),
            'H' => (&mut read.hour, 2),
            'M' => (&mut read.minute, 2),
            'S' => (&mut read.second, 2),
            'L' => (&mut read.millis, 3),
            'j' => (&mut read.day_of_year, 3),
            'G' => (&mut read.iso_year, 4),
            'V' => (&mut read.iso_week, 2),
            'u' => (&mut read.iso_day, 1),
            'b' | 'B' => {
                read.month = Some(month_name(&mut rest).ok_or_else(wrong)?);
                continue;
            }
            'z' => {
                read.zone = Some(offset(&mut rest).ok_or_else(wrong)?);
                continue;
            }
            'Z' => {
                // Minutes east of UTC.
                let sign = if rest.starts_with('-') { -1 } else { 1 };
                rest = rest.strip_prefix(['+', '-']).ok_or_else(wrong)?;
                let minutes = digits(&mut rest, 4).ok_or_else(wrong)?;
                read.zone = Some(Zone::Fixed(sign * minutes * 60_000));
                continue;
            }
            _ => {
                rest = rest.strip_prefix('%').ok_or_else(wrong)?;
                continue;
            }
        };
        *place = Some(digits(&mut rest, most).ok_or_else(wrong)?);
    }
    if !rest.is_empty() {
        return Err(failed(text, "trailing data"));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::operators::date::iso_text;

    fn read(text: &str, format: Option<&str>) -> Result<String> {
        let format = format.map_or(Value::Missing, Value::string);
        let made = from_string(&[Value::string(text), format, Value::Missing])?;
        match made.as_ref() {
            Some(RawBsonRef::DateTime(at)) => iso_text(at.timestamp_millis()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn texts() {
        for (text, format, expected) in [
            ("2017-02-08T12:10:40.787Z", None, "2017-02-08T12:10:40.787Z"),
            ("06-15-2018", Some("%m-%d-%Y"), "2018-06-15T00:00:00.000Z"),
            ("2024 167", Some("%Y %j"), "2024-06-16T00:00:00.000Z"),
            ("2024-W24-6", Some("%G-W%V-%u"), "2024-06-15T00:00:00.000Z"),
            ("2024", Some("%G"), "2024-01-01T00:00:00.000Z"),
            (
                "Jan 3 2020 -90",
                Some("%b %d %Y %Z"),
                "2020-01-03T01:30:00.000Z",
            ),
        ] {
            assert_eq!(read(text, format).expect(text), expected);
        }
        for (text, format, code) in [
            ("2017-13-01", None, 241),
            ("2017-02-29", None, 241),
            ("", None, 241),
            ("soon", None, 241),
            ("2017", None, 241),
            ("2017-02-08x", Some("%Y-%m-%d"), 241),
            ("2017", Some("%Q"), 18536),
            ("2017", Some("%"), 18535),
        ] {
            assert_eq!(read(text, format).expect_err(text).code.0, code, "{text}");
        }
    }
}
