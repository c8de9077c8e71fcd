//! The reply of `validate`, in MongoDB's form.

use pinion_bson::{DocBuilder, RawBson};
use pinion_catalog::Collection;
use pinion_clock::Timestamp;
use pinion_wire::Reply;

use super::findings::{Findings, Notes};
use super::inconsistencies::Inconsistencies;
use super::options::RepairMode;
use super::repair::{Repairs, lost_and_found};

/// What was found, as it is reported.
pub(super) struct Report {
    pub repair: RepairMode,
    /// Something was mended.
    pub repaired: bool,
    pub repairs: Repairs,
    /// Which is not reported: it is no repair.
    pub is_count_corrected: bool,
    /// What was read at, where all was read at one time.
    pub read_at: Option<Timestamp>,
    pub errors: Notes,
    pub warnings: Notes,
    /// Of the documents and indexes, if these were examined.
    pub contents: Option<Contents>,
}

pub(super) struct Contents {
    pub findings: Findings,
    pub inconsistencies: Inconsistencies,
    /// The documents of `findings.corrupt`, as clients name them.
    pub corrupt: Vec<RawBson>,
}

impl Contents {
    fn is_valid(&self, place: usize) -> bool {
        self.findings.indexes[place].errors.is_empty() && !self.inconsistencies.indexes[place]
    }
}

impl Report {
    pub(super) fn is_valid(&self) -> bool {
        let indexes = |contents: &Contents| {
            let mut places = 0..contents.findings.indexes.len();
            contents.findings.errors.is_empty()
                && contents.inconsistencies.errors.is_empty()
                && places.all(|place| contents.is_valid(place))
        };
        self.errors.is_empty() && self.contents.as_ref().is_none_or(indexes)
    }

    /// Warns of what was mended.
    pub(super) fn note_repairs(&mut self, collection: &Collection) {
        let Repairs {
            documents_removed,
            entries_removed,
            entries_put,
            documents_moved,
        } = self.repairs;
        self.repaired |= self.repairs != Repairs::default();
        let mut note = |count: u64, what: String| {
            if count > 0 {
                self.warnings.add(what);
            }
        };
        note(
            documents_removed,
            format!("Removed {documents_removed} invalid documents."),
        );
        note(
            entries_put,
            format!("Inserted {entries_put} missing index entries."),
        );
        note(
            documents_moved,
            format!(
                "Removed {documents_moved} duplicate documents to resolve {documents_moved} missing index entries. Removed documents can be found in 'local.{}'.",
                lost_and_found(collection)
            ),
        );
        note(
            entries_removed,
            format!("Removed {entries_removed} extra index entries."),
        );
    }

    pub(super) fn reply(&self, collection: &Collection) -> Reply {
        let mut out = Reply::new();
        out.append("ns", collection.ns.as_str())
            .append("uuid", collection.uuid.to_bson());
        if let Some(Contents { findings, .. }) = &self.contents {
            append_count(&mut out, "nInvalidDocuments", findings.invalid);
            append_count(&mut out, "nNonCompliantDocuments", findings.noncompliant);
            append_count(&mut out, "nrecords", findings.records);
        }
        out.append("nIndexes", collection.index_count() as i32);
        self.append_indexes(&mut out, collection);
        out.append("valid", self.is_valid())
            .append("repaired", self.repaired)
            .append("repairMode", self.repair.name());
        if let Some(ts) = self.read_at {
            out.append("readTimestamp", bson_time(ts));
        }
        self.append_notes(&mut out);
        self.append_entries(&mut out);
        if self.repaired {
            self.append_repairs(&mut out);
        }
        out
    }

    fn append_indexes(&self, out: &mut DocBuilder, collection: &Collection) {
        out.start_document("keysPerIndex");
        if let Some(Contents { findings, .. }) = &self.contents {
            if collection.tree_is_id_index() {
                append_count(out, "_id_", findings.records);
            }
            for (index, found) in collection.ready_indexes().zip(&findings.indexes) {
                append_count(out, index.name(), found.keys);
            }
        }
        out.end().start_document("indexDetails");
        if collection.tree_is_id_index() {
            let contents = self.contents.as_ref();
            let valid = contents.is_none_or(|contents| !contents.findings.is_damaged);
            out.start_document("_id_")
                .append("valid", valid)
                .append("spec", &*collection.options.id_index())
                .end();
        }
        for (place, index) in collection.ready_indexes().enumerate() {
            let contents = self.contents.as_ref();
            out.start_document(index.name())
                .append("valid", contents.is_none_or(|found| found.is_valid(place)))
                .append("spec", &*index.listed);
            if let Some(found) = contents {
                append_index_errors(out, found, place, index.name());
            }
            out.end();
        }
        out.end();
    }

