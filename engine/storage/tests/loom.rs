//! Model checks of sequencer and watermarks: every interleaving of small cases.
//!
//! The two modules are compiled here a second time, with loom's atomics in place of the
//! processor's. The clock that the sequencer reads is modelled in its own crate, and stays at zero
//! here.

#![allow(dead_code)]

mod words {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}
#[path = "../src/sequencer.rs"]
mod sequencer;
#[path = "../src/watermarks.rs"]
mod watermarks;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use pinion_clock::Timestamp;
use sequencer::Sequencer;
use watermarks::{Mark, Watermarks};

struct Node {
    sequencer: Sequencer,
    marks: Watermarks,
    /// `done[T]`: the write with timestamp T is applied. Relaxed on purpose: only the marks may
    /// order it.
    done: Vec<AtomicBool>,
}

fn node(cores: usize, writes: usize) -> Arc<Node> {
    Arc::new(Node {
        sequencer: Sequencer::new(Timestamp::from_u64(0), std::sync::Arc::default()),
        marks: Watermarks::new(cores),
        done: (0..=writes).map(|_| AtomicBool::new(false)).collect(),
    })
}

/// One unit of a core: bound, allot, apply, true floor.
fn write(node: &Node, core: usize) {
    node.marks
        .store(core, Mark::Applying, Some(node.sequencer.last()));
    let range = node.sequencer.allot(1, 0);
    // The wall clock reads zero seconds, so timestamps are 1, 2, 3, ...
    node.done[range.first.as_u64() as usize].store(true, Ordering::Relaxed);
    node.marks.store(core, Mark::Applying, None);
}

fn read(node: &Node) {
    let visible = node.marks.reached(&node.sequencer, Mark::Applying).as_u64();
    for ts in 1..=visible {
        assert!(
            node.done[ts as usize].load(Ordering::Relaxed),
            "visible {visible}, but {ts} is not applied"
        );
    }
}

#[test]
fn nothing_at_or_below_visible_is_unapplied() {
    loom::model(|| {
        let node = node(2, 3);
        let other = node.clone();
        let first = thread::spawn(move || {
            write(&other, 0);
            write(&other, 0);
        });
        let other = node.clone();
        let second = thread::spawn(move || write(&other, 1));
        read(&node);
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(
            node.marks.reached(&node.sequencer, Mark::Applying).as_u64(),
            3
        );
    });
}

/// Entries that another node has allotted: bound, the last timestamp rises, apply, true floor.
fn follow(node: &Node, core: usize, last: u64) {
    let bound = node.sequencer.last();
    node.marks.store(core, Mark::Applying, Some(bound));
    node.sequencer.advance_to(Timestamp::from_u64(last));
    for ts in bound.as_u64() + 1..=last {
        node.done[ts as usize].store(true, Ordering::Relaxed);
        let floor = (ts < last).then(|| Timestamp::from_u64(ts));
        node.marks.store(core, Mark::Applying, floor);
    }
}

#[test]
fn what_another_node_has_allotted_is_visible_when_it_is_applied() {
    loom::model(|| {
        let node = node(2, 4);
        let other = node.clone();
        let follower = thread::spawn(move || {
            follow(&other, 0, 2);
            follow(&other, 0, 3);
        });
        read(&node);
        follower.join().unwrap();
        // The next primary is this node, and another core of it writes.
        let other = node.clone();
        let writer = thread::spawn(move || write(&other, 1));
        read(&node);
        writer.join().unwrap();
        assert_eq!(
            node.marks.reached(&node.sequencer, Mark::Applying).as_u64(),
            4
        );
    });
}

#[test]
fn ranges_never_overlap_and_link_into_one_chain() {
    loom::model(|| {
        let node = node(2, 0);
        let other = node.clone();
        let first = thread::spawn(move || other.sequencer.allot(2, 0));
        let mine = node.sequencer.allot(3, 0);
        let theirs = first.join().unwrap();
        let (low, high) = if mine.first < theirs.first {
            (mine, theirs)
        } else {
            (theirs, mine)
        };
        assert_eq!(low.predecessor.as_u64(), 0);
        assert_eq!(high.predecessor, low.last);
        assert!(low.last < high.first);
    });
}

/// A waiter that publishes its wish and then finds the mark not reached is seen by the core that
/// lifts the mark: no wake-up is lost.
#[test]
fn a_waiter_is_seen_by_the_flush_that_lifts_the_minimum() {
    loom::model(|| {
        let node = node(2, 1);
        node.marks
            .store(1, Mark::Undurable, Some(node.sequencer.last()));
        let range = node.sequencer.allot(1, 0);
        let woken = Arc::new(AtomicBool::new(false));
        let (other, wake) = (node.clone(), woken.clone());
        let flusher = thread::spawn(move || {
            other.marks.store(1, Mark::Undurable, None);
            let wanting = other.marks.cores_wanting(&other.sequencer, Mark::Undurable);
            if wanting.is_some_and(|(_, cores)| cores.contains(&0)) {
                wake.store(true, Ordering::Relaxed);
            }
        });
        node.marks.want(0, Mark::Undurable, Some(range.first));
        let satisfied = node.marks.reached(&node.sequencer, Mark::Undurable) >= range.first;
        flusher.join().unwrap();
        assert!(
            satisfied || woken.load(Ordering::Relaxed),
            "the waiter sleeps and nobody wakes it"
        );
    });
}

/// The same for visibility, with two cores lifting their marks at once.
#[test]
fn one_of_two_lifting_cores_sees_the_waiter() {
    loom::model(|| {
        let node = node(3, 2);
        node.marks
            .store(1, Mark::Applying, Some(node.sequencer.last()));
        node.marks
            .store(2, Mark::Applying, Some(node.sequencer.last()));
        let range = node.sequencer.allot(2, 0);
        node.marks.want(0, Mark::Applying, Some(range.last));
        let woken = Arc::new(AtomicBool::new(false));
        let lifts: Vec<_> = [1, 2]
            .map(|core| {
                let (node, woken) = (node.clone(), woken.clone());
                thread::spawn(move || {
                    node.marks.store(core, Mark::Applying, None);
                    let wanting = node.marks.cores_wanting(&node.sequencer, Mark::Applying);
                    if wanting.is_some_and(|(_, cores)| !cores.is_empty()) {
                        woken.store(true, Ordering::Relaxed);
                    }
                })
            })
            .into_iter()
            .collect();
        for lift in lifts {
            lift.join().unwrap();
        }
        assert!(
            woken.load(Ordering::Relaxed),
            "both lifted the minimum and neither saw the waiter"
        );
    });
}
