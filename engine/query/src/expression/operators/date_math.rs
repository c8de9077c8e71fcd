//! Arithmetic of dates: `$dateAdd`, `$dateSubtract`, `$dateDiff`, `$dateTrunc`.

use pinion_bson::{DateTime, Number, RawBsonRef};
use pinion_wire::{Error, Result};

use super::Value;
use super::date::{Civil, days_from_civil, moment};
use super::timezone::Zone;
use crate::error::{error, failed_to_parse};
use crate::text::value_text;

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// The widest date there is, in years; amounts beyond it in any unit are refused.
const MAX_YEARS: i64 = 584_942_417;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// Years, quarters and months, in months.
    Months(i64),
    /// Weeks and days, in days.
    Days(i64),
    /// Hours down to milliseconds, in milliseconds.
    Millis(i64),
}

const WEEK: Unit = Unit::Days(7);

impl Unit {
    fn parse(value: &Value<'_>, operator: &str) -> Result<Unit> {
        let Some(RawBsonRef::String(name)) = value.as_ref() else {
            return Err(error(
                5_439_013,
                format!(
                    "{operator} requires 'unit' to be a string, but got {}",
                    value.type_name()
                ),
            ));
        };
        Unit::named(name).ok_or_else(|| {
            failed_to_parse(format!(
                "{operator} parameter 'unit' value cannot be recognized as a time unit: {name}"
            ))
        })
    }

    fn named(name: &str) -> Option<Unit> {
        Some(match name {
            "year" => Unit::Months(12),
            "quarter" => Unit::Months(3),
            "month" => Unit::Months(1),
            "week" => WEEK,
            "day" => Unit::Days(1),
            "hour" => Unit::Millis(HOUR),
            "minute" => Unit::Millis(MINUTE),
            "second" => Unit::Millis(SECOND),
            "millisecond" => Unit::Millis(1),
            _ => return None,
        })
    }

    /// The most of this unit that lies between two dates.
    fn most(self) -> i64 {
        match self {
            Unit::Months(months) => MAX_YEARS * (12 / months),
            Unit::Days(days) => MAX_YEARS * 366 / days,
            Unit::Millis(1) => i64::MAX,
            Unit::Millis(millis) => (MAX_YEARS * 366).saturating_mul(DAY / millis),
        }
    }
}

/// Refuses what is no unit of time.
pub(super) fn check_unit(value: &Value<'_>, operator: &str) -> Result<()> {
    Unit::parse(value, operator).map(|_| ())
}

/// A unit of time by its name, for stages that count dates by one. They do it in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeUnit(Unit);

impl TimeUnit {
    /// The unit of this name.
    pub(crate) fn find(name: &str) -> Option<TimeUnit> {
        Unit::named(name).map(TimeUnit)
    }

    /// The date `amount` units later, in milliseconds; `None` where there is no such date.
    pub(crate) fn after(self, date_ms: i64, amount: i64) -> Option<i64> {
        if amount.unsigned_abs() > self.0.most() as u64 {
            return None;
        }
        added(date_ms, self.0, amount, &Zone::UTC)
    }

    /// The milliseconds of a unit that always has as many: of those up to a week.
    pub(crate) fn fixed_ms(self) -> Option<i64> {
        match self.0 {
            Unit::Months(_) => None,
            Unit::Days(days) => Some(days * DAY),
            Unit::Millis(millis) => Some(millis),
        }
    }
}

/// The day a week begins with, from 0, Sunday.
pub(super) fn week_start(value: &Value<'_>, operator: &str) -> Result<i64> {
    let Some(RawBsonRef::String(name)) = value.as_ref() else {
        return Err(error(
            5_439_015,
            format!(
                "{operator} requires 'startOfWeek' to be a string, but got {}",
                value.type_name()
            ),
        ));
    };
    const DAYS: [(&str, &str); 7] = [
        ("sunday", "sun"),
        ("monday", "mon"),
        ("tuesday", "tue"),
        ("wednesday", "wed"),
        ("thursday", "thu"),
        ("friday", "fri"),
        ("saturday", "sat"),
    ];
    let lower = name.to_ascii_lowercase();
    DAYS.iter()
        .position(|(long, short)| lower == *long || lower == *short)
        .map(|at| at as i64)
        .ok_or_else(|| {
            error(
                5_439_016,
                format!(
                    "{operator} parameter 'startOfWeek' value cannot be recognized as a day of a week: {name}"
                ),
            )
        })
}

fn date<'a>(millis: i64) -> Value<'a> {
    Value::Ref(RawBsonRef::DateTime(DateTime::from_millis(millis)))
}

fn whole(value: &Value<'_>) -> Option<i64> {
    crate::number::exact_i64(value.or_null())
}

