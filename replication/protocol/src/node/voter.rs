//! The voter's side of an election.
//!
//! Source: replication document, "Voter Perspective".

use pinion_clock::Term;
use pinion_wire::{Error, ErrorCode, MemberState, Result};

use super::{AfterVote, CommandId, Effect, Node, Note};
use crate::decision::{LastVote, Verdict, VoterState, judge_vote};
use crate::message::{VoteRequest, VoteResponse};

impl Node {
    pub(super) fn answer_vote(&mut self, id: CommandId, request: &VoteRequest) {
        if let Err(error) = self.can_vote() {
            return self.reply(id, Err(error));
        }
        self.update_term(request.term);
        let verdict = self.judge(request);
        let refused = match &verdict {
            Verdict::Granted { .. } => None,
            Verdict::Refused(why) => Some(why.clone()),
        };
        let response = VoteResponse {
            term: self.term,
            granted: refused.is_none(),
            reason: refused.clone().unwrap_or_default(),
        };
        if !request.dry_run {
            self.note(Note::Voted {
                term: request.term,
                candidate_index: request.candidate_index,
                refused: refused.clone(),
            });
            self.note_vote(request, refused.as_deref());
        }
        match verdict {
            Verdict::Granted { record: Some(vote) } => {
                assert_eq!(vote.term, self.term, "a vote is given in the current term");
                self.postpone_election();
                self.let_another_succeed();
                self.cast(vote, AfterVote::Answer(id, response.to_bson()));
            }
            Verdict::Granted { record: None } => {
                self.give_way();
                self.reply(id, Ok(response.to_bson()));
            }
            Verdict::Refused(_) => {
                self.reply(id, Ok(response.to_bson()));
            }
        }
    }

    fn can_vote(&self) -> Result<()> {
        if self.installed.is_none() {
            return Err(Error::new(
                ErrorCode::NOT_YET_INITIALIZED,
                "no replica set config has been received",
            ));
        }
        match self.self_index() {
            Some(_) => Ok(()),
            None => Err(Error::new(
                ErrorCode::INVALID_REPLICA_SET_CONFIG,
                "Invalid replica set config, or this node is not a member",
            )),
        }
    }

    fn judge(&self, request: &VoteRequest) -> Verdict {
        let primaries = self.others().filter(|(at, peer)| {
            let says = peer.is_up() && peer.state == MemberState::Primary;
            says && !self.hears_nothing_of(*at)
        });
        let primaries: Vec<usize> = primaries.map(|(at, _)| at).collect();
        let me = VoterState {
            config: self.config().expect("a voter is a member"),
            me: self.self_index().expect("a voter is a member"),
            term: self.term,
            last_written: self.written().optime,
            last_vote: self.last_vote,
            healthy_primaries: &primaries,
        };
        judge_vote(&me, request)
    }

    /// Gives the vote of a term, which must be durable before anybody hears of it.
    pub(super) fn cast(&mut self, vote: LastVote, then: AfterVote) {
        let before = self.last_vote.map_or(Term::UNINITIALIZED, |vote| vote.term);
        assert!(vote.term > before, "one vote a term");
        self.last_vote = Some(vote);
        self.votes_to_store.push_back((vote, then));
        self.effects.push(Effect::StoreVote(vote));
    }

    pub(super) fn vote_stored(&mut self, vote: LastVote) {
        let first = self.votes_to_store.pop_front();
        let (first, then) = first.expect("a vote is being made durable");
        assert_eq!(first, vote, "votes become durable in their order");
        match then {
            AfterVote::Answer(id, reply) => self.reply(id, Ok(reply)),
            AfterVote::AskOthers => self.ask_for_votes(vote.term),
        }
    }
}
