//! Tailing a capped collection: a read that continues behind the newest document as soon as there
//! is a newer one.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use pinion_catalog::{from_fatal, from_read_error, record_of};
use pinion_clock::Timestamp;
use pinion_merge::StepSize;
use pinion_runtime::{Instant, Queue, submit_to, timeout_at};
use pinion_service::cursors::CursorSource;
use pinion_service::interrupt::interruptible;
use pinion_storage::{Direction, Key, KeyRange, ReadAt, TreeId, storage};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::access::{Access, RangeAccess};
use super::core_part::ReadStream;
use super::log::{before, check_log_position, log_range, newest_logged_behind};
use super::request::{ReadRequest, existing_trees, open_at};
use crate::acquire::ReadSource;
use crate::capped::{RECORDS, capped_table};
use crate::limits::{AWAIT_POLL, MAX_SNAPSHOT_RETRIES};
use crate::tree_uses::tree_metrics;

/// The documents of a capped collection, those to come included.
pub(crate) struct TailStream {
    request: ReadRequest,
    source: ReadSource,
    /// The newest record that was read, or is being read by `current`.
    newest: Option<Key>,
    current: Option<ReadStream>,
    /// The record that was read last of `current`.
    given: Option<Key>,
    skip: usize,
    /// How many more documents are wanted.
    left: Option<usize>,
    /// Whether `getMore` waits for documents.
    awaits_data: bool,
}

impl TailStream {
    /// A read from the oldest document on.
    pub(crate) async fn open(
        ctx: &OpContext,
        source: ReadSource,
        request: ReadRequest,
        awaits_data: bool,
        wanted: usize,
    ) -> Result<TailStream> {
        let mut request = request.bound()?;
        let (unit, prepare_conflicts) = (request.unit, request.prepare_conflicts);
        request.take_source(ctx, source);
        (request.unit, request.prepare_conflicts) = (unit, prepare_conflicts);
        let (skip, left) = (request.skip, request.limit);
        // They count over all that is ever read. The order is that of the records, whatever else is
        // said of it.
        (request.skip, request.limit, request.sort) = (0, None, None);
        let tree = request.collection.tree();
        tree_metrics().record_tailing(tree, existing_trees);
        let newest = match request.collection.is_oplog() {
            true => before(&log_range(request.matcher.filter())),
            false => None,
        };
        let mut stream = TailStream {
            request,
            source,
            newest,
            current: None,
            given: None,
            skip,
            left,
            awaits_data,
        };
        stream.current = stream.read_on(ctx, wanted.saturating_add(skip)).await?;
        Ok(stream)
    }

    /// Whether there was a document to stand at: MongoDB keeps no cursor behind the last document
    /// of a collection that has none.
    pub(crate) fn has_position(&self) -> bool {
        self.newest.is_some()
    }

    pub(crate) fn awaits_data(&self) -> bool {
        self.awaits_data
    }

    /// The next of the documents that are there by now.
    pub(crate) async fn next(&mut self, ctx: &OpContext, wanted: usize) -> Result<Option<Bytes>> {
        loop {
            if self.left == Some(0) {
                return Ok(None);
            }
            if self.current.is_none() {
                self.current = self.read_on(ctx, wanted).await?;
            }
            let Some(current) = &mut self.current else {
                return Ok(None);
            };
            let next = current.next_ordered(ctx, wanted).await?;
            let Some((key, document)) = next else {
                // What has come meanwhile is there as well.
                (self.current, self.given) = (None, None);
                continue;
            };
            self.given = Some(key);
            match self.skip {
                0 => {
                    if let Some(left) = &mut self.left {
                        *left -= 1;
                    }
                    return Ok(Some(document));
                }
                _ => self.skip -= 1,
            }
        }
    }

    /// Continues after a pause, in which the document where it stands must not have been removed.
    ///
    /// # Errors
    /// `CappedPositionLost` when it was.
    pub(crate) async fn resume(&self) -> Result<()> {
        let (tree, Some(position)) = (self.request.collection.tree(), self.given.clone()) else {
            return Ok(());
        };
        if self.request.collection.is_oplog() {
            return check_log_position(&position).await;
        }
        let owner = storage().owner(RECORDS);
        let found = submit_to(owner, Queue::Foreground, move || async move {
            check_position(tree, &position, ReadAt::Newest).await
        });
        found.await
    }

    /// Opens a read of what is behind the newest record that was read, if there is anything.
    async fn read_on(&mut self, ctx: &OpContext, wanted: usize) -> Result<Option<ReadStream>> {
        let mut attempts = 0;
        loop {
            let at = self.source.timestamp(ctx).await?;
            match self.read_on_at(ctx, wanted, at).await {
                // The snapshot was not pinned: a checkpoint may have passed it.
                Err(error)
                    if error.code == ErrorCode::SNAPSHOT_TOO_OLD
                        && attempts < MAX_SNAPSHOT_RETRIES =>
                {
                    attempts += 1;
                }
                result => return result,
            }
        }
    }

