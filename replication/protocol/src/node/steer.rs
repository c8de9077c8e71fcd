//! What operators may do to a member: freeze it, take it out for maintenance, choose its sync
//! source.

use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_wire::{Error, ErrorCode, MemberState, Result};

use super::limits::SYNC_FROM_WARNING_SECS;
use super::{Mode, Node, Role};
use crate::config::HostPort;

impl Node {
    pub(super) fn freeze(&mut self, secs: u64) -> Result<RawDocumentBuf> {
        let state = match self.role {
            Role::Leader(_) => "Primary",
            Role::Candidate(_) => "Running-Election",
            Role::Follower => "",
        };
        if !state.is_empty() {
            return Err(Error::new(
                ErrorCode::NOT_SECONDARY,
                format!("cannot freeze node when primary or running for election. state: {state}"),
            ));
        }
        let mut out = DocBuilder::new();
        if secs == 0 {
            self.abstains_until_ms = self.now.ms;
            out.append("info", "unfreezing");
        } else {
            if secs == 1 {
                out.append("warning", "you really want to freeze for only 1 second?");
            }
            let until = self.after_ms(secs.saturating_mul(1000));
            self.abstains_until_ms = self.abstains_until_ms.max(until);
        }
        Ok(out.finish())
    }

    pub(super) fn set_maintenance(&mut self, begins: bool) -> Result<()> {
        let refuse = |what: &str| Err(Error::new(ErrorCode::NOT_SECONDARY, what));
        match self.role {
            Role::Leader(_) => return refuse("primaries can't modify maintenance mode"),
            Role::Candidate(_) => return refuse("currently running for election"),
            Role::Follower => {}
        }
        if begins {
            self.maintenance += 1;
            return Ok(());
        }
        match self.maintenance.checked_sub(1) {
            Some(left) => {
                self.maintenance = left;
                Ok(())
            }
            None => Err(Error::new(
                ErrorCode::OPERATION_FAILED,
                "already out of maintenance mode",
            )),
        }
    }

    pub(super) fn sync_from(&mut self, host: HostPort) -> Result<RawDocumentBuf> {
        let not_secondary = |what: &str| Err(Error::new(ErrorCode::NOT_SECONDARY, what));
        if self.self_index().is_none() {
            return not_secondary("Removed and uninitialized nodes do not sync");
        }
        if self.is_primary() {
            return not_secondary("primaries don't sync");
        }
        if self.is_arbiter() {
            return not_secondary("arbiters don't sync");
        }
        let Some(at) = self.index_of(&host) else {
            return Err(Error::new(
                ErrorCode::NODE_NOT_FOUND,
                format!("Could not find member \"{host}\" in replica set"),
            ));
        };
        self.check_target(at, &host)?;
        let previous = self
            .sync
            .source
            .as_ref()
            .map(|source| source.host.to_string());
        let own = self.written().optime.ts.secs();
        let theirs = self.peers[at].reported_written.optime.ts.secs();
        let mut out = DocBuilder::new();
        if theirs.saturating_add(SYNC_FROM_WARNING_SECS) < own {
            let warning = format!("requested member \"{host}\" is more than 10 seconds behind us");
            out.append("warning", warning.as_str());
        }
        out.append("syncFromRequested", host.to_string().as_str());
        if let Some(previous) = previous {
            out.append("prevSyncTarget", previous.as_str());
        }
        self.sync.requested = Some(host);
        // An initial sync begins again elsewhere only if it fails where it is.
        if self.mode != Mode::InitialSync {
            self.stop_sync("another was asked for");
        }
        self.retry_source_now();
        Ok(out.finish())
    }

    fn check_target(&self, at: usize, host: &HostPort) -> Result<()> {
        let refuse = |code, what: String| Err(Error::new(code, what));
        let member = self.member(at);
        let peer = &self.peers[at];
        if Some(at) == self.self_index() {
            return refuse(
                ErrorCode::INVALID_OPTIONS,
                "I cannot sync from myself".into(),
            );
        }
        if member.arbiter_only {
            let what = format!("Cannot sync from \"{host}\" because it is an arbiter");
            return refuse(ErrorCode::INVALID_OPTIONS, what);
        }
        if !member.build_indexes && self.me().is_some_and(|me| me.build_indexes) {
            let what = format!("Cannot sync from \"{host}\" because it does not build indexes");
            return refuse(ErrorCode::INVALID_OPTIONS, what);
        }
        if peer.unauthorized {
            let what = format!("not authorized to communicate with {host}");
            return refuse(ErrorCode::UNAUTHORIZED, what);
        }
        if !peer.is_up() || peer.state == MemberState::Down {
            let what = format!("I cannot reach the requested member: {host}");
            return refuse(ErrorCode::HOST_UNREACHABLE, what);
        }
        Ok(())
    }
}
