//! Host names to addresses, as the system's resolver knows them. It blocks, for seconds when no
//! name server answers, so each look-up has a thread of its own while it lasts.

#![allow(
    clippy::disallowed_methods,
    reason = "the thread is no core, and touches nothing of one"
)]

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::real::blocking::run_by;
use crate::real::limits::RESOLVING_AT_ONCE;

/// Look-ups under way in this process.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// One look-up's place among those under way.
struct LookupSlot;

impl LookupSlot {
    fn take() -> io::Result<LookupSlot> {
        let place = LookupSlot;
        if UNDER_WAY.fetch_add(1, Ordering::Relaxed) < RESOLVING_AT_ONCE {
            return Ok(place);
        }
        Err(io::Error::other("too many host names are being resolved"))
    }
}

impl Drop for LookupSlot {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The addresses of a host, at least one.
pub(crate) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let place = LookupSlot::take()?;
    let host = host.to_owned();
    let look_up = move || {
        let _place = place;
        let found: Vec<SocketAddr> = (host.as_str(), port).to_socket_addrs()?.collect();
        match found.is_empty() {
            true => Err(io::ErrorKind::NotFound.into()),
            false => Ok(found),
        }
    };
    run_by(look_up, |job| {
        let thread = thread::Builder::new().name("resolver".into());
        thread.spawn(job).map(drop)
    })
    .await
}
