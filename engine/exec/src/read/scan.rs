//! Walking one partition's trees: the collection's own, or an index and then the documents it names.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{Index, entry_key, from_read_error, partition_of, stored_document};
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

#[derive(Clone)]
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

impl Scan {
    /// Passes over documents that are there and need no look: nothing but their number is wanted.
    pub(super) fn pass(&mut self, most: u64) -> u64 {
        match &mut self.walk {
            Walk::Branches(walk)
                if walk.seen.is_none()
                    && self.spec.output == Output::Count
                    && self.spec.filter.is_none() =>
            {
                let cursor = walk.cursor.as_mut();
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                cursor.map_or(0, |cursor| cursor.pass(most)) as u64
            }
            _ => 0,
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
        if let Output::Distinct(field) = spec.output {
            return self
                .next_value(named, field, spec, partition, at, counters)
                .await;
        }
        if let Some(kept) = &spec.covered
            && let Some(document) = covered_document(branch, &named, kept)?
        {
            return Ok(Some(named.found(document)));
        }
        if !spec.reads_documents() {
            return Ok(Some(named.found(Bytes::new())));
        }
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

    /// The first value from this entry on, in a document of its own; the next entry is then the first with another one. What
    /// is null in an entry may be missing, so documents are asked until one has it.
    async fn next_value(
        &mut self,
        mut named: Named,
        field: usize,
        spec: &PartSpec,
        partition: &Rc<Partition>,
        at: ReadAt,
        counters: &mut PartCounters,
    ) -> Result<Option<Found>> {
        let branches = spec.access.branches();
        loop {
            let branch = &branches[self.branch];
            let index = branch.index.as_ref().expect("values are of an index");
            let value = match value_of(index, &named, field)? {
                Some(value) => Some(value),
                None => {
                    let path = index
                        .spec
                        .component_names()
                        .nth(field)
                        .expect("it has the field");
                    let documents = fetch(spec, branch, vec![named.clone()], at).await?;
                    counters.docs_examined += 1;
                    let document = documents
                        .first()
                        .map(|found| stored_document(&found.document));
                    document.and_then(|document| value_at(document, path))
                }
            };
            if let Some(value) = value {
                let next = behind_value(index, &named.order, field)?;
                if let Some(cursor) = &mut self.cursor {
                    counters.seeks += 1;
                    cursor.seek(&next);
                }
                return Ok(Some(named.found(value)));
            }
            match self.next_entry(spec, partition, at, counters).await? {
                Some(Entry::Named(next)) => named = next,
                _ => return Ok(None),
            }
        }
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
            let tells = matches!(spec.output, Output::Keys | Output::Distinct(_));
            let entry = ((tells || spec.covered.is_some()) && branch.index.is_some()).then(|| {
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

/// The values of an entry under their paths.
fn values_of(index: &Index, named: &Named) -> Result<RawDocumentBuf> {
    let entry = named
        .entry
        .as_ref()
        .expect("it is kept where values are wanted");
    entry_key(index, &entry.key, &entry.type_bits)
}

/// What an entry has of a document, as far as the paths go; `None` if a value is null, which may
/// stand for one that is missing.
fn covered_document(branch: &RangeAccess, named: &Named, kept: &[String]) -> Result<Option<Bytes>> {
    let Some(index) = &branch.index else {
        return Ok(None);
    };
    let values = values_of(index, named)?;
    let mut fields: Vec<(&str, RawBsonRef<'_>)> = pinion_bson::elements(&values)
        .filter(|(path, _)| kept.iter().any(|kept| kept == path))
        .collect();
    if fields
        .iter()
        .any(|(_, value)| matches!(value, RawBsonRef::Null))
    {
        return Ok(None);
    }
    fields.sort_by_key(|(path, _)| *path != "_id");
    let mut out = DocBuilder::new();
    append_paths(&mut out, &fields);
    Ok(Some(Bytes::from(out.finish_bytes())))
}

/// Appends values at their paths. None of the paths leads through another one.
fn append_paths(out: &mut DocBuilder, fields: &[(&str, RawBsonRef<'_>)]) {
    let mut done: Vec<&str> = Vec::new();
    for (path, value) in fields {
        let Some((head, _)) = path.split_once('.') else {
            out.append(path, *value);
            continue;
        };
        if done.contains(&head) {
            continue;
        }
        done.push(head);
        let inner: Vec<(&str, RawBsonRef<'_>)> = fields
            .iter()
            .filter_map(|(path, value)| Some((path.split_once('.')?, *value)))
            .filter(|((at, _), _)| *at == head)
            .map(|((_, rest), value)| (rest, value))
            .collect();
        out.start_document(head);
        append_paths(out, &inner);
        out.end();
    }
}

/// The value of a field of an entry, in a field without a name; `None` if it is null.
fn value_of(index: &Index, named: &Named, field: usize) -> Result<Option<Bytes>> {
    let values = values_of(index, named)?;
    let value = pinion_bson::elements(&values).nth(field);
    let (_, value) = value.expect("an entry has all fields of its index");
    Ok((!matches!(value, RawBsonRef::Null)).then(|| unnamed(value)))
}

/// The value at a path of a document that has no arrays on the way.
fn value_at(document: &RawDocument, path: &str) -> Option<Bytes> {
    match path.split_once('.') {
        None => pinion_bson::get(document, path).map(unnamed),
        Some((head, rest)) => match pinion_bson::get(document, head)? {
            RawBsonRef::Document(inner) => value_at(inner, rest),
            _ => None,
        },
    }
}

fn unnamed(value: RawBsonRef<'_>) -> Bytes {
    let mut out = DocBuilder::new();
    out.append("", value);
    Bytes::from(out.finish_bytes())
}

/// A key above all that have the same value in the field, and below those of the next one. What
/// follows a value is the end of the fields or the type of the next, and neither is the highest
/// byte; that follows where a string goes on behind a zero byte, which is another value.
fn behind_value(index: &Index, key: &[u8], field: usize) -> Result<Key> {
    let end = pinion_keystring::prefix_len(key, field as u32 + 1, index.spec.ordering);
    let end = end.map_err(|_| damaged_index(index.name()))?;
    let mut behind = Key::from_slice(&key[..end]);
    behind.push(u8::MAX);
    Ok(behind)
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
    damaged_index(name_of(branch))
}

fn damaged_index(name: &str) -> Error {
    Error::new(
        ErrorCode::DATA_CORRUPTION_DETECTED,
        format!("an entry of index {name} is damaged"),
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
