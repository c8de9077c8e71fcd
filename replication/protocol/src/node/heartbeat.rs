//! Heartbeats: sent on time and again when they fail, answered, and what is learned of both.
//!
//! Source: replication document, "Heartbeats".

use pinion_bson::{RawDocument, RawDocumentBuf, get};
use pinion_wire::{Error, ErrorCode, MemberState, Result};

use super::limits::MAX_HEARTBEAT_RETRIES;
use super::suspicion::PeerSilence;
use super::{CommandId, Node, Note, Pending, Role, positive};
use crate::config::{ConfigVersion, HostPort, NO_TERM};
use crate::message::{
    HeartbeatRequest, HeartbeatResponse, REPL_DATA, ReplSetMetadata, Request, UNINITIALIZED_VERSION,
};

const DEFAULT_TIMEOUT_SECS: i64 = 10;
const DEFAULT_INTERVAL_MS: i64 = 2_000;

impl Node {
    fn heartbeat_timeout_ms(&self) -> u64 {
        let configured = self.config().map(|c| c.settings.heartbeat_timeout_secs);
        positive(configured.unwrap_or(DEFAULT_TIMEOUT_SECS)).saturating_mul(1000)
    }

    fn heartbeat_interval_ms(&self) -> u64 {
        let configured = self.config().map(|c| c.settings.heartbeat_interval_ms);
        positive(configured.unwrap_or(DEFAULT_INTERVAL_MS))
    }

    pub(super) fn config_id(&self) -> ConfigVersion {
        match self.config() {
            Some(config) => config.config_version(),
            None => ConfigVersion {
                version: UNINITIALIZED_VERSION,
                term: NO_TERM,
            },
        }
    }

    fn own_host(&self) -> HostPort {
        let own = self.me().map(|me| &me.host);
        own.unwrap_or(&self.identity.host).clone()
    }

    pub(super) fn heartbeat_request(&self) -> HeartbeatRequest {
        HeartbeatRequest {
            set_name: self.identity.set_name.clone(),
            check_empty: false,
            config: self.config_id(),
            sender: Some(self.own_host()),
            sender_id: self.me().map(|me| me.id),
            term: self.term,
            primary_id: self.primary.map(|at| self.member(at).id),
        }
    }

    pub(super) fn send_due_heartbeats(&mut self) {
        if self.self_index().is_none() {
            return;
        }
        let now = self.now;
        let is_due = |heartbeat: &super::peer::HeartbeatTimer| {
            heartbeat.sent_ms.is_none() && heartbeat.due_ms <= now.ms
        };
        let due = self.others().filter(|(_, peer)| is_due(&peer.heartbeat));
        let due: Vec<usize> = due.map(|(at, _)| at).collect();
        let limit = self.heartbeat_timeout_ms();
        for at in due {
            let host = self.peers[at].host.clone();
            let timeout_ms = self.peers[at].begin_heartbeat(limit, now);
            let request = Request::Heartbeat(self.heartbeat_request());
            self.send(host, request, timeout_ms, Pending::Heartbeat { index: at });
        }
    }

    /// Asks every member at once, so that what is decided next rests on what they say from now on.
    pub(super) fn restart_heartbeats(&mut self) {
        let is_heartbeat = |pending: &Pending| {
            matches!(pending, Pending::Heartbeat { .. } | Pending::Probe { .. })
        };
        self.pending.retain(|_, pending| !is_heartbeat(pending));
        let now = self.now.ms;
        for peer in &mut self.peers {
            let heartbeat = &mut peer.heartbeat;
            heartbeat.sent_ms = None;
            heartbeat.due_ms = now;
            heartbeat.started_ms = None;
            heartbeat.failures = 0;
            peer.heard_since_restart = false;
        }
    }

    pub(super) fn heartbeat_response(&mut self, at: usize, reply: Result<RawDocumentBuf>) {
        let sent_ms = self.peers[at].heartbeat.sent_ms.take();
        let sent_ms = sent_ms.expect("a heartbeat that is pending is in flight");
        match reply.and_then(|reply| self.read_response(&reply)) {
            Ok((response, metadata)) => {
                let interval_ms = self.heartbeat_interval_ms();
                let peer = &mut self.peers[at];
                peer.record_ping(self.now.ms - sent_ms);
                peer.end_heartbeat(interval_ms, self.now);
                self.member_answered(at, response, metadata);
            }
            Err(error) => self.member_failed(at, &error),
        }
    }

