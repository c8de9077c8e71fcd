//! What the stages of a plan did, as explain and the plan cache report it.

use pinion_bson::DocBuilder;
use pinion_merge::PartCounters;
use pinion_query::ExplainStage;

use super::trial::Trial;

/// What a plan did in all; its stages are derived from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StageFigures {
    pub counters: PartCounters,
    /// What came out at the top.
    pub returned: u64,
    pub millis: u64,
    /// How often it let others run.
    pub yields: u64,
    pub is_eof: bool,
    /// In a trial, how good the plan was.
    pub score: Option<f64>,
}

impl StageFigures {
    pub(crate) fn of_trial(trial: &Trial) -> StageFigures {
        StageFigures {
            counters: trial.counters,
            returned: trial.advanced,
            millis: trial.millis,
            yields: 0,
            is_eof: trial.is_eof,
            score: Some(trial.score),
        }
    }
}

/// Appends what a plan of a trial did, the whole and its stages.
pub(crate) fn append_execution(out: &mut DocBuilder, stage: &ExplainStage, done: &StageFigures) {
    out.append("nReturned", done.returned as i32)
        .append("executionTimeMillisEstimate", done.millis as i32)
        .append("totalKeysExamined", done.counters.keys_examined as i32)
        .append("totalDocsExamined", done.counters.docs_examined as i32);
    if let Some(score) = done.score {
        out.append("score", score);
    }
    out.start_document("executionStages");
    stage.write(out, &|stage, out| append_stage(stage, out, done));
    out.end();
}

/// Whether documents may have several entries in the index of a stage.
fn is_multikey(stage: &ExplainStage) -> bool {
    pinion_bson::get(&stage.details, "isMultiKey").is_some_and(pinion_wire::idl::truthy)
}

/// Appends what a stage that reads did.
pub(crate) fn append_stage(stage: &ExplainStage, out: &mut DocBuilder, done: &StageFigures) {
    let c = &done.counters;
    let returned = match stage.name {
        "IXSCAN" | "COUNT_SCAN" | "DISTINCT_SCAN" => c.keys_examined.saturating_sub(c.dups_dropped),
        // Documents are tested for their owner before the filter: these passed it, or were not.
        "FETCH" | "COLLSCAN" => c.matched.max(done.returned) + c.chunk_skips,
        "SHARDING_FILTER" => c.matched.max(done.returned),
        _ => done.returned,
    };
    let works = c.works.max(returned + u64::from(done.is_eof));
    let needed = works - returned - u64::from(done.is_eof && works > returned);
    out.append("nReturned", returned as i32)
        .append("executionTimeMillisEstimate", done.millis as i32)
        .append("works", works as i32)
        .append("advanced", returned as i32)
        .append("needTime", needed as i32)
        .append("needYield", 0i32)
        .append("saveState", done.yields as i32)
        .append("restoreState", done.yields as i32)
        .append("isEOF", i32::from(done.is_eof));
    match stage.name {
        "COLLSCAN" | "FETCH" => {
            out.append("docsExamined", c.docs_examined as i32);
            if stage.name == "FETCH" {
                out.append("alreadyHasObj", 0i32);
            }
        }
        "IXSCAN" => {
            out.append("keysExamined", c.keys_examined as i32)
                .append("seeks", c.seeks as i32)
                // A document has one entry in an index that is not multikey.
                .append(
                    "dupsTested",
                    if is_multikey(stage) {
                        c.keys_examined as i32
                    } else {
                        0
                    },
                )
                .append("dupsDropped", c.dups_dropped as i32);
        }
        "OR" | "SORT_MERGE" => {
            out.append("dupsTested", c.keys_examined as i32)
                .append("dupsDropped", c.dups_dropped as i32);
        }
        "SHARDING_FILTER" => {
            out.append("chunkSkips", c.chunk_skips as i32);
        }
        "COUNT_SCAN" | "DISTINCT_SCAN" => {
            out.append("keysExamined", c.keys_examined as i32);
        }
        "PROJECTION_COVERED" | "PROJECTION_SIMPLE" | "PROJECTION_DEFAULT" => {}
        "IDHACK" => {
            out.append("keysExamined", c.keys_examined as i32)
                .append("docsExamined", c.docs_examined as i32);
        }
        "SORT" => {
            out.append("totalDataSizeSorted", c.sort_bytes as i64)
                .append("usedDisk", c.spilled.spills > 0)
                .append("spills", c.spilled.spills as i64)
                .append("spilledRecords", c.spilled.records as i64)
                .append("spilledBytes", c.spilled.bytes as i64)
                .append("spilledDataStorageSize", c.spilled.storage_bytes as i64);
        }
        _ => {}
    }
}
