//! Decides of an operation that has ended whether it is logged and written, and writes it.

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_catalog::{Capped, CollectionOptions, core_catalog, create_collection};
use pinion_runtime::{Queue, spawn, timeout};
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::metrics::metrics;
use pinion_service::profile_settings::{COLLECTION, Level, profiles};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, LogicalOp, OpContext, Reply, Result, namespace_named};

use super::entry::Ended;
use crate::acquire::acquire_write;
use crate::limits::{MAX_PROFILE_WRITES, PROFILE_BYTES, PROFILE_WRITE_PATIENCE};
use crate::write::{BatchOutcome, InsertOptions, Validation, insert_documents, prepare_for_insert};

/// A command that may be profiled, recorded before it runs.
pub struct Profiled {
    ctx: OpContext,
    body: Bytes,
}

impl Profiled {
    /// None where the profiler has nothing to do with its database.
    pub(crate) fn begin(ctx: &OpContext, body: &Bytes) -> Option<Profiled> {
        let concerned = profiles().borrow().concerns(&ctx.db);
        concerned.then(|| Profiled {
            ctx: ctx.clone(),
            body: body.clone(),
        })
    }

    /// Decides on the operation's line in the log, and writes it down if it is one of those that
    /// are.
    pub(crate) async fn end(self, result: &Result<Reply>, us: u64) {
        let body = pinion_catalog::stored_document(&self.body);
        let ns = namespace_named(self.ctx.command, &self.ctx.db, body);
        let ended = Ended {
            ctx: &self.ctx,
            op: self.ctx.command.op,
            ns: &ns,
            command: body,
            response_bytes: Some(result.as_ref().map_or(0, |reply| reply.len())),
            error: result.as_ref().err(),
            us,
            wall_ms: pinion_runtime::wall_ms(),
        };
        let entry = compute_bytes(self.body.len(), || ended.document()).await;
        let decided = decide(&self.ctx, &self.ctx.db, &entry, us).await;
        self.ctx.work().decide_slow_line(decided.is_logged);
        // Updates and deletes are written statement by statement, unless none was reached.
        let has_statements = matches!(self.ctx.command.op, LogicalOp::Update | LogicalOp::Remove);
        let by_statements = has_statements && result.is_ok();
        if decided.is_written && !by_statements {
            record(&self.ctx.db, entry).await;
        }
    }
}

/// A statement of a command that has several, which is recorded separately.
pub struct ProfiledStatement {
    ctx: OpContext,
    op: LogicalOp,
    ns: Namespace,
    command: RawDocumentBuf,
    started_ns: u64,
}

impl ProfiledStatement {
    /// None where nothing of its database is written. `op` is what it does, and `command` the
    /// statement as it was sent.
    pub(crate) fn begin(
        ctx: &OpContext,
        op: LogicalOp,
        ns: &Namespace,
        command: &RawDocument,
    ) -> Option<ProfiledStatement> {
        if !profiles().borrow().is_on() || profiles().borrow().of(ns.db()).level == Level::Off {
            return None;
        }
        Some(ProfiledStatement {
            ctx: ctx.for_statement(),
            op,
            ns: ns.clone(),
            command: with_defaults(op, command),
            started_ns: pinion_runtime::now().as_nanos(),
        })
    }

    /// What the statement runs with, so that its work is kept apart.
    pub(crate) fn ctx(&self) -> &OpContext {
        &self.ctx
    }

    /// Records the statement, if it is one of those that are, and adds what it did to the whole
    /// operation.
    pub(crate) async fn end(self, whole: &OpContext, error: Option<&Error>) {
        let ended_ns = pinion_runtime::now().as_nanos();
        let us = ended_ns.saturating_sub(self.started_ns) / 1000;
        whole.work().add(self.ctx.work());
        let ended = Ended {
            ctx: &self.ctx,
            op: self.op,
            ns: self.ns.as_str(),
            command: &self.command,
            response_bytes: None,
            error,
            us,
            wall_ms: pinion_runtime::wall_ms(),
        };
        let entry = compute_bytes(self.command.as_bytes().len(), || ended.document()).await;
        if decide(&self.ctx, self.ns.db(), &entry, us).await.is_written {
            record(self.ns.db(), entry).await;
        }
    }
}

