//! Critical sections while statements run all the time, taken on any core, and at the end of a
//! node.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pinion_catalog::{BuildLimits, IndexSelection, parse_index_spec};
use pinion_catalog::{
    CollectionOptions, GateAccess, GateMode, Hold, core_catalog, create_collection, create_indexes,
    drop_collection, drop_indexes, hold, hold_database,
};
use pinion_runtime::{
    CoreId, Duration, Instant, Queue, Rng, core_count, core_id, now, on_all_cores, random_stream,
    sleep, spawn, submit_to,
};
use pinion_wire::{CommandSpec, ErrorCode, OpContext, Result};

use crate::act::namespace;
use crate::documents;
use crate::node::with_node;

static TEST: CommandSpec = CommandSpec::of_task("test");

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn soon() -> Instant {
    now() + ms(2000)
}

fn context() -> OpContext {
    OpContext::internal(1, &TEST, "d", now().as_nanos())
}

async fn create(name: &str) {
    let made = create_collection(&context(), namespace(name), CollectionOptions::default()).await;
    assert!(made.expect("it can be made").is_some());
}

/// Whether all gates are open to all, on every core.
async fn are_open(names: &'static [&'static str]) -> bool {
    let open = on_all_cores(move |_| async move {
        let catalog = core_catalog();
        let mut names = names.iter().map(|name| namespace(name));
        !catalog.gates().some_is_closed()
            && names.all(|ns| catalog.gates().admits(&ns, GateAccess::Write))
    });
    !open.await.contains(&false)
}

