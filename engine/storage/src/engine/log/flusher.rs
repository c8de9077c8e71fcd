//! The flusher of each core: group commit, and waiting for it.
//!
//! Each core runs one flusher. While a flush is on its way the next group gathers; no writer
//! flushes for itself. A journaled write at T waits until everything at or below T is durable in
//! all rings: its core asks the cores that still have such entries to flush at once, and the core
//! whose flush lifts the minimum past T wakes the cores that wait (see progress/reached.rs).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinion_clock::Timestamp;
use pinion_runtime::sync::Notify;
use pinion_runtime::{CoreId, JoinHandle, Queue, sim, spawn, submit_to, timeout, wall_ms};

use crate::engine::options::PlantedFault;
use crate::engine::storage::{Storage, storage};
use crate::ring::{FRAME_BYTES, Ring, RingStats};
use crate::types::Fatal;
use crate::watermarks::Mark;

/// How far all_durable is recorded by frames of some ring; shared by all cores.
pub(in crate::engine) struct RecordedDurable {
    /// The highest that is recorded durably.
    recorded: AtomicU64,
    /// The highest that some ring has set out to record with nothing else to write.
    claimed: AtomicU64,
}

impl RecordedDurable {
    pub(in crate::engine) fn new(all_durable: u64) -> RecordedDurable {
        RecordedDurable {
            recorded: AtomicU64::new(all_durable),
            claimed: AtomicU64::new(all_durable),
        }
    }

    /// A frame or a manifest that says so is durable.
    pub(in crate::engine) fn record(&self, all_durable: Timestamp) {
        self.recorded
            .fetch_max(all_durable.as_u64(), Ordering::SeqCst);
    }

    fn includes(&self, ts: Timestamp) -> bool {
        self.recorded.load(Ordering::SeqCst) >= ts.as_u64()
    }

    /// Whether the caller is the first to record `all_durable` for its own sake.
    fn claim(&self, all_durable: Timestamp) -> bool {
        let raw = all_durable.as_u64();
        self.claimed.fetch_max(raw, Ordering::SeqCst) < raw
    }

    /// The caller has no room for a frame that only records: any ring may claim it again.
    fn give_back(&self) {
        let recorded = self.recorded.load(Ordering::SeqCst);
        self.claimed.store(recorded, Ordering::SeqCst);
    }
}

/// The ring of one core, the tasks that flush it and prepare its segments, and the requests to
/// other flushers.
pub(in crate::engine) struct Flusher {
    /// There once recovery is complete.
    ring: RefCell<Option<Rc<Ring>>>,
    /// The task that prepares segments of the ring.
    preparing: RefCell<Option<JoinHandle<()>>>,
    demand: Notify,
    requested: Cell<bool>,
    /// all_durable when the flusher last found nothing to do.
    durable_when_idle: Cell<Timestamp>,
    has_ended: Cell<bool>,
    end: Notify,
    /// By core.
    requests: RefCell<Vec<FlushRequest>>,
    /// Frames in the ring when the changes of the last checkpoint were sealed: all before them is
    /// in the page files since.
    frames_sealed: Cell<u64>,
}

/// What this core has asked of one other core. At most one message is on its way.
#[derive(Clone, Copy, Debug, Default)]
struct FlushRequest {
    is_sent: bool,
    /// Flushing up to here was asked for.
    high: Timestamp,
}

impl Flusher {
    pub(in crate::engine) fn new(cores: usize) -> Flusher {
        Flusher {
            ring: RefCell::new(None),
            preparing: RefCell::new(None),
            demand: Notify::new(),
            requested: Cell::new(false),
            durable_when_idle: Cell::new(Timestamp::MIN),
            has_ended: Cell::new(false),
            end: Notify::new(),
            requests: RefCell::new(vec![FlushRequest::default(); cores]),
            frames_sealed: Cell::new(0),
        }
    }

