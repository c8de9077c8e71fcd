//! Documents on their way into storage.

use bytes::Bytes;
use pinion_bson::{RawDocument, Timestamp};
use pinion_query::UpdateContext;
use pinion_wire::Result;

use crate::state::state;

/// The present time for fields that ask for it, as BSON has it.
fn timestamp() -> Timestamp {
    let now = state().next_timestamp();
    Timestamp {
        time: now.secs(),
        increment: now.inc(),
    }
}

/// Brings a document into its stored form: checked, `_id` first, empty timestamps filled in unless they are to be kept.
pub(crate) fn prepare_for_insert(
    document: &RawDocument,
    keep_empty_timestamps: bool,
) -> Result<Bytes> {
    let empty = Timestamp {
        time: 0,
        increment: 0,
    };
    let filler = if keep_empty_timestamps {
        empty
    } else {
        timestamp()
    };
    let prepared = pinion_query::prepare_insert(document, || state().new_object_id(), filler)?;
    // A copy: a slice would keep the whole message in memory until the next checkpoint.
    Ok(Bytes::copy_from_slice(prepared.as_bytes()))
}

/// What an update needs to know beside the document.
pub(crate) fn update_context(insert: bool, position: Option<u32>) -> UpdateContext {
    UpdateContext {
        now_ms: pinion_runtime::wall_ms(),
        timestamp: timestamp(),
        insert,
        position,
    }
}