fn not_a_date(code: i32, operator: &str, argument: &str, value: &Value<'_>) -> Error {
    error(
        code,
        format!(
            "{operator} requires '{argument}' to be a date, but got {}",
            value.type_name()
        ),
    )
}

/// `$dateAdd` and `$dateSubtract`: start, unit, amount, time zone.
pub(super) fn add<'a>(operator: &str, subtract: bool, values: &[Value<'a>]) -> Result<Value<'a>> {
    let [start, unit, amount, zone] = values else {
        return Ok(Value::null());
    };
    if start.is_nullish() || unit.is_nullish() || amount.is_nullish() {
        return Ok(Value::null());
    }
    let Some(zone) = Zone::of_argument(zone, !zone.is_missing())? else {
        return Ok(Value::null());
    };
    let start = moment(start.or_null()).map_err(|_| {
        error(
            5_166_403,
            format!(
                "{operator} requires startDate to be convertible to a date, but got {}",
                start.type_name()
            ),
        )
    })?;
    let unit = Unit::parse(unit, operator)?;
    let given = whole(amount).ok_or_else(|| {
        error(
            5_166_405,
            format!(
                "{operator} expects integer amount of time units, but got {}",
                value_text(amount.or_null())
            ),
        )
    })?;
    let amount = if subtract {
        given.checked_neg().ok_or_else(|| {
            error(
                6_045_000,
                format!("invalid {operator} 'amount' parameter value: {given}"),
            )
        })?
    } else {
        given
    };
    if amount.unsigned_abs() > unit.most() as u64 && unit != Unit::Millis(1) {
        return Err(error(
            5_976_500,
            format!("invalid dateAdd 'amount' parameter value: {amount}"),
        ));
    }
    added(start, unit, amount, &zone)
        .map(date)
        .ok_or_else(|| error(5_166_406, "dateAdd overflowed"))
}

fn added(start: i64, unit: Unit, amount: i64, zone: &Zone) -> Option<i64> {
    match unit {
        Unit::Millis(millis) => start.checked_add(amount.checked_mul(millis)?),
        Unit::Days(days) => {
            let local = zone.local(start);
            let moved = local.checked_add(amount.checked_mul(days)?.checked_mul(DAY)?)?;
            Some(zone.moment(moved))
        }
        Unit::Months(months) => {
            let local = zone.local(start);
            let civil = Civil::from_millis(local);
            let month = months_of(civil).checked_add(amount.checked_mul(months)?)?;
            let (year, month) = (month.div_euclid(12), month.rem_euclid(12) as u32 + 1);
            // The last day of a shorter month.
            let day = civil.day.min(days_in_month(year, month));
            let days = days_from_civil(year, month, day);
            let moved = days.checked_mul(DAY)?.checked_add(local.rem_euclid(DAY))?;
            Some(zone.moment(moved))
        }
    }
}

/// Months since the year 0.
fn months_of(civil: Civil) -> i64 {
    civil.year * 12 + i64::from(civil.month) - 1
}

fn days_in_month(year: i64, month: u32) -> u32 {
    let (next_year, next_month) = if month == 12 {
        (year + 1, 1)
    } else {
        (year, month + 1)
    };
    (days_from_civil(next_year, next_month, 1) - days_from_civil(year, month, 1)) as u32
}

/// `$dateDiff`: start, end, unit, time zone, first day of the week.
pub(super) fn diff<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [start, end, unit, zone, first_day] = values else {
        return Ok(Value::null());
    };
    if start.is_nullish() || end.is_nullish() || unit.is_nullish() {
        return Ok(Value::null());
    }
    let unit = Unit::parse(unit, "$dateDiff")?;
    let first = match unit {
        WEEK if !first_day.is_missing() && first_day.is_nullish() => return Ok(Value::null()),
        WEEK if !first_day.is_missing() => week_start(first_day, "$dateDiff")?,
        _ => 0,
    };
    let Some(zone) = Zone::of_argument(zone, !zone.is_missing())? else {
        return Ok(Value::null());
    };
    let read = |value: &Value<'_>, argument: &str| {
        moment(value.or_null()).map_err(|_| not_a_date(5_166_307, "$dateDiff", argument, value))
    };
    let (start, end) = (read(start, "startDate")?, read(end, "endDate")?);
    let (from, to) = (zone.local(start), zone.local(end));
    let months = |local: i64, unit: i64| months_of(Civil::from_millis(local)).div_euclid(unit);
    let days = |local: i64| local.div_euclid(DAY);
    let difference = match unit {
        Unit::Months(unit) => months(to, unit) - months(from, unit),
        Unit::Days(1) => days(to) - days(from),
        Unit::Days(_) => {
            // Day 0 was a Thursday.
            let week = |local: i64| (days(local) + 4 - first).div_euclid(7);
            week(to) - week(from)
        }
        // Hours begin where local clocks say so, but each lasts an hour.
        Unit::Millis(HOUR) => {
            let hour_start =
                |at: i64, local: i64| i128::from(at) - i128::from(local.rem_euclid(HOUR));
            ((hour_start(end, to) - hour_start(start, from)).div_euclid(i128::from(HOUR))) as i64
        }
        Unit::Millis(millis) => end
            .div_euclid(millis)
            .checked_sub(start.div_euclid(millis))
            .ok_or_else(|| error(5_166_308, "dateDiff overflowed"))?,
    };
    Ok(Value::Ref(RawBsonRef::Int64(difference)))
}

