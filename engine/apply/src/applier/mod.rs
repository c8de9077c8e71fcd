//! The one applier: oplog entries, in timestamp order, routed by this node's own partitions.
//! Recovery feeds it, and a member of a replica set with what it has fetched; it checks no
//! constraints, because what is in the oplog has passed them.
//!
//! There are no batches that wait for each other. Entries are decoded on all cores in turn, and
//! then go to *lanes*, one for each core, in their order. A core has one piece of its lane at a
//! time, so the entries of one document are applied in their order while the cores work side by
//! side. What an entry writes to other partitions, the entries of unique indexes, is keyed by its
//! document and so keeps its order too. An `applyOps` of documents is divided between the lanes:
//! readers do not see its timestamp before all of them are beyond it.
//!
//! A transaction of several entries is applied with its last one (`chain`), and none of them counts
//! as applied before. What is prepared is placed for its commit or its abort, which is another
//! entry (`prepared`).
//!
//! An entry that may change the catalog is a *fence*: it is applied when everything before it is,
//! and nothing behind it is even decoded before. The gates of what it changes are closed meanwhile,
//! on every core.

mod chain;
mod chains;
mod command;
mod decode;
mod documents;
mod entry;
mod lane;
mod prepared;
mod progress;
mod settings;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_catalog::ApplyMode;
use pinion_clock::Timestamp;
use pinion_exec::limits::{APPLIER_BYTES, APPLIER_ENTRIES};
use pinion_runtime::sync::Notify;
use pinion_runtime::{CoreId, Queue, core_count, core_id, spawn, submit_to};
use pinion_service::metrics::metrics;
use pinion_storage::ApplyError;

use self::chain::Chain;
use self::decode::{Decoded, decode};
use self::entry::{Entry, is_fence};
use self::lane::{Item, Lane, apply_batch};
use self::progress::Progress;
use crate::limits::{
    DECODE_BATCH_BYTES, DECODE_BATCH_ENTRIES, DECODED_HERE_BYTES, DECODED_HERE_ENTRIES,
    RECOVERY_BYTES,
};

pub use self::chain::end_open_chain;
pub use self::chain::{OpenChain, forget_transactions};
pub(crate) use self::documents::{stored, update_of};
pub use self::prepared::KeptTransactions;

type Applied = Result<(), ApplyError>;

/// How many entries were applied, and what of them was not done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ApplyCounts {
    /// Entries that were accepted, no-ops too.
    pub entries: u64,
    /// Operations with nothing to do: deletes of documents that are gone, and in an initial sync
    /// all that does not fit to what is newer.
    pub passed_over: u64,
}

/// What is called with each entry of `dbCheck` that a follower has applied everything before; a
/// core-local value.
pub struct CheckFollower(pub fn(&[u8]));

/// Applies entries that have their timestamps. Lives on one core; it stops when it is dropped.
pub struct Applier {
    shared: Rc<Shared>,
}

/// An entry that waits to be decoded.
struct Waiting {
    entry: Entry,
    fences: bool,
}

/// A batch that is being decoded on some core.
struct Decoding {
    /// The number of its first entry.
    first: u64,
    result: RefCell<Option<Result<Vec<Decoded>, ApplyError>>>,
}

struct Shared {
    mode: ApplyMode,
    waiting: RefCell<VecDeque<Waiting>>,
    decoding: RefCell<VecDeque<Rc<Decoding>>>,
    /// The core that decodes next.
    decoder: Cell<u16>,
    lanes: Vec<Lane>,
    /// The transaction whose last entry is yet to come.
    chain: RefCell<Option<Chain>>,
    /// The number of the entry that is accepted and not yet with the others: it is found out whose
    /// part it is.
    linking: Cell<Option<u64>>,
    progress: RefCell<Progress>,
    counts: Cell<ApplyCounts>,
    /// There is something to do for the task that moves entries on.
    wake: Notify,
    /// Entries were applied, or one has failed.
    changed: Notify,
    failed: RefCell<Option<ApplyError>>,
    is_dropped: Cell<bool>,
}

