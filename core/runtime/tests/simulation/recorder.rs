//! A small durable service and its client, for the tests to disturb.
//!
//! The client sends numbers, each four bytes; the server writes each to its own block, flushes, and
//! sends it back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use pinion_runtime::sim::{NodeId, SimHandle, event};
use pinion_runtime::{
    ALIGN, Connection, CoreId, DmaBuf, Duration, File, Listener, OpenOptions, Queue, connect,
    core_count, core_id, fs, random_stream, sleep, spawn, submit_to, timeout,
};

pub const PORT: u16 = 27017;
const FILE: &str = "/data/record";

/// The block that a number is written to: its bytes, repeated.
fn block(number: u32) -> DmaBuf {
    let mut buffer = DmaBuf::zeroed(ALIGN);
    for chunk in buffer.chunks_mut(4) {
        chunk.copy_from_slice(&number.to_le_bytes());
    }
    buffer
}

/// Whether the server flushes before it answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Care {
    Flush,
    Forget,
}

pub async fn serve(core: CoreId, care: Care) {
    if core.0 != 0 {
        return;
    }
    fs::create_dir_all("/data").await.unwrap();
    fs::sync_dir("/").await.unwrap();
    let _lock = fs::lock("/data").await.unwrap();
    let file = File::open(FILE, OpenOptions::create()).await.unwrap();
    fs::sync_dir("/data").await.unwrap();
    let listener = Listener::bind(SocketAddr::from(([0, 0, 0, 0], PORT)))
        .await
        .unwrap();
    let served = Rc::new(Cell::new(0usize));
    loop {
        let incoming = listener.accept().await.unwrap();
        let (file, served) = (file.clone(), served.clone());
        spawn(Queue::Foreground, async move {
            // The errors of a connection end it, and nothing else.
            let _ = answer(incoming.attach().unwrap(), file, served, care).await;
        });
    }
}

async fn answer(
    connection: Connection,
    file: File,
    served: Rc<Cell<usize>>,
    care: Care,
) -> std::io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        while buffer.len() < 4 {
            if connection.recv(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let bytes = buffer.split_to(4).freeze();
        let number = u32::from_le_bytes(bytes[..].try_into().unwrap());
        // A hop over another core, as a server of several cores would do it.
        served.set(served.get() + 1);
        let other = CoreId((served.get() % core_count()) as u16);
        let on = submit_to(other, Queue::Foreground, || async { core_id() }).await;
        assert_eq!(on, other);
        event("before write");
        file.write_at(u64::from(number) * ALIGN as u64, block(number))
            .await?;
        if care == Care::Flush {
            event("before flush");
            file.datasync().await?;
        }
        event("before answer");
        connection.send(bytes).await?;
    }
}

/// What the client knows.
#[derive(Default)]
pub struct ClientRecord {
    pub acknowledged: RefCell<BTreeSet<u32>>,
    pub failures: Cell<u64>,
}

impl ClientRecord {
    pub fn count(&self) -> usize {
        self.acknowledged.borrow().len()
    }
}

/// Sends every number below `goal` until it was acknowledged, over connections that may fail.
pub async fn record(known: Rc<ClientRecord>, addr: SocketAddr, goal: u32) {
    let mut rng = random_stream("client");
    while known.count() < goal as usize {
        if send_all(&known, addr, goal).await.is_err() {
            known.failures.set(known.failures.get() + 1);
            sleep(Duration::from_micros(rng.between(100, 20_000))).await;
        }
    }
}

async fn send_all(known: &ClientRecord, addr: SocketAddr, goal: u32) -> std::io::Result<()> {
    let connection = connect(addr).await?;
    let mut buffer = BytesMut::new();
    for number in 0..goal {
        if known.acknowledged.borrow().contains(&number) {
            continue;
        }
        connection
            .send(Bytes::copy_from_slice(&number.to_le_bytes()))
            .await?;
        while buffer.len() < 4 {
            let received = timeout(Duration::from_secs(3), connection.recv(&mut buffer)).await;
            if received.map_err(|_| std::io::ErrorKind::TimedOut)?? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        assert_eq!(
            buffer.split_to(4)[..],
            number.to_le_bytes(),
            "the answer is for what was asked"
        );
        known.acknowledged.borrow_mut().insert(number);
    }
    Ok(())
}

/// The acknowledged numbers that are not on the server's disk.
pub fn missing(sim: &SimHandle, server: NodeId, known: &ClientRecord) -> Vec<u32> {
    let content = sim.read_file(server, FILE).unwrap_or_default();
    let acknowledged = known.acknowledged.borrow();
    let is_there = |number: u32| {
        let at = number as usize * ALIGN;
        content
            .get(at..at + ALIGN)
            .is_some_and(|found| *found == *block(number))
    };
    acknowledged
        .iter()
        .copied()
        .filter(|number| !is_there(*number))
        .collect()
}

/// Adds a server and a client that sends the numbers below `goal`.
pub fn start(
    sim: &SimHandle,
    cores: usize,
    care: Care,
    goal: u32,
) -> (NodeId, NodeId, Rc<ClientRecord>) {
    let server = sim.add_node("server", cores, move |core| serve(core, care));
    let addr = SocketAddr::new(sim.node_ip(server), PORT);
    let known = Rc::new(ClientRecord::default());
    let shared = known.clone();
    let client = sim.add_node("client", 1, move |_| record(shared.clone(), addr, goal));
    (server, client, known)
}
