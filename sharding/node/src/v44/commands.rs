//! Commands that MongoDB 4.4's routers, config servers and shards send to a shard.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_catalog::{CollectionKind, CollectionOptions, Uuid as CatalogUuid, core_catalog};
use pinion_exec::commands::acknowledge;
use pinion_sharding_protocol::documents::ShardDocument;
use pinion_sharding_protocol::{ConnectionString, Form, ShardId, ShardVersion};
use pinion_storage::storage;
use pinion_wire::idl::{
    CommandReader, FieldReader, Namespace, Path, SentShardVersion, missing_field,
};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use crate::config_servers::run_on_set;
use crate::ddl;
use crate::limits::REMOTE_COMMAND;
use crate::part::{form, on_core_0, part};
use crate::shard::{membership, refresh_collection, shard_version};

/// Refuses what only a cluster of MongoDB 4.4 sends.
fn check_v44(cmd: &Invocation) -> Result<()> {
    membership(&part())?;
    match form() {
        Form::Mongo44 => Ok(()),
        Form::Own => Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED,
            format!(
                "{} is a command of MongoDB 4.4's clusters: start the shard with --clusterVersion 4.4",
                cmd.name()
            ),
        )),
    }
}

/// `setShardVersion: <collection>, version, versionEpoch, authoritative?, forceRefresh?, ..`: has
/// the shard look whether it goes by the version that a router goes by. Nothing is kept for the
/// connection: each request has its version.
pub(crate) async fn set_shard_version(cmd: Invocation) -> Result<Reply> {
    check_v44(&cmd)?;
    let reader = cmd.reader()?;
    reader.ignore(&["configdb", "shardHost", "noConnectionVersioning"]);
    let mut out = Reply::new();
    if reader.opt_safe_bool("init")?.unwrap_or(false) {
        out.append("initialized", true);
        return Ok(out);
    }
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    check_shard(reader.opt_str("shard")?)?;
    let sent = sent_version(&reader)?;
    let is_authoritative = reader.opt_safe_bool("authoritative")?.unwrap_or(false);
    reader.opt_safe_bool("forceRefresh")?;
    reader.finish()?;
    append_version(
        &mut out,
        ["oldVersion", "oldVersionEpoch"],
        ShardVersion::Unsharded,
    );
    if is_view(&ns) {
        return Ok(out);
    }
    let known = known(&ns)?;
    match judge(sent, known, is_authoritative) {
        Judged::Same => return Ok(out),
        Judged::Learn => {}
        Judged::Refused(refusal) => return Err(refusal.error(&ns, sent, known)),
    }
    on_core_0(&cmd.ctx, {
        let ns = ns.clone();
        move || async move { refresh_collection(&ns, |_| false).await }
    })
    .await?;
    let known = self::known(&ns)?;
    match sent.is_placement_equal(known) {
        true => Ok(out),
        false => Err(Refusal::Differs.error(&ns, sent, known)),
    }
}

fn check_shard(name: Option<&str>) -> Result<()> {
    let me = membership(&part())?;
    match name {
        None | Some("") => Ok(()),
        Some(name) if *me.shard() == *name => Ok(()),
        Some(name) => Err(Error::bad_value(format!(
            "shardName is {}, but the command is for {name}",
            me.shard()
        ))),
    }
}

fn sent_version(reader: &CommandReader<'_>) -> Result<ShardVersion> {
    let missing = |name| missing_field(reader.path().field(name));
    let RawBsonRef::Timestamp(placement) =
        reader.value("version").ok_or_else(|| missing("version"))?
    else {
        return Err(Error::type_mismatch("'version' is a timestamp"));
    };
    let epoch = reader.opt_object_id("versionEpoch")?;
    Ok(ShardVersion::from_sent(SentShardVersion {
        epoch: epoch.ok_or_else(|| missing("versionEpoch"))?,
        timestamp: None,
        placement,
    }))
}

/// A collection of which nothing is known counts as one that is not sharded, as in MongoDB 4.4.
fn known(ns: &Namespace) -> Result<ShardVersion> {
    Ok(shard_version(&part(), ns)?.unwrap_or(ShardVersion::Unsharded))
}

