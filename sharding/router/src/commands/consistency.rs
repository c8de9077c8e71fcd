//! `checkMetadataConsistency`: of a collection, a database or the cluster. The primary shard of
//! each database looks at what is in it; this router looks at the catalog as a whole.

use std::collections::BTreeSet;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Uuid, rawdoc};
use pinion_runtime::sleep;
use pinion_service::cursors::DocumentStream;
use pinion_service::interrupt::interruptible;
use pinion_sharding_protocol::ShardId;
use pinion_sharding_protocol::consistency::{
    ClusterCatalog, Inconsistencies, check_cluster, confirmed,
};
use pinion_sharding_protocol::documents::{
    COLLECTIONS, CollectionDocument, DATABASES, DatabaseDocument, SHARDS, ShardDocument,
};
use pinion_wire::idl::{Namespace, i64_exact};
use pinion_wire::{Error, Invocation, Reply, Result};

use crate::config_reads::{find_all, run_at_config};
use crate::cursor::{CollectedStream, KeptCursor, keep_cursor};
use crate::dispatch::{WhenAbsent, at_coordinator};
use crate::limits::{CONSISTENCY_LOOKS, CONSISTENCY_PAUSE, MAX_COUNTED_COLLECTIONS};
use crate::placement::{database, defined_by, flush_database};
use crate::reply::refused;
use crate::request::Request;
use crate::shards::current_shards;

/// What is checked.
struct Wanted {
    collection: Option<Namespace>,
    checks_indexes: bool,
    batch_size: Option<usize>,
}

impl Wanted {
    fn read(cmd: &Invocation) -> Result<Wanted> {
        let reader = cmd.reader()?;
        let name = cmd.message.command_name();
        let collection = match reader.value(name) {
            Some(RawBsonRef::String(_)) => Some(reader.sought(name, cmd.db())?),
            _ => None,
        };
        let batch_size = match reader.opt_object("cursor")? {
            Some(cursor) => {
                let size = cursor.opt_non_negative("batchSize")?;
                cursor.only(&["batchSize"])?;
                size.map(|size| size as usize)
            }
            None => None,
        };
        let checks_indexes = reader.opt_safe_bool("checkIndexes")?.unwrap_or(false);
        reader.finish()?;
        Ok(Wanted {
            collection,
            checks_indexes,
            batch_size,
        })
    }
}

/// `checkMetadataConsistency: 1 or <collection>, checkIndexes?, cursor?`: in `admin` of the whole
/// cluster.
pub(super) async fn check_metadata_consistency(cmd: Invocation) -> Result<Reply> {
    let mut wanted = Wanted::read(&cmd)?;
    if let Some(ns) = &wanted.collection {
        wanted.collection = Some(interruptible(&cmd.ctx, defined_by(ns)).await??);
    }
    let found = match &wanted.collection {
        None if cmd.db() == "admin" => of_cluster(&cmd, &wanted).await?,
        _ => of_database(&cmd, cmd.db(), &wanted).await?,
    };
    let ns = match &wanted.collection {
        Some(ns) => ns.clone(),
        None => Namespace::sought(cmd.db(), "$cmd.aggregate")?,
    };
    first_batch(&cmd, found, ns, wanted.batch_size).await
}

/// Has the primary shard of a database look at it. One that is not there has nothing.
async fn of_database(cmd: &Invocation, db: &str, wanted: &Wanted) -> Result<Inconsistencies> {
    let known = interruptible(&cmd.ctx, database(db)).await??;
    if known.is_none_or(|known| known.version.is_fixed()) {
        return Ok(Inconsistencies::default());
    }
    let asked = at_coordinator(cmd, db, WhenAbsent::Answer, |versions| {
        Request::own(db, versions, |out| {
            let name = "_shardsvrCheckMetadataConsistency";
            match &wanted.collection {
                Some(ns) => out.append(name, ns.collection()),
                None => out.append(name, 1i32),
            };
            out.append("checkIndexes", wanted.checks_indexes);
            if let Some(ms) = cmd.ctx.args.max_time_ms {
                out.append("maxTimeMS", i64::from(ms));
            }
        })
    })
    .await;
    let answer = match asked {
        Ok(answer) => answer,
        Err(error) => {
            // It may have been dropped meanwhile.
            flush_database(db).await;
            return match interruptible(&cmd.ctx, database(db)).await?? {
                None => Ok(Inconsistencies::default()),
                Some(_) => Err(error),
            };
        }
    };
    let found = pinion_bson::get(answer.body(), "inconsistencies");
    let found = found.and_then(|found| found.as_array());
    let found = found.into_iter().flat_map(pinion_bson::values);
    let found = found.filter_map(|value| value.as_document());
    let found: Vec<RawDocumentBuf> = found.map(RawDocument::to_owned).collect();
    Ok(Inconsistencies::from(found))
}

