//! A statement that changes one document, whose filter does not say at which shard: the document
//! is found first, and then changed at its shard.
//!
//! The statement at the shard has the client's filter and the document's `_id` and key, so it
//! changes nothing else. If it matches nothing since another write came between, the document is
//! found again. Outside of transactions the two steps are just that: of two documents that match,
//! the one that comes first by the sort when it is read is changed, though another one may come
//! before it by then.
//!
//! A statement with a transaction number may have been executed by an earlier attempt of the
//! client, at a shard whose document is not the first any more. So each shard concerned is asked,
//! beside the read, for the statement with a filter that matches nothing: one that has executed it
//! answers with what it did.
//!
//! Source: MongoDB's two phase protocol for writes without a shard key.

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_query::{SortPattern, Variables, parse_collation};
use pinion_runtime::{LocalBoxFuture, join_all};
use pinion_service::interrupt::check;
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::{RoutingTable, ShardId};
use pinion_wire::idl::{Namespace, append_lsid};
use pinion_wire::{Error, ErrorCode, Invocation, Result};

use super::outcome::is_stale;
use super::statement::{Form, Modify, identifying_paths, point_of};
use crate::dispatch::{Answer, Route, pause_before_retry, send};
use crate::gather::{Gathered, ShardCall, ask_shards};
use crate::limits::{MAX_DUPLICATE_UPSERTS, MAX_FOUND_ATTEMPTS};
use crate::placement::{error_is_stale, write_error_is_stale};
use crate::reads::{SORT_KEY, snapshot_time};
use crate::reply::refused;
use crate::request::{Request, Versions};
use crate::transactions;

/// A statement of a client's command that changes one document.
pub(crate) trait OneDocument {
    fn cmd(&self) -> &Invocation;

    fn ns(&self) -> &Namespace;

    fn vars(&self) -> &Variables;

    fn modify(&self) -> &Modify<'_>;

    /// The client's command with this statement alone, in a form.
    fn request(&self, form: &Form<'_>, versions: Versions) -> Request;

    /// What a shard's reply says of it.
    fn said(&self, reply: &RawDocument) -> Said;

    /// The error of the statement that a reply has, with its entry.
    fn error<'r>(&self, reply: &'r RawDocument) -> Option<(ErrorCode, &'r RawDocument)>;
}

/// What a reply says of its one statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// Documents matched, inserted or deleted.
    pub n: i64,
    /// It was executed before.
    pub is_retried: bool,
}

/// What became of one attempt.
enum Attempt {
    Done(Answer),
    /// Nothing was changed: another write came between, or the table was old.
    Again,
    /// The collection is not sharded.
    Unsharded,
}

/// Executes a statement. The answer of the shard that has changed something; where none has, the
/// answer of one that was asked to change nothing. `None` where the collection is not sharded.
///
/// # Errors
/// `WriteConflict` where the document was changed by others each time; those of the statement and
/// of the way there.
pub(crate) async fn write_one(one: &impl OneDocument) -> Result<Option<Answer>> {
    let mut duplicates = 0;
    for attempt in 0..MAX_FOUND_ATTEMPTS {
        match write_once(one, attempt == 0, &mut duplicates).await? {
            Attempt::Done(answer) => return Ok(Some(answer)),
            Attempt::Unsharded => return Ok(None),
            Attempt::Again => pause_before_retry(one.cmd(), attempt).await?,
        }
    }
    Err(Error::new(
        ErrorCode::WRITE_CONFLICT,
        format!(
            "the documents of {} that match were changed by others each time before they could be written",
            one.ns()
        ),
    ))
}

