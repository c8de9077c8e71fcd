//! How far back the log goes: the node's one first timestamp F, above which every entry is kept.
//!
//! F is recorded in a manifest before any segment is reused, and published when that is durable. A
//! segment goes only when all of it is at or below F; a reader looks at F after he has read, so he
//! notices if what he read may have been reused meanwhile. F never goes beyond the base of the
//! checkpoint that records it, nor to a pin.
//!
//! A pin is published before its owner looks at where F is about to go, and F is announced before
//! the pins are looked at. So either the pin is seen, or its owner learns that it came too late.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, Duration, LocalBoxFuture, Queue, join_all, submit_to, wall_ms};

use super::live_log::LogReadError;
use crate::engine::storage::{Storage, storage};
use crate::ring::{Documents, SegmentSpan};

/// How much of the log is kept beyond what recovery needs, counted over all rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRetention {
    /// Bytes of segments, as far as they are written. The oldest segments are given up while more
    /// than this would be left without them.
    pub bytes: u64,
    /// Entries younger than this are kept however many bytes they take.
    pub min_age: Duration,
}

/// What there is of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes of the segments that hold entries, as far as they are written.
    pub bytes: u64,
    /// Entries, and the bytes of their documents. Those of segments that were written since the
    /// node started are counted. Of the others they are estimated by samples of their frames, and
    /// of a segment that the log's beginning lies in by the timestamps between which it lies.
    pub entries: u64,
    pub entry_bytes: u64,
    /// The oldest entry that can be read.
    pub first: Option<Timestamp>,
    /// The last entry that can be read, or timestamp that was used before there was any.
    pub last: Timestamp,
}

/// What the cores share of the log's beginning.
pub(in crate::engine) struct LogWords {
    /// F, as a durable manifest records it.
    retained_above: AtomicU64,
    /// Where F may be going. Not below it.
    retiring: AtomicU64,
    /// Of each core: its lowest pin.
    pinned: Box<[AtomicU64]>,
}

const UNPINNED: u64 = u64::MAX;

impl LogWords {
    pub(in crate::engine) fn new(cores: usize, retained_above: u64) -> LogWords {
        LogWords {
            retained_above: AtomicU64::new(retained_above),
            retiring: AtomicU64::new(retained_above),
            pinned: (0..cores).map(|_| AtomicU64::new(UNPINNED)).collect(),
        }
    }

