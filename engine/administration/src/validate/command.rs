//! The command: the phases over all partitions, one after the other, and what is mended between
//! them.

use std::sync::Arc;

use pinion_catalog::Collection;
use pinion_exec::acquire::{AcquiredCollection, AcquisitionRequest, acquire};
use pinion_exec::stats::tree_stats;
use pinion_exec::topology::replica_set;
use pinion_runtime::{Queue, join_all};
use pinion_service::ops::{Progress, ops};
use pinion_storage::{PartitionId, ReadAt, storage};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::count::WrongCounts;
use super::findings::{Findings, Notes};
use super::inconsistencies::{Inconsistencies, find};
use super::job::Job;
use super::key_table::KeyTable;
use super::options::{Options, RepairMode};
use super::repair::{self, Repairs};
use super::report::{Contents, Report};
use super::snapshot::Snapshot;
use super::verify::Verifier;
use super::{count, examine, metadata, multikey, oplog, parameters};
use crate::limits::{FEW_COUNT_ATTEMPTS, MAX_COUNT_ATTEMPTS};

/// `validate`.
pub(crate) async fn validate(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.sought("validate", cmd.db())?;
    let options = Options::read(&reader, replica_set().is_some())?;
    let mends = options.repair != RepairMode::None;
    let (mut report, mut collection) = Box::pin(run(&cmd.ctx, &ns, options)).await?;
    if mends && report.repaired {
        // What is left is found by looking once more.
        let before = report;
        let looking = Options {
            repair: RepairMode::None,
            ..options
        };
        (report, collection) = Box::pin(run(&cmd.ctx, &ns, looking)).await?;
        report.repaired = true;
        report.repairs = before.repairs;
        report.warnings.merge(before.warnings);
    }
    report.repair = options.repair;
    Ok(report.reply(&collection))
}

/// One validation.
async fn run(
    ctx: &OpContext,
    ns: &Namespace,
    options: Options,
) -> Result<(Report, Arc<Collection>)> {
    let acquired = acquire(ctx, AcquisitionRequest::alone(ns.clone(), None)).await?;
    let Some(collection) = acquired.collection().cloned() else {
        return Err(Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("Collection '{ns}' does not exist to validate."),
        ));
    };
    let collection = collection.without_builds();
    let mut report = Report {
        repair: options.repair,
        repaired: false,
        repairs: Repairs::default(),
        is_count_corrected: false,
        read_at: None,
        errors: Notes::default(),
        warnings: Notes::default(),
        contents: None,
    };
    metadata::examine(ctx, &collection, &mut report.errors).await?;
    if options.metadata {
        return Ok((report, collection));
    }
    if collection.is_oplog() {
        let mut findings = Findings::new(&collection, 1);
        oplog::examine(ctx, collection.log_through, &mut findings).await?;
        report.contents = Some(Contents {
            findings,
            inconsistencies: Inconsistencies::new(0),
            corrupt: Vec::new(),
        });
        return Ok((report, collection));
    }
    let job = job(ctx, &collection, options);
    let _listed = ops().show_progress(ctx.op_id, job.progress.clone());
    contents(&job, &acquired, &mut report).await?;
    let differs = |contents: &Contents| multikey::differs(&job, &contents.findings);
    if options.repair != RepairMode::None && report.contents.as_ref().is_some_and(differs) {
        // Writers are kept out for it, so this must not stand behind the gate.
        drop(acquired);
        let adjusting = multikey::adjust(ctx, &job, &collection.ns, &mut report.warnings);
        report.repaired |= adjusting.await?;
    }
    let has_mended = report.repaired || report.is_count_corrected;
    if options.repair != RepairMode::None && has_mended {
        repair::keep().await?;
    }
    Ok((report, collection))
}

fn job(ctx: &OpContext, collection: &Arc<Collection>, options: Options) -> Arc<Job> {
    let partitions = usize::from(storage().partition_count());
    let memory_bytes = u64::try_from(parameters::memory_mb()).unwrap_or(0) << 20;
    let series = collection.options.time_series.as_ref();
    Arc::new(Job {
        collection: collection.clone(),
        options,
        ctx: ctx.clone(),
        series: series.map(|series| series.form()),
        hash: storage().partition_hash(),
        // Each partition has a table, and the one of all together is there beside them.
        buckets: KeyTable::buckets_within(memory_bytes, partitions + 1),
        progress: Arc::new(Progress::default()),
    })
}

/// Looks at documents and indexes.
async fn contents(
    job: &Arc<Job>,
    acquired: &AcquiredCollection,
    report: &mut Report,
) -> Result<()> {
    let (ctx, options) = (&job.ctx, &job.options);
    let mut snapshot = Snapshot::take(ctx, acquired, &job.collection, options).await?;
    let mut findings = first_phase(job, snapshot.at()).await?;
    multikey::check(job, &mut findings);
    if options.repair == RepairMode::FixErrors && findings.invalid > 0 {
        remove_corrupt(job, &findings, &mut report.repairs).await?;
        snapshot = Snapshot::take(ctx, acquired, &job.collection, options).await?;
    }
    let mut inconsistencies = Inconsistencies::new(findings.indexes.len());
    if findings.suspects().contains(&true) {
        inconsistencies = second_phase(job, &mut findings, snapshot.at()).await?;
    }
    if options.enforce_count {
        compare_counts(job, report).await?;
    } else if !options.background {
        report.is_count_corrected |= correct_counts(job, &findings).await?;
    }
    match findings.snapshots_lost {
        0 if options.background => report.read_at = snapshot.timestamp(),
        0 => {}
        lost => report.warnings.add(format!(
            "Memory for old versions ran out {lost} times, and newer snapshots were read from there on: the counts are not of one time"
        )),
    }
    report.repairs.merge(inconsistencies.repairs);
    report.note_repairs(&job.collection);
    let corrupt = findings.corrupt.iter();
    report.contents = Some(Contents {
        corrupt: corrupt.map(|(_, key)| job.record_id(key)).collect(),
        findings,
        inconsistencies,
    });
    Ok(())
}

