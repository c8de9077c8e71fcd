//! A core's timers: a hierarchical wheel with constant-time insert and cancel, and the sleep future
//! over it.
//!
//! Six levels of 64 slots; a tick is 2^16 ns (65.5 us). A timer sits in the level of the highest
//! digit (base 64) in which its tick differs from the current one, and moves down when time reaches
//! its slot.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use super::core::RealCore;
use crate::Instant;

const TICK_SHIFT: u32 = 16;
const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 6;
/// Timers farther away wait in the last slot of the top level and are placed again from there.
const HORIZON: u64 = 1 << (DIGIT_BITS * LEVELS as u32);
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TimerPosition {
    Slot { level: u8, slot: u8 },
    Fired,
}

struct Entry {
    at: Instant,
    /// Tick at which the timer fires: never before `at`.
    tick: u64,
    waker: Waker,
    place: TimerPosition,
    previous: u32,
    next: u32,
}

/// The wheel. Time is passed in.
pub(super) struct Wheel {
    current: u64,
    entries: Slab<Entry>,
    heads: [[u32; SLOTS]; LEVELS],
    occupied: [u64; LEVELS],
    armed: usize,
}

impl Wheel {
    pub fn new(now: Instant) -> Wheel {
        Wheel {
            current: now.as_nanos() >> TICK_SHIFT,
            entries: Slab::new(),
            heads: [[NIL; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
            armed: 0,
        }
    }

    /// Arms a timer. The key stays taken until [`Wheel::remove`], also after firing.
    pub fn insert(&mut self, at: Instant, waker: Waker) -> usize {
        // Rounded up, and at least one tick ahead, so a timer never fires early.
        let tick = at.as_nanos().saturating_add((1 << TICK_SHIFT) - 1) >> TICK_SHIFT;
        let tick = tick.max(self.current + 1);
        let key = self.entries.insert(Entry {
            at,
            tick,
            waker,
            place: TimerPosition::Fired,
            previous: NIL,
            next: NIL,
        });
        self.link(key as u32);
        self.armed += 1;
        key
    }

    /// Whether the timer has fired; if not, `waker` replaces its waker.
    pub fn fired(&mut self, key: usize, waker: &Waker) -> bool {
        let entry = &mut self.entries[key];
        if entry.place == TimerPosition::Fired {
            return true;
        }
        entry.waker.clone_from(waker);
        false
    }

    /// Frees a key, cancelling the timer if it has not fired.
    pub fn remove(&mut self, key: usize) {
        if self.entries[key].place != TimerPosition::Fired {
            self.unlink(key as u32);
            self.armed -= 1;
        }
        self.entries.remove(key);
    }

    /// Fires what is due at `now`, collecting times and wakers in the order of the times.
    pub fn advance(&mut self, now: Instant, due: &mut Vec<(Instant, Waker)>) {
        let now = now.as_nanos() >> TICK_SHIFT;
        while let Some((level, slot, start)) = self.next_slot() {
            if start > now {
                break;
            }
            // A slot's start may lie before `current` only if it is the current slot itself.
            self.current = self.current.max(start);
            let mut key = self.heads[level][slot];
            self.heads[level][slot] = NIL;
            self.occupied[level] &= !(1 << slot);
            while key != NIL {
                let entry = &mut self.entries[key as usize];
                let next = entry.next;
                if entry.tick <= self.current {
                    entry.place = TimerPosition::Fired;
                    due.push((entry.at, entry.waker.clone()));
                    self.armed -= 1;
                } else {
                    self.link(key);
                }
                key = next;
            }
        }
        self.current = self.current.max(now);
        // A slot is no finer than a tick, and keeps no order.
        due.sort_by_key(|(at, _)| *at);
    }

    /// Whether no timer is armed.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// A time at or before the next firing, at which [`Wheel::advance`] should be called; `None`
    /// without timers.
    pub fn next(&self) -> Option<Instant> {
        if self.armed == 0 {
            return None;
        }
        self.next_slot()
            .map(|(_, _, start)| Instant::from_nanos(start << TICK_SHIFT))
    }

    /// The earliest occupied slot and the tick at which it begins. Lower levels come first: all
    /// their ticks lie before the next slot of a higher level.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        for level in 0..LEVELS {
            if self.occupied[level] == 0 {
                continue;
            }
            let shift = DIGIT_BITS * level as u32;
            let digit = (self.current >> shift) as usize & (SLOTS - 1);
            // Slots behind the current digit occur only in the top level, which wraps.
            let ahead = self.occupied[level]
                .rotate_right(digit as u32)
                .trailing_zeros() as usize;
            let slot = (digit + ahead) & (SLOTS - 1);
            let start = ((self.current >> shift) + ahead as u64) << shift;
            return Some((level, slot, start));
        }
        None
    }

