//! Timestamps that a step has allotted and must turn into entries and applied writes before
//! anything else runs.
//!
//! The next allotment links to these, so whatever is left undone is a hole below later writes: the
//! next start would cut off what was acknowledged since, or read an entry that this process never
//! applied. So a step that does not reach its end, because an invariant did not hold on the way,
//! stops storage on every core. A panic inside of a connection's task ends no more than its command
//! elsewhere, and would go unnoticed here.

use pinion_clock::Timestamp;

use crate::engine::storage::Storage;
use crate::sequencer::Allotted;
use crate::types::Fatal;

/// Timestamps on their way to their entries. Dropped without [`Allotment::finish`] it stops
/// storage.
pub(in crate::engine) struct Allotment<'s> {
    storage: &'s Storage,
    range: Allotted,
    finished: bool,
}

impl<'s> Allotment<'s> {
    /// Allots `count` timestamps. From here to `finish` nothing may await.
    pub(in crate::engine) fn new(
        storage: &'s Storage,
        count: u64,
        wall_secs: u32,
    ) -> Allotment<'s> {
        Allotment {
            storage,
            range: storage.progress.allot(count, wall_secs),
            finished: false,
        }
    }

    /// Takes over timestamps from `first` to `last` that another node has allotted. From here to
    /// `finish` nothing may await.
    pub(super) fn of_another(
        storage: &'s Storage,
        first: Timestamp,
        last: Timestamp,
    ) -> Allotment<'s> {
        Allotment {
            storage,
            range: storage.progress.follow_to(first, last),
            finished: false,
        }
    }

    pub(in crate::engine) fn range(&self) -> &Allotted {
        &self.range
    }

    /// Every timestamp has its entry, and what the entry records is applied or held.
    pub(in crate::engine) fn finish(mut self) {
        self.storage.progress.finish_allotment();
        self.finished = true;
    }
}

impl Drop for Allotment<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.storage.poison(Fatal::new(format!(
                "a write that had its timestamp {} was not completed",
                self.range.first
            )));
        }
    }
}
