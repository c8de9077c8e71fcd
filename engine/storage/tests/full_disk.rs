//! A disk that is full, and one that fails a write: writes are refused while there is no room,
//! nothing that was acknowledged is lost, and all continues when there is room again.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::sim::{Death, DiskOp, NodeId, Sim, SimHandle, SimOptions};
use pinion_runtime::{Duration, sleep, timeout};
use pinion_storage::{
    Applier, ApplyError, Entry, Expect, Key, Op, ReadAt, Statement, StorageOptions, TreeId, Write,
    WriteError, open, storage,
};

const TREE: TreeId = TreeId(5);
const KEYS: u64 = 200;
const LARGE: u64 = 1 << 40;
/// A write that is not durable by then waits for room.
const PATIENCE: Duration = Duration::from_secs(1);

fn options(is_member: bool) -> StorageOptions {
    StorageOptions {
        is_member,
        cache_bytes: 512 * 1024,
        partitions: Some(2),
        ..StorageOptions::hostile("/srv/pinion/data")
    }
}

fn write_of(key: u64, number: u64) -> Write {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + (number % 700) as usize, 7);
    Write {
        partition: storage().partition_of_hash(&key.to_be_bytes()),
        tree: TREE,
        key: Key::from_slice(&key.to_be_bytes()),
        op: Op::Put(Bytes::from(value)),
        expect: Expect::Any,
    }
}

struct Replay;

impl Applier for Replay {
    async fn apply(&self, ts: Timestamp, entry: Bytes) -> Result<(), ApplyError> {
        let number =
            |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
        let writes = vec![write_of(number(27), number(35))];
        storage().apply_at(ts, writes).await
    }
}

/// A node, and what its client knows.
struct Node {
    sim: SimHandle,
    id: Cell<Option<NodeId>>,
    /// Lives that have come as far as they should.
    lives: Cell<u32>,
    next: Cell<u64>,
    /// The number that each key has, and those keys of which it is not known.
    acknowledged: RefCell<BTreeMap<u64, u64>>,
    uncertain: RefCell<BTreeSet<u64>>,
}

impl Node {
    fn id(&self) -> NodeId {
        self.id.get().expect("the node was added")
    }

    fn fill_disk(&self) {
        let used = self.sim.disk_used_bytes(self.id());
        self.sim.set_disk_capacity(self.id(), used);
    }

    fn make_room(&self) {
        self.sim.set_disk_capacity(self.id(), LARGE);
    }

