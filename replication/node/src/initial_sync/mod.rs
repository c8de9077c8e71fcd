//! Initial sync: a new member copies the data of another one, and applies what that one's oplog got
//! meanwhile.
//!
//! An attempt has one source. From its last applied entry on the oplog of the source is fetched
//! into this node's log, and applied when all collections are copied, up to what was the source's
//! last entry then. What is copied in between may be of any time since the beginning; the entries
//! make one state of it. If the source has rolled back meanwhile, or anything else goes wrong, the
//! attempt was for nothing: the next one drops what it has brought.
//!
//! Instead of collections and documents the files of a checkpoint can be copied (`files.rs`), where
//! the source has as many partitions.
//!
//! Source: replication document, "Initial Sync".

mod attempt;
mod documents;
mod files;
mod frozen;
mod listed;
mod pages;
mod source;
mod status;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pinion_bson::DocBuilder;
use pinion_exec::{InitialSyncMethod, replication_parameters};
use pinion_replication_protocol::config::HostPort;
use pinion_replication_protocol::node::{Input, SourceFailure};
use pinion_runtime::sim::event;
use pinion_runtime::{Duration, Instant, JoinHandle, Queue, now, sleep, spawn, timeout};
use pinion_server::RemoteError;
use pinion_wire::{Category, Error, ErrorCode};

use self::files::ByFiles;
use self::status::Status;
use crate::driver::Driver;
use crate::give_up::stop_node;
use crate::limits::HALT_POLL;

/// An initial sync, from its first attempt to its end.
pub(crate) struct InitialSync {
    failed: Cell<u32>,
    attempt: RefCell<Option<Attempt>>,
    status: RefCell<Status>,
    /// Files that were copied were damaged: documents are copied from now on.
    files_are_of_no_use: Cell<bool>,
}

struct Attempt {
    halt: Halt,
    /// Its outcome is not wanted.
    given_up: Rc<Cell<bool>>,
    task: JoinHandle<()>,
}

/// Whether an attempt is to end: asked before every step, on any core. A step that was started is
/// always completed, as the next attempt must not meet it.
#[derive(Clone, Default)]
struct Halt(Arc<AtomicBool>);

impl Halt {
    fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn check(&self) -> Result<(), Failed> {
        match self.0.load(Ordering::SeqCst) {
            true => Err(Failed::halted()),
            false => Ok(()),
        }
    }

    /// Waits for something that may be dropped, for so long at most.
    async fn within<T>(&self, limit: Duration, wait: impl Future<Output = T>) -> Result<T, Failed> {
        let mut wait = std::pin::pin!(wait);
        let end = pinion_runtime::now() + limit;
        loop {
            self.check()?;
            if let Ok(done) = timeout(HALT_POLL, wait.as_mut()).await {
                return Ok(done);
            }
            if pinion_runtime::now() >= end {
                return Err(Failed::broken("the source does not answer"));
            }
        }
    }

    async fn pause(&self, pause: Duration) -> Result<(), Failed> {
        self.check()?;
        sleep(pause).await;
        self.check()
    }
}

/// Why an attempt has failed, and what that says of its source.
#[derive(Clone, Debug)]
struct Failed {
    why: String,
    failure: SourceFailure,
    /// The source answered with this error.
    code: Option<ErrorCode>,
    /// Something else has failed.
    is_halted: bool,
}

impl Failed {
    fn new(why: impl Into<String>) -> Failed {
        Failed {
            why: why.into(),
            failure: SourceFailure::Stopped,
            code: None,
            is_halted: false,
        }
    }

    fn halted() -> Failed {
        Failed {
            is_halted: true,
            ..Failed::new("the attempt was given up")
        }
    }

    /// Something came in the middle that may go better over another connection.
    fn broken(why: impl Into<String>) -> Failed {
        Failed {
            failure: SourceFailure::Unreachable,
            ..Failed::new(why)
        }
    }

    fn is_broken(&self) -> bool {
        self.failure == SourceFailure::Unreachable
    }
}

/// For how long a source is away that is needed for what was started with it.
#[derive(Default)]
struct Outage(Option<Instant>);

impl Outage {
    fn ends(&mut self) {
        self.0 = None;
    }

    /// Whether it lasts for longer than it is borne. It begins with the first question.
    fn is_too_long(&mut self) -> bool {
        let secs = replication_parameters().initial_sync_retry_secs;
        let limit = Duration::from_secs(secs.unsigned_abs().into());
        self.0.get_or_insert_with(now).elapsed() >= limit
    }
}

/// Whether an error is that of a node which is about to end, begins, or changes its state.
fn is_passing(code: ErrorCode) -> bool {
    code.is(Category::NOT_PRIMARY)
        || code.is(Category::SHUTDOWN)
        || code == ErrorCode::NOT_YET_INITIALIZED
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::new(error.message)
    }
}

