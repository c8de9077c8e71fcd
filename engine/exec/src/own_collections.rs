//! Names of collections and databases that the node keeps for itself.

/// Of `admin`: the version that the data are of.
pub(crate) const VERSION: &str = "system.version";
/// Of `local`: what checks have found.
pub const HEALTH_LOG: &str = "system.healthlog";

/// Whether databases of this name are of the node, or its set, and not of clients.
pub fn is_node_database(db: &str) -> bool {
    matches!(db, "admin" | "config" | "local")
}
