//! Open cursors of one core. A cursor's id names the core that made it, so a `getMore` from any
//! connection finds it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{MAX_INTERNAL_DOCUMENT_BYTES, RawDocument, RawDocumentBuf, Uuid};
use pinion_clock::Timestamp;
use pinion_query::element_text;
use pinion_runtime::{CoreId, Instant, LocalBoxFuture, Rng};
use pinion_wire::idl::{Lsid, Namespace, ReadConcern};
use pinion_wire::{Error, ErrorCode, OpContext, Result};
use rustc_hash::FxHashMap;

use crate::limits::{MAX_BATCH_BYTES, MAX_CURSORS};
use crate::metrics::{Metrics, metrics};
use crate::session_ids::{is_in, is_of_session};

/// The namespace of the cursor that it answers.
pub const BULK_WRITE_CURSOR: &str = "admin.$cmd.bulkWrite";

/// Bits of a cursor's id that name its core.
const CORE_BITS: u32 = 12;

/// What a cursor reads, which may go away while nothing of it is held.
pub trait CursorSource {
    /// The collection's name: that under a view, if the cursor is of one.
    fn ns(&self) -> &Namespace;

    /// Whether a read can continue that did not hold its collection's gate for a while; `at` is the
    /// snapshot that it reads, if any.
    ///
    /// # Errors
    /// `QueryPlanKilled` when what is read is gone.
    fn check(&self, at: Option<Timestamp>) -> Result<()>;
}

/// Documents one by one.
pub trait Documents {
    /// The next document; `wanted` is how many more the caller would take now.
    fn next(
        &mut self,
        ctx: &OpContext,
        wanted: usize,
    ) -> impl Future<Output = Result<Option<Bytes>>>;

    /// True when it is known, without reading on, that nothing follows.
    fn is_eof(&self) -> bool;

    /// Whether more may come when there is nothing more for now.
    fn is_tail(&self) -> bool;
}

/// What a cursor reads from: a source of documents in their final form.
pub trait DocumentStream {
    /// Reads one batch: at most `max_documents`, at most 16 MiB, at least one document if there is
    /// one. What does not fit stays in `stash`.
    fn fill<'a>(
        &'a mut self,
        stash: &'a mut Option<Bytes>,
        ctx: &'a OpContext,
        max_documents: usize,
    ) -> LocalBoxFuture<'a, Result<Filled>>;

    /// Continues after a pause.
    fn resume(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// Whether more may come when there is nothing more for now.
    fn is_tail(&self) -> bool {
        false
    }

    /// Whether `getMore` waits for documents.
    fn awaits_data(&self) -> bool {
        false
    }

    /// Waits for more than there is, but not beyond this time. Nothing of a collection is held
    /// meanwhile. False where there is nothing to wait for.
    fn wait<'a>(
        &'a self,
        _ctx: &'a OpContext,
        _reads: Option<&'a dyn CursorSource>,
        _until: Instant,
    ) -> LocalBoxFuture<'a, Result<bool>> {
        Box::pin(async { Ok(false) })
    }

    /// Whether it is a change stream, whose errors have labels of their own.
    fn is_change_stream(&self) -> bool {
        false
    }

    /// Whether a batch without documents is worth giving back before the time is up.
    fn has_news(&self) -> bool {
        false
    }

    /// A change stream looks for changes up to this time, and no longer.
    fn give_up_at(&mut self, _until: Instant) {}

    /// `postBatchResumeToken` behind this batch, of a change stream. `is_all` when nothing that was
    /// read is held back.
    fn token_behind(&mut self, _batch: &[Bytes], _is_all: bool) -> Option<RawDocumentBuf> {
        None
    }
}

/// What continues a query.
pub struct Cursor {
    pub ns: Namespace,
    /// What it reads, if it reads a collection.
    pub reads: Option<Box<dyn CursorSource>>,
    pub session: Option<Lsid>,
    /// The number of the transaction that made it.
    pub transaction: Option<i64>,
    /// What the command that made it reads.
    pub read_concern: ReadConcern,
    pub no_timeout: bool,
    /// Where its documents come from.
    pub stream: Box<dyn DocumentStream>,
    /// A document that did not fit into the batch before.
    pub stash: Option<Bytes>,
    /// The command that made it and its plan, for `currentOp`.
    pub originating: Bytes,
    pub plan_summary: Option<Arc<str>>,
    pub created: Instant,
    pub last_used: Instant,
    /// The same, in milliseconds since 1970.
    pub created_ms: i64,
    pub last_used_ms: i64,
    pub batches: u64,
    pub returned: u64,
    /// What is left of the `maxTimeMS` of the command that made it.
    pub time_left: Option<pinion_runtime::Duration>,
}

