//! The vector clock; its model checks are in `tests/loom.rs`.

use crate::{AdvanceError, DEFAULT_MAX_DRIFT_SECS, Gossip, Timestamp, VectorClock};

const NOW: u32 = 1_700_000_000;

fn at(secs: u32, inc: u32) -> Timestamp {
    Timestamp::new(secs, inc)
}

fn nothing() -> Timestamp {
    Timestamp::MIN
}

#[test]
fn advancing_is_limited() {
    let clock = VectorClock::new();
    let advance = |time, now_secs| {
        let gossip = Gossip {
            cluster: Some(time),
            ..Gossip::default()
        };
        clock.advance(gossip, nothing, now_secs, 10)
    };
    assert_eq!(advance(at(NOW + 10, 7), NOW), Ok(()));
    let far = at(NOW + 11, 0);
    assert_eq!(
        advance(far, NOW),
        Err(AdvanceError::TooFarAhead {
            time: far,
            now_secs: NOW
        })
    );
    let end = at(u32::MAX, u32::MAX);
    assert_eq!(
        advance(end, NOW),
        Err(AdvanceError::BeyondMaximum { time: end })
    );
    assert_eq!(clock.heard(), at(NOW + 10, 7));
    // What is not ahead of the clock is no news, whatever the wall clock says.
    assert_eq!(advance(at(NOW + 5, 0), 0), Ok(()));
    assert_eq!(clock.heard(), at(NOW + 10, 7));
    // Nor is what this node has allotted itself, however far that is.
    let gossip = Gossip {
        cluster: Some(far),
        ..Gossip::default()
    };
    assert_eq!(clock.advance(gossip, || far, NOW, 10), Ok(()));
}

#[test]
fn order_is_kept_or_the_gossip_refused() {
    let clock = VectorClock::new();
    let allotted = || at(NOW, 5);
    clock.tick_config_to(at(NOW, 3));
    clock.tick_topology_to(at(NOW, 2));
    let before = clock.snapshot(allotted);
    assert_eq!(before.cluster(), at(NOW, 5));
    let advance = |gossip| clock.advance(gossip, allotted, NOW, DEFAULT_MAX_DRIFT_SECS);
    let gossip = Gossip {
        config: Some(at(NOW, 9)),
        ..Gossip::default()
    };
    assert!(matches!(
        advance(gossip),
        Err(AdvanceError::OutOfOrder { .. })
    ));
    assert_eq!(clock.snapshot(allotted), before);
    // It may be what this node has allotted: readers find the cluster time at it.
    let gossip = Gossip {
        config: Some(at(NOW, 5)),
        ..Gossip::default()
    };
    assert_eq!(advance(gossip), Ok(()));
    assert_eq!(clock.snapshot(nothing).cluster(), at(NOW, 5));
    let gossip = Gossip {
        cluster: Some(at(NOW, 9)),
        config: Some(at(NOW, 9)),
        topology: None,
    };
    assert_eq!(advance(gossip), Ok(()));
    assert_eq!(clock.snapshot(nothing).config(), at(NOW, 9));
}

/// Random ticks, gossip and snapshots: the order holds, nothing goes back, a refusal changes
/// nothing.
#[test]
fn random_walks() {
    for seed in 1..200u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let clock = VectorClock::new();
        let mut last = Timestamp::MIN;
        for _ in 0..300 {
            let now = NOW + next(40) as u32;
            let before = clock.snapshot(|| last);
            let near = |n: u64| Timestamp::new(now - 20 + (n % 60) as u32, (n / 60 % 5) as u32);
            match next(5) {
                0 => {
                    last = before.cluster().next().max(Timestamp::new(now, 1));
                    assert_eq!(clock.snapshot(|| last).cluster(), last);
                }
                1 => clock.tick_config_to(near(next(300)).min(before.cluster())),
                2 => clock.tick_topology_to(near(next(300)).min(before.config())),
                _ => {
                    let mut pick = || (next(3) > 0).then(|| near(next(300)));
                    let gossip = Gossip {
                        cluster: pick(),
                        config: pick(),
                        topology: pick(),
                    };
                    if clock.advance(gossip, || last, now, 20).is_err() {
                        assert_eq!(clock.snapshot(|| last), before);
                    } else {
                        let after = clock.snapshot(|| last);
                        assert!(Some(after.cluster()) >= gossip.cluster);
                        assert!(Some(after.config()) >= gossip.config);
                        assert!(Some(after.topology()) >= gossip.topology);
                    }
                }
            }
            let after = clock.snapshot(|| last);
            assert!(after.cluster() >= before.cluster());
            assert!(after.config() >= before.config() && after.topology() >= before.topology());
        }
    }
}
