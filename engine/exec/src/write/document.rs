//! Documents on their way into storage.

use std::borrow::Cow;

use bytes::Bytes;
use pinion_bson::{ObjectId, RawDocument, Timestamp};
use pinion_query::UpdateContext;
use pinion_wire::Result;

use crate::compute::compute_bytes;
use crate::limits::LARGE_DOCUMENT_BYTES;
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
pub(crate) async fn prepare_for_insert(
    document: &RawDocument,
    keep_empty_timestamps: bool,
) -> Result<Bytes> {
    let empty = Timestamp {
        time: 0,
        increment: 0,
    };
    let filler = || match keep_empty_timestamps {
        true => empty,
        false => timestamp(),
    };
    let bytes = document.as_bytes().len();
    if bytes <= LARGE_DOCUMENT_BYTES {
        return prepare(document, || state().new_object_id(), filler);
    }
    let (new_id, filler) = (state().new_object_id(), filler());
    compute_bytes(bytes, || prepare(document, || new_id, || filler)).await
}

fn prepare(
    document: &RawDocument,
    new_id: impl FnOnce() -> ObjectId,
    filler: impl FnOnce() -> Timestamp,
) -> Result<Bytes> {
    let prepared = pinion_query::prepare_insert(document, new_id, filler)?;
    Ok(match prepared {
        // A copy: a slice would keep the whole message in memory until the next checkpoint.
        Cow::Borrowed(document) => Bytes::copy_from_slice(document.as_bytes()),
        // What was built is copied where that leaves less room unused.
        Cow::Owned(document) if document.as_bytes().len() <= LARGE_DOCUMENT_BYTES => {
            Bytes::copy_from_slice(document.as_bytes())
        }
        Cow::Owned(document) => Bytes::from(document.into_bytes()),
    })
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
