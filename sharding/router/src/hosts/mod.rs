//! The members of other replica sets: core 0 monitors them, every core chooses among them and has
//! connections of its own to them.

mod checks;
mod cursor;
mod monitors;
mod run;
mod shown;
mod view;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use pinion_auth::MemberAuth;
use pinion_clock::Timestamp;
use pinion_runtime::{
    CoreId, Duration, Instant, Queue, Rng, call_on, core_id, core_local, now, random_stream,
    set_core_local, shutdown_requested, spawn, submit_to, timeout_at,
};
use pinion_server::{HostFigures, Introduction, Pool, PoolLimits, PoolOptions};
use pinion_service::interrupt::interruptible;
use pinion_sharding_protocol::limits::LOCAL_THRESHOLD;
use pinion_sharding_protocol::{ConnectionString, SetTopology, cannot_satisfy};
use pinion_wire::idl::ReadPreference;
use pinion_wire::{Error, ErrorCode, HostPort, OpContext, Result};

use self::monitors::Monitors;
use self::view::{SetView, Waiting};

pub use self::run::Retry;
pub use self::shown::{ShownHost, ShownSet};

/// The core that monitors.
const MONITORS: CoreId = CoreId(0);

/// What the host layer of a process is made with.
#[derive(Clone, Debug)]
pub struct HostsOptions {
    pub introduction: Introduction,
    /// The keys of the cluster; `None` where its members admit every process.
    pub auth: Option<MemberAuth>,
    /// Of the connections for commands.
    pub limits: PoolLimits,
    /// How long a member that fits is waited for:
    /// [`SERVER_SELECTION_TIMEOUT`](crate::limits::SERVER_SELECTION_TIMEOUT) unless set otherwise.
    pub server_selection_timeout: Duration,
}

/// The host layer of one core.
pub struct Hosts {
    pool: Rc<Pool>,
    server_selection_timeout: Duration,
    sets: RefCell<BTreeMap<String, Rc<SetView>>>,
    random: RefCell<Rng>,
    /// On core 0 alone.
    monitors: Option<Rc<Monitors>>,
    is_stopped: Cell<bool>,
}

/// Installs the host layer on this core. It is installed on every core before any is used, and
/// stops when the process shuts down.
///
/// # Panics
/// The limits contradict each other.
pub fn install(options: HostsOptions) {
    let monitors = (core_id() == MONITORS).then(|| Monitors::new(&options));
    let hosts = Rc::new(Hosts {
        pool: Rc::new(Pool::new(PoolOptions {
            introduction: options.introduction,
            auth: options.auth,
            limits: options.limits,
        })),
        server_selection_timeout: options.server_selection_timeout,
        sets: RefCell::default(),
        random: RefCell::new(random_stream("hosts")),
        monitors,
        is_stopped: Cell::new(false),
    });
    set_core_local(hosts.clone());
    spawn(Queue::Foreground, async move {
        shutdown_requested().await;
        hosts.stop();
    });
}

impl Hosts {
    /// The host layer of this core.
    ///
    /// # Panics
    /// It is not installed.
    pub fn here() -> Rc<Hosts> {
        core_local()
    }

