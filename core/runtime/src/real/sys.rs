//! The few system calls that the standard library does not offer in the form needed here.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use crate::fs::Space;

/// Nanoseconds of the monotonic clock: the same on all threads, never zero.
pub(super) fn monotonic_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// The kernel's number of the calling thread.
pub(super) fn thread_id() -> i32 {
    // SAFETY: no pointers are passed.
    unsafe { libc::gettid() }
}

/// For how many nanoseconds the kernel has worked for the calling thread: system calls, and the
/// pages that it touched first.
pub(super) fn thread_kernel_ns() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a `rusage`, which the kernel fills; one of zeros is valid too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = usage.ru_stime;
    time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000
}

/// Nanoseconds since the Unix epoch.
pub(super) fn realtime_ns() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result.
    let result = unsafe { libc::clock_gettime(id, &mut time) };
    assert_eq!(result, 0, "clock_gettime failed");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Fills `bytes` from the operating system's generator.
pub(crate) fn fill_os_random(bytes: &mut [u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: at most `rest.len()` bytes are written to `rest`.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        if got < 0 {
            let error = io::Error::last_os_error();
            assert_eq!(
                error.kind(),
                io::ErrorKind::Interrupted,
                "the system gives no random bytes: {error}"
            );
            continue;
        }
        rest = &mut rest[got as usize..];
    }
}

/// Converts the result of a system call that answers -1 on failure.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Takes ownership of a file descriptor that a system call or completion has just returned.
pub(super) fn own_fd(fd: RawFd) -> OwnedFd {
    assert!(fd >= 0, "not a file descriptor");
    // SAFETY: callers pass a descriptor that the kernel has just made for them and nothing else
    // owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A counter that wakes its reader.
pub(super) fn eventfd(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) }).map(own_fd)
}

/// Adds one to an eventfd. Async-signal-safe.
pub(super) fn eventfd_signal(fd: RawFd) {
    let one = 1u64;
    // SAFETY: eight bytes are read from `one`. A full counter means that a wake-up is pending
    // already.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

/// Waits until the eventfd has been signalled, at most `timeout`, and resets it; whether it was.
pub(super) fn eventfd_wait(fd: RawFd, timeout: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `poll` is one valid entry.
    let ready = unsafe {
        libc::poll(
            &mut poll,
            1,
            timeout.as_millis().min(i32::MAX as u128) as i32,
        )
    };
    if ready <= 0 {
        return false;
    }
    let mut value = 0u64;
    // SAFETY: eight bytes are written to `value`.
    unsafe { libc::read(fd, (&raw mut value).cast(), 8) == 8 }
}

/// How long a connection is silent before the kernel asks whether the peer is there, how long it
/// waits between two questions, and how many of them stay without an answer before the connection
/// has failed. In seconds.
const KEEP_ALIVE_IDLE: libc::c_int = 120;
const KEEP_ALIVE_PAUSE: libc::c_int = 10;
const KEEP_ALIVE_QUESTIONS: libc::c_int = 3;

/// Turns off the delay of small packets, and has the kernel find out when a peer is gone that could
/// not say so.
pub(super) fn prepare_stream(fd: RawFd) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    for (option, value) in [
        (libc::TCP_KEEPIDLE, KEEP_ALIVE_IDLE),
        (libc::TCP_KEEPINTVL, KEEP_ALIVE_PAUSE),
        (libc::TCP_KEEPCNT, KEEP_ALIVE_QUESTIONS),
    ] {
        set_option(fd, libc::IPPROTO_TCP, option, value)?;
    }
    Ok(())
}

