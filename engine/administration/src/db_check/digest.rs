//! What a member has in a range of documents or of index entries, at one timestamp.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use md5::{Digest as _, Md5};
use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_catalog::{
    Collection, Index, Placement, core_catalog, entry_key, from_read_error, partition_of,
    prefix_len,
};
use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, Instant, Queue, join_all, submit_to};
use pinion_service::compute::compute_bytes;
use pinion_service::interrupt::{is_interruption, pause};
use pinion_storage::{Key, KeyRange, PartitionId, ReadAt, ReadError, TreeId, storage};
use pinion_wire::{Error, ErrorCode, OpContext};

use super::health_log::{OF_DOCUMENT, OF_INDEX};
use super::options::{BsonMode, Checks, ValidateMode};
use super::range::{Border, Range};
use super::walk::{OrderedWalk, Room, Walked};
use crate::limits::{CHECK_LOOKUP_BYTES, CHECK_LOOKUPS, MAX_CHECK_FAULTS, MAX_LISTED_ENTRY_BYTES};
use crate::validate::{Form, Snapshot, Unverified, Verifier, form_of, read};

/// Why a range was not read to its end.
#[derive(Debug)]
pub(super) enum Unread {
    /// The snapshot is gone, or is of a time at which this member did not have the collection;
    /// something else than the data keeps it from being read.
    Unavailable(String),
    /// What is stored is damaged.
    Damaged(String),
    Interrupted(Error),
}

impl From<Error> for Unread {
    fn from(error: Error) -> Unread {
        match error.code {
            _ if is_interruption(&error) => Unread::Interrupted(error),
            // A read that the device refuses is internal.
            ErrorCode::DATA_CORRUPTION_DETECTED | ErrorCode::INTERNAL_ERROR => {
                Unread::Damaged(error.message)
            }
            _ => Unread::Unavailable(error.message),
        }
    }
}

impl From<ReadError> for Unread {
    fn from(error: ReadError) -> Unread {
        from_read_error(error).into()
    }
}

/// How much is read at most.
pub(super) struct Limits {
    pub count: u64,
    pub bytes: u64,
    pub until: Option<Instant>,
}

impl Limits {
    /// As much as there is.
    pub(super) const NONE: Limits = Limits {
        count: u64::MAX,
        bytes: u64::MAX,
        until: None,
    };
}

/// Something that is wrong on this member alone.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub scope: &'static str,
    pub msg: &'static str,
    pub found: RawDocumentBuf,
}

/// What was read.
pub(super) struct Digest {
    pub md5: String,
    pub count: u64,
    pub bytes: u64,
    /// Up to where, if not to the end of the range.
    pub last: Option<Border>,
    pub faults: Faults,
}

/// Faults, of which as many are listed as there is room for.
#[derive(Default)]
pub(super) struct Faults {
    pub listed: Vec<Fault>,
    bytes: usize,
    pub count: u64,
}

impl Faults {
    fn add(&mut self, fault: Fault) {
        self.count += 1;
        if self.listed.len() < MAX_CHECK_FAULTS && self.bytes < MAX_LISTED_ENTRY_BYTES {
            self.bytes += fault.found.as_bytes().len();
            self.listed.push(fault);
        }
    }

    fn add_all(&mut self, others: Faults) {
        let unlisted = others.count - others.listed.len() as u64;
        others.listed.into_iter().for_each(|fault| self.add(fault));
        self.count += unlisted;
    }
}

/// A collection at one timestamp, which stays readable as long as this lives.
pub(super) struct View {
    ctx: OpContext,
    collection: Arc<Collection>,
    checks: Checks,
    /// The index of the mode that looks at one, with its place among the complete ones.
    index: Option<(usize, Arc<Index>)>,
    snapshot: Snapshot,
}

