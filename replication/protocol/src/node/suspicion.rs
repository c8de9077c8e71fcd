//! A primary that is silent: noticed by asking it often, and succeeded as soon as a majority of the
//! voters hears nothing of it.
//!
//! One member that hears nothing cannot distinguish a primary that is gone from a link that is cut,
//! so it would have to wait for the election timeout, which is long for that reason. Several
//! together can: where a majority of all voters has heard nothing, the primary commits nothing, and
//! little is lost if it comes back. Every voter asks a primary that has been silent for a while,
//! arbiters too, since their word is needed in a set of two with data; its answers to heartbeats
//! report for how long it has heard nothing. One that could be elected asks the others by
//! heartbeats when its own limit is reached, and stands at once if a majority reports the same. No
//! message is new: members that do not know of this report nothing, which counts as if they heard
//! the primary.

use super::limits::{
    DRIVERS_LOOK_MS, GIVE_WAY_MS, PROBES_A_LIMIT, RE_ASK_MS, STALLS_A_LIMIT, STANDING_RANKS,
    STANDING_STEP_MS, USUAL_ELECTION_TIMEOUT_MS,
};
use super::{Mode, Node, Pending, Role};
use crate::config::HostPort;
use crate::message::Request;

/// What is watched of the primary.
#[derive(Debug, Default)]
pub(super) struct Watch {
    primary: Option<usize>,
    /// Silence counts from here on at the earliest: since then it is the primary; later by the time
    /// in which this node was not scheduled.
    since_ms: u64,
    /// It is not probed before.
    probe_ms: u64,
    /// When the others were asked: earlier reports do not count.
    asked_ms: Option<u64>,
    /// They are not asked before.
    ask_ms: u64,
    /// A majority hears nothing of it, and this node is about to stand for election.
    confirmed: bool,
    /// When there is something to be done next. A step that comes much later shows that this node
    /// was not scheduled.
    due_ms: Option<u64>,
}

impl Watch {
    pub(super) fn due_ms(&self) -> Option<u64> {
        self.due_ms
    }
}

/// For how long another member says that it has heard nothing of a primary.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerSilence {
    pub(super) at_ms: u64,
    pub(super) primary_id: Option<i64>,
    pub(super) silent_ms: u64,
}

/// The primary that is watched, and for how long it may be silent.
#[derive(Clone, Copy, Debug)]
struct Watched {
    primary: usize,
    limit_ms: u64,
}

impl Watched {
    /// Its silence before it is asked, and between two questions.
    fn probe_ms(self) -> u64 {
        (self.limit_ms / PROBES_A_LIMIT).max(1)
    }

    /// A node that comes to its own work so late knows nothing of others.
    fn stall_ms(self) -> u64 {
        (self.limit_ms / STALLS_A_LIMIT).max(1)
    }
}

impl Node {
    /// For how long the primary may be silent; `None` where it is not watched.
    fn silence_limit_ms(&self) -> Option<u64> {
        let set_ms = u64::from(self.identity.parameters.primary_silence_ms);
        let timeout_ms = self.election_timeout_ms();
        // A longer timeout than usual stands for slow links or machines; a shorter one is
        // deliberate.
        let scaled_ms = set_ms.saturating_mul(timeout_ms) / USUAL_ELECTION_TIMEOUT_MS;
        let limit_ms = scaled_ms.max(set_ms);
        (set_ms > 0 && limit_ms < timeout_ms).then_some(limit_ms)
    }

    fn watched(&self) -> Option<Watched> {
        let primary = self.primary.filter(|at| Some(*at) != self.self_index())?;
        let limit_ms = self.silence_limit_ms()?;
        let config = self.config()?;
        let votes = self.me().is_some_and(|me| me.is_voter());
        if !votes || self.mode == Mode::Startup {
            return None;
        }
        // Where no other member can be elected without it, nothing is gained.
        let others = config.members.iter().enumerate();
        let others = others.filter(|(at, member)| member.is_voter() && *at != primary);
        let enough = others.count() >= config.majority_votes();
        enough.then_some(Watched { primary, limit_ms })
    }

    fn silent_ms(&self, primary: usize) -> u64 {
        let heard_ms = self.peers[primary].last_heard_ms.unwrap_or(0);
        let since_ms = heard_ms.max(self.watch.since_ms);
        self.now.ms - since_ms
    }

    /// Something has come from this member itself.
    pub(super) fn heard(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        peer.last_heard_ms = Some(self.now.ms);
        peer.given_up = false;
        if self.watch.primary == Some(at) {
            self.watch.asked_ms = None;
            self.watch.ask_ms = self.now.ms;
            self.watch.probe_ms = self.now.ms;
            if std::mem::take(&mut self.watch.confirmed) {
                self.postpone_election();
            }
        }
    }

