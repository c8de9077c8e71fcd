//! What the system must offer, checked before anything starts: each check answers with one line
//! that says what is missing and how to get it.
#![allow(clippy::disallowed_methods)] // Runs before there is a core, or on a thread that is none.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use io_uring::{IoUring, Probe, opcode};

use super::ring::{RecvBuffers, Uring};
use super::sys;
use crate::DmaBuf;
use crate::limits::ALIGN;

/// The oldest kernel with all that is used: multishot receive came with 6.0.
const KERNEL: (u32, u32) = (6, 0);
/// Locked memory that glommio asks for, per core.
const MEMLOCK_BYTES: u64 = 512 * 1024;
/// Open files below which a node would refuse clients early.
const OPEN_FILES_WANTED: u64 = 64_000;

/// A missing precondition; prints as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

pub(super) fn problem(message: impl Into<String>) -> Problem {
    Problem {
        message: message.into(),
    }
}

/// What was found to be less than good, but enough to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreflightReport {
    /// Soft limit of open files after it was raised.
    pub open_files: u64,
    /// One line each, for the log.
    pub warnings: Vec<String>,
}

/// All checks for a node of `cores` cores with its data in `directory`, which must exist. Raises
/// the soft limit of open files to the hard one.
pub fn preflight(cores: usize, directory: &Path) -> Result<PreflightReport, Problem> {
    check_system(cores)?;
    check_direct_io(directory)?;
    let mut report = PreflightReport {
        open_files: raise_open_files()?,
        ..PreflightReport::default()
    };
    if report.open_files < OPEN_FILES_WANTED {
        report.warnings.push(format!(
            "At most {} files and connections can be open at once; raise the hard limit (ulimit -Hn, or LimitNOFILE= of \
             the service) to {OPEN_FILES_WANTED} or more",
            report.open_files
        ));
    }
    Ok(report)
}

/// Kernel, io_uring and locked memory.
pub(super) fn check_system(cores: usize) -> Result<(), Problem> {
    check_kernel(sys::kernel_version())?;
    check_memlock(
        sys::limit(libc::RLIMIT_MEMLOCK)
            .map_err(|error| problem(format!("getrlimit failed: {error}")))?,
        cores,
    )?;
    check_uring()
}

fn check_kernel(version: Option<(u32, u32)>) -> Result<(), Problem> {
    match version {
        Some(version) if version < KERNEL => Err(problem(format!(
            "Linux {}.{} is too old: the network ring needs multishot receive; run Linux {}.{} or newer",
            version.0, version.1, KERNEL.0, KERNEL.1
        ))),
        // An unreadable version is no reason to refuse: the ring is tried out below.
        _ => Ok(()),
    }
}

fn check_memlock((soft, _hard): (u64, u64), cores: usize) -> Result<(), Problem> {
    if soft >= MEMLOCK_BYTES {
        return Ok(());
    }
    Err(problem(format!(
        "only {} KiB of memory may be locked, but each executor checks for {} KiB ({cores} cores); raise it with \
         `ulimit -l unlimited`, LimitMEMLOCK=infinity of the service, or `--ulimit memlock=-1` of the container",
        soft / 1024,
        MEMLOCK_BYTES / 1024
    )))
}

fn check_uring() -> Result<(), Problem> {
    let plain = IoUring::new(8).map_err(|error| explain_uring(&error))?;
    let mut probe = Probe::new();
    if plain.submitter().register_probe(&mut probe).is_ok() {
        let needed = [
            ("accept", opcode::AcceptMulti::CODE),
            ("receive", opcode::RecvMulti::CODE),
            ("send", opcode::Send::CODE),
            ("read", opcode::Read::CODE),
            ("write", opcode::Write::CODE),
            ("fsync", opcode::Fsync::CODE),
        ];
        if let Some((name, _)) = needed.iter().find(|(_, code)| !probe.is_supported(*code)) {
            return Err(problem(format!(
                "this system's io_uring does not offer the operation `{name}`; allow it, or run Linux {}.{} or newer",
                KERNEL.0, KERNEL.1
            )));
        }
    }
    drop(plain);
    let uring = Uring::new().map_err(|error| explain_uring(&error))?;
    let buffers = RecvBuffers::register(&uring).map_err(|error| {
        problem(format!(
            "io_uring refuses provided buffer rings ({error}); run Linux {}.{} or newer",
            KERNEL.0, KERNEL.1
        ))
    })?;
    drop(uring);
    drop(buffers);
    Ok(())
}

fn explain_uring(error: &io::Error) -> Problem {
    problem(match error.raw_os_error() {
        Some(libc::ENOSYS) => "io_uring is not available (ENOSYS): the kernel lacks it or a seccomp filter hides it; \
             enable CONFIG_IO_URING, or allow io_uring in the container's seccomp profile (Docker: \
             `--security-opt seccomp=unconfined`)"
            .to_owned(),
        Some(libc::EPERM | libc::EACCES) => "io_uring is forbidden (EPERM); set `sysctl kernel.io_uring_disabled=0`, \
             or allow io_uring in the container's seccomp profile (Docker: `--security-opt seccomp=unconfined`)"
            .to_owned(),
        Some(libc::ENOMEM) => "io_uring could not get memory (ENOMEM); raise the limit of locked memory \
             (`ulimit -l unlimited`)"
            .to_owned(),
        Some(libc::EMFILE | libc::ENFILE) => "no more files can be opened; raise `ulimit -n`".to_owned(),
        _ => format!("io_uring could not be set up: {error}"),
    })
}

