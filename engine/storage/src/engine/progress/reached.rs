//! Progress: waiting until every core is past a mark, and waking the cores on which something
//! waits.
//!
//! A core that waits publishes what it waits for and looks at the marks once more; a core that has
//! moved its mark looks at what is published afterwards. So one of the two sees the other, and no
//! waiter is forgotten.

use std::cell::RefCell;
use std::sync::Arc;

use pinion_clock::{Timestamp, VectorClock};
use pinion_runtime::{CoreId, Queue, spawn, submit_to};

use super::waiters::TimestampWaiters;
use crate::engine::storage::{Storage, storage};
use crate::marks::{CoreMarks, Words};
use crate::sequencer::Allotted;
use crate::types::Fatal;
use crate::watermarks::Mark;

/// How far the node is, as one core sees it: the core's own marks, and what it knows of those of
/// all cores.
pub(in crate::engine) struct Progress {
    core: CoreId,
    /// The sequencer and the watermarks of the node.
    words: Arc<Words>,
    marks: CoreMarks,
    appended: Awaited,
    visible: Awaited,
    durable: Awaited,
}

/// What one core knows of a mark of the node, and its tasks that wait for it.
struct Awaited {
    waiters: TimestampWaiters,
    /// Of each core: a message that the mark has moved is on its way there.
    notifying: RefCell<Vec<bool>>,
}

impl Awaited {
    fn new(cores: usize) -> Awaited {
        Awaited {
            waiters: TimestampWaiters::default(),
            notifying: RefCell::new(vec![false; cores]),
        }
    }
}

impl Progress {
    pub(in crate::engine) fn new(core: CoreId, cores: usize, words: Arc<Words>) -> Progress {
        Progress {
            core,
            marks: CoreMarks::new(usize::from(core.0), words.clone()),
            words,
            appended: Awaited::new(cores),
            visible: Awaited::new(cores),
            durable: Awaited::new(cores),
        }
    }

    fn of(&self, mark: Mark) -> &Awaited {
        match mark {
            Mark::Appending => &self.appended,
            Mark::Applying => &self.visible,
            Mark::Undurable => &self.durable,
        }
    }

    /// The last timestamp in the log.
    pub(in crate::engine) fn last_allotted(&self) -> Timestamp {
        self.words.sequencer.last()
    }

    /// The highest timestamp that was allotted here or heard of.
    pub(in crate::engine) fn cluster_time(&self) -> Timestamp {
        self.words.sequencer.cluster_time()
    }

    /// The node's clock.
    pub(in crate::engine) fn clock(&self) -> &Arc<VectorClock> {
        self.words.sequencer.clock()
    }

    /// The log continues after `last`. Only while no core allots or logs.
    pub(in crate::engine) fn continue_after(&self, last: Timestamp) {
        let before = self.last_allotted();
        assert!(before <= last, "the log is at {before}, beyond {last}");
        self.words.sequencer.advance_to(last);
    }

    /// Allots `count` timestamps. From here to [`Progress::finish_allotment`] nothing may await.
    pub(in crate::engine) fn allot(&self, count: u64, wall_secs: u32) -> Allotted {
        self.marks.allot(count, wall_secs)
    }

    /// Takes over timestamps from `first` to `last` that another node has allotted, as
    /// [`Progress::allot`] does.
    pub(in crate::engine) fn follow_to(&self, first: Timestamp, last: Timestamp) -> Allotted {
        let predecessor = self.last_allotted();
        assert!(
            predecessor < first && first <= last,
            "{first} to {last} do not follow {predecessor}"
        );
        self.marks.follow_to(last);
        Allotted {
            predecessor,
            first,
            last,
        }
    }

    /// Every timestamp that was allotted has its entry, and is applied or held.
    pub(in crate::engine) fn finish_allotment(&self) {
        self.marks.finish();
    }

    /// The range is not applied when its step ends: it is visible after
    /// [`Storage::release_applying`].
    pub(in crate::engine) fn hold_applying(&self, range: &Allotted) {
        self.marks.hold_applying(range);
    }

    /// True when everything this core appended at or below `ts` is durable.
    pub(in crate::engine) fn is_durable_here(&self, ts: Timestamp) -> bool {
        self.marks.is_durable_here(ts)
    }

    /// Whether a core has undurable entries below `ts`.
    pub(in crate::engine) fn is_undurable_on(&self, core: CoreId, ts: Timestamp) -> bool {
        let floor = self.words.marks.floor(usize::from(core.0), Mark::Undurable);
        floor.is_some_and(|floor| floor < ts)
    }

