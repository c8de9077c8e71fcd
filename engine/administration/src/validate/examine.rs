//! The first phase in one partition: each document alone, and the sums over the keys of documents
//! and indexes.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{Fault, InvalidBson, RawBsonRef, RawDocument};
use pinion_catalog::{
    Collection, Index, belongs, entries_of, entry_key, entry_partition, prefix_len, stored_document,
};
use pinion_exec::topology::cluster_time;
use pinion_query::{BucketState, Validator, check_bucket};
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::fail_points::hold_validation;
use pinion_service::interrupt::{is_interruption, pause};
use pinion_storage::{Key, Partition, PartitionId, Read, ReadAt, ReadError, storage};
use pinion_wire::{Error, Result};

use super::conformance::nonconformance;
use super::findings::Findings;
use super::job::Job;
use super::key_table::KeyHash;
use super::tree_walk::{TreeWalk, Walked};
use crate::limits::MAX_LOGGED_FAULTS;

const INVALID: &str = "Detected one or more invalid documents. See logs.";
const NONCONFORMANT: &str = "Detected one or more documents in this collection not conformant to BSON specifications. For more info, see logs with log id 6825900";
const REFUSED: &str = "Detected one or more documents not compliant with the collection's schema. Check logs for log id 5363500.";
const UNSOUND_BUCKET: &str = "Detected one or more documents in this collection incompatible with time-series specifications. For more info, see logs with log id 6698300.";
const COMPRESSED_BUCKET: &str = "Buckets of the versions 2 and 3 were not checked: this server does not support their compressed columns.";

/// Looks through one partition, on its owner.
pub(super) async fn examine(job: Arc<Job>, id: PartitionId, at: ReadAt) -> Result<Findings> {
    let owned = storage().partition(id).expect("asked its owner");
    let (validator, refusal) = match validator(&job).await {
        Ok(validator) => (validator, None),
        Err(error) if is_interruption(&error) => return Err(error),
        Err(error) => (None, Some(error.message)),
    };
    let mut part = Part {
        findings: Findings::new(&job.collection, job.buckets),
        partition: owned,
        job: job.clone(),
        at,
        validator,
        logged: 0,
    };
    if let Some(message) = refusal {
        let note = format!("The collection's validator cannot be understood: {message}");
        part.findings.warnings.add(note);
    }
    part.documents().await?;
    hold_validation(&job.ctx, None).await?;
    for (place, index) in job.indexes().enumerate() {
        part.entries(place, index).await?;
    }
    Ok(part.findings)
}

async fn validator(job: &Job) -> Result<Option<Arc<Validator>>> {
    let collection: &Collection = &job.collection;
    if !collection.has_validator() || job.series.is_some() {
        return Ok(None);
    }
    let (now_ms, cluster_time) = (pinion_runtime::wall_ms(), cluster_time());
    let parsed = compute(&job.ctx, || collection.validator(now_ms, cluster_time)).await?;
    Ok(Some(parsed))
}

/// What is to be said of the bytes of a document.
pub(crate) enum Form {
    Sound,
    /// It is a document, but does not conform.
    Nonconformant(String),
    /// It has strings or names that are no text, so that it cannot be looked into.
    NotText(InvalidBson),
    Invalid(String),
}

/// Checks the bytes of a document.
pub(crate) fn form_of(bytes: &[u8], thoroughly: bool) -> Form {
    let document = match pinion_bson::validate(bytes) {
        Ok(document) => document,
        Err(error) if error.fault == Fault::NotUtf8 => return Form::NotText(error),
        Err(error) => return Form::Invalid(error.to_string()),
    };
    if pinion_bson::get(document, "_id").is_none() {
        return Form::Invalid("the document has no _id".to_owned());
    }
    match nonconformance(document, thoroughly) {
        Some(what) => Form::Nonconformant(what),
        None => Form::Sound,
    }
}

struct Part {
    job: Arc<Job>,
    partition: Rc<Partition>,
    findings: Findings,
    at: ReadAt,
    validator: Option<Arc<Validator>>,
    /// Faults of documents that were logged.
    logged: usize,
}

impl Part {
    async fn documents(&mut self) -> Result<()> {
        let tree = self.job.collection.tree();
        let mut walk = TreeWalk::new(&self.partition, tree, self.at);
        loop {
            match walk.next().await? {
                Walked::Record(key, read) => self.document(&key, &read.value).await?,
                Walked::Unreadable(error) => {
                    self.findings.is_damaged = true;
                    let note = format!("Some documents cannot be read: {error}");
                    self.findings.errors.add(note);
                }
                Walked::End => break,
            }
            self.job.progress.advance();
            pause(&self.job.ctx).await?;
        }
        if walk.out_of_order {
            self.findings.is_damaged = true;
            let errors = &mut self.findings.errors;
            errors.add("Detected out-of-order documents. See logs.");
        }
        self.leave(&walk);
        Ok(())
    }

