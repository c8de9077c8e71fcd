//! `$listClusterCatalog`: the collections of a database, or of all, with what the cluster knows of
//! them. Their primary shards list them; what is sharded say the config servers.

use std::collections::BTreeMap;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_query::buckets_of;
use pinion_sharding_protocol::documents::{
    COLLECTIONS, ChunkSizeSettings, CollectionDocument, DATABASES, DatabaseDocument, SETTINGS,
};
use pinion_sharding_protocol::{ShardId, Targets};
use pinion_wire::idl::{Namespace, truthy};
use pinion_wire::{Error, Invocation, Reply, Result};

use super::statistics::{all_documents, over_documents};
use crate::config_reads::find_all;
use crate::dispatch::{WhenAbsent, at_database, at_every_shard};
use crate::placement::table_of;
use crate::reply::refused;
use crate::request::{Request, Versions};
use crate::shards::current_shards;

/// A command that begins with the stage; `None` where the node that has the database knows all.
///
/// # Errors
/// Those of the shards, of the stages behind it, and of the way there.
pub(crate) async fn cluster_catalog(cmd: &Invocation) -> Result<Option<Reply>> {
    let listed = match cmd.db() {
        "config" | "local" => return Ok(None),
        "admin" => of_all_databases(cmd).await?,
        _ => of_database(cmd).await?,
    };
    let stage = first_stage(cmd.body()).and_then(|(_, spec)| spec.as_document());
    let known = Known::read(stage).await?;
    let mut documents = Vec::new();
    for (shard, document) in &listed {
        documents.push(known.described(document, shard).await?);
    }
    over_documents(cmd, documents).await.map(Some)
}

fn first_stage(body: &RawDocument) -> Option<(&str, RawBsonRef<'_>)> {
    let stages = pinion_bson::get(body, "pipeline")?.as_array()?;
    let first = pinion_bson::values(stages).next()?.as_document()?;
    pinion_bson::elements(first).next()
}

/// The command with this stage alone.
fn request(cmd: &Invocation, versions: impl Into<Versions>) -> Request {
    Request::with(cmd, cmd.db(), versions, |out| {
        out.start_array("pipeline");
        if let Some((name, spec)) = first_stage(cmd.body()) {
            out.push_document().append(name, spec).end();
        }
        out.end().start_document("cursor").end();
    })
}

type Listed = Vec<(ShardId, RawDocumentBuf)>;

async fn of_database(cmd: &Invocation) -> Result<Listed> {
    let make = |versions: Versions| request(cmd, versions);
    let answer = at_database(cmd, cmd.db(), WhenAbsent::Answer, make).await?;
    let documents = all_documents(&cmd.ctx, &answer).await?;
    let named = documents.into_iter().map(|document| {
        let shard = answer.shard.clone();
        (shard, document)
    });
    Ok(named.collect())
}

/// What each shard lists of the databases whose primary it is.
async fn of_all_databases(cmd: &Invocation) -> Result<Listed> {
    let config = ShardId::new(ShardId::CONFIG);
    let shards = current_shards().await?;
    let mut asked: Vec<ShardId> = shards.iter().map(|shard| ShardId::new(&shard.id)).collect();
    if !asked.contains(&config) {
        asked.push(config.clone());
    }
    let mut primaries = BTreeMap::new();
    for found in find_all(DATABASES, RawDocumentBuf::new(), None).await? {
        let found = DatabaseDocument::parse(&found)?;
        primaries.insert(found.name, found.primary);
    }
    let mut listed = Vec::new();
    for (shard, outcome) in at_every_shard(cmd, &asked, |_| request(cmd, None)).await? {
        let answer = outcome.map_err(refused)?;
        for document in all_documents(&cmd.ctx, &answer).await? {
            let is_here = match pinion_bson::get(&document, "db").and_then(|db| db.as_str()) {
                Some("admin" | "config") => shard == config,
                Some(db) => primaries.get(db) == Some(&shard),
                None => false,
            };
            if is_here {
                listed.push((shard.clone(), document));
            }
        }
    }
    Ok(listed)
}

