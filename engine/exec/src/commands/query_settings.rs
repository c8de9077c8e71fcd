//! `setQuerySettings`, `removeQuerySettings` and `$querySettings`; and the settings of a command
//! that runs.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_query::{command_shape, find_of_one_id, work};
use pinion_runtime::{CoreId, Queue};
use pinion_service::cluster_parameters::COLLECTION;
use pinion_service::compute::compute;
use pinion_service::generate::next_timestamp;
use pinion_service::query_settings::{
    Entry, QuerySettings, QueryShapeHash, STORED_AS, SettingsTable, query_settings,
};
use pinion_wire::idl::{CommandReader, Namespace, Types, missing_field};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::{aggregate, distinct, find};
use crate::placement;
use crate::write::upsert_by_id;

/// The settings under which a command that reads runs, if there are any for its shape.
///
/// # Errors
/// `QueryRejectedBySettings` where they say so.
pub(super) async fn admitted(cmd: &Invocation) -> Result<Option<Arc<QuerySettings>>> {
    let settings = settings_of(&cmd.ctx, cmd.body(), cmd.db()).await?;
    if settings.as_ref().is_some_and(|settings| settings.rejects()) {
        return Err(Error::new(
            ErrorCode::QUERY_REJECTED_BY_SETTINGS,
            "Query rejected by admin query settings",
        ));
    }
    Ok(settings)
}

/// The settings for the shape of a command.
pub(super) async fn settings_of(
    ctx: &OpContext,
    command: &RawDocument,
    db: &str,
) -> Result<Option<Arc<QuerySettings>>> {
    let table = {
        let query_settings = query_settings();
        let table = query_settings.borrow();
        // Without any, which is the common case, the cores do not meet at the table's count.
        if !table.any_of(db) {
            return Ok(None);
        }
        table.clone()
    };
    let hash = hash_of(ctx, command, db).await?;
    let entry = hash.and_then(|hash| table.find(hash));
    Ok(entry.map(|entry| entry.settings.clone()))
}

/// The hash of a command's shape, if it has one.
async fn hash_of(
    ctx: &OpContext,
    command: &RawDocument,
    db: &str,
) -> Result<Option<QueryShapeHash>> {
    let hash = || {
        let Some(shape) = command_shape(command, db)? else {
            return Ok(None);
        };
        work::spend_bytes(shape.as_bytes().len())?;
        Ok(Some(QueryShapeHash::of(&shape)))
    };
    compute(ctx, hash).await
}

/// What the first field of the commands means.
struct Meant {
    hash: QueryShapeHash,
    /// A command of the shape, unless only its hash was given.
    representative: Option<RawDocumentBuf>,
}

impl Meant {
    async fn read(cmd: &Invocation, reader: &CommandReader<'_>) -> Result<Meant> {
        let name = cmd.message.command_name();
        match reader.value(name) {
            Some(RawBsonRef::String(text)) => match QueryShapeHash::parse(text) {
                Some(hash) => Ok(Meant {
                    hash,
                    representative: None,
                }),
                None => Err(Error::bad_value(format!(
                    "'{text}' is not the hash of a query shape, which has 64 hexadecimal digits"
                ))),
            },
            Some(RawBsonRef::Document(command)) => {
                let db = match pinion_bson::get(command, "$db") {
                    Some(RawBsonRef::String(db)) => db,
                    Some(other) => {
                        let path = reader.path().field(name);
                        return Err(pinion_wire::idl::wrong_type(
                            path.field("$db"),
                            other,
                            Types::STRING,
                        ));
                    }
                    None => return Err(missing_field(reader.path().field(name).field("$db"))),
                };
                let Some(hash) = hash_of(&cmd.ctx, command, db).await? else {
                    return Err(Error::new(
                        ErrorCode(7_746_402),
                        "QueryShape can not be computed for this command: only find, distinct and aggregate have one",
                    ));
                };
                check_representative(command, db)?;
                Ok(Meant {
                    hash,
                    representative: Some(command.to_owned()),
                })
            }
            Some(other) => {
                let expected = Types::Many(&["string", "object"]);
                Err(reader.wrong_type(name, other, expected))
            }
            None => Err(missing_field(reader.path().field(name))),
        }
    }
}

