//! Which members have to hold a write before its client hears of it.

use pinion_clock::OpTime;
use pinion_wire::{Error, ErrorCode, Result};

use super::{Position, assert_by_member};
use crate::config::{Config, Member, WriteMode};

/// A write concern, as far as members are concerned.
#[derive(Clone, Copy, Debug)]
pub struct MemberConcern<'m> {
    pub holders: Holders<'m>,
    /// Whether the write has to be in their journals (`j`). Where the client does not say, a
    /// majority goes by the configuration, and all else needs no journal.
    pub journaled: Option<bool>,
}

#[derive(Clone, Copy, Debug)]
pub enum Holders<'m> {
    /// This number of members that bear data, the primary among them.
    Members(usize),
    /// A majority of those that vote.
    Majority,
    /// Members with the tags of a mode.
    Mode(&'m WriteMode),
}

impl MemberConcern<'_> {
    fn durably(self, config: &Config) -> bool {
        let majority = matches!(self.holders, Holders::Majority);
        self.journaled
            .unwrap_or(majority && config.write_concern_majority_journal_default)
    }
}

/// Whether enough members hold the write at `optime`, which the primary with the index `me` made in
/// its present term. A member whose position is of a later term counts for nothing: it may be on
/// another branch of history, whatever its timestamp.
pub fn is_satisfied(
    config: &Config,
    positions: &[Position],
    me: usize,
    optime: OpTime,
    wanted: MemberConcern<'_>,
) -> bool {
    assert_by_member(config, positions);
    let durably = wanted.durably(config);
    let holds = |position: Position| {
        let held = position.held(durably);
        held.term == optime.term && held >= optime
    };
    // Others can be ahead of a primary that is not itself done with the write.
    if !holds(positions[me]) {
        return false;
    }
    let members = config.members.iter().zip(positions);
    let holding = members
        .filter(|(member, position)| !member.arbiter_only && holds(**position))
        .map(|(member, _)| member);
    match wanted.holders {
        Holders::Members(count) => holding.count() >= count,
        Holders::Majority => {
            holding.filter(|member| member.is_voter()).count() >= config.write_majority()
        }
        Holders::Mode(mode) => mode.is_satisfied_by(holding),
    }
}

/// The mode of a name, as the configuration's `getLastErrorModes` defines it.
///
/// # Errors
/// `UnknownReplWriteConcern`.
pub fn find_mode<'c>(config: &'c Config, name: &str) -> Result<&'c WriteMode> {
    let mut modes = config.settings.modes.iter();
    modes.find(|mode| mode.name == name).ok_or_else(|| {
        Error::new(
            ErrorCode::UNKNOWN_REPL_WRITE_CONCERN,
            format!("No write concern mode named '{name}' found in replica set configuration"),
        )
    })
}

