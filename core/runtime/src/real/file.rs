//! Files: direct I/O from and to [`DmaBuf`] on the core's ring.
//!
//! glommio's own `DmaFile` reads into and writes from its own buffers only, which belong to one
//! executor; Pinion's buffers cross cores and become `Bytes` without a copy. So file requests go to
//! the same ring as the sockets.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;

use super::blocking;
use super::core::RealCore;
use super::ring::{Keep, Op};
use super::sys;
use crate::{DmaBuf, OpenOptions};

/// Counters of a core's file operations.
#[derive(Default)]
pub(super) struct FileCounters {
    flushes: Cell<u64>,
    reads: Cell<u64>,
    read_bytes: Cell<u64>,
    writes: Cell<u64>,
    write_bytes: Cell<u64>,
}

impl FileCounters {
    pub fn count(&self, stats: &mut crate::RuntimeStats) {
        stats.device_flushes = self.flushes.get();
        stats.file_reads = self.reads.get();
        stats.file_read_bytes = self.read_bytes.get();
        stats.file_writes = self.writes.get();
        stats.file_write_bytes = self.write_bytes.get();
    }
}

/// An open file.
#[derive(Clone)]
pub(crate) struct RealFile {
    core: RealCore,
    fd: Rc<OwnedFd>,
}

impl RealFile {
    pub async fn open(path: &Path, options: &OpenOptions) -> io::Result<RealFile> {
        let core = RealCore::current();
        let mut flags = libc::O_CLOEXEC | libc::O_DIRECT;
        // Read and write together: some file systems and drivers refuse or slow direct reads
        // otherwise.
        flags |= if options.write {
            libc::O_RDWR
        } else {
            libc::O_RDONLY
        };
        if options.create_new {
            flags |= libc::O_CREAT | libc::O_EXCL;
        } else if options.create {
            flags |= libc::O_CREAT;
        }
        if options.truncate {
            flags |= libc::O_TRUNC;
        }
        let (result, _) = Op::open(&core, sys::c_path(path)?, flags, 0o600).await;
        let fd = sys::own_fd(result? as i32);
        Ok(RealFile {
            core,
            fd: Rc::new(fd),
        })
    }

    pub async fn read_at(&self, offset: u64, len: usize) -> io::Result<DmaBuf> {
        let mut buffer = DmaBuf::zeroed(len);
        let mut done = 0;
        loop {
            let (result, keep) = Op::read(&self.core, self.fd.clone(), offset, buffer, done).await;
            let Keep::Buffer(_, returned) = keep else {
                unreachable!("a read keeps its buffer")
            };
            buffer = returned;
            match result {
                Ok(read) => done += read as usize,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            // A short read ends at the end of the file; a direct read continues only from an
            // aligned offset.
            let ended =
                !done.is_multiple_of(crate::limits::ALIGN) || result.is_ok_and(|read| read == 0);
            if done == len || ended {
                break;
            }
        }
        add(&self.core.files().reads, 1);
        add(&self.core.files().read_bytes, done as u64);
        buffer.truncate(done);
        Ok(buffer)
    }

    pub async fn write_at(&self, offset: u64, data: DmaBuf) -> io::Result<()> {
        self.write(offset, data, false).await
    }

    /// One request to the kernel where a write and then a flush are two, each with a wake-up at its
    /// end.
    pub async fn write_durable_at(&self, offset: u64, data: DmaBuf) -> io::Result<()> {
        self.write(offset, data, true).await?;
        add(&self.core.files().flushes, 1);
        Ok(())
    }

    async fn write(&self, offset: u64, data: DmaBuf, durable: bool) -> io::Result<()> {
        self.write_whole(data.len(), data, async |buffer, done| {
            let (result, keep) =
                Op::write(&self.core, self.fd.clone(), offset, buffer, done, durable).await;
            let Keep::Buffer(_, buffer) = keep else {
                unreachable!("a write keeps its buffer")
            };
            (result, buffer)
        })
        .await
    }

    pub async fn write_parts_at(&self, offset: u64, parts: Vec<Bytes>) -> io::Result<()> {
        let len = parts.iter().map(Bytes::len).sum();
        self.write_whole(len, parts, async |parts, done| {
            let (result, keep) =
                Op::write_parts(&self.core, self.fd.clone(), offset, parts, done).await;
            let Keep::Parts(_, parts, _) = keep else {
                unreachable!("a write keeps its parts")
            };
            (result, parts)
        })
        .await
    }

    /// Writes all `len` bytes of `data`. `write` begins at a place of it and gives it back.
    async fn write_whole<D>(
        &self,
        len: usize,
        mut data: D,
        write: impl AsyncFn(D, usize) -> (io::Result<u32>, D),
    ) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let (result, returned) = write(data, done).await;
            data = returned;
            match result {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written as usize,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
        }
        add(&self.core.files().writes, 1);
        add(&self.core.files().write_bytes, len as u64);
        Ok(())
    }

    pub async fn datasync(&self) -> io::Result<()> {
        // Never tried again after an error: the kernel may have dropped the pages that it could not
        // write.
        Op::datasync(&self.core, self.fd.clone()).await.0?;
        add(&self.core.files().flushes, 1);
        Ok(())
    }

    pub async fn allocate(&self, len: u64) -> io::Result<()> {
        Op::allocate(&self.core, self.fd.clone(), len).await.0?;
        Ok(())
    }

    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        let file = std::fs::File::from(self.fd.try_clone()?);
        blocking::run(move || file.set_len(len)).await
    }

    pub async fn len(&self) -> io::Result<u64> {
        let file = std::fs::File::from(self.fd.try_clone()?);
        Ok(file.metadata()?.len())
    }

    /// Closes this handle; the file is closed with the last one.
    pub async fn close(self) -> io::Result<()> {
        drop(self);
        Ok(())
    }
}

fn add(counter: &Cell<u64>, n: u64) {
    counter.set(counter.get() + n);
}
