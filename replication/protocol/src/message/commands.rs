//! The arguments of the commands by which operators steer a member.

use pinion_bson::RawDocument;
use pinion_wire::idl::{CommandReader, Types, i64_clamped, i64_exact, is_number, truthy};
use pinion_wire::{Error, Result};

use crate::config::HostPort;

/// `replSetStepDown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepDown {
    pub force: bool,
    /// For how long this node does not stand for election, counted from the command.
    pub period_secs: u64,
    /// How long it waits for another member to catch up.
    pub catch_up_secs: u64,
}

const DEFAULT_STEP_DOWN_SECS: u64 = 60;
const DEFAULT_CATCH_UP_SECS: u64 = 10;

impl StepDown {
    /// Reads the command.
    ///
    /// # Errors
    /// A period that is negative, or shorter than the wait; a wait that is no whole number of
    /// seconds.
    pub fn parse(body: &RawDocument) -> Result<StepDown> {
        let reader = CommandReader::new("replSetStepDown", body)?;
        let force = reader.value("force").is_some_and(truthy);
        let period = reader.value("replSetStepDown").and_then(i64_clamped);
        let period_secs = match u64::try_from(period.unwrap_or(0)) {
            Ok(0) => DEFAULT_STEP_DOWN_SECS,
            Ok(secs) => secs,
            Err(_) => {
                return Err(Error::bad_value(
                    "stepdown period must be a positive integer",
                ));
            }
        };
        let catch_up_secs = match whole_seconds(&reader, "secondaryCatchUpPeriodSecs")? {
            None if force => 0,
            None => DEFAULT_CATCH_UP_SECS,
            Some(secs) => u64::try_from(secs).map_err(|_| {
                Error::bad_value("secondaryCatchUpPeriodSecs period must be a positive or absent")
            })?,
        };
        reader.finish()?;
        if period_secs < catch_up_secs {
            return Err(Error::bad_value(
                "stepdown period must be longer than secondaryCatchUpPeriodSecs",
            ));
        }
        Ok(StepDown {
            force,
            period_secs,
            catch_up_secs,
        })
    }
}

/// A whole number of seconds, which null is not.
fn whole_seconds(reader: &CommandReader<'_>, name: &str) -> Result<Option<i64>> {
    let Some(value) = reader.value(name) else {
        return Ok(None);
    };
    if !is_number(value) {
        return Err(reader.wrong_type(name, value, Types::NUMBER));
    }
    match i64_exact(value) {
        Some(secs) => Ok(Some(secs)),
        None => Err(Error::bad_value(format!(
            "Expected field \"{name}\" to have a value exactly representable as a 64-bit integer"
        ))),
    }
}

/// `replSetStepUp`: whether it skips the dry run.
///
/// # Errors
/// A field of a wrong type or unknown.
pub fn parse_step_up(body: &RawDocument) -> Result<bool> {
    let reader = CommandReader::new("replSetStepUp", body)?;
    reader.ignore(&["replSetStepUp"]);
    let skip_dry_run = reader.opt_given_bool("skipDryRun")?.unwrap_or(false);
    reader.finish()?;
    Ok(skip_dry_run)
}

/// `replSetFreeze`: the seconds for which this node does not stand for election; 0 ends an earlier
/// one.
///
/// # Errors
/// A field that is unknown, or negative seconds.
pub fn parse_freeze(body: &RawDocument) -> Result<u64> {
    let reader = CommandReader::new("replSetFreeze", body)?;
    let secs = reader.i64("replSetFreeze")?;
    reader.finish()?;
    u64::try_from(secs)
        .map_err(|_| Error::bad_value("replSetFreeze takes seconds that are not negative"))
}

/// `replSetMaintenance`: whether maintenance begins or ends.
///
/// # Errors
/// A field that is unknown.
pub fn parse_maintenance(body: &RawDocument) -> Result<bool> {
    let reader = CommandReader::new("replSetMaintenance", body)?;
    let begins = reader.value("replSetMaintenance").is_some_and(truthy);
    reader.finish()?;
    Ok(begins)
}

