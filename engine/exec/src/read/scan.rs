//! Walking one partition's trees: the collection's own, or an index and then the documents it
//! names.

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_catalog::{core_catalog, from_read_error, partition_of, stored_document};
use pinion_merge::PartCounters;
use pinion_runtime::{Queue, timeout};
use pinion_service::interrupt::{interruptible, poll_once};
use pinion_storage::{
    Block, BlockRecord, Cursor, Key, Partition, PartitionId, ReadAt, SnapshotPin, storage,
};
use pinion_wire::{Error, ErrorCode, OpContext, Result};
use rustc_hash::FxHashSet;

use super::access::{Access, RangeAccess};
use super::entry_values::{behind_value, covered_document, unnamed, value_of};
use super::log::LogWalk;
use super::near::NearWalk;
use super::part::{Output, PartSpec};
use super::renew::Snapshot;
use super::sorted_walk::{SortedWalk, sorted_order};
use crate::limits::{FETCH_GROUP, OUTCOME_PATIENCE};
use crate::options::{PlantedFault, node_options};

/// A document that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Orders it among the documents of all parts.
    pub order: Key,
    /// Its key in the collection's tree.
    pub id: Key,
    pub document: Bytes,
    /// Where in an array the filter matched, for the positional operator of a projection.
    pub position: Option<u32>,
    /// The entry it was found by, where keys are wanted.
    pub entry: Option<Box<ScannedEntry>>,
}

/// An entry of an index.
#[derive(Clone, Debug)]
pub struct ScannedEntry {
    /// Which of the access's branches it is of.
    pub branch: usize,
    pub key: Key,
    pub type_bits: Bytes,
}

/// The walk of one part.
pub struct Scan {
    pub(super) spec: Arc<PartSpec>,
    pub(super) partition: Rc<Partition>,
    pub(super) at: ReadAt,
    pub(super) snapshot: Snapshot,
    pub(super) walk: Walk,
}

pub(super) enum Walk {
    /// One document by its key.
    Id(Option<Key>),
    /// Branch after branch.
    Branches(Box<Branches>),
    /// Outward from a point.
    Near(Box<NearWalk>),
    /// Over the node's log.
    Log(Box<LogWalk>),
}

pub(super) struct Branches {
    entries: Entries,
    /// Documents already given, where several entries may name one.
    seen: Option<FxHashSet<Key>>,
    /// Entries that were walked and whose documents are not read yet: in a newer state they are
    /// walked again.
    pending: Vec<Named>,
    /// Documents fetched ahead from other partitions, in reverse.
    fetched: Vec<Found>,
}

/// In which order the entries of branches are walked.
enum Entries {
    /// Branch after branch.
    InTurn(Box<BranchWalk>),
    /// In the order of a sort that each branch has.
    Sorted(SortedWalk),
}

/// The walk over the entries of one branch.
pub(super) struct BranchWalk {
    /// The place of the branch in the access.
    turn: usize,
    /// Which of the branch's ranges comes next.
    range: usize,
    cursor: Option<Cursor>,
    /// Documents of the collection's own tree that the cursor has given and the walk has not.
    block: Block,
}

/// Where a walk reads.
#[derive(Clone, Copy)]
pub(super) struct Place<'p> {
    pub ctx: &'p OpContext,
    pub spec: &'p PartSpec,
    pub partition: &'p Rc<Partition>,
    pub at: ReadAt,
}

/// One step of a walk over entries.
pub(super) enum Entry {
    /// The document itself: an entry of the collection's own tree.
    Document(Found),
    /// An entry of an index and the document that it names.
    Named(Named),
}

#[derive(Clone)]
pub(super) struct Named {
    /// The place of its branch in the access.
    pub turn: usize,
    /// How many of the branch's ranges were started, with the one that it lies in.
    pub range: usize,
    pub order: Key,
    /// The key of the document.
    pub id: Key,
    /// The key of the entry, where its order does not contain that.
    pub key: Option<Key>,
    pub entry: Option<Box<ScannedEntry>>,
}

