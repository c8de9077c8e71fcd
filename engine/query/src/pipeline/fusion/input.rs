//! What the input pipelines of a stage that ranks must be: they select documents, leave them as
//! they are, and order them.

use pinion_bson::{RawArray, RawBsonRef, RawDocument};
use pinion_wire::{Error, Result};
use rustc_hash::FxHashSet;

use crate::error::{error, type_mismatch};
use crate::expression::check_field_path;
use crate::pipeline::parse::{check_form, is};
use crate::pipeline::row::StageRow;
use crate::value::{elements, field, first, items};

/// The pipelines by their names, in the order of these.
pub(in crate::pipeline) fn check_inputs<'d>(
    stage: &str,
    pipelines: &'d RawDocument,
) -> Result<Vec<(&'d str, &'d RawArray)>> {
    let mut found = Vec::new();
    for (name, value) in elements(pipelines) {
        let RawBsonRef::Array(stages) = value else {
            return Err(type_mismatch("A pipeline must be an array of objects"));
        };
        check_form(stages)?;
        check_fusions(stages)?;
        found.push((name, stages));
    }
    if found.is_empty() {
        return Err(crate::error::bad_value(format!(
            "{stage} requires at least one pipeline in 'input.pipelines'"
        )));
    }
    let mut names = FxHashSet::default();
    for (name, stages) in &found {
        check_name(name)?;
        check_input(stage, name, stages)?;
        if !names.insert(*name) {
            return Err(error(
                9_921_000,
                format!("{stage} pipeline names must be unique, but found duplicate name '{name}'"),
            ));
        }
    }
    found.sort_by_key(|(name, _)| *name);
    Ok(found)
}

/// A name becomes a part of the names of fields.
fn check_name(name: &str) -> Result<()> {
    if name.contains('.') {
        return Err(error(
            16412,
            "FieldPath field names may not contain '.'. Consider using $getField or $setField.",
        ));
    }
    match name.is_empty() {
        true => Err(error(
            15998,
            "FieldPath field names may not be empty strings.",
        )),
        false => check_field_path(name),
    }
}

/// Refuses a stage that combines pipelines anywhere but at a front.
fn check_fusions(stages: &RawArray) -> Result<()> {
    match names(stages)
        .skip(1)
        .find(|name| is(name, StageRow::is_fusion))
    {
        Some(name) => Err(not_first(name)),
        None => Ok(()),
    }
}

/// What is said of a stage that combines pipelines and does not come first.
pub(in crate::pipeline) fn not_first(name: &str) -> Error {
    error(
        10_170_100,
        format!("{name} can only be the first stage of an aggregation pipeline"),
    )
}

fn check_input(stage: &str, name: &str, stages: &RawArray) -> Result<()> {
    let Some(front) = names(stages).next() else {
        return Err(error(
            9_834_300,
            format!("{stage} input pipeline '{name}' must not be empty"),
        ));
    };
    if is(front, StageRow::is_fusion) {
        return Err(error(
            10_473_002,
            format!("{stage} input pipeline '{name}' has a nested hybrid search stage ({front})"),
        ));
    }
    if !is(front, |row| row.ranks) && !names(stages).any(|name| name == "$sort") {
        return Err(error(
            9_191_100,
            format!(
                "All subpipelines to the {stage} stage must begin with one of $search, $vectorSearch, $geoNear, or have a \
                 custom $sort in the pipeline; '{name}' does not"
            ),
        ));
    }
    for (at, inner) in items(stages).enumerate() {
        if let RawBsonRef::Document(inner) = inner
            && let Some((inner, spec)) = first(inner)
            && !selects(inner, spec)
        {
            return Err(error(
                9_191_103,
                format!(
                    "stage at index {at} of the input pipeline '{name}' of {stage} modifies documents: {inner}. Only stages \
                     that retrieve, limit, or order documents are allowed."
                ),
            ));
        }
    }
    Ok(())
}

/// Whether a stage leaves its documents as they are.
fn selects(name: &str, spec: RawBsonRef<'_>) -> bool {
    match (name, spec) {
        ("$geoNear", RawBsonRef::Document(spec)) => ["distanceField", "includeLocs"]
            .iter()
            .all(|added| field(spec, added).is_none()),
        ("$search", RawBsonRef::Document(spec)) => !matches!(
            field(spec, "returnStoredSource"),
            Some(RawBsonRef::Boolean(true))
        ),
        _ => is(name, |row| row.selects),
    }
}

fn names(stages: &RawArray) -> impl Iterator<Item = &str> {
    items(stages).filter_map(|stage| match stage {
        RawBsonRef::Document(stage) => first(stage).map(|(name, _)| name),
        _ => None,
    })
}