impl From<RemoteError> for Failed {
    fn from(error: RemoteError) -> Failed {
        match error {
            RemoteError::Refused(error) => Failed {
                code: Some(error.code),
                ..match is_passing(error.code) {
                    true => Failed::broken(error.message),
                    false => Failed::new(error.message),
                }
            },
            other => Failed::broken(other.to_string()),
        }
    }
}

impl Driver {
    /// This node has no data, or none that are of use: it copies those of the source that is named
    /// next.
    pub(crate) fn begin_initial_sync(&self) {
        self.initial_sync.replace(Some(Rc::new(InitialSync {
            failed: Cell::new(0),
            attempt: RefCell::default(),
            status: RefCell::new(Status::new()),
            files_are_of_no_use: Cell::new(false),
        })));
    }

    /// Begins an attempt, when the one before has ended.
    pub(crate) fn copy_from(self: &Rc<Self>, source: HostPort) {
        let sync = self.initial_sync.borrow().clone();
        let sync = sync.expect("an initial sync begins before it has a source");
        let before = sync.attempt.take();
        let (halt, given_up) = (Halt::default(), Rc::new(Cell::new(false)));
        let (driver, attempted) = (self.clone(), sync.clone());
        let task = {
            let (halt, given_up) = (halt.clone(), given_up.clone());
            spawn(Queue::Foreground, async move {
                if let Some(before) = before {
                    before.halt.set();
                    // How it has ended was reported by itself.
                    let _ = before.task.await;
                }
                // The one before may have been successful in the end.
                let continues = (driver.initial_sync.borrow().as_ref())
                    .is_some_and(|sync| Rc::ptr_eq(sync, &attempted));
                if continues && !given_up.get() {
                    driver.attempt(attempted, source, halt, given_up).await;
                }
            })
        };
        let attempt = Attempt {
            halt,
            given_up,
            task,
        };
        sync.attempt.replace(Some(attempt));
    }

    /// Ends the attempt that is under way, if there is one.
    pub(crate) fn stop_copying(&self) {
        if let Some(sync) = &*self.initial_sync.borrow()
            && let Some(attempt) = &*sync.attempt.borrow()
        {
            attempt.given_up.set(true);
            attempt.halt.set();
        }
    }

    /// Appends `initialSyncStatus` to the reply of `replSetGetStatus`, while there is something to
    /// report.
    pub(crate) fn append_initial_sync(&self, out: &mut DocBuilder) {
        if let Some(sync) = &*self.initial_sync.borrow() {
            sync.status.borrow().append_to(out);
        }
    }

    /// Copies a source by the method that was asked for, or by the one that it has.
    async fn copy_somehow(
        self: &Rc<Self>,
        sync: &Rc<InitialSync>,
        source: &HostPort,
        halt: &Halt,
    ) -> Result<(), Failed> {
        if replication_parameters().initial_sync_method == InitialSyncMethod::FileCopyBased {
            let why = match sync.files_are_of_no_use.get() {
                true => "files that were copied were damaged".to_owned(),
                false => match self.copy_files(sync, source, halt).await? {
                    ByFiles::Done => return Ok(()),
                    ByFiles::Unable(why) => why,
                },
            };
            event("initial sync without files");
            tracing::warn!(target: "INITSYNC", id = 7_400_013u64, source = %source, why, "Files cannot be copied from this source: its collections are copied instead");
            sync.status.borrow_mut().without_files();
        }
        self.copy(sync, source, halt).await
    }

    async fn attempt(
        self: Rc<Self>,
        sync: Rc<InitialSync>,
        source: HostPort,
        halt: Halt,
        given_up: Rc<Cell<bool>>,
    ) {
        let number = sync.failed.get() + 1;
        let most = most_attempts();
        tracing::info!(target: "INITSYNC", id = 21_164u64, initialSyncAttempt = number, initialSyncMaxAttempts = most, source = %source, "Starting initial sync attempt");
        sync.status.borrow_mut().begin_attempt(&source);
        event("initial sync attempt");
        let failed = match self.copy_somehow(&sync, &source, &halt).await {
            Ok(()) => {
                event("initial sync done");
                tracing::info!(target: "INITSYNC", id = 21_163u64, source = %source, "Initial sync done");
                self.initial_sync.replace(None);
                self.metrics.initial_sync_done();
                return self.step(Input::SyncDone(self.progress()));
            }
            Err(failed) => failed,
        };
        if given_up.get() {
            return;
        }
        event("initial sync failed");
        sync.failed.set(number);
        self.metrics.attempt_failed(number >= most_attempts());
        sync.status.borrow_mut().attempt_failed(&failed.why);
        tracing::warn!(target: "INITSYNC", id = 21_200u64, source = %source, error = failed.why, "Initial sync attempt failed");
        if number >= most_attempts() {
            let what = "The maximum number of initial sync attempts has been reached";
            return stop_node(what, &Error::internal(failed.why));
        }
        let failure = failed.failure;
        self.step(Input::SourceFailed { source, failure });
    }
}

/// Attempts after which the node stops.
fn most_attempts() -> u32 {
    replication_parameters()
        .initial_sync_attempts
        .unsigned_abs()
}
