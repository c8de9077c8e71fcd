//! Waiting until every core is past a mark, and waking the cores on which somebody waits.
//!
//! A core that waits publishes what it waits for and looks at the marks once more; a core that has moved its mark
//! looks at what is published afterwards. So one of the two sees the other, and nobody is forgotten.

use std::cell::RefCell;

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, Queue, spawn, submit_to};

use super::waiters::TimestampWaiters;
use crate::engine::storage::{Storage, storage};
use crate::types::Fatal;
use crate::watermarks::Mark;

/// What one core knows of a mark of the node, and who waits for it here.
pub(in crate::engine) struct Progress {
    pub(in crate::engine) waiters: TimestampWaiters,
    /// Of each core: a message that the mark has moved is on its way there.
    telling: RefCell<Vec<bool>>,
}

impl Progress {
    pub(in crate::engine) fn new(cores: usize) -> Progress {
        Progress {
            waiters: TimestampWaiters::default(),
            telling: RefCell::new(vec![false; cores]),
        }
    }
}

impl Storage {
    fn progress(&self, mark: Mark) -> &Progress {
        match mark {
            Mark::Appending => &self.appended,
            Mark::Applying => &self.visible,
            Mark::Undurable => &self.durable,
        }
    }

    /// Everything at or below it is past the mark on every core. Wakes those of this core who waited for that.
    pub(in crate::engine) fn reached(&self, mark: Mark) -> Timestamp {
        let words = &self.shared.words;
        let reached = words.marks.reached(&words.sequencer, mark);
        self.progress(mark).waiters.advance(reached)
    }

    /// Waits until everything at or below `ts` is past the mark. `urge` is called if that is not so yet, when whoever
    /// could change it will see that this core waits.
    pub(in crate::engine) async fn wait_reached(
        &self,
        mark: Mark,
        ts: Timestamp,
        urge: impl FnOnce(),
    ) -> Result<(), Fatal> {
        let waiters = &self.progress(mark).waiters;
        let waiting = waiters.wait(ts);
        self.publish_wanted(mark);
        // Look again: a core that moved its mark before the wish was published has not seen it.
        if self.reached(mark) < ts {
            urge();
            waiting.await;
        } else {
            drop(waiting);
        }
        self.publish_wanted(mark);
        match waiters.reached() >= ts {
            true => Ok(()),
            false => Err(self.fatal().expect("only failure releases early")),
        }
    }

    fn publish_wanted(&self, mark: Mark) {
        let low = self.progress(mark).waiters.range().map(|(low, _)| low);
        let core = usize::from(self.core.0);
        self.shared.words.marks.want(core, mark, low);
    }

    /// This core's mark has moved: wakes those, here and elsewhere, who waited for it.
    pub(in crate::engine) fn tell_progress(&self, mark: Mark) {
        let words = &self.shared.words;
        let Some((reached, cores)) = words.marks.cores_wanting(&words.sequencer, mark) else {
            return;
        };
        self.progress(mark).waiters.advance(reached);
        for core in cores.into_iter().map(CoreId) {
            if core != self.core {
                self.tell_core(mark, core);
            }
        }
    }

    fn tell_core(&self, mark: Mark, core: CoreId) {
        let at = usize::from(core.0);
        if std::mem::replace(&mut self.progress(mark).telling.borrow_mut()[at], true) {
            return;
        }
        let this = self.rc();
        spawn(Queue::Foreground, async move {
            submit_to(core, Queue::Foreground, move || async move {
                let storage = storage();
                storage.reached(mark);
                storage.publish_wanted(mark);
            })
            .await;
            this.progress(mark).telling.borrow_mut()[at] = false;
            // The mark may have moved on while the message was on its way.
            let words = &this.shared.words;
            let wanting = words.marks.cores_wanting(&words.sequencer, mark);
            if wanting.is_some_and(|(_, cores)| cores.contains(&core.0)) {
                this.tell_core(mark, core);
            }
        });
    }

    /// Wakes all who wait, for good: storage has failed.
    pub(in crate::engine) fn release_waiters(&self) {
        for mark in [Mark::Appending, Mark::Applying, Mark::Undurable] {
            self.progress(mark).waiters.release_all();
        }
    }
}
