//! Which stages may follow `$changeStream`.

use pinion_bson::{RawArray, RawBsonRef};
use pinion_wire::Result;

use crate::error::error;
use crate::value::{first, is_empty, items};

/// Those that make at most one event out of one and need no other.
const ALLOWED: [&str; 8] = [
    "$match",
    "$project",
    "$addFields",
    "$set",
    "$unset",
    "$replaceRoot",
    "$replaceWith",
    "$redact",
];

const SPLIT: &str = "$changeStreamSplitLargeEvent";

/// Looks at the stages behind a `$changeStream`, which stands in front. True where large events are
/// split at the end.
///
/// # Errors
/// IllegalOperation for a stage that needs more than one event.
pub fn check_stages(stages: &RawArray) -> Result<bool> {
    let mut splits = false;
    for stage in items(stages).skip(1) {
        let RawBsonRef::Document(stage) = stage else {
            continue;
        };
        let Some((name, spec)) = first(stage) else {
            continue;
        };
        if splits {
            return Err(error(
                7_182_802,
                format!("{SPLIT} must be the last stage in the pipeline"),
            ));
        }
        match name {
            SPLIT => match spec {
                RawBsonRef::Document(spec) if is_empty(spec) => splits = true,
                _ => {
                    return Err(error(
                        7_182_800,
                        format!("{SPLIT} spec should be an empty object"),
                    ));
                }
            },
            "$changeStream" => {
                return Err(error(
                    40602,
                    "$changeStream is only valid as the first stage in a pipeline.",
                ));
            }
            name if ALLOWED.contains(&name) => {}
            name => {
                return Err(error(
                    20,
                    format!("{name} is not permitted in a $changeStream pipeline"),
                ));
            }
        }
    }
    Ok(splits)
}
