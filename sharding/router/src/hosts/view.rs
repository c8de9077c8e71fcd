//! What one core knows of a set, and its readers that wait for a member.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use pinion_runtime::sync::Notify;
use pinion_runtime::{Queue, call_on, is_shutdown_requested, sleep, spawn};
use pinion_sharding_protocol::SetTopology;
use pinion_sharding_protocol::limits::WAIT_LEASE;
use pinion_wire::HostPort;

use super::{Hosts, MONITORS};

pub(super) struct SetView {
    topology: RefCell<Arc<SetTopology>>,
    /// The topology is another one, or there will be no other.
    pub(super) changed: Notify,
    waiting: Cell<usize>,
    /// A task reports to core 0 that readers wait.
    is_reported: Cell<bool>,
}

impl SetView {
    pub(super) fn new(topology: Arc<SetTopology>) -> SetView {
        SetView {
            topology: RefCell::new(topology),
            changed: Notify::new(),
            waiting: Cell::new(0),
            is_reported: Cell::new(false),
        }
    }

    pub(super) fn topology(&self) -> Arc<SetTopology> {
        self.topology.borrow().clone()
    }

    /// Takes over a version, unless it is no newer; returns the hosts to which connections are of
    /// no more use.
    pub(super) fn replace(&self, topology: Arc<SetTopology>) -> Vec<HostPort> {
        if topology.number <= self.topology.borrow().number {
            return Vec::new();
        }
        let before = self.topology.replace(topology.clone());
        self.changed.notify_all();
        before.hosts_lost_in(&topology)
    }
}

/// A reader that waits for a member.
pub(super) struct Waiting(Rc<SetView>);

impl Waiting {
    pub(super) fn start(view: &Rc<SetView>) -> Waiting {
        view.waiting.set(view.waiting.get() + 1);
        if !view.is_reported.replace(true) {
            spawn(Queue::Foreground, report(view.clone()));
        }
        Waiting(view.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

/// Reports to core 0 that readers wait, as long as they do: members are asked more often.
async fn report(view: Rc<SetView>) {
    while view.waiting.get() > 0 && !is_shutdown_requested() {
        let set = view.topology().name.clone();
        call_on(MONITORS, move || Hosts::here().monitors().wanted(&set)).await;
        sleep(WAIT_LEASE / 2).await;
    }
    view.is_reported.set(false);
}
