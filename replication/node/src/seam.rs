//! What a core of a member reports to the executor: the copy that core 0 has last sent, and waiting
//! for one that says more.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pinion_apply::log_note;
use pinion_bson::RawDocumentBuf;
use pinion_clock::{OpTime, Timestamp};
use pinion_exec::{CommitQuorum, LastWrite, MemberFigures, ReplicaSet, SetView, Waiting};
use pinion_replication_protocol::config::HostPort;
use pinion_replication_protocol::decision::{Readiness, is_ready};
use pinion_replication_protocol::message::{OplogQueryMetadata, ReplSetMetadata};
use pinion_replication_protocol::node::Node;
use pinion_runtime::sync::Notify;
use pinion_runtime::{CoreId, Duration, Instant, Queue, on_all_cores, submit_to, timeout_at};
use pinion_service::connections::HostConnections;
use pinion_storage::storage;
use pinion_wire::idl::{GenericArguments, WriteConcern, WriteConcernW};
use pinion_wire::{Error, ErrorCode, Reply, Result};

use crate::commands::await_members;
use crate::driver::{Driver, driver};
use crate::limits::BUILD_VOTE;
use crate::peers::Peers;
use crate::topology_snapshot::TopologySnapshot;

/// One core's part of a member.
pub(crate) struct CoreTopology {
    snapshot: RefCell<Arc<TopologySnapshot>>,
    /// There is a new copy.
    replaced: Notify,
}

impl CoreTopology {
    pub(crate) fn new(snapshot: Arc<TopologySnapshot>) -> Rc<CoreTopology> {
        Rc::new(CoreTopology {
            snapshot: RefCell::new(snapshot),
            replaced: Notify::new(),
        })
    }

    pub(crate) fn snapshot(&self) -> Arc<TopologySnapshot> {
        self.snapshot.borrow().clone()
    }

    /// Takes over what core 0 has sent.
    pub(crate) fn replace(&self, snapshot: Arc<TopologySnapshot>) {
        if snapshot.view.writable {
            storage().set_term(snapshot.view.term);
        }
        self.snapshot.replace(snapshot);
        self.replaced.notify_all();
    }

    /// Waits until what is known gives an answer.
    async fn wait_for<T>(&self, mut answer: impl FnMut(&TopologySnapshot) -> Option<T>) -> T {
        loop {
            let replaced = self.replaced.notified();
            if let Some(answer) = answer(&self.snapshot()) {
                return answer;
            }
            replaced.await;
        }
    }

    async fn hold(self: Rc<CoreTopology>, ts: Timestamp, concern: WriteConcern) -> Result<()> {
        let majority = concern.w == Some(WriteConcernW::Majority);
        let journaled = concern.journal.unwrap_or(majority);
        // Before anything is waited for: after a rollback another entry may stand at this time.
        let (optime, since) = {
            let snapshot = self.snapshot();
            (snapshot.terms.optime(ts), snapshot.view.term)
        };
        if journaled {
            let durable = storage().wait_durable(ts).await;
            durable.map_err(pinion_catalog::from_fatal)?;
        }
        match concern.w {
            None | Some(WriteConcernW::Members(0 | 1)) => Ok(()),
            Some(WriteConcernW::Majority) => {
                self.wait_for(|snapshot| match snapshot.is_committed(optime, since) {
                    Ok(false) => None,
                    Ok(true) => Some(Ok(())),
                    Err(error) => Some(Err(error)),
                })
                .await
            }
            Some(_) => await_members(ts, concern).await,
        }
    }
}

/// This core's part of the member that the node is.
pub(crate) fn core_topology() -> Rc<CoreTopology> {
    pinion_runtime::core_local::<CoreTopology>()
}

/// The seam's form of a core's part, which its waits can hold.
pub(crate) struct Seam(pub(crate) Rc<CoreTopology>);

impl ReplicaSet for Seam {
    fn view(&self) -> Arc<SetView> {
        self.0.snapshot.borrow().view.clone()
    }

    fn wait_changed(&self, counter: i64) -> Waiting<()> {
        let member = self.0.clone();
        Box::pin(async move {
            let changed =
                |snapshot: &TopologySnapshot| (snapshot.view.counter > counter).then_some(());
            member.wait_for(changed).await;
        })
    }

    fn last_write(&self) -> LastWrite {
        let snapshot = self.0.snapshot();
        let op_time = snapshot.terms.optime(storage().visible());
        LastWrite {
            op_time,
            wall_ms: snapshot.walls.wall_ms(op_time.ts),
            majority_op_time: snapshot.committed.min(op_time),
            majority_wall_ms: snapshot.walls.wall_ms(snapshot.committed.min(op_time).ts),
        }
    }

    fn commit_point(&self) -> OpTime {
        self.0.snapshot.borrow().committed
    }

