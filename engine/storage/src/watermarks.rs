//! Watermarks: what each core still has outstanding, and what that makes visible and durable.
//!
//! A mark is the *floor* of its core: everything this core was allotted at or below it is done. An
//! empty mark is `EMPTY`. Floors are predecessors of outstanding timestamps, hence timestamps that
//! were really allotted; recovery relies on that, because a floor that no entry carries could not
//! be distinguished from an entry that was lost.
//!
//! The order of publication: a core stores the last allotted timestamp into each of its marks that
//! is empty, then allots, appends and applies, then stores its true floors. A reader loads the last
//! allotted timestamp first and the marks after. If the reader's last includes a timestamp T of
//! some core, that core's bound was stored before T was allotted, so the reader sees the bound, or
//! a floor below T, or a mark stored after T was done: never an empty mark that is older than T.

use pinion_clock::Timestamp;
use smallvec::SmallVec;

use crate::sequencer::Sequencer;
use crate::words::{AtomicU64, Ordering, fence};

/// Nothing outstanding.
const EMPTY: u64 = u64::MAX;

/// Which of a core's marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Allotted and not yet in the ring's memory.
    Appending,
    /// Allotted and not yet resolved on every owner.
    Applying,
    /// Appended and not yet flushed.
    Undurable,
}

/// The words of one core, alone on their cache lines. Written by that core only.
#[repr(align(128))]
struct CoreWords {
    appending: AtomicU64,
    applying: AtomicU64,
    undurable: AtomicU64,
    /// For each mark the lowest timestamp that a waiter on this core waits for it to pass.
    wanted_low: [AtomicU64; 3],
}

impl CoreWords {
    fn new() -> CoreWords {
        CoreWords {
            appending: AtomicU64::new(EMPTY),
            applying: AtomicU64::new(EMPTY),
            undurable: AtomicU64::new(EMPTY),
            wanted_low: [const { EMPTY }; 3].map(AtomicU64::new),
        }
    }

    fn word(&self, mark: Mark) -> &AtomicU64 {
        match mark {
            Mark::Appending => &self.appending,
            Mark::Applying => &self.applying,
            Mark::Undurable => &self.undurable,
        }
    }

    fn wanted_low(&self, mark: Mark) -> &AtomicU64 {
        &self.wanted_low[mark as usize]
    }
}

/// The marks of all cores of a node.
pub(crate) struct Watermarks {
    cores: Box<[CoreWords]>,
}

impl Watermarks {
    pub(crate) fn new(cores: usize) -> Watermarks {
        assert!(cores > 0, "a node has at least one core");
        Watermarks {
            cores: (0..cores).map(|_| CoreWords::new()).collect(),
        }
    }

    /// Stores a floor; `None` empties the mark.
    pub(crate) fn store(&self, core: usize, mark: Mark, floor: Option<Timestamp>) {
        let raw = floor.map_or(EMPTY, Timestamp::as_u64);
        self.cores[core].word(mark).store(raw, Ordering::SeqCst);
    }

    /// The floor of one core; `None` when it has nothing outstanding.
    pub(crate) fn floor(&self, core: usize, mark: Mark) -> Option<Timestamp> {
        match self.cores[core].word(mark).load(Ordering::SeqCst) {
            EMPTY => None,
            raw => Some(Timestamp::from_u64(raw)),
        }
    }

    /// Everything allotted at or below the answer is past `mark` on every core.
    ///
    /// `Appending` gives the oplog read timestamp, `Applying` the visible one, `Undurable`
    /// all_durable.
    pub(crate) fn reached(&self, sequencer: &Sequencer, mark: Mark) -> Timestamp {
        let mut reached = sequencer.last().as_u64();
        for core in &self.cores {
            reached = reached.min(core.word(mark).load(Ordering::SeqCst));
        }
        Timestamp::from_u64(reached)
    }

    /// Publishes the lowest timestamp that is waited for on `core` until it is past `mark`. The
    /// caller looks at the marks again afterwards: the fence orders this store before that look, as
    /// the one in `cores_wanting` orders the store of a mark before its look at what is wanted, so
    /// at least one of the two sees the other.
    pub(crate) fn want(&self, core: usize, mark: Mark, low: Option<Timestamp>) {
        let raw = low.map_or(EMPTY, Timestamp::as_u64);
        self.cores[core]
            .wanted_low(mark)
            .store(raw, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The timestamp at or below which everything is past `mark`, and the cores with a waiter for
    /// no more than that. `None` when there is no waiter for this mark at all, which is found with
    /// one look at each core.
    pub(crate) fn cores_wanting(
        &self,
        sequencer: &Sequencer,
        mark: Mark,
    ) -> Option<(Timestamp, CoreSet)> {
        fence(Ordering::SeqCst);
        let wanted = |words: &CoreWords| words.wanted_low(mark).load(Ordering::SeqCst);
        if self.cores.iter().all(|words| wanted(words) == EMPTY) {
            return None;
        }
        let reached = self.reached(sequencer, mark);
        let cores = self.cores.iter().enumerate();
        let wanting = cores.filter(|(_, words)| wanted(words) <= reached.as_u64());
        Some((reached, wanting.map(|(core, _)| core as u16).collect()))
    }
}

/// Core numbers, ascending.
pub(crate) type CoreSet = SmallVec<[u16; 8]>;
