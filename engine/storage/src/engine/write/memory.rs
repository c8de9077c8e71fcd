//! Memory for changes: published, and turned into delays, checkpoints and refusals.
//!
//! A core's share is its part of the node's memory for changes. At half of it a checkpoint is asked
//! for, at five eighths one under way no longer rests, at three quarters writers are delayed in
//! proportion, and at 95 % they wait for a checkpoint to free memory and are refused when that
//! takes too long.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinion_runtime::sync::Notify;
use pinion_runtime::{CoreId, Duration, Instant, Queue, now, sleep, spawn, submit_to, timeout};

use crate::engine::options::StorageOptions;
use crate::engine::storage::{Storage, storage};
use crate::partition::UnitId;
use crate::types::{Write, WriteError};

/// In thousandths of a core's share.
pub(in crate::engine) const CHECKPOINT_AT: u64 = 500;
/// What the intents of open units may take: a checkpoint that was asked for must get below what
/// asks for one.
const OPEN_AT: u64 = 400;
const HURRY_AT: u64 = 625;
const DELAY_AT: u64 = 750;
const REFUSE_AT: u64 = 950;
/// The delay right below `REFUSE_AT`.
const LONGEST_DELAY_US: u64 = 20_000;
/// How often it is said that writers wait.
const WAITING_LOGGED_EVERY: Duration = Duration::from_secs(10);
/// How often a refused writer looks again, should no checkpoint wake it.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

const _: () = assert!(OPEN_AT < CHECKPOINT_AT);
const _: () = assert!(CHECKPOINT_AT < HURRY_AT && HURRY_AT < DELAY_AT);
const _: () = assert!(DELAY_AT < REFUSE_AT && REFUSE_AT < 1000);

/// How long a writer is held up at this pressure; grows with the square, so that a little is hardly
/// felt.
fn delay_at(pressure: u64) -> Duration {
    let over = pressure.saturating_sub(DELAY_AT).min(REFUSE_AT - DELAY_AT);
    Duration::from_micros(LONGEST_DELAY_US * over * over / (REFUSE_AT - DELAY_AT).pow(2))
}

/// Of each core: the part of its memory for changes that is in use, in thousandths. Shared by all
/// cores.
pub(in crate::engine) struct Pressures(Box<[AtomicU64]>);

impl Pressures {
    pub(in crate::engine) fn new(cores: usize) -> Pressures {
        Pressures((0..cores).map(|_| AtomicU64::new(0)).collect())
    }

    fn set(&self, core: CoreId, pressure: u64) {
        self.0[usize::from(core.0)].store(pressure, Ordering::Relaxed);
    }

    fn of(&self, core: CoreId) -> u64 {
        self.0[usize::from(core.0)].load(Ordering::Relaxed)
    }

    fn highest(&self) -> u64 {
        let all = self.0.iter().map(|word| word.load(Ordering::Relaxed));
        all.max().unwrap_or(0)
    }
}

/// The memory for changes of one core: what they may take, and the writers that wait for it.
pub(in crate::engine) struct Memory {
    core: CoreId,
    pressures: Arc<Pressures>,
    budget_bytes: u64,
    delta_budget_bytes: u64,
    /// Wakes the writers that wait for memory, after each checkpoint.
    freed: Notify,
    /// How often waits for memory were cancelled.
    waits_ended: Cell<u64>,
    /// A checkpoint that should free memory was asked for, and has not come yet.
    is_checkpoint_asked: Cell<bool>,
    /// When it was last logged that writes wait.
    waiting_logged: Cell<Option<Instant>>,
    delayed_steps: Cell<u64>,
    refused_steps: Cell<u64>,
}

impl Memory {
    /// Of a core that owns `owned` of the node's partitions.
    pub(in crate::engine) fn new(
        options: &StorageOptions,
        core: CoreId,
        (owned, partitions): (usize, usize),
        pressures: Arc<Pressures>,
    ) -> Memory {
        let part_of = |node: u64| node * owned as u64 / partitions as u64;
        let budget_bytes = part_of(options.cache_bytes);
        let delta_budget_bytes = part_of(options.cache_bytes / 100 * options.delta_percent);
        assert!(
            delta_budget_bytes <= budget_bytes,
            "changes may take {delta_budget_bytes} bytes of {budget_bytes}"
        );
        Memory {
            core,
            pressures,
            budget_bytes,
            delta_budget_bytes,
            freed: Notify::new(),
            waits_ended: Cell::new(0),
            is_checkpoint_asked: Cell::new(false),
            waiting_logged: Cell::new(None),
            delayed_steps: Cell::new(0),
            refused_steps: Cell::new(0),
        }
    }

