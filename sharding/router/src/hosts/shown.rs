//! How the monitored sets are shown to operators.

use pinion_runtime::Duration;
use pinion_sharding_protocol::{MemberKind, SetTopology};
use pinion_wire::HostPort;

/// A monitored set, as `connPoolStats` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownSet {
    pub name: String,
    /// Ascending by address.
    pub hosts: Vec<ShownHost>,
}

/// A host of a monitored set.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownHost {
    pub addr: HostPort,
    /// It answers, and is a member of the set.
    pub ok: bool,
    pub is_primary: bool,
    pub is_hidden: bool,
    pub is_secondary: bool,
    /// 0 while none was measured.
    pub ping_time_ms: i64,
    pub tags: Vec<(String, String)>,
}

impl ShownSet {
    pub(super) fn of(topology: &SetTopology) -> ShownSet {
        let hosts = topology.members.iter().map(|(host, member)| ShownHost {
            addr: host.clone(),
            ok: member.kind != MemberKind::Unknown,
            is_primary: member.kind == MemberKind::Primary,
            is_hidden: member.is_hidden,
            is_secondary: member.kind == MemberKind::Secondary,
            ping_time_ms: member.rtt.as_ref().map_or(0, Duration::as_millis) as i64,
            tags: member.tags.clone(),
        });
        ShownSet {
            name: topology.name.clone(),
            hosts: hosts.collect(),
        }
    }
}
