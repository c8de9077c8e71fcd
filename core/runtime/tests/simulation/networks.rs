//! Faults of networks.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use pinion_runtime::sim::{Death, LinkFaults, NodeId, Sim, SimOptions};
use pinion_runtime::{
    Connection, Duration, Instant, Listener, Queue, connect, now, shutdown_requested, sleep, spawn,
};

use crate::recorder::{self, Care};

/// Messages as a node received them, with the time.
type Received = Rc<RefCell<Vec<(Instant, u8)>>>;

/// A node that collects every byte it gets, whatever connection brings it, and one that a test
/// talks from.
fn collector(sim: &Sim) -> (NodeId, SocketAddr, Received) {
    let received = Received::default();
    let shared = received.clone();
    let node = sim.add_node("collector", 1, move |_| {
        let shared = shared.clone();
        async move {
            let listener = Listener::bind(SocketAddr::from(([0, 0, 0, 0], 1000)))
                .await
                .unwrap();
            loop {
                let connection = listener.accept().await.unwrap().attach().unwrap();
                let shared = shared.clone();
                spawn(Queue::Foreground, async move {
                    let mut buffer = BytesMut::new();
                    while connection
                        .recv(&mut buffer)
                        .await
                        .is_ok_and(|received| received > 0)
                    {
                        shared
                            .borrow_mut()
                            .extend(buffer.split().iter().map(|byte| (now(), *byte)));
                    }
                });
            }
        }
    });
    (node, SocketAddr::new(sim.node_ip(node), 1000), received)
}

fn bytes_of(received: &Received) -> Vec<u8> {
    received.borrow().iter().map(|(_, byte)| *byte).collect()
}

