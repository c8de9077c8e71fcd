//! What a campaign of clusters reports, and must have met.

use crate::campaign::Reported;

/// Seeds that failed once, and what was wrong then. Every campaign runs them.
pub const KEPT: &[(u64, &str)] = &[
    (
        1,
        "a router sent bulkWrite without the version of its databases, and it wrote into what was dropped",
    ),
    (
        20,
        "a router took the answer to an earlier question for the place of a database that was just made",
    ),
    (
        4,
        "a router sent the write of a client that had left into a later life of the database",
    ),
    (
        91,
        "a write that had waited for the removal of its database made its collection once more",
    ),
];

/// What the line of a seed reports, and what it counts.
pub const REPORTED: Reported = &[
    ("crashes", &["power cuts", "kills"]),
    ("elections", &["event elected"]),
    (
        "writes acknowledged",
        &[
            "writes acknowledged by a majority",
            "writes into what comes and goes",
            "writes that are not retried acknowledged",
        ],
    ),
    ("transactions", &["transactions acknowledged"]),
    ("drops", &["databases dropped"]),
    (
        "databases made",
        &["databases made again", "databases made by a write"],
    ),
    ("sent again", &["writes sent again"]),
    ("stale", &["event stale database"]),
    ("cursors", &["cursors read to their end"]),
    ("config away", &["config servers away"]),
    ("calm minutes", &["calm minutes"]),
    ("sharded", &["collections sharded"]),
    ("looks at strays", &["looks at strays"]),
    ("moved", &["databases moved"]),
    ("series sharded", &["series sharded"]),
    (
        "batches of measurements",
        &[
            "batches of measurements acknowledged",
            "batches of measurements acknowledged and not retryable",
        ],
    ),
    (
        "strikes",
        &[
            "primaries ended while one is defined",
            "primaries cut off while one is defined",
        ],
    ),
];

/// What a campaign must have met.
pub const MUST_HAPPEN: &[&str] = &[
    "clusters compared",
    "power cuts",
    "kills",
    "shutdowns ordered",
    "routers ended",
    "roles cut",
    "roles slowed",
    "primaries of config servers stranded",
    "links cut",
    "clocks jumped",
    "disks slowed",
    "step-downs ordered",
    "event elected",
    "config servers away",
    "calm minutes",
    "clusters with clocks that differ",
    "answers to the operator lost",
    "writes acknowledged by a majority",
    "writes sent again",
    "writes that are not retried acknowledged",
    "writes into what comes and goes",
    "reads of what comes and goes",
    "bulk writes over two databases",
    "databases made again",
    "databases dropped",
    "databases made by a write",
    "databases placed",
    "lists of databases and collections",
    "cursors read to their end",
    "transactions acknowledged",
    "catalog changes acknowledged",
    "local reads",
    "majority reads",
    "snapshot reads",
    "linearizable reads",
    "event stale database",
    "collections sharded",
    "looks at strays",
    "strays changed",
    "all strays changed",
    "databases moved",
    "series sharded",
    "series dropped",
    "series changed",
    "series made before they are sharded",
    "looks at whole series",
    "batches of measurements acknowledged",
    "batches of measurements acknowledged and not retryable",
    "sources deleted",
    "linearizable reads of measurements",
    "causal reads of measurements",
    "measurements counted",
    "measurements grouped",
    "measurements of groups counted",
    "primaries ended while one is defined",
    "primaries cut off while one is defined",
    "primaries struck while the series is defined",
];
