//! The server parameters of expiry.

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_runtime::Duration;
use pinion_service::parameters::{Row, Setting, flag, within};
use pinion_wire::{Error, Result};

use crate::limits::{
    TTL_INDEX_DELETE_TARGET_DOCS, TTL_INDEX_DELETE_TARGET_TIME, TTL_MONITOR_SLEEP,
    TTL_SUB_PASS_TARGET,
};

/// Their rows.
pub(crate) const ROWS: [Row; 6] = [
    row("ttlIndexDeleteTargetDocs"),
    row("ttlIndexDeleteTargetTimeMS"),
    row("ttlMonitorBatchDeletes"),
    row("ttlMonitorEnabled"),
    row("ttlMonitorSleepSecs"),
    row("ttlMonitorSubPassTargetSecs"),
];

const fn row(name: &'static str) -> Row {
    Row::always(name, append, parse)
}

fn append(parameter: &str, name: &str, out: &mut DocBuilder) {
    let is_known = ttl_parameters().borrow().append_as(parameter, name, out);
    assert!(is_known, "a parameter of expiry");
}

fn parse(name: &str, value: RawBsonRef<'_>) -> Result<Setting> {
    let parsed = TtlSetting::parse(name, value).expect("a parameter of expiry");
    let value = parsed?;
    Ok(Setting::new(move || {
        ttl_parameters().borrow_mut().set(value)
    }))
}

/// This core's values.
pub(crate) fn ttl_parameters() -> Rc<RefCell<TtlParameters>> {
    pinion_runtime::core_local()
}

/// Their values; every core holds the same.
#[derive(Clone, Debug)]
pub struct TtlParameters {
    pub enabled: bool,
    /// Between two passes.
    pub sleep: Duration,
    /// Whether a visit of a collection has an end before its last expired document.
    pub batch_deletes: bool,
    /// After which a sub-pass visits nothing any more.
    pub sub_pass_target: Duration,
    /// How long, and for how many documents, a visit lasts; zero for no limit.
    pub delete_target_time: Duration,
    pub delete_target_docs: u64,
}

impl Default for TtlParameters {
    fn default() -> TtlParameters {
        TtlParameters {
            enabled: true,
            sleep: TTL_MONITOR_SLEEP,
            batch_deletes: true,
            sub_pass_target: TTL_SUB_PASS_TARGET,
            delete_target_time: TTL_INDEX_DELETE_TARGET_TIME,
            delete_target_docs: TTL_INDEX_DELETE_TARGET_DOCS,
        }
    }
}

/// A checked value of one of them.
#[derive(Clone, Copy, Debug)]
enum TtlSetting {
    Enabled(bool),
    SleepSecs(i32),
    BatchDeletes(bool),
    SubPassTargetSecs(i32),
    DeleteTargetTimeMs(i64),
    DeleteTargetDocs(i64),
}

impl TtlParameters {
    /// Appends a parameter's value under a name; false if it is not one of these.
    fn append_as(&self, parameter: &str, name: &str, out: &mut DocBuilder) -> bool {
        match parameter {
            "ttlIndexDeleteTargetDocs" => out.append(name, self.delete_target_docs as i64),
            "ttlIndexDeleteTargetTimeMS" => {
                out.append(name, self.delete_target_time.as_millis() as i64)
            }
            "ttlMonitorBatchDeletes" => out.append(name, self.batch_deletes),
            "ttlMonitorEnabled" => out.append(name, self.enabled),
            "ttlMonitorSleepSecs" => out.append(name, self.sleep.as_secs() as i32),
            "ttlMonitorSubPassTargetSecs" => {
                out.append(name, self.sub_pass_target.as_secs() as i32)
            }
            _ => return false,
        };
        true
    }

