//! What the simulator promises beyond the common interface: determinism, crashes, faults.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use pinion_runtime::sim::{Death, Sim, SimOptions, block_on, run_cores};
use pinion_runtime::{
    ALIGN, CoreId, DmaBuf, Duration, File, Listener, OpenOptions, Queue, connect, fs, now, on_all_cores, sleep, spawn,
    submit_to,
};

#[test]
fn smoke() {
    let out = block_on(1, async {
        let start = now();
        let handle = spawn(Queue::Background, async {
            sleep(Duration::from_secs(3)).await;
            7
        });
        assert_eq!(handle.await, Ok(7));
        assert!(now() - start >= Duration::from_secs(3));
        5
    });
    assert_eq!(out, 5);
}

#[test]
fn mesh_smoke() {
    let out = run_cores(3, 4, |core| async move {
        let ids = on_all_cores(|core| async move { core.0 }).await;
        assert_eq!(ids, [0, 1, 2, 3]);
        let mut total = 0u64;
        for n in 0..100u64 {
            let to = CoreId(((u64::from(core.0) + n) % 4) as u16);
            total += submit_to(to, Queue::Foreground, move || async move { n }).await;
        }
        total
    });
    assert_eq!(out, [4950; 4]);
}

/// A node that answers each connection with what it got, after having written and flushed it.
async fn echo_server(core: CoreId) {
    if core.0 != 0 {
        return;
    }
    fs::create_dir_all("/data").await.unwrap();
    let file = File::open("/data/log", OpenOptions::create()).await.unwrap();
    let listener = Listener::bind("0.0.0.0:27017".parse().unwrap()).await.unwrap();
    let position = Rc::new(Cell::new(0u64));
    loop {
        let connection = listener.accept().await.unwrap().attach().unwrap();
        let (file, position) = (file.clone(), position.clone());
        spawn(Queue::Foreground, async move {
            let mut buffer = BytesMut::new();
            while let Ok(received) = connection.recv(&mut buffer).await {
                if received == 0 {
                    break;
                }
                let at = position.get();
                position.set(at + ALIGN as u64);
                let data = buffer.split().freeze();
                file.write_at(at, DmaBuf::padded_copy(&data[..data.len().min(ALIGN)])).await.unwrap();
                file.datasync().await.unwrap();
                if connection.send(data).await.is_err() {
                    break;
                }
            }
        });
    }
}

fn echo_run(seed: u64) -> (u64, u64) {
    let sim = Sim::new(seed, SimOptions::random(seed));
    let server = sim.add_node("server", 2, echo_server);
    let addr = std::net::SocketAddr::new(sim.node_ip(server), 27017);
    let done = Rc::new(RefCell::new(0));
    let count = done.clone();
    let client = sim.add_node("client", 1, move |_| {
        let count = count.clone();
        async move {
            while *count.borrow() < 100 {
                let Ok(connection) = connect(addr).await else {
                    sleep(Duration::from_millis(1)).await;
                    continue;
                };
                let mut buffer = BytesMut::new();
                while *count.borrow() < 100 {
                    let message = Bytes::from(vec![1u8; 100]);
                    if connection.send(message).await.is_err() {
                        break;
                    }
                    while buffer.len() < 100 {
                        match connection.recv(&mut buffer).await {
                            Ok(n) if n > 0 => {}
                            _ => break,
                        }
                    }
                    if buffer.len() < 100 {
                        break;
                    }
                    buffer.clear();
                    *count.borrow_mut() += 1;
                }
            }
        }
    });
    for death in [Death::PowerCut, Death::Kill] {
        let goal = *done.borrow() + 20;
        sim.run_until(|| *done.borrow() >= goal).unwrap();
        sim.crash(server, death);
        sim.run_for(Duration::from_millis(20));
        sim.restart(server, 3);
    }
    sim.run_until_down(client).unwrap();
    (sim.trace_hash(), sim.steps())
}

#[test]
fn equal_seeds_give_equal_traces() {
    let hashes: Vec<_> = (0..20).map(echo_run).collect();
    let again: Vec<_> = (0..20).map(echo_run).collect();
    assert_eq!(hashes, again);
    let different: std::collections::BTreeSet<_> = hashes.iter().collect();
    assert_eq!(different.len(), hashes.len());
}