/// `$dateTrunc`: date, unit, size of the bins, time zone, first day of the week.
pub(super) fn truncate<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [at, unit, bins, zone, first_day] = values else {
        return Ok(Value::null());
    };
    if at.is_nullish() || unit.is_nullish() || (!bins.is_missing() && bins.is_nullish()) {
        return Ok(Value::null());
    }
    let at = moment(at.or_null()).map_err(|_| not_a_date(5_439_012, "$dateTrunc", "date", at))?;
    let bin = if bins.is_missing() {
        1
    } else {
        bin_size(bins)?
    };
    let unit = Unit::parse(unit, "$dateTrunc")?;
    let first = match unit {
        WEEK if !first_day.is_missing() && first_day.is_nullish() => return Ok(Value::null()),
        WEEK if !first_day.is_missing() => week_start(first_day, "$dateTrunc")?,
        _ => 0,
    };
    let Some(zone) = Zone::of_argument(zone, !zone.is_missing())? else {
        return Ok(Value::null());
    };
    let too_large = |code: i32| {
        error(
            code,
            format!("dateTrunc unsupported value of 'binSize' argument: {bin}"),
        )
    };
    // Bins are counted from the beginning of the year 2000.
    let reference = days_from_civil(2000, 1, 1);
    let bin_start = |value: i64, from: i64, size: i64| {
        from.checked_add(
            (value.checked_sub(from)?)
                .div_euclid(size)
                .checked_mul(size)?,
        )
    };
    let truncated = match unit {
        Unit::Millis(millis) => {
            let size = bin
                .checked_mul(millis)
                .ok_or_else(|| too_large(5_439_002))?;
            bin_start(at, zone.moment(reference * DAY), size)
        }
        Unit::Days(days) => {
            if bin > 100_000_000_000 {
                return Err(too_large(5_439_005));
            }
            // The first day of a week from then on; that of 2000 was a Saturday.
            let from = match unit {
                WEEK => reference + (first + 7 - 6).rem_euclid(7),
                _ => reference,
            };
            bin_start(zone.local(at).div_euclid(DAY), from, bin * days)
                .and_then(|day| day.checked_mul(DAY))
                .map(|local| zone.moment(local))
        }
        Unit::Months(months) => {
            if bin > 100_000_000_000 {
                return Err(too_large(5_439_006));
            }
            bin_start(
                months_of(Civil::from_millis(zone.local(at))),
                2000 * 12,
                bin * months,
            )
            .and_then(|month| {
                days_from_civil(month.div_euclid(12), month.rem_euclid(12) as u32 + 1, 1)
                    .checked_mul(DAY)
            })
            .map(|local| zone.moment(local))
        }
    };
    truncated
        .map(date)
        .ok_or_else(|| error(5_976_501, "dateTrunc overflowed"))
}

