//! `$collStats`

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DateTime, DocBuilder, RawBsonRef};
use pinion_catalog::Collection;
use pinion_service::latency::LatencyValues;
use pinion_service::metrics::{NamespaceValues, metrics};
use pinion_service::node_info::node_info;
use pinion_storage::TreeId;
use pinion_wire::idl::{FieldReader, Path, Types};
use pinion_wire::{Error, ErrorCode, Result};

use super::super::count::count_all;
use super::super::stats::{append_collection_stats, append_number};
use super::PipelineTarget;
use crate::acquire::AcquiredCollection;
use crate::tree_uses::tree_metrics;

/// The stage's parsed specification.
#[derive(Clone, Debug, Default)]
pub(in crate::commands) struct CollStats {
    /// With the histograms or without.
    latencies: Option<bool>,
    /// With the divisor of sizes.
    storage: Option<i64>,
    count: bool,
    executions: bool,
    operations: bool,
}

impl CollStats {
    pub(super) fn parse(spec: RawBsonRef<'_>, place: PipelineTarget<'_>) -> Result<CollStats> {
        let RawBsonRef::Document(spec) = spec else {
            return Err(Error::new(
                ErrorCode(5447000),
                format!(
                    "$collStats must take a nested object but found a {}",
                    pinion_bson::type_name(spec.element_type())
                ),
            ));
        };
        let reader = FieldReader::object(Path::root("$collStats"), spec)?;
        let mut stage = CollStats::default();
        if let Some(options) = reader.opt_object("latencyStats")? {
            stage.latencies = Some(not_null_bool(&options, "histograms")?);
            options.finish()?;
        }
        if let Some(options) = reader.opt_object("storageStats")? {
            stage.storage = Some(options.opt_at_least("scale", 1)?.unwrap_or(1));
            for option in ["verbose", "waitForLock", "numericOnly"] {
                not_null_bool(&options, option)?;
            }
            options.finish()?;
        }
        stage.count = reader.opt_doc("count")?.is_some();
        stage.executions = reader.opt_doc("queryExecStats")?.is_some();
        stage.operations = reader.opt_doc("operationStats")?.is_some();
        not_null_bool(&reader, "targetAllNodes")?;
        reader.finish()?;
        place.needs_collection("$collStats")?;
        Ok(stage)
    }

    /// The one document that the stage makes.
    pub(super) async fn document(&self, acquired: &AcquiredCollection) -> Result<Bytes> {
        let ns = acquired.ns();
        let mut out = DocBuilder::new();
        let now = RawBsonRef::DateTime(DateTime::from_millis(pinion_runtime::wall_ms()));
        out.append("ns", ns.as_str())
            .append("host", node_info().options.host.as_str())
            .append("localTime", now);
        if self.latencies.is_some() || self.operations {
            let used = used(ns.as_str()).await;
            if let Some(histograms) = self.latencies {
                append_latencies(&mut out, &used, histograms);
            }
            if self.operations {
                out.start_document("operationStats");
                used.top.append(&mut out);
                out.end();
            }
        }
        if let Some(scale) = self.storage {
            existing(acquired, "storageStats")?;
            let mut stats = DocBuilder::new();
            append_collection_stats(&mut stats, acquired, scale).await;
            let stats = stats.finish();
            out.start_document("storageStats");
            for elem in pinion_bson::raw_elements(&stats).filter(|elem| elem.name != b"ns") {
                out.append_elem(&elem);
            }
            out.end();
        }
        if self.count {
            let count = count_all(existing(acquired, "count")?).await?;
            append_number(&mut out, "count", count as i64);
        }
        if self.executions {
            let (scans, tailing) = scans(existing(acquired, "queryExecStats")?.tree()).await;
            out.start_document("queryExecStats")
                .start_document("collectionScans");
            out.append("total", scans as i64)
                .append("nonTailable", (scans - tailing) as i64);
            out.end().end();
        }
        Ok(Bytes::from(out.finish_bytes()))
    }
}

/// A flag that is false unless it is given; what has a default may not be null.
fn not_null_bool(reader: &FieldReader<'_, '_>, name: &str) -> Result<bool> {
    match reader.value(name) {
        None => Ok(false),
        Some(RawBsonRef::Boolean(value)) => Ok(value),
        Some(other) => Err(reader.wrong_type(name, other, Types::BOOL)),
    }
}

/// The collection, which must exist for this option.
fn existing<'a>(acquired: &'a AcquiredCollection, option: &str) -> Result<&'a Collection> {
    let collection = acquired.collection().map(|collection| &**collection);
    collection.ok_or_else(|| {
        Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!(
                "Unable to retrieve {option} in $collStats stage :: caused by :: Collection [{}] not found.",
                acquired.ns()
            ),
        )
    })
}

/// How a namespace was used, on all cores.
async fn used(ns: &str) -> NamespaceValues {
    let ns: Arc<str> = ns.into();
    let parts = pinion_runtime::on_all_cores(move |_| {
        let ns = ns.clone();
        async move { metrics().of_namespace(&ns) }
    })
    .await;
    let mut sum = NamespaceValues::default();
    for part in &parts {
        sum.add(part);
    }
    sum
}

/// How often a collection was scanned, and how many of the scans tail it, on all cores.
async fn scans(tree: TreeId) -> (u64, u64) {
    let parts =
        pinion_runtime::on_all_cores(move |_| async move { tree_metrics().scans(tree) }).await;
    let sum = |sum: (u64, u64), part: &(u64, u64)| (sum.0 + part.0, sum.1 + part.1);
    parts.iter().fold((0, 0), sum)
}

fn append_latencies(out: &mut DocBuilder, used: &NamespaceValues, histograms: bool) {
    let none = LatencyValues::default();
    let [reads, writes, commands] = &used.latencies;
    out.start_document("latencyStats");
    for (name, latency) in [
        ("reads", reads),
        ("writes", writes),
        ("commands", commands),
        // A transaction is of no one collection.
        ("transactions", &none),
    ] {
        out.start_document(name);
        latency.append(out, histograms);
        out.append("queryableEncryptionLatencyMicros", 0i64).end();
    }
    out.end();
}
