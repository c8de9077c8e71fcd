//! Server parameters of storage: how often it writes to the device, and what a write does that
//! finds no memory.
//!
//! The names, the bounds and the defaults are MongoDB's.

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_runtime::{CoreId, Duration, Queue, core_id, spawn};
use pinion_service::parameters::{Row, Setting, flag, unreadable, within};
use pinion_storage::storage;
use pinion_wire::idl::f64_lossy;
use pinion_wire::{Error, Result};

use super::{parameters, setting};
use crate::limits::{
    MAX_JOURNAL_COMMIT_INTERVAL_MS, MAX_SYNC_DELAY_SECS, MAX_UNAVAILABLE_RETRIES,
    TRANSACTION_TOO_LARGE_THRESHOLD, UNAVAILABLE_BACKOFF_BASE_MS,
};

pub(super) const ROWS: [Row; 6] = [
    row("enableTemporarilyUnavailableExceptions"),
    row("journalCommitInterval"),
    row("syncdelay"),
    row("temporarilyUnavailableBackoffBaseMs"),
    row("temporarilyUnavailableMaxRetries"),
    row("transactionTooLargeForCacheThreshold"),
];

const fn row(name: &'static str) -> Row {
    let row = Row::always(name, append, parse);
    Row {
        takes_fraction: true,
        ..row
    }
}

fn append(parameter: &str, name: &str, out: &mut DocBuilder) {
    let values = parameters().borrow().storage;
    let is_known = values.append_as(parameter, name, out);
    assert!(is_known, "a parameter of storage");
}

fn parse(name: &str, value: RawBsonRef<'_>) -> Result<Setting> {
    let parsed = StorageSetting::parse(name, value).expect("a parameter of storage");
    let value = parsed?;
    Ok(setting(move |parameters| parameters.storage.set(value)))
}

/// Their values. The intervals are storage's, which keeps them itself; here stands what was set
/// while the node ran.
#[derive(Clone, Copy, Debug)]
pub struct StorageParameters {
    journal_commit_interval: Option<Duration>,
    checkpoint_interval: Option<Duration>,
    /// Whether a write that finds no memory again and again fails; it is tried as one that
    /// conflicts otherwise, without end.
    pub unavailable_is_an_error: bool,
    /// How often it is tried again.
    pub unavailable_retries: i32,
    /// How long it waits before the first time, the second time twice as long, and so on.
    pub unavailable_backoff: Duration,
    /// The part of what all transactions may keep that one may have.
    pub transaction_threshold: f64,
}

impl Default for StorageParameters {
    fn default() -> StorageParameters {
        StorageParameters {
            journal_commit_interval: None,
            checkpoint_interval: None,
            unavailable_is_an_error: true,
            unavailable_retries: MAX_UNAVAILABLE_RETRIES,
            unavailable_backoff: Duration::from_millis(UNAVAILABLE_BACKOFF_BASE_MS as u64),
            transaction_threshold: TRANSACTION_TOO_LARGE_THRESHOLD,
        }
    }
}

/// A checked value of one of them.
#[derive(Clone, Copy, Debug)]
pub enum StorageSetting {
    JournalCommitInterval(Duration),
    CheckpointInterval(Duration),
    UnavailableIsAnError(bool),
    UnavailableRetries(i32),
    UnavailableBackoff(Duration),
    TransactionThreshold(f64),
}

impl StorageParameters {
    /// Appends a parameter's value under a name; false if it is not one of these.
    fn append_as(&self, parameter: &str, name: &str, out: &mut DocBuilder) -> bool {
        match parameter {
            "enableTemporarilyUnavailableExceptions" => {
                out.append(name, self.unavailable_is_an_error)
            }
            "journalCommitInterval" => {
                out.append(name, storage().journal_commit_interval().as_millis() as i32)
            }
            "syncdelay" => out.append(
                name,
                match storage().checkpoint_interval() {
                    // Checkpoints are taken at the end alone.
                    Duration::MAX => 0.0,
                    interval => interval.as_secs_f64(),
                },
            ),
            "temporarilyUnavailableBackoffBaseMs" => {
                out.append(name, self.unavailable_backoff.as_millis() as i32)
            }
            "temporarilyUnavailableMaxRetries" => out.append(name, self.unavailable_retries),
            "transactionTooLargeForCacheThreshold" => out.append(name, self.transaction_threshold),
            _ => return false,
        };
        true
    }

    /// Sets one on this core, and what storage goes by.
    fn set(&mut self, setting: StorageSetting) {
        match setting {
            StorageSetting::JournalCommitInterval(interval) => {
                self.journal_commit_interval = Some(interval);
                self.give_to_storage();
            }
            StorageSetting::CheckpointInterval(interval) => {
                self.checkpoint_interval = Some(interval);
                self.give_to_storage();
            }
            StorageSetting::UnavailableIsAnError(is) => self.unavailable_is_an_error = is,
            StorageSetting::UnavailableRetries(retries) => self.unavailable_retries = retries,
            StorageSetting::UnavailableBackoff(backoff) => self.unavailable_backoff = backoff,
            StorageSetting::TransactionThreshold(part) => self.transaction_threshold = part,
        }
    }

