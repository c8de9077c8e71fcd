//! Taking over a copied checkpoint: this node closes, and its directory is the copy when it is
//! opened again.
//!
//! The copy has what is replicated. What is each node's own, the trees from
//! [`TreeId::FIRST_UNREPLICATED`] on and the rows of the catalog with such numbers, is this node's:
//! it goes into the copied file of its partition before anything names that. The directory gets
//! another identity, so that of the log that it has nothing counts any more, and the log begins
//! with the entries that the copy brings. All of it takes effect with the rename of the superblock:
//! before, the directory is what it was.

use std::io;
use std::ops::Bound;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{
    CoreId, LocalBoxFuture, Queue, core_id, fs, random_stream, sim, spawn, wall_ms,
};

use super::copied::{CheckpointCopy, CopiedEntry};
use crate::base::{PartitionOptions, PartitionRoots, Unpaced};
use crate::engine::error::OpenError;
use crate::engine::log::own_entry::PARTITION;
use crate::engine::open::{Reopening, partition_dir};
use crate::engine::storage::Storage;
use crate::limits::{MAX_ENTRY_BYTES, TRANSPLANT_BYTES, TRANSPLANT_CACHE_BYTES};
use crate::manifest::{Cuts, Manifest, ManifestStore};
use crate::partition::Partition;
use crate::ring::{EntryKind, Ring, RingDir, RingStart, RingStopped, list_rings};
use crate::types::{
    CATALOG_TREE, Direction, Expect, Fatal, Key, KeyRange, Op, ReadAt, ReadError, TreeId, Write,
};

impl Storage {
    /// Closes storage, as [`Storage::close_to_reopen`] does, and puts a copied checkpoint in the
    /// place of all that is replicated. The log begins with `entries`: those from
    /// [`CheckpointCopy::log_from`] to the base, which is the last, in their order. What is not
    /// replicated stays. Call it on core 0, when nothing uses storage any more. The copy is
    /// verified.
    ///
    /// # Errors
    /// The copy cannot be taken over: the directory is what it was, and storage is closed.
    ///
    /// # Panics
    /// If the entries are not those of the copy.
    pub fn close_to_adopt<'a>(
        &'a self,
        copy: &'a CheckpointCopy,
        entries: Vec<CopiedEntry>,
    ) -> LocalBoxFuture<'a, Result<Reopening, OpenError>> {
        Box::pin(async move {
            assert!(core_id() == CoreId(0), "core 0 closes a node");
            check_entries(copy, &entries);
            self.end_steps().await;
            sim::event("copy taken over");
            let roots = self.transplant_own(copy).await?;
            // What the manifest says now is what it says at the end: no checkpoint is taken any
            // more.
            let current = self.manifest_now().await;
            let reopening = self.close_files_to_reopen().await;
            let manifest = adopted(&current, copy, &entries, roots);
            let first = self.write_first_entries(&manifest, entries).await?;
            let dir = &self.options.dir;
            let own = RingDir::own(dir);
            let doing = || OpenError::io(format!("taking over a copy in {}", dir.display()));
            fs::create_dir_all(&own.path).await.map_err(doing())?;
            fs::sync_dir(dir).await.map_err(doing())?;
            sim::event("copy takes effect");
            ManifestStore::create(dir, manifest)
                .await
                .map_err(doing())?;
            // Nothing of them is part of the log any more, whether they are there or not.
            self.remove_segments_before(first).await.map_err(doing())?;
            Ok(reopening)
        })
    }

    /// Removes all segments but those of the first ring from a generation on.
    async fn remove_segments_before(&self, first: u64) -> io::Result<()> {
        let mut rings = list_rings(&self.options.dir).await?;
        rings.push(RingDir::own(&self.options.dir));
        for dir in rings {
            for generation in dir.generations().await? {
                if dir.ring != 0 || generation < first {
                    fs::remove_file(dir.segment_path(generation)).await?;
                }
            }
        }
        Ok(())
    }

    /// Puts what is this node's own in the place of what is the source's own. Gives what partition
    /// 0 is then.
    async fn transplant_own(&self, copy: &CheckpointCopy) -> Result<PartitionRoots, OpenError> {
        let dir = partition_dir(&self.options.dir, PARTITION);
        let damaged = |error| OpenError::partition(&dir)(error);
        let options = PartitionOptions {
            cache_bytes: TRANSPLANT_CACHE_BYTES,
            changes_beside_cache_bytes: TRANSPLANT_CACHE_BYTES,
            ..self.options.partition.clone()
        };
        let copied = Partition::open(PARTITION, &dir, copy.roots(PARTITION), options)
            .await
            .map_err(damaged)?;
        let own = self.owned_partition(PARTITION);
        let transplant = Transplant {
            own,
            copied,
            base: copy.base(),
        };
        let roots = transplant.run().await.map_err(damaged)?;
        let closed = transplant.copied.close();
        closed.await;
        roots.map_err(OpenError::Fatal)
    }

    /// Writes the entries that the log begins with into segments that nothing of the directory as
    /// it is refers to. Gives the first of them.
    async fn write_first_entries(
        &self,
        manifest: &Manifest,
        entries: Vec<CopiedEntry>,
    ) -> Result<u64, OpenError> {
        let doing = || OpenError::io("writing the beginning of the log");
        let dir = RingDir::new(&self.options.dir, 0);
        let generations = dir.generations().await.map_err(doing())?;
        let first = generations.last().map_or(1, |last| last + 1);
        let ring = Ring::start(RingStart {
            next_generation: first,
            dir,
            directory: manifest.directory,
            stamps: self.options.stamps(),
            epoch: manifest.epoch,
            segment_bytes: self.options.segment_bytes,
            idle: Vec::new(),
            sealed: Vec::new(),
            cuts: Cuts::default(),
            tail_bytes: 0,
        })
        .await
        .map_err(doing())?;
        let preparing = {
            let (ring, room) = (ring.clone(), self.shared.room.clone());
            spawn(
                Queue::Background,
                async move { ring.keep_prepared(&room).await },
            )
        };
        let written = append_all(&ring, manifest, entries).await;
        ring.stop();
        // One that was dropped has ended too.
        let prepared = preparing.await.unwrap_or(Ok(()));
        written.and(prepared).map_err(doing())?;
        Ok(first)
    }
}

