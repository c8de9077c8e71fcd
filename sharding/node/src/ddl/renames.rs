//! The commands that a shard coordinates and that change a collection which no other shard has
//! alone, where it can: `_shardsvrRenameCollection`, `_shardsvrConvertToCapped`,
//! `internalRenameIfOptionsAndIndexesMatch`.

use pinion_bson::RawDocument;
use pinion_catalog::{
    DropTarget, ReplacedCollection, Uuid as CatalogUuid, check_collection_uuid, core_catalog,
    replace_collection,
};
use pinion_exec::commands::{acknowledge, capped};
use pinion_query::buckets_of;
use pinion_runtime::Instant;
use pinion_sharding_protocol::DatabaseVersion;
use pinion_sharding_protocol::ddl::{DdlId, OperationKind, RenameRequest, UNSHARDED};
use pinion_storage::storage;
use pinion_wire::idl::{CommandReader, Namespace, SentDatabaseVersion};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::commands::{illegal, version};
use super::coordinator::{DdlRequest, LocalDefinition, is_running, locked, run};
use super::facts::{any_is_sharded, is_sharded};
use crate::part::{Part, on_core_0, part};
use crate::shard::{check_database, is_behind, membership, refresh};

fn deadline(cmd: &Invocation) -> Option<Instant> {
    cmd.ctx.deadline_ns.map(Instant::from_nanos)
}

async fn finish(cmd: &Invocation) -> Result<Reply> {
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(storage().last_allotted()), &mut out).await?;
    Ok(out)
}

/// `_shardsvrRenameCollection: <collection>, to, dropTarget?, collectionUUID?, knownUUID?,
/// stayTemp?`.
pub(crate) async fn rename_collection(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let from = reader.sought(cmd.name(), cmd.db())?;
    reader.ignore(RenameRequest::fields());
    reader.finish()?;
    let request = RenameRequest::parse(cmd.body())?;
    if request.to == from {
        return Err(illegal("Can't rename a collection to itself"));
    }
    let asked = DdlRequest {
        id: DdlId {
            namespace: from.to_string(),
            kind: OperationKind::RenameCollection,
        },
        database_version: version(&cmd)?,
        request: request.to_bson(),
        deadline: deadline(&cmd),
    };
    let ctx = cmd.ctx.clone();
    on_core_0(&cmd.ctx, move || rename(ctx, from, request, asked)).await?;
    finish(&cmd).await
}

/// Renames a collection, here alone where neither it nor what has the new name is sharded.
async fn rename(
    ctx: OpContext,
    from: Namespace,
    request: RenameRequest,
    asked: DdlRequest,
) -> Result<()> {
    loop {
        // The same request may have been sent before.
        if !is_running(&asked.id) {
            let local = LocalDefinition {
                ns: from.clone(),
                to: Some(request.to.clone()),
                database_version: asked.database_version,
                deadline: asked.deadline,
            };
            if locked(local, rename_unsharded(&ctx, &from, &request)).await? {
                return Ok(());
            }
        }
        let reply = run(asked.clone()).await?;
        // Otherwise what was sharded was dropped before the locks were held again.
        if pinion_bson::get(&reply, UNSHARDED).is_none() {
            return Ok(());
        }
    }
}

/// False where one of the two is sharded: nothing is done then.
async fn rename_unsharded(
    ctx: &OpContext,
    from: &Namespace,
    request: &RenameRequest,
) -> Result<bool> {
    let shard = membership(&part())?;
    let to = &request.to;
    if is_sharded(&shard, from).await? || is_sharded(&shard, to).await? {
        return Ok(false);
    }
    // A request that is sent again asks about a collection that was sharded.
    if let Some(known) = request.known_uuid
        && (core_catalog().get(from).is_none())
        && core_catalog()
            .get(to)
            .is_some_and(|found| found.uuid.0 == known.bytes())
    {
        return Ok(true);
    }
    if let Some(expected) = request.expected_uuid {
        let catalog = core_catalog().current();
        let found = catalog.get(from).map(|found| &**found);
        check_collection_uuid(&catalog, from, found, CatalogUuid(expected.bytes()))?;
    }
    let drop_target = match request.target_uuid {
        Some(uuid) => DropTarget::Only(CatalogUuid(uuid.bytes())),
        None if request.drops_target => DropTarget::Yes,
        None => DropTarget::No,
    };
    let (from, to) = (from.clone(), to.clone());
    let stays_temporary = request.stays_temporary;
    pinion_catalog::rename_collection(ctx, from, to, drop_target, stays_temporary).await?;
    Ok(true)
}