    /// What comes next is read in the newest snapshot that was taken.
    fn leave(&mut self, walk: &TreeWalk) {
        self.at = walk.at();
        self.findings.snapshots_lost += walk.snapshots_lost;
    }

    /// Logs what is wrong with a document, unless there was enough of that.
    fn log(&mut self, id: u64, what: &'static str, key: &Key, reason: &str) {
        self.logged += 1;
        if self.logged > MAX_LOGGED_FAULTS {
            return;
        }
        tracing::warn!(
            target: "STORAGE",
            id,
            namespace = self.job.collection.ns.as_str(),
            recordId = self.job.record_text(key),
            reason,
            "{what}"
        );
    }

    async fn document(&mut self, key: &Key, bytes: &Bytes) -> Result<()> {
        self.findings.records += 1;
        self.findings.bytes += bytes.len() as u64;
        let thoroughly = self.job.options.conformance;
        match compute_bytes(bytes.len(), || form_of(bytes, thoroughly)).await {
            Form::Sound => {}
            Form::Nonconformant(what) => self.nonconformant(key, &what),
            Form::NotText(error) => {
                self.nonconformant(key, &error.to_string());
                return Ok(());
            }
            Form::Invalid(what) => {
                self.findings.note_corrupt(self.partition.id(), key);
                self.findings.errors.add(INVALID);
                self.log(20_404, "Document corruption details", key, &what);
                return Ok(());
            }
        }
        let document = stored_document(bytes);
        self.place(key, document);
        self.compliance(key, document).await?;
        let job = self.job.clone();
        for (place, index) in job.indexes().enumerate() {
            self.keys(place, index, key, document).await?;
        }
        Ok(())
    }

    fn nonconformant(&mut self, key: &Key, what: &str) {
        self.findings.noncompliant += 1;
        self.findings.warnings.add(NONCONFORMANT);
        self.log(
            6_825_900,
            "Document is not conformant to BSON specifications",
            key,
            what,
        );
    }

    fn place(&mut self, key: &Key, document: &RawDocument) {
        let id = pinion_bson::get(document, "_id").unwrap_or(RawBsonRef::Null);
        let collection = &self.job.collection;
        if !belongs(collection, id, key, self.partition.id()) {
            let id = pinion_query::value_text(id);
            let note = format!("The document with _id {id} is not where it belongs");
            self.findings.errors.add(note);
        }
    }

    /// Whether the document is what its collection takes.
    async fn compliance(&mut self, key: &Key, document: &RawDocument) -> Result<()> {
        let job = self.job.clone();
        if let Some(form) = &job.series {
            let collation = job.collection.collation.as_deref();
            match compute(&job.ctx, || check_bucket(form, collation, document)).await? {
                BucketState::Sound => {}
                BucketState::Compressed => self.findings.warnings.add(COMPRESSED_BUCKET),
                BucketState::Unsound(what) => {
                    self.findings.noncompliant += 1;
                    self.findings.errors.add(UNSOUND_BUCKET);
                    let message = "Document is not compliant with time-series specifications";
                    self.log(6_698_300, message, key, &what);
                }
            }
        }
        let Some(validator) = self.validator.clone() else {
            return Ok(());
        };
        let reason = match compute(&job.ctx, || validator.check(document)).await {
            Ok(None) => return Ok(()),
            Ok(Some(details)) => pinion_query::document_text(&details),
            Err(error) if is_interruption(&error) => return Err(error),
            Err(error) => error.message,
        };
        self.findings.noncompliant += 1;
        self.findings.warnings.add(REFUSED);
        let message = "Document is not compliant with the collection's schema";
        self.log(5_363_500, message, key, &reason);
        Ok(())
    }

    /// Adds the keys that a document asks for in an index.
    async fn keys(
        &mut self,
        place: usize,
        index: &Arc<Index>,
        key: &Key,
        document: &RawDocument,
    ) -> Result<()> {
        let (job, collection) = (self.job.clone(), &*self.job.collection);
        let record = collection.record_of(key);
        let made = compute(&job.ctx, || entries_of(collection, index, document, record)).await;
        let found = &mut self.findings.indexes[place];
        let made = match made {
            Ok(made) => made,
            Err(error) if is_interruption(&error) => return Err(error),
            Err(error) => {
                found.errors.add(cannot_be_indexed(&job, key, &error));
                return Ok(());
            }
        };
        for entry in &made.entries {
            let id = self.partition.id();
            let at = entry_partition(&job.collection, index, entry, id, job.hash);
            let hash = KeyHash::of(index.tree, at, &entry.key, &entry.type_bits);
            found.difference = found.difference.wrapping_add(hash.value());
            self.findings.table.add(hash);
        }
        if let Some(paths) = made.multikey {
            let is_known = index.spec.knows_multikey(&paths);
            found.note_multikey(paths, is_known, key);
        }
        Ok(())
    }

