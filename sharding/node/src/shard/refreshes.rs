//! Refreshes of one entry of the routing table, a database or a collection: one behind the other,
//! and each for all that asked before it started.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use pinion_runtime::sync::{Semaphore, oneshot};
use pinion_runtime::{CoreId, Queue, core_id, timeout};
use pinion_wire::{Error, ErrorCode, Result, interruption};

use crate::limits::REMOTE_COMMAND;
use crate::part::{any_part, part};

/// An entry that is refreshed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EntryKey {
    Database(String),
    Collection(String),
}

impl EntryKey {
    pub(crate) fn database(db: &str) -> EntryKey {
        EntryKey::Database(db.to_owned())
    }

    pub(super) fn collection(ns: &str) -> EntryKey {
        EntryKey::Collection(ns.to_owned())
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryKey::Database(db) => write!(f, "the database {db}"),
            EntryKey::Collection(ns) => write!(f, "the collection {ns}"),
        }
    }
}

/// The refreshes of one entry, as long as somebody asks for one.
pub(crate) struct Refreshes {
    turn: Semaphore,
    /// The number of the last one that has started.
    last: Cell<u64>,
    /// How that has ended.
    outcome: RefCell<Result<()>>,
    /// What was read since [`Refreshes::begin_reading`] may be older than what was forgotten.
    is_outdated: Cell<bool>,
}

impl Default for Refreshes {
    fn default() -> Refreshes {
        Refreshes {
            turn: Semaphore::new(1),
            last: Cell::new(0),
            outcome: RefCell::new(Ok(())),
            is_outdated: Cell::new(false),
        }
    }
}

impl Refreshes {
    pub(super) fn begin_reading(&self) {
        self.is_outdated.set(false);
    }

    pub(super) fn is_outdated(&self) -> bool {
        self.is_outdated.get()
    }
}

/// Whether an entry is being refreshed or changed, or somebody waits for that.
pub(super) fn is_under_way(key: &EntryKey) -> bool {
    part().core_0.refreshes.borrow().contains_key(key)
}

/// What has been read of these entries, and is not installed yet, may be old.
pub(super) fn outdate(concerns: impl Fn(&EntryKey) -> bool) {
    let part = part();
    for (key, refreshes) in &*part.core_0.refreshes.borrow() {
        if concerns(key) {
            refreshes.is_outdated.set(true);
        }
    }
}

/// A share in the refreshes of an entry, which are forgotten with the last one.
struct Entered {
    key: EntryKey,
    refreshes: Option<Rc<Refreshes>>,
}

impl Entered {
    fn new(key: &EntryKey) -> Entered {
        assert!(core_id() == CoreId(0), "entries are refreshed on core 0");
        let part = part();
        let mut all = part.core_0.refreshes.borrow_mut();
        Entered {
            key: key.clone(),
            refreshes: Some(all.entry(key.clone()).or_default().clone()),
        }
    }

    fn refreshes(&self) -> &Rc<Refreshes> {
        self.refreshes
            .as_ref()
            .expect("it is left at the end alone")
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        drop(self.refreshes.take());
        let Some(part) = any_part() else {
            return;
        };
        let mut all = part.core_0.refreshes.borrow_mut();
        if (all.get(&self.key)).is_some_and(|refreshes| Rc::strong_count(refreshes) == 1) {
            all.remove(&self.key);
        }
    }
}

