//! What a member sends of its files to one that copies them: commands for other members alone.
//!
//! `_replFreezeCheckpoint` freezes the newest checkpoint and describes it, `_replReadCheckpoint`
//! gives pages of it from an offset of a page file on, `_replReleaseCheckpoint` releases it. One
//! that is not read for long is released automatically.

use pinion_bson::{BinarySubtype, RawBinaryRef, RawBsonRef};
use pinion_exec::attach;
use pinion_runtime::{CoreId, Queue, submit_to};
use pinion_storage::{FreezeError, PartitionId, storage};
use pinion_wire::{Error, ErrorCode, Invocation, MemberState, Registry, Reply, Result};

use crate::driver::{Driver, driver};
use crate::fetch::bson_ts;
use crate::limits::MAX_COPIER_NAME_BYTES;

/// Attaches their handlers.
pub(crate) fn attach_commands(r: &mut Registry) {
    attach(r, "_replFreezeCheckpoint", freeze);
    attach(r, "_replReadCheckpoint", read);
    attach(r, "_replReleaseCheckpoint", release);
}

fn error_of(error: FreezeError) -> Error {
    let code = match &error {
        FreezeError::TooMany(_) => ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
        FreezeError::LogTooShort => ErrorCode::INVALID_SYNC_SOURCE,
        FreezeError::Gone(_) => ErrorCode::CURSOR_NOT_FOUND,
        FreezeError::Read(_) | FreezeError::Fatal(_) => return Error::internal(error.to_string()),
    };
    Error::new(code, error.to_string())
}

/// A member's files are of use when its data are those of its set.
async fn check_has_data() -> Result<()> {
    submit_to(CoreId(0), Queue::Foreground, || async {
        let driver = driver().ok_or_else(Driver::not_initialized)?;
        let state = driver.with_node(|node| node.view().state);
        match state {
            MemberState::Primary | MemberState::Secondary => Ok(()),
            _ => Err(Error::new(
                ErrorCode::NOT_PRIMARY_OR_SECONDARY,
                "a member gives its files as a primary or secondary alone",
            )),
        }
    })
    .await
}

fn binary(bytes: &[u8]) -> RawBsonRef<'_> {
    RawBsonRef::Binary(RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes,
    })
}

async fn freeze(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["_replFreezeCheckpoint"]);
    let copier = reader.str("copier")?;
    reader.finish()?;
    if copier.len() > MAX_COPIER_NAME_BYTES {
        return Err(Error::bad_value(format!(
            "'copier' has {} bytes, and may have {MAX_COPIER_NAME_BYTES}",
            copier.len()
        )));
    }
    check_has_data().await?;
    let frozen = storage().freeze_checkpoint(copier).await;
    let frozen = frozen.map_err(error_of)?;
    tracing::info!(target: "REPL", id = 7_400_010u64, copier, number = frozen.number, base = ?frozen.base, bytes = frozen.bytes, "A member begins to copy the files of a checkpoint");
    let mut out = Reply::new();
    out.append("number", frozen.number as i64)
        .append("base", RawBsonRef::Timestamp(bson_ts(frozen.base)))
        .append("logFrom", RawBsonRef::Timestamp(bson_ts(frozen.log_from)))
        .append("bytes", frozen.bytes as i64)
        .append("manifest", binary(&frozen.manifest));
    Ok(out)
}

async fn read(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["_replReadCheckpoint"]);
    let number = reader.long("number")? as u64;
    let partition = reader.opt_i32("partition")?;
    let offset = reader.opt_long("offset")?.unwrap_or(0);
    reader.finish()?;
    let Some(partition) = partition else {
        return match storage().keep_frozen(number).await {
            true => Ok(Reply::new()),
            false => Err(error_of(FreezeError::Gone(number))),
        };
    };
    let partitions = storage().partition_count();
    let partition = u16::try_from(partition)
        .ok()
        .filter(|partition| *partition < partitions)
        .ok_or_else(|| {
            Error::bad_value(format!(
                "'partition' is {partition}, and there are {partitions}"
            ))
        })?;
    let offset =
        u64::try_from(offset).map_err(|_| Error::bad_value("'offset' is negative".to_owned()))?;
    let pages = storage()
        .read_frozen(number, PartitionId(partition), offset)
        .await
        .map_err(error_of)?;
    let mut out = Reply::new();
    out.append("offset", pages.offset as i64)
        .append("data", binary(&pages.bytes));
    Ok(out)
}

async fn release(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["_replReleaseCheckpoint"]);
    let number = reader.long("number")? as u64;
    reader.finish()?;
    storage().release_frozen(number).await;
    Ok(Reply::new())
}
