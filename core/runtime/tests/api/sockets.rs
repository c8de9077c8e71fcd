//! Listeners and connections.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use pinion_runtime::limits::{OUTPUT_BUFFER_BYTES, RECEIVE_CHUNK_BYTES};
use pinion_runtime::{
    Connection, CoreId, Duration, JoinHandle, Listener, Queue, connect, core_id, sleep, spawn,
    stats, submit_to, timeout,
};

use crate::suite;

suite! {
    bytes_come_back(1),
    a_connection_may_live_on_any_core(3),
    a_half_closed_connection_still_receives(1),
    the_end_of_the_peer_is_seen(1),
    output_is_sent_before_a_dropped_connection_closes(1),
    a_peer_that_does_not_read_holds_its_sender_back(1),
    large_messages_arrive_whole(2),
    many_connections_at_once(2),
    a_connection_without_a_listener_is_refused(1),
    a_port_has_one_listener(1),
    a_closed_connection_wakes_its_reader(1),
    a_reader_that_gives_up_loses_nothing(1),
    an_incoming_connection_that_is_not_accepted_is_closed(1),
    bytes_are_counted(1),
}

async fn listen() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap()
}

/// A connection within this core: the opened and the accepted end.
async fn pair() -> (Connection, Connection) {
    let listener = listen().await;
    let opened = connect(listener.local_addr()).await.unwrap();
    let accepted = listener.accept().await.unwrap().attach().unwrap();
    (opened, accepted)
}

async fn echo(connection: Connection) {
    let mut buffer = BytesMut::new();
    while connection
        .recv(&mut buffer)
        .await
        .is_ok_and(|received| received > 0)
    {
        if connection.send(buffer.split().freeze()).await.is_err() {
            return;
        }
    }
}

/// Receives exactly `len` bytes.
async fn receive(connection: &Connection, len: usize) -> Bytes {
    let mut buffer = BytesMut::new();
    while buffer.len() < len {
        let received = connection.recv(&mut buffer).await.unwrap();
        assert!(
            received > 0,
            "the peer closed after {} of {len} bytes",
            buffer.len()
        );
        assert!(received <= RECEIVE_CHUNK_BYTES);
    }
    assert_eq!(buffer.len(), len);
    buffer.freeze()
}

async fn end_of(connection: &Connection) -> usize {
    connection.recv(&mut BytesMut::new()).await.unwrap()
}

fn pattern(len: usize, seed: usize) -> Bytes {
    (0..len)
        .map(|index| ((index / 3) ^ (index >> 9) ^ seed) as u8)
        .collect()
}

async fn bytes_come_back() {
    let (opened, accepted) = pair().await;
    assert_eq!(opened.peer_addr(), accepted.local_addr());
    assert_eq!(opened.local_addr(), accepted.peer_addr());
    let server = spawn(Queue::Foreground, echo(accepted));
    for n in 0..200 {
        let message = pattern(1 + n * 13, n);
        opened.send(message.clone()).await.unwrap();
        assert_eq!(receive(&opened, message.len()).await, message);
    }
    drop(opened);
    server.await.unwrap();
}

async fn a_connection_may_live_on_any_core() {
    let listener = listen().await;
    for core in 0..3 {
        let opened = connect(listener.local_addr()).await.unwrap();
        let incoming = listener.accept().await.unwrap();
        assert_eq!(incoming.peer_addr(), opened.local_addr());
        let server = spawn(
            Queue::Foreground,
            submit_to(CoreId(core), Queue::Foreground, move || async move {
                echo(incoming.attach().unwrap()).await;
                core_id()
            }),
        );
        for n in 0..50 {
            let message = pattern(500, n);
            opened.send(message.clone()).await.unwrap();
            assert_eq!(receive(&opened, message.len()).await, message);
        }
        opened.shutdown_write();
        assert_eq!(end_of(&opened).await, 0);
        assert_eq!(server.await, Ok(CoreId(core)));
    }
}

async fn a_half_closed_connection_still_receives() {
    let (opened, accepted) = pair().await;
    opened.send(pattern(1000, 1)).await.unwrap();
    opened.shutdown_write();
    assert_eq!(receive(&accepted, 1000).await, pattern(1000, 1));
    assert_eq!(end_of(&accepted).await, 0);
    accepted.send(pattern(2000, 2)).await.unwrap();
    assert_eq!(receive(&opened, 2000).await, pattern(2000, 2));
    drop(accepted);
    assert_eq!(end_of(&opened).await, 0);
}

async fn the_end_of_the_peer_is_seen() {
    let (opened, accepted) = pair().await;
    let reader = spawn(Queue::Foreground, async move { end_of(&accepted).await });
    sleep(Duration::from_millis(1)).await;
    assert!(!reader.is_finished());
    drop(opened);
    assert_eq!(reader.await, Ok(0));
}

async fn output_is_sent_before_a_dropped_connection_closes() {
    let (opened, accepted) = pair().await;
    for n in 0..10 {
        opened.send(pattern(5000, n)).await.unwrap();
    }
    drop(opened);
    let received = receive(&accepted, 50_000).await;
    for (n, piece) in received.chunks(5000).enumerate() {
        assert_eq!(*piece, pattern(5000, n));
    }
    assert_eq!(end_of(&accepted).await, 0);
}