/// Refuses commands that are wrong, and those that no settings can be for.
fn check_representative(command: &RawDocument, db: &str) -> Result<()> {
    let name = pinion_bson::elements(command).next().map(|(name, _)| name);
    let ns = match name {
        Some("find") => find::read(command, db)?.ns,
        Some("distinct") => distinct::read(command, db)?.ns,
        _ => aggregate::read(command, db, true)?.ns.clone(),
    };
    let refused = |code, what: &str| {
        let message = format!("setQuerySettings can not be used with {what}");
        Err(Error::new(ErrorCode(code), message))
    };
    if matches!(ns.db(), "admin" | "config" | "local") {
        return refused(8_584_900, "internal databases");
    }
    if ns.collection().starts_with("system.") {
        return refused(8_584_901, "system collections");
    }
    if find_of_one_id(command) {
        return refused(
            7_746_606,
            "a query by nothing but _id, which is not planned",
        );
    }
    Ok(())
}

/// `setQuerySettings`.
pub async fn set_query_settings(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let newer = QuerySettings::parse(reader.doc("settings")?)?;
    let Meant {
        hash,
        representative,
    } = Meant::read(&cmd, &reader).await?;
    reader.finish()?;
    let set = move |table: &mut SettingsTable| {
        let present = table.find(hash).cloned();
        let older = present.as_ref().map(|entry| &*entry.settings);
        let settings = older.unwrap_or(&QuerySettings::default()).merged(&newer)?;
        let of_present = present.as_ref().map(|entry| entry.representative.clone());
        let Some(representative) = representative.or(of_present) else {
            return Err(Error::new(
                ErrorCode(7_746_401),
                "New query settings can only be created with a query instance, but a query hash was given.",
            ));
        };
        let entry = Entry {
            settings: Arc::new(settings),
            representative,
        };
        table.set(hash, entry.clone())?;
        Ok(entry)
    };
    let entry = change(&cmd.ctx, set).await?;
    placement::spread_parameter(STORED_AS).await?;
    let mut out = Reply::new();
    entry.append(hash, &mut out);
    Ok(out)
}

/// `removeQuerySettings`.
pub async fn remove_query_settings(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let Meant { hash, .. } = Meant::read(&cmd, &reader).await?;
    reader.finish()?;
    let remove = move |table: &mut SettingsTable| match table.remove(hash) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode(7_746_701),
            "A matching query settings entry does not exist",
        )),
    };
    change(&cmd.ctx, remove).await?;
    placement::spread_parameter(STORED_AS).await?;
    Ok(Reply::new())
}

/// Changes the settings, stores them, and then has every core use them. One change at a time on
/// core 0, so that what is stored last holds.
async fn change<R: Send + 'static>(
    ctx: &OpContext,
    change: impl FnOnce(&mut SettingsTable) -> Result<R> + Send + 'static,
) -> Result<R> {
    let ctx = ctx.clone();
    pinion_runtime::submit_to(CoreId(0), Queue::Foreground, move || async move {
        let _turn = query_settings().turn.acquire().await;
        let mut table = SettingsTable::clone(&query_settings().borrow());
        let changed = change(&mut table)?;
        let time = next_timestamp();
        let time = pinion_bson::Timestamp {
            time: time.secs(),
            increment: time.inc(),
        };
        let mut document = DocBuilder::new();
        document
            .append("_id", STORED_AS)
            .append("clusterParameterTime", RawBsonRef::Timestamp(time));
        table.append(&mut document);
        let ns = Namespace::new(COLLECTION.0, COLLECTION.1)?;
        upsert_by_id(&ctx, ns, STORED_AS, &document.finish()).await?;
        use_everywhere(table).await;
        Ok(changed)
    })
    .await
}

async fn use_everywhere(table: SettingsTable) {
    let table = Arc::new(table);
    pinion_runtime::on_all_cores(move |_| {
        let table = table.clone();
        async move { *query_settings().borrow_mut() = table }
    })
    .await;
}

/// The documents of `$querySettings`; with the shapes, if those are wanted.
pub(super) async fn documents(ctx: &OpContext, with_shapes: bool) -> Result<Vec<Bytes>> {
    let table = query_settings().borrow().clone();
    let mut documents = Vec::new();
    for (hash, entry) in table.list() {
        let mut out = DocBuilder::new();
        entry.append(hash, &mut out);
        if with_shapes {
            let representative = &entry.representative;
            let db = pinion_bson::get(representative, "$db");
            let db = db.and_then(|db| db.as_str()).unwrap_or_default();
            let shape = compute(ctx, || command_shape(representative, db)).await?;
            out.append("debugQueryShape", &*shape.unwrap_or_default());
        }
        documents.push(Bytes::from(out.finish_bytes()));
        pinion_runtime::yield_if_due().await;
    }
    Ok(documents)
}

/// `querySettings` of `serverStatus`.
pub fn append_status(out: &mut DocBuilder) {
    let (count, rejected, bytes) = query_settings().borrow().counts();
    out.start_document("querySettings")
        .append("count", count as i64)
        .append("size", bytes as i64)
        .append("rejectCount", rejected as i64)
        .end();
}
