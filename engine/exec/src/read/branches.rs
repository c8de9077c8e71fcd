//! The walk over the branches of an access: their entries, and the documents that those name.

use std::rc::Rc;

use bytes::Bytes;
use pinion_catalog::{from_read_error, stored_document};
use pinion_merge::PartCounters;
use pinion_storage::{Block, Key, Partition, ReadAt};
use pinion_wire::Result;
use rustc_hash::FxHashSet;

use super::access::Access;
use super::branch_walk::{BranchWalk, WalkHit};
use super::entry_values::{behind_value, unnamed};
use super::fetch::{dangling, fetch, found_of, may_change};
use super::part::{Output, PartSpec};
use super::scan::{ScanContext, ScannedDocument};
use super::sorted_walk::SortedWalk;
use crate::limits::FETCH_GROUP;

pub(super) struct Branches {
    entries: Entries,
    /// Documents already given, where several entries may name one.
    seen: Option<FxHashSet<Key>>,
    /// Entries that were passed and whose documents are not read yet: in a newer state they are
    /// walked again.
    pending: Vec<WalkHit>,
    /// Documents fetched ahead from other partitions, in reverse.
    fetched: Vec<ScannedDocument>,
}

/// In which order the entries of branches are walked.
enum Entries {
    /// Branch after branch.
    InTurn(Box<BranchWalk>),
    /// In the order of a sort that each branch has.
    Sorted(SortedWalk),
}

