//! The reply of the batch commands.

use pinion_bson::{DocBuilder, MAX_USER_DOCUMENT_BYTES};
use pinion_service::compute::compute_bytes;
use pinion_wire::idl::WriteConcern;
use pinion_wire::{Reply, Result};

use crate::concern::written;
use crate::limits::{BARE_ERROR_BYTES, ERROR_BYTES, REPORTED_ERROR_BYTES, REPORTED_ERRORS};
use crate::topology::is_member;
use crate::write::BatchOutcome;

/// Appends `n`, `nModified`, `upserted` and `writeErrors`.
pub(super) fn append_outcome(out: &mut DocBuilder, outcome: &BatchOutcome, is_update: bool) {
    out.append("n", outcome.n as i32);
    if is_update {
        if !outcome.upserted.is_empty() {
            out.start_array("upserted");
            for upserted in &outcome.upserted {
                out.push_document()
                    .append("index", upserted.index as i32)
                    .append("_id", upserted.id.as_raw_bson_ref())
                    .end();
            }
            out.end();
        }
        out.append("nModified", outcome.modified as i32);
    }
    if !outcome.errors.is_empty() {
        out.start_array("writeErrors");
        let (mut reported, mut is_full) = (0, false);
        for (before, failure) in outcome.errors.iter().enumerate() {
            // As in MongoDB 4.4: of very many errors the first come with a text. What else belongs
            // to them comes while the reply has room for it, and none behind the first without: a
            // client must learn which statements failed.
            let text = failure.error.message.as_str();
            let is_reported = before < REPORTED_ERRORS || reported < REPORTED_ERROR_BYTES;
            let bare = (outcome.errors.len() - before) * BARE_ERROR_BYTES;
            let mut has_room = |out: &DocBuilder, bytes: usize| {
                is_full |= out.len() + bytes + bare > MAX_USER_DOCUMENT_BYTES;
                !is_full
            };
            let message = if is_reported && has_room(out, text.len()) {
                text
            } else {
                ""
            };
            reported += message.len();
            out.push_document()
                .append("index", failure.index as i32)
                .append("code", failure.error.code.0);
            out.append("errmsg", message);
            if let Some(extra) = &failure.error.extra
                && has_room(out, extra.as_bytes().len())
            {
                out.append_all(extra);
            }
            out.end();
        }
        out.end();
    }
    append_retried(out, &outcome.retried);
}

/// Appends which statements of a retryable write were executed before.
pub(super) fn append_retried(out: &mut DocBuilder, retried: &[i32]) {
    if retried.is_empty() {
        return;
    }
    out.start_array("retriedStmtIds");
    for stmt_id in retried {
        out.push(*stmt_id);
    }
    out.end();
}

/// The reply, once the batch is as safe as it was asked to be.
pub(super) async fn acknowledged(
    ctx: &pinion_wire::OpContext,
    outcome: &BatchOutcome,
    is_update: bool,
) -> Result<Reply> {
    if !outcome.errors.is_empty() {
        crate::open_transactions::fail(ctx);
    }
    let mut out = Reply::new();
    // A client that asked for no acknowledgement and yet for a reply learns that the command
    // arrived, and nothing of its outcome.
    let concern = ctx.args.write_concern.as_ref();
    if concern.is_some_and(WriteConcern::is_unacknowledged) {
        if let Some(ts) = outcome.last {
            written(ctx, ts).await;
        }
        return Ok(out);
    }
    let fields: &mut DocBuilder = &mut out;
    let append = || append_outcome(fields, outcome, is_update);
    compute_bytes(outcome.errors.len() * ERROR_BYTES, append).await;
    // On a member also a write that has failed waits for what it saw.
    let changed_nothing = outcome.last.is_none() && !outcome.errors.is_empty();
    if !changed_nothing || is_member() {
        super::acknowledge(ctx, outcome.last, &mut out).await?;
    }
    Ok(out)
}
