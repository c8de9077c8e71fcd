//! The world: clock, nodes, events, network and trace of one simulation.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use super::control::SimStats;
use super::core::SimCore;
use super::disk::Disk;
use super::events::{Event, EventKey, EventQueue};
use super::executor::Executor;
use super::life::{CoreState, Death, Life, Main, Node, Trigger};
use super::network::Network;
use super::options::SimOptions;
use super::trace::{Step, Trace};
use crate::context::{self, Backend, CoreContext, StreamSeed};
use crate::core::CoreId;
use crate::limits::MAX_CORES;
use crate::random::{Rng, derive_seed};
use crate::task::Queue;

/// Virtual time at the start: not zero, so that subtracting a little from it is safe as it is on a
/// machine.
const START_NS: u64 = 1_000_000_000_000;
/// Events that the report of a failure names.
const RECENT_EVENTS: usize = 24;
/// Wall time at the start: 2025-01-01.
const START_WALL_US: i64 = 1_735_689_600_000_000;

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) options: SimOptions,
    now: Cell<u64>,
    trace: Trace,
    pub(super) schedule_rng: RefCell<Rng>,
    pub(super) network_rng: RefCell<Rng>,
    events: RefCell<EventQueue>,
    pub(super) executor: Executor,
    nodes: RefCell<Vec<Rc<Node>>>,
    pub(super) network: RefCell<Network>,
    /// Lives whose end was decided in their own poll.
    deaths: RefCell<Vec<(Rc<Life>, Death)>>,
    polling: RefCell<Option<Rc<CoreState>>>,
    pub(super) stats: RefCell<SimStats>,
    /// The last events and deaths, for the report of a failure.
    recent: RefCell<VecDeque<(u64, Rc<Node>, &'static str)>>,
}

/// Prints where a simulation was when something in it panicked.
struct ReportOnPanic<'a>(&'a World);

impl Drop for ReportOnPanic<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let world = self.0;
        let place = match world
            .polling
            .try_borrow()
            .ok()
            .and_then(|core| core.clone())
        {
            Some(core) => format!("node {} core {}", core.node().name, core.id),
            None => "the simulator itself".to_owned(),
        };
        let micros = (world.now() - START_NS) / 1000;
        eprintln!(
            "simulation failed: seed {}, {micros} us after the start, step {}, in {place}",
            world.seed,
            world.steps()
        );
        if let Ok(recent) = world.recent.try_borrow() {
            for (at, node, name) in &*recent {
                eprintln!("  {:>12} us  {}: {name}", (at - START_NS) / 1000, node.name);
            }
        }
        // Destructors that run while the panic unwinds find no core.
        context::enter(None);
    }
}

impl World {
    pub(super) fn new(seed: u64, options: SimOptions) -> Rc<World> {
        let stream = |name| RefCell::new(Rng::from_seed(derive_seed(&[seed], name)));
        Rc::new(World {
            seed,
            now: Cell::new(START_NS),
            trace: Trace::new(seed, options.print_trace),
            schedule_rng: stream("schedule"),
            network_rng: stream("network"),
            events: RefCell::default(),
            executor: Executor::default(),
            nodes: RefCell::default(),
            network: RefCell::default(),
            deaths: RefCell::default(),
            polling: RefCell::default(),
            stats: RefCell::default(),
            recent: RefCell::default(),
            options,
        })
    }

    pub(super) fn now(&self) -> u64 {
        self.now.get()
    }

    pub(super) fn wall_us(&self) -> i64 {
        START_WALL_US
            + i64::try_from((self.now() - START_NS) / 1000)
                .expect("a simulation does not last that long")
    }

    pub(super) fn since_start_ns(&self) -> u64 {
        self.now() - START_NS
    }

    pub(super) fn advance(&self, ns: u64) {
        self.now.set(self.now.get() + ns);
    }

    pub(super) fn trace(&self, step: Step, a: u64, b: u64) {
        self.trace.add(self.now(), step, a, b);
    }

    pub(super) fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    pub(super) fn steps(&self) -> u64 {
        self.trace.steps()
    }

    pub(super) fn set_polling(&self, core: Option<&Rc<CoreState>>) {
        *self.polling.borrow_mut() = core.map(Rc::clone);
    }

    // Events.

    pub(super) fn schedule(&self, at: u64, event: Event) -> EventKey {
        self.events.borrow_mut().schedule(at.max(self.now()), event)
    }

    pub(super) fn schedule_call(&self, at: u64, call: impl FnOnce(&Rc<World>) + 'static) {
        self.schedule(at, Event::Call(Box::new(call)));
    }

    pub(super) fn cancel(&self, key: EventKey) {
        // Dropped outside of the borrow: a waker may own the last reference to a task.
        let event = self.events.borrow_mut().cancel(key);
        drop(event);
    }

