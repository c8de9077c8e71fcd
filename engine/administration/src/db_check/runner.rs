//! A run on the primary: batch after batch is read, logged, and waited for.

use std::cell::Cell;

use pinion_catalog::{
    Collection, OpEvent, OpKind, Uuid, check_v44_can_follow, core_catalog, from_fatal, log_alone,
    oplog_format,
};
use pinion_clock::Timestamp;
use pinion_exec::acquire::{AcquisitionRequest, acquire};
use pinion_exec::concern::wait_for_check;
use pinion_exec::limits::MAX_LOGGED_BYTES;
use pinion_runtime::{Duration, Instant, now, sleep};
use pinion_service::interrupt::{self, interruptible};
use pinion_service::ops::BackgroundGuard;
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::digest::{Limits, Unread, View, is_compared};
use super::entry::{Batch, CheckEntry, Early, Step};
use super::follower::{Found, note_faults, note_step};
use super::health_log::{BATCH, Note, OF_CLUSTER, Severity, failure};
use super::options::{Request, Target};
use super::parameters::check_parameters;
use super::range::Range;
use crate::db_check::db_check_tasks;
use crate::limits::{CHECK_PAUSE, CHECK_RETRY, MAX_SNAPSHOT_ATTEMPTS};

/// A check that a client has asked for.
pub(super) struct Run {
    pub ctx: OpContext,
    pub request: Request,
    /// Shown by `currentOp`, and stopped by `killOp`, from the answer to the client on.
    pub _listed: BackgroundGuard,
}

/// Runs what clients ask for, one after the other, until the tasks are to end.
pub(super) async fn run_all() {
    let tasks = &db_check_tasks();
    let first = || {
        let runs = tasks.runs.borrow();
        let first = runs.front()?;
        Some((first.ctx.clone(), first.request.clone()))
    };
    while let Some((ctx, request)) = tasks.next(&first).await {
        run(&ctx, &request).await;
        tasks.runs.borrow_mut().pop_front();
    }
}

/// A collection whose turn it is.
struct Turn<'r> {
    ctx: &'r OpContext,
    request: &'r Request,
    ns: Namespace,
    /// None where there is no collection to look at.
    uuid: Option<Uuid>,
    /// Batches that were logged, documents and bytes that were read.
    batches: u64,
    count: u64,
    bytes: u64,
    /// It is written down that the write concern cannot be reached, once in a run.
    has_noted_concern: &'r Cell<bool>,
}

/// Why a turn ends before its end.
enum Ended {
    /// The node is no primary any more, or the run was killed, or the node closes.
    Stopped(Error),
    /// This collection cannot be examined.
    Failed(Severity, String),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Ended {
        let is_stopped = interrupt::is_interruption(&error)
            || error.code == ErrorCode::NOT_WRITABLE_PRIMARY
            || error.code == ErrorCode::PRIMARY_STEPPED_DOWN;
        match is_stopped {
            true => Ended::Stopped(error),
            false => Unread::from(error).into(),
        }
    }
}

impl From<Unread> for Ended {
    fn from(unread: Unread) -> Ended {
        match unread {
            Unread::Interrupted(error) => Ended::Stopped(error),
            Unread::Unavailable(what) => Ended::Failed(Severity::Warning, what),
            Unread::Damaged(what) => Ended::Failed(Severity::Error, what),
        }
    }
}

async fn run(ctx: &OpContext, request: &Request) {
    let has_noted_concern = Cell::new(false);
    let turn = |ns, uuid| Turn {
        ctx,
        request,
        ns,
        uuid,
        batches: 0,
        count: 0,
        bytes: 0,
        has_noted_concern: &has_noted_concern,
    };
    let found = collections(&request.target);
    if found.is_empty() {
        let ns = match &request.target {
            Target::Collection(ns) => Some(ns.clone()),
            Target::Database(db) => Namespace::parse_sought(&format!("{db}.$cmd")).ok(),
        };
        let ns = ns.expect("a database that was found has a name");
        let early = Early::failed("there was nothing to compare");
        turn(ns, None).end(Some(early)).await;
        return;
    }
    for (ns, uuid) in found {
        if !turn(ns, Some(uuid)).run().await {
            return;
        }
    }
}

/// What a run looks at, as it is called when it begins.
fn collections(target: &Target) -> Vec<(Namespace, Uuid)> {
    let named = |collection: &Collection| (collection.ns.clone(), collection.uuid);
    match target {
        Target::Collection(ns) => {
            let found = core_catalog().get(ns);
            found.iter().map(|found| named(found)).collect()
        }
        Target::Database(db) => {
            let catalog = core_catalog().current();
            let compared = catalog
                .collections_of(db)
                .filter(|found| is_compared(found));
            let mut all: Vec<_> = compared.map(|found| named(found)).collect();
            all.sort();
            all
        }
    }
}

