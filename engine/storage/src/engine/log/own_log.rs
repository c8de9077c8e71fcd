//! The ring of what this node keeps for itself: writes that are not replicated.
//!
//! Such writes have no timestamp and are no link of the chain. They are numbered by the one ring
//! that holds them all, which core 0 writes, and are durable when that is. They are in every
//! checkpoint, whatever its timestamp: the manifest records the number reached. Neither a cut nor a
//! rollback touches them. The ring is made with the first such write; from then on the manifest has
//! a flag for it, so that no program opens the directory which does not know of it.
//!
//! Numbers go where the other rings have timestamps: all that is true of their chain is true of
//! this one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::sync::Notify;
use pinion_runtime::{File, JoinHandle, OpenOptions, Queue, fs, sim, spawn, timeout, wall_ms};

use super::own_entry;
use crate::engine::error::OpenError;
use crate::engine::options::PlantedFault;
use crate::engine::progress::TimestampWaiters;
use crate::engine::storage::Storage;
use crate::manifest::{Cut, Manifest};
use crate::opening::sync_dir;
use crate::recovery::{Chain, MergedLog, verify};
use crate::ring::{Documents, Ring, RingDir, RingReader, RingStart, SegmentSpan};
use crate::types::Fatal;

/// What core 0 keeps of it.
#[derive(Default)]
pub(in crate::engine) struct OwnLog {
    /// There once something was written, by this process or one before.
    ring: RefCell<Option<Rc<Ring>>>,
    /// The number of the last write.
    last: Cell<u64>,
    /// The last write that the checkpoint under way holds.
    sealed: Cell<u64>,
    /// Numbers, as timestamps.
    durable: TimestampWaiters,
    demand: Notify,
    requested: Cell<bool>,
    has_ended: Cell<bool>,
    end: Notify,
    preparing: RefCell<Option<JoinHandle<()>>>,
    found: RefCell<Found>,
}

/// What was there when the directory was opened.
#[derive(Default)]
struct Found {
    segments: Vec<SegmentSpan>,
    /// The highest number in any frame.
    highest: u64,
}

fn numbered(number: u64) -> Timestamp {
    Timestamp::from_u64(number)
}

impl OwnLog {
    pub(in crate::engine) fn ring(&self) -> Option<Rc<Ring>> {
        self.ring.borrow().clone()
    }

    /// Counts a write that is appended; gives its number and the one before it.
    pub(in crate::engine) fn count(&self) -> (Timestamp, Timestamp) {
        let before = self.last.get();
        self.last.set(before + 1);
        (numbered(before + 1), numbered(before))
    }

    /// The changes are sealed for a checkpoint, and with them every write so far.
    pub(in crate::engine) fn seal(&self) {
        self.sealed.set(self.last.get());
    }

    /// What the checkpoint under way, or the last one, holds.
    pub(in crate::engine) fn sealed(&self) -> u64 {
        self.sealed.get()
    }

    /// Stops the flusher when everything is written.
    pub(in crate::engine) fn wake_flusher(&self) {
        self.requested.set(true);
        self.demand.notify_one();
    }

    /// Waits for the tasks of the ring to end, if there is one.
    pub(in crate::engine) async fn ended(&self) {
        let Some(ring) = self.ring() else { return };
        while !self.has_ended.get() {
            self.end.notified().await;
        }
        ring.stop();
        let preparing = self.preparing.borrow_mut().take();
        if let Some(preparing) = preparing {
            // One that was dropped has ended too.
            let _ = preparing.await;
        }
    }

    /// Ends all waits: storage has failed.
    pub(in crate::engine) fn release(&self) {
        self.durable.release_all();
        self.demand.notify_all();
        if let Some(ring) = &*self.ring.borrow() {
            ring.stop();
        }
    }
}

