//! Dates: their parts and their text.

use pinion_bson::{RawBsonRef, Timestamp};
use pinion_wire::Result;

use super::timezone::Zone;
use super::{Arity, Operator, Value};
use crate::error::error;

macro_rules! part {
    ($name:literal, $part:expr) => {
        Operator {
            name: $name,
            arity: Arity::Between(1, 2),
            evaluate: |v| date_part(v, $part),
        }
    };
}

pub(super) const OPERATORS: &[Operator] = &[
    part!("$year", |d| d.year),
    part!("$month", |d| i64::from(d.month)),
    part!("$dayOfMonth", |d| i64::from(d.day)),
    part!("$hour", |d| d.hour),
    part!("$minute", |d| d.minute),
    part!("$second", |d| d.second),
    part!("$millisecond", |d| d.millisecond),
    part!("$dayOfYear", |d| d.day_of_year),
    part!("$dayOfWeek", |d| d.weekday + 1),
    part!("$isoDayOfWeek", Civil::iso_weekday),
    part!("$week", Civil::week),
    part!("$isoWeek", |d| d.iso_week().1),
    Operator {
        name: "$isoWeekYear",
        arity: Arity::Between(1, 2),
        evaluate: iso_week_year,
    },
];

/// The names of the operators above: their operand may be a document of `date` and `timezone`.
pub(super) fn is_date_part(name: &str) -> bool {
    OPERATORS.iter().any(|operator| operator.name == name)
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const MILLIS_PER_DAY: i64 = 86_400_000;

/// A date taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Civil {
    pub year: i64,
    pub month: u32,
    pub day: u32,
    pub hour: i64,
    pub minute: i64,
    pub second: i64,
    pub millisecond: i64,
    /// From 1.
    pub day_of_year: i64,
    /// From 0, Sunday.
    pub weekday: i64,
}

impl Civil {
    pub(super) fn from_millis(millis: i64) -> Civil {
        let days = millis.div_euclid(MILLIS_PER_DAY);
        let rest = millis.rem_euclid(MILLIS_PER_DAY);
        // Days since the first of March of year 0, in eras of 400 years.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let day = (day_from_march - (153 * month_from_march + 2) / 5 + 1) as u32;
        let month = if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        } as u32;
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        Civil {
            year,
            month,
            day,
            hour: rest / 3_600_000,
            minute: rest / 60_000 % 60,
            second: rest / 1000 % 60,
            millisecond: rest % 1000,
            day_of_year: days - days_from_civil(year, 1, 1) + 1,
            weekday: (days + 4).rem_euclid(7),
        }
    }

    pub(super) fn iso_weekday(self) -> i64 {
        if self.weekday == 0 { 7 } else { self.weekday }
    }

    /// Weeks begin on Sunday; days before the first Sunday are in week 0.
    fn week(self) -> i64 {
        (self.day_of_year - 1 + 7 - self.weekday) / 7
    }

    pub(super) fn iso_week(self) -> (i64, i64) {
        let week = (self.day_of_year - self.iso_weekday() + 10) / 7;
        if week < 1 {
            return (self.year - 1, weeks_in_iso_year(self.year - 1));
        }
        if week > weeks_in_iso_year(self.year) {
            return (self.year + 1, 1);
        }
        (self.year, week)
    }
}

fn weeks_in_iso_year(year: i64) -> i64 {
    let last = |y: i64| (y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400)).rem_euclid(7);
    if last(year) == 4 || last(year - 1) == 3 {
        53
    } else {
        52
    }
}

/// Days since 1970, of any year.
pub(super) fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = i64::from(if month > 2 { month - 3 } else { month + 9 });
    let day_from_march = (153 * month_from_march + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_from_march
        - 719_468
}

/// The moment an object id was made at; its seconds are signed.
pub(super) fn object_id_millis(id: pinion_bson::ObjectId) -> i64 {
    let [a, b, c, d, ..] = id.bytes();
    i64::from(i32::from_be_bytes([a, b, c, d])) * 1000
}

/// A value that stands for a moment, in milliseconds.
pub(super) fn moment(value: RawBsonRef<'_>) -> Result<i64> {
    match value {
        RawBsonRef::DateTime(at) => Ok(at.timestamp_millis()),
        RawBsonRef::Timestamp(at) => Ok(i64::from(at.time) * 1000),
        RawBsonRef::ObjectId(id) => Ok(object_id_millis(id)),
        other => Err(error(
            16006,
            format!(
                "can't convert from BSON type {} to Date",
                crate::value::type_name(other)
            ),
        )),
    }
}

fn date_part<'a>(values: &[Value<'a>], part: fn(Civil) -> i64) -> Result<Value<'a>> {
    if values.iter().any(Value::is_nullish) {
        return Ok(Value::null());
    }
    let at = moment(values[0].or_null())?;
    let zone = match values.get(1) {
        None => Zone::UTC,
        Some(zone) => match Zone::of_argument(zone, true)? {
            Some(zone) => zone,
            None => return Ok(Value::null()),
        },
    };
    Ok(Value::integer(part(Civil::from_millis(zone.local(at)))))
}

