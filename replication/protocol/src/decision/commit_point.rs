//! The commit point: the newest entry that no election can lose.
//!
//! Source: replication document, "Commit Point Propagation".

use pinion_clock::{OpTime, Term};

use super::{Position, assert_by_member};
use crate::config::Config;

/// Where a primary of `term` moves the commit point to, given what every member holds, itself
/// included; `None` where it stays. It only moves forward, and only to an entry of the primary's
/// own term: an entry of an older one may be on a majority and still be replaced by a later
/// election.
pub fn advance_commit_point(
    config: &Config,
    positions: &[Position],
    term: Term,
    current: OpTime,
) -> Option<OpTime> {
    assert_by_member(config, positions);
    let durably = config.write_concern_majority_journal_default;
    let voters = config.members.iter().zip(positions);
    let mut held: Vec<OpTime> = voters
        .filter(|(member, _)| member.is_voter() && !member.arbiter_only)
        .map(|(_, position)| position.held(durably))
        .collect();
    let majority = config.write_majority();
    assert!(
        majority <= held.len(),
        "a majority of members that bear data"
    );
    held.sort_unstable_by(|a, b| b.cmp(a));
    // A set whose voters are all arbiters commits nothing.
    let committed = *held.get(majority.checked_sub(1)?)?;
    (committed.term == term && committed > current).then_some(committed)
}

/// Where a secondary moves the commit point to that a heartbeat reported; `None` where it stays.
/// Without knowing on which branch of history the sender is, it believes only a commit point of the
/// term of its own last entry. That one may lie ahead of what it has applied, so readers go by the
/// smaller of the two.
pub fn commit_point_from_heartbeat(
    learned: OpTime,
    last_applied: OpTime,
    current: OpTime,
) -> Option<OpTime> {
    (learned.term == last_applied.term && learned > current).then_some(learned)
}

/// Where a secondary moves the commit point to that its sync source reported with a batch
/// (`$oplogQueryData`); `None` where it stays. Being on the source's branch, all that it holds
/// below the commit point is committed.
pub fn commit_point_from_sync_source(
    learned: OpTime,
    last_applied: OpTime,
    current: OpTime,
) -> Option<OpTime> {
    let committed = learned.min(last_applied);
    (committed > current).then_some(committed)
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::super::testing::{at, both, config, plain};
    use super::*;

    #[track_caller]
    fn check(config: &Config, positions: &[Position], current: OpTime, expected: Option<OpTime>) {
        assert_eq!(
            advance_commit_point(config, positions, Term(2), current),
            expected
        );
    }

    #[test]
    fn a_majority_of_voters_holds_it() {
        let null = OpTime::NULL;
        let three = plain(3);
        let on = |secs: [u32; 3]| secs.map(|secs| both(at(2, secs)));
        check(&three, &on([9, 7, 5]), null, Some(at(2, 7)));
        check(&three, &on([9, 9, 5]), null, Some(at(2, 9)));
        let alone = [both(at(2, 9)), both(null), both(null)];
        check(&three, &alone, null, None);
        let four = plain(4);
        let half = [at(2, 9), at(2, 8), at(2, 5), at(2, 4)].map(both);
        check(&four, &half, null, Some(at(2, 5)));
        check(&plain(1), &[both(at(2, 3))], null, Some(at(2, 3)));
    }

    #[test]
    fn it_moves_forward_and_within_the_term() {
        let three = plain(3);
        let here = [at(2, 9), at(2, 7), at(1, 5)].map(both);
        check(&three, &here, at(2, 6), Some(at(2, 7)));
        check(&three, &here, at(2, 7), None);
        check(&three, &here, at(2, 8), None);
        // The entry of the older term has the later timestamp, and a majority.
        check(
            &three,
            &[at(2, 9), at(1, 20), at(1, 20)].map(both),
            at(1, 4),
            None,
        );
        check(
            &three,
            &[at(2, 9), at(3, 1), at(3, 1)].map(both),
            at(1, 4),
            None,
        );
    }

    #[test]
    fn journals_count_by_the_configuration() {
        let position = |applied, durable| Position {
            applied: at(2, applied),
            durable: at(2, durable),
        };
        let positions = [position(9, 8), position(7, 6), position(5, 4)];
        let mut three = plain(3);
        check(&three, &positions, OpTime::NULL, Some(at(2, 6)));
        three.write_concern_majority_journal_default = false;
        check(&three, &positions, OpTime::NULL, Some(at(2, 7)));
    }

    #[test]
    fn neither_arbiters_nor_members_without_a_vote_count() {
        let arbiter = config(&[rawdoc! {}, rawdoc! {}, rawdoc! { "arbiterOnly": true }]);
        let positions = [both(at(2, 9)), both(at(2, 7)), both(at(2, 9))];
        check(&arbiter, &positions, OpTime::NULL, Some(at(2, 7)));
        let silent = config(&[
            rawdoc! {},
            rawdoc! {},
            rawdoc! {},
            rawdoc! { "votes": 0, "priority": 0 },
        ]);
        let positions = [at(2, 9), at(2, 3), at(2, 2), at(2, 9)].map(both);
        check(&silent, &positions, OpTime::NULL, Some(at(2, 3)));
        let lone = config(&[
            rawdoc! {},
            rawdoc! { "arbiterOnly": true },
            rawdoc! { "arbiterOnly": true },
        ]);
        let positions = [both(at(2, 9)), Position::default(), Position::default()];
        check(&lone, &positions, OpTime::NULL, Some(at(2, 9)));
    }

    /// For every position of five members: what a majority of them holds, counted.
    #[test]
    fn it_is_the_highest_that_a_majority_holds() {
        let five = plain(5);
        for code in 0..4_u32.pow(5) {
            let secs: Vec<u32> = (0..5).map(|i| code / 4_u32.pow(i) % 4 + 1).collect();
            let positions: Vec<Position> = secs.iter().map(|s| both(at(2, *s))).collect();
            let held = |limit: &u32| secs.iter().filter(|s| *s >= limit).count() >= 3;
            let highest = (1..=4).rev().find(held).map(|secs| at(2, secs));
            check(&five, &positions, OpTime::NULL, highest);
        }
    }

    #[test]
    fn what_a_secondary_learns() {
        type Learn = fn(OpTime, OpTime, OpTime) -> Option<OpTime>;
        #[track_caller]
        fn check(learn: Learn, learned: OpTime, applied: OpTime, expected: Option<OpTime>) {
            assert_eq!(learn(learned, applied, at(2, 5)), expected);
        }
        check(
            commit_point_from_heartbeat,
            at(2, 8),
            at(2, 7),
            Some(at(2, 8)),
        );
        check(commit_point_from_heartbeat, at(2, 5), at(2, 7), None);
        check(commit_point_from_heartbeat, at(2, 4), at(2, 7), None);
        check(commit_point_from_heartbeat, at(3, 8), at(2, 7), None);
        check(commit_point_from_heartbeat, at(2, 8), at(3, 9), None);
        check(
            commit_point_from_sync_source,
            at(2, 6),
            at(2, 7),
            Some(at(2, 6)),
        );
        check(
            commit_point_from_sync_source,
            at(2, 8),
            at(2, 7),
            Some(at(2, 7)),
        );
        check(
            commit_point_from_sync_source,
            at(3, 8),
            at(2, 7),
            Some(at(2, 7)),
        );
        check(commit_point_from_sync_source, at(2, 5), at(2, 7), None);
        check(commit_point_from_sync_source, at(3, 8), at(2, 4), None);
    }
}
