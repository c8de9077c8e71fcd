//! What stages ask of the command that they stand in, whatever their specifications say: its read
//! concern, its API version, and how deep pipelines may stand in each other.

use pinion_bson::{RawArray, RawBsonRef, RawDocument};
use pinion_wire::Result;
use pinion_wire::idl::ReadConcernLevel;

use super::row::{InnerPipelines, StageReadConcern, stage_row};
use crate::error::error;
use crate::limits::{MAX_PIPELINE_STAGES, MAX_SUB_PIPELINE_DEPTH};
use crate::value::{elements, field, first, items};

/// Refuses stages that a read concern of this level cannot be had with.
pub fn check_read_concern(stages: &RawArray, level: ReadConcernLevel) -> Result<()> {
    visit(stages, 0, &mut |name, _, _| {
        let (text, row) = (level.name(), stage_row(name));
        let refused = match row.map_or(StageReadConcern::Any, |row| row.read_concern) {
            _ if level == ReadConcernLevel::Local => return Ok(()),
            StageReadConcern::NotLinearizable if level == ReadConcernLevel::Linearizable => {
                format!("{name} cannot be used with a 'linearizable' read concern level")
            }
            StageReadConcern::Local => format!(
                "Aggregation stage {name} cannot run with a readConcern other than 'local', or in a multi-document \
                 transaction. Current readConcern: {text}"
            ),
            _ => return Ok(()),
        };
        Err(error(
            72,
            format!(
                "Command aggregate does not support {{ readConcern: {{ level: \"{text}\", provenance: \"clientSupplied\" \
                 }} }} :: caused by :: {refused}"
            ),
        ))
    })
}

/// Refuses stages that version 1 of the stable API does not have.
pub fn check_api_v1(stages: &RawArray) -> Result<()> {
    visit(stages, 0, &mut |name, spec, _| {
        if is_in_v1(name, spec) {
            return Ok(());
        }
        Err(error(
            323,
            format!("{name} is not allowed with 'apiStrict: true' in API Version 1"),
        ))
    })
}

/// The name of a stage that version 1 of the stable API does not have.
pub fn stage_outside_v1(stage: &RawDocument) -> Option<&str> {
    let (name, spec) = first(stage)?;
    (!is_in_v1(name, spec)).then_some(name)
}

fn is_in_v1(name: &str, spec: RawBsonRef<'_>) -> bool {
    stage_row(name).is_none_or(|row| row.is_in_v1(spec))
}

/// The pipelines that stand in a stage of this name.
fn inner_pipelines(name: &str) -> InnerPipelines {
    stage_row(name).map_or(InnerPipelines::None, |row| row.inner)
}

/// Refuses pipelines that stand too deep in each other, and more stages that read elsewhere than
/// one pipeline may have in all of them: each waits for the one before it.
pub(super) fn check_depth(stages: &RawArray) -> Result<()> {
    let mut waiting = 0;
    visit(stages, 0, &mut |name, spec, depth| {
        if depth > MAX_SUB_PIPELINE_DEPTH {
            return Err(error(
                232,
                format!(
                    "Maximum number of nested sub-pipelines exceeded. Limit is {MAX_SUB_PIPELINE_DEPTH}"
                ),
            ));
        }
        waiting += match inner_pipelines(name) {
            InnerPipelines::None => 0,
            InnerPipelines::Foreign | InnerPipelines::Pipeline | InnerPipelines::Facets => 1,
            InnerPipelines::Inputs => inputs(spec).map_or(0, crate::value::count),
        };
        if waiting > MAX_PIPELINE_STAGES {
            return Err(error(
                7_749_501,
                format!("Pipeline length must be no longer than {MAX_PIPELINE_STAGES} stages"),
            ));
        }
        Ok(())
    })
}

/// The input pipelines of a stage that combines several.
fn inputs(spec: RawBsonRef<'_>) -> Option<&RawDocument> {
    let RawBsonRef::Document(spec) = spec else {
        return None;
    };
    let RawBsonRef::Document(input) = field(spec, "input")? else {
        return None;
    };
    match field(input, "pipelines")? {
        RawBsonRef::Document(pipelines) => Some(pipelines),
        _ => None,
    }
}

type Visitor<'v> = dyn FnMut(&str, RawBsonRef<'_>, usize) -> Result<()> + 'v;

