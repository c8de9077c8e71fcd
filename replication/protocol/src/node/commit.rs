//! How far all members are: the commit point, on a primary and on the others, and whether a primary
//! still reaches a majority.
//!
//! Source: replication document, "Commit Point Propagation".

use pinion_clock::{OpTime, Term};

use super::{Node, Role};
use crate::config::Config;
use crate::decision::{
    Position, advance_commit_point, commit_point_from_heartbeat, commit_point_from_sync_source,
    has_lost_majority,
};
use crate::message::OpTimeAndWallTime;

impl Node {
    /// Of each member, what it has; of this one too. An entry counts as soon as it is written,
    /// applied or not.
    pub(super) fn positions(&self) -> Vec<Position> {
        let own = self.self_index();
        let peers = self.peers.iter().enumerate();
        let positions = peers.map(|(at, peer)| match Some(at) == own {
            true => Position {
                applied: self.written().optime,
                durable: self.progress.durable.optime,
            },
            false => Position {
                applied: peer.position.written().optime,
                durable: peer.position.durable.optime,
            },
        });
        positions.collect()
    }

    /// A member has come further.
    pub(super) fn positions_changed(&mut self) {
        self.judge_positions();
        self.report.dirty = true;
    }

    /// What members hold may be enough for somebody now.
    pub(super) fn judge_positions(&mut self) {
        self.advance_commit_point();
        self.waiters.look = true;
    }

    /// A primary commits what a majority holds.
    pub(super) fn advance_commit_point(&mut self) {
        if !self.is_primary() {
            return;
        }
        let config = self.config().expect("a primary is a member");
        let current = self.commit_point.optime;
        let positions = self.positions();
        let advanced = advance_commit_point(config, &positions, self.term, current);
        let advanced = advanced.or_else(|| self.planted_commit_point(&positions));
        // No member can hold what this node did not write: such a report is not believed.
        let Some(optime) = advanced.filter(|optime| *optime <= self.written().optime) else {
            return;
        };
        self.commit_point = OpTimeAndWallTime::new(optime, self.wall_of(optime));
        self.metrics.committed(optime, self.now);
    }

    /// Only where a test has planted that fault.
    fn planted_commit_point(&self, positions: &[Position]) -> Option<OpTime> {
        if !self.identity.parameters.counts_older_terms {
            return None;
        }
        let (config, current) = (self.config()?, self.commit_point.optime);
        let mut terms = (0..self.term.0).rev();
        terms.find_map(|term| advance_commit_point(config, positions, Term(term), current))
    }

    /// When an entry was written that some member is at.
    fn wall_of(&self, optime: OpTime) -> i64 {
        let Node {
            progress, peers, ..
        } = self;
        let own = [progress.written, progress.applied, progress.durable];
        let peers = peers
            .iter()
            .flat_map(|p| [p.position.applied, p.position.durable, p.position.written]);
        let mut all = own.into_iter().chain(peers);
        all.find(|at| at.optime == optime)
            .map_or(0, |at| at.wall_ms)
    }

    /// Learns of a commit point by a heartbeat. An arbiter, which has no entries, takes what is
    /// reported.
    pub(super) fn learn_commit_point(&mut self, learned: OpTimeAndWallTime) {
        let current = self.commit_point.optime;
        let advances = match self.is_arbiter() {
            true => learned.optime > current,
            false => {
                let last = self.written().optime;
                commit_point_from_heartbeat(learned.optime, last, current).is_some()
            }
        };
        if advances && !self.is_primary() {
            self.commit_point = learned;
        }
    }

    /// Learns of a commit point by the sync source, of whose oplog this node's is the beginning.
    pub(super) fn learn_commit_point_from_source(&mut self, learned: OpTimeAndWallTime) {
        let last = self.written();
        let current = self.commit_point.optime;
        if commit_point_from_sync_source(learned.optime, last.optime, current).is_some() {
            self.commit_point = learned.min(last);
        }
    }

    /// The last entry of which it is certain that it is committed and applied here: what a
    /// checkpoint may hold, and what majority reads see.
    pub fn stable_optime(&self) -> OpTime {
        self.commit_point.optime.min(self.progress.applied.optime)
    }

    /// A primary that hears nothing of a majority, directly or through others, gives up: another
    /// may have been elected.
    pub(super) fn check_liveness(&mut self) {
        if !self.is_primary() {
            return;
        }
        let config = self.config().expect("a primary is a member");
        let me = self.self_index().expect("a primary is a member");
        let updates: Vec<u64> = self.peers.iter().map(|peer| peer.last_update_ms).collect();
        if has_lost_majority(config, me, &updates, self.now.ms) {
            self.step_down("it does not reach a majority");
        }
    }

    /// When a primary next looks whether it still reaches a majority: as soon as another member has
    /// been silent for too long.
    pub(super) fn liveness_deadline_ms(&self) -> Option<u64> {
        if !matches!(self.role, Role::Leader(_)) {
            return None;
        }
        let timeout = self.election_timeout_ms();
        let ends = self
            .others()
            .map(|(_, peer)| peer.last_update_ms.saturating_add(timeout));
        ends.filter(|end| *end > self.now.ms).min()
    }

    /// Whether a majority holds an entry, journaled if the configuration says so.
    pub(super) fn majority_holds(&self, config: &Config, optime: OpTime) -> bool {
        let durably = config.write_concern_majority_journal_default;
        let positions = self.positions();
        let voters = config.members.iter().zip(&positions);
        let holding = voters.filter(|(member, position)| {
            let held = match durably {
                true => position.durable,
                false => position.applied,
            };
            member.is_voter() && !member.arbiter_only && held >= optime
        });
        holding.count() >= config.write_majority()
    }
}
