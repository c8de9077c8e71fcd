//! The versions of MongoDB that this node says it is like.

use pinion_wire::COMPATIBLE_VERSION;

/// The version of MongoDB whose data files and commands this node has, as text.
pub fn compatible_version() -> String {
    let [major, minor, patch, _] = COMPATIBLE_VERSION;
    format!("{major}.{minor}.{patch}")
}

/// The version of the features that are in use.
pub fn feature_version() -> String {
    let [major, minor, ..] = COMPATIBLE_VERSION;
    format!("{major}.{minor}")
}
