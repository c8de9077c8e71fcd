//! What a member does with the entries that it has fetched: it logs them with the timestamps that
//! they have, and applies them.
//!
//! One task does so for as long as the node runs, whatever source the entries come from: a fetcher
//! may be given up at any time, and what it has handed over is applied all the same.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use pinion_apply::Applier;
use pinion_catalog::{ApplyMode, from_fatal};
use pinion_clock::{OpTime, Term, Timestamp};
use pinion_runtime::sim::event;
use pinion_runtime::sync::{Notify, OneshotSender, Receiver, Sender, channel, oneshot};
use pinion_runtime::{Duration, JoinHandle, Queue, now, spawn, timeout, wall_ms};
use pinion_storage::{ForeignEntry, WriteError, storage};
use pinion_wire::idl::i64_exact;
use pinion_wire::{Error, Result};

use crate::driver::Driver;
use crate::give_up::stop_node;
use crate::limits::{BATCHES_AHEAD, DELAY_POLL};

/// An entry of another member's oplog.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    pub(crate) optime: OpTime,
    pub(crate) bytes: Bytes,
}

impl Fetched {
    /// Reads the position of an entry.
    ///
    /// # Errors
    /// It has no timestamp.
    pub(crate) fn read(bytes: Bytes) -> Result<Fetched> {
        let document = pinion_bson::RawDocument::from_bytes(&bytes)
            .map_err(|error| Error::failed_to_parse(error.to_string()))?;
        let ts = match pinion_bson::get(document, "ts") {
            Some(pinion_bson::RawBsonRef::Timestamp(ts)) => Timestamp::new(ts.time, ts.increment),
            _ => return Err(Error::failed_to_parse("an oplog entry has no ts")),
        };
        let term = pinion_bson::get(document, "t").and_then(i64_exact);
        let term = term.map_or(Term::UNINITIALIZED, Term);
        Ok(Fetched {
            optime: OpTime::new(ts, term),
            bytes,
        })
    }
}

fn bytes_of(entries: &[Fetched]) -> usize {
    entries.iter().map(|entry| entry.bytes.len()).sum()
}

enum Work {
    Entries(Vec<Fetched>),
    /// Notified when everything before it is applied.
    Barrier(OneshotSender<()>),
}

/// The way of fetched entries into this node. It lives on core 0.
pub(crate) struct Follower {
    work: RefCell<Option<Sender<Work>>>,
    task: RefCell<Option<JoinHandle<bool>>>,
    /// The last entry that was handed over; what is fetched next comes behind it.
    last: Cell<OpTime>,
    /// Entries are logged, and applied by others.
    logs_only: Cell<bool>,
    /// What applies the entries, while something does.
    applier: RefCell<Option<Rc<Applier>>>,
    /// How many wait for all that was handed over: a delay does not hold it back then.
    delay_skips: Cell<u32>,
    delay_skipped: Notify,
}

/// Shows that storage follows: no core of this node allots a timestamp. A driver is made of it, so
/// nothing elects this member or fetches for it before.
pub(crate) struct StorageFollows(());

impl StorageFollows {
    /// Ends this node's own writes; completes when all that it has logged is applied.
    pub(crate) async fn begin() -> Result<StorageFollows> {
        storage().follow().await.map_err(from_fatal)?;
        Ok(StorageFollows(()))
    }
}

/// While this lives, a delay holds nothing back.
struct SkipDelay<'a>(&'a Follower);

impl Drop for SkipDelay<'_> {
    fn drop(&mut self) {
        self.0.delay_skips.set(self.0.delay_skips.get() - 1);
    }
}

impl Follower {
    /// Behind `last`, the last entry that is logged.
    pub(crate) fn behind(_: &StorageFollows, last: OpTime) -> Follower {
        Follower {
            work: RefCell::new(None),
            task: RefCell::new(None),
            last: Cell::new(last),
            logs_only: Cell::new(false),
            applier: RefCell::new(None),
            delay_skips: Cell::new(0),
            delay_skipped: Notify::new(),
        }
    }

