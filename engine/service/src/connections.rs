//! The connections of a process to others, as `connPoolStats` shows them.

use std::collections::BTreeMap;

use pinion_bson::DocBuilder;

/// The connections of one core to a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostConnections {
    pub host: String,
    pub in_use: u64,
    /// Kept to be used again.
    pub available: u64,
    /// Being made.
    pub refreshing: u64,
    /// Ever made.
    pub created: u64,
}

/// Connections that are shown together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionPool {
    /// As MongoDB names it.
    pub name: String,
    /// A host may be there several times.
    pub connections: Vec<HostConnections>,
}

/// In the order of the fields: in use, available, created, refreshing.
type Counts = [u64; 4];

const TOTALS: [&str; 4] = [
    "totalInUse",
    "totalAvailable",
    "totalCreated",
    "totalRefreshing",
];
const OF_POOL: [&str; 4] = [
    "poolInUse",
    "poolAvailable",
    "poolCreated",
    "poolRefreshing",
];
const OF_HOST: [&str; 4] = ["inUse", "available", "created", "refreshing"];

fn counts(of: &HostConnections) -> Counts {
    [of.in_use, of.available, of.created, of.refreshing]
}

/// By host, and of all.
fn sums<'c>(
    connections: impl Iterator<Item = &'c HostConnections>,
) -> (BTreeMap<&'c str, Counts>, Counts) {
    let mut hosts: BTreeMap<&str, Counts> = BTreeMap::new();
    let mut total = Counts::default();
    for of in connections {
        let of_host = hosts.entry(of.host.as_str()).or_default();
        for sums in [of_host, &mut total] {
            let pairs = sums.iter_mut().zip(counts(of));
            pairs.for_each(|(sum, count)| *sum += count);
        }
    }
    (hosts, total)
}

/// Appends the connections of a process. A pool without any has no field.
pub fn append_connections(out: &mut DocBuilder, pools: &[ConnectionPool]) {
    // Connections of a kind that only MongoDB's old shell had.
    out.append("numClientConnections", 0i32)
        .append("numAScopedConnections", 0i32);
    let all = pools.iter().flat_map(|pool| &pool.connections);
    let (hosts, total) = sums(all);
    append_counts(out, TOTALS, total);
    out.start_document("pools");
    for pool in pools.iter().filter(|pool| !pool.connections.is_empty()) {
        let (hosts, total) = sums(pool.connections.iter());
        out.start_document(&pool.name);
        append_counts(out, OF_POOL, total);
        append_hosts(out, &hosts);
        out.end();
    }
    out.end().start_document("hosts");
    append_hosts(out, &hosts);
    out.end();
}

fn append_hosts(out: &mut DocBuilder, hosts: &BTreeMap<&str, Counts>) {
    for (host, counts) in hosts {
        out.start_document(host);
        append_counts(out, OF_HOST, *counts);
        out.end();
    }
}

/// Integers of 32 bits where they have room in those, as MongoDB has it.
fn append_counts(out: &mut DocBuilder, names: [&str; 4], counts: Counts) {
    for (name, count) in names.into_iter().zip(counts) {
        match i32::try_from(count) {
            Ok(count) => out.append(name, count),
            Err(_) => out.append(name, count as i64),
        };
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::*;

    fn to(host: &str, in_use: u64, created: u64) -> HostConnections {
        HostConnections {
            host: host.to_owned(),
            in_use,
            available: 1,
            refreshing: 0,
            created,
        }
    }

    fn check(pools: Vec<Vec<HostConnections>>, expected: &RawDocumentBuf) {
        let named = pools.into_iter().enumerate();
        let pools: Vec<ConnectionPool> = named
            .map(|(at, connections)| ConnectionPool {
                name: format!("p{at}"),
                connections,
            })
            .collect();
        let mut out = DocBuilder::new();
        append_connections(&mut out, &pools);
        assert_eq!(&out.finish(), expected);
    }

    #[test]
    fn connections_are_shown_by_pool_and_by_host() {
        let nothing = rawdoc! {
            "numClientConnections": 0, "numAScopedConnections": 0,
            "totalInUse": 0, "totalAvailable": 0, "totalCreated": 0, "totalRefreshing": 0,
            "pools": {}, "hosts": {},
        };
        check(vec![], &nothing);
        check(vec![vec![]], &nothing);
        let large = u64::from(u32::MAX);
        let counts = |in_use: i32, available: i32, created: i32| {
            rawdoc! {
                "inUse": in_use, "available": available, "created": created, "refreshing": 0,
            }
        };
        let expected = rawdoc! {
            "numClientConnections": 0, "numAScopedConnections": 0,
            "totalInUse": 7, "totalAvailable": 3,
            "totalCreated": i64::from(u32::MAX) + 5, "totalRefreshing": 0,
            "pools": {
                "p0": {
                    "poolInUse": 3, "poolAvailable": 2, "poolCreated": 5, "poolRefreshing": 0,
                    "a:1": counts(1, 1, 2), "b:1": counts(2, 1, 3),
                },
                "p2": {
                    "poolInUse": 4, "poolAvailable": 1,
                    "poolCreated": i64::from(u32::MAX), "poolRefreshing": 0,
                    "b:1": {
                        "inUse": 4, "available": 1,
                        "created": i64::from(u32::MAX), "refreshing": 0,
                    },
                },
            },
            "hosts": {
                "a:1": counts(1, 1, 2),
                "b:1": {
                    "inUse": 6, "available": 2,
                    "created": i64::from(u32::MAX) + 3, "refreshing": 0,
                },
            },
        };
        let first = vec![to("b:1", 2, 3), to("a:1", 1, 2)];
        check(vec![first, vec![], vec![to("b:1", 4, large)]], &expected);
    }
}