    /// One write that is to be durable.
    async fn write(&self) -> Result<(), WriteError> {
        let number = self.next.replace(self.next.get() + 1);
        let key = number * 7 % KEYS;
        let mut bytes = b"\0\0\0\0\x11ts\0\0\0\0\0\0\0\0\0\x12t\0\0\0\0\0\0\0\0\0".to_vec();
        bytes.extend_from_slice(&key.to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
        let statement = Statement {
            writes: vec![write_of(key, number)],
            entry: Some(Entry::new(bytes)),
        };
        let outcome = storage().execute(vec![statement], true).await.pop();
        let ts = outcome.expect("one outcome")?;
        match timeout(PATIENCE, storage().wait_durable(ts)).await {
            Ok(durable) => {
                durable.unwrap();
                self.acknowledged.borrow_mut().insert(key, number);
                self.uncertain.borrow_mut().remove(&key);
            }
            Err(_) => {
                self.uncertain.borrow_mut().insert(key);
            }
        }
        Ok(())
    }

    async fn write_some(&self, count: u64) {
        for _ in 0..count {
            self.write().await.unwrap();
        }
    }

    /// Writes until the disk is full.
    async fn write_until_refused(&self) {
        for _ in 0..20_000 {
            match self.write().await {
                Ok(()) => {}
                Err(WriteError::DiskFull) => return,
                Err(error) => panic!("{error}"),
            }
        }
        panic!("a full disk refuses no write");
    }

    async fn check(&self) {
        let acknowledged = self.acknowledged.borrow().clone();
        for (key, number) in acknowledged {
            if self.uncertain.borrow().contains(&key) {
                continue;
            }
            let key = key.to_be_bytes();
            let partition = storage().partition(storage().partition_of_hash(&key));
            let partition = partition.expect("one core has all");
            let read = partition.get(TREE, &key, ReadAt::Newest).await.unwrap();
            let value = read.expect("it was acknowledged").value;
            assert_eq!(value[..8], number.to_le_bytes());
        }
    }

    async fn is_open(&self) {
        loop {
            match self.write().await {
                Err(WriteError::DiskFull) => sleep(Duration::from_millis(100)).await,
                done => return done.unwrap(),
            }
        }
    }
}

fn node(seed: u64, options: StorageOptions, life: AsyncLife) -> (Sim, Rc<Node>) {
    let sim = Sim::new(seed, SimOptions::default());
    let node = Rc::new(Node {
        sim: sim.handle(),
        id: Cell::new(None),
        lives: Cell::new(0),
        next: Cell::new(1),
        acknowledged: RefCell::default(),
        uncertain: RefCell::default(),
    });
    let of_main = node.clone();
    let id = sim.add_node("node", 1, move |_| {
        let (node, options) = (of_main.clone(), options.clone());
        async move {
            open(options).await.unwrap().recover(Replay).await.unwrap();
            node.check().await;
            life(node).await;
        }
    });
    node.id.set(Some(id));
    node.make_room();
    (sim, node)
}

type AsyncLife = fn(Rc<Node>) -> std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// Fills the disk: in the first life it gets room again, in the second the node is closed, in the
/// third it loses power.
fn full_life(node: Rc<Node>) -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async move {
        node.write_some(300).await;
        node.fill_disk();
        node.write_until_refused().await;
        node.check().await;
        assert!(storage().stats().waits_for_room > 0);
        if node.lives.get() == 0 {
            sleep(Duration::from_secs(5)).await;
            assert_eq!(node.write().await, Err(WriteError::DiskFull));
            node.make_room();
            timeout(Duration::from_secs(60), node.is_open())
                .await
                .expect("writes are taken again");
            node.write_some(300).await;
            node.check().await;
        }
        if node.lives.get() < 2 {
            timeout(Duration::from_secs(120), storage().close())
                .await
                .expect("a full disk does not hold up the end");
        }
        node.make_room();
        node.lives.set(node.lives.get() + 1);
        sleep(Duration::from_secs(3600)).await;
    })
}

#[test]
fn a_full_disk_refuses_writes_and_loses_none() {
    for is_member in [false, true] {
        let (sim, node) = node(1, options(is_member), full_life);
        for next in 1..=4 {
            let clock = sim.handle();
            sim.run_until(|| node.lives.get() == next || !clock.is_running(node.id()))
                .unwrap_or_else(|stuck| panic!("{stuck:?}"));
            assert_eq!(node.lives.get(), next);
            sim.crash(node.id(), Death::PowerCut);
            if next < 4 {
                sim.restart(node.id(), 1);
            }
        }
    }
}

fn failing_life(node: Rc<Node>) -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async move {
        node.write_some(200).await;
        for nth in [1, 3] {
            // Nothing but layers is written there: nothing becomes stable.
            let id = node.id();
            node.sim
                .fail_disk_operation(id, DiskOp::Write, "pages", nth);
            let before = storage().stats();
            node.write_some(1500).await;
            let after = storage().stats();
            assert!(after.failed_runs > before.failed_runs);
            assert!(after.layers > before.layers);
            node.check().await;
        }
        node.lives.set(1);
        sleep(Duration::from_secs(3600)).await;
    })
}

#[test]
fn a_run_whose_write_fails_is_written_again() {
    let (sim, node) = node(2, options(true), failing_life);
    let clock = sim.handle();
    sim.run_until(|| node.lives.get() == 1 || !clock.is_running(node.id()))
        .unwrap_or_else(|stuck| panic!("{stuck:?}"));
    assert_eq!(node.lives.get(), 1);
}
