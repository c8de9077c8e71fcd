//! Builds of indexes over the documents that are there, while others read and write them.
//!
//! All partitions are scanned at once; entries are sorted, in files where they are many, and loaded
//! into new trees without a way through the delta; a manifest makes those begin. What is written
//! meanwhile waits in the side writes, which are brought over at the end. Nothing of this is
//! logged: the log has that a build began and how it ended. Replay keeps the side writes as writers
//! do, and brings them over where the log says that the build was complete; all else that the index
//! needs was in the page files before. A build whose end the log does not have continues at the
//! next start where a shutdown has stopped it (`keep.rs`), and begins again behind a crash.
//!
//! The side writes are a tree beside the index, not later versions in it: a checkpoint forgets a
//! removal in the tree that it merges it into, and an entry loaded after that would come back for
//! good.

mod chunk;
mod drain;
mod hold;
mod keep;
mod load;
mod run_file;
mod scan;
mod shared_fields;
mod sorter;
mod state;
mod unique;
mod work;

use std::sync::Arc;

use pinion_query::MultikeyPaths;
use pinion_runtime::{fs, on_all_cores};
use pinion_storage::{PartitionId, TreeId, storage};
use pinion_wire::{Error, ErrorCode, Result, interruption};

use crate::errors::from_fatal;
use crate::index::Index;

pub(crate) use drain::{replay, side_value};
pub(crate) use hold::held;
pub use hold::{HoldBuilds, set_build_hold};
pub(crate) use keep::{Stopped, keep, remove_sorted, remove_temporary, take_kept};
pub(crate) use scan::{check_room, forget_sorted};
use shared_fields::SharedFields;
pub(crate) use state::BuildState;
use state::ScanState;
pub(crate) use unique::duplicates;
pub(crate) use work::Work;
pub(crate) use work::build_limits;
pub use work::{BuildLimits, BuildPhase, set_build_limits};

/// What a build found out on its way.
#[derive(Default)]
pub(crate) struct Found {
    /// Where documents have arrays, by index.
    pub multikey: Vec<(TreeId, MultikeyPaths)>,
    /// How many entries were loaded.
    entries: u64,
    scans: Vec<ScanState>,
    /// Of each partition and index: what entries share.
    shared: Vec<Vec<SharedFields>>,
}

impl Found {
    /// What was found out of shared fields is not all that there is: entries were brought over by a
    /// pass that did not come to its end.
    pub(crate) fn look_at_all(&mut self, work: &Work) {
        let of_partition = || work.indexes.iter().map(|_| SharedFields::all()).collect();
        self.shared = (0..work.partitions()).map(|_| of_partition()).collect();
    }

    /// Where a build is stopped that has this.
    pub(crate) fn stopped(self) -> Stopped {
        Stopped {
            phase: BuildPhase::Draining,
            scans: self.scans,
            multikey: self.multikey,
        }
    }

    fn add(&mut self, shared: Vec<Vec<SharedFields>>) {
        if self.shared.is_empty() {
            self.shared = shared;
            return;
        }
        for (known, found) in self.shared.iter_mut().zip(shared) {
            for (known, found) in known.iter_mut().zip(found) {
                known.add(found);
            }
        }
    }
}

/// Adds to an error which build it ended.
pub(crate) fn failed(work: &Work, error: Error) -> Error {
    if error.code == ErrorCode::INTERRUPTED_AT_SHUTDOWN {
        return error;
    }
    let collection = &work.collection;
    error.context(format!(
        "Index build failed: {}: Collection {} ( {} )",
        work.uuid, collection.ns, collection.uuid
    ))
}

/// How far the first two phases of a build have come.
pub(crate) enum Filled {
    Complete(Found),
    /// A shutdown has stopped them. What is sorted stays where it is.
    Stopped(Stopped),
}

/// Makes and loads the entries of the documents that are there. On an error the indexes' trees are
/// left for the caller to drop.
pub(crate) async fn fill(work: &Arc<Work>) -> Result<Found> {
    match fill_from(work, None).await? {
        Filled::Complete(found) => Ok(found),
        Filled::Stopped(_) => {
            scan::forget_sorted(work).await;
            Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN))
        }
    }
}

/// As [`fill`], from where a build has stopped before.
pub(crate) async fn fill_from(work: &Arc<Work>, state: Option<&BuildState>) -> Result<Filled> {
    let filled = fill_trees(work, state).await;
    if filled.is_err() {
        scan::forget_sorted(work).await;
    }
    filled
}

