//! `$bucket`: a group by ranges and a sort by them.

use std::cmp::Ordering;

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use super::Stage;
use super::parse::push_group_and_sort;
use crate::collation::{compare, compare_owned};
use crate::error::error;
use crate::expression::{Expression, Variables};
use crate::text::value_text;
use crate::value::{class, elements, first, items, type_name};

/// Appends the stages that do the work.
pub(super) fn parse(
    spec: RawBsonRef<'_>,
    variables: &Variables,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let RawBsonRef::Document(spec) = spec else {
        return Err(error(
            40201,
            format!(
                "Argument to $bucket stage must be an object, but found type: {}.",
                type_name(spec)
            ),
        ));
    };
    let (mut group_by, mut boundaries, mut default, mut output) = (None, None, None, None);
    for (name, value) in elements(spec) {
        match (name, value) {
            ("groupBy", _) => group_by = Some(checked_group_by(value)?),
            ("boundaries", RawBsonRef::Array(list)) => {
                let list = items(list)
                    .map(|item| constant(item, variables, 40191, "boundaries"))
                    .collect::<Result<Vec<RawBson>>>()?;
                check_boundaries(&list, variables)?;
                boundaries = Some(list);
            }
            ("boundaries", _) => {
                return Err(error(
                    40200,
                    format!(
                        "The $bucket 'boundaries' field must be an array, but found type: {}.",
                        type_name(value)
                    ),
                ));
            }
            ("default", _) => default = Some(constant(value, variables, 40195, "default")?),
            ("output", RawBsonRef::Document(document)) => output = Some(document),
            ("output", _) => {
                return Err(error(
                    40196,
                    format!(
                        "The $bucket 'output' field must be an object, but found type: {}.",
                        type_name(value)
                    ),
                ));
            }
            (other, _) => {
                return Err(error(
                    40197,
                    format!("Unrecognized option to $bucket: {other}."),
                ));
            }
        }
    }
    let (Some(group_by), Some(boundaries)) = (group_by, boundaries) else {
        return Err(error(
            40198,
            "$bucket requires 'groupBy' and 'boundaries' to be specified.",
        ));
    };
    if let Some(default) = &default {
        let collation = variables.collation.as_deref();
        let inside = |limit: &RawBson| compare_owned(collation, default, limit);
        let lowest = boundaries.first().map(inside);
        let highest = boundaries.last().map(inside);
        if lowest != Some(Ordering::Less) && highest == Some(Ordering::Less) {
            return Err(error(
                40199,
                "The $bucket 'default' field must be less than the lowest boundary or greater than or equal to the highest \
                 boundary.",
            ));
        }
    }
    let group = group_spec(group_by, &boundaries, default.as_ref(), output);
    let mut sort = DocBuilder::new();
    sort.append("_id", RawBsonRef::Int32(1));
    push_group_and_sort(&group, &sort.finish(), variables, out)
}

/// A path, or an expression in an object.
fn checked_group_by(value: RawBsonRef<'_>) -> Result<RawBsonRef<'_>> {
    let allowed = match value {
        RawBsonRef::String(text) => text.starts_with('$'),
        RawBsonRef::Document(document) => {
            first(document).is_some_and(|(name, _)| name.starts_with('$'))
        }
        _ => false,
    };
    if allowed {
        Ok(value)
    } else {
        Err(error(
            40202,
            format!(
                "The $bucket 'groupBy' field must be defined as a $-prefixed path or an expression, but found: {}.",
                value_text(value)
            ),
        ))
    }
}

fn constant(
    value: RawBsonRef<'_>,
    variables: &Variables,
    code: i32,
    field: &str,
) -> Result<RawBson> {
    let expression = Expression::parse(value, variables)?;
    expression.constant().ok_or_else(|| {
        error(
            code,
            format!(
                "The $bucket '{field}' field must be a constant expression, but found: {}.",
                value_text(value)
            ),
        )
    })
}

fn check_boundaries(list: &[RawBson], variables: &Variables) -> Result<()> {
    if list.len() < 2 {
        return Err(error(
            40192,
            format!(
                "The $bucket 'boundaries' field must have at least 2 values, but found {} value(s).",
                list.len()
            ),
        ));
    }
    for pair in list.windows(2) {
        let (low, high) = (pair[0].as_raw_bson_ref(), pair[1].as_raw_bson_ref());
        if class(Some(low)) != class(Some(high)) {
            return Err(error(
                40193,
                format!(
                    "All values in the 'boundaries' option to $bucket must have the same type. Found conflicting types {} \
                     and {}.",
                    type_name(low),
                    type_name(high)
                ),
            ));
        }
        if compare(variables.collation.as_deref(), low, high) != Ordering::Less {
            return Err(error(
                40194,
                format!(
                    "The 'boundaries' option to $bucket must be sorted in ascending order, but {} is not less than {}.",
                    value_text(low),
                    value_text(high)
                ),
            ));
        }
    }
    Ok(())
}

/// The group whose `_id` is the lower boundary of the range that a value lies in.
fn group_spec(
    group_by: RawBsonRef<'_>,
    boundaries: &[RawBson],
    default: Option<&RawBson>,
    output: Option<&RawDocument>,
) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.start_document("_id");
    out.start_document("$switch");
    out.start_array("branches");
    for pair in boundaries.windows(2) {
        out.push_document();
        out.start_document("case");
        out.start_array("$and");
        for (operator, limit) in [("$gte", &pair[0]), ("$lt", &pair[1])] {
            out.push_document();
            out.start_array(operator);
            out.push(group_by);
            out.push_document();
            out.append("$literal", limit.as_raw_bson_ref());
            out.end();
            out.end();
            out.end();
        }
        out.end();
        out.end();
        out.start_document("then");
        out.append("$literal", pair[0].as_raw_bson_ref());
        out.end();
        out.end();
    }
    out.end();
    if let Some(default) = default {
        out.start_document("default");
        out.append("$literal", default.as_raw_bson_ref());
        out.end();
    }
    out.end();
    out.end();
    match output {
        Some(output) => {
            out.append_all(output);
        }
        None => {
            out.start_document("count");
            out.append("$sum", RawBsonRef::Int32(1));
            out.end();
        }
    }
    out.finish()
}
