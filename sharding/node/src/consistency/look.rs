//! One look at a database: the catalog, and every shard.

use std::collections::BTreeSet;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf, rawdoc};
use pinion_runtime::{join_all, sleep};
use pinion_sharding_protocol::consistency::{
    BareSeries, CatalogCollection, CollectionOnShard, Inconsistencies, ShardFacts, check_chunks,
    check_collections, check_zones, confirmed,
};
use pinion_sharding_protocol::documents::{
    CHUNKS, COLLECTIONS, CollectionDocument, ShardDocument, TAGS,
};
use pinion_sharding_protocol::{ConnectionString, ShardId};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Namespace};

use super::participant::Reported;
use crate::config_servers::{read_config_all, read_config_at_once, run_on_set};
use crate::ddl;
use crate::limits::{CONSISTENCY_LOOKS, CONSISTENCY_PAUSE, MAX_SHARDS_AT_ONCE, REMOTE_COMMAND};
use crate::part::Membership;

/// What is looked at.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    pub(super) db: String,
    /// One collection of it.
    pub(super) collection: Option<Namespace>,
}

impl Scope {
    /// Reads the first field of a command: the name of a collection, or a number.
    ///
    /// # Errors
    /// `InvalidNamespace`.
    pub(super) fn read(reader: &FieldReader<'_, '_>, name: &str, db: &str) -> Result<Scope> {
        let collection = match reader.value(name) {
            Some(RawBsonRef::String(_)) => Some(reader.sought(name, db)?),
            _ => None,
        };
        Ok(Scope {
            db: db.to_owned(),
            collection,
        })
    }

    /// Selects its documents of `config.collections`.
    fn filter(&self) -> RawDocumentBuf {
        match &self.collection {
            Some(ns) => rawdoc! { "_id": ns.as_str() },
            // `/` follows `.`.
            None => {
                let (from, to) = (format!("{}.", self.db), format!("{}/", self.db));
                rawdoc! { "_id": { "$gte": from, "$lt": to } }
            }
        }
    }
}

/// What is inconsistent however often one looks: indexes and chunks may change meanwhile.
///
/// # Errors
/// A shard or the config servers do not answer.
pub(super) async fn inconsistencies(
    shard: &Membership,
    scope: &Scope,
    checks_indexes: bool,
) -> Result<Inconsistencies> {
    let mut found = look(shard, scope, checks_indexes).await?;
    for _ in 1..CONSISTENCY_LOOKS {
        if found.is_empty() {
            break;
        }
        sleep(CONSISTENCY_PAUSE).await;
        found = confirmed(found, &look(shard, scope, checks_indexes).await?);
    }
    Ok(found)
}

async fn look(shard: &Membership, scope: &Scope, checks_indexes: bool) -> Result<Inconsistencies> {
    let shards = ddl::shards(shard).await?;
    let ids: BTreeSet<ShardId> = shards.iter().map(|shard| shard.id.clone()).collect();
    let mut found = Inconsistencies::default();
    let mut catalog = Vec::new();
    for document in read_config_all(shard, COLLECTIONS, &scope.filter(), None).await? {
        let document = CollectionDocument::parse(&document)?;
        if document.is_dropped {
            continue;
        }
        let by_min = rawdoc! { "min": 1 };
        let filter = document.chunks_filter(None);
        let chunks = read_config_at_once(shard, CHUNKS, &filter, &by_min).await?;
        let routing = check_chunks(&document, &chunks, &ids);
        found.extend(routing.inconsistencies);
        let filter = rawdoc! { "ns": document.ns.as_str() };
        let zones = read_config_at_once(shard, TAGS, &filter, &by_min).await?;
        found.extend(check_zones(&document, &zones));
        catalog.push(CatalogCollection {
            document,
            owners: routing.owners,
        });
    }
    let mut facts = Vec::new();
    for some in shards.chunks(MAX_SHARDS_AT_ONCE) {
        let asking = some.iter().map(|shard| facts_of(shard, scope));
        for answered in join_all(asking).await {
            facts.push(answered?);
        }
    }
    let me = shard.shard();
    found.extend(check_collections(me, &catalog, &facts, checks_indexes));
    Ok(found)
}

/// All that a shard has.
async fn facts_of(shard: &ShardDocument, scope: &Scope) -> Result<ShardFacts> {
    let set = ConnectionString::parse(&shard.host)?;
    let mut collections: Vec<CollectionOnShard> = Vec::new();
    let mut bare_series: Vec<BareSeries> = Vec::new();
    loop {
        let mut command = DocBuilder::new();
        let name = "_shardsvrCheckMetadataConsistencyParticipant";
        match &scope.collection {
            Some(ns) => command.append(name, ns.collection()),
            None => command.append(name, 1i32),
        };
        if let Some(last) = collections.last() {
            command.append("startAfter", last.ns.as_str());
        }
        command.append("$db", scope.db.as_str());
        let reply = run_on_set(&set, &command.finish(), REMOTE_COMMAND).await;
        let reply = reply.map_err(|error| error.context(format!("on shard {}", shard.id)))?;
        let mut found = Reported::parse(&reply)?;
        let is_empty = found.collections.is_empty();
        collections.append(&mut found.collections);
        bare_series.append(&mut found.bare_series);
        if !found.more || is_empty {
            break;
        }
    }
    Ok(ShardFacts {
        shard: shard.id.clone(),
        collections,
        bare_series,
    })
}
