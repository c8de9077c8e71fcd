//! Changes of `config.collections` and `config.chunks`.

use pinion_bson::{Binary, DocBuilder, RawBsonRef, RawDocumentBuf, Uuid, get, rawdoc};
use pinion_service::generate::new_object_id;
use pinion_sharding_protocol::config::{CollectionCreation, NewCollection};
use pinion_sharding_protocol::documents::{CollectionDocument, TagDocument};
use pinion_wire::Result;
use pinion_wire::idl::Namespace;

use super::changelog::note;
use super::shards::known_shards;
use crate::limits::{CHUNK_BATCH, CHUNK_BATCH_BYTES, MAX_ZONE_RANGES};
use crate::local::{LocalClient, wait_majority};
use crate::part::part;
use crate::planted::PlantedFault;

const COLLECTIONS: (&str, &str) = ("config", "collections");
pub(super) const CHUNKS: (&str, &str) = ("config", "chunks");
pub(super) const TAGS: (&str, &str) = ("config", "tags");

/// Makes a collection a sharded one: its chunks first, then its document, which is the commit. One
/// that an earlier attempt has written stays. Called on core 0.
///
/// # Errors
/// As of [`NewCollection::decide`]; those of a write.
pub(super) async fn create(new: &NewCollection, from: &str) -> Result<()> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    let document = new.document();
    let ns = &document.ns;
    let found = collection(&client, ns).await?;
    let shards = known_shards(&client).await?;
    let tags = tags_of(&client, ns).await?;
    match new.decide(found.as_ref(), &shards, &tags)? {
        // Another attempt may have written it, and not have come to its end.
        CollectionCreation::Exists => return wait_majority().await,
        CollectionCreation::Create => {}
    }
    let details = rawdoc! {
        "shardKey": document.key.clone(), "collection": ns.as_str(),
        "uuid": Binary::from(new.uuid()), "numChunks": new.len() as i64,
    };
    note(&client, from, "shardCollection.start", ns.as_str(), details).await;
    remove_chunks(&client, new.uuid()).await?;
    insert_chunks(&client, new).await?;
    let insert = rawdoc! {
        "insert": "collections", "documents": [document.to_bson()], "$db": "config",
    };
    client.write(&insert).await?;
    let version = rawdoc! { "version": format!("{:?}", new.version()) };
    note(&client, from, "shardCollection.end", ns.as_str(), version).await;
    Ok(())
}

/// Makes a collection none that is sharded: its document and its zones go together, then its
/// chunks. That there is none of this UUID means that an earlier attempt was here. Called on core
/// 0.
///
/// # Errors
/// Those of a write.
pub(super) async fn remove(ns: &Namespace, uuid: Uuid, from: &str) -> Result<()> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    let found = collection(&client, ns).await?;
    let is_there = found.is_some_and(|found| found.uuid == Some(uuid));
    if is_there {
        let start = "dropCollection.start";
        note(&client, from, start, ns.as_str(), RawDocumentBuf::new()).await;
        let document = rawdoc! {
            "delete": "collections", "$db": "config",
            "deletes": [{ "q": { "_id": ns.as_str(), "uuid": Binary::from(uuid) }, "limit": 1 }],
        };
        let tags = rawdoc! {
            "delete": "tags", "deletes": [{ "q": { "ns": ns.as_str() }, "limit": 0 }],
            "$db": "config",
        };
        client.run_together(&[document, tags]).await?;
    }
    // Where the document has gone, an attempt may have ended before it had removed all chunks.
    if part.planted_fault != PlantedFault::DropLeavesChunks {
        remove_left_chunks(&client, uuid).await?;
    }
    wait_majority().await?;
    if is_there {
        let ns = ns.as_str();
        note(&client, from, "dropCollection", ns, RawDocumentBuf::new()).await;
    }
    Ok(())
}

/// The document of a namespace, if it is sharded.
pub(super) async fn collection(
    client: &LocalClient,
    ns: &Namespace,
) -> Result<Option<CollectionDocument>> {
    let filter = rawdoc! { "_id": ns.as_str() };
    let found = client.find(COLLECTIONS, &filter, 1).await?;
    let found = found.first().map(|found| CollectionDocument::parse(found));
    found.transpose()
}

