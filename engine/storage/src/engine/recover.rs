//! From an opened directory to a writable node: verify the rings, cut, replay, start.
//!
//! A crash at any instant in here is like one before it: until the manifest with the new epoch is
//! durable nothing has changed, afterwards the next recovery finds the same entries up to the same
//! cut.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;

use pinion_clock::Timestamp;
use pinion_runtime::{
    CoreId, Duration, File, LocalBoxFuture, OpenOptions, Queue, fs, join_all, now, sim, spawn,
    submit_to, timeout, yield_if_due,
};

use super::applier::{AnyApplier, Applier};
use super::error::{ApplyError, OpenError};
use super::open::{Opened, Reopening};
use super::options::{PlantedFault, StorageOptions};
use super::storage::{Storage, storage};
use crate::limits::{LOG_SAMPLES, SEGMENT_SAMPLES};
use crate::manifest::{Cut, Cuts, Manifest};
use crate::recovery::{Chain, MergedLog, Verified, verify};
use crate::ring::{
    EntryKind, Ring, RingDir, RingFiles, RingReader, RingStart, SegmentLook, SegmentSpan,
    list_rings,
};
use crate::types::{Fatal, TreeId, Write};

/// What recovery found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The timestamp of the base that replay started from.
    pub base: Timestamp,
    /// The last valid timestamp: the cut of the new epoch.
    pub cut: Timestamp,
    /// The new epoch.
    pub epoch: u64,
    /// Entries replayed, and their bytes.
    pub entries_replayed: u64,
    pub bytes_replayed: u64,
    /// Entries behind a hole, never acknowledged as durable; they are discarded.
    pub entries_cut: u64,
    /// Frames that a crash left half written.
    pub torn_frames: u64,
    /// Time from the beginning of recovery to its end.
    pub took: Duration,
}

/// The segments of a ring, as recovery found them.
struct FoundRing {
    files: RingFiles,
    generations: Vec<u64>,
    /// What was seen of each segment.
    looks: Vec<SegmentLook>,
}

impl FoundRing {
    /// The first segment that may hold an entry above `base`: entries ascend.
    fn begin(&self, base: Timestamp) -> u64 {
        let begins_by = |look: &SegmentLook| look.first.is_some_and(|first| first <= base);
        let last = self.looks.iter().rposition(begins_by);
        last.map_or(0, |nth| self.generations[nth])
    }

    /// No entry above it touches the `nth` segment, which lies before [`FoundRing::begin`].
    fn bound(&self, nth: usize) -> Timestamp {
        let mut later = self.looks[nth + 1..].iter().filter_map(|look| look.first);
        later.next().unwrap_or(Timestamp::MIN)
    }

    /// What each segment holds, after the cut.
    fn spans(&self, verified: &Verified) -> Vec<SegmentSpan> {
        let span_of = |(nth, &generation): (usize, &u64)| {
            let key = (self.files.dir.ring, generation);
            let mut read = verified.segments.iter();
            let read = read.find(|read| (read.0, read.1) == key);
            let look = self.looks[nth];
            SegmentSpan {
                generation,
                first: look.first.filter(|&first| first <= verified.last),
                last: read.map_or_else(|| self.bound(nth), |&(_, _, last)| last),
                bytes: look.bytes,
                documents: look.documents,
            }
        };
        self.generations.iter().enumerate().map(span_of).collect()
    }
}

impl Opened {
    /// Replays what the rings hold above the base, cuts off what a crash left incomplete, begins a
    /// new epoch, and makes the node writable.
    ///
    /// # Errors
    /// Damage: something that was durable is missing. The directory is unchanged then.
    pub async fn recover(
        self,
        applier: impl Applier + 'static,
    ) -> Result<RecoveryReport, OpenError> {
        self.recover_up_to(Timestamp::MAX, applier).await
    }

