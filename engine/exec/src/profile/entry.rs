//! What is written of an operation, in MongoDB's form.

use pinion_bson::{DateTime, DocBuilder, JsonMode, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_service::users::{append_users, authenticated_user};
use pinion_wire::{Error, ExplainedCommand, LogicalOp, OpContext, OpWork, shown_body};

use crate::limits::PROFILED_COMMAND_BYTES;

/// An operation that has ended.
pub(super) struct Ended<'a> {
    pub ctx: &'a OpContext,
    pub op: LogicalOp,
    pub ns: &'a str,
    pub command: &'a RawDocument,
    /// None of a statement, whose command replies.
    pub response_bytes: Option<usize>,
    pub error: Option<&'a Error>,
    pub us: u64,
    /// When it ended, by the wall clock.
    pub wall_ms: i64,
}

impl Ended<'_> {
    pub(super) fn document(&self) -> RawDocumentBuf {
        let work = self.ctx.work();
        let mut out = DocBuilder::new();
        out.append("op", self.op.name()).append("ns", self.ns);
        let command = shown_body(self.ctx.command.name, self.command);
        append_command(&mut out, "command", &command);
        if let Some(originating) = work.originating() {
            let originating = pinion_catalog::stored_document(originating);
            append_command(&mut out, "originatingCommand", originating);
        }
        if let Some(cursor) = work.cursor() {
            out.append("cursorid", cursor);
        }
        self.append_work(&mut out, work);
        if let Some(plan) = work.plan() {
            plan.append_choice(&mut out);
            out.append("queryFramework", "classic");
        }
        out.start_document("locks");
        work.append_locks(&mut out);
        out.end();
        out.start_document("flowControl");
        work.append_tickets(&mut out);
        out.end();
        if let Some(bytes) = self.response_bytes {
            out.append("responseLength", bytes as i32);
        }
        out.append("protocol", "op_msg");
        if let Some(error) = self.error {
            out.append("ok", 0.0)
                .append("errMsg", error.message.as_str())
                .append("errName", error.code_name().as_ref())
                .append("errCode", error.code.0);
        }
        out.append("millis", (self.us / 1000) as i64);
        if let Some(plan) = work.plan_summary() {
            out.append("planSummary", plan.as_str());
        }
        self.append_stages(&mut out, work);
        let ended = DateTime::from_millis(self.wall_ms);
        out.append("ts", RawBsonRef::DateTime(ended));
        let client = &self.ctx.client;
        if let Some(remote) = client.remote {
            out.append("client", remote.ip().to_string().as_str());
        }
        if let Some(name) = client.app_name() {
            out.append("appName", name);
        }
        append_users(client, "allUsers", &mut out);
        let user = authenticated_user(client).map(|user| user.to_string());
        out.append("user", user.as_deref().unwrap_or(""));
        out.finish()
    }

    /// What the stages of the plan did, under that which writes.
    fn append_stages(&self, out: &mut DocBuilder, work: &OpWork) {
        let Some(plan) = work.plan() else {
            return;
        };
        let millis = self.us / 1000;
        let removes = || {
            let remove = pinion_bson::get(self.command, "remove");
            remove.is_some_and(pinion_wire::idl::truthy)
        };
        let modifies = self.ctx.command.explain == Some(ExplainedCommand::FindAndModify);
        let write = match self.op {
            LogicalOp::Update => Some("UPDATE"),
            LogicalOp::Remove => Some("DELETE"),
            _ if modifies && removes() => Some("DELETE"),
            _ if modifies => Some("UPDATE"),
            _ => None,
        };
        out.start_document("execStats");
        if let Some(stage) = write {
            append_write(out, stage, work, millis);
            out.start_document("inputStage");
        }
        plan.append_stages(out, work, millis);
        if write.is_some() {
            out.end();
        }
        out.end();
    }

    /// What an operation did not do at all is left out, unless it is what its kind is there for.
    fn append_work(&self, out: &mut DocBuilder, work: &OpWork) {
        let written = work.written();
        let planned = work.plan().is_some();
        let mut count = |name: &str, count: u64, always: bool| {
            if count > 0 || always {
                out.append(name, count as i64);
            }
        };
        count("keysExamined", work.keys_examined(), planned);
        count("docsExamined", work.docs_examined(), planned);
        let updates = self.op == LogicalOp::Update;
        count("nMatched", written.matched, updates);
        count("nModified", written.modified, updates);
        count("ninserted", written.inserted, self.op == LogicalOp::Insert);
        count("ndeleted", written.deleted, self.op == LogicalOp::Remove);
        count("nUpserted", written.upserted, updates);
        let reads = matches!(self.op, LogicalOp::Query | LogicalOp::GetMore);
        count("nreturned", work.documents_returned(), reads);
        if work.has_sort() {
            out.append("hasSortStage", true);
        }
        if work.used_disk() {
            out.append("usedDisk", true);
        }
        if work.is_exhausted() {
            out.append("cursorExhausted", true);
        }
        out.append("numYield", work.yields() as i64);
    }
}