impl View {
    /// The collection as it was at `ts`, which is visible.
    pub(super) async fn open(
        ctx: &OpContext,
        uuid: pinion_catalog::Uuid,
        checks: &Checks,
        ts: Timestamp,
    ) -> Result<View, Unread> {
        let snapshot = Snapshot::hold(ts).await??;
        let unavailable = |what: &str| Err(Unread::Unavailable(format!("{what} at {ts}")));
        if core_catalog().current().is_partial() {
            return unavailable("this member is being copied, and has no state");
        }
        let Some(catalog) = core_catalog().at(ts) else {
            return unavailable("the catalog is not kept any more as it was");
        };
        let Some(collection) = catalog.by_uuid(uuid) else {
            return unavailable("the collection was not there");
        };
        if collection.visible_from > ts {
            return unavailable("the collection cannot be read");
        }
        if collection.placement == Placement::Scattered {
            return unavailable(
                "each member keeps the collection in its own form, which cannot be compared,",
            );
        }
        let collection = collection.seen_at(ts).without_builds();
        let index = match checks.mode {
            ValidateMode::ExtraKeys if has_own_entries(&collection) => {
                return Err(Unread::Unavailable(OWN_ENTRIES.to_owned()));
            }
            ValidateMode::ExtraKeys => find_index(&collection, &checks.index, ts)?,
            ValidateMode::Data | ValidateMode::MissingKeys => None,
        };
        Ok(View {
            ctx: ctx.clone(),
            collection,
            checks: checks.clone(),
            index,
            snapshot,
        })
    }

    pub(super) fn index(&self) -> Option<&Index> {
        self.index.as_ref().map(|(_, index)| &**index)
    }

    fn at(&self) -> ReadAt {
        self.snapshot.at()
    }

    /// The tree that has what is walked over, and the keys of the range in it.
    fn tree(&self, range: &Range) -> (TreeId, KeyRange) {
        if let Some((_, index)) = &self.index {
            return (index.tree, range.of_keys());
        }
        let keys = range.of_ids(&self.collection);
        match self.collection.id_index_beside_tree() {
            Some(index) => (index.tree, keys),
            None => (self.collection.tree(), keys),
        }
    }

    /// Reads a range, as far as the limits allow, but one record at least.
    pub(super) async fn digest(&self, range: &Range, limits: &Limits) -> Result<Digest, Unread> {
        let (tree, keys) = self.tree(range);
        let mut walk = OrderedWalk::new(tree, keys, self.at());
        let mut found = Finding::new(self);
        let mut last: Option<Border> = None;
        while let Some(walked) = walk.next(found.room(limits)).await? {
            let is_full = found.count >= limits.count
                || found.bytes >= limits.bytes
                || limits
                    .until
                    .is_some_and(|until| pinion_runtime::now() >= until);
            if found.count > 0 && is_full {
                found.look_up().await?;
                return Ok(found.end(last));
            }
            last = Some(found.take(walked).await?);
            pause(&self.ctx).await?;
        }
        found.look_up().await?;
        Ok(found.end(None))
    }
}

/// The index of a collection that the client names. That on `_id` is the tree of the documents
/// itself, in most collections.
fn find_index(
    collection: &Arc<Collection>,
    name: &str,
    ts: Timestamp,
) -> Result<Option<(usize, Arc<Index>)>, Unread> {
    let mut ready = collection.ready_indexes().enumerate();
    let found = ready.find(|(_, index)| index.name() == name);
    let found = found.map(|(place, index)| (place, index.clone()));
    if found.is_some() {
        return Ok(found);
    }
    let what = match name == "_id_" && collection.index(name).is_none() {
        true => "the index on _id has no entries beside the documents: they need no such check",
        false => "there is no such index",
    };
    Err(Unread::Unavailable(format!("{name}: {what} at {ts}")))
}

/// Records of such a collection are numbered by each member, and its entries end with these
/// numbers.
pub(super) fn has_own_entries(collection: &Collection) -> bool {
    collection.id_index_beside_tree().is_some()
}

pub(super) const OWN_ENTRIES: &str = "the extraIndexKeysCheck validateMode is not for capped collections: each member numbers their records, so the entries of their indexes cannot be compared";

/// What is being read.
struct Finding<'v> {
    view: &'v View,
    verifier: Option<Arc<Verifier>>,
    digest: Md5,
    count: u64,
    bytes: u64,
    faults: Faults,
    /// Records whose entries, or documents, are yet to be looked up, and their bytes.
    waiting: Vec<(PartitionId, Key)>,
    waiting_bytes: usize,
}