    /// The ring, once recovery is complete.
    pub(in crate::engine) fn ring(&self) -> Option<Rc<Ring>> {
        self.ring.borrow().clone()
    }

    pub(in crate::engine) fn stats(&self) -> RingStats {
        let ring = self.ring.borrow();
        ring.as_ref().map(|ring| ring.stats()).unwrap_or_default()
    }

    /// Everything pending is flushed at once.
    pub(in crate::engine) fn request(&self) {
        if !self.requested.replace(true) {
            self.demand.notify_one();
        }
    }

    /// Wakes the flusher, for good: storage has failed.
    pub(in crate::engine) fn wake(&self) {
        self.demand.notify_all();
    }

    /// Nothing more is appended to the ring.
    pub(in crate::engine) fn stop_ring(&self) {
        if let Some(ring) = &*self.ring.borrow() {
            ring.stop();
        }
    }

    /// Waits until both tasks have ended: storage is closed.
    pub(in crate::engine) async fn ended(&self) {
        if let Some(ring) = self.ring() {
            while !self.has_ended.get() {
                self.end.notified().await;
            }
            ring.stop();
        }
        let preparing = self.preparing.borrow_mut().take();
        if let Some(preparing) = preparing {
            // One that was dropped has ended too.
            let _ = preparing.await;
        }
    }

    /// Frames that the ring has written.
    pub(in crate::engine) fn frames(&self) -> u64 {
        let ring = self.ring.borrow();
        ring.as_ref().map_or(0, |ring| ring.stats().frames)
    }

    /// Bytes written to the ring since it had this number of frames.
    pub(in crate::engine) fn bytes_since(&self, frames: u64) -> u64 {
        let written = self.frames();
        assert!(frames <= written, "a ring of {written} frames had {frames}");
        (written - frames) * FRAME_BYTES as u64
    }

    /// The changes of this core are sealed for a checkpoint, or none is to be taken: the length of
    /// the ring counts from here.
    pub(in crate::engine) fn note_sealed(&self) {
        self.frames_sealed.set(self.frames());
    }

    /// Whether another core is to be asked to flush up to `high`.
    fn begin_request(&self, core: CoreId, high: Timestamp) -> bool {
        let request = &mut self.requests.borrow_mut()[usize::from(core.0)];
        if request.is_sent || request.high >= high {
            return false;
        }
        *request = FlushRequest {
            is_sent: true,
            high,
        };
        true
    }

    fn end_request(&self, core: CoreId) {
        let request = &mut self.requests.borrow_mut()[usize::from(core.0)];
        assert!(request.is_sent, "an answer to no request");
        request.is_sent = false;
    }
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

    /// Waits until more is durable than everything at or below `ts`. Nothing is flushed for its
    /// sake.
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

    /// This core flushes what it has logged at once, where it would do so at the next interval.
    /// The caller does not wait for it.
    pub fn flush_soon(&self) {
        self.flush_through(self.last_allotted());
    }

