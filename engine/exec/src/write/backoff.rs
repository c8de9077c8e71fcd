//! Waiting between attempts of a write that conflicts.

use pinion_runtime::Duration;
use pinion_wire::{OpContext, Result};

use crate::interrupt::check;
use crate::limits::MAX_CACHE_FULL_RETRIES;
use crate::state::state;
use crate::transactions::is_in;

/// Counts the attempts of one statement.
#[derive(Default)]
pub(crate) struct Backoff {
    conflicts: u32,
    full: u32,
}

impl Backoff {
    /// Waits after a conflict, as long as it takes: an open transaction holds what it has written for a minute. False when the
    /// client must be told.
    pub(crate) async fn conflict(&mut self, ctx: &OpContext) -> Result<bool> {
        check(ctx)?;
        self.conflicts += 1;
        state().metrics.counters.write_conflicts.inc();
        // What a transaction has read does not change: it is tried again as a whole, by its client.
        if is_in(ctx) {
            return Ok(false);
        }
        if self.conflicts < 4 {
            pinion_runtime::yield_now().await;
        } else {
            // Random, so that two that met do not meet again; growing, so that many that meet spread out.
            let most_us = 100u64 << self.conflicts.min(10);
            let us = state().jitter(most_us);
            pinion_runtime::sleep(Duration::from_micros(50 + us)).await;
        }
        Ok(true)
    }

    /// Waits for memory; false when it took too long.
    pub(crate) async fn cache_full(&mut self, ctx: &OpContext) -> Result<bool> {
        check(ctx)?;
        self.full += 1;
        if self.full > MAX_CACHE_FULL_RETRIES || is_in(ctx) {
            return Ok(false);
        }
        pinion_runtime::sleep(Duration::from_millis(20 + state().jitter(20))).await;
        Ok(true)
    }
}