    /// Gives storage the intervals that were set; again when the data directory was opened again.
    pub fn give_to_storage(&self) {
        // All cores have one pair of intervals.
        if core_id() != CoreId(0) {
            return;
        }
        let storage = storage();
        if let Some(interval) = self.journal_commit_interval {
            storage.set_journal_commit_interval(interval);
        }
        if let Some(interval) = self.checkpoint_interval
            && interval != storage.checkpoint_interval()
        {
            spawn(Queue::Foreground, async move {
                storage.set_checkpoint_interval(interval).await;
            });
        }
    }
}

impl StorageSetting {
    /// Checks a value for a parameter; `None` if it is not one of these.
    fn parse(name: &str, value: RawBsonRef<'_>) -> Option<Result<StorageSetting>> {
        let most = i64::from(i32::MAX);
        Some(match name {
            "enableTemporarilyUnavailableExceptions" => {
                Ok(StorageSetting::UnavailableIsAnError(flag(value)))
            }
            "journalCommitInterval" => within(name, value, 1, MAX_JOURNAL_COMMIT_INTERVAL_MS)
                .map(|ms| StorageSetting::JournalCommitInterval(Duration::from_millis(ms as u64))),
            "syncdelay" => sync_delay(name, value).map(StorageSetting::CheckpointInterval),
            "temporarilyUnavailableBackoffBaseMs" => within(name, value, 0, most)
                .map(|ms| StorageSetting::UnavailableBackoff(Duration::from_millis(ms as u64))),
            "temporarilyUnavailableMaxRetries" => within(name, value, 0, most)
                .map(|retries| StorageSetting::UnavailableRetries(retries as i32)),
            "transactionTooLargeForCacheThreshold" => {
                part(name, value).map(StorageSetting::TransactionThreshold)
            }
            _ => return None,
        })
    }
}

fn out_of_bounds(name: &str, value: f64, relation: &str, bound: f64) -> Error {
    Error::bad_value(format!(
        "Invalid value for parameter {name}: {value} is not {relation} {bound}"
    ))
}

/// Seconds, of which there may be a fraction; 0 for no checkpoints but those at the end.
fn sync_delay(name: &str, value: RawBsonRef<'_>) -> Result<Duration> {
    let secs = f64_lossy(value).ok_or_else(|| unreadable(name, value))?;
    if !(0.0..=MAX_SYNC_DELAY_SECS).contains(&secs) {
        return Err(Error::bad_value(format!(
            "syncdelay must be between 0 and {MAX_SYNC_DELAY_SECS}, but attempted to set to: {secs}"
        )));
    }
    Ok(match secs {
        0.0 => Duration::MAX,
        secs => Duration::from_secs_f64(secs),
    })
}

fn part(name: &str, value: RawBsonRef<'_>) -> Result<f64> {
    let part = f64_lossy(value).ok_or_else(|| unreadable(name, value))?;
    if part.is_nan() || part < 0.0 {
        return Err(out_of_bounds(name, part, "greater than or equal to", 0.0));
    }
    if part > 1.0 {
        return Err(out_of_bounds(name, part, "less than or equal to", 1.0));
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, value: RawBsonRef<'_>, accepted: bool) {
        let parsed = StorageSetting::parse(name, value).expect("it is one of these");
        assert_eq!(parsed.is_ok(), accepted, "{name}: {value:?}");
    }

    #[test]
    fn values_have_their_bounds() {
        use RawBsonRef::{Boolean, Double, Int32, String};
        check("syncdelay", Int32(0), true);
        check("syncdelay", Double(0.5), true);
        check("syncdelay", Int32(-1), false);
        check("syncdelay", Int32(9_000_001), false);
        check("syncdelay", String("x"), false);
        check("journalCommitInterval", Int32(1), true);
        check("journalCommitInterval", Int32(0), false);
        check("journalCommitInterval", Int32(501), false);
        check("temporarilyUnavailableMaxRetries", Int32(0), true);
        check("temporarilyUnavailableMaxRetries", Int32(-1), false);
        check("temporarilyUnavailableMaxRetries", Double(1.5), true);
        check("temporarilyUnavailableMaxRetries", String("1"), false);
        check("temporarilyUnavailableBackoffBaseMs", Int32(-1), false);
        check("transactionTooLargeForCacheThreshold", Double(0.75), true);
        check("transactionTooLargeForCacheThreshold", Double(1.5), false);
        check(
            "transactionTooLargeForCacheThreshold",
            Double(f64::NAN),
            false,
        );
        check(
            "enableTemporarilyUnavailableExceptions",
            Boolean(false),
            true,
        );
        check("enableTemporarilyUnavailableExceptions", String("no"), true);
        assert!(StorageSetting::parse("quiet", Int32(1)).is_none());
    }
}