impl Drop for Cursor {
    fn drop(&mut self) {
        // A cursor may be dropped where no node is open any more.
        if let Some(metrics) = pinion_runtime::try_core_local::<Metrics>() {
            let lived = pinion_runtime::now().saturating_since(self.created);
            let counters = &metrics.counters;
            counters.cursor_ended(lived.as_secs(), self.batches);
        }
    }
}

struct Pinned {
    session: Option<Lsid>,
    transaction: Option<i64>,
    op: OpContext,
    shown: ShownCursor,
}

enum Slot {
    Idle(Box<Cursor>),
    /// Checked out by a `getMore`, which is interrupted by its flag.
    Pinned(Box<Pinned>),
}

/// The cursors of one core.
pub struct CursorTable {
    slots: RefCell<FxHashMap<i64, Slot>>,
    rng: RefCell<Rng>,
}

/// What `currentOp` and `serverStatus` say about cursors.
#[derive(Clone, Copy, Debug, Default)]
pub struct CursorCounts {
    pub open: u64,
    pub no_timeout: u64,
    pub pinned: u64,
}

/// A cursor as `currentOp` shows it.
#[derive(Clone, Debug)]
pub struct ShownCursor {
    pub id: i64,
    pub ns: Namespace,
    pub session: Option<Lsid>,
    pub originating: Bytes,
    pub plan_summary: Option<Arc<str>>,
    pub created_ms: i64,
    pub last_used_ms: i64,
    pub no_timeout: bool,
    pub tailable: bool,
    pub awaits_data: bool,
    pub batches: u64,
    pub returned: u64,
    /// The `getMore` that has it.
    pub used_by: Option<i32>,
}

impl Cursor {
    fn shown(&self, id: i64) -> ShownCursor {
        ShownCursor {
            id,
            ns: self.ns.clone(),
            session: self.session,
            originating: self.originating.clone(),
            plan_summary: self.plan_summary.clone(),
            created_ms: self.created_ms,
            last_used_ms: self.last_used_ms,
            no_timeout: self.no_timeout,
            tailable: self.stream.is_tail(),
            awaits_data: self.stream.awaits_data(),
            batches: self.batches,
            returned: self.returned,
            used_by: None,
        }
    }
}

/// The core whose table has the cursor, if its id can be one of this node.
pub fn core_of(id: i64) -> Option<CoreId> {
    let core = (id & ((1 << CORE_BITS) - 1)) as u16;
    (id > 0 && usize::from(core) < pinion_runtime::core_count()).then_some(CoreId(core))
}

/// The error for a cursor that is not there.
pub fn not_found(id: i64) -> Error {
    Error::new(
        ErrorCode::CURSOR_NOT_FOUND,
        format!("cursor id {id} not found"),
    )
}

/// This core's cursors.
pub fn cursors() -> Rc<CursorTable> {
    pinion_runtime::core_local()
}

impl Default for CursorTable {
    fn default() -> CursorTable {
        CursorTable {
            slots: RefCell::default(),
            rng: RefCell::new(pinion_runtime::random_stream("cursors")),
        }
    }
}

impl CursorTable {
    /// Keeps a cursor and names it.
    pub fn insert(&self, cursor: Cursor) -> Result<i64> {
        let mut slots = self.slots.borrow_mut();
        if slots.len() >= MAX_CURSORS {
            return Err(Error::new(
                ErrorCode::EXCEEDED_MEMORY_LIMIT,
                format!("too many open cursors: {MAX_CURSORS}"),
            ));
        }
        let core = i64::from(pinion_runtime::core_id().0);
        assert!(core < 1 << CORE_BITS, "core ids fit into cursor ids");
        loop {
            let random = (self.rng.borrow_mut().next_u64() >> 1) as i64;
            let id = (random & !((1 << CORE_BITS) - 1)) | core;
            // The low bits alone would make a small number, which reads like no cursor.
            if id >> CORE_BITS != 0 && !slots.contains_key(&id) {
                slots.insert(id, Slot::Idle(Box::new(cursor)));
                metrics().counters.cursors_opened.inc();
                return Ok(id);
            }
        }
    }

