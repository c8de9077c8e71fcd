//! Waiting between attempts of a write that conflicts, or finds no memory.

use pinion_runtime::Duration;
use pinion_service::generate::jitter;
use pinion_service::interrupt::{check, interruptible};
use pinion_service::metrics::metrics;
use pinion_service::session_ids::is_in;
use pinion_wire::{OpContext, Result};

use crate::parameters::parameters;

/// Counts the attempts of one statement.
#[derive(Default)]
pub(crate) struct Backoff {
    conflicts: u32,
    full: u32,
}

impl Backoff {
    /// Waits after a conflict, as long as it takes: an open transaction holds what it has written
    /// for a minute. False when the error must go to the client.
    pub(crate) async fn conflict(&mut self, ctx: &OpContext) -> Result<bool> {
        check(ctx)?;
        // What a transaction has read does not change: it is tried again as a whole, by its client,
        // and counted with its command.
        if is_in(ctx) {
            return Ok(false);
        }
        self.conflicts += 1;
        metrics().counters.write_conflicts.inc();
        if self.conflicts < 4 {
            pinion_runtime::yield_now().await;
        } else {
            // Random, so that two that met do not meet again; growing, so that many that meet
            // spread out.
            let most_us = 100u64 << self.conflicts.min(10);
            let us = jitter(most_us);
            pinion_runtime::sleep(Duration::from_micros(50 + us)).await;
        }
        Ok(true)
    }

    /// Waits for memory, each time longer than the time before; false after too many attempts: the
    /// client gets the error then.
    pub(crate) async fn cache_full(&mut self, ctx: &OpContext) -> Result<bool> {
        check(ctx)?;
        let parameters = parameters().borrow().storage;
        if !parameters.unavailable_is_an_error {
            return self.conflict(ctx).await;
        }
        self.full += 1;
        metrics().counters.unavailable.inc();
        if is_in(ctx) {
            return Ok(false);
        }
        if self.full > parameters.unavailable_retries.unsigned_abs() && !ctx.client.is_internal() {
            metrics().counters.unavailable_escaped.inc();
            return Ok(false);
        }
        // The node's own writes are tried for ever, and not more and more rarely.
        let times = self.full.min(parameters.unavailable_retries.unsigned_abs());
        let wait = parameters.unavailable_backoff.saturating_mul(times);
        interruptible(ctx, pinion_runtime::sleep(wait)).await?;
        Ok(true)
    }
}
