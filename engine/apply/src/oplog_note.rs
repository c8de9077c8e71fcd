//! `appendOplogNote`: an entry of the oplog that changes nothing and says what its client wants.

use pinion_bson::RawDocument;
use pinion_catalog::{Noop, log_noop};
use pinion_clock::Timestamp;
use pinion_exec::commands::acknowledge;
use pinion_exec::topology::is_member;
use pinion_runtime::LocalBoxFuture;
use pinion_storage::storage;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

/// `appendOplogNote`. Fields that it does not know it passes over, as MongoDB does.
pub(crate) async fn append_oplog_note(cmd: Invocation) -> Result<Reply> {
    if !is_member() {
        return Err(Error::new(
            ErrorCode::NO_REPLICATION_ENABLED,
            "Must have replication set up to run \"appendOplogNote\"",
        ));
    }
    let data = match pinion_bson::get(cmd.body(), "data") {
        Some(data) => data
            .as_document()
            .ok_or_else(|| wrong_type("data", "object", data))?,
        None => {
            return Err(Error::new(
                ErrorCode::NO_SUCH_KEY,
                "Missing expected field \"data\"",
            ));
        }
    };
    if let Some(limit) = pinion_bson::get(cmd.body(), "maxClusterTime") {
        let pinion_bson::RawBsonRef::Timestamp(limit) = limit else {
            return Err(wrong_type("maxClusterTime", "timestamp", limit));
        };
        check_not_later(Timestamp::new(limit.time, limit.increment))?;
    }
    let ts = log_note(data).await?;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(ts), &mut out).await?;
    Ok(out)
}

/// Refuses a note that is only wanted as long as nothing has been written since.
fn check_not_later(limit: Timestamp) -> Result<()> {
    let last = storage().last_allotted();
    if last < limit {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::STALE_CLUSTER_TIME,
        format!(
            "Requested maxClusterTime {limit} is less or equal to the last primary OpTime: {last}"
        ),
    ))
}

fn wrong_type(name: &str, expected: &str, found: pinion_bson::RawBsonRef<'_>) -> Error {
    let found = pinion_bson::type_name(found.element_type());
    Error::type_mismatch(format!(
        "\"{name}\" had the wrong type. Expected {expected}, found {found}"
    ))
}

/// Logs an entry that changes nothing, and gives its timestamp.
///
/// # Errors
/// Storage takes no writes.
pub fn log_note(o: &RawDocument) -> LocalBoxFuture<'_, Result<Timestamp>> {
    log_noop(Noop {
        ns: "",
        uuid: None,
        o,
        o2: None,
    })
}
