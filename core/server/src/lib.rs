//! The connection layer: from sockets to registered commands and back.
//!
//! A connection is accepted once and belongs to one core. Its task reads a message, runs the
//! command on that core's registry, and sends the reply, one after another; what a client sends
//! ahead waits in a bounded buffer. Counters are the core-local `pinion_wire::ServerCounters`.

mod connection;
mod core;
mod direct;
mod dispatch;
mod frame;
pub mod limits;
mod pool;
mod remote;
mod serve;
mod unwind;

pub use crate::core::ServerOptions;
pub use direct::Direct;
pub use pool::{
    HostFigures, Introduction, Pool, PoolLimits, PoolOptions, PooledConnection, Resend,
};
pub use remote::{Outgoing, Remote, RemoteError, RemoteReply};
pub use serve::{drain, install, serve};
