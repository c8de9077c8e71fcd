//! Scripts of accesses, stale errors and reads, each with all effects that it must have.

use std::sync::Arc;

use pinion_bson::Uuid;
use pinion_clock::Timestamp;

use super::*;
use crate::table::RoutingTable;
use crate::testing::Model;
use crate::version::{ChunkVersion, DatabaseVersion, ShardVersion};

/// A collection on three shards, whose history of tables a test makes.
struct Script {
    model: Model,
    cache: NamespaceCache<CachedCollection>,
}

fn table(model: &Model) -> CachedCollection {
    let all = model.chunks.iter().map(|chunk| chunk.document());
    CachedCollection::Sharded(Arc::new(
        RoutingTable::new(&model.collection(), all).expect("a table"),
    ))
}

fn shown(effect: &Effect<CachedCollection>) -> String {
    let value = |value: &CachedCollection| match value {
        CachedCollection::Unsharded => "unsharded".to_owned(),
        CachedCollection::Sharded(table) => {
            let version = table.version();
            format!("{}|{}", version.major, version.minor)
        }
    };
    match effect {
        Effect::Load { load, base: None } => format!("load {load} all"),
        Effect::Load {
            load,
            base: Some(base),
        } => format!("load {load} from {}", value(base)),
        Effect::Reply {
            to,
            result: Ok(found),
        } => format!("{}: {}", to.0, value(found)),
        Effect::Reply {
            to,
            result: Err(error),
        } => format!("{}: {}", to.0, error.message),
    }
}

impl Script {
    /// Three chunks, on `s0`, `s1` and `s2`; nothing is known yet.
    fn new() -> Script {
        let mut model = Model::new(1, 10, "s0");
        model.split(0, &[0, 10]);
        model.move_chunk(1, "s1");
        model.move_chunk(2, "s2");
        Script {
            model,
            cache: NamespaceCache::new(true),
        }
    }

    /// The table is known: version `3|1`.
    fn fresh() -> Script {
        let mut script = Script::new();
        script.access(1, &[], &["load 1 all"]);
        script.load(1, &["1: 3|1"]);
        script
    }

    #[track_caller]
    fn step(&mut self, input: Input<CachedCollection>, expected: &[&str]) {
        let effects: Vec<String> = self.cache.step(input).iter().map(shown).collect();
        assert_eq!(effects, expected);
    }

    #[track_caller]
    fn access(&mut self, by: u64, shards: &[&str], expected: &[&str]) {
        let targets = match shards {
            [] => Targets::Unknown,
            some => Targets::Shards(some.iter().map(|name| ShardId::new(name)).collect()),
        };
        let by = Accessor(by);
        self.step(Input::Access { by, targets }, expected);
    }

    /// The source answers with what it has now.
    #[track_caller]
    fn load(&mut self, load: u64, expected: &[&str]) {
        let result = Ok(table(&self.model));
        self.step(Input::Loaded { load, result }, expected);
    }

    #[track_caller]
    fn fail(&mut self, load: u64, expected: &[&str]) {
        let result = Err(LoadError::Failed(Error::bad_value("no source")));
        self.step(Input::Loaded { load, result }, expected);
    }

    /// A shard refused a request that went by `received`, and has what the model says of it.
    fn refused(&mut self, shard: &str, received: ShardVersion, is_known: bool) {
        let wanted = is_known.then(|| table(&self.model).version_for(shard));
        let staleness = Staleness {
            shard: Some(shard.into()),
            received: Some(received),
            wanted,
            is_dropped: false,
        };
        self.step(Input::Stale(staleness), &[]);
    }

    fn sent(&self, shard: &str) -> ShardVersion {
        self.cache.known().expect("known").version_for(shard)
    }
}

#[test]
fn the_first_access_reads_all_and_is_shared() {
    // SH-R7: nothing is cached; SH-R10: one refresh for all.
    let mut script = Script::new();
    script.access(1, &[], &["load 1 all"]);
    script.access(2, &[], &[]);
    script.access(3, &["s1"], &[]);
    script.load(1, &["1: 3|1", "2: 3|1", "3: 3|1"]);
    // SH-R5: nothing is read without a reason.
    for by in 4..10 {
        script.access(by, &["s0", "s1"], &[&format!("{by}: 3|1")]);
    }
    assert!(script.cache.is_idle() && !script.cache.is_stale());
}