    /// Takes a cursor out for one `getMore`. Until it comes back it can be killed through the
    /// operation's flag.
    pub fn check_out(&self, id: i64, ns: &Namespace, ctx: &OpContext) -> Result<Box<Cursor>> {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(&id).ok_or_else(|| not_found(id))?;
        let Slot::Idle(cursor) = slot else {
            return Err(Error::new(
                ErrorCode::CURSOR_IN_USE,
                format!("cursor id {id} is already in use"),
            ));
        };
        if cursor.ns != *ns {
            return Err(Error::new(
                ErrorCode::UNAUTHORIZED,
                format!(
                    "Requested getMore on namespace '{ns}', but cursor belongs to a different namespace {}",
                    cursor.ns
                ),
            ));
        }
        check_session(id, cursor.session.as_ref(), ctx.args.lsid.as_ref())?;
        let asked = ctx.args.txn_number.filter(|_| is_in(ctx));
        check_transaction(id, cursor.transaction, asked)?;
        let pinned = Box::new(Pinned {
            session: cursor.session,
            transaction: cursor.transaction,
            op: ctx.clone(),
            shown: ShownCursor {
                last_used_ms: pinion_runtime::wall_ms(),
                used_by: Some(ctx.op_id),
                ..cursor.shown(id)
            },
        });
        match std::mem::replace(slot, Slot::Pinned(pinned)) {
            Slot::Idle(cursor) => Ok(cursor),
            Slot::Pinned(_) => unreachable!("matched above"),
        }
    }

    /// Puts a cursor back after a `getMore` that left something to read.
    pub fn check_in(&self, id: i64, cursor: Box<Cursor>) {
        let mut slots = self.slots.borrow_mut();
        // A cursor that was killed meanwhile has no slot any more and is dropped here.
        if let Some(slot) = slots.get_mut(&id) {
            *slot = Slot::Idle(cursor);
        }
    }

    /// Forgets a cursor that is exhausted or failed.
    pub fn forget(&self, id: i64) {
        let removed = self.slots.borrow_mut().remove(&id);
        // Dropping a stream closes its parts; that must not happen under the borrow.
        drop(removed);
    }

    /// Kills a cursor; false if there is none.
    pub fn kill(&self, id: i64) -> bool {
        let removed = self.slots.borrow_mut().remove(&id);
        match removed {
            Some(Slot::Pinned(pinned)) => {
                pinned.op.kill(ErrorCode::CURSOR_KILLED);
                true
            }
            Some(Slot::Idle(_)) => true,
            None => false,
        }
    }

    fn kill_where(&self, mut doomed: impl FnMut(&Slot) -> bool) -> u64 {
        let ids: Vec<i64> = {
            let slots = self.slots.borrow();
            let mut ids: Vec<i64> = slots
                .iter()
                .filter(|(_, slot)| doomed(slot))
                .map(|(id, _)| *id)
                .collect();
            ids.sort_unstable();
            ids
        };
        ids.into_iter().filter(|id| self.kill(*id)).count() as u64
    }

    /// Kills all cursors.
    pub fn kill_all(&self) {
        self.kill_where(|_| true);
    }

    /// Kills the cursors of a session, and of its children.
    pub fn kill_session(&self, session: &Lsid) -> u64 {
        self.kill_where(|slot| {
            let owner = match slot {
                Slot::Idle(cursor) => &cursor.session,
                Slot::Pinned(pinned) => &pinned.session,
            };
            owner.is_some_and(|owner| is_of_session(&owner, session))
        })
    }

    /// Kills the cursors of a transaction.
    pub fn kill_transaction(&self, session: &Lsid, number: i64) -> u64 {
        self.kill_where(|slot| {
            let (owner, transaction) = match slot {
                Slot::Idle(cursor) => (&cursor.session, cursor.transaction),
                Slot::Pinned(pinned) => (&pinned.session, pinned.transaction),
            };
            let is_of = |owner: Lsid| owner.id == session.id && owner.child == session.child;
            transaction == Some(number) && owner.is_some_and(is_of)
        })
    }

    /// Kills the idle cursors not used since `before`.
    pub fn reap(&self, before: Instant) -> u64 {
        self.kill_where(|slot| match slot {
            Slot::Idle(cursor) => !cursor.no_timeout && cursor.last_used < before,
            Slot::Pinned(_) => false,
        })
    }

    /// Counts for `serverStatus`.
    pub fn counts(&self) -> CursorCounts {
        let mut counts = CursorCounts::default();
        for slot in self.slots.borrow().values() {
            counts.open += 1;
            match slot {
                Slot::Idle(cursor) => counts.no_timeout += u64::from(cursor.no_timeout),
                Slot::Pinned(_) => counts.pinned += 1,
            }
        }
        counts
    }