async fn fill_trees(work: &Arc<Work>, state: Option<&BuildState>) -> Result<Filled> {
    let made = fs::create_dir_all(Work::dir()).await;
    made.map_err(|error| {
        let what = format!("cannot make the directory of index builds: {error}");
        Error::new(ErrorCode::FILE_STREAM_FAILED, what)
    })?;
    let mut found = Found::default();
    let mut scans = vec![ScanState::default(); usize::from(work.partitions())];
    if let Some(state) = state {
        scans.clone_from(&state.scans);
        found.multikey = multikey_of(state);
    }
    if !scans.iter().all(|scan| scan.is_complete) {
        work.progress
            .begin(BuildPhase::Scanning, documents(work).await);
        work.progress
            .add(scans.iter().map(|scan| scan.documents).sum());
        let from: Arc<[ScanState]> = scans.into();
        let scan = move |work, partition: PartitionId| {
            let from = from[usize::from(partition.0)].clone();
            scan::scan(work, partition, from)
        };
        scans = Vec::new();
        for part in work.on_partitions(scan).await? {
            scans.push(part.state);
            found.multikey.extend(part.multikey);
        }
    }
    let mut stopped = Stopped {
        phase: BuildPhase::Scanning,
        scans,
        multikey: found.multikey.clone(),
    };
    if !stopped.scans.iter().all(|scan| scan.is_complete) {
        return Ok(Filled::Stopped(stopped));
    }
    found.entries = stopped.scans.iter().map(|scan| scan.entries).sum();
    work.progress.begin(BuildPhase::Loading, found.entries);
    stopped.phase = BuildPhase::Loading;
    match work.on_partitions(load::load).await {
        Ok(shared) => found.add(shared),
        Err(error) => {
            scan::is_at_shutdown(Err(error))?;
            return Ok(Filled::Stopped(stopped));
        }
    }
    found.scans = stopped.scans;
    work.progress.begin(BuildPhase::Draining, 0);
    Ok(Filled::Complete(found))
}

fn multikey_of(state: &BuildState) -> Vec<(TreeId, MultikeyPaths)> {
    let of_index = |index: &state::IndexState| Some((index.tree, index.multikey.clone()?));
    state.indexes.iter().filter_map(of_index).collect()
}

/// What a build knows that continues in its last phase: its trees are started.
pub(crate) fn resume_drain(work: &Work, state: &BuildState) -> Found {
    work.progress.begin(BuildPhase::Draining, 0);
    let mut found = Found {
        multikey: multikey_of(state),
        scans: state.scans.clone(),
        ..Found::default()
    };
    found.look_at_all(work);
    found
}

/// Makes the trees begin that were loaded. The sorted entries are not needed any more.
pub(crate) async fn install(work: &Work, found: &Found) -> Result<()> {
    if found.entries > 0 {
        let trees: Vec<TreeId> = work.indexes.iter().map(|index| index.tree).collect();
        let installed = storage().install_loads(&trees).await;
        installed.map_err(from_fatal)?;
    }
    scan::forget_sorted(work).await;
    Ok(())
}

/// Forgets the entries of these indexes, those of a build that did not come to its end among them.
/// Their side writes stay.
pub(crate) async fn forget_entries<'a>(indexes: impl Iterator<Item = &'a Index>) -> Result<()> {
    let trees: Vec<TreeId> = indexes.map(|index| index.tree).collect();
    storage().clear_trees(&trees).await.map_err(from_fatal)
}

/// The number of documents in the collection.
pub(crate) async fn documents(work: &Work) -> u64 {
    records(work.collection.tree()).await
}

/// The number of records in all partitions of a tree.
pub(crate) async fn records(tree: TreeId) -> u64 {
    let counted = on_all_cores(move |_| async move {
        let partitions = (0..storage().partition_count()).map(PartitionId);
        let owned = partitions.filter_map(|partition| storage().partition(partition));
        owned
            .map(|owned| owned.tree_stats(tree).records)
            .sum::<u64>()
    });
    counted.await.into_iter().sum()
}

/// Brings over all that is left, and checks that unique indexes are unique. There are no writers to
/// the collection meanwhile.
pub(crate) async fn complete(work: &Arc<Work>, found: &mut Found) -> Result<()> {
    while drain_once(work, found).await? > 0 {}
    check_unique(work, std::mem::take(&mut found.shared)).await
}

/// Brings over what was written since the build began or the last pass; how many side writes there
/// were. Only where there were none is nothing left.
pub(crate) async fn drain_once(work: &Arc<Work>, found: &mut Found) -> Result<u64> {
    let drained = work.on_partitions(drain::drain).await?;
    let met = drained.iter().map(|part| part.met).sum();
    found.add(drained.into_iter().map(|part| part.shared).collect());
    Ok(met)
}

/// Looks again at what entries were found to share.
async fn check_unique(work: &Arc<Work>, shared: Vec<Vec<SharedFields>>) -> Result<()> {
    for (partition, of_partition) in (0..).map(PartitionId).zip(shared) {
        for (i, shared) in of_partition.into_iter().enumerate() {
            let index = &work.indexes[i];
            if !index.spec.unique {
                continue;
            }
            let fields = shared.into_fields();
            if fields.as_ref().is_some_and(Vec::is_empty) {
                continue;
            }
            let (collection, index) = (work.collection.clone(), index.clone());
            let look = move || async move {
                unique::check(&collection, &index, partition, fields.as_deref()).await
            };
            let owner = storage().owner(partition);
            pinion_runtime::submit_to(owner, pinion_runtime::Queue::Foreground, look).await?;
        }
    }
    Ok(())
}