pub(super) fn bin_size(value: &Value<'_>) -> Result<i64> {
    let size = value
        .as_ref()
        .and_then(Number::from_value)
        .and_then(Number::to_i64_exact)
        .ok_or_else(|| {
            error(
                5_439_017,
                format!(
                    "$dateTrunc requires 'binSize' to be a 64-bit integer, but got value '{}' of type {}",
                    value_text(value.or_null()),
                    value.type_name()
                ),
            )
        })?;
    if size <= 0 {
        return Err(error(
            5_439_018,
            format!("$dateTrunc requires 'binSize' to be greater than 0, but got value {size}"),
        ));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::operators::date::iso_text;
    use crate::expression::operators::date_text::moment as read_moment;

    fn at(text: &str) -> Value<'static> {
        date(read_moment(text).expect(text))
    }

    fn text(value: &Value<'_>) -> String {
        match value.as_ref() {
            Some(RawBsonRef::DateTime(at)) => iso_text(at.timestamp_millis()).expect("in range"),
            other => format!("{other:?}"),
        }
    }

    fn string(text: &str) -> Value<'static> {
        Value::string(text)
    }

    fn long(value: i64) -> Value<'static> {
        Value::Ref(RawBsonRef::Int64(value))
    }

    #[track_caller]
    fn check_add(start: &str, unit: &str, amount: i64, zone: &str, expected: &str) {
        let made = add(
            "$dateAdd",
            false,
            &[at(start), string(unit), long(amount), string(zone)],
        );
        assert_eq!(
            text(&made.expect("it adds")),
            expected,
            "{start} {amount} {unit}"
        );
    }

    #[test]
    fn adding() {
        check_add("2020-01-31", "month", 1, "UTC", "2020-02-29T00:00:00.000Z");
        check_add("2020-02-29", "year", -1, "UTC", "2019-02-28T00:00:00.000Z");
        check_add(
            "2020-11-30",
            "quarter",
            1,
            "UTC",
            "2021-02-28T00:00:00.000Z",
        );
        check_add("2020-02-28", "week", 1, "UTC", "2020-03-06T00:00:00.000Z");
        // A day over the change of clocks has 23 hours; 24 hours are 24 hours.
        let zone = "America/New_York";
        check_add(
            "2020-03-07T12:00:00Z",
            "day",
            1,
            zone,
            "2020-03-08T11:00:00.000Z",
        );
        check_add(
            "2020-03-07T12:00:00Z",
            "hour",
            24,
            zone,
            "2020-03-08T12:00:00.000Z",
        );
        for (amount, unit, code) in [
            (i64::MAX, "day", 5_976_500),
            (i64::MAX, "millisecond", 5_166_406),
            (1, "fortnight", 9),
        ] {
            let made = add(
                "$dateAdd",
                false,
                &[at("2020-01-01"), string(unit), long(amount), Value::Missing],
            );
            assert_eq!(made.expect_err("it is refused").code.0, code, "{unit}");
        }
    }

    #[track_caller]
    fn check_diff(start: &str, end: &str, unit: &str, zone: &str, expected: i64) {
        let made = diff(&[
            at(start),
            at(end),
            string(unit),
            string(zone),
            Value::Missing,
        ]);
        let made = made.expect("it differs");
        assert_eq!(
            made.as_ref(),
            Some(RawBsonRef::Int64(expected)),
            "{start} {end} {unit}"
        );
    }

    #[test]
    fn differences() {
        check_diff("2020-12-31T23:59:59Z", "2021-01-01", "year", "UTC", 1);
        check_diff("2020-12-31T23:59:59Z", "2021-01-01", "quarter", "UTC", 1);
        check_diff("2021-01-01", "2020-12-31T23:59:59Z", "month", "UTC", -1);
        check_diff("2020-01-04", "2020-01-05", "week", "UTC", 1);
        check_diff("2020-01-05", "2020-01-11", "week", "UTC", 0);
        check_diff(
            "2020-01-01T10:59:00Z",
            "2020-01-01T11:00:00Z",
            "hour",
            "UTC",
            1,
        );
        check_diff(
            "2020-01-01T10:29:00Z",
            "2020-01-01T10:31:00Z",
            "hour",
            "+05:30",
            1,
        );
        check_diff(
            "2020-01-01T04:59:00Z",
            "2020-01-01T05:01:00Z",
            "day",
            "America/New_York",
            1,
        );
        check_diff(
            "2020-01-01T00:00:00.999Z",
            "2020-01-01T00:00:01Z",
            "second",
            "UTC",
            1,
        );
    }

    #[track_caller]
    fn check_truncate(start: &str, unit: &str, bin: i64, zone: &str, expected: &str) {
        let made = truncate(&[
            at(start),
            string(unit),
            long(bin),
            string(zone),
            Value::Missing,
        ]);
        assert_eq!(
            text(&made.expect("it truncates")),
            expected,
            "{start} {bin} {unit}"
        );
    }

    #[test]
    fn truncating() {
        let at = "2021-08-18T13:47:21.123Z";
        check_truncate(at, "year", 1, "UTC", "2021-01-01T00:00:00.000Z");
        check_truncate(at, "year", 5, "UTC", "2020-01-01T00:00:00.000Z");
        check_truncate(at, "quarter", 1, "UTC", "2021-07-01T00:00:00.000Z");
        check_truncate(at, "week", 1, "UTC", "2021-08-15T00:00:00.000Z");
        check_truncate(at, "day", 1, "+14:00", "2021-08-18T10:00:00.000Z");
        check_truncate(at, "hour", 2, "UTC", "2021-08-18T12:00:00.000Z");
        check_truncate(at, "millisecond", 100, "UTC", "2021-08-18T13:47:21.100Z");
        check_truncate(
            "1999-12-31T23:00:00Z",
            "day",
            2,
            "UTC",
            "1999-12-30T00:00:00.000Z",
        );
        check_truncate(
            at,
            "month",
            1,
            "America/New_York",
            "2021-08-01T04:00:00.000Z",
        );
    }
}
