//! Dates put together and taken apart: `$dateFromParts`, `$dateToParts`.

use pinion_bson::{DateTime, DocBuilder, RawBsonRef};
use pinion_wire::Result;

use super::Value;
use super::date::{Civil, days_from_civil, moment};
use super::timezone::Zone;
use crate::error::error;
use crate::text::value_text;

/// `$dateToParts`: date, time zone, whether as an ISO 8601 week date.
pub(super) fn to_parts<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [date, zone, iso] = values else {
        return Ok(Value::null());
    };
    if date.is_nullish() {
        return Ok(Value::null());
    }
    let Some(zone) = Zone::of_argument(zone, !zone.is_missing())? else {
        return Ok(Value::null());
    };
    let iso = match iso.as_ref() {
        None => false,
        Some(RawBsonRef::Boolean(iso)) => iso,
        Some(_) if iso.is_nullish() => return Ok(Value::null()),
        Some(_) => {
            return Err(error(
                40521,
                format!("iso8601 must evaluate to a bool, found {}", iso.type_name()),
            ));
        }
    };
    let civil = Civil::from_millis(zone.local(moment(date.or_null())?));
    let (iso_year, iso_week) = civil.iso_week();
    let day: [(&str, i64); 3] = if iso {
        [
            ("isoWeekYear", iso_year),
            ("isoWeek", iso_week),
            ("isoDayOfWeek", civil.iso_weekday()),
        ]
    } else {
        [
            ("year", civil.year),
            ("month", i64::from(civil.month)),
            ("day", i64::from(civil.day)),
        ]
    };
    let time = [
        ("hour", civil.hour),
        ("minute", civil.minute),
        ("second", civil.second),
        ("millisecond", civil.millisecond),
    ];
    let mut out = DocBuilder::new();
    for (name, value) in day.into_iter().chain(time) {
        // Every part of a date fits.
        out.append(name, RawBsonRef::Int32(value as i32));
    }
    Ok(Value::document(out.finish()))
}

/// The arguments of `$dateFromParts`, in the order its function takes them.
pub(super) const FROM_PARTS: &[&str] = &[
    "year",
    "month",
    "day",
    "isoWeekYear",
    "isoWeek",
    "isoDayOfWeek",
    "hour",
    "minute",
    "second",
    "millisecond",
    "timezone",
];

/// Refuses parts of both calendars in one date.
pub(super) fn check_from_parts(given: impl Fn(&str) -> bool) -> Result<()> {
    let any = |names: &[&str]| names.iter().any(|name| given(name));
    match (given("year"), given("isoWeekYear")) {
        (false, false) => Err(error(
            40516,
            "$dateFromParts requires either 'year' or 'isoWeekYear' to be present",
        )),
        (true, _) if any(&["isoWeekYear", "isoWeek", "isoDayOfWeek"]) => Err(error(
            40489,
            "$dateFromParts does not allow mixing natural dates with ISO dates",
        )),
        (_, true) if any(&["year", "month", "day"]) => Err(error(
            40525,
            "$dateFromParts does not allow mixing ISO dates with natural dates",
        )),
        _ => Ok(()),
    }
}

