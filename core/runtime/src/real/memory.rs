//! Memory that is there before it is needed: resident, cleared, never swapped out.
#![allow(clippy::disallowed_methods)] // Runs before there is a core.

use std::io;
use std::ops::Range;
use std::thread;

use super::preflight::{Problem, maps_fields, problem};
use super::sys;

/// What the kernel backs with one huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Maps at least `bytes` of zeroed memory, locked, for as long as the process lives; begins and
/// ends at huge pages. What takes the time is that the kernel finds and clears it, so `threads`
/// threads share it.
///
/// The problem names the limit (`RLIMIT_MEMLOCK`), or that the machine has less.
pub fn map_locked(bytes: usize, threads: usize) -> Result<Range<usize>, Problem> {
    let size = bytes.next_multiple_of(HUGE_PAGE);
    let mapped = size + HUGE_PAGE;
    // SAFETY: a new mapping, where nothing is.
    let place = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if place == libc::MAP_FAILED {
        return Err(explain(bytes, &io::Error::last_os_error()));
    }
    let start = place.addr().next_multiple_of(HUGE_PAGE);
    // SAFETY: the mapping of above, which is not in use yet. A refusal costs speed only.
    unsafe { libc::madvise(start as *mut libc::c_void, size, libc::MADV_HUGEPAGE) };
    lock(start..start + size, threads)?;
    Ok(start..start + size)
}

/// Locks what is mapped around an address in one piece, its first `bytes` at most; returns how many
/// there are. Contents stay.
pub fn lock_around(address: usize, bytes: usize, threads: usize) -> Result<usize, Problem> {
    let maps = std::fs::read_to_string("/proc/self/maps")
        .map_err(|error| problem(format!("/proc/self/maps cannot be read: {error}")))?;
    let found = maps
        .lines()
        .filter_map(|line| maps_fields(line).map(|(range, ..)| range))
        .find(|range| range.contains(&address));
    let Some(range) = found else {
        return Ok(0);
    };
    let size = range.len().min(bytes);
    lock(range.start..range.start + size, threads)?;
    Ok(size)
}

/// Locks a range, in pieces on several threads.
fn lock(range: Range<usize>, threads: usize) -> Result<(), Problem> {
    raise_limit().map_err(|error| explain(range.len(), &error))?;
    let share = range
        .len()
        .div_ceil(threads.max(1))
        .next_multiple_of(HUGE_PAGE);
    let pieces = range.clone().step_by(share.max(1));
    thread::scope(|scope| {
        let running: Vec<_> = pieces
            .map(|start| {
                let size = share.min(range.end - start);
                scope.spawn(move || {
                    // SAFETY: locking changes nothing of what pages hold; a range that is not
                    // mapped is refused.
                    match unsafe { libc::mlock(start as *const libc::c_void, size) } {
                        0 => Ok(()),
                        _ => Err(io::Error::last_os_error()),
                    }
                })
            })
            .collect();
        running
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(locked) => locked,
                Err(panic) => std::panic::resume_unwind(panic),
            })
    })
    .map_err(|error| explain(range.len(), &error))
}

/// As with open files: what the hard limit allows is not asked of the user.
fn raise_limit() -> io::Result<()> {
    let (soft, hard) = sys::limit(libc::RLIMIT_MEMLOCK)?;
    if soft < hard {
        sys::set_soft_limit(libc::RLIMIT_MEMLOCK, hard, hard)?;
    }
    Ok(())
}

fn explain(bytes: usize, error: &io::Error) -> Problem {
    let mib = bytes >> 20;
    let limit = sys::limit(libc::RLIMIT_MEMLOCK).map_or(u64::MAX, |(_, hard)| hard);
    problem(match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) if limit < bytes as u64 => format!(
            "{mib} MiB of memory cannot be locked: the limit is {} KiB; raise it with `ulimit -l unlimited`, \
             LimitMEMLOCK=infinity of the service, or `--ulimit memlock=-1` of the container",
            limit >> 10
        ),
        Some(libc::ENOMEM | libc::EAGAIN) => format!(
            "{mib} MiB of memory cannot be locked: there is not as much; take a smaller --wiredTigerCacheSizeGB"
        ),
        _ => format!("{mib} MiB of memory cannot be locked: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What may be locked anywhere: 8 MiB is the least that systems allow.
    const LITTLE: usize = 2 * HUGE_PAGE;

    /// What the kernel says of this process, in KiB.
    fn locked_kib() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
        let line = status.lines().find(|line| line.starts_with("VmLck:"));
        line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok())
            .expect("VmLck")
    }

    #[test]
    fn what_is_mapped_or_lies_around_an_address_is_locked() {
        let before = locked_kib();
        let mapped = map_locked(LITTLE - 1, 2).expect("4 MiB");
        assert_eq!(mapped.len(), LITTLE);
        assert!(mapped.start.is_multiple_of(HUGE_PAGE));
        assert!(locked_kib() >= before + LITTLE / 1024, "{}", locked_kib());
        // SAFETY: this test's own mapping.
        unsafe { libc::munlock(mapped.start as *const libc::c_void, mapped.len()) };
        let locked = lock_around(mapped.start + 1, HUGE_PAGE, 1).expect("2 MiB");
        assert!(locked > 0 && locked <= HUGE_PAGE);
        assert!(
            locked_kib() >= before + locked / 1024,
            "{} KiB",
            locked_kib()
        );
        // SAFETY: as above.
        unsafe { libc::munmap(mapped.start as *mut libc::c_void, mapped.len()) };
        assert_eq!(lock_around(1, HUGE_PAGE, 1), Ok(0));
    }

    #[test]
    fn the_problem_says_what_to_do() {
        let refused = io::Error::from_raw_os_error(libc::ENOMEM);
        let limit = sys::limit(libc::RLIMIT_MEMLOCK).expect("the limit").1;
        let line = explain(usize::MAX, &refused).to_string();
        assert!(
            limit == u64::MAX || line.contains("ulimit -l unlimited"),
            "{line}"
        );
        let line = explain(1 << 20, &refused).to_string();
        assert!(
            limit < 1 << 20 || line.contains("--wiredTigerCacheSizeGB"),
            "{line}"
        );
    }
}
