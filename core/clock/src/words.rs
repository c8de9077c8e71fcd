//! The atomic words that cores share: one import, so that the loom models can replace it.

pub(crate) use core::sync::atomic::{AtomicU64, Ordering};
