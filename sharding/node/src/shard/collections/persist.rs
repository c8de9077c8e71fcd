//! What this set keeps of its collections, written by its primary in MongoDB's order: that the
//! chunks are being written, the chunks, that they are all there.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, rawdoc};
use pinion_service::compute::compute_bytes;
use pinion_sharding_protocol::RoutingTable;
use pinion_sharding_protocol::documents::{
    CACHED_CHUNKS_PREFIX, CachedCollectionDocument, ChunkDocument,
};
use pinion_wire::{ErrorCode, Result};

use super::cached::is_whole;
use super::load::LoadedTable;
use crate::limits::{CHUNK_WRITE_BYTES, CHUNKS_WRITTEN};
use crate::local::LocalClient;

const DB: &str = "config";
const COLLECTIONS: &str = "cache.collections";

/// The fields that an entry may be without.
const OPTIONAL: [&str; 6] = [
    "timestamp",
    "uuid",
    "defaultCollation",
    "allowMigrations",
    "maxChunkSizeBytes",
    "timeseriesFields",
];

fn chunks_collection(ns: &str) -> String {
    let prefix = CACHED_CHUNKS_PREFIX.strip_prefix("config.");
    format!("{}{ns}", prefix.expect("it is of that database"))
}

/// Keeps a table that was read in the place of what is kept.
///
/// # Errors
/// Those of a write, behind which the entry is not whole.
pub(super) async fn keep(
    loaded: &LoadedTable,
    stored: Option<&CachedCollectionDocument>,
) -> Result<()> {
    let version = loaded.table.version().placement();
    let whole = CachedCollectionDocument {
        is_refreshing: Some(false),
        last_refreshed: Some(version),
        critical_sections: stored.map_or(0, |stored| stored.critical_sections),
        other: stored.map_or_else(RawDocumentBuf::new, |stored| stored.other.clone()),
        ..CachedCollectionDocument::of_collection(&loaded.collection)
    };
    if !loaded.is_full && stored == Some(&whole) {
        return Ok(());
    }
    let client = LocalClient::new()?;
    let has_chunks = stored.is_some_and(|stored| {
        is_whole(stored) && stored.of == whole.of && stored.last_refreshed == Some(version)
    });
    if loaded.is_full || !has_chunks {
        let writing = CachedCollectionDocument {
            is_refreshing: Some(true),
            last_refreshed: stored.and_then(|stored| stored.last_refreshed),
            ..whole.clone()
        };
        put(&client, &writing).await?;
        write_chunks(&client, loaded).await?;
    }
    put(&client, &whole).await
}

/// Removes what is kept of a collection.
///
/// # Errors
/// Those of a write.
pub(super) async fn remove(ns: &str) -> Result<()> {
    let client = LocalClient::new()?;
    let delete = rawdoc! {
        "delete": COLLECTIONS, "deletes": [{ "q": { "_id": ns }, "limit": 1 }],
        "writeConcern": { "w": 1 }, "$db": DB,
    };
    client.run(&delete).await?;
    drop_chunks(&client, ns).await
}

async fn drop_chunks(client: &LocalClient, ns: &str) -> Result<()> {
    let drop = rawdoc! {
        "drop": chunks_collection(ns), "writeConcern": { "w": 1 }, "$db": DB,
    };
    match client.run(&drop).await {
        Err(error) if error.code != ErrorCode::NAMESPACE_NOT_FOUND => Err(error),
        _ => Ok(()),
    }
}

/// Writes an entry, but for its counter of critical sections, which they raise themselves.
async fn put(client: &LocalClient, entry: &CachedCollectionDocument) -> Result<()> {
    let whole = entry.to_bson();
    let (mut set, mut unset) = (DocBuilder::new(), DocBuilder::new());
    for (name, value) in pinion_bson::elements(&whole) {
        if !matches!(name, "_id" | "enterCriticalSectionCounter") {
            set.append_raw(name, value);
        }
    }
    for name in OPTIONAL {
        if pinion_bson::get(&whole, name).is_none() {
            unset.append(name, "");
        }
    }
    let mut changes = DocBuilder::new();
    changes.append("$set", &*set.finish());
    let unset = unset.finish();
    if !unset.is_empty() {
        changes.append("$unset", &*unset);
    }
    let statement = rawdoc! {
        "q": { "_id": entry.ns.as_str() }, "u": changes.finish(), "upsert": true,
    };
    let update = rawdoc! {
        "update": COLLECTIONS, "updates": [statement], "writeConcern": { "w": 1 }, "$db": DB,
    };
    client.run(&update).await.map(drop)
}

async fn write_chunks(client: &LocalClient, loaded: &LoadedTable) -> Result<()> {
    let ns = loaded.table.ns.as_str();
    if loaded.is_full {
        drop_chunks(client, ns).await?;
    }
    let collection = chunks_collection(ns);
    for batch in batches(&loaded.chunks) {
        let bytes = batch.iter().map(|chunk| chunk.as_bytes().len()).sum();
        let table = &loaded.table;
        let writes = compute_bytes(bytes, || chunk_writes(table, batch, loaded.is_full)).await?;
        if writes.documents.is_empty() {
            continue;
        }
        if !loaded.is_full {
            let delete = statements("delete", &collection, "deletes", &writes.overlapped);
            client.run(&delete).await?;
        }
        let insert = statements("insert", &collection, "documents", &writes.documents);
        client.run(&insert).await?;
    }
    Ok(())
}