impl Turn<'_> {
    /// Looks at the collection; false where the run ends with it.
    async fn run(&mut self) -> bool {
        match self.batches().await {
            Ok(()) => self.end(None).await,
            Err(Ended::Failed(severity, what)) => {
                // The damage is this member's alone.
                if severity == Severity::Error {
                    let msg = "abandoning dbCheck batch";
                    self.note(severity, BATCH, msg, &what).await;
                }
                self.end(Some(Early::failed(&what))).await
            }
            Err(Ended::Stopped(error)) => {
                let early = Early::killed(&error.message);
                match error.code == ErrorCode::INTERRUPTED {
                    true => drop(self.end(Some(early)).await),
                    // No task would log it.
                    false => note_step(&self.entry(Step::Stop(Some(early)))).await,
                }
                false
            }
        }
    }

    /// Logs the end; false where nothing can be logged any more. That is then written down here
    /// alone.
    async fn end(&self, early: Option<Early>) -> bool {
        // A run that was killed logs that too, and its own context logs nothing any more.
        let ctx = OpContext::internal(
            0,
            pinion_command::row("dbCheck"),
            self.ns.db(),
            now().as_nanos(),
        );
        let tasks = &db_check_tasks();
        if tasks.stopping.get() {
            ctx.kill(ErrorCode::INTERRUPTED_AT_SHUTDOWN);
        }
        tasks.ending.replace(Some(ctx.clone()));
        let logged = self.log_as(&ctx, Step::Stop(early.clone())).await;
        tasks.ending.take();
        let (early, is_stopped) = match logged {
            Ok(_) => return true,
            Err(Ended::Stopped(error)) => (Early::killed(&error.message), true),
            Err(Ended::Failed(_, what)) => (early.unwrap_or_else(|| Early::failed(&what)), false),
        };
        note_step(&self.entry(Step::Stop(Some(early)))).await;
        !is_stopped
    }

    async fn batches(&mut self) -> std::result::Result<(), Ended> {
        self.log_as(self.ctx, Step::Start).await?;
        let mut range = None;
        loop {
            let began = now();
            let next = self.batch(range.take(), began).await?;
            let is_enough =
                self.count >= self.request.most_count || self.bytes >= self.request.most_bytes;
            match next.rest {
                Some(rest) if !is_enough => range = Some(rest),
                _ => return Ok(()),
            }
            self.pace(began, next.bytes).await?;
        }
    }

    /// The newest state of the collection.
    async fn view(&self, uuid: Uuid) -> std::result::Result<(View, Timestamp), Ended> {
        let mut attempts = 0;
        loop {
            let at = interruptible(self.ctx, storage().read_timestamp()).await?;
            let at = at.map_err(from_fatal)?;
            attempts += 1;
            match View::open(self.ctx, uuid, &self.request.checks, at).await {
                Err(Unread::Unavailable(_)) if attempts < MAX_SNAPSHOT_ATTEMPTS => {}
                view => return Ok((view?, at)),
            }
        }
    }

    /// Reads a batch, logs it, and waits for the write concern. `range` is what is left; none at
    /// the beginning.
    async fn batch(
        &mut self,
        range: Option<Range>,
        began: Instant,
    ) -> std::result::Result<Next, Ended> {
        let request = self.request;
        let uuid = self.uuid.expect("a batch is of a collection");
        let (view, read_at) = self.view(uuid).await?;
        let range = match (range, view.index()) {
            (Some(range), _) => range,
            (None, Some(index)) => {
                Range::of_entries(index, request.start.as_ref(), request.end.as_ref())?
            }
            (None, None) => Range::of_documents(request.start.as_ref(), request.end.as_ref()),
        };
        let left = |most: u64, done: u64| most.saturating_sub(done).max(1);
        let limits = Limits {
            count: left(request.most_count, self.count).min(request.batch_documents),
            bytes: left(request.most_bytes, self.bytes).min(bytes_per_sec().unwrap_or(u64::MAX)),
            until: Some(began + request.batch_time),
        };
        let digest = view.digest(&range, &limits).await?;
        // What was read is not needed any more, and the log may have to be waited for.
        drop(view);
        let rest = digest.last.clone().map(|last| range.behind(last));
        let read = match &digest.last {
            Some(last) => range.up_to(last.clone()),
            None => range,
        };
        let batch = Batch {
            range: read,
            read_at,
            md5: digest.md5.clone(),
            is_logged: self.is_logged(),
        };
        let step = Step::Batch(Box::new(batch.clone()));
        let logged_at = self.log_as(self.ctx, step).await?;
        self.batches += 1;
        self.count += digest.count;
        self.bytes += digest.bytes;
        note_faults(&self.ns, self.uuid, &digest).await;
        if batch.is_logged {
            let found = Found {
                ns: &self.ns,
                uuid: self.uuid,
                batch: &batch,
                logged_at,
            };
            found.note(&digest).await;
        }
        let waited = wait_for_check(self.ctx, logged_at, request.write_concern.as_ref()).await?;
        if let Some(error) = waited {
            interrupt::check(self.ctx)?;
            let is_hopeless = error.code == ErrorCode::UNSATISFIABLE_WRITE_CONCERN;
            if !is_hopeless || !self.has_noted_concern.replace(true) {
                let msg = "dbCheck failed waiting for writeConcern";
                self.note(Severity::Warning, BATCH, msg, &error.message)
                    .await;
            }
        }
        Ok(Next {
            rest,
            bytes: digest.bytes,
        })
    }

    /// Whether members write down that they have the same in the batch that comes.
    fn is_logged(&self) -> bool {
        let every = check_parameters().borrow().log_every;
        self.batches.is_multiple_of(u64::from(every))
    }

    /// Waits until as many bytes may be read as were, by the parameter as it is by then.
    async fn pace(&self, began: Instant, bytes: u64) -> Result<()> {
        while let Some(rate) = bytes_per_sec() {
            let least = Duration::from_micros(bytes.saturating_mul(1_000_000) / rate);
            let wait = (began + least).saturating_since(now());
            if wait == Duration::ZERO {
                break;
            }
            interruptible(self.ctx, sleep(wait.min(CHECK_PAUSE))).await?;
        }
        Ok(())
    }

    fn entry(&self, step: Step) -> CheckEntry {
        CheckEntry {
            ns: self.ns.clone(),
            uuid: self.uuid,
            checks: self.request.checks.clone(),
            step,
        }
    }

    /// Logs what every member does then, this one too.
    async fn log_as(&self, ctx: &OpContext, step: Step) -> std::result::Result<Timestamp, Ended> {
        let entry = self.entry(step);
        let ts = loop {
            match log_entry(ctx, &entry).await {
                // A checkpoint makes room.
                Err(error) if error.code == ErrorCode::TEMPORARILY_UNAVAILABLE => {
                    interruptible(ctx, sleep(CHECK_RETRY)).await?;
                }
                logged => break logged?,
            }
        };
        note_step(&entry).await;
        Ok(ts)
    }

    async fn note(&self, severity: Severity, operation: &'static str, msg: &str, what: &str) {
        let note = Note {
            severity,
            scope: OF_CLUSTER,
            msg,
            operation,
            ns: &self.ns,
            uuid: self.uuid,
            data: failure(what),
        };
        note.write().await;
    }
}

