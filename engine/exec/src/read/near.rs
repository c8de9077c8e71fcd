//! The walk of an index outward from a point: documents come by their distance.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use pinion_catalog::{from_read_error, stored_document};
use pinion_merge::PartCounters;
use pinion_query::NearSearch;
use pinion_service::compute::compute;
use pinion_service::interrupt::pause;
use pinion_storage::{Cursor, Direction, Key, KeyRange, Partition, ReadAt};
use pinion_wire::{Error, ErrorCode, OpContext, Result};
use rustc_hash::FxHashSet;

use super::access::{NearAccess, RangeAccess};
use super::branch_walk::WalkHit;
use super::fetch::{damaged, dangling, fetch, found_of, may_change};
use super::part::{Output, PartSpec};
use super::scan::{ScannedDocument, ScannedEntry};
use crate::limits::{FETCH_GROUP, NEAR_BUFFER_BYTES};

/// A document that was found, and waits for all that are nearer.
struct Waiting {
    /// The distance and then the key of the document, as one key.
    order: Key,
    distance: f64,
    id: Key,
    /// Dropped when too many wait.
    document: Option<Bytes>,
    entry: Option<Box<ScannedEntry>>,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Waiting) -> bool {
        self.order == other.order
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Waiting) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

pub(super) struct NearWalk {
    search: NearSearch,
    /// What of the ring is still to be walked.
    ranges: VecDeque<KeyRange>,
    cursor: Option<Cursor>,
    /// Entries of the ring whose documents are not read yet.
    pending: Vec<WalkHit>,
    /// Whether a newer state was taken: a document may have changed since its entry was walked.
    has_moved: bool,
    /// How many documents the ring has.
    found: usize,
    /// The documents met already, where several entries may name one.
    seen: Option<FxHashSet<Key>>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    waiting_bytes: usize,
    document_bytes: usize,
}

impl NearWalk {
    pub(super) fn new(access: &NearAccess, repeats: bool) -> NearWalk {
        NearWalk {
            search: access.planned.search(),
            ranges: VecDeque::new(),
            cursor: None,
            pending: Vec::new(),
            has_moved: false,
            found: 0,
            seen: repeats.then(FxHashSet::default),
            waiting: BinaryHeap::new(),
            waiting_bytes: 0,
            document_bytes: 0,
        }
    }

    pub(super) fn cursor(&mut self) -> Option<&mut Cursor> {
        self.cursor.as_mut()
    }

    /// Continues in a newer state. Documents come where they were then, if they were read by then.
    pub(super) fn moves(&mut self) {
        self.has_moved = true;
    }

