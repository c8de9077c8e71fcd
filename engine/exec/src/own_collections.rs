//! Names of collections that the node keeps for itself.

/// The collection of a database that its profiled operations are written to.
pub(crate) const PROFILE: &str = "system.profile";
/// Of `admin`: the version that the data are of.
pub(crate) const VERSION: &str = "system.version";
/// Of `local`: what checks have found.
pub const HEALTH_LOG: &str = "system.healthlog";
