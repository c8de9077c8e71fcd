//! File requests on a bare io_uring: what the runtime's files are compared with.

use std::fs::{File, OpenOptions};
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use pinion_runtime::DmaBuf;

/// A file that is removed when dropped, whole on disk and opened for direct I/O.
pub struct TestFile {
    pub path: PathBuf,
    pub file: File,
}

impl TestFile {
    /// Writes `len` bytes and flushes them, so that later writes change no metadata.
    pub fn make(directory: &Path, name: &str, len: u64) -> TestFile {
        let path = directory.join(format!("pinion-bench-{}-{name}", std::process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
            .expect("the directory takes direct I/O");
        let mut block = DmaBuf::zeroed(1 << 20);
        block
            .iter_mut()
            .enumerate()
            .for_each(|(index, byte)| *byte = (index * 7) as u8);
        let mut offset = 0;
        while offset < len {
            let piece = (len - offset).min(block.len() as u64) as usize;
            file.write_all_at(&block[..piece], offset)
                .expect("space for the test file");
            offset += piece as u64;
        }
        file.sync_all().expect("flush");
        TestFile { path, file }
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A ring for files.
pub struct Disk {
    ring: IoUring,
}

impl Disk {
    pub fn new() -> Disk {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(256);
        Disk {
            ring: ring.expect("io_uring"),
        }
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: callers keep buffers until the completion.
        unsafe { self.ring.submission().push(&entry) }.expect("at most 256 requests in flight");
    }

    pub fn read(&mut self, fd: RawFd, offset: u64, buffer: &mut DmaBuf, user_data: u64) {
        let entry = opcode::Read::new(Fd(fd), buffer.as_mut_ptr(), buffer.len() as u32)
            .offset(offset)
            .build();
        self.push(entry.user_data(user_data));
    }

    pub fn write(&mut self, fd: RawFd, offset: u64, buffer: &DmaBuf, flags: i32, user_data: u64) {
        let entry = opcode::Write::new(Fd(fd), buffer.as_ptr(), buffer.len() as u32)
            .offset(offset)
            .rw_flags(flags)
            .build();
        self.push(entry.user_data(user_data));
    }

    pub fn datasync(&mut self, fd: RawFd, user_data: u64) {
        let entry = opcode::Fsync::new(Fd(fd))
            .flags(FsyncFlags::DATASYNC)
            .build();
        self.push(entry.user_data(user_data));
    }

    /// Submits and waits for one completion at least; gives the user data of all that came.
    pub fn turn(&mut self, done: &mut Vec<u64>) {
        let time = Timespec::new().sec(Duration::from_secs(10).as_secs());
        let _ = self
            .ring
            .submitter()
            .submit_with_args(1, &SubmitArgs::new().timespec(&time));
        for entry in self.ring.completion() {
            assert!(entry.result() >= 0, "I/O error {}", -entry.result());
            done.push(entry.user_data());
        }
    }
}