/// The statement with what it leaves to be understood, as MongoDB writes it.
fn with_defaults(op: LogicalOp, statement: &RawDocument) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for (name, value) in pinion_bson::elements(statement) {
        out.append(name, value);
    }
    if op == LogicalOp::Update {
        for name in ["multi", "upsert"] {
            if pinion_bson::get(statement, name).is_none() {
                out.append(name, false);
            }
        }
    }
    out.finish()
}

/// What becomes of an operation that has ended.
struct Decided {
    is_logged: bool,
    is_written: bool,
}

async fn decide(ctx: &OpContext, db: &str, entry: &RawDocument, us: u64) -> Decided {
    let (level, filter, is_slow) = {
        let profiles = profiles();
        let profiles = profiles.borrow();
        let profile = profiles.of(db);
        let is_slow = profile.filter.is_none() && profiles.is_slow(us);
        (profile.level, profile.filter.clone(), is_slow)
    };
    let is_logged = match filter {
        // The operation's own time may be up by now, and it says nothing of its entry.
        Some(filter) => {
            let ctx = ctx.clone().with_deadline(None);
            let matches = compute(&ctx, || filter.matches(entry)).await;
            matches.unwrap_or(false)
        }
        None => is_slow,
    };
    Decided {
        is_logged,
        is_written: match level {
            Level::Off => false,
            Level::Slow => is_logged,
            Level::All => true,
        },
    }
}

/// Writes an entry. It waits for that, so that clients find their own operations, but not long.
async fn record(db: &str, entry: RawDocumentBuf) {
    let writing = profiles().borrow().writing.get();
    if core_catalog().gates().is_locked() || writing >= MAX_PROFILE_WRITES {
        return;
    }
    let db = db.to_owned();
    let writing = spawn(Queue::Foreground, async move {
        let _writing = Writing::begin();
        if let Err(error) = write(&db, entry).await {
            tracing::warn!(target: "COMMAND", id = 20_703u64, db = &*db, error = error.message, "Caught exception while trying to profile an operation");
        }
    });
    let _ = timeout(PROFILE_WRITE_PATIENCE, writing).await;
}

/// Counts a write that is under way.
struct Writing;

impl Writing {
    fn begin() -> Writing {
        metrics().counters.profiled.inc();
        let profiles = profiles();
        let profiles = profiles.borrow();
        profiles.writing.set(profiles.writing.get() + 1);
        Writing
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let profiles = profiles();
        let profiles = profiles.borrow();
        profiles.writing.set(profiles.writing.get() - 1);
    }
}

async fn write(db: &str, entry: RawDocumentBuf) -> Result<()> {
    let ctx = context(db);
    let ns = Namespace::new(db, COLLECTION)?;
    if core_catalog().get(&ns).is_none() {
        // An operation on a database that is not there, or was dropped meanwhile, does not make it.
        if core_catalog().current().collections_of(db).next().is_none() {
            return Ok(());
        }
        make_collection(db).await?;
    }
    let acquired = acquire_write(&ctx, ns, None).await?;
    if acquired.collection().is_none() {
        return Ok(());
    }
    let document = prepare_for_insert(&entry, true).await?;
    let mut outcome = BatchOutcome::default();
    let options = InsertOptions {
        validation: Validation::Bypassed,
        ..InsertOptions::default()
    };
    insert_documents(&ctx, acquired, vec![(0, document)], options, &mut outcome).await?;
    match outcome.errors.pop() {
        Some(failure) => Err(failure.error),
        None => Ok(()),
    }
}

/// Makes the capped collection that the entries go to, if it is not there.
pub async fn make_collection(db: &str) -> Result<()> {
    let ns = Namespace::new(db, COLLECTION)?;
    if let Some(collection) = core_catalog().get(&ns) {
        return match collection.options.capped {
            Some(_) => Ok(()),
            None => Err(Error::new(
                ErrorCode::NAMESPACE_EXISTS,
                format!("{ns} exists but isn't capped"),
            )),
        };
    }
    let options = CollectionOptions {
        capped: Some(Capped {
            size_bytes: PROFILE_BYTES,
            max_documents: None,
        }),
        ..CollectionOptions::default()
    };
    create_collection(&context(db), ns, options).await?;
    Ok(())
}

/// What the profiler does is no client's operation.
fn context(db: &str) -> OpContext {
    OpContext::internal(
        0,
        pinion_command::row("profile"),
        db,
        pinion_runtime::now().as_nanos(),
    )
}
