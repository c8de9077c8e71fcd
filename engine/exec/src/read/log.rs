//! The node's log as a collection: its documents are the entries, their records the timestamps.

use std::collections::VecDeque;
use std::ops::Bound;

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::{Collection, from_fatal, record_key, record_of};
use pinion_clock::Timestamp;
use pinion_merge::PartCounters;
use pinion_storage::{Key, KeyRange, LogCursor, LogReadError, storage};
use pinion_wire::{Error, ErrorCode, Result};

use super::access::RangeAccess;
use super::scan::ScannedDocument;
use super::tail::position_lost;
use crate::limits::{LOG_BATCH_BYTES, LOG_BATCH_ENTRIES, LOG_FIRST_BATCH_ENTRIES};

/// The entries that a filter can match, by what it says of `ts`.
pub(super) fn log_range(filter: &RawDocument) -> KeyRange {
    let (mut lowest, mut highest) = (Timestamp::MIN, Timestamp::MAX);
    bound(filter, &mut lowest, &mut highest);
    let key = |ts: Timestamp| record_key(record_at(ts));
    KeyRange {
        lower: match lowest {
            Timestamp::MIN => Bound::Unbounded,
            lowest => Bound::Included(key(lowest)),
        },
        upper: match highest {
            Timestamp::MAX => Bound::Unbounded,
            highest => Bound::Included(key(highest)),
        },
    }
}

/// The records between which a read of the log begins and ends, as explain shows them.
pub(crate) fn log_records(filter: &RawDocument) -> [Option<i64>; 2] {
    let (mut lowest, mut highest) = (Timestamp::MIN, Timestamp::MAX);
    bound(filter, &mut lowest, &mut highest);
    [
        (lowest > Timestamp::MIN).then(|| record_at(lowest)),
        (highest < Timestamp::MAX).then(|| record_at(highest)),
    ]
}

/// Records are signed; no timestamp of a running node is beyond their greatest.
fn record_at(ts: Timestamp) -> i64 {
    i64::try_from(ts.as_u64()).unwrap_or(i64::MAX)
}

fn bound(filter: &RawDocument, lowest: &mut Timestamp, highest: &mut Timestamp) {
    for (name, value) in pinion_bson::elements(filter) {
        match (name, value) {
            ("ts", RawBsonRef::Document(conditions)) => {
                for (operator, value) in pinion_bson::elements(conditions) {
                    if let RawBsonRef::Timestamp(value) = value {
                        let ts = Timestamp::new(value.time, value.increment);
                        match operator {
                            "$gt" | "$gte" => *lowest = ts.max(*lowest),
                            "$lt" | "$lte" => *highest = ts.min(*highest),
                            "$eq" => {
                                *lowest = ts.max(*lowest);
                                *highest = ts.min(*highest);
                            }
                            _ => {}
                        }
                    }
                }
            }
            ("ts", RawBsonRef::Timestamp(value)) => {
                let ts = Timestamp::new(value.time, value.increment);
                *lowest = ts.max(*lowest);
                *highest = ts.min(*highest);
            }
            ("$and", RawBsonRef::Array(parts)) => {
                for part in pinion_bson::values(parts) {
                    if let RawBsonRef::Document(part) = part {
                        bound(part, lowest, highest);
                    }
                }
            }
            _ => {}
        }
    }
}

fn timestamp_of(key: &Key) -> Timestamp {
    Timestamp::from_u64(record_of(key).map_or(0, |record| record.max(0) as u64))
}

/// The position just before a range.
pub(super) fn before(range: &KeyRange) -> Option<Key> {
    match &range.lower {
        Bound::Included(lowest) => {
            let before = timestamp_of(lowest).as_u64().saturating_sub(1);
            Some(record_key(before as i64))
        }
        Bound::Excluded(position) => Some(position.clone()),
        Bound::Unbounded => None,
    }
}

/// The newest entry of the oplog that can be read, if it is behind this position.
pub(super) fn newest_logged_behind(oplog: &Collection, position: Option<&Key>) -> Option<Key> {
    let newest = storage().oplog_read_timestamp().min(oplog.log_through);
    let seen = position.map_or(Timestamp::MIN, timestamp_of);
    (newest > seen).then(|| record_key(record_at(newest)))
}