fn is_view(ns: &Namespace) -> bool {
    let kind = core_catalog().current().kind(ns);
    kind.is_some_and(|kind| !matches!(kind, CollectionKind::Collection))
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Judged {
    Same,
    /// The shard may be behind.
    Learn,
    Refused(Refusal),
}

/// Why a version is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Refusal {
    /// That there is no table any more has to be known for sure.
    DropNotSure,
    /// The same of a table of which the shard has not heard.
    FirstNotSure,
    Older,
    /// The shard has read the table, and it is another one.
    Differs,
}

fn judge(sent: ShardVersion, known: ShardVersion, is_authoritative: bool) -> Judged {
    if sent.is_placement_equal(known) {
        return Judged::Same;
    }
    match (sent, known) {
        (ShardVersion::Unsharded, _) if !is_authoritative => Judged::Refused(Refusal::DropNotSure),
        (ShardVersion::Unsharded, _) => Judged::Learn,
        _ if sent.is_older_than(known) == Some(true) => Judged::Refused(Refusal::Older),
        (_, ShardVersion::Unsharded) if !is_authoritative => Judged::Refused(Refusal::FirstNotSure),
        _ => Judged::Learn,
    }
}

impl Refusal {
    /// MongoDB 4.4's routers go by these very fields.
    fn error(self, ns: &Namespace, sent: ShardVersion, known: ShardVersion) -> Error {
        let mut out = DocBuilder::new();
        out.append("ns", ns.as_str());
        let global = ["globalVersion", "globalVersionEpoch"];
        let version = ["version", "versionEpoch"];
        let message = match self {
            Refusal::DropNotSure => {
                out.append("need_authoritative", true);
                append_version(&mut out, global, known);
                "dropping needs to be authoritative".to_owned()
            }
            Refusal::FirstNotSure => {
                out.append("need_authoritative", true);
                format!("first time for collection '{ns}'")
            }
            Refusal::Older => {
                append_version(&mut out, version, sent);
                append_version(&mut out, global, known);
                out.append("reloadConfig", true);
                format!(
                    "shard global version for collection is higher than trying to set to '{ns}'"
                )
            }
            Refusal::Differs => {
                append_version(&mut out, global, known);
                append_version(&mut out, version, ShardVersion::Unsharded);
                append_version(&mut out, ["origVersion", "origVersionEpoch"], sent);
                out.append("reloadConfig", true);
                format!("the version of '{ns}' is another one")
            }
        };
        Error::new(ErrorCode::UNKNOWN_ERROR, message).with_extra(out.finish())
    }
}

fn append_version(out: &mut DocBuilder, [version, epoch]: [&str; 2], value: ShardVersion) {
    let sent = value.to_sent();
    out.append(version, sent.placement)
        .append(epoch, sent.epoch);
}

/// `unsetSharding: 1`: forgets what is kept for the connection, which is nothing.
pub(crate) async fn unset_sharding(cmd: Invocation) -> Result<Reply> {
    check_v44(&cmd)?;
    let reader = cmd.reader()?;
    reader.ignore(&["unsetSharding"]);
    reader.finish()?;
    Ok(Reply::new())
}

/// `_shardsvrShardCollection: <collection>, key, unique?, numInitialChunks?,
/// presplitHashedZones?, initialSplitPoints?, collation?, getUUIDfromPrimaryShard?` ->
/// `collectionsharded`, `collectionUUID`.
pub(crate) async fn shard_collection(cmd: Invocation) -> Result<Reply> {
    check_v44(&cmd)?;
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    let mut request = DocBuilder::new();
    request.append("shardKey", reader.doc("key")?);
    for name in [
        "unique",
        "numInitialChunks",
        "presplitHashedZones",
        "initialSplitPoints",
    ] {
        if let Some(value) = reader.value(name) {
            request.append_raw(name, value);
        }
    }
    // The config servers have checked it: they send the default one of the collection.
    request.append("collation", &*rawdoc! { "locale": "simple" });
    reader.ignore(&["collation", "getUUIDfromPrimaryShard"]);
    reader.finish()?;
    let made = ddl::shard_collection(&cmd, &ns, request.finish()).await?;
    let uuid = FieldReader::object(Path::root("reply"), &made)?.value("collectionUUID");
    let uuid = uuid.ok_or_else(|| Error::internal("a sharded collection has a UUID"))?;
    let mut out = Reply::new();
    out.append("collectionsharded", ns.as_str());
    out.append_raw("collectionUUID", uuid);
    acknowledge(&cmd.ctx, Some(storage().last_allotted()), &mut out).await?;
    Ok(out)
}

