//! Sorted entries that have no room in memory: a file that is written and read from front to back.
//!
//! A block holds one chunk, padded with zeros to a multiple of [`ALIGN`]:
//!
//!   0 crc32c u32 of all bytes behind it     4 number of entries u32     8 of each the lengths of
//!   key and value, u32 each then of each entry the key and the value
//!
//! A file has its name until it is removed, since a build that a shutdown stops continues with it
//! (`state.rs`). What a crash leaves behind the next start removes.

use std::path::{Path, PathBuf};

use pinion_runtime::{ALIGN, DmaBuf, File, OpenOptions, fs};
use pinion_wire::{Error, ErrorCode, Result};

use super::chunk::Chunk;
use super::state::RunState;
use crate::limits::RUN_TRANSFER_BYTES;

/// A sorted sequence of entries in a file.
pub(super) struct RunFile {
    file: File,
    path: PathBuf,
    state: RunState,
}

/// Reads a run's chunks in their order.
pub(super) struct RunReader {
    file: File,
    blocks: std::vec::IntoIter<u32>,
    offset: u64,
}

fn failed(doing: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| {
        let code = match error.kind() {
            std::io::ErrorKind::StorageFull => ErrorCode::OUT_OF_DISK_SPACE,
            _ => ErrorCode::FILE_STREAM_FAILED,
        };
        Error::new(
            code,
            format!("{doing} the sorted entries of an index build failed: {error}"),
        )
    }
}

impl RunFile {
    /// A new file, the sorter's of this number.
    pub(super) async fn create(path: PathBuf, number: u64) -> Result<RunFile> {
        let create = OpenOptions::create_new();
        let file = File::open(&path, create).await.map_err(failed("making"))?;
        Ok(RunFile {
            file,
            path,
            state: RunState {
                number,
                ..RunState::default()
            },
        })
    }

    /// A file that a process before this one has kept.
    ///
    /// # Errors
    /// It is not there, or shorter than it was. Its blocks are checked when they are read.
    pub(super) async fn open(path: PathBuf, state: RunState) -> Result<RunFile> {
        let opened = File::open(&path, OpenOptions::read()).await;
        let file = opened.map_err(failed("opening"))?;
        if file.len().await.map_err(failed("opening"))? < state.bytes() {
            return Err(damaged());
        }
        Ok(RunFile { file, path, state })
    }

    /// Writes a chunk behind the others.
    pub(super) async fn append(&mut self, chunk: &Chunk) -> Result<()> {
        let block = encode(chunk);
        let start = self.state.bytes();
        for (n, part) in block.chunks(RUN_TRANSFER_BYTES).enumerate() {
            let offset = start + (n * RUN_TRANSFER_BYTES) as u64;
            let written = self.file.write_at(offset, DmaBuf::padded_copy(part)).await;
            written.map_err(failed("writing"))?;
        }
        let len = u32::try_from(block.len()).expect("a chunk's offsets have four bytes");
        self.state.blocks.push(len);
        self.state.entries += chunk.len() as u64;
        Ok(())
    }

    pub(super) fn read(&self) -> RunReader {
        RunReader {
            file: self.file.clone(),
            blocks: self.state.blocks.clone().into_iter(),
            offset: 0,
        }
    }

    /// Makes what was written durable, but for the file's name, and gives what has to be known of
    /// it to read it.
    pub(super) async fn keep(&self) -> Result<RunState> {
        self.file.datasync().await.map_err(failed("writing"))?;
        Ok(self.state.clone())
    }

    /// Removes the file.
    pub(super) async fn remove(self) {
        drop(self.file);
        remove(&self.path).await;
    }
}

/// Removes a temporary file; one that cannot be removed is left to the next start.
pub(super) async fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path).await {
        tracing::warn!(
            target: "INDEX", id = 7_400_001u64, file = %path.display(), error = %error,
            "A temporary file could not be removed"
        );
    }
}

impl RunReader {
    /// The next chunk.
    pub(super) async fn next(&mut self) -> Result<Option<Chunk>> {
        let Some(len) = self.blocks.next() else {
            return Ok(None);
        };
        let len = len as usize;
        let mut block = Vec::with_capacity(len);
        while block.len() < len {
            let offset = self.offset + block.len() as u64;
            let part = (len - block.len()).min(RUN_TRANSFER_BYTES);
            let part = self.file.read_at(offset, part).await;
            let part = part.map_err(failed("reading"))?;
            if part.is_empty() {
                return Err(damaged());
            }
            block.extend_from_slice(&part);
        }
        self.offset += len as u64;
        decode(&block).map(Some).ok_or_else(damaged)
    }
}

fn damaged() -> Error {
    Error::new(
        ErrorCode::DATA_CORRUPTION_DETECTED,
        "the sorted entries of an index build are not as they were written",
    )
}

fn encode(chunk: &Chunk) -> Vec<u8> {
    let mut block = Vec::with_capacity((chunk.memory() + 8).next_multiple_of(ALIGN));
    block.extend_from_slice(&[0; 4]);
    block.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
    for at in 0..chunk.len() {
        block.extend_from_slice(&(chunk.key(at).len() as u32).to_le_bytes());
        block.extend_from_slice(&(chunk.value(at).len() as u32).to_le_bytes());
    }
    for at in 0..chunk.len() {
        block.extend_from_slice(chunk.key(at));
        block.extend_from_slice(chunk.value(at));
    }
    block.resize(block.len().next_multiple_of(ALIGN), 0);
    let crc = crc32c::crc32c(&block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
    block
}

/// The entries of a block; `None` where it is not as it was written.
fn decode(block: &[u8]) -> Option<Chunk> {
    let number = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?));
    if number(block.get(..4)?)? != crc32c::crc32c(&block[4..]) {
        return None;
    }
    let count = number(block.get(4..8)?)? as usize;
    let lens = block.get(8..count.checked_mul(8)?.checked_add(8)?)?;
    let mut rest = &block[8 + lens.len()..];
    let mut chunk = Chunk::default();
    for len in lens.chunks_exact(8) {
        let (key, value) = (number(&len[..4])? as usize, number(&len[4..])? as usize);
        let entry = rest.get(..key.checked_add(value)?)?;
        chunk.push(&entry[..key], &entry[key..]);
        rest = &rest[entry.len()..];
    }
    Some(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_was_changed_is_no_block() {
        let mut chunk = Chunk::default();
        chunk.push(b"a", b"1");
        chunk.push(b"bcd", b"");
        let block = encode(&chunk);
        assert!(block.len().is_multiple_of(ALIGN));
        let read = decode(&block).expect("as it was written");
        let entries: Vec<_> = (0..read.len())
            .map(|at| (read.key(at), read.value(at)))
            .collect();
        assert_eq!(entries, [(&b"a"[..], &b"1"[..]), (&b"bcd"[..], &b""[..])]);
        for at in 0..block.len() {
            let mut changed = block.clone();
            changed[at] ^= 1;
            assert!(decode(&changed).is_none(), "byte {at} is checked");
        }
        assert!(decode(&block[..3]).is_none() && decode(&[]).is_none());
    }
}