    /// As [`Opened::recover`], but nothing above `limit` exists afterwards, however durable it was,
    /// except what is not replicated.
    ///
    /// # Errors
    /// [`OpenError::BeyondRollback`] if something above `limit` is in the base, or was said to be
    /// stable. The directory is unchanged then.
    pub fn recover_up_to(
        self,
        limit: Timestamp,
        applier: impl Applier + 'static,
    ) -> LocalBoxFuture<'static, Result<RecoveryReport, OpenError>> {
        self.recover_with(limit, Box::new(applier))
    }

    fn recover_with(
        self,
        limit: Timestamp,
        applier: Box<dyn AnyApplier>,
    ) -> LocalBoxFuture<'static, Result<RecoveryReport, OpenError>> {
        Box::pin(async move {
            let Opened { storage, kept } = self;
            let started = now();
            sim::event("recovery begin");
            let manifest = storage.manifest_now().await;
            if manifest.stable() > limit {
                return Err(OpenError::BeyondRollback {
                    limit,
                    stable: manifest.stable(),
                });
            }
            let rings = storage.find_rings(&manifest).await?;
            let verified = storage.verify_rings(&rings, &manifest, limit).await?;
            if verified.beyond > 0 {
                sim::event("recovery hole");
            }
            if verified.torn_frames > 0 {
                sim::event("recovery torn frame");
            }
            if verified.entries > 0 {
                sim::event("recovery entries");
            }
            sim::count("entries cut off", verified.beyond);
            sim::count("torn frames", verified.torn_frames);
            sim::count("entries replayed", verified.entries);
            storage.make_durable(&rings, &manifest, &verified).await?;
            storage.make_own_durable(&manifest).await?;
            sim::event("recovery cut");
            let manifest = storage.begin_epoch(&manifest, &verified).await?;
            sim::event("recovery replay");
            storage.look_back(&rings, &manifest, &*applier).await?;
            storage
                .replay(&rings, &manifest, &verified, &*applier)
                .await?;
            storage.put_back_kept(kept, verified.last).await;
            storage.start_writing(&rings, &manifest, &verified).await?;
            sim::event("recovery end");
            Ok(RecoveryReport {
                base: manifest.base(),
                cut: verified.last,
                epoch: manifest.epoch,
                entries_replayed: verified.entries,
                bytes_replayed: verified.bytes,
                entries_cut: verified.beyond,
                torn_frames: verified.torn_frames,
                took: now() - started,
            })
        })
    }
}

/// Entries that are replayed before memory that nothing could be freed of is looked at again.
const ENTRIES_BETWEEN_VAIN_RELIEFS: u64 = 1000;

impl Storage {
    /// What the newest manifest says, when no other is written. Call it on core 0, without the
    /// turn.
    pub(super) async fn manifest_now(&self) -> Manifest {
        self.node_state().turns.take().await.manifest().clone()
    }

