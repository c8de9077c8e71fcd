//! Sorted entries that have no room in memory: a file without a name, written and read from front
//! to back.

use std::path::Path;

use pinion_runtime::{ALIGN, DmaBuf, File, OpenOptions, fs};
use pinion_wire::{Error, ErrorCode, Result};

use super::chunk::Chunk;
use crate::limits::RUN_TRANSFER_BYTES;

/// A sorted sequence of entries in a file. Each block of it holds one chunk.
pub(super) struct RunFile {
    file: File,
    /// The lengths of the blocks, which are multiples of [`ALIGN`].
    blocks: Vec<u64>,
}

/// Reads a run's chunks in their order.
pub(super) struct RunReader {
    file: File,
    blocks: std::vec::IntoIter<u64>,
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
    /// A file that is gone when it is closed, or when the process ends.
    pub(super) async fn create(path: &Path) -> Result<RunFile> {
        let create = OpenOptions::create_new();
        let file = File::open(path, create).await.map_err(failed("making"))?;
        fs::remove_file(path).await.map_err(failed("making"))?;
        Ok(RunFile {
            file,
            blocks: Vec::new(),
        })
    }

    /// Writes a chunk behind the others.
    pub(super) async fn append(&mut self, chunk: &Chunk) -> Result<()> {
        let mut block = Vec::with_capacity(chunk.memory() + 8);
        block.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
        for at in 0..chunk.len() {
            block.extend_from_slice(&(chunk.key(at).len() as u32).to_le_bytes());
            block.extend_from_slice(&(chunk.value(at).len() as u32).to_le_bytes());
        }
        for at in 0..chunk.len() {
            block.extend_from_slice(chunk.key(at));
            block.extend_from_slice(chunk.value(at));
        }
        let start: u64 = self.blocks.iter().sum();
        for (n, part) in block.chunks(RUN_TRANSFER_BYTES).enumerate() {
            let offset = start + (n * RUN_TRANSFER_BYTES) as u64;
            let written = self.file.write_at(offset, DmaBuf::padded_copy(part)).await;
            written.map_err(failed("writing"))?;
        }
        self.blocks.push(block.len().next_multiple_of(ALIGN) as u64);
        Ok(())
    }

    pub(super) fn read(&self) -> RunReader {
        RunReader {
            file: self.file.clone(),
            blocks: self.blocks.clone().into_iter(),
            offset: 0,
        }
    }
}

impl RunReader {
    /// The next chunk.
    pub(super) async fn next(&mut self) -> Result<Option<Chunk>> {
        let Some(len) = self.blocks.next() else {
            return Ok(None);
        };
        let mut block = Vec::with_capacity(len as usize);
        while (block.len() as u64) < len {
            let offset = self.offset + block.len() as u64;
            let part = (len as usize - block.len()).min(RUN_TRANSFER_BYTES);
            let part = self.file.read_at(offset, part).await;
            let part = part.map_err(failed("reading"))?;
            if part.is_empty() {
                return Err(damaged());
            }
            block.extend_from_slice(&part);
        }
        self.offset += len;
        decode(&block).map(Some).ok_or_else(damaged)
    }
}

fn damaged() -> Error {
    Error::new(
        ErrorCode::DATA_CORRUPTION_DETECTED,
        "the sorted entries of an index build are not as they were written",
    )
}

fn decode(block: &[u8]) -> Option<Chunk> {
    let number = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize);
    let count = number(block.get(..4)?)?;
    let lens = block.get(4..4 + count.checked_mul(8)?)?;
    let mut rest = &block[4 + lens.len()..];
    let mut chunk = Chunk::default();
    for len in lens.chunks_exact(8) {
        let (key, value) = (number(&len[..4])?, number(&len[4..])?);
        let entry = rest.get(..key.checked_add(value)?)?;
        chunk.push(&entry[..key], &entry[key..]);
        rest = &rest[entry.len()..];
    }
    Some(chunk)
}