    fn link(&mut self, key: u32) {
        let entry = &self.entries[key as usize];
        let tick = entry
            .tick
            .min(self.current + HORIZON - (HORIZON >> DIGIT_BITS));
        let differing = (self.current ^ tick) | (SLOTS as u64 - 1);
        let level = ((63 - differing.leading_zeros()) / DIGIT_BITS).min(LEVELS as u32 - 1) as usize;
        let slot = (tick >> (DIGIT_BITS * level as u32)) as usize & (SLOTS - 1);
        let head = self.heads[level][slot];
        if head != NIL {
            self.entries[head as usize].previous = key;
        }
        let entry = &mut self.entries[key as usize];
        entry.place = TimerPosition::Slot {
            level: level as u8,
            slot: slot as u8,
        };
        entry.previous = NIL;
        entry.next = head;
        self.heads[level][slot] = key;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, key: u32) {
        let entry = &self.entries[key as usize];
        let (previous, next) = (entry.previous, entry.next);
        let TimerPosition::Slot { level, slot } = entry.place else {
            unreachable!("only armed timers are unlinked");
        };
        if next != NIL {
            self.entries[next as usize].previous = previous;
        }
        if previous != NIL {
            self.entries[previous as usize].next = next;
        } else {
            self.heads[level as usize][slot as usize] = next;
            if next == NIL {
                self.occupied[level as usize] &= !(1 << slot);
            }
        }
    }
}

/// Completes once `at` has passed. Dropping it cancels the timer.
pub(crate) struct RealSleep {
    core: RealCore,
    at: Instant,
    key: Option<usize>,
}

impl RealSleep {
    pub(super) fn new(core: RealCore, at: Instant) -> RealSleep {
        RealSleep {
            core,
            at,
            key: None,
        }
    }
}

impl Future for RealSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        match this.key {
            Some(key) => {
                if !this.core.timers().fired(key, context.waker()) {
                    return Poll::Pending;
                }
                this.core.timers().remove(key);
                this.key = None;
                Poll::Ready(())
            }
            None if this.core.now() >= this.at => Poll::Ready(()),
            None => {
                this.key = Some(this.core.timers().insert(this.at, context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Drop for RealSleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.core.timers().remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    struct Counter(AtomicU64);
    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn next_random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// Against a list: never early, at most a tick late, cancelled ones never, `next` never past
    /// the earliest.
    #[test]
    fn agrees_with_a_list() {
        for seed in 1..60u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut now = next_random(&mut random) >> 8;
            let mut wheel = Wheel::new(Instant::from_nanos(now));
            let mut model: Vec<(u64, usize, Arc<Counter>)> = Vec::new();
            for _ in 0..400 {
                match next_random(&mut random) % 4 {
                    0 | 1 => {
                        let span = 1u64 << (next_random(&mut random) % 52);
                        let at = now + next_random(&mut random) % span;
                        let counter = Arc::new(Counter(AtomicU64::new(0)));
                        let key =
                            wheel.insert(Instant::from_nanos(at), Waker::from(counter.clone()));
                        model.push((at, key, counter));
                    }
                    2 if !model.is_empty() => {
                        let index = next_random(&mut random) as usize % model.len();
                        let (_, key, counter) = model.swap_remove(index);
                        wheel.remove(key);
                        assert_eq!(counter.0.load(Ordering::Relaxed), 0);
                    }
                    _ => {
                        let next = wheel.next();
                        assert_eq!(next.is_none(), model.is_empty());
                        if let (Some(next), Some(first)) = (next, model.iter().map(|m| m.0).min()) {
                            assert!(next.as_nanos() <= first.max(now) + (2 << TICK_SHIFT));
                        }
                        let span = 1u64 << (next_random(&mut random) % 54);
                        now += next_random(&mut random) % span;
                        let mut due = Vec::new();
                        wheel.advance(Instant::from_nanos(now), &mut due);
                        assert!(due.is_sorted_by_key(|(at, _)| *at));
                        due.into_iter().for_each(|(_, waker)| waker.wake());
                        model.retain(|(at, key, counter)| {
                            let fired = counter.0.load(Ordering::Relaxed) == 1;
                            assert!(!fired || *at <= now, "seed {seed}: fired early");
                            assert!(
                                fired || at + (2 << TICK_SHIFT) > now,
                                "seed {seed}: late by {}",
                                now - at
                            );
                            if fired {
                                wheel.remove(*key);
                            }
                            !fired
                        });
                    }
                }
            }
        }
    }
}