#[test]
fn a_stale_error_blocks_its_shard_alone() {
    let mut script = Script::fresh();
    let sent = script.sent("s0");
    script.model.move_chunk(0, "s1");
    script.model.split(0, &[-5]);
    script.refused("s1", sent, false);
    // SH-R6: others continue; SH-R7: an increment is read.
    script.access(2, &[], &["2: 3|1"]);
    script.access(3, &["s0", "s2"], &["3: 3|1"]);
    script.access(4, &["s1", "s2"], &["load 2 from 3|1"]);
    script.access(5, &["s1"], &[]);
    script.access(6, &["s2"], &["6: 3|1"]);
    script.load(2, &["4: 4|2", "5: 4|2"]);
    script.access(7, &["s1"], &["7: 4|2"]);
}

#[test]
fn without_the_finer_grain_any_access_blocks() {
    // SH-R9.
    let mut script = Script::fresh();
    script.cache.is_fine_grained = false;
    let mark = Staleness::of_shard("s1".into());
    script.step(Input::Stale(mark), &[]);
    script.access(2, &[], &["load 2 from 3|1"]);
    script.access(3, &["s0"], &[]);
    script.load(2, &["2: 3|1", "3: 3|1"]);
}

#[test]
fn a_drop_marks_all_and_reads_all() {
    let mut script = Script::fresh();
    script.step(Input::Stale(Staleness::dropped()), &[]);
    script.access(2, &["s0"], &["load 2 all"]);
    // Sharded again meanwhile, with lower numbers.
    script.model = Model::new(2, 50, "s1");
    script.load(2, &["2: 1|0"]);
    // And unsharded at last.
    script.step(Input::Stale(Staleness::dropped()), &[]);
    script.access(3, &[], &["load 3 all"]);
    let result = Ok(CachedCollection::Unsharded);
    script.step(Input::Loaded { load: 3, result }, &["3: unsharded"]);
    script.access(4, &["s0"], &["4: unsharded"]);
}

#[test]
fn another_epoch_reads_all() {
    let mut script = Script::fresh();
    let sent = script.sent("s0");
    script.model = Model::new(2, 50, "s0");
    script.refused("s0", sent, true);
    script.access(2, &["s0"], &["load 2 all"]);
    script.load(2, &["2: 1|0"]);
}

#[test]
fn a_failure_is_tried_again_twice_then_the_old_table_is_returned() {
    // SH-R8.
    let mut script = Script::fresh();
    let mark = || Input::Stale(Staleness::of_shard("s1".into()));
    script.step(mark(), &[]);
    script.access(2, &["s1"], &["load 2 from 3|1"]);
    script.fail(2, &["load 3 from 3|1"]);
    script.access(3, &["s1"], &[]);
    script.fail(3, &["load 4 from 3|1"]);
    script.fail(4, &["2: 3|1", "3: 3|1"]);
    // It is still stale: the next access tries again, with all retries.
    script.access(4, &["s1"], &["load 5 from 3|1"]);
    script.fail(5, &["load 6 from 3|1"]);
    script.load(6, &["4: 3|1"]);
    assert!(!script.cache.is_stale());
}

#[test]
fn without_old_information_the_error_is_returned() {
    let mut script = Script::new();
    script.access(1, &[], &["load 1 all"]);
    script.fail(1, &["load 2 all"]);
    script.fail(2, &["load 3 all"]);
    script.fail(3, &["1: no source"]);
    script.access(2, &[], &["load 4 all"]);
    // What was dropped is not returned either.
    let mut script = Script::fresh();
    script.step(Input::Stale(Staleness::dropped()), &[]);
    script.access(2, &[], &["load 2 all"]);
    script.fail(2, &["load 3 all"]);
    script.fail(3, &["load 4 all"]);
    script.fail(4, &["2: no source"]);
}

#[test]
fn what_a_shard_has_refused_is_not_returned() {
    // The shard does not know its version itself.
    let mut script = Script::fresh();
    let sent = script.sent("s1");
    script.refused("s1", sent, false);
    script.access(2, &["s1"], &["load 2 from 3|1"]);
    script.access(3, &["s0", "s1"], &[]);
    script.access(4, &["s0"], &["4: 3|1"]);
    script.access(5, &[], &["5: 3|1"]);
    script.fail(2, &["load 3 from 3|1"]);
    script.fail(3, &["load 4 from 3|1"]);
    script.fail(4, &["2: no source", "3: no source"]);
    // The source is there again, and what it has is what was known.
    script.access(6, &["s1"], &["load 5 from 3|1"]);
    script.load(5, &["6: 3|1"]);
    script.access(7, &["s1"], &["7: 3|1"]);
    // A mark of another kind with it: those whom the refusal does not concern get what is known.
    script.refused("s1", sent, false);
    script.step(Input::Stale(Staleness::of_shard("s2".into())), &[]);
    script.access(8, &["s2"], &["load 6 from 3|1"]);
    script.access(9, &["s1", "s2"], &[]);
    script.fail(6, &["load 7 from 3|1"]);
    script.fail(7, &["load 8 from 3|1"]);
    script.fail(8, &["8: 3|1", "9: no source"]);
}