/// Raises the soft limit of open files to the hard one and returns it.
pub fn raise_open_files() -> Result<u64, Problem> {
    let explain = |error: io::Error| {
        problem(format!(
            "the limit of open files cannot be read or raised: {error}"
        ))
    };
    let (soft, hard) = sys::limit(libc::RLIMIT_NOFILE).map_err(explain)?;
    if soft < hard {
        sys::set_soft_limit(libc::RLIMIT_NOFILE, hard, hard).map_err(explain)?;
    }
    Ok(hard)
}

/// Writes and reads one block with direct I/O in `directory`, which must exist.
pub fn check_direct_io(directory: &Path) -> Result<(), Problem> {
    let shown = directory.display();
    let path = directory.join(format!(".pinion-preflight-{}", std::process::id()));
    let explain = |what: &str, error: io::Error| match error.raw_os_error() {
        Some(libc::EINVAL | libc::EOPNOTSUPP) => problem(format!(
            "the file system of {shown} does not support direct I/O with {ALIGN}-byte blocks ({what}); put the data on a \
             local ext4 or XFS file system"
        )),
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => problem(format!(
            "{shown} is not writable by this user ({what}: {error}); change its owner, or choose another directory"
        )),
        Some(libc::ENOSPC | libc::EDQUOT) => problem(format!(
            "there is no space left in {shown} ({what}); free some, or choose another directory"
        )),
        Some(libc::ENOENT) => problem(format!("the directory {shown} does not exist; create it")),
        _ => problem(format!("direct I/O in {shown} failed ({what}): {error}")),
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .map_err(|error| explain("open", error))?;
    let mut block = DmaBuf::zeroed(ALIGN);
    block.fill(0x5a);
    let result = file
        .write_all_at(&block, 0)
        .map_err(|error| explain("write", error))
        .and_then(|()| {
            block.fill(0);
            file.read_exact_at(&mut block, 0)
                .map_err(|error| explain("read", error))
        })
        .and_then(|()| {
            if block.iter().all(|&byte| byte == 0x5a) {
                Ok(())
            } else {
                Err(problem(format!(
                    "direct I/O in {shown} does not return what was written"
                )))
            }
        });
    // A file left behind is overwritten by the next check and ignored by everyone else.
    let _ = std::fs::remove_file(&path);
    result
}

/// Reads the program's code from the disk before it is needed: a core that runs a part of it for
/// the first time would wait for the disk, beside a busy one for half a second. Where the kernel
/// cannot (before 5.14), nothing is lost.
pub fn load_code() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for (start, end) in maps.lines().filter_map(code_range) {
        // SAFETY: reading pages of a mapping in changes nothing of it; a range that is gone is
        // refused.
        unsafe {
            libc::madvise(
                start as *mut libc::c_void,
                end - start,
                libc::MADV_POPULATE_READ,
            )
        };
    }
}

/// The addresses of a mapping of a file that is not written.
fn code_range(line: &str) -> Option<(usize, usize)> {
    let (range, mode, path) = maps_fields(line)?;
    (path.starts_with('/') && mode.starts_with("r-")).then_some((range.start, range.end))
}

/// Addresses, mode and path of a line of `/proc/self/maps`:
/// `start-end mode offset device inode path`.
pub(super) fn maps_fields(line: &str) -> Option<(Range<usize>, &str, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let mode = fields.next()?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let range = address(start)?..address(end)?;
    Some((range, mode, fields.nth(3).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_one_line_that_says_what_to_do() {
        let kernel = check_kernel(Some((5, 15))).unwrap_err().to_string();
        assert!(
            kernel.contains("5.15") && kernel.contains("6.0"),
            "{kernel}"
        );
        assert_eq!(check_kernel(Some((6, 0))), Ok(()));
        assert_eq!(check_kernel(None), Ok(()));

        let memlock = check_memlock((65536, 65536), 2).unwrap_err().to_string();
        assert!(
            memlock.contains("64 KiB") && memlock.contains("ulimit -l"),
            "{memlock}"
        );
        assert_eq!(check_memlock((u64::MAX, u64::MAX), 2), Ok(()));

        for code in [
            libc::ENOSYS,
            libc::EPERM,
            libc::ENOMEM,
            libc::EMFILE,
            libc::EIO,
        ] {
            let line = explain_uring(&io::Error::from_raw_os_error(code)).to_string();
            assert!(!line.contains('\n') && !line.contains("  "), "{line}");
        }
    }

    #[test]
    fn a_missing_directory_is_named() {
        let line = check_direct_io(Path::new("/nonexistent/pinion"))
            .unwrap_err()
            .to_string();
        assert!(
            line.contains("/nonexistent/pinion") && line.contains("does not exist"),
            "{line}"
        );
    }

    #[test]
    fn this_machine_passes() {
        let directory = std::env::temp_dir();
        let report = preflight(1, &directory).unwrap();
        assert!(report.open_files > 0);
    }

    #[test]
    fn code_is_what_is_mapped_from_files_and_not_written() {
        let line = "5571-5580 r-xp 00001000 fe:00 77 /usr/bin/pinion";
        assert_eq!(code_range(line), Some((0x5571, 0x5580)));
        assert_eq!(
            code_range("5571-5580 rw-p 00001000 fe:00 77 /usr/bin/pinion"),
            None
        );
        assert_eq!(code_range("7ffe-7fff r-xp 00000000 00:00 0 [vdso]"), None);
        assert_eq!(code_range("7ffe-7fff r--p 00000000 00:00 0"), None);
        load_code();
    }
}