impl Applier {
    /// An applier on this core.
    pub fn new(mode: ApplyMode) -> Applier {
        if mode == ApplyMode::InitialSync {
            // What an attempt before has applied is of a log that is given up.
            chain::forget_open_chain();
            prepared::forget_kept();
        }
        let shared = Rc::new(Shared {
            mode,
            waiting: RefCell::default(),
            decoding: RefCell::default(),
            decoder: Cell::new(core_id().0),
            lanes: (0..core_count()).map(|_| Lane::default()).collect(),
            chain: RefCell::default(),
            linking: Cell::new(None),
            progress: RefCell::default(),
            counts: Cell::default(),
            wake: Notify::new(),
            changed: Notify::new(),
            failed: RefCell::default(),
            is_dropped: Cell::new(false),
        });
        drop(spawn(shared.queue(), shared.clone().drive()));
        Applier { shared }
    }

    /// Accepts an entry, which is newer than all before; waits while too many are accepted and not
    /// applied. It need not be applied when this returns: see [`Applier::wait_applied`]. Call it
    /// from one task.
    ///
    /// # Errors
    /// An entry could not be applied, this or one before: no more are then.
    ///
    /// # Panics
    /// When the entry is not newer.
    pub async fn apply(&self, ts: Timestamp, bytes: Bytes) -> Applied {
        let shared = &self.shared;
        loop {
            let changed = shared.changed.notified();
            shared.check()?;
            if shared.has_room() {
                break;
            }
            changed.await;
        }
        metrics().counters.entries_replayed.inc();
        shared.count(1, 0);
        let number = shared.progress.borrow_mut().accept(ts, bytes.len());
        let entry = Entry {
            number,
            ts,
            first: ts,
            bytes,
            before: Arc::default(),
        };
        let chain = shared.chain.take();
        let first = chain.as_ref().and_then(Chain::floor);
        shared.linking.set(Some(first.unwrap_or(number)));
        let chained = chain::link(chain, entry, shared.mode).await;
        let (chain, complete) = chained.inspect_err(|error| shared.fail(error.clone()))?;
        *shared.chain.borrow_mut() = chain;
        shared.linking.set(None);
        if let Some(entry) = complete {
            let fences = entry.parts().any(|part| is_fence(part));
            let waiting = Waiting { entry, fences };
            shared.waiting.borrow_mut().push_back(waiting);
        }
        shared.wake.notify_one();
        Ok(())
    }

    /// Waits until everything that was accepted is applied. Of a transaction whose last entry is
    /// yet to come nothing is.
    ///
    /// # Errors
    /// As of [`Applier::apply`].
    pub async fn barrier(&self) -> Applied {
        if let Some(chain) = &mut *self.shared.chain.borrow_mut() {
            chain.let_pass();
        }
        self.shared.advance();
        self.wait_until(|progress| progress.is_idle()).await
    }

    /// Is shown an entry before anything is applied: its changes are there already, unless it is of
    /// a transaction that has no outcome yet. They come in their order.
    pub fn look_back(&self, ts: Timestamp, entry: Bytes) {
        let chain = self.shared.chain.take();
        *self.shared.chain.borrow_mut() = chain::look_back(chain, ts, entry);
    }

    /// Everything is applied that an initial sync applies, or was looked back at: transactions that
    /// are prepared and have no outcome in it are from now on.
    ///
    /// # Errors
    /// As of [`Applier::apply`].
    pub async fn place_prepared(&self) -> Applied {
        submit_to(CoreId(0), self.shared.queue(), prepared::place_kept).await
    }

    /// The timestamp of the last entry that is applied and before which all are. Null before the
    /// first.
    pub fn applied(&self) -> Timestamp {
        self.shared.progress.borrow().applied()
    }

    /// Waits until everything accepted at or below `ts` is applied, and gives what is then. An
    /// entry at or above it must have been accepted, or come.
    ///
    /// # Errors
    /// As of [`Applier::apply`].
    pub async fn wait_applied(&self, ts: Timestamp) -> Result<Timestamp, ApplyError> {
        self.wait_until(|progress| progress.applied() >= ts).await?;
        Ok(self.applied())
    }

    /// Waits until more is applied than up to `ts`, and gives up to where.
    ///
    /// # Errors
    /// As of [`Applier::apply`].
    pub async fn wait_beyond(&self, ts: Timestamp) -> Result<Timestamp, ApplyError> {
        self.wait_until(|progress| progress.applied() > ts).await?;
        Ok(self.applied())
    }

