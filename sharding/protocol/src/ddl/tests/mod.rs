//! Definitions in a cluster that dies and fails at each of their effects.

mod world;

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_wire::Result;

use self::world::{Fault, UUID, World, machine, run};
use super::*;

fn create() -> Result<DdlMachine> {
    let request = rawdoc! { "shardKey": { "a": 1 } };
    machine(OperationKind::CreateCollection, "d.c", request)
}

fn drop_collection() -> Result<DdlMachine> {
    machine(OperationKind::DropCollection, "d.c", RawDocumentBuf::new())
}

fn drop_database() -> Result<DdlMachine> {
    machine(OperationKind::DropDatabase, "d", RawDocumentBuf::new())
}

fn refine() -> Result<DdlMachine> {
    let request = rawdoc! { "key": { "a": 1, "b": 1 } };
    machine(OperationKind::RefineShardKey, "d.c", request)
}

fn forbid_migrations() -> Result<DdlMachine> {
    let request = rawdoc! { "allowMigrations": false };
    machine(OperationKind::SetAllowMigrations, "d.c", request)
}

fn coll_mod() -> Result<DdlMachine> {
    let request = rawdoc! { "command": { "collMod": "c", "validator": {} } };
    machine(OperationKind::CollMod, "d.c", request)
}

const BUCKETS: &str = "d.system.buckets.s";

fn lengthen_buckets() -> Result<DdlMachine> {
    let minutes = rawdoc! { "granularity": "minutes" };
    let request = rawdoc! { "command": { "collMod": "s", "timeseries": minutes } };
    machine(OperationKind::CollMod, BUCKETS, request)
}

/// And something else with it.
fn lengthen_and_expire() -> Result<DdlMachine> {
    let minutes = rawdoc! { "granularity": "minutes" };
    let request = rawdoc! {
        "command": { "collMod": "s", "timeseries": minutes, "expireAfterSeconds": 9 },
    };
    machine(OperationKind::CollMod, BUCKETS, request)
}

/// Where the buckets of a series became longer.
fn with_long_buckets() -> World {
    let longer: std::collections::BTreeSet<String> = [BUCKETS.to_owned()].into();
    World {
        longer: longer.clone(),
        longer_table_here: longer.clone(),
        longer_table_there: longer.clone(),
        longer_here: longer.clone(),
        longer_there: longer,
        ..World::with_sharded(BUCKETS)
    }
}

fn drop_index() -> Result<DdlMachine> {
    let request = rawdoc! { "command": { "dropIndexes": "c", "index": "a_1_b_1" } };
    machine(OperationKind::DropIndexes, "d.c", request)
}

/// The collection has an index for the finer key.
fn with_index() -> World {
    let mut world = World::with_sharded("d.c");
    world.here.insert("d.c".to_owned(), 2);
    world
}

fn these() -> std::collections::BTreeSet<String> {
    ["d.c".to_owned()].into()
}

fn rename() -> Result<DdlMachine> {
    // The sender has known it, so the request may come again when it is renamed.
    let known = pinion_bson::Binary::from(uuid());
    let request = rawdoc! { "to": "d.e", "dropTarget": true, "knownUUID": known };
    machine(OperationKind::RenameCollection, "d.c", request)
}

fn move_primary() -> Result<DdlMachine> {
    machine(OperationKind::MovePrimary, "d", rawdoc! { "to": "s1" })
}

/// The database has two sharded collections.
fn two_collections() -> World {
    let mut world = World::with_sharded("d.c");
    world.sharded.insert("d.e".to_owned());
    world.there.insert("d.e".to_owned());
    world
}

/// A collection that the other shard has nothing of.
fn unsharded(ns: &str) -> World {
    let mut world = World::with_sharded(ns);
    world.unshare(ns);
    world
}

fn unsharded_onto_sharded() -> World {
    let mut world = World::with_two("d.c", "d.e");
    world.unshare("d.c");
    world
}

type Make = fn() -> Result<DdlMachine>;