/// The one part that is a long.
fn iso_week_year<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let year = date_part(values, |d| d.iso_week().0)?;
    Ok(match year.as_ref() {
        Some(RawBsonRef::Int32(year)) => Value::Ref(RawBsonRef::Int64(i64::from(year))),
        _ => year,
    })
}

/// `2020-01-02T03:04:05.678Z`
pub(super) fn iso_text(millis: i64) -> Result<String> {
    format_date(millis, 0, "%Y-%m-%dT%H:%M:%S.%LZ")
}

/// A timestamp as the older string operators write it: `Feb  3 22:40:00:1`.
pub(super) fn timestamp_text(at: Timestamp) -> String {
    let date = Civil::from_millis(i64::from(at.time) * 1000);
    format!(
        "{} {:>2} {:02}:{:02}:{:02}:{}",
        &MONTHS[date.month as usize - 1][..3],
        date.day,
        date.hour,
        date.minute,
        date.second,
        at.increment
    )
}

/// A date written by a format of `$dateToString`.
fn format_date(millis: i64, offset: i64, format: &str) -> Result<String> {
    let date = Civil::from_millis(millis.saturating_add(offset));
    if !(0..=9999).contains(&date.year) {
        return Err(error(
            18537,
            format!(
                "$dateToString is only defined on year 0-9999, tried to use year {}",
                date.year
            ),
        ));
    }
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let Some(specifier) = chars.next() else {
            return Err(error(18535, "Unmatched '%' at end of format string"));
        };
        let month = MONTHS[date.month as usize - 1];
        out.push_str(&match specifier {
            'Y' => format!("{:04}", date.year),
            'm' => format!("{:02}", date.month),
            'd' => format!("{:02}", date.day),
            'H' => format!("{:02}", date.hour),
            'M' => format!("{:02}", date.minute),
            'S' => format!("{:02}", date.second),
            'L' => format!("{:03}", date.millisecond),
            'j' => format!("{:03}", date.day_of_year),
            'w' => format!("{}", date.weekday + 1),
            'u' => format!("{}", date.iso_weekday()),
            'U' => format!("{:02}", date.week()),
            'V' => format!("{:02}", date.iso_week().1),
            'G' => format!("{:04}", date.iso_week().0),
            'b' => month[..3].to_string(),
            'B' => month.to_string(),
            'z' | 'Z' => {
                let minutes = offset / 60_000;
                if specifier == 'Z' {
                    minutes.to_string()
                } else {
                    format!(
                        "{}{:02}{:02}",
                        if minutes < 0 { '-' } else { '+' },
                        minutes.abs() / 60,
                        minutes.abs() % 60
                    )
                }
            }
            '%' => "%".into(),
            other => {
                return Err(error(
                    18536,
                    format!("Invalid format character '%{other}' in format string"),
                ));
            }
        });
    }
    Ok(out)
}

/// `$dateToString`: date, format, time zone. Gives nothing where the date is null.
pub(super) fn date_to_string<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [date, format, zone] = values else {
        return Ok(Value::null());
    };
    if date.is_nullish() {
        return Ok(Value::Missing);
    }
    if !format.is_missing() && format.is_nullish() {
        return Ok(Value::null());
    }
    let at = moment(date.or_null())?;
    let Some(zone) = Zone::of_argument(zone, !zone.is_missing())? else {
        return Ok(Value::null());
    };
    let offset = zone.offset_at(at);
    let default = if matches!(zone, Zone::Fixed(0)) {
        "%Y-%m-%dT%H:%M:%S.%LZ"
    } else {
        "%Y-%m-%dT%H:%M:%S.%L"
    };
    let format = match format.as_ref() {
        None => default,
        Some(RawBsonRef::String(text)) => text,
        Some(other) => {
            return Err(error(
                18533,
                format!(
                    "$dateToString requires that 'format' be a string, found: {} with value {}",
                    crate::value::type_name(other),
                    crate::text::value_text(other)
                ),
            ));
        }
    };
    Ok(Value::string(format_date(at, offset, format)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_taken_apart() {
        let check = |text: &str, format: &str, expected: &str| {
            let millis = crate::expression::operators::date_text::moment(text).expect(text);
            assert_eq!(
                format_date(millis, 0, format).expect(text),
                expected,
                "{text}"
            );
        };
        check(
            "2020-01-02T03:04:05.678Z",
            "%Y-%m-%d %H:%M:%S.%L %j %u %w %U %V %G %%",
            "2020-01-02 03:04:05.678 002 4 5 00 01 2020 %",
        );
        check("1969-12-31", "%Y-%m-%d %j %V %G", "1969-12-31 365 01 1970");
        check(
            "2021-01-03T23:59:59+01:00",
            "%Y-%m-%d %H %U %V %G",
            "2021-01-03 22 01 53 2020",
        );
        check("2000-02-29", "%j %b %B", "060 Feb February");
    }
}