async fn append_all(
    ring: &Rc<Ring>,
    manifest: &Manifest,
    entries: Vec<CopiedEntry>,
) -> io::Result<()> {
    let base = manifest.base();
    let secs = (wall_ms() / 1000) as u32;
    let mut before = Timestamp::from_u64(manifest.retained_above);
    for entry in entries {
        let reserved = ring.reserve(std::iter::once(entry.bytes.len())).await;
        let stopped = |RingStopped| io::Error::other("the ring was stopped");
        let mut reservation = reserved.map_err(stopped)?;
        let (kind, mut bytes) = (EntryKind::Logged, Vec::from(entry.bytes));
        ring.append(&mut reservation, kind, entry.ts, before, &mut bytes);
        before = entry.ts;
        if ring.is_pressed() || entry.ts == base {
            // Nothing above the base is there: all that is durable is in it.
            let batch = ring.take_batch(Timestamp::MIN, secs);
            let batch = batch.expect("something is pending, and has its room");
            batch.write(ring, true).await?;
        }
    }
    Ok(())
}

fn check_entries(copy: &CheckpointCopy, entries: &[CopiedEntry]) {
    let ends = entries.first().zip(entries.last());
    let ends = ends.map(|(first, last)| (first.ts, last.ts));
    assert_eq!(
        ends,
        Some((copy.log_from(), copy.base())),
        "the log begins with other entries than the copy needs"
    );
    assert!(
        entries.is_sorted_by(|a, b| a.ts < b.ts),
        "entries are out of order"
    );
    assert!(
        entries
            .iter()
            .all(|entry| entry.bytes.len() <= MAX_ENTRY_BYTES),
        "an entry is too long"
    );
}