impl Storage {
    /// Applies what was written since the base. Called on core 0 when the base is open on every
    /// core.
    pub(in crate::engine) async fn restore_own(
        &self,
        manifest: &Manifest,
    ) -> Result<(), OpenError> {
        let own = &self.node_state().own;
        own.last.set(manifest.own_base);
        own.seal();
        if !manifest.has_own {
            return Ok(());
        }
        let reading = || OpenError::io("reading the ring of what is not replicated");
        let dir = RingDir::own(&self.options.dir);
        let generations = dir.generations().await.map_err(reading())?;
        let readers = || {
            MergedLog::new(vec![RingReader::new(
                dir.clone(),
                manifest.directory,
                self.options.stamps(),
                manifest.own_cuts.clone(),
                generations.iter().copied(),
                self.options.planted_fault != PlantedFault::ChecksumNotChecked,
            )])
        };
        let chain = Chain {
            base: numbered(manifest.own_base),
            all_durable: numbered(manifest.own_base),
            check_links: self.options.planted_fault != PlantedFault::LinksIgnored,
            limit: Timestamp::MAX,
        };
        let verified = verify(&mut readers(), &chain).await.map_err(reading())??;
        let mut log = readers();
        while let Some((_, entry)) = log.next().await.map_err(reading())? {
            if entry.ts <= chain.base {
                continue;
            }
            if entry.ts > verified.last {
                break;
            }
            let damaged = |what: String| OpenError::Damaged {
                file: dir.segment_path(entry.place.generation),
                offset: entry.place.offset,
                after: None,
                what,
            };
            let writes = own_entry::decode(&entry.bytes)
                .ok_or_else(|| damaged("an entry is not what was written".to_owned()))?;
            let applied = self.apply_at(Timestamp::MIN, writes).await;
            applied.map_err(|error| damaged(error.to_string()))?;
        }
        own.last.set(verified.last.as_u64());
        let mut found = Found {
            segments: Vec::new(),
            highest: verified.highest.as_u64(),
        };
        for &(_, generation, last) in &verified.segments {
            let bytes = fs::file_len(&dir.segment_path(generation)).await;
            found.segments.push(SegmentSpan {
                generation,
                first: None,
                last,
                bytes: bytes.map_err(reading())?,
                documents: Documents::default(),
            });
        }
        *own.found.borrow_mut() = found;
        Ok(())
    }

    /// As for the other rings: what can be read now is to be there after a loss of power.
    pub(in crate::engine) async fn make_own_durable(
        &self,
        manifest: &Manifest,
    ) -> Result<(), OpenError> {
        let doing = || OpenError::io("flushing the ring of what is not replicated");
        let dir = RingDir::own(&self.options.dir);
        let segments = self.node_state().own.found.borrow().segments.clone();
        for span in segments {
            if span.last > numbered(manifest.own_base) {
                let path = dir.segment_path(span.generation);
                let file = File::open(&path, OpenOptions::write()).await;
                let file = file.map_err(doing())?;
                file.datasync().await.map_err(doing())?;
                file.close().await.map_err(doing())?;
            }
        }
        Ok(())
    }

    /// What a new epoch discards of it: writes behind one that a crash has lost.
    pub(in crate::engine) fn own_cut(&self, epoch: u64) -> Cut {
        let own = &self.node_state().own;
        let highest = own.found.borrow().highest;
        Cut {
            epoch,
            at: own.last.get(),
            discarded_through: highest.max(own.last.get()),
        }
    }

    /// Starts the ring, if there was one before.
    pub(in crate::engine) async fn start_own(&self, manifest: &Manifest) -> Result<(), OpenError> {
        if !manifest.has_own {
            return Ok(());
        }
        let started = self.start_own_ring(manifest).await;
        started.map_err(OpenError::io("starting the ring of what is not replicated"))
    }

