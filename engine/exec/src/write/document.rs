//! Documents on their way into storage.

use std::borrow::Cow;

use bytes::Bytes;
use pinion_bson::{ObjectId, RawDocument, Timestamp};
use pinion_query::{Update, UpdateContext};
use pinion_service::compute::compute_bytes;
use pinion_service::generate::{new_object_id, next_timestamps};
use pinion_service::limits::LARGE_DOCUMENT_BYTES;
use pinion_wire::Result;

/// What a field with a timestamp takes: type, a name of one character or none, and the value.
const LEAST_TIMESTAMP_FIELD: usize = 10;

/// Times for as many fields, one after the other: the first of them, as BSON has it.
fn timestamps(count: usize) -> Timestamp {
    let now = next_timestamps(count);
    Timestamp {
        time: now.secs(),
        increment: now.inc(),
    }
}

/// Brings a document into its stored form: checked, `_id` first, empty timestamps filled in unless
/// they are to be kept.
pub async fn prepare_for_insert(
    document: &RawDocument,
    keep_empty_timestamps: bool,
) -> Result<Bytes> {
    let bytes = document.as_bytes().len();
    if bytes <= LARGE_DOCUMENT_BYTES {
        let new_id = || new_object_id();
        return prepare(document, new_id, keep_empty_timestamps, timestamps);
    }
    // A compute thread cannot ask for more, so as many are set aside as the document can hold.
    let (new_id, first) = (new_object_id(), timestamps(bytes / LEAST_TIMESTAMP_FIELD));
    let prepare = || prepare(document, || new_id, keep_empty_timestamps, |_| first);
    compute_bytes(bytes, prepare).await
}

fn prepare(
    document: &RawDocument,
    new_id: impl FnOnce() -> ObjectId,
    keep_empty_timestamps: bool,
    timestamps: impl FnOnce(usize) -> Timestamp,
) -> Result<Bytes> {
    let timestamps = (!keep_empty_timestamps).then_some(timestamps);
    let prepared = pinion_query::prepare_insert(document, new_id, timestamps)?;
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
pub fn update_context(update: &Update, insert: bool, position: Option<u32>) -> UpdateContext {
    UpdateContext {
        now_ms: pinion_runtime::wall_ms(),
        timestamp: timestamps(update.timestamps()),
        insert,
        position,
    }
}