/// Runs a refresh of an entry, unless `is_enough` finds what others have meanwhile learned
/// sufficient, or one that started since has ended: its outcome is this one's too. It comes to its
/// end although the caller is dropped. Called on core 0.
///
/// # Errors
/// Those of the refresh; `ExceededTimeLimit` where the one before does not end.
pub(super) async fn shared<R>(
    key: EntryKey,
    is_enough: impl Fn() -> bool,
    refresh: impl FnOnce(Rc<Refreshes>) -> R,
) -> Result<()>
where
    R: Future<Output = Result<()>> + 'static,
{
    let entered = Entered::new(&key);
    let refreshes = entered.refreshes().clone();
    let before = refreshes.last.get();
    let turn = refreshes.turn.acquire();
    let Ok(turn) = timeout(REMOTE_COMMAND, turn).await else {
        return Err(Error::new(
            ErrorCode::EXCEEDED_TIME_LIMIT,
            format!("{key} is being refreshed or dropped for too long"),
        ));
    };
    if is_enough() {
        return Ok(());
    }
    if refreshes.last.get() > before {
        return refreshes.outcome.borrow().clone();
    }
    refreshes.last.set(before + 1);
    // Of one that ends with the node.
    let stopped = || interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN);
    *refreshes.outcome.borrow_mut() = Err(stopped());
    let refresh = refresh(refreshes.clone());
    let (sender, receiver) = oneshot();
    part().core_0.begin_on(Queue::Foreground, async move {
        let outcome = refresh.await;
        *refreshes.outcome.borrow_mut() = outcome.clone();
        drop(turn);
        drop(refreshes);
        drop(entered);
        // Without a receiver the caller was dropped.
        let _ = sender.send(outcome);
    });
    receiver.await.unwrap_or_else(|_| Err(stopped()))
}

/// Runs something that changes what is known of an entry while no refresh of it is under way.
/// Called on core 0.
///
/// # Errors
/// Its own.
pub(crate) async fn exclusively<T>(
    key: &EntryKey,
    change: impl Future<Output = Result<T>>,
) -> Result<T> {
    let entered = Entered::new(key);
    let _turn = entered.refreshes().turn.acquire().await;
    change.await
}

#[cfg(test)]
mod tests {
    use pinion_runtime::sim::{Sim, SimOptions};
    use pinion_runtime::{Duration, Queue, join_all, sleep, spawn};
    use pinion_service::node_info::ClusterRole;

    use super::*;
    use crate::part::Part;
    use crate::planted::PlantedFault;

    /// Asks for a refresh after a pause; it takes 10 ms and fails with its number as the code.
    async fn ask(after_ms: u64, runs: Rc<Cell<i32>>) -> i32 {
        sleep(Duration::from_millis(after_ms)).await;
        let outcome = shared(
            EntryKey::database("d"),
            || false,
            |_| async move {
                runs.set(runs.get() + 1);
                let number = runs.get();
                sleep(Duration::from_millis(10)).await;
                Err(Error::new(ErrorCode(number), "refused"))
            },
        );
        outcome.await.expect_err("all fail").code.0
    }

    #[test]
    fn who_asks_is_answered_by_what_begins_afterwards() {
        let sim = Sim::new(1, SimOptions::default());
        let ended = Rc::new(Cell::new(false));
        let end = ended.clone();
        sim.add_node("node", 1, move |_| {
            let end = end.clone();
            Box::pin(async move {
                pinion_runtime::set_core_local(Rc::new(Part::new(
                    ClusterRole::Shard,
                    PlantedFault::None,
                )));
                let runs = Rc::new(Cell::new(0));
                // The second and those behind it ask while the first refresh is under way.
                let asking = [0, 2, 3, 4, 5, 15].map(|at| ask(at, runs.clone()));
                assert_eq!(join_all(asking).await, [1, 2, 2, 2, 2, 3]);
                assert!(part().core_0.refreshes.borrow().is_empty());
                // One whose caller is dropped comes to its end.
                let dropped = spawn(Queue::Foreground, ask(0, runs.clone()));
                sleep(Duration::from_millis(5)).await;
                let behind = spawn(Queue::Foreground, ask(0, runs.clone()));
                sleep(Duration::from_millis(1)).await;
                dropped.abort();
                assert_eq!(behind.await.ok(), Some(5));
                let enough = shared(
                    EntryKey::database("d"),
                    || true,
                    |_| async { panic!("it is not asked for") },
                );
                assert!(enough.await.is_ok());
                assert!(part().core_0.refreshes.borrow().is_empty());
                end.set(true);
            })
        });
        assert!(sim.run_until(move || ended.get()).is_ok());
    }
}
