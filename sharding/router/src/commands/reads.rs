//! Commands that read: sent to the shard that the database is on. Those that leave a cursor there
//! leave one here.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_service::interrupt::interruptible;
use pinion_service::metrics::metrics;
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::{StaleInfo, Targets};
use pinion_wire::idl::{Namespace, is_valid_database_name, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::cursor::{CursorKind, first_reply};
use crate::dispatch::{
    Answer, Route, WhenAbsent, at_database, at_primary, may_route_again, named_collection,
    pause_before_retry,
};
use crate::limits::MAX_STALE_RETRIES;
use crate::placement::{
    check_uuid_is_unsharded, database, forget_database, make_database, table_of,
};
use crate::reads::{FindOf, ResolvedView};
use crate::reply::passed_on;
use crate::request::Request;
use crate::transactions::may_send_again;

/// Sends a command whose reply is passed on as it is.
pub(super) async fn plain(cmd: Invocation) -> Result<Reply> {
    let db = cmd.db();
    check_uuid(&cmd).await?;
    let answer = at_database(&cmd, db, WhenAbsent::Answer, |version| {
        Request::of(&cmd, db, version)
    })
    .await?;
    Ok(passed_on(answer.body()))
}

/// The same, of a command whose reply has a cursor.
pub(super) async fn with_cursor(cmd: Invocation) -> Result<Reply> {
    read(&cmd, cmd.db(), CursorKind::default()).await
}

async fn read(cmd: &Invocation, db: &str, kind: CursorKind) -> Result<Reply> {
    check_uuid(cmd).await?;
    let answer = at_database(cmd, db, WhenAbsent::Answer, |version| {
        Request::of(cmd, cmd.db(), version)
    })
    .await?;
    first_reply(cmd, &answer, kind)
}

/// Runs a command on a sharded collection, which gives `None` where there is none; then sends the
/// command to the primary shard, and looks again where that says that the collection is sharded.
pub(super) async fn routed(
    cmd: &Invocation,
    absent: WhenAbsent,
    sharded: impl AsyncFn() -> Result<Option<Reply>>,
    unsharded: impl Fn(&Answer) -> Result<Reply>,
) -> Result<Reply> {
    routed_beside(cmd, absent, async |_| sharded().await, unsharded).await
}

/// The same of a command that may read other collections than it names: `sharded` hears whether
/// one of these is sharded, as the shard says.
async fn routed_beside(
    cmd: &Invocation,
    absent: WhenAbsent,
    sharded: impl AsyncFn(bool) -> Result<Option<Reply>>,
    unsharded: impl Fn(&Answer) -> Result<Reply>,
) -> Result<Reply> {
    let mut reads_sharded = false;
    for attempt in 0.. {
        if let Some(reply) = sharded(reads_sharded).await? {
            return Ok(reply);
        }
        let answer = at_primary(cmd, cmd.db(), absent, |versions| {
            Request::of(cmd, cmd.db(), versions)
        })
        .await;
        match answer {
            Ok(answer) => return unsharded(&answer),
            Err(error) if may_read_again(cmd, &error, attempt).await? => {
                let named = named_collection(cmd, cmd.db());
                reads_sharded |= is_of_sharded(named.as_ref(), &error).await?;
                pause_before_retry(cmd, attempt).await?;
            }
            Err(error) => return Err(error),
        }
    }
    unreachable!("it returns at the last attempt")
}

/// As [`may_route_again`]; in a transaction where its part at the shard started with the statement.
async fn may_read_again(cmd: &Invocation, error: &Error, attempt: u32) -> Result<bool> {
    if !is_in(&cmd.ctx) {
        return Ok(may_route_again(cmd, error, attempt));
    }
    match StaleInfo::from_error(error)? {
        Some(info) if attempt < MAX_STALE_RETRIES => {
            may_send_again(cmd, &Route::of_shard(&info.shard)).await
        }
        _ => Ok(false),
    }
}

/// Whether a stale error is about a sharded collection beside the one that a command names.
async fn is_of_sharded(named: Option<&Namespace>, error: &Error) -> Result<bool> {
    match StaleInfo::from_error(error)? {
        Some(info) if named != Some(&info.ns) => {
            Ok(table_of(&info.ns, Targets::Unknown).await?.is_some())
        }
        _ => Ok(false),
    }
}

/// The outcome of a read, which may have named a view over a sharded collection.
async fn viewed(cmd: &Invocation, outcome: Result<Reply>) -> Result<Reply> {
    match outcome {
        Err(error) => match ResolvedView::from_error(&error)? {
            // In a box, as few commands need its room.
            Some(view) => Box::pin(crate::reads::read_view(cmd, &view)).await,
            None => Err(error),
        },
        outcome => outcome,
    }
}

/// Refuses a command that names a sharded collection by its UUID, of which the table has no names.
pub(super) async fn check_uuid(cmd: &Invocation) -> Result<()> {
    match pinion_bson::elements(cmd.body()).next() {
        Some((_, RawBsonRef::Binary(uuid))) => check_uuid_is_unsharded(cmd.name(), uuid).await,
        _ => Ok(()),
    }
}

/// Whether the command names its collection by a name, and not by a UUID or a number.
pub(super) fn is_named(cmd: &Invocation) -> bool {
    let first = pinion_bson::elements(cmd.body()).next();
    matches!(first, Some((_, RawBsonRef::String(_))))
}

/// `count`.
pub(super) async fn count(cmd: Invocation) -> Result<Reply> {
    if !is_named(&cmd) {
        return plain(cmd).await;
    }
    let sharded = async || crate::reads::count(&cmd).await;
    let outcome = routed(&cmd, WhenAbsent::Answer, sharded, |answer| {
        Ok(passed_on(answer.body()))
    });
    viewed(&cmd, outcome.await).await
}

/// `distinct`.
pub(super) async fn distinct(cmd: Invocation) -> Result<Reply> {
    if !is_named(&cmd) {
        return plain(cmd).await;
    }
    let sharded = async || crate::reads::distinct(&cmd).await;
    let outcome = routed(&cmd, WhenAbsent::Answer, sharded, |answer| {
        Ok(passed_on(answer.body()))
    });
    viewed(&cmd, outcome.await).await
}

fn flag(body: &RawDocument, name: &str) -> bool {
    pinion_bson::get(body, name).is_some_and(truthy)
}

/// `find`.
pub(super) async fn find(cmd: Invocation) -> Result<Reply> {
    metrics().counters.query.inc();
    let body = cmd.body();
    let is_tail = flag(body, "tailable");
    let kind = CursorKind {
        is_tail,
        awaits_data: is_tail && flag(body, "awaitData"),
        is_change_stream: false,
        no_timeout: flag(body, "noCursorTimeout"),
    };
    if !is_named(&cmd) {
        return read(&cmd, cmd.db(), kind).await;
    }
    let sharded = async || match crate::reads::find(&cmd, kind).await? {
        FindOf::Sharded(reply) => Ok(Some(reply)),
        FindOf::Unsharded => Ok(None),
        FindOf::Series => Box::pin(crate::reads::find_in_series(&cmd)).await,
    };
    let outcome = routed(&cmd, WhenAbsent::Answer, sharded, |answer| {
        first_reply(&cmd, answer, kind)
    });
    viewed(&cmd, outcome.await).await
}

/// `aggregate`.
pub(super) async fn aggregate(cmd: Invocation) -> Result<Reply> {
    let pipeline = Pipeline::of(cmd.body());
    if pipeline.reads_changes {
        cmd.ctx.work().reads_changes();
        if !flag(cmd.body(), "explain") {
            return Box::pin(crate::reads::change_stream(&cmd)).await;
        }
    }
    if let Some(stage) = pipeline.writes {
        check_may_write(&cmd, stage)?;
        if !flag(cmd.body(), "explain") {
            interruptible(&cmd.ctx, make_place(&cmd, pipeline.writes_into)).await??;
        }
    }
    if pipeline.shows_distribution {
        return Box::pin(crate::reads::data_distribution(&cmd)).await;
    }
    if pipeline.lists_collections
        && !flag(cmd.body(), "explain")
        && let Some(reply) = Box::pin(crate::reads::cluster_catalog(&cmd)).await?
    {
        return Ok(reply);
    }
    let kind = CursorKind::default();
    if pipeline.lists_operations {
        return super::operations::current_op_stage(cmd).await;
    }
    if pipeline.lists_own {
        return super::operations::local_operations(cmd).await;
    }
    if pipeline.reads_changes || !is_named(&cmd) {
        if pipeline.writes.is_some()
            && let Some(reply) = Box::pin(crate::reads::write_documents(&cmd)).await?
        {
            return Ok(reply);
        }
        return read(&cmd, cmd.db(), kind).await;
    }
    // In a box, as few commands need its room.
    let sharded = async |beside| Box::pin(crate::reads::aggregate(&cmd, beside)).await;
    let outcome = routed_beside(&cmd, WhenAbsent::Answer, sharded, |answer| {
        first_reply(&cmd, answer, kind)
    });
    viewed(&cmd, outcome.await).await
}

/// What a router has to know of a pipeline before it sends it. What is wrong with it says the
/// shard.
#[derive(Default)]
struct Pipeline<'d> {
    reads_changes: bool,
    lists_operations: bool,
    /// Of this process alone.
    lists_own: bool,
    shows_distribution: bool,
    lists_collections: bool,
    /// It has `$out` or `$merge`.
    writes: Option<&'static str>,
    /// The database of `$out` or `$merge`, where it names one.
    writes_into: Option<&'d str>,
}

