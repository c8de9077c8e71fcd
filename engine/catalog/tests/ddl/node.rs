//! Starts nodes of storage and catalog in the simulator.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use pinion_catalog::{Observers, core_catalog, load};
use pinion_clock::Timestamp;
use pinion_runtime::sim::{Sim, SimOptions};
use pinion_runtime::{CoreId, on_all_cores, request_shutdown, shutdown_requested};
use pinion_storage::{Applier, ApplyError, StorageOptions, open, storage};

type Script = Rc<dyn Fn() -> Pin<Box<dyn Future<Output = ()>>>>;

/// A new directory has nothing to apply.
struct Nothing;

impl Applier for Nothing {
    async fn apply(&self, ts: Timestamp, _entry: Bytes) -> Result<(), ApplyError> {
        panic!("a new directory has an entry at {ts}");
    }
}

/// Runs a script on core 0 of a new node, and closes the node.
pub fn with_node<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    cores: usize,
    partitions: u16,
    script: impl Fn() -> Fut + 'static,
) {
    let sim = Sim::new(seed, SimOptions::default());
    let is_done = Rc::new(Cell::new(false));
    let script: Script = {
        let is_done = is_done.clone();
        Rc::new(move || {
            let (script, is_done) = (script(), is_done.clone());
            Box::pin(async move {
                script.await;
                is_done.set(true);
            })
        })
    };
    let node = sim.add_node("node", cores, move |core| {
        let script = script.clone();
        async move {
            match core {
                CoreId(0) => run(partitions, script).await,
                _ => shutdown_requested().await,
            }
        }
    });
    let ended = sim.run_until_down(node);
    assert!(
        ended.is_ok() && is_done.get(),
        "seed {seed}: the script did not end: {ended:?}"
    );
}

async fn run(partitions: u16, script: Script) {
    let mut options = StorageOptions::hostile("/data");
    options.partitions = Some(partitions);
    options.cache_bytes = 64 << 20;
    on_all_cores(|_| async {
        pinion_runtime::set_core_local(Rc::new(Observers::default()));
    })
    .await;
    let opened = open(options).await.expect("storage opens");
    load().await.expect("the catalog is read");
    opened.recover(Nothing).await.expect("there is nothing");
    assert!(core_catalog().current().is_empty());
    script().await;
    pinion_catalog::keep_builds().await;
    storage().close().await;
    request_shutdown();
}