    /// Silence while this node itself was not scheduled does not count. Called before anything is
    /// made of what has come meanwhile.
    pub(super) fn notice_stall(&mut self) {
        let (Some(due_ms), Some(watched)) = (self.watch.due_ms, self.watched()) else {
            return;
        };
        if self.now.ms > due_ms.saturating_add(watched.stall_ms()) {
            // What has come meanwhile is yet to be read, and what was asked yet to be answered.
            let heard_ms = self.now.ms - self.silent_ms(watched.primary);
            let before_ms = due_ms.saturating_sub(heard_ms);
            let counted_ms = before_ms.min(watched.limit_ms - watched.probe_ms());
            self.watch.since_ms = self.now.ms - counted_ms;
            self.watch.probe_ms = self.now.ms;
            self.watch.asked_ms = None;
            if std::mem::take(&mut self.watch.confirmed) {
                self.postpone_election();
            }
        }
    }

    pub(super) fn watch_no_primary(&mut self) {
        self.watch = Watch::default();
    }

    /// Looks at the primary: asks it, asks others of it, stands for election.
    pub(super) fn watch_primary(&mut self) {
        let Some(watched) = self.watched() else {
            return self.watch_no_primary();
        };
        let now = self.now.ms;
        if self.watch.primary != Some(watched.primary) {
            self.watch = Watch {
                primary: Some(watched.primary),
                since_ms: now,
                ..Watch::default()
            };
        }
        let silent_ms = self.silent_ms(watched.primary);
        if silent_ms >= watched.probe_ms() && self.watch.probe_ms <= now {
            self.probe(watched);
        }
        if silent_ms >= watched.limit_ms && self.would_succeed() {
            self.confirm_silence(watched);
        }
        self.watch.due_ms = Some(self.watch_deadline_ms(watched));
    }

    fn watch_deadline_ms(&self, watched: Watched) -> u64 {
        let heard_ms = self.now.ms - self.silent_ms(watched.primary);
        let probe_ms = (heard_ms + watched.probe_ms()).max(self.watch.probe_ms);
        match self.would_succeed() {
            true => probe_ms.min((heard_ms + watched.limit_ms).max(self.watch.ask_ms)),
            false => probe_ms,
        }
    }

    /// Whether this node would stand for election and is not about to.
    fn would_succeed(&self) -> bool {
        matches!(self.role, Role::Follower)
            && !self.watch.confirmed
            && self.unelectable_reason().is_none()
    }

    /// A heartbeat beside the others: those wait for their answers as long as the configuration
    /// says.
    fn probe(&mut self, watched: Watched) {
        let host = self.peers[watched.primary].host.clone();
        let request = Request::Heartbeat(self.heartbeat_request());
        let pending = Pending::Probe {
            index: watched.primary,
        };
        self.watch.probe_ms = self.after_ms(watched.probe_ms());
        self.send(host, request, watched.limit_ms, pending);
    }

    fn confirm_silence(&mut self, watched: Watched) {
        if self.majority_hears_nothing(watched) {
            let wait_ms = self.succession_offset_ms();
            let soon_ms = self.after_ms(wait_ms);
            self.watch.confirmed = true;
            // If the election is lost, not all is asked again at once.
            self.watch.ask_ms = soon_ms.saturating_add(watched.probe_ms());
            self.peers[watched.primary].given_up = true;
            self.election_due_ms = self.election_due_ms.map(|due| due.min(soon_ms));
            let host = self.peers[watched.primary].host.clone();
            return self.leave_silent_source(&host);
        }
        if self.watch.ask_ms > self.now.ms {
            return;
        }
        let now = self.now.ms;
        let config = self.config().expect("a voter is a member");
        let voters = config.members.iter().map(|member| member.is_voter());
        let voters: Vec<bool> = voters.collect();
        for (at, peer) in self.peers.iter_mut().enumerate() {
            if voters[at] && at != watched.primary && peer.is_up() {
                peer.heartbeat.due_ms = now;
            }
        }
        self.watch.asked_ms = Some(now);
        self.watch.ask_ms = self.after_ms(watched.probe_ms());
    }

    /// Whether a majority of all voters, this one among them, has reported since it was asked that
    /// it has heard nothing for as long.
    fn majority_hears_nothing(&self, watched: Watched) -> bool {
        let (Some(config), Some(asked_ms)) = (self.config(), self.watch.asked_ms) else {
            return false;
        };
        let id = self.peers[watched.primary].id;
        let agrees = |silence: PeerSilence| {
            silence.at_ms >= asked_ms
                && silence.primary_id == Some(id)
                && silence.silent_ms >= watched.limit_ms
        };
        let agreeing = self.others().filter(|(at, peer)| {
            *at != watched.primary
                && config.members[*at].is_voter()
                && peer.peer_silence.is_some_and(agrees)
        });
        agreeing.count() + 1 >= config.majority_votes()
    }

