//! Commands to other nodes of the cluster: the clocks of both sides go with them.

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, get, rawdoc};
use pinion_clock::{Gossip, SignedTime, Timestamp};
use pinion_exec::cluster_time::{append_node_times, take_in};
use pinion_runtime::Duration;
use pinion_server::Resend;
use pinion_sharding_protocol::{ConnectionString, Form};
use pinion_sharding_router::{Hosts, Retry};
use pinion_storage::storage;
use pinion_wire::idl::{FieldReader, Namespace, Path, ReadPreference, append_cluster_time};
use pinion_wire::{Error, HostPort, Result};

use crate::limits::{LOCAL_COMMAND, REMOTE_COMMAND};
use crate::part::{Membership, form, part};
use crate::{replies, times};

/// The same command with what this node knows of the cluster's clock.
fn with_times(command: &RawDocument) -> RawDocumentBuf {
    let time = storage().vector_time();
    let mut out = DocBuilder::new();
    out.append_all(command);
    append_cluster_time(&mut out, &SignedTime::unsigned(time.cluster()));
    if form() == Form::Own {
        append_node_times(&time, &mut out);
    }
    out.finish()
}

/// The times that another node has put behind its reply.
fn times_of(reply: &RawDocument) -> Result<Gossip> {
    let reader = FieldReader::object(Path::root("reply"), reply)?;
    let cluster = match get(reply, "$clusterTime") {
        Some(RawBsonRef::Document(signed)) => {
            let path = reader.path().field("$clusterTime");
            FieldReader::object(path, signed)?.opt_timestamp("clusterTime")?
        }
        _ => None,
    };
    Ok(Gossip {
        cluster,
        config: reader.opt_timestamp("$configTime")?,
        topology: reader.opt_timestamp("$topologyTime")?,
    })
}

/// Whether a set is that of the config servers.
fn is_config(set: &ConnectionString) -> bool {
    let cluster = part().membership();
    cluster.is_some_and(|cluster| cluster.config_servers.set == set.set)
}

/// Takes in the times of a reply. Config servers of MongoDB 4.4 say what a majority of them has.
fn learn(reply: &RawDocument, is_of_config: bool) {
    let committed = match get(reply, "lastCommittedOpTime") {
        Some(RawBsonRef::Timestamp(time)) if is_of_config && form() == Form::Mongo44 => {
            Some(Timestamp::new(time.time, time.increment))
        }
        _ => None,
    };
    let found = times_of(reply).map(|gossip| Gossip {
        config: gossip.config.max(committed),
        ..gossip
    });
    if let Err(error) = found.and_then(take_in) {
        tracing::warn!(target: "SHARDING", id = 7_500_001u64, error = error.message, "The times of another node of the cluster were not taken in");
    }
}

/// Runs a command, which may be executed twice, on the primary of a set of the cluster.
///
/// # Errors
/// The string names no set; the set has no primary that answers; those of the command and of its
/// write concern.
pub(crate) async fn run_on_set(
    set: &ConnectionString,
    command: &RawDocument,
    limit: Duration,
) -> Result<RawDocumentBuf> {
    let (_, reply) = run_on_primary_of(set, command, limit).await?;
    Ok(reply)
}

/// The same with the member that has answered.
pub(crate) async fn run_on_primary_of(
    set: &ConnectionString,
    command: &RawDocument,
    limit: Duration,
) -> Result<(HostPort, RawDocumentBuf)> {
    if set.set.is_empty() {
        let message = format!("the connection string {set} names no replica set");
        return Err(Error::failed_to_parse(message));
    }
    let hosts = Hosts::here();
    hosts.watch(set).await;
    let command = with_times(command);
    let preference = ReadPreference::default();
    let ran = hosts.run(&set.set, &preference, &command, limit, Retry::Idempotent);
    let (host, reply) = ran.await.map_err(replies::with_own_fields)?;
    learn(reply.body(), is_config(set));
    replies::check(reply.body())?;
    Ok((host, reply.body().to_owned()))
}

/// Runs a command, which may be executed twice, on a node that may be none of the cluster yet.
///
/// # Errors
/// As of [`run_on_set`].
pub(crate) async fn run_on_host(host: &HostPort, command: &RawDocument) -> Result<RawDocumentBuf> {
    let hosts = Hosts::here();
    let command = with_times(command);
    let resend = Resend::OverNewConnection;
    let ran = hosts.pool().run(host, &command, REMOTE_COMMAND, resend);
    let reply = ran.await.map_err(|error| error.into_error());
    let reply = reply.map_err(replies::with_own_fields)?;
    learn(reply.body(), false);
    replies::check(reply.body())?;
    Ok(reply.body().to_owned())
}

/// Documents of the config servers that a majority has, and none older than this node has heard of:
/// nor will any be that is read after a restart.
///
/// # Errors
/// The config servers cannot be reached; those of a write of the times.
pub(crate) async fn read_config(
    cluster: &Membership,
    place: (&str, &str),
    filter: &RawDocument,
    limit: i32,
) -> Result<Vec<RawDocumentBuf>> {
    read_config_sorted(cluster, place, filter, &RawDocumentBuf::new(), limit).await
}

/// The same in an order.
///
/// # Errors
/// Those of [`read_config`].
pub(crate) async fn read_config_sorted(
    cluster: &Membership,
    (db, collection): (&str, &str),
    filter: &RawDocument,
    sort: &RawDocument,
    limit: i32,
) -> Result<Vec<RawDocumentBuf>> {
    let mut command = DocBuilder::new();
    command
        .append("find", collection)
        .append("filter", filter)
        .append("sort", sort)
        .append("limit", limit)
        .append("batchSize", limit)
        .append("singleBatch", true)
        .append("maxTimeMS", REMOTE_COMMAND.as_millis() as i64);
    append_read_concern(&mut command, "majority");
    command.append("$db", db);
    let reply = run_on_set(&cluster.config_servers, &command.finish(), REMOTE_COMMAND).await?;
    times::keep().await?;
    replies::only_batch(&reply)
}

