//! The server parameters of `dbCheck`: names, defaults and bounds are MongoDB's.

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_service::parameters::{Row, Setting, within};
use pinion_wire::Result;

use crate::limits::{CHECK_LOG_EVERY, CHECK_MB_PER_SEC, MAX_CHECK_LOG_EVERY};

const LOG_EVERY: &str = "dbCheckHealthLogEveryNBatches";
const MOST_MB_PER_SEC: &str = "maxDbCheckMBperSec";

/// Their rows.
pub(crate) const ROWS: [Row; 2] = [
    Row::always(LOG_EVERY, append, parse),
    Row::always(MOST_MB_PER_SEC, append, parse),
];

fn append(parameter: &str, name: &str, out: &mut DocBuilder) {
    let is_known = check_parameters().borrow().append_as(parameter, name, out);
    assert!(is_known, "a parameter of dbCheck");
}

fn parse(name: &str, value: RawBsonRef<'_>) -> Result<Setting> {
    let parsed = DbCheckSetting::parse(name, value).expect("a parameter of dbCheck");
    let value = parsed?;
    Ok(Setting::new(move || {
        check_parameters().borrow_mut().set(value)
    }))
}

/// This core's values.
pub(super) fn check_parameters() -> Rc<RefCell<DbCheckParameters>> {
    pinion_runtime::core_local()
}

/// Their values; every core holds the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DbCheckParameters {
    /// Each this many batches without a difference, one is logged.
    pub log_every: u32,
    /// What a run reads at most, in megabytes a second; 0 for as much as it can.
    pub most_mb_per_sec: u32,
}

impl Default for DbCheckParameters {
    fn default() -> DbCheckParameters {
        DbCheckParameters {
            log_every: CHECK_LOG_EVERY,
            most_mb_per_sec: CHECK_MB_PER_SEC,
        }
    }
}

/// A checked value of one of them.
#[derive(Clone, Copy, Debug)]
enum DbCheckSetting {
    LogEvery(u32),
    MostMbPerSec(u32),
}

impl DbCheckParameters {
    /// Appends a parameter's value under a name; false if it is not one of these.
    fn append_as(&self, parameter: &str, name: &str, out: &mut DocBuilder) -> bool {
        match parameter {
            LOG_EVERY => out.append(name, self.log_every as i32),
            MOST_MB_PER_SEC => out.append(name, self.most_mb_per_sec as i32),
            _ => return false,
        };
        true
    }

    fn set(&mut self, setting: DbCheckSetting) {
        match setting {
            DbCheckSetting::LogEvery(batches) => self.log_every = batches,
            DbCheckSetting::MostMbPerSec(most) => self.most_mb_per_sec = most,
        }
    }
}

impl DbCheckSetting {
    /// Checks a value for a parameter; `None` if it is not one of these.
    fn parse(name: &str, value: RawBsonRef<'_>) -> Option<Result<DbCheckSetting>> {
        let within = |least, most| within(name, value, least, most).map(|value| value as u32);
        Some(match name {
            LOG_EVERY => within(1, i64::from(MAX_CHECK_LOG_EVERY)).map(DbCheckSetting::LogEvery),
            MOST_MB_PER_SEC => within(0, i64::from(i32::MAX)).map(DbCheckSetting::MostMbPerSec),
            _ => return None,
        })
    }
}