    async fn read_on_at(
        &mut self,
        ctx: &OpContext,
        wanted: usize,
        at: Timestamp,
    ) -> Result<Option<ReadStream>> {
        if self.request.collection.is_oplog() {
            let newest = newest_logged_behind(&self.request.collection, self.newest.as_ref());
            return match newest {
                Some(newest) => self.open_through(ctx, wanted, at, newest).await,
                None => Ok(None),
            };
        }
        let (tree, position) = (self.request.collection.tree(), self.newest.clone());
        let owner = storage().owner(RECORDS);
        let found = submit_to(owner, Queue::Foreground, move || async move {
            newest_behind(tree, position, ReadAt::At(at)).await
        });
        let Some(newest) = found.await? else {
            return Ok(None);
        };
        self.open_through(ctx, wanted, at, newest).await
    }

    /// Opens a read of what is behind the newest record that was read, up to this one.
    async fn open_through(
        &mut self,
        ctx: &OpContext,
        wanted: usize,
        at: Timestamp,
        newest: Key,
    ) -> Result<Option<ReadStream>> {
        let range = KeyRange {
            lower: match self.newest.clone() {
                Some(position) => Bound::Excluded(position),
                None => Bound::Unbounded,
            },
            upper: Bound::Included(newest.clone()),
        };
        self.request.access = Some(Access::Collection(RangeAccess {
            ranges: vec![range],
            ..RangeAccess::everything(false)
        }));
        let opened = open_at(
            ctx,
            &Arc::new(self.request.clone()),
            at,
            StepSize::for_wanted(wanted),
        )
        .await?;
        self.newest = Some(newest);
        Ok(Some(opened.stream))
    }

    /// Waits until there is a document behind those that were read, or until this time. Nothing of
    /// the collection is held meanwhile; that it goes away ends the wait.
    ///
    /// # Errors
    /// `QueryPlanKilled` when the collection is gone.
    pub(crate) async fn wait(
        &self,
        ctx: &OpContext,
        reads: &dyn CursorSource,
        until: Instant,
    ) -> Result<bool> {
        let newest = self.newest.as_ref().and_then(|key| record_of(key));
        let (tree, record) = (self.request.collection.tree(), newest.unwrap_or(0));
        loop {
            reads.check(None)?;
            let turn = until.min(pinion_runtime::now() + AWAIT_POLL);
            if self.request.collection.log_through < Timestamp::MAX {
                // The oplog that a standalone shows has ended.
                let ended = timeout_at(turn, std::future::pending::<()>());
                let _ = interruptible(ctx, ended).await?;
                match turn == until {
                    true => return Ok(false),
                    false => continue,
                }
            }
            if self.request.collection.is_oplog() {
                let storage = storage();
                let logged = storage.wait_log_beyond(Timestamp::from_u64(record as u64));
                match interruptible(ctx, timeout_at(turn, logged)).await? {
                    Ok(logged) => return logged.map(|()| true).map_err(from_fatal),
                    Err(_) if turn == until => return Ok(false),
                    Err(_) => continue,
                }
            }
            let waiting = ctx.clone();
            let owner = storage().owner(RECORDS);
            let has_come = submit_to(owner, Queue::Foreground, move || async move {
                let capped = capped_table().of(tree);
                let beyond = timeout_at(turn, capped.beyond(record));
                Ok::<bool, Error>(interruptible(&waiting, beyond).await?.is_ok())
            })
            .await?;
            if has_come || turn == until {
                return Ok(has_come);
            }
        }
    }
}

/// The newest record, if it is behind this position.
///
/// # Errors
/// `CappedPositionLost` when the document of the position is gone: there may have been others
/// behind it.
async fn newest_behind(tree: TreeId, position: Option<Key>, at: ReadAt) -> Result<Option<Key>> {
    let owned = storage().partition(RECORDS).expect("asked its owner");
    let mut cursor = owned.cursor(tree, KeyRange::all(), Direction::Reverse, at);
    let newest = cursor.next().await.map_err(from_read_error)?;
    let newest = newest.map(|(key, _)| key);
    let Some(position) = position else {
        return Ok(newest);
    };
    if newest.as_ref() == Some(&position) {
        return Ok(None);
    }
    check_position(tree, &position, at).await?;
    Ok(newest)
}

async fn check_position(tree: TreeId, position: &Key, at: ReadAt) -> Result<()> {
    let owned = storage().partition(RECORDS).expect("asked its owner");
    let read = owned.get(tree, position, at).await;
    match read.map_err(from_read_error)? {
        Some(_) => Ok(()),
        None => Err(position_lost(position)),
    }
}

/// The document of a position is gone, so that what was behind it may be gone as well.
pub(super) fn position_lost(position: &Key) -> Error {
    Error::new(
        ErrorCode::CAPPED_POSITION_LOST,
        format!(
            "CollectionScan died due to position in capped collection being deleted. Last seen record id: RecordId({})",
            record_of(position).unwrap_or(0)
        ),
    )
}