    /// This core's part of the memory for pages and changes.
    pub(in crate::engine) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes of memory that changes to this core's partitions may take.
    pub(in crate::engine) fn delta_budget_bytes(&self) -> u64 {
        self.delta_budget_bytes
    }

    /// What `delta_bytes` of changes are of what they may be, in thousandths.
    fn pressure_of(&self, delta_bytes: u64) -> u64 {
        match self.delta_budget_bytes {
            0 => 0,
            budget => delta_bytes * 1000 / budget,
        }
    }

    /// Publishes this core's pressure; gives it.
    fn publish(&self, delta_bytes: u64) -> u64 {
        let pressure = self.pressure_of(delta_bytes);
        self.pressures.set(self.core, pressure);
        pressure
    }

    /// Wakes the writers that wait for memory: there is some, or storage has failed.
    pub(in crate::engine) fn wake_writers(&self) {
        self.freed.notify_all();
    }

    /// The checkpoint that was asked for has come, or there is none to take: another one may be
    /// asked for.
    pub(in crate::engine) fn clear_checkpoint_asked(&self) {
        self.is_checkpoint_asked.set(false);
    }

    /// Steps that waited for memory, and those that were refused for want of it.
    pub(in crate::engine) fn delayed_and_refused(&self) -> (u64, u64) {
        (self.delayed_steps.get(), self.refused_steps.get())
    }

    /// Whether it was logged lately that writes wait; it is now otherwise.
    fn is_waiting_logged(&self) -> bool {
        let now = now();
        let before = self.waiting_logged.get();
        let logged = before.is_some_and(|at| now.saturating_since(at) < WAITING_LOGGED_EVERY);
        if !logged {
            self.waiting_logged.set(Some(now));
        }
        logged
    }
}

impl Storage {
    /// Bytes of memory that changes to this core's partitions take.
    pub(in crate::engine) fn delta_bytes(&self) -> u64 {
        self.owned()
            .map(|partition| partition.memory().delta_bytes())
            .sum()
    }

    /// Shares memory between changes and pages, publishes this core's pressure, and asks for a
    /// checkpoint when it has risen so far. Called after each step.
    pub(in crate::engine) fn publish_memory(&self) {
        self.follow_horizon();
        let mut delta_bytes = 0;
        for partition in self.owned() {
            let memory = partition.memory();
            partition.share_memory(&memory);
            delta_bytes += memory.delta_bytes();
        }
        if self.memory.publish(delta_bytes) >= CHECKPOINT_AT {
            self.ask_for_checkpoint();
        }
    }

    /// Whether changes take so much memory on some core that a checkpoint should free it.
    pub(in crate::engine) fn wants_checkpoint(&self) -> bool {
        self.memory.pressures.highest() >= CHECKPOINT_AT
    }

    /// Whether changes take so much memory on some core that a checkpoint should free it as fast as
    /// it can.
    pub fn is_short_of_memory(&self) -> bool {
        self.memory.pressures.highest() >= HURRY_AT
    }

    pub(in crate::engine) fn ask_for_checkpoint(&self) {
        if !self.memory.is_checkpoint_asked.replace(true) {
            spawn(
                Queue::Background,
                submit_to(CoreId(0), Queue::Background, || async {
                    storage().node_state().demand.notify_one();
                }),
            );
        }
    }

    /// Refuses a write while the disk is full.
    pub(in crate::engine) fn check_room(&self) -> Result<(), WriteError> {
        match self.shared.room.is_full() {
            true => Err(WriteError::DiskFull),
            false => Ok(()),
        }
    }