    /// Announces that F shall be `wanted`; gives how far it may go, for the pins that there are.
    /// They keep nothing at or below `at_least`.
    fn retire(&self, wanted: Timestamp, at_least: Timestamp) -> Timestamp {
        let wanted = wanted.max(at_least);
        let current = self.retained_above.load(Ordering::SeqCst);
        let current = current.max(at_least.as_u64());
        self.retiring
            .store(wanted.as_u64().max(current), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let pins = self.pinned.iter().map(|pin| pin.load(Ordering::SeqCst));
        let lowest = pins.min().unwrap_or(UNPINNED);
        let allowed = wanted.as_u64().min(lowest.saturating_sub(1)).max(current);
        self.retiring.store(allowed, Ordering::SeqCst);
        Timestamp::from_u64(allowed)
    }

    /// Publishes the lowest pin of a core; gives where F may be by now.
    fn pin(&self, core: usize, low: Option<Timestamp>) -> Timestamp {
        let raw = low.map_or(UNPINNED, Timestamp::as_u64);
        self.pinned[core].store(raw, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Timestamp::from_u64(self.retiring.load(Ordering::SeqCst))
    }
}

/// Keeps the log from a timestamp on, until it is dropped. It belongs to the core that made it.
pub struct LogPin {
    storage: Rc<Storage>,
    ts: Timestamp,
}

impl LogPin {
    /// Entries at or above it are kept.
    pub fn timestamp(&self) -> Timestamp {
        self.ts
    }
}

impl Drop for LogPin {
    fn drop(&mut self) {
        let lowest = self.storage.pins.unpin_log(self.ts);
        self.storage.publish_pins(lowest);
    }
}

impl Storage {
    /// Keeps every entry at or above `ts`, until the pin is dropped.
    ///
    /// # Errors
    /// [`LogReadError::PositionLost`] if such entries are gone, or about to go.
    pub fn pin_log(&self, ts: Timestamp) -> Result<LogPin, LogReadError> {
        let lowest = self.pins.pin_log(ts);
        let pin = LogPin {
            storage: self.rc(),
            ts,
        };
        match self.publish_pins(lowest) < ts {
            true => Ok(pin),
            false => Err(LogReadError::PositionLost),
        }
    }

    /// Publishes the lowest pin of this core; gives where the log may begin by now.
    fn publish_pins(&self, lowest: Option<Timestamp>) -> Timestamp {
        let core = usize::from(self.core.0);
        self.shared.log.pin(core, lowest)
    }

    /// Entries at or below it are no longer part of the log.
    pub(in crate::engine) fn retained_above(&self) -> Timestamp {
        Timestamp::from_u64(self.shared.log.retained_above.load(Ordering::SeqCst))
    }

    /// Checks that a reader that has read up to `position` can continue.
    pub(super) fn check_retained(&self, position: Timestamp) -> Result<(), LogReadError> {
        match self.retained_above() <= position {
            true => Ok(()),
            false => Err(LogReadError::PositionLost),
        }
    }

    /// Changes how much of the log is kept; `None` for no more than recovery needs. What is no
    /// longer wanted goes with a checkpoint that begins at once. Readers at the end of the log find
    /// it in memory only where the node was opened with a retention.
    pub fn set_log_retention(&self, retention: Option<LogRetention>) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            submit_to(CoreId(0), Queue::Foreground, move || async move {
                let storage = storage();
                let node = storage.node_state();
                if node.retention.replace(retention) != retention {
                    node.dirty.set(true);
                    node.demand.notify_one();
                }
            })
            .await;
        })
    }

    /// The timestamp of the oldest entry that can be read; `None` if there is none.
    ///
    /// # Errors
    /// See [`LogReadError`].
    pub fn log_first(&self) -> LocalBoxFuture<'_, Result<Option<Timestamp>, LogReadError>> {
        Box::pin(async move {
            let first = self.log_after(Timestamp::MIN).next_batch(1, 1).await?;
            Ok(first.first().map(|&(ts, _)| ts))
        })
    }

    /// How much there is of the log up to `through`, over all rings.
    ///
    /// # Errors
    /// As of [`Storage::log_first`].
    pub fn log_stats(
        &self,
        through: Timestamp,
    ) -> LocalBoxFuture<'_, Result<LogStats, LogReadError>> {
        Box::pin(async move {
            let first = self.log_first().await?;
            let retained = self.retained_above();
            let mut segments = self.log_segments().await;
            segments.retain(|span| {
                let begins_later = span.first.is_some_and(|first| first > through);
                span.last > retained && !begins_later
            });
            let mut documents = Documents::default();
            for span in &segments {
                documents += documents_between(span, retained, through);
            }
            Ok(LogStats {
                bytes: segments.iter().map(|span| span.bytes).sum(),
                entries: documents.count,
                entry_bytes: documents.bytes,
                first: first.filter(|&first| first <= through),
                last: self.oplog_read_timestamp().min(through),
            })
        })
    }

    /// What every segment of all rings holds.
    async fn log_segments(&self) -> Vec<SegmentSpan> {
        let cores = (0..self.cores as u16).map(|core| {
            submit_to(CoreId(core), Queue::Foreground, || async {
                storage().own_segments()
            })
        });
        join_all(cores).await.concat()
    }

    /// Those of this core's ring, and with core 0 those of rings that no core writes.
    fn own_segments(&self) -> Vec<SegmentSpan> {
        let ring = self.flusher.ring();
        let mut spans = ring.map_or(Vec::new(), |ring| ring.spans());
        if let Some(node) = &self.node {
            let foreign = node.foreign.borrow();
            spans.extend(foreign.iter().flat_map(|files| &files.segments));
        }
        spans
    }

    /// Where the log shall begin with the checkpoint at `c`, which needs that `transaction` can be
    /// read from its first entry on. Call it on core 0, with the turn.
    pub(in crate::engine) async fn choose_retained(
        &self,
        c: Timestamp,
        transaction: Option<Timestamp>,
    ) -> Timestamp {
        let current = self.retained_above();
        let wanted = match self.node_state().retention.get() {
            None => c,
            // A log that starts again behind what it held.
            Some(_) if c > self.last_allotted() => c,
            // The rings are not there yet.
            Some(_) if self.roles.is_recovering() => current,
            Some(retention) => {
                let segments = self.log_segments().await;
                let now_secs = (wall_ms() / 1000) as u64;
                let limit = c.min(old_enough(&retention, now_secs));
                let limit = self.limit_of_member(limit, &segments, &retention);
                first_to_keep(segments, current, limit, retention.bytes)
            }
        };
        let needed = transaction.map_or(u64::MAX, |first| first.as_u64() - 1);
        let wanted = wanted.min(Timestamp::from_u64(needed));
        let begins_above = self.node_state().log_begins_above.get();
        let chosen = self.shared.log.retire(wanted.max(current), begins_above);
        assert!(
            chosen <= c.max(current) && transaction.is_none_or(|first| chosen < first),
            "the log does not keep what is not in the base"
        );
        chosen
    }

    /// The manifest that records it is durable.
    pub(in crate::engine) fn publish_retained(&self, retained: Timestamp) {
        let before = self
            .shared
            .log
            .retained_above
            .swap(retained.as_u64(), Ordering::SeqCst);
        assert!(
            before <= retained.as_u64(),
            "the log's beginning goes forward"
        );
    }
}

