//! Checkpoints: when they are taken, at which timestamp and pace, and what they write.
//!
//! In reading order: `intervals` and `horizon` say when and as of which timestamp, `pins` what has
//! to stay, `demand` what asks for one; `checkpointer` takes a checkpoint at the `pace` of each
//! core; `layers` write changes that no checkpoint may hold, `loads` trees that were built outside
//! of the log.

mod checkpointer;
mod demand;
mod horizon;
mod intervals;
mod layers;
mod loads;
mod pace;
mod pins;
mod turn;

pub(super) use checkpointer::{NodeState, on_node};
pub(super) use demand::{CheckpointDemand, CheckpointTimes};
pub(super) use horizon::HorizonBounds;
pub(super) use intervals::Intervals;
pub(super) use layers::KeptLayers;
pub(super) use pins::Pins;
pub(super) use turn::{Turn, Turns};