    fn set(&mut self, setting: TtlSetting) {
        match setting {
            TtlSetting::Enabled(enabled) => self.enabled = enabled,
            TtlSetting::SleepSecs(secs) => self.sleep = Duration::from_secs(secs as u64),
            TtlSetting::BatchDeletes(batch) => self.batch_deletes = batch,
            TtlSetting::SubPassTargetSecs(secs) => {
                self.sub_pass_target = Duration::from_secs(secs as u64);
            }
            TtlSetting::DeleteTargetTimeMs(ms) => {
                self.delete_target_time = Duration::from_millis(ms as u64);
            }
            TtlSetting::DeleteTargetDocs(count) => self.delete_target_docs = count as u64,
        }
    }
}

impl TtlSetting {
    /// Checks a value for a parameter; `None` if it is not one of these.
    fn parse(name: &str, value: RawBsonRef<'_>) -> Option<Result<TtlSetting>> {
        Some(match name {
            "ttlIndexDeleteTargetDocs" => {
                within(name, value, 0, i64::MAX).map(TtlSetting::DeleteTargetDocs)
            }
            "ttlIndexDeleteTargetTimeMS" => {
                within(name, value, 0, i64::MAX).map(TtlSetting::DeleteTargetTimeMs)
            }
            "ttlMonitorBatchDeletes" => Ok(TtlSetting::BatchDeletes(flag(value))),
            "ttlMonitorEnabled" => Ok(TtlSetting::Enabled(flag(value))),
            "ttlMonitorSleepSecs" => secs(name, value).map(TtlSetting::SleepSecs),
            "ttlMonitorSubPassTargetSecs" => secs(name, value).map(TtlSetting::SubPassTargetSecs),
            _ => return None,
        })
    }
}

/// A time of which there must be some.
fn secs(name: &str, value: RawBsonRef<'_>) -> Result<i32> {
    let secs = within(name, value, i64::from(i32::MIN), i64::from(i32::MAX))?;
    if secs <= 0 {
        return Err(Error::bad_value(format!(
            "Invalid value for parameter {name}: {secs} is not greater than 0"
        )));
    }
    Ok(secs as i32)
}

#[cfg(test)]
mod tests {
    use pinion_wire::idl::i64_exact;

    use super::*;

    /// What is shown of a parameter after it was set to a value; `None` if the value is refused.
    #[track_caller]
    fn check(name: &str, value: RawBsonRef<'_>, expected: Option<i64>) {
        let setting = TtlSetting::parse(name, value).expect("a parameter of expiry");
        let shown = setting.ok().map(|setting| {
            let mut parameters = TtlParameters::default();
            parameters.set(setting);
            let mut out = DocBuilder::new();
            assert!(parameters.append_as(name, "value", &mut out));
            let out = out.finish();
            match out.get("value").expect("readable").expect("appended") {
                RawBsonRef::Boolean(flag) => i64::from(flag),
                number => i64_exact(number).expect("a number"),
            }
        });
        assert_eq!(shown, expected, "{name} {value:?}");
    }

    #[test]
    fn values() {
        use RawBsonRef::{Boolean, Double, Int32, Int64, String};
        check("ttlMonitorSleepSecs", Int32(1), Some(1));
        check("ttlMonitorSleepSecs", Double(3.0), Some(3));
        check("ttlMonitorSleepSecs", Int32(0), None);
        check("ttlMonitorSleepSecs", Int32(-1), None);
        check("ttlMonitorSleepSecs", Int64(1 << 31), None);
        check("ttlMonitorSleepSecs", String("1"), None);
        check("ttlMonitorSubPassTargetSecs", Int32(7), Some(7));
        check("ttlMonitorSubPassTargetSecs", Int32(0), None);
        check("ttlIndexDeleteTargetDocs", Int32(0), Some(0));
        check("ttlIndexDeleteTargetDocs", Int32(-1), None);
        check("ttlIndexDeleteTargetTimeMS", Int64(1 << 40), Some(1 << 40));
        check("ttlMonitorEnabled", Boolean(false), Some(0));
        check("ttlMonitorEnabled", Int32(1), Some(1));
        check("ttlMonitorEnabled", String("x"), Some(1));
        check("ttlMonitorSleepSecs", Double(3.9), Some(3));
        check("ttlMonitorSleepSecs", Double(0.9), None);
        check("ttlMonitorBatchDeletes", Boolean(false), Some(0));
    }
}
