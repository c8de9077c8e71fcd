//! When a member runs for election, and when a primary steps down.
//!
//! Source: replication document, "Elections".

use super::write_concern::{Holders, MemberConcern, is_satisfied};
use super::{Position, assert_by_member};
use crate::config::Config;

/// How long after it last heard of a primary a member runs for election. The random part, of which
/// `random` is any number, keeps members from running all at once; it is at most this fraction of
/// the whole.
pub fn election_timeout_ms(config: &Config, offset_fraction: f64, random: u64) -> u64 {
    let timeout = timeout_ms(config);
    let offset_limit = (timeout as f64 * offset_fraction).round() as u64;
    timeout + random % offset_limit.max(1)
}

/// How long a member that has a higher priority than the primary waits before it runs for election:
/// the longer, the more members have a higher one than itself.
pub fn priority_takeover_delay_ms(config: &Config, me: usize) -> u64 {
    let mine = config.members[me].priority;
    let rank = config.members.iter().filter(|m| m.priority > mine).count() as u64;
    timeout_ms(config).saturating_mul(rank + 1)
}

fn timeout_ms(config: &Config) -> u64 {
    let timeout = config.settings.election_timeout_ms;
    u64::try_from(timeout).expect("a configuration's election timeout is positive")
}

/// A `replSetStepDown` that waits for its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepDownAttempt {
    /// Until then secondaries may catch up.
    pub wait_until_ms: u64,
    /// Until then the member is not to be elected again.
    pub step_down_until_ms: u64,
    /// Whether to step down at `wait_until_ms` even if none has.
    pub force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepDown {
    Now,
    /// To be asked again when positions change or `wait_until_ms` has come.
    Wait,
}

/// Why an attempt to step down is over, and the node stays primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoStepDown {
    /// The time until which it was not to be elected again has passed.
    TooLate,
    /// No majority with an electable secondary in it has all that the primary has.
    NotCaughtUp,
}

/// Whether the primary may step down now. `secondaries` says of each member whether it is up and a
/// secondary.
///
/// # Errors
/// The attempt is over, and the node stays primary.
pub fn may_step_down(
    config: &Config,
    me: usize,
    positions: &[Position],
    secondaries: &[bool],
    attempt: StepDownAttempt,
    now_ms: u64,
) -> Result<StepDown, NoStepDown> {
    if now_ms >= attempt.step_down_until_ms {
        return Err(NoStepDown::TooLate);
    }
    let waited = now_ms >= attempt.wait_until_ms;
    if (waited && attempt.force) || is_safe_to_step_down(config, me, positions, secondaries) {
        return Ok(StepDown::Now);
    }
    match waited {
        true => Err(NoStepDown::NotCaughtUp),
        false => Ok(StepDown::Wait),
    }
}

/// Whether a majority, and in it a secondary that can be elected, has applied all that the primary
/// has.
fn is_safe_to_step_down(
    config: &Config,
    me: usize,
    positions: &[Position],
    secondaries: &[bool],
) -> bool {
    assert_by_member(config, positions);
    assert_by_member(config, secondaries);
    let last_applied = positions[me].applied;
    let majority = MemberConcern {
        holders: Holders::Majority,
        journaled: Some(false),
    };
    let successor = |index: usize| {
        index != me
            && secondaries[index]
            && config.members[index].is_electable()
            && positions[index].applied >= last_applied
    };
    is_satisfied(config, positions, me, last_applied, majority)
        && (0..config.members.len()).any(successor)
}

