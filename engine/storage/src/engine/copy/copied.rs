//! A copy of another node's checkpoint: its page files, beside those of this node, until they take
//! their place.
//!
//! The files have a number of their own in their names, which only a manifest that names it makes
//! those of the partitions. So a copy that is not complete is nothing but files that the next
//! opening removes.

use std::fmt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{
    CoreId, DmaBuf, File, LocalBoxFuture, OpenOptions, Queue, fs, join_all, submit_to,
};

use crate::base::{PartitionRoots, page_file_name, verify_partition};
use crate::engine::open::partition_dir;
use crate::engine::storage::{Storage, owner_of};
use crate::limits::BLOCK_BYTES;
use crate::manifest::{HASH_VERSION, Manifest};
use crate::types::PartitionId;

/// An entry of the source's oplog from before the base, or the base's own, that the log of the copy
/// begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedEntry {
    /// Its timestamp.
    pub ts: Timestamp,
    /// The document, complete.
    pub bytes: Bytes,
}

/// Why a checkpoint cannot be copied, or what was copied is not it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// This program does not know what the source has.
    Unknown(String),
    /// The source has another number of partitions.
    PartitionCount {
        /// The source's.
        theirs: u16,
        /// This node's.
        own: u16,
    },
    /// The source has no checkpoint yet.
    Empty,
    /// The device or the file system reported an error.
    Io(String),
    /// What was copied is damaged.
    Damaged(String),
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyError::Unknown(what) => {
                write!(f, "the source has files of another format: {what}")
            }
            CopyError::PartitionCount { theirs, own } => {
                write!(f, "the source has {theirs} partitions, and this node {own}")
            }
            CopyError::Empty => f.write_str("the source has no checkpoint yet"),
            CopyError::Io(what) => f.write_str(what),
            CopyError::Damaged(what) => write!(f, "the copy is damaged: {what}"),
        }
    }
}

impl std::error::Error for CopyError {}

/// A copy in the making. Plain data: any core can write files of it.
#[derive(Clone, Debug)]
pub struct CheckpointCopy {
    pub(super) dir: PathBuf,
    /// The source's.
    pub(super) source: Manifest,
    /// The number of the files.
    pub(super) file: u32,
}

/// A page file that is being written.
pub struct PageFileCopy {
    file: File,
    path: PathBuf,
    len: u64,
}

impl Storage {
    /// Begins a copy of a checkpoint beside the files of this node, whose manifest a source has
    /// sent. What there was of a copy before is gone. Call it on core 0; one copy is made at a
    /// time.
    ///
    /// # Errors
    /// [`CopyError`] if this node cannot have such files.
    pub fn begin_copy<'a>(
        &'a self,
        manifest: &'a [u8],
    ) -> LocalBoxFuture<'a, Result<CheckpointCopy, CopyError>> {
        Box::pin(async move {
            let source = Manifest::decode(manifest).map_err(CopyError::Unknown)?;
            if source.hash_version != HASH_VERSION {
                let what = format!("keys are placed by hash version {}", source.hash_version);
                return Err(CopyError::Unknown(what));
            }
            let own = self.manifest_now().await;
            if source.partitions != own.partitions {
                return Err(CopyError::PartitionCount {
                    theirs: source.partitions,
                    own: own.partitions,
                });
            }
            if source.base().is_null() {
                return Err(CopyError::Empty);
            }
            let highest = own.roots.iter().map(|roots| roots.file).max();
            Ok(CheckpointCopy {
                dir: self.options.dir.clone(),
                source,
                file: highest.expect("there are partitions") + 1,
            })
        })
    }
}

impl CheckpointCopy {
    /// The last entry that its pages hold.
    pub fn base(&self) -> Timestamp {
        self.source.base()
    }

    /// The first entry that the log of the copy must have.
    pub fn log_from(&self) -> Timestamp {
        self.source.transaction().unwrap_or(self.base())
    }

    /// How many page files there are.
    pub fn partitions(&self) -> u16 {
        self.source.partitions
    }

    /// The core that owns a partition on a node with this number of cores.
    pub fn owner(&self, partition: PartitionId, cores: usize) -> CoreId {
        owner_of(partition, cores)
    }

    fn dir_of(&self, partition: PartitionId) -> PathBuf {
        partition_dir(&self.dir, partition)
    }

