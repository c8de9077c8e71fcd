//! Whether the counts that are kept of a collection's records are those of the records, and their
//! correction.
//!
//! The counts are of the newest state, so each partition's are taken at a moment in which that is
//! the state of a snapshot, and compared with the records of that snapshot. What is not replicated
//! has no snapshots: there nothing may change meanwhile.

use std::sync::Arc;

use pinion_catalog::from_fatal;
use pinion_runtime::{Queue, sleep};
use pinion_service::interrupt::{check, pause};
use pinion_storage::{Counts, KeptCounts, Partition, PartitionId, ReadAt, storage};
use pinion_wire::Result;

use super::job::Job;
use super::tree_walk::{TreeWalk, Walked};

/// What is done about counts that are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrongCounts {
    Reported,
    Corrected,
}

/// The counts that were kept beside what there was, of all partitions or of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Compared {
    pub kept: Counts,
    pub found: Counts,
    /// Counts of some partition were wrong, and were corrected.
    pub is_corrected: bool,
}

impl Compared {
    fn merge(&mut self, part: Compared) {
        self.kept.merge(part.kept);
        self.found.merge(part.found);
        self.is_corrected |= part.is_corrected;
    }
}

/// Compares the counts of all partitions; `None` if others wrote in each of the attempts, or
/// something cannot be read.
pub(super) async fn compare(
    job: &Arc<Job>,
    wrong: WrongCounts,
    attempts: usize,
) -> Result<Option<Compared>> {
    let mut all = Compared::default();
    for number in 0..storage().partition_count() {
        let (id, job) = (PartitionId(number), job.clone());
        let owner = storage().owner(id);
        let compared = pinion_runtime::submit_to(owner, Queue::Background, move || async move {
            compare_in(&job, id, wrong, attempts).await
        });
        match compared.await? {
            Some(part) => all.merge(part),
            None => return Ok(None),
        }
    }
    Ok(Some(all))
}

async fn compare_in(
    job: &Job,
    id: PartitionId,
    wrong: WrongCounts,
    attempts: usize,
) -> Result<Option<Compared>> {
    let owned = storage().partition(id).expect("asked its owner");
    let tree = job.collection.tree();
    for _ in 0..attempts {
        check(&job.ctx)?;
        let edits = owned.edits();
        let Some((kept, at)) = moment(job, &owned) else {
            sleep(pinion_service::limits::KILL_POLL).await;
            continue;
        };
        if let ReadAt::DecidedAt(ts) = at {
            storage().wait_visible(ts).await.map_err(from_fatal)?;
        }
        let mut walk = TreeWalk::new(&owned, tree, at);
        let mut found = Counts::default();
        let is_whole = loop {
            match walk.next().await? {
                Walked::Record(key, read) => found.add(key.len(), read.value.len() as u64),
                Walked::Unreadable(_) => return Ok(None),
                Walked::End => break walk.snapshots_lost == 0,
            }
            pause(&job.ctx).await?;
        };
        let is_one_state = job.collection.is_replicated() || owned.edits() == edits;
        if !is_whole || !is_one_state {
            continue;
        }
        let corrects = wrong == WrongCounts::Corrected && found != kept.counts;
        // Another validation may have corrected them since.
        if corrects && !storage().correct_counts(id, tree, kept, found) {
            continue;
        }
        return Ok(Some(Compared {
            kept: kept.counts,
            found,
            is_corrected: corrects,
        }));
    }
    Ok(None)
}

/// The counts that are kept, and the snapshot that is the newest state just now; `None` if there is
/// none.
fn moment(job: &Job, owned: &Partition) -> Option<(KeptCounts, ReadAt)> {
    let kept = owned.settled_counts(job.collection.tree())?;
    if !job.collection.is_replicated() {
        return Some((kept, ReadAt::Newest));
    }
    let last = storage().last_allotted();
    // What another node has allotted may not be applied yet.
    let is_applied = storage().leads() || storage().visible() >= last;
    is_applied.then_some((kept, ReadAt::DecidedAt(last)))
}
