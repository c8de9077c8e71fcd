//! One partition's part of a read: it scans, filters, sorts and projects beside the data.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{
    BinarySubtype, DocBuilder, RawBinaryRef, RawBson, RawBsonRef, RawDocument, RawDocumentBuf,
};
use pinion_catalog::{Collection, document_id, entry_key, from_read_error, stored_document};
use pinion_clock::Timestamp;
use pinion_merge::{Batch, Item, PartCounters, StepSize};
use pinion_query::{
    Document, IndexKind, Matcher, Memory, MetaKind, MetaSource, Metadata, PartStages, Projection,
    SharedRoom, SortPattern, Subject, keyed,
};
use pinion_service::compute::compute;
use pinion_service::interrupt::is_interruption;
use pinion_service::metrics::metrics;
use pinion_storage::{Key, PartitionId, ReadAt, SnapshotPin, UnitId, storage};
use pinion_wire::{Error, ErrorCode, OpContext, Result};
use rustc_hash::FxHashMap;

use super::access::{Access, RangeAccess};
use super::matches::{count_matches, next_matches, yield_if_due};
use super::request::ReadRequest;
use super::scan::{Scan, ScannedDocument};
use super::sorted::SortedPart;
use super::staged::StagedRun;
use crate::acquire::{PrepareConflictBehavior, Renewal};
use crate::placement::Ownership;

/// What a part hands out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Documents, projected.
    Documents,
    /// The keys of the index that the documents were found by: nothing where no index was used.
    Keys,
    /// The keys of documents in the collection's tree.
    Ids,
    /// Nothing but the number of documents, as items of eight bytes that are to be summed.
    Count,
    /// The values of one of the fields of the index that is scanned, by its place: each once, in a
    /// field without a name.
    Distinct(usize),
}

/// A read as all its parts know it.
#[derive(Debug)]
pub struct PartSpec {
    pub collection: Arc<Collection>,
    /// Which documents the shard owns, where some may not be: others are passed over.
    pub ownership: Option<Arc<dyn Ownership>>,
    pub access: Access,
    /// What the access does not guarantee already.
    pub filter: Option<Matcher>,
    /// A sort in memory; without one the access gives the order.
    pub sort: Option<SortPattern>,
    pub projection: Option<Projection>,
    /// The paths that the projection keeps, and those of the shard key where documents are not all
    /// owned, where the index that is scanned has them all.
    pub covered: Option<Vec<String>>,
    /// Gives the metadata of documents that the sort order and the projection read.
    pub meta_source: Option<MetaSource>,
    /// What the projection reads of how documents are found.
    pub metadata: FoundMetadata,
    pub output: Output,
    pub show_record_id: bool,
    /// How many documents the whole read wants, skipped ones included.
    pub keep: Option<usize>,
    pub at: Timestamp,
    /// Whose writes are read beside the state at that time.
    pub unit: Option<UnitId>,
    pub prepare_conflicts: PrepareConflictBehavior,
    /// Which states may follow it while the read runs.
    pub renewal: Renewal,
    /// The read may outlive its guard of the collection's gate.
    pub is_unguarded: bool,
    /// What the sort of all parts may hold.
    pub sort_room: SharedRoom,
    /// What is run over the documents that are found.
    pub stages: Option<Arc<PartStages>>,
    pub memory: Memory,
}

/// What a projection, or what follows a read, reads of how a document is found.
#[derive(Debug, Default)]
pub struct FoundMetadata {
    /// The key of the index that found it.
    pub index_key: bool,
    /// Each document leaves with what is known of it, as `keyed` writes both.
    pub is_keyed: bool,
    pub record_id: bool,
    /// The order of which it has these values.
    pub sort: Option<SortPattern>,
}

impl FoundMetadata {
    /// What a request's projection, or what follows the read, reads of documents that are found in
    /// a way.
    pub(crate) fn of(request: &ReadRequest, access: &Access) -> FoundMetadata {
        let is_text = |branch: &RangeAccess| {
            let index = branch.index.as_ref();
            index.is_some_and(|index| index.spec.kind == IndexKind::Text)
        };
        // The keys of a text index are not shown.
        let by_index = || {
            matches!(
                access,
                Access::Id(_) | Access::Index(_) | Access::Union(_) | Access::Merge(_)
            ) && !access.branches().iter().any(is_text)
        };
        let projection = request.projection.as_ref();
        let reads = |kind| projection.is_some_and(|projection| projection.reads_meta(kind));
        let reads_either = |kind| reads(kind) || request.follow_up_metadata.contains(kind);
        FoundMetadata {
            index_key: reads_either(MetaKind::IndexKey) && by_index(),
            is_keyed: !request.follow_up_metadata.is_empty(),
            record_id: reads_either(MetaKind::RecordId),
            sort: request
                .sort
                .as_ref()
                .filter(|_| reads(MetaKind::SortKey))
                .cloned(),
        }
    }
}

