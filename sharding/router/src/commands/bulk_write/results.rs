//! The results of the operations of a `bulkWrite`, collected from the replies to its parts.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_service::cursors::{BULK_WRITE_CURSOR, Cursor, DocumentStream, cursors};
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::ShardId;
use pinion_wire::idl::{Namespace, i64_exact};
use pinion_wire::{Documents, Error, ErrorCode, Invocation, Reply, Result};

use crate::cursor::{CollectedStream, CursorKind, RemoteStream};
use crate::dispatch::Answer;
use crate::placement::write_error_is_stale;
use crate::reply::append_concern_error;
use crate::writes::{Added, is_stale, merged_concern_error, number_of, owner_would_change};

/// The counts of a reply, in its order.
const COUNTS: [&str; 6] = [
    "nErrors",
    "nInserted",
    "nMatched",
    "nModified",
    "nUpserted",
    "nDeleted",
];

/// What the replies to the parts of a command come to together.
#[derive(Default)]
pub(super) struct Results {
    /// Without the errors, which are counted by operation.
    counts: [i64; COUNTS.len()],
    /// By the places of the operations in the client's command.
    documents: BTreeMap<usize, Bytes>,
    failed: BTreeSet<usize>,
    concern_errors: Vec<(Option<ShardId>, RawDocumentBuf)>,
    retried: Vec<i32>,
    parts: usize,
}

/// Whether operations of a reply were refused since their database has another place: those stand
/// in its first batch, or behind it.
pub(super) fn has_refused(reply: &RawDocument) -> bool {
    let errors = pinion_bson::get(reply, "nErrors").and_then(i64_exact);
    if errors.is_none_or(|errors| errors == 0) {
        return false;
    }
    let Some(RawBsonRef::Document(cursor)) = pinion_bson::get(reply, "cursor") else {
        return false;
    };
    let is_whole = pinion_bson::get(cursor, "id").and_then(i64_exact) == Some(0);
    let batch = pinion_bson::get(cursor, "firstBatch").and_then(|batch| batch.as_array());
    let mut results = batch.into_iter().flat_map(pinion_bson::values);
    let is_refused = |result: RawBsonRef<'_>| {
        let found = result.as_document().and_then(place_and_code);
        found.is_some_and(|(_, code)| is_stale(code))
    };
    !is_whole || results.any(is_refused)
}

/// The place of an operation's result, and its code where it failed.
pub(super) fn place_and_code(result: &RawDocument) -> Option<(usize, ErrorCode)> {
    let at = pinion_bson::get(result, "idx").and_then(i64_exact)?;
    let code = pinion_bson::get(result, "code").and_then(i64_exact);
    let code = ErrorCode(code.unwrap_or(0) as i32);
    Some((usize::try_from(at).ok()?, code))
}

impl Results {
    pub(super) fn has_errors(&self) -> bool {
        !self.failed.is_empty()
    }

    pub(super) fn has_failed(&self, at: usize) -> bool {
        self.failed.contains(&at)
    }

    /// How much they say: it grows with each operation that was executed, or has failed.
    pub(super) fn progress(&self) -> usize {
        self.parts + self.failed.len()
    }

    /// Adds the reply to a part, with all batches of its cursor. `names`: those of the operations'
    /// collections, where some have failed. What is refused as stale in a transaction is an error.
    pub(super) async fn add(
        &mut self,
        cmd: &Invocation,
        answer: &Answer,
        sent: &[usize],
        names: &[Option<Namespace>],
    ) -> Result<Added> {
        let body = answer.body();
        let mut changed = 0;
        for (count, name) in self.counts.iter_mut().zip(COUNTS).skip(1) {
            let number = number_of(body, name);
            *count += number;
            changed += number;
        }
        if let Some(RawBsonRef::Document(error)) = pinion_bson::get(body, "writeConcernError") {
            let shard = Some(answer.shard.clone());
            self.concern_errors.push((shard, error.to_owned()));
        }
        if let Some(RawBsonRef::Array(ids)) = pinion_bson::get(body, "retriedStmtIds") {
            let ids = pinion_bson::values(ids).filter_map(|id| id.as_i32());
            self.retried.extend(ids);
        }
        let mut added = Added {
            changed: pinion_bson::get(body, "nErrors").map(|_| changed),
            ..Added::default()
        };
        if pinion_bson::get(body, "cursor").is_none() {
            self.parts += 1;
            return Ok(added);
        }
        let (stream, mut batch) = RemoteStream::open(answer, CursorKind::default())?;
        loop {
            for result in &batch.documents {
                // They stood in a reply, so they are whole.
                let Ok(result) = RawDocument::from_bytes(result) else {
                    continue;
                };
                self.add_one(cmd, result, sent, names, &mut added).await?;
            }
            if batch.id == 0 {
                break;
            }
            batch = stream.next_batch(&cmd.ctx, usize::MAX).await?;
        }
        self.parts += usize::from(added.refused.len() < sent.len());
        Ok(added)
    }