async fn a_peer_that_does_not_read_holds_its_sender_back() {
    const PIECE: usize = 16 * 1024;
    const PIECES: usize = 1024;
    let (opened, accepted) = pair().await;
    let sent = Rc::new(Cell::new(0));
    let count = sent.clone();
    let sender: JoinHandle<()> = spawn(Queue::Foreground, async move {
        for n in 0..PIECES {
            opened.send(pattern(PIECE, n)).await.unwrap();
            count.set(n + 1);
        }
    });
    // Until nothing moves any more.
    let mut last = usize::MAX;
    while sent.get() != last {
        last = sent.get();
        sleep(Duration::from_millis(200)).await;
    }
    assert!(
        last < PIECES && !sender.is_finished(),
        "the sender was not held back"
    );
    assert!(last * PIECE >= OUTPUT_BUFFER_BYTES);
    let mut buffer = BytesMut::new();
    for n in 0..PIECES {
        while buffer.len() < PIECE {
            assert!(accepted.recv(&mut buffer).await.unwrap() > 0);
        }
        assert!(
            buffer.split_to(PIECE) == pattern(PIECE, n),
            "piece {n} differs"
        );
    }
    sender.await.unwrap();
    assert_eq!(end_of(&accepted).await, 0);
}

async fn large_messages_arrive_whole() {
    const LEN: usize = 3_000_001;
    let listener = listen().await;
    let opened = connect(listener.local_addr()).await.unwrap();
    let incoming = listener.accept().await.unwrap();
    let server = spawn(
        Queue::Foreground,
        submit_to(CoreId(1), Queue::Foreground, move || async move {
            let connection = incoming.attach().unwrap();
            let message = receive(&connection, LEN).await;
            connection.send(message).await.unwrap();
            connection.flush().await.unwrap();
            end_of(&connection).await
        }),
    );
    opened.send(pattern(LEN, 5)).await.unwrap();
    assert!(receive(&opened, LEN).await == pattern(LEN, 5));
    drop(opened);
    assert_eq!(server.await, Ok(0));
}

async fn many_connections_at_once() {
    const CONNECTIONS: usize = 100;
    let listener = listen().await;
    let addr = listener.local_addr();
    let server = spawn(Queue::Foreground, async move {
        for n in 0..CONNECTIONS {
            let incoming = listener.accept().await.unwrap();
            spawn(
                Queue::Foreground,
                submit_to(
                    CoreId((n % 2) as u16),
                    Queue::Foreground,
                    move || async move {
                        echo(incoming.attach().unwrap()).await;
                    },
                ),
            );
        }
    });
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            spawn(Queue::Foreground, async move {
                let connection = connect(addr).await.unwrap();
                for round in 0..10 {
                    let message = pattern(300 + n, round);
                    connection.send(message.clone()).await.unwrap();
                    assert_eq!(receive(&connection, message.len()).await, message);
                }
                connection.id()
            })
        })
        .collect();
    let mut ids = BTreeSet::new();
    for client in clients {
        ids.insert(client.await.unwrap());
    }
    assert_eq!(ids.len(), CONNECTIONS);
    server.await.unwrap();
}

async fn a_connection_without_a_listener_is_refused() {
    let listener = listen().await;
    let addr = listener.local_addr();
    drop(listener);
    // A listener's socket may take a moment to go.
    sleep(Duration::from_millis(50)).await;
    assert_eq!(
        connect(addr).await.map(drop).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
}

async fn a_port_has_one_listener() {
    let listener = listen().await;
    assert_ne!(listener.local_addr().port(), 0);
    let second = Listener::bind(listener.local_addr()).await;
    assert_eq!(second.map(drop).unwrap_err().kind(), ErrorKind::AddrInUse);
}

async fn a_closed_connection_wakes_its_reader() {
    let (opened, accepted) = pair().await;
    let reader = {
        let opened = opened.clone();
        spawn(Queue::Foreground, async move {
            opened.recv(&mut BytesMut::new()).await.is_err()
        })
    };
    sleep(Duration::from_millis(1)).await;
    opened.close();
    assert_eq!(reader.await, Ok(true));
    assert!(opened.send(Bytes::from_static(b"x")).await.is_err());
    opened.close();
    // The peer sees an end, orderly or not.
    assert!(matches!(
        accepted.recv(&mut BytesMut::new()).await,
        Ok(0) | Err(_)
    ));
}

async fn a_reader_that_gives_up_loses_nothing() {
    let (opened, accepted) = pair().await;
    let mut buffer = BytesMut::new();
    for n in 0..20 {
        // Nothing is there: the receive is dropped in the middle.
        assert!(
            timeout(Duration::from_micros(50), accepted.recv(&mut buffer))
                .await
                .is_err()
        );
        opened.send(pattern(777, n)).await.unwrap();
        while buffer.len() < 777 {
            // Dropped now and then just when the bytes arrive.
            let _ = timeout(Duration::from_micros(20), accepted.recv(&mut buffer)).await;
        }
        assert_eq!(buffer.split().freeze(), pattern(777, n));
    }
}

async fn an_incoming_connection_that_is_not_accepted_is_closed() {
    let listener = listen().await;
    let opened = connect(listener.local_addr()).await.unwrap();
    drop(listener.accept().await.unwrap());
    assert!(matches!(
        opened.recv(&mut BytesMut::new()).await,
        Ok(0) | Err(_)
    ));
}

async fn bytes_are_counted() {
    let before = stats();
    let (opened, accepted) = pair().await;
    assert!(stats().connections_open >= before.connections_open + 2);
    opened.send(pattern(10_000, 1)).await.unwrap();
    receive(&accepted, 10_000).await;
    let after = stats();
    assert!(after.network_in_bytes >= before.network_in_bytes + 10_000);
    assert!(after.network_out_bytes >= before.network_out_bytes + 10_000);
    assert!(
        after.network_receives > before.network_receives
            && after.network_sends > before.network_sends
    );
}
