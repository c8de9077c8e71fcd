//! Dates read from text in any of the forms that MongoDB takes where no format is given.
//!
//! MongoDB reads them with PHP's timelib: the text is taken apart from the left, each time by the
//! form that takes most of it.

use std::sync::LazyLock;

use pcre2::bytes::{Captures, Regex, RegexBuilder};
use pinion_wire::{Error, Result};

use super::date::days_from_civil;
use super::timezone::Zone;
use crate::error::error;
use crate::limits::MAX_DATE_TEXT_BYTES;
use crate::text::shortened;
use crate::work::{self, spend};

/// A date as its text gives it.
#[derive(Clone, Debug, Default)]
pub(super) struct Read {
    pub year: Option<i64>,
    pub month: Option<i64>,
    pub day: Option<i64>,
    pub day_of_year: Option<i64>,
    pub iso_year: Option<i64>,
    pub iso_week: Option<i64>,
    pub iso_day: Option<i64>,
    pub hour: Option<i64>,
    pub minute: Option<i64>,
    pub second: Option<i64>,
    pub millis: Option<i64>,
    pub zone: Option<Zone>,
    /// The day of the week, from 0, Sunday: the first one from the date on is meant.
    weekday: Option<i64>,
    /// Seconds since 1970, in the place of everything else.
    timestamp: Option<i64>,
    has_date: bool,
    times: u32,
}

pub(super) fn failed(text: &str, reason: &str) -> Error {
    error(
        241,
        format!("Error parsing date string '{}'; {reason}", shortened(text)),
    )
}

/// The milliseconds that a text stands for, in UTC where it names no zone.
pub(super) fn moment(text: &str) -> Result<i64> {
    moment_of(text, read(text)?, &Zone::UTC)
}

/// Reads a text without a format.
pub(super) fn read(text: &str) -> Result<Read> {
    match iso(text) {
        Some(read) => Ok(read),
        None => any_form(text),
    }
}

/// The number that the bytes from `from` to `to` are the digits of.
fn digits(text: &str, from: usize, to: usize) -> Option<i64> {
    let digits = text.get(from..to)?;
    let all = digits.bytes().all(|b| b.is_ascii_digit());
    all.then(|| digits.parse().ok())?
}

/// `2020-01-02`, `2020-01-02T03:04:05.678Z` and what lies between them: by far the most common
/// texts.
fn iso(text: &str) -> Option<Read> {
    let mut read = Read {
        year: Some(digits(text, 0, 4)?),
        month: Some(digits(text, 5, 7)?),
        day: Some(digits(text, 8, 10)?),
        ..Read::default()
    };
    if text.get(4..5)? != "-" || text.get(7..8)? != "-" {
        return None;
    }
    if text.len() == 10 {
        return Some(read);
    }
    if !matches!(text.get(10..11)?, "T" | " ") || text.get(13..14)? != ":" {
        return None;
    }
    (read.hour, read.minute) = (Some(digits(text, 11, 13)?), Some(digits(text, 14, 16)?));
    let mut rest = text.get(16..)?;
    if rest.starts_with(':') {
        read.second = Some(digits(text, 17, 19)?);
        rest = text.get(19..)?;
        if let Some(fraction) = rest.strip_prefix('.') {
            let length = fraction.bytes().take_while(u8::is_ascii_digit).count();
            let (fraction, behind) = fraction.split_at(length);
            read.millis = Some(millis_of(fraction)?);
            rest = behind;
        }
    }
    read.zone = match rest {
        "" => None,
        "Z" => Some(Zone::UTC),
        zone if zone.starts_with(['+', '-']) => Some(Zone::named(zone)?),
        _ => return None,
    };
    Some(read)
}

/// The first three digits of a fraction.
fn millis_of(fraction: &str) -> Option<i64> {
    if fraction.is_empty() {
        return None;
    }
    format!("{fraction:0<3}").get(..3)?.parse().ok()
}

