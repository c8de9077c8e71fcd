//! Recovery: merge the rings, follow the chain, distinguish a hole from damage, replay.

mod merge;
mod verify;

pub(crate) use merge::MergedLog;
pub(crate) use verify::{Chain, Damage, Verified, verify};
