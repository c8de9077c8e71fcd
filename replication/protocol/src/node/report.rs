//! `replSetUpdatePosition`: positions sent upstream, and received from downstream.
//!
//! Source: replication document, "Update Position Commands".

use pinion_bson::RawDocumentBuf;
use pinion_wire::{Error, ErrorCode, Result};

use super::effect::SyncPurpose;
use super::limits::POSITION_RETRY_MS;
use super::peer::Position;
use super::{CommandId, Node, Pending};
use crate::config::HostPort;
use crate::message::{MemberPosition, Request, UpdatePosition};

/// What is to be reported upstream.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Something has changed since the last report.
    pub(super) dirty: bool,
    in_flight: bool,
    /// The last one failed; it is not repeated before.
    retry_ms: u64,
    /// A report is due even if nothing has changed.
    keep_alive_ms: u64,
}

impl Node {
    pub(super) fn answer_position(&mut self, id: CommandId, update: &UpdatePosition) {
        if let Some(metadata) = &update.metadata {
            self.update_term(metadata.term);
        }
        let result = self.take_positions(&update.positions);
        self.reply(id, result.map(|()| RawDocumentBuf::new()));
    }

    fn take_positions(&mut self, positions: &[MemberPosition]) -> Result<()> {
        let mut advanced = false;
        let mut outcome = Ok(());
        for position in positions {
            match self.take_position(position) {
                Ok(news) => advanced |= news,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if advanced {
            self.positions_changed();
        }
        outcome
    }

    /// Takes over how far a member is; says whether that is news.
    fn take_position(&mut self, position: &MemberPosition) -> Result<bool> {
        let id = position.member_id;
        let Some(config) = self.config() else {
            return Err(Error::new(
                ErrorCode::NOT_YET_INITIALIZED,
                "Received replSetUpdatePosition command but no replica set config has been received",
            ));
        };
        if self.me().is_some_and(|me| me.id == id) {
            return Ok(false);
        }
        if position.config_version != config.version {
            return Err(Error::new(
                ErrorCode::INVALID_REPLICA_SET_CONFIG,
                format!(
                    "Received replSetUpdatePosition for node with memberId {id} whose config version of {} doesn't match our config version of {}",
                    position.config_version, config.version
                ),
            ));
        }
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.id == id) else {
            return Err(Error::new(
                ErrorCode::NODE_NOT_FOUND,
                format!(
                    "Received replSetUpdatePosition for node with memberId {id} which doesn't exist in our config"
                ),
            ));
        };
        let position = Position {
            applied: position.applied,
            durable: position.durable,
            written: position.written.unwrap_or_default(),
        };
        Ok(peer.advance(position, self.now))
    }

    fn reports(&self) -> bool {
        let source = self.sync.source.as_ref();
        let steady = source.is_some_and(|source| source.purpose == SyncPurpose::Steady);
        steady && !self.is_primary()
    }

    pub(super) fn report_deadline_ms(&self) -> Option<u64> {
        if !self.reports() || self.report.in_flight {
            return None;
        }
        Some(match self.report.dirty {
            true => self.report.retry_ms,
            false => self.report.keep_alive_ms,
        })
    }

    pub(super) fn report_position(&mut self) {
        if self
            .report_deadline_ms()
            .is_none_or(|due| due > self.now.ms)
        {
            return;
        }
        let source = self.sync.source.as_ref().expect("reports go to a source");
        let source = source.host.clone();
        let update = UpdatePosition {
            positions: self.reported_positions(),
            metadata: Some(self.repl_metadata()),
        };
        let timeout_ms = self.election_timeout_ms();
        self.counts.position_reports += 1;
        self.report.in_flight = true;
        self.report.dirty = false;
        let pending = Pending::Position {
            source: source.clone(),
        };
        self.send(source, Request::Position(update), timeout_ms, pending);
    }

    /// What this node knows of all members, but for those that it has not heard of for long: what
    /// is passed on counts as a sign of life.
    fn reported_positions(&self) -> Vec<MemberPosition> {
        let config = self.config().expect("one that reports is a member");
        let own = self.self_index();
        let reported = |(at, member): (usize, &crate::config::Member)| {
            let is_self = Some(at) == own;
            let peer = &self.peers[at];
            let position = match is_self {
                true => Position {
                    applied: self.progress.applied,
                    durable: self.progress.durable,
                    written: self.progress.written,
                },
                false => peer.position,
            };
            let known = !position.written().optime.is_null();
            let silent = self.now.ms - peer.last_update_ms >= self.election_timeout_ms();
            (known && (is_self || !silent)).then_some(MemberPosition {
                member_id: member.id,
                config_version: config.version,
                applied: position.applied,
                durable: position.durable,
                written: Some(position.written()),
            })
        };
        config
            .members
            .iter()
            .enumerate()
            .filter_map(reported)
            .collect()
    }

    pub(super) fn position_response(&mut self, source: &HostPort, reply: Result<RawDocumentBuf>) {
        self.report.in_flight = false;
        self.report.keep_alive_ms = self.after_ms(self.election_timeout_ms() / 2);
        let Err(error) = reply else {
            if let Some(at) = self.index_of(source) {
                self.heard(at);
            }
            return;
        };
        self.report.dirty = true;
        self.report.retry_ms = self.after_ms(POSITION_RETRY_MS);
        // The source has another configuration: whose is newer is found out at once.
        if error.code == ErrorCode::INVALID_REPLICA_SET_CONFIG
            && let Some(at) = self.index_of(source)
        {
            self.peers[at].heartbeat.due_ms = self.now.ms;
        }
    }

    /// A new source knows nothing of what the last one received, and must not wait for its answer:
    /// that one may be silent.
    pub(super) fn restart_reports(&mut self) {
        self.forget_pending(|pending| matches!(pending, Pending::Position { .. }));
        self.report.in_flight = false;
        self.report.dirty = true;
        self.report.retry_ms = self.now.ms;
    }
}
