//! `replSetGetStatus`.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf, Timestamp as BsonTimestamp};
use pinion_clock::Timestamp;
use pinion_wire::{Error, ErrorCode, MemberState, Result};

use super::peer::{Health, Peer, Position};
use super::{Node, Now, Role};
use crate::config::HostPort;
use crate::message::{OpTimeAndWallTime, append_date, append_optime};

impl Node {
    /// `replSetGetStatus`, without `ok`; `own` appends what storage knows
    /// (`lastStableRecoveryTimestamp`, `initialSyncStatus`).
    ///
    /// # Errors
    /// No configuration, or one that does not name this node.
    pub fn status(&self, now: Now, own: impl FnOnce(&mut DocBuilder)) -> Result<RawDocumentBuf> {
        let Some(config) = self.config() else {
            return Err(Error::new(
                ErrorCode::NOT_YET_INITIALIZED,
                "no replset config has been received",
            ));
        };
        if self.self_index().is_none() {
            return Err(Error::new(
                ErrorCode::INVALID_REPLICA_SET_CONFIG,
                "Our replica set config is invalid or we are not a member of it",
            ));
        }
        let mut out = DocBuilder::new();
        out.append("set", config.id.as_str());
        append_date(&mut out, "date", now.wall_ms);
        out.append("myState", self.state().number())
            .append("term", self.term.0);
        self.append_source(
            &mut out,
            self.sync.source.as_ref().map(|source| &source.host),
        );
        let bearing = config
            .voters()
            .filter(|member| !member.arbiter_only)
            .count();
        out.append(
            "heartbeatIntervalMillis",
            config.settings.heartbeat_interval_ms,
        )
        .append("majorityVoteCount", config.majority_votes() as i32)
        .append("writeMajorityCount", config.write_majority() as i32)
        .append("votingMembersCount", config.voters().count() as i32)
        .append("writableVotingMembersCount", bearing as i32);
        self.append_optimes(&mut out);
        own(&mut out);
        self.append_metrics(&mut out);
        out.start_array("members");
        for (at, peer) in self.peers.iter().enumerate() {
            out.push_document();
            match Some(at) == self.self_index() {
                true => self.append_self(&mut out, now),
                false => self.append_peer(&mut out, at, peer, now),
            }
            out.end();
        }
        out.end();
        Ok(out.finish())
    }

    /// The sync source of a member, as text and as `_id`.
    fn append_source(&self, out: &mut DocBuilder, source: Option<&HostPort>) {
        let id = source
            .and_then(|host| self.index_of(host))
            .map(|at| self.member(at).id);
        let host = source.map(ToString::to_string);
        out.append("syncSourceHost", host.as_deref().unwrap_or_default())
            .append("syncSourceId", id.unwrap_or(-1) as i32);
    }

    fn append_optimes(&self, out: &mut DocBuilder) {
        let progress = &self.progress;
        let written = self.written();
        out.start_document("optimes");
        append_optime(out, "lastCommittedOpTime", self.commit_point.optime);
        append_date(out, "lastCommittedWallTime", self.commit_point.wall_ms);
        append_optime(out, "readConcernMajorityOpTime", self.stable_optime());
        append_optime(out, "appliedOpTime", progress.applied.optime);
        append_optime(out, "durableOpTime", progress.durable.optime);
        append_optime(out, "writtenOpTime", written.optime);
        append_date(out, "lastAppliedWallTime", progress.applied.wall_ms);
        append_date(out, "lastDurableWallTime", progress.durable.wall_ms);
        append_date(out, "lastWrittenWallTime", written.wall_ms);
        out.end();
    }