/// All such documents, however many replies they take: each of these in its time.
///
/// # Errors
/// As of [`read_config`]; `ExceededMemoryLimit` where the documents are too many.
pub(crate) async fn read_config_all(
    cluster: &Membership,
    ns: &str,
    filter: &RawDocument,
    sort: Option<&RawDocument>,
) -> Result<Vec<RawDocumentBuf>> {
    read_to_end(cluster, ns, filter, sort, "majority").await
}

/// All such documents in an order, as they were at one time.
///
/// # Errors
/// As of [`read_config_all`].
pub(crate) async fn read_config_at_once(
    cluster: &Membership,
    ns: &str,
    filter: &RawDocument,
    sort: &RawDocument,
) -> Result<Vec<RawDocumentBuf>> {
    read_to_end(cluster, ns, filter, Some(sort), "snapshot").await
}

async fn read_to_end(
    cluster: &Membership,
    ns: &str,
    filter: &RawDocument,
    sort: Option<&RawDocument>,
    level: &str,
) -> Result<Vec<RawDocumentBuf>> {
    let ns = Namespace::parse(ns)?;
    let mut command = DocBuilder::new();
    command
        .append("find", ns.collection())
        .append("filter", filter);
    if let Some(sort) = sort {
        command.append("sort", sort);
    }
    append_read_concern(&mut command, level);
    command.append("$db", ns.db());
    let set = &cluster.config_servers;
    let (host, reply) = run_on_primary_of(set, &command.finish(), REMOTE_COMMAND).await?;
    let learn = |reply: &RawDocument| learn(reply, is_config(set));
    let found = Hosts::here()
        .read_to_end(&set.set, &host, &ns, &reply, REMOTE_COMMAND, learn)
        .await?;
    times::keep().await?;
    Ok(found)
}

/// The values that a field has in such documents.
///
/// # Errors
/// As of [`read_config`].
pub(crate) async fn distinct_of_config(
    cluster: &Membership,
    (db, collection): (&str, &str),
    field: &str,
    filter: &RawDocument,
) -> Result<Vec<RawBson>> {
    let mut command = DocBuilder::new();
    command
        .append("distinct", collection)
        .append("key", field)
        .append("query", filter);
    append_read_concern(&mut command, "majority");
    command.append("$db", db);
    let reply = run_on_set(&cluster.config_servers, &command.finish(), REMOTE_COMMAND).await?;
    times::keep().await?;
    match get(&reply, "values") {
        Some(RawBsonRef::Array(values)) => {
            Ok(pinion_bson::values(values).map(RawBson::from).collect())
        }
        _ => Err(Error::failed_to_parse("the reply has no values")),
    }
}

fn append_read_concern(command: &mut DocBuilder, level: &str) {
    command.start_document("readConcern");
    command.append("level", level);
    let config_time = storage().vector_time().config();
    if !config_time.is_null() {
        command.append("afterClusterTime", bson_timestamp(config_time));
    }
    command.end();
}

/// A command of the config servers that changes the catalog: a majority has it when this returns.
///
/// # Errors
/// As of [`run_on_set`].
pub(crate) async fn change_config(
    cluster: &Membership,
    command: RawDocumentBuf,
) -> Result<RawDocumentBuf> {
    change_config_within(cluster, command, REMOTE_COMMAND).await
}

/// The same of a change that may take longer.
///
/// # Errors
/// As of [`run_on_set`].
pub(crate) async fn change_config_within(
    cluster: &Membership,
    command: RawDocumentBuf,
    limit: Duration,
) -> Result<RawDocumentBuf> {
    let command = with_majority(command);
    let reply = run_on_set(&cluster.config_servers, &command, limit).await?;
    times::keep().await?;
    Ok(reply)
}

/// The same command for another node, which is to wait until a majority of its set has what it
/// writes.
pub(crate) fn with_majority(command: RawDocumentBuf) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append_all(&command);
    let wait_ms = LOCAL_COMMAND.as_millis() as i64;
    out.start_document("writeConcern")
        .append("w", "majority")
        .append("wtimeout", wait_ms)
        .end();
    out.finish()
}

/// A time as BSON has it.
pub(crate) fn bson_timestamp(time: Timestamp) -> pinion_bson::Timestamp {
    pinion_bson::Timestamp {
        time: time.secs(),
        increment: time.inc(),
    }
}

/// `hello`, as any node answers it.
pub(crate) fn hello() -> RawDocumentBuf {
    rawdoc! { "hello": 1, "$db": "admin" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_replies() {
        let time = |secs| bson_timestamp(Timestamp::new(secs, 1));
        let reply = rawdoc! {
            "ok": 1, "$clusterTime": { "clusterTime": time(9), "signature": {} },
            "$configTime": time(8), "$topologyTime": time(7),
        };
        let found = times_of(&reply).expect("readable");
        let expected = Gossip {
            cluster: Some(Timestamp::new(9, 1)),
            config: Some(Timestamp::new(8, 1)),
            topology: Some(Timestamp::new(7, 1)),
        };
        assert_eq!(found, expected);
        assert_eq!(times_of(&rawdoc! { "ok": 1 }).ok(), Some(Gossip::default()));
        assert!(times_of(&rawdoc! { "$configTime": 1 }).is_err());
    }
}
