//! The version of MongoDB that a node says it is, and whose language it speaks.

/// The version whose behaviour this node follows.
pub const COMPATIBLE_VERSION: [i32; 4] = [8, 0, 16, 0];

/// A version of the query language: what a release adds to it is unknown to those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LanguageVersion {
    major: i32,
    minor: i32,
}

impl LanguageVersion {
    pub const V8_3: LanguageVersion = LanguageVersion { major: 8, minor: 3 };

    /// The language of the version that the node reports.
    pub const REPORTED: LanguageVersion = LanguageVersion {
        major: COMPATIBLE_VERSION[0],
        minor: COMPATIBLE_VERSION[1],
    };
}

impl Default for LanguageVersion {
    fn default() -> LanguageVersion {
        LanguageVersion::REPORTED
    }
}
