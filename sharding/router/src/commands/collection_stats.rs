//! `collStats`, `dataSize`, `validate` and `dbStats`: the sums of the shards that have a part.

use std::collections::BTreeMap;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_sharding_protocol::{ShardId, Targets, has_fixed_placement};
use pinion_wire::idl::{Namespace, i64_exact, truthy};
use pinion_wire::{Invocation, Reply, Result};

use super::forward::shard_ids;
use super::reads::routed;
use super::shard_replies::{all_or_first_error, append_raw};
use crate::cluster::Cluster;
use crate::dispatch::{
    Answer, WhenAbsent, at_every_shard, at_primary, before_routing_again, check_is_of_cluster,
    may_route_again, named_collection,
};
use crate::gather::{Gathered, ask_shards, owners_of};
use crate::placement::table_of;
use crate::reply::{append_passed_on, passed_on, refused};
use crate::request::{Request, Versions};

/// Asks every shard that owns chunks; `None` where the collection is not sharded.
async fn at_owners(cmd: &Invocation, ns: &Namespace) -> Result<Option<Gathered>> {
    if table_of(ns, Targets::Unknown).await?.is_none() {
        return Ok(None);
    }
    ask_shards(cmd, ns, owners_of, |call| {
        Request::of(cmd, cmd.db(), Versions::of_shard(call.version))
    })
    .await
}

/// `collStats`: of an unsharded collection with the shard that has it.
pub(super) async fn coll_stats(cmd: Invocation) -> Result<Reply> {
    let sharded = async || {
        let Some(ns) = named_collection(&cmd, cmd.db()) else {
            return Ok(None);
        };
        let Some(gathered) = at_owners(&cmd, &ns).await? else {
            return Ok(None);
        };
        let answers = all_or_first_error(&gathered.outcomes)?;
        let parts: Vec<(&str, &RawDocument)> = answers
            .iter()
            .map(|answer| (answer.shard.as_str(), answer.body()))
            .collect();
        let mut out = Reply::new();
        append_sums(&mut out, ns.as_str(), &parts);
        Ok(Some(out))
    };
    let unsharded = |answer: &Answer| {
        let mut out = Reply::new();
        out.append("sharded", false);
        if Cluster::here().shards().get(&answer.shard).is_some() {
            out.append("primary", answer.shard.as_str());
        }
        append_passed_on(&mut out, answer.body(), |_| true);
        Ok(out)
    };
    routed(&cmd, WhenAbsent::Answer, sharded, unsharded).await
}

/// Fields of which the sum is that of the collection.
const SUMS: [&str; 7] = [
    "count",
    "size",
    "numOrphanDocs",
    "storageSize",
    "freeStorageSize",
    "totalIndexSize",
    "totalSize",
];

fn number(reply: &RawDocument, name: &str) -> i64 {
    pinion_bson::get(reply, name)
        .and_then(i64_exact)
        .unwrap_or(0)
}

/// Appends a number of a statistic, which is as small a kind of number as it fits.
fn append_number(out: &mut DocBuilder, name: &str, value: i64) {
    match i32::try_from(value) {
        Ok(value) => out.append(name, value),
        Err(_) => out.append(name, value),
    };
}

/// Appends the statistics of a collection of which each shard has a part.
fn append_sums(out: &mut DocBuilder, ns: &str, parts: &[(&str, &RawDocument)]) {
    let has = |name: &str| {
        parts
            .iter()
            .any(|(_, part)| pinion_bson::get(part, name).is_some())
    };
    let sum = |name: &str| {
        parts
            .iter()
            .map(|(_, part)| number(part, name))
            .sum::<i64>()
    };
    let most = |name: &str| parts.iter().map(|(_, part)| number(part, name)).max();
    let is_capped = |part: &RawDocument| pinion_bson::get(part, "capped").is_some_and(truthy);
    out.append("sharded", true);
    out.append("capped", parts.iter().any(|(_, part)| is_capped(part)));
    out.append("ns", ns);
    for name in SUMS {
        if has(name) {
            append_number(out, name, sum(name));
        }
    }
    let mut sizes: BTreeMap<&str, i64> = BTreeMap::new();
    for (_, part) in parts {
        let of_part = pinion_bson::get(part, "indexSizes").and_then(|sizes| sizes.as_document());
        for (name, bytes) in of_part.into_iter().flat_map(pinion_bson::elements) {
            *sizes.entry(name).or_default() += i64_exact(bytes).unwrap_or(0);
        }
    }
    out.start_document("indexSizes");
    for (name, bytes) in sizes {
        append_number(out, name, bytes);
    }
    out.end();
    append_series(out, parts);
    // Averages are not scaled, as sizes are.
    let weighed = |(_, part): &(&str, &RawDocument)| {
        number(part, "avgObjSize") as f64 * number(part, "count") as f64
    };
    let bytes: f64 = parts.iter().map(weighed).sum();
    let average = match sum("count") {
        0 => 0.0,
        count => bytes / count as f64,
    };
    out.append("avgObjSize", average);
    if has("maxSize") {
        append_number(out, "maxSize", most("maxSize").unwrap_or(0));
    }
    append_number(out, "nindexes", most("nindexes").unwrap_or(0));
    append_number(out, "scaleFactor", most("scaleFactor").unwrap_or(1).max(1));
    out.start_document("shards");
    for (shard, part) in parts {
        out.start_document(shard);
        append_passed_on(out, part, |_| true);
        out.append("ok", 1.0).end();
    }
    out.end();
}