/// Shows every stage with its name, its specification and how many stages it stands in, also those
/// of pipelines inside of others. A `$facet` adds no depth.
fn visit(stages: &RawArray, depth: usize, visitor: &mut Visitor<'_>) -> Result<()> {
    for stage in items(stages) {
        let RawBsonRef::Document(stage) = stage else {
            continue;
        };
        let Some((name, spec)) = first(stage) else {
            continue;
        };
        crate::work::spend(1)?;
        visitor(name, spec, depth)?;
        let inner = inner_pipelines(name);
        if inner == InnerPipelines::Pipeline {
            // A stage without a pipeline reads another collection all the same.
            visitor("", RawBsonRef::Null, depth + 1)?;
        }
        let RawBsonRef::Document(spec) = spec else {
            continue;
        };
        match inner {
            InnerPipelines::None | InnerPipelines::Foreign => {}
            InnerPipelines::Pipeline => {
                if let Some(RawBsonRef::Array(inner)) = field(spec, "pipeline") {
                    visit(inner, depth + 1, visitor)?;
                }
            }
            InnerPipelines::Facets => visit_each(spec, depth, visitor)?,
            InnerPipelines::Inputs => {
                if let Some(pipelines) = inputs(RawBsonRef::Document(spec)) {
                    visit_each(pipelines, depth, visitor)?;
                }
            }
        }
    }
    Ok(())
}

/// Visits the pipelines that are the values of a document.
fn visit_each(pipelines: &RawDocument, depth: usize, visitor: &mut Visitor<'_>) -> Result<()> {
    for (_, inner) in elements(pipelines) {
        if let RawBsonRef::Array(inner) = inner {
            visit(inner, depth, visitor)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawArrayBuf, RawDocumentBuf, rawdoc};

    fn pipeline(stage: RawDocumentBuf) -> RawArrayBuf {
        let mut stages = RawArrayBuf::new();
        stages.push(stage);
        stages
    }

    #[track_caller]
    fn check_level(stage: RawDocumentBuf, level: ReadConcernLevel, allowed: bool) {
        let found = check_read_concern(&pipeline(stage.clone()), level);
        let code = found.err().map(|e| e.code.0);
        assert_eq!(code, (!allowed).then_some(72), "{stage:?} {level:?}");
    }

    #[test]
    fn read_concerns() {
        use ReadConcernLevel::*;
        let within = rawdoc! { "$facet": { "f": [{ "$currentOp": {} }] } };
        check_level(rawdoc! { "$currentOp": {} }, Local, true);
        check_level(rawdoc! { "$currentOp": {} }, Available, false);
        check_level(within, Majority, false);
        for level in [Local, Available, Majority, Snapshot, Linearizable] {
            check_level(rawdoc! { "$listCatalog": {} }, level, true);
        }
        check_level(rawdoc! { "$out": "c" }, Majority, true);
        check_level(rawdoc! { "$out": "c" }, Linearizable, false);
        check_level(rawdoc! { "$match": {} }, Linearizable, true);
    }

    #[track_caller]
    fn check_v1(stage: RawDocumentBuf, allowed: bool) {
        let found = check_api_v1(&pipeline(stage.clone()));
        let code = found.err().map(|e| e.code.0);
        assert_eq!(code, (!allowed).then_some(323), "{stage:?}");
    }

    #[test]
    fn the_stable_api() {
        check_v1(rawdoc! { "$collStats": { "count": {} } }, true);
        check_v1(
            rawdoc! { "$collStats": { "count": {}, "storageStats": {} } },
            false,
        );
        check_v1(rawdoc! { "$indexStats": {} }, false);
        let inside = rawdoc! { "$unionWith": { "coll": "c", "pipeline": [{ "$search": {} }] } };
        check_v1(inside, false);
        check_v1(rawdoc! { "$group": { "_id": "$a" } }, true);
    }

    #[track_caller]
    fn check_nested(depth: usize, code: Option<i32>) {
        let mut stage = rawdoc! { "$unionWith": "c" };
        for _ in 1..depth {
            stage = rawdoc! { "$unionWith": { "coll": "c", "pipeline": [stage] } };
        }
        let found = check_depth(&pipeline(stage));
        assert_eq!(found.err().map(|e| e.code.0), code, "{depth}");
    }

    #[test]
    fn pipelines_inside_of_pipelines() {
        check_nested(MAX_SUB_PIPELINE_DEPTH, None);
        check_nested(MAX_SUB_PIPELINE_DEPTH + 1, Some(232));
    }

    #[test]
    fn stages_that_wait_for_each_other() {
        let check = |outer: usize, inner: usize, code: Option<i32>| {
            let mut within = RawArrayBuf::new();
            (0..inner).for_each(|_| within.push(rawdoc! { "$unionWith": "c" }));
            let mut stages = pipeline(rawdoc! { "$facet": { "f": within } });
            (1..outer).for_each(|_| stages.push(rawdoc! { "$lookup": {} }));
            let found = check_depth(&stages);
            assert_eq!(found.err().map(|e| e.code.0), code, "{outer} {inner}");
        };
        check(MAX_PIPELINE_STAGES, 0, None);
        check(MAX_PIPELINE_STAGES / 2, MAX_PIPELINE_STAGES / 2, None);
        check(
            MAX_PIPELINE_STAGES / 2,
            MAX_PIPELINE_STAGES / 2 + 1,
            Some(7_749_501),
        );
    }
}
