//! The commands that a shard coordinates: `_shardsvrCreateCollection`, `_shardsvrDropCollection`,
//! `_shardsvrDropDatabase`, `_shardsvrRefineCollectionShardKey`, `_shardsvrSetAllowMigrations`,
//! `_shardsvrCollMod`, `_shardsvrDropIndexes`,
//! `_shardsvrMovePrimary`.

use pinion_bson::{RawDocument, RawDocumentBuf, Uuid};
use pinion_catalog::core_catalog;
use pinion_exec::commands::acknowledge;
use pinion_exec::commands::create::time_series_option;
use pinion_query::{TimeSeries, buckets_of};
use pinion_runtime::Instant;
use pinion_sharding_protocol::ddl::{
    AllowMigrationsRequest, CreateCollectionRequest, DdlId, DropCollectionRequest, IndexCheck,
    MovePrimaryRequest, OperationKind, OwnerChange, RefineRequest, check_length, check_namespace,
    check_no_buckets,
};
use pinion_sharding_protocol::{
    DatabaseVersion, ShardId, ShardKeyPattern, bucket_shard_key, has_fixed_placement,
};
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::coordinator::{DdlRequest, run};
use super::facts;
use super::participants::check_indexes;
use crate::part::{on_core_0, part};
use crate::shard::{membership, refresh};
use crate::v44::check_own_cluster;

pub(super) fn illegal(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::ILLEGAL_OPERATION, message)
}

