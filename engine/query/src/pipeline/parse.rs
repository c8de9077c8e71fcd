//! The parser of pipelines.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawArray, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::bucket_auto::BucketAuto;
use super::facet::Facet;
use super::fusion::fusion_not_first;
use super::geo_near::GeoNear;
use super::group::Group;
use super::refused::{misplaced_stream, not_first, refused};
use super::row::{StageRow, stage_row};
use super::sample::Sample;
use super::stage::{Stage, StageKind};
use super::unwind::Unwind;
use super::{Document, ExternalStage, GraphLookup, Lookup, Merge, OutputTo, UnionWith};
use crate::error::{error, type_mismatch};
use crate::expression::{Expression, Variables, check_field_path};
use crate::limits::MAX_PIPELINE_STAGES;
use crate::matcher::Matcher;
use crate::number::exact_i64;
use crate::projection::Projection;
use crate::series::Unpack;
use crate::sort::SortPattern;
use crate::text::{element_text, value_text};
use crate::value::{count, elements, first, is_empty, is_nan, is_number, items, type_name};

/// Looks at the form and the names of all stages, which comes before what is in any of them.
pub(super) fn check_form(stages: &RawArray) -> Result<()> {
    for (at, stage) in items(stages).enumerate() {
        if at >= MAX_PIPELINE_STAGES {
            return Err(error(
                7749501,
                format!("Pipeline length must be no longer than {MAX_PIPELINE_STAGES} stages"),
            ));
        }
        let RawBsonRef::Document(stage) = stage else {
            return Err(type_mismatch(
                "Each element of the 'pipeline' array must be an object",
            ));
        };
        crate::work::spend_bytes(stage.as_bytes().len())?;
        let name = match first(stage) {
            Some((name, _)) if count(stage) == 1 => name,
            _ => {
                return Err(error(
                    40323,
                    "A pipeline stage specification object must contain exactly one field.",
                ));
            }
        };
        if stage_row(name).is_none() {
            return Err(error(
                40324,
                format!("Unrecognized pipeline stage name: '{name}'"),
            ));
        }
    }
    Ok(())
}

pub(super) fn parse(stages: &RawArray, skip: usize, variables: &Variables) -> Result<Vec<Stage>> {
    check_form(stages)?;
    let mut out: Vec<Stage> = Vec::new();
    for (at, stage) in items(stages).enumerate().skip(skip) {
        if let RawBsonRef::Document(stage) = stage
            && let Some((name, spec)) = first(stage)
        {
            match name {
                "$bucket" => super::bucket::parse(spec, variables, &mut out)?,
                "$densify" => super::densify::parse(spec, variables, &mut out)?,
                "$fill" => super::fill::parse(spec, variables, &mut out)?,
                "$setWindowFields" => super::window::parse(spec, variables, &mut out)?,
                "$sortByCount" => parse_sort_by_count(spec, variables, &mut out)?,
                name if at > 0 && is(name, StageRow::is_fusion) => {
                    return Err(fusion_not_first(name));
                }
                "$rankFusion" => super::fusion::parse(spec, variables, &mut out)?,
                // The caller of a pipeline of its own has taken such a stage off the front.
                "$changeStream" if variables.cluster_time.is_some() => {
                    return Err(misplaced_stream(at == 0));
                }
                name if is(name, StageRow::is_lacking) => return Err(refused(name, at == 0)),
                _ => out.push(Stage {
                    kind: parse_stage(name, spec, variables)?,
                    source: stage.to_owned(),
                }),
            }
        }
    }
    // In a series the sources are searched, which the buckets give.
    let unpacks = matches!(
        out.first().map(|stage| &stage.kind),
        Some(StageKind::Unpack(_))
    );
    let first_of_all = usize::from(skip == 0) + usize::from(unpacks);
    let behind = out.iter().skip(first_of_all);
    let mut misplaced = behind.filter_map(Stage::row).filter(|row| row.first_only);
    if let Some(row) = misplaced.next() {
        return Err(not_first(row.name));
    }
    check_outputs(&out)?;
    Ok(out)
}

