//! Whether a key is missing in an index, or an entry of an index is too many: a document and its
//! entries examined together, in one snapshot.
//!
//! A verdict holds for that snapshot. What another snapshot, or the sums of the first phase, made
//! suspected does not matter to it.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{
    Collection, Index, IndexEntry, Placement, entries_of, entry_key, entry_partition,
    from_read_error, partition_of, prefix_len, stored_document,
};
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::interrupt::is_interruption;
use pinion_storage::{Direction, Key, KeyRange, PartitionId, Read, ReadAt, ReadError, storage};
use pinion_wire::{Error, OpContext, Result};

use super::examine::{Form, form_of};
use super::job::{Job, read};
use super::key_table::{KeyHash, KeyTable};

/// An entry that a document asks for and its index lacks.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    /// Which of the complete indexes.
    pub place: usize,
    pub entry: IndexEntry,
    /// The document's key.
    pub document: Key,
    /// As it is listed.
    pub listed: RawDocumentBuf,
}

/// An entry for which no document asks.
#[derive(Clone, Debug)]
pub(crate) struct Extra {
    pub place: usize,
    pub key: Key,
    pub listed: RawDocumentBuf,
    /// A document asks for it in another partition.
    pub is_misplaced: bool,
}

/// Why there is no verdict.
pub(crate) enum Unverified {
    /// The snapshot is gone: another one may do.
    SnapshotLost,
    Failed(Error),
}

impl From<Error> for Unverified {
    fn from(error: Error) -> Unverified {
        Unverified::Failed(error)
    }
}

type Verified<T> = std::result::Result<T, Unverified>;

/// What was read, if it could be: what cannot be read was reported when it was met.
fn readable<T>(read: std::result::Result<T, ReadError>) -> Verified<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(ReadError::Corrupt { .. } | ReadError::Io(_)) => Ok(None),
        Err(ReadError::SnapshotTooOld) => Err(Unverified::SnapshotLost),
        Err(error) => Err(Unverified::Failed(from_read_error(error))),
    }
}

/// The entries of a document in an index; none that are known where it cannot be indexed, which was
/// reported.
async fn entries(
    job: &Job,
    index: &Index,
    document: &RawDocument,
    key: &[u8],
) -> Result<Vec<IndexEntry>> {
    let collection = &*job.collection;
    let record = collection.record_of(key);
    let made = compute(&job.ctx, || entries_of(collection, index, document, record)).await;
    match made {
        Ok(made) => Ok(made.entries),
        Err(error) if is_interruption(&error) => Err(error),
        Err(_) => Ok(Vec::new()),
    }
}

/// What the index entries of a collection are checked with.
pub(crate) struct Verifier {
    pub(super) job: Arc<Job>,
    /// The sums of the first phase; where there are none, every key is suspected.
    pub(super) table: Option<Arc<KeyTable>>,
    /// Which of the complete indexes differ from what the documents ask for.
    pub(super) suspects: Vec<bool>,
}

impl Verifier {
    /// What suspects every key of all complete indexes of a collection as a snapshot shows it.
    pub(crate) fn of_all(ctx: &OpContext, collection: Arc<Collection>) -> Arc<Verifier> {
        Arc::new(Verifier {
            suspects: vec![true; collection.ready_indexes().count()],
            job: Job::of_snapshot(ctx, collection),
            table: None,
        })
    }

    pub(super) fn suspected(&self) -> impl Iterator<Item = (usize, &Arc<Index>)> {
        let suspects = |(place, _): &(usize, &Arc<Index>)| self.suspects[*place];
        self.job.indexes().enumerate().filter(suspects)
    }

    /// Whether an entry of this partition may be one that is missing or too many.
    pub(super) fn suspects(
        &self,
        index: &Index,
        partition: PartitionId,
        key: &[u8],
        type_bits: &[u8],
    ) -> bool {
        let hash = || KeyHash::of(index.tree, partition, key, type_bits);
        let table = self.table.as_ref();
        table.is_none_or(|table| table.suspects(hash()))
    }

    /// The suspected entries of a document of this partition that its indexes lack.
    pub(crate) async fn missing_of(
        &self,
        partition: PartitionId,
        key: &Key,
        at: ReadAt,
    ) -> Verified<Vec<Missing>> {
        let job = &*self.job;
        let tree = job.collection.tree();
        let Some(Some(document)) = readable(read(partition, tree, key, at).await)? else {
            return Ok(Vec::new());
        };
        let mut missing = Vec::new();
        if !is_indexed(&document.value).await {
            return Ok(missing);
        }
        let stored = stored_document(&document.value);
        for (place, index) in self.suspected() {
            for entry in entries(job, index, stored, key).await? {
                let at_partition =
                    entry_partition(&job.collection, index, &entry, partition, job.hash);
                let (wanted, bits) = (&entry.key, &entry.type_bits);
                if !self.suspects(index, at_partition, wanted, bits) {
                    continue;
                }
                let there = readable(read(at_partition, index.tree, wanted, at).await)?;
                let is_missing =
                    there.is_some_and(|there| there.is_none_or(|there| there.value != *bits));
                if is_missing {
                    missing.push(self.missing(place, index, entry, key, stored));
                }
            }
        }
        match missing.is_empty() || self.is_unchanged(partition, key, &document, at).await? {
            true => Ok(missing),
            false => Ok(Vec::new()),
        }
    }