impl PartSpec {
    /// How the state at a timestamp is read.
    pub(crate) fn read_at(&self, at: Timestamp) -> ReadAt {
        match self.unit {
            Some(unit) => ReadAt::In { at, unit },
            None if self.prepare_conflicts == PrepareConflictBehavior::Ignore => {
                ReadAt::DecidedAt(at)
            }
            None => ReadAt::At(at),
        }
    }

    /// Whether documents are examined that an index names.
    pub(crate) fn reads_documents(&self) -> bool {
        self.filter.is_some()
            || self.ownership.is_some()
            || self.sort.is_some()
            || matches!(self.output, Output::Documents | Output::Keys)
    }

    /// The plan in a few words.
    pub(crate) fn summary(&self) -> String {
        let is_scan = |access: &Access| matches!(access, Access::Index(_));
        match self.output {
            Output::Count if is_scan(&self.access) && !self.reads_documents() => {
                self.access.summary_of("COUNT_SCAN")
            }
            Output::Distinct(_) => self.access.summary_of("DISTINCT_SCAN"),
            _ => self.access.summary(),
        }
    }

    /// Whether greater order keys come first.
    pub(crate) fn descending(&self) -> bool {
        !self.sorts() && self.access.is_descending()
    }

    /// Whether stages make documents of those that are found: not one of each.
    pub(super) fn makes_documents(&self) -> bool {
        let stages = self.stages.as_deref();
        stages.is_some_and(|stages| !stages.before().is_empty())
    }

    /// Whether stages change documents as they leave the part.
    pub(super) fn changes_at_end(&self) -> bool {
        let stages = self.stages.as_deref();
        stages.is_some_and(PartStages::changes_at_end)
    }

    /// Whether documents, or their keys or values, leave the part as they are found: nothing is
    /// computed for them.
    fn gives_as_found(&self) -> bool {
        let reads_metadata = self.metadata.index_key
            || self.metadata.is_keyed
            || self.metadata.record_id
            || self.metadata.sort.is_some()
            || self.meta_source.is_some();
        let is_changed = self.projection.is_some() || self.show_record_id || self.changes_at_end();
        let is_kept = matches!(
            self.output,
            Output::Documents | Output::Ids | Output::Distinct(_)
        );
        is_kept && !is_changed && !reads_metadata
    }

    /// How many of `most` documents are made ready to leave the part at once: what is computed may
    /// take long, and come to much more than what was read.
    pub(super) fn at_once(&self, most: usize) -> usize {
        let (projection, stages) = (self.projection.as_ref(), self.stages.as_deref());
        let computes = projection.is_some_and(Projection::computes)
            || stages.is_some_and(PartStages::computes_at_end);
        if computes { most.min(1) } else { most }
    }

    /// Whether the parts sort in memory.
    pub(crate) fn sorts(&self) -> bool {
        let stages = self.stages.as_deref();
        self.sort.is_some() || stages.is_some_and(|stages| stages.sort().is_some())
    }

    pub(super) fn needs_position(&self) -> bool {
        self.projection
            .as_ref()
            .is_some_and(Projection::needs_position)
    }

    /// Whether the same document may come from several parts.
    pub(crate) fn repeats_over_parts(&self) -> bool {
        self.access.repeats_over_parts()
    }
}

enum State {
    Scanning(Box<Scan>),
    /// Scanning, with stages that are run over what is found.
    Staged(Box<Scan>, Box<StagedRun>),
    Sorted(Box<SortedPart>),
    Done,
}

struct Part {
    spec: Arc<PartSpec>,
    state: State,
    given: usize,
}

/// The open parts of one core.
#[derive(Default)]
pub struct PartTable {
    parts: RefCell<FxHashMap<u64, Slot>>,
    next: Cell<u64>,
}

enum Slot {
    Idle(Box<Part>),
    /// A step is running.
    Busy,
    /// Only keeps a snapshot readable.
    Pin(#[allow(dead_code, reason = "held for its drop")] SnapshotPin),
}

/// This core's parts of reads.
pub fn parts() -> Rc<PartTable> {
    pinion_runtime::core_local()
}

impl PartTable {
    /// Closes every part.
    pub fn clear(&self) {
        let closed = std::mem::take(&mut *self.parts.borrow_mut());
        drop(closed);
    }

