//! The states of a member of a replica set, which the server, its members and its clients have in
//! common.

/// What a member of a replica set is doing, by the numbers and names that clients and other members
/// know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum MemberState {
    /// It has no configuration yet.
    Startup = 0,
    Primary = 1,
    Secondary = 2,
    /// It has data that is not fit to be read now.
    Recovering = 3,
    /// It copies all data from another member.
    Startup2 = 5,
    /// Nothing is known of it; never a member's own state.
    Unknown = 6,
    Arbiter = 7,
    /// It does not answer; never a member's own state.
    Down = 8,
    Rollback = 9,
    /// The configuration names it no longer.
    Removed = 10,
}

impl MemberState {
    pub const ALL: [MemberState; 10] = [
        MemberState::Startup,
        MemberState::Primary,
        MemberState::Secondary,
        MemberState::Recovering,
        MemberState::Startup2,
        MemberState::Unknown,
        MemberState::Arbiter,
        MemberState::Down,
        MemberState::Rollback,
        MemberState::Removed,
    ];

    /// As heartbeats and `replSetGetStatus` have it.
    pub fn number(self) -> i32 {
        self as i32
    }

    pub fn from_number(number: i64) -> Option<MemberState> {
        let mut all = MemberState::ALL.into_iter();
        all.find(|state| i64::from(state.number()) == number)
    }

    /// `stateStr` of `replSetGetStatus`, which says `(not reachable/healthy)` in place of `DOWN`.
    pub fn name(self) -> &'static str {
        match self {
            MemberState::Startup => "STARTUP",
            MemberState::Primary => "PRIMARY",
            MemberState::Secondary => "SECONDARY",
            MemberState::Recovering => "RECOVERING",
            MemberState::Startup2 => "STARTUP2",
            MemberState::Unknown => "UNKNOWN",
            MemberState::Arbiter => "ARBITER",
            MemberState::Down => "DOWN",
            MemberState::Rollback => "ROLLBACK",
            MemberState::Removed => "REMOVED",
        }
    }

    /// Whether its data is of one moment of the set's history.
    pub fn is_readable(self) -> bool {
        matches!(self, MemberState::Primary | MemberState::Secondary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names() {
        let names: Vec<&str> = (-1..12)
            .filter_map(MemberState::from_number)
            .map(MemberState::name)
            .collect();
        let expected = [
            "STARTUP",
            "PRIMARY",
            "SECONDARY",
            "RECOVERING",
            "STARTUP2",
            "UNKNOWN",
            "ARBITER",
            "DOWN",
            "ROLLBACK",
            "REMOVED",
        ];
        assert_eq!(names, expected);
        assert_eq!(MemberState::from_number(4), None);
        assert!(MemberState::Secondary.is_readable());
        assert!(!MemberState::Recovering.is_readable());
    }
}