    /// The answer to a heartbeat out of turn.
    pub(super) fn probe_response(&mut self, at: usize, reply: Result<RawDocumentBuf>) {
        match reply.and_then(|reply| self.read_response(&reply)) {
            Ok((response, metadata)) => self.member_answered(at, response, metadata),
            Err(error) if error.code == ErrorCode::HOST_UNREACHABLE => {
                let host = self.peers[at].host.clone();
                self.suspect(&host);
            }
            // Whether it is silent is asked of others first.
            Err(_) => {}
        }
    }

    /// Reads an answer, which must be of this set.
    fn read_response(
        &self,
        reply: &RawDocument,
    ) -> Result<(HeartbeatResponse, Option<ReplSetMetadata>)> {
        let response = HeartbeatResponse::parse(reply)?;
        let metadata = ReplSetMetadata::of_message(reply)?;
        if let Some(name) = &response.set_name
            && *name != self.identity.set_name
        {
            return Err(self.other_set(name));
        }
        let own = self.config().and_then(|config| config.replica_set_id());
        let other = metadata
            .as_ref()
            .and_then(|metadata| metadata.replica_set_id);
        // MongoDB sends all zeros where it has none yet.
        if let (Some(own), Some(other)) = (own, other)
            && own != other
            && other.bytes() != [0; 12]
        {
            return Err(Error::new(
                ErrorCode::INVALID_REPLICA_SET_CONFIG,
                format!("replica set IDs do not match, ours: {own}; remote node's: {other}"),
            ));
        }
        Ok((response, metadata))
    }

    fn other_set(&self, name: &str) -> Error {
        Error::new(
            ErrorCode::INCONSISTENT_REPLICA_SET_NAMES,
            format!(
                "Our set name of {} does not match name {name} reported by remote node",
                self.identity.set_name
            ),
        )
    }

    fn member_answered(
        &mut self,
        at: usize,
        mut response: HeartbeatResponse,
        metadata: Option<ReplSetMetadata>,
    ) {
        let now = self.now;
        let config = response.config.take();
        let before = self.peers[at].shown_state();
        let advanced = self.peers[at].set_up(&response, now);
        let peer = &self.peers[at];
        if before != peer.shown_state() {
            let (host, state) = (peer.host.clone(), peer.state);
            self.note(Note::MemberState { host, state });
        }
        self.heard(at);
        let silent_ms = response.primary_silent_ms;
        let silence = silent_ms.map(|silent_ms| PeerSilence {
            at_ms: now.ms,
            primary_id: response.primary_id,
            silent_ms,
        });
        self.take_peer_silence(at, silence);
        self.update_term(response.term);
        if let Some(metadata) = &metadata {
            self.update_term(metadata.term);
            self.learn_commit_point(metadata.last_committed);
        }
        self.update_primary();
        let is_primary = response.state == Some(MemberState::Primary);
        if is_primary && response.term == self.term && !self.is_primary() {
            self.postpone_election();
            self.consider_takeover(at);
        }
        self.hasten_first_election();
        if advanced {
            self.positions_changed();
        }
        self.return_if_configs_agree(at);
        if self.sync.source.is_none() {
            self.retry_source_now();
        }
        self.answer_committed_reconfigs();
        if let Some(config) = config {
            self.take_config(config);
        }
    }

    fn member_failed(&mut self, at: usize, error: &Error) {
        let limit = self.heartbeat_timeout_ms();
        let interval_ms = self.heartbeat_interval_ms();
        let now = self.now;
        let peer = &mut self.peers[at];
        let heartbeat = &mut peer.heartbeat;
        heartbeat.failures += 1;
        let elapsed = heartbeat.started_ms.map_or(0, |started| now.ms - started);
        let unauthorized =
            [ErrorCode::UNAUTHORIZED, ErrorCode::AUTHENTICATION_FAILED].contains(&error.code);
        if !unauthorized && heartbeat.failures <= MAX_HEARTBEAT_RETRIES && elapsed < limit {
            heartbeat.due_ms = now.ms;
            return;
        }
        peer.end_heartbeat(interval_ms, now);
        peer.refuses = error.code == ErrorCode::HOST_UNREACHABLE;
        let was_up = peer.is_up();
        peer.set_down(&error.message, unauthorized, now);
        if was_up {
            let host = peer.host.clone();
            let why = error.message.clone();
            self.note(Note::MemberDown { host, why });
        }
        // A host that refuses connections has lost its process. One that is silent may be busy, or
        // cut off from this node only.
        if error.code == ErrorCode::HOST_UNREACHABLE {
            let host = self.peers[at].host.clone();
            self.suspect(&host);
        }
        self.update_primary();
    }

