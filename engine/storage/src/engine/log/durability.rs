//! Group commit, and waiting for it.
//!
//! Each core runs one flusher. While a flush is on its way the next group gathers; nobody flushes for
//! himself. A journaled write at T waits until everything at or below T is durable in all rings: its core
//! asks the cores that still have such entries to flush at once, and the core whose flush lifts the
//! minimum past T tells the cores that wait (see progress/reached.rs).

use std::rc::Rc;
use std::sync::atomic::Ordering;

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, Queue, sim, spawn, submit_to, timeout, wall_ms};

use crate::engine::options::PlantedFault;
use crate::engine::storage::{Storage, storage};
use crate::ring::Ring;
use crate::types::Fatal;
use crate::watermarks::Mark;

/// What this core has asked of one other core. At most one message is on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Asking {
    flush_sent: bool,
    /// Flushing up to here was asked for.
    flush_high: Timestamp,
}

impl Storage {
    /// Waits until every write at or below `ts` is durable: what a journaled acknowledgement needs.
    pub async fn wait_durable(&self, ts: Timestamp) -> Result<(), Fatal> {
        self.check_fatal()?;
        if self.options.planted_fault == PlantedFault::AcknowledgeBeforeFlush
            || self.all_durable() >= ts
        {
            return Ok(());
        }
        self.wait_reached(Mark::Undurable, ts, || self.ask_for_flushes(ts))
            .await
    }

    /// Waits until more is durable than everything at or below `ts`. Nothing is flushed for its sake.
    ///
    /// # Errors
    /// Storage has failed.
    pub async fn wait_durable_beyond(&self, ts: Timestamp) -> Result<(), Fatal> {
        if self.all_durable() > ts {
            return Ok(());
        }
        self.check_fatal()?;
        let next = Timestamp::from_u64(ts.as_u64().saturating_add(1));
        self.wait_reached(Mark::Undurable, next, || ()).await
    }

    /// This core flushes what it has logged at once, where it would do so at the next interval. Nobody waits for it.
    pub fn flush_soon(&self) {
        self.flush_through(self.last_allotted());
    }

    /// Every core with undurable entries at or below `ts` flushes at once.
    fn ask_for_flushes(&self, ts: Timestamp) {
        if !self.progress.is_durable_here(ts) {
            self.request_flush();
        }
        for core in self.other_cores() {
            if self.progress.is_undurable_on(core, ts) {
                self.ask_core_to_flush(core);
            }
        }
    }

    fn ask_core_to_flush(&self, core: CoreId) {
        let Some(high) = self.progress.highest_wanted_durable() else {
            return;
        };
        {
            let mut asking = self.asking.borrow_mut();
            let asking = &mut asking[usize::from(core.0)];
            if asking.flush_sent || asking.flush_high >= high {
                return;
            }
            asking.flush_sent = true;
            asking.flush_high = high;
        }
        let this = self.rc();
        spawn(Queue::Foreground, async move {
            submit_to(core, Queue::Foreground, move || async move {
                storage().flush_through(high)
            })
            .await;
            this.asking.borrow_mut()[usize::from(core.0)].flush_sent = false;
            // Others may have begun to wait for later timestamps meanwhile.
            if let Some(high) = this.progress.highest_wanted_durable()
                && this.progress.is_undurable_on(core, high)
            {
                this.ask_core_to_flush(core);
            }
        });
    }

    fn flush_through(&self, ts: Timestamp) {
        if !self.progress.is_durable_here(ts) {
            self.request_flush();
        }
    }

    pub(in crate::engine) fn request_flush(&self) {
        if !self.flush_requested.replace(true) {
            self.flush_demand.notify_one();
        }
    }

    /// This core's flusher; ends when storage fails or closes.
    pub(in crate::engine) async fn run_flusher(self: Rc<Self>, ring: Rc<Ring>) {
        while !self.roles.has_failed() && !self.flusher_done(&ring) {
            if !self.flush_requested.get() && !ring.is_pressed() {
                // An interval without a request flushes what there is.
                let interval = self.journal_commit_interval();
                let _ = timeout(interval, self.flush_demand.notified()).await;
            }
            let requested = self.flush_requested.replace(false);
            let record = !requested && self.must_record();
            if !record && !ring.has_pending() {
                ring.drop_spare();
                continue;
            }
            if let Err(fatal) = self.flush_once(&ring).await {
                self.poison(fatal);
            }
        }
        self.flusher_ended.set(true);
        self.flusher_end.notify_all();
    }

    fn flusher_done(&self, ring: &Ring) -> bool {
        self.roles.is_closed() && !ring.has_pending()
    }

    /// Whether this ring, with nothing to write itself, must record how far everything is durable: recovery must be able to
    /// tell damage from a hole. Rings that are written record it as they go; only what none has recorded for an interval
    /// is written for its own sake, once, by one ring.
    fn must_record(&self) -> bool {
        let all_durable = self.all_durable();
        let seen = self.durable_when_idle.replace(all_durable);
        let recorded = self.shared.recorded_durable.load(Ordering::SeqCst);
        if recorded >= seen.as_u64() || all_durable != seen {
            return false;
        }
        let claimed = &self.shared.recording_durable;
        claimed.fetch_max(all_durable.as_u64(), Ordering::SeqCst) < all_durable.as_u64()
    }

    /// Writes and flushes everything pending, with all_durable as it is now.
    async fn flush_once(&self, ring: &Ring) -> Result<(), Fatal> {
        let all_durable = self.all_durable();
        let Some(batch) = ring.take_batch(all_durable, (wall_ms() / 1000) as u32) else {
            // No room for a frame that only records: whichever ring has some may do it.
            let recorded = self.shared.recorded_durable.load(Ordering::SeqCst);
            let claimed = &self.shared.recording_durable;
            claimed.store(recorded, Ordering::SeqCst);
            return Ok(());
        };
        self.progress.flush_started();
        if batch.changed_segment {
            sim::event("segment");
        }
        sim::event("flush");
        let sync = self.options.planted_fault != PlantedFault::FlushSkipped;
        batch
            .write(ring, sync)
            .await
            .map_err(|error| Fatal::new(format!("flushing a ring failed: {error}")))?;
        self.progress.flush_finished();
        self.shared
            .recorded_durable
            .fetch_max(all_durable.as_u64(), Ordering::SeqCst);
        self.announce(Mark::Undurable);
        let needed = self.ring_bytes_since(self.frames_sealed.get());
        if needed >= self.options.ring_bytes_per_checkpoint {
            self.ask_for_checkpoint();
        }
        Ok(())
    }

    /// Frames that this core's ring has written.
    pub(in crate::engine) fn ring_frames(&self) -> u64 {
        let ring = self.ring.borrow();
        ring.as_ref().map_or(0, |ring| ring.stats().frames)
    }

    /// Bytes written to this core's ring since it had so many frames.
    pub(in crate::engine) fn ring_bytes_since(&self, frames: u64) -> u64 {
        (self.ring_frames() - frames) * crate::ring::FRAME_BYTES as u64
    }
}
