//! What Pinion is to reach beside the others, and whether it does.

use super::results::{Results, Spread};
use super::server::Kind;

/// What of two servers is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// Operations a second; where the client's core was the limit of either, the reciprocal of CPU
    /// for each operation.
    Rate,
    /// The peer's CPU for each operation over Pinion's.
    ServerCpu,
    /// The peer's p99.9 over Pinion's.
    P999,
    /// The peer's median latency over Pinion's; the raw disk is a peer here.
    P50OfDisk,
    /// Growth of resident memory with idle connections, the peer's over Pinion's.
    IdleMemory,
    /// Pinion's p99.9 over its own p50.
    TailOfMedian,
    /// Pinion's p50 over its own p50 in the other case.
    P50OfCase(&'static str),
    /// Pinion's p99 over its own p99 in the other case.
    P99OfCase(&'static str),
}

impl Measure {
    /// Where less is better, the ratio must stay below.
    pub fn at_most(self) -> bool {
        matches!(
            self,
            Self::P50OfDisk | Self::TailOfMedian | Self::P50OfCase(_) | Self::P99OfCase(_)
        )
    }
}

/// One thing to reach.
pub struct Target {
    pub what: &'static str,
    pub case: &'static str,
    pub peer: Kind,
    pub measure: Measure,
    pub bound: f64,
    /// What is hoped for beyond the bound.
    pub aim: Option<f64>,
}

const fn target(
    what: &'static str,
    case: &'static str,
    peer: Kind,
    measure: Measure,
    bound: f64,
) -> Target {
    Target {
        what,
        case,
        peer,
        measure,
        bound,
        aim: None,
    }
}

const fn aiming(mut target: Target, aim: f64) -> Target {
    target.aim = Some(aim);
    target
}

use Kind::{MongoDb, Pinion, Postgres, Redis};
use Measure::{IdleMemory, P50OfCase, P50OfDisk, P99OfCase, P999, Rate, ServerCpu, TailOfMedian};

/// All of them, in the order in which they are reported.
pub const TARGETS: &[Target] = &[
    aiming(
        target("point read, Redis GET", "read", Redis, Rate, 0.8),
        1.0,
    ),
    aiming(
        target(
            "point read, 16 in flight, Redis GET",
            "read-pipeline-16",
            Redis,
            Rate,
            0.8,
        ),
        1.0,
    ),
    target("point read, PostgreSQL select", "read", Postgres, Rate, 4.0),
    target("insert, Redis SET everysec", "insert", Redis, Rate, 0.7),
    target(
        "insert j, Redis SET always",
        "insert-journaled",
        Redis,
        Rate,
        0.8,
    ),
    target(
        "insert j, PostgreSQL synchronous_commit on",
        "insert-journaled",
        Postgres,
        Rate,
        2.0,
    ),
    target(
        "insert j, one connection: p50 over the raw disk's",
        "insert-journaled-1",
        Pinion,
        P50OfDisk,
        1.3,
    ),
    aiming(
        target("point read, MongoDB", "read", MongoDb, Rate, 3.0),
        4.0,
    ),
    target("update, MongoDB", "update", MongoDb, Rate, 2.5),
    target("insert, MongoDB", "insert", MongoDb, Rate, 2.0),
    target("insert j, MongoDB", "insert-journaled", MongoDb, Rate, 3.0),
    target(
        "CPU for each point read, MongoDB's over ours",
        "read",
        MongoDb,
        ServerCpu,
        3.0,
    ),
    target("YCSB A, MongoDB", "a", MongoDb, Rate, 2.5),
    target("YCSB B, MongoDB", "b", MongoDb, Rate, 2.5),
    target("YCSB C, MongoDB", "c", MongoDb, Rate, 2.5),
    target("YCSB D, MongoDB", "d", MongoDb, Rate, 2.5),
    target("YCSB E, MongoDB", "e", MongoDb, Rate, 2.5),
    target("YCSB F, MongoDB", "f", MongoDb, Rate, 2.5),
    target(
        "YCSB A at 70 % of MongoDB's rate: its p99.9 over ours",
        "a-at-70%-of-mongodb",
        MongoDb,
        P999,
        3.0,
    ),
    target(
        "memory of idle connections, MongoDB's over ours",
        "idle",
        MongoDb,
        IdleMemory,
        5.0,
    ),
    target("YCSB A, PostgreSQL", "a", Postgres, Rate, 3.0),
    target("YCSB B, PostgreSQL", "b", Postgres, Rate, 3.0),
    target("YCSB C, PostgreSQL", "c", Postgres, Rate, 3.0),
    target("YCSB D, PostgreSQL", "d", Postgres, Rate, 3.0),
    target("YCSB E, PostgreSQL", "e", Postgres, Rate, 3.0),
    target("YCSB F, PostgreSQL", "f", Postgres, Rate, 3.0),
    target("YCSB A j, PostgreSQL", "a-journaled", Postgres, Rate, 3.0),
    target("YCSB B j, PostgreSQL", "b-journaled", Postgres, Rate, 3.0),
    target("YCSB D j, PostgreSQL", "d-journaled", Postgres, Rate, 3.0),
    target("YCSB E j, PostgreSQL", "e-journaled", Postgres, Rate, 3.0),
    target("YCSB F j, PostgreSQL", "f-journaled", Postgres, Rate, 3.0),
    target(
        "YCSB A at 70 %: p99.9 over p50",
        "a-at-70%",
        Pinion,
        TailOfMedian,
        4.0,
    ),
    target(
        "YCSB A: p50 at 70 % over p50 at 10 %",
        "a-at-70%",
        Pinion,
        P50OfCase("a-at-10%"),
        1.5,
    ),
    target(
        "reads at one rate: p99 with 10,000 connections over p99 with 64",
        "read-10000-connections",
        Pinion,
        P99OfCase("read-64-connections"),
        2.0,
    ),
];

/// Whether a target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Reached,
    NotReached,
    NotMeasured,
}

/// A target with what was measured.
pub struct Judged {
    pub target: &'static Target,
    pub ratio: Option<Spread>,
    /// The client's core was full, so CPU for each operation was compared.
    pub by_cpu: bool,
    pub verdict: Verdict,
}

/// Holds all targets against what was measured.
pub fn judge(results: &Results) -> Vec<Judged> {
    TARGETS
        .iter()
        .map(|target| {
            let (ratio, by_cpu) = results.ratio(target.case, target.peer, target.measure);
            let verdict = match ratio {
                None => Verdict::NotMeasured,
                Some(ratio) if holds(target, ratio.median) => Verdict::Reached,
                Some(_) => Verdict::NotReached,
            };
            Judged {
                target,
                ratio,
                by_cpu,
                verdict,
            }
        })
        .collect()
}

fn holds(target: &Target, ratio: f64) -> bool {
    if target.measure.at_most() {
        ratio <= target.bound
    } else {
        ratio >= target.bound
    }
}