impl Named {
    /// The key of the entry.
    fn entry_key(&self, spec: &PartSpec) -> &[u8] {
        match &self.key {
            Some(key) => key,
            None if spec.access.branches().len() == 1 => &self.order,
            None => &self.order[size_of::<u32>()..],
        }
    }

    pub(crate) fn found(self, document: Bytes) -> Found {
        Found {
            order: self.order,
            id: self.id,
            document,
            position: None,
            entry: self.entry,
        }
    }
}

impl Found {
    /// A document of the collection's own tree.
    pub(super) fn in_collection(record: BlockRecord<'_>, position: Option<u32>) -> Found {
        let id = record.key();
        Found {
            order: Key::from_slice(&id),
            id,
            document: record.to_bytes(),
            position,
            entry: None,
        }
    }
}

impl Scan {
    pub(crate) fn open(spec: &Arc<PartSpec>, partition: Rc<Partition>) -> Scan {
        let walk = match &spec.access {
            Access::Id(key) => Walk::Id(Some(key.clone())),
            Access::Near(near) => Walk::Near(Box::new(NearWalk::new(near, spec.access.repeats()))),
            Access::Collection(access) if spec.collection.is_oplog() => {
                let through = spec.collection.log_through;
                Walk::Log(Box::new(LogWalk::new(access, through)))
            }
            access => Walk::Branches(Box::new(Branches::new(access))),
        };
        Scan {
            spec: spec.clone(),
            at: planted(spec.read_at(spec.at), &partition),
            snapshot: Snapshot::of(spec),
            partition,
            walk,
        }
    }