/// What a form stands for beside the parts that its groups name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Parts,
    /// The first day of a month.
    FirstDay,
    /// A time of four digits, or a year where there is a time already.
    TimeOrYear,
    Timestamp,
    DayOfYear,
    IsoWeek,
    Noon,
    /// A word that says nothing about the date.
    Filler,
    Zone,
}

const HOUR: &str = "(?<h>2[0-4]|[01]?[0-9])";
const HOUR_LZ: &str = "(?<h>[01][0-9]|2[0-4])";
const HOUR_12: &str = "(?<h>1[0-2]|0?[1-9])";
const MINUTE: &str = "(?<i>[0-5]?[0-9])";
const MINUTE_LZ: &str = "(?<i>[0-5][0-9])";
const SECOND: &str = "(?<s>60|[0-5]?[0-9])";
const SECOND_LZ: &str = "(?<s>60|[0-5][0-9])";
const FRACTION: &str = "[.,](?<f>[0-9]+)";
const MERIDIAN: &str = r"[ \t]?(?<ap>[ap])\.?m\.?(?=[\x00\t ]|$)";
const CORRECTION: &str = "(?:GMT)?[+-](?:2[0-4]|[01]?[0-9]):?(?:[0-5]?[0-9])?";
const ZONE: &str = r"(?<z>{correction}|[A-Za-z]+(?:[_/-][A-Za-z]+)+|\(?[A-Za-z]{1,6}\)?)";
const YEAR: &str = "(?<y>[0-9]{1,4})";
const YEAR_2: &str = "(?<y>[0-9]{2})";
const YEAR_4: &str = "(?<y>[0-9]{4})";
const MONTH: &str = "(?<m>1[0-2]|0?[0-9])";
const MONTH_LZ: &str = "(?<m>0[0-9]|1[0-2])";
const DAY: &str = "(?<d>3[01]|[0-2]?[0-9])";
const DAY_LZ: &str = "(?<d>0[0-9]|[12][0-9]|3[01])";
const ABBREVIATION: &str = "(?<n>jan|feb|mar|apr|may|jun|jul|aug|sept|sep|oct|nov|dec)";
const MONTH_NAME: &str = "(?<n>january|february|march|april|may|june|july|august|september|october|\
    november|december|jan|feb|mar|apr|jun|jul|aug|sept|sep|oct|nov|dec|\
    (?-i:VIII|VII|VI|IV|IX|XII|XI|III|II|I|V|X))";
const WEEKDAY: &str = "(?<w>sunday|monday|tuesday|wednesday|thursday|friday|saturday|\
    sun|mon|tues|tue|wednes|wed|thurs|thur|thu|fri|sat)";