/// Averages of a series, each with the number that it is one of and the sum, where that is there.
const SERIES_AVERAGES: [(&str, &str, Option<&str>); 2] = [
    ("avgBucketSize", "bucketCount", None),
    (
        "avgNumMeasurementsPerCommit",
        "numCommits",
        Some("numMeasurementsCommitted"),
    ),
];

/// Appends what is said of a series: the sums of all numbers but averages.
fn append_series(out: &mut DocBuilder, parts: &[(&str, &RawDocument)]) {
    let of_part = |(_, part): &(&str, &'_ RawDocument)| {
        Some(
            pinion_bson::get(part, "timeseries")?
                .as_document()?
                .to_owned(),
        )
    };
    let parts: Vec<_> = parts.iter().filter_map(of_part).collect();
    // One that has written nothing has no averages.
    let fullest = |part: &&RawDocumentBuf| pinion_bson::elements(part).count();
    let Some(first) = parts.iter().max_by_key(fullest) else {
        return;
    };
    let sum = |name: &str| parts.iter().map(|part| number(part, name)).sum::<i64>();
    out.start_document("timeseries");
    for (name, value) in pinion_bson::elements(first) {
        let average = SERIES_AVERAGES
            .iter()
            .find(|(average, ..)| *average == name);
        match (average, i64_exact(value)) {
            (None, Some(_)) => append_number(out, name, sum(name)),
            (None, None) => {
                out.append_raw(name, value);
            }
            (Some((_, count, total)), _) => {
                let weighed = |part: &RawDocumentBuf| number(part, name) * number(part, count);
                let total = total.map_or_else(|| parts.iter().map(weighed).sum(), sum);
                append_number(out, name, total / sum(count).max(1));
            }
        }
    }
    out.end();
}

/// `dataSize`, which names its collection in full.
pub(super) async fn data_size(cmd: Invocation) -> Result<Reply> {
    let name = pinion_bson::elements(cmd.body()).next();
    let name = name.and_then(|(_, name)| name.as_str()).unwrap_or_default();
    let ns = Namespace::parse_sought(name)?;
    for attempt in 0.. {
        if let Some(gathered) = at_owners(&cmd, &ns).await? {
            let answers = all_or_first_error(&gathered.outcomes)?;
            return Ok(data_sizes(&answers));
        }
        let answer = at_primary(&cmd, ns.db(), WhenAbsent::Answer, |versions| {
            Request::of(&cmd, cmd.db(), Versions::of_unsharded(versions.database))
        })
        .await;
        match answer {
            Ok(answer) => return Ok(passed_on(answer.body())),
            Err(error) if may_route_again(&cmd, &error, attempt) => {
                before_routing_again(&cmd, Some(&ns), &error, attempt).await?;
            }
            Err(error) => return Err(error),
        }
    }
    unreachable!("it returns at the last attempt")
}

fn data_sizes(answers: &[&Answer]) -> Reply {
    let sum = |name| {
        answers
            .iter()
            .map(|answer| number(answer.body(), name))
            .sum::<i64>()
    };
    let slowest = answers
        .iter()
        .map(|answer| number(answer.body(), "millis"))
        .max();
    let is_estimate =
        |answer: &&Answer| pinion_bson::get(answer.body(), "estimate").is_some_and(truthy);
    let mut out = Reply::new();
    out.append("estimate", answers.iter().any(is_estimate))
        .append("size", sum("size"))
        .append("numObjects", sum("numObjects"))
        .append("millis", slowest.unwrap_or(0));
    out
}

/// `validate`: valid where every shard's part is.
pub(super) async fn validate(cmd: Invocation) -> Result<Reply> {
    super::reads::check_uuid(&cmd).await?;
    let sharded = async || {
        let Some(ns) = named_collection(&cmd, cmd.db()) else {
            return Ok(None);
        };
        let Some(gathered) = at_owners(&cmd, &ns).await? else {
            return Ok(None);
        };
        let answers = all_or_first_error(&gathered.outcomes)?;
        let is_valid = |answer: &&Answer| {
            matches!(
                pinion_bson::get(answer.body(), "valid"),
                Some(RawBsonRef::Boolean(true))
            )
        };
        let mut out = Reply::new();
        out.append("valid", answers.iter().all(is_valid));
        out.start_document("raw");
        for answer in &answers {
            out.start_document(&answer.shard);
            append_passed_on(&mut out, answer.body(), |_| true);
            out.append("ok", 1.0).end();
        }
        out.end();
        Ok(Some(out))
    };
    routed(&cmd, WhenAbsent::Answer, sharded, |answer| {
        Ok(passed_on(answer.body()))
    })
    .await
}

