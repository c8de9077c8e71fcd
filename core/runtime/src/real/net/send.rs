//! Output in flight: the memory that the kernel reads while it sends.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use bytes::{Bytes, BytesMut};
use io_uring::{opcode, squeue, types};

use crate::real::limits::{COALESCE_BYTES, SEND_PIECES};

const FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;

/// One send request and what it reads. It must live, unmoved where boxed, until its completion.
pub(super) enum Outgoing {
    One(Bytes),
    Many(Box<Vector>),
}

/// A vectored send.
pub(super) struct Vector {
    header: libc::msghdr,
    slices: Vec<libc::iovec>,
    pieces: Vec<Bytes>,
    len: usize,
}

impl Outgoing {
    /// Takes pieces off the front of `queue`, which is not empty: a large one alone, small ones
    /// copied together, others as a vector.
    pub fn gather(queue: &mut VecDeque<Bytes>) -> Outgoing {
        let first = queue.pop_front().expect("there is output");
        if queue.is_empty() {
            return Outgoing::One(first);
        }
        let mut pieces = vec![first];
        let mut len = pieces[0].len();
        while pieces.len() < SEND_PIECES {
            let Some(next) = queue.pop_front() else { break };
            len += next.len();
            pieces.push(next);
        }
        if len <= COALESCE_BYTES {
            let mut together = BytesMut::with_capacity(len);
            pieces
                .iter()
                .for_each(|piece| together.extend_from_slice(piece));
            return Outgoing::One(together.freeze());
        }
        // SAFETY: all zeroes is a valid msghdr: no name, no slices, no control data.
        let header: libc::msghdr = unsafe { std::mem::zeroed() };
        let slices = pieces
            .iter()
            .map(|piece| libc::iovec {
                iov_base: piece.as_ptr() as *mut _,
                iov_len: piece.len(),
            })
            .collect();
        Outgoing::Many(Box::new(Vector {
            header,
            slices,
            pieces,
            len,
        }))
    }

    pub fn len(&self) -> usize {
        match self {
            Outgoing::One(bytes) => bytes.len(),
            Outgoing::Many(vector) => vector.len,
        }
    }

    /// The request. It points into `self`, which the caller keeps until the completion.
    pub fn entry(&mut self, fd: RawFd) -> squeue::Entry {
        match self {
            Outgoing::One(bytes) => opcode::Send::new(
                types::Fd(fd),
                bytes.as_ptr(),
                bytes.len().min(u32::MAX as usize) as u32,
            )
            .flags(FLAGS)
            .build(),
            Outgoing::Many(vector) => {
                vector.header.msg_iov = vector.slices.as_mut_ptr();
                vector.header.msg_iovlen = vector.slices.len();
                opcode::SendMsg::new(types::Fd(fd), &vector.header)
                    .flags(FLAGS as u32)
                    .build()
            }
        }
    }

    /// Puts what was not sent, all but the first `sent` bytes, back to the front of `queue`.
    pub fn put_back(self, sent: usize, queue: &mut VecDeque<Bytes>) {
        let mut skip = sent;
        let pieces = match self {
            Outgoing::One(bytes) => vec![bytes],
            Outgoing::Many(vector) => vector.pieces,
        };
        let mut rest = Vec::new();
        for mut piece in pieces {
            let gone = skip.min(piece.len());
            skip -= gone;
            if gone < piece.len() {
                rest.push(piece.split_off(gone));
            }
        }
        assert_eq!(skip, 0, "the kernel sent more than it was given");
        rest.into_iter()
            .rev()
            .for_each(|piece| queue.push_front(piece));
    }
}
