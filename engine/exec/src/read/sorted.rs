//! The sort of a part: what its scan finds, in the order of a pattern.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_catalog::stored_document;
use pinion_merge::{Item, PartCounters};
use pinion_query::{
    DiskSorter, Metadata, Next, PartStages, SortPattern, Spilled, Spiller, Subject,
};
use pinion_service::compute::compute;
use pinion_service::interrupt::{check, is_interruption, pause};
use pinion_service::metrics::metrics;
use pinion_service::spill::SpillFile;
use pinion_storage::Key;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::matches::{next_matches, yield_if_due};
use super::part::{PartSpec, finish, made_at_end, metadata_of};
use super::scan::{Scan, ScannedDocument, ScannedEntry};
use super::staged::StagedRun;
use crate::limits::{ROUND_BYTES, ROUND_DOCUMENTS};

/// A document in the sort.
struct Entry {
    found: ScannedDocument,
    /// What is known of it beside its fields: computed again where it was on disk meanwhile.
    metadata: Option<Metadata>,
}

/// What was found, sorted.
pub(super) struct SortedPart {
    sorter: DiskSorter<Entry>,
    file: SpillFile,
    /// The next items: none where none follows.
    ready: VecDeque<Item>,
}

impl SortedPart {
    /// Sorts all that a scan finds.
    pub(super) async fn of(
        scan: &mut Scan,
        sort: &SortPattern,
        spec: &PartSpec,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<SortedPart> {
        let room = spec.sort_room.room();
        let mut part = SortedPart {
            sorter: DiskSorter::new(Spiller::Sort, spec.keep, room),
            file: SpillFile::default(),
            ready: VecDeque::new(),
        };
        let mut keys = 0;
        let mut matched = VecDeque::new();
        loop {
            if matched.is_empty() {
                next_matches(scan, spec, ctx, counters, usize::MAX, &mut matched).await?;
            }
            let Some(found) = matched.pop_front() else {
                break;
            };
            yield_if_due(scan, ctx).await?;
            let metadata = metadata_of(spec, &found, ctx).await?;
            let subject = Subject {
                document: stored_document(&found.document),
                metadata: &metadata,
            };
            let key = compute(ctx, || sort.sort_key(subject)).await?;
            let size = found.document.len() + found.id.len();
            keys += 1;
            let metadata = Some(metadata);
            if part.sorter.push(key, Entry { found, metadata }, size)? {
                part.file.serve(ctx, &mut part.sorter).await?;
            }
        }
        part.end(keys, spec, ctx, counters).await?;
        Ok(part)
    }

    /// Sorts all that stages make of what a scan finds.
    pub(super) async fn of_stages(
        scan: &mut Scan,
        run: &mut StagedRun,
        stages: &PartStages,
        spec: &PartSpec,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<SortedPart> {
        let mut part = SortedPart {
            sorter: DiskSorter::new(Spiller::Sort, stages.keep(), spec.sort_room.room()),
            file: SpillFile::default(),
            ready: VecDeque::new(),
        };
        let mut arrived = 0_u64;
        while let Some(made) = run.next(scan, spec, ctx, counters).await? {
            let keyed = match made.document {
                Ok(document) => {
                    let key = compute(ctx, || stages.sort_key(&document)).await;
                    key.map(|key| (key, document)).map_err(Box::new)
                }
                Err(error) => Err(error),
            };
            let (mut key, document) = match keyed {
                Ok(keyed) => keyed,
                Err(error) if is_interruption(&error) => return Err(*error),
                Err(error) => {
                    return Ok(SortedPart::failed(&made.order, error, spec));
                }
            };
            // Documents of equal keys stay in the order of those that they were made of.
            key.extend_from_slice(&made.order);
            key.extend_from_slice(&arrived.to_be_bytes());
            arrived += 1;
            let document = document.into_bytes();
            let size = document.len();
            let found = ScannedDocument {
                order: Key::new(),
                id: Key::new(),
                document,
                position: None,
                entry: None,
            };
            let metadata = None;
            if part.sorter.push(key, Entry { found, metadata }, size)? {
                part.file.serve(ctx, &mut part.sorter).await?;
            }
        }
        part.end(arrived, spec, ctx, counters).await?;
        Ok(part)
    }

    /// A part that gives this error alone, in front of all documents: without the one that it is of
    /// there is no order. Of several parts that fail, that of the document that comes first is in
    /// front.
    fn failed(order: &[u8], error: Box<Error>, spec: &PartSpec) -> SortedPart {
        let mut sorter = DiskSorter::new(Spiller::Sort, None, spec.sort_room.room());
        sorter.end();
        let mut in_front = Key::from_slice(&[0]);
        in_front.extend_from_slice(order);
        SortedPart {
            sorter,
            file: SpillFile::default(),
            ready: VecDeque::from([Item {
                order: in_front,
                id: None,
                document: Err(error),
            }]),
        }
    }

    /// Begins to give what was sorted by a number of keys.
    async fn end(
        &mut self,
        keys: u64,
        spec: &PartSpec,
        ctx: &OpContext,
        counters: &mut PartCounters,
    ) -> Result<()> {
        check(ctx)?;
        self.sorter.end();
        self.refill(spec, ctx).await?;
        counters.sort_bytes += self.sorter.sorted_bytes();
        counters.spilled.add(&self.file.take_counts());
        let metrics = metrics();
        let metrics = &metrics.counters;
        metrics.sort_total_bytes.add(self.sorter.sorted_bytes());
        metrics.sort_total_keys.add(keys);
        Ok(())
    }

    /// Takes the next item; `None` at the end.
    pub(super) async fn next(&mut self, spec: &PartSpec, ctx: &OpContext) -> Result<Option<Item>> {
        let next = self.ready.pop_front();
        if self.ready.is_empty() {
            self.refill(spec, ctx).await?;
        }
        Ok(next)
    }

    /// Whether every item was taken.
    pub(super) fn is_at_end(&self) -> bool {
        self.ready.is_empty()
    }

    /// Makes some items ready, if any are left.
    async fn refill(&mut self, spec: &PartSpec, ctx: &OpContext) -> Result<()> {
        let most = spec.at_once(ROUND_DOCUMENTS);
        loop {
            pause(ctx).await?;
            let (sorter, mut entries, mut bytes) = (&mut self.sorter, Vec::new(), 0);
            let mut stop = None;
            // What is refused for its work continues with the entry that it was refused at.
            let some = || {
                while entries.len() < most && bytes < ROUND_BYTES && stop.is_none() {
                    match sorter.next_entry()? {
                        Next::Entry(key, entry) => {
                            bytes += entry.found.document.len();
                            entries.push((key, entry));
                        }
                        other => stop = Some(other),
                    }
                }
                Ok(())
            };
            compute(ctx, some).await?;
            for (key, entry) in entries {
                let item = item_of(&key, entry, spec, ctx).await?;
                self.ready.push_back(made_at_end(spec, item, ctx).await?);
            }
            if let Some(Next::Disk) = stop {
                self.file.serve(ctx, &mut self.sorter).await?;
            }
            if !self.ready.is_empty() || matches!(stop, Some(Next::End)) {
                return Ok(());
            }
        }
    }
}

/// What a part gives of a sorted document.
async fn item_of(key: &[u8], entry: Entry, spec: &PartSpec, ctx: &OpContext) -> Result<Item> {
    let Entry {
        mut found,
        metadata,
    } = entry;
    found.order = Key::from_slice(key);
    if spec.sort.is_none() {
        // Made by stages, which gave it the form that it has.
        return Ok(Item {
            order: found.order,
            id: None,
            document: Ok(found.document),
        });
    }
    let metadata = match metadata {
        Some(metadata) => metadata,
        None => metadata_of(spec, &found, ctx).await?,
    };
    finish(spec, found, &metadata, ctx).await
}

/// What is written in front of the document: whether and where the filter matched in an array,
/// whether and of which branch there is an entry, and the lengths of the keys and of the entry's
/// type bits.
const FIELDS: usize = 7;

impl Spilled for Entry {
    fn spilled_bytes(&self) -> usize {
        let entry = self.found.entry.as_ref();
        let entry = entry.map_or(0, |entry| entry.key.len() + entry.type_bits.len());
        4 * FIELDS + self.found.id.len() + entry + self.found.document.len()
    }

    fn write(&self, out: &mut Vec<u8>) {
        let found = &self.found;
        let entry = found.entry.as_deref();
        let fields: [u32; FIELDS] = [
            u32::from(found.position.is_some()),
            found.position.unwrap_or(0),
            u32::from(entry.is_some()),
            entry.map_or(0, |entry| entry.branch as u32),
            found.id.len() as u32,
            entry.map_or(0, |entry| entry.key.len() as u32),
            entry.map_or(0, |entry| entry.type_bits.len() as u32),
        ];
        for field in fields {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&found.id);
        if let Some(entry) = entry {
            out.extend_from_slice(&entry.key);
            out.extend_from_slice(&entry.type_bits);
        }
        out.extend_from_slice(&found.document);
    }

    fn read(mut bytes: &[u8]) -> Result<Entry> {
        let mut fields = [0u32; FIELDS];
        for field in &mut fields {
            let (head, rest) = bytes.split_first_chunk().ok_or_else(unreadable)?;
            *field = u32::from_le_bytes(*head);
            bytes = rest;
        }
        let [matched, position, has_entry, branch, id, key, type_bits] = fields;
        let mut take = |length: u32| -> Result<&[u8]> {
            let (head, rest) = bytes
                .split_at_checked(length as usize)
                .ok_or_else(unreadable)?;
            bytes = rest;
            Ok(head)
        };
        let id = Key::from_slice(take(id)?);
        let key = Key::from_slice(take(key)?);
        let type_bits = Bytes::copy_from_slice(take(type_bits)?);
        let entry = (has_entry != 0).then(|| {
            Box::new(ScannedEntry {
                branch: branch as usize,
                key,
                type_bits,
            })
        });
        let found = ScannedDocument {
            order: Key::new(),
            id,
            document: Bytes::copy_from_slice(bytes),
            position: (matched != 0).then_some(position),
            entry,
        };
        Ok(Entry {
            found,
            metadata: None,
        })
    }
}

fn unreadable() -> Error {
    Error::new(
        ErrorCode::INTERNAL_ERROR,
        "a document that was spilled has a form that is not known",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(position: Option<u32>, entry: Option<ScannedEntry>) {
        let found = ScannedDocument {
            order: Key::from_slice(b"order"),
            id: Key::from_slice(b"id"),
            document: Bytes::from_static(b"document"),
            position,
            entry: entry.map(Box::new),
        };
        let entry = Entry {
            found: found.clone(),
            metadata: None,
        };
        let mut bytes = Vec::new();
        entry.write(&mut bytes);
        assert_eq!(bytes.len(), entry.spilled_bytes());
        let read = Entry::read(&bytes).expect("sound").found;
        let expected = ScannedDocument {
            order: Key::new(),
            ..found
        };
        assert_eq!(format!("{read:?}"), format!("{expected:?}"));
        assert!(Entry::read(&bytes[..20]).is_err());
    }

    #[test]
    fn what_was_found_comes_back() {
        let entry = ScannedEntry {
            branch: 3,
            key: Key::from_slice(b"key"),
            type_bits: Bytes::from_static(b"bits"),
        };
        check(None, None);
        check(Some(0), None);
        check(Some(7), Some(entry));
    }
}