    /// Keeps the waker of a timer; false when the timer has fired.
    pub(super) fn set_timer_waker(&self, key: EventKey, waker: &Waker) -> bool {
        match self.events.borrow_mut().get_mut(key) {
            Some(Event::Wake(existing)) => {
                existing.clone_from(waker);
                true
            }
            _ => false,
        }
    }

    /// Does one thing: a due event, else a poll, else the next event. False when there is nothing
    /// left to do.
    pub(super) fn step(self: &Rc<World>) -> bool {
        let report = ReportOnPanic(self);
        let next = self.events.borrow().next_at();
        let progressed = if next.is_some_and(|at| at <= self.now()) || !self.executor.run_one(self)
        {
            self.fire_next()
        } else {
            true
        };
        self.settle_deaths();
        drop(report);
        progressed
    }

    fn fire_next(self: &Rc<World>) -> bool {
        let popped = self.events.borrow_mut().pop();
        let Some(((at, number), event)) = popped else {
            return false;
        };
        self.now.set(self.now().max(at));
        match event {
            Event::Wake(waker) => {
                self.trace(Step::Timer, at, number);
                waker.wake();
            }
            Event::Call(call) => call(self),
        }
        true
    }

    // Nodes and lives.

    pub(super) fn add_node(self: &Rc<World>, name: &str, main: Main) -> Rc<Node> {
        let mut nodes = self.nodes.borrow_mut();
        assert!(
            nodes.iter().all(|node| node.name != name),
            "there is a node {name} already"
        );
        let mut rng = Rng::from_seed(derive_seed(&[self.seed, nodes.len() as u64], "node"));
        let skew = i64::try_from(self.options.wall_skew.as_micros())
            .expect("a skew of years is not simulated");
        let node = Rc::new(Node {
            index: nodes.len(),
            name: name.to_owned(),
            disk: RefCell::new(Disk::new(self.options.disk_bytes)),
            disk_rng: RefCell::new(Rng::from_seed(derive_seed(
                &[self.seed, nodes.len() as u64],
                "disk",
            ))),
            wall_offset_us: Cell::new(if skew == 0 {
                0
            } else {
                rng.below(2 * skew as u64) as i64 - skew
            }),
            life: RefCell::new(None),
            main: RefCell::new(main),
            starts: Cell::new(0),
            last_death: Cell::new(None),
            marks: RefCell::default(),
            triggers: RefCell::default(),
        });
        nodes.push(Rc::clone(&node));
        node
    }

    pub(super) fn node(&self, index: usize) -> Rc<Node> {
        Rc::clone(&self.nodes.borrow()[index])
    }

    pub(super) fn nodes(&self) -> Vec<Rc<Node>> {
        self.nodes.borrow().clone()
    }

    pub(super) fn start_life(self: &Rc<World>, node: &Rc<Node>, cores: usize) {
        assert!((1..=MAX_CORES).contains(&cores));
        assert!(node.life().is_none(), "node {} runs already", node.name);
        self.trace(Step::Start, node.index as u64, cores as u64);
        self.remember(node, "(start)");
        let start = node.starts.get();
        node.starts.set(start + 1);
        let life = Life::new(self, node, cores);
        let states: Vec<Rc<CoreState>> = (0..cores)
            .map(|core| {
                let seed = derive_seed(&[self.seed, node.index as u64, start, core as u64], "mesh");
                CoreState::new(
                    &life,
                    CoreId(core as u16),
                    cores,
                    self.now(),
                    Rng::from_seed(seed),
                )
            })
            .collect();
        life.cores.borrow_mut().clone_from(&states);
        *node.life.borrow_mut() = Some(Rc::clone(&life));
        for state in &states {
            let seed = derive_seed(&[self.seed, start, u64::from(state.id.0)], &node.name);
            let backend = Backend::Sim(SimCore::new(Rc::clone(state)));
            state.set_context(Some(CoreContext::new(
                state.id,
                cores,
                backend,
                StreamSeed::Fixed(seed),
            )));
        }
        let main = Rc::clone(&node.main.borrow());
        for state in states {
            let (main, life) = (Rc::clone(&main), Rc::clone(&life));
            let core = state.id;
            let future = async move {
                main(core).await;
                let left = life.mains_left.get() - 1;
                life.mains_left.set(left);
                if left == 0 {
                    let world = life
                        .world
                        .upgrade()
                        .expect("a task runs only inside its simulation");
                    world.kill(&life, Death::Exit);
                }
            };
            self.executor
                .spawn(&state, Queue::Foreground, Box::pin(future));
        }
        self.network_node_started(node.index);
    }

