//! What is known of a replica set at one moment: immutable, shared by all cores.

use std::time::Duration;

use pinion_bson::ObjectId;
use pinion_clock::OpTime;
use pinion_wire::HostPort;

use crate::connection_string::ConnectionString;

/// What a host is in its set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberKind {
    /// It has not answered, or is no member of this set.
    #[default]
    Unknown,
    Primary,
    Secondary,
    Arbiter,
    /// A member that clients do not read from: hidden, or in a state in which none can.
    Other,
}

/// The last write that a member has applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastWrite {
    /// Milliseconds since 1970, by the clock of the primary that made it.
    pub date_ms: i64,
    pub op_time: OpTime,
}

/// What is known of one host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    pub kind: MemberKind,
    /// Why it is unknown, where something went wrong.
    pub error: Option<String>,
    /// It did not answer or its connection broke, so that others to it are of no use either.
    pub is_unreachable: bool,
    pub tags: Vec<(String, String)>,
    pub is_hidden: bool,
    /// The mean of its round trips, in which later ones count for more, and the least of the last
    /// ones.
    pub rtt: Option<Duration>,
    pub least_rtt: Option<Duration>,
    pub last_write: Option<LastWrite>,
    /// When it reported that, in milliseconds of the monitor's clock.
    pub updated_ms: u64,
    pub min_wire_version: i32,
    pub max_wire_version: i32,
    pub me: Option<HostPort>,
    pub set_version: Option<i64>,
    pub election_id: Option<ObjectId>,
}

impl Member {
    /// Whether clients can read from it.
    pub fn is_readable(&self) -> bool {
        matches!(self.kind, MemberKind::Primary | MemberKind::Secondary)
    }
}

/// What is known of a replica set.
#[derive(Clone, Debug, PartialEq)]
pub struct SetTopology {
    pub name: String,
    /// Grows with each version of the same monitor.
    pub number: u64,
    /// Ascending by host.
    pub members: Vec<(HostPort, Member)>,
}

impl SetTopology {
    pub fn member(&self, host: &HostPort) -> Option<&Member> {
        let at = self.members.binary_search_by(|(of, _)| of.cmp(host)).ok()?;
        Some(&self.members[at].1)
    }

    pub fn primary(&self) -> Option<&HostPort> {
        let mut members = self.members.iter();
        let found = members.find(|(_, member)| member.kind == MemberKind::Primary);
        found.map(|(host, _)| host)
    }

    /// Whether the hosts of a connection string of this set are no news: a primary has said which
    /// hosts there are, or they are known.
    pub fn covers(&self, string: &ConnectionString) -> bool {
        let mut hosts = string.hosts.iter();
        self.primary().is_some() || hosts.all(|host| self.member(host).is_some())
    }

    /// The set and all its hosts, ascending.
    pub fn connection_string(&self) -> ConnectionString {
        let hosts = self.members.iter().map(|(host, _)| host.clone());
        ConnectionString::new(self.name.clone(), hosts.collect())
    }

    /// The hosts that a newer version does not have any more, or cannot reach any more:
    /// connections to them are of no use.
    pub fn hosts_lost_in(&self, newer: &SetTopology) -> Vec<HostPort> {
        let is_lost = |host: &HostPort, member: &Member| match newer.member(host) {
            None => true,
            Some(of) => of.is_unreachable && !member.is_unreachable,
        };
        let lost = self
            .members
            .iter()
            .filter(|(host, member)| is_lost(host, member));
        lost.map(|(host, _)| host.clone()).collect()
    }
}