/// `_shardsvrConvertToCapped: <collection>, size`.
pub(crate) async fn convert_to_capped(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.sought(cmd.name(), cmd.db())?;
    let size = capped::size(&reader)?;
    reader.finish()?;
    let local = LocalDefinition {
        ns: ns.clone(),
        to: None,
        database_version: version(&cmd)?,
        deadline: deadline(&cmd),
    };
    let ctx = cmd.ctx.clone();
    on_core_0(&cmd.ctx, move || async move {
        let work = async {
            let shard = membership(&part())?;
            match is_sharded(&shard, &ns).await? {
                true => Err(illegal("You can't convertToCapped a sharded collection")),
                false => capped::convert(&ctx, ns.clone(), size).await,
            }
        };
        locked(local, work).await
    })
    .await?;
    finish(&cmd).await
}

/// `internalRenameIfOptionsAndIndexesMatch: 1, from, to, collectionOptions, indexes`: what `$out`
/// has filled takes the place of a collection that still is what `$out` has found.
pub(crate) async fn rename_if_unchanged(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&[cmd.name()]);
    let from = Namespace::parse(reader.str("from")?)?;
    let to = Namespace::parse(reader.str("to")?)?;
    let before = replaced(&reader)?;
    reader.finish()?;
    membership(&part())?;
    if from == to {
        return Err(illegal("Can't rename a collection to itself"));
    }
    if from.db() != to.db() {
        return Err(illegal("Source and destination databases must be the same"));
    }
    let routing = cmd.ctx.args.routing.as_ref();
    let Some(sent) = routing.and_then(|routing| routing.database_version) else {
        return Err(illegal("Expected the request to have a database version"));
    };
    learn_version(&cmd, to.db(), sent).await?;
    let local = LocalDefinition {
        ns: to.clone(),
        to: Some(from.clone()),
        database_version: DatabaseVersion::from_sent(sent),
        deadline: deadline(&cmd),
    };
    let ctx = cmd.ctx.clone();
    on_core_0(&cmd.ctx, move || async move {
        locked(local, replace(&ctx, from, to, before)).await
    })
    .await?;
    finish(&cmd).await
}

fn replaced(reader: &CommandReader<'_>) -> Result<ReplacedCollection> {
    let options = reader.doc("collectionOptions")?.to_owned();
    reader.array("indexes")?;
    let indexes = reader.opt_objects("indexes")?.into_iter().flatten();
    let owned = |index: Result<(usize, &RawDocument)>| index.map(|(_, index)| index.to_owned());
    Ok(ReplacedCollection {
        options,
        indexes: indexes.map(owned).collect::<Result<_>>()?,
    })
}

/// Learns the version of a database that a command on `admin` was sent for: no version is compared
/// before such a command runs.
///
/// # Errors
/// The config servers cannot be reached.
async fn learn_version(cmd: &Invocation, db: &str, sent: SentDatabaseVersion) -> Result<()> {
    let db = db.to_owned();
    on_core_0(&cmd.ctx, move || async move {
        let is_enough =
            |part: &Part| check_database(part, &db, &sent).is_ok() || !is_behind(part, &db, &sent);
        match is_enough(&part()) {
            true => Ok(()),
            false => refresh(&db, is_enough).await,
        }
    })
    .await
}

async fn replace(
    ctx: &OpContext,
    from: Namespace,
    to: Namespace,
    before: ReplacedCollection,
) -> Result<()> {
    let mut all = vec![from.clone(), to.clone()];
    all.extend(
        [&from, &to]
            .into_iter()
            .filter_map(|ns| buckets_of(ns).ok()),
    );
    if any_is_sharded(&*membership(&part())?, &all).await? {
        return Err(Error::new(
            ErrorCode::NAMESPACE_CANNOT_BE_SHARDED,
            "$out to a sharded collection is not allowed",
        ));
    }
    replace_collection(ctx, from, to, Some(before)).await?;
    Ok(())
}
