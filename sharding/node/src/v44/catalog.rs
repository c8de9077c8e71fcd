//! The routing table of a collection, written by its shard into the catalog of MongoDB 4.4's config
//! servers.

use pinion_bson::{Binary, DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_service::generate::new_object_id;
use pinion_sharding_protocol::config::NewCollection;
use pinion_sharding_protocol::documents::{ChunkDocument, ChunkOf, CollectionDocument};
use pinion_sharding_protocol::{Form, Incarnation};
use pinion_wire::idl::{CommandReader, Namespace};
use pinion_wire::{Error, ErrorCode, Result};

use super::check_own_cluster;
use crate::config::{changelog_entry, chunks_in};
use crate::config_servers::{change_config, read_config};
use crate::part::{Membership, form};
use crate::shard::batches;

const CREATE: &str = "_configsvrCommitCreateCollection";

/// Has the config servers do what a definition asks of them, in whichever way they know.
///
/// # Errors
/// Theirs; `CommandNotSupported`.
pub(crate) async fn configure(shard: &Membership, command: RawDocumentBuf) -> Result<()> {
    if form() == Form::Own {
        return change_config(shard, command).await.map(drop);
    }
    match pinion_bson::elements(&command).next() {
        Some((CREATE, RawBsonRef::String(ns))) => {
            let ns = Namespace::parse_sought(ns)?;
            create(shard, &ns, &command).await
        }
        Some((name, _)) => check_own_cluster(name),
        None => Err(Error::internal("a command has a name")),
    }
}

/// Writes the chunks of a collection, and then its document. An attempt that was given up may have
/// written some of them.
async fn create(shard: &Membership, ns: &Namespace, command: &RawDocument) -> Result<()> {
    let reader = CommandReader::new(CREATE, command)?;
    let new = NewCollection::new(ns, reader.doc("collection")?, chunks_in(&reader)?)?;
    let of = new.document().of;
    let filter = rawdoc! { "_id": ns.as_str() };
    let found = read_config(shard, ("config", "collections"), &filter, 1).await?;
    let found = found.first().map(|found| CollectionDocument::parse(found));
    match found.transpose()?.filter(|found| !found.is_dropped) {
        Some(found) if found.of.epoch == of.epoch => return Ok(()),
        Some(_) => {
            return Err(Error::new(
                ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                format!("another collection {ns} is sharded already"),
            ));
        }
        None => {}
    }
    note(shard, &new, "shardCollection.start").await;
    let own = rawdoc! { "q": { "ns": ns.as_str(), "lastmodEpoch": of.epoch }, "limit": 0 };
    write(shard, "delete", "chunks", "deletes", &[own]).await?;
    let chunks = chunk_documents(&new, ns);
    for batch in batches(&chunks) {
        write(shard, "insert", "chunks", "documents", batch).await?;
    }
    let entry = rawdoc! {
        "q": { "_id": ns.as_str() }, "u": collection_document(new.document()), "upsert": true,
    };
    write(shard, "update", "collections", "updates", &[entry]).await?;
    note(shard, &new, "shardCollection.end").await;
    Ok(())
}

/// Refuses to shard a namespace that an attempt of MongoDB's has left chunks of, as MongoDB 4.4
/// does. In clusters of Pinion none are left.
///
/// # Errors
/// `ManualInterventionRequired`; the config servers cannot be reached.
pub(crate) async fn check_no_chunks(shard: &Membership, ns: &Namespace) -> Result<()> {
    if form() == Form::Own {
        return Ok(());
    }
    let left = rawdoc! { "ns": ns.as_str() };
    let found = read_config(shard, ("config", "chunks"), &left, 1).await?;
    match found.is_empty() {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::MANUAL_INTERVENTION_REQUIRED,
            format!(
                "A previous attempt to shard collection {ns} failed after writing some initial chunks to config.chunks. \
                 Please manually delete the partially written chunks for collection {ns} from config.chunks"
            ),
        )),
    }
}

/// The chunks as MongoDB 4.4 names them: by namespace and epoch.
fn chunk_documents(new: &NewCollection, ns: &Namespace) -> Vec<RawDocumentBuf> {
    let documents = new.chunk_documents(new_object_id).map(|chunk| {
        let chunk = ChunkDocument {
            of: ChunkOf::Named {
                ns: ns.to_string(),
                epoch: new.document().of.epoch,
            },
            on_current_shard_since: None,
            ..chunk
        };
        chunk.to_bson()
    });
    documents.collect()
}

/// The document as MongoDB 4.4 has it: without a time, and with two fields more.
fn collection_document(new: &CollectionDocument) -> RawDocumentBuf {
    CollectionDocument {
        of: Incarnation {
            timestamp: Timestamp::MIN,
            ..new.of
        },
        other: rawdoc! { "dropped": false, "distributionMode": "sharded" },
        ..new.clone()
    }
    .to_bson()
}

async fn write(
    shard: &Membership,
    command: &str,
    collection: &str,
    field: &str,
    statements: &[RawDocumentBuf],
) -> Result<()> {
    let mut out = DocBuilder::new();
    out.append(command, collection).start_array(field);
    for statement in statements {
        out.push(&**statement);
    }
    out.end();
    out.append("$db", "config");
    change_config(shard, out.finish()).await.map(drop)
}

/// Writes into `config.changelog`. That it could not be noted does not undo it.
async fn note(shard: &Membership, new: &NewCollection, what: &str) {
    let ns = new.document().ns.as_str();
    let details = rawdoc! {
        "shardKey": new.document().key.clone(), "collection": ns,
        "uuid": Binary::from(new.uuid()), "numChunks": new.len() as i64,
    };
    let entry = changelog_entry(shard.shard(), "", what, ns, details);
    if let Err(error) = write(shard, "insert", "changelog", "documents", &[entry]).await {
        tracing::warn!(target: "SHARDING", id = 7_500_033u64, what, ns, error = %error, "A change of the cluster could not be noted");
    }
}
