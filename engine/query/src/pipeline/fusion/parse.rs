//! The parsing of `$rankFusion`, and the stages that do its work.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument};
use pinion_wire::Result;
use rustc_hash::FxHashMap;

use super::step::{Fusion, Input, Ranks};
use super::{DOCUMENT, check_inputs, rank_field};
use crate::error::{error, failed_to_parse};
use crate::expression::{MetaSet, Variables};
use crate::pipeline::Pipeline;
use crate::pipeline::group::Group;
use crate::pipeline::outside::{ExternalStage, UnionWith};
use crate::pipeline::parse::parse as parse_stages;
use crate::pipeline::spec::{check_duplicates, missing_field, unknown_field, wrong_type};
use crate::pipeline::stage::{Stage, StageKind};
use crate::sort::SortPattern;
use crate::value::{elements, type_name};

/// The weight of a pipeline that is given none.
const DEFAULT_WEIGHT: f64 = 1.0;

/// The stage's parsed specification.
struct RankFusion<'d> {
    pipelines: &'d RawDocument,
    weights: Option<&'d RawDocument>,
    details: bool,
}

/// Appends the stages that do the work.
pub(in crate::pipeline) fn parse(
    spec: RawBsonRef<'_>,
    variables: &Variables,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let RawBsonRef::Document(spec) = spec else {
        return Err(failed_to_parse(format!(
            "$rankFusion stage specification must be an object, found {}",
            type_name(spec)
        )));
    };
    let spec = RankFusion::parse(spec)?;
    let inputs = check_inputs("$rankFusion", spec.pipelines)?;
    let mut parsed = Vec::new();
    for (name, stages) in &inputs {
        parsed.push(input_stages(name, stages, variables)?);
    }
    let mut weights = parse_weights("$rankFusion", spec.weights, &inputs)?;
    let mut parsed = parsed.into_iter();
    out.extend(parsed.next().into_iter().flatten());
    for stages in parsed {
        out.push(union_of(Pipeline { stages }));
    }
    let inputs: Vec<Input> = inputs
        .iter()
        .map(|(name, _)| Input {
            name: (*name).to_owned(),
            weight: weights.remove(*name).unwrap_or(DEFAULT_WEIGHT),
        })
        .collect();
    push_group(&inputs, variables, out)?;
    let fusion = Fusion::new(inputs, spec.details);
    let source = fusion.source();
    out.push(Stage::made(
        "$setMetadata",
        &*source,
        StageKind::Fuse(Arc::new(fusion)),
    ));
    push_best_first(variables, out)
}

impl<'d> RankFusion<'d> {
    fn parse(spec: &'d RawDocument) -> Result<RankFusion<'d>> {
        let (mut pipelines, mut weights, mut details) = (None, None, false);
        check_duplicates("$rankFusion", spec)?;
        for (name, value) in elements(spec) {
            match (name, value) {
                ("input", RawBsonRef::Document(input)) => {
                    pipelines = Some(only_document("$rankFusion.input", "pipelines", input)?);
                }
                ("combination", RawBsonRef::Document(combination)) => {
                    let path = "$rankFusion.combination";
                    weights = Some(only_document(path, "weights", combination)?);
                }
                ("scoreDetails", RawBsonRef::Boolean(wanted)) => details = wanted,
                ("input" | "combination" | "scoreDetails", RawBsonRef::Null) => {}
                ("scoreDetails", _) => {
                    return Err(wrong_type("$rankFusion.scoreDetails", value, "bool"));
                }
                ("input" | "combination", _) => {
                    return Err(wrong_type(&format!("$rankFusion.{name}"), value, "object"));
                }
                _ => return Err(unknown_field(&format!("$rankFusion.{name}"))),
            }
        }
        Ok(RankFusion {
            pipelines: pipelines.ok_or_else(|| missing_field("$rankFusion.input"))?,
            weights,
            details,
        })
    }
}

/// The document that a specification must have under this name, and nothing else.
fn only_document<'d>(path: &str, only: &str, spec: &'d RawDocument) -> Result<&'d RawDocument> {
    let mut found = None;
    check_duplicates(path, spec)?;
    for (name, value) in elements(spec) {
        match value {
            _ if name != only => return Err(unknown_field(&format!("{path}.{name}"))),
            RawBsonRef::Document(value) => found = Some(value),
            RawBsonRef::Null => {}
            _ => return Err(wrong_type(&format!("{path}.{name}"), value, "object")),
        }
    }
    found.ok_or_else(|| missing_field(&format!("{path}.{only}")))
}