/// The forms, by the names of their fragments. Of those that take equally much the first one
/// counts.
const FORMS: &[(&str, Form)] = &[
    (r"@(?<t>-?[0-9]+)(?:\.[0-9]{0,6})?", Form::Timestamp),
    (
        "{hour12}(?:[:.]{minutelz}(?:[:.]{secondlz})?)?{meridian}",
        Form::Parts,
    ),
    (
        "{hour12}:{minutelz}:{secondlz}[:.](?<f>[0-9]+){meridian}",
        Form::Parts,
    ),
    ("T{hour}(?![0-9:.])", Form::Parts),
    (
        "T?{hour}[:.]{minute}(?:[:.]{second}(?:{fraction})?)?",
        Form::Parts,
    ),
    (
        r"T?{hour}[:.]{minute}[:.]{secondlz}[ \t]?{zone}",
        Form::Parts,
    ),
    ("T?{hourlz}{minutelz}", Form::TimeOrYear),
    ("T?{hourlz}{minutelz}{secondlz}", Form::Parts),
    ("{month}/{day}(?:/{year})?", Form::Parts),
    ("(?<y>[+-]?[0-9]{4})-{monthlz}-{daylz}", Form::Parts),
    ("{year4}/{month}/{day}/?", Form::Parts),
    ("{year2}-{monthlz}-{daylz}", Form::Parts),
    ("(?<y>[+-][0-9]{5,9})-{monthlz}-{daylz}", Form::Parts),
    ("{year4}-{month}", Form::FirstDay),
    ("{year}-{month}-{day}", Form::Parts),
    (
        r"{day}(?:st|nd|rd|th)?[ \t.-]*{name}[ \t.-]*{year}",
        Form::Parts,
    ),
    (r"{day}[.\t-]{month}[.-]{year4}", Form::Parts),
    (r"{day}[.\t]{month}\.{year2}", Form::Parts),
    (r"{name}[ .\t-]*{year4}", Form::FirstDay),
    (r"{year4}[ .\t-]*{name}", Form::FirstDay),
    (r"{name}[ .\t-]*{day}(?:[,.stndrh\t ]+{year})", Form::Parts),
    (r"{name}[ .\t-]*{day}(?:[,.stndrh\t ]+|$)", Form::Parts),
    (r"{day}(?:st|nd|rd|th)?[ .\t-]*{name}", Form::Parts),
    ("{year4}{monthlz}{daylz}", Form::Parts),
    (
        "{year4}{monthlz}{daylz}T?{hour}:{minutelz}:{secondlz}",
        Form::Parts,
    ),
    (
        "{year4}{monthlz}{daylz}T{hour}{minutelz}{secondlz}",
        Form::Parts,
    ),
    (
        "{year4}-{month}-{day}T{hour}:{minute}:{second}(?:{fraction})?",
        Form::Parts,
    ),
    (
        "{year4}-{monthlz}-{daylz}T{hourlz}:{minutelz}:{secondlz}{fraction}(?<z>{correction})?",
        Form::Parts,
    ),
    (
        "{year4}:{monthlz}:{daylz} {hourlz}:{minutelz}:{secondlz}",
        Form::Parts,
    ),
    (
        r"{year4}\.?(?<d>00[1-9]|0[1-9][0-9]|[12][0-9][0-9]|3[0-5][0-9]|36[0-6])",
        Form::DayOfYear,
    ),
    (
        "{year4}-?(?-i:W)(?<wn>0[1-9]|[1-4][0-9]|5[0-3])(?:-?(?<wd>[0-7]))?",
        Form::IsoWeek,
    ),
    ("{abbreviation}-{daylz}-{year}", Form::Parts),
    ("{year}-{abbreviation}-{daylz}", Form::Parts),
    (
        r"{day}/{abbreviation}/{year4}:{hourlz}:{minutelz}:{secondlz}[ \t](?<z>{correction})",
        Form::Parts,
    ),
    ("{year4}", Form::Parts),
    ("{weekday}", Form::Parts),
    (
        r"{name}[ .\t-]*{day}[,.stndrh\t ]+{hour12}[:.]{minutelz}(?:[:.]{secondlz})?{meridian}",
        Form::Parts,
    ),
    (
        r"{name}[ .\t-]*{day}[,.stndrh\t ]+T?{hour}[:.]{minute}(?:[:.]{second})?",
        Form::Parts,
    ),
    (
        r"{name}[ .\t-]*{day}[,.stndrh\t ]+T?{hour}[:.]{minute}[:.]{secondlz}[ \t]?{zone}",
        Form::Parts,
    ),
    ("{name}", Form::Parts),
    ("noon", Form::Noon),
    ("midnight|today|now", Form::Filler),
    ("{zone}", Form::Zone),
];

fn expanded(form: &str) -> String {
    let fragments = [
        ("{hour12}", HOUR_12),
        ("{hourlz}", HOUR_LZ),
        ("{hour}", HOUR),
        ("{minutelz}", MINUTE_LZ),
        ("{minute}", MINUTE),
        ("{secondlz}", SECOND_LZ),
        ("{second}", SECOND),
        ("{fraction}", FRACTION),
        ("{meridian}", MERIDIAN),
        ("{zone}", ZONE),
        ("{correction}", CORRECTION),
        ("{year2}", YEAR_2),
        ("{year4}", YEAR_4),
        ("{year}", YEAR),
        ("{monthlz}", MONTH_LZ),
        ("{month}", MONTH),
        ("{daylz}", DAY_LZ),
        ("{day}", DAY),
        ("{name}", MONTH_NAME),
        ("{abbreviation}", ABBREVIATION),
        ("{weekday}", WEEKDAY),
    ];
    let mut pattern = form.to_string();
    for (name, fragment) in fragments {
        pattern = pattern.replace(name, fragment);
    }
    format!(r"\A(?:{pattern})")
}

