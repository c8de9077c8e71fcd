//! Directories and names. Every function takes effect at once for this node, and durably after
//! [`sync_dir`].

use std::io;
use std::path::Path;

use crate::context::{self, Backend};
use crate::{real, sim};

macro_rules! dispatch {
    ($function:ident($($argument:expr),*)) => {{
        let context = context::current();
        match &context.backend {
            Backend::Real(_) => real::fs::$function($($argument),*).await,
            Backend::Sim(core) => sim::fs::$function(core, $($argument),*).await,
        }
    }};
}

/// Makes a directory and those above it that do not exist.
pub async fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    dispatch!(create_dir_all(path.as_ref()))
}

/// The names in a directory, sorted.
pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<Vec<String>> {
    dispatch!(read_dir(path.as_ref()))
}

/// Removes a file's name; its space is freed when the last handle is closed.
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    dispatch!(remove_file(path.as_ref()))
}

/// Renames a file within its directory, replacing what has the new name.
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    if from.parent() != to.parent() {
        let message = format!(
            "{} and {} are not in the same directory",
            from.display(),
            to.display()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    dispatch!(rename(from, to))
}

/// Makes durable every name made, changed or removed in this directory before the call.
pub async fn sync_dir(path: impl AsRef<Path>) -> io::Result<()> {
    dispatch!(sync_dir(path.as_ref()))
}

/// True when the path names a file or a directory.
pub async fn exists(path: impl AsRef<Path>) -> io::Result<bool> {
    dispatch!(exists(path.as_ref()))
}

/// The length of a file in bytes.
pub async fn file_len(path: impl AsRef<Path>) -> io::Result<u64> {
    dispatch!(file_len(path.as_ref()))
}

/// All bytes of a file of at most [`crate::limits::MAX_SMALL_FILE_BYTES`].
pub async fn read_small(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    dispatch!(read_small(path.as_ref()))
}

/// Room on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All bytes of it.
    pub total_bytes: u64,
    /// Bytes that this process may still use.
    pub free_bytes: u64,
}

/// The room on the file system that holds `path`.
pub async fn space(path: impl AsRef<Path>) -> io::Result<Space> {
    dispatch!(space(path.as_ref()))
}

/// An exclusive lock on a directory, held until dropped or until the process ends.
pub struct DirLock(#[allow(dead_code, reason = "held for its destructor")] DirLockKind);

#[allow(dead_code, reason = "held for their destructors")]
enum DirLockKind {
    Real(real::RealDirLock),
    Sim(sim::SimDirLock),
}

/// Locks a directory against every other process; `WouldBlock` when it is locked already.
pub async fn lock(path: impl AsRef<Path>) -> io::Result<DirLock> {
    let context = context::current();
    match &context.backend {
        Backend::Real(_) => real::fs::lock(path.as_ref())
            .await
            .map(|lock| DirLock(DirLockKind::Real(lock))),
        Backend::Sim(core) => sim::fs::lock(core, path.as_ref())
            .await
            .map(|lock| DirLock(DirLockKind::Sim(lock))),
    }
}
