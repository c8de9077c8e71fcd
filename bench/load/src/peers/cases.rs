//! What is measured: each case one workload at one durability, against the servers that can do it.

use super::server::{Durability, Kind};

/// The rate of an open loop, as a share of what a server reached in the closed loop of another
/// case.
#[derive(Clone, Copy, Debug)]
pub struct RateOf {
    pub server: Kind,
    pub case: &'static str,
    pub share: f64,
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    /// Options of `run`.
    pub options: &'static [&'static str],
    pub connections: usize,
    pub durability: Durability,
    pub servers: &'static [Kind],
    pub rate: Option<RateOf>,
    /// Changes documents, so a checkpoint is taken behind it.
    pub writes: bool,
    /// Inserts into a table of its own, which is created again for each run, so that no run finds
    /// more than another.
    pub fresh: bool,
    /// Inserts into the table of all cases: a fast server more than a slow one, so what comes next
    /// begins with another load.
    pub grows: bool,
}

const ALL: &[Kind] = &[Kind::Pinion, Kind::MongoDb, Kind::Redis, Kind::Postgres];
const DOCUMENTS: &[Kind] = &[Kind::Pinion, Kind::MongoDb, Kind::Postgres];
const CONNECTIONS: usize = 64;
/// Of the case that asks whether many connections cost the others their time.
pub const MANY_CONNECTIONS: usize = 10_000;

const BASE: Case = Case {
    name: "",
    options: &[],
    connections: CONNECTIONS,
    durability: Durability::Default,
    servers: ALL,
    rate: None,
    writes: true,
    fresh: false,
    grows: false,
};

const fn ycsb(
    name: &'static str,
    options: &'static [&'static str],
    durability: Durability,
) -> Case {
    Case {
        name,
        options,
        durability,
        servers: DOCUMENTS,
        ..BASE
    }
}

const fn growing(case: Case) -> Case {
    Case {
        grows: true,
        ..case
    }
}

const fn open(name: &'static str, servers: &'static [Kind], rate: RateOf) -> Case {
    Case {
        name,
        options: &["--workload", "a"],
        servers,
        rate: Some(rate),
        ..BASE
    }
}

const fn half_read_rate(name: &'static str, connections: usize) -> Case {
    Case {
        name,
        options: &["--workload", "read"],
        connections,
        servers: &[Kind::Pinion, Kind::Echo],
        writes: false,
        rate: Some(RateOf {
            server: Kind::Pinion,
            case: "read",
            share: 0.5,
        }),
        ..BASE
    }
}

/// All cases in the order in which they run: what only reads goes before what leaves dirty pages
/// behind, and, as YCSB has it, what inserts behind what does not.
pub const CASES: &[Case] = &[
    Case {
        name: "read",
        options: &["--workload", "read"],
        servers: &[
            Kind::Pinion,
            Kind::MongoDb,
            Kind::Redis,
            Kind::Postgres,
            Kind::Echo,
        ],
        writes: false,
        ..BASE
    },
    Case {
        name: "read-pipeline-16",
        options: &["--workload", "read", "--pipeline", "16"],
        servers: &[Kind::Pinion, Kind::Redis],
        writes: false,
        ..BASE
    },
    half_read_rate("read-64-connections", CONNECTIONS),
    half_read_rate("read-10000-connections", MANY_CONNECTIONS),
    ycsb("c", &["--workload", "c"], Durability::Default),
    Case {
        name: "update",
        options: &["--workload", "update"],
        ..BASE
    },
    Case {
        name: "insert",
        options: &["--workload", "insert"],
        fresh: true,
        ..BASE
    },
    Case {
        name: "insert-journaled",
        options: &["--workload", "insert"],
        durability: Durability::Journaled,
        fresh: true,
        ..BASE
    },
    Case {
        name: "insert-journaled-1",
        // What is measured is the server, not how long the kernel takes to wake its client.
        options: &["--workload", "insert", "--busy-poll"],
        connections: 1,
        durability: Durability::Journaled,
        fresh: true,
        ..BASE
    },
    ycsb("a", &["--workload", "a"], Durability::Default),
    ycsb("b", &["--workload", "b"], Durability::Default),
    ycsb("f", &["--workload", "f"], Durability::Default),
    growing(ycsb("d", &["--workload", "d"], Durability::Default)),
    growing(ycsb("e", &["--workload", "e"], Durability::Default)),
    ycsb("a-journaled", &["--workload", "a"], Durability::Journaled),
    ycsb("b-journaled", &["--workload", "b"], Durability::Journaled),
    ycsb("f-journaled", &["--workload", "f"], Durability::Journaled),
    growing(ycsb(
        "d-journaled",
        &["--workload", "d"],
        Durability::Journaled,
    )),
    growing(ycsb(
        "e-journaled",
        &["--workload", "e"],
        Durability::Journaled,
    )),
    open(
        "a-at-70%-of-mongodb",
        &[Kind::Pinion, Kind::MongoDb],
        RateOf {
            server: Kind::MongoDb,
            case: "a",
            share: 0.7,
        },
    ),
    open(
        "a-at-10%",
        &[Kind::Pinion, Kind::Echo],
        RateOf {
            server: Kind::Pinion,
            case: "a",
            share: 0.1,
        },
    ),
    open(
        "a-at-70%",
        &[Kind::Pinion, Kind::Echo],
        RateOf {
            server: Kind::Pinion,
            case: "a",
            share: 0.7,
        },
    ),
];

/// Cases that run when none are named.
pub const USUAL: &[&str] = &[
    "read",
    "read-pipeline-16",
    "update",
    "insert",
    "insert-journaled",
    "insert-journaled-1",
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
];

/// The cases of those names; `all` is every one. A case whose rate another gives brings that one
/// along.
pub fn named(names: &[String]) -> Result<Vec<&'static Case>, String> {
    let mut wanted: Vec<&str> = Vec::new();
    for name in names {
        match name.as_str() {
            "all" => wanted.extend(CASES.iter().map(|case| case.name)),
            name => {
                let case = CASES.iter().find(|case| case.name == name).ok_or_else(|| {
                    let known: Vec<_> = CASES.iter().map(|case| case.name).collect();
                    format!(
                        "there is no case {name}; there are all, {}",
                        known.join(", ")
                    )
                })?;
                wanted.push(case.name);
                wanted.extend(case.rate.map(|rate| rate.case));
            }
        }
    }
    Ok(CASES
        .iter()
        .filter(|case| wanted.contains(&case.name))
        .collect())
}