    /// Entries that were accepted and are not known to be applied, and their bytes.
    pub fn unapplied(&self) -> (u64, u64) {
        let progress = self.shared.progress.borrow();
        (progress.entries() as u64, progress.bytes() as u64)
    }

    /// What was done so far.
    pub fn counts(&self) -> ApplyCounts {
        self.shared.counts.get()
    }

    async fn wait_until(&self, is_reached: impl Fn(&Progress) -> bool) -> Applied {
        loop {
            let changed = self.shared.changed.notified();
            self.shared.check()?;
            if is_reached(&self.shared.progress.borrow()) {
                return Ok(());
            }
            changed.await;
        }
    }
}

impl Drop for Applier {
    fn drop(&mut self) {
        self.shared.is_dropped.set(true);
        self.shared.wake.notify_one();
    }
}

impl pinion_storage::Applier for Applier {
    async fn apply(&self, ts: Timestamp, entry: Bytes) -> Applied {
        Applier::apply(self, ts, entry).await
    }

    async fn look_back(&self, ts: Timestamp, entry: Bytes) -> Applied {
        Applier::look_back(self, ts, entry);
        Ok(())
    }

    async fn looked_back(&self) -> Applied {
        self.place_prepared().await
    }

    async fn barrier(&self) -> Applied {
        Applier::barrier(self).await
    }
}

impl Shared {
    fn queue(&self) -> Queue {
        match self.mode {
            ApplyMode::Recovery | ApplyMode::Secondary => Queue::Foreground,
            ApplyMode::InitialSync => Queue::Background,
        }
    }

