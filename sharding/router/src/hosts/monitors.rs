//! The monitors on core 0: each drives the machine of one set.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use pinion_runtime::sync::Notify;
use pinion_runtime::{
    CoreId, Duration, Instant, JoinHandle, Queue, call_on, core_count, join_all, now, spawn,
    timeout_at,
};
use pinion_server::{HostFigures, Pool, PoolLimits, PoolOptions, PooledConnection};
use pinion_sharding_protocol::{
    ConnectionString, Failure, Monitor, MonitorEffect, MonitorInput, SetTopology,
};
use pinion_wire::HostPort;

use super::{Hosts, HostsOptions, checks};
use crate::limits::{MONITOR_CONNECTIONS, MONITOR_IDLE};

type OnNewString = Rc<dyn Fn(&ConnectionString)>;

/// A command that has failed at a member of a set.
pub(super) struct FailedCommand {
    pub(super) host: HostPort,
    /// Of the topology by which the member was chosen.
    pub(super) number: u64,
    pub(super) failure: Failure,
    pub(super) why: String,
}

/// The monitors of all sets.
pub(super) struct Monitors {
    pool: Rc<Pool>,
    sets: RefCell<BTreeMap<String, Rc<SetMonitor>>>,
    on_new_string: RefCell<Vec<OnNewString>>,
    /// The highest number of a topology of the monitors that have ended.
    last_number: Cell<u64>,
    is_stopped: Cell<bool>,
    this: Weak<Monitors>,
}

impl Monitors {
    pub(super) fn new(options: &HostsOptions) -> Rc<Monitors> {
        let limits = PoolLimits {
            connections: MONITOR_CONNECTIONS,
            idle: MONITOR_IDLE,
            ..PoolLimits::default()
        };
        let pool = Rc::new(Pool::new(PoolOptions {
            introduction: options.introduction,
            auth: options.auth.clone(),
            limits,
        }));
        Rc::new_cyclic(|this| Monitors {
            pool,
            sets: RefCell::default(),
            on_new_string: RefCell::default(),
            last_number: Cell::new(0),
            is_stopped: Cell::new(false),
            this: this.clone(),
        })
    }

    fn set(&self, name: &str) -> Option<Rc<SetMonitor>> {
        self.sets.borrow().get(name).cloned()
    }

    pub(super) async fn watch(&self, string: ConnectionString) {
        if self.is_stopped.get() {
            return;
        }
        let monitor = match self.set(&string.set) {
            Some(monitor) => {
                monitor.step(MonitorInput::Seeds(string.hosts));
                monitor
            }
            None => self.start(string),
        };
        monitor.first_published().await;
    }

    fn start(&self, string: ConnectionString) -> Rc<SetMonitor> {
        let name = string.set.clone();
        let machine = Monitor::new(string, self.last_number.get(), now_ms());
        let monitor = SetMonitor::new(machine, self.pool.clone(), self.this.clone());
        self.sets.borrow_mut().insert(name, monitor.clone());
        monitor.start();
        monitor
    }

    pub(super) async fn unwatch(&self, set: &str) {
        let removed = self.sets.borrow_mut().remove(set);
        if let Some(monitor) = removed {
            monitor.stop();
            let number = monitor.machine.borrow().topology().number;
            self.last_number.set(self.last_number.get().max(number));
        }
        let set = set.to_owned();
        on_cores(move || Hosts::here().remove_view(&set)).await;
    }

    pub(super) fn stop(&self) {
        self.is_stopped.set(true);
        let stopped = std::mem::take(&mut *self.sets.borrow_mut());
        for monitor in stopped.into_values() {
            monitor.stop();
        }
    }

    /// A reader waits for a member of a set.
    pub(super) fn wanted(&self, set: &str) {
        if let Some(monitor) = self.set(set) {
            monitor.step(MonitorInput::Wanted);
        }
    }

    /// A command has failed at a member: what is known of the set from now on.
    pub(super) fn command_failed(
        &self,
        set: &str,
        failed: FailedCommand,
    ) -> Option<Arc<SetTopology>> {
        let monitor = self.set(set)?;
        monitor.step(MonitorInput::CommandFailed {
            host: failed.host,
            number: failed.number,
            failure: failed.failure,
            why: failed.why,
        });
        let newest = monitor.machine.borrow().topology().clone();
        Some(newest)
    }

    pub(super) fn figures(&self) -> Vec<HostFigures> {
        self.pool.figures()
    }

    pub(super) fn on_new_string(&self, callback: OnNewString) {
        self.on_new_string.borrow_mut().push(callback);
    }

    fn report_string(&self, string: &ConnectionString) {
        let callbacks = self.on_new_string.borrow().clone();
        for callback in callbacks {
            callback(string);
        }
    }
}

/// What is under way with one host.
#[derive(Default)]
struct HostTasks {
    hello: Option<JoinHandle<()>>,
    ping: Option<JoinHandle<()>>,
    /// The connection of the hellos, between two of them.
    idle: Option<PooledConnection>,
}

impl HostTasks {
    /// Gives up what is under way. Once that is gone, which then wants no connection any more, what
    /// is left over to the host is closed.
    fn stop(self, host: HostPort, pool: Rc<Pool>) {
        drop(self.idle);
        let tasks: Vec<_> = [self.hello, self.ping].into_iter().flatten().collect();
        for task in &tasks {
            task.abort();
        }
        spawn(Queue::Foreground, async move {
            join_all(tasks).await;
            pool.forget(&host);
        });
    }
}