/// Looks through the documents and the indexes of all partitions.
pub(super) async fn first_phase(job: &Arc<Job>, at: ReadAt) -> Result<Findings> {
    let parts = over_partitions(|partition| {
        let job = job.clone();
        move || async move {
            let owned = storage().partition(partition).expect("asked its owner");
            let trees = job.collection.trees();
            let records = trees.map(|tree| owned.tree_stats(tree).records);
            job.progress.expect(records.sum());
            examine::examine(job, partition, at).await
        }
    });
    let mut all = Findings::new(&job.collection, job.buckets);
    for part in parts.await {
        all.merge(part?);
    }
    Ok(all)
}

/// Looks at the keys that the sums make suspected.
async fn second_phase(
    job: &Arc<Job>,
    findings: &mut Findings,
    at: ReadAt,
) -> Result<Inconsistencies> {
    let verifier = Arc::new(Verifier {
        job: job.clone(),
        suspects: findings.suspects(),
        table: Some(Arc::new(findings.table.clone())),
    });
    let parts = over_partitions(|partition| {
        let verifier = verifier.clone();
        move || async move {
            let owned = storage().partition(partition).expect("asked its owner");
            let trees = verifier.suspected().map(|(_, index)| index.tree);
            let trees = trees.chain([verifier.job.collection.tree()]);
            let records = trees.map(|tree| owned.tree_stats(tree).records);
            verifier.job.progress.expect(records.sum());
            find(verifier, partition, at).await
        }
    });
    let mut all = Inconsistencies::new(findings.indexes.len());
    for part in parts.await {
        all.merge(part?);
    }
    Ok(all)
}

/// Runs something on the owner of each partition.
async fn over_partitions<T, F, Fut>(of: impl Fn(PartitionId) -> F) -> Vec<T>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let all = (0..storage().partition_count()).map(PartitionId);
    join_all(all.map(|partition| {
        let owner = storage().owner(partition);
        pinion_runtime::submit_to(owner, Queue::Background, of(partition))
    }))
    .await
}

async fn remove_corrupt(job: &Arc<Job>, findings: &Findings, repairs: &mut Repairs) -> Result<()> {
    for (partition, key) in &findings.corrupt {
        let removed = repair::remove_corrupt(job, *partition, key).await?;
        repairs.documents_removed += u64::from(removed);
    }
    Ok(())
}

/// Reports a count that is wrong.
async fn compare_counts(job: &Arc<Job>, report: &mut Report) -> Result<()> {
    match count::compare(job, WrongCounts::Reported, MAX_COUNT_ATTEMPTS).await? {
        None => report.warnings.add(
            "The fast count could not be compared with the records: they were written all the time, or some cannot be read",
        ),
        Some(counts) if counts.kept.records == counts.found.records => {}
        Some(counts) => report.errors.add(format!(
            "fast count ({}) does not match number of records ({}) for collection '{}'",
            counts.kept.records, counts.found.records, job.collection.ns
        )),
    }
    Ok(())
}

/// Corrects count and size of the documents where they are wrong, and reports nothing.
///
/// Source: execution document, "Validation Procedure": a validation that is not in the background
/// adjusts the fast count.
async fn correct_counts(job: &Arc<Job>, findings: &Findings) -> Result<bool> {
    if findings.is_damaged {
        return Ok(false);
    }
    let tree = job.collection.tree();
    let kept = tree_stats(vec![tree]).await;
    let kept = kept.get(&tree).copied().unwrap_or_default();
    // A repair looks closer; beside writers the two are of different times, which the comparison is
    // not.
    let seems_right = (kept.records, kept.value_bytes) == (findings.records, findings.bytes);
    let attempts = match job.options.repair {
        RepairMode::None if seems_right => return Ok(false),
        RepairMode::None => FEW_COUNT_ATTEMPTS,
        _ => MAX_COUNT_ATTEMPTS,
    };
    let Some(counts) = count::compare(job, WrongCounts::Corrected, attempts).await? else {
        return Ok(false);
    };
    if counts.is_corrected {
        tracing::warn!(
            target: "STORAGE",
            id = 7_300_060u64,
            namespace = job.collection.ns.as_str(),
            fastCount = counts.kept.records,
            records = counts.found.records,
            dataSize = counts.kept.value_bytes,
            bytes = counts.found.value_bytes,
            "The count or the size that was kept of a collection was wrong, and has been corrected"
        );
    }
    Ok(counts.is_corrected)
}