    fn insert(&self, slot: Slot) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        self.parts.borrow_mut().insert(number, slot);
        number
    }

    /// Opens a part and takes its first step.
    pub(crate) async fn open(
        spec: Arc<PartSpec>,
        partition: PartitionId,
        ctx: &OpContext,
        step: StepSize,
    ) -> Result<(u64, Batch)> {
        let owned = storage().partition(partition).expect("asked its owner");
        let scan = Box::new(Scan::open(&spec, owned));
        let staged = spec.stages.as_deref().filter(|_| spec.makes_documents());
        let state = match staged.map(|stages| StagedRun::new(stages, &spec)) {
            Some(run) => State::Staged(scan, Box::new(run)),
            None => State::Scanning(scan),
        };
        let mut part = Box::new(Part {
            spec,
            state,
            given: 0,
        });
        let batch = part.step(ctx, step).await?;
        let number = if batch.done {
            u64::MAX
        } else {
            parts().insert(Slot::Idle(part))
        };
        Ok((number, batch))
    }

    /// Keeps the state of a partition at `at` readable until the number is closed.
    pub(crate) fn open_pin(partition: PartitionId, at: Timestamp) -> Result<u64> {
        let owned = storage().partition(partition).expect("asked its owner");
        let pin = owned.pin(at).map_err(from_read_error)?;
        Ok(parts().insert(Slot::Pin(pin)))
    }

    /// Takes a further step of a part.
    pub(crate) async fn step(number: u64, ctx: &OpContext, step: StepSize) -> Result<Batch> {
        let mut part = {
            let parts = parts();
            let mut parts = parts.parts.borrow_mut();
            match parts.get_mut(&number) {
                Some(slot @ Slot::Idle(_)) => match std::mem::replace(slot, Slot::Busy) {
                    Slot::Idle(part) => part,
                    _ => unreachable!("matched above"),
                },
                _ => return Err(Error::new(ErrorCode::CURSOR_KILLED, "the read was closed")),
            }
        };
        let result = part.step(ctx, step).await;
        let keep = matches!(&result, Ok(batch) if !batch.done);
        let parts = parts();
        let mut parts = parts.parts.borrow_mut();
        // Closed meanwhile: its slot is gone, and the part goes with this step.
        if let Some(slot) = parts.get_mut(&number) {
            if keep {
                *slot = Slot::Idle(part);
            } else {
                parts.remove(&number);
            }
        }
        result
    }

    /// Closes a part.
    pub(crate) fn close(number: u64) {
        // A node that is going down has no parts any more; then there is nothing to close.
        let Some(parts) = pinion_runtime::try_core_local::<PartTable>() else {
            return;
        };
        let closed = parts.parts.borrow_mut().remove(&number);
        drop(closed);
    }
}

impl Part {
    async fn step(&mut self, ctx: &OpContext, step: StepSize) -> Result<Batch> {
        let mut batch = Batch::default();
        if self.spec.sorts() {
            self.sort(ctx, &mut batch.counters).await?;
        }
        match &mut self.state {
            State::Scanning(scan)
                if self.spec.output == Output::Count && !self.spec.repeats_over_parts() =>
            {
                let count = count_matches(scan, &self.spec, ctx, &mut batch.counters).await?;
                if count > 0 {
                    batch.items.push(Item {
                        order: Key::new(),
                        id: None,
                        document: Ok(Bytes::copy_from_slice(&count.to_le_bytes())),
                    });
                }
                batch.done = true;
            }
            State::Scanning(scan) => {
                add_found(scan, &self.spec, ctx, step, self.given, &mut batch).await?;
                self.given += batch.items.len();
            }
            State::Staged(scan, run) => {
                add_staged(scan, run, &self.spec, ctx, step, self.given, &mut batch).await?;
                self.given += batch.items.len();
            }
            State::Sorted(sorted) => {
                let mut bytes = 0;
                while batch.items.len() < step.documents && bytes < step.bytes {
                    let Some(item) = sorted.next(&self.spec, ctx).await? else {
                        break;
                    };
                    bytes += item.size();
                    batch.items.push(item);
                }
                batch.done = sorted.is_at_end();
            }
            State::Done => batch.done = true,
        }
        batch.counters.returned += batch.items.len() as u64;
        let metrics = metrics();
        let counters = &metrics.counters;
        counters.keys_examined.add(batch.counters.keys_examined);
        counters.docs_examined.add(batch.counters.docs_examined);
        match &mut self.state {
            state if batch.done => *state = State::Done,
            State::Scanning(scan) | State::Staged(scan, _) => scan.release(),
            _ => {}
        }
        Ok(batch)
    }

