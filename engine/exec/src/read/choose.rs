//! Which of the plans of a read is taken: the one that the cache has, or the best of a trial.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_merge::PartCounters;
use pinion_query::{Outline, Plan, QueryShape};
use pinion_service::compute::compute_bytes;
use pinion_service::metrics::metrics;
use pinion_wire::{ErrorCode, OpContext, Result};

use super::request::ReadRequest;
use super::stage_stats::{StageFigures, append_execution};
use super::trial::{Trial, try_out};
use crate::limits::{PLAN_EVICTION_RATIO, TRIAL_RESULTS};
use crate::plan_cache::{Decision, PlanKey, plan_cache};

/// The plan that a read takes.
pub struct Choice {
    pub plan: Plan,
    /// Those that it does not take.
    pub rejected: Vec<Plan>,
    /// What a trial of them found, in the order in which they came; the place of the best.
    pub trial: Option<(Vec<Trial>, usize)>,
    /// Which of several plans it is.
    pub way: Option<Outline>,
    /// What the plan has to keep, if it was in the cache.
    pub watch: Option<Watch>,
}

/// Whether a cached plan takes far more work than it promised.
#[derive(Clone, Debug)]
pub struct Watch {
    key: PlanKey,
    most_works: u64,
}

impl Watch {
    /// Looks at what the read has done so far. False once there is nothing more to find out.
    pub(super) fn continues(&self, done: &PartCounters) -> bool {
        // A trial looks as far as its first results.
        let rounds = (done.matched / TRIAL_RESULTS).max(1);
        if done.works / rounds <= self.most_works {
            return true;
        }
        plan_cache().deactivate(&self.key);
        false
    }
}

impl Choice {
    /// The first of these plans.
    pub(crate) fn without_trial(plans: Vec<Plan>) -> Choice {
        take(plans, 0)
    }

    /// Under which key the cache has plans of the query.
    pub(crate) fn key(&self, request: &ReadRequest) -> PlanKey {
        let mut ways: Vec<Outline> = self.rejected.iter().map(Plan::outline).collect();
        let place = self.trial.as_ref().map_or(0, |(_, place)| *place);
        ways.insert(place, self.plan.outline());
        key_of(request, ways.into())
    }
}

pub(super) fn key_of(request: &ReadRequest, ways: Arc<[Outline]>) -> PlanKey {
    PlanKey {
        uuid: request.collection.uuid,
        shape: QueryShape::of(&request.plan_request()),
        ways,
    }
}

impl ReadRequest {
    /// Whether what a trial finds is kept: nothing that names its index, and no sort alone.
    fn is_cacheable(&self) -> bool {
        self.hint.is_none() && self.key_bounds.is_none() && self.access.is_none()
    }
}

/// Chooses the plan of a read.
pub(super) async fn choose(
    ctx: &OpContext,
    request: &ReadRequest,
    at: Timestamp,
) -> Result<Choice> {
    let plans = plans_of(request).await?;
    let metrics = metrics();
    let counters = &metrics.counters;
    if plans.len() == 1 || !request.is_cacheable() {
        counters.plan_cache_skipped.inc();
        return Ok(Choice::without_trial(plans));
    }
    let key = key_of(request, plans.iter().map(Plan::outline).collect());
    if let Some((way, works)) = plan_cache().find(&key, &request.collection)
        && let Some(place) = key.ways.iter().position(|known| *known == way)
    {
        counters.plan_cache_hits.inc();
        let partitions = pinion_storage::storage().partition_count() as u64;
        let most_works = works.max(1) * PLAN_EVICTION_RATIO * partitions;
        let mut choice = take(plans, place);
        choice.way = Some(way);
        choice.watch = Some(Watch { key, most_works });
        return Ok(choice);
    }
    counters.plan_cache_misses.inc();
    let trials = try_out(ctx, request, &plans, at).await?;
    let best = best_of(&trials);
    let way = key.ways[best].clone();
    let shown = || shown(request, &plans, &trials, best);
    let decision = Decision {
        way: way.clone(),
        works: trials[best].counters.works,
        shown: compute_bytes(request.planning_bytes(), shown).await,
        index_filter_set: request.index_filter.is_some(),
    };
    let now_ms = pinion_runtime::wall_ms();
    (plan_cache()).record(key, &request.collection, decision, now_ms);
    let mut choice = take(plans, best);
    choice.way = Some(way);
    choice.trial = Some((trials, best));
    Ok(choice)
}

