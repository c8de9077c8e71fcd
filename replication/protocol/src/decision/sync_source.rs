//! From whom a secondary fetches its oplog, and when it looks for another one.
//!
//! Source: replication document, "Sync Source Selection" and "OplogQueryMetadata"; the two passes
//! are MongoDB's.

use pinion_clock::OpTime;
use pinion_wire::idl::ReadPreferenceMode;

use super::assert_by_member;
use super::limits::{MAX_DENIED, PINGS_PER_MEMBER};
use crate::config::{Config, ConfigVersion, HostPort, Member};

/// What heartbeats say of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neighbour {
    pub up: bool,
    /// Whether it is a primary or a secondary.
    pub readable: bool,
    pub last_applied: OpTime,
    /// How long it takes to answer, on average.
    pub ping_ms: u64,
}

/// Hosts that are no sync source for some time.
#[derive(Clone, Debug, Default)]
pub struct DenyList {
    /// With the time at which each may be tried again.
    entries: Vec<(HostPort, u64)>,
}

impl DenyList {
    /// Keeps away from a host until then; the later end counts if it is denied already.
    pub fn deny(&mut self, host: HostPort, until_ms: u64, now_ms: u64) {
        self.entries.retain(|(_, end)| *end > now_ms);
        if let Some((_, end)) = self.entries.iter_mut().find(|(denied, _)| *denied == host) {
            *end = until_ms.max(*end);
            return;
        }
        // More than a configuration has: those of earlier ones are forgotten, the first to end
        // first.
        if self.entries.len() == MAX_DENIED {
            self.entries.sort_by_key(|(_, end)| *end);
            self.entries.remove(0);
        }
        self.entries.push((host, until_ms));
    }

    pub fn is_denied(&self, host: &HostPort, now_ms: u64) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|(denied, end)| denied == host && *end > now_ms)
    }

    /// The reason for which a host was denied is gone.
    pub fn allow(&mut self, host: &HostPort) {
        self.entries.retain(|(denied, _)| denied != host);
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

/// What the choice of a sync source goes by. Indexes are those of members in the configuration.
#[derive(Clone, Copy, Debug)]
pub struct SourceChoice<'a> {
    pub config: &'a Config,
    pub me: usize,
    pub primary: Option<usize>,
    /// By member; this member's own is ignored.
    pub neighbours: &'a [Neighbour],
    pub last_fetched: OpTime,
    pub deny_list: &'a DenyList,
    /// The member that a client named (`replSetSyncFrom`). The caller forgets it once it is chosen.
    pub requested: Option<usize>,
    /// Heartbeats that were answered under this configuration.
    pub pings: u64,
    /// A new primary that catches up may sync from anyone.
    pub ignore_chaining: bool,
    /// Which members are sources, and which of those come first.
    pub preference: ReadPreferenceMode,
    /// How far behind the primary a source may be while another one is there.
    pub max_lag_secs: u32,
    pub now_ms: u64,
}

impl SourceChoice<'_> {
    fn is_denied(&self, index: usize) -> bool {
        let host = &self.config.members[index].host;
        self.deny_list.is_denied(host, self.now_ms)
    }

    fn chaining_allowed(&self) -> bool {
        self.ignore_chaining || self.config.settings.chaining_allowed
    }

    /// What holds for a source in either pass and for one that is changed to: it answers, can be
    /// read, and builds the indexes that this member is to have.
    fn is_usable(&self, index: usize) -> bool {
        let me = &self.config.members[self.me];
        let neighbour = &self.neighbours[index];
        index != self.me
            && neighbour.up
            && neighbour.readable
            && (self.config.members[index].build_indexes || !me.build_indexes)
            && !self.is_denied(index)
    }
}