/// Sends the numbers from `range`, one a millisecond.
async fn send(connection: &Connection, range: std::ops::Range<u8>) {
    for byte in range {
        if connection.send(Bytes::from(vec![byte])).await.is_err() {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_cut_link_holds_everything_until_it_is_joined() {
    for seed in 0..20 {
        let sim = Sim::new(seed, SimOptions::random(seed));
        let (target, addr, received) = collector(&sim);
        let source = sim.add_node("source", 1, move |_| async move {
            let connection = connect(addr).await.unwrap();
            send(&connection, 0..100).await;
            sleep(Duration::from_secs(60)).await;
        });
        sim.run_until(|| received.borrow().len() >= 10).unwrap();
        sim.cut(source, target);
        sim.run_for(Duration::from_millis(50));
        let before = received.borrow().len();
        sim.run_for(Duration::from_secs(5));
        assert_eq!(
            received.borrow().len(),
            before,
            "seed {seed}: bytes came through a cut link"
        );
        assert!(before < 100);
        sim.join(source, target);
        sim.run_until(|| received.borrow().len() == 100).unwrap();
        assert_eq!(
            bytes_of(&received),
            (0..100).collect::<Vec<_>>(),
            "in order, each once"
        );
    }
}

#[test]
fn a_link_may_be_cut_in_one_direction() {
    let sim = Sim::new(3, SimOptions::default());
    let heard = Rc::new(RefCell::new([0, 0]));
    let shared = heard.clone();
    let server = sim.add_node("server", 1, move |_| {
        let shared = shared.clone();
        async move {
            let listener = Listener::bind(SocketAddr::from(([0, 0, 0, 0], 1)))
                .await
                .unwrap();
            let connection = listener.accept().await.unwrap().attach().unwrap();
            talk(connection, shared, 0).await;
        }
    });
    let addr = SocketAddr::new(sim.node_ip(server), 1);
    let shared = heard.clone();
    let client = sim.add_node("client", 1, move |_| {
        let shared = shared.clone();
        async move { talk(connect(addr).await.unwrap(), shared, 1).await }
    });
    async fn talk(connection: Connection, heard: Rc<RefCell<[usize; 2]>>, side: usize) {
        let sender = connection.clone();
        spawn(
            Queue::Foreground,
            async move { send(&sender, 0..200).await },
        );
        let mut buffer = BytesMut::new();
        while connection
            .recv(&mut buffer)
            .await
            .is_ok_and(|received| received > 0)
        {
            heard.borrow_mut()[side] = buffer.len();
        }
    }
    sim.run_until(|| heard.borrow()[0] >= 10).unwrap();
    sim.cut(client, server);
    sim.run_for(Duration::from_millis(5));
    let before = *heard.borrow();
    sim.run_for(Duration::from_millis(400));
    assert_eq!(heard.borrow()[0], before[0]);
    assert_eq!(heard.borrow()[1], 200);
    sim.heal();
    sim.run_until(|| heard.borrow()[0] == 200).unwrap();
}

#[test]
fn a_clogged_link_delivers_later() {
    let sim = Sim::new(4, SimOptions::default());
    let (target, addr, received) = collector(&sim);
    let source = sim.add_node("source", 1, move |_| async move {
        let connection = connect(addr).await.unwrap();
        send(&connection, 0..50).await;
        sleep(Duration::from_secs(60)).await;
    });
    sim.run_until(|| received.borrow().len() >= 10).unwrap();
    let start = sim.now();
    sim.clog(source, target, Duration::from_secs(3));
    sim.run_until(|| received.borrow().len() == 50).unwrap();
    assert!(sim.now() >= start + Duration::from_secs(3));
    assert_eq!(bytes_of(&received), (0..50).collect::<Vec<_>>());
}

#[test]
fn lost_pieces_delay_a_stream_and_keep_its_order() {
    let (mut slow, mut lost) = (0, 0);
    for seed in 0..20 {
        let sim = Sim::new(seed, SimOptions::default());
        let (target, addr, received) = collector(&sim);
        let source = sim.add_node("source", 1, move |_| async move {
            let connection = connect(addr).await.unwrap();
            send(&connection, 0..100).await;
            sleep(Duration::from_secs(60)).await;
        });
        sim.set_links(
            source,
            target,
            LinkFaults {
                loss: 0.05,
                ..LinkFaults::default()
            },
        );
        sim.run_until(|| received.borrow().len() == 100).unwrap();
        assert_eq!(bytes_of(&received), (0..100).collect::<Vec<_>>());
        lost += sim.stats().segments_lost;
        slow += usize::from(
            received
                .borrow()
                .windows(2)
                .any(|pair| pair[1].0 - pair[0].0 > Duration::from_millis(100)),
        );
    }
    assert!(
        slow > 10 && lost > 50,
        "{slow} slow runs, {lost} pieces lost"
    );
}

#[test]
fn streams_overtake_each_other() {
    let orders: BTreeSet<Vec<u8>> = (0..40)
        .map(|seed| {
            let sim = Sim::new(seed, SimOptions::default());
            let (_, addr, received) = collector(&sim);
            sim.add_node("source", 1, move |_| async move {
                let (first, second) = (connect(addr).await.unwrap(), connect(addr).await.unwrap());
                first.send(Bytes::from_static(&[1])).await.unwrap();
                second.send(Bytes::from_static(&[2])).await.unwrap();
                sleep(Duration::from_secs(1)).await;
            });
            sim.run_until(|| received.borrow().len() == 2).unwrap();
            bytes_of(&received)
        })
        .collect();
    assert_eq!(orders, BTreeSet::from([vec![1, 2], vec![2, 1]]));
}

#[test]
fn resets_are_seen_on_both_ends() {
    for seed in 0..20 {
        let sim = Sim::new(seed, SimOptions::random(seed));
        let (server, client, known) = recorder::start(&sim, 2, Care::Flush, 60);
        sim.set_links(
            client,
            server,
            LinkFaults {
                reset: 0.05,
                ..LinkFaults::default()
            },
        );
        sim.run_until_down(client).unwrap();
        assert_eq!(known.count(), 60);
        assert!(known.failures.get() > 0 && sim.stats().connections_reset > 0);
        // Connections that failed leave nothing behind.
        sim.run_for(Duration::from_secs(100));
        assert_eq!(sim.connection_count(), 0, "seed {seed}");
    }
}

#[test]
fn a_reset_connection_is_there_until_its_owner_releases_it() {
    let sim = Sim::new(5, SimOptions::default());
    let (target, addr, received) = collector(&sim);
    let source = sim.add_node("source", 1, move |_| async move {
        let connection = connect(addr).await.unwrap();
        connection.send(Bytes::from_static(&[1])).await.unwrap();
        sleep(Duration::from_secs(10)).await;
        // Reset on its way out; the other end has heard of it and let go long before the next one.
        connection.send(Bytes::from_static(&[2])).await.unwrap();
        sleep(Duration::from_secs(10)).await;
        let sent = connection.send(Bytes::from_static(&[3])).await;
        assert_eq!(sent.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
    sim.run_until(|| !received.borrow().is_empty()).unwrap();
    sim.set_links(
        source,
        target,
        LinkFaults {
            reset: 1.0,
            ..LinkFaults::default()
        },
    );
    sim.run_until_down(source).unwrap();
    assert_eq!(bytes_of(&received), [1]);
    sim.run_for(Duration::from_secs(1));
    assert_eq!(sim.connection_count(), 0);
}

/// What a connection to a node that died says, and how long it takes.
fn error_after(seed: u64, death: Death) -> (ErrorKind, Duration) {
    let sim = Sim::new(seed, SimOptions::default());
    let (target, addr, received) = collector(&sim);
    let seen = Rc::new(RefCell::new(None));
    let shared = seen.clone();
    let source = sim.add_node("source", 1, move |_| {
        let shared = shared.clone();
        async move {
            let connection = connect(addr).await.unwrap();
            connection.send(Bytes::from_static(&[1])).await.unwrap();
            let result = connection.recv(&mut BytesMut::new()).await;
            *shared.borrow_mut() = Some((result.map_err(|error| error.kind()), now()));
        }
    });
    sim.run_until(|| !received.borrow().is_empty()).unwrap();
    sim.crash(target, death);
    let start = sim.now();
    sim.run_until_down(source).unwrap();
    let (result, at) = seen.borrow_mut().take().unwrap();
    (result.unwrap_err(), at - start)
}

#[test]
fn peers_of_a_dead_node_notice() {
    let mut slowest = Duration::ZERO;
    for seed in 0..20 {
        let (error, after) = error_after(seed, Death::Kill);
        assert!(
            error == ErrorKind::ConnectionReset && after < Duration::from_secs(1),
            "{after:?}"
        );
        let (error, after) = error_after(seed, Death::PowerCut);
        assert!(
            error == ErrorKind::ConnectionReset && after < Duration::from_secs(60),
            "{after:?}"
        );
        slowest = slowest.max(after);
    }
    assert!(
        slowest > Duration::from_secs(5),
        "a machine without power says nothing"
    );
}

#[test]
fn connecting_fails_in_the_way_of_the_fault() {
    let attempt = |fault: &dyn Fn(&Sim, NodeId, NodeId), port: u16| {
        let sim = Sim::new(5, SimOptions::default());
        let (target, addr, _) = collector(&sim);
        let seen = Rc::new(RefCell::new(None));
        let shared = seen.clone();
        let source = sim.add_node("source", 1, move |_| {
            let shared = shared.clone();
            async move {
                sleep(Duration::from_secs(1)).await;
                let addr = SocketAddr::new(addr.ip(), port);
                *shared.borrow_mut() =
                    Some(connect(addr).await.map(drop).map_err(|error| error.kind()));
            }
        });
        sim.run_for(Duration::from_millis(500));
        fault(&sim, source, target);
        sim.run_until_down(source).unwrap();
        let result = seen.borrow_mut().take();
        result.unwrap()
    };
    assert_eq!(attempt(&|_, _, _| {}, 1000), Ok(()));
    assert_eq!(
        attempt(&|_, _, _| {}, 1001),
        Err(ErrorKind::ConnectionRefused)
    );
    assert_eq!(
        attempt(&|sim, _, target| sim.crash(target, Death::Kill), 1000),
        Err(ErrorKind::ConnectionRefused)
    );
    assert_eq!(
        attempt(&|sim, _, target| sim.crash(target, Death::PowerCut), 1000),
        Err(ErrorKind::TimedOut)
    );
    assert_eq!(
        attempt(&|sim, source, target| sim.cut(source, target), 1000),
        Err(ErrorKind::TimedOut)
    );
    assert_eq!(
        attempt(
            &|sim, source, target| sim.partition(&[source], &[target]),
            1000
        ),
        Err(ErrorKind::TimedOut)
    );
}

#[test]
fn a_listener_on_the_loopback_address_is_not_reached_from_outside() {
    let sim = Sim::new(6, SimOptions::default());
    let server = sim.add_node("server", 1, |_| async {
        let listener = Listener::bind("127.0.0.1:5".parse().unwrap())
            .await
            .unwrap();
        let own = connect("127.0.0.1:5".parse().unwrap()).await.unwrap();
        assert!(own.peer_addr().ip().is_loopback());
        drop(listener.accept().await.unwrap());
        shutdown_requested().await;
    });
    let addr = SocketAddr::new(sim.node_ip(server), 5);
    let client = sim.add_node("client", 1, move |_| async move {
        sleep(Duration::from_millis(10)).await;
        assert_eq!(
            connect(addr).await.map(drop).unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
    });
    sim.run_until_down(client).unwrap();
}

/// A service and its client come through everything at once.
#[test]
fn work_continues_through_all_faults() {
    for seed in 0..20 {
        let sim = Sim::new(seed, SimOptions::random(seed));
        let (server, client, known) = recorder::start(&sim, 3, Care::Flush, 80);
        let mut rng = sim.random_stream("nemesis");
        while known.count() < 80 {
            match rng.below(6) {
                0 => sim.cut(client, server),
                1 => sim.partition(&[client], &[server]),
                2 => sim.clog(server, client, Duration::from_millis(rng.below(2000))),
                3 => sim.set_links(
                    client,
                    server,
                    LinkFaults {
                        loss: 0.1,
                        reset: 0.02,
                        ..LinkFaults::default()
                    },
                ),
                4 => {
                    sim.crash(server, Death::PowerCut);
                    sim.run_for(Duration::from_millis(rng.below(100)));
                    sim.restart(server, 1 + rng.below(4) as usize);
                }
                _ => sim.heal(),
            }
            sim.run_for(Duration::from_millis(rng.below(1000)));
            assert_eq!(
                recorder::missing(&sim, server, &known),
                [] as [u32; 0],
                "seed {seed}"
            );
            if rng.below(3) == 0 {
                sim.heal();
            }
        }
    }
}