fn outside(stage: ExternalStage) -> StageKind {
    StageKind::External(Arc::new(stage))
}

/// Refuses a stage that writes anywhere but at the end.
fn check_outputs(stages: &[Stage]) -> Result<()> {
    let before_last = stages.split_last().map_or(&[][..], |(_, before)| before);
    for stage in before_last {
        if let Some(StageRow {
            name, writes: true, ..
        }) = stage.row()
        {
            return Err(error(
                40601,
                format!("{name} can only be the final stage in the pipeline"),
            ));
        }
    }
    Ok(())
}

/// Refuses a `$documents` of nothing, wherever it stands: MongoDB makes it a projection, which must
/// not be empty.
pub fn check_documents(spec: RawBsonRef<'_>) -> Result<()> {
    match spec {
        RawBsonRef::Document(spec) if is_empty(spec) => Err(error(
            51270,
            "An empty sub-projection is not a valid value. Found empty object at path",
        )),
        _ => Ok(()),
    }
}

/// The documents that a `$documents` at the front makes.
pub(super) fn documents_of(
    stages: &RawArray,
    variables: &Variables,
) -> Result<Option<Vec<Document>>> {
    let Some(RawBsonRef::Document(stage)) = items(stages).next() else {
        return Ok(None);
    };
    let Some(("$documents", spec)) = first(stage) else {
        return Ok(None);
    };
    check_documents(spec)?;
    let expression = Expression::parse(spec, variables)?;
    let nothing = pinion_bson::RawDocumentBuf::new();
    let value = expression.evaluate(&nothing)?;
    let Some(RawBsonRef::Array(documents)) = value.as_ref() else {
        return Err(error(
            5_858_203,
            format!(
                "error during aggregation :: caused by :: an array is expected, but found {}",
                value.type_name()
            ),
        ));
    };
    crate::work::spend_bytes(documents.as_bytes().len())?;
    let mut out = Vec::new();
    for document in items(documents) {
        let RawBsonRef::Document(document) = document else {
            return Err(error(
                40228,
                format!(
                    "'newRoot' expression must evaluate to an object, but resulting value was: {}. Type of resulting \
                     value: '{}'.",
                    value_text(document),
                    type_name(document)
                ),
            ));
        };
        out.push(document.to_owned().into());
    }
    Ok(Some(out))
}

