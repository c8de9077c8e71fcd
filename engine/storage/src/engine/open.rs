//! Opening a data directory: lock, superblock, base. Nothing is replayed and nothing is written but
//! a new directory's first manifest.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use pinion_clock::{Timestamp, VectorClock};
use pinion_runtime::sync::Notify;
use pinion_runtime::{
    CoreId, Duration, LocalBoxFuture, Queue, core_count, core_id, fs, join_all, random_stream,
    set_core_local, submit_to,
};

use super::checkpoint::{CheckpointTimes, KeptLayers, NodeState, Turns};
use super::copy::FrozenCheckpoints;
use super::error::OpenError;
use super::log::{LogRetention, OwnLog};
use super::options::{PlantedFault, StorageOptions};
use super::storage::{Shared, Storage, owner_of, storage};
use crate::base::{PartitionOptions, PartitionRoots, is_page_file, page_file_name};
use crate::limits::{BLOCK_BYTES, HISTORY_MEMORY_PERCENT, MAX_PARTITIONS, MIN_SEGMENT_BYTES};
use crate::manifest::{Cuts, HASH_VERSION, Manifest, ManifestStore, superblock_path};
use crate::partition::Partition;
use crate::ring::list_rings;
use crate::types::{PartitionId, ReadError};

/// A data directory whose base is open on every core. Reads work; nothing is replayed, and nothing
/// can be written until [`Opened::recover`].
pub struct Opened {
    pub(super) storage: Rc<Storage>,
    pub(super) kept: KeptLayers,
}

impl Opened {
    /// Core 0's storage.
    pub fn storage(&self) -> &Rc<Storage> {
        &self.storage
    }
}

pub(crate) fn partition_dir(dir: &Path, partition: PartitionId) -> PathBuf {
    dir.join(format!("partition-{:02}", partition.0))
}

/// Opens a data directory, making it when it does not exist. Call it on core 0, once for a node;
/// afterwards every core has its [`Storage`].
///
/// # Errors
/// See [`OpenError`]. Damage is never passed over: an older state is not opened in place of a
/// damaged newer one.
pub async fn open(options: StorageOptions) -> Result<Opened, OpenError> {
    assert_eq!(core_id(), CoreId(0), "storage is opened on core 0");
    check_options(&options)?;
    let dir = options.dir.clone();
    let doing = |what: &str| OpenError::io(format!("{what} {}", dir.display()));
    make_directory(&dir).await.map_err(doing("making"))?;
    let lock = fs::lock(&dir).await.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::Locked { dir: dir.clone() },
        _ => OpenError::Io {
            doing: format!("locking {}", dir.display()),
            error,
        },
    })?;
    open_locked(options, lock, Arc::default()).await
}

/// A data directory that this process has closed and keeps others out of until it opens it again.
pub struct Reopening {
    pub(super) options: StorageOptions,
    pub(super) lock: fs::DirLock,
    /// What was seen under its times is not seen under lower ones, and no timestamp is used again
    /// for something else.
    pub(super) clock: Arc<VectorClock>,
    pub(super) kept: KeptLayers,
}

impl Reopening {
    /// Opens the directory again, as [`open`] does; every core has another storage afterwards.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(self) -> Result<Opened, OpenError> {
        let opened = open_locked(self.options, self.lock, self.clock).await?;
        let kept = self.kept;
        Ok(Opened { kept, ..opened })
    }
}