    /// Whether a document is still what was read. A snapshot does not change; what is not
    /// replicated has none, and is compared while it is written.
    async fn is_unchanged(
        &self,
        partition: PartitionId,
        key: &[u8],
        before: &Read,
        at: ReadAt,
    ) -> Verified<bool> {
        if at != ReadAt::Newest {
            return Ok(true);
        }
        let tree = self.job.collection.tree();
        let now = readable(read(partition, tree, key, at).await)?.flatten();
        Ok(now.is_some_and(|now| now.token == before.token))
    }

    fn missing(
        &self,
        place: usize,
        index: &Index,
        entry: IndexEntry,
        key: &Key,
        document: &RawDocument,
    ) -> Missing {
        let mut listed = self.listed(index, key, &entry.key, &entry.type_bits);
        if let Some(id) = pinion_bson::get(document, "_id") {
            listed = with_id_key(&listed, id);
        }
        Missing {
            place,
            entry,
            document: key.clone(),
            listed,
        }
    }

    /// An entry as it is listed, without the `_id` of its document.
    fn listed(&self, index: &Index, record: &[u8], key: &[u8], bits: &[u8]) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("indexName", index.name());
        let record = self.job.record_id(record);
        out.append("recordId", record.as_raw_bson_ref());
        match entry_key(index, key, bits) {
            Ok(fields) => out.append("indexKey", &*fields),
            Err(error) => out.append("error", error.message.as_str()),
        };
        out.finish()
    }

    /// The entry of this partition if no document asks for it.
    pub(crate) async fn extra(
        &self,
        partition: PartitionId,
        (place, index): (usize, &Index),
        key: &Key,
        at: ReadAt,
    ) -> Verified<Option<Extra>> {
        let Some(Some(entry)) = readable(read(partition, index.tree, key, at).await)? else {
            return Ok(None);
        };
        // An entry that is no key names no document.
        let prefix = prefix_len(index, key).unwrap_or(key.len());
        let name = &key[prefix..];
        let Some(named) = readable(self.named(partition, name, at).await)? else {
            return Ok(None);
        };
        let mut is_misplaced = false;
        for (home, document_key, document) in &named {
            if !is_document(&document.value).await {
                continue;
            }
            if !is_indexed(&document.value).await {
                return Ok(None);
            }
            let stored = stored_document(&document.value);
            let made = entries(&self.job, index, stored, document_key).await?;
            let asked = made
                .iter()
                .find(|made| made.key == *key && made.type_bits == entry.value);
            let Some(asked) = asked else { continue };
            let collection = &self.job.collection;
            if entry_partition(collection, index, asked, *home, self.job.hash) == partition {
                return Ok(None);
            }
            is_misplaced = true;
        }
        for (home, document_key, document) in &named {
            if !self.is_unchanged(*home, document_key, document, at).await? {
                return Ok(None);
            }
        }
        if at == ReadAt::Newest && !self.is_still_there(partition, index, key, &entry).await? {
            return Ok(None);
        }
        Ok(Some(Extra {
            place,
            key: key.clone(),
            listed: self.listed(index, name, key, &entry.value),
            is_misplaced,
        }))
    }

    async fn is_still_there(
        &self,
        partition: PartitionId,
        index: &Index,
        key: &[u8],
        before: &Read,
    ) -> Verified<bool> {
        let now = readable(read(partition, index.tree, key, ReadAt::Newest).await)?;
        Ok(now.flatten().is_some_and(|now| now.token == before.token))
    }

    /// The documents that an entry of this partition may name, with their partitions and keys.
    async fn named(
        &self,
        partition: PartitionId,
        name: &[u8],
        at: ReadAt,
    ) -> std::result::Result<Vec<(PartitionId, Key, Read)>, ReadError> {
        let collection = &self.job.collection;
        let tree = collection.tree();
        if collection.placement != Placement::Scattered {
            let home = partition_of(collection, name);
            let found = read(home, tree, name, at).await?;
            let with_place = |read| (home, Key::from_slice(name), read);
            return Ok(found.map(with_place).into_iter().collect());
        }
        // Its forms have keys that begin with it, and lie beside their entries.
        let owned = storage().partition(partition).expect("asked its owner");
        let (range, forward) = (KeyRange::prefix(name), Direction::Forward);
        let mut cursor = owned.cursor(tree, range, forward, at);
        let mut found = Vec::new();
        while let Some((key, read)) = cursor.next().await? {
            found.push((partition, key, read));
        }
        Ok(found)
    }
}

/// Whether bytes are a document.
async fn is_document(bytes: &[u8]) -> bool {
    let form = compute_bytes(bytes.len(), || form_of(bytes, false)).await;
    !matches!(form, Form::Invalid(_))
}

/// Whether bytes are a document whose keys are compared.
async fn is_indexed(bytes: &[u8]) -> bool {
    let form = compute_bytes(bytes.len(), || form_of(bytes, false)).await;
    matches!(form, Form::Sound | Form::Nonconformant(_))
}

/// A listed entry with the `_id` of its document before its key.
fn with_id_key(listed: &RawDocument, id: RawBsonRef<'_>) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for (name, value) in pinion_bson::elements(listed) {
        if name == "indexKey" {
            out.start_document("idKey").append_raw("_id", id);
            out.end();
        }
        out.append_raw(name, value);
    }
    out.finish()
}
