//! Files with direct I/O.

use std::io;
use std::path::Path;

use bytes::Bytes;

use crate::context::{self, Backend};
use crate::dma::DmaBuf;
use crate::limits::{ALIGN, MAX_IO_BYTES};
use crate::{real, sim};

/// How a file is opened. Reading is always possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Also for writing.
    pub write: bool,
    /// Made when it does not exist; needs `write`.
    pub create: bool,
    /// Made, and refused when it exists; needs `write`.
    pub create_new: bool,
    /// Cut to no bytes; needs `write`.
    pub truncate: bool,
}

impl OpenOptions {
    /// Opens an existing file for reading.
    pub fn read() -> OpenOptions {
        OpenOptions::default()
    }

    /// Opens an existing file for reading and writing.
    pub fn write() -> OpenOptions {
        OpenOptions {
            write: true,
            ..OpenOptions::default()
        }
    }

    /// Opens a file for reading and writing, making it when it does not exist.
    pub fn create() -> OpenOptions {
        OpenOptions {
            write: true,
            create: true,
            ..OpenOptions::default()
        }
    }

    /// Makes a file that must not exist.
    pub fn create_new() -> OpenOptions {
        OpenOptions {
            write: true,
            create_new: true,
            ..OpenOptions::default()
        }
    }

    /// Also cuts the file to no bytes.
    pub fn truncate(self) -> OpenOptions {
        OpenOptions {
            truncate: true,
            ..self
        }
    }
}

/// An open file of this core. Clones are the same handle.
///
/// A new file is durable only when its directory was synced after it was made, its bytes and its
/// length only when [`File::datasync`] was called after the writes had completed. Dropping the
/// future of an operation does not take the operation back.
#[derive(Clone)]
pub struct File(FileKind);

#[derive(Clone)]
enum FileKind {
    Real(real::RealFile),
    Sim(sim::SimFile),
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn check_transfer(offset: u64, len: usize) -> io::Result<()> {
    if !offset.is_multiple_of(ALIGN as u64) {
        return Err(invalid(format!(
            "file offset {offset} is not a multiple of {ALIGN}"
        )));
    }
    if len == 0 || !len.is_multiple_of(ALIGN) {
        return Err(invalid(format!(
            "transfer length {len} is not a positive multiple of {ALIGN}"
        )));
    }
    if len > MAX_IO_BYTES {
        return Err(invalid(format!(
            "transfer length {len} exceeds the limit of {MAX_IO_BYTES} bytes"
        )));
    }
    if offset
        .checked_add(len as u64)
        .is_none_or(|end| end > i64::MAX as u64)
    {
        return Err(invalid(format!("file offset {offset} is out of range")));
    }
    Ok(())
}

impl File {
    /// Opens a file.
    pub async fn open(path: impl AsRef<Path>, options: OpenOptions) -> io::Result<File> {
        if !options.write && (options.create || options.create_new || options.truncate) {
            return Err(invalid(
                "a file that is made or cut must be opened for writing".to_owned(),
            ));
        }
        let path = path.as_ref();
        let context = context::current();
        match &context.backend {
            Backend::Real(_) => real::RealFile::open(path, &options)
                .await
                .map(|file| File(FileKind::Real(file))),
            Backend::Sim(core) => sim::SimFile::open(core, path, &options)
                .await
                .map(|file| File(FileKind::Sim(file))),
        }
    }

    /// Reads `len` bytes at `offset`, both multiples of [`ALIGN`]. At the end of the file the
    /// buffer has the bytes that exist, past it none.
    pub async fn read_at(&self, offset: u64, len: usize) -> io::Result<DmaBuf> {
        check_transfer(offset, len)?;
        match &self.0 {
            FileKind::Real(file) => file.read_at(offset, len).await,
            FileKind::Sim(file) => file.read_at(offset, len).await,
        }
    }

    /// Writes all of `data` at `offset`; both the offset and the length are multiples of [`ALIGN`].
    pub async fn write_at(&self, offset: u64, data: DmaBuf) -> io::Result<()> {
        check_transfer(offset, data.len())?;
        match &self.0 {
            FileKind::Real(file) => file.write_at(offset, data).await,
            FileKind::Sim(file) => file.write_at(offset, data.into_bytes()).await,
        }
    }

    /// Writes all of `parts`, one behind the other, at `offset`. Each begins at an address that is
    /// a multiple of [`ALIGN`] and has a length that is one; together they are at most one
    /// transfer.
    pub async fn write_parts_at(&self, offset: u64, parts: Vec<Bytes>) -> io::Result<()> {
        check_transfer(offset, parts.iter().map(Bytes::len).sum())?;
        for part in &parts {
            if part.is_empty()
                || !part.len().is_multiple_of(ALIGN)
                || !part.as_ptr().addr().is_multiple_of(ALIGN)
            {
                return Err(invalid(format!(
                    "a part of {} bytes at {:?} is not aligned to {ALIGN}",
                    part.len(),
                    part.as_ptr()
                )));
            }
        }
        match &self.0 {
            FileKind::Real(file) => file.write_parts_at(offset, parts).await,
            FileKind::Sim(file) => file.write_at(offset, parts.concat().into()).await,
        }
    }

    /// Writes all of `data` at `offset`, as [`File::write_at`] does, and makes it durable as
    /// [`File::datasync`] would.
    pub async fn write_durable_at(&self, offset: u64, data: DmaBuf) -> io::Result<()> {
        check_transfer(offset, data.len())?;
        match &self.0 {
            FileKind::Real(file) => file.write_durable_at(offset, data).await,
            FileKind::Sim(file) => {
                file.write_at(offset, data.into_bytes()).await?;
                file.datasync().await
            }
        }
    }

    /// Makes durable every write that had completed before this call, and the length that reading
    /// them needs.
    pub async fn datasync(&self) -> io::Result<()> {
        match &self.0 {
            FileKind::Real(file) => file.datasync().await,
            FileKind::Sim(file) => file.datasync().await,
        }
    }

    /// Reserves space for the first `len` bytes and makes the file at least that long; new bytes
    /// are zero.
    pub async fn allocate(&self, len: u64) -> io::Result<()> {
        match &self.0 {
            FileKind::Real(file) => file.allocate(len).await,
            FileKind::Sim(file) => file.allocate(len).await,
        }
    }

    /// Cuts or extends the file with zeros.
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        match &self.0 {
            FileKind::Real(file) => file.set_len(len).await,
            FileKind::Sim(file) => file.set_len(len).await,
        }
    }

    /// The file's length in bytes.
    pub async fn len(&self) -> io::Result<u64> {
        match &self.0 {
            FileKind::Real(file) => file.len().await,
            FileKind::Sim(file) => file.len().await,
        }
    }

    /// Closes this handle. Writes nothing back: only [`File::datasync`] makes anything durable.
    pub async fn close(self) -> io::Result<()> {
        match self.0 {
            FileKind::Real(file) => file.close().await,
            FileKind::Sim(file) => file.close().await,
        }
    }
}