    async fn add_one(
        &mut self,
        cmd: &Invocation,
        result: &RawDocument,
        sent: &[usize],
        names: &[Option<Namespace>],
        added: &mut Added,
    ) -> Result<()> {
        let Some((at, code)) = place_and_code(result) else {
            return Ok(());
        };
        let Some(place) = sent.get(at).copied() else {
            return Ok(());
        };
        let ns = names.get(at).and_then(|ns| ns.as_ref());
        if is_stale(code) && !is_in(&cmd.ctx) {
            if added.stale.is_none() {
                let db = ns.map_or(cmd.db(), Namespace::db);
                added.stale = Some(write_error_is_stale(db, result).await?);
            }
            added.refused.push(place);
            return Ok(());
        }
        match code {
            ErrorCode::OK => {}
            _ => drop(self.failed.insert(place)),
        }
        let result = match code {
            ErrorCode::WOULD_CHANGE_OWNING_SHARD => {
                let ns = ns.ok_or_else(|| Error::internal("a result without its collection"))?;
                with_error(result, &owner_would_change(ns))
            }
            _ => result.to_owned(),
        };
        let result = match self.documents.get(&place) {
            Some(other) => merged(RawDocument::from_bytes(other).ok(), &result),
            None => result,
        };
        self.documents.insert(place, renumbered(&result, place));
        Ok(())
    }

    /// Operations that were not executed since their shard did not take them.
    pub(super) fn fail(&mut self, operations: &Documents, failed: &[usize], error: &Error) {
        for at in failed {
            let mut out = DocBuilder::new();
            out.append("ok", 0.0)
                .append("idx", *at as i32)
                .append("code", error.code.0)
                .append("errmsg", error.message.as_str())
                .append("n", 0);
            if pinion_bson::get(operations.get(*at), "update").is_some() {
                out.append("nModified", 0);
            }
            let result = Bytes::from(out.finish().into_bytes());
            self.documents.insert(*at, result);
            self.failed.insert(*at);
        }
    }

    /// The client's reply.
    ///
    /// # Errors
    /// There are too many cursors.
    pub(super) async fn into_reply(mut self, cmd: &Invocation) -> Result<Reply> {
        self.counts[0] = self.failed.len() as i64;
        let mut out = Reply::new();
        append_results(cmd, self.documents, &mut out).await?;
        for (name, count) in COUNTS.into_iter().zip(self.counts) {
            out.append(name, count as i32);
        }
        if let Some(error) = merged_concern_error(&self.concern_errors) {
            append_concern_error(&mut out, &error);
        }
        if !self.retried.is_empty() {
            out.start_array("retriedStmtIds");
            for id in self.retried {
                out.push(id);
            }
            out.end();
        }
        Ok(out)
    }
}

/// The result of an operation at several shards: the sums of their numbers, and of several errors
/// the first.
fn merged(one: Option<&RawDocument>, other: &RawDocument) -> RawDocumentBuf {
    let Some(one) = one else {
        return other.to_owned();
    };
    let has_failed = |result| place_and_code(result).is_some_and(|(_, code)| code != ErrorCode::OK);
    let (base, added) = match has_failed(other) && !has_failed(one) {
        true => (other, one),
        false => (one, other),
    };
    let mut out = DocBuilder::new();
    for elem in pinion_bson::raw_elements(base) {
        match elem.name {
            b"n" | b"nModified" => {
                let name = elem.name_str().unwrap_or_default();
                let sum = number_of(base, name) + number_of(added, name);
                out.append(name, sum as i32);
            }
            _ => {
                out.append_elem(&elem);
            }
        }
    }
    out.finish()
}

/// A result that has failed, with another error.
fn with_error(result: &RawDocument, error: &Error) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for elem in pinion_bson::raw_elements(result) {
        match elem.name {
            b"ok" | b"idx" | b"n" | b"nModified" => out.append_elem(&elem),
            b"code" => out.append("code", error.code.0),
            b"errmsg" => out.append("errmsg", error.message.as_str()),
            _ => &mut out,
        };
    }
    out.finish()
}

fn renumbered(result: &RawDocument, place: usize) -> Bytes {
    let mut out = DocBuilder::new();
    for elem in pinion_bson::raw_elements(result) {
        match elem.name {
            b"idx" => out.append("idx", place as i32),
            _ => out.append_elem(&elem),
        };
    }
    Bytes::from(out.finish().into_bytes())
}

/// Appends the cursor of the reply: a first batch, as large as the client wants it.
async fn append_results(
    cmd: &Invocation,
    results: BTreeMap<usize, Bytes>,
    out: &mut Reply,
) -> Result<()> {
    let size = pinion_bson::get_path(cmd.body(), "cursor.batchSize").and_then(i64_exact);
    let max_documents = size.map_or(usize::MAX, |size| usize::try_from(size).unwrap_or(0));
    let list: Vec<Bytes> = results.into_values().collect();
    let mut stream = CollectedStream::new(list);
    let mut stash = None;
    let filled = stream.fill(&mut stash, &cmd.ctx, max_documents).await?;
    let ns = Namespace::parse(BULK_WRITE_CURSOR)?;
    let id = match filled.exhausted {
        true => 0,
        false => {
            let (now, wall_ms) = (pinion_runtime::now(), pinion_runtime::wall_ms());
            cursors().insert(Cursor {
                ns,
                reads: None,
                session: cmd.ctx.args.lsid,
                transaction: cmd.ctx.args.txn_number.filter(|_| is_in(&cmd.ctx)),
                read_concern: cmd.ctx.read_concern,
                no_timeout: false,
                stream: Box::new(stream),
                stash,
                originating: cmd.message.body_bytes(),
                plan_summary: None,
                created: now,
                last_used: now,
                created_ms: wall_ms,
                last_used_ms: wall_ms,
                batches: 1,
                returned: filled.documents.len() as u64,
                time_left: None,
            })?
        }
    };
    out.start_document("cursor").start_array("firstBatch");
    for document in &filled.documents {
        if let Ok(document) = RawDocument::from_bytes(document) {
            out.push(document);
        }
    }
    out.end().append("id", id).append("ns", BULK_WRITE_CURSOR);
    out.end();
    Ok(())
}