    /// Every core with undurable entries at or below `ts` flushes at once.
    fn ask_for_flushes(&self, ts: Timestamp) {
        if !self.progress.is_durable_here(ts) {
            self.flusher.request();
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
        if !self.flusher.begin_request(core, high) {
            return;
        }
        let this = self.rc();
        spawn(Queue::Foreground, async move {
            submit_to(core, Queue::Foreground, move || async move {
                storage().flush_through(high)
            })
            .await;
            this.flusher.end_request(core);
            // Others may have started to wait for later timestamps meanwhile.
            if let Some(high) = this.progress.highest_wanted_durable()
                && this.progress.is_undurable_on(core, high)
            {
                this.ask_core_to_flush(core);
            }
        });
    }

    fn flush_through(&self, ts: Timestamp) {
        if !self.progress.is_durable_here(ts) {
            self.flusher.request();
        }
    }

    /// Starts the tasks of this core's ring.
    pub(in crate::engine) fn start_flusher(&self, ring: Rc<Ring>) {
        let before = self.flusher.ring.borrow_mut().replace(ring.clone());
        assert!(before.is_none(), "a core has one ring");
        spawn(Queue::Foreground, self.rc().run_flusher(ring.clone()));
        let this = self.rc();
        let preparing = spawn(
            Queue::Background,
            async move { this.keep_prepared(&ring).await },
        );
        *self.flusher.preparing.borrow_mut() = Some(preparing);
    }

    /// Keeps segments of a ring ready until that is stopped.
    pub(super) async fn keep_prepared(&self, ring: &Ring) {
        if let Err(error) = ring.keep_prepared(&self.shared.room).await {
            self.poison(Fatal::new(format!(
                "preparing a ring segment failed: {error}"
            )));
        }
    }

    /// This core's flusher; ends when storage fails or closes.
    async fn run_flusher(self: Rc<Self>, ring: Rc<Ring>) {
        let flusher = &self.flusher;
        while !self.roles.has_failed() && !self.flusher_done(&ring) {
            if !flusher.requested.get() && !ring.is_pressed() {
                // An interval without a request flushes what there is.
                let interval = self.journal_commit_interval();
                let _ = timeout(interval, flusher.demand.notified()).await;
            }
            let requested = flusher.requested.replace(false);
            let record = !requested && self.must_record();
            if !record && !ring.has_pending() {
                ring.drop_spare();
                continue;
            }
            if let Err(fatal) = self.flush_once(&ring).await {
                self.poison(fatal);
            }
        }
        flusher.has_ended.set(true);
        flusher.end.notify_all();
    }

    fn flusher_done(&self, ring: &Ring) -> bool {
        self.roles.is_closed() && !ring.has_pending()
    }

    /// Whether this ring, with nothing to write itself, must record how far everything is durable:
    /// recovery must be able to distinguish damage from a hole. Rings that are written record it as
    /// they go; only what none has recorded for an interval is written for its own sake, once, by
    /// one ring.
    fn must_record(&self) -> bool {
        let all_durable = self.all_durable();
        let seen = self.flusher.durable_when_idle.replace(all_durable);
        let recorded = &self.shared.recorded_durable;
        !recorded.includes(seen) && all_durable == seen && recorded.claim(all_durable)
    }

    /// Writes and flushes everything pending, with all_durable as it is now.
    async fn flush_once(&self, ring: &Ring) -> Result<(), Fatal> {
        let all_durable = self.all_durable();
        let Some(batch) = ring.take_batch(all_durable, (wall_ms() / 1000) as u32) else {
            // No room for a frame that only records: any ring that has some may do it.
            self.shared.recorded_durable.give_back();
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
        self.shared.recorded_durable.record(all_durable);
        self.announce(Mark::Undurable);
        let needed = self.flusher.bytes_since(self.flusher.frames_sealed.get());
        if needed >= self.options.ring_bytes_per_checkpoint {
            self.ask_for_checkpoint();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_ring_records_for_its_own_sake_what_none_has_recorded() {
        let ts = Timestamp::from_u64;
        let words = RecordedDurable::new(10);
        assert!(words.includes(ts(10)) && !words.includes(ts(11)));
        assert!(words.claim(ts(20)), "the first");
        assert!(!words.claim(ts(20)), "another one does it");
        words.give_back();
        assert!(words.claim(ts(20)), "the first had no room");
        words.record(ts(20));
        words.record(ts(15));
        assert!(words.includes(ts(20)) && !words.includes(ts(21)));
    }

    #[test]
    fn one_flush_request_is_on_its_way_to_a_core() {
        let ts = Timestamp::from_u64;
        let (flusher, core) = (Flusher::new(2), CoreId(1));
        assert!(flusher.begin_request(core, ts(10)));
        assert!(!flusher.begin_request(core, ts(20)), "one is on its way");
        flusher.end_request(core);
        assert!(!flusher.begin_request(core, ts(10)), "that was asked for");
        assert!(flusher.begin_request(core, ts(20)));
    }
}