    fn check(&self) -> Applied {
        match &*self.failed.borrow() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn has_room(&self) -> bool {
        // Nothing that waits for the rest of a transaction gives room before that is here.
        if self.chain.borrow().is_some() {
            return true;
        }
        let progress = self.progress.borrow();
        let bytes = match self.mode {
            ApplyMode::Recovery => RECOVERY_BYTES,
            _ => APPLIER_BYTES,
        };
        progress.entries() < APPLIER_ENTRIES && progress.bytes() < bytes
    }

    fn count(&self, entries: u64, passed_over: u64) {
        let counts = self.counts.get();
        self.counts.set(ApplyCounts {
            entries: counts.entries + entries,
            passed_over: counts.passed_over + passed_over,
        });
    }

    fn fail(&self, error: ApplyError) {
        self.failed.borrow_mut().get_or_insert(error);
        self.changed.notify_all();
        self.wake.notify_one();
    }

    fn has_ended(&self) -> bool {
        self.is_dropped.get() || self.failed.borrow().is_some()
    }

    /// Moves entries on, until the applier is dropped or one has failed.
    async fn drive(self: Rc<Self>) {
        while !self.has_ended() {
            let has_routed = self.route_decoded();
            let has_started = self.begin_decoding();
            if let Some(fence) = self.due_fence() {
                self.pass_fence(fence).await;
            } else if !has_routed && !has_started {
                self.wake.notified().await;
            }
        }
    }

    /// Hands the entries that come next, if they are decoded, to the lanes of their owners.
    fn route_decoded(self: &Rc<Self>) -> bool {
        let mut has_routed = false;
        loop {
            let decoded = {
                let decoding = self.decoding.borrow();
                decoding.front().and_then(|next| next.result.take())
            };
            let Some(decoded) = decoded else { break };
            has_routed = true;
            match decoded {
                Ok(entries) => entries.into_iter().for_each(|entry| self.route(entry)),
                Err(error) => self.fail(error),
            }
            self.decoding.borrow_mut().pop_front();
        }
        if has_routed {
            for core in 0..self.lanes.len() {
                self.start_lane(core);
            }
            // Entries with nothing to do are applied by now.
            self.advance();
        }
        has_routed
    }

    fn route(&self, decoded: Decoded) {
        self.count(0, decoded.passed_over);
        // What is recovered was compared before, or the state that it is about is not kept any
        // more.
        if self.mode == ApplyMode::Secondary && entry::is_check_entry(&decoded.entry.bytes) {
            let follower = pinion_runtime::core_local::<CheckFollower>();
            (follower.0)(&decoded.entry.bytes);
        }
        for (owner, operations) in decoded.by_owner {
            let entry = decoded.entry.clone();
            self.lanes[usize::from(owner.0)].push(Item { entry, operations });
        }
    }

    /// Gives a batch to each core that is free to decode, up to the next fence.
    fn begin_decoding(self: &Rc<Self>) -> bool {
        let mut has_started = false;
        while self.decoding.borrow().len() < core_count() + 1 {
            let batch = self.next_batch();
            let Some(first) = batch.first().map(|entry| entry.number) else {
                break;
            };
            has_started = true;
            let decoding = Rc::new(Decoding {
                first,
                result: RefCell::default(),
            });
            self.decoding.borrow_mut().push_back(decoding.clone());
            let (shared, mode) = (self.clone(), self.mode);
            let core = self.decoder_of(&batch);
            drop(spawn(self.queue(), async move {
                let queue = shared.queue();
                let result = match core == core_id() {
                    true => decode(batch, mode).await,
                    false => submit_to(core, queue, move || decode(batch, mode)).await,
                };
                *decoding.result.borrow_mut() = Some(result);
                shared.wake.notify_one();
            }));
        }
        has_started
    }

    fn next_batch(&self) -> Vec<Entry> {
        let mut waiting = self.waiting.borrow_mut();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < DECODE_BATCH_ENTRIES
            && bytes < DECODE_BATCH_BYTES
            && let Some(next) = waiting.pop_front_if(|next| !next.fences)
        {
            bytes += next.entry.len();
            batch.push(next.entry);
        }
        batch
    }

    /// The core for a batch: this one for a batch too small to be sent, otherwise all in turn.
    fn decoder_of(&self, batch: &[Entry]) -> CoreId {
        let bytes: usize = batch.iter().map(Entry::len).sum();
        if batch.len() <= DECODED_HERE_ENTRIES && bytes <= DECODED_HERE_BYTES {
            return core_id();
        }
        let core = (self.decoder.get() + 1) % core_count() as u16;
        self.decoder.set(core);
        CoreId(core)
    }

    /// The fence that comes next, if everything before it is applied.
    fn due_fence(&self) -> Option<Entry> {
        let is_free = self.decoding.borrow().is_empty()
            && self.lanes.iter().all(|lane| lane.floor().is_none());
        let waiting = self.waiting.borrow();
        let fence = waiting.front().filter(|next| is_free && next.fences);
        fence.map(|next| next.entry.clone())
    }

    async fn pass_fence(&self, fence: Entry) {
        let (mode, queue) = (self.mode, self.queue());
        let applied = submit_to(CoreId(0), queue, move || command::apply_fence(fence, mode)).await;
        match applied {
            Ok(passed_over) => {
                self.count(0, passed_over);
                self.waiting.borrow_mut().pop_front();
                self.advance();
            }
            Err(error) => self.fail(error),
        }
    }

    /// Has a core apply what is in its lane, unless it does already.
    fn start_lane(self: &Rc<Self>, core: usize) {
        let lane = &self.lanes[core];
        if lane.is_under_way() || lane.floor().is_none() {
            return;
        }
        let first = lane.next();
        let shared = self.clone();
        drop(spawn(self.queue(), async move {
            shared.run_lane(core, first).await;
        }));
    }

    async fn run_lane(self: Rc<Self>, core: usize, first: Vec<Item>) {
        let (mode, queue, lane) = (self.mode, self.queue(), &self.lanes[core]);
        let mut batch = first;
        while !batch.is_empty() {
            let owner = CoreId(core as u16);
            match submit_to(owner, queue, move || apply_batch(batch, mode)).await {
                Ok(passed_over) => self.count(0, passed_over),
                Err(error) => return self.fail(error),
            }
            if self.has_ended() {
                return;
            }
            batch = lane.next();
            self.advance();
        }
        self.wake.notify_one();
    }

    /// Finds out what is applied without a gap.
    fn advance(&self) {
        let mut progress = self.progress.borrow_mut();
        let lanes = self.lanes.iter().filter_map(Lane::floor);
        let decoding = self.decoding.borrow().front().map(|next| next.first);
        let waiting = self.waiting.borrow().front().map(|next| next.entry.number);
        let chain = self.chain.borrow().as_ref().and_then(Chain::floor);
        let chain = chain.or(self.linking.get());
        let floor = lanes.chain(decoding).chain(waiting).chain(chain).min();
        let floor = floor.unwrap_or_else(|| progress.next());
        if progress.advance(floor) {
            self.changed.notify_all();
        }
    }
}
