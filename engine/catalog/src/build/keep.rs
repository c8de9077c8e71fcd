//! A build that a shutdown stops leaves files behind, with which the next start continues: the
//! sorted entries, and how far the build has come.
//!
//! The file of a build's state is made last, and believed only behind an orderly end of the
//! process: until then it may be there while something is lost that the build has read. A start
//! takes it away before the build changes anything, so that no later start continues from where the
//! build has been already.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use pinion_query::MultikeyPaths;
use pinion_runtime::{DmaBuf, File, OpenOptions, fs};
use pinion_storage::{TreeId, storage};
use pinion_wire::{Error, ErrorCode, Result};

use super::run_file;
use super::scan;
use super::state::{BuildState, IndexState, ScanState};
use super::work::{BuildPhase, Work};
use crate::catalog::core_catalog;
use crate::uuid::Uuid;

/// What the name of a build's state begins with.
const STATE: &str = "index-build-";

/// Where a build has stopped.
pub(crate) struct Stopped {
    pub(super) phase: BuildPhase,
    pub(super) scans: Vec<ScanState>,
    pub(super) multikey: Vec<(TreeId, MultikeyPaths)>,
}

impl Stopped {
    /// Whether all entries are in their trees that there were to make.
    pub(crate) fn is_filled(&self) -> bool {
        self.phase == BuildPhase::Draining
    }
}

fn state_path(build: Uuid) -> PathBuf {
    Work::dir().join(format!("{STATE}{build}"))
}

fn failed(error: std::io::Error) -> Error {
    let what = format!("the state of an index build could not be written: {error}");
    Error::new(ErrorCode::FILE_STREAM_FAILED, what)
}

/// Keeps what a build has done, and logs that. Where it cannot be kept the build begins again at
/// the next start.
pub(crate) async fn keep(work: &Arc<Work>, stopped: Stopped) {
    let collection = &work.collection;
    let phase = stopped.phase.name().0;
    let documents: u64 = stopped.scans.iter().map(|scan| scan.documents).sum();
    match write(work, stopped).await {
        Ok(()) => {
            tracing::info!(
                target: "INDEX", id = 4_841_502u64, buildUUID = %work.uuid, collectionUUID = %collection.uuid,
                namespace = collection.ns.as_str(), phase, documents, "Index build: wrote resumable state to disk"
            );
            scan::let_go(work).await;
        }
        Err(error) => {
            tracing::error!(
                target: "INDEX", id = 4_841_501u64, buildUUID = %work.uuid, collectionUUID = %collection.uuid,
                namespace = collection.ns.as_str(), error = error.message.as_str(),
                "Index build: failed to write resumable state to disk"
            );
            forget_state(work.uuid).await;
            scan::forget_sorted(work).await;
        }
    }
}

/// A state of an earlier start must not be believed at the next.
async fn forget_state(build: Uuid) {
    let path = state_path(build);
    let forgotten = match fs::remove_file(&path).await {
        Ok(()) => fs::sync_dir(Work::dir()).await,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => Err(error),
    };
    if let Err(error) = forgotten {
        tracing::error!(
            target: "INDEX", id = 4_841_503u64, buildUUID = %build, path = %path.display(), %error,
            "Index build: failed to remove an earlier resumable state; remove it before the next start"
        );
    }
}

async fn write(work: &Arc<Work>, stopped: Stopped) -> Result<()> {
    let runs = match stopped.phase {
        BuildPhase::Scanning | BuildPhase::Loading => work.on_partitions(scan::keep_sorted).await?,
        BuildPhase::Draining => Vec::new(),
    };
    let of_index = |(i, index): (usize, &crate::index::Index)| {
        let mut multikey: Option<MultikeyPaths> = None;
        for (_, paths) in stopped
            .multikey
            .iter()
            .filter(|(tree, _)| *tree == index.tree)
        {
            match &mut multikey {
                Some(known) => {
                    known.merge(paths);
                }
                None => multikey = Some(paths.clone()),
            }
        }
        let of_partition = |partition| match runs.get(usize::from(partition)) {
            Some(of_indexes) => of_indexes[i].clone(),
            None => Vec::new(),
        };
        Some(IndexState {
            tree: index.tree,
            side: index.building?.side,
            multikey,
            runs: (0..work.partitions()).map(of_partition).collect(),
        })
    };
    let indexes = work.indexes.iter().enumerate().map(of_index);
    let indexes: Option<Vec<IndexState>> = indexes.collect();
    let indexes = indexes.ok_or_else(|| Error::internal("the build is not in the catalog"))?;
    let state = BuildState {
        build: work.uuid,
        collection: work.collection.uuid,
        phase: stopped.phase,
        scans: stopped.scans,
        indexes,
    };
    let bytes = state.encode().map_err(Error::internal)?;
    write_file(work.uuid, &bytes).await.map_err(failed)
}

