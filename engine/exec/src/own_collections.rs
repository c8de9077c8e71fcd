//! Names of collections that the node keeps for itself.

/// Of `admin`: the version that the data are of.
pub(crate) const VERSION: &str = "system.version";
/// Of `local`: what checks have found.
pub const HEALTH_LOG: &str = "system.healthlog";
