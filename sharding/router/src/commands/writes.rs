//! `insert`, `update`, `delete` and `findAndModify`.
//!
//! A batch is sent whole. Where a shard refuses statements of it because the database has another
//! place, those alone are sent again, by their numbers in the client's batch, so none has its
//! effect twice.

use std::collections::BTreeMap;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_service::metrics::metrics;
use pinion_service::session_ids::is_in;
use pinion_wire::idl::{i64_exact, truthy};
use pinion_wire::{Documents, Error, ErrorCode, Invocation, Reply, Result, document_section};

use crate::dispatch::{Answer, WhenAbsent, at_database, pause_before_retry};
use crate::limits::MAX_STALE_RETRIES;
use crate::placement::forget_database;
use crate::reply::{append_concern_error, passed_on};
use crate::request::{Request, Versions};

/// `insert`.
pub(super) async fn insert(cmd: Invocation) -> Result<Reply> {
    let documents = cmd.documents("documents")?;
    metrics().counters.insert.add(documents.len() as u64);
    write(&cmd, "documents", documents).await
}

/// `update`.
pub(super) async fn update(cmd: Invocation) -> Result<Reply> {
    let updates = cmd.documents("updates")?;
    metrics().counters.update.add(updates.len() as u64);
    write(&cmd, "updates", updates).await
}

/// `delete`.
pub(super) async fn delete(cmd: Invocation) -> Result<Reply> {
    let deletes = cmd.documents("deletes")?;
    metrics().counters.delete.add(deletes.len() as u64);
    write(&cmd, "deletes", deletes).await
}

/// `findAndModify`.
pub(super) async fn find_and_modify(cmd: Invocation) -> Result<Reply> {
    super::forward::making_database(cmd).await
}

async fn write(cmd: &Invocation, field: &'static str, statements: Documents) -> Result<Reply> {
    let db = cmd.db();
    let answer = at_database(cmd, db, WhenAbsent::Make, |version| {
        Request::of(cmd, db, version)
    })
    .await?;
    let batch = Batch::of(cmd, field, statements);
    let all: Vec<usize> = (0..batch.statements.len()).collect();
    let mut left = batch.refused_in(answer.body(), &all);
    if left.is_empty() || is_in(&cmd.ctx) {
        return Ok(passed_on(answer.body()));
    }
    let mut merged = MergedReply::default();
    merged.add(answer.body(), &all, &left);
    for attempt in 0..MAX_STALE_RETRIES {
        forget_database(db).await;
        pause_before_retry(cmd, attempt).await?;
        let answer = match batch.send(&left).await {
            Ok(answer) => answer,
            Err(error) if is_in(&cmd.ctx) => return Err(error),
            // What was done before is the client's to know.
            Err(error) => {
                let failed = if batch.is_ordered { &left[..1] } else { &left };
                merged.fail(failed, &error);
                break;
            }
        };
        let mut refused = batch.refused_in(answer.body(), &left);
        if attempt + 1 == MAX_STALE_RETRIES {
            // They are errors of the batch now.
            refused.clear();
        }
        merged.add(answer.body(), &left, &refused);
        left = refused;
        if left.is_empty() {
            break;
        }
    }
    Ok(merged.finish())
}

/// The statements of a client's batch.
struct Batch<'c> {
    cmd: &'c Invocation,
    field: &'static str,
    statements: Documents,
    is_ordered: bool,
    /// The client's own, where it numbers them.
    numbers: Option<Vec<i32>>,
}

impl Batch<'_> {
    fn of<'c>(cmd: &'c Invocation, field: &'static str, statements: Documents) -> Batch<'c> {
        let body = cmd.body();
        Batch {
            cmd,
            field,
            statements,
            is_ordered: pinion_bson::get(body, "ordered").is_none_or(truthy),
            numbers: statement_numbers(body),
        }
    }

    /// Which statements of those that were sent the shard has refused since the sender's version
    /// was old, by their places in the client's batch. In order, what stands behind one was not
    /// executed either.
    fn refused_in(&self, reply: &RawDocument, sent: &[usize]) -> Vec<usize> {
        let mut refused: Vec<usize> = errors_of(reply)
            .filter(|(_, code, _)| is_stale(*code))
            .filter_map(|(at, ..)| sent.get(at).copied())
            .collect();
        if self.is_ordered
            && let Some(first) = refused.first()
        {
            refused = sent.iter().copied().filter(|at| at >= first).collect();
        }
        refused
    }

    /// Sends some of the statements.
    async fn send(&self, which: &[usize]) -> Result<Answer> {
        let (cmd, db) = (self.cmd, self.cmd.db());
        let make = |version: Versions| {
            let statements = which.iter().map(|at| self.statements.get(*at));
            let section = document_section(self.field, statements);
            Request::with_section(cmd, db, version, (self.field, section), |out| {
                if cmd.ctx.args.txn_number.is_some() && !is_in(&cmd.ctx) {
                    append_numbers(out, self.numbers.as_deref(), which);
                }
            })
        };
        at_database(cmd, db, WhenAbsent::Make, make).await
    }
}

/// The numbers that a client has given its statements.
pub(super) fn statement_numbers(command: &RawDocument) -> Option<Vec<i32>> {
    match pinion_bson::get(command, "stmtIds") {
        Some(RawBsonRef::Array(ids)) => pinion_bson::values(ids).map(|id| id.as_i32()).collect(),
        _ => None,
    }
}

