//! The reply of the batch commands.

use pinion_bson::{DocBuilder, MAX_USER_DOCUMENT_BYTES};
use pinion_service::compute::compute_bytes;
use pinion_service::node_info::is_behind_v44;
use pinion_wire::idl::WriteConcern;
use pinion_wire::{Error, ErrorCode, Reply, Result};

use crate::concern::written;
use crate::limits::{BARE_ERROR_BYTES, ERROR_BYTES, REPORTED_ERROR_BYTES, REPORTED_ERRORS};
use crate::topology::is_member;
use crate::write::{BatchOutcome, StatementError};

/// How the errors of statements are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorForm {
    Newest,
    /// For routers of MongoDB 4.4: versions that are old have another code, and what is said of
    /// them stands alone.
    V44,
}

impl ErrorForm {
    /// That of this node's clients, for what came of a batch.
    fn of(outcome: &BatchOutcome) -> ErrorForm {
        match !outcome.errors.is_empty() && is_behind_v44() {
            true => ErrorForm::V44,
            false => ErrorForm::Newest,
        }
    }

    /// Whether an error is written as no other server writes it.
    fn is_stale_version(self, error: &Error) -> bool {
        self == ErrorForm::V44 && error.code == ErrorCode::STALE_CONFIG
    }
}

/// Appends `n`, `nModified`, `upserted` and `writeErrors`.
fn append_outcome(out: &mut DocBuilder, outcome: &BatchOutcome, is_update: bool, form: ErrorForm) {
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
        append_errors(out, &outcome.errors, form);
        out.end();
    }
    append_retried(out, &outcome.retried);
}

/// Appends errors of statements.
fn append_errors(out: &mut DocBuilder, errors: &[StatementError], form: ErrorForm) {
    let (mut reported, mut is_full) = (0, false);
    for (before, failure) in errors.iter().enumerate() {
        let error = &failure.error;
        // As in MongoDB 4.4: of very many errors the first come with a text. What else belongs to
        // them comes while the reply has room for it, and none behind the first without: a client
        // must learn which statements failed.
        let text = error.message.as_str();
        let is_reported = before < REPORTED_ERRORS || reported < REPORTED_ERROR_BYTES;
        let bare = (errors.len() - before) * BARE_ERROR_BYTES;
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
        let is_stale = form.is_stale_version(error);
        let code = match is_stale {
            true => ErrorCode::OBSOLETE_STALE_SHARD_VERSION,
            false => error.code,
        };
        out.push_document()
            .append("index", failure.index as i32)
            .append("code", code.0)
            .append("errmsg", message);
        if let Some(extra) = &error.extra
            && has_room(out, extra.as_bytes().len())
        {
            if is_stale {
                out.append("errInfo", &***extra);
            } else {
                out.append_all(extra);
            }
        }
        out.end();
    }
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
    let form = ErrorForm::of(outcome);
    let append = || append_outcome(fields, outcome, is_update, form);
    compute_bytes(outcome.errors.len() * ERROR_BYTES, append).await;
    // On a member also a write that has failed waits for what it saw.
    let changed_nothing = outcome.last.is_none() && !outcome.errors.is_empty();
    if !changed_nothing || is_member() {
        super::acknowledge(ctx, outcome.last, &mut out).await?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::*;

    #[track_caller]
    fn check(code: i32, form: ErrorForm, expected: RawDocumentBuf) {
        let error = Error::new(ErrorCode(code), "old");
        let error = error.with_extra(rawdoc! { "ns": "d.c" });
        let mut outcome = BatchOutcome::default();
        outcome.stop(1..3, true, &error);
        let mut out = DocBuilder::new();
        append_outcome(&mut out, &outcome, false, form);
        let expected = rawdoc! { "n": 0, "writeErrors": [expected] };
        assert_eq!(out.finish(), expected, "{code} {form:?}");
    }

    #[test]
    fn errors_about_versions() {
        check(
            13388,
            ErrorForm::V44,
            rawdoc! { "index": 1, "code": 63, "errmsg": "old", "errInfo": { "ns": "d.c" } },
        );
        let plain = |code: i32| rawdoc! { "index": 1, "code": code, "errmsg": "old", "ns": "d.c" };
        check(13388, ErrorForm::Newest, plain(13388));
        for code in [227, 249] {
            check(code, ErrorForm::V44, plain(code));
        }
    }
}
