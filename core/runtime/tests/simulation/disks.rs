//! Faults of disks.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::rc::Rc;

use pinion_runtime::sim::{Death, DiskFaults, DiskOp, NodeId, Sim, SimOptions};
use pinion_runtime::{ALIGN, DmaBuf, Duration, File, OpenOptions, fs, join_all, now};

fn filled(byte: u8) -> DmaBuf {
    let mut buffer = DmaBuf::zeroed(ALIGN);
    buffer.fill(byte);
    buffer
}

/// Runs one async function as the life of a node, and gives what it returns.
fn live<T: 'static, F, Fut>(sim: &Sim, node: NodeId, life: F) -> T
where
    F: Fn() -> Fut + 'static,
    Fut: Future<Output = T> + 'static,
{
    let output = Rc::new(RefCell::new(None));
    let result = output.clone();
    sim.set_main(node, move |_| {
        let (result, future) = (result.clone(), life());
        async move {
            let output = future.await;
            *result.borrow_mut() = Some(output);
        }
    });
    sim.restart(node, 1);
    sim.run_until_down(node).unwrap();
    let output = output.borrow_mut().take();
    output.expect("the life came to its end")
}

/// A simulation with one node that is down.
fn machine(seed: u64) -> (Sim, NodeId) {
    let sim = Sim::new(seed, SimOptions::random(seed));
    let node = sim.add_node("node", 1, |_| async {});
    sim.run_until_down(node).unwrap();
    (sim, node)
}

async fn write_pages(name: &'static str, pages: u64) {
    let file = File::open(name, OpenOptions::create()).await.unwrap();
    for page in 0..pages {
        file.write_at(page * ALIGN as u64, filled(page as u8 + 1))
            .await
            .unwrap();
    }
    file.datasync().await.unwrap();
    fs::sync_dir("/").await.unwrap();
}

#[test]
fn planned_operations_fail_once() {
    let (sim, node) = machine(1);
    sim.fail_disk_operation(node, DiskOp::Write, "/a", 2);
    sim.fail_disk_operation(node, DiskOp::Sync, "/a", 1);
    sim.fail_disk_operation(node, DiskOp::Read, "/a", 3);
    live(&sim, node, || async {
        let a = File::open("/a", OpenOptions::create()).await.unwrap();
        let b = File::open("/b", OpenOptions::create()).await.unwrap();
        let mut writes = Vec::new();
        let mut reads = Vec::new();
        for _ in 0..4 {
            b.write_at(0, filled(1)).await.unwrap();
            writes.push(a.write_at(0, filled(1)).await.is_ok());
        }
        let syncs = [a.datasync().await.is_ok(), a.datasync().await.is_ok()];
        for _ in 0..4 {
            b.read_at(0, ALIGN).await.unwrap();
            reads.push(a.read_at(0, ALIGN).await.is_ok());
        }
        assert_eq!(writes, [true, false, true, true]);
        assert_eq!(syncs, [false, true]);
        assert_eq!(reads, [true, true, false, true]);
    });
    assert_eq!(sim.stats().disk_errors, 3);
}

/// A write that fails may have been done in part, and a flush that fails has made nothing durable.
#[test]
fn failures_leave_what_they_may() {
    let mut contents = BTreeSet::new();
    let mut survived = BTreeSet::new();
    for seed in 0..60 {
        let (sim, node) = machine(seed);
        sim.fail_disk_operation(node, DiskOp::Write, "/a", 2);
        live(&sim, node, || async {
            let file = File::open("/a", OpenOptions::create()).await.unwrap();
            fs::sync_dir("/").await.unwrap();
            file.write_at(0, filled(1)).await.unwrap();
            file.datasync().await.unwrap();
            assert!(file.write_at(0, filled(2)).await.is_err());
        });
        let content = sim.read_file(node, "/a").unwrap();
        contents.extend(content.chunks(512).map(|sector| sector[0]));

        let (sim, node) = machine(seed);
        sim.fail_disk_operation(node, DiskOp::Sync, "/a", 2);
        sim.set_main(node, |_| async {
            let file = File::open("/a", OpenOptions::create()).await.unwrap();
            fs::sync_dir("/").await.unwrap();
            file.write_at(0, filled(1)).await.unwrap();
            file.datasync().await.unwrap();
            file.write_at(0, filled(2)).await.unwrap();
            assert!(file.datasync().await.is_err());
            pinion_runtime::sim::event("failed");
            std::future::pending().await
        });
        sim.restart(node, 1);
        sim.crash_at(node, "failed", 1, Death::PowerCut);
        sim.run_until_down(node).unwrap();
        survived.extend(
            sim.read_file(node, "/a")
                .unwrap()
                .chunks(512)
                .map(|sector| sector[0]),
        );
    }
    assert_eq!(contents, BTreeSet::from([1, 2]));
    assert_eq!(survived, BTreeSet::from([1, 2]));
}

