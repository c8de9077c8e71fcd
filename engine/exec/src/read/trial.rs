//! A trial of the plans of one query: they run side by side, step by step, until one has shown
//! enough.
//!
//! It reads one partition, as the others hold documents of the same kind. What it finds is not
//! given to the client.

use std::sync::Arc;

use pinion_catalog::Placement;
use pinion_clock::Timestamp;
use pinion_merge::PartCounters;
use pinion_query::Plan;
use pinion_runtime::Queue;
use pinion_service::compute::compute_bytes;
use pinion_service::interrupt::{is_interruption, pause};
use pinion_service::spill::memory;
use pinion_storage::{PartitionId, storage};
use pinion_wire::{ErrorCode, OpContext, Result};

use super::matches::{Tested, test_next};
use super::part::{FoundMetadata, PartSpec};
use super::plan::Planned;
use super::request::ReadRequest;
use super::scan::Scan;
use crate::limits::{TRIAL_RESULTS, TRIAL_WORKS};

/// What a plan did in its trial.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    pub counters: PartCounters,
    /// Results that it gave.
    pub advanced: u64,
    /// It came to its end.
    pub is_eof: bool,
    /// It cannot be used, as a document makes it fail before others had shown enough.
    pub failed: bool,
    pub score: f64,
    pub millis: u64,
}

/// What a plan gets for each thing that it spares, where the others are alike.
const LEAST_BONUS: f64 = 1e-4;

/// Tries the plans.
///
/// # Errors
/// When the operation is interrupted, or its snapshot is gone.
pub(super) async fn try_out(
    ctx: &OpContext,
    request: &ReadRequest,
    plans: &[Plan],
    at: Timestamp,
) -> Result<Vec<Trial>> {
    let mut specs: Vec<Arc<PartSpec>> = Vec::with_capacity(plans.len());
    for plan in plans {
        let planned = || Planned::new(request, plan.clone());
        let planned = compute_bytes(request.planning_bytes(), planned).await;
        specs.push(spec_of(request, planned, at));
    }
    let partition = partition_for(request);
    let owner = storage().owner(partition);
    let ctx = ctx.clone();
    pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
        run(specs, partition, &ctx).await
    })
    .await
}

/// A partition that holds some of the documents, on this core if there is one.
fn partition_for(request: &ReadRequest) -> PartitionId {
    let here = pinion_runtime::core_id();
    let mut all = (0..storage().partition_count()).map(PartitionId);
    let own = all.find(|partition| storage().owner(*partition) == here);
    own.filter(|_| request.collection.placement != Placement::One)
        .unwrap_or(PartitionId(0))
}

fn spec_of(request: &ReadRequest, planned: Planned, at: Timestamp) -> Arc<PartSpec> {
    let memory = memory(request.allow_disk_use);
    Arc::new(PartSpec {
        collection: request.collection.clone(),
        ownership: request.filtering().cloned(),
        access: planned.access,
        filter: planned.filter,
        sort: planned.sort,
        projection: None,
        covered: planned.covered,
        meta_source: None,
        metadata: FoundMetadata::default(),
        output: request.output,
        show_record_id: false,
        keep: request.kept(),
        at,
        unit: request.unit,
        prepare_conflicts: request.prepare_conflicts,
        renewal: request.renewal,
        is_unguarded: request.is_unguarded,
        sort_room: memory.shared(memory.limits.sort, 1),
        stages: None,
        memory,
    })
}

/// One of the plans under way.
struct Runner {
    spec: Arc<PartSpec>,
    scan: Scan,
    /// What a sort holds back until the scan is at its end, and then gives.
    held: u64,
    is_scanned: bool,
    trial: Trial,
}

async fn run(
    specs: Vec<Arc<PartSpec>>,
    partition: PartitionId,
    ctx: &OpContext,
) -> Result<Vec<Trial>> {
    let owned = storage().partition(partition).expect("asked its owner");
    let started = pinion_runtime::now();
    let open = |spec: Arc<PartSpec>| Runner {
        scan: Scan::open(&spec, owned.clone()),
        spec,
        held: 0,
        is_scanned: false,
        trial: Trial::default(),
    };
    let mut runners: Vec<Runner> = specs.into_iter().map(open).collect();
    for _ in 0..TRIAL_WORKS {
        for runner in runners.iter_mut().filter(|runner| !runner.trial.failed) {
            runner.work(ctx).await?;
        }
        let is_enough = |trial: &Trial| trial.is_eof || trial.advanced >= TRIAL_RESULTS;
        if runners.iter().all(|runner| runner.trial.failed)
            || runners.iter().any(|runner| is_enough(&runner.trial))
        {
            break;
        }
    }
    let millis = started.elapsed().as_millis() as u64;
    Ok(runners
        .into_iter()
        .map(|runner| runner.finish(millis))
        .collect())
}

impl Runner {
    /// One step.
    async fn work(&mut self, ctx: &OpContext) -> Result<()> {
        pause(ctx).await?;
        let most = self.spec.keep.map_or(u64::MAX, |keep| keep as u64);
        let trial = &mut self.trial;
        if self.is_scanned {
            trial.counters.works += 1;
            match self.held {
                0 => trial.is_eof = true,
                _ => (self.held, trial.advanced) = (self.held - 1, trial.advanced + 1),
            }
            return Ok(());
        }
        let tested = test_next(&mut self.scan, &self.spec, ctx, &mut trial.counters).await;
        match tested {
            Ok(Tested::Fails) => {}
            Ok(Tested::Matches(_)) if self.spec.sort.is_some() => {
                self.held = (self.held + 1).min(most);
            }
            Ok(Tested::Matches(_)) => {
                trial.advanced += 1;
                trial.is_eof = trial.advanced >= most;
            }
            Ok(Tested::End) if self.spec.sort.is_some() => self.is_scanned = true,
            Ok(Tested::End) => trial.is_eof = true,
            Err(error) if is_interruption(&error) => return Err(error),
            Err(error) if error.code == ErrorCode::SNAPSHOT_TOO_OLD => return Err(error),
            Err(_) => trial.failed = true,
        }
        Ok(())
    }

    /// The figures with the score: how much each step gave, whether the end was reached, and the
    /// least difference for what the plan spares.
    fn finish(self, millis: u64) -> Trial {
        let mut trial = self.trial;
        let works = trial.counters.works.max(1) as f64;
        let bonus = (1.0 / (10.0 * works)).min(LEAST_BONUS);
        let fetches = self.spec.covered.is_none() && self.spec.reads_documents();
        let spared = [!fetches, self.spec.sort.is_none(), true].map(u8::from);
        let spared = f64::from(spared.iter().sum::<u8>());
        trial.millis = millis;
        if !trial.failed {
            trial.score = 1.0
                + trial.advanced as f64 / works
                + bonus * spared
                + f64::from(u8::from(trial.is_eof));
        }
        trial
    }
}
