//! Silent primaries, with the timeouts that sets have by default: how soon they are succeeded, and
//! what is no reason to.

use pinion_wire::MemberState;

use super::Planted;
use super::world::World;
use crate::node::Parameters;

const SILENCE_MS: u32 = 1_500;
/// By then the member that comes first by priority is primary, and all follow it.
const SETTLED_MS: u64 = 30_000;
const SEEDS: u64 = 25;

/// A set that is at rest, and its primary.
fn set(seed: u64, members: &str, silence_ms: &[u32]) -> (World, usize) {
    let mut world = World::calm(seed, members, silence_ms);
    world.start_all().expect("the set starts");
    world.run_until(SETTLED_MS).expect("it holds");
    let primary = world.primary().expect("there is a primary");
    (world, primary)
}

/// After what time another member takes writes, and a majority has one of them: where there is an
/// arbiter none has, without the primary.
fn succeeded_after(world: &mut World, primary: usize, limit_ms: u64) -> Option<u64> {
    let began = world.now.ms;
    while world.now.ms < began + limit_ms {
        world.run_for(10).expect("it holds");
        let writable = |at: &usize| {
            let life = world.members[*at].life.as_ref().expect("all live");
            let node = &life.node;
            let config = node.config().expect("it is a member");
            let arbiter = config.members.iter().any(|member| member.arbiter_only);
            let commits = node.commit_point().optime.term == node.term();
            node.is_writable_primary() && (commits || arbiter)
        };
        let mut others = (0..world.members.len()).filter(|at| *at != primary);
        if others.any(|at| writable(&at)) {
            return Some(world.now.ms - began);
        }
    }
    None
}

/// Does something to the sets of some seeds and gives the times of [`succeeded_after`], shortest
/// first.
fn times(members: &str, strike: impl Fn(&mut World, usize)) -> Vec<u64> {
    let times = (1..=SEEDS).map(|seed| {
        let (mut world, primary) = set(seed, members, &[SILENCE_MS]);
        strike(&mut world, primary);
        let after = succeeded_after(&mut world, primary, 9_000);
        after.unwrap_or_else(|| panic!("seed {seed} of {members}: nobody before the timeout"))
    });
    let mut times: Vec<u64> = times.collect();
    times.sort_unstable();
    times
}

#[test]
fn a_silent_primary_is_succeeded_at_once() {
    for members in ["a,b,c", "a,b,c,d,e", "a:p2,b,c:p3", "a,b,c:arb"] {
        let frozen = times(members, |world, primary| world.freeze(primary, 60_000));
        let cut = times(members, |world, primary| world.cut_off(primary));
        for (what, times) in [("frozen", frozen), ("cut off", cut)] {
            let (middle, worst) = (times[times.len() / 2], times[times.len() - 1]);
            eprintln!("{members} {what}: {middle} ms, at worst {worst} ms");
            assert!(middle <= 2_000, "{members} {what}: {middle} ms");
            assert!(worst <= 3_000, "{members} {what}: {worst} ms");
        }
    }
}

/// Drivers that wait for a silent primary do not look at a member that they have found down, so
/// another one is elected than one that has just started, whatever their priorities.
#[test]
fn one_that_has_just_started_does_not_succeed() {
    for seed in 1..=SEEDS {
        let (mut world, primary) = set(seed, "a:p3,b:p2,c", &[SILENCE_MS]);
        assert_eq!(primary, 0, "seed {seed}");
        world.crash(1, 500);
        world.run_for(5_000).expect("it holds");
        world.freeze(primary, 60_000);
        let after = succeeded_after(&mut world, primary, 3_000);
        assert!(after.is_some(), "seed {seed}");
        let life = world.members[2].life.as_ref().expect("all live");
        assert!(life.node.is_writable_primary(), "seed {seed}");
    }
}

/// The same primary all the time, and no member has even asked whether it would be elected.
#[track_caller]
fn check_quiet(members: &str, for_ms: u64, disturb: impl Fn(&mut World, usize)) {
    for seed in 1..=SEEDS {
        let (mut world, primary) = set(seed, members, &[SILENCE_MS]);
        let before = world.account.candidacies;
        let end = world.now.ms + for_ms;
        while world.now.ms < end {
            disturb(&mut world, primary);
            world.run_for(3_000).expect("it holds");
        }
        assert_eq!(world.account.candidacies, before, "seed {seed}");
        assert_eq!(world.primary(), Some(primary), "seed {seed}");
    }
}

