//! Updates that are an aggregation pipeline.

use pinion_bson::{RawArray, RawBsonRef};
use pinion_wire::Result;

use crate::error::error;
use crate::expression::Variables;
use crate::pipeline::{Pipeline, stage_row};
use crate::value::{first, items};

/// Parses the stages; those that need more than one document are refused after their own errors.
pub(super) fn parse(stages: &RawArray, variables: &Variables) -> Result<Pipeline> {
    let foreign = items(stages).find_map(|stage| match stage {
        RawBsonRef::Document(stage) => first(stage)
            .map(|(name, _)| name)
            .filter(|name| stage_row(name).is_none_or(|row| !row.in_updates)),
        _ => None,
    });
    match (Pipeline::parse_of_update(stages, variables), foreign) {
        (Ok(pipeline), None) => Ok(pipeline),
        // A stage that this server lacks is not allowed here either.
        (Err(e), Some(name)) if !Pipeline::is_lacking(name) => Err(e),
        (Err(e), None) => Err(e),
        (_, Some(name)) => Err(error(
            72,
            format!("{name} is not allowed to be used within an update"),
        )),
    }
}
