//! `shardCollection`, and the commands on zones.

use pinion_bson::{DocBuilder, RawDocument};
use pinion_query::{BUCKETS_PREFIX, document_text, parse_collation};
use pinion_service::interrupt::interruptible;
use pinion_sharding_protocol::ShardKeyPattern;
use pinion_sharding_protocol::config::check_initial_chunks;
use pinion_sharding_protocol::ddl::check_no_buckets;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::config_reads::run_at_config;
use crate::dispatch::{WhenAbsent, at_coordinator, before_routing_again, may_route_again};
use crate::placement::{defined_by, flush_collection};
use crate::reply::append_passed_on;
use crate::request::Request;
use crate::shards::{current_shards, reload_shards};

/// `shardCollection`: the database is made, if there is none, and its primary shard shards the
/// collection. Sent again for one that is sharded alike it is a success.
pub(super) async fn shard_collection(cmd: Invocation) -> Result<Reply> {
    let wanted = Wanted::read(&cmd)?;
    wanted.check().await?;
    let ns = &wanted.ns;
    let make = |out: &mut DocBuilder| {
        wanted.append_to(out);
        append_majority(out, &cmd);
    };
    for attempt in 0.. {
        let sharded = at_coordinator(&cmd, ns.db(), WhenAbsent::Make, |versions| {
            Request::own(ns.db(), versions, make)
        })
        .await;
        // Also where it failed: it may be sharded all the same.
        flush_collection(ns).await;
        match sharded {
            Err(error) if may_route_again(&cmd, &error, attempt) => {
                before_routing_again(&cmd, Some(ns), &error, attempt).await?;
            }
            Err(error) => return Err(error),
            Ok(answer) => {
                let mut out = Reply::new();
                out.append("collectionsharded", ns.as_str());
                append_passed_on(&mut out, answer.body(), |name| name == b"writeConcernError");
                return Ok(out);
            }
        }
    }
    unreachable!("it returns at the last attempt")
}

/// The write concern of a definition at a shard: a majority always has it, within the time that the
/// client gives it.
pub(super) fn append_majority(out: &mut DocBuilder, cmd: &Invocation) {
    let concern = pinion_bson::get(cmd.body(), "writeConcern");
    let concern = concern.and_then(|concern| concern.as_document());
    out.start_document("writeConcern").append("w", "majority");
    if let Some(wait) = concern.and_then(|concern| pinion_bson::get(concern, "wtimeout")) {
        out.append_raw("wtimeout", wait);
    }
    out.end();
}

/// What a client asks for.
struct Wanted<'c> {
    ns: Namespace,
    key: &'c RawDocument,
    is_unique: Option<bool>,
    chunks: Option<i64>,
    presplits_hashed_zones: Option<bool>,
    collation: Option<&'c RawDocument>,
    timeseries: Option<&'c RawDocument>,
    makes_index: Option<bool>,
    checks_uniqueness: Option<bool>,
}

impl Wanted<'_> {
    fn read(cmd: &Invocation) -> Result<Wanted<'_>> {
        let reader = cmd.reader()?;
        let wanted = Wanted {
            ns: Namespace::parse(reader.str(cmd.message.command_name())?)?,
            key: reader.doc("key")?,
            is_unique: reader.opt_safe_bool("unique")?,
            chunks: reader.opt_i64("numInitialChunks")?,
            presplits_hashed_zones: reader.opt_safe_bool("presplitHashedZones")?,
            collation: reader.opt_doc("collation")?,
            timeseries: reader.opt_doc("timeseries")?,
            makes_index: reader.opt_safe_bool("implicitlyCreateIndex")?,
            checks_uniqueness: reader.opt_safe_bool("enforceUniquenessCheck")?,
        };
        if reader.opt_uuid("collectionUUID")?.is_some() {
            return Err(Error::new(
                ErrorCode::COMMAND_NOT_SUPPORTED,
                "shardCollection with collectionUUID is not supported",
            ));
        }
        reader.finish()?;
        Ok(wanted)
    }

    /// What can be known to be wrong without the collection.
    async fn check(&self) -> Result<()> {
        let key = ShardKeyPattern::parse(self.key)?;
        check_name(&self.ns)?;
        if self.is_unique == Some(true) {
            key.check_unique()?;
        }
        if let Some(spec) = self.collation
            && parse_collation(spec)?.is_some()
        {
            return Err(Error::bad_value(format!(
                "The collation for shardCollection must be {{locale: 'simple'}}, but found: {}",
                document_text(spec)
            )));
        }
        if let Some(chunks) = self.chunks {
            let shards = current_shards().await?;
            let shards = shards.iter().filter(|shard| !shard.is_draining).count();
            check_initial_chunks(chunks, shards)?;
        }
        Ok(())
    }

    fn append_to(&self, out: &mut DocBuilder) {
        out.append("_shardsvrCreateCollection", self.ns.collection())
            .append("shardKey", self.key);
        if let Some(chunks) = self.chunks {
            out.append("numInitialChunks", chunks);
        }
        let flags = [
            ("unique", self.is_unique),
            ("presplitHashedZones", self.presplits_hashed_zones),
            ("implicitlyCreateIndex", self.makes_index),
            ("enforceUniquenessCheck", self.checks_uniqueness),
        ];
        for (name, flag) in flags {
            if let Some(flag) = flag {
                out.append(name, flag);
            }
        }
        let documents = [
            ("collation", self.collation),
            ("timeseries", self.timeseries),
        ];
        for (name, document) in documents {
            if let Some(document) = document {
                out.append(name, document);
            }
        }
    }
}