#[test]
fn disks_fill_up_and_get_room_again() {
    let (sim, node) = machine(4);
    sim.set_disk_capacity(node, 10 * ALIGN as u64);
    live(&sim, node, || async {
        let file = File::open("/a", OpenOptions::create()).await.unwrap();
        file.allocate(8 * ALIGN as u64).await.unwrap();
        assert_eq!(fs::space("/").await.unwrap().free_bytes, 2 * ALIGN as u64);
        let other = File::open("/b", OpenOptions::create()).await.unwrap();
        other.write_at(0, filled(1)).await.unwrap();
        other.write_at(ALIGN as u64, filled(1)).await.unwrap();
        let full = other
            .write_at(2 * ALIGN as u64, filled(1))
            .await
            .unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        assert_eq!(
            other.allocate(5 * ALIGN as u64).await.unwrap_err().kind(),
            ErrorKind::StorageFull
        );
        assert_eq!(other.len().await.unwrap(), 2 * ALIGN as u64);
        // What was allocated can be written, again and again.
        for _ in 0..3 {
            file.write_at(7 * ALIGN as u64, filled(2)).await.unwrap();
        }
        other.write_at(0, filled(3)).await.unwrap();
        drop(file);
        fs::remove_file("/a").await.unwrap();
        other.write_at(2 * ALIGN as u64, filled(1)).await.unwrap();
        assert_eq!(fs::space("/").await.unwrap().free_bytes, 7 * ALIGN as u64);
    });
    assert_eq!(sim.disk_used_bytes(node), 3 * ALIGN as u64);
}

#[test]
fn a_slow_disk_takes_its_time() {
    let time = |slowness| {
        let (sim, node) = machine(6);
        sim.set_disk_faults(
            node,
            DiskFaults {
                slowness,
                ..DiskFaults::default()
            },
        );
        live(&sim, node, || async {
            let start = now();
            write_pages("/a", 20).await;
            start.elapsed()
        })
    };
    assert!(
        time(50) > 10 * time(1),
        "{:?} against {:?}",
        time(50),
        time(1)
    );
    assert!(time(0) < Duration::from_secs(1));
}

#[test]
fn flipped_bits_stay_flipped() {
    let (sim, node) = machine(7);
    live(&sim, node, || write_pages("/a", 4));
    live(&sim, node, || write_pages("/b", 4));
    let original = sim.read_file(node, "/a").unwrap();
    assert!(sim.flip_bit(node, "/a", 5000, 3));
    assert!(!sim.flip_bit(node, "/a", 1 << 30, 3) && !sim.flip_bit(node, "/none", 0, 0));
    let changed = sim.read_file(node, "/a").unwrap();
    let differing: Vec<usize> = (0..original.len())
        .filter(|at| original[*at] != changed[*at])
        .collect();
    assert_eq!(differing, [5000]);
    assert_eq!(original[5000] ^ changed[5000], 1 << 3);

    // Also through a power cut.
    sim.set_main(node, |_| std::future::pending());
    sim.restart(node, 1);
    sim.crash(node, Death::PowerCut);
    assert_eq!(sim.read_file(node, "/a").unwrap(), changed);

    let places: BTreeSet<_> = (0..50)
        .map(|_| sim.flip_random_bit(node, "/b").unwrap())
        .collect();
    assert!(
        places.len() > 40
            && places
                .iter()
                .all(|(path, at, bit)| path == "/b" && *at < 4 * 4096 && *bit < 8)
    );
    assert_eq!(sim.flip_random_bit(node, "/none"), None);

    // Reads find flipped bits at the rate that was set.
    sim.set_disk_faults(
        node,
        DiskFaults {
            bit_flip: 1.0,
            path_contains: Some("/a".into()),
            ..DiskFaults::default()
        },
    );
    let before = sim.stats().bit_flips;
    live(&sim, node, || async {
        for name in ["/a", "/b"] {
            let file = File::open(name, OpenOptions::read()).await.unwrap();
            file.read_at(0, ALIGN).await.unwrap();
        }
    });
    assert_eq!(sim.stats().bit_flips, before + 1);
}