/// How many are behind the gates of the names, and would be kept out by this mode.
async fn behind(names: &[&'static str], mode: GateMode) -> usize {
    let in_use = on_all_cores(|_| async { core_catalog().gates().in_use() }).await;
    let gates = in_use.iter().flatten();
    let gates = gates.filter(|gate| names.iter().any(|name| namespace(name) == gate.ns));
    let behind = gates.map(|gate| match mode {
        GateMode::Closed => gate.readers + gate.writers,
        _ => gate.writers,
    });
    behind.sum()
}

const NAMES: &[&str] = &["a", "b", "e.a"];

/// Statements of one core, which come and go until they are to end.
async fn statements(ends: Arc<AtomicBool>, passed: Arc<AtomicU64>) {
    let mut rng = random_stream("statements");
    while !ends.load(Ordering::Relaxed) {
        let ns = namespace(NAMES[rng.below(NAMES.len() as u64) as usize]);
        let access = match rng.below(4) {
            0 => GateAccess::ReadAndStay,
            1 => GateAccess::Read,
            _ => GateAccess::Write,
        };
        let catalog = core_catalog();
        let pass = catalog.gates().enter(&ns, access).await;
        passed.fetch_add(1, Ordering::Relaxed);
        let found = catalog.get(&ns).filter(|_| access == GateAccess::Write);
        if let Some(found) = found
            && let Err(error) =
                documents::put(&found, None, &documents::document(rng.below(300) as i32)).await
        {
            assert_eq!(error.code, ErrorCode::DUPLICATE_KEY, "{error}");
        }
        if rng.chance(0.7) {
            sleep(Duration::from_micros(rng.below(3000))).await;
        }
        drop(pass);
        sleep(Duration::from_micros(rng.below(300))).await;
    }
}

/// A change of the catalog that is a part of the section, or of nothing.
async fn change(rng: &mut Rng, ctx: OpContext, name: &'static str) -> Result<()> {
    let ns = namespace(name);
    match rng.below(4) {
        0 => drop_collection(&ctx, ns).await.map(|_| ()),
        1 => drop_indexes(&ctx, ns, IndexSelection::All)
            .await
            .map(|_| ()),
        2 => {
            let spec = pinion_bson::rawdoc! { "key": { "a": 1 }, "name": "a" };
            let spec = parse_index_spec(&spec, false)?;
            let limits = BuildLimits {
                memory_bytes: 1 << 20,
                least_free_bytes: 0,
                most_active: 9,
            };
            let made = create_indexes(&ctx, ns, vec![spec], limits, None).await;
            made.map(|_| ())
        }
        _ => {
            let made = create_collection(&ctx, ns, CollectionOptions::default()).await;
            made.map(|_| ())
        }
    }
}

/// Takes critical sections one after the other and gives them back in every way. Gives how many
/// were held.
async fn sections(mut rng: Rng, turns: usize) -> usize {
    let mut held = 0;
    for _ in 0..turns {
        let name = NAMES[rng.below(NAMES.len() as u64) as usize];
        let is_of_database = rng.chance(0.3);
        let names: Vec<&str> = match is_of_database {
            true => vec!["a", "b"],
            false => vec![name],
        };
        let mode = match rng.chance(0.5) {
            true => GateMode::NoWrites,
            false => GateMode::Closed,
        };
        let deadline = now() + Duration::from_micros(rng.below(20_000));
        let taking = match is_of_database {
            true => hold_database("d".into(), mode, deadline),
            false => hold(namespace(name), mode, deadline),
        };
        // Some are given up while they are taken.
        let patience = match rng.chance(0.3) {
            true => Duration::from_micros(rng.below(3000)),
            false => ms(60_000),
        };
        let hold = match pinion_runtime::timeout(patience, taking).await {
            Err(_) => continue,
            Ok(Err(error)) => {
                assert_eq!(error.code, ErrorCode::LOCK_TIMEOUT, "{error}");
                continue;
            }
            Ok(Ok(hold)) => hold,
        };
        held += 1;
        assert_eq!(behind(&names, mode).await, 0, "{names:?} {mode:?}");
        if rng.chance(0.5) {
            let name = names[rng.below(names.len() as u64) as usize];
            match change(&mut rng, hold.admit(&context()), name).await {
                Ok(()) => {}
                Err(error) => assert_eq!(error.code, ErrorCode::NAMESPACE_NOT_FOUND, "{error}"),
            }
        }
        if rng.chance(0.5) && hold.set_mode(GateMode::Closed, deadline).await.is_ok() {
            assert_eq!(behind(&names, GateMode::Closed).await, 0, "{names:?}");
        }
        sleep(Duration::from_micros(rng.below(2000))).await;
        assert_eq!(behind(&names, mode).await, 0, "{names:?} {mode:?}");
        match rng.below(3) {
            0 => hold.release().await,
            1 => drop(hold),
            _ => {
                let core = CoreId(rng.below(core_count() as u64) as u16);
                submit_to(core, Queue::Foreground, move || async move { drop(hold) }).await;
            }
        }
    }
    held
}

#[test]
fn sections_keep_out_statements_and_changes_that_run_all_the_time() {
    for (seed, cores, partitions) in [(51, 3, 3), (52, 3, 3), (53, 1, 1), (54, 2, 3)] {
        with_node(seed, cores, partitions, move || async move {
            let (ends, passed) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicU64::new(0)),
            );
            let (ending, counted) = (ends.clone(), passed.clone());
            let running = on_all_cores(move |_| {
                let all = [(); 4].map(|()| statements(ending.clone(), counted.clone()));
                async move { drop(all.map(|one| spawn(Queue::Foreground, one))) }
            });
            running.await;
            // Changes of others, outside every critical section.
            let others = {
                let ends = ends.clone();
                spawn(Queue::Foreground, async move {
                    let mut rng = random_stream("others");
                    while !ends.load(Ordering::Relaxed) {
                        let name = NAMES[rng.below(NAMES.len() as u64) as usize];
                        let _ = change(&mut rng, context(), name).await;
                        sleep(ms(1)).await;
                    }
                })
            };
            let tasks: Vec<_> = (0..3)
                .map(|number: u16| {
                    let core = CoreId(number % core_count() as u16);
                    let run = move || sections(random_stream("sections"), 60);
                    spawn(Queue::Foreground, submit_to(core, Queue::Foreground, run))
                })
                .collect();
            let mut held = 0;
            for task in tasks {
                held += task.await.expect("not stopped");
            }
            assert!(held > 20, "hardly anything was held: {held}");
            ends.store(true, Ordering::Relaxed);
            others.await.expect("not stopped");
            // Those that were dropped have opened their gates by now, and all statements have
            // passed.
            sleep(ms(1000)).await;
            assert!(are_open(NAMES).await, "a gate was left closed");
            assert_eq!(behind(NAMES, GateMode::Closed).await, 0);
            assert!(passed.load(Ordering::Relaxed) > 300);
            // Whatever has become of builds meanwhile, their indexes have what was written.
            for collection in core_catalog().current().collections() {
                assert!(collection.builds().is_empty(), "a build was left behind");
                documents::check(collection).await;
            }
        });
    }
}

