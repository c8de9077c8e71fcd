//! An attempt that copies the source's files: the pages of a checkpoint that it freezes, and then
//! its oplog from there on.
//!
//! The files are written beside this node's, and looked through, page by page. Then the node closes
//! its data directory and opens the copy in its place, with what is not replicated kept: from here
//! on it is as any member that follows, except that its progress is not reported. It is complete
//! when everything is applied that was the source's last entry then, if the source has not rolled
//! back. A node that dies before has no word that its data are those of its set, and starts again.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use pinion_catalog::from_fatal;
use pinion_clock::Timestamp;
use pinion_instance::reopen_as_copy;
use pinion_replication_protocol::config::HostPort;
use pinion_runtime::sim::event;
use pinion_runtime::{CoreId, Queue, core_count, join_all, now, sleep, spawn, submit_to};
use pinion_storage::{CheckpointCopy, CopyError, PartitionId, storage};
use pinion_wire::Error;

use super::frozen::{Frozen, first_entries, keep_frozen};
use super::pages::{PagesJob, copy_pages};
use super::source::Source;
use super::{Failed, Halt, InitialSync};
use crate::driver::Driver;
use crate::follower::Fetched;
use crate::give_up::stop_node;
use crate::limits::{APPLIED_POLL, COMMITTED_POLL, COPIES_PER_CORE};
use crate::persisted;
use crate::terms::Terms;

/// What became of an attempt to copy files.
pub(super) enum ByFiles {
    Done,
    /// It cannot be done with this source; nothing has happened.
    Unable(String),
}

impl Driver {
    /// Copies the files of a source, and applies what its oplog got meanwhile.
    ///
    /// # Errors
    /// Why the attempt has failed; the next one replaces what it has brought.
    pub(super) async fn copy_files(
        self: &Rc<Self>,
        sync: &Rc<InitialSync>,
        host: &HostPort,
        halt: &Halt,
    ) -> Result<ByFiles, Failed> {
        if persisted::is_synced().await? {
            return Ok(ByFiles::Unable("this node has data of its set".to_owned()));
        }
        let mut source = Source::new(host.clone(), halt.clone());
        let rollback_id = source.rollback_id().await?;
        let frozen = match source.freeze_checkpoint(&self.host).await {
            Ok(frozen) => frozen,
            // It answers, and does not know the command, or cannot do it now.
            Err(failed) if failed.code.is_some() => return Ok(ByFiles::Unable(failed.why)),
            Err(failed) => return Err(failed),
        };
        let keeping = {
            let (host, number) = (host.clone(), frozen.number);
            spawn(
                Queue::Background,
                keep_frozen(host, Halt::default(), number),
            )
        };
        let done = self
            .copy_frozen(sync, &mut source, &frozen, rollback_id)
            .await;
        keeping.abort();
        let _ = keeping.await;
        // Whether this attempt is to end or not.
        let mut source = Source::new(host.clone(), Halt::default());
        source.release_checkpoint(frozen.number).await;
        done
    }

    async fn copy_frozen(
        self: &Rc<Self>,
        sync: &Rc<InitialSync>,
        source: &mut Source,
        frozen: &Frozen,
        rollback_id: i32,
    ) -> Result<ByFiles, Failed> {
        let copy = match storage().begin_copy(&frozen.manifest).await {
            Ok(copy) => copy,
            Err(error) => return Ok(ByFiles::Unable(error.to_string())),
        };
        sync.status
            .borrow_mut()
            .begin_files(rollback_id, copy.base(), frozen.bytes);
        event("files copied");
        let copied = self.copy_beside(sync, source, frozen, &copy).await;
        let entries = match copied {
            Ok(Ok(entries)) => entries,
            Ok(Err(why)) => {
                copy.remove().await;
                return Ok(ByFiles::Unable(why));
            }
            Err(failed) => {
                copy.remove().await;
                return Err(failed);
            }
        };
        self.take_over(&copy, &entries).await;
        self.catch_up(sync, source, rollback_id).await?;
        Ok(ByFiles::Done)
    }

