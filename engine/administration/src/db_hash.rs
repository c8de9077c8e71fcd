//! `dbHash` and `filemd5`: digests of collections, and of a file in GridFS.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use md5::{Digest, Md5};
use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf};
use pinion_catalog::{Collection, core_catalog};
use pinion_exec::acquire::{acquire_read, acquire_viewed};
use pinion_exec::commands::aggregate::stream_for;
use pinion_exec::commands::views::Rewritten;
use pinion_exec::read::{ReadRequest, open, parse_sort};
use pinion_query::{Hint, Matcher};
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::node_info::node_info;
use pinion_wire::idl::{Namespace, Types, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

/// A digest as text.
fn text(digest: Md5) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    for byte in digest.finalize() {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// `dbHash`.
pub(crate) async fn db_hash(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    if let Some(RawBsonRef::String("")) = reader.value(cmd.message.command_name()) {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            "Cannot pass empty string for 'dbHash' field",
        ));
    }
    let mut only = BTreeSet::new();
    // As in MongoDB, what is of another type asks for nothing, and fields that the command does not
    // know are passed over.
    if let Some(RawBsonRef::Array(names)) = reader.value("collections") {
        for name in pinion_bson::values(names) {
            let RawBsonRef::String(name) = name else {
                return Err(Error::bad_value("collections entries have to be strings"));
            };
            only.insert(name.to_owned());
        }
    }
    let skips_temporary = reader.value("skipTempCollections").is_some_and(truthy);
    reader.unsupported("$_internalReadAtClusterTime", Types::TIMESTAMP)?;
    let started = pinion_runtime::now();
    let catalog = core_catalog().current();
    let mut collections: Vec<Arc<Collection>> = catalog
        .collections_of(cmd.db())
        .filter(|found| is_hashed(found))
        .filter(|found| !(skips_temporary && found.options.temporary))
        .filter(|found| only.is_empty() || only.contains(found.ns.collection()))
        .cloned()
        .collect();
    collections.sort_by(|a, b| a.ns.cmp(&b.ns));
    let mut digests = BTreeMap::new();
    for collection in &collections {
        let digest = match collection.merged() {
            None => digest_of(&cmd.ctx, collection).await?,
            Some(_) => digest_of_merged(&cmd, collection).await?,
        };
        if let Some(digest) = digest {
            digests.insert(collection.ns.collection().to_owned(), digest);
        }
    }
    let mut out = Reply::new();
    append_digests(&mut out, &collections, &digests);
    out.append("timeMillis", started.elapsed().as_millis() as i64);
    Ok(out)
}

/// Whether a collection has documents that would be the same on every member of a replica set.
fn is_hashed(collection: &Collection) -> bool {
    let name = collection.ns.collection();
    let Some(of_the_system) = name.strip_prefix("system.") else {
        // What `mapReduce` works with belongs to the member that runs it.
        return !name.starts_with("tmp.mr.");
    };
    of_the_system.starts_with("buckets.")
        || matches!(
            of_the_system,
            "backup_users" | "js" | "new_users" | "roles" | "users" | "version" | "views"
        )
}

fn append_digests(
    out: &mut DocBuilder,
    collections: &[Arc<Collection>],
    digests: &BTreeMap<String, String>,
) {
    let hashed = || {
        let found =
            |collection: &&Arc<Collection>| digests.contains_key(collection.ns.collection());
        collections.iter().filter(found)
    };
    out.append("host", node_info().options.host.as_str());
    out.start_document("collections");
    let mut all = Md5::new();
    for (name, digest) in digests {
        out.append(name, digest.as_str());
        all.update(digest.as_bytes());
    }
    out.end();
    out.start_array("capped");
    for collection in hashed().filter(|found| found.options.capped.is_some()) {
        out.push(collection.ns.collection());
    }
    out.end().start_document("uuids");
    for collection in hashed() {
        out.append(collection.ns.collection(), collection.uuid.to_bson());
    }
    out.end().append("md5", text(all).as_str());
}

/// The digest of a collection's documents in the order of `_id`; none where it is gone by now.
async fn digest_of(ctx: &OpContext, collection: &Arc<Collection>) -> Result<Option<String>> {
    let acquired = acquire_read(ctx, collection.ns.clone(), None).await?;
    let Some(collection) = acquired.collection() else {
        return Ok(None);
    };
    let everything = RawDocumentBuf::new();
    let matcher = compute(ctx, || Matcher::parse(&everything)).await?;
    let mut request = ReadRequest::new(acquired.target(collection), matcher);
    request.sort = parse_sort(Some(&pinion_bson::rawdoc! { "_id": 1 }), None)?;
    request.keeps_snapshot = true;
    // The index on `_id`, whatever a clustered collection calls it.
    request.hint = Some(Hint::Pattern(pinion_bson::rawdoc! { "_id": 1 }));
    let mut stream = open(ctx, acquired.source(), request, usize::MAX)
        .await?
        .stream;
    let mut digest = Md5::new();
    while let Some(document) = stream.next_wanted(ctx, usize::MAX).await? {
        compute_bytes(document.len(), || digest.update(&document)).await;
        pinion_runtime::yield_if_due().await;
    }
    Ok(Some(text(digest)))
}

