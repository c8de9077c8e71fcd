//! One attempt, step by step.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;

use pinion_apply::{Applier, CloneTarget, begin_clone, clone_catalog, clone_listed, end_clone};
use pinion_catalog::{ApplyMode, from_fatal};
use pinion_clock::Timestamp;
use pinion_replication_protocol::config::HostPort;
use pinion_replication_protocol::node::SourceFailure;
use pinion_runtime::sim::event;
use pinion_runtime::{CoreId, Queue, core_count, join_all, sleep, spawn, submit_to, timeout};
use pinion_storage::{LogCursor, storage};
use pinion_wire::{Error, ErrorCode};

use super::documents::{Job, SourceForm, copy};
use super::source::Source;
use super::{Failed, Halt, InitialSync, Outage};
use crate::driver::Driver;
use crate::follower::Fetched;
use crate::limits::{
    APPLY_BATCH_BYTES, APPLY_BATCH_ENTRIES, BEHIND_PATIENCE, COPIES_PER_CORE, HALT_POLL,
    RETRY_PAUSE,
};
use crate::persisted;
use crate::planted::PlantedFault;
use crate::terms::Terms;

impl Driver {
    /// Copies a source, and applies what its oplog got meanwhile.
    ///
    /// # Errors
    /// Why the attempt has failed; the next one drops what it has brought.
    pub(super) async fn copy(
        self: &Rc<Self>,
        sync: &Rc<InitialSync>,
        host: &HostPort,
        halt: &Halt,
    ) -> Result<(), Failed> {
        let mut source = Source::new(host.clone(), halt.clone());
        // Nothing that was fetched before is under way any more.
        self.applied_all().await?;
        self.follower.log_only(true);
        let rollback_id = source.rollback_id().await?;
        let begin = self.beginning(&mut source).await?;
        sync.status
            .borrow_mut()
            .begin_at(rollback_id, begin.applying.optime.ts);
        begin_clone().await?;
        self.begin_log(&begin).await?;
        source.has_started = true;

        let done = async {
            let mut applying = self.reach(&begin, halt).await?;
            self.copy_all(sync, &mut source, halt).await?;
            let stop = source.newest_entry(Timestamp::MAX).await?.optime.ts;
            sync.status.borrow_mut().stop_at(stop);
            applying.apply_to(sync, stop, halt).await?;
            if source.rollback_id().await? != rollback_id {
                return Err(Failed::new("the source has rolled back"));
            }
            Ok(applying)
        };
        let mut applying = self.while_fetching(host, halt, done).await?;
        // Fetching has ended, whatever asked for it: what is logged is all there will be.
        let last = storage().last_allotted();
        applying.apply_to(sync, last, &Halt::default()).await?;
        let placed = applying.applier.place_prepared().await;
        placed.map_err(|error| Failed::new(error.to_string()))?;
        end_clone().await?;
        persisted::store_synced().await?;
        self.follower.set_last(self.terms.borrow().optime(last));
        self.follower.log_only(false);
        Ok(())
    }

    /// Does a part of an attempt while the oplog of the source is fetched, and has it give up when
    /// that ends. What was handed over is logged on return, and applied where entries are.
    ///
    /// # Errors
    /// Those of the part, or why fetching has ended; an entry cannot be applied.
    pub(super) async fn while_fetching<T>(
        self: &Rc<Self>,
        host: &HostPort,
        halt: &Halt,
        part: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let fetch_ended = Rc::new(RefCell::new(None));
        let fetching = {
            let (driver, host, halt) = (self.clone(), host.clone(), halt.clone());
            let ended = fetch_ended.clone();
            spawn(Queue::Foreground, async move {
                let failure = driver.fetch_patiently(&host).await;
                ended.replace(Some(failure));
                halt.set();
            })
        };
        let done = part.await;
        fetching.abort();
        let _ = fetching.await;
        self.applied_all().await?;
        match (done, fetch_ended.take()) {
            (Err(_), Some(failure)) => Err(Failed {
                failure: failure.unwrap_or(SourceFailure::Stopped),
                ..Failed::new("the oplog of the source cannot be fetched")
            }),
            (done, _) => done,
        }
    }

