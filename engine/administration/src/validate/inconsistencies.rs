//! The second phase in one partition: each key that the sums of the first make suspected is
//! examined, and what is wrong is listed or mended.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::RawDocumentBuf;
use pinion_catalog::{Index, entries_of, entry_partition, stored_document};
use pinion_runtime::join_all;
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::interrupt::{is_interruption, pause};
use pinion_storage::{Key, Partition, PartitionId, ReadAt, storage};
use pinion_wire::{Error, ErrorCode, Result};

use super::examine::{Form, form_of};
use super::findings::Notes;
use super::options::RepairMode;
use super::repair::{Repaired, Repairs};
use super::tree_walk::{TreeWalk, Walked, newest};
use super::verify::{Extra, Missing, Unverified, Verifier};
use crate::limits::{MAX_LISTED_ENTRY_BYTES, MAX_SNAPSHOT_ATTEMPTS, VERIFY_GROUP};

/// Entries as they are listed, as many as there is room for.
#[derive(Clone, Debug, Default)]
pub(super) struct Listed {
    pub entries: Vec<RawDocumentBuf>,
    bytes: usize,
    /// All that there are.
    pub count: u64,
}

impl Listed {
    fn add(&mut self, entry: RawDocumentBuf) {
        self.count += 1;
        self.list(entry);
    }

    fn list(&mut self, entry: RawDocumentBuf) {
        let bytes = entry.as_bytes().len();
        // The first is listed whatever its size.
        if self.entries.is_empty() || self.bytes + bytes <= MAX_LISTED_ENTRY_BYTES {
            self.bytes += bytes;
            self.entries.push(entry);
        }
    }

    fn merge(&mut self, other: Listed) {
        self.count += other.count;
        other.entries.into_iter().for_each(|entry| self.list(entry));
    }

    pub(super) fn is_complete(&self) -> bool {
        self.entries.len() as u64 == self.count
    }
}

/// What is wrong between documents and indexes.
#[derive(Clone, Debug, Default)]
pub(super) struct Inconsistencies {
    pub missing: Listed,
    pub extra: Listed,
    /// Which of the complete indexes have some.
    pub indexes: Vec<bool>,
    pub errors: Notes,
    pub repairs: Repairs,
}

impl Inconsistencies {
    pub(super) fn new(indexes: usize) -> Inconsistencies {
        Inconsistencies {
            indexes: vec![false; indexes],
            ..Inconsistencies::default()
        }
    }

    pub(super) fn merge(&mut self, other: Inconsistencies) {
        self.missing.merge(other.missing);
        self.extra.merge(other.extra);
        for (mine, others) in self.indexes.iter_mut().zip(other.indexes) {
            *mine |= others;
        }
        self.errors.merge(other.errors);
        self.repairs.merge(other.repairs);
    }
}

/// Looks through one partition, on its owner.
pub(super) async fn find(
    verifier: Arc<Verifier>,
    id: PartitionId,
    at: ReadAt,
) -> Result<Inconsistencies> {
    let owned = storage().partition(id).expect("asked its owner");
    let mut part = Part {
        found: Inconsistencies::new(verifier.suspects.len()),
        partition: owned,
        verifier: verifier.clone(),
        at,
    };
    part.documents().await?;
    for (place, index) in verifier.suspected() {
        part.entries(place, index).await?;
    }
    Ok(part.found)
}

struct Part {
    verifier: Arc<Verifier>,
    partition: Rc<Partition>,
    found: Inconsistencies,
    at: ReadAt,
}

impl Part {
    fn mends(&self) -> bool {
        self.verifier.job.options.repair == RepairMode::FixErrors
    }

    async fn documents(&mut self) -> Result<()> {
        let verifier = self.verifier.clone();
        let tree = verifier.job.collection.tree();
        let mut walk = TreeWalk::new(&self.partition, tree, self.at);
        let mut group = Vec::new();
        loop {
            match walk.next().await? {
                Walked::Record(key, read) => {
                    if self.asks_for_suspects(&key, &read.value).await? {
                        group.push(key);
                    }
                }
                Walked::Unreadable(_) => {}
                Walked::End => break,
            }
            if group.len() == VERIFY_GROUP {
                self.verify_documents(&group, walk.at()).await?;
                group.clear();
            }
            verifier.job.progress.advance();
            pause(&verifier.job.ctx).await?;
        }
        self.verify_documents(&group, walk.at()).await?;
        self.at = walk.at();
        Ok(())
    }