/// The weights that are given, by the pipelines that they are given to.
fn parse_weights(
    stage: &str,
    weights: Option<&RawDocument>,
    inputs: &[(&str, &RawArray)],
) -> Result<FxHashMap<String, f64>> {
    let mut out = FxHashMap::default();
    let Some(weights) = weights else {
        return Ok(out);
    };
    let given = elements(weights).count();
    if given > inputs.len() {
        return Err(error(
            9_460_301,
            format!(
                "{stage} input has more weights ({given}) than pipelines ({})",
                inputs.len()
            ),
        ));
    }
    let mut unknown = None;
    for (name, value) in elements(weights) {
        if !inputs.iter().any(|(input, _)| *input == name) {
            unknown = unknown.or(Some(name));
            continue;
        }
        let Some(weight) = pinion_bson::Number::from_value(value) else {
            return Err(error(
                13118,
                format!(
                    "wrong type for weight ({name}) {} != number",
                    type_name(value)
                ),
            ));
        };
        let weight = weight.to_f64();
        if weight.is_nan() || weight < 0.0 {
            return Err(error(
                9_460_300,
                format!(
                    "{stage}'s pipeline weight must be non-negative, but given {weight} for pipeline '{name}'."
                ),
            ));
        }
        if out.insert(name.to_owned(), weight).is_some() {
            return Err(error(
                9_967_401,
                format!(
                    "A pipeline named '{name}' is specified more than once in the {stage} 'combination.weights' object."
                ),
            ));
        }
    }
    match unknown {
        None => Ok(out),
        Some(name) => Err(error(
            9_967_500,
            format!("{stage} stage contained a weight for '{name}', which is no input pipeline"),
        )),
    }
}

/// The stages of an input pipeline, and behind them the one that gives places.
fn input_stages(name: &str, stages: &RawArray, variables: &Variables) -> Result<Vec<Stage>> {
    let inner = Pipeline {
        stages: parse_stages(stages, 0, variables)?,
    };
    inner.check_text(true)?;
    inner.check_metadata(MetaSet::default())?;
    let mut stages = inner.stages;
    // The last stage that orders documents says how they come; a sample leaves no two in one place.
    let mut order = None;
    for stage in &stages {
        match &stage.kind {
            StageKind::Sort(pattern) => order = Some(pattern.clone()),
            StageKind::GeoNear(_) => order = Some(nearest()?),
            StageKind::Sample(_) => order = None,
            _ => {}
        }
    }
    let ranks = Ranks::new(name, order);
    let source = ranks.source();
    stages.push(Stage::made(
        "$setWindowFields",
        &*source,
        StageKind::Rank(Arc::new(ranks)),
    ));
    Ok(stages)
}

/// The order in which a `$geoNear` gives its documents.
fn nearest() -> Result<SortPattern> {
    let mut pattern = DocBuilder::new();
    pattern
        .start_document("distance")
        .append("$meta", "geoNearDistance");
    pattern.end();
    SortPattern::parse(&pattern.finish())
}

/// A union with the documents that a pipeline makes of the collection that is read.
fn union_of(pipeline: Pipeline) -> Stage {
    let mut stages = RawArrayBuf::new();
    for source in pipeline.sources() {
        stages.push(RawBson::Document(source.to_owned()));
    }
    let mut spec = DocBuilder::new();
    spec.append("pipeline", RawBsonRef::Array(&stages));
    let union = ExternalStage::UnionWith(UnionWith::of_own(pipeline));
    Stage::made(
        "$unionWith",
        &*spec.finish(),
        StageKind::External(Arc::new(union)),
    )
}

/// Appends the stage that brings the same documents together.
fn push_group(inputs: &[Input], variables: &Variables, out: &mut Vec<Stage>) -> Result<()> {
    let mut group = DocBuilder::new();
    group.append("_id", &*format!("${DOCUMENT}._id"));
    group
        .start_document(DOCUMENT)
        .append("$first", &*format!("${DOCUMENT}"));
    group.end();
    for input in inputs {
        let name = rank_field(&input.name);
        group
            .start_document(&name)
            .append("$max", &*format!("${name}"));
        group.end();
    }
    let group = group.finish();
    let grouped = Group::parse(RawBsonRef::Document(&group), variables)?;
    out.push(Stage::made("$group", &*group, StageKind::Group(grouped)));
    Ok(())
}

/// Appends the sort by the score, which puts documents of equal scores in the order of their `_id`.
fn push_best_first(variables: &Variables, out: &mut Vec<Stage>) -> Result<()> {
    let mut pattern = DocBuilder::new();
    pattern.start_document("score").append("$meta", "score");
    pattern.end().append("_id", 1);
    let pattern = pattern.finish();
    let sort = SortPattern::parse(&pattern)?.with_collation(variables.collation.clone());
    out.push(Stage::made("$sort", &*pattern, StageKind::Sort(sort)));
    Ok(())
}