/// Where each operation starts, and where it leads.
fn operations() -> [(Make, World, World); 12] {
    let mut made = World::with_sharded("d.c");
    // The one chunk is here.
    made.there.clear();
    made.table_there.clear();
    // Shards without chunks are not asked for anything.
    let dropped = World::new();
    let forgotten = World {
        has_database: false,
        ..World::new()
    };
    let finer = World {
        finer: these(),
        finer_here: these(),
        finer_there: these(),
        ..with_index()
    };
    let kept = World {
        kept: these(),
        kept_here: these(),
        kept_there: these(),
        ..with_index()
    };
    let changed = World {
        changed_here: these(),
        changed_there: these(),
        ..with_index()
    };
    let mut moved = World::with_sharded("d.c");
    moved.copies.insert("d.u".to_owned());
    moved.is_moved = true;
    moved.is_move_known = true;
    [
        (create, World::new(), made),
        (drop_collection, World::with_sharded("d.c"), dropped),
        (drop_database, two_collections(), forgotten),
        (refine, with_index(), finer),
        (forbid_migrations, with_index(), kept),
        (coll_mod, with_index(), changed.clone()),
        (drop_index, with_index(), changed),
        (
            lengthen_buckets,
            World::with_sharded(BUCKETS),
            with_long_buckets(),
        ),
        (
            rename,
            World::with_sharded("d.c"),
            World::with_sharded("d.e"),
        ),
        (
            rename,
            World::with_two("d.c", "d.e"),
            World::with_sharded("d.e"),
        ),
        (rename, unsharded_onto_sharded(), unsharded("d.e")),
        (move_primary, World::with_unsharded("d.u"), moved),
    ]
}

fn trace(make: Make, mut world: World) -> Vec<String> {
    let (outcome, trace) = run(&mut world, make, (usize::MAX, Fault::None));
    outcome.expect("nothing fails");
    trace
}

#[test]
fn traces() {
    assert_eq!(
        trace(create, World::new()),
        [
            "look",
            "store acquireCriticalSection",
            "close to writes",
            "store createCollectionOnCoordinator",
            "look",
            "make, index true",
            "look",
            "store createCollectionOnParticipants",
            "shards _shardsvrCreateCollectionParticipant",
            "store commit",
            "close",
            "config _configsvrCommitCreateCollection",
            "store installRoutingTable",
            "install",
            "shards _flushRoutingTableCacheUpdates",
            "note shardCollection",
            "store exitCriticalSection",
            "open",
            "remove",
        ]
    );
    assert_eq!(
        trace(drop_collection, World::with_sharded("d.c")),
        [
            "look",
            "store enterCriticalSection",
            "close",
            "store removeFromCatalog",
            "config _configsvrCommitDropCollection",
            "store dropOnParticipants",
            "shards _shardsvrDropCollectionParticipant",
            "store dropOnCoordinator",
            "drop collection",
            "store exitCriticalSection",
            "open",
            "remove",
        ]
    );
    assert_eq!(
        trace(drop_database, two_collections()),
        [
            "store enterCriticalSection",
            "close",
            "store removeCollectionsFromCatalog",
            "list",
            "config _configsvrCommitDropCollection",
            "list",
            "config _configsvrCommitDropCollection",
            "list",
            "store dropOnParticipants",
            "shards _shardsvrDropDatabaseParticipant",
            "store dropOnCoordinator",
            "drop database",
            "forget database",
            "store exitCriticalSection",
            "open",
            "remove",
        ]
    );
    assert_eq!(
        trace(rename, World::with_sharded("d.c")),
        [
            "look",
            "look",
            "store blockCRUD",
            "close",
            "shards ReadsAndWrites",
            "store renameMetadata",
            "config _configsvrRenameCollectionMetadata",
            "store renameOnParticipants",
            "shards rename",
            "store renameOnCoordinator",
            "rename",
            "store unblockCRUD",
            "shards Unblock",
            "open",
            "remove",
        ]
    );
}

