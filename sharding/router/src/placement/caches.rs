//! The caches of a process: on core 0 the machine of each namespace, on each core what it was
//! given.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use pinion_runtime::sync::{OneshotSender, oneshot};
use pinion_runtime::{Queue, core_id, on_all_cores, spawn, submit_to};
use pinion_sharding_protocol::{
    Accessor, Cacheable, Effect, Input, LoadError, NamespaceCache, Staleness, Targets,
};
use pinion_wire::{Error, Result};
use rustc_hash::FxHashMap;

use crate::cluster::{ASKING_CORE, Cluster};
use crate::limits::MAX_KNOWN_NAMESPACES;

/// What is cached, and how it is read from the config servers.
pub(crate) trait Placed: Cacheable<Version: Send> + Send + 'static {
    /// What this core has of it.
    fn caches(cluster: &Cluster) -> &Caches<Self>;

    /// Reads what changed since `base`, applied to it, or all without one.
    fn load(
        name: &str,
        base: Option<Self>,
    ) -> impl Future<Output = std::result::Result<Self, LoadError>>;
}

/// What one core has of one kind of namespaces.
pub(crate) struct Caches<C: Cacheable> {
    known: RefCell<FxHashMap<Box<str>, C>>,
    /// Counts what was forgotten: an answer that was on its way then is not kept.
    forgotten: Cell<u64>,
    /// Those of the core that asks.
    machines: RefCell<FxHashMap<Box<str>, Machine<C>>>,
    accessors: Cell<u64>,
}

struct Machine<C: Cacheable> {
    cache: NamespaceCache<C>,
    waiting: BTreeMap<Accessor, OneshotSender<Result<Found<C>>>>,
}

/// What an access gets.
struct Found<C> {
    value: C,
    /// No part of it is known to be stale: the core may keep it.
    is_fresh: bool,
}

impl<C: Cacheable> Default for Caches<C> {
    fn default() -> Caches<C> {
        Caches {
            known: RefCell::default(),
            forgotten: Cell::new(0),
            machines: RefCell::default(),
            accessors: Cell::new(0),
        }
    }
}

impl<C: Placed> Caches<C> {
    fn known(&self, name: &str) -> Option<C> {
        self.known.borrow().get(name).cloned()
    }

    fn keep(&self, name: &str, value: C) {
        let mut known = self.known.borrow_mut();
        if known.len() >= MAX_KNOWN_NAMESPACES {
            known.clear();
        }
        known.insert(name.into(), value);
    }

    fn forget(&self, name: &str) {
        self.known.borrow_mut().remove(name);
        self.forgotten.set(self.forgotten.get() + 1);
    }

    fn forget_where(&self, is_meant: impl Fn(&str) -> bool) {
        self.known.borrow_mut().retain(|name, _| !is_meant(name));
        self.forgotten.set(self.forgotten.get() + 1);
    }

    /// Steps the machine of a namespace, and performs what it wants.
    fn step(&self, name: &str, input: Input<C>, waits: Option<OneshotSender<Result<Found<C>>>>) {
        let mut machines = self.machines.borrow_mut();
        if machines.len() >= MAX_KNOWN_NAMESPACES && !machines.contains_key(name) {
            machines.retain(|_, machine| !machine.cache.is_idle());
        }
        let machine = machines.entry(name.into()).or_insert_with(|| Machine {
            cache: NamespaceCache::new(true),
            waiting: BTreeMap::new(),
        });
        if let (Input::Access { by, .. }, Some(sender)) = (&input, waits) {
            machine.waiting.insert(*by, sender);
        }
        for effect in machine.cache.step(input) {
            match effect {
                Effect::Reply { to, result } => {
                    let is_fresh = !machine.cache.is_stale();
                    let result = result.map(|value| Found { value, is_fresh });
                    if let Some(sender) = machine.waiting.remove(&to) {
                        // One that has given up has dropped its end.
                        drop(sender.send(result));
                    }
                }
                Effect::Load { load, base } => {
                    let name: Box<str> = name.into();
                    spawn(Queue::Foreground, async move {
                        let result = C::load(&name, base).await;
                        let cluster = Cluster::here();
                        C::caches(&cluster).step(&name, Input::Loaded { load, result }, None);
                    });
                }
            }
        }
    }

