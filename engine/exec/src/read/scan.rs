//! Walking one partition's trees: the collection's own, or an index and then the documents it names.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_catalog::{from_read_error, partition_of};
use pinion_runtime::Queue;
use pinion_storage::{Cursor, Key, Partition, ReadAt, storage};
use pinion_wire::{Error, ErrorCode, OpContext, Result};
use rustc_hash::FxHashSet;

use super::access::{Access, RangeAccess};
use super::item::PartCounters;
use super::near::NearWalk;
use super::part::{Output, PartSpec};
use crate::limits::FETCH_GROUP;

/// A document that was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
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
pub(super) struct ScannedEntry {
    /// Which of the access's branches it is of.
    pub branch: usize,
    pub key: Key,
    pub type_bits: Bytes,
}

/// The walk of one part.
pub(super) struct Scan {
    spec: Arc<PartSpec>,
    partition: Rc<Partition>,
    at: ReadAt,
    walk: Walk,
}

enum Walk {
    /// One document by its key.
    Id(Option<Key>),
    /// Branch after branch.
    Branches(Box<Branches>),
    /// Outward from a point.
    Near(Box<NearWalk>),
}

struct Branches {
    branch: usize,
    /// Which of the branch's ranges the cursor walks.
    range: usize,
    cursor: Option<Cursor>,
    /// Documents already given, where several entries may name one.
    seen: Option<FxHashSet<Key>>,
    /// Documents fetched ahead from other partitions, in reverse.
    fetched: Vec<Found>,
}

/// One step of a walk over entries.
enum Entry {
    /// The document itself: an entry of the collection's own tree.
    Document(Found),
    /// An entry of an index and the document that it names.
    Named(Named),
}

pub(super) struct Named {
    pub order: Key,
    /// The key of the document.
    pub id: Key,
    pub entry: Option<Box<ScannedEntry>>,
}

impl Named {
    pub(super) fn found(self, document: Bytes) -> Found {
        Found {
            order: self.order,
            id: self.id,
            document,
            position: None,
            entry: self.entry,
        }
    }
}

impl Scan {
    pub(super) fn open(spec: &Arc<PartSpec>, partition: Rc<Partition>) -> Scan {
        let walk = match &spec.access {
            Access::Id(key) => Walk::Id(Some(key.clone())),
            Access::Near(near) => Walk::Near(Box::new(NearWalk::new(near, spec.access.repeats()))),
            access => Walk::Branches(Box::new(Branches {
                branch: 0,
                range: 0,
                cursor: None,
                seen: access.repeats().then(FxHashSet::default),
                fetched: Vec::new(),
            })),
        };
        Scan {
            spec: spec.clone(),
            partition,
            at: ReadAt::At(spec.at),
            walk,
        }
    }

    /// The next document of the access, not yet filtered.
    pub(super) async fn next(
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
            Walk::Id(key) => {
                let Some(key) = key.take() else {
                    return Ok(None);
                };
                let tree = self.spec.collection.tree();
                let Some(read) = self
                    .partition
                    .get(tree, &key, self.at)
                    .await
                    .map_err(from_read_error)?
                else {
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
                walk.next(&self.spec, &self.partition, self.at, counters)
                    .await
            }
        }
    }
}

