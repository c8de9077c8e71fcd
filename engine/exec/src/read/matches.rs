//! What a scan finds and its filter lets pass: a block at a time where what comes next is in one
//! and must not be waited for, and one by one elsewhere.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_catalog::stored_document;
use pinion_merge::PartCounters;
use pinion_query::{Document, work};
use pinion_runtime::should_yield;
use pinion_service::compute::{compute, offload};
use pinion_service::interrupt::pause;
use pinion_service::limits::CORE_BUDGET;
use pinion_storage::{Block, BlockRecord};
use pinion_wire::{OpContext, Result};

use super::access::Access;
use super::branches::Branches;
use super::part::PartSpec;
use super::renew::Snapshot;
use super::scan::{Scan, ScanContext, ScannedDocument};
use crate::limits::{ROUND_BYTES, ROUND_DOCUMENTS, ROUND_WORK};

/// What one step of a scan comes to.
pub(super) enum Tested {
    Matches(ScannedDocument),
    /// A document that is not owned, or that the filter does not let pass.
    Fails,
    End,
}

/// A document that matches.
enum Match<'b> {
    /// It lies in a block of the collection's own tree. Where in an array the filter matched, if
    /// that is asked for.
    InBlock(BlockRecord<'b>, Option<u32>),
    Document(ScannedDocument),
}

impl Match<'_> {
    fn found(self) -> ScannedDocument {
        match self {
            Match::InBlock(record, position) => ScannedDocument::in_collection(record, position),
            Match::Document(found) => found,
        }
    }

    fn document(self) -> Bytes {
        match self {
            Match::InBlock(record, _) => record.to_bytes(),
            Match::Document(found) => found.document,
        }
    }
}

/// What a round over a scan comes to.
#[derive(PartialEq, Eq)]
enum Round {
    /// Documents were examined. Those that match were taken.
    Examined,
    End,
}

/// How far the documents of a block were examined.
enum Examined {
    Documents,
    /// None: the first of them is not in memory, or is gone, or lies in another partition.
    MustWait,
    /// None: the filter of the first takes longer than a core may be held.
    TooLong,
}

/// Adds the next documents that match to those in `matched`, which must be empty: at least one but
/// at the end, at most `most`, and no more than are examined in one round.
///
/// # Errors
/// Those of the scan and of the filter; the operation is stopped.
pub(crate) async fn next_matches(
    scan: &mut Scan,
    spec: &PartSpec,
    ctx: &OpContext,
    counters: &mut PartCounters,
    most: usize,
    matched: &mut VecDeque<ScannedDocument>,
) -> Result<()> {
    assert!(most > 0, "no document is asked for");
    assert!(matched.is_empty(), "documents are left of those before");
    while matched.is_empty() {
        let mut take = |found: Match<'_>| matched.push_back(found.found());
        if round(scan, spec, ctx, counters, most, &mut take).await? == Round::End {
            break;
        }
    }
    Ok(())
}

/// As [`next_matches`], where nothing but the documents is wanted, and all of them are.
pub(crate) async fn next_documents(
    scan: &mut Scan,
    spec: &PartSpec,
    ctx: &OpContext,
    counters: &mut PartCounters,
    documents: &mut VecDeque<Document>,
) -> Result<()> {
    assert!(documents.is_empty(), "documents are left of those before");
    while documents.is_empty() {
        let mut take = |found: Match<'_>| documents.push_back(found.document().into());
        if round(scan, spec, ctx, counters, usize::MAX, &mut take).await? == Round::End {
            break;
        }
    }
    Ok(())
}

