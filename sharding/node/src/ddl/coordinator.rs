//! The run of a definition, from its locks to its outcome.

use std::rc::Rc;

use pinion_bson::{RawDocument, RawDocumentBuf, compare_documents};
use pinion_exec::user_write_block::check_cluster_definition;
use pinion_runtime::{Instant, now, sleep, timeout_at};
use pinion_sharding_protocol::DatabaseVersion;
use pinion_sharding_protocol::ddl::{
    DdlDocument, DdlId, DdlMachine, Effect, Input, LockId, LockScope, OperationKind, Outcome,
    RenameRequest,
};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use super::leadership::{Leadership, Running, lead};
use super::perform::{perform, remove, store};
use crate::limits::{DDL_LOCK_WAIT, MAX_DEFINITIONS, RETRY_PAUSE};
use crate::part::{any_part, part};
use crate::planted::PlantedFault;
use crate::shard::check_database;

/// A definition that is asked for.
#[derive(Clone)]
pub(super) struct DdlRequest {
    pub(super) id: DdlId,
    pub(super) database_version: DatabaseVersion,
    pub(super) request: RawDocumentBuf,
    /// Until when its locks are waited for.
    pub(super) deadline: Option<Instant>,
}

/// A definition that an earlier primary has left.
pub(super) struct Left {
    pub(super) machine: DdlMachine,
    pub(super) document: DdlDocument,
}

/// Runs a definition, or waits for the outcome of the same one that runs. It comes to its end
/// although no caller waits. Called on core 0.
///
/// # Errors
/// `ConflictingOperationInProgress` where another one of its kind runs there; `LockBusy`;
/// `StaleDbVersion`; `UserWritesBlocked`; those of the operation; the node is no primary, or not
/// any more.
pub(super) async fn run(asked: DdlRequest) -> Result<RawDocumentBuf> {
    let part = part();
    let definitions = &part.core_0.definitions;
    let leadership = lead().await?;
    let running = loop {
        match found(&leadership, &asked)? {
            Found::Same(running) => break running,
            Found::None => break start(&leadership, asked)?,
            Found::Earlier(running) => {
                let ended = || running.outcome.borrow().is_some().then_some(());
                let waited = timeout_at(asked.latest(), definitions.until(ended));
                let waited = leadership.unless_over(waited).await?;
                waited.map_err(|_| lock_busy(&asked.id.namespace))?;
            }
        }
    };
    let ended = definitions.until(|| running.outcome.borrow().clone());
    leadership.unless_over(ended).await?
}

/// What runs under the id of a definition.
enum Found {
    None,
    /// The same one.
    Same(Rc<Running>),
    /// One that is waited for: of another life of the database, which is about to end, or another
    /// one of a kind that follow each other.
    Earlier(Rc<Running>),
}

fn found(leadership: &Leadership, asked: &DdlRequest) -> Result<Found> {
    let running = leadership.running.borrow();
    match running.get(&asked.id) {
        None => Ok(Found::None),
        Some(running) if running.database_version != asked.database_version => {
            Ok(Found::Earlier(running.clone()))
        }
        Some(running) if compare_documents(&running.request, &asked.request).is_eq() => {
            Ok(Found::Same(running.clone()))
        }
        // Clients drop several indexes at the same time.
        Some(running) if asked.id.kind == OperationKind::DropIndexes => {
            Ok(Found::Earlier(running.clone()))
        }
        Some(_) => Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!("another {} with different options runs", asked.id),
        )),
    }
}

impl DdlRequest {
    /// Until when it waits for others.
    fn latest(&self) -> Instant {
        latest(self.deadline)
    }
}

fn latest(deadline: Option<Instant>) -> Instant {
    let latest = now() + DDL_LOCK_WAIT;
    deadline.map_or(latest, |deadline| deadline.min(latest))
}

fn lock_busy(namespace: &str) -> Error {
    Error::new(
        ErrorCode::LOCK_BUSY,
        format!(
            "Failed to acquire DDL lock for namespace '{namespace}' in time: other definitions of it, or of its database, run"
        ),
    )
}

fn too_many() -> Error {
    Error::new(
        ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
        format!("{MAX_DEFINITIONS} definitions run on this shard"),
    )
}

fn register(
    leadership: &Leadership,
    id: &DdlId,
    database_version: DatabaseVersion,
    request: &RawDocumentBuf,
) -> Result<Rc<Running>> {
    let mut all = leadership.running.borrow_mut();
    if all.len() >= MAX_DEFINITIONS {
        return Err(too_many());
    }
    let running = Rc::new(Running {
        request: request.clone(),
        database_version,
        outcome: Default::default(),
    });
    all.insert(id.clone(), running.clone());
    Ok(running)
}

fn scope(id: &DdlId, request: &RawDocument) -> Result<LockScope> {
    Ok(match id.kind {
        OperationKind::DropDatabase | OperationKind::MovePrimary => {
            LockScope::Database(id.namespace.clone())
        }
        OperationKind::RenameCollection => {
            let from = Namespace::parse_sought(&id.namespace)?;
            LockScope::Collections([from, RenameRequest::parse(request)?.to])
        }
        OperationKind::CreateCollection
        | OperationKind::DropCollection
        | OperationKind::RefineShardKey
        | OperationKind::SetAllowMigrations
        | OperationKind::CollMod
        | OperationKind::DropIndexes => LockScope::Collection {
            db: id.db().to_owned(),
            ns: id.namespace.clone(),
        },
    })
}

