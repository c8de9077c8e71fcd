//! The vector clock of every node and router, read in the process itself: its components never go
//! back while it lives, and stay in order.

use std::rc::Rc;

use pinion_clock::VectorTime;
use pinion_runtime::{Duration, Queue, is_shutdown_requested, sleep, spawn};
use pinion_sharding_router::Cluster as RouterRole;

use super::cluster::Cluster;

const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Watches the clock of this process, which is a router or a node. Called on core 0.
pub fn watch(cluster: Rc<Cluster>, name: String) {
    spawn(Queue::Background, async move {
        let mut before: Option<VectorTime> = None;
        while !is_shutdown_requested() {
            sleep(LOOK_EVERY).await;
            let of_node = pinion_storage::try_storage().map(|storage| storage.vector_time());
            let of_router = || RouterRole::try_here().map(|role| role.time());
            let Some(time) = of_node.or_else(of_router) else {
                continue;
            };
            if let Err(problem) = check(before.as_ref(), &time) {
                return cluster.fail(format!("{name}: {problem}: {before:?}, then {time:?}"));
            }
            before = Some(time);
        }
    });
}

fn check(before: Option<&VectorTime>, time: &VectorTime) -> Result<(), &'static str> {
    if time.cluster() < time.config() || time.config() < time.topology() {
        return Err("the components of its clock are out of order");
    }
    let goes_back = |before: &VectorTime| {
        time.cluster() < before.cluster()
            || time.config() < before.config()
            || time.topology() < before.topology()
    };
    match before.is_some_and(goes_back) {
        true => Err("its clock goes back"),
        false => Ok(()),
    }
}