#[test]
fn one_link_that_is_cut_changes_nothing() {
    // Until the election timeout: behind it a member whose source has lost the primary too asks
    // whether it would be elected.
    check_quiet("a,b,c", 9_000, |world, primary| {
        let other = (primary + 1) % 3;
        world.cut.insert((primary, other));
        world.cut.insert((other, primary));
    });
    check_quiet("a,b,c", 9_000, |world, primary| {
        world.cut.insert((primary, (primary + 1) % 3));
    });
    check_quiet("a,b,c", 9_000, |world, primary| {
        world.cut.insert(((primary + 1) % 3, primary));
    });
    // Two of five do not hear it.
    check_quiet("a,b,c,d,e", 9_000, |world, primary| {
        for other in [(primary + 1) % 5, (primary + 2) % 5] {
            world.cut.insert((primary, other));
            world.cut.insert((other, primary));
        }
    });
}

#[test]
fn slow_members_and_short_stalls_change_nothing() {
    check_quiet("a,b,c", 30_000, |world, primary| {
        world.slow.insert((primary + 1) % 3, 1_500);
    });
    check_quiet("a,b,c", 30_000, |world, primary| {
        world.slow.insert(primary, 300);
    });
    check_quiet("a,b,c", 60_000, |world, primary| {
        let ms = world.random.below(900);
        world.freeze(primary, ms);
    });
    // Members that were suspended suspect no primary when they run again.
    check_quiet("a,b,c", 60_000, |world, primary| {
        let ms = world.random.below(2_500);
        for other in [(primary + 1) % 3, (primary + 2) % 3] {
            world.freeze(other, ms);
        }
    });
}

#[test]
fn without_it_the_timeout_counts() {
    // Switched off, and on one member of two that would have to confirm it.
    for silence_ms in [&[0][..], &[SILENCE_MS, 0, 0], &[0, SILENCE_MS, 0]] {
        for seed in 1..=SEEDS {
            let (mut world, primary) = set(seed, "a,b,c", silence_ms);
            if silence_ms.get(primary).is_some_and(|ms| *ms > 0) {
                continue;
            }
            world.freeze(primary, 60_000);
            let early = succeeded_after(&mut world, primary, 8_000);
            assert_eq!(early, None, "seed {seed}");
            // Two that stand at the same time both lose, and wait as long again.
            let late = succeeded_after(&mut world, primary, 20_000);
            assert!(late.is_some(), "seed {seed}");
        }
    }
}

/// Where no primary has ever written no timeout is waited for.
#[test]
fn a_new_set_has_a_primary_at_once() {
    for members in ["a", "a,b,c", "a:p2,b,c:p3", "a,b,c:arb", "a,b,c,d,e"] {
        for seed in 1..=SEEDS {
            let mut world = World::calm(seed, members, &[SILENCE_MS]);
            world.start_all().expect("the set starts");
            while world.primary().is_none() {
                world.run_for(10).expect("it holds");
                assert!(world.now.ms < 3_000, "seed {seed} of {members}");
            }
        }
    }
}

/// A primary that wakes is primary no more, and has acknowledged nothing meanwhile: the oracle
/// would have found that.
#[test]
fn a_primary_that_wakes_follows_the_new_one() {
    for seed in 1..=SEEDS {
        let (mut world, primary) = set(seed, "a,b,c", &[SILENCE_MS]);
        let step_downs = world.account.step_downs;
        world.freeze(primary, 4_000);
        let after = succeeded_after(&mut world, primary, 3_500);
        assert!(after.is_some(), "seed {seed}");
        world.run_for(15_000).expect("it holds");
        let state = |at: usize| {
            let life = world.members[at].life.as_ref().expect("all live");
            life.node.state()
        };
        assert_eq!(state(primary), MemberState::Secondary, "seed {seed}");
        assert_eq!(world.account.step_downs, step_downs + 1, "seed {seed}");
    }
}

pub(super) fn parameters(silence_ms: u32, planted: Planted) -> Parameters {
    Parameters {
        counts_older_terms: planted == Planted::CommitOverTerms,
        primary_silence_ms: silence_ms,
        ..Parameters::default()
    }
}
