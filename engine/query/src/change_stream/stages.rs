//! Which stages may follow `$changeStream`.

use pinion_bson::{RawArray, RawBsonRef, RawDocument};
use pinion_wire::Result;

use crate::error::error;
use crate::text::{document_text, value_text};
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

/// Refuses an event whose token the client's stages have taken away.
///
/// # Errors
/// `ChangeStreamFatalError`.
pub fn check_event_id(event: &RawDocument, token: &RawDocument) -> Result<()> {
    let id = pinion_bson::get(event, "_id");
    if let Some(RawBsonRef::Document(id)) = id
        && id.as_bytes() == token.as_bytes()
    {
        return Ok(());
    }
    let found = id.map_or("none".to_owned(), value_text);
    Err(error(
        280,
        format!(
            "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. Modifying \
             the _id field of an event makes it impossible to resume the stream from that point. Only transformations that \
             retain the unmodified _id field are allowed. Expected: {} but found: {{ _id: {found} }}",
            document_text(token),
        ),
    ))
}