/// The monitor of one set.
pub(super) struct SetMonitor {
    machine: RefCell<Monitor>,
    pub(super) pool: Rc<Pool>,
    hosts: RefCell<BTreeMap<HostPort, HostTasks>>,
    /// The time of the next tick may be another one.
    timer: Notify,
    to_publish: Notify,
    /// The number of the topology that every core has, and that it has changed.
    published: Cell<u64>,
    was_published: Notify,
    tasks: RefCell<Vec<JoinHandle<()>>>,
    is_stopped: Cell<bool>,
    all: Weak<Monitors>,
}

impl SetMonitor {
    fn new(machine: Monitor, pool: Rc<Pool>, all: Weak<Monitors>) -> Rc<SetMonitor> {
        Rc::new(SetMonitor {
            published: Cell::new(machine.topology().number),
            machine: RefCell::new(machine),
            pool,
            hosts: RefCell::default(),
            timer: Notify::new(),
            to_publish: Notify::new(),
            was_published: Notify::new(),
            tasks: RefCell::default(),
            is_stopped: Cell::new(false),
            all,
        })
    }

    fn start(self: &Rc<Self>) {
        self.step(MonitorInput::Tick);
        let tasks = [
            spawn(Queue::Foreground, self.clone().keep_time()),
            spawn(Queue::Foreground, self.clone().keep_published()),
        ];
        self.tasks.borrow_mut().extend(tasks);
    }

    fn stop(&self) {
        self.is_stopped.set(true);
        for task in self.tasks.take() {
            task.abort();
        }
        let hosts = self.hosts.take();
        for (host, tasks) in hosts {
            tasks.stop(host, self.pool.clone());
        }
        self.was_published.notify_all();
    }

    /// Completes when every core has a version, or the monitor has ended.
    async fn first_published(&self) {
        let first = self.machine.borrow().topology().number;
        while self.published.get() < first && !self.is_stopped.get() {
            self.was_published.notified().await;
        }
    }

    /// Gives the machine an input, and does what it says.
    pub(super) fn step(self: &Rc<Self>, input: MonitorInput) {
        if self.is_stopped.get() {
            return;
        }
        let effects = self.machine.borrow_mut().step(now_ms(), input);
        for effect in effects {
            self.perform(effect);
        }
        self.timer.notify_all();
    }

    fn perform(self: &Rc<Self>, effect: MonitorEffect) {
        match effect {
            MonitorEffect::Hello {
                host,
                check,
                awaits,
            } => {
                let hello = checks::hello(self.clone(), host.clone(), check, awaits);
                let task = spawn(Queue::Foreground, hello);
                self.hosts.borrow_mut().entry(host).or_default().hello = Some(task);
            }
            MonitorEffect::Ping { host, check } => {
                let ping = checks::ping(self.clone(), host.clone(), check);
                let task = spawn(Queue::Foreground, ping);
                self.hosts.borrow_mut().entry(host).or_default().ping = Some(task);
            }
            MonitorEffect::Stop { host } => {
                let stopped = self.hosts.borrow_mut().remove(&host);
                if let Some(stopped) = stopped {
                    stopped.stop(host, self.pool.clone());
                }
            }
            MonitorEffect::Publish(_) => self.to_publish.notify_one(),
            MonitorEffect::NewString(string) => {
                if let Some(all) = self.all.upgrade() {
                    all.report_string(&string);
                }
            }
        }
    }

    /// The connection of the hellos to a host, if one is left.
    pub(super) fn take_idle(&self, host: &HostPort) -> Option<PooledConnection> {
        self.hosts.borrow_mut().get_mut(host)?.idle.take()
    }

    pub(super) fn keep_idle(&self, host: &HostPort, connection: PooledConnection) {
        let mut hosts = self.hosts.borrow_mut();
        let replaced = match hosts.get_mut(host) {
            Some(tasks) => tasks.idle.replace(connection),
            // What it belongs to was given up meanwhile.
            None => Some(connection),
        };
        drop(hosts);
        drop(replaced);
    }

    async fn keep_time(self: Rc<Self>) {
        loop {
            let next_ms = self.machine.borrow().next_ms();
            let at = Instant::ZERO + Duration::from_millis(next_ms);
            if timeout_at(at, self.timer.notified()).await.is_err() {
                self.step(MonitorInput::Tick);
            }
        }
    }

    /// Gives every core the newest version, one after another.
    async fn keep_published(self: Rc<Self>) {
        loop {
            let newest = self.machine.borrow().topology().clone();
            let number = newest.number;
            if number > self.published.get() {
                on_cores(move || Hosts::here().install_view(newest)).await;
                self.published.set(number);
                self.was_published.notify_all();
            } else {
                self.to_publish.notified().await;
            }
        }
    }
}

/// Calls a function on every core, and waits until all have run it.
async fn on_cores(function: impl FnOnce() + Clone + Send + 'static) {
    let cores = 0..core_count() as u16;
    join_all(cores.map(|core| call_on(CoreId(core), function.clone()))).await;
}

/// The monitors' clock: milliseconds.
fn now_ms() -> u64 {
    now().as_nanos() / 1_000_000
}