/// Whether a read that stands at an entry can continue behind it.
///
/// # Errors
/// `CappedPositionLost` when the entry is gone.
pub(super) async fn check_log_position(position: &Key) -> Result<()> {
    let first = storage().log_first().await.map_err(from_log_error)?;
    match first.is_some_and(|first| first <= timestamp_of(position)) {
        true => Ok(()),
        false => Err(position_lost(position)),
    }
}

/// The error of a command that reads the log.
pub fn from_log_error(error: LogReadError) -> Error {
    match error {
        LogReadError::PositionLost => Error::new(
            ErrorCode::CAPPED_POSITION_LOST,
            "CollectionScan died due to position in capped collection being deleted.",
        ),
        LogReadError::Fatal(fatal) => from_fatal(fatal),
        LogReadError::Damaged(_) | LogReadError::Io(_) => {
            Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, error.to_string())
        }
    }
}

/// The walk over a range of the log.
pub(super) struct LogWalk {
    cursor: LogCursor,
    lowest: Timestamp,
    highest: Timestamp,
    ahead: VecDeque<(Timestamp, Bytes)>,
    /// How many entries are read the next time: a short read looks at few.
    next_count: usize,
    is_done: bool,
}

impl LogWalk {
    pub(super) fn new(access: &RangeAccess, through: Timestamp) -> LogWalk {
        let range = &access.ranges[0];
        let lowest = match &range.lower {
            Bound::Unbounded => Timestamp::MIN,
            Bound::Included(key) => timestamp_of(key),
            Bound::Excluded(key) => timestamp_of(key).plus(1),
        };
        let highest = match &range.upper {
            Bound::Unbounded => Timestamp::MAX,
            Bound::Included(key) => timestamp_of(key),
            Bound::Excluded(key) => timestamp_of(key).prev().unwrap_or(Timestamp::MIN),
        };
        let highest = highest.min(through);
        let storage = storage();
        LogWalk {
            cursor: match access.descending {
                false => storage.log_from(lowest),
                true => storage.log_backward(highest),
            },
            lowest,
            highest,
            ahead: VecDeque::new(),
            next_count: LOG_FIRST_BATCH_ENTRIES,
            is_done: lowest > highest,
        }
    }

    pub(super) async fn next(
        &mut self,
        counters: &mut PartCounters,
    ) -> Result<Option<ScannedDocument>> {
        if self.is_done {
            return Ok(None);
        }
        if self.ahead.is_empty() {
            let read = self.cursor.next_batch(self.next_count, LOG_BATCH_BYTES);
            self.ahead = read.await.map_err(from_log_error)?.into();
            self.next_count = (self.next_count * 2).min(LOG_BATCH_ENTRIES);
        }
        let next = self.ahead.pop_front();
        let inside = next.filter(|(ts, _)| (self.lowest..=self.highest).contains(ts));
        let Some((ts, document)) = inside else {
            self.is_done = true;
            return Ok(None);
        };
        counters.docs_examined += 1;
        let key = record_key(record_at(ts));
        Ok(Some(ScannedDocument {
            order: key.clone(),
            id: key,
            document,
            position: None,
            entry: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, Timestamp as BsonTimestamp, rawdoc};

    use super::*;

    #[test]
    fn ranges_of_filters() {
        let ts = |time| BsonTimestamp { time, increment: 1 };
        let check = |filter: RawDocumentBuf, expected: (u32, u32)| {
            let range = log_range(&filter);
            let secs = |bound: &Bound<Key>| match bound {
                Bound::Included(key) => timestamp_of(key).secs(),
                Bound::Excluded(_) => unreachable!("bounds are part of the range"),
                Bound::Unbounded => 0,
            };
            assert_eq!(
                (secs(&range.lower), secs(&range.upper)),
                expected,
                "{filter:?}"
            );
        };
        check(rawdoc! {}, (0, 0));
        check(rawdoc! { "op": "i" }, (0, 0));
        check(rawdoc! { "ts": ts(5) }, (5, 5));
        check(rawdoc! { "ts": { "$gte": ts(5) } }, (5, 0));
        check(rawdoc! { "ts": { "$gt": ts(5), "$lte": ts(9) } }, (5, 9));
        check(rawdoc! { "ts": { "$gt": 5 } }, (0, 0));
        check(
            rawdoc! { "$and": [{ "ts": { "$gte": ts(5) } }, { "ts": { "$gte": ts(7) } }] },
            (7, 0),
        );
        check(
            rawdoc! { "$or": [{ "ts": { "$gte": ts(5) } }, { "op": "i" }] },
            (0, 0),
        );
    }
}