    /// Fetches from the source of an initial sync, which may be away for a while
    /// (`initialSyncTransientErrorRetryPeriodSeconds`): what was copied is of use as long as its
    /// oplog continues from what was fetched. Gives why it ends, as [`Driver::fetch_until_end`].
    async fn fetch_patiently(self: &Rc<Self>, host: &HostPort) -> Option<SourceFailure> {
        let mut outage = Outage::default();
        loop {
            let before = self.follower.last();
            let failure = self.fetch_until_end(host).await;
            if self.follower.last() > before {
                outage.ends();
            }
            if failure != Some(SourceFailure::Unreachable) || outage.is_too_long() {
                return failure;
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn applied_all(&self) -> Result<(), Failed> {
        match self.apply_all().await {
            true => Ok(()),
            false => Err(Failed::new("what this node has logged cannot be applied")),
        }
    }

    /// Where the log and the data begin. This node's log continues what earlier attempts have
    /// logged, so the data begin not before that.
    async fn beginning(&self, source: &mut Source) -> Result<Beginning, Failed> {
        let patience = pinion_runtime::now() + BEHIND_PATIENCE;
        loop {
            // What is prepared by this entry, or between it and the one that the data begin with,
            // is in the log either way. Each time that the source was behind it is another one: the
            // log cannot begin with an entry that it has passed.
            let before = source.last_applied().await?;
            let prepared = source.oldest_prepared().await?;
            let applying = source.last_applied().await?;
            let last = self.terms.borrow().optime(storage().last_allotted());
            if before.optime.ts > last.ts || before.optime == last {
                let fetching = match prepared.filter(|prepared| *prepared < before.optime.ts) {
                    Some(prepared) => prepared_entry(source, prepared).await?,
                    None => before,
                };
                return Ok(Beginning { fetching, applying });
            }
            if pinion_runtime::now() > patience {
                return Err(Failed::new(
                    "the source is behind what this node has logged",
                ));
            }
            source.halt.pause(RETRY_PAUSE).await?;
        }
    }

    /// Begins the log with the entry that is fetched first, or continues that of an earlier
    /// attempt.
    async fn begin_log(&self, begin: &Beginning) -> Result<(), Failed> {
        let (storage, first) = (storage(), &begin.fetching);
        let (ts, last) = (first.optime.ts, storage.last_allotted());
        if ts > last {
            self.terms.replace(Terms::starting_at(first.optime));
            let before = ts.prev().expect("it is above another");
            if before > last {
                let opened = storage.begin_log_at(before).await;
                opened.map_err(from_fatal)?;
            }
            self.hand_over(vec![first.clone()]).await;
            self.applied_all().await?;
            assert!(storage.last_allotted() == ts, "the first entry is logged");
            return Ok(());
        }
        let mut log = storage.log_backward(ts);
        let found = log.next_batch(1, 1).await;
        let found = found.map_err(|error| Failed::new(error.to_string()))?;
        if found.first().is_none_or(|(found, _)| *found != ts) {
            return Err(Failed::new(
                "what this node has logged begins behind a transaction that is prepared",
            ));
        }
        let last = self.terms.borrow().optime(last);
        self.follower.set_last(last);
        Ok(())
    }

    /// Waits until the log has come to the entry that the data begin with, which they have in them,
    /// and looks back at what is prepared by then.
    async fn reach(&self, begin: &Beginning, halt: &Halt) -> Result<Applying, Failed> {
        let failed = |error: &dyn std::fmt::Display| Failed::new(error.to_string());
        let (storage, ts) = (storage(), begin.applying.optime.ts);
        let applying = Applying::behind(ts, self.options.planted_fault);
        let before = begin.fetching.optime.ts.prev();
        let mut log = storage.log_after(before.expect("it is above another"));
        while log.position() < ts {
            halt.check()?;
            let batch = log.next_batch(APPLY_BATCH_ENTRIES, APPLY_BATCH_BYTES).await;
            let batch = batch.map_err(|error| failed(&error))?;
            if batch.is_empty()
                && let Ok(more) = timeout(HALT_POLL, log.wait()).await
            {
                more.map_err(from_fatal)?;
            }
            for (at, entry) in batch.into_iter().take_while(|(at, _)| *at <= ts) {
                applying.applier.look_back(at, entry);
            }
        }
        if storage.visible() < ts {
            storage.set_applied(ts);
        }
        storage.set_stable(ts);
        storage.checkpoint().await.map_err(from_fatal)?;
        Ok(applying)
    }

    /// Makes the source's collections and copies their documents, several at once on every core.
    async fn copy_all(
        &self,
        sync: &Rc<InitialSync>,
        source: &mut Source,
        halt: &Halt,
    ) -> Result<(), Failed> {
        let (targets, form) = make_collections(source).await?;
        for target in &targets {
            let mut status = sync.status.borrow_mut();
            status.expect(target.ns().as_str(), target.index_count());
        }
        let host = &source.host;
        let waiting = RefCell::new(VecDeque::from(targets));
        let copiers = (0..core_count() as u16 * COPIES_PER_CORE).map(|number| {
            let core = CoreId(number % core_count() as u16);
            copy_one_by_one(core, &waiting, sync, (host, form), halt)
        });
        let copied = join_all(copiers).await;
        let mut failures: Vec<Failed> = copied.into_iter().filter_map(Result::err).collect();
        // The first that failed by itself is the reason for the others.
        failures.sort_by_key(|failed| failed.is_halted);
        failures.into_iter().next().map_or(Ok(()), Err)?;
        let (documents, bytes) = sync.status.borrow().totals();
        tracing::info!(target: "INITSYNC", id = 21_183u64, documents, bytes, "Finished cloning data. Beginning oplog replay");
        Ok(())
    }
}

/// Makes the collections that the source has, and says in which form it gives them.
async fn make_collections(source: &mut Source) -> Result<(Vec<CloneTarget>, SourceForm), Failed> {
    let mut targets = Vec::new();
    let mut above = Some(0);
    while let Some(after) = above {
        let found = match source.catalog_rows(after).await {
            Err(failed) if failed.code == Some(ErrorCode::COMMAND_NOT_FOUND) => {
                let listed = source.listed_collections().await?;
                tracing::info!(target: "INITSYNC", id = 7_400_014u64, source = %source.host, collections = listed.len(), "The source is a member of MongoDB's: its collections get numbers of this node");
                return Ok((clone_listed(listed).await?, SourceForm::Listed));
            }
            found => found?,
        };
        above = found.above;
        targets.extend(clone_catalog(found.rows, found.next_number).await?);
    }
    Ok((targets, SourceForm::Rows))
}

/// The entry with which a transaction begins that is prepared.
async fn prepared_entry(source: &mut Source, prepared: Timestamp) -> Result<Fetched, Failed> {
    event("initial sync fetches from a prepared transaction on");
    let entry = source.newest_entry(prepared).await?;
    match entry.optime.ts == prepared {
        true => Ok(entry),
        false => Err(Failed::new(
            "the source has lost an entry of a transaction that is prepared",
        )),
    }
}

/// Where an attempt begins.
struct Beginning {
    /// The first entry that is fetched: of a transaction that is prepared by then all entries are,
    /// as they take place, if they do, with one that comes later.
    fetching: Fetched,
    /// The entry behind which they are applied: whatever is copied has it in it.
    applying: Fetched,
}

async fn copy_one_by_one(
    core: CoreId,
    waiting: &RefCell<VecDeque<CloneTarget>>,
    sync: &InitialSync,
    (host, form): (&HostPort, SourceForm),
    halt: &Halt,
) -> Result<(), Failed> {
    loop {
        let next = waiting.borrow_mut().pop_front();
        let Some(target) = next else {
            return Ok(());
        };
        halt.check()?;
        let ns = target.ns();
        let counters = {
            let mut status = sync.status.borrow_mut();
            let counters = status.expect(ns.as_str(), target.index_count());
            status.collection_begins(ns.as_str());
            counters
        };
        let job = Job {
            target,
            source: host.clone(),
            form,
            halt: halt.clone(),
            counters: counters.clone(),
        };
        let copied = submit_to(core, Queue::Background, move || copy(job)).await;
        if copied.is_err() {
            // The others need not continue.
            halt.set();
        }
        copied?;
        sync.status.borrow_mut().collection_ends(ns.as_str());
        tracing::info!(target: "INITSYNC", id = 21_133u64, namespace = ns.as_str(), documents = counters.documents(), bytes = counters.bytes(), "Collection cloner finished");
    }
}

/// This node's log, read and applied behind what is copied.
struct Applying {
    applier: Applier,
    log: LogCursor,
    planted_fault: PlantedFault,
}

impl Applying {
    fn behind(begin: Timestamp, planted_fault: PlantedFault) -> Applying {
        Applying {
            planted_fault,
            applier: Applier::new(ApplyMode::InitialSync),
            log: storage().log_after(begin),
        }
    }

    /// Applies everything up to a timestamp, which is logged or comes.
    async fn apply_to(
        &mut self,
        sync: &InitialSync,
        stop: Timestamp,
        halt: &Halt,
    ) -> Result<(), Failed> {
        let failed = |error: &dyn std::fmt::Display| Failed::new(error.to_string());
        while self.log.position() < stop {
            halt.check()?;
            let batch = self
                .log
                .next_batch(APPLY_BATCH_ENTRIES, APPLY_BATCH_BYTES)
                .await;
            let batch = batch.map_err(|error| failed(&error))?;
            if batch.is_empty() {
                // None is lost when it is not waited for to the end.
                if let Ok(more) = timeout(HALT_POLL, self.log.wait()).await {
                    more.map_err(from_fatal)?;
                }
                continue;
            }
            sync.status.borrow_mut().applied(batch.len() as u64);
            for (ts, entry) in batch {
                let entry = self.planted_fault.of_initial_sync(ts, entry);
                let applied = self.applier.apply(ts, entry).await;
                applied.map_err(|error| failed(&error))?;
            }
            self.publish_applied();
        }
        let applied = self.applier.barrier().await;
        applied.map_err(|error| failed(&error))?;
        self.publish_applied();
        Ok(())
    }

    /// What is applied goes into the base: it is given up as a whole or not at all.
    fn publish_applied(&self) {
        let (storage, applied) = (storage(), self.applier.applied());
        if applied > storage.visible() {
            storage.set_applied(applied);
            storage.set_stable(applied);
        }
    }
}

impl From<pinion_storage::Fatal> for Failed {
    fn from(fatal: pinion_storage::Fatal) -> Failed {
        Failed::from(Error::internal(fatal.to_string()))
    }
}
