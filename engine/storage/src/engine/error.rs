//! Why a data directory cannot be opened.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use pinion_clock::Timestamp;

use crate::manifest::ManifestWrite;
use crate::recovery::Damage;
use crate::types::{Fatal, ReadError};

/// An entry could not be applied again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyError(pub String);

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ApplyError {}

/// Why a data directory cannot be opened. Each message is one line that names file and cause.
#[derive(Debug)]
pub enum OpenError {
    /// Another process has the directory open.
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory was made with another number of partitions than asked for.
    PartitionCount {
        /// What the directory has.
        found: u16,
        /// What was asked for.
        asked: u16,
    },
    /// The directory was made by a version of this program that places keys otherwise.
    HashVersion {
        /// What the directory has.
        found: u16,
    },
    /// An option has a value that cannot work.
    Option(String),
    /// The directory holds data and no superblock.
    NoSuperblock {
        /// The directory.
        dir: PathBuf,
        /// A file that shows it is not new.
        because: String,
    },
    /// Something that was durable is no longer there, or no longer what was written.
    Damaged {
        /// The file.
        file: PathBuf,
        /// Byte offset in it.
        offset: u64,
        /// The last timestamp that is certainly intact, when a ring is damaged.
        after: Option<Timestamp>,
        /// What is wrong.
        what: String,
    },
    /// The device or the file system reported an error.
    Io {
        /// What was being done.
        doing: String,
        /// The error.
        error: io::Error,
    },
    /// The directory was to be opened as of an earlier timestamp than it can be.
    BeyondRollback {
        /// Nothing above it was to be kept.
        limit: Timestamp,
        /// Everything at or below it cannot be taken back.
        stable: Timestamp,
    },
    /// An entry could not be applied again.
    Apply {
        /// Its timestamp.
        ts: Timestamp,
        /// The cause.
        error: ApplyError,
    },
    /// Storage failed while recovering.
    Fatal(Fatal),
}

impl OpenError {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> OpenError {
        let doing = doing.into();
        move |error| OpenError::Io { doing, error }
    }

    pub(crate) fn manifest(dir: &Path) -> impl FnOnce(ManifestWrite) -> OpenError {
        let doing = format!("reading the superblocks of {}", dir.display());
        move |error| match error {
            ManifestWrite::Io(error) => OpenError::Io { doing, error },
            ManifestWrite::Damaged { file, offset, what } => OpenError::Damaged {
                file,
                offset,
                after: None,
                what,
            },
        }
    }

    pub(crate) fn partition(dir: &Path) -> impl FnOnce(ReadError) -> OpenError {
        let dir = dir.to_owned();
        move |error| match error {
            ReadError::Corrupt { file, offset, what } => OpenError::Damaged {
                file: PathBuf::from(&*file),
                offset,
                after: None,
                what: what.to_string(),
            },
            other => OpenError::Io {
                doing: format!("opening {}", dir.display()),
                error: io::Error::other(other.to_string()),
            },
        }
    }
}

impl From<Damage> for OpenError {
    fn from(damage: Damage) -> OpenError {
        OpenError::Damaged {
            file: damage.file,
            offset: damage.offset,
            after: Some(damage.after),
            what: damage.what,
        }
    }
}

impl From<Fatal> for OpenError {
    fn from(fatal: Fatal) -> OpenError {
        OpenError::Fatal(fatal)
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Locked { dir } => {
                write!(f, "{} is in use by another process", dir.display())
            }
            OpenError::PartitionCount { found, asked } => write!(
                f,
                "the data directory has {found} partitions and {asked} were asked for; the number is fixed when a data \
                 directory is made"
            ),
            OpenError::HashVersion { found } => {
                write!(
                    f,
                    "the data directory places keys by hash version {found}, which this program does not have"
                )
            }
            OpenError::Option(what) => f.write_str(what),
            OpenError::NoSuperblock { dir, because } => {
                write!(
                    f,
                    "{} has no superblock, and {because} shows that it is not new",
                    dir.display()
                )
            }
            OpenError::Damaged {
                file,
                offset,
                after: Some(after),
                what,
            } => write!(
                f,
                "{} is damaged at offset {offset}, after {after}: {what}; the node does not open: restore the directory \
                 from a backup, or have the member copy its set's data into an empty one",
                file.display()
            ),
            OpenError::Damaged {
                file,
                offset,
                after: None,
                what,
            } => write!(
                f,
                "{} is damaged at offset {offset}: {what}; the node does not open: restore the directory from a backup, or have the member \
                 copy its set's data into an empty one",
                file.display()
            ),
            OpenError::Io { doing, error } => write!(f, "{doing}: {error}"),
            OpenError::BeyondRollback { limit, stable } => write!(
                f,
                "everything above {limit} was to be taken back, and everything up to {stable} is stable"
            ),
            OpenError::Apply { ts, error } => {
                write!(f, "the entry at {ts} could not be applied: {error}")
            }
            OpenError::Fatal(fatal) => write!(f, "storage failed while recovering: {fatal}"),
        }
    }
}

impl std::error::Error for OpenError {}