/// The last timestamp that is old enough to go.
fn old_enough(retention: &LogRetention, now_secs: u64) -> Timestamp {
    if retention.min_age.is_zero() {
        return Timestamp::MAX;
    }
    let secs = now_secs.saturating_sub(retention.min_age.as_secs());
    Timestamp::new(u32::try_from(secs).unwrap_or(u32::MAX), 0)
}

/// The documents of a segment above `retained` and at or below `through`, which may lie within it:
/// the log's beginning is where segments of other rings end.
fn documents_between(span: &SegmentSpan, retained: Timestamp, through: Timestamp) -> Documents {
    let raw = |ts: Timestamp| ts.as_u64();
    let Some(first) = span.first.filter(|&first| first < span.last) else {
        return span.documents;
    };
    if first > retained && span.last <= through {
        return span.documents;
    }
    let (low, high) = (first.max(retained), span.last.min(through));
    let part = raw(high).saturating_sub(raw(low));
    span.documents.scaled(part, raw(span.last) - raw(first))
}

/// The first timestamp of a log of these segments that may go up to `limit`, and of which `keep`
/// bytes stay.
fn first_to_keep(
    mut segments: Vec<SegmentSpan>,
    current: Timestamp,
    limit: Timestamp,
    keep: u64,
) -> Timestamp {
    segments.sort_unstable_by_key(|span| span.last);
    let mut bytes: u64 = segments.iter().map(|span| span.bytes).sum();
    let mut first = current;
    for span in segments {
        if span.last > limit || bytes.saturating_sub(span.bytes) < keep {
            break;
        }
        bytes -= span.bytes;
        first = first.max(span.last);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ts(raw: u64) -> Timestamp {
        Timestamp::from_u64(raw)
    }

    fn span(last: u64, bytes: u64) -> SegmentSpan {
        SegmentSpan {
            generation: 1,
            first: None,
            last: ts(last),
            bytes,
            documents: Documents::default(),
        }
    }

    #[test]
    fn of_a_segment_that_the_log_begins_in_a_part_is_counted() {
        let span = SegmentSpan {
            first: Some(ts(10)),
            documents: Documents {
                count: 90,
                bytes: 900,
            },
            ..span(100, 1000)
        };
        let check = |retained: u64, through: u64, expected: u64| {
            let between = documents_between(&span, ts(retained), ts(through));
            assert_eq!((between.count, between.bytes), (expected, 10 * expected));
        };
        check(0, 100, 90);
        check(9, 100, 90);
        check(10, 100, 90);
        check(40, 100, 60);
        check(99, 100, 1);
        check(0, 70, 60);
        check(40, 70, 30);
        check(80, 70, 0);
        let alone = SegmentSpan {
            first: Some(span.last),
            ..span
        };
        assert_eq!(documents_between(&alone, ts(50), ts(100)), span.documents);
    }

    #[test]
    fn the_oldest_segments_go_while_enough_is_left() {
        let segments = [(30, 10), (10, 10), (20, 10), (40, 5)];
        let check = |limit: u64, keep: u64, expected: u64| {
            let segments = segments.map(|(last, bytes)| span(last, bytes)).to_vec();
            let first = first_to_keep(segments, ts(7), ts(limit), keep);
            assert_eq!(first, ts(expected), "limit {limit}, keep {keep}");
        };
        check(100, 35, 7);
        check(100, 26, 7);
        check(100, 25, 10);
        check(100, 15, 20);
        check(100, 0, 40);
        check(25, 0, 20);
        check(5, 0, 7);
    }

    #[test]
    fn entries_of_the_last_hours_stay() {
        let check = |hours: u64, now: u64, expected: Timestamp| {
            let retention = LogRetention {
                bytes: 1,
                min_age: Duration::from_secs(hours * 3600),
            };
            assert_eq!(old_enough(&retention, now), expected);
        };
        check(0, 10_000, Timestamp::MAX);
        check(1, 10_000, Timestamp::new(6_400, 0));
        check(10, 10_000, Timestamp::new(0, 0));
    }

    #[test]
    fn a_pin_holds_the_beginning_back_or_comes_too_late() {
        let words = LogWords::new(2, 10);
        assert_eq!(words.pin(1, Some(ts(21))), ts(10));
        assert_eq!(words.retire(ts(30), ts(0)), ts(20));
        assert_eq!(words.pin(0, Some(ts(15))), ts(20));
        // Lower than where the log begins already: it holds nothing, and its owner knows.
        words.retained_above.store(20, Ordering::SeqCst);
        assert_eq!(words.retire(ts(30), ts(0)), ts(20));
        words.pin(0, None);
        words.pin(1, None);
        assert_eq!(words.retire(ts(30), ts(0)), ts(30));
        // What the log begins behind is gone, whatever is pinned.
        words.pin(0, Some(ts(35)));
        assert_eq!(words.retire(ts(30), ts(50)), ts(50));
        assert_eq!(words.pin(1, Some(ts(45))), ts(50));
    }
}
