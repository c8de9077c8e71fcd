//! Documents that the node keeps for itself: the configuration of its set, its last vote, what it
//! knows of its cluster.
//!
//! Their futures are in boxes: a function that polls an unboxed one compiles all that is behind it
//! again.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{Uuid, core_catalog, from_fatal, id_key, partition_of};
use pinion_command::row;
use pinion_merge::PART_BATCH_DOCUMENTS;
use pinion_query::Matcher;
use pinion_runtime::{LocalBoxFuture, yield_if_due};
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use crate::acquire::acquire_read;
use crate::read::{ReadRequest, open, read_newest};
use crate::write::{upsert, upsert_by_id};

const DATABASE: &str = "local";

fn context(command: &'static str) -> OpContext {
    OpContext::internal(0, row(command), DATABASE, pinion_runtime::now().as_nanos())
}

/// The document with this `_id` of a collection of `local`, if it is there.
///
/// # Errors
/// Those of a read.
pub fn read_local<'a>(
    collection: &'a str,
    id: &'a str,
) -> LocalBoxFuture<'a, Result<Option<RawDocumentBuf>>> {
    Box::pin(async move {
        let ns = Namespace::new(DATABASE, collection)?;
        read_by_id(ns, RawBsonRef::String(id)).await
    })
}

/// The document with this `_id` of any collection, if it is there.
///
/// # Errors
/// Those of a read.
pub fn document_by_id<'a>(
    ns: &'a str,
    id: RawBsonRef<'a>,
) -> LocalBoxFuture<'a, Result<Option<RawDocumentBuf>>> {
    Box::pin(async move { read_by_id(Namespace::parse(ns)?, id).await })
}

/// The newest version of the document with this `_id`, which a member may have applied and not be
/// able to show yet.
///
/// # Errors
/// Those of a read.
pub fn newest_by_id<'a>(
    ns: &'a str,
    id: &'a str,
) -> LocalBoxFuture<'a, Result<Option<RawDocumentBuf>>> {
    Box::pin(async move {
        let acquired = acquire_read(&context("find"), Namespace::parse(ns)?, None).await?;
        let Some(collection) = acquired.collection() else {
            return Ok(None);
        };
        let key = id_key(RawBsonRef::String(id));
        let partition = partition_of(collection, &key);
        let found = read_newest(collection.tree(), partition, key).await?;
        Ok(found.map(|found| pinion_catalog::stored_document(&found).to_owned()))
    })
}

/// The document with this `_id` of the collection with this UUID, whatever that is called, if both
/// are there.
///
/// # Errors
/// Those of a read.
pub fn document_of_uuid<'a>(
    uuid: Uuid,
    id: RawBsonRef<'a>,
) -> LocalBoxFuture<'a, Result<Option<RawDocumentBuf>>> {
    Box::pin(async move {
        let catalog = core_catalog().current();
        let ns = catalog.by_uuid(uuid).map(|found| found.ns.clone());
        match ns {
            Some(ns) => read_by_id(ns, id).await,
            None => Ok(None),
        }
    })
}

async fn read_by_id(ns: Namespace, id: RawBsonRef<'_>) -> Result<Option<RawDocumentBuf>> {
    let mut filter = DocBuilder::new();
    filter.append_raw("_id", id);
    read_one(ns, &filter.finish()).await
}

async fn read_one(ns: Namespace, filter: &RawDocument) -> Result<Option<RawDocumentBuf>> {
    let ctx = context("find");
    let acquired = acquire_read(&ctx, ns, None).await?;
    let Some(found) = acquired.collection() else {
        return Ok(None);
    };
    let request = ReadRequest::new(acquired.target(found), Matcher::parse(filter)?);
    let mut stream = open(&ctx, acquired.source(), request, 1).await?.stream;
    let document = stream.next_wanted(&ctx, 1).await?;
    Ok(document.map(|bytes| pinion_catalog::stored_document(&bytes).to_owned()))
}

/// Hands the documents of a collection that a filter selects to `take`, in any order.
///
/// # Errors
/// Those of a read, and of `take`.
pub fn each_document<'a>(
    ns: &'a str,
    filter: &'a RawDocument,
    take: &'a mut dyn FnMut(&RawDocument) -> Result<()>,
) -> LocalBoxFuture<'a, Result<()>> {
    Box::pin(async move {
        let ctx = context("find");
        let acquired = acquire_read(&ctx, Namespace::parse(ns)?, None).await?;
        let Some(found) = acquired.collection() else {
            return Ok(());
        };
        let request = ReadRequest::new(acquired.target(found), Matcher::parse(filter)?);
        let mut stream = open(&ctx, acquired.source(), request, PART_BATCH_DOCUMENTS)
            .await?
            .stream;
        while let Some(bytes) = stream.next_wanted(&ctx, PART_BATCH_DOCUMENTS).await? {
            take(pinion_catalog::stored_document(&bytes))?;
            yield_if_due().await;
        }
        Ok(())
    })
}

/// Any document of a collection of `local`.
///
/// # Errors
/// Those of a read.
pub fn any_local(collection: &str) -> LocalBoxFuture<'_, Result<Option<RawDocumentBuf>>> {
    Box::pin(async move {
        read_one(
            Namespace::new(DATABASE, collection)?,
            &RawDocumentBuf::new(),
        )
        .await
    })
}

/// Stores a document in a collection of `local`, in place of the one with its `_id`, and waits
/// until it is on the device.
///
/// # Errors
/// As [`write_local`].
pub fn put_local<'a>(
    collection: &'a str,
    document: &'a RawDocument,
) -> LocalBoxFuture<'a, Result<()>> {
    Box::pin(async move {
        let ns = Namespace::new(DATABASE, collection)?;
        let mut filter = DocBuilder::new();
        if let Some(id) = pinion_bson::get(document, "_id") {
            filter.append_raw("_id", id);
        }
        upsert(&context("update"), ns, filter.finish(), document).await?;
        storage().wait_unreplicated().await.map_err(from_fatal)
    })
}

/// Stores the document with this `_id`, in place of the one that is there, and waits until it is on
/// the device.
///
/// # Errors
/// Those of a write; then the old document or the new one is there.
pub fn write_local<'a>(
    collection: &'a str,
    id: &'a str,
    document: &'a RawDocument,
) -> LocalBoxFuture<'a, Result<()>> {
    Box::pin(async move {
        let ns = Namespace::new(DATABASE, collection)?;
        upsert_by_id(&context("update"), ns, id, document).await?;
        storage().wait_unreplicated().await.map_err(from_fatal)
    })
}