    /// The next document of the access, not yet filtered. It may wait for the outcome of a prepared
    /// transaction, until the operation is stopped; nothing can be read on then.
    pub(crate) async fn next(
        &mut self,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<Option<Found>> {
        loop {
            if self.snapshot.is_due() {
                // In a box, as few steps ever need its room.
                Box::pin(self.look_after(ctx)).await?;
                if let Some(given) = self.planted_repeat() {
                    return Ok(Some(given));
                }
            }
            let next = match self.at {
                ReadAt::DecidedAt(_) => self.advance(ctx, counters).await,
                _ => until_decided(ctx, self.advance(ctx, counters)).await?,
            };
            match next {
                Ok(Some(_)) if self.planted_skip() => {}
                Ok(Some(found)) => {
                    self.snapshot.gives(&found);
                    return Ok(Some(found));
                }
                Ok(None) => return Ok(None),
                Err(error) if self.renews_after(&error) => Box::pin(self.renew(ctx)).await?,
                Err(error) => return Err(error),
            }
        }
    }

    async fn advance(
        &mut self,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<Option<Found>> {
        match &mut self.walk {
            Walk::Near(walk) => {
                let (spec, partition) = (&self.spec, &self.partition);
                // In a box, as few reads need its room.
                Box::pin(walk.next(spec, partition, self.at, ctx, counters)).await
            }
            Walk::Log(walk) => Box::pin(walk.next(counters)).await,
            Walk::Id(wanted) => {
                let Some(key) = wanted.clone() else {
                    return Ok(None);
                };
                let tree = self.spec.collection.tree();
                let read = self.partition.get(tree, &key, self.at).await;
                let read = read.map_err(from_read_error)?;
                *wanted = None;
                let Some(read) = read else {
                    return Ok(None);
                };
                counters.keys_examined += 1;
                counters.docs_examined += 1;
                Ok(Some(Found {
                    order: key.clone(),
                    id: key,
                    document: read.value,
                    position: None,
                    entry: None,
                }))
            }
            Walk::Branches(walk) => {
                let place = Place {
                    ctx,
                    spec: &self.spec,
                    partition: &self.partition,
                    at: self.at,
                };
                walk.next(place, counters).await
            }
        }
    }
}

impl Scan {
    /// Whether documents come in blocks: those of a scan of the collection's own tree.
    pub(super) fn gives_blocks(&self) -> bool {
        let is_collection = matches!(self.spec.access, Access::Collection(_));
        is_collection && self.walk.in_blocks().is_some() && !self.snapshot.plants()
    }

    /// Ensures that the block has a document, as [`Scan::next`] ensures that one comes next. False
    /// at the end of the access.
    pub(super) async fn fill(
        &mut self,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<bool> {
        loop {
            if self.snapshot.is_due() {
                // In a box, as few blocks ever need its room.
                Box::pin(self.look_after(ctx)).await?;
            }
            let place = Place {
                ctx,
                spec: &self.spec,
                partition: &self.partition,
                at: self.at,
            };
            let walk = self.walk.in_blocks_mut().expect("documents come in blocks");
            if !walk.block.is_empty() {
                return Ok(true);
            }
            let filled = match self.at {
                ReadAt::DecidedAt(_) => walk.fill(place, counters).await,
                _ => until_decided(ctx, walk.fill(place, counters)).await?,
            };
            match filled {
                Ok(is_filled) => return Ok(is_filled),
                Err(error) if self.renews_after(&error) => Box::pin(self.renew(ctx)).await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// The block that was filled, and the state that is read.
    pub(super) fn block(&mut self) -> (&mut Block, &mut Snapshot) {
        let walk = self.walk.in_blocks_mut().expect("documents come in blocks");
        (&mut walk.block, &mut self.snapshot)
    }

    /// Passes over documents that are there and need no look: nothing but their number is wanted.
    pub(crate) fn pass(&mut self, most: u64) -> u64 {
        let only_counts = self.spec.output == Output::Count && self.spec.filter.is_none();
        if !self.snapshot.is_pinned() || !only_counts {
            return 0;
        }
        let Walk::Branches(walk) = &mut self.walk else {
            return 0;
        };
        match &mut walk.entries {
            Entries::InTurn(branch) if walk.seen.is_none() => {
                branch.pass(usize::try_from(most).unwrap_or(usize::MAX)) as u64
            }
            _ => 0,
        }
    }
}

impl Walk {
    /// The walk whose documents come in blocks, if it scans the collection's own tree.
    fn in_blocks(&self) -> Option<&BranchWalk> {
        match self {
            Walk::Branches(branches) if branches.seen.is_none() => match &branches.entries {
                Entries::InTurn(walk) => Some(walk),
                Entries::Sorted(_) => None,
            },
            _ => None,
        }
    }

    fn in_blocks_mut(&mut self) -> Option<&mut BranchWalk> {
        match self {
            Walk::Branches(branches) if branches.seen.is_none() => match &mut branches.entries {
                Entries::InTurn(walk) => Some(walk),
                Entries::Sorted(_) => None,
            },
            _ => None,
        }
    }

    /// Documents that were read and not given are read again.
    pub(crate) fn take_back(&mut self) {
        if let Walk::Branches(branches) = self
            && let Entries::InTurn(walk) = &mut branches.entries
        {
            walk.take_back();
        }
    }

    /// The cursors release the state that they read.
    pub(crate) fn release(&mut self) {
        self.take_back();
        self.each_cursor(Cursor::release);
    }

    /// The cursors read this state, which may be the one that they released.
    pub(crate) fn renew(&mut self, at: ReadAt) {
        self.take_back();
        self.each_cursor(|cursor| cursor.renew(at));
    }

    fn each_cursor(&mut self, each: impl FnMut(&mut Cursor)) {
        match self {
            Walk::Branches(branches) => branches.entries.cursors().for_each(each),
            Walk::Near(walk) => walk.cursor().into_iter().for_each(each),
            Walk::Id(_) | Walk::Log(_) => {}
        }
    }

    /// Documents may have several entries from here on, though the plan counts on one: each is
    /// given once.
    pub(crate) fn expect_repeats(&mut self) {
        if let Walk::Branches(branches) = self {
            branches.seen.get_or_insert_default();
        }
    }

    /// Continues in another state, behind what was given.
    pub(crate) fn continue_at(&mut self, spec: &PartSpec, partition: &Rc<Partition>, at: ReadAt) {
        match self {
            Walk::Branches(branches) => branches.put_back(spec, partition, at),
            Walk::Near(walk) => walk.moves(),
            Walk::Id(_) | Walk::Log(_) => {}
        }
        self.renew(at);
    }
}

impl Branches {
    fn new(access: &Access) -> Branches {
        let (entries, repeats) = match access {
            Access::Merge(merge) => {
                let entries =
                    Entries::Sorted(SortedWalk::new(merge.branches.len(), merge.is_disjoint));
                (entries, merge.branches.iter().any(|branch| branch.repeats))
            }
            _ => (
                Entries::InTurn(Box::new(BranchWalk::new(0))),
                access.repeats(),
            ),
        };
        Branches {
            entries,
            seen: repeats.then(FxHashSet::default),
            pending: Vec::new(),
            fetched: Vec::new(),
        }
    }

    /// Puts entries back that were walked and not given: each branch stands before the first of
    /// them again.
    fn put_back(&mut self, spec: &PartSpec, partition: &Rc<Partition>, at: ReadAt) {
        let mut walked = std::mem::take(&mut self.pending);
        if let Entries::Sorted(walk) = &mut self.entries {
            walk.take_back(&mut walked);
        }
        let mut placed = Vec::new();
        for named in walked {
            if let Some(seen) = &mut self.seen {
                seen.remove(&named.id);
            }
            if placed.contains(&named.turn) {
                continue;
            }
            placed.push(named.turn);
            let walk = match &mut self.entries {
                Entries::InTurn(walk) => walk,
                Entries::Sorted(walk) => walk.branch(named.turn),
            };
            walk.stand_before(&named, spec, partition, at);
        }
    }

    async fn next(
        &mut self,
        place: Place<'_>,
        counters: &mut PartCounters,
    ) -> Result<Option<Found>> {
        if let Some(found) = self.fetched.pop() {
            return Ok(Some(found));
        }
        if let Entries::InTurn(walk) = &mut self.entries
            && matches!(place.spec.access, Access::Collection(_))
            && self.seen.is_none()
        {
            return walk.next_document(place, counters).await;
        }
        loop {
            let Some(entry) = self.next_entry(place, counters).await? else {
                return Ok(None);
            };
            let named = match entry {
                Entry::Document(found) => return Ok(Some(found)),
                Entry::Named(named) => named,
            };
            let Place { ctx, spec, at, .. } = place;
            let branch = &spec.access.branches()[named.turn];
            if let Output::Distinct(field) = spec.output {
                return self.next_value(named, field, place, counters).await;
            }
            if let Some(kept) = &spec.covered
                && let Some(document) = covered_document(branch, &named, kept)?
            {
                return Ok(Some(named.found(document)));
            }
            if !spec.reads_documents() {
                // A caller that asks for keys alone then reads the documents to change them.
                counters.docs_examined += u64::from(spec.output == Output::Ids);
                return Ok(Some(named.found(Bytes::new())));
            }
            if !branch.is_apart() {
                let tree = spec.collection.tree();
                let read = place.partition.get(tree, &named.id, at).await;
                counters.docs_examined += 1;
                return match read.map_err(from_read_error) {
                    Ok(Some(read)) => Ok(Some(named.found(read.value))),
                    Ok(None) if may_change(at) => continue,
                    Ok(None) => Err(dangling(branch)),
                    Err(error) => {
                        self.pending.push(named);
                        Err(error)
                    }
                };
            }
            // A unique index's entries live apart from their documents: fetch a group at once.
            self.pending.push(named);
            while self.pending.len() < FETCH_GROUP {
                match self.next_alike(place, counters).await? {
                    Some(Entry::Named(named)) => self.pending.push(named),
                    Some(Entry::Document(_)) => unreachable!("the branch is an index"),
                    None => break,
                }
            }
            counters.docs_examined += self.pending.len() as u64;
            let documents = fetch(ctx, spec, &self.pending, at).await?;
            let pending = self.pending.drain(..);
            self.fetched = found_of(spec, pending, documents, may_change(at))?;
            self.fetched.reverse();
            if let Some(found) = self.fetched.pop() {
                return Ok(Some(found));
            }
        }
    }

    /// The first value from this entry on, in a document of its own; the next entry is then the
    /// first with another one. What is null in an entry may be missing, so documents are asked
    /// until one has it.
    async fn next_value(
        &mut self,
        mut named: Named,
        field: usize,
        place: Place<'_>,
        counters: &mut PartCounters,
    ) -> Result<Option<Found>> {
        loop {
            let branch = &place.spec.access.branches()[named.turn];
            let index = branch.index.as_ref().expect("values are of an index");
            let value = match value_of(index, &named, field)? {
                Some(value) => Some(value),
                None => {
                    let path = index
                        .spec
                        .component_names()
                        .nth(field)
                        .expect("it has the field");
                    let asked = std::slice::from_ref(&named);
                    let documents = match fetch(place.ctx, place.spec, asked, place.at).await {
                        Ok(documents) => documents,
                        Err(error) => {
                            self.pending.push(named);
                            return Err(error);
                        }
                    };
                    counters.docs_examined += 1;
                    let document = documents.first().and_then(Option::as_ref);
                    document
                        .map(|document| stored_document(document))
                        .and_then(|document| pinion_bson::get_path(document, path))
                        .map(unnamed)
                }
            };
            if let Some(value) = value {
                let next = behind_value(index, &named.order, field)?;
                if let Some(cursor) = self.entries.cursor() {
                    counters.seeks += 1;
                    cursor.seek(&next);
                }
                return Ok(Some(named.found(value)));
            }
            match self.next_entry(place, counters).await? {
                Some(Entry::Named(next)) => named = next,
                _ => return Ok(None),
            }
        }
    }

    /// The next entry of any branch.
    async fn next_entry(
        &mut self,
        place: Place<'_>,
        counters: &mut PartCounters,
    ) -> Result<Option<Entry>> {
        let branches = place.spec.access.branches().len();
        loop {
            if let Some(entry) = self.next_alike(place, counters).await? {
                return Ok(Some(entry));
            }
            match &mut self.entries {
                Entries::InTurn(walk) if walk.turn + 1 < branches => {
                    **walk = BranchWalk::new(walk.turn + 1);
                }
                _ => return Ok(None),
            }
        }
    }

    /// The next entry that is fetched as the one before: of the same branch, where they come in
    /// turn.
    async fn next_alike(
        &mut self,
        place: Place<'_>,
        counters: &mut PartCounters,
    ) -> Result<Option<Entry>> {
        match &mut self.entries {
            Entries::InTurn(walk) => walk.next(place, &mut self.seen, counters).await,
            Entries::Sorted(walk) => {
                let named = walk.next(place, &mut self.seen, counters).await?;
                Ok(named.map(Entry::Named))
            }
        }
    }
}

impl Entries {
    /// The cursors of all branches that have one.
    fn cursors(&mut self) -> impl Iterator<Item = &mut Cursor> {
        let (in_turn, sorted) = match self {
            Entries::InTurn(walk) => (walk.cursor.as_mut(), None),
            Entries::Sorted(walk) => (None, Some(walk.cursors())),
        };
        in_turn.into_iter().chain(sorted.into_iter().flatten())
    }

    /// The cursor of the branch whose turn it is.
    fn cursor(&mut self) -> Option<&mut Cursor> {
        match self {
            Entries::InTurn(walk) => walk.cursor.as_mut(),
            Entries::Sorted(_) => None,
        }
    }
}

impl BranchWalk {
    pub(crate) fn new(turn: usize) -> BranchWalk {
        BranchWalk {
            turn,
            range: 0,
            cursor: None,
            block: Block::default(),
        }
    }

    pub(crate) fn cursor(&mut self) -> Option<&mut Cursor> {
        self.cursor.as_mut()
    }

    /// Has the entry come next, if it is there.
    fn stand_before(
        &mut self,
        named: &Named,
        spec: &PartSpec,
        partition: &Rc<Partition>,
        at: ReadAt,
    ) {
        let branch = &spec.access.branches()[named.turn];
        let place = named.range.checked_sub(1).expect("its range was started");
        let mut cursor = branch.cursor(&spec.collection, partition, place, at);
        cursor.seek(named.entry_key(spec));
        *self = BranchWalk {
            turn: named.turn,
            range: named.range,
            cursor: Some(cursor),
            block: Block::default(),
        };
    }

    /// Documents that were read and not given are read again.
    fn take_back(&mut self) {
        if let Some(cursor) = &mut self.cursor {
            cursor.take_back(&mut self.block);
        }
        assert!(self.block.is_empty(), "a block is given back to its cursor");
    }

    /// Passes over documents or entries without a look at each.
    fn pass(&mut self, most: usize) -> usize {
        let passed = self.block.pass_many(most);
        if passed > 0 {
            return passed;
        }
        // What the cursor passes is behind everything that the block knows of.
        self.take_back();
        self.cursor.as_mut().map_or(0, |cursor| cursor.pass(most))
    }

    /// Ensures that the block has a document of the collection's own tree; false at the end.
    async fn fill(&mut self, place: Place<'_>, counters: &mut PartCounters) -> Result<bool> {
        let branch = &place.spec.access.branches()[0];
        while self.block.is_empty() {
            let Some(cursor) = &mut self.cursor else {
                if self.range >= branch.ranges.len() {
                    return Ok(false);
                }
                counters.seeks += 1;
                let (collection, partition) = (&place.spec.collection, place.partition);
                self.cursor = Some(branch.cursor(collection, partition, self.range, place.at));
                self.range += 1;
                continue;
            };
            let filled = cursor.fill(&mut self.block).await;
            if !filled.map_err(from_read_error)? {
                self.cursor = None;
            }
        }
        Ok(true)
    }

    /// The next document of the collection's own tree: what [`BranchWalk::next`] comes to there,
    /// without what other accesses need for each.
    async fn next_document(
        &mut self,
        place: Place<'_>,
        counters: &mut PartCounters,
    ) -> Result<Option<Found>> {
        if !self.fill(place, counters).await? {
            return Ok(None);
        }
        let record = self.block.front();
        let found = Found::in_collection(record.expect("the block was filled"), None);
        self.block.pass();
        counters.docs_examined += 1;
        Ok(Some(found))
    }

    /// The next entry that names a document not seen before.
    pub(crate) async fn next(
        &mut self,
        place: Place<'_>,
        seen: &mut Option<FxHashSet<Key>>,
        counters: &mut PartCounters,
    ) -> Result<Option<Entry>> {
        let Place {
            spec,
            partition,
            at,
            ..
        } = place;
        let Some(branch) = spec.access.branches().get(self.turn) else {
            return Ok(None);
        };
        loop {
            let Some(cursor) = &mut self.cursor else {
                if self.range >= branch.ranges.len() {
                    return Ok(None);
                }
                counters.seeks += 1;
                self.cursor = Some(branch.cursor(&spec.collection, partition, self.range, at));
                self.range += 1;
                continue;
            };
            let Some((key, read)) = cursor.next().await.map_err(from_read_error)? else {
                self.cursor = None;
                continue;
            };
            let id = match &branch.index {
                None => key.clone(),
                Some(index) => {
                    counters.keys_examined += 1;
                    let Some(prefix) = pinion_catalog::prefix_len(index, &key) else {
                        return Err(damaged(branch));
                    };
                    Key::from_slice(&key[prefix..])
                }
            };
            if let Some(seen) = seen
                && !seen.insert(id.clone())
            {
                counters.dups_dropped += 1;
                continue;
            }
            return Ok(Some(
                self.entry(spec, branch, key, id, read.value, counters)?,
            ));
        }
    }

    /// What was read as an entry of the access.
    fn entry(
        &self,
        spec: &PartSpec,
        branch: &RangeAccess,
        key: Key,
        id: Key,
        value: Bytes,
        counters: &mut PartCounters,
    ) -> Result<Entry> {
        let by_key =
            matches!(spec.output, Output::Keys | Output::Distinct(_)) || spec.metadata.index_key;
        let entry = ((by_key || spec.covered.is_some()) && branch.index.is_some()).then(|| {
            Box::new(ScannedEntry {
                branch: self.turn,
                key: key.clone(),
                type_bits: value.clone(),
            })
        });
        let mut entry_key = None;
        let order = match &spec.access {
            Access::Merge(merge) => {
                let order = sorted_order(branch, &merge.orders[self.turn], &key, &id)?;
                entry_key = Some(key);
                order
            }
            access if access.branches().len() == 1 => key,
            _ => ordered_by_branch(self.turn, &key),
        };
        if branch.index.is_none() {
            counters.docs_examined += 1;
            if !matches!(spec.access, Access::Collection(_)) {
                counters.keys_examined += 1;
            }
            return Ok(Entry::Document(Found {
                order,
                id,
                document: value,
                position: None,
                entry: None,
            }));
        }
        Ok(Entry::Named(Named {
            turn: self.turn,
            range: self.range,
            order,
            id,
            key: entry_key,
            entry,
        }))
    }
}

/// Branches come one after the other, in every part alike.
fn ordered_by_branch(turn: usize, key: &[u8]) -> Key {
    let mut order = Key::from_slice(&(turn as u32).to_be_bytes());
    order.extend_from_slice(key);
    order
}

fn name_of(branch: &RangeAccess) -> &str {
    branch.index.as_ref().map_or("_id_", |index| index.name())
}

pub(crate) fn dangling(branch: &RangeAccess) -> Error {
    Error::new(
        ErrorCode::DATA_CORRUPTION_DETECTED,
        format!(
            "index {} names a document that is not there",
            name_of(branch)
        ),
    )
}

pub(crate) fn damaged(branch: &RangeAccess) -> Error {
    damaged_index(name_of(branch))
}

pub(crate) fn damaged_index(name: &str) -> Error {
    Error::new(
        ErrorCode::DATA_CORRUPTION_DETECTED,
        format!("an entry of index {name} is damaged"),
    )
}

/// Whether what is read changes: a transaction may delete what an entry names that it has read
/// before.
pub(crate) fn may_change(at: ReadAt) -> bool {
    matches!(at, ReadAt::In { .. })
}

/// Completes a read that may come to what is prepared. It waits for the outcome, unless the
/// operation is stopped.
///
/// # Errors
/// The operation is stopped; `LockTimeout` on a member that follows, where the outcome comes by the
/// log, if that has an entry before it which may wait for this very read.
async fn until_decided<F: Future>(ctx: &OpContext, read: F) -> Result<F::Output> {
    let mut read = pin!(read);
    if let Some(done) = poll_once(read.as_mut()).await {
        return Ok(done);
    }
    // In a box, as few operations ever need its room.
    Box::pin(wait_until_decided(ctx, read)).await
}

async fn wait_until_decided<F: Future>(
    ctx: &OpContext,
    mut read: Pin<&mut F>,
) -> Result<F::Output> {
    loop {
        let waiting = interruptible(ctx, read.as_mut());
        if let Ok(done) = timeout(OUTCOME_PATIENCE, waiting).await {
            return done;
        }
        if !storage().leads() && core_catalog().gates().some_is_closed() {
            return Err(Error::new(
                ErrorCode::LOCK_TIMEOUT,
                "a read waits for the outcome of a prepared transaction, and a change of the catalog that comes before it for \
                 those who read",
            ));
        }
    }
}

/// What is read at, unless a test has planted that a transaction reads one partition later than the
/// others.
fn planted(at: ReadAt, partition: &Partition) -> ReadAt {
    match at {
        ReadAt::In { at: snapshot, unit }
            if node_options().planted_fault == PlantedFault::SnapshotOfOneLater
                && partition.id() == PartitionId(0) =>
        {
            let at = storage().visible().max(snapshot);
            ReadAt::In { at, unit }
        }
        at => at,
    }
}

/// Fetches the documents of these entries from the partitions where they are, in the order of the
/// entries; none for one that is not there.
pub(crate) async fn fetch(
    ctx: &OpContext,
    spec: &PartSpec,
    entries: &[Named],
    at: ReadAt,
) -> Result<Vec<Option<Bytes>>> {
    let tree = spec.collection.tree();
    let mut by_core: std::collections::BTreeMap<pinion_runtime::CoreId, Vec<(usize, Key)>> =
        std::collections::BTreeMap::new();
    for (place, named) in entries.iter().enumerate() {
        let owner = storage().owner(partition_of(&spec.collection, &named.id));
        by_core
            .entry(owner)
            .or_default()
            .push((place, named.id.clone()));
    }
    let collection = &spec.collection;
    /// Documents with their places among those asked for.
    type Placed = Vec<(usize, Option<Bytes>)>;
    let parts: Vec<Result<Placed>> =
        pinion_runtime::join_all(by_core.into_iter().map(|(owner, wanted)| {
            let (collection, ctx) = (collection.clone(), ctx.clone());
            pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
                let mut documents = Vec::with_capacity(wanted.len());
                // A read that may take a newer state has pinned it in its own partition alone.
                let mut pins = Vec::new();
                for (place, id) in wanted {
                    let owned = storage()
                        .partition(partition_of(&collection, &id))
                        .expect("submitted to its owner");
                    pins.extend(pin_once(&owned, at, &pins)?);
                    // The caller may be gone while this waits.
                    let read = until_decided(&ctx, owned.get(tree, &id, at)).await?;
                    let read = read.map_err(from_read_error)?;
                    documents.push((place, read.map(|read| read.value)));
                }
                Ok(documents)
            })
        }))
        .await;
    let mut documents: Vec<Option<Bytes>> = vec![None; entries.len()];
    for part in parts {
        for (place, document) in part? {
            documents[place] = document;
        }
    }
    Ok(documents)
}

/// A pin of what is read in a partition, unless there is one among those of others.
fn pin_once(
    partition: &Rc<Partition>,
    at: ReadAt,
    pins: &[(PartitionId, SnapshotPin)],
) -> Result<Option<(PartitionId, SnapshotPin)>> {
    let (ReadAt::At(ts) | ReadAt::DecidedAt(ts) | ReadAt::In { at: ts, .. }) = at else {
        return Ok(None);
    };
    let id = partition.id();
    if pins.iter().any(|(pinned, _)| *pinned == id) {
        return Ok(None);
    }
    let pin = partition.pin(ts).map_err(from_read_error)?;
    Ok(Some((id, pin)))
}

/// The documents that entries name. One that is not there is passed over where what is read
/// changes, and damage elsewhere.
pub(crate) fn found_of(
    spec: &PartSpec,
    entries: impl Iterator<Item = Named>,
    documents: Vec<Option<Bytes>>,
    may_change: bool,
) -> Result<Vec<Found>> {
    let found = entries
        .zip(documents)
        .filter_map(|(named, document)| match document {
            Some(document) => Some(Ok(named.found(document))),
            None if may_change => None,
            None => Some(Err(dangling(&spec.access.branches()[named.turn]))),
        });
    found.collect()
}
