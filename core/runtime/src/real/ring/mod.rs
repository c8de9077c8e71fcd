//! One io_uring per core, for sockets and files: the ring, its receive buffers, its one-shot
//! requests.

mod buffers;
mod ops;
mod uring;

pub(super) use buffers::{GROUP, RecvBuffers};
pub(super) use ops::{Keep, Op, OpTable};
pub(super) use uring::{Completion, Uring};

/// What a completion belongs to: the high byte of its user data, over the index in that kind's
/// table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    /// Answers of cancel requests: no task waits for them.
    Ignored = 0,
    /// The core's eventfd was signalled.
    Bell = 1,
    /// A one-shot request in the table of operations.
    Op = 2,
    /// Multishot accept of a listener.
    Accept = 3,
    /// Multishot receive of a connection.
    Receive = 4,
    /// Send of a connection.
    Send = 5,
}

/// The user data of a request.
pub(super) fn user_data(kind: Kind, index: u32) -> u64 {
    (kind as u64) << 56 | index as u64
}

/// What a completion's user data says.
pub(super) fn parse_user_data(user_data: u64) -> (Kind, u32) {
    let kind = match (user_data >> 56) as u8 {
        0 => Kind::Ignored,
        1 => Kind::Bell,
        2 => Kind::Op,
        3 => Kind::Accept,
        4 => Kind::Receive,
        5 => Kind::Send,
        other => unreachable!("completion of unknown kind {other}"),
    };
    (kind, user_data as u32)
}
