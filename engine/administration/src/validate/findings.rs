//! What a validation finds, as far as it has looked.

use pinion_catalog::Collection;
use pinion_query::MultikeyPaths;
use pinion_storage::{Key, PartitionId};

use super::key_table::KeyTable;
use crate::limits::{MAX_LISTED_RECORDS, MAX_VALIDATION_NOTES};

/// Errors or warnings, each of which is reported once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Notes {
    notes: Vec<String>,
    /// How many more there are.
    more: u64,
}

impl Notes {
    pub(super) fn add(&mut self, note: impl Into<String>) {
        let note = note.into();
        if self.notes.contains(&note) {
            return;
        }
        match self.notes.len() < MAX_VALIDATION_NOTES {
            true => self.notes.push(note),
            false => self.more += 1,
        }
    }

    pub(super) fn merge(&mut self, other: Notes) {
        other.notes.into_iter().for_each(|note| self.add(note));
        self.more += other.more;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    /// All of them, and last how many are not among them.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let more = (self.more > 0).then(|| format!("{} more are not listed", self.more));
        self.notes.iter().cloned().chain(more)
    }
}

/// Of one index.
#[derive(Clone, Debug, Default)]
pub(super) struct IndexFindings {
    /// Entries that it has.
    pub keys: u64,
    /// The hashes of the entries that documents ask for less those of the entries that there are.
    pub difference: u64,
    /// Where documents have arrays.
    pub multikey: Option<MultikeyPaths>,
    /// Where documents have arrays of which the index did not know, and the first of them.
    pub uncovered: Option<(MultikeyPaths, Key)>,
    pub errors: Notes,
}

impl IndexFindings {
    /// Notes where a document has arrays.
    pub(super) fn note_multikey(&mut self, paths: MultikeyPaths, is_known: bool, document: &Key) {
        if !is_known {
            match &mut self.uncovered {
                Some((known, _)) => {
                    known.merge(&paths);
                }
                None => self.uncovered = Some((paths.clone(), document.clone())),
            }
        }
        merge_paths(&mut self.multikey, paths);
    }

    fn merge(&mut self, other: IndexFindings) {
        self.keys += other.keys;
        self.difference = self.difference.wrapping_add(other.difference);
        if let Some(paths) = other.multikey {
            merge_paths(&mut self.multikey, paths);
        }
        match (&mut self.uncovered, other.uncovered) {
            (Some((known, _)), Some((paths, _))) => {
                known.merge(&paths);
            }
            (uncovered @ None, other) => *uncovered = other,
            (Some(_), None) => {}
        }
        self.errors.merge(other.errors);
    }
}

fn merge_paths(known: &mut Option<MultikeyPaths>, paths: MultikeyPaths) {
    match known {
        Some(known) => {
            known.merge(&paths);
        }
        None => *known = Some(paths),
    }
}

/// Of the first phase: of one partition, or of all.
#[derive(Debug)]
pub(super) struct Findings {
    pub records: u64,
    /// Of the records' documents.
    pub bytes: u64,
    pub invalid: u64,
    pub noncompliant: u64,
    /// Where invalid documents are, as far as they are listed.
    pub corrupt: Vec<(PartitionId, Key)>,
    pub errors: Notes,
    pub warnings: Notes,
    /// Of the complete indexes, in their order.
    pub indexes: Vec<IndexFindings>,
    pub table: KeyTable,
    /// How often memory for old versions ran out, and a newer snapshot was taken.
    pub snapshots_lost: u32,
    /// Documents could not be read, or came out of order.
    pub is_damaged: bool,
}

impl Findings {
    pub(super) fn new(collection: &Collection, buckets: usize) -> Findings {
        Findings {
            records: 0,
            bytes: 0,
            invalid: 0,
            noncompliant: 0,
            corrupt: Vec::new(),
            errors: Notes::default(),
            warnings: Notes::default(),
            indexes: vec![IndexFindings::default(); collection.ready_indexes().count()],
            table: KeyTable::new(buckets),
            snapshots_lost: 0,
            is_damaged: false,
        }
    }

    pub(super) fn note_corrupt(&mut self, partition: PartitionId, key: &Key) {
        self.invalid += 1;
        if self.corrupt.len() < MAX_LISTED_RECORDS {
            self.corrupt.push((partition, key.clone()));
        }
    }

    pub(super) fn merge(&mut self, other: Findings) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.invalid += other.invalid;
        self.noncompliant += other.noncompliant;
        let room = MAX_LISTED_RECORDS - self.corrupt.len();
        self.corrupt.extend(other.corrupt.into_iter().take(room));
        self.errors.merge(other.errors);
        self.warnings.merge(other.warnings);
        for (mine, others) in self.indexes.iter_mut().zip(other.indexes) {
            mine.merge(others);
        }
        self.table.merge(&other.table);
        self.snapshots_lost += other.snapshots_lost;
        self.is_damaged |= other.is_damaged;
    }

    /// Which indexes differ from what the documents ask for.
    pub(super) fn suspects(&self) -> Vec<bool> {
        let differs = |index: &IndexFindings| index.difference != 0;
        self.indexes.iter().map(differs).collect()
    }
}
