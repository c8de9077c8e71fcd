//! What one durable write costs on the raw disk: the floor of an acknowledgement that is journaled.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// One frame of a log.
const WRITE_BYTES: usize = 4096;
const FILE_BYTES: usize = 64 << 20;

#[repr(align(4096))]
struct Frame([u8; WRITE_BYTES]);

/// The median time in microseconds of a write of 4 KiB past the kernel's cache into space that was
/// written before, durable when it returns: RWF_DSYNC, as one group commit does it.
pub fn durable_write_us(directory: &Path, duration: Duration) -> Result<f64, String> {
    let path = directory.join("raw-disk");
    let measured = measure(&path, duration).map_err(|error| format!("{}: {error}", path.display()));
    // What the file held is nothing; that it cannot be removed is nothing to fail for.
    let _ = std::fs::remove_file(&path);
    measured
}

fn measure(path: &Path, duration: Duration) -> std::io::Result<f64> {
    std::fs::write(path, vec![1; FILE_BYTES])?;
    let file = File::options()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)?;
    file.sync_all()?;
    let frame = Frame([2; WRITE_BYTES]);
    let began = Instant::now();
    let mut micros = Vec::new();
    let mut at = 0;
    while began.elapsed() < duration || micros.is_empty() {
        let start = Instant::now();
        let part = libc::iovec {
            iov_base: frame.0.as_ptr() as *mut libc::c_void,
            iov_len: WRITE_BYTES,
        };
        // SAFETY: `part` names a frame that lives during the call and is only read; there is one of
        // it.
        let written = unsafe {
            libc::pwritev2(
                file.as_raw_fd(),
                &part,
                1,
                at as libc::off_t,
                libc::RWF_DSYNC,
            )
        };
        if written != WRITE_BYTES as isize {
            return Err(std::io::Error::last_os_error());
        }
        micros.push(start.elapsed().as_nanos() as f64 / 1e3);
        at = (at + WRITE_BYTES) % FILE_BYTES;
    }
    micros.sort_by(f64::total_cmp);
    Ok(micros[micros.len() / 2])
}