/// What a run may read in a second; none where it is not slowed down.
fn bytes_per_sec() -> Option<u64> {
    let most_mb = check_parameters().borrow().most_mb_per_sec;
    (most_mb > 0).then(|| u64::from(most_mb) << 20)
}

/// What comes behind a batch.
struct Next {
    rest: Option<Range>,
    bytes: u64,
}

/// Logs an entry, as a primary.
///
/// # Errors
/// The node is no primary any more; the entry is too long, since values of `_id` are.
async fn log_entry(ctx: &OpContext, entry: &CheckEntry) -> Result<Timestamp> {
    let o = entry.to_command();
    if o.as_bytes().len() > MAX_LOGGED_BYTES {
        return Err(Error::new(
            ErrorCode::BSON_OBJECT_TOO_LARGE,
            "the _id or the index keys at which a batch begins and ends are too long for the oplog",
        ));
    }
    // The node stays the primary while this is behind the gate, and members of MongoDB 4.4 may have
    // been admitted since.
    let _acquired = acquire(ctx, AcquisitionRequest::write(entry.ns.clone(), None)).await?;
    check_v44_can_follow(true, "dbCheck")?;
    let ns = format!("{}.$cmd", entry.ns.db());
    let event = OpEvent {
        kind: OpKind::Command,
        ns: &ns,
        uuid: entry.uuid,
        o: &o,
        o2: None,
        from_migrate: false,
        wall_ms: pinion_runtime::wall_ms(),
        session: None,
        record: None,
        form: oplog_format(),
    };
    log_alone(&event).await
}