async fn of_cluster(cmd: &Invocation, wanted: &Wanted) -> Result<Inconsistencies> {
    let mut found = interruptible(&cmd.ctx, of_catalog()).await??;
    let databases = interruptible(&cmd.ctx, find_all(DATABASES, rawdoc! {}, None)).await??;
    let shards = current_shards().await?;
    for document in databases {
        let database = DatabaseDocument::parse(&document)?;
        // One of a shard that is none has been found already.
        if shards.get(&database.primary).is_some() {
            found.extend(of_database(cmd, &database.name, wanted).await?);
        }
    }
    Ok(found)
}

/// What is inconsistent in the catalog however often one looks: definitions may change it.
async fn of_catalog() -> Result<Inconsistencies> {
    let mut found = check_cluster(&catalog().await?);
    for _ in 1..CONSISTENCY_LOOKS {
        if found.is_empty() {
            break;
        }
        sleep(CONSISTENCY_PAUSE).await;
        found = confirmed(found, &check_cluster(&catalog().await?));
    }
    Ok(found)
}

async fn catalog() -> Result<ClusterCatalog> {
    // What is read later is of what was read before: a collection of its database, a chunk of its
    // collection.
    let chunks = counts_of_chunks().await?;
    let collections = find_all(COLLECTIONS, rawdoc! {}, None).await?;
    let databases = find_all(DATABASES, rawdoc! {}, None).await?;
    let shards = find_all(SHARDS, rawdoc! {}, None).await?;
    let shards = shards
        .iter()
        .map(|shard| Ok(ShardDocument::parse(shard)?.id));
    let collections = collections.iter();
    let collections = collections.map(|found| CollectionDocument::parse(found));
    let databases = databases.iter().map(|found| DatabaseDocument::parse(found));
    Ok(ClusterCatalog {
        shards: shards.collect::<Result<BTreeSet<ShardId>>>()?,
        databases: databases.collect::<Result<_>>()?,
        collections: collections.collect::<Result<_>>()?,
        chunks,
    })
}

/// The UUIDs that chunks are of, and how many.
async fn counts_of_chunks() -> Result<Vec<(Uuid, i64)>> {
    let fields = |out: &mut DocBuilder| {
        out.append("aggregate", "chunks").start_array("pipeline");
        out.push(&*rawdoc! { "$group": { "_id": "$uuid", "n": { "$sum": 1 } } });
        out.end();
        out.append("cursor", &*rawdoc! { "batchSize": MAX_COUNTED_COLLECTIONS });
        out.append("readConcern", &*rawdoc! { "level": "majority" });
    };
    let reply = run_at_config("config", fields, None)
        .await
        .map_err(refused)?;
    let batch = pinion_bson::get(&reply, "cursor").and_then(|cursor| cursor.as_document());
    let batch = batch.and_then(|cursor| pinion_bson::get(cursor, "firstBatch")?.as_array());
    let groups =
        pinion_bson::values(batch.ok_or_else(|| Error::internal("a reply has no cursor"))?);
    let groups = groups.filter_map(|group| {
        let group = group.as_document()?;
        let bytes = match pinion_bson::get(group, "_id")? {
            RawBsonRef::Binary(binary) => <[u8; 16]>::try_from(binary.bytes).ok()?,
            _ => return None,
        };
        let count = pinion_bson::get(group, "n").and_then(i64_exact)?;
        Some((Uuid::from_bytes(bytes), count))
    });
    Ok(groups.collect())
}

/// The reply with a first batch of what was found, and with a cursor for the rest.
async fn first_batch(
    cmd: &Invocation,
    found: Inconsistencies,
    ns: Namespace,
    batch_size: Option<usize>,
) -> Result<Reply> {
    let documents = found.into_documents().into_iter();
    let documents = documents.map(|document| Bytes::from(document.into_bytes()));
    let mut stream = CollectedStream::new(documents.collect());
    let mut stash = None;
    let max_documents = batch_size.unwrap_or(usize::MAX);
    let filled = stream.fill(&mut stash, &cmd.ctx, max_documents).await?;
    let id = match filled.exhausted {
        true => 0,
        false => keep_cursor(
            cmd,
            KeptCursor {
                ns: ns.clone(),
                no_timeout: false,
                stream: Box::new(stream),
                stash,
                returned: filled.documents.len() as u64,
            },
        )?,
    };
    let mut out = Reply::new();
    out.start_document("cursor").start_array("firstBatch");
    for document in &filled.documents {
        let document = RawDocument::from_bytes(document);
        out.push(document.map_err(|error| Error::internal(error.to_string()))?);
    }
    out.end();
    out.append("id", id).append("ns", ns.as_str()).end();
    Ok(out)
}