#[test]
fn traces_of_changes() {
    let trace = |make: Make| {
        let (outcome, trace) = run(&mut with_index(), make, (usize::MAX, Fault::None));
        outcome.expect("nothing fails");
        trace
    };
    assert_eq!(
        trace(refine),
        [
            "look",
            "owners",
            "store acquireCriticalSection",
            "close to writes",
            "shards Writes",
            "store checkIndexes",
            "look",
            "gather check 1",
            "store commit",
            "shards ReadsAndWrites",
            "close",
            "config _configsvrCommitRefineCollectionShardKey",
            "store installRoutingTable",
            "install",
            "shards _flushRoutingTableCacheUpdates",
            "note refineCollectionShardKey",
            "store exitCriticalSection",
            "shards Unblock",
            "open",
            "remove",
        ]
    );
    assert_eq!(
        trace(forbid_migrations),
        [
            "look",
            "store setPermitMigrations",
            "config _configsvrSetAllowMigrations",
            "store refreshShards",
            "owners",
            "shards _flushRoutingTableCacheUpdates",
            "remove",
        ]
    );
    for make in [coll_mod as Make, drop_index] {
        assert_eq!(
            trace(make),
            [
                "look",
                "owners",
                "store checkOnShards",
                "gather checkOnShards 2",
                "store changeOnCoordinator",
                "gather changeOnCoordinator 1",
                "store changeOnParticipants",
                "gather changeOnParticipants 1",
                "remove",
            ]
        );
    }
}

#[test]
fn traces_of_buckets() {
    let buckets = [
        "store blockShards",
        "close",
        "shards ReadsAndWrites",
        "gather blockShards 2",
        "store updateConfig",
        "config _configsvrCollMod",
        "store updateShards",
        "install",
        "shards _flushRoutingTableCacheUpdates",
        "shards _shardsvrCollModParticipant",
        "store unblockShards",
        "shards Unblock",
        "open",
        "remove",
    ];
    let check = [
        "look",
        "owners",
        "store checkOnShards",
        "gather checkOnShards 2",
    ];
    let others = [
        "store changeOnCoordinator",
        "gather changeOnCoordinator 1",
        "store changeOnParticipants",
        "gather changeOnParticipants 1",
    ];
    let found = trace(lengthen_buckets, World::with_sharded(BUCKETS));
    assert_eq!(found, [&check[..], &buckets[..]].concat());
    let found = trace(lengthen_and_expire, World::with_sharded(BUCKETS));
    assert_eq!(found, [&check[..], &others[..], &buckets[..]].concat());
    // They are as long already.
    let found = trace(lengthen_buckets, with_long_buckets());
    assert_eq!(found, [&check[..], &others[..], &["remove"][..]].concat());
}

#[test]
fn the_trace_of_a_move() {
    assert_eq!(
        trace(move_primary, World::with_unsharded("d.u")),
        [
            "look",
            "store clone",
            "close to writes",
            "look",
            "clone",
            "store enterCriticalSection",
            "close",
            "uncache",
            "store commit",
            "config _configsvrCommitMovePrimary",
            "store clean",
            "learn",
            "drop unsharded",
            "store exitCriticalSection",
            "open",
            "remove",
        ]
    );
}

#[test]
fn a_crash_at_any_effect_leads_to_the_same_end() {
    let changed = || std::collections::BTreeSet::from([BUCKETS.to_owned()]);
    let both = World {
        changed_here: changed(),
        changed_there: changed(),
        ..with_long_buckets()
    };
    let further = (
        lengthen_and_expire as Make,
        World::with_sharded(BUCKETS),
        both,
    );
    for (make, start, end) in operations().into_iter().chain([further]) {
        let (_, trace) = run(&mut start.clone(), make, (usize::MAX, Fault::None));
        for (number, effect) in trace.iter().enumerate() {
            for after in [false, true] {
                let mut world = start.clone();
                let (outcome, _) = run(&mut world, make, (number, Fault::Crash { after }));
                // It had come to its end, and the client asked once more.
                let is_again = after && number + 1 == trace.len();
                let is_gone = outcome.as_ref().is_err_and(|error| error.code.0 == 27);
                assert!(
                    outcome.is_ok() || (is_again && is_gone),
                    "{effect} {after} {outcome:?}"
                );
                assert_eq!(shape(&world), shape(&end), "{effect} {after}");
            }
        }
    }
}

/// All but what a single chunk's participants are.
fn shape(world: &World) -> World {
    let mut world = world.clone();
    if !world.sharded.is_empty() {
        world.there.clear();
        world.table_there.clear();
    }
    world
}

/// What comes before it has left nothing.
fn first_store(trace: &[String]) -> usize {
    let is_store = |effect: &String| effect.starts_with("store");
    trace.iter().position(is_store).expect("there is one")
}

