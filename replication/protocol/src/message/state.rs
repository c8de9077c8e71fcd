//! The states of a member, with the numbers and names that clients see.

use std::fmt;

/// The state of a member of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberState {
    /// It has no configuration yet.
    Startup,
    Primary,
    Secondary,
    /// It has data that nobody may read yet, or is in maintenance.
    Recovering,
    /// In initial sync.
    Startup2,
    /// Nothing has been heard of it.
    Unknown,
    Arbiter,
    /// It does not answer.
    Down,
    Rollback,
    /// The configuration does not name it.
    Removed,
}

const STATES: [(i32, &str, MemberState); 10] = [
    (0, "STARTUP", MemberState::Startup),
    (1, "PRIMARY", MemberState::Primary),
    (2, "SECONDARY", MemberState::Secondary),
    (3, "RECOVERING", MemberState::Recovering),
    (5, "STARTUP2", MemberState::Startup2),
    (6, "UNKNOWN", MemberState::Unknown),
    (7, "ARBITER", MemberState::Arbiter),
    (8, "DOWN", MemberState::Down),
    (9, "ROLLBACK", MemberState::Rollback),
    (10, "REMOVED", MemberState::Removed),
];

impl MemberState {
    pub fn from_number(number: i64) -> Option<MemberState> {
        let found = STATES.iter().find(|(n, _, _)| i64::from(*n) == number);
        found.map(|(_, _, state)| *state)
    }

    fn row(self) -> (i32, &'static str) {
        let found = STATES.iter().find(|(_, _, state)| *state == self);
        let (number, name, _) = found.expect("every state stands in the table");
        (*number, name)
    }

    /// `state` of a member.
    pub fn number(self) -> i32 {
        self.row().0
    }

    /// `stateStr` of a member.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Whether clients may read there, and other members may sync from it.
    pub fn is_readable(self) -> bool {
        matches!(self, MemberState::Primary | MemberState::Secondary)
    }
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names() {
        let names: Vec<(i32, String)> = (0..12)
            .filter_map(MemberState::from_number)
            .map(|state| (state.number(), state.to_string()))
            .collect();
        let expected: Vec<(i32, String)> =
            STATES.iter().map(|(n, s, _)| (*n, (*s).into())).collect();
        assert_eq!(names, expected);
        assert_eq!(MemberState::from_number(4), None);
        assert!(MemberState::Secondary.is_readable());
        assert!(!MemberState::Recovering.is_readable());
    }
}
