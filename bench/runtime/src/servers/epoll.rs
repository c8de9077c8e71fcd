//! Echo on plain epoll, one thread.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

fn add(epoll: i32, fd: i32) {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: fd as u64,
    };
    // SAFETY: the event lives across the call.
    let result = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) };
    assert_eq!(result, 0);
}

/// Echoes once; false when the connection is over.
fn echo(stream: &mut TcpStream, buffer: &mut [u8]) -> bool {
    let len = match stream.read(buffer) {
        Ok(0) => return false,
        Ok(len) => len,
        Err(error) => return error.kind() == ErrorKind::WouldBlock,
    };
    let mut rest = &buffer[..len];
    while !rest.is_empty() {
        match stream.write(rest) {
            Ok(sent) => rest = &rest[sent..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(_) => return false,
        }
    }
    true
}

pub fn serve(cpu: usize) {
    crate::cpu::pin(cpu);
    let listener = super::listen();
    listener.set_nonblocking(true).expect("non-blocking");
    // SAFETY: no pointers are passed.
    let epoll = unsafe { libc::epoll_create1(0) };
    add(epoll, listener.as_raw_fd());
    super::announce(listener.local_addr().expect("bound").port());
    let mut streams: BTreeMap<i32, TcpStream> = BTreeMap::new();
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 1024];
    let mut buffer = vec![0; 65536];
    loop {
        // SAFETY: the kernel writes at most `events.len()` events.
        let ready =
            unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), events.len() as i32, -1) };
        for event in events.iter().take(ready.max(0) as usize) {
            let fd = event.u64 as i32;
            if fd == listener.as_raw_fd() {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nodelay(true).expect("nodelay");
                    stream.set_nonblocking(true).expect("non-blocking");
                    add(epoll, stream.as_raw_fd());
                    streams.insert(stream.as_raw_fd(), stream);
                }
            } else if let Some(stream) = streams.get_mut(&fd)
                && !echo(stream, &mut buffer)
            {
                streams.remove(&fd);
            }
        }
    }
}