    /// The highest timestamp that this core waits for to be durable.
    pub(in crate::engine) fn highest_wanted_durable(&self) -> Option<Timestamp> {
        let range = self.durable.waiters.range();
        range.map(|(_, high)| high)
    }

    /// A flush takes everything appended so far.
    pub(in crate::engine) fn flush_started(&self) {
        self.marks.flush_started();
    }

    /// That flush is on the device.
    pub(in crate::engine) fn flush_finished(&self) {
        self.marks.flush_finished();
    }

    /// Everything at or below it is past the mark on every core. Wakes the tasks of this core that
    /// waited for that.
    pub(in crate::engine) fn reached(&self, mark: Mark) -> Timestamp {
        let words = &self.words;
        let reached = words.marks.reached(&words.sequencer, mark);
        self.of(mark).waiters.advance(reached)
    }

    fn publish_wanted(&self, mark: Mark) {
        let low = self.of(mark).waiters.range().map(|(low, _)| low);
        self.words.marks.want(usize::from(self.core.0), mark, low);
    }

    /// The timestamp that is past the mark, and the cores that wait for it.
    fn wanting(&self, mark: Mark) -> Option<(Timestamp, impl Iterator<Item = CoreId> + use<>)> {
        let words = &self.words;
        let (reached, cores) = words.marks.cores_wanting(&words.sequencer, mark)?;
        Some((reached, cores.into_iter().map(CoreId)))
    }

    /// Wakes all tasks that wait, for good: storage has failed.
    pub(in crate::engine) fn release_waiters(&self) {
        for mark in [Mark::Appending, Mark::Applying, Mark::Undurable] {
            self.of(mark).waiters.release_all();
        }
    }
}

impl Storage {
    /// Waits until everything at or below `ts` is past the mark. `urge` is called if that is not so
    /// yet, when every core that could change it will see that this core waits.
    pub(in crate::engine) async fn wait_reached(
        &self,
        mark: Mark,
        ts: Timestamp,
        urge: impl FnOnce(),
    ) -> Result<(), Fatal> {
        let waiters = &self.progress.of(mark).waiters;
        let waiting = waiters.wait(ts);
        self.progress.publish_wanted(mark);
        // Look again: a core that moved its mark before the wish was published has not seen it.
        if self.progress.reached(mark) < ts {
            urge();
            waiting.await;
        } else {
            drop(waiting);
        }
        self.progress.publish_wanted(mark);
        match waiters.reached() >= ts {
            true => Ok(()),
            false => Err(self.fatal().expect("only failure releases early")),
        }
    }

    /// Every owner has applied the range that begins at `first`.
    pub(in crate::engine) fn release_applying(&self, first: Timestamp) {
        self.progress.marks.release_applying(first);
        self.announce(Mark::Applying);
    }

    /// Everything that was logged for another node up to `ts` is applied.
    pub(in crate::engine) fn announce_applied(&self, ts: Timestamp) {
        self.progress.marks.set_applied(ts);
        self.announce(Mark::Applying);
    }

    /// This core's mark has moved: wakes the tasks, here and elsewhere, that waited for it.
    pub(in crate::engine) fn announce(&self, mark: Mark) {
        let Some((reached, cores)) = self.progress.wanting(mark) else {
            return;
        };
        self.progress.of(mark).waiters.advance(reached);
        for core in cores {
            if core != self.core {
                self.announce_to(mark, core);
            }
        }
    }

    fn announce_to(&self, mark: Mark, core: CoreId) {
        let at = usize::from(core.0);
        let notifying = &self.progress.of(mark).notifying;
        if std::mem::replace(&mut notifying.borrow_mut()[at], true) {
            return;
        }
        let this = self.rc();
        spawn(Queue::Foreground, async move {
            submit_to(core, Queue::Foreground, move || async move {
                let progress = &storage().progress;
                progress.reached(mark);
                progress.publish_wanted(mark);
            })
            .await;
            this.progress.of(mark).notifying.borrow_mut()[at] = false;
            // The mark may have moved further while the message was on its way.
            let wanting = this.progress.wanting(mark);
            if wanting.is_some_and(|(_, mut cores)| cores.any(|wanting| wanting == core)) {
                this.announce_to(mark, core);
            }
        });
    }
}
