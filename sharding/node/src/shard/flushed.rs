//! What the primary knows of the routing table, as the other members of a shard come to read it.

use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_exec::replica_set;
use pinion_runtime::timeout;
use pinion_storage::storage;
use pinion_wire::idl::{FieldReader, Path};
use pinion_wire::{Error, ErrorCode, Result};

use crate::data::unless_closed;
use crate::limits::CACHE_APPLIED;
use crate::times;

/// Has the primary write what it knows of a database or a collection, and waits until that can be
/// read here.
///
/// # Errors
/// The primary's; `ExceededTimeLimit`; the data are closed.
pub(super) async fn flushed_by_primary(
    flush: RawDocumentBuf,
    of_what: std::fmt::Arguments<'_>,
) -> Result<()> {
    let set = replica_set().expect("a shard is a member");
    let reply = set.run_on_primary(flush).await?;
    let written = operation_time(&reply)?;
    times::keep().await?;
    let applied = async { storage().wait_visible(written).await };
    let waited = timeout(CACHE_APPLIED, unless_closed(applied)).await;
    let waited = waited.map_err(|_| {
        Error::new(
            ErrorCode::EXCEEDED_TIME_LIMIT,
            format!("what the primary knows of {of_what} was not applied in time"),
        )
    })?;
    waited?.map_err(pinion_catalog::from_fatal)
}

fn operation_time(reply: &RawDocument) -> Result<Timestamp> {
    let reader = FieldReader::object(Path::root("reply"), reply)?;
    let time = reader.opt_timestamp("operationTime")?;
    time.ok_or_else(|| Error::failed_to_parse("a reply has no operationTime"))
}
