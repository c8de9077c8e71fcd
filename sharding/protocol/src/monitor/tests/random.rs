//! Properties on random topologies and random histories.

use pinion_bson::rawdoc;
use pinion_clock::Timestamp;
use pinion_wire::idl::{ReadPreference, ReadPreferenceMode, TagSet};

use super::choices::topology;
use super::*;
use crate::limits::LOCAL_THRESHOLD;

/// xorshift64*.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const ZONES: [&str; 3] = ["x", "y", "z"];
const MODES: [ReadPreferenceMode; 5] = [
    ReadPreferenceMode::Primary,
    ReadPreferenceMode::PrimaryPreferred,
    ReadPreferenceMode::Secondary,
    ReadPreferenceMode::SecondaryPreferred,
    ReadPreferenceMode::Nearest,
];

fn random_topology(rng: &mut Rng) -> SetTopology {
    let primary = rng.below(8) as usize;
    let rows: Vec<_> = (0..1 + rng.below(6) as usize)
        .map(|at| {
            let kind = match at == primary {
                true => 'P',
                false => rng.of(&['S', 'S', 'S', 'A', 'O', '?']),
            };
            let secs = 1000 - rng.below(300) as u32;
            (NAMES[at], kind, rng.below(40), rng.of(&ZONES), secs)
        })
        .collect();
    topology(&rows)
}

fn random_preference(rng: &mut Rng) -> ReadPreference {
    let mode = rng.of(&MODES);
    let mut preference = ReadPreference::from(mode);
    if mode != ReadPreferenceMode::Primary {
        for _ in 0..rng.below(3) {
            preference
                .tags
                .push(TagSet::new(rawdoc! { "dc": rng.of(&ZONES) }));
        }
        preference.max_staleness_secs = rng.of(&[None, Some(90), Some(200)]);
    }
    preference
}

#[test]
fn no_member_is_chosen_that_is_excluded() {
    let mut rng = Rng(0x5eed);
    let mut chosen = 0;
    for _ in 0..20_000 {
        let topology = random_topology(&mut rng);
        let preference = random_preference(&mut rng);
        let min_time = rng.of(&[None, Some(Timestamp::new(900, 0))]);
        let found = topology.select(&preference, min_time, LOCAL_THRESHOLD);
        let members = found
            .iter()
            .map(|host| topology.member(host).expect("it is there"));
        let members: Vec<&Member> = members.collect();
        chosen += members.len();
        for member in &members {
            check_admitted(&topology, &preference, member);
        }
        let rtts = members.iter().filter_map(|member| member.rtt);
        if let (Some(least), Some(most)) = (rtts.clone().min(), rtts.max()) {
            assert!(most - least <= LOCAL_THRESHOLD);
        }
        // What a time excludes is chosen only where it excludes every member.
        let has_time = |m: &Member| {
            let is_primary = m.kind == MemberKind::Primary;
            is_primary || m.last_write.is_some_and(|w| Some(w.op_time.ts) >= min_time)
        };
        let with_time = members.iter().filter(|member| has_time(member)).count();
        assert!(with_time == 0 || with_time == members.len());
        let without_time = topology.select(&preference, None, LOCAL_THRESHOLD);
        assert_eq!(found.is_empty(), without_time.is_empty());
    }
    assert!(chosen > 10_000, "{chosen}");
}

fn check_admitted(topology: &SetTopology, preference: &ReadPreference, member: &Member) {
    use ReadPreferenceMode::{Nearest, Primary, PrimaryPreferred, Secondary, SecondaryPreferred};
    let shown = || format!("{preference} {topology:?}");
    let is_primary = member.kind == MemberKind::Primary;
    assert!(member.is_readable(), "{}", shown());
    match preference.mode {
        Primary => assert!(is_primary, "{}", shown()),
        Secondary => assert!(!is_primary, "{}", shown()),
        PrimaryPreferred => assert!(is_primary || topology.primary().is_none(), "{}", shown()),
        SecondaryPreferred | Nearest => {}
    }
    let ignores_tags = is_primary && preference.mode != Nearest;
    let mut sets = preference.tags.iter();
    let fits = preference.tags.is_empty() || sets.any(|set| set.fits(&member.tags));
    assert!(ignores_tags || fits, "{}", shown());
}

/// Members report as primaries of random elections, as secondaries, or fail. However it goes, one
/// whose (election, version) is older than one that was admitted is never the primary.
#[test]
fn an_older_primary_never_wins() {
    let mut changes = 0;
    for seed in 1..=200 {
        let mut rng = Rng(seed);
        let mut w = World::new("abcd");
        let mut newest = (0, 0);
        let mut last = None;
        for _ in 0..100 {
            w.pass(rng.below(3_000));
            let Some(name) = NAMES[..4]
                .iter()
                .cycle()
                .skip(rng.below(4) as usize)
                .take(4)
                .find(|name| w.asked.contains_key(&host(name)))
            else {
                w.pass(10_000);
                continue;
            };
            match rng.below(6) {
                0 => w.fail(name),
                1 => w.fail_command(name, rng.of(&[Failure::Network, Failure::TimedOut])),
                2 | 3 => w.reply(name, secondary("abcd")),
                _ => {
                    let claim = (rng.below(20) as u8, rng.below(4) as i64);
                    let reply = HelloReply {
                        set_version: Some(claim.1),
                        topology_version: rng.of(&[None, Some(version(1))]),
                        ..primary(claim.0, "abcd")
                    };
                    w.reply(name, reply);
                    let is_primary = w.monitor.topology().primary() == Some(&host(name));
                    assert_eq!(is_primary, claim >= newest, "{claim:?} {newest:?}");
                    newest = newest.max(claim);
                }
            }
            let topology = w.monitor.topology().clone();
            if let Some(primary) = topology.primary() {
                let of = topology.member(primary).expect("it is there");
                let claim = (of.election_id, of.set_version);
                assert_eq!(claim, (Some(election(newest.0)), Some(newest.1)));
                changes += usize::from(last.replace(primary.clone()) != Some(primary.clone()));
            }
        }
    }
    assert!(changes > 500, "{changes}");
}
