//! Echo on a bare io_uring: multishot accept and receive, provided buffers, one system call for
//! each batch.

use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use crate::kit::Kit;

const ACCEPT: u64 = 1 << 40;
const SEND: u64 = 1 << 41;

#[derive(Default)]
struct Peer {
    /// Bytes being sent; untouched until the completion.
    sending: Vec<u8>,
    /// Bytes that came meanwhile.
    next: Vec<u8>,
}

pub fn serve(cpu: usize) {
    crate::cpu::pin(cpu);
    let listener = super::listen();
    super::announce(listener.local_addr().expect("bound").port());
    let mut kit = Kit::new();
    kit.accept(listener.as_raw_fd(), ACCEPT);
    let mut peers: Vec<Peer> = Vec::new();
    let mut events = Vec::new();
    loop {
        kit.turn(Duration::from_secs(3600), &mut events);
        for event in events.drain(..) {
            if event.user_data == ACCEPT {
                let fd = event.result;
                set_nodelay(fd);
                if peers.len() <= fd as usize {
                    peers.resize_with(fd as usize + 1, Peer::default);
                }
                peers[fd as usize] = Peer::default();
                kit.receive(fd, fd as u64);
            } else if event.user_data & SEND != 0 {
                let fd = (event.user_data ^ SEND) as RawFd;
                let peer = &mut peers[fd as usize];
                peer.sending.clear();
                if event.result >= 0 && !peer.next.is_empty() {
                    std::mem::swap(&mut peer.sending, &mut peer.next);
                    kit.send(fd, &peer.sending, event.user_data);
                }
            } else {
                let fd = event.user_data as RawFd;
                let peer = &mut peers[fd as usize];
                if let Some(buffer) = event.buffer() {
                    let bytes = kit.bytes(buffer, event.result as usize);
                    if peer.sending.is_empty() {
                        peer.sending.extend_from_slice(bytes);
                        kit.send(fd, &peer.sending, fd as u64 | SEND);
                    } else {
                        peer.next.extend_from_slice(bytes);
                    }
                    kit.give_back(buffer);
                }
                if event.result == 0 || (event.result < 0 && event.result != -libc::ENOBUFS) {
                    // SAFETY: the descriptor came from accept and is closed once, when its receive
                    // has ended.
                    unsafe { libc::close(fd) };
                } else if !event.more() {
                    kit.receive(fd, fd as u64);
                }
            }
        }
    }
}

fn set_nodelay(fd: RawFd) {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is an int that lives across the call.
    unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&raw const on).cast(),
            4,
        );
    }
}