    /// Looks at the beginning of each segment, so that those which the base has left behind need
    /// not be read.
    fn find_rings<'a>(
        &'a self,
        manifest: &'a Manifest,
    ) -> LocalBoxFuture<'a, Result<Vec<FoundRing>, OpenError>> {
        Box::pin(async move {
            let dir = &self.options.dir;
            let doing = || OpenError::io(format!("listing the rings of {}", dir.display()));
            let mut rings = Vec::new();
            for dir in list_rings(dir).await.map_err(doing())? {
                let generations = dir.generations().await.map_err(doing())?;
                rings.push((dir, generations));
            }
            let segments = rings
                .iter()
                .map(|(_, generations)| generations.len() as u32);
            let samples = LOG_SAMPLES / segments.sum::<u32>().max(1);
            let samples = samples.clamp(1, SEGMENT_SAMPLES);
            let mut found = Vec::new();
            for (dir, generations) in rings {
                let files = RingFiles {
                    dir,
                    directory: manifest.directory,
                    stamps: self.options.stamps(),
                    cuts: self.effective_cuts(manifest),
                    segments: Vec::new(),
                    through: Timestamp::MIN,
                };
                let mut looks = Vec::new();
                for &generation in &generations {
                    let look = files.look_into(generation, samples).await;
                    looks.push(look.map_err(OpenError::io("reading the rings"))?);
                }
                found.push(FoundRing {
                    files,
                    generations,
                    looks,
                });
            }
            Ok(found)
        })
    }

    fn effective_cuts(&self, manifest: &Manifest) -> Cuts {
        match self.options.planted_fault {
            PlantedFault::EpochIgnored => Cuts::default(),
            _ => manifest.cuts.clone(),
        }
    }

    /// Readers over the segments for which `wanted` holds, by ring and generation.
    fn readers(
        &self,
        rings: &[FoundRing],
        manifest: &Manifest,
        wanted: impl Fn(u16, u64) -> bool,
    ) -> MergedLog {
        let fault = self.options.planted_fault;
        let cuts = self.effective_cuts(manifest);
        let readers = rings.iter().map(|ring| {
            let generations = ring
                .generations
                .iter()
                .copied()
                .filter(|&generation| wanted(ring.files.dir.ring, generation));
            RingReader::new(
                ring.files.dir.clone(),
                manifest.directory,
                self.options.stamps(),
                cuts.clone(),
                generations,
                fault != PlantedFault::ChecksumNotChecked,
            )
        });
        MergedLog::new(readers.collect())
    }

    async fn verify_rings(
        &self,
        rings: &[FoundRing],
        manifest: &Manifest,
        limit: Timestamp,
    ) -> Result<Verified, OpenError> {
        let chain = Chain {
            base: manifest.base(),
            all_durable: Timestamp::from_u64(manifest.all_durable),
            check_links: self.options.planted_fault != PlantedFault::LinksIgnored,
            limit,
        };
        let begins: BTreeMap<u16, u64> = rings
            .iter()
            .map(|ring| (ring.files.dir.ring, ring.begin(manifest.base())))
            .collect();
        let mut log = self.readers(rings, manifest, |ring, generation| {
            generation >= begins[&ring]
        });
        let verified = verify(&mut log, &chain)
            .await
            .map_err(OpenError::io("reading the rings"))?;
        for reader in log.readers() {
            for place in &reader.scan.mended {
                let (file, offset) = (reader.path(place), place.offset);
                tracing::warn!(target: "STORAGE", id = 7_300_004u64, file = %file.display(), offset, "A stamp of a ring frame is not what was written; its content is intact");
            }
        }
        Ok(verified?)
    }

    /// Flushes the segments that hold what is to be replayed. A process that was killed may have
    /// left frames written and not flushed: they can be read now, and would be gone after a loss of
    /// power, when the cut already says that they exist.
    async fn make_durable(
        &self,
        rings: &[FoundRing],
        manifest: &Manifest,
        verified: &Verified,
    ) -> Result<(), OpenError> {
        let doing = || OpenError::io("flushing the rings");
        for &(ring, generation, last) in &verified.segments {
            let Some(found) = rings
                .iter()
                .find(|found| found.files.dir.ring == ring && last > manifest.base())
            else {
                continue;
            };
            let path = found.files.dir.segment_path(generation);
            let file = File::open(&path, OpenOptions::write())
                .await
                .map_err(doing())?;
            file.datasync().await.map_err(doing())?;
            file.close().await.map_err(doing())?;
        }
        Ok(())
    }

    /// Makes the new epoch and its cut durable. Only afterwards may a timestamp be allotted:
    /// otherwise discarded entries would come back after the next crash.
    fn begin_epoch<'a>(
        &'a self,
        manifest: &'a Manifest,
        verified: &'a Verified,
    ) -> LocalBoxFuture<'a, Result<Manifest, OpenError>> {
        Box::pin(async move {
            let epoch = manifest.epoch + 1;
            let cut = verified.last;
            let mut next = Manifest {
                generation: manifest.generation + 1,
                epoch,
                all_durable: cut.as_u64(),
                closed: false,
                ..manifest.clone()
            };
            next.cuts.add(Cut {
                epoch,
                at: cut.as_u64(),
                discarded_through: verified.highest.as_u64(),
            });
            next.own_cuts.add(self.own_cut(epoch));
            let node = self.node_state();
            let mut turn = node.turns.take().await;
            let replaced = turn.manifests().replace(next.clone()).await;
            replaced.map_err(OpenError::io("writing the manifest of a new epoch"))?;
            node.epoch.set(epoch);
            self.progress.continue_after(cut);
            self.shared.recorded_durable.record(cut);
            Ok(next)
        })
    }

    /// Shows the entries of the base from the oldest transaction on that it needs.
    async fn look_back(
        &self,
        rings: &[FoundRing],
        manifest: &Manifest,
        applier: &dyn AnyApplier,
    ) -> Result<(), OpenError> {
        let base = manifest.base();
        let failed = |ts| move |error| OpenError::Apply { ts, error };
        self.on_all(|storage| async move { storage.owned().for_each(|p| p.begin_replay()) })
            .await;
        if let Some(first) = manifest.transaction() {
            sim::event("recovery looks back");
            let before = Timestamp::from_u64(first.as_u64() - 1);
            let begins: BTreeMap<u16, u64> = rings
                .iter()
                .map(|ring| (ring.files.dir.ring, ring.begin(before)))
                .collect();
            let mut log = self.readers(rings, manifest, |ring, generation| {
                generation >= begins[&ring]
            });
            let mut is_there = false;
            while let Some((_, entry)) = log
                .next()
                .await
                .map_err(OpenError::io("reading the rings"))?
            {
                if entry.ts > base {
                    break;
                }
                is_there |= entry.ts == first;
                if entry.ts >= first && entry.kind == EntryKind::Logged {
                    let shown = applier.look_back(entry.ts, entry.bytes).await;
                    shown.map_err(failed(entry.ts))?;
                }
                yield_if_due().await;
            }
            if !is_there {
                return Err(OpenError::Damaged {
                    file: self.options.dir.clone(),
                    offset: 0,
                    after: None,
                    what: format!("the transaction that begins at {first} is not in the rings"),
                });
            }
        }
        applier.looked_back().await.map_err(failed(base))
    }

    async fn replay(
        &self,
        rings: &[FoundRing],
        manifest: &Manifest,
        verified: &Verified,
        applier: &dyn AnyApplier,
    ) -> Result<(), OpenError> {
        let (base, cut) = (manifest.base(), verified.last);
        let needed: BTreeMap<(u16, u64), Timestamp> = verified
            .segments
            .iter()
            .map(|&(ring, generation, last)| ((ring, generation), last))
            .collect();
        let mut log = self.readers(rings, manifest, |ring, generation| {
            needed
                .get(&(ring, generation))
                .is_some_and(|&last| last > base)
        });
        let stable = self.timeline().stable;
        let (mut is_stable, mut last_stable) = (true, base);
        let mut relieve_after = 0;
        let mut replayed = 0;
        while let Some((_, entry)) = log
            .next()
            .await
            .map_err(OpenError::io("reading the rings"))?
        {
            if entry.ts <= base {
                continue;
            }
            if entry.ts > cut {
                break;
            }
            if is_stable && entry.ts > stable {
                is_stable = false;
                self.keep_versions_from(last_stable, applier).await?;
            }
            if is_stable {
                last_stable = entry.ts;
            }
            if entry.kind == EntryKind::Logged {
                let failed = |error| OpenError::Apply {
                    ts: entry.ts,
                    error,
                };
                applier.apply(entry.ts, entry.bytes).await.map_err(failed)?;
            }
            replayed += 1;
            if self.wants_checkpoint() && replayed >= relieve_after {
                applier.barrier().await.map_err(|error| OpenError::Apply {
                    ts: entry.ts,
                    error,
                })?;
                if !self.relieve_replay(entry.ts, last_stable).await? {
                    relieve_after = replayed + ENTRIES_BETWEEN_VAIN_RELIEFS;
                }
            }
            yield_if_due().await;
        }
        assert_eq!(
            replayed, verified.entries,
            "replay met other entries than verification"
        );
        applier
            .barrier()
            .await
            .map_err(|error| OpenError::Apply { ts: cut, error })?;
        self.on_all(|storage| async move {
            let (horizon, keeps) = (storage.timeline().horizon(), storage.options.is_member);
            storage.owned().for_each(|p| p.end_replay(horizon, keeps));
        })
        .await;
        Ok(())
    }

    /// Frees memory for changes while all up to `ts` is applied: what is stable goes into the base,
    /// and the rest to disk. Gives whether there was anything to free.
    async fn relieve_replay(&self, ts: Timestamp, last_stable: Timestamp) -> Result<bool, Fatal> {
        let mut turn = self.node_state().turns.take().await;
        if ts == last_stable {
            self.write_checkpoint(&mut turn, ts, true).await?;
            return Ok(true);
        }
        if self.has_spilled().await {
            self.write_checkpoint(&mut turn, last_stable, true).await?;
        }
        self.add_layer(ts).await
    }

    /// Everything up to `stable` is to be applied, and what comes now is not stable: a checkpoint
    /// will lie below it.
    async fn keep_versions_from(
        &self,
        stable: Timestamp,
        applier: &dyn AnyApplier,
    ) -> Result<(), OpenError> {
        let barrier = applier.barrier().await;
        barrier.map_err(|error| OpenError::Apply { ts: stable, error })?;
        self.on_all(move |storage| async move {
            storage.owned().for_each(|p| p.keep_versions_from(stable))
        })
        .await;
        Ok(())
    }

    /// Starts the ring of every core, and the tasks that keep it.
    fn start_writing<'a>(
        &'a self,
        rings: &'a [FoundRing],
        manifest: &'a Manifest,
        verified: &'a Verified,
    ) -> LocalBoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            let retained = self.retained_above();
            let mut starts: Vec<RingStart> = (0..self.cores as u16)
                .map(|ring| RingStart {
                    dir: RingDir::new(&self.options.dir, ring),
                    directory: manifest.directory,
                    stamps: self.options.stamps(),
                    epoch: manifest.epoch,
                    segment_bytes: self.options.segment_bytes,
                    next_generation: 1,
                    idle: Vec::new(),
                    sealed: Vec::new(),
                    cuts: manifest.cuts.clone(),
                    tail_bytes: self.options.tail_bytes(),
                })
                .collect();
            let doing = || OpenError::io("starting the rings");
            let mut foreign: Vec<RingFiles> = Vec::new();
            for ring in rings {
                let spans = ring.spans(verified);
                let dir = &ring.files.dir;
                match starts.get_mut(usize::from(dir.ring)) {
                    Some(start) => {
                        start.next_generation = spans.last().map_or(1, |span| span.generation + 1);
                        let (idle, sealed): (Vec<_>, Vec<_>) =
                            spans.into_iter().partition(|span| span.last <= retained);
                        let paths = idle.iter().map(|span| dir.segment_path(span.generation));
                        start.idle.extend(paths);
                        if self.options.log_retention.is_some() {
                            self.trim(dir, &sealed).await.map_err(doing())?;
                        }
                        start.sealed = sealed;
                    }
                    None => foreign.push(RingFiles {
                        cuts: manifest.cuts.clone(),
                        through: spans.iter().map(|span| span.last).max().unwrap_or_default(),
                        segments: spans,
                        ..ring.files.clone()
                    }),
                }
            }
            *self.node_state().foreign.borrow_mut() = foreign;
            for start in &starts {
                fs::create_dir_all(&start.dir.path).await.map_err(doing())?;
            }
            fs::sync_dir(&self.options.dir).await.map_err(doing())?;
            let started = join_all(starts.into_iter().enumerate().map(|(core, start)| {
                submit_to(CoreId(core as u16), Queue::Foreground, move || async move {
                    storage().start_ring(start).await
                })
            }))
            .await;
            started
                .into_iter()
                .collect::<Result<Vec<()>, OpenError>>()?;
            self.start_own(&self.manifest_now().await).await?;
            spawn(Queue::Background, self.rc().run_checkpoints());
            // What was loaded may be more than there is memory for now, and then no writer could
            // get as far as to ask for a checkpoint.
            self.on_all(|storage| async move { storage.publish_memory() })
                .await;
            if verified.entries > 0 {
                // What was replayed need not be replayed again, and its segments can be reused.
                self.node_state().demand.notify_one();
            }
            Ok(())
        })
    }

    /// Takes from segments of which part was never written what a kept log would hold on the disk
    /// for nothing.
    async fn trim(&self, dir: &RingDir, spans: &[SegmentSpan]) -> io::Result<()> {
        for span in spans {
            let path = dir.segment_path(span.generation);
            if fs::file_len(&path).await? > span.bytes {
                let file = File::open(&path, OpenOptions::write()).await?;
                file.set_len(span.bytes).await?;
                file.close().await?;
            }
        }
        Ok(())
    }

    fn start_ring(&self, start: RingStart) -> LocalBoxFuture<'_, Result<(), OpenError>> {
        Box::pin(async move {
            let ring = Ring::start(start)
                .await
                .map_err(OpenError::io("starting a ring"))?;
            self.start_flusher(ring);
            self.roles.start_writing();
            Ok(())
        })
    }

    /// Applies writes at a timestamp they already have: recovery, and a secondary. Nothing is
    /// checked and nothing is logged; `expect` is ignored.
    ///
    /// # Errors
    /// A page could not be read.
    pub async fn apply_at(&self, ts: Timestamp, writes: Vec<Write>) -> Result<(), ApplyError> {
        self.apply_each(writes.into_iter().map(|write| (ts, write)).collect())
            .await
    }

    /// [`Storage::apply_at`] for many writes, each with its timestamp. Those of one partition are
    /// applied in their order.
    ///
    /// # Errors
    /// A page could not be read.
    pub async fn apply_each(&self, writes: Vec<(Timestamp, Write)>) -> Result<(), ApplyError> {
        let mut by_core: BTreeMap<CoreId, Vec<(Timestamp, Write)>> = BTreeMap::new();
        for (ts, write) in writes {
            let owner = self.owner(write.partition);
            by_core.entry(owner).or_default().push((ts, write));
        }
        let applied = join_all(by_core.into_iter().map(|(core, writes)| {
            submit_to(core, Queue::Foreground, move || async move {
                let storage = storage();
                for (ts, write) in writes {
                    storage
                        .apply_owned(ts, std::slice::from_ref(&write))
                        .await?;
                }
                storage.publish_memory();
                Ok(())
            })
        }))
        .await;
        applied.into_iter().collect()
    }

    /// [`Storage::apply_at`] for those of the writes whose partitions this core owns; gives back
    /// the others.
    ///
    /// # Errors
    /// A page could not be read.
    pub async fn apply_here(
        &self,
        ts: Timestamp,
        writes: Vec<Write>,
    ) -> Result<Vec<Write>, ApplyError> {
        let (own, others): (Vec<Write>, Vec<Write>) = writes
            .into_iter()
            .partition(|write| self.owner(write.partition) == self.core);
        for of_partition in own.chunk_by(|a, b| a.partition == b.partition) {
            self.apply_owned(ts, of_partition).await?;
        }
        self.publish_memory();
        Ok(others)
    }

    async fn apply_owned(&self, ts: Timestamp, writes: &[Write]) -> Result<(), ApplyError> {
        let partition = self.owned_partition(writes[0].partition);
        let applied = partition.apply_at(ts, writes).await;
        if ts.is_null() {
            self.shared.demand.note_untimed();
        }
        applied.map_err(|error| ApplyError(error.to_string()))
    }

    /// Drops every tree that `known` does not name, on every core: those a crash or a rollback left
    /// behind. Call it when recovery is complete, before anything is written. Returns those that it
    /// dropped: they must not be used again before the next checkpoint, with which they go.
    pub fn reap_unknown_trees<'a>(
        &'a self,
        known: &'a [TreeId],
    ) -> LocalBoxFuture<'a, Vec<TreeId>> {
        Box::pin(async move {
            let known: std::sync::Arc<std::collections::BTreeSet<TreeId>> =
                std::sync::Arc::new(known.iter().copied().collect());
            let reaped = join_all((0..self.cores as u16).map(|core| {
                let known = known.clone();
                submit_to(CoreId(core), Queue::Foreground, move || async move {
                    storage().reap_owned(&known)
                })
            }))
            .await
            .into_iter()
            .flatten()
            .collect::<Vec<TreeId>>();
            if !reaped.is_empty() {
                submit_to(CoreId(0), Queue::Background, || async {
                    storage().node_state().dirty.set(true)
                })
                .await;
            }
            reaped
        })
    }

    fn reap_owned(&self, known: &std::collections::BTreeSet<TreeId>) -> Vec<TreeId> {
        let mut reaped = Vec::new();
        for partition in self.owned() {
            for tree in partition.tree_ids() {
                if tree == TreeId::MASTER || known.contains(&tree) {
                    continue;
                }
                // One that an entry drops is there for readers of what was before. All others
                // never were.
                if !partition.is_dropping(tree) {
                    partition.drop_tree(tree, Timestamp::MIN);
                }
                reaped.push(tree);
            }
        }
        reaped
    }

    /// Takes a last checkpoint and stops: every later write fails. Before the end of recovery, and
    /// when storage is closed already, there is nothing to take one of, and the directory stays
    /// what it is. Call it on core 0, when nothing uses storage any more.
    pub fn close(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            self.give_up_waiting_for_room().await;
            self.end_steps().await;
            // During recovery not all is applied that the log has, and what is closed may be open
            // again in this process.
            let is_whole = self.roles.is_writable();
            if is_whole && let Err(fatal) = self.checkpoint_thoroughly().await {
                tracing::error!(target: "STORAGE", id = 7_300_003u64, error = %fatal, "No checkpoint could be taken at the end");
            }
            self.close_files().await;
            if is_whole {
                self.note_closed().await;
            }
        })
    }

    /// A checkpoint that waits for room on the disk would hold up the end. What was logged is made
    /// durable first, as far as there is room, and the next start has it from the log.
    async fn give_up_waiting_for_room(&self) {
        if self.roles.is_writable() {
            let logged = self.wait_durable(self.last_allotted());
            if !matches!(timeout(self.options.memory_wait, logged).await, Ok(Ok(()))) {
                tracing::warn!(target: "STORAGE", id = 7_300_058u64, "The node ends with writes that are not durable: there is no room for them on the disk, or it fails");
            }
        }
        self.shared.room.give_up();
    }

    /// Everything is in files, and durable.
    async fn note_closed(&self) {
        assert!(self.roles.is_closed(), "nothing is written any more");
        if self.fatal().is_some() {
            return;
        }
        let mut turn = self.node_state().turns.take().await;
        let noted = self.write_manifest(&mut turn, |current| Manifest {
            closed: true,
            ..current.clone()
        });
        if let Err(fatal) = noted.await {
            tracing::error!(target: "STORAGE", id = 7_300_010u64, error = %fatal, "The end could not be noted");
        }
    }

    /// Whether the process before this one has ended in order: everything that it had written was
    /// durable. Call it on core 0.
    pub fn was_closed(&self) -> bool {
        self.node_state().was_closed.get()
    }

    /// Stops as [`Storage::close`] does, but takes no checkpoint: everything that is logged is
    /// durable, and nothing more is in the base than was. The directory stays closed to other
    /// processes. Call it on core 0, when nothing uses storage any more; what refers to it still, a
    /// cursor or a pin, can only be dropped.
    pub fn close_to_reopen(&self) -> LocalBoxFuture<'_, Reopening> {
        Box::pin(async move {
            self.end_steps().await;
            self.close_files_to_reopen().await
        })
    }

    /// Closes what is open, when no step runs any more, and keeps the directory.
    pub(super) async fn close_files_to_reopen(&self) -> Reopening {
        let kept = self.keep_layers().await;
        self.close_files().await;
        let node = self.node_state();
        let lock = node.lock.borrow_mut().take();
        // What is opened may end below what this node has allotted.
        self.clock().tick_cluster_to(self.last_allotted());
        Reopening {
            options: StorageOptions {
                log_retention: node.retention.get(),
                ..self.options.clone()
            },
            lock: lock.expect("storage is closed once"),
            clock: self.clock().clone(),
            kept,
        }
    }

    /// Lets no step begin any more, and waits for those that have.
    pub(super) async fn end_steps(&self) {
        // A step may wait for that.
        self.release_checkpoints().await;
        self.on_all(|storage| async move { storage.roles.end_steps().await })
            .await;
        self.abort_open_units().await;
    }

    async fn close_files(&self) {
        self.on_all(|storage| async move {
            storage.roles.close();
            storage.flusher.request();
            if let Some(node) = &storage.node {
                node.own.wake_flusher();
                node.own.ended().await;
            }
            storage.flusher.ended().await;
            for partition in storage.owned() {
                partition.close().await;
            }
        })
        .await;
    }

    /// Runs `f` with every core's storage.
    pub(super) async fn on_all<F, Fut>(&self, f: F)
    where
        F: Fn(std::rc::Rc<Storage>) -> Fut + Send + Copy + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        join_all(
            (0..self.cores as u16)
                .map(|core| submit_to(CoreId(core), Queue::Foreground, move || f(storage()))),
        )
        .await;
    }
}