    async fn start_own_ring(&self, manifest: &Manifest) -> std::io::Result<()> {
        let own = &self.node_state().own;
        let dir = RingDir::own(&self.options.dir);
        fs::create_dir_all(&dir.path).await?;
        sync_dir(&self.options.dir).await?;
        let segments = std::mem::take(&mut own.found.borrow_mut().segments);
        let next_generation = segments.last().map_or(1, |span| span.generation + 1);
        let base = numbered(manifest.own_base);
        let (idle, sealed): (Vec<_>, Vec<_>) =
            segments.into_iter().partition(|span| span.last <= base);
        let idle = idle.iter().map(|span| dir.segment_path(span.generation));
        let ring = Ring::start(RingStart {
            idle: idle.collect(),
            dir,
            directory: manifest.directory,
            stamps: self.options.stamps(),
            epoch: manifest.epoch,
            segment_bytes: self.options.segment_bytes,
            next_generation,
            sealed,
            cuts: manifest.own_cuts.clone(),
            tail_bytes: 0,
        })
        .await?;
        // All that is in its files is durable.
        own.durable.advance(numbered(own.last.get()));
        *own.ring.borrow_mut() = Some(ring.clone());
        spawn(Queue::Foreground, self.rc().run_own_flusher(ring.clone()));
        let this = self.rc();
        let preparing = spawn(
            Queue::Background,
            async move { this.keep_prepared(&ring).await },
        );
        *own.preparing.borrow_mut() = Some(preparing);
        Ok(())
    }

    /// The ring, which is made if there is none: a manifest records it first. Call it on core 0.
    pub(in crate::engine) async fn own_ring(&self) -> Result<Rc<Ring>, Fatal> {
        let node = self.node_state();
        if let Some(ring) = node.own.ring() {
            return Ok(ring);
        }
        let mut turn = node.take_unheld_turn().await;
        if let Some(ring) = node.own.ring() {
            return Ok(ring);
        }
        self.write_manifest(&mut turn, |current| Manifest {
            has_own: true,
            ..current.clone()
        })
        .await?;
        let started = self.start_own_ring(turn.manifest()).await;
        started.map_err(|error| {
            Fatal::new(format!(
                "starting the ring of what is not replicated failed: {error}"
            ))
        })?;
        Ok(node.own.ring().expect("just started"))
    }

    /// Flushes on demand, and at intervals; ends when storage fails or closes.
    async fn run_own_flusher(self: Rc<Self>, ring: Rc<Ring>) {
        let own = &self.node_state().own;
        while !self.roles.has_failed() && (!self.roles.is_closed() || ring.has_pending()) {
            if !own.requested.get() && !ring.is_pressed() {
                let interval = self.journal_commit_interval();
                let _ = timeout(interval, own.demand.notified()).await;
            }
            own.requested.set(false);
            if !ring.has_pending() {
                ring.drop_spare();
            } else if let Err(fatal) = self.flush_own(&ring).await {
                self.poison(fatal);
            }
        }
        own.has_ended.set(true);
        own.end.notify_all();
    }

    async fn flush_own(&self, ring: &Ring) -> Result<(), Fatal> {
        let own = &self.node_state().own;
        let last = numbered(own.last.get());
        let durable = own.durable.reached();
        let batch = ring.take_batch(durable, (wall_ms() / 1000) as u32);
        let batch = batch.expect("something is pending, and has its room");
        sim::event("flush of what is not replicated");
        let sync = self.options.planted_fault != PlantedFault::FlushSkipped;
        let written = batch.write(ring, sync).await;
        written.map_err(|error| Fatal::new(format!("flushing a ring failed: {error}")))?;
        own.durable.advance(last);
        Ok(())
    }

    /// Waits on core 0 until everything written so far is durable.
    pub(in crate::engine) async fn wait_own(&self) -> Result<(), Fatal> {
        let own = &self.node_state().own;
        let last = numbered(own.last.get());
        self.check_fatal()?;
        // Without a ring everything is in the base.
        if own.ring.borrow().is_none() || own.durable.reached() >= last {
            return Ok(());
        }
        let waiting = own.durable.wait(last);
        own.wake_flusher();
        waiting.await;
        match own.durable.reached() >= last {
            true => Ok(()),
            false => Err(self.fatal().expect("only failure releases early")),
        }
    }

    /// What the base holds goes from the ring: a manifest says so.
    pub(in crate::engine) async fn recycle_own(&self, base: u64) -> Result<(), Fatal> {
        let Some(ring) = self.node_state().own.ring() else {
            return Ok(());
        };
        let recycled = ring.recycle(numbered(base)).await;
        recycled.map_err(|error| Fatal::new(format!("recycling ring segments failed: {error}")))
    }
}