/// The member to sync from, `None` where there is no good one at present.
pub fn choose_sync_source(choice: &SourceChoice<'_>) -> Option<usize> {
    assert_by_member(choice.config, choice.neighbours);
    if let Some(requested) = choice.requested {
        assert!(requested != choice.me, "a member does not sync from itself");
        return Some(requested);
    }
    let others = choice.config.members.len() as u64 - 1;
    if choice.pings < others * PINGS_PER_MEMBER {
        return None;
    }
    if !choice.chaining_allowed() {
        return choice.primary.filter(|primary| {
            *primary != choice.me
                && !choice.is_denied(*primary)
                && choice.neighbours[*primary].last_applied >= choice.last_fetched
        });
    }
    let primary = |index| choice.primary == Some(index);
    let any = |_| true;
    let secondary = |index| !primary(index);
    match choice.preference {
        ReadPreferenceMode::Nearest => best(choice, &any),
        ReadPreferenceMode::Primary => best(choice, &primary),
        ReadPreferenceMode::PrimaryPreferred => {
            best(choice, &primary).or_else(|| best(choice, &any))
        }
        ReadPreferenceMode::Secondary => best(choice, &secondary),
        ReadPreferenceMode::SecondaryPreferred => {
            best(choice, &secondary).or_else(|| best(choice, &any))
        }
    }
}

/// The closest of those that are wanted, by the rules of the first pass where it keeps them.
fn best(choice: &SourceChoice<'_>, is_wanted: &dyn Fn(usize) -> bool) -> Option<usize> {
    let preferred =
        |choice: &SourceChoice<'_>, index| is_wanted(index) && is_preferred(choice, index);
    closest(choice, &preferred).or_else(|| closest(choice, &|_, index| is_wanted(index)))
}

/// The quickest to answer of those that are ahead; of equals the last one. The primary need not be
/// ahead: it has no sync source, so no two members wait for each other, and its next entry comes
/// without another choice.
fn closest(
    choice: &SourceChoice<'_>,
    accept: &dyn Fn(&SourceChoice<'_>, usize) -> bool,
) -> Option<usize> {
    let candidates = (0..choice.config.members.len()).filter(|index| {
        choice.is_usable(*index)
            && (choice.neighbours[*index].last_applied > choice.last_fetched
                || (choice.primary == Some(*index)
                    && choice.neighbours[*index].last_applied == choice.last_fetched))
            && accept(choice, *index)
    });
    candidates
        .rev()
        .min_by_key(|index| choice.neighbours[*index].ping_ms)
}

/// The rules of the first pass, which a source may break where none keeps them.
fn is_preferred(choice: &SourceChoice<'_>, index: usize) -> bool {
    let me = &choice.config.members[choice.me];
    let member: &Member = &choice.config.members[index];
    let primary = choice
        .primary
        .map(|primary| choice.neighbours[primary].last_applied);
    let lags = primary.is_some_and(|primary| {
        let applied = choice.neighbours[index].last_applied;
        let oldest_secs = primary.ts.secs().saturating_sub(choice.max_lag_secs);
        (applied.term, applied.ts.secs()) < (primary.term, oldest_secs)
    });
    (member.is_voter() || !me.is_voter())
        && !member.hidden
        && !lags
        && member.delay_secs <= me.delay_secs
}

/// What a sync source says of itself with a batch (`$replData`, `$oplogQueryData`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchMetadata {
    pub config: ConfigVersion,
    pub rbid: i64,
    pub last_applied: OpTime,
    /// The index of the member that it takes for the primary.
    pub primary: Option<usize>,
    /// The index of the member that it syncs from.
    pub sync_source: Option<usize>,
}

/// Why another sync source is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeReason {
    /// It has rolled back since it was chosen: what was fetched may be gone from its history.
    RolledBack,
    Requested,
    /// It is no member any more.
    NotMember,
    OtherConfig,
    /// Chaining is not allowed, and another member is the primary.
    NotPrimary,
    /// It has nothing new, is not the primary, and has no sync source.
    NotAhead,
    /// It has nothing new, and syncs from this member.
    Cycle,
    /// Another member is further ahead of it than a source may lag.
    Lags,
}