/// A task of another core that takes a hold is stopped: the guard is dropped with the reply, which
/// no task takes.
#[test]
fn a_hold_that_another_core_gives_up_is_not_left_behind() {
    for wait_us in (0..400).step_by(7) {
        with_node(60 + wait_us, 3, 3, move || async move {
            create("a").await;
            submit_to(CoreId(1), Queue::Foreground, move || async move {
                let taking = spawn(
                    Queue::Foreground,
                    hold(namespace("a"), GateMode::Closed, soon()),
                );
                sleep(Duration::from_micros(wait_us)).await;
                taking.abort();
                drop(taking);
                sleep(ms(300)).await;
            })
            .await;
            assert!(are_open(&["a"]).await, "after {wait_us} us");
            let again = hold(namespace("a"), GateMode::Closed, now() + ms(5)).await;
            again.expect("nobody has it").release().await;
        });
    }
}

/// It ends with the node, be it held, taken or waited for, and wherever its guard is.
#[test]
fn a_node_ends_while_something_is_held() {
    let outside: Rc<RefCell<Vec<Hold>>> = Rc::default();
    for seed in 70..73 {
        let (kept, is_waiting) = (outside.clone(), Rc::new(Cell::new(0)));
        with_node(seed, 3, 3, move || {
            let (kept, is_waiting) = (kept.clone(), is_waiting.clone());
            async move {
                create("a").await;
                create("b").await;
                let held = hold(namespace("a"), GateMode::Closed, soon()).await;
                kept.borrow_mut().push(held.expect("nobody has it"));
                let database = hold_database("e".into(), GateMode::NoWrites, soon()).await;
                let database = database.expect("nobody has it");
                drop(spawn(Queue::Foreground, async move {
                    let _database = database;
                    std::future::pending::<()>().await;
                }));
                for core in 0..3 {
                    let waiting = move || async move {
                        let catalog = core_catalog();
                        let _b = catalog
                            .gates()
                            .enter(&namespace("b"), GateAccess::Read)
                            .await;
                        catalog
                            .gates()
                            .enter(&namespace("a"), GateAccess::Read)
                            .await;
                        panic!("it passed a gate that is closed on core {}", core_id());
                    };
                    let waiting = submit_to::<_, _, ()>(CoreId(core), Queue::Foreground, waiting);
                    drop(spawn(Queue::Foreground, waiting));
                }
                sleep(ms(1)).await;
                let taking = hold(namespace("b"), GateMode::Closed, soon());
                drop(spawn(Queue::Foreground, taking));
                let dropping = async { drop_collection(&context(), namespace("a")).await };
                drop(spawn(Queue::Foreground, dropping));
                sleep(ms(100)).await;
                is_waiting.set(behind(&["b"], GateMode::Closed).await);
                assert_eq!(is_waiting.get(), 3);
                assert!(!are_open(&["a"]).await);
            }
        });
    }
    assert_eq!(outside.borrow().len(), 3);
    // Outside of any core there is nothing to open.
    outside.borrow_mut().clear();
}