/// What the config servers have, and what is asked of it.
struct Known {
    collections: BTreeMap<String, CollectionDocument>,
    chunk_size: ChunkSizeSettings,
    shards: bool,
    tracked: bool,
    balancing: bool,
}

/// Fields that the primary shard gives for a collection which is not sharded.
const OF_UNSHARDED: [&str; 6] = [
    "sharded",
    "tracked",
    "balancingEnabled",
    "balancingEnabledReason",
    "autoMergingEnabled",
    "shards",
];

impl Known {
    async fn read(stage: Option<&RawDocument>) -> Result<Known> {
        let wants = |name| {
            let value = stage.and_then(|stage| pinion_bson::get(stage, name));
            value.is_some_and(truthy)
        };
        let mut collections = BTreeMap::new();
        for found in find_all(COLLECTIONS, RawDocumentBuf::new(), None).await? {
            let found = CollectionDocument::parse(&found)?;
            if !found.is_dropped {
                collections.insert(found.ns.to_string(), found);
            }
        }
        let balancing = wants("balancingConfiguration");
        let mut chunk_size = ChunkSizeSettings::default();
        if balancing {
            let of_size = rawdoc! { "_id": ChunkSizeSettings::ID };
            if let Some(found) = find_all(SETTINGS, of_size, None).await?.first() {
                chunk_size = ChunkSizeSettings::parse(found)?;
            }
        }
        Ok(Known {
            collections,
            chunk_size,
            shards: wants("shards"),
            tracked: wants("tracked"),
            balancing,
        })
    }

    /// What the shard says of a collection, with what is true of it in the cluster.
    async fn described(&self, document: &RawDocument, shard: &ShardId) -> Result<RawDocumentBuf> {
        let text = |name| pinion_bson::get(document, name).and_then(|value| value.as_str());
        let Some(ns) = text("ns") else {
            return Err(Error::failed_to_parse(
                "a shard lists a collection without a name",
            ));
        };
        let mut ns = Namespace::parse(ns)?;
        if text("type") == Some("timeseries") {
            // A series is sharded by its buckets.
            ns = buckets_of(&ns)?;
        }
        let found = self.collections.get(ns.as_str());
        let found = found.filter(|found| !found.is_unsplittable);
        let mut out = DocBuilder::new();
        for (name, value) in pinion_bson::elements(document) {
            if !OF_UNSHARDED.contains(&name) || (found.is_none() && name != "shards") {
                out.append(name, value);
            }
        }
        let Some(found) = found else {
            if self.shards {
                out.start_array("shards").push(shard.as_str()).end();
            }
            return Ok(out.finish());
        };
        out.append("sharded", true).append("shardKey", &*found.key);
        if self.tracked {
            out.append("tracked", true);
        }
        if self.balancing {
            self.append_balancing(&mut out, found);
        }
        if self.shards {
            out.start_array("shards");
            if let Some(table) = table_of(&found.ns, Targets::Unknown).await? {
                for owner in table.shards() {
                    out.push(table.shard(owner).as_str());
                }
            }
            out.end();
        }
        Ok(out.finish())
    }

    fn append_balancing(&self, out: &mut DocBuilder, found: &CollectionDocument) {
        let size_bytes = match found.max_chunk_size_bytes {
            Some(bytes) => bytes,
            None => self.chunk_size.max_chunk_size_bytes as i64,
        };
        let may_migrate = found.may_migrate();
        out.append("balancingEnabled", !found.no_balance && may_migrate);
        out.start_document("balancingEnabledReason")
            .append("enableBalancing", !found.no_balance)
            .append("allowMigrations", may_migrate)
            .end();
        out.append(
            "autoMergingEnabled",
            found.enable_auto_merge.unwrap_or(true),
        )
        .append("chunkSize", (size_bytes >> 20) as i32);
    }
}
