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

/// The database has two sharded collections.
fn two_collections() -> World {
    let mut world = World::with_sharded("d.c");
    world.sharded.insert("d.e".to_owned());
    world.there.insert("d.e".to_owned());
    world
}

type Make = fn() -> Result<DdlMachine>;

/// Where each operation starts, and where it leads.
fn operations() -> [(Make, World, World); 3] {
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
    [
        (create, World::new(), made),
        (drop_collection, World::with_sharded("d.c"), dropped),
        (drop_database, two_collections(), forgotten),
    ]
}

#[test]
fn traces() {
    let trace = |make: Make, mut world: World| {
        let (outcome, trace) = run(&mut world, make, (usize::MAX, Fault::None));
        outcome.expect("nothing fails");
        trace
    };
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
}

#[test]
fn a_crash_at_any_effect_leads_to_the_same_end() {
    for (make, start, end) in operations() {
        let (_, trace) = run(&mut start.clone(), make, (usize::MAX, Fault::None));
        for (number, effect) in trace.iter().enumerate() {
            for after in [false, true] {
                let mut world = start.clone();
                let (outcome, _) = run(&mut world, make, (number, Fault::Crash { after }));
                assert!(outcome.is_ok(), "{number} {after} {outcome:?}");
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

#[test]
fn recoverable_errors_are_waited_out() {
    for (make, start, end) in operations() {
        let (_, trace) = run(&mut start.clone(), make, (usize::MAX, Fault::None));
        for (number, effect) in trace.iter().enumerate() {
            for after in [false, true] {
                let mut world = start.clone();
                let fault = Fault::Error { after, code: 6 };
                let (outcome, errors) = run(&mut world, make, (number, fault));
                if effect == "look" && number == 0 {
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
        let is_commit = |effect: &String| effect.starts_with("config ");
        let commit = trace.iter().position(is_commit).expect("there is one");
        for (number, effect) in trace.iter().enumerate() {
            let mut world = start.clone();
            let fault = Fault::Error {
                after: false,
                code: 117,
            };
            let (outcome, _) = run(&mut world, make, (number, fault));
            let is_database = trace[0].starts_with("store");
            // A later document is stored in any case, and what comes behind a commit done.
            let ends = number == 0
                || (number <= commit && !effect.starts_with("store") && !is_database)
                || number == 1;
            match ends {
                true => {
                    assert_eq!(outcome.expect_err(effect).code.0, 117);
                    assert_eq!(world.sharded, start.sharded, "{effect}");
                    assert!(world.has_database && world.there == start.there, "{effect}");
                }
                false => {
                    assert!(outcome.is_ok(), "{number} {effect} {outcome:?}");
                    assert_eq!(shape(&world), shape(&end), "{effect}");
                }
            }
        }
    }
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