/// Whether a secondary is to leave its sync source after a batch. `rbid` is what the source said
/// when it was chosen.
pub fn should_change(
    choice: &SourceChoice<'_>,
    source: &HostPort,
    rbid: i64,
    batch: &BatchMetadata,
) -> Option<ChangeReason> {
    assert_by_member(choice.config, choice.neighbours);
    if batch.rbid != rbid {
        return Some(ChangeReason::RolledBack);
    }
    if choice.requested.is_some() {
        return Some(ChangeReason::Requested);
    }
    let Some((index, _)) = choice.config.member_of(source) else {
        return Some(ChangeReason::NotMember);
    };
    if batch.config != choice.config.config_version() {
        return Some(ChangeReason::OtherConfig);
    }
    if !choice.chaining_allowed() && choice.primary.is_some_and(|primary| primary != index) {
        return Some(ChangeReason::NotPrimary);
    }
    let applied = batch
        .last_applied
        .max(choice.neighbours[index].last_applied);
    if applied <= choice.last_fetched {
        if batch.sync_source == Some(choice.me) {
            return Some(ChangeReason::Cycle);
        }
        if batch.sync_source.is_none() && batch.primary != Some(index) {
            return Some(ChangeReason::NotAhead);
        }
    }
    // Where only the primary is a source there is no better one.
    if !choice.chaining_allowed() {
        return None;
    }
    let goal_secs = applied.ts.secs().saturating_add(choice.max_lag_secs);
    let me = &choice.config.members[choice.me];
    let better = |other: usize| {
        let member = &choice.config.members[other];
        choice.is_usable(other)
            && (member.is_voter() || !me.is_voter())
            && !member.hidden
            && member.delay_secs <= me.delay_secs
            && choice.neighbours[other].last_applied.ts.secs() > goal_secs
    };
    let lags = (0..choice.config.members.len()).any(|other| other != index && better(other));
    lags.then_some(ChangeReason::Lags)
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::super::limits::MAX_SYNC_SOURCE_LAG_SECS;
    use super::super::testing::{at, config, plain, with_settings};
    use super::*;

    /// Up and readable, its last entry of the second in term 1.
    fn seen(secs: u32, ping_ms: u64) -> Neighbour {
        Neighbour {
            up: true,
            readable: true,
            last_applied: at(1, secs),
            ping_ms,
        }
    }

    static NONE_DENIED: DenyList = DenyList {
        entries: Vec::new(),
    };

    /// The member with the index 0, last entry at second 100, sees the primary 1.
    fn choice<'a>(config: &'a Config, neighbours: &'a [Neighbour]) -> SourceChoice<'a> {
        SourceChoice {
            config,
            me: 0,
            primary: Some(1),
            neighbours,
            last_fetched: at(1, 100),
            deny_list: &NONE_DENIED,
            requested: None,
            pings: 100,
            ignore_chaining: false,
            preference: ReadPreferenceMode::Nearest,
            max_lag_secs: MAX_SYNC_SOURCE_LAG_SECS,
            now_ms: 1_000,
        }
    }

    #[track_caller]
    fn check(choice: SourceChoice<'_>, expected: Option<usize>) {
        assert_eq!(choose_sync_source(&choice), expected);
    }

    fn host(index: usize) -> HostPort {
        HostPort::new(format!("host{index}"), 27017)
    }

    #[test]
    fn the_closest_that_is_ahead() {
        let set = plain(4);
        let me = Neighbour::default();
        let near = [me, seen(110, 9), seen(105, 3), seen(104, 5)];
        check(choice(&set, &near), Some(2));
        check(
            choice(&set, &[me, seen(110, 9), seen(100, 3), seen(104, 5)]),
            Some(3),
        );
        check(
            choice(&set, &[me, seen(110, 5), seen(100, 3), seen(104, 5)]),
            Some(3),
        );
        check(
            choice(&set, &[me, seen(100, 9), seen(99, 3), seen(98, 5)]),
            Some(1),
        );
        check(
            choice(&set, &[me, seen(99, 9), seen(100, 3), seen(98, 5)]),
            None,
        );
        let down = Neighbour {
            up: false,
            ..seen(105, 3)
        };
        check(
            choice(&set, &[me, seen(110, 9), down, seen(104, 5)]),
            Some(3),
        );
        let recovering = Neighbour {
            readable: false,
            ..seen(105, 3)
        };
        check(
            choice(&set, &[me, seen(110, 9), recovering, seen(104, 5)]),
            Some(3),
        );
        let waiting = SourceChoice {
            pings: 5,
            ..choice(&set, &near)
        };
        check(waiting, None);
        check(
            SourceChoice {
                pings: 6,
                ..waiting
            },
            Some(2),
        );
        let requested = Some(3);
        check(
            SourceChoice {
                requested,
                ..waiting
            },
            Some(3),
        );
    }

    #[test]
    fn lag_behind_the_primary() {
        let set = plain(3);
        let me = Neighbour::default();
        check(choice(&set, &[me, seen(140, 9), seen(110, 3)]), Some(2));
        check(choice(&set, &[me, seen(141, 9), seen(110, 3)]), Some(1));
        let primary_down = [
            me,
            Neighbour {
                up: false,
                ..seen(141, 9)
            },
            seen(110, 3),
        ];
        check(choice(&set, &primary_down), Some(2));
        let near = [me, seen(141, 9), seen(110, 3)];
        let none_known = SourceChoice {
            primary: None,
            ..choice(&set, &near)
        };
        check(none_known, Some(2));
        let new_term = Neighbour {
            last_applied: at(2, 101),
            ..seen(0, 9)
        };
        check(choice(&set, &[me, new_term, seen(110, 3)]), Some(1));
    }

    #[test]
    fn rules_of_members() {
        let third =
            |mine: RawDocumentBuf, theirs: RawDocumentBuf| config(&[mine, rawdoc! {}, theirs]);
        #[track_caller]
        fn check_third(set: Config, first_pass: bool, second_pass: bool) {
            let me = Neighbour::default();
            check(
                choice(&set, &[me, seen(110, 9), seen(110, 3)]),
                Some(if first_pass { 2 } else { 1 }),
            );
            check(
                choice(&set, &[me, Neighbour::default(), seen(110, 3)]),
                second_pass.then_some(2),
            );
        }
        let hidden = || rawdoc! { "priority": 0, "hidden": true };
        let silent = || rawdoc! { "priority": 0, "votes": 0 };
        let delayed = |secs: i32| rawdoc! { "priority": 0, "secondaryDelaySecs": secs };
        let bare = || rawdoc! { "priority": 0, "buildIndexes": false };
        check_third(third(rawdoc! {}, hidden()), false, true);
        check_third(third(rawdoc! {}, silent()), false, true);
        check_third(third(silent(), silent()), true, true);
        check_third(third(rawdoc! {}, delayed(5)), false, true);
        check_third(third(delayed(5), delayed(5)), true, true);
        check_third(third(rawdoc! {}, bare()), false, false);
        check_third(third(bare(), bare()), true, true);
    }

    #[test]
    fn without_chaining_only_the_primary() {
        let set = with_settings(
            &[rawdoc! {}, rawdoc! {}, rawdoc! {}],
            rawdoc! { "chainingAllowed": false },
        );
        let near = [Neighbour::default(), seen(110, 9), seen(110, 3)];
        check(choice(&set, &near), Some(1));
        let behind = [Neighbour::default(), seen(99, 9), seen(110, 3)];
        check(choice(&set, &behind), None);
        let primary = None;
        check(
            SourceChoice {
                primary,
                ..choice(&set, &near)
            },
            None,
        );
        let catching_up = SourceChoice {
            ignore_chaining: true,
            ..choice(&set, &near)
        };
        check(catching_up, Some(2));
        let mut deny_list = DenyList::default();
        deny_list.deny(host(1), 2_000, 0);
        let denied = SourceChoice {
            deny_list: &deny_list,
            ..choice(&set, &near)
        };
        check(denied, None);
    }

    #[test]
    fn denied_until_then() {
        let set = plain(3);
        let near = [Neighbour::default(), seen(110, 9), seen(110, 3)];
        let mut deny_list = DenyList::default();
        deny_list.deny(host(2), 1_001, 0);
        deny_list.deny(host(2), 500, 0);
        let at_ms = |now_ms| SourceChoice {
            deny_list: &deny_list,
            now_ms,
            ..choice(&set, &near)
        };
        check(at_ms(1_000), Some(1));
        check(at_ms(1_001), Some(2));
        let mut full = DenyList::default();
        for index in 0..=MAX_DENIED {
            full.deny(host(index), 100 + index as u64, 0);
        }
        assert!(!full.is_denied(&host(0), 0));
        assert!(full.is_denied(&host(1), 0) && full.is_denied(&host(MAX_DENIED), 0));
        full.clear();
        assert!(!full.is_denied(&host(1), 0));
    }

    /// The source is the member 2; its primary is the member 1, from which it syncs.
    fn batch(secs: u32) -> BatchMetadata {
        BatchMetadata {
            config: ConfigVersion {
                term: 1,
                version: 1,
            },
            rbid: 7,
            last_applied: at(1, secs),
            primary: Some(1),
            sync_source: Some(1),
        }
    }

    #[track_caller]
    fn check_change(
        choice: SourceChoice<'_>,
        batch: BatchMetadata,
        expected: Option<ChangeReason>,
    ) {
        assert_eq!(should_change(&choice, &host(2), 7, &batch), expected);
    }

    #[test]
    fn when_to_change() {
        let set = plain(3);
        let near = [Neighbour::default(), seen(110, 9), seen(90, 3)];
        let stay = choice(&set, &near);
        check_change(stay, batch(105), None);
        let rolled_back = BatchMetadata {
            rbid: 8,
            ..batch(105)
        };
        check_change(stay, rolled_back, Some(ChangeReason::RolledBack));
        let requested = SourceChoice {
            requested: Some(1),
            ..stay
        };
        check_change(requested, batch(105), Some(ChangeReason::Requested));
        let mut other = batch(105);
        other.config.version = 2;
        check_change(stay, other, Some(ChangeReason::OtherConfig));
        let two = plain(2);
        let removed = choice(&two, &near[..2]);
        check_change(removed, batch(105), Some(ChangeReason::NotMember));
    }

    #[test]
    fn what_is_preferred() {
        let set = plain(4);
        let me = Neighbour::default();
        let near = [me, seen(110, 9), seen(105, 3), seen(104, 5)];
        let gone = [me, Neighbour::default(), seen(105, 3), seen(104, 5)];
        let alone = [me, seen(110, 9), seen(99, 3), seen(99, 5)];
        use ReadPreferenceMode::{
            Nearest, Primary, PrimaryPreferred, Secondary, SecondaryPreferred,
        };
        for (preference, of_all, without_primary, without_others) in [
            (Nearest, Some(2), Some(2), Some(1)),
            (Primary, Some(1), None, Some(1)),
            (PrimaryPreferred, Some(1), Some(2), Some(1)),
            (Secondary, Some(2), Some(2), None),
            (SecondaryPreferred, Some(2), Some(2), Some(1)),
        ] {
            let with = |near| SourceChoice {
                preference,
                ..choice(&set, near)
            };
            check(with(&near), of_all);
            check(with(&gone), without_primary);
            check(with(&alone), without_others);
        }
    }

    #[test]
    fn a_source_that_is_not_ahead() {
        let set = plain(3);
        let near = [Neighbour::default(), seen(110, 9), seen(90, 3)];
        let stay = choice(&set, &near);
        check_change(stay, batch(100), None);
        let from = |sync_source, secs| BatchMetadata {
            sync_source,
            ..batch(secs)
        };
        check_change(stay, from(None, 100), Some(ChangeReason::NotAhead));
        check_change(stay, from(None, 101), None);
        check_change(stay, from(Some(0), 100), Some(ChangeReason::Cycle));
        check_change(stay, from(Some(0), 101), None);
        let primary = BatchMetadata {
            primary: Some(2),
            ..from(None, 100)
        };
        check_change(stay, primary, None);
        // A heartbeat can be newer than the batch.
        let near = [Neighbour::default(), seen(110, 9), seen(101, 3)];
        check_change(choice(&set, &near), from(None, 100), None);
    }

    #[test]
    fn a_better_source() {
        let set = plain(3);
        let ahead = |secs| [Neighbour::default(), seen(secs, 9), seen(90, 3)];
        check_change(choice(&set, &ahead(135)), batch(105), None);
        check_change(
            choice(&set, &ahead(136)),
            batch(105),
            Some(ChangeReason::Lags),
        );
        let mut deny_list = DenyList::default();
        deny_list.deny(host(1), 2_000, 0);
        let near = ahead(136);
        let denied = SourceChoice {
            deny_list: &deny_list,
            ..choice(&set, &near)
        };
        check_change(denied, batch(105), None);
        let hidden = config(&[
            rawdoc! {},
            rawdoc! { "priority": 0, "hidden": true },
            rawdoc! {},
        ]);
        check_change(choice(&hidden, &ahead(136)), batch(105), None);
        let unchained = with_settings(
            &[rawdoc! {}, rawdoc! {}, rawdoc! {}],
            rawdoc! { "chainingAllowed": false },
        );
        let near = ahead(110);
        let beside = choice(&unchained, &near);
        check_change(beside, batch(105), Some(ChangeReason::NotPrimary));
        let primary = Some(2);
        check_change(SourceChoice { primary, ..beside }, batch(105), None);
        let primary = None;
        check_change(SourceChoice { primary, ..beside }, batch(105), None);
    }
}