fn start(leadership: &Rc<Leadership>, asked: DdlRequest) -> Result<Rc<Running>> {
    check_cluster_definition(asked.id.db())?;
    let scope = scope(&asked.id, &asked.request)?;
    let running = register(
        leadership,
        &asked.id,
        asked.database_version,
        &asked.request,
    )?;
    let lock = leadership.locks.borrow_mut().request(scope);
    let leadership = leadership.clone();
    part().core_0.begin(async move {
        let id = asked.id.clone();
        let work = async {
            wait_for_locks(&leadership, lock, &asked).await?;
            let version = asked.database_version.to_sent();
            // It may have been dropped while the locks were waited for.
            check_database(&part(), id.db(), &version)?;
            let made = DdlMachine::new(asked.id, asked.database_version, asked.request)?;
            drive(&leadership, made).await
        };
        let outcome = leadership.unless_over(work).await;
        end(&leadership, &id, lock, outcome.and_then(|outcome| outcome));
    });
    Ok(running)
}

/// Resumes a definition of which a document is left. Called before any other is started.
///
/// # Errors
/// There are too many.
pub(super) fn resume(leadership: &Rc<Leadership>, left: Left) -> Result<()> {
    let Left { machine, document } = left;
    let id = machine.id().clone();
    let scope = scope(&id, &document.request)?;
    register(
        leadership,
        &id,
        document.database_version,
        &document.request,
    )?;
    let lock = leadership.locks.borrow_mut().request(scope);
    let leadership = leadership.clone();
    tracing::info!(target: "SHARDING", id = 7_500_020u64, definition = %id, "A definition of the cluster is resumed");
    part().core_0.begin(async move {
        let part = part();
        let definitions = &part.core_0.definitions;
        let work = async {
            // Their locks were held together, so none waits for another.
            let holds = || leadership.locks.borrow().holds(lock).then_some(());
            definitions.until(holds).await;
            drive(&leadership, machine).await
        };
        let outcome = leadership.unless_over(work).await;
        end(&leadership, &id, lock, outcome.and_then(|outcome| outcome));
    });
    Ok(())
}

async fn wait_for_locks(leadership: &Leadership, lock: LockId, asked: &DdlRequest) -> Result<()> {
    let part = part();
    let definitions = &part.core_0.definitions;
    let holds = || leadership.locks.borrow().holds(lock).then_some(());
    let waited = timeout_at(asked.latest(), definitions.until(holds)).await;
    waited.map_err(|_| lock_busy(&asked.id.namespace))
}

/// A definition of this shard alone, which a change of the catalog is as a whole: nothing is kept
/// of it.
pub(super) struct LocalDefinition {
    pub(super) ns: Namespace,
    /// Another collection that it concerns.
    pub(super) to: Option<Namespace>,
    pub(super) database_version: DatabaseVersion,
    /// Until when its locks are waited for.
    pub(super) deadline: Option<Instant>,
}

/// Does something while no definition of these collections runs on this shard. Called on core 0.
///
/// # Errors
/// `LockBusy`; `StaleDbVersion`; those of the work; the node is no primary, or not any more.
pub(super) async fn locked<T>(
    asked: LocalDefinition,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let leadership = lead().await?;
    if leadership.locks.borrow().len() >= MAX_DEFINITIONS {
        return Err(too_many());
    }
    let scope = match asked.to {
        Some(to) => LockScope::Collections([asked.ns.clone(), to]),
        None => LockScope::Collection {
            db: asked.ns.db().to_owned(),
            ns: asked.ns.to_string(),
        },
    };
    let held = Locked {
        lock: leadership.locks.borrow_mut().request(scope),
        leadership: &leadership,
    };
    let work = async {
        let part = part();
        let definitions = &part.core_0.definitions;
        let holds = || leadership.locks.borrow().holds(held.lock).then_some(());
        let waited = timeout_at(latest(asked.deadline), definitions.until(holds)).await;
        waited.map_err(|_| lock_busy(asked.ns.as_str()))?;
        check_database(&part, asked.ns.db(), &asked.database_version.to_sent())?;
        work.await
    };
    leadership.unless_over(work).await?
}

/// Whether a definition with this id runs.
pub(super) fn is_running(id: &DdlId) -> bool {
    let current = part().core_0.definitions.current();
    current.is_ok_and(|leadership| leadership.running.borrow().contains_key(id))
}

/// Waits while indexes of a collection are being dropped by this shard and others. Called on core
/// 0.
pub(crate) async fn until_indexes_are_dropped(ns: &Namespace) {
    let id = DdlId {
        namespace: ns.to_string(),
        kind: OperationKind::DropIndexes,
    };
    let part = part();
    let is_over = || (!is_running(&id) || part.core_0.is_stopping()).then_some(());
    part.core_0.definitions.until(is_over).await;
}