    fn skip_delay(&self) -> SkipDelay<'_> {
        self.delay_skips.set(self.delay_skips.get() + 1);
        self.delay_skipped.notify_all();
        SkipDelay(self)
    }

    /// What is fetched next comes behind this entry.
    pub(crate) fn set_last(&self, last: OpTime) {
        self.last.set(last);
    }

    /// From now on entries that are handed over are logged and not applied, or applied again.
    pub(crate) fn log_only(&self, logs_only: bool) {
        self.logs_only.set(logs_only);
    }

    /// Entries that are logged and not applied, and their bytes.
    pub(crate) fn unapplied(&self) -> (u64, u64) {
        let applier = self.applier.borrow();
        applier
            .as_ref()
            .map_or((0, 0), |applier| applier.unapplied())
    }

    /// The last entry that was handed over, or that was there before.
    pub(crate) fn last(&self) -> OpTime {
        self.last.get()
    }
}

impl Driver {
    /// From now on entries come from others: this node writes nothing that is replicated.
    pub(crate) async fn follow(self: &Rc<Self>) -> Result<()> {
        StorageFollows::begin().await?;
        self.start_following();
        Ok(())
    }

    /// Takes up what others send, behind what is logged. Storage follows already.
    pub(crate) fn start_following(self: &Rc<Self>) {
        let last = self.terms.borrow().optime(storage().last_allotted());
        self.follower.last.set(last);
        self.metrics.forget_handed_over();
        let (sender, receiver) = channel(BATCHES_AHEAD);
        *self.follower.work.borrow_mut() = Some(sender);
        let task = spawn(Queue::Foreground, self.clone().take_entries(receiver));
        self.follower.task.replace(Some(task));
    }

    /// Takes nothing more, and completes when everything is applied that was taken. False where it
    /// could not be: the node stops.
    #[must_use]
    pub(crate) async fn stop_following(&self) -> bool {
        let _skip_delay = self.follower.skip_delay();
        *self.follower.work.borrow_mut() = None;
        match self.follower.task.take() {
            None => true,
            // One that was dropped has applied nothing more.
            Some(task) => task.await.unwrap_or(false),
        }
    }

    /// From now on this node writes entries of its own, above all that it has. False where not all
    /// that it has could be applied: the node stops.
    #[must_use]
    pub(crate) async fn lead(self: &Rc<Self>) -> bool {
        let applied = self.stop_following().await;
        if applied {
            pinion_apply::end_open_chain();
            storage().lead().await;
        }
        applied
    }

    /// Takes over entries that follow one another and the last ones; waits while too many are not
    /// applied yet.
    pub(crate) async fn hand_over(&self, entries: Vec<Fetched>) {
        let Some(last) = entries.last().map(|entry| entry.optime) else {
            return;
        };
        let work = self.follower.work.borrow().clone();
        let Some(work) = work else {
            return;
        };
        let (count, bytes) = (entries.len(), bytes_of(&entries));
        // Sending may be given up while it waits, and then nothing is handed over.
        if work.send(Work::Entries(entries)).await.is_ok() {
            self.metrics.handed_over(count, bytes);
            self.follower.last.set(last);
        }
    }

    /// Waits until everything that was handed over is applied. False where it could not be: the
    /// node stops.
    #[must_use]
    pub(crate) async fn apply_all(&self) -> bool {
        let _skip_delay = self.follower.skip_delay();
        let work = self.follower.work.borrow().clone();
        let Some(work) = work else {
            return true;
        };
        let (done, applied) = oneshot();
        work.send(Work::Barrier(done)).await.is_ok() && applied.await.is_ok()
    }

    /// False where an entry cannot be applied.
    async fn take_entries(self: Rc<Self>, mut work: Receiver<Work>) -> bool {
        let applier = Rc::new(Applier::new(ApplyMode::Secondary));
        *self.follower.applier.borrow_mut() = Some(applier.clone());
        let publishing = spawn(
            Queue::Foreground,
            self.clone().publish_applied(applier.clone()),
        );
        while let Some(work) = work.recv().await {
            let done = match work {
                Work::Entries(entries) => self.take_in_time(&applier, entries).await,
                Work::Barrier(done) => {
                    let applied = applier.barrier().await;
                    self.set_applied(applier.applied());
                    // A waiter must not learn that what has failed is applied.
                    if applied.is_ok() {
                        let _ = done.send(());
                    }
                    applied.map_err(|error| Error::internal(error.to_string()))
                }
            };
            if let Err(error) = done {
                stop_node("an oplog entry cannot be applied", &error);
                return false;
            }
        }
        let applied = applier.barrier().await;
        self.set_applied(applier.applied());
        publishing.abort();
        *self.follower.applier.borrow_mut() = None;
        if let Err(error) = &applied {
            stop_node(
                "an oplog entry cannot be applied",
                &Error::internal(error.to_string()),
            );
        }
        applied.is_ok()
    }