    /// The next document.
    pub(super) async fn next(
        &mut self,
        spec: &PartSpec,
        partition: &Rc<Partition>,
        at: ReadAt,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<Option<ScannedDocument>> {
        let branch = &spec.access.branches()[0];
        loop {
            let reach = self.search.reach();
            if self.cursor.is_none()
                && self.ranges.is_empty()
                && self
                    .waiting
                    .peek()
                    .is_some_and(|nearest| nearest.0.distance <= reach)
            {
                match self.pop(ctx, spec, partition, at).await? {
                    None => continue,
                    found => return Ok(found),
                }
            }
            self.walk_entries(spec, partition, at, ctx, counters)
                .await?;
            if self.pending.is_empty() {
                let (search, found) = (&mut self.search, self.found);
                let Some(ranges) = compute(ctx, || search.next_ranges(found)).await? else {
                    match self.pop(ctx, spec, partition, at).await? {
                        None if !self.waiting.is_empty() => continue,
                        found => return Ok(found),
                    }
                };
                self.found = 0;
                self.ranges = ranges
                    .iter()
                    .map(|range| KeyRange::half_open(&range.lower, &range.upper))
                    .collect();
                continue;
            }
            let read = documents(ctx, spec, branch, partition, &self.pending, at).await?;
            counters.docs_examined += self.pending.len() as u64;
            self.found += self.pending.len();
            let may_change = may_change(at) || self.has_moved;
            for found in found_of(spec, self.pending.drain(..), read, may_change)? {
                self.wait(spec, found, ctx).await?;
            }
        }
    }

    /// Walks entries of the ring that name documents not met before: to none when it has been
    /// walked.
    async fn walk_entries(
        &mut self,
        spec: &PartSpec,
        partition: &Rc<Partition>,
        at: ReadAt,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<()> {
        let branch = &spec.access.branches()[0];
        let index = branch.index.as_ref().expect("a geospatial index");
        while self.pending.len() < FETCH_GROUP {
            let Some(cursor) = &mut self.cursor else {
                let Some(range) = self.ranges.pop_front() else {
                    break;
                };
                pause(ctx).await?;
                counters.seeks += 1;
                self.cursor = Some(partition.cursor(index.tree, range, Direction::Forward, at));
                continue;
            };
            let Some((key, read)) = cursor.next().await.map_err(from_read_error)? else {
                self.cursor = None;
                continue;
            };
            counters.keys_examined += 1;
            let Some(prefix) = pinion_catalog::prefix_len(index, &key) else {
                return Err(damaged(branch));
            };
            let id = Key::from_slice(&key[prefix..]);
            if let Some(seen) = &mut self.seen
                && !seen.insert(id.clone())
            {
                counters.dups_dropped += 1;
                continue;
            }
            let entry = (spec.output == Output::Keys).then(|| {
                Box::new(ScannedEntry {
                    branch: 0,
                    key: key.clone(),
                    type_bits: read.value.clone(),
                })
            });
            self.pending.push(named(key, id, entry));
        }
        Ok(())
    }

    /// Lets a document wait for its turn, when it is as far away as is wanted.
    async fn wait(
        &mut self,
        spec: &PartSpec,
        found: ScannedDocument,
        ctx: &OpContext,
    ) -> Result<()> {
        let (search, document) = (&self.search, stored_document(&found.document));
        let Some(distance) = compute(ctx, || search.distance(document)).await? else {
            return Ok(());
        };
        // Distances are not negative, so that their bits are in their order.
        let mut order = Key::from_slice(&distance.to_bits().to_be_bytes());
        order.extend_from_slice(&found.id);
        self.waiting_bytes += waiting_bytes(&order, &found.id);
        if self.waiting_bytes > spec.sort_room.limit() {
            return Err(Error::new(
                ErrorCode::QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED,
                format!(
                    "Documents that wait for their turn by distance exceed the memory limit of {} bytes",
                    spec.sort_room.limit()
                ),
            ));
        }
        let kept = self.document_bytes + found.document.len() <= NEAR_BUFFER_BYTES;
        self.document_bytes += if kept { found.document.len() } else { 0 };
        self.waiting.push(Reverse(Waiting {
            order,
            distance,
            id: found.id,
            document: kept.then_some(found.document),
            entry: found.entry,
        }));
        Ok(())
    }

    /// Gives the nearest document that waits, and passes over those that are gone.
    async fn pop(
        &mut self,
        ctx: &OpContext,
        spec: &PartSpec,
        partition: &Rc<Partition>,
        at: ReadAt,
    ) -> Result<Option<ScannedDocument>> {
        let Some(Reverse(mut nearest)) = self.waiting.pop() else {
            return Ok(None);
        };
        let document = nearest.document.take();
        self.waiting_bytes -= waiting_bytes(&nearest.order, &nearest.id);
        let named = named(nearest.order, nearest.id, nearest.entry);
        if let Some(document) = document {
            self.document_bytes -= document.len();
            return Ok(Some(named.found(document)));
        }
        let branch = &spec.access.branches()[0];
        let asked = std::slice::from_ref(&named);
        let mut read = match documents(ctx, spec, branch, partition, asked, at).await {
            Ok(read) => read,
            Err(error) => {
                self.waiting_bytes += waiting_bytes(&named.order, &named.id);
                self.waiting.push(Reverse(Waiting {
                    distance: nearest.distance,
                    document: None,
                    order: named.order,
                    id: named.id,
                    entry: named.entry,
                }));
                return Err(error);
            }
        };
        match read.pop().flatten() {
            Some(document) if !self.has_moved => Ok(Some(named.found(document))),
            Some(document) => {
                // It may have left the distances that are wanted.
                let search = &self.search;
                let distance = compute(ctx, || search.distance(stored_document(&document))).await?;
                Ok(distance.map(|_| named.found(document)))
            }
            None if may_change(at) || self.has_moved => Ok(None),
            None => Err(dangling(branch)),
        }
    }
}

fn waiting_bytes(order: &Key, id: &Key) -> usize {
    order.len() + id.len() + size_of::<Waiting>()
}

/// The documents that these entries name, none for one that is not there.
async fn documents(
    ctx: &OpContext,
    spec: &PartSpec,
    branch: &RangeAccess,
    partition: &Rc<Partition>,
    entries: &[WalkHit],
    at: ReadAt,
) -> Result<Vec<Option<Bytes>>> {
    if branch.is_apart() {
        return fetch(ctx, spec, entries, at).await;
    }
    let mut found = Vec::with_capacity(entries.len());
    for named in entries {
        let read = partition.get(spec.collection.tree(), &named.id, at).await;
        found.push(read.map_err(from_read_error)?.map(|read| read.value));
    }
    Ok(found)
}

/// An entry of the one branch, whose document was not read yet.
fn named(order: Key, id: Key, entry: Option<Box<ScannedEntry>>) -> WalkHit {
    WalkHit {
        turn: 0,
        range: 0,
        order,
        id,
        key: None,
        entry,
        document: None,
        is_examined: false,
    }
}
