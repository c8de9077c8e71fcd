//! How many connections the limit of open files leaves room for, beside what the node itself opens.

/// The part of the limit that connections leave to the node, as mongod's do.
const OWN_PERCENT: u64 = 20;
/// Descriptors of the node itself: its files, its rings, connections to other members; and of each
/// core.
const OF_NODE: u64 = 24;
const OF_CORE: u64 = 8;

/// The most connections at one time, where `asked` were asked for. There is always room for one:
/// what the node itself cannot open then, it says by name.
pub fn max_connections(asked: usize, open_files: u64, cores: usize) -> usize {
    let own = OF_NODE + OF_CORE * cores as u64;
    let part = open_files - open_files.div_ceil(100 / OWN_PERCENT);
    let allowed = part.min(open_files.saturating_sub(own)).max(1);
    asked.min(usize::try_from(allowed).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_to_the_node() {
        assert_eq!(max_connections(65_536, 1_000_000, 4), 65_536);
        assert_eq!(max_connections(65_536, 64_000, 4), 51_200);
        assert_eq!(max_connections(65_536, 1024, 2), 819);
        assert_eq!(max_connections(100, 1024, 2), 100);
        assert_eq!(max_connections(65_536, u64::MAX, 2), 65_536);
        assert_eq!(max_connections(65_536, 10, 2), 1);
    }
}
