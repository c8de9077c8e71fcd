//! What is known of one member.

use pinion_clock::{Term, Timestamp};
use pinion_wire::MemberState;

use super::input::Now;
use super::suspicion::PeerSilence;
use crate::config::{ConfigVersion, HostPort, Member};
use crate::decision::Neighbour;
use crate::message::{HeartbeatResponse, OpTimeAndWallTime};

/// How far a member's oplog is, as others know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) applied: OpTimeAndWallTime,
    pub(super) durable: OpTimeAndWallTime,
    /// Null of a member that does not report it: those before MongoDB 8.0.
    pub(super) written: OpTimeAndWallTime,
}

impl Position {
    /// The last entry that is known to be in its oplog: what is durable is written, applied or not.
    pub(super) fn written(&self) -> OpTimeAndWallTime {
        self.applied.max(self.durable).max(self.written)
    }

    /// Takes over what is later; says whether anything is.
    fn advance(&mut self, to: Position) -> bool {
        let before = *self;
        self.applied = self.applied.max(to.applied);
        self.durable = self.durable.max(to.durable);
        self.written = self.written.max(to.written);
        *self != before
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// Nothing has been heard yet.
    Unknown,
    Up,
    Down,
}

/// One heartbeat with its repetitions.
#[derive(Clone, Debug, Default)]
pub(super) struct HeartbeatTimer {
    pub(super) due_ms: u64,
    /// When the first try of the current heartbeat was sent.
    pub(super) started_ms: Option<u64>,
    pub(super) failures: u32,
    /// When the one that is not answered yet was sent.
    pub(super) sent_ms: Option<u64>,
    /// Heartbeats that ended, well or not.
    pub(super) ended: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) id: i64,
    pub(super) host: HostPort,
    pub(super) state: MemberState,
    pub(super) health: Health,
    pub(super) unauthorized: bool,
    pub(super) up_since_ms: Option<u64>,
    pub(super) last_heartbeat_ms: Option<u64>,
    pub(super) last_heartbeat_received_ms: Option<u64>,
    pub(super) last_message: String,
    /// What the last heartbeat reported, which goes back when the member rolls back.
    pub(super) reported: Position,
    pub(super) reported_written: OpTimeAndWallTime,
    /// The furthest it has ever reported, in any way.
    pub(super) position: Position,
    /// When its position or a heartbeat came last, from it or through others.
    pub(super) last_update_ms: u64,
    pub(super) term: Term,
    pub(super) config: Option<ConfigVersion>,
    pub(super) sync_source: Option<HostPort>,
    pub(super) election_time: Option<Timestamp>,
    pub(super) electable: Option<bool>,
    pub(super) ping_ms: Option<u64>,
    pub(super) heartbeat: HeartbeatTimer,
    /// When anything came last from it itself.
    pub(super) last_heard_ms: Option<u64>,
    /// For how long it says to have heard nothing of its primary.
    pub(super) peer_silence: Option<PeerSilence>,
    /// It was the primary, and a majority hears nothing of it. Its answers are not waited for.
    pub(super) given_up: bool,
    /// Its last heartbeat was refused by its host: its process is gone.
    pub(super) refuses: bool,
    /// Whether it has answered, or been found down, since heartbeats were last restarted.
    pub(super) heard_since_restart: bool,
}

