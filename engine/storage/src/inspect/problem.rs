//! What an inspection reports: problems that it found, and why there was none.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::types::ReadError;

/// Something that is not what was written, or not sound in itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// Where in it the page, frame or block begins that is wrong.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

impl Problem {
    pub(super) fn new(file: impl Into<PathBuf>, offset: u64, what: impl Into<String>) -> Problem {
        Problem {
            file: file.into(),
            offset,
            what: what.into(),
        }
    }

    /// What the page file of the partition in `dir` has.
    pub(super) fn of_pages(file: &Path, error: ReadError) -> Problem {
        match error {
            ReadError::Corrupt { file, offset, what } => Problem::new(&*file, offset, &*what),
            other => Problem::new(file, 0, other.to_string()),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: offset {}: {}",
            self.file.display(),
            self.offset,
            self.what
        )
    }
}

/// Why a directory cannot be inspected. Each message is one line.
#[derive(Debug)]
pub enum InspectError {
    /// Another process has the directory open.
    Locked(PathBuf),
    /// There is no superblock: it is no data directory, or has lost what makes it one.
    NoSuperblock {
        /// The directory.
        dir: PathBuf,
        /// A ring, which no directory has without a superblock.
        ring: Option<PathBuf>,
    },
    /// The device or the file system reported an error.
    Io {
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

impl InspectError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> InspectError {
        let path = path.to_owned();
        move |error| InspectError::Io { path, error }
    }
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InspectError::Locked(dir) => {
                write!(f, "{} is in use by another process", dir.display())
            }
            InspectError::NoSuperblock { dir, ring: None } => {
                write!(
                    f,
                    "{} is not a data directory: it has no superblock",
                    dir.display()
                )
            }
            InspectError::NoSuperblock {
                dir,
                ring: Some(ring),
            } => write!(
                f,
                "{} has lost its superblock: {} shows that it was a data directory",
                dir.display(),
                ring.display()
            ),
            InspectError::Io { path, error } => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for InspectError {}
