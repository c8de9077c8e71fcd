//! A replica set that is none: the node is a member whose view, commit point and waits the test
//! sets.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{RawDocumentBuf, doc};
use pinion_clock::{OpTime, Term, Timestamp};
use pinion_exec::{CommitQuorum, LastWrite, ReplicaSet, SetView, Waiting, set_replica_set};
use pinion_runtime::sync::Notify;
use pinion_runtime::{Duration, Instant, core_local, on_all_cores, sleep, timeout, try_core_local};
use pinion_storage::storage;
use pinion_wire::idl::{GenericArguments, WriteConcern};
use pinion_wire::{Error, ErrorCode, MemberState, Reply, Result};

use crate::harness::Client;

/// What one core knows of the set.
pub struct FakeSet {
    view: RefCell<Arc<SetView>>,
    changed: Rc<Notify>,
    committed: RefCell<OpTime>,
    /// What a wait for a write concern comes to: an error with this code and text. Without one it
    /// is reached.
    refusal: RefCell<Option<(ErrorCode, &'static str)>>,
    /// This number of members has to be ready for a build of indexes.
    pub ready_needed: Cell<usize>,
    /// What the primary answers to the commands that it is sent; a code where it refuses.
    pub primary_refuses: Cell<Option<ErrorCode>>,
    /// Nothing more is committed.
    pub is_alone: Cell<bool>,
    /// No member could take over.
    pub refuses_to_leave: Cell<bool>,
    /// What it was asked for: one line a call.
    pub calls: RefCell<Vec<String>>,
}

impl ReplicaSet for FakeSet {
    fn view(&self) -> Arc<SetView> {
        self.view.borrow().clone()
    }

    fn wait_changed(&self, counter: i64) -> Waiting<()> {
        let (set, changed) = (core_local::<FakeSet>(), self.changed.clone());
        Box::pin(async move {
            while set.view().counter <= counter {
                changed.notified().await;
            }
        })
    }

    fn last_write(&self) -> LastWrite {
        LastWrite {
            op_time: of_term_1(Timestamp::new(9, 2)),
            wall_ms: 9000,
            majority_op_time: of_term_1(Timestamp::new(9, 1)),
            majority_wall_ms: 8000,
        }
    }

    fn commit_point(&self) -> OpTime {
        *self.committed.borrow()
    }

    /// The other members take in whatever is waited for, unless they are gone.
    fn wait_committed(&self, ts: Timestamp) -> Waiting<Result<()>> {
        self.call("committed");
        if self.is_alone.get() {
            return Box::pin(std::future::pending());
        }
        self.committed.replace(of_term_1(ts));
        Box::pin(std::future::ready(Ok(())))
    }

    fn wait_commit_beyond(&self, ts: Timestamp) -> Waiting<()> {
        let (set, changed) = (core_local::<FakeSet>(), self.changed.clone());
        Box::pin(async move {
            while set.commit_point().ts <= ts {
                changed.notified().await;
            }
        })
    }

    fn append_metadata(&self, _: &GenericArguments, _: &mut Reply) {}

    fn wait_write_concern(
        &self,
        ts: Timestamp,
        concern: &WriteConcern,
        deadline: Option<Instant>,
    ) -> Waiting<Result<()>> {
        assert!(ts <= storage().last_allotted());
        assert_eq!(deadline.is_some(), concern.timeout_ms > 0);
        self.call(&format!("{:?} j:{:?}", concern.w, concern.journal));
        let refusal = *self.refusal.borrow();
        Box::pin(async move {
            let Some((code, text)) = refusal else {
                return Ok(());
            };
            if let Some(deadline) = deadline {
                let left = deadline.saturating_since(pinion_runtime::now());
                sleep(left).await;
            }
            Err(Error::new(code, text))
        })
    }

    fn is_commit_quorum_met(&self, _: &CommitQuorum, ready: &[String]) -> bool {
        ready.len() >= self.ready_needed.get()
    }

    fn run_on_primary(&self, command: RawDocumentBuf) -> Waiting<Result<RawDocumentBuf>> {
        let first = pinion_bson::elements(&command).next();
        let (name, _) = first.expect("a command has a name");
        self.call(&format!("primary: {name}"));
        let refused = self.primary_refuses.get();
        Box::pin(async move {
            match refused {
                Some(code) => Err(Error::new(code, "refused")),
                None => Ok(RawDocumentBuf::new()),
            }
        })
    }

    fn leave(&self, limit: Duration, force: bool) -> Waiting<Result<()>> {
        self.call(&format!("leave {} {force}", limit.as_millis()));
        let refusal = self.refuses_to_leave.get();
        Box::pin(async move {
            match refusal && !force {
                true => Err(Error::new(ErrorCode::EXCEEDED_TIME_LIMIT, "nobody follows")),
                false => Ok(()),
            }
        })
    }

    fn write_noop(&self, why: &'static str) -> Waiting<Result<Timestamp>> {
        self.call(why);
        Box::pin(async {
            let noop = doc! { "insert": "noop", "documents": [{}], "writeConcern": { "w": 1 } };
            Client::new().ok(noop).await;
            Ok(storage().last_allotted())
        })
    }
}

impl FakeSet {
    fn call(&self, what: &str) {
        self.calls.borrow_mut().push(what.to_owned());
    }

    pub fn refuse(&self, refusal: Option<(ErrorCode, &'static str)>) {
        self.refusal.replace(refusal);
    }

    /// What it was asked for since this was last called.
    pub fn take_calls(&self) -> Vec<String> {
        self.calls.take()
    }
}

pub fn of_term_1(ts: Timestamp) -> OpTime {
    OpTime::new(ts, Term(1))
}

pub fn view(member: MemberState, writable: bool) -> SetView {
    SetView {
        set_name: "rs0".into(),
        state: member,
        writable,
        term: 1,
        config_version: 1,
        config_term: 1,
        counter: 1,
        hello: RawDocumentBuf::new(),
        modes: vec!["dc".into()],
        data_members: 3,
        voters: 3,
        write_majority: 2,
        default_is_majority: true,
        journal_default: true,
        quiesces_until_ms: None,
    }
}

/// Makes every core of the node a member in this state, which commits up to `committed`.
pub async fn become_member(member: MemberState, writable: bool, committed: OpTime) {
    become_with(view(member, writable), committed).await;
}

/// Makes every core of the node a member with this view.
pub async fn become_with(view: SetView, committed: OpTime) {
    on_all_cores(move |_| {
        let view = Arc::new(view.clone());
        async move {
            if let Some(fake) = try_core_local::<FakeSet>() {
                fake.view.replace(view);
                fake.committed.replace(committed);
                fake.changed.notify_all();
                return;
            }
            let fake = Rc::new(FakeSet {
                view: RefCell::new(view),
                changed: Rc::new(Notify::new()),
                committed: RefCell::new(committed),
                refusal: RefCell::default(),
                ready_needed: Cell::new(0),
                primary_refuses: Cell::new(None),
                is_alone: Cell::new(false),
                refuses_to_leave: Cell::new(false),
                calls: RefCell::default(),
            });
            pinion_runtime::set_core_local(fake.clone());
            set_replica_set(fake);
        }
    })
    .await;
}

/// The set as the core of the script sees it.
pub fn fake() -> Rc<FakeSet> {
    core_local::<FakeSet>()
}

/// Waits at most `ms` simulated milliseconds.
pub async fn within_ms<T>(ms: u64, future: impl Future<Output = T>) -> T {
    let waited = timeout(pinion_runtime::Duration::from_millis(ms), future).await;
    waited.unwrap_or_else(|_| panic!("not within {ms} ms"))
}