/// What the stage did that writes: it gives nothing.
fn append_write(out: &mut DocBuilder, stage: &'static str, work: &OpWork, millis: u64) {
    let (written, found) = (work.written(), work.docs_examined());
    out.append("stage", stage)
        .append("nReturned", 0i32)
        .append("executionTimeMillisEstimate", millis as i64)
        .append("works", found as i64 + 1)
        .append("advanced", 0i32)
        .append("needTime", found as i64)
        .append("needYield", 0i32)
        .append("saveState", work.yields() as i64)
        .append("restoreState", work.yields() as i64)
        .append("isEOF", 1i32);
    match stage {
        "UPDATE" => {
            out.append("nMatched", written.matched as i64)
                .append("nWouldModify", written.modified as i64)
                .append("nWouldUpsert", written.upserted as i64);
        }
        _ => {
            out.append("nWouldDelete", written.deleted as i64);
        }
    }
}

/// The command, or the beginning of a long one as a text.
fn append_command(out: &mut DocBuilder, name: &str, body: &RawDocument) {
    if body.as_bytes().len() <= PROFILED_COMMAND_BYTES {
        out.append(name, body);
        return;
    }
    let text =
        pinion_bson::to_extended_json_limited(body, JsonMode::Relaxed, PROFILED_COMMAND_BYTES);
    out.start_document(name).append("$truncated", text.as_str());
    if let Some(RawBsonRef::String(comment)) = pinion_bson::get(body, "comment")
        && comment.len() <= PROFILED_COMMAND_BYTES
    {
        out.append("comment", comment);
    }
    out.end();
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pinion_bson::rawdoc;
    use pinion_wire::idl::GenericArguments;
    use pinion_wire::{ClientInfo, Written};

    use super::*;

    fn context(command: &str) -> OpContext {
        let (client, row) = (
            Arc::new(ClientInfo::internal()),
            pinion_command::row(command),
        );
        OpContext::new(1, client, row, "d", GenericArguments::default(), 0)
    }

    fn written(ctx: &OpContext, op: LogicalOp, command: &RawDocument) -> RawDocumentBuf {
        let ended = Ended {
            ctx,
            op,
            ns: "d.c",
            command,
            response_bytes: None,
            error: None,
            us: 1999,
            wall_ms: 1,
        };
        ended.document()
    }

    #[test]
    fn a_statement_reports_what_its_kind_is_there_for() {
        let ctx = context("update");
        ctx.work().wrote(Written {
            matched: 2,
            ..Written::default()
        });
        let entry = written(&ctx, LogicalOp::Update, &rawdoc! { "q": {}, "u": {} });
        let number = |name| pinion_bson::get(&entry, name).and_then(|value| value.as_i64());
        assert_eq!(number("nMatched"), Some(2));
        assert_eq!(number("nModified"), Some(0));
        assert_eq!(number("ndeleted"), None);
        assert_eq!(number("keysExamined"), None);
        assert_eq!(number("millis"), Some(1));
    }

    #[test]
    fn long_commands_are_cut_and_keep_their_comment() {
        let long = "x".repeat(PROFILED_COMMAND_BYTES);
        let command = rawdoc! { "find": "c", "filter": { "a": long }, "comment": "why" };
        let entry = written(&context("find"), LogicalOp::Query, &command);
        let command = pinion_bson::get(&entry, "command").and_then(|value| value.as_document());
        let command = command.expect("it is a document");
        let text = |name| pinion_bson::get(command, name).and_then(|value| value.as_str());
        assert!(text("$truncated").is_some_and(|text| text.starts_with("{\"find\":\"c\"")));
        assert_eq!(text("comment"), Some("why"));
        assert!(entry.as_bytes().len() < 2 * PROFILED_COMMAND_BYTES);
    }
}