/// Chunks that are written together.
pub(crate) fn batches(chunks: &[RawDocumentBuf]) -> impl Iterator<Item = &[RawDocumentBuf]> {
    let mut rest = chunks;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |chunk: &&RawDocumentBuf| {
            bytes += chunk.as_bytes().len();
            bytes <= CHUNK_WRITE_BYTES
        };
        let count = rest.iter().take(CHUNKS_WRITTEN).take_while(fits).count();
        let (batch, behind) = rest.split_at(count.max(1).min(rest.len()));
        rest = behind;
        (!batch.is_empty()).then_some(batch)
    })
}

#[derive(Default)]
struct ChunkWrites {
    /// Of a delete, whose ranges are those of the documents. None where nothing is kept.
    overlapped: Vec<RawDocumentBuf>,
    documents: Vec<RawDocumentBuf>,
}

/// The documents that are kept of these chunks. One that is not in the table was replaced while the
/// chunks were read.
fn chunk_writes(
    table: &RoutingTable,
    chunks: &[RawDocumentBuf],
    is_full: bool,
) -> Result<ChunkWrites> {
    let mut writes = ChunkWrites::default();
    for chunk in chunks {
        let chunk = ChunkDocument::parse(chunk)?;
        let min = table.key.bound(&chunk.min)?;
        let current = table.chunk_of(&min);
        let max = table.key.bound(&chunk.max)?;
        if current.range.min != min
            || current.range.max != max
            || current.placement != chunk.placement
        {
            continue;
        }
        if !is_full {
            let range = rawdoc! { "$gte": chunk.min.clone(), "$lt": chunk.max.clone() };
            let overlapped = rawdoc! { "q": { "_id": range }, "limit": 0 };
            writes.overlapped.push(overlapped);
        }
        writes.documents.push(chunk.to_cached_bson());
    }
    Ok(writes)
}

fn statements(
    command: &str,
    collection: &str,
    field: &str,
    statements: &[RawDocumentBuf],
) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append(command, collection);
    out.start_array(field);
    for statement in statements {
        let statement: &RawDocument = statement;
        out.push(statement);
    }
    out.end();
    out.start_document("writeConcern").append("w", 1i32).end();
    out.append("$db", DB);
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{chunks, table};
    use super::*;

    #[test]
    fn what_is_written_of_chunks() {
        let bounds = [0i64, 10];
        let owners = [("s1", 3, 1), ("s2", 4, 0), ("s1", 4, 1)];
        let table = table(5, &bounds, &owners);
        let read: Vec<RawDocumentBuf> = chunks(&bounds, &owners)
            .iter()
            // One that was split while the others were read.
            .chain(&chunks(&[10], &[("s1", 2, 0), ("s1", 2, 1)])[..1])
            .map(ChunkDocument::to_bson)
            .collect();
        let writes = chunk_writes(&table, &read[1..], false).expect("readable");
        let range = rawdoc! { "$gte": { "a": 0i64 }, "$lt": { "a": 10i64 } };
        assert_eq!(writes.overlapped.len(), 2);
        assert_eq!(
            writes.overlapped[0],
            rawdoc! { "q": { "_id": range }, "limit": 0 }
        );
        let kept =
            |document: &RawDocumentBuf| document.get_document("_id").expect("one").to_owned();
        let ids: Vec<RawDocumentBuf> = writes.documents.iter().map(kept).collect();
        assert_eq!(ids, [rawdoc! { "a": 0i64 }, rawdoc! { "a": 10i64 }]);
        let all = chunk_writes(&table, &read, true).expect("readable");
        assert_eq!((all.documents.len(), all.overlapped.len()), (3, 0));
    }

    #[test]
    fn chunks_are_written_in_batches() {
        let check = |count: usize, bytes: usize, expected: &[usize]| {
            let text = "x".repeat(bytes);
            let chunks = vec![rawdoc! { "x": text.as_str() }; count];
            let found: Vec<usize> = batches(&chunks).map(<[RawDocumentBuf]>::len).collect();
            assert_eq!(found, expected);
        };
        check(0, 1, &[]);
        check(CHUNKS_WRITTEN, 1, &[CHUNKS_WRITTEN]);
        check(
            2 * CHUNKS_WRITTEN + 1,
            1,
            &[CHUNKS_WRITTEN, CHUNKS_WRITTEN, 1],
        );
        check(3, CHUNK_WRITE_BYTES / 2, &[1, 1, 1]);
        check(3, CHUNK_WRITE_BYTES / 2 - 100, &[2, 1]);
        check(2, CHUNK_WRITE_BYTES + 1, &[1, 1]);
        assert_eq!(chunks_collection("d.c"), "cache.chunks.d.c");
    }
}
