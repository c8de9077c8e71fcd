//! A walk over all of a tree in one partition: past what cannot be read, and on in a newer snapshot
//! where its own is lost.

use std::ops::Bound;
use std::rc::Rc;

use pinion_catalog::{from_fatal, from_read_error};
use pinion_storage::{
    Cursor, Direction, Key, KeyRange, Partition, Read, ReadAt, ReadError, Readable, TreeId, storage,
};
use pinion_wire::Result;

use crate::limits::MAX_SNAPSHOT_ATTEMPTS;

/// One step of a walk.
pub(super) enum Walked {
    Record(Key, Read),
    /// Records that cannot be read.
    Unreadable(ReadError),
    End,
}

pub(super) struct TreeWalk {
    partition: Rc<Partition>,
    tree: TreeId,
    at: ReadAt,
    cursor: Cursor,
    last: Option<Key>,
    /// A key was not above the one before it.
    pub out_of_order: bool,
    /// How often a newer snapshot was taken.
    pub snapshots_lost: u32,
    /// How often since the last record.
    lost_in_a_row: usize,
}

impl TreeWalk {
    pub(super) fn new(partition: &Rc<Partition>, tree: TreeId, at: ReadAt) -> TreeWalk {
        TreeWalk {
            partition: partition.clone(),
            tree,
            at,
            cursor: partition.cursor(tree, KeyRange::all(), Direction::Forward, at),
            last: None,
            out_of_order: false,
            snapshots_lost: 0,
            lost_in_a_row: 0,
        }
    }

    /// What the walk reads at now.
    pub(super) fn at(&self) -> ReadAt {
        self.at
    }

    pub(super) async fn next(&mut self) -> Result<Walked> {
        loop {
            match self.cursor.next_readable().await {
                Ok(Readable::Record(key, read)) => {
                    self.pass(&key);
                    return Ok(Walked::Record(key, read));
                }
                Ok(Readable::Value(key, error)) => {
                    self.pass(&key);
                    return Ok(Walked::Unreadable(error));
                }
                Ok(Readable::Page(error)) => return Ok(Walked::Unreadable(error)),
                Ok(Readable::End) => return Ok(Walked::End),
                Err(ReadError::SnapshotTooOld) => self.take_newer().await?,
                Err(error) => return Err(from_read_error(error)),
            }
        }
    }

    fn pass(&mut self, key: &Key) {
        self.out_of_order |= self.last.as_ref().is_some_and(|last| last >= key);
        self.last = Some(key.clone());
        self.lost_in_a_row = 0;
    }

    async fn take_newer(&mut self) -> Result<()> {
        self.snapshots_lost += 1;
        self.lost_in_a_row += 1;
        if self.lost_in_a_row > MAX_SNAPSHOT_ATTEMPTS {
            return Err(from_read_error(ReadError::SnapshotTooOld));
        }
        self.at = newest().await?;
        let lower = match &self.last {
            Some(last) => Bound::Excluded(last.clone()),
            None => Bound::Unbounded,
        };
        let range = KeyRange {
            lower,
            upper: Bound::Unbounded,
        };
        let (tree, forward) = (self.tree, Direction::Forward);
        self.cursor = self.partition.cursor(tree, range, forward, self.at);
        Ok(())
    }
}

/// The newest snapshot.
pub(super) async fn newest() -> Result<ReadAt> {
    let ts = storage().read_timestamp().await.map_err(from_fatal)?;
    Ok(ReadAt::DecidedAt(ts))
}
