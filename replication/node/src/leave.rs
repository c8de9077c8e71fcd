//! What a member does between the request to end its process and the end of its connections.
//!
//! A primary steps down, so that nothing is lost that it has acknowledged, and has another member
//! take over. Then clients are sent to the other members: each `hello`, those that wait included,
//! answers `ShutdownInProgress`, and what clients have started comes to its end. MongoDB stays in
//! this state for all of its time; here it ends when the successor is elected and no operation of a
//! client runs, since there is nothing left to wait for.
//!
//! Source: replication document, "Step Down"; the states and messages are MongoDB's "quiesce mode".

use std::rc::Rc;

use pinion_exec::replication_parameters;
use pinion_replication_protocol::node::{Command, Input, Leave, Node};
use pinion_runtime::sim::event;
use pinion_runtime::{Duration, Instant, LocalBoxFuture, now, sleep, timeout_at};
use pinion_service::ops::client_operations;
use pinion_storage::storage;
use pinion_wire::{ErrorCode, MemberState, Result};

use crate::driver::{Driver, driver};
use crate::give_up::gave_up;
use crate::limits::{LEAVE_GRACE, QUIESCE_POLL};

/// Takes this node out of its set, in the time that `shutdownTimeoutMillisForSignaledShutdown` or
/// the command gives it. Called on core 0 when the process is to end, while connections are served.
/// From its end on the member does nothing more.
pub fn leave() -> LocalBoxFuture<'static, ()> {
    Box::pin(async {
        let Some(driver) = driver() else { return };
        driver.leave_set().await;
        driver.has_left.set(true);
    })
}

impl Driver {
    async fn leave_set(self: &Rc<Self>) {
        // A node that stops because of a fault has nothing that it could hand over.
        if storage().fatal().is_some() || gave_up().is_some() {
            return;
        }
        let members = self.with_node(|node| node.config().map_or(0, |config| config.members.len()));
        if members <= 1 {
            return;
        }
        let limit = replication_parameters().shutdown_timeout_ms.unsigned_abs();
        let until = match self.leaves_until.get() {
            Some(until) => until,
            None => now() + Duration::from_millis(limit.into()),
        };
        if self.with_node(|node| node.state()) == MemberState::Primary {
            let left = until.saturating_since(now());
            tracing::info!(target: "REPL", id = 4_784_900u64, waitTimeMillis = left.as_millis() as u64, "Stepping down the ReplicationCoordinator for shutdown");
            // The protocol looks at the time when no write of a client runs any more, which may
            // take longer.
            let stepped_down =
                timeout_at(until + LEAVE_GRACE, self.step_down_to_leave(left, true)).await;
            match stepped_down {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(target: "REPL", id = 4_719_000u64, code = error.code.0, error = error.message, "Error stepping down during force shutdown");
                }
                Err(_) => {
                    tracing::warn!(target: "REPL", id = 7_400_021u64, "The time to step down for shutdown is over, and writes have not ended");
                }
            }
        }
        if self.with_node(|node| node.state()) == MemberState::Secondary {
            self.quiesce(until).await;
        }
    }

    /// Has a primary step down because its process is to end. The time counts from now, for what
    /// comes behind it too.
    ///
    /// # Errors
    /// `ExceededTimeLimit` without force: no member could take over, and the node stays primary.
    pub(crate) async fn step_down_to_leave(
        self: &Rc<Self>,
        limit: Duration,
        force: bool,
    ) -> Result<()> {
        let until = now() + limit;
        let leave = Leave {
            catch_up_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            force,
        };
        match self.command(Command::Leave(leave)).await {
            // It has ceased to be primary for another reason.
            Err(error) if error.code == ErrorCode::PRIMARY_STEPPED_DOWN => {}
            done => drop(done?),
        }
        self.leaves_until.set(Some(until));
        Ok(())
    }

    /// Sends clients to the other members until none has an operation here, and until the successor
    /// is elected.
    async fn quiesce(self: &Rc<Self>, until: Instant) {
        let left = until.saturating_since(now());
        tracing::info!(target: "REPL", id = 4_695_102u64, quiesceTimeMillis = left.as_millis() as u64, "Entering quiesce mode for shutdown");
        let until_ms = until.as_nanos() / 1_000_000;
        self.step(Input::Quiesce { until_ms });
        self.all_published().await;
        event("quiesces");
        let ended = async {
            while self.with_node(Node::hands_over) || client_operations().await > 0 {
                sleep(QUIESCE_POLL).await;
            }
        };
        let in_time = timeout_at(until, ended).await.is_ok();
        tracing::info!(target: "REPL", id = 4_695_103u64, inTime = in_time, "Exiting quiesce mode for shutdown");
    }
}