/// The digest of what readers see of scattered documents: that is the same on members with other
/// partitions, or copied from what another shows.
async fn digest_of_merged(
    cmd: &Invocation,
    collection: &Arc<Collection>,
) -> Result<Option<String>> {
    let acquired = acquire_viewed(&cmd.ctx, collection.ns.clone(), None).await?;
    let everything = Rewritten::new(&collection.ns).options(&RawDocumentBuf::new(), &[], None);
    let mut stream = Box::pin(stream_for(cmd, &everything, &acquired)).await?;
    let mut digest = Md5::new();
    while let Some(document) = stream.next(&cmd.ctx).await? {
        compute_bytes(document.len(), || digest.update(&document)).await;
        pinion_runtime::yield_if_due().await;
    }
    Ok(Some(text(digest)))
}

/// `filemd5`: the digest of a file that GridFS keeps in chunks.
pub(crate) async fn file_md5(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let id = reader
        .value("filemd5")
        .ok_or_else(|| pinion_wire::idl::missing_field(reader.path().field("filemd5")))?;
    let root = reader.opt_str("root")?.unwrap_or("fs");
    let partial = reader.opt_safe_bool("partialOk")?.unwrap_or(false);
    reader.unsupported("md5state", Types::BIN_DATA)?;
    reader.finish()?;
    if partial {
        return Err(Error::new(
            ErrorCode::NOT_IMPLEMENTED,
            "BSON field 'filemd5.partialOk' is not supported by this server",
        ));
    }
    let ns = Namespace::new(cmd.db(), &format!("{root}.chunks"))?;
    let acquired = acquire_read(&cmd.ctx, ns, None).await?;
    let (mut digest, mut chunks) = (Md5::new(), 0i32);
    if let Some(collection) = acquired.collection() {
        let mut filter = DocBuilder::new();
        filter.start_document("files_id").append("$eq", id).end();
        let filter = filter.finish();
        let matcher = compute(&cmd.ctx, || Matcher::parse(&filter)).await?;
        let mut request = ReadRequest::new(acquired.target(collection), matcher);
        request.sort = parse_sort(Some(&pinion_bson::rawdoc! { "files_id": 1, "n": 1 }), None)?;
        request.hint = Some(Hint::Pattern(
            pinion_bson::rawdoc! { "files_id": 1, "n": 1 },
        ));
        let opened = open(&cmd.ctx, acquired.source(), request, usize::MAX).await;
        let mut stream = opened.map_err(no_index)?.stream;
        while let Some(chunk) = stream.next_wanted(&cmd.ctx, usize::MAX).await? {
            let chunk = pinion_catalog::stored_document(&chunk);
            let data = data_of(chunk, chunks)?;
            compute_bytes(data.len(), || digest.update(data)).await;
            chunks += 1;
            pinion_runtime::yield_if_due().await;
        }
    }
    let mut out = Reply::new();
    out.append("numChunks", chunks)
        .append("md5", text(digest).as_str());
    Ok(out)
}

/// Chunks are read by the index that drivers make for them.
fn no_index(error: Error) -> Error {
    if error.code != ErrorCode::BAD_VALUE {
        return error;
    }
    Error::new(
        ErrorCode::INDEX_NOT_FOUND,
        "filemd5 needs an index on {files_id: 1, n: 1} of the chunks",
    )
}

/// The bytes of a chunk, which must be the next one.
fn data_of(chunk: &pinion_bson::RawDocument, expected: i32) -> Result<&[u8]> {
    let number = pinion_bson::get(chunk, "n").and_then(pinion_wire::idl::i64_exact);
    if number != Some(i64::from(expected)) {
        return Err(Error::new(
            ErrorCode(10040),
            format!("chunks out of order: expected {expected}, found {number:?}"),
        ));
    }
    match pinion_bson::get(chunk, "data") {
        Some(RawBsonRef::Binary(data)) => Ok(data.bytes),
        _ => Err(Error::new(
            ErrorCode(50849),
            "The element that is the data of a chunk was not of type BinData",
        )),
    }
}