    /// Ends a life now, or right after the poll when it is its own poll that is running.
    pub(super) fn kill(self: &Rc<World>, life: &Rc<Life>, death: Death) {
        if !life.is_alive() || !life.begin_dying() {
            return;
        }
        let own_poll = self
            .polling
            .borrow()
            .as_ref()
            .is_some_and(|core| Rc::ptr_eq(core.life(), life));
        if own_poll {
            self.deaths.borrow_mut().push((Rc::clone(life), death));
        } else {
            self.end_life(life, death);
        }
    }

    fn settle_deaths(self: &Rc<World>) {
        if self.deaths.borrow().is_empty() {
            return;
        }
        let deaths = std::mem::take(&mut *self.deaths.borrow_mut());
        for (life, death) in deaths {
            self.end_life(&life, death);
        }
    }

    fn end_life(self: &Rc<World>, life: &Rc<Life>, death: Death) {
        let node = &life.node;
        self.trace(Step::Death, node.index as u64, death as u64);
        self.remember(
            node,
            match death {
                Death::PowerCut => "(power cut)",
                Death::Kill => "(killed)",
                Death::Exit => "(exit)",
            },
        );
        life.set_dead();
        *node.life.borrow_mut() = None;
        node.last_death.set(Some(death));
        self.crash_disk(node, death);
        self.network_node_died(node.index, death);
        self.drop_tasks(life);
    }

    /// Drops everything a life holds, each core's in that core's context.
    fn drop_tasks(self: &Rc<World>, life: &Rc<Life>) {
        let cores = std::mem::take(&mut *life.cores.borrow_mut());
        for core in &cores {
            core.context()
                .expect("a life's cores have contexts until it ends")
                .ended
                .set(true);
        }
        for core in &cores {
            let context = core
                .context()
                .expect("a life's cores have contexts until it ends");
            let previous = context::enter(Some(Rc::clone(&context)));
            drop(self.executor.take_tasks_of(core));
            while let Some(local) = context.locals.pop() {
                drop(local);
            }
            context::enter(previous);
        }
        for core in &cores {
            let context = core.set_context(None);
            drop(context);
        }
    }

    fn remember(&self, node: &Rc<Node>, name: &'static str) {
        let mut recent = self.recent.borrow_mut();
        if recent.len() == RECENT_EVENTS {
            recent.pop_front();
        }
        recent.push_back((self.now(), Rc::clone(node), name));
    }

    /// Counts a named event and ends the node's life there if that was asked for.
    pub(super) fn mark(self: &Rc<World>, life: &Rc<Life>, name: &'static str) {
        if !life.has_effect() {
            return;
        }
        let node = &life.node;
        self.trace(Step::Mark, node.index as u64, derive_seed(&[], name));
        *node.marks.borrow_mut().entry(name).or_insert(0) += 1;
        self.remember(node, name);
        let mut triggers = node.triggers.borrow_mut();
        let mut fired = None;
        triggers.retain_mut(|trigger: &mut Trigger| {
            if trigger.event != name || fired.is_some() {
                return true;
            }
            trigger.remaining -= 1;
            if trigger.remaining == 0 {
                fired = Some((trigger.after_ns, trigger.death));
            }
            trigger.remaining > 0
        });
        drop(triggers);
        match fired {
            None => {}
            Some((0, death)) => self.kill_at(life, name, death),
            Some((after_ns, death)) => {
                let life = Rc::clone(life);
                self.schedule_call(self.now() + after_ns, move |world| {
                    world.kill_at(&life, name, death);
                });
            }
        }
    }

    /// The crash that was asked for at this event.
    fn kill_at(self: &Rc<World>, life: &Rc<Life>, event: &'static str, death: Death) {
        if life.has_effect() {
            *self
                .stats
                .borrow_mut()
                .crashes_by_event
                .entry(event)
                .or_insert(0) += 1;
            self.kill(life, death);
        }
    }

    /// Adds to a figure of a node.
    pub(super) fn count(&self, life: &Rc<Life>, name: &'static str, number: u64) {
        if life.has_effect() {
            *life.node.marks.borrow_mut().entry(name).or_insert(0) += number;
        }
    }

    /// Ends every life and forgets every event, so that nothing keeps the world alive.
    pub(super) fn tear_down(self: &Rc<World>) {
        for node in self.nodes() {
            if let Some(life) = node.life() {
                life.begin_dying();
                life.set_dead();
                *node.life.borrow_mut() = None;
                self.drop_tasks(&life);
            }
        }
        self.recent.borrow_mut().clear();
        let events = self.events.borrow_mut().take_all();
        drop(events);
        let nodes = std::mem::take(&mut *self.nodes.borrow_mut());
        drop(nodes);
    }
}