fn set_option(
    fd: RawFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the option's value is an int that lives across the call.
    let result = unsafe {
        libc::setsockopt(
            fd,
            level,
            option,
            (&raw const value).cast(),
            std::mem::size_of_val(&value) as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// A new TCP socket for addresses of `address`'s family.
pub(super) fn tcp_socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    // SAFETY: no pointers are passed.
    check(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }).map(own_fd)
}

/// Ends one or both directions of a connection. A connection that is gone already is fine.
pub(super) fn shutdown(fd: RawFd, how: libc::c_int) {
    // SAFETY: no pointers are passed.
    unsafe { libc::shutdown(fd, how) };
}

/// A socket address in the kernel's form.
pub(super) struct RawAddress {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl RawAddress {
    pub fn new(address: &SocketAddr) -> RawAddress {
        // SAFETY: all zeroes is a valid sockaddr_storage.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let len = match address {
            SocketAddr::V4(v4) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(v4.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is large and aligned enough for every address family.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
                std::mem::size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
                std::mem::size_of::<libc::sockaddr_in6>()
            }
        };
        RawAddress {
            storage,
            len: len as libc::socklen_t,
        }
    }

    pub fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub fn len(&self) -> libc::socklen_t {
        self.len
    }

    fn parse(&self) -> io::Result<SocketAddr> {
        match self.storage.ss_family as libc::c_int {
            libc::AF_INET => {
                // SAFETY: the kernel wrote an address of this family.
                let raw = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
                Ok(SocketAddr::V4(SocketAddrV4::new(
                    ip,
                    u16::from_be(raw.sin_port),
                )))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let raw = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
                Ok(SocketAddr::V6(SocketAddrV6::new(
                    ip,
                    u16::from_be(raw.sin6_port),
                    raw.sin6_flowinfo,
                    raw.sin6_scope_id,
                )))
            }
            _ => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
        }
    }
}

/// The address of the other end.
pub(super) fn peer_address(fd: RawFd) -> io::Result<SocketAddr> {
    address(fd, libc::getpeername)
}

/// The address of this end.
pub(super) fn local_address(fd: RawFd) -> io::Result<SocketAddr> {
    address(fd, libc::getsockname)
}

type AddressCall =
    unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn address(fd: RawFd, call: AddressCall) -> io::Result<SocketAddr> {
    // SAFETY: all zeroes is a valid sockaddr_storage.
    let storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut raw = RawAddress {
        storage,
        len: std::mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t,
    };
    // SAFETY: `raw` offers `len` bytes for the address.
    check(unsafe { call(fd, (&raw mut raw.storage).cast(), &mut raw.len) })?;
    raw.parse()
}

/// Takes the exclusive advisory lock of an open file without waiting.
pub(super) fn flock_exclusive(file: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).map(drop)
}

/// The size of the file system of `path`, and what an ordinary user may still write to it.
pub(super) fn space(path: &Path) -> io::Result<Space> {
    let path = c_path(path)?;
    // SAFETY: all zeroes is a valid statvfs; path and result live across the call.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    check(unsafe { libc::statvfs(path.as_ptr(), &mut stat) })?;
    Ok(Space {
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}

/// Has the kernel drop what it keeps in memory of a file, but for what is not on the device yet.
pub(super) fn forget_cached(file: &std::fs::File) -> io::Result<()> {
    // SAFETY: no memory is passed.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// A path in the kernel's form.
pub(super) fn c_path(path: &Path) -> io::Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "a path must not contain a zero byte",
        )
    })
}

/// The CPUs this process may run on, in ascending order.
pub(super) fn affinity() -> io::Result<Vec<usize>> {
    // SAFETY: all zeroes is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set's size is passed along with it.
    check(unsafe { libc::sched_getaffinity(0, std::mem::size_of_val(&set), &mut set) })?;
    // SAFETY: every index is below CPU_SETSIZE.
    Ok((0..libc::CPU_SETSIZE as usize)
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect())
}

/// Soft and hard limit of a resource.
pub(super) fn limit(resource: libc::__rlimit_resource_t) -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place for the result.
    check(unsafe { libc::getrlimit(resource, &mut limit) })?;
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// Sets the soft limit of a resource.
pub(super) fn set_soft_limit(
    resource: libc::__rlimit_resource_t,
    soft: u64,
    hard: u64,
) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: `limit` is valid.
    check(unsafe { libc::setrlimit(resource, &limit) }).map(drop)
}

/// Installs `handler` for a signal and returns what was there before; `SA_RESTART` keeps other
/// calls undisturbed.
pub(super) fn install_handler(
    signal: libc::c_int,
    handler: extern "C" fn(libc::c_int),
) -> io::Result<libc::sigaction> {
    // SAFETY: all zeroes is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: as above.
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both structures are valid; the handler does only what is async-signal-safe.
    check(unsafe { libc::sigaction(signal, &action, &mut previous) })?;
    Ok(previous)
}

/// Puts back what [`install_handler`] returned.
pub(super) fn restore_handler(signal: libc::c_int, previous: &libc::sigaction) {
    // SAFETY: `previous` came from sigaction.
    unsafe { libc::sigaction(signal, previous, std::ptr::null_mut()) };
}

/// Kernel version as (major, minor).
pub(super) fn kernel_version() -> Option<(u32, u32)> {
    // SAFETY: all zeroes is a valid utsname.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: `name` is a valid place for the result.
    check(unsafe { libc::uname(&mut name) }).ok()?;
    let release: String = name
        .release
        .iter()
        .take_while(|&&c| c != 0)
        .map(|&c| c as u8 as char)
        .collect();
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