#[test]
fn no_table_older_than_what_the_shard_has() {
    // SH-R10: the source is a member that is behind.
    let mut script = Script::fresh();
    let behind = script.model.clone();
    let sent = script.sent("s0");
    script.model.move_chunk(0, "s1");
    script.refused("s1", sent, true);
    let ahead = std::mem::replace(&mut script.model, behind);
    script.access(2, &["s1"], &["load 2 from 3|1"]);
    script.load(2, &["load 3 from 3|1"]);
    script.model = ahead.clone();
    script.load(3, &["2: 4|0"]);
    // It stays behind: no table is better than an old one.
    let behind = script.model.clone();
    script.model.move_chunk(2, "s1");
    script.refused("s1", ahead.version_of("s1"), true);
    script.model = behind;
    script.access(3, &["s1"], &["load 4 from 4|0"]);
    script.load(4, &["load 5 from 4|0"]);
    script.load(5, &["load 6 from 4|0"]);
    let effects = script.cache.step(Input::Loaded {
        load: 6,
        result: Ok(table(&script.model)),
    });
    assert!(
        matches!(&effects[..], [Effect::Reply { result: Err(error), .. }] if error.code.0 == 117)
    );
}

impl Model {
    fn version_of(&self, shard: &str) -> ShardVersion {
        table(self).version_for(shard)
    }
}

#[test]
fn a_read_never_goes_back() {
    let mut script = Script::fresh();
    let behind = script.model.clone();
    script.model.move_chunk(0, "s1");
    script.step(Input::Stale(Staleness::of_shard("s1".into())), &[]);
    script.access(2, &["s1"], &["load 2 from 3|1"]);
    script.load(2, &["2: 4|0"]);
    script.step(Input::Stale(Staleness::of_shard("s2".into())), &[]);
    script.access(3, &["s2"], &["load 3 from 4|0"]);
    script.model = behind;
    script.load(3, &["load 4 from 4|0"]);
    script.load(4, &["load 5 from 4|0"]);
    script.load(5, &["3: 4|0"]);
}

#[test]
fn the_newest_version_that_a_shard_named_counts() {
    let mut script = Script::fresh();
    let sent = script.sent("s1");
    script.model.move_chunk(0, "s1");
    let between = script.model.clone();
    script.model.move_chunk(2, "s1");
    let last = script.model.clone();
    script.refused("s1", sent, true);
    // The error of an earlier request comes late.
    script.model = between;
    script.refused("s1", sent, true);
    script.access(2, &["s1"], &["load 2 from 3|1"]);
    script.load(2, &["load 3 from 3|1"]);
    script.model = last;
    script.load(3, &["2: 5|0"]);
}

#[test]
fn a_flush_takes_what_is_there() {
    // As after the config servers were restored from a backup.
    let mut script = Script::fresh();
    let mut older = Model::new(1, 10, "s0");
    older.split(0, &[0]);
    script.model = older;
    script.step(Input::Stale(Staleness::of_shard("s1".into())), &[]);
    script.access(2, &["s1"], &["load 2 from 3|1"]);
    script.load(2, &["load 3 from 3|1"]);
    script.step(Input::Stale(Staleness::dropped()), &[]);
    script.access(3, &[], &[]);
    // The read began before the flush.
    script.load(3, &["load 4 all"]);
    script.load(4, &["2: 1|2", "3: 1|2"]);
}

#[test]
fn a_storm_of_stale_errors_is_one_read() {
    // Trap 39: 1,000 operations find one stale table.
    let mut script = Script::fresh();
    let sent = script.sent("s0");
    script.model.move_chunk(0, "s1");
    script.refused("s0", sent, true);
    script.access(2, &["s0"], &["load 2 from 3|1"]);
    for by in 3..1000 {
        script.refused("s0", sent, true);
        script.access(by, &["s0"], &[]);
    }
    let answers: Vec<String> = (2..1000).map(|by| format!("{by}: 4|0")).collect();
    let answers: Vec<&str> = answers.iter().map(String::as_str).collect();
    script.load(2, &answers);
    // Errors of requests that went by the old table come late.
    script.refused(
        "s1",
        ShardVersion::Placed(ChunkVersion {
            major: 2,
            ..first(&script)
        }),
        false,
    );
    script.access(1000, &["s1"], &["1000: 4|0"]);
    script.refused("s1", sent, true);
    script.access(1001, &["s1"], &["1001: 4|0"]);
}