    /// The connections of this core, for a caller that runs several commands on one of them.
    pub fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }

    /// Ends the monitors, if this core has them, and all waits on this core.
    pub fn stop(&self) {
        self.is_stopped.set(true);
        if let Some(monitors) = &self.monitors {
            monitors.stop();
        }
        for view in self.sets.borrow().values() {
            view.changed.notify_all();
        }
    }

    /// Has core 0 monitor a set, if it does not; completes when every core has a first view of it.
    /// Where a set of this name is monitored already, its monitor asks the hosts of the string too
    /// if it knows no primary.
    ///
    /// # Panics
    /// The string names no set.
    pub async fn watch(&self, string: &ConnectionString) {
        if self
            .topology(&string.set)
            .is_some_and(|known| known.covers(string))
        {
            return;
        }
        let string = string.clone();
        let watch = move || async move {
            let hosts = Hosts::here();
            hosts.monitors().watch(string).await;
        };
        submit_to(MONITORS, Queue::Foreground, watch).await;
    }

    /// Ends the monitoring of a set; completes when no core has a view of it.
    pub async fn unwatch(&self, set: &str) {
        let set = set.to_owned();
        let unwatch = move || async move {
            let hosts = Hosts::here();
            hosts.monitors().unwatch(&set).await;
        };
        submit_to(MONITORS, Queue::Foreground, unwatch).await;
    }

    /// What this core knows of a set, if that is monitored.
    pub fn topology(&self, set: &str) -> Option<Arc<SetTopology>> {
        self.view(set).map(|view| view.topology())
    }

    /// Waits until a member of a set fits, and chooses one of those that do at random.
    ///
    /// # Errors
    /// `FailedToSatisfyReadPreference` (133) where none did in time, `ReplicaSetMonitorRemoved`
    /// (199) where the set is not monitored, and those of an interrupted operation.
    pub async fn select(
        &self,
        set: &str,
        preference: &ReadPreference,
        min_cluster_time: Option<Timestamp>,
        ctx: Option<&OpContext>,
    ) -> Result<HostPort> {
        let until = now() + self.server_selection_timeout;
        let selected = self.select_until(set, preference, min_cluster_time, until);
        match ctx {
            Some(ctx) => interruptible(ctx, selected).await?,
            None => selected.await,
        }
    }

    async fn select_until(
        &self,
        set: &str,
        preference: &ReadPreference,
        min_cluster_time: Option<Timestamp>,
        until: Instant,
    ) -> Result<HostPort> {
        let mut waiting: Option<Waiting> = None;
        loop {
            let view = self.view(set).ok_or_else(|| monitor_removed(set))?;
            let changed = view.changed.notified();
            let topology = view.topology();
            let fitting = topology.select(preference, min_cluster_time, LOCAL_THRESHOLD);
            if !fitting.is_empty() {
                return Ok(self.choose(fitting));
            }
            // What runs to its end while the process shuts down has members, but waits for none.
            if self.is_stopped.get() {
                let code = ErrorCode::SHUTDOWN_IN_PROGRESS;
                return Err(Error::new(code, "Server is shutting down"));
            }
            // Dropped only when there is another one, so that requests stay expedited.
            let next = Waiting::start(&view);
            drop(waiting.replace(next));
            if timeout_at(until, changed).await.is_err() {
                return Err(cannot_satisfy(preference, set));
            }
        }
    }

    fn choose(&self, mut fitting: Vec<HostPort>) -> HostPort {
        let at = self.random.borrow_mut().below(fitting.len() as u64);
        fitting.swap_remove(at as usize)
    }

    /// The connections of this core, for `connPoolStats`.
    pub fn figures(&self) -> Vec<HostFigures> {
        self.pool.figures()
    }

    /// The connections of the monitors, for `connPoolStats`.
    ///
    /// # Panics
    /// On another core than core 0.
    pub fn monitor_figures(&self) -> Vec<HostFigures> {
        self.monitors().figures()
    }

    /// What `connPoolStats` shows under `replicaSets`, ascending by name.
    pub async fn shown_sets(&self) -> Vec<ShownSet> {
        let sets = self.sets.borrow();
        let topologies = sets.values().map(|view| view.topology());
        topologies.map(|topology| ShownSet::of(&topology)).collect()
    }

    /// Has a function called whenever a monitor learns that a set has other hosts than before.
    ///
    /// # Panics
    /// On another core than core 0.
    pub fn on_new_string(&self, callback: impl Fn(&ConnectionString) + 'static) {
        self.monitors().on_new_string(Rc::new(callback));
    }

    fn monitors(&self) -> &Rc<Monitors> {
        self.monitors.as_ref().expect("core 0 has the monitors")
    }

    fn view(&self, set: &str) -> Option<Rc<SetView>> {
        self.sets.borrow().get(set).cloned()
    }

    /// Takes over a version of a set that core 0 has published.
    fn install_view(&self, topology: Arc<SetTopology>) {
        match self.view(&topology.name) {
            Some(view) => self.update_view(&view, topology),
            None => {
                let name = topology.name.clone();
                let view = Rc::new(SetView::new(topology));
                self.sets.borrow_mut().insert(name, view);
            }
        }
    }

    fn update_view(&self, view: &SetView, topology: Arc<SetTopology>) {
        for host in view.replace(topology) {
            self.pool.forget(&host);
        }
    }

    fn remove_view(&self, set: &str) {
        let removed = self.sets.borrow_mut().remove(set);
        let Some(view) = removed else {
            return;
        };
        for (host, _) in &view.topology().members {
            self.pool.forget(host);
        }
        view.changed.notify_all();
    }

    /// Reports to core 0 that a command has failed at a member, and takes over what follows from
    /// that.
    async fn report(&self, set: &str, failed: monitors::FailedCommand) {
        let name = set.to_owned();
        let report = move || {
            let hosts = Hosts::here();
            hosts.monitors().command_failed(&name, failed)
        };
        let newest = call_on(MONITORS, report).await;
        if let Some(newest) = newest
            && let Some(view) = self.view(set)
        {
            self.update_view(&view, newest);
        }
    }
}

fn monitor_removed(set: &str) -> Error {
    Error::new(
        ErrorCode::REPLICA_SET_MONITOR_REMOVED,
        format!("ReplicaSetMonitor for set {set} is removed"),
    )
}