/// What is true of the directory when it is the copy.
fn adopted(
    current: &Manifest,
    copy: &CheckpointCopy,
    entries: &[CopiedEntry],
    own: PartitionRoots,
) -> Manifest {
    let base = copy.base().as_u64();
    let partitions = (0..copy.partitions()).map(crate::types::PartitionId);
    let roots = partitions.map(|partition| match partition == PARTITION {
        true => own,
        false => copy.roots(partition),
    });
    Manifest {
        directory: random_stream("copied directory").next_u64() | 1,
        // Its file is none of those that the superblock names which is there until then.
        generation: current.generation + 2,
        epoch: current.epoch,
        partitions: current.partitions,
        hash_version: current.hash_version,
        base,
        all_durable: base,
        retained_above: entries[0].ts.as_u64() - 1,
        cuts: Cuts::default(),
        roots: roots.collect(),
        spilled: copy.source.spilled,
        stable: base,
        has_own: true,
        own_base: 0,
        own_cuts: Cuts::default(),
        transaction: copy.source.transaction,
        standalone_above: 0,
        closed: false,
        member_closed: false,
    }
}

/// Partition 0 of this node, and what was copied of the source's.
struct Transplant {
    own: Rc<Partition>,
    copied: Rc<Partition>,
    base: Timestamp,
}

/// The rows of the catalog that describe what is not replicated.
fn own_rows() -> KeyRange {
    let first = TreeId::FIRST_UNREPLICATED.0.to_be_bytes();
    KeyRange {
        lower: Bound::Included(Key::from_slice(&first)),
        upper: Bound::Unbounded,
    }
}

fn is_own(tree: &TreeId) -> bool {
    !tree.is_replicated() && *tree != TreeId::SPILLED
}

impl Transplant {
    async fn run(&self) -> Result<Result<PartitionRoots, Fatal>, ReadError> {
        for tree in self.copied.tree_ids().iter().filter(|tree| is_own(tree)) {
            self.copied.drop_tree(*tree, Timestamp::MIN);
        }
        let theirs = Cursored::new(&self.copied, CATALOG_TREE, own_rows());
        self.move_all(theirs, |key, _| delete(CATALOG_TREE, key))
            .await?;
        // The trees are gone before others come under their numbers.
        if let Err(fatal) = self.checkpoint().await {
            return Ok(Err(fatal));
        }
        let rows = Cursored::new(&self.own, CATALOG_TREE, own_rows());
        self.move_all(rows, |key, value| put(CATALOG_TREE, key, value))
            .await?;
        for tree in self.own.tree_ids().into_iter().filter(is_own) {
            let records = Cursored::new(&self.own, tree, KeyRange::all());
            self.move_all(records, |key, value| put(tree, key, value))
                .await?;
        }
        Ok(self.checkpoint().await)
    }

    /// Makes a write of the copy of each record.
    async fn move_all(
        &self,
        mut records: Cursored,
        write: impl Fn(Key, Bytes) -> Write,
    ) -> Result<(), ReadError> {
        let mut unwritten = 0;
        while let Some((key, value)) = records.next().await? {
            unwritten += key.len() + value.len();
            let write = write(key, value);
            self.copied
                .apply_at(Timestamp::MIN, std::slice::from_ref(&write))
                .await?;
            if unwritten > TRANSPLANT_BYTES {
                unwritten = 0;
                let written = self.checkpoint().await;
                written.map_err(|fatal| ReadError::Io(fatal.to_string().into()))?;
            }
        }
        Ok(())
    }

    /// Everything so far goes into pages, which are durable.
    async fn checkpoint(&self) -> Result<PartitionRoots, Fatal> {
        self.copied.seal(self.base);
        let roots = self.copied.merge(true, &Unpaced).await?;
        self.copied.install(roots);
        Ok(roots)
    }
}

/// The records of a tree, as of now. A cursor ends with the state that it reads, so that another
/// begins behind it.
struct Cursored(crate::partition::Cursor);

impl Cursored {
    fn new(partition: &Rc<Partition>, tree: TreeId, range: KeyRange) -> Cursored {
        Cursored(partition.cursor(tree, range, Direction::Forward, ReadAt::Newest))
    }

    async fn next(&mut self) -> Result<Option<(Key, Bytes)>, ReadError> {
        let next = self.0.next().await?;
        Ok(next.map(|(key, read)| (key, read.value)))
    }
}

fn put(tree: TreeId, key: Key, value: Bytes) -> Write {
    Write {
        partition: PARTITION,
        tree,
        key,
        op: Op::Put(value),
        expect: Expect::Any,
    }
}

fn delete(tree: TreeId, key: Key) -> Write {
    Write {
        op: Op::Delete,
        ..put(tree, key, Bytes::new())
    }
}
