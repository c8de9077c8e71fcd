//! Whom a member votes for.
//!
//! Source: replication document, "Voter Perspective"; the order of the rules and their wording are
//! MongoDB's.

use pinion_clock::{OpTime, Term};

use crate::config::{Config, ConfigVersion};
use crate::message::VoteRequest;

/// The vote that a member gave last. It is on disk before the candidate hears of it: a member that
/// restarts must not vote twice in a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastVote {
    pub term: Term,
    pub candidate_index: usize,
}

/// The member that is asked. It has taken over the term of the request if that was the later one.
#[derive(Clone, Copy, Debug)]
pub struct VoterState<'a> {
    pub config: &'a Config,
    /// Its own index in the configuration.
    pub me: usize,
    pub term: Term,
    /// The last entry of its oplog, applied or not.
    pub last_written: OpTime,
    pub last_vote: Option<LastVote>,
    /// The indexes of the members that are up and say that they are primaries.
    pub healthy_primaries: &'a [usize],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// With the vote to write down first; a dry run has none.
    Granted { record: Option<LastVote> },
    /// With the reason, which the candidate gets.
    Refused(String),
}

pub fn judge_vote(me: &VoterState<'_>, request: &VoteRequest) -> Verdict {
    match refusal(me, request) {
        Some(reason) => Verdict::Refused(reason),
        None => Verdict::Granted {
            record: (!request.dry_run).then_some(LastVote {
                term: request.term,
                candidate_index: request.candidate_index,
            }),
        },
    }
}

fn refusal(me: &VoterState<'_>, request: &VoteRequest) -> Option<String> {
    let host = |index: usize| match me.config.members.get(index) {
        Some(member) => member.host.to_string(),
        None => format!("member {index}"),
    };
    if request.term < me.term {
        return Some(format!(
            "candidate's term ({}) is lower than mine ({})",
            request.term, me.term
        ));
    }
    let mine = me.config.config_version();
    if mine.is_newer_than(request.config) {
        return Some(format!(
            "candidate's config with {} is older than mine with {}",
            version_and_term(request.config),
            version_and_term(mine)
        ));
    }
    if request.set_name != me.config.id {
        return Some(format!(
            "candidate's set name ({}) differs from mine ({})",
            request.set_name, me.config.id
        ));
    }
    if request.last_written < me.last_written {
        return Some(format!(
            "candidate's data is staler than mine. candidate's last applied OpTime: {}, my last applied OpTime: {}",
            request.last_written, me.last_written
        ));
    }
    if let Some(vote) = me.last_vote
        && vote.term == request.term
        && !request.dry_run
    {
        return Some(format!(
            "already voted for another candidate ({}) this term ({})",
            host(vote.candidate_index),
            vote.term
        ));
    }
    // Two members that cannot see each other but see the arbiter would otherwise take turns as the
    // primary.
    if me.config.members[me.me].arbiter_only
        && let Some(primary) = primary_no_worse(me, request.candidate_index)
    {
        return Some(format!(
            "can see a healthy primary ({}) of equal or greater priority",
            host(primary)
        ));
    }
    None
}

/// A healthy primary other than the candidate whose priority is no lower. A candidate that the
/// configuration here does not know has the lowest.
fn primary_no_worse(me: &VoterState<'_>, candidate: usize) -> Option<usize> {
    let priority = |index: usize| me.config.members.get(index).map_or(0.0, |m| m.priority);
    let mut primaries = me.healthy_primaries.iter().copied();
    primaries.find(|primary| *primary != candidate && priority(*primary) >= priority(candidate))
}

