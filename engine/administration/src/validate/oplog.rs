//! The validation of the node's log: its entries are read one after the other, and each must name
//! the one before it.

use pinion_clock::Timestamp;
use pinion_exec::limits::{LOG_BATCH_BYTES, LOG_BATCH_ENTRIES};
use pinion_exec::read::from_log_error;
use pinion_service::interrupt::pause;
use pinion_storage::{LogReadError, storage};
use pinion_wire::{OpContext, Result};

use super::findings::Findings;

/// Reads the log up to its present end, or up to `through`.
pub(super) async fn examine(
    ctx: &OpContext,
    through: Timestamp,
    findings: &mut Findings,
) -> Result<()> {
    let storage = storage();
    let last = storage.oplog_read_timestamp().min(through);
    let mut cursor = storage.log_from(Timestamp::MIN);
    loop {
        let batch = match cursor.next_batch(LOG_BATCH_ENTRIES, LOG_BATCH_BYTES).await {
            Ok(batch) => batch,
            // The oldest entries went meanwhile: those that follow are still there.
            Err(LogReadError::PositionLost) => {
                cursor = storage.log_after(cursor.position());
                continue;
            }
            Err(error @ (LogReadError::Damaged(_) | LogReadError::Io(_))) => {
                findings.is_damaged = true;
                findings.errors.add(error.to_string());
                return Ok(());
            }
            Err(error) => return Err(from_log_error(error)),
        };
        if batch.is_empty() {
            return Ok(());
        }
        for (ts, entry) in batch {
            if ts > last {
                return Ok(());
            }
            findings.records += 1;
            if let Err(error) = pinion_bson::validate(&entry) {
                findings.invalid += 1;
                let note = format!("The entry at {ts} is no document: {error}");
                findings.errors.add(note);
            }
            pause(ctx).await?;
        }
    }
}