/// Refuses namespaces that are never sharded.
fn check_name(ns: &Namespace) -> Result<()> {
    let refused = |code, message: String| Err(Error::new(code, message));
    let is_encryption_state = ns.collection().starts_with("enxcol_.")
        && [".esc", ".ecc", ".ecoc"]
            .iter()
            .any(|end| ns.collection().ends_with(end));
    match (ns.db(), ns.collection()) {
        (db @ ("admin" | "local"), _) => refused(
            ErrorCode::INVALID_OPTIONS,
            format!("Cannot manually create database '{db}'"),
        ),
        ("config", _) => refused(
            ErrorCode::ILLEGAL_OPERATION,
            "only special collections in the config db may be sharded".to_owned(),
        ),
        (_, name) if name.starts_with(BUCKETS_PREFIX) => check_no_buckets(ns),
        (_, name) if name.starts_with("system.") => refused(
            ErrorCode::ILLEGAL_OPERATION,
            "can't shard system namespaces".to_owned(),
        ),
        _ if is_encryption_state => refused(
            ErrorCode(6_464_401),
            "Sharding a Queryable Encryption state collection is not allowed".to_owned(),
        ),
        _ => Ok(()),
    }
}

/// Has the config servers change zones.
async fn change_zones(cmd: &Invocation, fields: impl FnOnce(&mut DocBuilder)) -> Result<Reply> {
    let change = run_at_config(
        "admin",
        |out| {
            fields(out);
            out.start_document("writeConcern")
                .append("w", "majority")
                .end();
        },
        None,
    );
    interruptible(&cmd.ctx, change).await??;
    Ok(Reply::new())
}

async fn change_shard(cmd: &Invocation, at_config: &'static str) -> Result<Reply> {
    let reader = cmd.reader()?;
    let shard = reader.str(cmd.message.command_name())?;
    let zone = reader.str("zone")?;
    reader.finish()?;
    let reply = change_zones(cmd, |out| {
        out.append(at_config, shard).append("zone", zone);
    })
    .await?;
    // This process shows the zones of shards, and has their documents.
    reload_shards().await?;
    Ok(reply)
}

/// `addShardToZone: <shard>, zone`.
pub(super) async fn add_shard_to_zone(cmd: Invocation) -> Result<Reply> {
    change_shard(&cmd, "_configsvrAddShardToZone").await
}

/// `removeShardFromZone: <shard>, zone`.
pub(super) async fn remove_shard_from_zone(cmd: Invocation) -> Result<Reply> {
    change_shard(&cmd, "_configsvrRemoveShardFromZone").await
}

/// `updateZoneKeyRange: <ns>, min, max, zone`.
pub(super) async fn update_zone_key_range(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.message.command_name())?)?;
    let (min, max) = (reader.doc("min")?, reader.doc("max")?);
    let zone = reader.value("zone");
    reader.finish()?;
    let ns = interruptible(&cmd.ctx, defined_by(&ns)).await??;
    change_zones(&cmd, |out| {
        out.append("_configsvrUpdateZoneKeyRange", ns.as_str())
            .append("min", min)
            .append("max", max);
        // What is missing, or no name of a zone, the config servers refuse.
        if let Some(zone) = zone {
            out.append_raw("zone", zone);
        }
    })
    .await
}