    /// The primary is the member that says so in the latest term.
    pub(super) fn update_primary(&mut self) {
        let primary = match self.is_primary() {
            true => self.self_index(),
            false => self
                .others()
                .filter(|(_, peer)| peer.is_up() && peer.state == MemberState::Primary)
                .max_by_key(|(at, peer)| (peer.term, std::cmp::Reverse(*at)))
                .map(|(at, _)| at),
        };
        if primary != self.primary {
            self.primary = primary;
            self.takeover = None;
            self.leave_source_if_silent();
        }
    }

    // The other side.

    pub(super) fn answer_heartbeat(&mut self, id: CommandId, request: &HeartbeatRequest) {
        let result = self.heartbeat_reply(request);
        let answered = result.is_ok();
        self.reply(id, result);
        if !answered {
            return;
        }
        let new_term = request.term > self.term;
        self.update_term(request.term);
        let sender = request.sender_id.and_then(|id| {
            let found = self.others().find(|(_, peer)| peer.id == id);
            found.map(|(at, _)| at)
        });
        if request.config.is_newer_than(self.config_id()) || self.installed.is_none() {
            if let Some(host) = &request.sender {
                self.ask_config(host.clone());
            }
        } else if let Some(at) = sender {
            let claims = request.primary_id == request.sender_id && request.term >= self.term;
            // One that has just started is reached again before a heartbeat to it is due.
            let is_news = (claims && self.primary != Some(at))
                || self.peers[at].is_down()
                || self.peers[at]
                    .config
                    .is_some_and(|known| known != request.config);
            // What it has become is asked at once, not with the next heartbeat.
            if is_news || new_term {
                self.peers[at].heartbeat.due_ms = self.now.ms;
            }
        }
        if let Some(at) = sender {
            self.peers[at].last_heartbeat_received_ms = Some(self.now.ms);
            self.heard(at);
        }
    }

    fn heartbeat_reply(&self, request: &HeartbeatRequest) -> Result<RawDocumentBuf> {
        if request.set_name != self.identity.set_name {
            return Err(self.other_set(&request.set_name));
        }
        if let (Some(own), Some(sender)) = (self.me().map(|me| me.id), request.sender_id)
            && own == sender
        {
            return Err(Error::bad_value(format!(
                "Received heartbeat from member with the same member ID as ourself: {own}"
            )));
        }
        let own = self.config_id();
        let election_time = match &self.role {
            Role::Leader(leader) => Some(leader.election_time),
            Role::Follower | Role::Candidate(_) => None,
        };
        let newer = self.config().filter(|_| own.is_newer_than(request.config));
        let response = HeartbeatResponse {
            set_name: Some(self.identity.set_name.clone()),
            state: Some(self.state()),
            election_time,
            has_data: request.check_empty.then_some(self.has_data()),
            config_version: own.version,
            config_term: own.term,
            config: newer.cloned(),
            term: self.term,
            primary_id: self.primary.map(|at| self.member(at).id),
            sync_source: self.sync.source.as_ref().map(|source| source.host.clone()),
            applied: self.progress.applied,
            durable: self.progress.durable,
            written: Some(self.written()),
            electable: Some(self.unelectable_reason().is_none()),
            primary_silent_ms: self.reported_silence_ms(),
        };
        Ok(response.to_bson())
    }

    fn has_data(&self) -> bool {
        !self.written().optime.is_null()
    }

    /// Whether a command asks for `$replData` beside the answer.
    pub fn asks_metadata(body: &RawDocument) -> bool {
        get(body, REPL_DATA).is_some()
    }

    // Newer configurations.

    /// Asks one that seems to have a newer configuration for it.
    fn ask_config(&mut self, host: HostPort) {
        if self.asking_config || self.change.is_some() {
            return;
        }
        let request = Request::Heartbeat(self.heartbeat_request());
        let timeout_ms = self.heartbeat_timeout_ms();
        self.send(host, request, timeout_ms, Pending::AskConfig);
        self.asking_config = true;
    }

    pub(super) fn asked_config_response(&mut self, reply: Result<RawDocumentBuf>) {
        assert!(self.asking_config, "a configuration was asked for");
        self.asking_config = false;
        let Ok((mut response, _)) = reply.and_then(|reply| self.read_response(&reply)) else {
            return;
        };
        self.update_term(response.term);
        if let Some(config) = response.config.take() {
            self.take_config(config);
        }
    }
}