#[test]
fn errors_come_at_the_rate_that_was_set() {
    let (sim, node) = machine(8);
    sim.set_disk_faults(
        node,
        DiskFaults {
            write_error: 0.3,
            sync_error: 0.3,
            read_error: 0.3,
            ..DiskFaults::default()
        },
    );
    let failed = live(&sim, node, || async {
        let file = File::open("/a", OpenOptions::create()).await.unwrap();
        let mut failed = [0; 3];
        for _ in 0..200 {
            failed[0] += usize::from(file.write_at(0, filled(1)).await.is_err());
            failed[1] += usize::from(file.datasync().await.is_err());
            failed[2] += usize::from(file.read_at(0, ALIGN).await.is_err());
        }
        failed
    });
    assert!(
        failed.iter().all(|count| (30..90).contains(count)),
        "{failed:?}"
    );
}

/// Writes in flight together end in any order, and a flush covers exactly those that had ended
/// before it began.
#[test]
fn operations_overtake_each_other() {
    let mut winners = BTreeSet::new();
    for seed in 0..40 {
        let (sim, node) = machine(seed);
        live(&sim, node, || async {
            let file = File::open("/a", OpenOptions::create()).await.unwrap();
            join_all((1..4u8).map(|byte| {
                let file = file.clone();
                async move { file.write_at(0, filled(byte)).await.unwrap() }
            }))
            .await;
        });
        winners.insert(sim.read_file(node, "/a").unwrap()[0]);
    }
    assert_eq!(winners, BTreeSet::from([1, 2, 3]));
}

#[test]
fn a_flush_does_not_cover_a_write_that_had_not_ended() {
    let mut lost = 0;
    for seed in 0..60 {
        let (sim, node) = machine(seed);
        sim.set_main(node, |_| async {
            let file = File::open("/a", OpenOptions::create()).await.unwrap();
            file.write_at(0, filled(1)).await.unwrap();
            file.datasync().await.unwrap();
            fs::sync_dir("/").await.unwrap();
            let (write, flush) = (file.clone(), file.clone());
            // Both begin in the same poll: the flush knows nothing of the write.
            let futures: [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2] = [
                Box::pin(async move { write.write_at(0, filled(2)).await.unwrap() }),
                Box::pin(async move { flush.datasync().await.unwrap() }),
            ];
            join_all(futures).await;
            pinion_runtime::sim::event("both ended");
            std::future::pending().await
        });
        sim.restart(node, 1);
        sim.crash_at(node, "both ended", 1, Death::PowerCut);
        sim.run_until_down(node).unwrap();
        lost += usize::from(sim.read_file(node, "/a").unwrap().contains(&1));
    }
    assert!(lost > 5, "only {lost} of 60 power cuts took the write back");
}

/// Lengths and names that were not synced may be lost; the bytes of a lost length are not there
/// either.
#[test]
fn lengths_and_names_may_be_lost() {
    let (mut lens, mut names) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..80 {
        let (sim, node) = machine(seed);
        sim.set_main(node, |_| async {
            write_pages("/a", 2).await;
            let file = File::open("/a", OpenOptions::write()).await.unwrap();
            file.allocate(8 * ALIGN as u64).await.unwrap();
            file.write_at(9 * ALIGN as u64, filled(9)).await.unwrap();
            write_new("/b").await;
            fs::rename("/b", "/c").await.unwrap();
            pinion_runtime::sim::event("done");
            std::future::pending().await
        });
        sim.restart(node, 1);
        sim.crash_at(node, "done", 1, Death::PowerCut);
        sim.run_until_down(node).unwrap();
        lens.insert(sim.read_file(node, "/a").unwrap().len() / ALIGN);
        names.insert(
            sim.files(node)
                .into_iter()
                .map(|(path, _)| path)
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(lens, BTreeSet::from([2, 8, 10]));
    let paths = |paths: &[&str]| {
        paths
            .iter()
            .map(|path| (*path).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names,
        BTreeSet::from([paths(&["/a"]), paths(&["/a", "/b"]), paths(&["/a", "/c"])])
    );
}

async fn write_new(name: &str) {
    let file = File::open(name, OpenOptions::create_new()).await.unwrap();
    file.write_at(0, filled(5)).await.unwrap();
    file.datasync().await.unwrap();
}