/// Parses a stage that is one stage when at work.
fn parse_stage(name: &str, spec: RawBsonRef<'_>, variables: &Variables) -> Result<StageKind> {
    Ok(match name {
        "$match" => {
            let RawBsonRef::Document(filter) = spec else {
                return Err(error(
                    15959,
                    "the match filter must be an expression in an object",
                ));
            };
            StageKind::Match(Matcher::parse_with(filter, variables)?)
        }
        "$project" => {
            let RawBsonRef::Document(spec) = spec else {
                return Err(error(15969, "$project specification must be an object"));
            };
            StageKind::Project(Projection::parse_aggregation(spec, variables)?)
        }
        "$addFields" | "$set" => {
            let RawBsonRef::Document(spec) = spec else {
                return Err(error(
                    40272,
                    format!(
                        "{name} specification stage must be an object, got {}",
                        type_name(spec)
                    ),
                ));
            };
            StageKind::Project(
                Projection::parse_addition(spec, variables).map_err(|mut e| {
                    e.message =
                        e.message
                            .replacen("Invalid $addFields", &format!("Invalid {name}"), 1);
                    e
                })?,
            )
        }
        "$unset" => StageKind::Project(parse_unset(spec, variables)?),
        "$sort" => {
            let RawBsonRef::Document(pattern) = spec else {
                return Err(error(
                    15973,
                    "the $sort key specification must be an object",
                ));
            };
            let sort = SortPattern::parse(pattern)?.with_collation(variables.collation.clone());
            if sort.is_empty() {
                return Err(error(15976, "$sort stage must have at least one sort key"));
            }
            StageKind::Sort(sort)
        }
        "$skip" => StageKind::Skip(parse_amount("$skip", 5107200, spec)?),
        "$limit" => {
            let limit = parse_amount("$limit", 5107201, spec)?;
            if limit == 0 {
                return Err(error(15958, "the limit must be positive"));
            }
            StageKind::Limit(limit)
        }
        "$count" => StageKind::Count(parse_count(spec)?),
        "$group" => StageKind::Group(Group::parse(spec, variables)?),
        "$unwind" => StageKind::Unwind(Unwind::parse(spec)?),
        "$replaceRoot" => {
            let RawBsonRef::Document(spec) = spec else {
                return Err(error(
                    40229,
                    format!(
                        "expected an object as specification for $replaceRoot stage, got {}",
                        type_name(spec)
                    ),
                ));
            };
            let mut new_root = None;
            for (field, value) in elements(spec) {
                if field != "newRoot" {
                    return Err(error(
                        40415,
                        format!("BSON field '$replaceRoot.{field}' is an unknown field."),
                    ));
                }
                new_root = Some(value);
            }
            let new_root = new_root.ok_or_else(|| {
                error(
                    40414,
                    "BSON field '$replaceRoot.newRoot' is missing but a required field",
                )
            })?;
            StageKind::ReplaceRoot(
                Expression::parse(new_root, variables)?,
                "'newRoot' expression ",
            )
        }
        "$replaceWith" => StageKind::ReplaceRoot(
            Expression::parse(spec, variables)?,
            "'replacement document' ",
        ),
        "$redact" => StageKind::Redact(Expression::parse_redact(spec, variables)?),
        "$facet" => StageKind::Facet(Facet::parse(spec, variables)?),
        "$geoNear" => StageKind::GeoNear(GeoNear::parse(spec, variables)?),
        "$lookup" => outside(ExternalStage::Lookup(Lookup::parse(spec, variables)?)),
        "$graphLookup" => outside(ExternalStage::GraphLookup(GraphLookup::parse(
            spec, variables,
        )?)),
        "$unionWith" => outside(ExternalStage::UnionWith(UnionWith::parse(spec, variables)?)),
        "$out" => outside(ExternalStage::Out(OutputTo::parse(spec)?)),
        "$merge" => outside(ExternalStage::Merge(Merge::parse(spec, variables)?)),
        "$_internalUnpackBucket" => StageKind::Unpack(Unpack::parse(spec)?),
        "$sample" => StageKind::Sample(Sample::parse(spec, variables)?),
        "$bucketAuto" => StageKind::BucketAuto(BucketAuto::parse(spec, variables)?),
        name => return Err(refused(name, false)),
    })
}

/// Whether the stage of this name is like that.
pub(super) fn is(name: &str, question: fn(&StageRow) -> bool) -> bool {
    stage_row(name).is_some_and(question)
}

fn parse_amount(name: &str, code: i32, spec: RawBsonRef<'_>) -> Result<i64> {
    let invalid =
        |reason: String| error(code, format!("invalid argument to {name} stage: {reason}"));
    let element = || element_text(name, spec);
    if !is_number(spec) {
        return Err(invalid(format!("Expected a number in: {}", element())));
    }
    match exact_i64(spec) {
        Some(amount) if amount < 0 => Err(invalid(format!(
            "Expected a non-negative number in: {}",
            element()
        ))),
        Some(amount) => Ok(amount),
        None if is_nan(spec) => Err(invalid(format!(
            "Expected an integer, but found NaN in: {}",
            element()
        ))),
        None => Err(invalid(format!("Expected an integer: {}", element()))),
    }
}