impl Branches {
    pub(super) fn new(access: &Access) -> Branches {
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

    /// The walks over all branches that were started.
    pub(super) fn walks(&mut self) -> impl Iterator<Item = &mut BranchWalk> {
        let (in_turn, sorted) = match &mut self.entries {
            Entries::InTurn(walk) => (Some(&mut **walk), None),
            Entries::Sorted(walk) => (None, Some(walk.branches())),
        };
        in_turn.into_iter().chain(sorted.into_iter().flatten())
    }

    /// The walk whose turn it is, and the documents seen before.
    fn in_turn(&mut self) -> (&mut BranchWalk, &mut Option<FxHashSet<Key>>) {
        match &mut self.entries {
            Entries::InTurn(walk) => (walk, &mut self.seen),
            Entries::Sorted(_) => panic!("merged entries do not come in turn"),
        }
    }

    /// Whether the next entry comes from a block: none is pending or was fetched ahead.
    pub(super) fn is_in_blocks(&self) -> bool {
        let is_in_turn = matches!(self.entries, Entries::InTurn(_));
        is_in_turn && self.pending.is_empty() && self.fetched.is_empty()
    }

    /// The block of the collection's own tree, where all of its records are given.
    pub(super) fn documents(&mut self, access: &Access) -> Option<&mut Block> {
        let is_whole = matches!(access, Access::Collection(_)) && self.gives_all();
        is_whole.then(|| self.in_turn().0.block())
    }

    /// Whether what comes next is in a block, of which everything is given.
    pub(super) fn gives_all(&self) -> bool {
        self.is_in_blocks() && self.seen.is_none()
    }

    /// Passes over entries, or documents of the collection's own tree, without a look at each.
    pub(super) fn pass_many(&mut self, most: usize) -> usize {
        self.in_turn().0.pass_many(most)
    }

    /// Documents may have several entries from here on, though the plan counts on one: each is
    /// given once.
    pub(super) fn expect_repeats(&mut self) {
        self.seen.get_or_insert_default();
    }

    /// Puts entries back that were passed and not given: each branch stands before the first of
    /// them again.
    pub(super) fn put_back(&mut self, spec: &PartSpec, partition: &Rc<Partition>, at: ReadAt) {
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

    /// Ensures that the block has an entry, of the branch whose turn it is or of one behind it.
    /// False at the end of the access.
    pub(super) async fn fill(
        &mut self,
        place: ScanContext<'_>,
        counters: &mut PartCounters,
    ) -> Result<bool> {
        let branches = place.spec.access.branches().len();
        let (walk, _) = self.in_turn();
        while !walk.fill(place, counters).await? {
            if walk.turn() + 1 >= branches {
                return Ok(false);
            }
            *walk = BranchWalk::new(walk.turn() + 1);
        }
        Ok(true)
    }

    /// The next entry, with its document if that can be read without waiting. It stays the next one
    /// until it is passed. None where [`Branches::fill`] is to follow.
    pub(super) fn front(
        &mut self,
        place: ScanContext<'_>,
        counters: &mut PartCounters,
    ) -> Result<Option<WalkHit>> {
        let (walk, seen) = self.in_turn();
        let spec = place.spec;
        let Some(mut named) = walk.front(place, seen.as_ref(), counters)? else {
            return Ok(None);
        };
        let is_read = named.document.is_none() && !matches!(spec.output, Output::Distinct(_));
        if is_read && !spec.access.branches()[named.turn].is_apart() {
            let tree = spec.collection.tree();
            // The step that waits finds an error again: behind it the scan may renew its state.
            if let Some(Ok(read)) = place.partition.try_get(tree, &named.id, place.at) {
                named.document = read.map(|read| read.value);
                named.is_examined = true;
            }
        }
        Ok(Some(named))
    }

    /// Passes the entry in front, whether its document matches or not. Behind one that gave a
    /// distinct value, the next is the first with another value.
    pub(super) fn pass(
        &mut self,
        named: &WalkHit,
        spec: &PartSpec,
        counters: &mut PartCounters,
    ) -> Result<()> {
        let behind = match spec.output {
            Output::Distinct(field) if named.document.is_some() => {
                let index = spec.access.branches()[named.turn].index.as_ref();
                let index = index.expect("values are of an index");
                Some(behind_value(index, &named.order, field)?)
            }
            _ => None,
        };
        let (walk, seen) = self.in_turn();
        walk.pass(named, spec, seen.as_mut(), counters);
        counters.docs_examined += u64::from(named.is_examined);
        if let Some(behind) = behind {
            counters.seeks += 1;
            walk.seek_ahead(&behind);
        }
        Ok(())
    }

    /// The next document.
    pub(super) async fn next(
        &mut self,
        place: ScanContext<'_>,
        counters: &mut PartCounters,
    ) -> Result<Option<ScannedDocument>> {
        loop {
            if let Some(found) = self.fetched.pop() {
                return Ok(Some(found));
            }
            if matches!(self.entries, Entries::InTurn(_)) {
                if !self.fill(place, counters).await? {
                    return Ok(None);
                }
                let Some(named) = self.front(place, counters)? else {
                    continue;
                };
                if !is_fetched(place.spec, &named) {
                    match self.read_front(named, place, counters).await? {
                        Some(found) => return Ok(Some(found)),
                        None => continue,
                    }
                }
            }
            let Some(named) = self.next_alike(place, counters).await? else {
                return Ok(None);
            };
            if let Some(found) = self.read_passed(named, place, counters).await? {
                return Ok(Some(found));
            }
        }
    }

    /// What the entry at the front of the block comes to, whose document may have to be waited for;
    /// it is passed then.
    async fn read_front(
        &mut self,
        mut named: WalkHit,
        place: ScanContext<'_>,
        counters: &mut PartCounters,
    ) -> Result<Option<ScannedDocument>> {
        if named.document.is_none() {
            named.is_examined = true;
            named.document = match place.spec.output {
                Output::Distinct(field) => value_in_document(&named, field, place).await?,
                _ => read(&named, place).await?,
            };
        }
        self.pass(&named, place.spec, counters)?;
        let document = named.document.take();
        Ok(document.map(|document| named.found(document)))
    }

    /// The document that an entry names which was passed. Those of a unique index live apart from
    /// their documents: a group of them is fetched at once.
    async fn read_passed(
        &mut self,
        mut named: WalkHit,
        place: ScanContext<'_>,
        counters: &mut PartCounters,
    ) -> Result<Option<ScannedDocument>> {
        if let Some(document) = named.document.take() {
            counters.docs_examined += u64::from(named.is_examined);
            return Ok(Some(named.found(document)));
        }
        let ScanContext { ctx, spec, at, .. } = place;
        if !spec.access.branches()[named.turn].is_apart() {
            counters.docs_examined += 1;
            return match read(&named, place).await {
                Ok(document) => Ok(document.map(|document| named.found(document))),
                Err(error) => {
                    self.pending.push(named);
                    Err(error)
                }
            };
        }
        self.pending.push(named);
        while self.pending.len() < FETCH_GROUP {
            match self.next_alike(place, counters).await? {
                Some(named) => self.pending.push(named),
                None => break,
            }
        }
        counters.docs_examined += self.pending.len() as u64;
        let documents = fetch(ctx, spec, &self.pending, at).await?;
        let pending = self.pending.drain(..);
        self.fetched = found_of(spec, pending, documents, may_change(at))?;
        self.fetched.reverse();
        Ok(self.fetched.pop())
    }

    /// The next entry that is fetched as the one before, which it passes: of the same branch, where
    /// they come in turn.
    async fn next_alike(
        &mut self,
        place: ScanContext<'_>,
        counters: &mut PartCounters,
    ) -> Result<Option<WalkHit>> {
        match &mut self.entries {
            Entries::InTurn(walk) => walk.next(place, &mut self.seen, counters).await,
            Entries::Sorted(walk) => walk.next(place, &mut self.seen, counters).await,
        }
    }
}

/// Whether the document of an entry is fetched in a group, with those of other entries.
fn is_fetched(spec: &PartSpec, named: &WalkHit) -> bool {
    let is_value = matches!(spec.output, Output::Distinct(_));
    named.document.is_none() && !is_value && spec.access.branches()[named.turn].is_apart()
}

/// The document that an entry names, which is in the same partition; none if it is gone.
async fn read(named: &WalkHit, place: ScanContext<'_>) -> Result<Option<Bytes>> {
    let ScanContext {
        spec,
        partition,
        at,
        ..
    } = place;
    let tree = spec.collection.tree();
    let read = partition.get(tree, &named.id, at).await;
    match read.map_err(from_read_error)? {
        Some(read) => Ok(Some(read.value)),
        None if may_change(at) => Ok(None),
        None => Err(dangling(&spec.access.branches()[named.turn])),
    }
}

/// The value of a field in the document that an entry names: what is null in the entry may be
/// missing there.
async fn value_in_document(
    named: &WalkHit,
    field: usize,
    place: ScanContext<'_>,
) -> Result<Option<Bytes>> {
    let asked = std::slice::from_ref(named);
    let documents = fetch(place.ctx, place.spec, asked, place.at).await?;
    let index = place.spec.access.branches()[named.turn].index.as_ref();
    let names = &index.expect("values are of an index").spec;
    let path = names.component_names().nth(field);
    let path = path.expect("the index has the field");
    let document = documents.first().and_then(Option::as_ref);
    let value =
        document.and_then(|document| pinion_bson::get_path(stored_document(document), path));
    Ok(value.map(unnamed))
}