    fn wait_committed(&self, ts: Timestamp) -> Waiting<Result<()>> {
        let member = self.0.clone();
        Box::pin(async move {
            storage()
                .wait_durable(ts)
                .await
                .map_err(pinion_catalog::from_fatal)?;
            let reached = |snapshot: &TopologySnapshot| (snapshot.committed.ts >= ts).then_some(());
            member.wait_for(reached).await;
            Ok(())
        })
    }

    fn wait_commit_beyond(&self, ts: Timestamp) -> Waiting<()> {
        let member = self.0.clone();
        Box::pin(async move {
            let beyond = |snapshot: &TopologySnapshot| (snapshot.committed.ts > ts).then_some(());
            member.wait_for(beyond).await;
        })
    }

    fn wait_write_concern(
        &self,
        ts: Timestamp,
        concern: &WriteConcern,
        deadline: Option<Instant>,
    ) -> Waiting<Result<()>> {
        let held = self.0.clone().hold(ts, concern.clone());
        Box::pin(async move {
            let Some(deadline) = deadline else {
                return held.await;
            };
            timeout_at(deadline, held).await.unwrap_or_else(|_| {
                Err(Error::new(
                    ErrorCode::WRITE_CONCERN_TIMEOUT,
                    "waiting for replication timed out",
                ))
            })
        })
    }

    fn append_metadata(&self, args: &GenericArguments, out: &mut Reply) {
        let snapshot = self.0.snapshot();
        let Some((repl, query)) = &snapshot.metadata else {
            return;
        };
        let applied = snapshot.terms.optime(storage().visible());
        if args.asks_repl_data {
            let last_visible = applied;
            ReplSetMetadata {
                last_visible,
                ..repl.clone()
            }
            .append_to(out);
        }
        if args.asks_oplog_query_data {
            // A member that syncs from this node chooses by what can be fetched: what is logged, as
            // in the state machine.
            let last_applied = snapshot.terms.optime(storage().last_allotted());
            OplogQueryMetadata {
                last_applied,
                ..query.clone()
            }
            .append_to(out);
        }
    }

    fn is_commit_quorum_met(&self, quorum: &CommitQuorum, ready: &[String]) -> bool {
        let hosts = ready.iter().filter_map(|host| HostPort::parse(host).ok());
        let hosts: Vec<HostPort> = hosts.collect();
        let wanted = match quorum {
            CommitQuorum::Members(count) => Readiness::Members(*count as usize),
            CommitQuorum::Mode(mode) => Readiness::Mode(mode),
        };
        let met = |driver: std::rc::Rc<Driver>| {
            let is_met = |node: &Node| Some(is_ready(node.config()?, &hosts, wanted));
            driver.with_node(is_met)
        };
        driver().and_then(met).unwrap_or(false)
    }

    fn run_on_primary(&self, command: RawDocumentBuf) -> Waiting<Result<RawDocumentBuf>> {
        Box::pin(async move {
            let driver = driver().ok_or_else(Driver::not_initialized)?;
            let Some(primary) = driver.with_node(|node| node.view().primary) else {
                return Err(Error::new(
                    ErrorCode::NOT_WRITABLE_PRIMARY,
                    "no primary is known",
                ));
            };
            let reply = driver.peers.run(&primary, &command, BUILD_VOTE).await;
            let reply = reply.map_err(|error| error.into_error())?;
            Ok(reply.body().to_owned())
        })
    }

    fn figures(&self) -> Waiting<MemberFigures> {
        Box::pin(submit_to(CoreId(0), Queue::Foreground, || async {
            driver().map_or_else(MemberFigures::default, |driver| driver.figures())
        }))
    }

    fn connections(&self) -> Waiting<Vec<HostConnections>> {
        Box::pin(async {
            let cores = on_all_cores(|_| async { Peers::here().shown() });
            cores.await.concat()
        })
    }

    fn status(&self) -> Waiting<Result<RawDocumentBuf>> {
        Box::pin(submit_to(CoreId(0), Queue::Foreground, || async {
            driver().ok_or_else(Driver::not_initialized)?.status(true)
        }))
    }

    fn rollback_id(&self) -> Waiting<i32> {
        Box::pin(submit_to(CoreId(0), Queue::Foreground, || async {
            driver().map_or(1, |driver| driver.with_node(Node::rollback_id))
        }))
    }

    fn leave(&self, limit: Duration, force: bool) -> Waiting<Result<()>> {
        Box::pin(submit_to(
            CoreId(0),
            Queue::Foreground,
            move || async move {
                match driver() {
                    Some(driver) => driver.step_down_to_leave(limit, force).await,
                    None => Ok(()),
                }
            },
        ))
    }

    fn write_noop(&self, why: &'static str) -> Waiting<Result<Timestamp>> {
        let writable = self.0.snapshot.borrow().view.writable;
        Box::pin(async move {
            if !writable {
                return Err(Error::new(ErrorCode::NOT_WRITABLE_PRIMARY, "not primary"));
            }
            log_note(&pinion_bson::rawdoc! { "msg": why }).await
        })
    }
}
