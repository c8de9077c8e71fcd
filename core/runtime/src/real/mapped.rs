//! Maps of closed files.
//!
//! A process that touches a page of a map which the device cannot read ends. So the kernel is asked
//! first to bring a window of the file into memory. Where it cannot, what is asked for is read by a
//! call, which says why. A page that the kernel has dropped again since, as memory is short, is
//! read when it is touched: there an error of the device does end the process.
// The blocking thread is where the standard library's files may be used.
#![allow(clippy::disallowed_methods)]

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::{Advice, Mmap};

use super::blocking::run;
use super::limits::MAPPED_WINDOW_BYTES;
use super::sys;

/// What the map is made of, for the blocking thread.
struct Mapped {
    file: File,
    map: Mmap,
}

/// A mapped file.
#[derive(Clone)]
pub(crate) struct RealMapped {
    mapped: Arc<Mapped>,
    /// All of the map.
    bytes: Bytes,
    /// Which of its windows are in memory, or were.
    present: Rc<RefCell<Vec<bool>>>,
}

/// The bytes of a map, which stays as long as they do.
struct Owner(Arc<Mapped>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0.map
    }
}

impl RealMapped {
    pub async fn open(path: &Path) -> io::Result<RealMapped> {
        let path = path.to_owned();
        let mapped = run(move || {
            let file = File::open(path)?;
            // What is read is the device's, not what the kernel remembers of it.
            sys::forget_cached(&file)?;
            // SAFETY: the map is read-only, and by the contract of `MappedFile` no process cuts or
            // writes the file while it is there.
            let map = unsafe { Mmap::map(&file)? };
            Ok(Arc::new(Mapped { file, map }))
        })
        .await?;
        let windows = mapped.map.len().div_ceil(MAPPED_WINDOW_BYTES);
        Ok(RealMapped {
            bytes: Bytes::from_owner(Owner(mapped.clone())),
            mapped,
            present: Rc::new(RefCell::new(vec![false; windows])),
        })
    }

    pub async fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let start = start.min(self.bytes.len());
        let end = start.saturating_add(len).min(self.bytes.len());
        for window in start / MAPPED_WINDOW_BYTES..end.div_ceil(MAPPED_WINDOW_BYTES) {
            if !self.bring(window).await {
                let mapped = self.mapped.clone();
                return run(move || mapped.read(start, end)).await;
            }
        }
        Ok(self.bytes.slice(start..end))
    }

    /// Brings a window into memory, if it was not there yet; false if that fails.
    async fn bring(&self, window: usize) -> bool {
        if self.present.borrow()[window] {
            return true;
        }
        let mapped = self.mapped.clone();
        let brought = run(move || mapped.bring(window)).await.is_ok();
        self.present.borrow_mut()[window] = brought;
        brought
    }
}

impl Mapped {
    fn bring(&self, window: usize) -> io::Result<()> {
        let start = window * MAPPED_WINDOW_BYTES;
        let len = MAPPED_WINDOW_BYTES.min(self.map.len() - start);
        // Starts long reads; the call behind it waits for them, and reports failure.
        let _ = self.map.advise_range(Advice::WillNeed, start, len);
        // Kernels before 5.14 do not know it.
        self.map.advise_range(Advice::PopulateRead, start, len)
    }

    /// Reads a part of the file without the map.
    fn read(&self, start: usize, end: usize) -> io::Result<Bytes> {
        let mut part = vec![0; end - start];
        self.file.read_exact_at(&mut part, start as u64)?;
        Ok(part.into())
    }
}
