//! The parsing of `$densify`.

use std::sync::Arc;

use pinion_bson::{DocBuilder, Number, RawBsonRef, RawDocument};
use pinion_wire::{Error, Result};

use super::sequence::{Bounds, Densify, Place};
use crate::error::error;
use crate::expression::{TimeUnit, Variables, check_field_path};
use crate::number::exact_i64;
use crate::pipeline::parse::push_sort;
use crate::pipeline::spec::{
    check_duplicates, missing_field, optional_array, optional_document, optional_text,
    unknown_field, wrong_type,
};
use crate::pipeline::stage::{Stage, StageKind};
use crate::pipeline::window::parse_unit;
use crate::text::value_text;
use crate::value::{elements, is_number, items};

pub(super) fn wrong_bounds() -> Error {
    error(
        5_733_402,
        "the bounds in a range statement must be the string 'full', 'partition', or an ascending array \
         of two numbers or two dates",
    )
}

impl Densify {
    fn parse(spec: &RawDocument, variables: &Variables) -> Result<Densify> {
        check_duplicates("$densify", spec)?;
        let (mut path, mut partition, mut range) = (None, None, None);
        for (name, value) in elements(spec) {
            match name {
                "field" => path = optional_text("$densify.field", value)?,
                "partitionByFields" => partition = parse_paths("$densify", value)?,
                "range" => range = optional_document("$densify.range", value)?,
                other => return Err(unknown_field(&format!("$densify.{other}"))),
            }
        }
        let path = path.ok_or_else(|| missing_field("$densify.field"))?;
        check_field_path(path)?;
        let partition = partition.unwrap_or_default();
        let range = range.ok_or_else(|| missing_field("$densify.range"))?;
        let (step, unit, bounds) = parse_range(range)?;
        if matches!(bounds, Bounds::Partition) && partition.is_empty() {
            return Err(error(
                5_733_408,
                "One may not specify the bounds as 'partition' without specifying a non-empty array of \
                 partitionByFields. You may have meant to specify 'full' bounds.",
            ));
        }
        Ok(Densify {
            field: path.to_string(),
            partition,
            step,
            unit,
            bounds,
            collation: variables.collation.clone(),
        })
    }
}

/// The paths of `partitionByFields`.
pub(in crate::pipeline) fn parse_paths(
    stage: &str,
    value: RawBsonRef<'_>,
) -> Result<Option<Vec<String>>> {
    let path = format!("{stage}.partitionByFields");
    let Some(array) = optional_array(&path, value)? else {
        return Ok(None);
    };
    let mut paths = Vec::new();
    for (at, item) in items(array).enumerate() {
        let RawBsonRef::String(name) = item else {
            return Err(wrong_type(&format!("{path}.{at}"), item, "string"));
        };
        check_field_path(name)?;
        paths.push(name.to_string());
    }
    Ok(Some(paths))
}

fn parse_range(range: &RawDocument) -> Result<(Number, Option<TimeUnit>, Bounds)> {
    check_duplicates("$densify.range", range)?;
    let (mut step, mut bounds, mut unit) = (None, None, None);
    for (name, value) in elements(range) {
        match name {
            "step" => step = Some(value),
            "bounds" => bounds = Some(value),
            "unit" => unit = optional_text("$densify.range.unit", value)?.map(|_| value),
            other => return Err(unknown_field(&format!("$densify.range.{other}"))),
        }
    }
    let step = step.ok_or_else(|| missing_field("$densify.range.step"))?;
    let bounds = bounds.ok_or_else(|| missing_field("$densify.range.bounds"))?;
    let number = Number::from_value(step).filter(|step| {
        let is_positive = step.compare(Number::Int32(0)).is_gt();
        is_positive && step.is_finite()
    });
    let Some(number) = number else {
        return Err(error(
            5_733_401,
            "The step parameter in a range statement must be a strictly positive numeric value",
        ));
    };
    if unit.is_some() && exact_i64(step).is_none() {
        return Err(error(
            6_586_400,
            "The step parameter in a range statement must be a whole number when densifying a date range",
        ));
    }
    let unit = unit.map(parse_unit).transpose()?;
    let bounds = parse_bounds(bounds, unit)?;
    Ok((number, unit, bounds))
}

fn parse_bounds(bounds: RawBsonRef<'_>, unit: Option<TimeUnit>) -> Result<Bounds> {
    let pair = match bounds {
        RawBsonRef::String("full") => return Ok(Bounds::Full),
        RawBsonRef::String("partition") => return Ok(Bounds::Partition),
        RawBsonRef::String(_) => {
            return Err(error(
                5_946_802,
                "Bounds string must either be 'full' or 'partition'",
            ));
        }
        RawBsonRef::Array(array) => items(array).take(3).collect::<Vec<_>>(),
        _ => return Err(wrong_bounds()),
    };
    let [low, high] = pair[..] else {
        return Err(error(
            5_733_403,
            "A bounding array in a range statement must have exactly two elements",
        ));
    };
    let (low, high) = match (low, high) {
        (RawBsonRef::DateTime(low), RawBsonRef::DateTime(high)) => {
            if unit.is_none() {
                return Err(error(
                    5_733_501,
                    "A unit must be specified with date bounds",
                ));
            }
            (
                Place::Date(low.timestamp_millis()),
                Place::Date(high.timestamp_millis()),
            )
        }
        (low, high) if is_number(low) && is_number(high) => {
            if unit.is_some() {
                return Err(error(
                    5_733_409,
                    "Numeric bounds may not have a unit parameter",
                ));
            }
            match (Number::from_value(low), Number::from_value(high)) {
                (Some(low), Some(high)) => (Place::Number(low), Place::Number(high)),
                _ => return Err(wrong_bounds()),
            }
        }
        _ => return Err(wrong_bounds()),
    };
    if low.compare(high).is_gt() {
        return Err(wrong_bounds());
    }
    Ok(Bounds::Explicit(low, high))
}

/// Appends the stages that do the work: a sort, and the filling behind it.
pub(in crate::pipeline) fn parse(
    spec: RawBsonRef<'_>,
    variables: &Variables,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let RawBsonRef::Document(spec) = spec else {
        return Err(error(
            5_876_900,
            format!(
                "The $densify stage specification must be an object, found {}",
                value_text(spec)
            ),
        ));
    };
    let densify = Densify::parse(spec, variables)?;
    let mut order = DocBuilder::new();
    // Over the full range the partitions go side by side.
    if !matches!(densify.bounds, Bounds::Full) {
        for path in densify
            .partition
            .iter()
            .filter(|path| **path != densify.field)
        {
            order.append(path, 1);
        }
    }
    order.append(&densify.field, 1);
    push_sort(&order.finish(), variables, out)?;
    let kind = StageKind::Densify(Arc::new(densify));
    out.push(Stage::made("$_internalDensify", spec, kind));
    Ok(())
}