    /// Whether a document has a key that is suspected.
    async fn asks_for_suspects(&self, key: &Key, bytes: &[u8]) -> Result<bool> {
        let (verifier, id) = (&*self.verifier, self.partition.id());
        let form = compute_bytes(bytes.len(), || form_of(bytes, false)).await;
        if matches!(form, Form::NotText(_) | Form::Invalid(_)) {
            return Ok(false);
        }
        let job = &*verifier.job;
        let (document, record) = (stored_document(bytes), job.collection.record_of(key));
        let collection = &*job.collection;
        for (_, index) in verifier.suspected() {
            let made = compute(&job.ctx, || entries_of(collection, index, document, record)).await;
            let entries = match made {
                Ok(made) => made.entries,
                Err(error) if is_interruption(&error) => return Err(error),
                Err(_) => continue,
            };
            let is_suspect = entries.iter().any(|entry| {
                let place = entry_partition(collection, index, entry, id, job.hash);
                verifier.suspects(index, place, &entry.key, &entry.type_bits)
            });
            if is_suspect {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn verify_documents(&mut self, keys: &[Key], at: ReadAt) -> Result<()> {
        let (verifier, id) = (self.verifier.clone(), self.partition.id());
        let verdicts = join_all(keys.iter().map(|key| {
            let verifier = verifier.clone();
            in_a_snapshot(at, move |at| {
                let verifier = verifier.clone();
                async move { verifier.missing_of(id, key, at).await }
            })
        }))
        .await;
        for missing in verdicts {
            for one in missing? {
                self.missing(one).await?;
            }
        }
        Ok(())
    }

    async fn missing(&mut self, missing: Missing) -> Result<()> {
        if self.mends() {
            let job = &self.verifier.job;
            let id = self.partition.id();
            match super::repair::put_missing(job, id, &missing).await? {
                Repaired::NotNeeded => return Ok(()),
                Repaired::Put => {
                    self.found.repairs.entries_put += 1;
                    return Ok(());
                }
                Repaired::Moved => {
                    self.found.repairs.documents_moved += 1;
                    return Ok(());
                }
                Repaired::Not => {}
            }
        }
        self.found.indexes[missing.place] = true;
        self.found.missing.add(missing.listed);
        Ok(())
    }

    async fn entries(&mut self, place: usize, index: &Arc<Index>) -> Result<()> {
        let verifier = self.verifier.clone();
        let id = self.partition.id();
        let mut walk = TreeWalk::new(&self.partition, index.tree, self.at);
        let mut group = Vec::new();
        loop {
            match walk.next().await? {
                Walked::Record(key, read) => {
                    if verifier.suspects(index, id, &key, &read.value) {
                        group.push(key);
                    }
                }
                Walked::Unreadable(_) => {}
                Walked::End => break,
            }
            if group.len() == VERIFY_GROUP {
                self.verify_entries(place, index, &group, walk.at()).await?;
                group.clear();
            }
            verifier.job.progress.advance();
            pause(&verifier.job.ctx).await?;
        }
        self.verify_entries(place, index, &group, walk.at()).await?;
        self.at = walk.at();
        Ok(())
    }

    async fn verify_entries(
        &mut self,
        place: usize,
        index: &Arc<Index>,
        keys: &[Key],
        at: ReadAt,
    ) -> Result<()> {
        let (verifier, id) = (self.verifier.clone(), self.partition.id());
        let verdicts = join_all(keys.iter().map(|key| {
            let verifier = verifier.clone();
            in_a_snapshot(at, move |at| {
                let verifier = verifier.clone();
                async move { verifier.extra(id, (place, &**index), key, at).await }
            })
        }))
        .await;
        for extra in verdicts {
            if let Some(extra) = extra? {
                self.extra(index, extra).await?;
            }
        }
        Ok(())
    }

    async fn extra(&mut self, index: &Arc<Index>, extra: Extra) -> Result<()> {
        if self.mends() {
            let (job, id) = (&self.verifier.job, self.partition.id());
            match super::repair::remove_extra(job, id, index, &extra).await? {
                Repaired::NotNeeded => return Ok(()),
                Repaired::Put | Repaired::Moved => {
                    self.found.repairs.entries_removed += 1;
                    return Ok(());
                }
                Repaired::Not => {}
            }
        }
        if extra.is_misplaced {
            let note = format!(
                "Index '{}' has an entry in another partition than its own",
                index.name()
            );
            self.found.errors.add(note);
        }
        self.found.indexes[extra.place] = true;
        self.found.extra.add(extra.listed);
        Ok(())
    }
}

/// A verdict in this snapshot, or in a newer one where that is gone.
async fn in_a_snapshot<T, F, Fut>(mut at: ReadAt, verify: F) -> Result<T>
where
    F: Fn(ReadAt) -> Fut,
    Fut: Future<Output = std::result::Result<T, Unverified>>,
{
    for _ in 0..MAX_SNAPSHOT_ATTEMPTS {
        match verify(at).await {
            Ok(verdict) => return Ok(verdict),
            Err(Unverified::SnapshotLost) => at = newest().await?,
            Err(Unverified::Failed(error)) => return Err(error),
        }
    }
    Err(Error::new(
        ErrorCode::SNAPSHOT_TOO_OLD,
        "memory for old versions is exhausted: no snapshot lasted for as long as a document is compared with its index entries",
    ))
}