    /// An owner refuses further intents when its memory is exhausted.
    pub(in crate::engine) fn check_memory(&self) -> Result<(), WriteError> {
        if self.memory.pressure_of(self.delta_bytes()) >= REFUSE_AT {
            Err(WriteError::CacheFull)
        } else {
            Ok(())
        }
    }

    /// Refuses a unit that stays open what `bytes` more on this core would take of it, or of all
    /// open units: no checkpoint frees that.
    pub(in crate::engine) fn check_open_memory(
        &self,
        unit: UnitId,
        bytes: u64,
    ) -> Result<(), WriteError> {
        let (mut all, mut own) = (bytes, bytes);
        for partition in self.owned() {
            let (open, of_unit) = partition.open_bytes(unit);
            all += open;
            own += of_unit;
        }
        if self.memory.pressure_of(own) > OPEN_AT {
            return Err(WriteError::UnitTooLarge);
        }
        match self.memory.pressure_of(all) > OPEN_AT {
            true => Err(WriteError::CacheFull),
            false => Ok(()),
        }
    }

    /// Delays a step by the pressure of the cores it writes to, before it holds anything, or while
    /// it is a statement of a unit that holds only what no checkpoint waits for.
    pub(in crate::engine) async fn wait_for_memory<'w, W>(
        &self,
        writes: impl Fn() -> W,
    ) -> Result<(), WriteError>
    where
        W: Iterator<Item = &'w Write>,
    {
        let pressure = || {
            writes()
                .map(|write| self.memory.pressures.of(self.owner(write.partition)))
                .max()
                .unwrap_or(0)
        };
        let first = pressure();
        if first < DELAY_AT {
            return Ok(());
        }
        // In a box, as few steps ever need its room.
        Box::pin(self.wait_under_pressure(first, pressure)).await
    }

    /// Waits until changes to this core's partitions have room, but not for ever: a caller that
    /// applies what is decided continues then, as the checkpoint that it waits for may wait for it.
    pub async fn wait_for_room(&self) {
        let is_full = || self.memory.pressure_of(self.delta_bytes()) >= REFUSE_AT;
        let deadline = now() + self.options.memory_wait;
        while is_full() && self.fatal().is_none() && now() < deadline {
            self.ask_for_checkpoint();
            let _ = timeout(LOOK_AGAIN, self.memory.freed.notified()).await;
        }
    }

    /// Refuses at once what waits on this core for memory, as after the longest wait: the writers
    /// are interrupted.
    pub fn end_waits_for_memory(&self) {
        let ended = &self.memory.waits_ended;
        ended.set(ended.get() + 1);
        self.memory.wake_writers();
    }

    /// Says now and then why writes wait.
    fn log_waiting(&self) {
        if self.memory.is_waiting_logged() {
            return;
        }
        let percent = self.memory.pressures.highest() / 10;
        let lag_secs = self.stable_lag_secs();
        tracing::warn!(target: "STORAGE", id = 7_300_052u64, percent, lag_secs, "Writes wait until a checkpoint, or a layer over the base, frees memory for changes");
    }

    async fn wait_under_pressure(
        &self,
        first: u64,
        pressure: impl Fn() -> u64,
    ) -> Result<(), WriteError> {
        let memory = &self.memory;
        memory.delayed_steps.set(memory.delayed_steps.get() + 1);
        if first < REFUSE_AT {
            sleep(delay_at(first)).await;
            return Ok(());
        }
        let deadline = now() + self.options.memory_wait;
        let ended = memory.waits_ended.get();
        while pressure() >= REFUSE_AT {
            self.log_waiting();
            self.check_fatal().map_err(WriteError::Fatal)?;
            self.check_room()?;
            if now() >= deadline || memory.waits_ended.get() > ended {
                memory.refused_steps.set(memory.refused_steps.get() + 1);
                return Err(WriteError::CacheFull);
            }
            self.ask_for_checkpoint();
            let _ = timeout(LOOK_AGAIN, self.memory.freed.notified()).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_grows_with_pressure() {
        let check = |pressure, expected_us| {
            assert_eq!(delay_at(pressure).as_micros(), expected_us, "{pressure}")
        };
        check(0, 0);
        check(DELAY_AT, 0);
        check(850, 5_000);
        check(REFUSE_AT, 20_000);
        check(2000, 20_000);
    }
}