#[test]
fn recoverable_errors_are_waited_out() {
    for (make, start, end) in operations() {
        let (_, trace) = run(&mut start.clone(), make, (usize::MAX, Fault::None));
        for (number, effect) in trace.iter().enumerate() {
            for after in [false, true] {
                let mut world = start.clone();
                let fault = Fault::Error { after, code: 6 };
                let (outcome, errors) = run(&mut world, make, (number, fault));
                if number < first_store(&trace) {
                    // Nothing is there yet that would have to be brought to an end.
                    assert!(outcome.is_err());
                    assert_eq!(world, start);
                    continue;
                }
                assert!(outcome.is_ok(), "{effect} {outcome:?}");
                assert!(errors.contains(&"pause 6".to_owned()), "{effect}");
                assert_eq!(shape(&world), shape(&end), "{effect} {after}");
            }
        }
    }
}

#[test]
fn other_errors_end_an_operation_before_anything_is_destroyed() {
    for (make, start, end) in operations() {
        let (_, trace) = run(&mut start.clone(), make, (usize::MAX, Fault::None));
        let is_commit = |effect: &String| {
            effect.starts_with("config ") || effect.starts_with("gather changeOnCoordinator")
        };
        let commit = trace.iter().position(is_commit).expect("there is one");
        for (number, effect) in trace.iter().enumerate() {
            let mut world = start.clone();
            let fault = Fault::Error {
                after: false,
                code: 117,
            };
            let (outcome, _) = run(&mut world, make, (number, fault));
            let first = trace.iter().position(|effect| effect.starts_with("store"));
            let is_database = first == Some(0);
            // A later document is stored in any case, and what comes behind a commit done.
            let ends = Some(number) <= first
                || (number <= commit
                    && !effect.starts_with("store")
                    && (!is_database || number == 1));
            match ends {
                true => {
                    assert_eq!(outcome.expect_err(effect).code.0, 117);
                    assert_eq!(world.sharded, start.sharded, "{effect}");
                    assert!(world.has_database && world.there == start.there, "{effect}");
                    assert_eq!(world.finer, start.finer, "{effect}");
                    assert_eq!(world.changed_here, start.changed_here, "{effect}");
                    assert!(world.copies.is_empty() && !world.is_moved, "{effect}");
                }
                false => {
                    assert!(outcome.is_ok(), "{number} {effect} {outcome:?}");
                    assert_eq!(shape(&world), shape(&end), "{effect}");
                }
            }
        }
    }
}

/// How an operation ends where a shard refuses its part.
fn refused(make: Make, by: &'static str) -> (Result<RawDocumentBuf>, World) {
    let mut world = World {
        refuses: Some(by),
        ..with_index()
    };
    let (outcome, _) = run(&mut world, make, (usize::MAX, Fault::None));
    world.refuses = None;
    (outcome, world)
}

#[test]
fn what_a_shard_refuses() {
    // Its part has an array in one of the new fields.
    let (outcome, world) = refused(refine, "s1");
    let error = outcome.expect_err("it is refused");
    assert!(
        error.code.0 == 72 && error.message.contains("on shard s1"),
        "{error}"
    );
    assert_eq!(world, with_index());
    for make in [coll_mod as Make, drop_index] {
        let (outcome, world) = refused(make, "s0");
        let error = outcome.expect_err("it is refused");
        let extra = error.extra.expect("what the shards have answered");
        let replies = replies_in(&extra).expect("readable").expect("some");
        assert!(error.code.0 == 72 && replies.len() == 1 && replies[0].1.is_err());
        assert_eq!(world, with_index());
        let (outcome, world) = refused(make, "s1");
        let reply = outcome.expect("it has come to its end");
        let replies = replies_in(&reply).expect("readable").expect("some");
        let is_done: Vec<bool> = replies.iter().map(|(_, reply)| reply.is_ok()).collect();
        assert_eq!(is_done, [true, false]);
        assert!(!world.changed_here.is_empty() && world.changed_there.is_empty());
    }
    // No shard has the index.
    let (outcome, world) = refused(drop_index, "all");
    assert_eq!(outcome.expect_err("it is refused").code.0, 27);
    assert_eq!(world, with_index());
}