    /// Sorts all that the part finds, unless that is done.
    async fn sort(&mut self, ctx: &OpContext, counters: &mut PartCounters) -> Result<()> {
        let spec = &self.spec;
        let sorted = match &mut self.state {
            State::Scanning(scan) => {
                let sort = spec.sort.as_ref().expect("asked where there is a sort");
                SortedPart::of(scan, sort, spec, ctx, counters).await?
            }
            State::Staged(scan, run) => {
                let stages = spec.stages.as_deref().expect("they are at work");
                SortedPart::of_stages(scan, run, stages, spec, ctx, counters).await?
            }
            State::Sorted(_) | State::Done => return Ok(()),
        };
        self.state = State::Sorted(Box::new(sorted));
        Ok(())
    }
}

/// Fills a batch with what the stages make of what a scan finds, as far as a step has room for it;
/// `given` documents were given before.
async fn add_staged(
    scan: &mut Scan,
    run: &mut StagedRun,
    spec: &PartSpec,
    ctx: &OpContext,
    step: StepSize,
    given: usize,
    batch: &mut Batch,
) -> Result<()> {
    let stages = spec.stages.as_deref().expect("they are at work");
    let keep = stages.keep().unwrap_or(usize::MAX);
    let mut bytes = 0;
    while (batch.items.len() < step.documents && bytes < step.bytes) || run.is_waiting(spec) {
        let is_enough = given + batch.items.len() >= keep;
        let made = match is_enough {
            true => None,
            false => {
                let counters = &mut batch.counters;
                run.next(scan, spec, ctx, counters).await?
            }
        };
        let Some(made) = made else {
            batch.done = true;
            break;
        };
        let item = Item {
            order: made.order,
            id: None,
            document: made.document.map(Document::into_bytes),
        };
        bytes += item.size();
        // Nothing is skipped of what stages make, so the read ends with this error at the latest.
        batch.done = item.document.is_err();
        batch.items.push(item);
        if batch.done {
            break;
        }
    }
    Ok(())
}

/// Fills a batch with what a scan finds, as far as a step has room for it; `given` documents of it
/// were given before. Whatever matched in one round is given, even beyond the bytes of a step,
/// since a transaction may change it before the next.
async fn add_found(
    scan: &mut Scan,
    spec: &PartSpec,
    ctx: &OpContext,
    step: StepSize,
    given: usize,
    batch: &mut Batch,
) -> Result<()> {
    assert!(batch.items.is_empty(), "a step fills one batch");
    let mut bytes = 0;
    let mut matched = VecDeque::new();
    while batch.items.len() < step.documents && bytes < step.bytes {
        let room = step.documents - batch.items.len();
        let most = spec
            .keep
            .map_or(room, |keep| room.min(keep - given - batch.items.len()));
        let most = spec.at_once(most);
        if most > 0 {
            next_matches(scan, spec, ctx, &mut batch.counters, most, &mut matched).await?;
        }
        if matched.is_empty() {
            batch.done = true;
            break;
        }
        if spec.gives_as_found() {
            let items = matched.drain(..).map(|found| as_found(spec, found));
            let items = items.inspect(|item| bytes += item.size());
            batch.items.extend(items);
            continue;
        }
        while let Some(found) = matched.pop_front() {
            yield_if_due(scan, ctx).await?;
            let metadata = metadata_of(spec, &found, ctx).await?;
            let item = finish(spec, found, &metadata, ctx).await?;
            let item = made_at_end(spec, item, ctx).await?;
            bytes += item.size();
            batch.items.push(item);
        }
    }
    Ok(())
}

/// What leaves the part in the place of a document, behind the sort if there is one.
pub(super) async fn made_at_end(spec: &PartSpec, item: Item, ctx: &OpContext) -> Result<Item> {
    let Some(stages) = spec.stages.as_deref().filter(|_| spec.changes_at_end()) else {
        return Ok(item);
    };
    let document = match item.document {
        Ok(document) => {
            let made = compute(ctx, || stages.finish(stored_document(&document))).await;
            match made {
                Err(error) if is_interruption(&error) => return Err(error),
                made => made.map_err(Box::new),
            }
        }
        failed => failed,
    };
    Ok(Item { document, ..item })
}