    /// Logs and applies entries, on a member with a delay when they are as old as it says.
    async fn take_in_time(
        self: &Rc<Self>,
        applier: &Applier,
        mut entries: Vec<Fetched>,
    ) -> Result<()> {
        loop {
            let due = self.due_entries(&entries);
            let later = entries.split_off(due);
            if !entries.is_empty() {
                self.log_and_apply(applier, entries).await?;
            }
            let Some(next) = later.first() else {
                return Ok(());
            };
            let skipped = self.follower.delay_skipped.notified();
            let wait = self.until_due(next.optime.ts).min(DELAY_POLL);
            if self.follower.delay_skips.get() == 0 {
                let _ = timeout(wait, skipped).await;
            }
            entries = later;
        }
    }

    /// How many of the entries are old enough.
    fn due_entries(&self, entries: &[Fetched]) -> usize {
        if self.follower.logs_only.get()
            || self.follower.delay_skips.get() > 0
            || self.delay_ms() == 0
        {
            return entries.len();
        }
        entries.partition_point(|entry| self.until_due(entry.optime.ts).is_zero())
    }

    fn until_due(&self, ts: Timestamp) -> Duration {
        let due = i64::from(ts.secs()) * 1000 + self.delay_ms();
        Duration::from_millis(due.saturating_sub(wall_ms()).max(0) as u64)
    }

    /// `secondaryDelaySecs` of this member.
    fn delay_ms(&self) -> i64 {
        self.with_node(|node| node.delay_secs())
            .saturating_mul(1000)
    }

    async fn log_and_apply(
        self: &Rc<Self>,
        applier: &Applier,
        mut entries: Vec<Fetched>,
    ) -> Result<()> {
        let mut predecessor = storage().last_allotted();
        let mut logged = Vec::with_capacity(entries.len());
        let mut begins_term = false;
        for entry in &entries {
            let ts = entry.optime.ts;
            logged.push(ForeignEntry {
                ts,
                predecessor,
                bytes: entry.bytes.clone(),
            });
            begins_term |= self.terms.borrow_mut().begin(ts, entry.optime.term);
            predecessor = ts;
        }
        // No core may report an entry's time with the term before.
        if begins_term {
            self.publish();
            self.all_published().await;
        }
        let began = now();
        storage()
            .log_at(&logged)
            .await
            .map_err(|error| match error {
                WriteError::Fatal(fatal) => from_fatal(fatal),
                other => Error::internal(format!("{other:?}")),
            })?;
        event("entries logged");
        self.metrics
            .logged(entries.len(), bytes_of(&entries), began.elapsed());
        if self.follower.logs_only.get() {
            return Ok(());
        }
        // Their writers may wait for a majority that has them durable.
        storage().flush_soon();
        self.report_progress();
        self.options.planted_fault.spoil(&mut entries);
        self.metrics.applies(predecessor, entries.len());
        for entry in entries {
            let applied = applier.apply(entry.optime.ts, entry.bytes).await;
            applied.map_err(|error| Error::internal(error.to_string()))?;
        }
        Ok(())
    }

    /// Reads see what is applied, as it is.
    async fn publish_applied(self: Rc<Self>, applier: Rc<Applier>) {
        loop {
            let seen = applier.applied();
            self.set_applied(seen);
            self.report_progress();
            if applier.wait_beyond(seen).await.is_err() {
                return;
            }
        }
    }

    fn set_applied(&self, ts: Timestamp) {
        self.metrics.applied(ts);
        if ts > storage().visible() {
            storage().set_applied(ts);
        }
    }
}