    /// The roots of a partition in this copy.
    pub(super) fn roots(&self, partition: PartitionId) -> PartitionRoots {
        PartitionRoots {
            file: self.file,
            ..self.source.roots[usize::from(partition.0)]
        }
    }

    fn path(&self, partition: PartitionId) -> PathBuf {
        self.dir_of(partition).join(page_file_name(self.file))
    }

    /// Creates the file of a partition, and empties one that is there.
    ///
    /// # Errors
    /// [`CopyError::Io`].
    pub fn create(
        &self,
        partition: PartitionId,
    ) -> LocalBoxFuture<'_, Result<PageFileCopy, CopyError>> {
        Box::pin(async move {
            let path = self.path(partition);
            let len = self.roots(partition).file_bytes();
            let file = File::open(&path, OpenOptions::create().truncate()).await;
            let file = file.map_err(|error| failed("making", &path, error))?;
            file.set_len(len)
                .await
                .map_err(|error| failed("making", &path, error))?;
            Ok(PageFileCopy { file, path, len })
        })
    }

    /// Makes the names of all files durable, and reads all pages: each has the checksum that what
    /// refers to it says, and the trees are whole.
    ///
    /// # Errors
    /// [`CopyError::Damaged`] names the first page that is not what it should be.
    pub fn verify(&self, cores: usize) -> LocalBoxFuture<'_, Result<(), CopyError>> {
        Box::pin(async move {
            let verified = join_all((0..self.partitions()).map(PartitionId).map(|partition| {
                let (copy, owner) = (self.clone(), owner_of(partition, cores));
                submit_to(owner, Queue::Background, move || async move {
                    copy.verify_one(partition).await
                })
            }))
            .await;
            verified.into_iter().collect()
        })
    }

    async fn verify_one(&self, partition: PartitionId) -> Result<(), CopyError> {
        let dir = self.dir_of(partition);
        fs::sync_dir(&dir)
            .await
            .map_err(|error| failed("flushing", &dir, error))?;
        let report = verify_partition(partition, &dir, &self.roots(partition)).await;
        let report = report.map_err(|error| CopyError::Damaged(error.to_string()))?;
        match report.problems.first() {
            None => Ok(()),
            Some(problem) => Err(CopyError::Damaged(problem.to_string())),
        }
    }

    /// Removes the files, which will not be used.
    pub async fn remove(&self) {
        for partition in (0..self.partitions()).map(PartitionId) {
            let path = self.path(partition);
            // What cannot be removed now is when the directory is opened the next time.
            if matches!(fs::exists(&path).await, Ok(true)) {
                let _ = fs::remove_file(&path).await;
            }
        }
    }
}

fn failed(what: &str, path: &Path, error: std::io::Error) -> CopyError {
    CopyError::Io(format!("{what} {} failed: {error}", path.display()))
}

impl PageFileCopy {
    /// Writes whole blocks.
    ///
    /// # Errors
    /// [`CopyError::Io`]; [`CopyError::Damaged`] if the file has no such place.
    pub fn write<'a>(
        &'a self,
        offset: u64,
        bytes: &'a [u8],
    ) -> LocalBoxFuture<'a, Result<(), CopyError>> {
        Box::pin(async move {
            let block = BLOCK_BYTES as u64;
            let end = offset.checked_add(bytes.len() as u64);
            if !offset.is_multiple_of(block)
                || !bytes.len().is_multiple_of(BLOCK_BYTES)
                || end.is_none_or(|end| end > self.len)
            {
                let (path, len) = (self.path.display(), bytes.len());
                let what = format!("{len} bytes at {offset} do not belong to {path}");
                return Err(CopyError::Damaged(what));
            }
            for (nth, part) in bytes.chunks(crate::limits::IO_BYTES).enumerate() {
                let at = offset + (nth * crate::limits::IO_BYTES) as u64;
                let written = self.file.write_at(at, DmaBuf::padded_copy(part)).await;
                written.map_err(|error| failed("writing", &self.path, error))?;
            }
            Ok(())
        })
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// [`CopyError::Io`].
    pub fn finish(self) -> LocalBoxFuture<'static, Result<(), CopyError>> {
        Box::pin(async move {
            let path = self.path;
            let flushed = self.file.datasync().await;
            flushed.map_err(|error| failed("flushing", &path, error))?;
            // Nothing is lost by a failing close: all of it was flushed.
            let _ = self.file.close().await;
            Ok(())
        })
    }
}
