//! What a scan finds and its filter lets pass: a block at a time where documents come in blocks,
//! and one by one elsewhere.

use std::collections::VecDeque;

use pinion_catalog::stored_document;
use pinion_merge::PartCounters;
use pinion_query::{Document, work};
use pinion_runtime::should_yield;
use pinion_service::compute::{compute, offload};
use pinion_service::interrupt::pause;
use pinion_service::limits::CORE_BUDGET;
use pinion_storage::BlockRecord;
use pinion_wire::{OpContext, Result};

use super::access::Access;
use super::part::PartSpec;
use super::scan::{Found, Scan};
use crate::limits::{ROUND_BYTES, ROUND_DOCUMENTS, ROUND_WORK};

/// What one step of a scan comes to.
pub(super) enum Tested {
    Matches(Found),
    /// A document that the filter does not let pass.
    Fails,
    End,
}

/// What a round over a scan comes to.
enum Round {
    /// Documents were examined. Those that match were taken.
    Examined,
    /// A document that matches and was not in a block.
    Single(Found),
    End,
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
    matched: &mut VecDeque<Found>,
) -> Result<()> {
    assert!(most > 0, "no document is asked for");
    assert!(matched.is_empty(), "documents are left of those before");
    while matched.is_empty() {
        let mut take = |record: BlockRecord<'_>, position| {
            matched.push_back(Found::in_collection(record, position));
        };
        match round(scan, spec, ctx, counters, most, &mut take).await? {
            Round::Examined => {}
            Round::Single(found) => matched.push_back(found),
            Round::End => break,
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
        let mut take = |record: BlockRecord<'_>, _| documents.push_back(record.to_bytes().into());
        match round(scan, spec, ctx, counters, usize::MAX, &mut take).await? {
            Round::Examined => {}
            Round::Single(found) => documents.push_back(found.document.into()),
            Round::End => break,
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
        let left = usize::try_from(most - count).unwrap_or(usize::MAX);
        let mut take = |_: BlockRecord<'_>, _| count += 1;
        match round(scan, spec, ctx, counters, left, &mut take).await? {
            Round::Examined => {}
            Round::Single(_) => count += 1,
            Round::End => break,
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
    take: &mut impl FnMut(BlockRecord<'_>, Option<u32>),
) -> Result<Round> {
    yield_if_due(scan, ctx).await?;
    if scan.gives_blocks() {
        if !scan.fill(ctx, counters).await? {
            counters.works += 1;
            return Ok(Round::End);
        }
        if examine_block(scan, spec, counters, most, take)? {
            return Ok(Round::Examined);
        }
        // In a box, as few rounds ever need its room.
        return Box::pin(test_offloaded(scan, spec, ctx, counters)).await;
    }
    Ok(match test_next(scan, spec, ctx, counters).await? {
        Tested::Matches(found) => Round::Single(found),
        Tested::Fails => Round::Examined,
        Tested::End => Round::End,
    })
}

/// Allows others to run if it is time. The scan looks after its state afterwards.
pub(super) async fn yield_if_due(scan: &mut Scan, ctx: &OpContext) -> Result<()> {
    if should_yield() {
        scan.suspended();
        pause(ctx).await?;
    }
    Ok(())
}

/// Examines documents of the block, in one go and with one budget. False where that does not
/// suffice for the first of them, and nothing was done: its filter takes longer than a core may be
/// held.
fn examine_block(
    scan: &mut Scan,
    spec: &PartSpec,
    counters: &mut PartCounters,
    most: usize,
    take: &mut impl FnMut(BlockRecord<'_>, Option<u32>),
) -> Result<bool> {
    let (block, snapshot) = scan.block();
    let documents = ROUND_DOCUMENTS.min(snapshot.documents_left());
    let (mut examined, mut matched, mut bytes) = (0, 0, 0);
    let done = work::within(CORE_BUDGET, || {
        while examined < documents
            && matched < most
            && bytes < ROUND_BYTES
            && work::left() >= CORE_BUDGET - ROUND_WORK
            && let Some(record) = block.front()
        {
            if let Some(position) = meets(spec, record.value())? {
                matched += 1;
                take(record, position);
            }
            examined += 1;
            bytes += record.value().len();
            snapshot.passes(record);
            block.pass();
        }
        Ok(())
    });
    snapshot.passed(examined);
    counters.works += examined as u64;
    counters.docs_examined += examined as u64;
    counters.matched += matched as u64;
    match done {
        Some(Ok(())) => Ok(true),
        // The error, or the work, is that of a document whose turn has not come: it is the first of
        // the next round.
        _ if examined > 0 => Ok(true),
        Some(Err(error)) => Err(error),
        None => Ok(false),
    }
}

/// Whether a document meets the filter; and where in an array, if that is asked for.
fn meets(spec: &PartSpec, document: &[u8]) -> Result<Option<Option<u32>>> {
    let Some(filter) = &spec.filter else {
        return Ok(Some(None));
    };
    let document = stored_document(document);
    if spec.needs_position() {
        let position = filter.matches_with_position(document)?;
        return Ok(position.map(|position| position.array_index));
    }
    Ok(filter.matches(document)?.then_some(None))
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
    if spec.filter.is_some() {
        let met = compute(ctx, || meets(spec, &found.document)).await?;
        let Some(position) = met else {
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
) -> Result<Round> {
    counters.works += 1;
    let Some(mut found) = scan.next(ctx, counters).await? else {
        return Ok(Round::End);
    };
    let document = &found.document;
    let met = offload(ctx, |stop| work::until(stop, || meets(spec, document))).await?;
    let Some(position) = met else {
        return Ok(Round::Examined);
    };
    found.position = position;
    counters.matched += 1;
    Ok(Round::Single(found))
}
