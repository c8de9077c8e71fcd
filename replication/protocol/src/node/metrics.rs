//! The figures of elections that `replSetGetStatus` shows.

use pinion_bson::DocBuilder;
use pinion_clock::{OpTime, Term};

use super::candidate::Reason;
use super::{Node, Now, Role};
use crate::message::{OpTimeAndWallTime, VoteRequest, append_date, append_optime};

/// What elections leave behind to be shown.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    candidate: Option<AsCandidate>,
    participant: Option<AsParticipant>,
}

/// The last election in which this node stood.
#[derive(Debug)]
struct AsCandidate {
    reason: Reason,
    at_ms: u64,
    term: Term,
    committed: OpTime,
    seen: OpTime,
    votes_needed: usize,
    priority: f64,
    timeout_ms: u64,
    prior_primary_id: Option<i64>,
    term_start_wall_ms: Option<i64>,
    majority_available_ms: Option<u64>,
    first_of_term: Option<OpTime>,
}

/// The last election in which this node was asked for its vote.
#[derive(Debug)]
struct AsParticipant {
    voted: bool,
    term: Term,
    at_ms: u64,
    candidate_id: i64,
    reason: String,
    written: OpTime,
    newest_in_set: OpTime,
    priority: f64,
    term_start_wall_ms: Option<i64>,
    term_applied_ms: Option<u64>,
}

impl Metrics {
    /// This node has started its term with this entry.
    pub(super) fn term_began(&mut self, term: Term, first: OpTimeAndWallTime) {
        if let Some(candidate) = self.candidate.as_mut().filter(|c| c.term == term) {
            candidate.term_start_wall_ms = Some(first.wall_ms);
            candidate.first_of_term = Some(first.optime);
        }
    }

    /// The first entry of the term that this node voted for has come.
    pub(super) fn applied(&mut self, applied: OpTimeAndWallTime, now: Now) {
        if let Some(participant) = &mut self.participant
            && participant.term == applied.optime.term
            && participant.term_applied_ms.is_none()
        {
            participant.term_start_wall_ms = Some(applied.wall_ms);
            participant.term_applied_ms = Some(now.ms);
        }
    }

    pub(super) fn committed(&mut self, committed: OpTime, now: Now) {
        if let Some(candidate) = &mut self.candidate
            && candidate.majority_available_ms.is_none()
            && candidate
                .first_of_term
                .is_some_and(|first| committed >= first)
        {
            candidate.majority_available_ms = Some(now.ms);
        }
    }
}

impl Node {
    pub(super) fn note_candidacy(&mut self, reason: Reason) {
        let seen = self
            .others()
            .map(|(_, peer)| peer.reported_written.optime)
            .max();
        self.metrics.candidate = Some(AsCandidate {
            reason,
            at_ms: self.now.ms,
            term: self.term,
            committed: self.commit_point.optime,
            seen: seen.unwrap_or_default().max(self.written().optime),
            votes_needed: self.config().map_or(0, |config| config.majority_votes()),
            priority: self.me().map_or(0.0, |me| me.priority),
            timeout_ms: self.election_timeout_ms(),
            prior_primary_id: self.primary.map(|at| self.member(at).id),
            term_start_wall_ms: None,
            majority_available_ms: None,
            first_of_term: None,
        });
    }

    pub(super) fn note_real_election(&mut self) {
        let term = self.term;
        if let Some(candidate) = &mut self.metrics.candidate {
            candidate.term = term;
        }
    }

    pub(super) fn note_vote(&mut self, request: &VoteRequest, refused: Option<&str>) {
        let seen = self
            .others()
            .map(|(_, peer)| peer.reported_written.optime)
            .max();
        let candidate = self.peers.get(request.candidate_index);
        self.metrics.participant = Some(AsParticipant {
            voted: refused.is_none(),
            term: request.term,
            at_ms: self.now.ms,
            candidate_id: candidate.map_or(-1, |peer| peer.id),
            reason: refused.unwrap_or_default().to_owned(),
            written: self.written().optime,
            newest_in_set: seen.unwrap_or_default().max(self.written().optime),
            priority: self.me().map_or(0.0, |me| me.priority),
            term_start_wall_ms: None,
            term_applied_ms: None,
        });
    }

    pub(super) fn append_metrics(&self, out: &mut DocBuilder) {
        let date = |ms: u64| self.wall_at(ms);
        if let (Some(candidate), Role::Leader(_)) = (&self.metrics.candidate, &self.role) {
            out.start_document("electionCandidateMetrics")
                .append("lastElectionReason", candidate.reason.name());
            append_date(out, "lastElectionDate", date(candidate.at_ms));
            out.append("electionTerm", candidate.term.0);
            append_optime(out, "lastCommittedOpTimeAtElection", candidate.committed);
            append_optime(out, "lastSeenWrittenOpTimeAtElection", candidate.seen);
            append_optime(out, "lastSeenOpTimeAtElection", candidate.seen);
            out.append("numVotesNeeded", candidate.votes_needed as i32)
                .append("priorityAtElection", candidate.priority)
                .append("electionTimeoutMillis", candidate.timeout_ms as i64);
            if let Some(id) = candidate.prior_primary_id {
                out.append("priorPrimaryMemberId", id as i32);
            }
            if let Some(wall_ms) = candidate.term_start_wall_ms {
                append_date(out, "newTermStartDate", wall_ms);
            }
            if let Some(ms) = candidate.majority_available_ms {
                append_date(out, "wMajorityWriteAvailabilityDate", date(ms));
            }
            out.end();
        } else if let Some(participant) = &self.metrics.participant {
            out.start_document("electionParticipantMetrics")
                .append("votedForCandidate", participant.voted)
                .append("electionTerm", participant.term.0);
            append_date(out, "lastVoteDate", date(participant.at_ms));
            out.append("electionCandidateMemberId", participant.candidate_id as i32)
                .append("voteReason", participant.reason.as_str());
            append_optime(out, "lastWrittenOpTimeAtElection", participant.written);
            append_optime(out, "maxWrittenOpTimeInSet", participant.newest_in_set);
            append_optime(out, "lastAppliedOpTimeAtElection", participant.written);
            append_optime(out, "maxAppliedOpTimeInSet", participant.newest_in_set);
            out.append("priorityAtElection", participant.priority);
            if let (Some(start), Some(applied)) =
                (participant.term_start_wall_ms, participant.term_applied_ms)
            {
                append_date(out, "newTermStartDate", start);
                append_date(out, "newTermAppliedDate", date(applied));
            }
            out.end();
        }
    }
}