/// Whether all members together could satisfy it. One that they cannot is refused at once.
///
/// # Errors
/// `UnsatisfiableWriteConcern`.
pub fn check_satisfiable(config: &Config, wanted: MemberConcern<'_>) -> Result<()> {
    let bearing = config.members.iter().filter(|m: &&Member| !m.arbiter_only);
    let unsatisfiable = match wanted.holders {
        Holders::Members(count) if count > bearing.clone().count() => {
            "Not enough data-bearing nodes".to_owned()
        }
        Holders::Mode(mode) if !mode.is_satisfied_by(bearing) => {
            format!(
                "Not enough nodes match write concern mode \"{}\"",
                mode.name
            )
        }
        Holders::Members(_) | Holders::Majority | Holders::Mode(_) => return Ok(()),
    };
    Err(Error::new(
        ErrorCode::UNSATISFIABLE_WRITE_CONCERN,
        unsatisfiable,
    ))
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::super::testing::{at, both, config, plain, with_settings};
    use super::*;

    fn wanted(holders: Holders<'_>) -> MemberConcern<'_> {
        MemberConcern {
            holders,
            journaled: None,
        }
    }

    /// Whether the write of second 5 of term 2, made by the first member, is where it is wanted.
    #[track_caller]
    fn check(config: &Config, positions: &[Position], wanted: MemberConcern<'_>, expected: bool) {
        let satisfied = is_satisfied(config, positions, 0, at(2, 5), wanted);
        assert_eq!(satisfied, expected, "{wanted:?}");
    }

    #[test]
    fn members_are_counted() {
        let three = plain(3);
        let two_hold = [at(2, 5), at(2, 4), at(2, 6)].map(both);
        check(&three, &two_hold, wanted(Holders::Members(1)), true);
        check(&three, &two_hold, wanted(Holders::Members(2)), true);
        check(&three, &two_hold, wanted(Holders::Members(3)), false);
        check(&three, &two_hold, wanted(Holders::Majority), true);
        let one_holds = [at(2, 5), at(2, 4), at(1, 9)].map(both);
        check(&three, &one_holds, wanted(Holders::Members(2)), false);
        check(&three, &one_holds, wanted(Holders::Majority), false);
        let other_branch = [at(2, 5), at(3, 1), at(3, 9)].map(both);
        check(&three, &other_branch, wanted(Holders::Members(2)), false);
        let primary_behind = [at(2, 4), at(2, 5), at(2, 5)].map(both);
        check(&three, &primary_behind, wanted(Holders::Members(2)), false);
    }

    #[test]
    fn arbiters_and_votes() {
        let arbiter = config(&[rawdoc! {}, rawdoc! {}, rawdoc! { "arbiterOnly": true }]);
        let positions = [at(2, 5), at(2, 4), at(2, 9)].map(both);
        check(&arbiter, &positions, wanted(Holders::Members(2)), false);
        check(&arbiter, &positions, wanted(Holders::Majority), false);
        let silent = config(&[
            rawdoc! {},
            rawdoc! {},
            rawdoc! { "votes": 0, "priority": 0 },
        ]);
        check(&silent, &positions, wanted(Holders::Members(2)), true);
        check(&silent, &positions, wanted(Holders::Majority), false);
    }

    #[test]
    fn journals() {
        let applied = Position {
            applied: at(2, 5),
            durable: at(2, 4),
        };
        let mut three = plain(3);
        let positions = [both(at(2, 5)), applied, applied];
        let with = |holders, journaled| MemberConcern { holders, journaled };
        let two = Holders::Members(2);
        check(&three, &positions, with(two, None), true);
        check(&three, &positions, with(two, Some(true)), false);
        check(&three, &positions, with(Holders::Majority, None), false);
        check(
            &three,
            &positions,
            with(Holders::Majority, Some(false)),
            true,
        );
        three.write_concern_majority_journal_default = false;
        check(&three, &positions, with(Holders::Majority, None), true);
        check(
            &three,
            &positions,
            with(Holders::Majority, Some(true)),
            false,
        );
    }

    fn tagged() -> Config {
        with_settings(
            &[
                rawdoc! { "tags": { "dc": "a" } },
                rawdoc! { "tags": { "dc": "a" } },
                rawdoc! { "tags": { "dc": "b" } },
                rawdoc! { "arbiterOnly": true },
            ],
            rawdoc! { "getLastErrorModes": { "spread": { "dc": 2 } } },
        )
    }

    #[test]
    fn modes() {
        let config = tagged();
        let spread = || wanted(Holders::Mode(find_mode(&config, "spread").unwrap()));
        let near = [at(2, 5), at(2, 5), at(2, 4), OpTime::NULL].map(both);
        check(&config, &near, spread(), false);
        let far = [at(2, 5), at(2, 4), at(2, 5), OpTime::NULL].map(both);
        check(&config, &far, spread(), true);
    }

    #[test]
    fn what_no_set_of_members_satisfies() {
        #[track_caller]
        fn check(outcome: Result<()>, expected: Option<(i32, &str)>) {
            let refused = outcome.err().map(|error| (error.code.0, error.message));
            let refused = refused.as_ref().map(|(code, text)| (*code, text.as_ref()));
            assert_eq!(refused, expected);
        }
        let config = tagged();
        let satisfiable = |holders| check_satisfiable(&config, wanted(holders));
        check(satisfiable(Holders::Members(3)), None);
        check(
            satisfiable(Holders::Members(4)),
            Some((100, "Not enough data-bearing nodes")),
        );
        check(satisfiable(Holders::Majority), None);
        let three = WriteMode {
            name: "three".into(),
            tags: vec![("dc".into(), 3)],
        };
        check(
            satisfiable(Holders::Mode(&three)),
            Some((100, "Not enough nodes match write concern mode \"three\"")),
        );
        check(find_mode(&config, "spread").map(drop), None);
        check(
            find_mode(&config, "x").map(drop),
            Some((
                79,
                "No write concern mode named 'x' found in replica set configuration",
            )),
        );
    }
}