async fn write_once(
    one: &impl OneDocument,
    is_first: bool,
    duplicates: &mut u32,
) -> Result<Attempt> {
    let ctx = &one.cmd().ctx;
    let asks_before = is_first && ctx.args.txn_number.is_some() && !is_in(ctx);
    let mut asked = vec![Box::pin(find(one)) as LocalBoxFuture<'_, Result<Option<Gathered>>>];
    if asks_before {
        asked.push(Box::pin(ask_whether_executed(one)));
    }
    let mut asked = join_all(asked).await.into_iter();
    let found = asked.next().expect("it was asked")?;
    let mut idle = None;
    if let Some(before) = asked.next() {
        let Some(before) = before? else {
            return Ok(Attempt::Unsharded);
        };
        match executed_before(one, before).await? {
            Before::Executed(answer) => return Ok(Attempt::Done(answer)),
            Before::Not(answer) => idle = Some(answer),
        }
    }
    let Some(found) = found else {
        return Ok(Attempt::Unsharded);
    };
    let (table, answers) = found.all()?;
    if let Some((shard, document)) = first_of(one.modify(), &table, &answers)? {
        let point = point_of(&identifying_paths(&table), &document);
        return send_form(one, &table, shard, &Form::Within(&point)).await;
    }
    if one.modify().is_upsert {
        let made = one.modify().upserted(one.vars(), &table)?;
        let owner = table.shard(table.target_insert(&made)?).clone();
        let sent = send_form(one, &table, owner, &Form::Insert(&made)).await;
        return match sent {
            Err(error) if error.code == ErrorCode::DUPLICATE_KEY && may_repeat(duplicates) => {
                Ok(Attempt::Again)
            }
            Ok(Attempt::Done(answer))
                if code_of(one, &answer) == Some(ErrorCode::DUPLICATE_KEY)
                    && !is_in(ctx)
                    && may_repeat(duplicates) =>
            {
                Ok(Attempt::Again)
            }
            sent => sent,
        };
    }
    match idle {
        Some(idle) => Ok(Attempt::Done(idle)),
        None => {
            let shard = answers[0].shard.clone();
            send_form(one, &table, shard, &Form::Nothing).await
        }
    }
}

fn code_of(one: &impl OneDocument, answer: &Answer) -> Option<ErrorCode> {
    one.error(answer.body()).map(|(code, _)| code)
}

/// Whether an upsert that met a document which was inserted meanwhile is done again.
fn may_repeat(duplicates: &mut u32) -> bool {
    *duplicates += 1;
    *duplicates <= MAX_DUPLICATE_UPSERTS
}

/// Sends a statement to a shard.
async fn send_form(
    one: &impl OneDocument,
    table: &RoutingTable,
    shard: ShardId,
    form: &Form<'_>,
) -> Result<Attempt> {
    let versions = Versions::of_shard(table.shard_version(&shard));
    let route = Route::of_shard(&shard);
    let outcome = send(one.cmd(), &route, one.request(form, versions)).await;
    check(&one.cmd().ctx)?;
    match outcome {
        Ok(answer) => {
            let error = one.error(answer.body());
            if let Some((code, entry)) = error
                && is_stale(code)
                && !is_in(&one.cmd().ctx)
            {
                write_error_is_stale(one.ns().db(), entry).await?;
                return Ok(Attempt::Again);
            }
            let is_missed = one.said(answer.body()).n == 0 && error.is_none();
            match form {
                Form::Within(_) if is_missed && is_acknowledged(one.cmd()) => Ok(Attempt::Again),
                _ => Ok(Attempt::Done(answer)),
            }
        }
        Err(error) if error_is_stale(&error).await? => {
            match transactions::may_send_again(one.cmd(), &route).await? {
                true => Ok(Attempt::Again),
                false => Err(refused(error)),
            }
        }
        Err(error) => Err(refused(error)),
    }
}

/// Whether the reply says what was done.
fn is_acknowledged(cmd: &Invocation) -> bool {
    let concern = cmd.ctx.args.write_concern.as_ref();
    !concern.is_some_and(pinion_wire::idl::WriteConcern::is_unacknowledged)
}

/// Asks all shards concerned for the first document that matches: its `_id` and key.
async fn find(one: &impl OneDocument) -> Result<Option<Gathered>> {
    let modify = one.modify();
    let target = |table: &RoutingTable| {
        let matcher = modify.matcher(one.vars(), Some(table))?;
        table.target(&matcher, snapshot_time(one.cmd()))
    };
    let make = |call: &ShardCall<'_>| find_request(one, call);
    ask_shards(one.cmd(), one.ns(), target, make).await
}

fn find_request(one: &impl OneDocument, call: &ShardCall<'_>) -> Request {
    let (cmd, modify) = (one.cmd(), one.modify());
    let versions = Versions::of_shard(call.version);
    Request::own(one.ns().db(), versions, |out| {
        out.append("find", one.ns().collection())
            .append("filter", modify.filter)
            .append("limit", 1i32)
            .append("singleBatch", true);
        out.start_document("projection");
        for path in identifying_paths(call.table) {
            out.append(path, 1i32);
        }
        if let Some(sort) = modify.sort.filter(|sort| !sort.is_empty()) {
            let key = rawdoc! { "$meta": "sortKey" };
            out.append(SORT_KEY, &*key);
            out.end().append("sort", sort);
        } else {
            out.end();
        }
        if let Some(hint) = modify.hint {
            out.append_raw("hint", hint);
        }
        if let Some(collation) = modify.collation.named() {
            out.append("collation", collation);
        }
        for name in ["let", "maxTimeMS", "comment"] {
            if let Some(value) = pinion_bson::get(cmd.body(), name) {
                out.append_raw(name, value);
            }
        }
        if let Some(lsid) = &cmd.ctx.args.lsid {
            append_lsid(out, "lsid", lsid);
        }
        if is_in(&cmd.ctx)
            && let Some(number) = cmd.ctx.args.txn_number
        {
            out.append("txnNumber", number).append("autocommit", false);
        }
    })
}

/// The first of the documents that shards have found, and its shard.
fn first_of(
    modify: &Modify<'_>,
    table: &RoutingTable,
    answers: &[Answer],
) -> Result<Option<(ShardId, RawDocumentBuf)>> {
    let sort = match modify.sort.filter(|sort| !sort.is_empty()) {
        Some(sort) => {
            let collation = match modify.collation.spec(Some(table)) {
                Some(spec) => parse_collation(spec)?,
                None => None,
            };
            Some(SortPattern::parse_find(sort)?.with_collation(collation))
        }
        None => None,
    };
    let sort = sort.filter(|sort| sort.natural().is_none());
    let mut first: Option<(Vec<u8>, ShardId, RawDocumentBuf)> = None;
    for answer in answers {
        let batch = pinion_bson::get_path(answer.body(), "cursor.firstBatch");
        let Some(RawBsonRef::Array(batch)) = batch else {
            return Err(Error::internal("a shard's find has no documents"));
        };
        let found = pinion_bson::values(batch).next();
        let Some(found) = found.and_then(|found| found.as_document()) else {
            continue;
        };
        let key = match (&sort, pinion_bson::get(found, SORT_KEY)) {
            (Some(sort), Some(RawBsonRef::Array(values))) => sort.key_of_values(values),
            _ => Vec::new(),
        };
        if first.as_ref().is_none_or(|(least, ..)| key < *least) {
            first = Some((key, answer.shard.clone(), found.to_owned()));
        }
    }
    Ok(first.map(|(_, shard, document)| (shard, document)))
}

/// Whether an earlier attempt of the client has executed the statement.
enum Before {
    Executed(Answer),
    /// With the answer of a shard that was asked to change nothing.
    Not(Answer),
}

/// Asks all shards concerned whether they have executed the statement.
async fn ask_whether_executed(one: &impl OneDocument) -> Result<Option<Gathered>> {
    let target = |table: &RoutingTable| {
        let matcher = one.modify().matcher(one.vars(), Some(table))?;
        let mut targeted = table.target(&matcher, None)?;
        if one.modify().is_upsert {
            // What it has inserted may be anywhere.
            targeted.shards = table.all_shards(None)?;
        }
        Ok(targeted)
    };
    let make = |call: &ShardCall<'_>| one.request(&Form::Nothing, Versions::of_shard(call.version));
    ask_shards(one.cmd(), one.ns(), target, make).await
}

/// What shards say that were asked whether they have executed the statement.
///
/// # Errors
/// One of them does not answer, or the statement has a mistake.
async fn executed_before(one: &impl OneDocument, asked: Gathered) -> Result<Before> {
    let mut idle = None;
    for (shard, outcome) in asked.outcomes {
        match outcome {
            Ok(answer) => {
                let is_retried = one.said(answer.body()).is_retried;
                if is_retried || code_of(one, &answer).is_some() {
                    return Ok(Before::Executed(answer));
                }
                idle = Some(answer);
            }
            // It has inserted a document, which this one that is no upsert does not ask for.
            Err(error) if error.code == WAS_UPSERT && one.modify().is_upsert => {
                let made = rawdoc! {};
                return match send_form(one, &asked.table, shard, &Form::Insert(&made)).await? {
                    Attempt::Done(answer) => Ok(Before::Executed(answer)),
                    _ => Err(error),
                };
            }
            Err(error) => return Err(error),
        }
    }
    idle.map(Before::Not)
        .ok_or_else(|| Error::internal("a statement has no shard"))
}

/// By which a `findAndModify` is refused that did upsert when it was executed, and does not any
/// more.
const WAS_UPSERT: ErrorCode = ErrorCode(40608);
