//! `dbStats`, `collStats`, `$indexStats`.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocument};
use pinion_catalog::{Collection, core_catalog, series_index};
use pinion_query::TimeSeries;
use pinion_service::node_info::node_info;
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{Invocation, Reply, Result};

use crate::acquire::{AcquiredCollection, acquire_stored};
use crate::options::node_options;
use crate::stats::{CollectionSizes, sizes_of};
use crate::tree_uses::tree_metrics;
use crate::write::{SeriesCounts, series_counts};

fn scale_of(reader: &pinion_wire::idl::CommandReader<'_>) -> Result<i64> {
    Ok(reader.opt_at_least("scale", 1)?.unwrap_or(1))
}

/// `dbStats`.
pub(crate) async fn db_stats(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    // The command's own value has no meaning.
    reader.ignore(&[cmd.message.command_name()]);
    let scale = scale_of(&reader)?;
    let free = reader.opt_safe_bool("freeStorage")?.unwrap_or(false);
    reader.finish()?;
    let catalog = core_catalog().current();
    let collections: Vec<Arc<Collection>> = catalog.collections_of(cmd.db()).cloned().collect();
    let sizes = sizes_of(&collections).await;
    let records: u64 = sizes.iter().map(|size| size.records).sum();
    let data: u64 = sizes.iter().map(|size| size.data_bytes).sum();
    let stored: u64 = sizes.iter().map(|size| size.storage_bytes).sum();
    let indexes: u64 = sizes.iter().map(CollectionSizes::index_bytes).sum();
    let free_bytes: u64 = sizes.iter().map(|size| size.free_bytes).sum();
    let index_free_bytes: u64 = sizes.iter().map(|size| size.index_free_bytes).sum();
    let index_count: usize = sizes.iter().map(|size| size.indexes.len()).sum();
    let scaled = |bytes: u64| bytes as f64 / scale as f64;
    let mut out = Reply::new();
    out.append("db", cmd.db())
        .append("collections", collections.len() as i64)
        .append("views", catalog.views_of(cmd.db()).count() as i64)
        .append("objects", records as i64)
        .append(
            "avgObjSize",
            if records == 0 {
                0.0
            } else {
                data as f64 / records as f64
            },
        )
        .append("dataSize", scaled(data))
        .append("storageSize", scaled(stored));
    if free {
        out.append("freeStorageSize", scaled(free_bytes));
    }
    out.append("indexes", index_count as i64)
        .append("indexSize", scaled(indexes));
    if free {
        out.append("indexFreeStorageSize", scaled(index_free_bytes));
    }
    out.append("totalSize", scaled(stored + indexes));
    if free {
        out.append(
            "totalFreeStorageSize",
            scaled(free_bytes + index_free_bytes),
        );
    }
    out.append("scaleFactor", scale);
    let dir = &node_options().db_path;
    if let Ok(disk) = pinion_runtime::fs::space(dir).await {
        let used = disk.total_bytes.saturating_sub(disk.free_bytes);
        out.append("fsUsedSize", scaled(used))
            .append("fsTotalSize", scaled(disk.total_bytes));
    }
    Ok(out)
}

/// `collStats`.
pub(crate) async fn coll_stats(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.sought(cmd.message.command_name(), cmd.db())?;
    let scale = scale_of(&reader)?;
    reader.finish()?;
    let mut out = Reply::new();
    let acquired = acquire_stored(&cmd.ctx, ns, None).await?;
    append_collection_stats(&mut out, &acquired, scale).await;
    Ok(out)
}

/// Appends what `collStats` and `$collStats: {storageStats: {}}` report.
pub async fn append_collection_stats(
    out: &mut DocBuilder,
    acquired: &AcquiredCollection,
    scale: i64,
) {
    // A scale is a 32-bit number; a greater one is as great as those get.
    let scale = scale.min(i64::from(i32::MAX));
    let Some(collection) = acquired.collection() else {
        out.append("ns", acquired.ns().as_str())
            .append("size", 0i32)
            .append("count", 0i32);
        out.append("numOrphanDocs", 0i32)
            .append("storageSize", 0i32)
            .append("totalSize", 0i32)
            .append("nindexes", 0i32);
        out.append("totalIndexSize", 0i32)
            .start_document("indexDetails")
            .end()
            .start_document("indexSizes")
            .end();
        out.append("scaleFactor", scale as i32);
        return;
    };
    let size = sizes_of(std::slice::from_ref(collection))
        .await
        .pop()
        .expect("one collection has one size");
    let series = match acquired.series() {
        Some(_) => Some(series_counts(collection.tree()).await),
        None => None,
    };
    append_storage_stats(out, (acquired.ns(), series), collection, &size, scale);
}

