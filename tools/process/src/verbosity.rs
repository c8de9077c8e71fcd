//! How much is logged: mongod's `logLevel` and `logComponentVerbosity`.

use std::sync::atomic::{AtomicI32, Ordering};

use tracing::Level;

/// A component of the log.
struct Component {
    /// What stands in its lines; empty for those of MongoDB that have no lines here.
    target: &'static str,
    /// The component that it goes by when it has no verbosity of its own.
    above: usize,
}

const fn part(target: &'static str, above: usize) -> Component {
    Component { target, above }
}

/// The components of MongoDB by their dotted names; the first is what the others go by that have no
/// verbosity of their own.
pub const COMPONENTS: [&str; 20] = [
    "",
    "accessControl",
    "command",
    "control",
    "executor",
    "geo",
    "index",
    "network",
    "network.connectionPool",
    "query",
    "replication",
    "replication.election",
    "replication.heartbeats",
    "replication.initialSync",
    "replication.rollback",
    "sharding",
    "storage",
    "storage.recovery",
    "storage.journal",
    "write",
];

static PARTS: [Component; COMPONENTS.len()] = [
    part("", 0),
    part("ACCESS", 0),
    part("COMMAND", 0),
    part("CONTROL", 0),
    part("", 0),
    part("", 0),
    part("INDEX", 0),
    part("NETWORK", 0),
    part("", 7),
    part("QUERY", 0),
    part("REPL", 0),
    part("", 10),
    part("", 10),
    part("", 10),
    part("", 10),
    part("SHARDING", 0),
    part("STORAGE", 0),
    part("RECOVERY", 16),
    part("", 16),
    part("WRITE", 0),
];

/// A component without a verbosity of its own.
pub const INHERITED: i32 = -1;

static VERBOSITIES: [AtomicI32; COMPONENTS.len()] = {
    let mut all = [const { AtomicI32::new(INHERITED) }; COMPONENTS.len()];
    all[0] = AtomicI32::new(0);
    all
};

/// The verbosity that was set for a component, by its place.
pub fn get(component: usize) -> i32 {
    VERBOSITIES[component].load(Ordering::Relaxed)
}

/// Sets the verbosity of a component.
pub fn set(component: usize, level: i32) {
    let lowest = if component == 0 { 0 } else { INHERITED };
    VERBOSITIES[component].store(level.max(lowest), Ordering::Relaxed);
    // What is enabled is asked once for each place that logs.
    tracing::callsite::rebuild_interest_cache();
}

/// The verbosity in force for lines with this target.
fn of_target(target: &str) -> i32 {
    let mut component = PARTS
        .iter()
        .position(|own| own.target == target)
        .unwrap_or(0);
    loop {
        match get(component) {
            INHERITED => component = PARTS[component].above,
            level => return level,
        }
    }
}

/// Whether a line of that level is logged.
pub fn is_enabled(target: &str, level: Level) -> bool {
    match level {
        Level::ERROR | Level::WARN | Level::INFO => true,
        Level::DEBUG => of_target(target) >= 1,
        Level::TRACE => of_target(target) >= 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_go_by_those_above() {
        let debugs = |target| is_enabled(target, Level::DEBUG);
        assert!(!debugs("RECOVERY") && is_enabled("RECOVERY", Level::INFO));
        let place = |name| {
            COMPONENTS
                .iter()
                .position(|own| *own == name)
                .expect("a component")
        };
        let (storage, recovery) = (place("storage"), place("storage.recovery"));
        set(storage, 1);
        assert!(debugs("STORAGE") && debugs("RECOVERY") && !debugs("COMMAND"));
        set(recovery, 0);
        assert!(debugs("STORAGE") && !debugs("RECOVERY"));
        set(storage, INHERITED);
        set(recovery, INHERITED);
        set(0, 5);
        assert!(is_enabled("RECOVERY", Level::TRACE) && is_enabled("OTHER", Level::TRACE));
        set(0, INHERITED);
        assert_eq!(get(0), 0);
    }
}
