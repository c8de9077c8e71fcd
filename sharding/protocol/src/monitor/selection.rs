//! Server selection: the members of a set that a read preference admits.

use std::time::Duration;

use pinion_clock::Timestamp;
use pinion_wire::idl::{ReadPreference, ReadPreferenceMode};
use pinion_wire::{Error, ErrorCode, HostPort};

use super::topology::{Member, MemberKind, SetTopology};
use crate::limits::HEARTBEAT_INTERVAL;

type Candidate<'t> = (&'t HostPort, &'t Member);

impl SetTopology {
    /// The members that a read preference admits, of those the ones whose round trips are at most
    /// `threshold` longer than the shortest. Those that have applied `min_cluster_time` are
    /// preferred. Empty where no member fits.
    ///
    /// Source: drivers' specification of server selection, "Server Selection Algorithm".
    pub fn select(
        &self,
        preference: &ReadPreference,
        min_cluster_time: Option<Timestamp>,
        threshold: Duration,
    ) -> Vec<HostPort> {
        // Most commands are for the primary.
        if preference.mode == ReadPreferenceMode::Primary {
            return self.primary().cloned().into_iter().collect();
        }
        let fitting = min_cluster_time.map(|time| self.fitting(preference, Some(time)));
        let fitting = fitting.filter(|fitting| !fitting.is_empty());
        let fitting = fitting.unwrap_or_else(|| self.fitting(preference, None));
        within_window(&fitting, threshold)
    }

    fn fitting(
        &self,
        preference: &ReadPreference,
        min_time: Option<Timestamp>,
    ) -> Vec<Candidate<'_>> {
        let primary = || self.of_kinds(&[MemberKind::Primary], min_time);
        let secondaries = || {
            let secondaries = self.of_kinds(&[MemberKind::Secondary], min_time);
            by_tags(self.fresh(secondaries, preference), preference)
        };
        let or = |first: Vec<_>, second: &dyn Fn() -> Vec<_>| match first.is_empty() {
            true => second(),
            false => first,
        };
        match preference.mode {
            ReadPreferenceMode::Primary => primary(),
            ReadPreferenceMode::PrimaryPreferred => or(primary(), &secondaries),
            ReadPreferenceMode::Secondary => secondaries(),
            ReadPreferenceMode::SecondaryPreferred => or(secondaries(), &primary),
            ReadPreferenceMode::Nearest => {
                let kinds = [MemberKind::Primary, MemberKind::Secondary];
                let readable = self.of_kinds(&kinds, min_time);
                by_tags(self.fresh(readable, preference), preference)
            }
        }
    }

    fn of_kinds(&self, kinds: &[MemberKind], min_time: Option<Timestamp>) -> Vec<Candidate<'_>> {
        // A primary has what others have, whatever it had when it was last asked.
        let has_time = |member: &Member| match (min_time, member.kind) {
            (None, _) | (_, MemberKind::Primary) => true,
            (Some(time), _) => member.last_write.is_some_and(|w| w.op_time.ts >= time),
        };
        let fits =
            |member: &Member| kinds.contains(&member.kind) && !member.is_hidden && has_time(member);
        let members = self.members.iter().filter(|(_, member)| fits(member));
        members.map(|(host, member)| (host, member)).collect()
    }

    /// Those that are not too far behind, as far as that is known.
    fn fresh<'t>(
        &self,
        mut members: Vec<Candidate<'t>>,
        preference: &ReadPreference,
    ) -> Vec<Candidate<'t>> {
        if let Some(secs) = preference.max_staleness_secs {
            let most_ms = i64::from(secs) * 1000;
            members.retain(|(_, member)| self.staleness_ms(member) <= most_ms);
        }
        members
    }

    /// An estimate of how far a member is behind; the primary is not behind.
    ///
    /// Source: drivers' specification of max staleness, "Supporting maxStalenessSeconds".
    fn staleness_ms(&self, member: &Member) -> i64 {
        if member.kind == MemberKind::Primary {
            return 0;
        }
        let Some(written) = date_ms(member) else {
            return 0;
        };
        let heartbeat_ms = HEARTBEAT_INTERVAL.as_millis() as i64;
        let primary = self.primary().and_then(|host| self.member(host));
        let behind_ms = match primary {
            Some(primary) => {
                let Some(of_primary) = date_ms(primary) else {
                    return 0;
                };
                let later_ms = member.updated_ms as i64 - primary.updated_ms as i64;
                later_ms.saturating_add(of_primary.saturating_sub(written))
            }
            None => {
                let dates = self
                    .members
                    .iter()
                    .filter_map(|(_, of)| secondary_date_ms(of));
                dates
                    .max()
                    .map_or(0, |newest| newest.saturating_sub(written))
            }
        };
        behind_ms.saturating_add(heartbeat_ms)
    }
}

fn date_ms(member: &Member) -> Option<i64> {
    member.last_write.map(|write| write.date_ms)
}

fn secondary_date_ms(member: &Member) -> Option<i64> {
    date_ms(member).filter(|_| member.kind == MemberKind::Secondary)
}

/// Those that the first set of tags fits which fits any.
fn by_tags<'t>(members: Vec<Candidate<'t>>, preference: &ReadPreference) -> Vec<Candidate<'t>> {
    if preference.tags.is_empty() {
        return members;
    }
    for set in &preference.tags {
        let fitting = members.iter().filter(|(_, member)| set.fits(&member.tags));
        let fitting: Vec<Candidate<'t>> = fitting.copied().collect();
        if !fitting.is_empty() {
            return fitting;
        }
    }
    Vec::new()
}

fn within_window(members: &[Candidate<'_>], threshold: Duration) -> Vec<HostPort> {
    // A member that has answered has a round trip.
    let rtt = |member: &Member| member.rtt.unwrap_or(Duration::MAX);
    let shortest = members.iter().map(|(_, member)| rtt(member)).min();
    let most = shortest.map_or(Duration::MAX, |rtt| rtt.saturating_add(threshold));
    let near = members.iter().filter(|(_, member)| rtt(member) <= most);
    near.map(|(host, _)| (*host).clone()).collect()
}

/// The error where no member of a set fits.
pub fn cannot_satisfy(preference: &ReadPreference, set: &str) -> Error {
    Error::new(
        ErrorCode::FAILED_TO_SATISFY_READ_PREFERENCE,
        format!("Could not find host matching read preference {preference} for set {set}"),
    )
}