/// `dbStats`: the sums of all shards.
pub(super) async fn db_stats(cmd: Invocation) -> Result<Reply> {
    check_is_of_cluster(cmd.db())?;
    let asked = match has_fixed_placement(cmd.db()) {
        true => vec![ShardId::new(ShardId::CONFIG)],
        false => shard_ids().await?,
    };
    let request = |_: &ShardId| Request::of(&cmd, cmd.db(), None);
    let outcomes = at_every_shard(&cmd, &asked, request).await?;
    let outcomes = outcomes.into_iter();
    let outcomes: Vec<_> = outcomes
        .map(|(shard, outcome)| (shard, outcome.map_err(refused)))
        .collect();
    let answers = all_or_first_error(&outcomes)?;
    let mut out = Reply::new();
    append_raw(&mut out, &outcomes);
    append_database(&mut out, cmd.db(), &answers);
    Ok(out)
}

/// The fields of a database's statistics that are sums, in their order, and whether they are whole
/// numbers.
const DATABASE_SUMS: [(&str, bool); 13] = [
    ("collections", true),
    ("views", true),
    ("objects", true),
    ("dataSize", false),
    ("storageSize", false),
    ("freeStorageSize", false),
    ("indexes", true),
    ("indexSize", false),
    ("indexFreeStorageSize", false),
    ("totalSize", false),
    ("totalFreeStorageSize", false),
    ("fsUsedSize", false),
    ("fsTotalSize", false),
];

fn append_database(out: &mut DocBuilder, db: &str, answers: &[&Answer]) {
    let value = |answer: &&Answer, name: &str| {
        let value = pinion_bson::get(answer.body(), name);
        value.and_then(pinion_wire::idl::f64_lossy)
    };
    let sum = |name: &str| {
        let values = answers.iter().map(|answer| value(answer, name));
        values.fold(None, |sum: Option<f64>, value| match (sum, value) {
            (None, value) => value,
            (sum, None) => sum,
            (Some(sum), Some(value)) => Some(sum + value),
        })
    };
    let objects = sum("objects").unwrap_or(0.0);
    // Averages are not scaled, as sizes are.
    let bytes = answers.iter().map(|answer| {
        value(answer, "avgObjSize").unwrap_or(0.0) * value(answer, "objects").unwrap_or(0.0)
    });
    let bytes: f64 = bytes.sum();
    out.append("db", db);
    for (name, is_whole) in DATABASE_SUMS {
        let Some(sum) = sum(name) else { continue };
        match is_whole {
            true => out.append(name, sum as i64),
            false => out.append(name, sum),
        };
        if name == "objects" {
            out.append(
                "avgObjSize",
                if objects > 0.0 { bytes / objects } else { 0.0 },
            );
        }
        if name == "totalSize" {
            let scale = answers
                .first()
                .map_or(1, |answer| number(answer.body(), "scaleFactor"));
            out.append("scaleFactor", scale.max(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn parts_of_a_collection_add_up() {
        let one = rawdoc! {
            "ns": "d.c", "count": 2, "size": 20, "avgObjSize": 10, "storageSize": 4096,
            "totalIndexSize": 100, "totalSize": 4196, "nindexes": 2, "capped": false,
            "indexSizes": { "_id_": 60, "a_1": 40 }, "scaleFactor": 1, "ok": 1.0,
        };
        let other = rawdoc! {
            "ns": "d.c", "count": 6, "size": 6_000_000_000_i64, "avgObjSize": 1_000_000_000,
            "storageSize": 8192, "totalIndexSize": 60, "totalSize": 8252, "nindexes": 1,
            "indexSizes": { "_id_": 60 }, "scaleFactor": 1, "ok": 1.0,
        };
        let empty = rawdoc! { "ns": "d.c", "count": 0, "size": 0, "ok": 1.0 };
        let mut out = DocBuilder::new();
        append_sums(
            &mut out,
            "d.c",
            &[("s0", &one), ("s1", &other), ("s2", &empty)],
        );
        let found = out.finish();
        let number = |name| pinion_bson::get(&found, name).and_then(i64_exact);
        assert_eq!(number("count"), Some(8));
        assert_eq!(number("size"), Some(6_000_000_020));
        assert_eq!(number("nindexes"), Some(2));
        assert_eq!(
            pinion_bson::get(&found, "indexSizes").and_then(|sizes| sizes.as_document()),
            Some(&*rawdoc! { "_id_": 120, "a_1": 40 })
        );
        assert_eq!(found.get_f64("avgObjSize").ok(), Some(750_000_002.5));
        assert_eq!(
            pinion_bson::get_path(&found, "shards.s1.count").and_then(i64_exact),
            Some(6)
        );
        let mut nothing = DocBuilder::new();
        append_sums(&mut nothing, "d.c", &[("s2", &empty)]);
        assert_eq!(nothing.finish().get_f64("avgObjSize").ok(), Some(0.0));
    }
}