    fn give_up(&self, name: &str, by: Accessor) {
        if let Some(machine) = self.machines.borrow_mut().get_mut(name) {
            machine.waiting.remove(&by);
            let effects = machine.cache.step(Input::GiveUp { by });
            assert!(effects.is_empty(), "to give up starts nothing");
        }
    }
}

/// Has the machine not wait for an operation that does not.
struct GivesUp<C: Placed> {
    cluster: Rc<Cluster>,
    name: Box<str>,
    by: Accessor,
    kind: std::marker::PhantomData<C>,
}

impl<C: Placed> Drop for GivesUp<C> {
    fn drop(&mut self) {
        C::caches(&self.cluster).give_up(&self.name, self.by);
    }
}

/// An access on the core that asks.
async fn access<C: Placed>(name: &str, targets: Targets) -> Result<Found<C>> {
    let cluster = Cluster::here();
    let caches = C::caches(&cluster);
    let by = Accessor(caches.accessors.get());
    caches.accessors.set(by.0 + 1);
    let (sender, answer) = oneshot();
    let _waits = GivesUp::<C> {
        cluster: cluster.clone(),
        name: name.into(),
        by,
        kind: std::marker::PhantomData,
    };
    caches.step(name, Input::Access { by, targets }, Some(sender));
    match answer.await {
        Ok(found) => found,
        Err(_) => Err(Error::internal("a read of the routing table was given up")),
    }
}

/// What is known of a namespace, once what of it concerns these targets is not stale.
///
/// # Errors
/// The config servers do not answer, and nothing is known that is as new as a shard has it.
pub(super) async fn find<C: Placed>(name: &str, targets: Targets) -> Result<C> {
    let cluster = Cluster::here();
    let caches = C::caches(&cluster);
    if let Some(known) = caches.known(name) {
        return Ok(known);
    }
    let before = caches.forgotten.get();
    let found = match core_id() == ASKING_CORE {
        true => access::<C>(name, targets).await?,
        false => {
            let asked: Box<str> = name.into();
            let asking = move || async move { access::<C>(&asked, targets).await };
            submit_to(ASKING_CORE, Queue::Foreground, asking).await?
        }
    };
    if found.is_fresh && caches.forgotten.get() == before {
        caches.keep(name, found.value.clone());
    }
    Ok(found.value)
}

/// Marks a namespace, or the part of a shard, as stale. Other cores keep what they have until a
/// shard refuses it, and then find here what was read meanwhile.
pub(super) async fn mark<C: Placed>(name: &str, staleness: Staleness<C::Version>) {
    C::caches(&Cluster::here()).forget(name);
    let name: Box<str> = name.into();
    submit_to(ASKING_CORE, Queue::Foreground, move || async move {
        let cluster = Cluster::here();
        let caches = C::caches(&cluster);
        caches.forget(&name);
        caches.step(&name, Input::Stale(staleness), None);
    })
    .await;
}

/// Has all cores forget the namespaces whose names are meant: nothing of them is built on.
pub(super) async fn flush<C: Placed>(is_meant: impl Fn(&str) -> bool + Clone + Send + 'static) {
    let meant = is_meant.clone();
    submit_to(ASKING_CORE, Queue::Foreground, move || async move {
        let cluster = Cluster::here();
        let caches = C::caches(&cluster);
        let machines = caches.machines.borrow();
        let names: Vec<Box<str>> = machines
            .keys()
            .filter(|name| meant(name))
            .cloned()
            .collect();
        drop(machines);
        for name in names {
            caches.step(&name, Input::Stale(Staleness::dropped()), None);
        }
    })
    .await;
    on_all_cores(move |_| {
        let is_meant = is_meant.clone();
        async move { C::caches(&Cluster::here()).forget_where(is_meant) }
    })
    .await;
}