/// The version of the database that a command is sent to, of which this is the primary shard.
pub(super) fn version(cmd: &Invocation) -> Result<DatabaseVersion> {
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

/// The same of a command of MongoDB 4.4, which has none.
async fn own_version(cmd: &Invocation, db: &str) -> Result<DatabaseVersion> {
    if has_fixed_placement(db) {
        return Ok(DatabaseVersion::FIXED);
    }
    let name = db.to_owned();
    on_core_0(
        &cmd.ctx,
        move || async move { refresh(&name, |_| false).await },
    )
    .await?;
    let shard = membership(&part())?;
    let known = part().database(db);
    match known.filter(|known| known.primary == *shard.shard()) {
        Some(known) => Ok(known.version),
        None => Err(illegal(format!(
            "this shard is not the primary of the database {db}"
        ))),
    }
}

/// Shards a collection for config servers of MongoDB 4.4, and returns what
/// `_shardsvrCreateCollection` answers.
///
/// # Errors
/// Those of the definition.
pub(crate) async fn shard_collection(
    cmd: &Invocation,
    ns: &Namespace,
    request: RawDocumentBuf,
) -> Result<RawDocumentBuf> {
    CreateCollectionRequest::parse(&request)?;
    let version = own_version(cmd, ns.db()).await?;
    let kind = OperationKind::CreateCollection;
    run_definition(cmd, kind, ns.as_str(), version, request).await
}

async fn run_definition(
    cmd: &Invocation,
    kind: OperationKind,
    namespace: &str,
    database_version: DatabaseVersion,
    request: RawDocumentBuf,
) -> Result<RawDocumentBuf> {
    let asked = DdlRequest {
        id: DdlId {
            namespace: namespace.to_owned(),
            kind,
        },
        database_version,
        request,
        deadline: cmd.ctx.deadline_ns.map(Instant::from_nanos),
    };
    on_core_0(&cmd.ctx, move || run(asked)).await
}

async fn coordinate(
    cmd: &Invocation,
    kind: OperationKind,
    namespace: &str,
    request: RawDocumentBuf,
) -> Result<Reply> {
    check_own_cluster(cmd.name())?;
    let reply = run_definition(cmd, kind, namespace, version(cmd)?, request).await?;
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
    check_namespace(&ns)?;
    let request = CreateCollectionRequest::of_command(cmd.body());
    reader.ignore(CreateCollectionRequest::fields());
    reader.finish()?;
    let (ns, request) = match series_meant(&ns, &request)? {
        Some(series) => {
            let request = CreateCollectionRequest::of_series(&request, &series)?;
            (buckets_of(&ns)?, request)
        }
        None => (ns, request),
    };
    CreateCollectionRequest::parse(&request)?;
    check_length(&ns)?;
    let kind = OperationKind::CreateCollection;
    coordinate(&cmd, kind, ns.as_str(), request).await
}

/// The series that is to be sharded: that of the request, or what has the name.
///
/// # Errors
/// The series that is there is another one than that of the request.
fn series_meant(ns: &Namespace, request: &RawDocument) -> Result<Option<TimeSeries>> {
    let asked = pinion_bson::get(request, "timeseries");
    let asked = asked.and_then(|asked| asked.as_document());
    let asked = asked.map(|asked| time_series_option("shardCollection", asked, ns));
    let asked = asked.transpose()?;
    let catalog = core_catalog().current();
    let here = catalog
        .view(ns)
        .and_then(|view| view.options.time_series.clone());
    match (asked, here) {
        (Some(asked), Some(here)) if asked != here => Err(Error::new(
            ErrorCode(5_731_500),
            format!("the 'timeseries' spec provided must match that of exists '{ns}' collection"),
        )),
        (asked, here) => Ok(here.or(asked)),
    }
}

/// The namespace by which the cluster defines what a name stands for.
async fn defined_by(ns: &Namespace) -> Result<Namespace> {
    facts::defined_by(&*membership(&part())?, ns).await
}

/// `_shardsvrDropCollection: <collection>, collectionUUID?` -> `nIndexesWas`, `ns`; neither where
/// there is none.
pub(crate) async fn drop_collection(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.sought(cmd.name(), cmd.db())?;
    let uuid = reader.opt_uuid("collectionUUID")?.map(Uuid::from_bytes);
    reader.finish()?;
    let ns = defined_by(&ns).await?;
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

/// `_shardsvrRefineCollectionShardKey: <collection>, key, enforceUniquenessCheck?,
/// collectionUUID?`; with `checksIndexes` the part of a shard that owns chunks.
pub(crate) async fn refine_shard_key(cmd: Invocation) -> Result<Reply> {
    if IndexCheck::is_asked_by(cmd.body()) {
        return check_indexes(cmd).await;
    }
    let reader = cmd.reader()?;
    let ns = reader.namespace(cmd.name(), cmd.db())?;
    check_no_buckets(&ns)?;
    let mut request = RefineRequest::parse(cmd.body())?;
    reader.ignore(RefineRequest::fields());
    reader.finish()?;
    let view = core_catalog().current().view(&ns).cloned();
    if let Some(series) = view.and_then(|view| view.options.time_series.clone()) {
        if !facts::is_sharded(&*membership(&part())?, &buckets_of(&ns)?).await? {
            return Err(Error::new(
                ErrorCode::NAMESPACE_NOT_SHARDED,
                format!("refineCollectionShardKey namespace {ns} is not sharded"),
            ));
        }
        request.key = ShardKeyPattern::parse(&bucket_shard_key(&series, &request.key.to_bson())?)?;
    }
    let (ns, request) = (defined_by(&ns).await?, request.to_bson());
    coordinate(&cmd, OperationKind::RefineShardKey, ns.as_str(), request).await
}

/// `_shardsvrSetAllowMigrations: <collection>, allowMigrations`.
pub(crate) async fn set_allow_migrations(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.namespace(cmd.name(), cmd.db())?;
    let allows = reader.bool("allowMigrations")?;
    reader.finish()?;
    let ns = defined_by(&ns).await?;
    let request = AllowMigrationsRequest { allows }.to_bson();
    let kind = OperationKind::SetAllowMigrations;
    coordinate(&cmd, kind, ns.as_str(), request).await
}

/// `_shardsvrCollMod: <collection>, collectionUUID?` and what `collMod` has -> `shards`.
pub(crate) async fn coll_mod(cmd: Invocation) -> Result<Reply> {
    change_at_owners(cmd, OperationKind::CollMod).await
}

/// `_shardsvrDropIndexes: <collection>, index, collectionUUID?` -> `shards`.
pub(crate) async fn drop_indexes(cmd: Invocation) -> Result<Reply> {
    change_at_owners(cmd, OperationKind::DropIndexes).await
}

/// The fields are read by the command that each shard runs.
async fn change_at_owners(cmd: Invocation, kind: OperationKind) -> Result<Reply> {
    let ns = cmd.reader()?.namespace(cmd.name(), cmd.db())?;
    let change = OwnerChange::of_command(kind.name(), &ns, cmd.body())?;
    let ns = defined_by(&ns).await?;
    coordinate(&cmd, kind, ns.as_str(), change.to_bson()).await
}

/// `_shardsvrMovePrimary: 1, to`.
pub(crate) async fn move_primary(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&[cmd.name()]);
    let to = ShardId::new(reader.str("to")?);
    reader.finish()?;
    membership(&part())?;
    let db = cmd.db();
    if has_fixed_placement(db) || db == "local" {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!("Can't move primary for {db} database"),
        ));
    }
    let request = MovePrimaryRequest { to }.to_bson();
    coordinate(&cmd, OperationKind::MovePrimary, db, request).await
}
