//! Which members have to be ready before a build of indexes is committed.
//!
//! Source: execution document, "Commit Quorum". It is the configuration of the moment that counts,
//! so a member that was taken out of the set is not waited for.

use crate::config::{Config, HostPort, Member};

/// Members that bear data and vote.
const VOTING_MEMBERS: &str = "votingMembers";
const MAJORITY: &str = "majority";

/// A commit quorum.
#[derive(Clone, Copy, Debug)]
pub enum Readiness<'q> {
    /// This number of members.
    Members(usize),
    /// `votingMembers`, `majority`, or a mode of the configuration.
    Mode(&'q str),
}

/// Whether the members that are ready, by their names in the configuration, are enough. A mode that
/// the configuration lacks by now is not met by any.
pub fn is_ready(config: &Config, ready: &[HostPort], wanted: Readiness<'_>) -> bool {
    let bearing = config.members.iter().filter(|member| !member.arbiter_only);
    let is_ready = |member: &&Member| ready.contains(&member.host);
    let voters = bearing.clone().filter(|member| member.is_voter());
    match wanted {
        Readiness::Members(count) => voters.filter(is_ready).count() >= count,
        Readiness::Mode(VOTING_MEMBERS) => voters.clone().all(|member| is_ready(&member)),
        Readiness::Mode(MAJORITY) => voters.filter(is_ready).count() >= config.write_majority(),
        Readiness::Mode(name) => {
            let mode = config.settings.modes.iter().find(|mode| mode.name == name);
            mode.is_some_and(|mode| mode.is_satisfied_by(bearing.filter(is_ready)))
        }
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::*;

    fn config() -> Config {
        let member = |id: i32, more: RawDocumentBuf| {
            let mut member = pinion_bson::DocBuilder::new();
            member
                .append("_id", id)
                .append("host", format!("h{id}:1").as_str())
                .append_all(&more);
            member.finish()
        };
        let document = rawdoc! {
            "_id": "rs", "version": 1, "protocolVersion": 1_i64,
            "members": [
                member(0, rawdoc! { "tags": { "dc": "a" } }),
                member(1, rawdoc! { "tags": { "dc": "b" } }),
                member(2, rawdoc! { "tags": { "dc": "b" } }),
                member(3, rawdoc! { "votes": 0, "priority": 0, "tags": { "dc": "c" } }),
                member(4, rawdoc! { "arbiterOnly": true }),
            ],
            "settings": { "getLastErrorModes": { "two": { "dc": 2 } } },
        };
        Config::parse(&document).expect("a configuration")
    }

    #[track_caller]
    fn check(ready: &[u32], wanted: Readiness<'_>, expected: bool) {
        let host = |id: &u32| HostPort::parse(&format!("h{id}:1")).expect("a host");
        let hosts: Vec<HostPort> = ready.iter().map(host).collect();
        let found = is_ready(&config(), &hosts, wanted);
        assert_eq!(found, expected, "{ready:?} {wanted:?}");
    }

    #[test]
    fn members_that_are_waited_for() {
        use Readiness::{Members, Mode};

        check(&[], Members(0), true);
        check(&[0], Members(1), true);
        check(&[0, 1], Members(3), false);
        check(&[0, 1, 3], Members(3), false);
        check(&[0, 1, 2], Members(3), true);
        check(&[0, 1], Mode("votingMembers"), false);
        check(&[0, 1, 3, 9], Mode("votingMembers"), false);
        check(&[0, 1, 2], Mode("votingMembers"), true);
        check(&[0, 1], Mode("majority"), false);
        check(&[0, 1, 2], Mode("majority"), true);
        check(&[1, 2], Mode("two"), false);
        check(&[1, 3], Mode("two"), true);
        check(&[0, 1, 2, 3], Mode("unknown"), false);
    }
}
