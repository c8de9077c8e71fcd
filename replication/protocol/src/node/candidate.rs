//! The candidate's side of an election: a dry run, then a real one.
//!
//! Source: replication document, "Candidate Perspective".

use pinion_bson::RawDocumentBuf;
use pinion_clock::Term;
use pinion_wire::{Error, ErrorCode, MemberState, Result};

use super::{AfterVote, CommandId, Node, Note, Pending, Role};
use crate::config::HostPort;
use crate::decision::LastVote;
use crate::message::{MAX_TERM, Request, VoteRequest, VoteResponse};

/// Why a node stands for election, as MongoDB names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    ElectionTimeout,
    PriorityTakeover,
    CatchupTakeover,
    StepUp,
    StepUpSkipDryRun,
    SingleNode,
}

impl Reason {
    pub(super) fn name(self) -> &'static str {
        match self {
            Reason::ElectionTimeout => "electionTimeout",
            Reason::PriorityTakeover => "priorityTakeover",
            Reason::CatchupTakeover => "catchupTakeover",
            Reason::StepUp => "stepUpRequest",
            Reason::StepUpSkipDryRun => "stepUpRequestSkipDryRun",
            Reason::SingleNode => "singleNodePromptElection",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    DryRun,
    /// The vote for itself is not durable yet.
    OwnVote,
    Asking,
}

/// An election in which this node stands.
#[derive(Debug)]
pub(super) struct Candidacy {
    reason: Reason,
    phase: Phase,
    /// The members that voted for this node, itself included.
    votes: usize,
    /// The members that have not answered.
    waiting: Vec<usize>,
    /// A primary that is to be overtaken must agree that it is behind.
    must_agree: Option<usize>,
    command: Option<CommandId>,
}

impl Node {
    pub(super) fn election_timed_out(&mut self) {
        self.suspicion_is_acted_upon();
        self.postpone_election();
        // Nothing is to be done if this node cannot stand: it looks again after the next time-out.
        self.stand(Reason::ElectionTimeout, None).ok();
    }

    /// If it is the primary that is gone, an election is due soon.
    pub(super) fn suspect(&mut self, host: &HostPort) {
        let is_primary = self
            .primary
            .is_some_and(|at| self.member(at).host == *host && Some(at) != self.self_index());
        if let (true, Some(due)) = (is_primary, self.election_due_ms) {
            let wait = self.standing_offset_ms();
            let soon = self.after_ms(wait);
            self.election_due_ms = Some(due.min(soon));
        }
    }

    /// Where no primary has ever written there is none to wait for: an election begins as soon as a
    /// majority has the configuration.
    pub(super) fn hasten_first_election(&mut self) {
        let (Some(config), Some(due_ms)) = (self.config(), self.election_due_ms) else {
            return;
        };
        let written = self.latest_known().term > Term::INITIAL;
        if written || self.primary.is_some() || self.unelectable_reason().is_some() {
            return;
        }
        let own = Some(self.config_id());
        let ready = self.others().filter(|(at, peer)| {
            peer.is_up() && config.members[*at].is_voter() && peer.config == own
        });
        if ready.count() + 1 >= config.majority_votes() {
            let wait_ms = self.standing_offset_ms();
            self.election_due_ms = Some(due_ms.min(self.after_ms(wait_ms)));
        }
    }

    /// A set of one needs no other vote, so it does not wait.
    pub(super) fn elect_alone(&mut self) {
        let alone = self.peers.len() == 1 && self.state() == MemberState::Secondary;
        if alone && self.abstains_until_ms <= self.now.ms {
            self.stand(Reason::SingleNode, None).ok();
        }
    }

    pub(super) fn step_up_command(&mut self, id: CommandId, skip_dry_run: bool) {
        if self.is_primary() {
            return self.reply(id, Ok(RawDocumentBuf::new()));
        }
        let reason = match skip_dry_run {
            true => Reason::StepUpSkipDryRun,
            false => Reason::StepUp,
        };
        if let Err(why) = self.stand(reason, Some(id)) {
            self.reply(id, Err(election_failed(why)));
        }
    }

    /// Begins an election.
    pub(super) fn stand(
        &mut self,
        reason: Reason,
        command: Option<CommandId>,
    ) -> Result<(), &'static str> {
        if !matches!(self.role, Role::Follower) {
            return Err("an election is under way");
        }
        if self.change.is_some() {
            return Err("the configuration is being changed");
        }
        if let Some(why) = self.unelectable_reason() {
            return Err(why);
        }
        if self.term >= MAX_TERM {
            return Err("there are no more terms");
        }
        assert_eq!(
            self.state(),
            MemberState::Secondary,
            "only a secondary stands for election"
        );
        self.takeover = None;
        self.postpone_election();
        self.suspicion_is_acted_upon();
        let must_agree = match reason {
            Reason::CatchupTakeover => self.primary,
            _ => None,
        };
        self.role = Role::Candidate(Candidacy {
            reason,
            phase: Phase::DryRun,
            votes: 0,
            waiting: Vec::new(),
            must_agree,
            command,
        });
        self.note_candidacy(reason);
        self.count_election(reason);
        let skip = matches!(reason, Reason::StepUpSkipDryRun | Reason::SingleNode);
        self.note(Note::Election {
            reason: reason.name(),
            term: self.term,
            dry_run: !skip,
        });
        match skip {
            true => self.vote_for_itself(),
            false => self.request_votes(true),
        }
        Ok(())
    }