    fn append_self(&self, out: &mut DocBuilder, now: Now) {
        let me = self.me().expect("this node is a member");
        let state = self.state();
        let position = Position {
            applied: self.progress.applied,
            durable: self.progress.durable,
            written: self.progress.written,
        };
        out.append("_id", me.id as i32)
            .append("name", me.host.to_string().as_str())
            .append("health", 1.0)
            .append("state", state.number())
            .append("stateStr", state.name())
            .append(
                "uptime",
                (now.ms.saturating_sub(self.started_ms) / 1000) as i64,
            );
        if !me.arbiter_only {
            append_position(out, &position, self.written());
        }
        self.append_source(out, self.sync.source.as_ref().map(|source| &source.host));
        let info = match (&self.role, self.too_stale) {
            (_, true) => "too stale to catch up",
            (Role::Candidate(_), _) => "running for election",
            (Role::Leader(_), _) | (Role::Follower, _) => "",
        };
        out.append("infoMessage", info);
        if let Role::Leader(leader) = &self.role {
            append_election(out, leader.election_time);
        }
        if self.maintenance > 0 {
            out.append("maintenanceMode", i64::from(self.maintenance));
        }
        if self.too_stale {
            out.append("tooStale", true);
        }
        let id = self.config_id();
        out.append("configVersion", id.version as i32)
            .append("configTerm", id.term as i32)
            .append("self", true)
            .append("lastHeartbeatMessage", "");
    }

    fn append_peer(&self, out: &mut DocBuilder, at: usize, peer: &Peer, now: Now) {
        let member = self.member(at);
        let uptime = peer
            .up_since_ms
            .map_or(0, |since| now.ms.saturating_sub(since) / 1000);
        let state = match peer.state {
            MemberState::Down => "(not reachable/healthy)",
            state => state.name(),
        };
        let health = match peer.health {
            Health::Up => 1.0,
            Health::Down => 0.0,
            Health::Unknown => -1.0,
        };
        out.append("_id", member.id as i32)
            .append("name", member.host.to_string().as_str())
            .append("health", health)
            .append("state", peer.state.number())
            .append("stateStr", state)
            .append("uptime", uptime as i64);
        if !member.arbiter_only {
            append_position(out, &peer.reported, peer.reported_written);
        }
        let date = |ms: Option<u64>| ms.map_or(0, |ms| self.wall_at(ms));
        append_date(out, "lastHeartbeat", date(peer.last_heartbeat_ms));
        append_date(
            out,
            "lastHeartbeatRecv",
            date(peer.last_heartbeat_received_ms),
        );
        out.append("pingMs", peer.ping_ms.unwrap_or(0) as i64)
            .append("lastHeartbeatMessage", peer.last_message.as_str());
        if peer.unauthorized {
            out.append("authenticated", false);
        }
        self.append_source(out, peer.sync_source.as_ref());
        out.append("infoMessage", "");
        if let (Some(time), MemberState::Primary) = (peer.election_time, peer.state) {
            append_election(out, time);
        }
        let (version, term) = peer.config.map_or((-1, -1), |id| (id.version, id.term));
        out.append("configVersion", version as i32)
            .append("configTerm", term as i32);
    }
}

fn append_position(out: &mut DocBuilder, position: &Position, written: OpTimeAndWallTime) {
    let dates = [
        ("optimeDate", position.applied.optime),
        ("optimeDurableDate", position.durable.optime),
        ("optimeWrittenDate", written.optime),
    ];
    append_optime(out, "optime", position.applied.optime);
    append_optime(out, "optimeDurable", position.durable.optime);
    append_optime(out, "optimeWritten", written.optime);
    for (name, optime) in dates {
        append_date(out, name, i64::from(optime.ts.secs()) * 1000);
    }
    append_date(out, "lastAppliedWallTime", position.applied.wall_ms);
    append_date(out, "lastDurableWallTime", position.durable.wall_ms);
    append_date(out, "lastWrittenWallTime", written.wall_ms);
}

fn append_election(out: &mut DocBuilder, time: Timestamp) {
    let ts = BsonTimestamp {
        time: time.secs(),
        increment: time.inc(),
    };
    out.append("electionTime", RawBsonRef::Timestamp(ts));
    append_date(out, "electionDate", i64::from(time.secs()) * 1000);
}
