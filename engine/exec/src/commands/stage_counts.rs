//! How often stages of pipelines were run, by their names: `metrics.aggStageCounters` of
//! `serverStatus`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_bson::{DocBuilder, RawArray, RawBsonRef};
use pinion_query::{InnerPipelines, StageSupport, stage_row};

use crate::limits::MAX_COUNTED_PIPELINES;

/// The counts of one core.
#[derive(Debug, Default)]
pub struct StageCounts(RefCell<BTreeMap<&'static str, u64>>);

/// What this core has counted of stages.
pub fn stage_counts() -> Rc<StageCounts> {
    pinion_runtime::core_local()
}

impl StageCounts {
    /// Counts the stages of a pipeline, and those of the pipelines in it.
    pub(super) fn count(&self, stages: &RawArray) {
        self.count_within(stages, 0);
    }

    fn count_within(&self, stages: &RawArray, depth: usize) {
        for stage in pinion_bson::values(stages) {
            let RawBsonRef::Document(stage) = stage else {
                continue;
            };
            let Some((name, spec)) = pinion_bson::elements(stage).next() else {
                continue;
            };
            let row = stage_row(name).filter(|row| row.support != StageSupport::Unsupported);
            let Some(row) = row else {
                continue;
            };
            *self.0.borrow_mut().entry(row.name).or_default() += 1;
            if depth < MAX_COUNTED_PIPELINES {
                self.count_inner(row.inner, spec, depth + 1);
            }
        }
    }

    fn count_inner(&self, within: InnerPipelines, spec: RawBsonRef<'_>, depth: usize) {
        let RawBsonRef::Document(spec) = spec else {
            return;
        };
        let inner = pinion_bson::elements(spec).filter(|(field, _)| match within {
            InnerPipelines::Facets => true,
            InnerPipelines::Pipeline => *field == "pipeline",
            // Those of a fusion are not counted.
            InnerPipelines::None | InnerPipelines::Foreign | InnerPipelines::Inputs => false,
        });
        for (_, stages) in inner {
            if let RawBsonRef::Array(stages) = stages {
                self.count_within(stages, depth);
            }
        }
    }

    pub fn values(&self) -> BTreeMap<&'static str, u64> {
        self.0.borrow().clone()
    }
}

/// Appends the counts of all stages that there are.
pub fn append(out: &mut DocBuilder, counts: &BTreeMap<&'static str, u64>) {
    let mut names: Vec<&str> = pinion_query::stage_names().collect();
    names.sort_unstable();
    out.start_document("aggStageCounters");
    for name in names {
        let count = counts.get(name).copied().unwrap_or_default();
        out.append(name, count as i64);
    }
    out.end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawdoc;

    #[test]
    fn stages_of_inner_pipelines_count() {
        let command = rawdoc! { "pipeline": [
            { "$match": { "a": 1 } },
            { "$facet": { "x": [{ "$match": {} }, { "$count": "n" }], "y": [] } },
            { "$lookup": { "from": "c", "pipeline": [{ "$match": {} }], "as": "m" } },
            { "$unionWith": "c" },
            { "$nothing": 1 },
        ] };
        let counts = StageCounts::default();
        counts.count(command.get_array("pipeline").unwrap());
        let values: Vec<_> = counts.values().into_iter().collect();
        let expected = [
            ("$count", 1),
            ("$facet", 1),
            ("$lookup", 1),
            ("$match", 3),
            ("$unionWith", 1),
        ];
        assert_eq!(values, expected);
        let mut out = DocBuilder::new();
        append(&mut out, &counts.values());
        let out = out.finish();
        let shown = out.get_document("aggStageCounters").unwrap();
        assert_eq!(shown.get_i64("$match").unwrap(), 3);
        assert_eq!(shown.get_i64("$sort").unwrap(), 0);
    }
}