impl<'v> Finding<'v> {
    fn new(view: &'v View) -> Finding<'v> {
        let looks_up = match view.checks.mode {
            ValidateMode::Data => false,
            ValidateMode::MissingKeys => true,
            ValidateMode::ExtraKeys => !view.checks.skips_lookup,
        };
        let verifier = || Verifier::of_all(&view.ctx, view.collection.clone());
        Finding {
            view,
            verifier: looks_up.then(verifier),
            digest: Md5::new(),
            count: 0,
            bytes: 0,
            faults: Faults::default(),
            waiting: Vec::new(),
            waiting_bytes: 0,
        }
    }

    fn end(self, last: Option<Border>) -> Digest {
        use std::fmt::Write;
        let mut md5 = String::new();
        for byte in self.digest.finalize() {
            let _ = write!(md5, "{byte:02x}");
        }
        Digest {
            md5,
            count: self.count,
            bytes: self.bytes,
            last,
            faults: self.faults,
        }
    }

    /// What a batch still takes, and one record more, which shows whether there is a rest.
    fn room(&self, limits: &Limits) -> Room {
        let records = limits.count.saturating_sub(self.count);
        Room {
            records: records.saturating_add(1),
            bytes: limits.bytes.saturating_sub(self.bytes),
        }
    }

    fn fault(&mut self, scope: &'static str, msg: &'static str, found: RawDocumentBuf) {
        self.faults.add(Fault { scope, msg, found });
    }

    /// Takes the next record, and gives where it is.
    async fn take(&mut self, walked: Walked) -> Result<Border, Unread> {
        if let Some((_, index)) = &self.view.index {
            let index = index.clone();
            return self.take_entry(&index, walked).await;
        }
        let Some(index) = self.view.collection.id_index_beside_tree() else {
            let (partition, key) = (walked.partition, walked.key);
            return self.take_document(partition, key, &walked.value).await;
        };
        // Records are in another order, and the index names them.
        let prefix = prefix_len(index, &walked.key).unwrap_or(walked.key.len());
        let record = Key::from_slice(&walked.key[prefix..]);
        let collection = &self.view.collection;
        let partition = partition_of(collection, &record);
        let document = read(partition, collection.tree(), &record, self.view.at()).await?;
        match document {
            Some(document) => self.take_document(partition, record, &document.value).await,
            None => {
                let shown = shown_entry(index, &walked.key, &walked.value)?;
                self.count += 1;
                self.digest.update(&walked.key[..prefix]);
                let msg = "found extra index key entry without corresponding document";
                self.fault(OF_INDEX, msg, shown.clone());
                Ok(Border { shown, entry: None })
            }
        }
    }

    async fn take_document(
        &mut self,
        partition: PartitionId,
        key: Key,
        bytes: &Bytes,
    ) -> Result<Border, Unread> {
        self.count += 1;
        self.bytes += bytes.len() as u64;
        let (digest, bson) = (&mut self.digest, self.view.checks.bson);
        let form = compute_bytes(bytes.len(), || {
            digest.update(bytes);
            form_of(bytes, bson == BsonMode::Full)
        });
        let refusal = match form.await {
            Form::Sound => None,
            Form::Nonconformant(_) | Form::NotText(_) if bson == BsonMode::Default => None,
            Form::Nonconformant(what) => Some(what),
            Form::NotText(error) => Some(error.to_string()),
            Form::Invalid(what) => Some(what),
        };
        let document = RawDocument::from_bytes(bytes).ok();
        let id = document.and_then(|document| pinion_bson::get(document, "_id"));
        let Some(id) = id else {
            let what =
                refusal.unwrap_or_else(|| "a document has no _id that can be read".to_owned());
            return Err(Unread::Damaged(what));
        };
        let border = Border::of_id(id);
        if let Some(what) = refusal {
            let mut found = DocBuilder::new();
            found.append_raw("_id", id).append("error", what.as_str());
            let msg = "Document is not well-formed BSON";
            self.fault(OF_DOCUMENT, msg, found.finish());
        } else if self.verifier.is_some() {
            let bytes = key.len() + bytes.len();
            self.wait_for_lookup(partition, key, bytes).await?;
        }
        Ok(border)
    }

    async fn take_entry(&mut self, index: &Index, walked: Walked) -> Result<Border, Unread> {
        self.count += 1;
        let bytes = walked.key.len() + walked.value.len();
        self.bytes += bytes as u64;
        self.digest.update((walked.key.len() as u64).to_le_bytes());
        self.digest.update(&walked.key);
        let border = Border {
            shown: shown_entry(index, &walked.key, &walked.value)?,
            entry: Some(walked.key.clone()),
        };
        if self.verifier.is_some() {
            self.wait_for_lookup(walked.partition, walked.key, bytes)
                .await?;
        }
        Ok(border)
    }

    async fn wait_for_lookup(
        &mut self,
        partition: PartitionId,
        key: Key,
        bytes: usize,
    ) -> Result<(), Unread> {
        self.waiting.push((partition, key));
        self.waiting_bytes += bytes;
        match self.waiting.len() < CHECK_LOOKUPS && self.waiting_bytes < CHECK_LOOKUP_BYTES {
            true => Ok(()),
            false => self.look_up().await,
        }
    }

    /// Looks up the entries of documents, or the documents of entries, on the owners of their
    /// partitions.
    async fn look_up(&mut self) -> Result<(), Unread> {
        let Some(verifier) = self.verifier.clone() else {
            return Ok(());
        };
        let at = self.view.at();
        let mut by_owner: BTreeMap<u16, Vec<(PartitionId, Key)>> = BTreeMap::new();
        for (partition, key) in std::mem::take(&mut self.waiting) {
            let owner = storage().owner(partition);
            by_owner.entry(owner.0).or_default().push((partition, key));
        }
        self.waiting_bytes = 0;
        // Each core has one document in memory at a time.
        let found = join_all(by_owner.into_iter().map(|(owner, records)| {
            let (verifier, index) = (verifier.clone(), self.view.index.clone());
            submit_to(CoreId(owner), Queue::Background, move || async move {
                let mut faults = Faults::default();
                for (partition, key) in records {
                    let index = index.as_ref().map(|(place, index)| (*place, &**index));
                    let found = verdict(&verifier, partition, index, &key, at).await?;
                    for (msg, found) in found {
                        let scope = OF_INDEX;
                        faults.add(Fault { scope, msg, found });
                    }
                }
                Ok::<_, Unread>(faults)
            })
        }))
        .await;
        for faults in found {
            self.faults.add_all(faults?);
        }
        Ok(())
    }
}

/// What is wrong between a document, or an entry, and what belongs to it.
async fn verdict(
    verifier: &Verifier,
    partition: PartitionId,
    index: Option<(usize, &Index)>,
    key: &Key,
    at: ReadAt,
) -> Result<Vec<(&'static str, RawDocumentBuf)>, Unread> {
    let lost = |unverified| match unverified {
        Unverified::SnapshotLost => Unread::Unavailable("the snapshot is not kept any more".into()),
        Unverified::Failed(error) => Unread::from(error),
    };
    match index {
        None => {
            let missing = verifier.missing_of(partition, key, at).await;
            let msg = "Document has missing index keys";
            let found = missing.map_err(lost)?.into_iter();
            Ok(found.map(|missing| (msg, missing.listed)).collect())
        }
        Some((place, index)) => {
            let extra = verifier.extra(partition, (place, index), key, at).await;
            let msg = "found extra index key entry without corresponding document";
            let found = extra.map_err(lost)?.into_iter();
            Ok(found.map(|extra| (msg, extra.listed)).collect())
        }
    }
}

fn shown_entry(index: &Index, key: &[u8], bits: &[u8]) -> Result<RawDocumentBuf, Unread> {
    entry_key(index, key, bits).map_err(|error| Unread::Damaged(error.message))
}

/// Whether a collection is one that `dbCheck` compares.
pub(super) fn is_compared(collection: &Collection) -> bool {
    collection.is_replicated()
        && collection.placement != Placement::Scattered
        && !collection.is_oplog()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_counted_that_are_not_listed() {
        let fault = || Fault {
            scope: OF_INDEX,
            msg: "",
            found: RawDocumentBuf::new(),
        };
        let of = |count| {
            let mut faults = Faults::default();
            (0..count).for_each(|_| faults.add(fault()));
            faults
        };
        let mut all = of(30);
        all.add_all(of(MAX_CHECK_FAULTS + 5));
        assert_eq!(all.listed.len(), MAX_CHECK_FAULTS);
        assert_eq!(all.count, MAX_CHECK_FAULTS as u64 + 35);
    }

    #[test]
    fn what_is_no_damage_is_no_error() {
        for code in [
            ErrorCode::INVALID_OPTIONS,
            ErrorCode::TEMPORARILY_UNAVAILABLE,
            ErrorCode::OUT_OF_DISK_SPACE,
            ErrorCode::SNAPSHOT_TOO_OLD,
        ] {
            let unread = Unread::from(Error::new(code, ""));
            assert!(matches!(unread, Unread::Unavailable(_)), "{code:?}");
        }
        let damage = Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, "");
        assert!(matches!(Unread::from(damage), Unread::Damaged(_)));
    }
}