/// Locks that are released at the end of the work.
struct Locked<'a> {
    leadership: &'a Leadership,
    lock: LockId,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.leadership.locks.borrow_mut().release(self.lock);
        if let Some(part) = any_part() {
            part.core_0.definitions.notify();
        }
    }
}

/// Performs what the machine asks for, to its end.
async fn drive(leadership: &Leadership, mut machine: DdlMachine) -> Result<RawDocumentBuf> {
    let mut input = Input::Start;
    let mut is_stored = false;
    loop {
        let effect = machine.step(input);
        let done = match effect {
            Effect::End(outcome) => return outcome,
            Effect::Pause(error) => {
                tracing::info!(target: "SHARDING", id = 7_500_021u64, definition = %machine.id(), error = %error, "A step of a definition of the cluster has failed; it is tried again");
                sleep(RETRY_PAUSE).await;
                input = Input::Waited;
                continue;
            }
            Effect::Store(_) if is_stored && skips_phases() => Ok(Outcome::Done),
            Effect::Store(document) => {
                is_stored = true;
                store(&document).await
            }
            Effect::Remove(id) => remove(&id).await,
            Effect::Perform(action) => perform(leadership, &action).await,
        };
        input = match done {
            Ok(outcome) => Input::Done(outcome),
            Err(error) => Input::Failed(error),
        };
    }
}

fn skips_phases() -> bool {
    part().planted_fault == PlantedFault::PhaseNotCheckpointed
}

/// Releases the locks, and gives the outcome.
fn end(leadership: &Leadership, id: &DdlId, lock: LockId, outcome: Result<RawDocumentBuf>) {
    let part = part();
    if part.planted_fault != PlantedFault::LockLeaked {
        leadership.locks.borrow_mut().release(lock);
    }
    let ended = leadership.running.borrow_mut().remove(id);
    if let Some(ended) = ended {
        ended.outcome.replace(Some(outcome));
    }
    part.core_0.definitions.notify();
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use pinion_bson::{Uuid, rawdoc};
    use pinion_clock::Timestamp;
    use pinion_runtime::sim::{Sim, SimOptions};
    use pinion_runtime::{Duration, Queue, spawn, yield_now};
    use pinion_sharding_protocol::documents::DatabaseDocument;

    use super::*;
    use crate::part::install_database;
    use crate::testing::{become_shard, start_part};

    fn version() -> DatabaseVersion {
        DatabaseVersion::first(Uuid::from_bytes([5; 16]), Timestamp::new(5, 1))
    }

    /// The primary shard of the database `d`.
    async fn shard() {
        start_part();
        become_shard().await;
        let database = DatabaseDocument::new("d", "s1".into(), version());
        install_database("d", Some(database)).await;
    }

    fn ask(kind: OperationKind, namespace: &str, request: RawDocumentBuf) -> DdlRequest {
        DdlRequest {
            id: DdlId {
                namespace: namespace.to_owned(),
                kind,
            },
            database_version: version(),
            request,
            deadline: Some(now() + Duration::from_secs(1)),
        }
    }

    async fn code(asked: DdlRequest) -> i32 {
        run(asked).await.map_or_else(|error| error.code.0, |_| 0)
    }

    /// Its document is never stored: the node serves no clients.
    fn drop_of_d(request: RawDocumentBuf) -> DdlRequest {
        ask(OperationKind::DropDatabase, "d", request)
    }

    #[test]
    fn who_waits_joins_and_is_refused() {
        let sim = Sim::new(1, SimOptions::default());
        let ended = Rc::new(Cell::new(false));
        let end = ended.clone();
        sim.add_node("node", 1, move |_| {
            let end = end.clone();
            Box::pin(async move {
                shard().await;
                let definitions = &part().core_0.definitions;
                let nothing = RawDocumentBuf::new;
                assert_eq!(code(drop_of_d(nothing())).await, 10_107);
                let leadership = Rc::new(Leadership::default());
                definitions.replace(Some(leadership.clone()));
                let first = spawn(Queue::Foreground, code(drop_of_d(nothing())));
                yield_now().await;
                // What an earlier primary has left comes first.
                assert!(leadership.running.borrow().is_empty());
                leadership.is_resumed.set(true);
                definitions.notify();
                yield_now().await;
                let joined = spawn(Queue::Foreground, code(drop_of_d(nothing())));
                yield_now().await;
                assert_eq!(leadership.running.borrow().len(), 1);
                assert_eq!(code(drop_of_d(rawdoc! { "x": 1 })).await, 117);
                let collection = |name| ask(OperationKind::DropCollection, name, nothing());
                assert_eq!(code(collection("d.c")).await, 46);
                // The place of the other database is not known here.
                assert_eq!(code(collection("e.c")).await, 249);
                assert_eq!(leadership.running.borrow().len(), 1);
                assert!(!first.is_finished() && !joined.is_finished());
                definitions.replace(None);
                assert_eq!(
                    (first.await.ok(), joined.await.ok()),
                    (Some(11_602), Some(11_602))
                );
                end.set(true);
            })
        });
        assert!(sim.run_until(move || ended.get()).is_ok());
    }
}
