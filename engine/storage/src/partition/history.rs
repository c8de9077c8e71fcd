//! History: merged changes that only old snapshots need go to disk when they take too much memory.
//!
//! A checkpoint leaves the base that it replaced, with the delta that it merged, to the snapshots
//! between the two. The pages of that base stay where they are. The delta is written as a run, and
//! the memory given up. A snapshot ends when the disk that all old states keep exceeds its limit.

use std::rc::Rc;

use pinion_runtime::{Queue, sim, spawn};

use super::core::{Partition, State};
use super::delta::TreeDelta;
use super::run_writer::RunSource;
use super::view::Sealed;
use crate::base::Unpaced;
use crate::limits::BLOCK_BYTES;
use crate::types::Fatal;

impl Partition {
    /// What old states may keep of the disk: as much as the live data takes, or what the options
    /// say.
    pub(super) fn history_limit(&self, state: &State) -> u64 {
        let space = self.store.space.borrow();
        let used = (space.end() - space.free_blocks()) * BLOCK_BYTES as u64;
        let others = state.views.retired_disk_bytes() + state.layers.disk_bytes();
        let live = used.saturating_sub(others);
        live.max(self.store.options.history_bytes)
    }

    /// Has what is too much in memory written, unless that is under way.
    pub(super) fn begin_to_settle(&self, state: &State) {
        let too_much = state.views.retired_bytes() > self.store.options.retired_bytes;
        if too_much
            && !self.is_settling.replace(true)
            && let Some(partition) = self.me.upgrade()
        {
            drop(spawn(Queue::Background, async move {
                // What cannot be written stops the next checkpoint, and with it the node.
                let _ = partition.settle_history().await;
                partition.is_settling.set(false);
            }));
        }
    }

    /// Writes merged changes that old snapshots need to disk, the oldest first, until those in
    /// memory take no more than they may. A checkpoint waits for it before it seals, so what one
    /// checkpoint leaves is all that is in memory beyond that.
    pub(crate) async fn settle_history(&self) -> Result<(), Fatal> {
        let _turn = self.settling.acquire().await;
        loop {
            let oldest = {
                let state = self.state.borrow();
                let is_enough = state.views.retired_bytes() <= self.store.options.retired_bytes;
                (!is_enough).then(|| state.views.oldest_in_memory())
            };
            let Some((view, sealed, until)) = oldest.flatten() else {
                return Ok(());
            };
            let source = RunSource {
                delta: &sealed.delta,
                keeps: &|version| version.ts < until,
                is_wanted: &|| self.state.borrow().views.is_open(&view),
            };
            let run = self.write_run(source, &Unpaced).await?;
            {
                let state = &mut *self.state.borrow_mut();
                let number = state.sequence();
                drop(state.views.put_run(&view, run, number));
                sim::event("history written");
            }
            self.reclaim_sealed(sealed);
            // The disk may be too much now.
            self.reap_views();
        }
    }

    /// Drops what was sealed, a piece at a time; whole, which costs one pause, where it is shared.
    pub(super) fn reclaim_sealed(&self, sealed: Rc<Sealed>) {
        if let Ok(sealed) = Rc::try_unwrap(sealed) {
            let bytes = sealed.delta.bytes();
            let trees = sealed.delta.into_trees();
            self.reclaim(bytes, trees.map(TreeDelta::into_keys).collect());
        }
    }
}