    fn append_notes(&self, out: &mut DocBuilder) {
        let contents = self.contents.as_ref();
        out.start_array("warnings");
        let found = contents.map(|contents| &contents.findings.warnings);
        for note in found
            .into_iter()
            .chain([&self.warnings])
            .flat_map(Notes::lines)
        {
            out.push(note.as_str());
        }
        if let Some(Contents {
            inconsistencies, ..
        }) = contents
        {
            for (count, what) in [
                (inconsistencies.missing.count, "missing"),
                (inconsistencies.extra.count, "extra"),
            ] {
                if count > 0 {
                    out.push(format!("Detected {count} {what} index entries.").as_str());
                }
            }
        }
        out.end().start_array("errors");
        let found = contents.into_iter().flat_map(|contents| {
            let index = contents.findings.indexes.iter().map(|index| &index.errors);
            [&contents.findings.errors, &contents.inconsistencies.errors]
                .into_iter()
                .chain(index)
        });
        for note in found.chain([&self.errors]).flat_map(Notes::lines) {
            out.push(note.as_str());
        }
        if let Some(Contents {
            inconsistencies, ..
        }) = contents
        {
            for (listed, what) in [
                (&inconsistencies.missing, "missing"),
                (&inconsistencies.extra, "extra"),
            ] {
                if !listed.is_complete() {
                    out.push(
                        format!("Not all {what} index entry inconsistencies are listed due to size limitations.")
                            .as_str(),
                    );
                }
            }
        }
        out.end();
    }

    fn append_entries(&self, out: &mut DocBuilder) {
        let contents = self.contents.as_ref();
        let inconsistencies = contents.map(|contents| &contents.inconsistencies);
        for (name, listed) in [
            ("extraIndexEntries", inconsistencies.map(|it| &it.extra)),
            ("missingIndexEntries", inconsistencies.map(|it| &it.missing)),
        ] {
            out.start_array(name);
            for entry in listed.iter().flat_map(|listed| &listed.entries) {
                out.push(&**entry);
            }
            out.end();
        }
        out.start_array("corruptRecords");
        for record in contents.iter().flat_map(|contents| &contents.corrupt) {
            out.push(record.as_raw_bson_ref());
        }
        out.end();
    }

    fn append_repairs(&self, out: &mut DocBuilder) {
        let repairs = &self.repairs;
        for (name, count) in [
            ("numRemovedCorruptRecords", repairs.documents_removed),
            ("numRemovedExtraIndexEntries", repairs.entries_removed),
            ("numInsertedMissingIndexEntries", repairs.entries_put),
            ("numDocumentsMovedToLostAndFound", repairs.documents_moved),
        ] {
            append_count(out, name, count);
        }
    }
}

fn append_index_errors(out: &mut DocBuilder, contents: &Contents, place: usize, name: &str) {
    if contents.is_valid(place) {
        return;
    }
    out.start_array("errors");
    for error in contents.findings.indexes[place].errors.lines() {
        out.push(error.as_str());
    }
    if contents.inconsistencies.indexes[place] {
        out.push(format!("Index with name '{name}' has inconsistencies.").as_str());
    }
    out.end();
}

fn bson_time(ts: Timestamp) -> pinion_bson::RawBsonRef<'static> {
    pinion_bson::RawBsonRef::Timestamp(pinion_catalog::bson_timestamp(ts))
}

/// A count as MongoDB's `appendNumber` writes it: an int where it fits.
fn append_count(out: &mut DocBuilder, name: &str, count: u64) {
    match i32::try_from(count) {
        Ok(count) => out.append(name, count),
        Err(_) => out.append(name, count as i64),
    };
}