fn open_locked(
    options: StorageOptions,
    lock: fs::DirLock,
    clock: Arc<VectorClock>,
) -> LocalBoxFuture<'static, Result<Opened, OpenError>> {
    Box::pin(async move {
        let dir = options.dir.clone();
        let doing = |what: &str| OpenError::io(format!("{what} {}", dir.display()));
        let exists = fs::exists(&superblock_path(&dir))
            .await
            .map_err(doing("looking into"))?;
        let manifests = if exists {
            ManifestStore::open(&dir)
                .await
                .map_err(OpenError::manifest(&dir))?
        } else {
            create(&options).await?
        };
        let manifest = manifests.current();
        if let Some(asked) = options.partitions
            && asked != manifest.partitions
        {
            return Err(OpenError::PartitionCount {
                found: manifest.partitions,
                asked,
            });
        }
        if manifest.hash_version != HASH_VERSION {
            return Err(OpenError::HashVersion {
                found: manifest.hash_version,
            });
        }
        manifests.remove_strays().await.map_err(doing("cleaning"))?;
        remove_stray_pages(&dir, manifest)
            .await
            .map_err(doing("cleaning"))?;

        let cores = core_count();
        let shared = Arc::new(Shared::new(cores, &options, manifest, clock));
        let roots: Arc<[PartitionRoots]> = manifest.roots.clone().into();
        let node = NodeState {
            lock: RefCell::new(Some(lock)),
            demand: Notify::new(),
            foreign: RefCell::default(),
            held: Cell::new(None),
            released: Notify::new(),
            retention: Cell::new(first_retention(&options, manifest)),
            standalone_above: Cell::new(manifest.standalone_above()),
            member_was_closed: Cell::new(manifest.member_closed),
            was_closed: Cell::new(manifest.closed),
            log_begins_above: Cell::new(Timestamp::MIN),
            dirty: Cell::new(false),
            base: Cell::new(manifest.base()),
            epoch: Cell::new(manifest.epoch),
            own: OwnLog::default(),
            frozen: FrozenCheckpoints::default(),
            layers: RefCell::default(),
            mostly_left: Cell::new(false),
            times: CheckpointTimes::default(),
            turns: Turns::new(manifests),
        };
        let opened = join_all((1..cores as u16).map(|core| {
            let (options, shared, roots) = (options.clone(), shared.clone(), roots.clone());
            submit_to(CoreId(core), Queue::Foreground, move || async move {
                open_core(options, shared, &roots, None).await
            })
        }))
        .await;
        opened.into_iter().collect::<Result<Vec<()>, OpenError>>()?;
        open_core(options, shared, &roots, Some(node)).await?;
        let storage = storage();
        storage.restore_own(&storage.manifest_now().await).await?;
        let kept = KeptLayers::new();
        Ok(Opened { storage, kept })
    })
}

/// How much of the log is kept until that is set. A directory of a member may have been opened as a
/// standalone: its oplog is not given up before that is known.
fn first_retention(options: &StorageOptions, manifest: &Manifest) -> Option<LogRetention> {
    let keeps_all = LogRetention {
        bytes: u64::MAX,
        min_age: Duration::ZERO,
    };
    let is_of_member = manifest.stable > 0;
    options.log_retention.or(is_of_member.then_some(keeps_all))
}

/// Removes page files that the manifest does not name: of a copy that was not completed, or what a
/// complete one has replaced.
async fn remove_stray_pages(dir: &Path, manifest: &Manifest) -> io::Result<()> {
    for (number, roots) in manifest.roots.iter().enumerate() {
        let dir = partition_dir(dir, PartitionId(number as u16));
        let named = page_file_name(roots.file);
        if !fs::exists(&dir).await? {
            // Opening the partition says what is missing.
            continue;
        }
        for name in fs::read_dir(&dir).await? {
            if is_page_file(&name) && name != named {
                fs::remove_file(dir.join(&name)).await?;
            }
        }
    }
    Ok(())
}

/// Makes a directory and those above it, and makes their names durable.
async fn make_directory(dir: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    for path in dir.ancestors().filter(|path| !path.as_os_str().is_empty()) {
        if fs::exists(path).await? {
            break;
        }
        missing.push(path);
    }
    fs::create_dir_all(dir).await?;
    for path in missing {
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        fs::sync_dir(parent).await?;
    }
    Ok(())
}

fn check_options(options: &StorageOptions) -> Result<(), OpenError> {
    let refuse = |what: String| Err(OpenError::Option(what));
    if let Some(partitions) = options.partitions
        && (partitions == 0 || partitions > MAX_PARTITIONS)
    {
        return refuse(format!(
            "the number of partitions is {partitions}; it must be from 1 to {MAX_PARTITIONS}"
        ));
    }
    let segment = options.segment_bytes;
    if segment < MIN_SEGMENT_BYTES
        || !segment.is_multiple_of(BLOCK_BYTES as u64)
        || segment > 1 << 40
    {
        return refuse(format!(
            "the segment size is {segment}; it must be a multiple of 4096 from {MIN_SEGMENT_BYTES} up"
        ));
    }
    if !(1..=90).contains(&options.delta_percent) {
        return refuse(format!(
            "the share of changes is {} percent; it must be from 1 to 90",
            options.delta_percent
        ));
    }
    Ok(())
}

