//! What a shard does that is to become the primary of a database: `_shardsvrCloneCatalogData`, and
//! `_shardsvrMovePrimaryAbort`.
//!
//! A clone is a task of the shard's primary, which the donor asks for again and again until it is
//! done. It is written to the set as it goes: a new primary starts again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_bson::Uuid;
use pinion_runtime::sync::Semaphore;
use pinion_runtime::timeout;
use pinion_sharding_protocol::ShardId;
use pinion_sharding_protocol::ddl::{DdlDocument, MoveMessage, OperationKind};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result, interruption};

use super::block::stored;
use super::copy::{Copy, forget};
use super::leadership::{Leadership, lead};
use super::participants::finish;
use crate::limits::CLONE_REPORT;
use crate::part::{on_core_0, part};
use crate::shard::membership;

/// The clones of a primary.
pub(super) struct Clones {
    /// One message after the other.
    turn: Semaphore,
    /// Of each database the last one.
    known: RefCell<BTreeMap<String, Rc<Cloning>>>,
}

impl Default for Clones {
    fn default() -> Clones {
        Clones {
            turn: Semaphore::new(1),
            known: RefCell::default(),
        }
    }
}

/// A clone that runs, or has ended.
pub(super) struct Cloning {
    attempt: Uuid,
    is_cancelled: Cell<bool>,
    outcome: RefCell<Option<Result<()>>>,
}

impl Cloning {
    /// Whether it is to end without an outcome that is of use.
    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.get()
    }

    async fn ended(&self) -> Result<()> {
        let ended = || self.outcome.borrow().clone();
        part().core_0.definitions.until(ended).await
    }

    async fn cancel(&self) {
        self.is_cancelled.set(true);
        part().core_0.definitions.notify();
        // What became of it is of no interest.
        drop(self.ended().await);
    }
}

/// The message of a command.
fn message_of(cmd: &Invocation) -> Result<(MoveMessage, ShardId)> {
    membership(&part())?;
    let reader = cmd.reader()?;
    let parsed = MoveMessage::parse(cmd.body())?;
    reader.ignore(&[cmd.name()]);
    reader.ignore(MoveMessage::fields());
    reader.finish()?;
    let reason = &parsed.0.reason;
    if reason.kind != OperationKind::MovePrimary || reason.namespace != cmd.db() {
        return Err(Error::bad_value(format!(
            "'reason' is {reason}, and no move of {}",
            cmd.db()
        )));
    }
    Ok(parsed)
}

/// `_shardsvrCloneCatalogData: 1, reason, attempt, phase, from` -> `done`: whether all of the
/// database is here, and a majority has it.
pub(crate) async fn clone_catalog_data(cmd: Invocation) -> Result<Reply> {
    let (message, from) = message_of(&cmd)?;
    let done = on_core_0(&cmd.ctx, move || clone(message, from)).await?;
    let mut out = finish(&cmd).await?;
    out.append("done", done);
    Ok(out)
}

/// `_shardsvrMovePrimaryAbort: 1, reason, attempt, phase, from`.
pub(crate) async fn move_primary_abort(cmd: Invocation) -> Result<Reply> {
    let (message, from) = message_of(&cmd)?;
    on_core_0(&cmd.ctx, move || abort(message, from)).await?;
    finish(&cmd).await
}

async fn clone(message: MoveMessage, from: ShardId) -> Result<bool> {
    let leadership = lead().await?;
    let work = async {
        let db = message.reason.db().to_owned();
        let clones = &leadership.clones;
        let cloning = {
            let _turn = clones.turn.acquire().await;
            check(&message, &from).await?;
            let known = clones.known.borrow().get(&db).cloned();
            match known {
                Some(known) if known.attempt == message.attempt => known,
                earlier => {
                    if let Some(earlier) = earlier {
                        earlier.cancel().await;
                    }
                    start(&leadership, &message, from)
                }
            }
        };
        match timeout(CLONE_REPORT, cloning.ended()).await {
            Err(_) => Ok(false),
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) => {
                // The next message starts another one.
                let mut known = clones.known.borrow_mut();
                if known
                    .get(&db)
                    .is_some_and(|known| Rc::ptr_eq(known, &cloning))
                {
                    known.remove(&db);
                }
                Err(error)
            }
        }
    };
    leadership.unless_over(work).await?
}

fn start(leadership: &Rc<Leadership>, message: &MoveMessage, from: ShardId) -> Rc<Cloning> {
    let cloning = Rc::new(Cloning {
        attempt: message.attempt,
        is_cancelled: Cell::new(false),
        outcome: RefCell::default(),
    });
    let db = message.reason.db().to_owned();
    let mut known = leadership.clones.known.borrow_mut();
    known.insert(db.clone(), cloning.clone());
    let (leadership, task) = (leadership.clone(), cloning.clone());
    part().core_0.begin(async move {
        let ended = Ended(task.clone());
        let copy = Copy {
            leadership: &leadership,
            cloning: &task,
            db: &db,
        };
        let outcome = copy.run(&from).await;
        match &outcome {
            Ok(()) => {
                tracing::info!(target: "SHARDING", id = 7_500_030u64, db, from = %from, "The database was copied from its primary shard");
            }
            Err(error) => {
                tracing::warn!(target: "SHARDING", id = 7_500_031u64, db, from = %from, error = %error, "The database could not be copied from its primary shard");
            }
        }
        task.outcome.replace(Some(outcome));
        drop(ended);
    });
    cloning
}

/// Gives a clone an outcome, however it ends.
struct Ended(Rc<Cloning>);

impl Drop for Ended {
    fn drop(&mut self) {
        let stopped = || Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN));
        self.0.outcome.borrow_mut().get_or_insert_with(stopped);
        if let Some(part) = crate::part::any_part() {
            part.core_0.definitions.notify();
        }
    }
}

async fn abort(message: MoveMessage, from: ShardId) -> Result<()> {
    let leadership = lead().await?;
    let work = async {
        let _turn = leadership.clones.turn.acquire().await;
        check(&message, &from).await?;
        let db = message.reason.db();
        let known = leadership.clones.known.borrow_mut().remove(db);
        if let Some(known) = known {
            known.cancel().await;
        }
        forget(db, &from, &message.copies).await
    };
    leadership.unless_over(work).await?
}

/// Asks the donor whether it still is where it sent a message from.
///
/// # Errors
/// `ConflictingOperationInProgress` where it is not: the message is late. The donor does not
/// answer.
async fn check(message: &MoveMessage, from: &ShardId) -> Result<()> {
    let found = stored(&message.reason, from).await?;
    let is_of = |found: &DdlDocument| message.is_of(&found.phase, &found.state);
    match found.as_ref().is_some_and(is_of) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!(
                "a message of the phase {} of {} is late",
                message.phase, message.reason
            ),
        )),
    }
}
