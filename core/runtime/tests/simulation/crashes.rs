//! Crashes and restarts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_runtime::sim::{Death, Sim, SimOptions, event};
use pinion_runtime::{
    ALIGN, DmaBuf, Duration, File, OpenOptions, Queue, core_count, fs, set_core_local,
    shutdown_requested, sleep, spawn, submit_to, try_core_local, yield_now,
};

use crate::recorder::{self, Care};

/// Runs the recorder through crashes and gives how many acknowledged numbers were ever missing, and
/// the torn blocks.
fn crash_often(seed: u64, care: Care, death: Death) -> (usize, u64) {
    let sim = Sim::new(seed, SimOptions::random(seed));
    let (server, _, known) = recorder::start(&sim, 2, care, 1000);
    let mut rng = sim.random_stream("crashes");
    let mut missing = 0;
    for round in 0..4 {
        let goal = known.count() + 5 + rng.below(20) as usize;
        sim.run_until(|| known.count() >= goal).unwrap();
        // In the middle of what follows.
        sim.run_for(Duration::from_nanos(rng.below(2_000_000)));
        sim.crash(server, death);
        assert_eq!(sim.last_death(server), Some(death));
        missing += recorder::missing(&sim, server, &known).len();
        sim.run_for(Duration::from_millis(5));
        sim.restart(server, 1 + round);
    }
    (missing, sim.stats().torn_blocks)
}

#[test]
fn what_was_flushed_survives_every_crash() {
    for seed in 0..40 {
        for death in [Death::PowerCut, Death::Kill] {
            assert_eq!(
                crash_often(seed, Care::Flush, death).0,
                0,
                "seed {seed}, {death:?}"
            );
        }
    }
}

#[test]
fn what_was_not_flushed_survives_a_kill_but_not_every_power_cut() {
    let (mut lost, mut torn, mut whole) = (0, 0, 0);
    for seed in 0..40 {
        assert_eq!(
            crash_often(seed, Care::Forget, Death::Kill).0,
            0,
            "seed {seed}"
        );
        let (missing, torn_blocks) = crash_often(seed, Care::Forget, Death::PowerCut);
        lost += usize::from(missing > 0);
        whole += usize::from(missing == 0);
        torn += torn_blocks;
    }
    assert!(lost > 10, "only {lost} of 40 seeds lost anything");
    assert!(torn > 10, "only {torn} blocks were torn");
    assert!(whole < 40);
}

#[test]
fn a_restart_finds_the_disk_and_nothing_else() {
    struct Local;
    struct CountDrop(Rc<Cell<usize>>);
    impl Drop for CountDrop {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            // A destructor finds a core, on which nothing starts any more.
            let _ = pinion_runtime::now();
            spawn(Queue::Foreground, async {
                panic!("nothing runs on a node that is down")
            });
        }
    }
    for seed in 0..20 {
        let sim = Sim::new(seed, SimOptions::default());
        let dropped = Rc::new(Cell::new(0));
        let counts = Rc::new(RefCell::new(Vec::new()));
        let (drops, seen) = (dropped.clone(), counts.clone());
        let node = sim.add_node("node", 3, move |core| {
            let (drops, seen) = (drops.clone(), seen.clone());
            async move {
                assert!(
                    try_core_local::<Local>().is_none(),
                    "nothing is left of the former life"
                );
                set_core_local(Rc::new(Local));
                set_core_local(Rc::new(CountDrop(drops.clone())));
                if core.0 == 0 {
                    seen.borrow_mut().push(core_count());
                    let lock = fs::lock("/").await.unwrap();
                    std::mem::forget(lock);
                }
                let guard = CountDrop(drops);
                spawn(Queue::Background, async move {
                    let _guard = guard;
                    loop {
                        yield_now().await;
                    }
                });
                std::future::pending().await
            }
        });
        for (round, cores) in [1, 4, 2].into_iter().enumerate() {
            sim.run_for(Duration::from_millis(3));
            let before = dropped.get();
            sim.crash(
                node,
                if seed % 2 == 0 {
                    Death::Kill
                } else {
                    Death::PowerCut
                },
            );
            assert_eq!(
                dropped.get() - before,
                2 * counts.borrow()[round],
                "a task and a local on each core"
            );
            assert!(!sim.is_running(node));
            sim.run_for(Duration::from_millis(1));
            sim.restart(node, cores);
        }
        sim.run_for(Duration::from_millis(3));
        assert_eq!(*counts.borrow(), [3, 1, 4, 2]);
        assert_eq!(sim.starts(node), 4);
    }
}