impl Branches {
    async fn next(
        &mut self,
        spec: &PartSpec,
        partition: &Rc<Partition>,
        at: ReadAt,
        counters: &mut PartCounters,
    ) -> Result<Option<Found>> {
        if let Some(found) = self.fetched.pop() {
            return Ok(Some(found));
        }
        let branches = spec.access.branches();
        let Some(entry) = self.next_entry(spec, partition, at, counters).await? else {
            return Ok(None);
        };
        let named = match entry {
            Entry::Document(found) => return Ok(Some(found)),
            Entry::Named(named) => named,
        };
        let branch = &branches[self.branch];
        if !branch.is_apart() {
            let read = partition
                .get(spec.collection.tree(), &named.id, at)
                .await
                .map_err(from_read_error)?;
            counters.docs_examined += 1;
            return match read {
                Some(read) => Ok(Some(named.found(read.value))),
                None => Err(dangling(branch)),
            };
        }
        // The entries of a unique index live apart from their documents: fetch those of a group of entries at once.
        let turn = self.branch;
        let mut group = vec![named];
        while group.len() < FETCH_GROUP {
            let Some(entry) = self
                .next_entry_of(turn, spec, partition, at, counters)
                .await?
            else {
                break;
            };
            match entry {
                Entry::Named(named) => group.push(named),
                Entry::Document(_) => unreachable!("the branch is an index"),
            }
        }
        counters.docs_examined += group.len() as u64;
        self.fetched = fetch(spec, branch, group, at).await?;
        self.fetched.reverse();
        Ok(self.fetched.pop())
    }

    /// The next entry of any branch.
    async fn next_entry(
        &mut self,
        spec: &PartSpec,
        partition: &Rc<Partition>,
        at: ReadAt,
        counters: &mut PartCounters,
    ) -> Result<Option<Entry>> {
        let branches = spec.access.branches().len();
        while self.branch < branches {
            if let Some(entry) = self
                .next_entry_of(self.branch, spec, partition, at, counters)
                .await?
            {
                return Ok(Some(entry));
            }
            self.branch += 1;
            self.range = 0;
            self.cursor = None;
        }
        Ok(None)
    }

    /// The next entry of one branch that names a document not given before.
    async fn next_entry_of(
        &mut self,
        turn: usize,
        spec: &PartSpec,
        partition: &Rc<Partition>,
        at: ReadAt,
        counters: &mut PartCounters,
    ) -> Result<Option<Entry>> {
        let branches = spec.access.branches();
        let branch = &branches[turn];
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
            if let Some(seen) = &mut self.seen
                && !seen.insert(id.clone())
            {
                counters.dups_dropped += 1;
                continue;
            }
            let entry = (spec.output == Output::Keys && branch.index.is_some()).then(|| {
                Box::new(ScannedEntry {
                    branch: turn,
                    key: key.clone(),
                    type_bits: read.value.clone(),
                })
            });
            let order = if branches.len() == 1 {
                key
            } else {
                ordered_by_branch(turn, &key)
            };
            if branch.index.is_none() {
                counters.docs_examined += 1;
                if !matches!(spec.access, Access::Collection(_)) {
                    counters.keys_examined += 1;
                }
                return Ok(Some(Entry::Document(Found {
                    order,
                    id,
                    document: read.value,
                    position: None,
                    entry: None,
                })));
            }
            return Ok(Some(Entry::Named(Named { order, id, entry })));
        }
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

pub(super) fn dangling(branch: &RangeAccess) -> Error {
    Error::new(
        ErrorCode::DATA_CORRUPTION_DETECTED,
        format!(
            "index {} names a document that is not there",
            name_of(branch)
        ),
    )
}

pub(super) fn damaged(branch: &RangeAccess) -> Error {
    Error::new(
        ErrorCode::DATA_CORRUPTION_DETECTED,
        format!("an entry of index {} is damaged", name_of(branch)),
    )
}

/// Fetches the documents of these entries from the partitions where they are; the result keeps the order.
pub(super) async fn fetch(
    spec: &PartSpec,
    branch: &RangeAccess,
    entries: Vec<Named>,
    at: ReadAt,
) -> Result<Vec<Found>> {
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
            let collection = collection.clone();
            pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
                let mut documents = Vec::with_capacity(wanted.len());
                for (place, id) in wanted {
                    let owned = storage()
                        .partition(partition_of(&collection, &id))
                        .expect("submitted to its owner");
                    let read = owned.get(tree, &id, at).await.map_err(from_read_error)?;
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
    let found = entries
        .into_iter()
        .zip(documents)
        .map(|(named, document)| match document {
            Some(document) => Ok(named.found(document)),
            None => Err(dangling(branch)),
        });
    found.collect()
}