    async fn entries(&mut self, place: usize, index: &Arc<Index>) -> Result<()> {
        let mut walk = TreeWalk::new(&self.partition, index.tree, self.at);
        let mut last: Option<Last> = None;
        loop {
            match walk.next().await? {
                Walked::Record(key, read) => {
                    let prefix = self.entry(place, index, &key, &read.value);
                    if let (Some(prefix), true) = (prefix, index.spec.unique) {
                        let at = walk.at();
                        let next = Last {
                            key,
                            prefix,
                            read,
                            at,
                        };
                        if let Some(last) = &last {
                            self.check_unique(place, index, [last, &next]).await?;
                        }
                        last = Some(next);
                    }
                    let entries = self.findings.indexes[place].keys;
                    hold_validation(&self.job.ctx, Some((index.name(), entries))).await?;
                }
                Walked::Unreadable(error) => self.findings.indexes[place].errors.add(format!(
                    "Some entries of index '{}' cannot be read: {error}",
                    index.name()
                )),
                Walked::End => break,
            }
            self.job.progress.advance();
            pause(&self.job.ctx).await?;
        }
        if walk.out_of_order {
            self.findings.indexes[place].errors.add(format!(
                "index '{}' is not in strictly ascending or descending order",
                index.name()
            ));
        }
        self.leave(&walk);
        Ok(())
    }

    /// Takes an entry that is there; the length of its fields' part.
    fn entry(
        &mut self,
        place: usize,
        index: &Arc<Index>,
        key: &Key,
        type_bits: &[u8],
    ) -> Option<usize> {
        let found = &mut self.findings.indexes[place];
        found.keys += 1;
        let hash = KeyHash::of(index.tree, self.partition.id(), key, type_bits);
        found.difference = found.difference.wrapping_sub(hash.value());
        self.findings.table.take(hash);
        let prefix = prefix_len(index, key);
        if prefix.is_none() {
            found.errors.add(format!(
                "index '{}' has an entry that is no key of it",
                index.name()
            ));
        }
        prefix
    }

    /// Whether an entry is there in the state in which the one after it was read. It may have gone
    /// before that one came, where there is no snapshot, or where the snapshot of the first was
    /// lost.
    async fn is_there_with(&self, index: &Index, last: &Last, next: &Last) -> Result<bool> {
        let has_no_snapshot = next.at == ReadAt::Newest;
        if last.at == next.at && !has_no_snapshot {
            return Ok(true);
        }
        let read = self.partition.get(index.tree, &last.key, next.at).await;
        let there = match read {
            // The one reports itself, and the other has the walk take a newer snapshot.
            Err(ReadError::Corrupt { .. } | ReadError::Io(_) | ReadError::SnapshotTooOld) => None,
            read => read.map_err(pinion_catalog::from_read_error)?,
        };
        Ok(there.is_some_and(|there| !has_no_snapshot || there.token == last.read.token))
    }

    async fn check_unique(
        &mut self,
        place: usize,
        index: &Arc<Index>,
        [last, next]: [&Last; 2],
    ) -> Result<()> {
        if last.key[..last.prefix] != next.key[..next.prefix]
            || !self.is_there_with(index, last, next).await?
        {
            return Ok(());
        }
        let fields = entry_key(index, &next.key, &next.read.value);
        let fields = fields.map_or_else(
            |error| error.message,
            |fields| pinion_query::document_text(&fields),
        );
        let [first, second] = [last, next].map(|it| self.job.record_text(&it.key[it.prefix..]));
        self.findings.indexes[place].errors.add(format!(
            "Unique index '{}' has duplicate key: {fields}, first record: {first}, second record: {second}",
            index.name()
        ));
        Ok(())
    }
}

/// An entry of a unique index, how long the part of its fields is, and where it was read.
struct Last {
    key: Key,
    prefix: usize,
    read: Read,
    at: ReadAt,
}

fn cannot_be_indexed(job: &Job, key: &Key, error: &Error) -> String {
    format!(
        "The document with recordId {} cannot be indexed: {}",
        job.record_text(key),
        error.message
    )
}