/// A crash at an event falls exactly there: nothing that the code does after it has an effect.
#[test]
fn a_crash_falls_at_its_event() {
    for seed in 0..30 {
        let sim = Sim::new(seed, SimOptions::random(seed));
        let node = sim.add_node("node", 2, |core| async move {
            if core.0 != 0 {
                return;
            }
            for n in 0..10u64 {
                let name = format!("/{n}");
                event("before create");
                let file = File::open(&name, OpenOptions::create()).await.unwrap();
                let mut data = DmaBuf::zeroed(ALIGN);
                data.fill(1);
                event("before write");
                // The first poll of this would hand the write to the system.
                file.write_at(0, data).await.unwrap();
                file.datasync().await.unwrap();
                fs::sync_dir("/").await.unwrap();
            }
        });
        sim.crash_at(node, "before write", 4, Death::Kill);
        sim.run_until_down(node).unwrap();
        let lens: Vec<u64> = sim.files(node).into_iter().map(|(_, len)| len).collect();
        assert_eq!(lens, [ALIGN as u64, ALIGN as u64, ALIGN as u64, 0]);
        assert_eq!(
            (
                sim.event_count(node, "before write"),
                sim.event_count(node, "before create")
            ),
            (4, 4)
        );
        assert_eq!(sim.stats().crashes_by_event.get("before write"), Some(&1));
        sim.restart(node, 1);
        sim.run_until_down(node).unwrap();
        assert_eq!(sim.last_death(node), Some(Death::Exit));
        assert_eq!(sim.files(node).len(), 10);
    }
}

#[test]
fn a_node_exits_when_all_its_mains_have_returned() {
    let sim = Sim::new(1, SimOptions::default());
    let served = Rc::new(Cell::new(0));
    let count = served.clone();
    let node = sim.add_node("node", 3, move |core| {
        let count = count.clone();
        async move {
            if core.0 == 1 {
                // The other cores have returned, and still serve.
                sleep(Duration::from_millis(10)).await;
                let from =
                    submit_to(pinion_runtime::CoreId(2), Queue::Foreground, || async { 5 }).await;
                count.set(from);
            }
            spawn(Queue::Background, std::future::pending::<()>());
        }
    });
    sim.run_until_down(node).unwrap();
    assert_eq!((served.get(), sim.last_death(node)), (5, Some(Death::Exit)));
    assert!(sim.run_until_idle().is_ok());
}

#[test]
fn a_node_can_be_asked_to_shut_down() {
    let sim = Sim::new(1, SimOptions::default());
    let node = sim.add_node("node", 2, |_| async { shutdown_requested().await });
    sim.run_for(Duration::from_secs(1));
    assert!(sim.is_running(node));
    sim.terminate(node);
    sim.run_until_down(node).unwrap();
}

/// A task of one node can crash and restart another, and its own.
#[test]
fn faults_may_come_from_inside() {
    let sim = Sim::new(1, SimOptions::default());
    let victim = sim.add_node("victim", 2, |_| std::future::pending());
    let handle = sim.handle();
    let nemesis = sim.add_node("nemesis", 1, move |_| {
        let handle = handle.clone();
        async move {
            for n in 0..10 {
                sleep(Duration::from_millis(1)).await;
                handle.crash(victim, Death::PowerCut);
                assert!(!handle.is_running(victim));
                handle.restart(victim, 1 + n % 3);
            }
        }
    });
    sim.run_until_down(nemesis).unwrap();
    assert_eq!((sim.starts(victim), sim.stats().power_cuts), (11, 10));

    let handle = sim.handle();
    let own = sim.add_node("own", 1, move |_| {
        let handle = handle.clone();
        async move {
            handle.crash(pinion_runtime::sim::NodeId(2), Death::Kill);
            assert!(
                handle.is_running(pinion_runtime::sim::NodeId(2)),
                "it ends with this poll, not in it"
            );
            yield_now().await;
            unreachable!("the poll in which a node dies is its last");
        }
    });
    sim.run_until_down(own).unwrap();
}