/// `replSetSyncFrom`: the member to sync from.
///
/// # Errors
/// What is no name of a host.
pub fn parse_sync_from(body: &RawDocument) -> Result<HostPort> {
    let reader = CommandReader::new("replSetSyncFrom", body)?;
    let host = HostPort::parse(reader.str("replSetSyncFrom")?)?;
    reader.finish()?;
    Ok(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawBsonRef, cstr, rawdoc};
    use pinion_wire::ErrorCode;

    #[test]
    fn step_down() {
        let check = |body: pinion_bson::RawDocumentBuf,
                     expected: Result<(bool, u64, u64), &str>| {
            let found = StepDown::parse(&body)
                .map(|found| (found.force, found.period_secs, found.catch_up_secs))
                .map_err(|error| error.message);
            assert_eq!(found, expected.map_err(str::to_owned), "{body:?}");
        };
        check(rawdoc! { "replSetStepDown": 1, "$db": "admin" }, {
            Err("stepdown period must be longer than secondaryCatchUpPeriodSecs")
        });
        check(rawdoc! { "replSetStepDown": 0 }, Ok((false, 60, 10)));
        check(
            rawdoc! { "replSetStepDown": 20.0, "force": 1 },
            Ok((true, 20, 0)),
        );
        check(
            rawdoc! { "replSetStepDown": 20, "secondaryCatchUpPeriodSecs": 20i64 },
            Ok((false, 20, 20)),
        );
        check(
            rawdoc! { "replSetStepDown": -1 },
            Err("stepdown period must be a positive integer"),
        );
        check(
            rawdoc! { "replSetStepDown": 5, "secondaryCatchUpPeriodSecs": -1 },
            Err("secondaryCatchUpPeriodSecs period must be a positive or absent"),
        );
        for wait in [1.5, f64::NAN, f64::INFINITY] {
            let body = rawdoc! { "replSetStepDown": 50, "secondaryCatchUpPeriodSecs": wait };
            check(body, {
                Err(
                    "Expected field \"secondaryCatchUpPeriodSecs\" to have a value exactly representable as a 64-bit integer",
                )
            });
        }
        for wait in [
            RawBsonRef::Null,
            RawBsonRef::Boolean(true),
            RawBsonRef::String("x"),
        ] {
            let mut body = rawdoc! { "replSetStepDown": 50 };
            body.append(cstr!("secondaryCatchUpPeriodSecs"), wait);
            let refused = StepDown::parse(&body).unwrap_err();
            assert_eq!(refused.code, ErrorCode::TYPE_MISMATCH, "{wait:?}");
        }
        check(
            rawdoc! { "replSetStepDown": 50, "x": 1 },
            Err("BSON field 'replSetStepDown.x' is an unknown field."),
        );
    }

    #[test]
    fn others() {
        assert!(parse_step_up(&rawdoc! { "replSetStepUp": 1, "skipDryRun": true }).unwrap());
        assert!(!parse_step_up(&rawdoc! { "replSetStepUp": 1 }).unwrap());
        assert!(parse_step_up(&rawdoc! { "replSetStepUp": 1, "dry": true }).is_err());
        assert_eq!(parse_freeze(&rawdoc! { "replSetFreeze": 7 }).unwrap(), 7);
        assert!(parse_freeze(&rawdoc! { "replSetFreeze": -7 }).is_err());
        assert!(parse_maintenance(&rawdoc! { "replSetMaintenance": true }).unwrap());
        assert!(!parse_maintenance(&rawdoc! { "replSetMaintenance": 0 }).unwrap());
        let host = parse_sync_from(&rawdoc! { "replSetSyncFrom": "a:1" }).unwrap();
        assert_eq!(host, HostPort::new("a", 1));
        assert!(parse_sync_from(&rawdoc! { "replSetSyncFrom": 1 }).is_err());
    }
}