    /// A member has answered: if its silence is shorter yet, it is asked again when it would be as
    /// long.
    pub(super) fn take_peer_silence(&mut self, at: usize, silence: Option<PeerSilence>) {
        self.peers[at].peer_silence = silence;
        let (Some(silence), Some(watched)) = (silence, self.watched()) else {
            return;
        };
        if self.watch.asked_ms.is_some() && silence.silent_ms < watched.limit_ms {
            let rest_ms = (watched.limit_ms - silence.silent_ms).max(RE_ASK_MS);
            self.watch.ask_ms = self.watch.ask_ms.min(self.after_ms(rest_ms));
        }
    }

    /// What this node reports of its primary: for how long it has heard nothing, once it has
    /// started to ask.
    pub(super) fn reported_silence_ms(&self) -> Option<u64> {
        let watched = self.watched()?;
        if self.watch.primary != Some(watched.primary) {
            return None;
        }
        let silent_ms = self.silent_ms(watched.primary);
        (silent_ms >= watched.probe_ms()).then_some(silent_ms)
    }

    /// Whether this node has heard nothing of that primary for as long as it may be silent.
    pub(super) fn hears_nothing_of(&self, primary: usize) -> bool {
        let watched = self.watched().filter(|watched| {
            watched.primary == primary && self.watch.primary == Some(watched.primary)
        });
        watched.is_some_and(|watched| self.silent_ms(primary) >= watched.limit_ms)
    }

    /// Whether a majority hears nothing of the primary, and this node waits for its turn to stand
    /// for election.
    pub(super) fn is_about_to_succeed(&self) -> bool {
        self.watch.confirmed
    }

    /// An election begins: if it is lost, the others are asked again.
    pub(super) fn suspicion_is_acted_upon(&mut self) {
        self.watch.confirmed = false;
        self.watch.asked_ms = None;
    }

    /// This node has voted for another: whether that has won shows soon, and the silent primary is
    /// looked at again only then.
    pub(super) fn let_another_succeed(&mut self) {
        self.suspicion_is_acted_upon();
        self.watch.ask_ms = self.after_ms(self.give_way_ms());
    }

    // How members that have noticed together keep out of each other's way.

    /// After what time this node stands for election when it knows that the primary is gone: later
    /// than the members before it by priority, and not at the same time as any.
    pub(super) fn standing_offset_ms(&mut self) -> u64 {
        let random = self.random.below(STANDING_STEP_MS);
        let (Some(config), Some(own)) = (self.config(), self.self_index()) else {
            return random;
        };
        let before = |at: &usize| {
            let (mine, other) = (&config.members[own], &config.members[*at]);
            other.priority > mine.priority || (other.priority == mine.priority && *at < own)
        };
        let rank = self.rivals().filter(before).count().min(STANDING_RANKS);
        rank as u64 * STANDING_STEP_MS + random
    }

    /// As [`Self::standing_offset_ms`], where the primary is silent. Clients whose primary does not
    /// answer ask no other member: a driver that has found this node down looks at it again when it
    /// always does, and until then it would not learn that this is the primary. So a node that has
    /// just started goes behind all others. If its priority is higher it takes over later.
    fn succession_offset_ms(&mut self) -> u64 {
        let offset_ms = self.standing_offset_ms();
        let is_known = self.now.ms - self.started_ms >= DRIVERS_LOOK_MS;
        match is_known || self.rivals().next().is_none() {
            true => offset_ms,
            false => offset_ms + (STANDING_RANKS as u64 + 1) * STANDING_STEP_MS,
        }
    }

    /// The other members that might be elected in the primary's place.
    fn rivals(&self) -> impl Iterator<Item = usize> {
        let electable = |at: usize| {
            let config = self.config();
            config.is_some_and(|config| config.members[at].is_electable())
        };
        let rivals = self
            .others()
            .filter(move |(at, peer)| peer.is_up() && Some(*at) != self.primary && electable(*at));
        rivals.map(|(at, _)| at)
    }

    fn give_way_ms(&self) -> u64 {
        GIVE_WAY_MS.min(self.election_timeout_ms() / 2)
    }

    /// Another one stands that this node would vote for: it goes first.
    pub(super) fn give_way(&mut self) {
        let after_ms = self.after_ms(self.give_way_ms());
        self.election_due_ms = self.election_due_ms.map(|due| due.max(after_ms));
    }

    /// There is another primary: what comes of a source that says nothing is not waited for.
    pub(super) fn leave_source_if_silent(&mut self) {
        let Some(limit_ms) = self.silence_limit_ms() else {
            return;
        };
        let source = self.sync.source.as_ref().map(|source| source.host.clone());
        let Some((host, at)) = source.and_then(|host| Some((host.clone(), self.index_of(&host)?)))
        else {
            return;
        };
        let heard_ms = self.peers[at].last_heard_ms.unwrap_or(0);
        let silent = self.now.ms - heard_ms >= limit_ms / PROBES_A_LIMIT;
        if silent && self.primary.is_some_and(|primary| primary != at) {
            self.leave_silent_source(&host);
        }
    }

    fn leave_silent_source(&mut self, host: &HostPort) {
        self.leave_source(host, "it is silent");
    }
}