    /// The cursors that a `getMore` has and, where `idle` asks for them, the others too, by id.
    pub fn shown(&self, idle: bool) -> Vec<ShownCursor> {
        let slots = self.slots.borrow();
        let shown = slots.iter().filter_map(|(id, slot)| match slot {
            Slot::Idle(cursor) => idle.then(|| cursor.shown(*id)),
            Slot::Pinned(pinned) => Some(pinned.shown.clone()),
        });
        let mut list: Vec<ShownCursor> = shown.collect();
        list.sort_by_key(|cursor| cursor.id);
        list
    }
}

/// A session as messages show it.
fn show(lsid: &Lsid) -> Uuid {
    Uuid::from_bytes(lsid.id)
}

fn check_session(id: i64, owner: Option<&Lsid>, user: Option<&Lsid>) -> Result<()> {
    match (owner, user) {
        (None, Some(user)) => Err(Error::new(
            ErrorCode(50736),
            format!(
                "Cannot run getMore on cursor {id}, which was not created in a session, in session {}",
                show(user)
            ),
        )),
        (Some(owner), None) => Err(Error::new(
            ErrorCode(50737),
            format!(
                "Cannot run getMore on cursor {id}, which was created in session {}, without an lsid",
                show(owner)
            ),
        )),
        (Some(owner), Some(user)) if owner != user => Err(Error::new(
            ErrorCode(50738),
            format!(
                "Cannot run getMore on cursor {id}, which was created in session {}, in session {}",
                show(owner),
                show(user)
            ),
        )),
        _ => Ok(()),
    }
}

fn check_transaction(id: i64, made_in: Option<i64>, asked_in: Option<i64>) -> Result<()> {
    let (code, what) = match (made_in, asked_in) {
        (None, Some(asked)) => (
            50739,
            format!("was not created in a transaction, in transaction {asked}"),
        ),
        (Some(made), None) => (
            50740,
            format!("was created in transaction {made}, without a txnNumber"),
        ),
        (Some(made), Some(asked)) if made != asked => (
            50741,
            format!("was created in transaction {made}, in transaction {asked}"),
        ),
        _ => return Ok(()),
    };
    Err(Error::new(
        ErrorCode(code),
        format!("Cannot run getMore on cursor {id}, which {what}"),
    ))
}

/// One batch of documents, and whether anything follows.
pub struct Filled {
    pub documents: Vec<Bytes>,
    pub exhausted: bool,
}

/// Reads one batch: at most `max_documents`, at most 16 MiB, at least one document if there is one.
pub async fn fill(
    stream: &mut impl Documents,
    stash: &mut Option<Bytes>,
    ctx: &OpContext,
    max_documents: usize,
) -> Result<Filled> {
    let filled = fill_up_to(stream, stash, ctx, max_documents).await?;
    ctx.work().returned(filled.documents.len() as u64);
    Ok(filled)
}

async fn fill_up_to(
    stream: &mut impl Documents,
    stash: &mut Option<Bytes>,
    ctx: &OpContext,
    max_documents: usize,
) -> Result<Filled> {
    let mut documents: Vec<Bytes> = Vec::new();
    let mut bytes = 0;
    loop {
        if documents.len() >= max_documents {
            let exhausted = stash.is_none() && stream.is_eof();
            return Ok(Filled {
                documents,
                exhausted,
            });
        }
        let next = match stash.take() {
            Some(document) => Some(document),
            None => stream.next(ctx, max_documents - documents.len()).await?,
        };
        let Some(document) = next else {
            return Ok(Filled {
                documents,
                exhausted: !stream.is_tail() || stream.is_eof(),
            });
        };
        check_size(&document)?;
        // Beside its bytes a document costs its index as a name, its type and a terminator.
        let cost = document.len() + 8;
        if !documents.is_empty() && bytes + cost > MAX_BATCH_BYTES {
            *stash = Some(document);
            return Ok(Filled {
                documents,
                exhausted: false,
            });
        }
        bytes += cost;
        documents.push(document);
    }
}

/// Refuses a document that no message can hold. What stages and projections make may be larger
/// before it leaves.
fn check_size(document: &Bytes) -> Result<()> {
    let size = document.len();
    if size <= MAX_INTERNAL_DOCUMENT_BYTES {
        return Ok(());
    }
    let read = RawDocument::from_bytes(document).expect("a document of a stream");
    let first = pinion_bson::elements(read).next();
    let first = first.map_or(String::new(), |(name, value)| element_text(name, value));
    Err(Error::new(
        ErrorCode::BSON_OBJECT_TOO_LARGE,
        format!(
            "BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and \
             {MAX_INTERNAL_DOCUMENT_BYTES}(16MB) First element: {first}"
        ),
    ))
}