#[test]
fn buckets_that_are_not_changed() {
    let check = |change: RawDocumentBuf, start: World, (code, effects): (i32, usize)| {
        let mut world = start.clone();
        let request = rawdoc! { "command": { "collMod": "s", "timeseries": change } };
        let make = || machine(OperationKind::CollMod, BUCKETS, request.clone());
        let (outcome, trace) = run(&mut world, make, (usize::MAX, Fault::None));
        assert_eq!(outcome.map_or_else(|error| error.code.0, |_| 0), code);
        assert_eq!((world, trace.len()), (start, effects), "{trace:?}");
    };
    let seconds = || rawdoc! { "granularity": "seconds" };
    // Nothing is stored of what the catalog shows to be wrong.
    check(seconds(), with_long_buckets(), (72, 1));
    let short = rawdoc! { "bucketMaxSpanSeconds": 60, "bucketRoundingSeconds": 60 };
    check(short, World::with_sharded(BUCKETS), (72, 1));
    let unknown = rawdoc! { "granularity": "days" };
    check(unknown, World::with_sharded(BUCKETS), (2, 1));
    check(seconds(), World::new(), (118, 1));
    // One shard refuses it once the gates are closed.
    let start = || World {
        refuses: Some("s1"),
        ..World::with_sharded(BUCKETS)
    };
    let (outcome, trace) = run(&mut start(), lengthen_buckets, (usize::MAX, Fault::None));
    assert_eq!(outcome.expect_err("it is refused").code.0, 72);
    assert!(trace.contains(&"store abort".to_owned()), "{trace:?}");
    for (number, effect) in trace.iter().enumerate() {
        for after in [false, true] {
            let mut world = start();
            let fault = (number, Fault::Crash { after });
            let (outcome, _) = run(&mut world, lengthen_buckets, fault);
            assert_eq!(outcome.expect_err(effect).code.0, 72);
            assert_eq!(world, start(), "{effect} {after}");
        }
    }
}

#[test]
fn a_crash_of_one_that_is_refused_leaves_nothing() {
    let start = || World {
        refuses: Some("s1"),
        ..with_index()
    };
    let (_, trace) = run(&mut start(), refine, (usize::MAX, Fault::None));
    assert!(trace.contains(&"store abort".to_owned()), "{trace:?}");
    for (number, effect) in trace.iter().enumerate() {
        for after in [false, true] {
            let mut world = start();
            let (outcome, _) = run(&mut world, refine, (number, Fault::Crash { after }));
            assert_eq!(outcome.expect_err(effect).code.0, 72);
            assert_eq!(world, start(), "{effect} {after}");
        }
    }
}

#[test]
fn keys_that_are_not_refined() {
    let check = |key: RawDocumentBuf, start: World, expected: i32| {
        let mut world = start.clone();
        let request = rawdoc! { "key": key };
        let make = || machine(OperationKind::RefineShardKey, "d.c", request.clone());
        let (outcome, trace) = run(&mut world, make, (usize::MAX, Fault::None));
        assert_eq!((world, trace.len()), (start, 1));
        assert_eq!(outcome.map_or_else(|error| error.code.0, |_| 0), expected);
    };
    // It has the key.
    check(rawdoc! { "a": 1 }, with_index(), 0);
    check(rawdoc! { "b": 1, "a": 1 }, with_index(), 72);
    check(rawdoc! { "a": "hashed", "b": 1 }, with_index(), 72);
    // There is no index.
    check(rawdoc! { "a": 1, "b": 1 }, World::with_sharded("d.c"), 72);
    check(rawdoc! { "a": 1, "b": 1 }, World::new(), 118);
}

#[test]
fn a_commit_that_may_have_been_made_is_not_given_up() {
    // First its answer is lost, and then it is refused.
    let mut machine = create().expect("a request");
    let mut world = World::new();
    let mut input = Input::Start;
    let mut refusals = 0;
    loop {
        let effect = machine.step(input);
        let is_commit =
            matches!(&effect, Effect::Perform(action) if matches!(**action, Action::Configure(_)));
        input = match effect {
            Effect::End(outcome) => {
                assert!(outcome.is_ok() && refusals == 2);
                return;
            }
            Effect::Pause(_) => Input::Waited,
            _ if is_commit && refusals < 2 => {
                refusals += 1;
                let code = if refusals == 1 { 6 } else { 117 };
                Input::Failed(pinion_wire::Error::new(pinion_wire::ErrorCode(code), "x"))
            }
            effect => Input::Done(world.carry_out(&effect).expect("it is carried out")),
        };
    }
}