fn parse_count(spec: RawBsonRef<'_>) -> Result<String> {
    let RawBsonRef::String(name) = spec else {
        return Err(error(40156, "the count field must be a non-empty string"));
    };
    if name.is_empty() {
        return Err(error(40157, "the count field must be a non-empty string"));
    }
    if name.starts_with('$') {
        return Err(error(40158, "the count field cannot be a $-prefixed path"));
    }
    if name.contains('\0') {
        return Err(error(40159, "the count field cannot contain a null byte"));
    }
    if name.contains('.') {
        return Err(error(40160, "the count field cannot contain '.'"));
    }
    if name == "_id" {
        return Err(error(9039800, "the count field cannot be '_id'"));
    }
    Ok(name.to_string())
}

fn parse_unset(spec: RawBsonRef<'_>, variables: &Variables) -> Result<Projection> {
    let mut names: Vec<&str> = Vec::new();
    match spec {
        RawBsonRef::String(name) => names.push(name),
        RawBsonRef::Array(array) => {
            for item in items(array) {
                let RawBsonRef::String(name) = item else {
                    return Err(error(
                        31120,
                        "$unset specification must be a string or an array containing only string values",
                    ));
                };
                names.push(name);
            }
            if names.is_empty() {
                return Err(error(
                    31119,
                    "$unset specification must be a string or an array with at least one field",
                ));
            }
        }
        _ => {
            return Err(error(
                31002,
                "$unset specification must be a string or an array",
            ));
        }
    }
    if names.iter().any(|name| name.contains('\0')) {
        return Err(error(
            9_527_900,
            "$unset specification must not have field names with null bytes",
        ));
    }
    let mut projection = DocBuilder::new();
    for name in names {
        check_field_path(name).map_err(|e| e.context("Invalid $unset"))?;
        projection.append(name, RawBsonRef::Boolean(false));
    }
    Projection::parse_aggregation(&projection.finish(), variables).map_err(|mut e| {
        e.message = e.message.replacen("Invalid $project", "Invalid $unset", 1);
        e
    })
}

fn parse_sort_by_count(
    spec: RawBsonRef<'_>,
    variables: &Variables,
    out: &mut Vec<Stage>,
) -> Result<()> {
    match spec {
        RawBsonRef::String(text) if text.starts_with('$') => {}
        RawBsonRef::Document(document)
            if first(document).is_some_and(|(name, _)| name.starts_with('$')) => {}
        RawBsonRef::String(_) => {
            return Err(error(
                40148,
                "the sortByCount field must be defined as a $-prefixed path or an expression inside an object",
            ));
        }
        RawBsonRef::Document(_) => {
            return Err(error(
                40147,
                "the sortByCount field must be defined as a $-prefixed path or an expression inside an object",
            ));
        }
        _ => {
            return Err(error(
                40149,
                "the sortByCount field must be specified as a string or as an object",
            ));
        }
    }
    let mut group = DocBuilder::new();
    group.append("_id", spec);
    group.start_document("count");
    group.append("$sum", RawBsonRef::Int32(1));
    group.end();
    let group = group.finish();
    let group: &RawDocument = &group;
    debug_assert!(!is_empty(group));
    let mut sort = DocBuilder::new();
    sort.append("count", RawBsonRef::Int32(-1));
    push_group_and_sort(group, &sort.finish(), variables, out)
}

/// Appends a `$group` and a `$sort` that do the work of another stage.
pub(super) fn push_group_and_sort(
    group: &RawDocument,
    sort: &RawDocument,
    variables: &Variables,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let grouped = Group::parse(RawBsonRef::Document(group), variables)?;
    out.push(Stage::made("$group", group, StageKind::Group(grouped)));
    push_sort(sort, variables, out)
}

/// Appends a `$sort`.
pub(super) fn push_sort(
    pattern: &RawDocument,
    variables: &Variables,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let sort = SortPattern::parse(pattern)?.with_collation(variables.collation.clone());
    out.push(Stage::made("$sort", pattern, StageKind::Sort(sort)));
    Ok(())
}

/// Appends an `$addFields`.
pub(super) fn push_addition(
    addition: &RawDocument,
    variables: &Variables,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let projection = Projection::parse_addition(addition, variables)?;
    out.push(Stage::made(
        "$addFields",
        addition,
        StageKind::Project(projection),
    ));
    Ok(())
}
