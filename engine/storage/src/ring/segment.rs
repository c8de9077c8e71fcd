//! Segment files: their names, their preparation, and what lies in a data directory.
//!
//! A ring is the directory `ring-NN`, or `ring-own`; its segments are `segment-GGGGGGGGGGGG` with
//! their generation. A segment that may be reused is renamed to its next generation, and the
//! directory is synced before a frame is written: whatever a file holds of an earlier generation is
//! stale by its very name.

use std::io;
use std::path::{Path, PathBuf};

use pinion_runtime::{DmaBuf, File, OpenOptions, fs};

use super::frame::FRAME_BYTES;
use crate::limits::ZERO_CHUNK_BYTES;
use crate::opening::{open_file, sync_dir};

const RING_PREFIX: &str = "ring-";
/// The ring of what is not replicated: its number in frames, and its name in place of a number.
const OWN_RING: u16 = u16::MAX;
const OWN_RING_NAME: &str = "own";
const SEGMENT_PREFIX: &str = "segment-";

/// The directory of one ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RingDir {
    pub(crate) ring: u16,
    pub(crate) path: PathBuf,
}

impl RingDir {
    pub(crate) fn new(data_directory: &Path, ring: u16) -> RingDir {
        RingDir {
            ring,
            path: data_directory.join(format!("{RING_PREFIX}{ring:02}")),
        }
    }

    /// The ring of what is not replicated. It is none of those that `list_rings` finds.
    pub(crate) fn own(data_directory: &Path) -> RingDir {
        RingDir {
            ring: OWN_RING,
            path: data_directory.join(format!("{RING_PREFIX}{OWN_RING_NAME}")),
        }
    }

    pub(crate) fn segment_path(&self, generation: u64) -> PathBuf {
        self.path.join(format!("{SEGMENT_PREFIX}{generation:012}"))
    }

    /// The generations that have a file, ascending.
    pub(crate) async fn generations(&self) -> io::Result<Vec<u64>> {
        let names = fs::read_dir(&self.path).await?;
        let mut generations: Vec<u64> = names
            .iter()
            .filter_map(|name| name.strip_prefix(SEGMENT_PREFIX)?.parse().ok())
            .collect();
        generations.sort_unstable();
        Ok(generations)
    }
}

/// The rings of a data directory, ascending.
pub(crate) async fn list_rings(data_directory: &Path) -> io::Result<Vec<RingDir>> {
    let names = fs::read_dir(data_directory).await?;
    let mut rings: Vec<RingDir> = names
        .iter()
        .filter_map(|name| name.strip_prefix(RING_PREFIX)?.parse().ok())
        .map(|ring| RingDir::new(data_directory, ring))
        .collect();
    rings.sort_unstable_by_key(|ring| ring.ring);
    Ok(rings)
}

/// A segment open for writing.
#[derive(Clone)]
pub(crate) struct SegmentFile {
    pub(crate) generation: u64,
    pub(crate) file: File,
    /// Frames the file has room for.
    pub(crate) frames: u32,
}

impl SegmentFile {
    /// Makes a new file. A zeroed one has its extents written, so that a flush need not journal the
    /// file system's metadata; without that the space is only reserved, which is quick.
    pub(crate) async fn create(
        dir: &RingDir,
        generation: u64,
        bytes: u64,
        zeroed: bool,
    ) -> io::Result<SegmentFile> {
        let path = dir.segment_path(generation);
        let file = open_file(&path, OpenOptions::create()).await?;
        if let Err(error) = file.allocate(bytes).await {
            // A part of a segment is of no use, and takes room.
            fs::remove_file(&path).await?;
            return Err(error);
        }
        if zeroed {
            let mut offset = 0;
            while offset < bytes {
                let len = (bytes - offset).min(ZERO_CHUNK_BYTES as u64) as usize;
                file.write_at(offset, DmaBuf::zeroed(len)).await?;
                offset += len as u64;
            }
        }
        file.datasync().await?;
        sync_dir(&dir.path).await?;
        Ok(SegmentFile {
            generation,
            file,
            frames: (bytes / FRAME_BYTES as u64) as u32,
        })
    }

    /// Makes the file of an earlier generation the file of a new one.
    pub(crate) async fn reuse(
        dir: &RingDir,
        old: &Path,
        generation: u64,
        bytes: u64,
    ) -> io::Result<SegmentFile> {
        let path = dir.segment_path(generation);
        fs::rename(old, &path).await?;
        sync_dir(&dir.path).await?;
        let file = open_file(&path, OpenOptions::write()).await?;
        assert_eq!(
            file.len().await?,
            bytes,
            "only segments of the full size are reused"
        );
        Ok(SegmentFile {
            generation,
            file,
            frames: (bytes / FRAME_BYTES as u64) as u32,
        })
    }
}