/// Chooses the plan that explain shows: what the cache has is not examined, and nothing is kept.
pub async fn choose_to_explain(
    ctx: &OpContext,
    request: &ReadRequest,
    at: Timestamp,
) -> Result<Choice> {
    let plans = plans_of(request).await?;
    if plans.len() == 1 {
        return Ok(Choice::without_trial(plans));
    }
    let trials = try_out(ctx, request, &plans, at).await?;
    let best = best_of(&trials);
    let mut choice = take(plans, best);
    choice.trial = Some((trials, best));
    Ok(choice)
}

async fn plans_of(request: &ReadRequest) -> Result<Vec<Plan>> {
    let plans = || pinion_query::plans(&request.plan_request());
    match compute_bytes(request.planning_bytes(), plans).await {
        // Settings under which there is no plan are passed over.
        Err(error)
            if error.code == ErrorCode::NO_QUERY_EXECUTION_PLANS && request.settings.is_some() =>
        {
            let mut without = request.clone();
            without.settings = None;
            let plans = || pinion_query::plans(&without.plan_request());
            compute_bytes(without.planning_bytes(), plans).await
        }
        plans => plans,
    }
}

fn take(mut plans: Vec<Plan>, place: usize) -> Choice {
    Choice {
        plan: plans.remove(place),
        rejected: plans,
        trial: None,
        way: None,
        watch: None,
    }
}

/// The place of the plan with the highest score; of equals the first, which is the likeliest.
fn best_of(trials: &[Trial]) -> usize {
    let mut best = 0;
    for (place, trial) in trials.iter().enumerate() {
        if trial.score > trials[best].score {
            best = place;
        }
    }
    best
}

/// What `$planCacheStats` shows of a trial.
fn shown(request: &ReadRequest, plans: &[Plan], trials: &[Trial], best: usize) -> RawDocumentBuf {
    let asked = request.plan_request();
    let empty = RawDocumentBuf::new();
    let stages = |plan: &Plan| {
        let limit = request.limit.map(|limit| limit as i64);
        let projection = request.projection_spec.as_deref();
        plan.explain(&asked, Some(request.skip as i64), limit, projection)
    };
    let mut out = DocBuilder::new();
    out.start_document("createdFromQuery");
    out.append("query", request.matcher.filter());
    out.append(
        "sort",
        request.sort.as_ref().map_or(&*empty, |sort| sort.source()),
    );
    out.append(
        "projection",
        request.projection_spec.as_deref().unwrap_or(&empty),
    );
    if let Some(collation) = request.matcher.collation() {
        out.append("collation", &*collation.document());
    }
    out.end();
    out.start_document("cachedPlan");
    stages(&plans[best]).write(&mut out, &|_, _| {});
    out.end();
    let mut ranked: Vec<usize> = (0..trials.len()).collect();
    ranked.sort_by(|a, b| trials[*b].score.total_cmp(&trials[*a].score));
    out.start_array("creationExecStats");
    for place in &ranked {
        out.push_document();
        append_execution(
            &mut out,
            &stages(&plans[*place]),
            &StageFigures::of_trial(&trials[*place]),
        );
        out.end();
    }
    out.end();
    out.start_array("candidatePlanScores");
    for place in &ranked {
        out.push(trials[*place].score);
    }
    out.end();
    out.finish()
}
