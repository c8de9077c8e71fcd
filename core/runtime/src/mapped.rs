//! Files that nothing writes any more, mapped: for reads off the hot path, in any order.

use std::io;
use std::path::Path;

use bytes::Bytes;

use crate::context::{self, Backend};
use crate::limits::ALIGN;
use crate::{OpenOptions, real, sim};

/// A closed file of this core. Clones are the same map, which goes with the last of what was read
/// from it.
///
/// The caller keeps the file from being cut while it is mapped: to read what is no longer there
/// ends the process. So does what the device cannot read any more after it was read once, if the
/// kernel has dropped it meanwhile.
#[derive(Clone)]
pub struct MappedFile(MappedKind);

#[derive(Clone)]
enum MappedKind {
    Real(real::RealMapped),
    Sim(sim::SimFile),
}

impl MappedFile {
    /// Maps a file as it is now.
    ///
    /// # Errors
    /// It cannot be opened or mapped.
    pub async fn open(path: impl AsRef<Path>) -> io::Result<MappedFile> {
        let path = path.as_ref();
        let context = context::current();
        match &context.backend {
            Backend::Real(_) => real::RealMapped::open(path)
                .await
                .map(|file| MappedFile(MappedKind::Real(file))),
            Backend::Sim(core) => sim::SimFile::open(core, path, &OpenOptions::read())
                .await
                .map(|file| MappedFile(MappedKind::Sim(file))),
        }
    }

    /// The bytes from `offset` on, which are a part of the map: `len`, or those that exist; both
    /// are multiples of [`ALIGN`]. What the device has to read is read by another thread.
    ///
    /// # Errors
    /// The device has failed; the place is not aligned.
    pub async fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        if !offset.is_multiple_of(ALIGN as u64) || !len.is_multiple_of(ALIGN) {
            let message = format!("{len} bytes at {offset} are not aligned to {ALIGN}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        match &self.0 {
            MappedKind::Real(file) => file.read_at(offset, len).await,
            MappedKind::Sim(file) => Ok(file.read_at(offset, len).await?.into_bytes()),
        }
    }
}