/// `$dateFromParts`
pub(super) fn from_parts<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    if values.len() != FROM_PARTS.len() {
        return Ok(Value::null());
    }
    let iso = values[0].is_missing() && !values[3].is_missing();
    let mut parts = [0_i64; 10];
    for (at, part) in parts.iter_mut().enumerate() {
        let value = &values[at];
        // The year, month and day of a date begin with 1, its time with 0.
        let default = i64::from(at < 6);
        if value.is_missing() {
            *part = default;
            continue;
        }
        if value.is_nullish() {
            return Ok(Value::null());
        }
        let number = crate::number::exact_i64(value.or_null()).ok_or_else(|| {
            error(
                40515,
                format!(
                    "'{}' must evaluate to an integer, found {} with value {}",
                    FROM_PARTS[at],
                    value.type_name(),
                    value_text(value.or_null())
                ),
            )
        })?;
        *part = number;
    }
    let (year_at, from) = if iso { (3, 3) } else { (0, 0) };
    if !(1..=9999).contains(&parts[year_at]) {
        return Err(error(
            if iso { 31095 } else { 40523 },
            format!(
                "'{}' must evaluate to an integer in the range 1 to 9999, found {}",
                FROM_PARTS[year_at], parts[year_at]
            ),
        ));
    }
    for at in [from + 1, from + 2, 6, 7] {
        if i16::try_from(parts[at]).is_err() {
            return Err(error(
                31034,
                format!(
                    "'{}' must evaluate to a value in the range [-32768, 32767]; value '{}' is not in range",
                    FROM_PARTS[at], parts[at]
                ),
            ));
        }
    }
    let given = !values[10].is_missing();
    let Some(zone) = Zone::of_argument(&values[10], given)? else {
        return Ok(Value::null());
    };
    let days = if iso {
        let (year, week, day) = (parts[3], parts[4], parts[5]);
        // The fourth of January is always in the first week.
        let fourth = days_from_civil(year, 1, 4);
        let monday = fourth - (fourth + 3).rem_euclid(7);
        monday + (week - 1) * 7 + day - 1
    } else {
        let (year, month, day) = (parts[0], parts[1], parts[2]);
        // Parts beyond their range carry over.
        let month = year * 12 + month - 1;
        days_from_civil(month.div_euclid(12), month.rem_euclid(12) as u32 + 1, 1) + day - 1
    };
    let overflow = || error(15, "$dateFromParts overflowed");
    let time = (parts[6] * 3600 + parts[7] * 60)
        .checked_add(parts[8])
        .and_then(|seconds| seconds.checked_mul(1000))
        .and_then(|millis| millis.checked_add(parts[9]))
        .ok_or_else(overflow)?;
    let local = (days * 86_400_000).checked_add(time).ok_or_else(overflow)?;
    Ok(Value::Ref(RawBsonRef::DateTime(DateTime::from_millis(
        zone.moment(local),
    ))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::operators::date::iso_text;

    #[track_caller]
    fn check(parts: &[(&str, i64)], expected: &str) {
        let values: Vec<Value<'_>> = FROM_PARTS
            .iter()
            .map(|name| match parts.iter().find(|(given, _)| given == name) {
                Some((_, value)) => Value::Ref(RawBsonRef::Int64(*value)),
                None => Value::Missing,
            })
            .collect();
        let made = from_parts(&values).expect("it is a date");
        let Some(RawBsonRef::DateTime(at)) = made.as_ref() else {
            panic!("a date")
        };
        assert_eq!(iso_text(at.timestamp_millis()).expect("in range"), expected);
    }

    #[test]
    fn parts_carry_over() {
        check(&[("year", 2020)], "2020-01-01T00:00:00.000Z");
        check(
            &[("year", 2020), ("month", 14), ("day", 0)],
            "2021-01-31T00:00:00.000Z",
        );
        check(&[("year", 2020), ("month", 0)], "2019-12-01T00:00:00.000Z");
        check(&[("year", 2020), ("hour", -1)], "2019-12-31T23:00:00.000Z");
        check(
            &[("isoWeekYear", 2020), ("isoWeek", 1)],
            "2019-12-30T00:00:00.000Z",
        );
        check(
            &[
                ("isoWeekYear", 2018),
                ("isoWeek", 53),
                ("isoDayOfWeek", 7),
                ("millisecond", 1),
            ],
            "2019-01-06T00:00:00.001Z",
        );
    }

    #[test]
    fn both_calendars() {
        let check = |given: &[&str], code: i32| {
            let result = check_from_parts(|name| given.contains(&name));
            assert_eq!(
                result.map_err(|e| e.code.0),
                if code == 0 { Ok(()) } else { Err(code) }
            );
        };
        check(&["year", "month"], 0);
        check(&["isoWeekYear", "isoWeek"], 0);
        check(&["month"], 40516);
        check(&["year", "isoWeek"], 40489);
        check(&["isoWeekYear", "month"], 40525);
    }
}
