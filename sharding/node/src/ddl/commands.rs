//! The commands that a shard coordinates: `_shardsvrCreateCollection`, `_shardsvrDropCollection`,
//! `_shardsvrDropDatabase`.

use pinion_bson::{RawDocumentBuf, Uuid};
use pinion_exec::commands::acknowledge;
use pinion_runtime::Instant;
use pinion_sharding_protocol::ddl::{
    CreateCollectionRequest, DdlId, DropCollectionRequest, OperationKind,
};
use pinion_sharding_protocol::{DatabaseVersion, has_fixed_placement};
use pinion_storage::storage;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::coordinator::{DdlRequest, run};
use crate::part::{on_core_0, part};
use crate::shard::membership;

fn illegal(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::ILLEGAL_OPERATION, message)
}

/// The version of the database that a command is sent to, of which this is the primary shard.
fn version(cmd: &Invocation) -> Result<DatabaseVersion> {
    let part = part();
    let shard = membership(&part)?;
    let db = cmd.db();
    let routing = cmd.ctx.args.routing.as_ref();
    let Some(sent) = routing.and_then(|routing| routing.database_version) else {
        return Err(illegal("Expected the request to have a database version"));
    };
    let known = part.database(db);
    match known.filter(|known| known.primary == *shard.shard()) {
        Some(_) => Ok(DatabaseVersion::from_sent(sent)),
        None => Err(illegal(format!(
            "this shard is not the primary of the database {db}"
        ))),
    }
}

async fn coordinate(
    cmd: &Invocation,
    kind: OperationKind,
    namespace: &str,
    request: RawDocumentBuf,
) -> Result<Reply> {
    let asked = DdlRequest {
        id: DdlId {
            namespace: namespace.to_owned(),
            kind,
        },
        database_version: version(cmd)?,
        request,
        deadline: cmd.ctx.deadline_ns.map(Instant::from_nanos),
    };
    let reply = on_core_0(&cmd.ctx, move || run(asked)).await?;
    let mut out = Reply::new();
    out.append_all(&reply);
    acknowledge(&cmd.ctx, Some(storage().last_allotted()), &mut out).await?;
    Ok(out)
}

/// `_shardsvrCreateCollection: <collection>, shardKey, ..` -> `collectionUUID`,
/// `collectionVersion`.
pub(crate) async fn create_collection(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.namespace(cmd.name(), cmd.db())?;
    let request = CreateCollectionRequest::of_command(cmd.body());
    CreateCollectionRequest::parse(&request)?;
    reader.ignore(CreateCollectionRequest::fields());
    reader.finish()?;
    let kind = OperationKind::CreateCollection;
    coordinate(&cmd, kind, ns.as_str(), request).await
}

/// `_shardsvrDropCollection: <collection>, collectionUUID?` -> `nIndexesWas`, `ns`; neither where
/// there is none.
pub(crate) async fn drop_collection(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.sought(cmd.name(), cmd.db())?;
    let uuid = reader.opt_uuid("collectionUUID")?.map(Uuid::from_bytes);
    reader.finish()?;
    let request = DropCollectionRequest { uuid }.to_bson();
    coordinate(&cmd, OperationKind::DropCollection, ns.as_str(), request).await
}

/// `_shardsvrDropDatabase: 1`.
pub(crate) async fn drop_database(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&[cmd.name()]);
    reader.finish()?;
    membership(&part())?;
    let db = cmd.db();
    if has_fixed_placement(db) || db == "local" {
        return Err(illegal(format!("Cannot drop '{db}' database")));
    }
    let request = RawDocumentBuf::new();
    coordinate(&cmd, OperationKind::DropDatabase, db, request).await
}