/// Appends the numbers of some statements: the client's, or their places in its command.
pub(super) fn append_numbers(out: &mut DocBuilder, numbers: Option<&[i32]>, which: &[usize]) {
    out.start_array("stmtIds");
    for at in which {
        let number = numbers.and_then(|numbers| numbers.get(*at).copied());
        out.push(number.unwrap_or(*at as i32));
    }
    out.end();
}

/// Whether a shard has refused a statement since its namespace has another place than the sender
/// thought.
pub(super) fn is_stale(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::STALE_DB_VERSION | ErrorCode::STALE_CONFIG | ErrorCode::STALE_EPOCH
    )
}

/// The errors of a batch: place, code, and the whole entry.
fn errors_of(reply: &RawDocument) -> impl Iterator<Item = (usize, ErrorCode, &RawDocument)> {
    let errors = pinion_bson::get(reply, "writeErrors").and_then(|errors| errors.as_array());
    let errors = errors.into_iter().flat_map(pinion_bson::values);
    errors.filter_map(|error| {
        let error = error.as_document()?;
        let at = pinion_bson::get(error, "index").and_then(i64_exact)?;
        let code = pinion_bson::get(error, "code").and_then(i64_exact)?;
        Some((usize::try_from(at).ok()?, ErrorCode(code as i32), error))
    })
}

/// The reply to a batch of which parts were sent one after another.
#[derive(Default)]
struct MergedReply {
    n: i64,
    n_modified: Option<i64>,
    upserted: BTreeMap<usize, RawDocumentBuf>,
    errors: BTreeMap<usize, RawDocumentBuf>,
    retried: Vec<i32>,
    write_concern_error: Option<RawDocumentBuf>,
}

impl MergedReply {
    /// Adds the reply to some statements. What was refused and is sent again is no error of it.
    fn add(&mut self, reply: &RawDocument, sent: &[usize], again: &[usize]) {
        let number = |name| pinion_bson::get(reply, name).and_then(i64_exact);
        self.n += number("n").unwrap_or(0);
        if let Some(n) = number("nModified") {
            *self.n_modified.get_or_insert(0) += n;
        }
        for (at, _, error) in errors_of(reply) {
            if let Some(place) = sent.get(at).filter(|place| !again.contains(place)) {
                self.errors.insert(*place, with_index(error, *place));
            }
        }
        let list = |name| match pinion_bson::get(reply, name) {
            Some(RawBsonRef::Array(list)) => Some(list),
            _ => None,
        };
        for upserted in list("upserted").into_iter().flat_map(pinion_bson::values) {
            let Some(upserted) = upserted.as_document() else {
                continue;
            };
            let at = pinion_bson::get(upserted, "index").and_then(i64_exact);
            let place = at.and_then(|at| sent.get(usize::try_from(at).ok()?));
            if let Some(place) = place {
                self.upserted.insert(*place, with_index(upserted, *place));
            }
        }
        let retried = list("retriedStmtIds")
            .into_iter()
            .flat_map(pinion_bson::values);
        self.retried.extend(retried.filter_map(|id| id.as_i32()));
        if let Some(RawBsonRef::Document(error)) = pinion_bson::get(reply, "writeConcernError") {
            self.write_concern_error = Some(error.to_owned());
        }
    }

    /// Statements that were not executed since their shard did not take them.
    fn fail(&mut self, failed: &[usize], error: &Error) {
        for place in failed {
            let mut out = DocBuilder::new();
            out.append("index", *place as i32)
                .append("code", error.code.0)
                .append("errmsg", error.message.as_str());
            self.errors.insert(*place, out.finish());
        }
    }

    fn finish(self) -> Reply {
        let mut out = Reply::new();
        out.append("n", self.n as i32);
        if let Some(n) = self.n_modified {
            out.append("nModified", n as i32);
        }
        for (name, list) in [("upserted", self.upserted), ("writeErrors", self.errors)] {
            if list.is_empty() {
                continue;
            }
            out.start_array(name);
            for entry in list.values() {
                out.push(&**entry);
            }
            out.end();
        }
        if let Some(error) = &self.write_concern_error {
            append_concern_error(&mut out, error);
        }
        if !self.retried.is_empty() {
            out.start_array("retriedStmtIds");
            for id in self.retried {
                out.push(id);
            }
            out.end();
        }
        out
    }
}

/// An entry with another place.
fn with_index(entry: &RawDocument, place: usize) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for elem in pinion_bson::raw_elements(entry) {
        match elem.name {
            b"index" => out.append("index", place as i32),
            _ => out.append_elem(&elem),
        };
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn parts_of_a_batch() {
        let stale = ErrorCode::STALE_DB_VERSION.0;
        let first = rawdoc! {
            "n": 1,
            "nModified": 1,
            "upserted": [{ "index": 0, "_id": "x" }],
            "writeErrors": [
                { "index": 1, "code": 11000, "errmsg": "duplicate" },
                { "index": 2, "code": stale, "errmsg": "old" },
            ],
            "ok": 1.0,
        };
        let second = rawdoc! { "n": 1, "nModified": 0, "retriedStmtIds": [2], "ok": 1.0 };
        let mut merged = MergedReply::default();
        merged.add(&first, &[0, 1, 2], &[2]);
        merged.add(&second, &[2], &[]);
        let reply = merged.finish();
        let expected = rawdoc! {
            "n": 2,
            "nModified": 1,
            "upserted": [{ "index": 0, "_id": "x" }],
            "writeErrors": [{ "index": 1, "code": 11000, "errmsg": "duplicate" }],
            "retriedStmtIds": [2],
        };
        assert_eq!(crate::reply::document_of(reply), expected);
    }
}