fn version_and_term(config: ConfigVersion) -> String {
    format!("{{version: {}, term: {}}}", config.version, config.term)
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::super::testing::{at, config, plain};
    use super::*;

    fn voter(config: &Config) -> VoterState<'_> {
        VoterState {
            config,
            me: 2,
            term: Term(5),
            last_written: at(4, 10),
            last_vote: Some(LastVote {
                term: Term(4),
                candidate_index: 0,
            }),
            healthy_primaries: &[],
        }
    }

    /// Of the member with the index 1, for the term of the voter, with nothing to refuse.
    fn request() -> VoteRequest {
        VoteRequest {
            set_name: "rs".into(),
            term: Term(5),
            candidate_index: 1,
            config: ConfigVersion {
                term: 1,
                version: 1,
            },
            last_written: at(4, 10),
            dry_run: false,
        }
    }

    #[track_caller]
    fn check(me: VoterState<'_>, request: VoteRequest, expected: Result<(), &str>) {
        let verdict = judge_vote(&me, &request);
        let record = (!request.dry_run).then_some(LastVote {
            term: request.term,
            candidate_index: request.candidate_index,
        });
        let expected = match expected {
            Ok(()) => Verdict::Granted { record },
            Err(reason) => Verdict::Refused(reason.into()),
        };
        assert_eq!(verdict, expected);
    }

    #[test]
    fn granted() {
        let config = plain(3);
        let me = voter(&config);
        check(me, request(), Ok(()));
        let dry_run = true;
        check(
            me,
            VoteRequest {
                dry_run,
                ..request()
            },
            Ok(()),
        );
        let ahead = VoteRequest {
            last_written: at(5, 1),
            term: Term(7),
            config: ConfigVersion {
                term: 2,
                version: 1,
            },
            candidate_index: 40,
            ..request()
        };
        check(me, ahead, Ok(()));
    }

    #[test]
    fn refused() {
        let config = plain(3);
        let me = voter(&config);
        let term = VoteRequest {
            term: Term(4),
            ..request()
        };
        check(me, term, Err("candidate's term (4) is lower than mine (5)"));
        let older = |term, version| VoteRequest {
            config: ConfigVersion { term, version },
            ..request()
        };
        check(
            me,
            older(0, 9),
            Err(
                "candidate's config with {version: 9, term: 0} is older than mine with {version: 1, term: 1}",
            ),
        );
        check(
            me,
            older(1, 0),
            Err(
                "candidate's config with {version: 0, term: 1} is older than mine with {version: 1, term: 1}",
            ),
        );
        let name = VoteRequest {
            set_name: "other".into(),
            ..request()
        };
        check(
            me,
            name,
            Err("candidate's set name (other) differs from mine (rs)"),
        );
        // An entry of an older term is the staler one, whatever its timestamp.
        let stale = VoteRequest {
            last_written: at(3, 99),
            ..request()
        };
        check(
            me,
            stale,
            Err(
                "candidate's data is staler than mine. candidate's last applied OpTime: { ts: Timestamp(99, 1), t: 3 }, my last applied OpTime: { ts: Timestamp(10, 1), t: 4 }",
            ),
        );
    }

    #[test]
    fn one_vote_a_term() {
        let config = plain(3);
        let voted = |index| VoterState {
            last_vote: Some(LastVote {
                term: Term(5),
                candidate_index: index,
            }),
            ..voter(&config)
        };
        check(
            voted(0),
            request(),
            Err("already voted for another candidate (host0:27017) this term (5)"),
        );
        check(
            voted(9),
            request(),
            Err("already voted for another candidate (member 9) this term (5)"),
        );
        let dry_run = VoteRequest {
            dry_run: true,
            ..request()
        };
        check(voted(0), dry_run, Ok(()));
        let next = VoteRequest {
            term: Term(6),
            ..request()
        };
        check(voted(0), next, Ok(()));
    }

    #[test]
    fn an_arbiter_keeps_a_primary_that_is_no_worse() {
        let set = |first, second| {
            config(&[
                rawdoc! { "priority": first },
                rawdoc! { "priority": second },
                rawdoc! { "arbiterOnly": true },
            ])
        };
        let seen = "can see a healthy primary (host0:27017) of equal or greater priority";
        fn sees<'a>(config: &'a Config, healthy_primaries: &'a [usize]) -> VoterState<'a> {
            VoterState {
                healthy_primaries,
                ..voter(config)
            }
        }
        let equal = set(1, 1);
        check(sees(&equal, &[0]), request(), Err(seen));
        check(sees(&equal, &[]), request(), Ok(()));
        check(sees(&equal, &[1]), request(), Ok(()));
        let dry_run = VoteRequest {
            dry_run: true,
            ..request()
        };
        check(sees(&equal, &[0]), dry_run, Err(seen));
        check(sees(&set(2, 1), &[0]), request(), Err(seen));
        check(sees(&set(1, 2), &[0]), request(), Ok(()));
        // A member that bears data does not go by it.
        check(sees(&plain(3), &[0]), request(), Ok(()));
    }
}