#[test]
fn what_is_there_already() {
    let again = |request, start: World| {
        let mut world = start.clone();
        let make = || machine(OperationKind::CreateCollection, "d.c", request_of(request));
        let (outcome, trace) = run(&mut world, make, (usize::MAX, Fault::None));
        assert_eq!((world, trace.len()), (start, 1));
        outcome.map_or_else(|error| error.code.0, |_| 0)
    };
    let sharded = || World::with_sharded("d.c");
    assert_eq!(again((1, false), sharded()), 0);
    assert_eq!(again((2, false), sharded()), 23);
    assert_eq!(again((1, true), sharded()), 23);
    let (outcome, trace) = run(
        &mut World::new(),
        drop_collection,
        (usize::MAX, Fault::None),
    );
    assert_eq!((outcome.ok(), trace.len()), (Some(rawdoc! {}), 1));
}

#[test]
fn what_is_not_renamed() {
    let check = |request: RawDocumentBuf, start: World, expected: i32| {
        let mut world = start.clone();
        let make = || machine(OperationKind::RenameCollection, "d.c", request.clone());
        let (outcome, trace) = run(&mut world, make, (usize::MAX, Fault::None));
        let code = outcome.map_or_else(|error| error.code.0, |_| 0);
        assert_eq!((code, trace.len()), (expected, 2), "{request:?}");
        assert_eq!(world, start);
    };
    let to = |drop: bool| rawdoc! { "to": "d.e", "dropTarget": drop };
    check(to(false), World::with_two("d.c", "d.e"), 48);
    check(to(false), unsharded_onto_sharded(), 48);
    check(to(true), World::with_sharded("d.e"), 26);
    check(rawdoc! { "to": "e.c" }, World::with_sharded("d.c"), 125);
    check(
        rawdoc! { "to": "d.system.x" },
        World::with_sharded("d.c"),
        20,
    );
    let long = "x".repeat(240);
    check(
        rawdoc! { "to": format!("d.{long}") },
        World::with_sharded("d.c"),
        73,
    );
    let mut zones = World::with_sharded("d.c");
    zones.zones.insert("d.e".to_owned());
    check(to(true), zones, 125);
    // It has the name already.
    let again = rawdoc! { "to": "d.e", "knownUUID": pinion_bson::Binary::from(uuid()) };
    check(again, World::with_sharded("d.e"), 0);
    // Neither is sharded.
    check(to(false), unsharded("d.c"), 0);
    check(to(false), World::new(), 0);
}

fn uuid() -> pinion_bson::Uuid {
    pinion_bson::Uuid::from_bytes(UUID)
}

/// By `a`, or another field.
fn request_of((field, unique): (i32, bool)) -> RawDocumentBuf {
    match field {
        1 => rawdoc! { "shardKey": { "a": 1 }, "unique": unique },
        _ => rawdoc! { "shardKey": { "b": 1 }, "unique": unique },
    }
}

#[test]
fn replies() {
    let (outcome, _) = run(&mut World::new(), create, (usize::MAX, Fault::None));
    let reply = outcome.expect("it is made");
    let mut world = World::with_sharded(BUCKETS);
    let (outcome, _) = run(&mut world, lengthen_buckets, (usize::MAX, Fault::None));
    let replies = replies_in(&outcome.expect("it is changed")).expect("readable");
    let replies = replies.expect("of each shard");
    assert!(replies.len() == 2 && replies.iter().all(|(_, reply)| reply.is_ok()));
    let uuid = pinion_bson::get(&reply, "collectionUUID").expect("a UUID");
    let pinion_bson::RawBsonRef::Binary(uuid) = uuid else {
        panic!("{uuid:?}");
    };
    assert_eq!(uuid.bytes, UUID);
    assert!(pinion_bson::get(&reply, "collectionVersion").is_some());
    let mut world = World::with_sharded("d.c");
    let (outcome, _) = run(&mut world, drop_collection, (usize::MAX, Fault::None));
    assert_eq!(
        outcome.ok(),
        Some(rawdoc! { "nIndexesWas": 2, "ns": "d.c" })
    );
}