impl Peer {
    pub(super) fn new(member: &Member, now: Now) -> Peer {
        Peer {
            id: member.id,
            host: member.host.clone(),
            state: MemberState::Unknown,
            health: Health::Unknown,
            unauthorized: false,
            up_since_ms: None,
            last_heartbeat_ms: None,
            last_heartbeat_received_ms: None,
            last_message: String::new(),
            reported: Position::default(),
            reported_written: OpTimeAndWallTime::NULL,
            position: Position::default(),
            last_update_ms: now.ms,
            term: Term::UNINITIALIZED,
            config: None,
            sync_source: None,
            election_time: None,
            electable: None,
            ping_ms: None,
            heartbeat: HeartbeatTimer {
                due_ms: now.ms,
                ..HeartbeatTimer::default()
            },
            last_heard_ms: None,
            peer_silence: None,
            given_up: false,
            refuses: false,
            heard_since_restart: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.health == Health::Up
    }

    /// It was asked, and has not answered.
    pub(super) fn is_down(&self) -> bool {
        self.health == Health::Down
    }

    /// Its state, while it answers.
    pub(super) fn shown_state(&self) -> Option<MemberState> {
        self.is_up().then_some(self.state)
    }

    /// Its host refuses connections.
    pub(super) fn is_gone(&self) -> bool {
        self.refuses
    }

    /// As a sync source it is what its last heartbeat reported.
    pub(super) fn neighbour(&self) -> Neighbour {
        Neighbour {
            up: self.is_up(),
            readable: self.state.is_readable(),
            last_applied: self.reported_written.optime,
            ping_ms: self.ping_ms.unwrap_or(0),
        }
    }

    /// An answer took so long.
    pub(super) fn record_ping(&mut self, took_ms: u64) {
        // As MongoDB smooths it: a fifth of the new value.
        self.ping_ms = Some(match self.ping_ms {
            None => took_ms,
            Some(before) => before.saturating_mul(4).saturating_add(took_ms) / 5,
        });
    }

    /// Takes over what a heartbeat reported; says whether the member has come further.
    pub(super) fn set_up(&mut self, response: &HeartbeatResponse, now: Now) -> bool {
        self.health = Health::Up;
        self.refuses = false;
        self.unauthorized = false;
        self.up_since_ms.get_or_insert(now.ms);
        self.last_heartbeat_ms = Some(now.ms);
        self.last_message.clear();
        self.heard_since_restart = true;
        self.state = response.state.unwrap_or(MemberState::Unknown);
        self.election_time = response.election_time;
        self.term = response.term;
        self.config = Some(response.config_id());
        self.sync_source = response.sync_source.clone();
        self.electable = response.electable;
        self.reported = Position {
            applied: response.applied,
            durable: response.durable,
            written: response.written.unwrap_or_default(),
        };
        self.reported_written = self.reported.written();
        self.advance(self.reported, now)
    }

    pub(super) fn set_down(&mut self, why: &str, unauthorized: bool, now: Now) {
        self.health = Health::Down;
        self.unauthorized = unauthorized;
        self.up_since_ms = None;
        self.last_heartbeat_ms = Some(now.ms);
        self.last_message = why.to_owned();
        self.heard_since_restart = true;
        self.state = match unauthorized {
            true => MemberState::Unknown,
            false => MemberState::Down,
        };
        self.election_time = None;
        self.sync_source = None;
        self.electable = None;
        self.config = None;
        // What it had when it was last heard of says nothing of what can be fetched from it.
        self.reported = Position::default();
        self.reported_written = OpTimeAndWallTime::NULL;
    }

    /// It is so far at least; says whether that is news.
    pub(super) fn advance(&mut self, to: Position, now: Now) -> bool {
        self.last_update_ms = now.ms;
        self.position.advance(to)
    }

    /// Notes that a heartbeat is sent, and gives the time that is left for it and its repetitions.
    pub(super) fn begin_heartbeat(&mut self, timeout_ms: u64, now: Now) -> u64 {
        let heartbeat = &mut self.heartbeat;
        assert!(heartbeat.sent_ms.is_none(), "one heartbeat at a time");
        let elapsed = heartbeat.started_ms.map(|started| now.ms - started);
        let left = elapsed.and_then(|elapsed| timeout_ms.checked_sub(elapsed));
        let left = match left {
            Some(left) if left > 0 && heartbeat.failures > 0 => left,
            _ => {
                heartbeat.started_ms = Some(now.ms);
                heartbeat.failures = 0;
                timeout_ms
            }
        };
        heartbeat.sent_ms = Some(now.ms);
        left
    }

    /// A heartbeat has ended, well or not; the next one follows after the interval.
    pub(super) fn end_heartbeat(&mut self, interval_ms: u64, now: Now) {
        use super::limits::{FIRST_HEARTBEATS, FIRST_HEARTBEATS_INTERVAL_MS};
        let heartbeat = &mut self.heartbeat;
        heartbeat.failures = 0;
        heartbeat.started_ms = None;
        heartbeat.ended = heartbeat.ended.saturating_add(1);
        let interval_ms = match heartbeat.ended < FIRST_HEARTBEATS {
            true => interval_ms.min(FIRST_HEARTBEATS_INTERVAL_MS),
            false => interval_ms,
        };
        heartbeat.due_ms = now.ms.saturating_add(interval_ms);
    }
}