static COMPILED: LazyLock<Vec<(Regex, Form)>> = LazyLock::new(|| {
    let compiled = |form: &str| {
        RegexBuilder::new()
            .caseless(true)
            .build(&expanded(form))
            .expect("the forms are valid expressions")
    };
    FORMS
        .iter()
        .map(|(form, kind)| (compiled(form), *kind))
        .collect()
});

/// What it takes to try all forms at one place.
const TRIED: work::Units = 10_000;

fn any_form(text: &str) -> Result<Read> {
    let wrong = || failed(text, "an unexpected character was found");
    let mut rest = text.trim_matches(|c: char| c.is_ascii_whitespace());
    if rest.is_empty() {
        return Err(failed(text, "the string is empty"));
    }
    if rest.len() > MAX_DATE_TEXT_BYTES {
        return Err(failed(text, "the string is too long"));
    }
    let mut read = Read::default();
    loop {
        rest = rest.trim_start_matches([' ', '.', ',', '\t', '\n']);
        if rest.is_empty() {
            break;
        }
        spend(TRIED)?;
        let mut best: Option<(Captures<'_>, Form, usize)> = None;
        for (regex, form) in COMPILED.iter() {
            let Some(found) = regex.captures(rest.as_bytes()).ok().flatten() else {
                continue;
            };
            let length = found.get(0).map_or(0, |whole| whole.end());
            if best.as_ref().is_none_or(|(_, _, most)| length > *most) {
                best = Some((found, *form, length));
            }
        }
        let (found, form, length) = best.filter(|(.., length)| *length > 0).ok_or_else(wrong)?;
        read.take(form, &Groups(&found))
            .map_err(|reason| failed(text, reason))?;
        rest = rest.get(length..).ok_or_else(wrong)?;
    }
    Ok(read)
}

/// The groups of a form that has been found.
struct Groups<'c>(&'c Captures<'c>);

impl Groups<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.0.name(name)?.as_bytes()).ok()
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }

    /// A year of two digits lies between 1970 and 2069.
    fn year(&self) -> Option<i64> {
        let text = self.text("y")?;
        let year = text.parse().ok()?;
        Some(match year {
            0..70 if text.len() < 4 => year + 2000,
            70..100 if text.len() < 4 => year + 1900,
            year => year,
        })
    }

    fn month(&self) -> Option<i64> {
        match self.text("n") {
            Some(name) => month_of(name),
            None => self.number("m"),
        }
    }

    fn hour(&self) -> Option<i64> {
        let hour = self.number("h")?;
        Some(match self.text("ap") {
            None => hour,
            Some("a" | "A") => hour % 12,
            Some(_) => hour % 12 + 12,
        })
    }
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const ROMAN: [&str; 12] = [
    "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// The place of the name that begins with the same three letters.
fn named(name: &str, names: &[&str]) -> Option<i64> {
    let start = name.get(..3)?.to_ascii_lowercase();
    names
        .iter()
        .position(|known| *known == start)
        .map(|at| at as i64)
}

fn month_of(name: &str) -> Option<i64> {
    match ROMAN.iter().position(|roman| *roman == name) {
        Some(at) => Some(at as i64 + 1),
        None => named(name, &MONTHS).map(|at| at + 1),
    }
}

impl Read {
    /// Adds what a form has given.
    fn take(&mut self, form: Form, groups: &Groups<'_>) -> Result<(), &'static str> {
        let mut groups_hour = groups.hour();
        match form {
            Form::Timestamp => self.timestamp = groups.number("t"),
            Form::Noon => groups_hour = Some(12),
            Form::TimeOrYear if self.times == 1 => {
                let text = groups.text("h").zip(groups.text("i"));
                self.year = text.and_then(|(h, i)| format!("{h}{i}").parse().ok());
                self.times += 1;
                return Ok(());
            }
            Form::IsoWeek => {
                self.begin_date()?;
                self.iso_year = groups.year();
                self.iso_week = groups.number("wn");
                self.iso_day = groups.number("wd").or(Some(1));
                return Ok(());
            }
            Form::DayOfYear | Form::Filler | Form::Zone => {}
            Form::FirstDay | Form::Parts | Form::TimeOrYear => {}
        }
        let (month, day) = (groups.month(), groups.number("d"));
        if month.or(day).is_some() {
            self.begin_date()?;
        }
        self.year = groups.year().or(self.year);
        self.month = month.or(self.month);
        self.day = day.or(self.day);
        match form {
            Form::FirstDay => self.day = Some(1),
            // The day of the year stands for that of January, which is no date after the 31st.
            Form::DayOfYear => self.month = Some(1),
            _ => {}
        }
        if let Some(hour) = groups_hour {
            // Noon takes the place of a time that was given.
            if self.times > 0 && form != Form::Noon {
                return Err("there is a second time");
            }
            self.times = 1;
            self.hour = Some(hour);
            self.minute = groups.number("i").or(Some(0));
            self.second = groups.number("s").or(Some(0));
            self.millis = groups.text("f").and_then(millis_of);
        }
        if let Some(name) = groups.text("w") {
            self.weekday = named(name, &WEEKDAYS);
        }
        if let Some(name) = groups.text("z") {
            if form == Form::Zone && self.zone.is_some() {
                return Err("there is a second time zone");
            }
            let zone = zone_of(name).ok_or("the time zone could not be found in the database")?;
            self.zone = Some(zone);
        }
        Ok(())
    }

    fn begin_date(&mut self) -> Result<(), &'static str> {
        if std::mem::replace(&mut self.has_date, true) {
            return Err("there is a second date");
        }
        Ok(())
    }
}

/// Abbreviations that name an offset, in minutes east of UTC.
const ZONES: &[(&str, i64)] = &[
    ("utc", 0),
    ("gmt", 0),
    ("wet", 0),
    ("west", 60),
    ("bst", 60),
    ("cet", 60),
    ("cest", 120),
    ("met", 60),
    ("mest", 120),
    ("eet", 120),
    ("eest", 180),
    ("msk", 180),
    ("msd", 240),
    ("sast", 120),
    ("cat", 120),
    ("eat", 180),
    ("wat", 60),
    ("jst", 540),
    ("kst", 540),
    ("hkt", 480),
    ("awst", 480),
    ("acst", 570),
    ("acdt", 630),
    ("aest", 600),
    ("aedt", 660),
    ("nzst", 720),
    ("nzdt", 780),
    ("nst", -210),
    ("ndt", -150),
    ("ast", -240),
    ("adt", -180),
    ("est", -300),
    ("edt", -240),
    ("cst", -360),
    ("cdt", -300),
    ("mst", -420),
    ("mdt", -360),
    ("pst", -480),
    ("pdt", -420),
    ("akst", -540),
    ("akdt", -480),
    ("hst", -600),
];

/// An offset, an abbreviation, a military letter or a name of the database.
fn zone_of(text: &str) -> Option<Zone> {
    let text = text.trim_matches(['(', ')']);
    let lower = text.to_ascii_lowercase();
    let signed = lower.strip_prefix("gmt").unwrap_or(&lower);
    if signed.starts_with(['+', '-']) {
        return offset(signed).map(Zone::Fixed);
    }
    if let Some((_, minutes)) = ZONES.iter().find(|(name, _)| *name == lower) {
        return Some(Zone::Fixed(minutes * 60_000));
    }
    if let [letter] = lower.as_bytes() {
        let hours = match letter {
            b'a'..=b'i' => i64::from(letter - b'a') + 1,
            b'k'..=b'm' => i64::from(letter - b'k') + 10,
            b'n'..=b'y' => -i64::from(letter - b'n') - 1,
            b'z' => 0,
            _ => return None,
        };
        return Some(Zone::Fixed(hours * 3_600_000));
    }
    Zone::named(text)
}

/// `+H`, `+HH`, `+HMM`, `+HHMM` or with a colon, in milliseconds.
fn offset(text: &str) -> Option<i64> {
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let text = text.get(1..)?;
    let (hours, minutes) = match text.split_once(':') {
        Some(parts) => parts,
        None if text.len() <= 2 => (text, ""),
        None => text.split_at_checked(text.len() - 2)?,
    };
    let minutes: i64 = match minutes {
        "" => 0,
        minutes => minutes.parse().ok()?,
    };
    Some(sign * (hours.parse::<i64>().ok()? * 60 + minutes) * 60_000)
}

/// The moment that the parts mean.
pub(super) fn moment_of(text: &str, read: Read, zone: &Zone) -> Result<i64> {
    if let Some(seconds) = read.timestamp {
        return seconds
            .checked_mul(1000)
            .ok_or_else(|| failed(text, "the date is out of range"));
    }
    let mut days = days_of(text, &read)?;
    if let Some(weekday) = read.weekday {
        days += (weekday - (days + 4)).rem_euclid(7);
    }
    let within = |value: Option<i64>, most: i64| within(text, value, 0, most);
    let seconds =
        within(read.hour, 23)? * 3600 + within(read.minute, 59)? * 60 + within(read.second, 59)?;
    let local = days
        .checked_mul(86_400)
        .and_then(|day| (day + seconds).checked_mul(1000))
        .ok_or_else(|| failed(text, "the date is out of range"))?
        + read.millis.unwrap_or_default();
    match (read.zone, zone) {
        (None, zone) => Ok(zone.moment(local)),
        (Some(own), Zone::Fixed(0)) => Ok(own.moment(local)),
        (Some(_), _) => Err(failed(
            text,
            "you cannot pass in a date/time string with time zone information together with a timezone argument",
        )),
    }
}

fn within(text: &str, value: Option<i64>, default: i64, most: i64) -> Result<i64> {
    let value = value.unwrap_or(default);
    match (0..=most).contains(&value) {
        true => Ok(value),
        false => Err(failed(text, "the parsed date was invalid")),
    }
}

/// Days since 1970.
fn days_of(text: &str, read: &Read) -> Result<i64> {
    let incomplete = || {
        failed(
            text,
            "an incomplete date/time string has been found, with elements missing",
        )
    };
    if let Some(year) = read.iso_year {
        let week = within(text, read.iso_week, 1, 53)?;
        let day = within(text, read.iso_day, 1, 7)?;
        // The fourth of January is always in the first week.
        let fourth = days_from_civil(year, 1, 4);
        return Ok(fourth - (fourth + 3).rem_euclid(7) + (week - 1) * 7 + day - 1);
    }
    let year = read.year.ok_or_else(incomplete)?;
    match (read.month, read.day, read.day_of_year) {
        (Some(month), Some(day), _) => {
            let valid = (1..=12).contains(&month) && (1..=31).contains(&day);
            let first = |year, month: i64| days_from_civil(year, month.clamp(1, 12) as u32, 1);
            let days = first(year, month) + day - 1;
            let next = match month {
                12.. => first(year + 1, 1),
                month => first(year, month + 1),
            };
            if !valid || days >= next {
                return Err(failed(text, "the parsed date was invalid"));
            }
            Ok(days)
        }
        // Read, unlike written, the day of the year counts from 0.
        (_, _, Some(day)) => Ok(days_from_civil(year, 1, 1) + within(text, Some(day), 0, 365)?),
        _ => Err(incomplete()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::operators::date::iso_text;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let made = moment(text).and_then(iso_text);
        assert_eq!(made.expect(text), expected, "{text}");
    }

    #[track_caller]
    fn check_error(text: &str) {
        assert_eq!(moment(text).map_err(|e| e.code.0), Err(241), "{text}");
    }

    #[test]
    fn iso_forms() {
        check("2017-02-08", "2017-02-08T00:00:00.000Z");
        check("2017-02-08T12:10:40.787Z", "2017-02-08T12:10:40.787Z");
        check("2017-02-08 12:10", "2017-02-08T12:10:00.000Z");
        check("2017-02-08T12:10:40+01:00", "2017-02-08T11:10:40.000Z");
        check("2018-03-20 11:00:06 +0500", "2018-03-20T06:00:06.000Z");
        check("20180320", "2018-03-20T00:00:00.000Z");
        check("20180320T110006", "2018-03-20T11:00:06.000Z");
        check("20180320T11:00:06Z", "2018-03-20T11:00:06.000Z");
        check("2018-W12-2", "2018-03-20T00:00:00.000Z");
        check("2018W12", "2018-03-19T00:00:00.000Z");
    }

    #[test]
    fn dates_with_names() {
        check("20 Mar 2018", "2018-03-20T00:00:00.000Z");
        check("oct 20 2020", "2020-10-20T00:00:00.000Z");
        check("July 4th, 2017", "2017-07-04T00:00:00.000Z");
        check("4th July 2017 noon", "2017-07-04T12:00:00.000Z");
        check(
            "WED jan 31 12:05:28 +03:30 1996",
            "1996-01-31T08:35:28.000Z",
        );
        check(
            "Tue Mar 20 2018 11:00:06 GMT+0100",
            "2018-03-20T10:00:06.000Z",
        );
        check("Tue, 20 Mar 2018 11:00:06 EST", "2018-03-20T16:00:06.000Z");
        check("10/Oct/2000:13:55:36 -0700", "2000-10-10T20:55:36.000Z");
        check("March 2018", "2018-03-01T00:00:00.000Z");
        check("20.III.2018", "2018-03-20T00:00:00.000Z");
        // The first Friday from then on.
        check("Fri 20 Mar 2018", "2018-03-23T00:00:00.000Z");
    }

    #[test]
    fn dates_in_digits() {
        check("2018/03/20", "2018-03-20T00:00:00.000Z");
        check("03/20/2018", "2018-03-20T00:00:00.000Z");
        check("3/20/18", "2018-03-20T00:00:00.000Z");
        check("3/20/70", "1970-03-20T00:00:00.000Z");
        check("20.03.2018", "2018-03-20T00:00:00.000Z");
        check("2018-3-5", "2018-03-05T00:00:00.000Z");
        check("2018-03", "2018-03-01T00:00:00.000Z");
        check("@1126396800", "2005-09-11T00:00:00.000Z");
    }

    #[test]
    fn times_and_zones() {
        check("2018-03-20 11:00 PM", "2018-03-20T23:00:00.000Z");
        check("2018-03-20 12:30 a.m.", "2018-03-20T00:30:00.000Z");
        check("2018-03-20 11:00:06.5", "2018-03-20T11:00:06.500Z");
        check("2018-03-20 1100", "2018-03-20T11:00:00.000Z");
        check(
            "2018-03-20 11:00:06 America/New_York",
            "2018-03-20T15:00:06.000Z",
        );
        check("2018-03-20T11:00:06B", "2018-03-20T09:00:06.000Z");
        check("2018-03-20 11:00 (UTC)", "2018-03-20T11:00:00.000Z");
    }

    #[test]
    fn what_is_no_date() {
        for text in [
            "",
            "  ",
            "soon",
            "2017",
            "2017-13-01",
            "2017-02-29",
            "2017-02-08 24:00:00",
            "2017-02-08 2017-02-09",
            "2017-02-08 11:00 12:00",
            "20 Mar",
            "11:00",
            "\u{2000}2024-06-15T12:30:45Z",
            "2017-02-08 11:00:00 NOWHERE",
        ] {
            check_error(text);
        }
        check_error(&"1".repeat(MAX_DATE_TEXT_BYTES + 1));
    }
}
