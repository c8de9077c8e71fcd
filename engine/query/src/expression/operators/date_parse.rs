//! Dates read from text: `$dateFromString`.

use pinion_bson::{DateTime, RawBsonRef};
use pinion_wire::{Error, Result};

use super::Value;
use super::date::{days_from_civil, parse_iso_parts};
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

const WEEKDAYS: [&str; 7] = [
    "sunday",
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
];

/// A date as its text gives it.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    day_of_year: Option<i64>,
    iso_year: Option<i64>,
    iso_week: Option<i64>,
    iso_day: Option<i64>,
    hour: Option<i64>,
    minute: Option<i64>,
    second: Option<i64>,
    millis: Option<i64>,
    /// Milliseconds east of UTC.
    offset: Option<i64>,
}

fn failed(text: &str, reason: &str) -> Error {
    error(241, format!("Error parsing date string '{text}'; {reason}"))
}

/// `$dateFromString`: the text, its format, the time zone, what stands for an error and for null.
pub(super) fn from_string<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [text, format, zone, on_error, on_null] = values else {
        return Ok(Value::null());
    };
    // A wrong format or zone is told whatever the text is.
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
        return Ok(if on_null.is_missing() {
            Value::null()
        } else {
            on_null.clone()
        });
    }
    let read = match text.as_ref() {
        Some(RawBsonRef::String(text)) => {
            let Some(zone) = zone else {
                return Ok(Value::null());
            };
            let read = match format.as_ref() {
                Some(RawBsonRef::String(format)) => with_format(text, format),
                _ if format_given => return Ok(Value::null()),
                _ => free(text),
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
    match read {
        Ok(millis) => Ok(Value::Ref(RawBsonRef::DateTime(DateTime::from_millis(
            millis,
        )))),
        Err(e) if e.code.0 == 241 && !on_error.is_missing() => Ok(on_error.clone()),
        Err(e) => Err(e),
    }
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
    let month = named(name, &MONTHS)?;
    *rest = after;
    Some(month as i64 + 1)
}

/// The place of a name or its first three letters in a list.
fn named(name: &str, list: &[&str]) -> Option<usize> {
    let lower = name.to_ascii_lowercase();
    list.iter()
        .position(|full| lower == *full || lower == full[..3])
}

/// `Z`, `+02`, `+0230` or `+02:30` off the front, in milliseconds.
fn offset(rest: &mut &str) -> Option<i64> {
    if let Some(after) = rest.strip_prefix(['Z', 'z']) {
        *rest = after;
        return Some(0);
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
    let Some(Zone::Fixed(offset)) = Zone::named(text) else {
        return None;
    };
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
                read.offset = Some(offset(&mut rest).ok_or_else(wrong)?);
                continue;
            }
            'Z' => {
                // Minutes east of UTC.
                let sign = if rest.starts_with('-') { -1 } else { 1 };
                rest = rest.strip_prefix(['+', '-']).ok_or_else(wrong)?;
                let minutes = digits(&mut rest, 4).ok_or_else(wrong)?;
                read.offset = Some(sign * minutes * 60_000);
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

/// A date without a format: ISO 8601, or names and numbers apart from each other.
fn free(text: &str) -> Result<Read> {
    let mut read = Read::default();
    let wrong = || failed(text, "an unexpected character was found");
    for word in text.split([' ', ',', '\t']).filter(|word| !word.is_empty()) {
        let mut rest = word;
        if let Some((date, after)) = parse_iso_parts(word) {
            if read.year.is_some() {
                return Err(wrong());
            }
            (read.year, read.month, read.day) = (Some(date.0), Some(date.1), Some(date.2));
            rest = after.strip_prefix(['T', 't']).unwrap_or(after);
            if rest.is_empty() {
                continue;
            }
        }
        if named(word, &WEEKDAYS).is_some() {
            continue;
        }
        if let Some(month) = month_name(&mut rest) {
            if read.month.replace(month).is_some() || !rest.is_empty() {
                return Err(wrong());
            }
            continue;
        }
        if word.eq_ignore_ascii_case("utc") || word.eq_ignore_ascii_case("gmt") {
            read.offset = Some(0);
            continue;
        }
        if rest.starts_with(['+', '-', 'Z', 'z']) && read.year.or(read.hour).is_some() {
            read.offset = Some(offset(&mut rest).ok_or_else(wrong)?);
            if !rest.is_empty() {
                return Err(wrong());
            }
            continue;
        }
        let number_length = rest.bytes().take_while(u8::is_ascii_digit).count();
        if rest.as_bytes().get(number_length) == Some(&b':') {
            time(&mut rest, &mut read).ok_or_else(wrong)?;
            continue;
        }
        let number = digits(&mut rest, 4).ok_or_else(wrong)?;
        let place = if number_length == 4 {
            &mut read.year
        } else {
            rest = ["st", "nd", "rd", "th"]
                .iter()
                .find_map(|suffix| rest.strip_prefix(suffix))
                .unwrap_or(rest);
            &mut read.day
        };
        if place.replace(number).is_some() || !rest.is_empty() {
            return Err(wrong());
        }
    }
    Ok(read)
}

/// `HH:MM[:SS[.fff]][zone]`
fn time(rest: &mut &str, read: &mut Read) -> Option<()> {
    read.hour = Some(digits(rest, 2)?);
    *rest = rest.strip_prefix(':')?;
    read.minute = Some(digits(rest, 2)?);
    if let Some(after) = rest.strip_prefix(':') {
        *rest = after;
        read.second = Some(digits(rest, 2)?);
        if let Some(after) = rest.strip_prefix('.') {
            let length = after.bytes().take_while(u8::is_ascii_digit).count();
            let (fraction, after) = after.split_at(length);
            read.millis = format!("{fraction:0<3}").get(..3)?.parse().ok();
            *rest = after;
        }
    }
    if !rest.is_empty() {
        read.offset = Some(offset(rest)?);
    }
    rest.is_empty().then_some(())
}

/// The moment that the parts mean.
fn moment_of(text: &str, read: Read, zone: &Zone) -> Result<i64> {
    let incomplete = || {
        failed(
            text,
            "an incomplete date/time string has been found, with elements missing",
        )
    };
    let within = |value: Option<i64>, default: i64, most: i64| {
        let value = value.unwrap_or(default);
        if (0..=most).contains(&value) {
            Ok(value)
        } else {
            Err(failed(text, "the parsed date was invalid"))
        }
    };
    let days = if let Some(year) = read.iso_year {
        let (week, day) = (within(read.iso_week, 1, 53)?, within(read.iso_day, 1, 7)?);
        // The fourth of January is always in the first week.
        let fourth = days_from_civil(year, 1, 4);
        fourth - (fourth + 3).rem_euclid(7) + (week - 1) * 7 + day - 1
    } else {
        let year = read.year.ok_or_else(incomplete)?;
        match (read.month, read.day, read.day_of_year) {
            (Some(month), Some(day), _) => {
                let valid = (1..=12).contains(&month) && (1..=31).contains(&day);
                let days =
                    days_from_civil(year, month.clamp(1, 12) as u32, day.clamp(1, 31) as u32);
                let next = if month >= 12 {
                    days_from_civil(year + 1, 1, 1)
                } else {
                    days_from_civil(year, month.clamp(1, 12) as u32 + 1, 1)
                };
                if !valid || days >= next {
                    return Err(failed(text, "the parsed date was invalid"));
                }
                days
            }
            // Read, unlike written, the day of the year counts from 0.
            (_, _, Some(day)) => days_from_civil(year, 1, 1) + within(Some(day), 0, 365)?,
            _ => return Err(incomplete()),
        }
    };
    let seconds = within(read.hour, 0, 24)? * 3600
        + within(read.minute, 0, 59)? * 60
        + within(read.second, 0, 59)?;
    let local = (days * 86_400 + seconds) * 1000 + read.millis.unwrap_or_default();
    match (read.offset, zone) {
        (None, zone) => Ok(zone.moment(local)),
        (Some(offset), Zone::Fixed(0)) => Ok(local - offset),
        (Some(_), _) => Err(failed(
            text,
            "you cannot pass in a date/time string with time zone information together with a timezone argument",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::operators::date::iso_text;

    fn read(text: &str, format: Option<&str>) -> Result<String> {
        let format = format.map_or(Value::Missing, Value::string);
        let made = from_string(&[
            Value::string(text),
            format,
            Value::Missing,
            Value::Missing,
            Value::Missing,
        ])?;
        match made.as_ref() {
            Some(RawBsonRef::DateTime(at)) => iso_text(at.timestamp_millis()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn texts() {
        for (text, format, expected) in [
            ("2017-02-08T12:10:40.787Z", None, "2017-02-08T12:10:40.787Z"),
            ("2017-02-08 12:10", None, "2017-02-08T12:10:00.000Z"),
            (
                "2017-02-08T12:10:40+01:00",
                None,
                "2017-02-08T11:10:40.000Z",
            ),
            ("oct 20 2020", None, "2020-10-20T00:00:00.000Z"),
            ("July 4th, 2017", None, "2017-07-04T00:00:00.000Z"),
            (
                "WED jan 31 12:05:28 +03:30 1996",
                None,
                "1996-01-31T08:35:28.000Z",
            ),
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