    fn candidacy(&mut self) -> Option<&mut Candidacy> {
        match &mut self.role {
            Role::Candidate(candidacy) => Some(candidacy),
            Role::Follower | Role::Leader(_) => None,
        }
    }

    fn request_votes(&mut self, dry_run: bool) {
        let config = self.config().expect("a candidate is a member");
        let own = self.self_index().expect("a candidate is a member");
        let voters = config.members.iter().enumerate();
        let others: Vec<usize> = voters
            .filter(|(at, member)| member.is_voter() && *at != own)
            .map(|(at, _)| at)
            .collect();
        let request = VoteRequest {
            set_name: self.identity.set_name.clone(),
            dry_run,
            term: self.term,
            candidate_index: own,
            config: self.config_id(),
            last_written: self.written().optime,
        };
        let timeout_ms = self.election_timeout_ms();
        for at in &others {
            let host = self.member(*at).host.clone();
            let request = Request::Votes(request.clone());
            self.send(host, request, timeout_ms, Pending::Vote { index: *at });
        }
        assert!(self.member(own).is_voter(), "one that can be elected votes");
        let candidacy = self.candidacy().expect("a candidate asks for votes");
        candidacy.waiting = others;
        candidacy.votes = 1;
        self.count_votes();
    }

    /// The real election begins: a new term, and the own vote, which is durable before others are
    /// asked.
    fn vote_for_itself(&mut self) {
        self.forget_vote_requests();
        let own = self.self_index().expect("a candidate is a member");
        self.term = Term(self.term.0 + 1);
        self.note_real_election();
        let candidacy = self.candidacy().expect("a candidate votes for itself");
        candidacy.phase = Phase::OwnVote;
        let vote = LastVote {
            term: self.term,
            candidate_index: own,
        };
        self.cast(vote, AfterVote::AskOthers);
    }

    pub(super) fn ask_for_votes(&mut self, term: Term) {
        let current = term == self.term;
        let Some(candidacy) = self.candidacy() else {
            return;
        };
        // It may have stood again since.
        if !current || candidacy.phase != Phase::OwnVote {
            return;
        }
        candidacy.phase = Phase::Asking;
        self.request_votes(false);
    }

    pub(super) fn vote_response(&mut self, index: usize, reply: Result<RawDocumentBuf>) {
        let Some(candidacy) = self.candidacy() else {
            return;
        };
        candidacy.waiting.retain(|at| *at != index);
        let must_agree = candidacy.must_agree == Some(index);
        let response = reply.and_then(|reply| VoteResponse::parse(&reply)).ok();
        if response.is_some() {
            self.heard(index);
        }
        if let Some(response) = &response
            && response.term > self.term
        {
            return self.update_term(response.term);
        }
        let granted = response.is_some_and(|response| response.granted);
        if must_agree && !granted {
            return self.end_candidacy("the primary did not agree that it is behind");
        }
        if granted && let Some(candidacy) = self.candidacy() {
            candidacy.votes += 1;
            if must_agree {
                candidacy.must_agree = None;
            }
        }
        self.count_votes();
    }

    fn count_votes(&mut self) {
        let needed = self
            .config()
            .map_or(usize::MAX, |config| config.majority_votes());
        let Some(candidacy) = self.candidacy() else {
            return;
        };
        let waits = candidacy
            .must_agree
            .is_some_and(|at| candidacy.phase == Phase::DryRun && candidacy.waiting.contains(&at));
        if candidacy.votes >= needed && !waits {
            match candidacy.phase {
                Phase::DryRun => self.vote_for_itself(),
                Phase::OwnVote => panic!("votes are counted when others were asked"),
                Phase::Asking => self.win(),
            }
        } else if self.waits_for_no_vote() {
            self.end_candidacy("insufficient votes");
        }
    }

    /// Whether all have voted except those that are not heard of.
    fn waits_for_no_vote(&self) -> bool {
        match &self.role {
            Role::Candidate(candidacy) => {
                let mut waiting = candidacy.waiting.iter();
                waiting.all(|at| self.peers[*at].given_up)
            }
            Role::Follower | Role::Leader(_) => false,
        }
    }

    fn win(&mut self) {
        self.forget_vote_requests();
        let role = std::mem::replace(&mut self.role, Role::Follower);
        let Role::Candidate(candidacy) = role else {
            panic!("only a candidate wins");
        };
        self.count_election_won(candidacy.reason);
        self.become_primary();
        if let Some(id) = candidacy.command {
            self.reply(id, Ok(RawDocumentBuf::new()));
        }
    }

    /// Gives up an election, if this node stands in one.
    pub(super) fn end_candidacy(&mut self, why: &'static str) {
        let Role::Candidate(candidacy) = &mut self.role else {
            return;
        };
        let command = candidacy.command.take();
        self.role = Role::Follower;
        self.forget_vote_requests();
        self.note(Note::ElectionLost {
            term: self.term,
            reason: why,
        });
        if let Some(id) = command {
            self.reply(id, Err(election_failed(why)));
        }
    }

    fn forget_vote_requests(&mut self) {
        self.pending
            .retain(|_, pending| !matches!(pending, Pending::Vote { .. }));
    }
}

fn election_failed(why: &str) -> Error {
    Error::new(ErrorCode::COMMAND_FAILED, format!("Election failed. {why}"))
}
