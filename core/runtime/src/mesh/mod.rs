//! The mesh: calls from one core to another, over bounded queues that never make a receiver wait.

pub mod doorbell;
mod exchange;
mod primitives;
pub mod ring;

pub(crate) use exchange::{Exchange, MeshMessage, deliver, space_available};
pub use exchange::{call_on, on_all_cores, submit_to};