    /// Brings the files, and the entries that the log begins with; the inner error is why that
    /// cannot be done with this source.
    async fn copy_beside(
        &self,
        sync: &Rc<InitialSync>,
        source: &mut Source,
        frozen: &Frozen,
        copy: &CheckpointCopy,
    ) -> Result<Result<Vec<Fetched>, String>, Failed> {
        let started = now();
        let entries = source.entries_between(copy.log_from(), copy.base()).await;
        let entries = match entries {
            Ok(entries) => entries,
            Err(failed) if failed.is_broken() || failed.is_halted => return Err(failed),
            Err(failed) => return Ok(Err(failed.why)),
        };
        let waiting: RefCell<VecDeque<PartitionId>> =
            RefCell::new((0..copy.partitions()).map(PartitionId).collect());
        let copiers = (0..core_count() as u16 * COPIES_PER_CORE).map(|number| {
            let core = CoreId(number % core_count() as u16);
            copy_one_by_one(core, &waiting, sync, source, frozen, copy)
        });
        let copied = join_all(copiers).await;
        let mut failures: Vec<Failed> = copied.into_iter().filter_map(Result::err).collect();
        // The first that failed by itself is the reason for the others.
        failures.sort_by_key(|failed| failed.is_halted);
        failures.into_iter().next().map_or(Ok(()), Err)?;
        let (_, bytes) = sync.status.borrow().totals();
        let millis = started.elapsed().as_millis() as u64;
        tracing::info!(target: "INITSYNC", id = 7_400_011u64, bytes, millis, "Finished copying files. Looking through them");
        match copy.verify(core_count()).await {
            Ok(()) => {}
            Err(CopyError::Damaged(what)) => {
                // Whatever spoils it here may spoil it again.
                sync.files_are_of_no_use.set(true);
                return Err(Failed::new(what));
            }
            Err(error) => return Err(error.into()),
        }
        source.halt.check()?;
        Ok(Ok(entries))
    }

    /// Opens the copy in the place of what this node has.
    async fn take_over(self: &Rc<Self>, copy: &CheckpointCopy, entries: &[Fetched]) {
        // Nothing that was fetched before is under way any more.
        if !self.stop_following().await {
            // There is nothing to continue with until the node has ended.
            std::future::pending::<()>().await;
        }
        self.reopens.set(true);
        let storing = self.storing.acquire().await;
        let reopened = reopen_as_copy(copy, first_entries(entries)).await;
        drop(storing);
        let last = entries.last().expect("the base has an entry").optime;
        let taken = match reopened {
            Ok(_) => {
                self.terms.replace(Terms::starting_at(last));
                self.follower.log_only(false);
                self.take_up_reopened().await
            }
            Err(error) => Err(Error::internal(error.to_string())),
        };
        self.reopens.set(false);
        if let Err(error) = taken {
            stop_node("copied files cannot be taken over", &error);
            // There is nothing to continue with until the node has ended.
            std::future::pending::<()>().await;
        }
        event("files taken over");
        tracing::info!(target: "INITSYNC", id = 7_400_012u64, base = ?copy.base(), "Copied files are taken over. Beginning oplog replay");
    }

    /// Follows the source to where it is now.
    async fn catch_up(
        self: &Rc<Self>,
        sync: &Rc<InitialSync>,
        source: &mut Source,
        rollback_id: i32,
    ) -> Result<(), Failed> {
        let (host, halt) = (source.host.clone(), source.halt.clone());
        let following = self.follow_to_end(sync, source, rollback_id);
        self.while_fetching(&host, &halt, following).await?;
        let last = storage().last_allotted();
        storage().wait_durable(last).await.map_err(from_fatal)?;
        pinion_exec::forget_default_concerns().await;
        persisted::store_synced().await?;
        Ok(())
    }

    /// Waits until everything is applied that the source has now. What a majority has goes into the
    /// base meanwhile, so that memory does not run out; all else may have to be rolled back.
    async fn follow_to_end(
        &self,
        sync: &InitialSync,
        source: &mut Source,
        rollback_id: i32,
    ) -> Result<(), Failed> {
        let stop = source.newest_entry(Timestamp::MAX).await?.optime.ts;
        sync.status.borrow_mut().stop_at(stop);
        let mut looked = None;
        while storage().visible() < stop {
            if looked.is_none_or(|at: pinion_runtime::Instant| at.elapsed() >= COMMITTED_POLL) {
                looked = Some(now());
                let committed = source.committed().await?;
                self.keep_history(committed.min(storage().visible()));
            }
            source.halt.check()?;
            sleep(APPLIED_POLL).await;
        }
        match source.rollback_id().await? == rollback_id {
            true => Ok(()),
            false => Err(Failed::new("the source has rolled back")),
        }
    }
}

async fn copy_one_by_one(
    core: CoreId,
    waiting: &RefCell<VecDeque<PartitionId>>,
    sync: &InitialSync,
    source: &Source,
    frozen: &Frozen,
    copy: &CheckpointCopy,
) -> Result<(), Failed> {
    loop {
        let next = waiting.borrow_mut().pop_front();
        let Some(partition) = next else {
            return Ok(());
        };
        source.halt.check()?;
        let job = PagesJob {
            copy: copy.clone(),
            number: frozen.number,
            partition,
            source: source.host.clone(),
            halt: source.halt.clone(),
            counters: sync.status.borrow().pages(),
        };
        let copied = submit_to(core, Queue::Background, move || copy_pages(job)).await;
        if copied.is_err() {
            // The others need not continue.
            source.halt.set();
        }
        copied?;
    }
}