/// How many documents match, up to as many as are wanted.
pub(super) async fn count_matches(
    scan: &mut Scan,
    spec: &PartSpec,
    ctx: &OpContext,
    counters: &mut PartCounters,
) -> Result<u64> {
    let most = spec.keep.map_or(u64::MAX, |keep| keep as u64);
    let mut count = 0;
    while count < most {
        // What needs no look is passed over as far as possible; then others are examined.
        let passed = scan.pass(most - count);
        match spec.access {
            Access::Collection(_) => counters.docs_examined += passed,
            _ => counters.keys_examined += passed,
        }
        counters.works += passed;
        counters.matched += passed;
        count += passed;
        if count >= most {
            break;
        }
        if scan.only_counts() && scan.gives_blocks() {
            yield_if_due(scan, ctx).await?;
            if scan.fill(ctx, counters).await? {
                continue;
            }
            counters.works += 1;
            break;
        }
        let left = usize::try_from(most - count).unwrap_or(usize::MAX);
        let mut take = |_: Match<'_>| count += 1;
        if round(scan, spec, ctx, counters, left, &mut take).await? == Round::End {
            break;
        }
    }
    Ok(count)
}

/// Examines some documents, and has those that match taken: at most `most`.
async fn round(
    scan: &mut Scan,
    spec: &PartSpec,
    ctx: &OpContext,
    counters: &mut PartCounters,
    most: usize,
    take: &mut impl FnMut(Match<'_>),
) -> Result<Round> {
    yield_if_due(scan, ctx).await?;
    let mut examined = Examined::MustWait;
    if scan.gives_blocks() {
        if !scan.fill(ctx, counters).await? {
            counters.works += 1;
            return Ok(Round::End);
        }
        examined = examine(scan, ctx, counters, most, take)?;
    }
    let tested = match examined {
        Examined::Documents => return Ok(Round::Examined),
        Examined::MustWait => test_next(scan, spec, ctx, counters).await?,
        // In a box, as few rounds ever need its room.
        Examined::TooLong => Box::pin(test_offloaded(scan, spec, ctx, counters)).await?,
    };
    match tested {
        Tested::Matches(found) => take(Match::Document(found)),
        Tested::Fails => {}
        Tested::End => return Ok(Round::End),
    }
    Ok(Round::Examined)
}

/// Allows others to run if it is time. The scan looks after its state afterwards.
pub(super) async fn yield_if_due(scan: &mut Scan, ctx: &OpContext) -> Result<()> {
    if should_yield() {
        scan.suspended();
        pause(ctx).await?;
    }
    Ok(())
}

/// Examines documents of the block, or those that its entries name, in one go and with one budget.
fn examine(
    scan: &mut Scan,
    ctx: &OpContext,
    counters: &mut PartCounters,
    most: usize,
    take: &mut impl FnMut(Match<'_>),
) -> Result<Examined> {
    let (place, branches, snapshot) = scan.blocks(ctx);
    let mut room = Room {
        documents: ROUND_DOCUMENTS.min(snapshot.documents_left()),
        most,
        examined: 0,
        matched: 0,
        bytes: 0,
    };
    let spec = place.spec;
    let done = work::within(CORE_BUDGET, || match branches.documents(&spec.access) {
        Some(block) => examine_documents(block, snapshot, spec, &mut room, counters, take),
        None => examine_entries(branches, place, &mut room, counters, take),
    });
    snapshot.passed(room.examined);
    counters.works += room.examined as u64;
    counters.matched += room.matched as u64;
    match done {
        Some(Ok(examined)) => Ok(examined),
        // The error, or the work, is that of a document whose turn has not come: it is the first of
        // the next round.
        _ if room.examined > 0 => Ok(Examined::Documents),
        Some(Err(error)) => Err(error),
        None => Ok(Examined::TooLong),
    }
}

/// What one round has examined, and may.
struct Room {
    documents: usize,
    most: usize,
    examined: usize,
    matched: usize,
    bytes: usize,
}

impl Room {
    #[inline]
    fn is_left(&self) -> bool {
        self.examined < self.documents
            && self.matched < self.most
            && self.bytes < ROUND_BYTES
            && work::left() >= CORE_BUDGET - ROUND_WORK
    }

    #[inline]
    fn passes(&mut self, bytes: usize, matches: bool) {
        self.examined += 1;
        self.matched += usize::from(matches);
        self.bytes += bytes;
    }
}

/// The documents of a block of the collection's own tree.
fn examine_documents(
    block: &mut Block,
    snapshot: &mut Snapshot,
    spec: &PartSpec,
    room: &mut Room,
    counters: &mut PartCounters,
    take: &mut impl FnMut(Match<'_>),
) -> Result<Examined> {
    while room.is_left()
        && let Some(record) = block.front()
    {
        let met = meets(spec, record.value())?;
        if let Met::Passes(position) = met {
            take(Match::InBlock(record, position));
        }
        room.passes(record.value().len(), met.passes());
        met.count(counters);
        counters.docs_examined += 1;
        snapshot.passes(record);
        block.pass();
    }
    Ok(Examined::Documents)
}

/// The documents that the entries of a block name, or what the entries alone have of them.
fn examine_entries(
    branches: &mut Branches,
    place: ScanContext<'_>,
    room: &mut Room,
    counters: &mut PartCounters,
    take: &mut impl FnMut(Match<'_>),
) -> Result<Examined> {
    while room.is_left()
        && let Some(mut named) = branches.front(place, counters)?
    {
        let Some(document) = &named.document else {
            return Ok(match room.examined {
                0 => Examined::MustWait,
                _ => Examined::Documents,
            });
        };
        let met = meets(place.spec, document)?;
        let bytes = document.len() + named.order.len();
        branches.pass(&named, place.spec, counters)?;
        room.passes(bytes, met.passes());
        met.count(counters);
        if let (Met::Passes(position), Some(document)) = (met, named.document.take()) {
            let found = named.found(document);
            take(Match::Document(ScannedDocument { position, ..found }));
        }
    }
    Ok(Examined::Documents)
}

/// What a test of a document comes to.
#[derive(Clone, Copy)]
enum Met {
    /// It is given. Where in an array the filter matched, if that is asked for.
    Passes(Option<u32>),
    /// The filter does not let it pass.
    Fails,
    /// The shard does not own it.
    NotOwned,
}

impl Met {
    fn passes(self) -> bool {
        matches!(self, Met::Passes(_))
    }

    fn count(self, counters: &mut PartCounters) {
        counters.chunk_skips += u64::from(matches!(self, Met::NotOwned));
    }
}

/// Whether the shard owns a document, and it meets the filter.
fn meets(spec: &PartSpec, document: &[u8]) -> Result<Met> {
    if let Some(ownership) = &spec.ownership
        && !ownership.owns_document(stored_document(document))?
    {
        return Ok(Met::NotOwned);
    }
    let Some(filter) = &spec.filter else {
        return Ok(Met::Passes(None));
    };
    let document = stored_document(document);
    let position = match spec.needs_position() {
        true => (filter.matches_with_position(document)?).map(|position| position.array_index),
        false => filter.matches(document)?.then_some(None),
    };
    Ok(position.map_or(Met::Fails, Met::Passes))
}

/// Takes one step of a scan.
pub(super) async fn test_next(
    scan: &mut Scan,
    spec: &PartSpec,
    ctx: &OpContext,
    counters: &mut PartCounters,
) -> Result<Tested> {
    counters.works += 1;
    let Some(mut found) = scan.next(ctx, counters).await? else {
        return Ok(Tested::End);
    };
    if spec.filter.is_some() || spec.ownership.is_some() {
        let met = compute(ctx, || meets(spec, &found.document)).await?;
        met.count(counters);
        let Met::Passes(position) = met else {
            return Ok(Tested::Fails);
        };
        found.position = position;
    }
    counters.matched += 1;
    Ok(Tested::Matches(found))
}

/// The same, where the filter is known to take long.
async fn test_offloaded(
    scan: &mut Scan,
    spec: &PartSpec,
    ctx: &OpContext,
    counters: &mut PartCounters,
) -> Result<Tested> {
    counters.works += 1;
    let Some(mut found) = scan.next(ctx, counters).await? else {
        return Ok(Tested::End);
    };
    let document = &found.document;
    let met = offload(ctx, |stop| work::until(stop, || meets(spec, document))).await?;
    met.count(counters);
    let Met::Passes(position) = met else {
        return Ok(Tested::Fails);
    };
    found.position = position;
    counters.matched += 1;
    Ok(Tested::Matches(found))
}