/// Makes the first state of a data directory. The superblock file comes last: without it, the
/// directory holds nothing.
async fn create(options: &StorageOptions) -> Result<ManifestStore, OpenError> {
    let dir = &options.dir;
    let doing = |what: &str| OpenError::io(format!("{what} {}", dir.display()));
    // Rings are made only behind a superblock, so where there is one, a superblock was lost.
    if let Some(ring) = list_rings(dir)
        .await
        .map_err(doing("looking into"))?
        .first()
    {
        let because = ring.path.display().to_string();
        return Err(OpenError::NoSuperblock {
            dir: dir.clone(),
            because,
        });
    }
    let cores = core_count();
    let partitions = options
        .partitions
        .unwrap_or((cores as u16).min(MAX_PARTITIONS));
    let created = join_all((0..partitions).map(PartitionId).map(|partition| {
        let (path, options) = (partition_dir(dir, partition), options.clone());
        submit_to(
            owner_of(partition, cores),
            Queue::Foreground,
            move || async move {
                let page_options = partition_options(&options, partitions);
                let created = Partition::create(partition, &path, page_options).await;
                let created = created.map_err(OpenError::partition(&path))?;
                let roots = created.roots();
                created.close().await;
                Ok::<PartitionRoots, OpenError>(roots)
            },
        )
    }))
    .await;
    let roots = created
        .into_iter()
        .collect::<Result<Vec<PartitionRoots>, OpenError>>()?;
    fs::sync_dir(dir).await.map_err(doing("syncing"))?;
    let manifest = Manifest {
        directory: random_stream("storage directory").next_u64(),
        generation: 1,
        epoch: 0,
        partitions,
        hash_version: HASH_VERSION,
        base: 0,
        all_durable: 0,
        retained_above: 0,
        cuts: Cuts::default(),
        roots,
        spilled: false,
        stable: 0,
        has_own: false,
        own_base: 0,
        own_cuts: Cuts::default(),
        transaction: 0,
        standalone_above: 0,
        closed: true,
        member_closed: false,
    };
    ManifestStore::create(dir, manifest)
        .await
        .map_err(doing("writing the first superblock of"))
}

/// The part of the memory for changes that those may take which a checkpoint spills, in percent:
/// well below what makes it ask for a checkpoint, so that one that is asked for by memory merges
/// and frees it.
const SPILL_PERCENT: u64 = 35;

/// The part of memory that pages may take while there are few changes, in percent. Changes may take
/// the rest, and pages give way to those beyond it. What pages have left is not always where
/// changes need it, so memory that goes back and forth is memory that the process may take twice.
const PAGES_PERCENT: u64 = 80;

/// The options of each partition: its part of the node's memory for pages, and of what old
/// snapshots may keep in memory and on disk.
fn partition_options(options: &StorageOptions, partitions: u16) -> PartitionOptions {
    let share = |percent| options.cache_bytes / 100 * percent / u64::from(partitions);
    PartitionOptions {
        cache_bytes: share(PAGES_PERCENT),
        changes_beside_cache_bytes: share(100 - PAGES_PERCENT),
        retired_bytes: share(HISTORY_MEMORY_PERCENT),
        history_bytes: options.history_bytes / u64::from(partitions),
        spill_bytes: share(options.delta_percent) / 100 * SPILL_PERCENT,
        // What a merge has built and readers do not have yet is in memory beside what it replaces.
        part_bytes: (share(100 - options.delta_percent) / 16)
            .clamp(1, options.partition.part_bytes),
        ignores_intents: options.planted_fault == PlantedFault::IntentsIgnored,
        loses_run_versions: options.planted_fault == PlantedFault::VersionsLost,
        skips_runs: options.planted_fault == PlantedFault::RunsSkipped,
        ..options.partition.clone()
    }
}

/// Opens what this core owns.
async fn open_core(
    options: StorageOptions,
    shared: Arc<Shared>,
    roots: &[PartitionRoots],
    node: Option<NodeState>,
) -> Result<(), OpenError> {
    let (core, cores) = (core_id(), core_count());
    let page_options = partition_options(&options, roots.len() as u16);
    let opened = join_all(roots.iter().enumerate().map(|(number, roots)| {
        let partition = PartitionId(number as u16);
        let (path, page_options) = (partition_dir(&options.dir, partition), page_options.clone());
        async move {
            if owner_of(partition, cores) != core {
                return Ok(None);
            }
            let opened: Result<Rc<Partition>, ReadError> =
                Partition::open(partition, &path, *roots, page_options).await;
            opened.map(Some).map_err(OpenError::partition(&path))
        }
    }))
    .await;
    let partitions = opened.into_iter().collect::<Result<Vec<_>, OpenError>>()?;
    for partition in partitions.iter().flatten() {
        partition.share_room(shared.room.clone());
    }
    set_core_local(Storage::new(
        (core, cores),
        options,
        shared,
        partitions,
        node,
    ));
    Ok(())
}