/// What is known of a document beside its fields, as far as something reads it.
pub(crate) async fn metadata_of(
    spec: &PartSpec,
    found: &ScannedDocument,
    ctx: &OpContext,
) -> Result<Metadata> {
    let mut known = Metadata::default();
    if let Some(source) = &spec.meta_source {
        let document = stored_document(&found.document);
        known = compute(ctx, || source.metadata(document)).await?;
    }
    if spec.metadata.index_key {
        known = known.with(MetaKind::IndexKey, index_key(spec, found)?);
    }
    if spec.metadata.record_id {
        let id = RawBson::from(record_id(&spec.collection, &found.id));
        known = known.with(MetaKind::RecordId, id);
    }
    if let Some(sort) = &spec.metadata.sort {
        let document = stored_document(&found.document);
        let metadata = &known;
        let subject = Subject { document, metadata };
        let values = compute(ctx, || sort.sort_values(subject)).await?;
        known = known.with(MetaKind::SortKey, values);
    }
    Ok(known)
}

/// The form in which a document leaves the part.
pub(crate) async fn finish(
    spec: &PartSpec,
    found: ScannedDocument,
    metadata: &Metadata,
    ctx: &OpContext,
) -> Result<Item> {
    let document = match (spec.output, &spec.projection) {
        (Output::Ids, _) => return Ok(as_found(spec, found)),
        // A document that may come from several parts counts where they are merged.
        (Output::Count, _) => Ok(Bytes::copy_from_slice(&1u64.to_le_bytes())),
        (Output::Keys, None) => Ok(Bytes::from(index_key(spec, &found)?.into_bytes())),
        // A router merges by what is beside the key.
        (Output::Keys, Some(projection)) => {
            let document = &index_key(spec, &found)?;
            let subject = Subject { document, metadata };
            let projected = compute(ctx, || projection.apply(subject, None)).await;
            let bytes = projected.map(|projected| Bytes::from(projected.into_bytes()));
            bytes.map_err(Box::new)
        }
        (_, Some(projection)) => {
            let (document, position) = (stored_document(&found.document), found.position);
            let subject = Subject { document, metadata };
            let projected = compute(ctx, || projection.apply(subject, position)).await;
            let shown = |projected: RawDocumentBuf| match spec.show_record_id {
                true => with_record_id(&spec.collection, &projected, &found.id),
                false => Bytes::from(projected.into_bytes()),
            };
            projected.map(shown).map_err(Box::new)
        }
        _ if spec.metadata.is_keyed => {
            let document = stored_document(&found.document);
            let keyed = compute(ctx, || keyed(document, metadata)).await;
            let bytes = keyed.map(|keyed| Bytes::from(keyed.into_bytes()));
            bytes.map_err(Box::new)
        }
        _ if spec.show_record_id => {
            let document = stored_document(&found.document);
            Ok(with_record_id(&spec.collection, document, &found.id))
        }
        _ => return Ok(as_found(spec, found)),
    };
    let id = spec.repeats_over_parts().then_some(found.id);
    Ok(Item {
        order: found.order,
        id,
        document,
    })
}

/// A document that leaves the part as it was found, or its key if that is asked for.
fn as_found(spec: &PartSpec, found: ScannedDocument) -> Item {
    let document = match spec.output {
        Output::Ids => Bytes::copy_from_slice(&found.id),
        _ => found.document,
    };
    Item {
        order: found.order,
        id: spec.repeats_over_parts().then_some(found.id),
        document: Ok(document),
    }
}

/// The document with the key that the collection holds it under, as MongoDB shows it: the number of
/// the record, or the bytes of a clustered collection's key.
fn with_record_id(collection: &Collection, document: &RawDocument, id: &[u8]) -> Bytes {
    let mut out = DocBuilder::new();
    out.append_all(document)
        .append("$recordId", record_id(collection, id));
    Bytes::from(out.finish_bytes())
}

fn record_id<'i>(collection: &Collection, id: &'i [u8]) -> RawBsonRef<'i> {
    match collection.record_of(id) {
        Some(record) => RawBsonRef::Int64(record),
        None => RawBsonRef::Binary(RawBinaryRef {
            subtype: BinarySubtype::Generic,
            bytes: id,
        }),
    }
}

/// What `returnKey` gives in place of the document.
fn index_key(spec: &PartSpec, found: &ScannedDocument) -> Result<RawDocumentBuf> {
    if let Some(entry) = &found.entry {
        let index = spec.access.branches()[entry.branch].index.as_ref();
        let index = index.expect("entries are of an index");
        return entry_key(index, &entry.key, &entry.type_bits);
    }
    let mut key = DocBuilder::new();
    if !matches!(spec.access, Access::Collection(_)) {
        key.append("_id", document_id(stored_document(&found.document))?);
    }
    Ok(key.finish())
}