fn append_storage_stats(
    out: &mut DocBuilder,
    (ns, series): (&Namespace, Option<SeriesCounts>),
    collection: &Collection,
    size: &CollectionSizes,
    scale: i64,
) {
    let scaled = |bytes: u64| (bytes as i64) / scale;
    out.append("ns", ns.as_str());
    append_number(out, "size", scaled(size.data_bytes));
    let average = size.data_bytes.checked_div(size.records);
    let (count_name, average_name) = match series {
        Some(_) => ("bucketCount", "avgBucketSize"),
        None => ("count", "avgObjSize"),
    };
    if series.is_some() {
        out.start_document("timeseries")
            .append("bucketsNs", collection.ns.as_str());
    }
    append_number(out, count_name, size.records as i64);
    if let Some(average) = average {
        append_number(out, average_name, average as i64);
    }
    if let Some(counts) = series {
        counts.append(out);
        out.end();
    }
    out.append("numOrphanDocs", 0i32);
    append_number(out, "storageSize", scaled(size.storage_bytes));
    append_number(out, "freeStorageSize", scaled(size.free_bytes));
    out.append("capped", collection.options.capped.is_some());
    if let Some(capped) = &collection.options.capped {
        append_number(out, "max", capped.max_documents.unwrap_or(0));
        append_number(out, "maxSize", capped.size_bytes / scale);
    }
    out.append("nindexes", size.indexes.len() as i32);
    out.start_document("indexDetails");
    for (name, _) in &size.indexes {
        out.start_document(name).end();
    }
    out.end().start_array("indexBuilds");
    let building = |index: &&Arc<pinion_catalog::Index>| index.building.is_some();
    for index in collection.indexes.iter().filter(building) {
        out.push(index.name());
    }
    out.end();
    append_number(out, "totalIndexSize", scaled(size.index_bytes()));
    append_number(
        out,
        "totalSize",
        scaled(size.storage_bytes + size.index_bytes()),
    );
    out.start_document("indexSizes");
    for (name, bytes) in &size.indexes {
        append_number(out, name, scaled(*bytes));
    }
    out.end().append("scaleFactor", scale as i32);
}

/// Appends a number of a statistic, which is as small a kind of number as it fits.
pub(super) fn append_number(out: &mut DocBuilder, name: &str, value: i64) {
    match i32::try_from(value) {
        Ok(value) => out.append(name, value),
        Err(_) => out.append(name, value),
    };
}

/// What `$indexStats` gives: one document for each index.
pub(super) async fn index_stats(
    collection: &Collection,
    series: Option<&TimeSeries>,
) -> Vec<Bytes> {
    let id_index = collection
        .tree_is_id_index()
        .then(|| collection.options.id_index());
    // Where the collection's tree is no index, it is not counted as one.
    let not_counted = usize::from(id_index.is_none());
    let trees: Vec<TreeId> = collection.trees().skip(not_counted).collect();
    let counts = pinion_runtime::on_all_cores({
        let trees: Arc<[TreeId]> = trees.into();
        move |_| {
            let trees = trees.clone();
            async move { tree_metrics().of_indexes(&trees) }
        }
    })
    .await;
    let of_id = id_index
        .as_deref()
        .map(|listed| (listed, collection.made_ms, false));
    let others = (collection.indexes.iter())
        .map(|index| (&*index.listed, index.made_ms, index.building.is_some()));
    let mut documents = Vec::new();
    for (place, (listed, made_ms, is_building)) in of_id.into_iter().chain(others).enumerate() {
        let seen = match series {
            None => Some(RawDocument::to_owned(listed)),
            Some(series) => series_index(series, listed),
        };
        let Some(listed) = seen else {
            continue;
        };
        let ops: u64 = counts.iter().map(|core| core[place]).sum();
        let since_ms = made_ms.unwrap_or(node_info().started_wall_ms);
        let mut out = DocBuilder::new();
        for field in ["name", "key"] {
            let value = pinion_bson::get(&listed, field);
            out.append(field, value.expect("a specification has name and key"));
        }
        out.append("host", node_info().options.host.as_str());
        out.start_document("accesses")
            .append("ops", ops as i64)
            .append(
                "since",
                RawBsonRef::DateTime(DateTime::from_millis(since_ms)),
            )
            .end();
        out.append("spec", &*listed);
        if is_building {
            out.append("building", true);
        }
        documents.push(Bytes::from(out.finish_bytes()));
    }
    documents
}
