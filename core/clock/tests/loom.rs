//! Model checks of the vector clock: every interleaving of readers and writers.
//!
//! The module is compiled here a second time, with loom's atomics in place of the processor's.

#![allow(dead_code)]

mod words {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}
#[path = "../src/timestamp.rs"]
mod timestamp;
#[path = "../src/vector.rs"]
mod vector;

use loom::sync::Arc;
use loom::thread;
use timestamp::Timestamp;
use vector::{DEFAULT_MAX_DRIFT_SECS, Gossip, VectorClock};

fn at(inc: u32) -> Timestamp {
    Timestamp::new(1, inc)
}

fn learn(clock: &VectorClock) {
    let gossip = Gossip {
        cluster: Some(at(9)),
        config: Some(at(7)),
        topology: Some(at(3)),
    };
    let learned = clock.advance(gossip, || Timestamp::MIN, 1, DEFAULT_MAX_DRIFT_SECS);
    learned.expect("it is in order");
}

/// Reads twice while `raise` runs, which panics where the components are out of order.
fn check(raise: fn(&VectorClock)) {
    loom::model(move || {
        let clock = Arc::new(VectorClock::new());
        let other = clock.clone();
        let raising = thread::spawn(move || raise(&other));
        let first = clock.snapshot(|| Timestamp::MIN);
        let second = clock.snapshot(|| Timestamp::MIN);
        assert!(second.cluster() >= first.cluster());
        assert!(second.config() >= first.config());
        assert!(second.topology() >= first.topology());
        raising.join().expect("it ends");
    });
}

#[test]
fn every_reading_is_in_order_while_another_ticks() {
    check(|clock| clock.tick_topology_to(at(5)));
}

#[test]
fn every_reading_is_in_order_while_another_learns() {
    check(learn);
}

#[test]
fn what_is_learned_and_ticked_at_once_is_in_order() {
    loom::model(|| {
        let clock = Arc::new(VectorClock::new());
        let other = clock.clone();
        let learning = thread::spawn(move || learn(&other));
        clock.tick_topology_to(at(5));
        learning.join().expect("it ends");
        let after = clock.snapshot(|| Timestamp::MIN);
        assert_eq!(after.cluster(), at(9));
        assert_eq!(after.config(), at(7));
        assert_eq!(after.topology(), at(5));
    });
}