async fn write_file(build: Uuid, bytes: &[u8]) -> std::io::Result<()> {
    let path = state_path(build);
    let new = path.with_extension("new");
    let file = File::open(&new, OpenOptions::create().truncate()).await?;
    file.write_at(0, DmaBuf::padded_copy(bytes)).await?;
    file.datasync().await?;
    file.close().await?;
    fs::rename(&new, &path).await?;
    // The names of the sorted entries become durable with it.
    fs::sync_dir(Work::dir()).await?;
    fs::sync_dir(storage().dir()).await
}

/// Takes the state of a build that the process before this one has stopped, if it has: no later
/// start finds it.
///
/// # Errors
/// It cannot be read, or is not as it was written.
pub(crate) async fn take_kept(build: Uuid) -> Result<Option<BuildState>> {
    let path = state_path(build);
    match fs::exists(&path).await {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    let read = read(&path).await;
    let removed = async {
        fs::remove_file(&path).await?;
        fs::sync_dir(Work::dir()).await
    };
    removed.await.map_err(failed)?;
    read.map(Some)
}

async fn read(path: &std::path::Path) -> Result<BuildState> {
    let damaged = |why: String| {
        let what = format!("the state of an index build cannot be understood: {why}");
        Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, what)
    };
    let bytes = fs::read_small(path).await;
    let bytes = bytes.map_err(|error| damaged(error.to_string()))?;
    BuildState::decode(&bytes).map_err(damaged)
}

impl Work {
    /// The build as it continues from where it was: its sorted entries are opened.
    ///
    /// # Errors
    /// The state is that of another build, or a file is missing or too short.
    pub(crate) async fn resume(mut self, state: BuildState) -> Result<Arc<Work>> {
        let fits = state.check_fits(self.collection.uuid, &self.indexes, self.partitions());
        fits.map_err(Error::internal)?;
        self.resumed = Some(state);
        let work = Arc::new(self);
        match work.on_partitions(scan::open_sorted).await {
            Ok(_) => Ok(work),
            Err(error) => {
                scan::let_go(&work).await;
                Err(error)
            }
        }
    }
}

/// Removes the sorted entries of a build that begins again.
pub(crate) async fn remove_sorted(build: Uuid) {
    let dir = Work::dir();
    let names = fs::read_dir(&dir).await.unwrap_or_default();
    let begin = format!("{build}-");
    for name in names.iter().filter(|name| name.starts_with(&begin)) {
        run_file::remove(&dir.join(name)).await;
    }
}

/// Removes what operations and builds of an earlier process have left in the directory of temporary
/// files, but for what `keeps` has builds of the catalog continue with.
pub(crate) async fn remove_temporary(keeps: bool) {
    let dir = Work::dir();
    let Ok(names) = fs::read_dir(&dir).await else {
        return;
    };
    let mut kept = BTreeSet::new();
    if keeps {
        for name in names.iter().filter(|name| name.starts_with(STATE)) {
            let Ok(state) = read(&dir.join(name)).await else {
                continue;
            };
            if is_in_catalog(state.build) && state_path(state.build).ends_with(name) {
                kept.insert(name.clone());
                kept.extend(files_of(&state));
            }
        }
    }
    for name in names.iter().filter(|name| !kept.contains(*name)) {
        run_file::remove(&dir.join(name)).await;
    }
}

fn is_in_catalog(build: Uuid) -> bool {
    let catalog = core_catalog().current();
    let mut collections = catalog.collections();
    collections.any(|found| found.builds().contains(&build))
}

/// The names of the files with a build's sorted entries.
fn files_of(state: &BuildState) -> Vec<String> {
    let mut names = Vec::new();
    for (i, index) in state.indexes.iter().enumerate() {
        for (partition, runs) in (0..).zip(&index.runs) {
            let sorter = scan::sorter_name(state.build, i, pinion_storage::PartitionId(partition));
            names.extend(runs.iter().map(|run| format!("{sorter}-{}", run.number)));
        }
    }
    names
}