/// The ranges of zones that a namespace has.
pub(super) async fn tags_of(client: &LocalClient, ns: &Namespace) -> Result<Vec<TagDocument>> {
    let filter = rawdoc! { "ns": ns.as_str() };
    let found = client.find(TAGS, &filter, MAX_ZONE_RANGES).await?;
    found
        .iter()
        .map(|found| TagDocument::parse(found))
        .collect()
}

/// Removes the chunks of what was a collection. Where a message is late, the collection may have
/// another name by now.
pub(super) async fn remove_left_chunks(client: &LocalClient, uuid: Uuid) -> Result<()> {
    let filter = rawdoc! { "uuid": Binary::from(uuid) };
    match client.find(COLLECTIONS, &filter, 1).await?.is_empty() {
        true => remove_chunks(client, uuid).await,
        false => Ok(()),
    }
}

/// Removes the chunks of a UUID, one batch after the other.
async fn remove_chunks(client: &LocalClient, uuid: Uuid) -> Result<()> {
    let filter = rawdoc! { "uuid": Binary::from(uuid) };
    loop {
        let found = client.find(CHUNKS, &filter, CHUNK_BATCH as i32).await?;
        if found.is_empty() {
            return Ok(());
        }
        client.run(&removal(&found)).await?;
    }
}

/// A command that removes these chunks.
fn removal(found: &[RawDocumentBuf]) -> RawDocumentBuf {
    removal_of(found.iter().filter_map(|document| get(document, "_id")))
}

/// A command that removes chunks by their ids.
pub(super) fn removal_of<'a>(ids: impl Iterator<Item = RawBsonRef<'a>>) -> RawDocumentBuf {
    let mut query = DocBuilder::new();
    query.start_document("_id").start_array("$in");
    for id in ids {
        query.push(id);
    }
    query.end().end();
    rawdoc! {
        "delete": "chunks", "deletes": [{ "q": query.finish(), "limit": 0 }], "$db": "config",
    }
}

/// Writes the chunks. A majority has them when it has what is written behind them.
async fn insert_chunks(client: &LocalClient, new: &NewCollection) -> Result<()> {
    let mut documents = new
        .chunk_documents(new_object_id)
        .map(|chunk| chunk.to_bson())
        .peekable();
    while documents.peek().is_some() {
        client.run(&insertion(&mut documents)).await?;
    }
    Ok(())
}

/// A command that inserts the next documents, as many as one batch has.
pub(super) fn insertion(documents: &mut impl Iterator<Item = RawDocumentBuf>) -> RawDocumentBuf {
    let mut insert = DocBuilder::new();
    insert.append("insert", "chunks").start_array("documents");
    let mut bytes = 0;
    for document in documents.by_ref().take(CHUNK_BATCH) {
        bytes += document.as_bytes().len();
        insert.push(&*document);
        if bytes > CHUNK_BATCH_BYTES {
            break;
        }
    }
    insert.end().append("$db", "config");
    insert.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_limits() {
        let count = |command: &RawDocumentBuf| {
            let documents = get(command, "documents").and_then(|documents| documents.as_array());
            pinion_bson::values(documents.expect("a list")).count()
        };
        let mut small = (0..2_500).map(|at| rawdoc! { "_id": at });
        let mut found = Vec::new();
        for _ in 0..3 {
            found.push(count(&insertion(&mut small)));
        }
        assert_eq!(found, [1_000, 1_000, 500]);
        let large = "x".repeat(1 << 20);
        let mut large = (0..9).map(|at| rawdoc! { "_id": at, "min": large.as_str() });
        let mut found = Vec::new();
        for _ in 0..3 {
            found.push(count(&insertion(&mut large)));
        }
        assert_eq!(found, [4, 4, 1]);
        let expected = rawdoc! {
            "delete": "chunks", "$db": "config",
            "deletes": [{ "q": { "_id": { "$in": [1, 2] } }, "limit": 0 }],
        };
        let found = [rawdoc! { "_id": 1, "x": 1 }, rawdoc! { "_id": 2 }];
        let removal = removal(&found);
        assert_eq!(get(&removal, "deletes"), get(&expected, "deletes"));
    }
}
