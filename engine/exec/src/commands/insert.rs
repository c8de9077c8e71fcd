//! `insert`.

use pinion_wire::limits::MAX_WRITE_BATCH;
use pinion_wire::{Documents, Error, ErrorCode, Invocation, Reply, Result};

use super::reply::acknowledged;
use crate::acquire::acquire_write;
use crate::state::state;
use crate::write::{BatchOutcome, insert_documents, prepare_for_insert};

/// Refuses a batch without statements or with too many.
pub(super) fn check_batch_size(documents: &Documents) -> Result<()> {
    if documents.is_empty() || documents.len() > MAX_WRITE_BATCH {
        return Err(Error::new(
            ErrorCode::INVALID_LENGTH,
            format!(
                "Write batch sizes must be between 1 and {MAX_WRITE_BATCH}. Got {} operations.",
                documents.len()
            ),
        ));
    }
    Ok(())
}

/// `insert`.
pub(crate) async fn insert(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.namespace("insert", cmd.db())?;
    let ordered = reader.opt_bool("ordered")?.unwrap_or(true);
    reader.opt_safe_bool("bypassDocumentValidation")?;
    let keep_empty_timestamps = reader
        .opt_safe_bool("bypassEmptyTsReplacement")?
        .unwrap_or(false);
    reader.opt_i32("stmtId")?;
    reader.opt_array("stmtIds")?;
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.ignore(&["documents", "maxTimeMS"]);
    reader.unsupported("encryptionInformation")?;
    let documents = cmd.documents("documents")?;
    reader.finish()?;
    check_batch_size(&documents)?;
    let acquired = acquire_write(&cmd.ctx, ns, uuid).await?;
    let mut outcome = BatchOutcome::default();
    let mut prepared = Vec::with_capacity(documents.len());
    let mut refused = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        match prepare_for_insert(document, keep_empty_timestamps).await {
            Ok(document) => prepared.push((index, document)),
            Err(error) => {
                refused.push((index, error));
                if ordered {
                    break;
                }
            }
        }
        pinion_runtime::yield_if_due().await;
    }
    let counters = &state().metrics.counters;
    counters.insert.add((prepared.len() + refused.len()) as u64);
    let result = insert_documents(&cmd.ctx, acquired, prepared, ordered, &mut outcome).await;
    counters.documents_inserted.add(outcome.n as u64);
    result?;
    // With order, a refused document is reached only when nothing before it failed.
    if !ordered || outcome.errors.is_empty() {
        for (index, error) in refused {
            outcome.failed(index, error);
        }
        outcome.errors.sort_by_key(|failure| failure.index);
    }
    acknowledged(&cmd.ctx, &outcome, false).await
}
