//! What the profiler's collection and the log report of a read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pinion_bson::DocBuilder;
use pinion_merge::PartCounters;
use pinion_query::{DistinctPlan, ExplainStage, Outline, Plan};
use pinion_wire::{OpWork, PlanReport};

use super::choose::key_of;
use super::part::{Output, PartSpec};
use super::request::ReadRequest;
use super::stage_stats::{StageFigures, append_stage};

/// A read that has been planned. What it does is added from every core that has a part of it.
pub struct ReadReport {
    request: Arc<ReadRequest>,
    spec: Arc<PartSpec>,
    /// Which of several plans it is.
    way: Option<Outline>,
    /// It was found by a trial.
    is_tried: bool,
    planning_us: u64,
    keys_examined: AtomicU64,
    docs_examined: AtomicU64,
    matched: AtomicU64,
    chunk_skips: AtomicU64,
    seeks: AtomicU64,
    dups_dropped: AtomicU64,
    sort_bytes: AtomicU64,
    spills: [AtomicU64; 4],
    works: AtomicU64,
    given: AtomicU64,
    is_eof: AtomicBool,
}

/// How the plan of a read was chosen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen {
    pub way: Option<Outline>,
    pub is_tried: bool,
    pub planning_us: u64,
}

impl ReadReport {
    pub(crate) fn new(
        request: Arc<ReadRequest>,
        spec: Arc<PartSpec>,
        chosen: Chosen,
    ) -> ReadReport {
        ReadReport {
            request,
            spec,
            way: chosen.way,
            is_tried: chosen.is_tried,
            planning_us: chosen.planning_us,
            keys_examined: AtomicU64::default(),
            docs_examined: AtomicU64::default(),
            matched: AtomicU64::default(),
            chunk_skips: AtomicU64::default(),
            seeks: AtomicU64::default(),
            dups_dropped: AtomicU64::default(),
            sort_bytes: AtomicU64::default(),
            spills: Default::default(),
            works: AtomicU64::default(),
            given: AtomicU64::default(),
            is_eof: AtomicBool::default(),
        }
    }

    /// Counts what a part has done.
    pub(crate) fn add(&self, step: &PartCounters) {
        let spilled = &step.spilled;
        let [spills, records, bytes, storage] = &self.spills;
        for (counter, by) in [
            (&self.keys_examined, step.keys_examined),
            (&self.docs_examined, step.docs_examined),
            (&self.matched, step.matched),
            (&self.chunk_skips, step.chunk_skips),
            (&self.seeks, step.seeks),
            (&self.dups_dropped, step.dups_dropped),
            (&self.sort_bytes, step.sort_bytes),
            (&self.works, step.works),
            (spills, spilled.spills),
            (records, spilled.records),
            (bytes, spilled.bytes),
            (storage, spilled.storage_bytes),
        ] {
            if by > 0 {
                counter.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    /// Notes how many documents have been returned in all.
    pub(crate) fn given(&self, documents: u64) {
        self.given.store(documents, Ordering::Relaxed);
    }

    /// Notes that no document follows.
    pub(crate) fn ended(&self) {
        self.is_eof.store(true, Ordering::Relaxed);
    }

    fn figures(&self, work: &OpWork, millis: u64) -> StageFigures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [spills, records, bytes, storage_bytes] = self.spills.each_ref().map(get);
        let matched = get(&self.matched);
        StageFigures {
            counters: PartCounters {
                keys_examined: get(&self.keys_examined),
                docs_examined: get(&self.docs_examined),
                returned: get(&self.given),
                matched,
                chunk_skips: get(&self.chunk_skips),
                seeks: get(&self.seeks),
                dups_dropped: get(&self.dups_dropped),
                sort_bytes: get(&self.sort_bytes),
                spilled: pinion_service::spill::SpillCounts {
                    spills,
                    records,
                    bytes,
                    storage_bytes,
                },
                works: get(&self.works),
            },
            returned: match self.request.output {
                Output::Count => matched,
                // What the parts give was made of these.
                _ if self.spec.makes_documents() => matched,
                _ => get(&self.given),
            },
            millis,
            yields: work.yields(),
            is_eof: self.is_eof.load(Ordering::Relaxed),
            score: None,
        }
    }

    /// The plans that there were: they are made once more, as few reads are reported.
    fn plans(&self) -> Vec<Plan> {
        match (&self.request.access, &self.request.plan) {
            (Some(_), _) => Vec::new(),
            (None, Some(plan)) => vec![plan.clone()],
            (None, None) => pinion_query::plans(&self.request.plan_request()).unwrap_or_default(),
        }
    }

    /// The stages of the plan that was taken.
    fn stages(&self) -> Option<ExplainStage> {
        let is_taken = |plan: &Plan| (self.way.as_ref()).is_none_or(|way| plan.outline() == *way);
        let plan = self.plans().into_iter().find(is_taken)?;
        let (request, asked) = (&self.request, self.request.plan_request());
        Some(match request.output {
            Output::Count => plan.explain_count(&asked).below("COUNT"),
            Output::Distinct(field) => {
                let branch = self.spec.access.branches().first()?;
                let index = branch.index.as_ref()?;
                let key = index.spec.component_names().nth(field)?.to_owned();
                DistinctPlan { plan, field }.explain(&asked, &key)
            }
            _ => {
                let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
                let (skip, limit) = (count(request.skip), request.limit.map(count));
                plan.explain(
                    &asked,
                    Some(skip),
                    limit,
                    request.projection_spec.as_deref(),
                )
            }
        })
    }
}

impl PlanReport for ReadReport {
    fn summary(&self) -> String {
        self.spec.summary()
    }

    fn append_choice(&self, out: &mut DocBuilder) {
        let plans = self.plans();
        if plans.is_empty() || matches!(plans[0].access, pinion_query::Access::Id(_)) {
            return;
        }
        let key = key_of(&self.request, plans.iter().map(Plan::outline).collect());
        if self.is_tried {
            out.append("fromMultiPlanner", true);
        }
        let shape = key.shape_hash();
        out.append("queryHash", shape.as_str())
            .append("planCacheShapeHash", shape.as_str())
            .append("planCacheKey", key.key_hash().as_str())
            .append("planningTimeMicros", self.planning_us as i64);
    }

    fn append_stages(&self, out: &mut DocBuilder, work: &OpWork, millis: u64) {
        let figures = self.figures(work, millis);
        if let Some(stages) = self.stages() {
            stages.write(out, &|stage, out| {
                append_stage(stage, out, &figures);
                if stage.name == "COUNT" {
                    out.append("nCounted", figures.returned as i64);
                }
            });
        }
    }
}

/// A plan of one stage that needs no planning.
pub(crate) struct LeafReport(pub &'static str);

impl PlanReport for LeafReport {
    fn summary(&self) -> String {
        self.0.into()
    }

    fn append_stages(&self, out: &mut DocBuilder, work: &OpWork, millis: u64) {
        let docs_examined = work.docs_examined();
        let figures = StageFigures {
            counters: PartCounters {
                keys_examined: work.keys_examined(),
                docs_examined,
                works: docs_examined,
                ..PartCounters::default()
            },
            returned: docs_examined,
            millis,
            yields: work.yields(),
            is_eof: true,
            score: None,
        };
        let stage = ExplainStage::leaf(self.0);
        stage.write(out, &|stage, out| append_stage(stage, out, &figures));
    }
}