/// Whether a primary has not heard, directly or through others, from a majority for an election
/// timeout, so that another may have been elected. `last_update_ms` has for each member when
/// something was last heard of it, and no earlier time than that at which this one became the
/// primary.
pub fn has_lost_majority(config: &Config, me: usize, last_update_ms: &[u64], now_ms: u64) -> bool {
    assert_by_member(config, last_update_ms);
    let timeout = timeout_ms(config);
    let members = config.members.iter().zip(last_update_ms).enumerate();
    let alive = members.filter(|(index, (member, last_update))| {
        member.is_voter() && (*index == me || now_ms.saturating_sub(**last_update) < timeout)
    });
    alive.count() < config.majority_votes()
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;
    use pinion_clock::OpTime;

    use super::super::limits::ELECTION_OFFSET_FRACTION;
    use super::super::testing::{at, both, config, plain, with_settings};
    use super::*;

    #[test]
    fn election_timeouts() {
        #[track_caller]
        fn check(timeout_ms: i64, random: u64, expected: u64) {
            let settings = rawdoc! { "electionTimeoutMillis": timeout_ms };
            let set = with_settings(&[rawdoc! {}], settings);
            assert_eq!(
                election_timeout_ms(&set, ELECTION_OFFSET_FRACTION, random),
                expected
            );
        }
        check(10_000, 0, 10_000);
        check(10_000, 1_499, 11_499);
        check(10_000, 1_500, 10_000);
        check(1, u64::MAX, 1);
        check(100, 29, 114);
    }

    #[test]
    fn takeovers() {
        let set = config(&[
            rawdoc! { "priority": 1 },
            rawdoc! { "priority": 2 },
            rawdoc! { "priority": 3 },
            rawdoc! { "priority": 2 },
        ]);
        let delays = [0, 1, 2, 3].map(|me| priority_takeover_delay_ms(&set, me));
        assert_eq!(delays, [40_000, 20_000, 10_000, 20_000]);
    }

    /// Of the first member, whose last entry is of second 9, 1 s before it gives up waiting and at
    /// that time, without and with force.
    #[track_caller]
    fn check(
        config: &Config,
        others: &[(OpTime, bool)],
        before: StepDown,
        after: Result<StepDown, NoStepDown>,
        forced: Result<StepDown, NoStepDown>,
    ) {
        let mut positions = vec![both(at(2, 9))];
        positions.extend(others.iter().map(|(applied, _)| both(*applied)));
        let mut secondaries = vec![false];
        secondaries.extend(others.iter().map(|(_, secondary)| secondary));
        let attempt = |force, now_ms| {
            let attempt = StepDownAttempt {
                wait_until_ms: 10_000,
                step_down_until_ms: 60_000,
                force,
            };
            may_step_down(config, 0, &positions, &secondaries, attempt, now_ms)
        };
        assert_eq!(attempt(false, 9_000), Ok(before));
        assert_eq!(attempt(true, 9_000), Ok(before));
        assert_eq!(attempt(false, 10_000), after);
        assert_eq!(attempt(true, 10_000), forced);
        assert_eq!(attempt(true, 60_000), Err(NoStepDown::TooLate));
    }

    #[test]
    fn step_downs() {
        use NoStepDown::NotCaughtUp;
        use StepDown::{Now, Wait};
        let (caught_up, behind) = (at(2, 9), at(2, 8));
        let three = plain(3);
        let safe = [(caught_up, true), (behind, true)];
        check(&three, &safe, Now, Ok(Now), Ok(Now));
        let none = [(behind, true), (behind, true)];
        check(&three, &none, Wait, Err(NotCaughtUp), Ok(Now));
        let not_secondary = [(caught_up, false), (behind, true)];
        check(&three, &not_secondary, Wait, Err(NotCaughtUp), Ok(Now));
        let five = plain(5);
        let minority = [
            (caught_up, true),
            (behind, true),
            (behind, true),
            (behind, true),
        ];
        check(&five, &minority, Wait, Err(NotCaughtUp), Ok(Now));
        let unelectable = config(&[rawdoc! {}, rawdoc! { "priority": 0 }, rawdoc! {}]);
        check(&unelectable, &safe, Wait, Err(NotCaughtUp), Ok(Now));
        check(&plain(1), &[], Wait, Err(NotCaughtUp), Ok(Now));
    }

    #[test]
    fn liveness() {
        /// For the first member, at 20 s with a timeout of 10 s.
        #[track_caller]
        fn check(config: &Config, last_update_secs: &[u64], expected: bool) {
            let last_update_ms: Vec<u64> = last_update_secs.iter().map(|s| s * 1_000).collect();
            let lost = has_lost_majority(config, 0, &last_update_ms, 20_000);
            assert_eq!(lost, expected);
        }
        check(&plain(3), &[0, 11, 0], false);
        check(&plain(3), &[0, 10, 10], true);
        check(&plain(4), &[0, 11, 10, 10], true);
        check(&plain(4), &[0, 11, 25, 10], false);
        check(&plain(1), &[0], false);
        // An arbiter keeps a primary alive; a member without a vote does not.
        let arbiter = config(&[rawdoc! {}, rawdoc! {}, rawdoc! { "arbiterOnly": true }]);
        check(&arbiter, &[0, 0, 15], false);
        let silent = config(&[
            rawdoc! {},
            rawdoc! {},
            rawdoc! { "votes": 0, "priority": 0 },
        ]);
        check(&silent, &[0, 0, 15], true);
    }
}
