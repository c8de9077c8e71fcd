//! When entries of the oplog were written, by the clock of the primary that wrote them: what `wall`
//! says in them.
//!
//! Timestamps need not be near to it, since cluster time runs ahead of a clock that was set back.
//! Storage knows entries by their timestamps alone, so the newest ones are looked at as they come,
//! some times a second.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_clock::{OpTime, Timestamp};
use pinion_replication_protocol::message::OpTimeAndWallTime;
use pinion_runtime::sleep;
use pinion_storage::storage;

use crate::driver::Driver;
use crate::limits::{MAX_WALLS, WALL_PERIOD};

/// Of some of the newest entries. A copy shares them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Walls(Arc<VecDeque<(Timestamp, i64)>>);

impl Walls {
    /// Of an entry, or of the last one below it that was looked at. Before any was, it is what the
    /// timestamp says.
    pub(crate) fn wall_ms(&self, ts: Timestamp) -> i64 {
        let known = self.0.iter().rev().find(|(known, _)| *known <= ts);
        known.map_or(i64::from(ts.secs()) * 1000, |(_, wall_ms)| *wall_ms)
    }

    pub(crate) fn with_wall(&self, optime: OpTime) -> OpTimeAndWallTime {
        OpTimeAndWallTime {
            optime,
            wall_ms: self.wall_ms(optime.ts),
        }
    }

    fn knows(&self, ts: Timestamp) -> bool {
        ts.is_null() || self.0.iter().any(|(known, _)| *known == ts)
    }

    fn note(&mut self, ts: Timestamp, wall_ms: i64) {
        let walls = Arc::make_mut(&mut self.0);
        let at = walls.partition_point(|(known, _)| *known < ts);
        walls.insert(at, (ts, wall_ms));
        if walls.len() > MAX_WALLS {
            walls.pop_front();
        }
    }

    /// Entries above are gone.
    pub(crate) fn cut(&mut self, last: Timestamp) {
        Arc::make_mut(&mut self.0).retain(|(known, _)| *known <= last);
    }
}

/// What the newest entry at or below a timestamp says; `None` where there is none, or it cannot be
/// read.
pub(crate) async fn read_wall(ts: Timestamp) -> Option<i64> {
    let mut log = storage().log_backward(ts);
    let batch = log.next_batch(1, 1).await.ok()?;
    let (_, entry) = batch.first()?;
    let entry = RawDocument::from_bytes(entry).ok()?;
    match pinion_bson::get(entry, "wall") {
        Some(RawBsonRef::DateTime(wall)) => Some(wall.timestamp_millis()),
        _ => None,
    }
}

impl Driver {
    /// Learns what the entry at a timestamp says.
    pub(crate) async fn learn_wall(&self, ts: Timestamp) {
        if self.walls.borrow().knows(ts) {
            return;
        }
        let Some(wall_ms) = read_wall(ts).await else {
            return;
        };
        // It may have been rolled back while it was read.
        let is_there = !self.reopens.get() && ts <= storage().last_allotted();
        let mut walls = self.walls.borrow_mut();
        if is_there && !walls.knows(ts) {
            walls.note(ts, wall_ms);
        }
    }

    /// Looks at the newest entries as they come.
    pub(crate) async fn watch_walls(self: Rc<Self>) {
        while !self.has_left.get() {
            let moved = self.moved.notified();
            let (committed, before) = (
                self.with_node(|node| node.commit_point().optime.ts),
                self.walls.borrow().clone(),
            );
            if !self.reopens.get() {
                let storage = storage();
                for ts in [storage.visible(), storage.all_durable(), committed] {
                    self.learn_wall(ts.min(storage.last_allotted())).await;
                }
            }
            let is_known = before == *self.walls.borrow();
            match is_known {
                true => moved.await,
                false => self.publish(),
            }
            sleep(WALL_PERIOD).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_of_the_time_that_it_says() {
        let ts = |secs| Timestamp::new(secs, 1);
        let mut walls = Walls::default();
        assert_eq!(walls.wall_ms(ts(7)), 7000);
        walls.note(ts(9), 2500);
        walls.note(ts(5), 1200);
        for (at, wall_ms) in [(4, 4000), (5, 1200), (8, 1200), (9, 2500), (50, 2500)] {
            assert_eq!(walls.wall_ms(ts(at)), wall_ms, "at {at}");
        }
        walls.cut(ts(8));
        assert_eq!(walls.wall_ms(ts(9)), 1200);
        for secs in 100..400 {
            walls.note(ts(secs), 1);
        }
        assert_eq!(walls.0.len(), MAX_WALLS);
    }
}
