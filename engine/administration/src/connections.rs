//! `connPoolStats`: the connections of this node to the other members of its set.

use std::collections::BTreeMap;

use pinion_bson::DocBuilder;
use pinion_exec::topology::{HostConnections, replica_set};
use pinion_wire::{Invocation, Reply, Result};

/// The pool that members' connections are of, as MongoDB names it.
const POOL: &str = "NetworkInterfaceTL-ReplNetwork";

/// `connPoolStats`.
pub(crate) async fn conn_pool_stats(_: Invocation) -> Result<Reply> {
    // Nothing is read of it, and MongoDB passes over fields that it does not know.
    let connections = match replica_set() {
        Some(set) => set.connections().await,
        None => Vec::new(),
    };
    let mut hosts: BTreeMap<&str, HostConnections> = BTreeMap::new();
    let mut total = HostConnections::default();
    for of in &connections {
        let sum = hosts.entry(of.host.as_str()).or_default();
        for sum in [sum, &mut total] {
            sum.in_use += of.in_use;
            sum.available += of.available;
            sum.refreshing += of.refreshing;
            sum.created += of.created;
        }
    }
    let mut out = Reply::new();
    // Connections to standalones and shards, which MongoDB keeps for its routers.
    out.append("numClientConnections", 0i32)
        .append("numAScopedConnections", 0i32);
    append_counts(
        &mut out,
        [
            "totalInUse",
            "totalAvailable",
            "totalCreated",
            "totalRefreshing",
        ],
        &total,
    );
    out.start_document("pools");
    if !hosts.is_empty() {
        out.start_document(POOL);
        let names = [
            "poolInUse",
            "poolAvailable",
            "poolCreated",
            "poolRefreshing",
        ];
        append_counts(&mut out, names, &total);
        append_hosts(&mut out, &hosts);
        out.end();
    }
    out.end().start_document("hosts");
    append_hosts(&mut out, &hosts);
    out.end();
    Ok(out)
}

fn append_hosts(out: &mut DocBuilder, hosts: &BTreeMap<&str, HostConnections>) {
    for (host, connections) in hosts {
        out.start_document(host);
        let names = ["inUse", "available", "created", "refreshing"];
        append_counts(out, names, connections);
        out.end();
    }
}

fn append_counts(out: &mut DocBuilder, names: [&str; 4], connections: &HostConnections) {
    let [in_use, available, created, refreshing] = names;
    out.append(in_use, connections.in_use as i32)
        .append(available, connections.available as i32)
        .append(created, connections.created as i32)
        .append(refreshing, connections.refreshing as i32);
}
