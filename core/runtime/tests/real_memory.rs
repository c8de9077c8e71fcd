//! Memory of idle connections on the real backend; alone in its process, because it reads the
//! process's size.
#![allow(
    clippy::disallowed_methods,
    reason = "reads what the system says about this process"
)]

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pinion_runtime::real::{RealOptions, choose_cpus, run};
use pinion_runtime::{Connection, Listener, Queue, connect, sleep, spawn};

async fn echo(connection: Connection) {
    let mut input = BytesMut::new();
    while let Ok(1..) = connection.recv(&mut input).await {
        if connection
            .send(std::mem::take(&mut input).freeze())
            .await
            .is_err()
        {
            break;
        }
    }
}

async fn read_exactly(connection: &Connection, len: usize) {
    let mut input = BytesMut::new();
    while input.len() < len {
        assert!(connection.recv(&mut input).await.unwrap() > 0);
    }
}

#[test]
fn an_idle_connection_is_cheap() {
    fn resident() -> i64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<i64>()
            .unwrap()
            * 1024
    }
    let options = RealOptions {
        cpus: choose_cpus(Some(1)).unwrap(),
        spin: Duration::ZERO,
        handle_signals: false,
        on_usr1: None,
        on_quiet: None,
        on_large: None,
        on_idle: None,
    };
    let result = run(options, |_| async {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = listener.local_addr();
        spawn(Queue::Foreground, async move {
            loop {
                spawn(
                    Queue::Foreground,
                    echo(listener.accept().await.unwrap().attach().unwrap()),
                );
            }
        });
        let exchange = |bytes: usize| async move {
            let connection = connect(address).await.unwrap();
            connection.send(Bytes::from(vec![1; bytes])).await.unwrap();
            read_exactly(&connection, bytes).await;
            connection
        };
        // The receive buffers are touched first: they do not belong to any connection.
        for _ in 0..20 {
            exchange(500_000).await;
        }
        let before = resident();
        const CONNECTIONS: i64 = 1000;
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(exchange(40_000).await);
        }
        sleep(Duration::from_millis(50)).await;
        let each = (resident() - before) / (2 * CONNECTIONS);
        assert!(
            connections.len() as i64 == CONNECTIONS && each < 16 * 1024,
            "an idle end of a connection holds {each} bytes"
        );
    });
    result.unwrap();
}
