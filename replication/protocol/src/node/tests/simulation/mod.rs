//! Sets of one to seven members in a simulated world: messages are late or lost, members crash,
//! stop for a while and are cut off, operators interfere. After a while all heals, and the set must
//! come to rest.
//!
//! Held: one primary a term; what is committed is in the same place in every member's oplog and is
//! never lost; terms and commit points never go back; a write that a majority has is committed;
//! after healing a primary takes writes, and all members have them. Not held here: what the driver
//! does with effects, data, and the real network's order of messages.

mod chaos;
mod drive;
mod oracle;
mod silence;
mod world;

use world::World;

/// An error of the driver or of the member that the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// A vote is said to be durable and is not.
    VoteNotDurable,
    /// Entries of older terms are committed by counting.
    CommitOverTerms,
}

/// What a run went through.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    elections: u64,
    committed: u64,
    rollbacks: u64,
    crashes: u64,
    initial_syncs: u64,
    configs: u64,
    step_downs: u64,
    /// How often a member asked whether it would be elected.
    candidacies: u64,
    freezes: u64,
}

impl Account {
    fn add(&mut self, other: Account) {
        self.elections += other.elections;
        self.committed += other.committed;
        self.rollbacks += other.rollbacks;
        self.crashes += other.crashes;
        self.initial_syncs += other.initial_syncs;
        self.configs += other.configs;
        self.step_downs += other.step_downs;
        self.candidacies += other.candidacies;
        self.freezes += other.freezes;
    }
}

fn run(seed: u64, planted: Planted) -> Result<Account, String> {
    let mut world = World::new(seed, planted);
    world.run().map_err(|why| format!("seed {seed}: {why}"))
}

#[test]
fn seeds_hold() {
    let seeds = std::env::var("PINION_SEEDS").map_or(200, |seeds| seeds.parse().expect("a number"));
    let mut total = Account::default();
    for seed in 1..=seeds {
        match run(seed, Planted::Nothing) {
            Ok(account) => total.add(account),
            Err(why) => panic!("{why}"),
        }
    }
    eprintln!("{seeds} seeds: {total:?}");
    // A run that did nothing has shown nothing.
    for (what, count) in [
        ("elections", total.elections),
        ("committed entries", total.committed),
        ("rollbacks", total.rollbacks),
        ("crashes", total.crashes),
        ("initial syncs", total.initial_syncs),
        ("configurations", total.configs),
        ("step-downs", total.step_downs),
        ("freezes", total.freezes),
    ] {
        assert!(count >= seeds / 20, "{count} {what} in {seeds} runs");
    }
}

#[test]
fn planted_errors_are_found() {
    let expected = [
        // Two primaries in one term, or what comes of them.
        (
            Planted::VoteNotDurable,
            &["are both the primary of term", "lacks what is committed"][..],
        ),
        (Planted::CommitOverTerms, &["is committed"]),
    ];
    for (planted, expected) in expected {
        let found = (1..=1_000).find_map(|seed| run(seed, planted).err());
        let found = found.unwrap_or_else(|| panic!("{planted:?} was not found"));
        let known = expected.iter().any(|expected| found.contains(expected));
        assert!(known, "{planted:?}: {found}");
    }
}

/// The same seed gives the same run.
#[test]
fn runs_are_repeatable() {
    for seed in 1..=5 {
        let trace = |_| {
            let mut world = World::new(seed, Planted::Nothing);
            world.run().expect("it holds");
            (world.steps, world.now.ms)
        };
        assert_eq!(trace(0), trace(1));
    }
}