#[test]
fn a_busy_node_runs_on_while_another_restarts() {
    let sim = Sim::new(2, SimOptions::random(2));
    let turns = Rc::new(Cell::new(0u64));
    let count = turns.clone();
    sim.add_node("busy", 2, move |_| {
        let count = count.clone();
        async move {
            loop {
                count.set(count.get() + 1);
                yield_now().await;
            }
        }
    });
    let other = sim.add_node("other", 1, |_| std::future::pending());
    for _ in 0..20 {
        let before = turns.get();
        sim.crash(other, Death::Kill);
        sim.run_for(Duration::from_millis(1));
        sim.restart(other, 2);
        sim.run_for(Duration::from_millis(100));
        assert!(turns.get() > before);
    }
}

#[test]
fn wall_clocks_may_be_off_and_stepped() {
    let options = SimOptions {
        wall_skew: Duration::from_secs(10),
        ..SimOptions::default()
    };
    let sim = Sim::new(3, options);
    let clocks = Rc::new(RefCell::new(vec![0i64; 2]));
    for (index, name) in ["a", "b"].into_iter().enumerate() {
        let clocks = clocks.clone();
        sim.add_node(name, 1, move |_| {
            let clocks = clocks.clone();
            async move {
                loop {
                    clocks.borrow_mut()[index] = pinion_runtime::wall_ms();
                    sleep(Duration::from_millis(1)).await;
                }
            }
        });
    }
    sim.run_for(Duration::from_millis(100));
    let before = clocks.borrow().clone();
    let difference = (before[0] - before[1]).abs();
    assert!(difference > 20 && difference <= 20_000, "{difference}");
    sim.shift_wall_clock(pinion_runtime::sim::NodeId(0), -5_000_000);
    sim.run_for(Duration::from_millis(10));
    assert!(clocks.borrow()[0] < before[0] - 4_000);
}

/// Whatever its tasks hold and wait for, a dropped simulation leaves no memory behind: campaigns
/// run thousands.
#[test]
fn a_dropped_simulation_leaves_nothing_behind() {
    let held = Rc::new(());
    let sim = Sim::new(9, SimOptions::random(9));
    let (server, ..) = recorder::start(&sim, 2, Care::Flush, 1000);
    let shared = held.clone();
    sim.add_node("holder", 2, move |core| {
        let shared = shared.clone();
        async move {
            set_core_local(Rc::new((shared.clone(), core)));
            for _ in 0..3 {
                let shared = shared.clone();
                let waiting = spawn(Queue::Background, async move {
                    let _shared = shared;
                    let file = File::open("/a", OpenOptions::create()).await.unwrap();
                    loop {
                        file.write_at(0, DmaBuf::zeroed(ALIGN)).await.unwrap();
                    }
                });
                spawn(Queue::Foreground, waiting);
            }
            let far = pinion_runtime::CoreId(1 - core.0);
            spawn(
                Queue::Foreground,
                submit_to(far, Queue::Background, || sleep(Duration::from_secs(1000))),
            );
            sleep(Duration::from_secs(1000)).await;
        }
    });
    sim.run_for(Duration::from_millis(20));
    sim.crash(server, Death::PowerCut);
    sim.run_for(Duration::from_millis(20));
    assert!(Rc::strong_count(&held) > 1);
    let handle = sim.handle();
    assert!(!handle.is_over());
    drop(sim);
    assert!(handle.is_over());
    assert_eq!(Rc::strong_count(&held), 1);
}
