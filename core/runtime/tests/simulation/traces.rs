//! Equal seeds give equal runs, in every process.

use std::collections::BTreeSet;
use std::process::Command;
use std::rc::Rc;

use pinion_runtime::sim::{Death, LinkFaults, Sim, SimOptions, block_on, is_simulated, run_cores};
use pinion_runtime::{
    CoreId, Duration, Queue, on_all_cores, random_stream, sleep, spawn, submit_to,
};

use crate::recorder::{self, Care};

/// A run with everything in it: several cores, files, connections, crashes, faults. Gives its
/// trace.
fn eventful_run(seed: u64) -> String {
    let sim = Sim::new(seed, SimOptions::random(seed));
    let (server, client, known) = recorder::start(&sim, 3, Care::Flush, 60);
    let mut rng = sim.random_stream("crashes");
    sim.set_links(
        client,
        server,
        LinkFaults {
            loss: 0.01,
            reset: 0.005,
            ..LinkFaults::default()
        },
    );
    let mut round = 0;
    while known.count() < 60 {
        round += 1;
        let goal = (known.count() + 15).min(60);
        sim.run_until(|| known.count() >= goal).unwrap();
        sim.crash(
            server,
            if rng.below(2) == 0 {
                Death::PowerCut
            } else {
                Death::Kill
            },
        );
        sim.run_for(Duration::from_millis(rng.below(50)));
        sim.restart(server, 1 + rng.below(4) as usize);
    }
    sim.run_until_down(client).unwrap();
    assert!(round >= 4);
    format!("{:016x} after {} steps", sim.trace_hash(), sim.steps())
}

#[test]
fn equal_seeds_give_equal_traces() {
    let first: Vec<_> = (0..10).map(eventful_run).collect();
    let second: Vec<_> = (0..10).map(eventful_run).collect();
    assert_eq!(first, second);
    assert_eq!(
        first.iter().collect::<BTreeSet<_>>().len(),
        first.len(),
        "seeds differ"
    );
}

const CHILD_SEED: &str = "PINION_TRACE_SEED";

/// What another process prints for `seed`.
fn trace_of_another_process(seed: u64) -> String {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "traces::another_process",
            "--nocapture",
            "--include-ignored",
        ])
        .env(CHILD_SEED, seed.to_string())
        .output()
        .unwrap();
    let output = String::from_utf8(child.stdout).unwrap();
    assert!(child.status.success(), "the other process failed: {output}");
    let line = output.lines().find_map(|line| line.split("trace: ").nth(1));
    line.unwrap_or_else(|| panic!("the other process printed no trace: {output}"))
        .to_owned()
}

/// Not a test by itself: what `separate_processes_agree` runs in its children.
#[test]
#[ignore = "run by separate_processes_agree in processes of its own"]
fn another_process() {
    let seed = std::env::var(CHILD_SEED)
        .expect("set by the test that starts this")
        .parse()
        .unwrap();
    println!("trace: {}", eventful_run(seed));
}

#[test]
fn separate_processes_agree() {
    let one = trace_of_another_process(7);
    assert_eq!(one, trace_of_another_process(7));
    assert_eq!(one, eventful_run(7));
    assert_ne!(one, trace_of_another_process(8));
}

/// Draws from one stream do not change what another yields, and no stream depends on which was
/// asked first.
#[test]
fn random_streams_do_not_disturb_each_other() {
    let draw = |others: bool| {
        run_cores(5, 2, move |core| async move {
            if others {
                random_stream("other").next_u64();
                random_stream("third").next_u64();
            }
            (
                core,
                random_stream("mine").next_u64(),
                random_stream("mine").next_u64(),
            )
        })
    };
    assert_eq!(draw(false), draw(true));
    let drawn = draw(false);
    let distinct: BTreeSet<_> = drawn
        .iter()
        .flat_map(|(_, first, second)| [first, second])
        .collect();
    assert_eq!(
        distinct.len(),
        4,
        "each core and each call has a stream of its own"
    );
}

#[test]
fn scheduling_differs_between_seeds() {
    let order = |seed| {
        block_on(seed, async {
            let order = Rc::new(std::cell::RefCell::new(Vec::new()));
            let tasks: Vec<_> = (0..6)
                .map(|n| {
                    let order = order.clone();
                    spawn(Queue::Foreground, async move { order.borrow_mut().push(n) })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            order.take()
        })
    };
    let orders: BTreeSet<Vec<i32>> = (0..50).map(order).collect();
    assert!(
        orders.len() > 20,
        "only {} orders in 50 seeds",
        orders.len()
    );
}

/// Messages between different pairs of cores overtake each other; those of one pair do not.
#[test]
fn the_mesh_keeps_order_only_within_a_pair() {
    let arrivals: BTreeSet<Vec<u16>> = (0..50)
        .map(|seed| {
            let arrived = Rc::new(std::cell::RefCell::new(Vec::new()));
            struct Arrived(Rc<std::cell::RefCell<Vec<u16>>>);
            let shared = arrived.clone();
            run_cores(seed, 4, move |core| {
                let shared = shared.clone();
                async move {
                    if core.0 == 0 {
                        pinion_runtime::set_core_local(Rc::new(Arrived(shared)));
                        sleep(Duration::from_secs(1)).await;
                        return;
                    }
                    sleep(Duration::from_millis(1)).await;
                    let id = core.0;
                    submit_to(CoreId(0), Queue::Foreground, move || async move {
                        pinion_runtime::core_local::<Arrived>()
                            .0
                            .borrow_mut()
                            .push(id);
                    })
                    .await;
                }
            });
            arrived.take()
        })
        .collect();
    assert_eq!(arrivals.len(), 6, "all orders of three cores occur");
}

#[test]
fn outside_of_a_node_nothing_is_simulated() {
    assert!(!is_simulated());
    pinion_runtime::sim::event("ignored");
    assert!(block_on(1, async { is_simulated() }));
}

#[test]
#[should_panic(expected = "an invariant is broken")]
fn a_panic_in_a_task_ends_the_run() {
    run_cores(1, 2, |_| async {
        on_all_cores(|core| async move { assert_ne!(core.0, 1, "an invariant is broken") }).await;
    });
}

#[test]
#[should_panic(expected = "did not finish: Idle")]
fn a_run_that_waits_for_ever_is_found() {
    block_on(1, std::future::pending::<()>());
}
