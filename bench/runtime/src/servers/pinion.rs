//! Echo on the runtime, written as an application would.

use std::time::Duration;

use bytes::BytesMut;
use pinion_runtime::real::{RealOptions, run};
use pinion_runtime::{Connection, Listener, Queue, spawn};

async fn echo(connection: Connection) {
    let mut input = BytesMut::new();
    loop {
        match connection.recv(&mut input).await {
            Ok(1..) => {}
            _ => return,
        }
        if connection.send(input.split().freeze()).await.is_err() {
            return;
        }
    }
}

pub fn serve(cpu: usize, spin_us: u64) {
    let options = RealOptions {
        cpus: vec![cpu],
        spin: Duration::from_micros(spin_us),
        ..RealOptions::default()
    };
    run(options, |_| async {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into())
            .await
            .expect("a free port");
        super::announce(listener.local_addr().port());
        while let Ok(incoming) = listener.accept().await {
            spawn(
                Queue::Foreground,
                echo(incoming.attach().expect("a fresh connection")),
            );
        }
    })
    .expect("the runtime starts");
}