/// `_cloneCollectionOptionsFromPrimaryShard: <collection>, primaryShard`: makes the collection as
/// that shard has it, with its UUID and its indexes.
pub(crate) async fn clone_collection_options(cmd: Invocation) -> Result<Reply> {
    check_v44(&cmd)?;
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    let from = ShardId::new(reader.str("primaryShard")?);
    reader.finish()?;
    let ctx = cmd.ctx.clone();
    on_core_0(&cmd.ctx, move || async move {
        clone_from(&ctx, &ns, &from).await
    })
    .await?;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(storage().last_allotted()), &mut out).await?;
    Ok(out)
}

async fn clone_from(ctx: &OpContext, ns: &Namespace, from: &ShardId) -> Result<()> {
    let me = membership(&part())?;
    let shards = ddl::shards(&me).await?;
    let shard = shards.iter().find(|shard| shard.id == *from);
    let shard = shard.ok_or_else(|| {
        Error::new(
            ErrorCode::SHARD_NOT_FOUND,
            format!("Shard {from} not found"),
        )
    })?;
    let list = rawdoc! {
        "listCollections": 1, "filter": { "name": ns.collection() }, "$db": ns.db(),
    };
    let found = batch_of(shard, &list).await?;
    let Some(found) = found.first() else {
        return Err(Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("{ns} is not on the shard {from}"),
        ));
    };
    let reader = FieldReader::object(Path::root("listCollections"), found)?;
    let options = reader.doc("options")?;
    let options = CollectionOptions::from_document(options);
    let options = options.map_err(|bad| Error::bad_value(bad.0))?;
    let info = FieldReader::object(Path::root("info"), reader.doc("info")?)?;
    let uuid = info.opt_uuid("uuid")?;
    let uuid = uuid.ok_or_else(|| missing_field(info.path().field("uuid")))?;
    let list = rawdoc! { "listIndexes": ns.collection(), "$db": ns.db() };
    let indexes = batch_of(shard, &list).await?;
    let others: Vec<RawDocumentBuf> = indexes
        .into_iter()
        .filter(|index| {
            pinion_bson::get(index, "name").and_then(|name| name.as_str()) != Some("_id_")
        })
        .collect();
    ddl::create_copy(ctx, ns, CatalogUuid(uuid), options, &others).await
}

/// All that a list of another shard has, which is one reply: a collection has at most 64 indexes.
async fn batch_of(shard: &ShardDocument, list: &RawDocument) -> Result<Vec<RawDocumentBuf>> {
    let set = ConnectionString::parse(&shard.host)?;
    let reply = run_on_set(&set, list, REMOTE_COMMAND).await?;
    crate::replies::only_batch(&reply)
}

#[cfg(test)]
mod tests {
    use pinion_bson::ObjectId;
    use pinion_clock::Timestamp;
    use pinion_sharding_protocol::{ChunkVersion, Incarnation};

    use super::*;

    fn placed(epoch: u8, major: u32) -> ShardVersion {
        let of = Incarnation {
            epoch: ObjectId::from_bytes([epoch; 12]),
            timestamp: Timestamp::MIN,
        };
        ShardVersion::Placed(ChunkVersion {
            of,
            major,
            minor: 0,
        })
    }

    #[test]
    fn versions_that_routers_set() {
        let none = ShardVersion::Unsharded;
        let refused = |refusal| Judged::Refused(refusal);
        assert_eq!(judge(none, none, false), Judged::Same);
        assert_eq!(judge(placed(1, 2), placed(1, 2), false), Judged::Same);
        assert_eq!(
            judge(none, placed(1, 2), false),
            refused(Refusal::DropNotSure)
        );
        assert_eq!(judge(none, placed(1, 2), true), Judged::Learn);
        assert_eq!(
            judge(placed(1, 1), placed(1, 2), true),
            refused(Refusal::Older)
        );
        assert_eq!(judge(placed(1, 3), placed(1, 2), false), Judged::Learn);
        assert_eq!(
            judge(placed(1, 1), none, false),
            refused(Refusal::FirstNotSure)
        );
        assert_eq!(judge(placed(1, 1), none, true), Judged::Learn);
        // Of two lives none is known to be the later one.
        assert_eq!(judge(placed(2, 1), placed(1, 2), false), Judged::Learn);
    }
}