impl<'d> Pipeline<'d> {
    fn of(body: &'d RawDocument) -> Pipeline<'d> {
        let Some(RawBsonRef::Array(stages)) = pinion_bson::get(body, "pipeline") else {
            return Pipeline::default();
        };
        let mut found = Pipeline::default();
        for (at, stage) in pinion_bson::values(stages).enumerate() {
            let Some(stage) = stage.as_document() else {
                continue;
            };
            let Some((name, value)) = pinion_bson::elements(stage).next() else {
                continue;
            };
            let field = |name| pinion_bson::get(value.as_document()?, name);
            match (name, at) {
                ("$changeStream", 0) => found.reads_changes = true,
                ("$currentOp", 0) => {
                    found.lists_own = field("localOps").is_some_and(truthy);
                    found.lists_operations = !found.lists_own;
                }
                ("$listClusterCatalog", 0) => found.lists_collections = true,
                ("$shardedDataDistribution", 0) => found.shows_distribution = true,
                ("$out", _) => {
                    found.writes = Some("$out");
                    found.writes_into = field("db").and_then(|db| db.as_str());
                }
                ("$merge", _) => {
                    found.writes = Some("$merge");
                    let into = field("into").and_then(|into| into.as_document());
                    let db = into.and_then(|into| pinion_bson::get(into, "db"));
                    found.writes_into = db.and_then(|db| db.as_str());
                }
                _ => {}
            }
        }
        found
    }
}

/// Refuses a stage that writes in a transaction.
///
/// # Errors
/// `OperationNotSupportedInTransaction`.
fn check_may_write(cmd: &Invocation, stage: &str) -> Result<()> {
    match is_in(&cmd.ctx) {
        false => Ok(()),
        true => Err(Error::new(
            ErrorCode::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            format!("Stage not supported inside of a multi-document transaction: {stage}"),
        )),
    }
}

/// Makes the database that a pipeline writes into, and the one that it reads, if there are none:
/// both on one shard.
async fn make_place(cmd: &Invocation, into: Option<&str>) -> Result<()> {
    if let Some(into) = into.filter(|into| *into != cmd.db()) {
        // Where it is decides who writes, so it has to be known now.
        forget_database(into).await;
    }
    let source = make_database(cmd.db(), None).await?;
    // What can be no target the shard refuses.
    let is_target = |into: &&str| {
        is_valid_database_name(into) && !matches!(*into, "admin" | "config" | "local")
    };
    if let Some(into) = into.filter(is_target)
        && database(into).await?.is_none()
    {
        make_database(into, Some(&source.primary)).await?;
    }
    Ok(())
}

/// `explain`.
pub(super) async fn explain(cmd: Invocation) -> Result<Reply> {
    let explained = pinion_bson::elements(cmd.body()).next();
    let command = explained.and_then(|(_, value)| value.as_document());
    let is_bulk = command.is_some_and(|command| pinion_bson::get(command, "bulkWrite").is_some());
    match is_bulk {
        true => super::bulk_write::explain(cmd).await,
        false => {
            let sharded = async |beside| explain_sharded(&cmd, beside).await;
            let outcome = routed_beside(&cmd, WhenAbsent::Answer, sharded, |answer| {
                Ok(passed_on(answer.body()))
            });
            match outcome.await {
                Err(error) => match ResolvedView::from_error(&error)? {
                    Some(view) => Box::pin(crate::reads::explain_view(&cmd, &view)).await,
                    None => Err(error),
                },
                outcome => outcome,
            }
        }
    }
}

/// `explain`; `None` where nothing of what the command is about is sharded.
async fn explain_sharded(cmd: &Invocation, reads_sharded: bool) -> Result<Option<Reply>> {
    if let Some(reply) = Box::pin(crate::writes::explain(cmd)).await? {
        return Ok(Some(reply));
    }
    if let Some(reply) = Box::pin(crate::reads::explain_in_series(cmd)).await? {
        return Ok(Some(reply));
    }
    Box::pin(crate::reads::explain(cmd, reads_sharded)).await
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::*;

    #[test]
    fn pipelines() {
        let check = |stages: Vec<RawDocumentBuf>, expected: (bool, bool, Option<&str>)| {
            let mut pipeline = pinion_bson::RawArrayBuf::new();
            stages.into_iter().for_each(|stage| pipeline.push(stage));
            let body = rawdoc! { "aggregate": "c", "pipeline": pipeline };
            let found = Pipeline::of(&body);
            let seen = (
                found.reads_changes,
                found.lists_operations,
                found.writes_into,
            );
            assert_eq!(seen, expected, "{body:?}");
        };
        check(vec![], (false, false, None));
        check(vec![rawdoc! { "$changeStream": {} }], (true, false, None));
        check(vec![rawdoc! { "$currentOp": {} }], (false, true, None));
        check(
            vec![rawdoc! { "$currentOp": { "localOps": true } }],
            (false, false, None),
        );
        check(
            vec![rawdoc! { "$match": {} }, rawdoc! { "$out": "x" }],
            (false, false, None),
        );
        let out = rawdoc! { "$out": { "db": "e", "coll": "x" } };
        check(vec![out], (false, false, Some("e")));
        let merge = rawdoc! { "$merge": { "into": { "db": "f", "coll": "x" } } };
        check(
            vec![rawdoc! { "$match": {} }, merge],
            (false, false, Some("f")),
        );
    }
}