fn first(script: &Script) -> ChunkVersion {
    ChunkVersion::first(script.model.of)
}

#[test]
fn what_becomes_stale_during_a_read_is_read_again() {
    let mut script = Script::fresh();
    let mark = || Input::Stale(Staleness::of_shard("s1".into()));
    script.step(mark(), &[]);
    script.access(2, &["s1"], &["load 2 from 3|1"]);
    script.step(mark(), &[]);
    script.access(3, &["s1"], &[]);
    // The read began before the second mark: it answers the first access alone.
    script.load(2, &["2: 3|1", "load 3 from 3|1"]);
    script.load(3, &["3: 3|1"]);
    // With a version that the read shows to be there it is not read again.
    script.step(mark(), &[]);
    script.access(4, &["s1"], &["load 4 from 3|1"]);
    let sent = script.sent("s1");
    script.model.move_chunk(0, "s1");
    script.refused("s1", sent, true);
    script.access(5, &["s1"], &[]);
    script.load(4, &["4: 4|0", "5: 4|0"]);
    assert!(!script.cache.is_stale());
}

#[test]
fn what_does_not_fit_is_read_whole() {
    let mut script = Script::fresh();
    script.step(Input::Stale(Staleness::of_shard("s1".into())), &[]);
    script.access(2, &["s1"], &["load 2 from 3|1"]);
    let result = Err(LoadError::NeedsFull(Error::bad_value("gap")));
    script.step(Input::Loaded { load: 2, result }, &["load 3 all"]);
    script.load(3, &["2: 3|1"]);
    // The next one is an increment again.
    script.step(Input::Stale(Staleness::of_shard("s1".into())), &[]);
    script.access(3, &["s1"], &["load 4 from 3|1"]);
}

#[test]
fn who_gives_up_is_not_answered() {
    let mut script = Script::new();
    script.access(1, &[], &["load 1 all"]);
    script.access(2, &[], &[]);
    script.step(Input::GiveUp { by: Accessor(1) }, &[]);
    script.load(1, &["2: 3|1"]);
    // An answer to an earlier read is passed over.
    script.step(Input::Stale(Staleness::dropped()), &[]);
    script.access(3, &[], &["load 2 all"]);
    script.load(1, &[]);
    script.load(2, &["3: 3|1"]);
}

#[test]
fn databases() {
    let version = |last_mod| DatabaseVersion {
        uuid: Uuid::from_bytes([1; 16]),
        timestamp: Timestamp::new(5, 0),
        last_mod,
    };
    let there = |shard: &str, last_mod| CachedDatabase::There {
        primary: shard.into(),
        version: version(last_mod),
    };
    let mut cache: NamespaceCache<CachedDatabase> = NamespaceCache::new(true);
    let access = |cache: &mut NamespaceCache<CachedDatabase>| {
        let by = Accessor(1);
        let targets = Targets::Unknown;
        cache.step(Input::Access { by, targets })
    };
    let load = |cache: &mut NamespaceCache<CachedDatabase>, load, value: CachedDatabase| {
        let result = Ok(value);
        match cache.step(Input::Loaded { load, result }).pop() {
            Some(Effect::Reply { result, .. }) => result.ok(),
            Some(Effect::Load { .. }) | None => None,
        }
    };
    // What does not exist is looked for each time.
    for number in 1..3 {
        let effects = access(&mut cache);
        assert!(matches!(&effects[..], [Effect::Load { load, base: None }] if *load == number));
        let found = load(&mut cache, number, CachedDatabase::Absent);
        assert_eq!(found, Some(CachedDatabase::Absent));
    }
    access(&mut cache);
    assert_eq!(load(&mut cache, 3, there("s0", 1)), Some(there("s0", 1)));
    let stale = |received, wanted: Option<i32>| {
        Input::Stale(Staleness {
            shard: None,
            received: Some(version(received)),
            wanted: wanted.map(version),
            is_dropped: false,
        })
    };
    // Errors of an older version, and of a shard that is behind, change nothing.
    cache.step(stale(0, None));
    cache.step(stale(1, Some(1)));
    assert!(matches!(&access(&mut cache)[..], [Effect::Reply { .. }]));
    cache.step(stale(1, Some(2)));
    assert!(matches!(
        &access(&mut cache)[..],
        [Effect::Load {
            load: 4,
            base: None
        }]
    ));
    assert_eq!(load(&mut cache, 4, there("s0", 1)), None);
    assert_eq!(load(&mut cache, 5, there("s1", 2)), Some(there("s1", 2)));
    assert!(!cache.is_stale());
}
