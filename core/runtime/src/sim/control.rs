//! The control of a simulation: what a test holds in its hand.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::time::Duration;

use super::disk::DiskOp;
use super::life::{Death, Life, Node, Trigger};
use super::options::{DiskFaults, LinkFaults, SimOptions};
use super::trace::Step;
use super::world::World;
use crate::context::{self, Backend};
use crate::core::CoreId;
use crate::limits::ALIGN;
use crate::random::{Rng, derive_seed};
use crate::time::Instant;

/// A node of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// What a simulation did to its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimStats {
    pub power_cuts: u64,
    pub kills: u64,
    pub exits: u64,
    /// Crashes that [`SimHandle::crash_at`] asked for, by the event at which they fell.
    pub crashes_by_event: BTreeMap<&'static str, u64>,
    /// Blocks that were not flushed when the power was cut: those that kept the durable content,
    /// one of the later ones, and a mixture of several.
    pub lost_blocks: u64,
    pub kept_blocks: u64,
    pub torn_blocks: u64,
    /// Changes of names that were not synced and got lost.
    pub lost_names: u64,
    pub disk_errors: u64,
    pub bit_flips: u64,
    pub segments_lost: u64,
    pub connections_reset: u64,
}

/// Why a run ended before its condition was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// No task is ready and no event is to come.
    Idle,
    /// The limit of virtual time is reached.
    TimeLimit,
}

/// A simulation. Dropping it ends all its nodes.
pub struct Sim {
    world: Rc<World>,
    handle: SimHandle,
}

/// Observes and disturbs a simulation, from the test or from a task in it. It does not keep the
/// simulation alive.
#[derive(Clone)]
pub struct SimHandle {
    world: Weak<World>,
}

impl Deref for Sim {
    type Target = SimHandle;

    fn deref(&self) -> &SimHandle {
        &self.handle
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The destructors of tasks would most likely panic again and hide what went wrong:
            // leave them be.
            std::mem::forget(Rc::clone(&self.world));
        } else {
            self.world.tear_down();
        }
    }
}

impl Sim {
    pub fn new(seed: u64, options: SimOptions) -> Sim {
        let world = World::new(seed, options);
        let handle = SimHandle {
            world: Rc::downgrade(&world),
        };
        Sim { world, handle }
    }

    /// A handle that tasks can take with them.
    pub fn handle(&self) -> SimHandle {
        self.handle.clone()
    }

    /// Runs until `done`, which is asked after every step.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) -> Result<(), Stuck> {
        let limit = u64::try_from(self.world.options.time_limit.as_nanos()).unwrap_or(u64::MAX);
        while !done() {
            if !self.world.step() {
                return Err(Stuck::Idle);
            }
            if self.world.since_start_ns() > limit {
                return Err(Stuck::TimeLimit);
            }
        }
        Ok(())
    }

    /// Runs for this much virtual time.
    pub fn run_for(&self, duration: Duration) {
        let end = self.world.now()
            + u64::try_from(duration.as_nanos()).expect("a run is shorter than centuries");
        // An event at the end makes the clock reach it when nothing else happens.
        self.world.schedule_call(end, |_| {});
        while self.world.now() < end && self.world.step() {}
    }

    /// Runs until nothing is left to do.
    pub fn run_until_idle(&self) -> Result<(), Stuck> {
        match self.run_until(|| false) {
            Err(Stuck::Idle) => Ok(()),
            result => result,
        }
    }

    /// Runs until the node is down.
    pub fn run_until_down(&self, node: NodeId) -> Result<(), Stuck> {
        let node = self.world.node(node.0);
        self.run_until(|| node.life().is_none())
    }
}

impl SimHandle {
    fn world(&self) -> Rc<World> {
        self.world.upgrade().expect("the simulation is over")
    }

    /// True once the simulation was dropped; every other function of this handle panics then.
    pub fn is_over(&self) -> bool {
        self.world.strong_count() == 0
    }

    fn node(&self, node: NodeId) -> Rc<Node> {
        self.world().node(node.0)
    }

    fn life(&self, node: NodeId) -> Option<Rc<Life>> {
        self.node(node).life()
    }

    // Nodes.

    /// Adds a node and starts it: `main` runs on each of its cores. When all have returned, the
    /// node exits.
    pub fn add_node<F, Fut>(&self, name: &str, cores: usize, main: F) -> NodeId
    where
        F: Fn(CoreId) -> Fut + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let world = self.world();
        let node = world.add_node(name, Rc::new(move |core| Box::pin(main(core))));
        world.start_life(&node, cores);
        NodeId(node.index)
    }

    /// Ends a node's life at once, or at the end of the poll when one of its own tasks calls this:
    /// whatever that poll still does has no effect. Nothing happens when the node is down.
    pub fn crash(&self, node: NodeId, death: Death) {
        if let Some(life) = self.life(node) {
            self.world().kill(&life, death);
        }
    }

    /// Ends the node's life when it passes the event `event` for the `nth` time from now.
    ///
    /// # Panics
    /// When `nth` is zero.
    pub fn crash_at(&self, node: NodeId, event: &str, nth: u64, death: Death) {
        self.crash_after(node, event, nth, Duration::ZERO, death);
    }

    /// Ends the node's life this long after it passes the event `event` for the `nth` time from
    /// now: inside of what the event begins. It counts as a crash at the event.
    ///
    /// # Panics
    /// When `nth` is zero.
    pub fn crash_after(&self, node: NodeId, event: &str, nth: u64, after: Duration, death: Death) {
        assert!(nth > 0, "occurrences are counted from one");
        let trigger = Trigger {
            event: event.to_owned(),
            remaining: nth,
            after_ns: u64::try_from(after.as_nanos()).expect("a run is shorter than centuries"),
            death,
        };
        self.node(node).triggers.borrow_mut().push(trigger);
    }

    /// Forgets the crashes that were asked for and have not happened.
    pub fn cancel_crashes(&self, node: NodeId) {
        self.node(node).triggers.borrow_mut().clear();
    }

    /// Starts a node that is down, with this many cores. Its disk is as its last life left it.
    ///
    /// # Panics
    /// When the node runs.
    pub fn restart(&self, node: NodeId, cores: usize) {
        self.world().start_life(&self.node(node), cores);
    }

    /// Empties the disk of a node that is down: it is replaced by a new one.
    ///
    /// # Panics
    /// If the node is running.
    pub fn wipe_disk(&self, node: NodeId) {
        assert!(
            !self.is_running(node),
            "only a node that is down gets a new disk"
        );
        self.node(node).disk.borrow_mut().wipe();
    }

    /// Gives a node another main function, for its next start.
    pub fn set_main<F, Fut>(&self, node: NodeId, main: F)
    where
        F: Fn(CoreId) -> Fut + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        *self.node(node).main.borrow_mut() = Rc::new(move |core| Box::pin(main(core)));
    }

    /// Asks a node to shut down, as SIGTERM does.
    pub fn terminate(&self, node: NodeId) {
        if let Some(life) = self.life(node) {
            self.world().request_shutdown(&life);
        }
    }

    pub fn is_running(&self, node: NodeId) -> bool {
        self.life(node).is_some()
    }

    /// How the node's last life ended.
    pub fn last_death(&self, node: NodeId) -> Option<Death> {
        self.node(node).last_death.get()
    }

    /// How often a node was started.
    pub fn starts(&self, node: NodeId) -> u64 {
        self.node(node).starts.get()
    }

    /// The address by which the other nodes reach it.
    pub fn node_ip(&self, node: NodeId) -> IpAddr {
        self.node(node).ip()
    }

    /// How often the node passed the event, over all its lives.
    pub fn event_count(&self, node: NodeId, event: &str) -> u64 {
        self.node(node)
            .marks
            .borrow()
            .get(event)
            .copied()
            .unwrap_or(0)
    }

    /// All events that the node passed, and the figures it counted.
    pub fn event_counts(&self, node: NodeId) -> BTreeMap<&'static str, u64> {
        self.node(node).marks.borrow().clone()
    }

    /// Steps a node's wall clock.
    pub fn shift_wall_clock(&self, node: NodeId, micros: i64) {
        let node = self.node(node);
        node.wall_offset_us.set(node.wall_offset_us.get() + micros);
    }

    // Time, randomness and trace.

    pub fn seed(&self) -> u64 {
        self.world().seed
    }

    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.world().now())
    }

    /// A random stream for the test itself, from the simulation's seed.
    pub fn random_stream(&self, name: &str) -> Rng {
        Rng::from_seed(derive_seed(&[self.world().seed], name))
    }

    /// The hash over everything that happened: equal for equal seeds, in every process.
    pub fn trace_hash(&self) -> u64 {
        self.world().trace_hash()
    }

    /// How many things have happened.
    pub fn steps(&self) -> u64 {
        self.world().steps()
    }

    pub fn stats(&self) -> SimStats {
        self.world().stats.borrow().clone()
    }

    /// Connections that exist on either end, of all nodes.
    pub fn connection_count(&self) -> usize {
        self.world().network.borrow().connection_count()
    }

    // Network faults.

    /// Sets the faults of one direction between two nodes, in place of what they were.
    pub fn set_link(&self, from: NodeId, to: NodeId, faults: LinkFaults) {
        self.world().set_link(from.0, to.0, faults);
    }

    /// Sets the faults of both directions.
    pub fn set_links(&self, a: NodeId, b: NodeId, faults: LinkFaults) {
        self.set_link(a, b, faults.clone());
        self.set_link(b, a, faults);
    }

    /// Cuts one direction; the other faults of the link stay.
    pub fn cut(&self, from: NodeId, to: NodeId) {
        let faults = self.world().link_faults(from.0, to.0);
        self.set_link(
            from,
            to,
            LinkFaults {
                cut: true,
                ..faults
            },
        );
    }

    /// Joins what was cut in one direction.
    pub fn join(&self, from: NodeId, to: NodeId) {
        let faults = self.world().link_faults(from.0, to.0);
        self.set_link(
            from,
            to,
            LinkFaults {
                cut: false,
                ..faults
            },
        );
    }

    /// Cuts both directions between each of `left` and each of `right`.
    pub fn partition(&self, left: &[NodeId], right: &[NodeId]) {
        for a in left {
            for b in right {
                self.cut(*a, *b);
                self.cut(*b, *a);
            }
        }
    }

    /// Holds everything in one direction back for this long.
    pub fn clog(&self, from: NodeId, to: NodeId, duration: Duration) {
        let world = self.world();
        let nanos = u64::try_from(duration.as_nanos()).expect("a run is shorter than centuries");
        world.clog(from.0, to.0, world.now() + nanos);
    }

    /// Takes all faults from all links.
    pub fn heal(&self) {
        let world = self.world();
        let count = world.nodes().len();
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                world.clog(from, to, 0);
                world.set_link(from, to, LinkFaults::default());
            }
        }
    }

    // Disk faults.

    /// Sets the faults of a node's disk, in place of what they were.
    pub fn set_disk_faults(&self, node: NodeId, faults: DiskFaults) {
        self.node(node).disk.borrow_mut().faults = faults;
    }

    /// Lets the `nth` operation of this kind from now, on a file whose path contains this, fail.
    pub fn fail_disk_operation(&self, node: NodeId, op: DiskOp, path_contains: &str, nth: u64) {
        self.node(node)
            .disk
            .borrow_mut()
            .plan_failure(op, path_contains, nth);
    }

    /// Sets how much a node's disk holds.
    pub fn set_disk_capacity(&self, node: NodeId, bytes: u64) {
        self.node(node).disk.borrow_mut().capacity = bytes;
    }

    /// Bytes taken on a node's disk.
    pub fn disk_used_bytes(&self, node: NodeId) -> u64 {
        self.node(node).disk.borrow().used_bytes()
    }

    /// All files on a node's disk, with their lengths.
    pub fn files(&self, node: NodeId) -> Vec<(String, u64)> {
        let node = self.node(node);
        let disk = node.disk.borrow();
        disk.files()
            .into_iter()
            .map(|(path, inode)| (path, disk.file(inode).len))
            .collect()
    }

    /// A file as the node's operating system sees it.
    pub fn read_file(&self, node: NodeId, path: &str) -> Option<Vec<u8>> {
        let node = self.node(node);
        let disk = node.disk.borrow();
        let inode = disk.lookup_file(path.as_ref()).ok()?;
        let mut content =
            vec![0; usize::try_from(disk.file(inode).len).expect("a simulated file fits memory")];
        for (chunk, offset) in content.chunks_mut(ALIGN).zip((0..).step_by(ALIGN)) {
            chunk.copy_from_slice(&disk.read(inode, offset, ALIGN)[..chunk.len()]);
        }
        Some(content)
    }

    /// Changes one bit of a file for good. False when nothing was ever written there.
    pub fn flip_bit(&self, node: NodeId, path: &str, offset: u64, bit: u8) -> bool {
        let world = self.world();
        let node = self.node(node);
        let mut disk = node.disk.borrow_mut();
        let Ok(inode) = disk.lookup_file(path.as_ref()) else {
            return false;
        };
        let flipped = disk.flip_bit(inode, offset, bit);
        if flipped {
            world.stats.borrow_mut().bit_flips += 1;
            world.trace(Step::DiskFault, inode, offset << 3 | u64::from(bit & 7));
        }
        flipped
    }

    /// Changes one bit, drawn from all blocks written in files whose path contains this; says
    /// where.
    pub fn flip_random_bit(&self, node: NodeId, path_contains: &str) -> Option<(String, u64, u8)> {
        let place = {
            let node = self.node(node);
            let disk = node.disk.borrow();
            let mut blocks = Vec::new();
            for (path, inode) in disk
                .files()
                .into_iter()
                .filter(|(path, _)| path.contains(path_contains))
            {
                blocks.extend(
                    disk.file(inode)
                        .current
                        .keys()
                        .map(|block| (path.clone(), *block)),
                );
            }
            let mut rng = node.disk_rng.borrow_mut();
            if blocks.is_empty() {
                return None;
            }
            let (path, block) = blocks.swap_remove(rng.below(blocks.len() as u64) as usize);
            (
                path,
                block * ALIGN as u64 + rng.below(ALIGN as u64),
                rng.below(8) as u8,
            )
        };
        assert!(
            self.flip_bit(node, &place.0, place.1, place.2),
            "the block was just seen"
        );
        Some(place)
    }
}

impl World {
    pub(super) fn request_shutdown(self: &Rc<World>, life: &Rc<Life>) {
        for core in life.cores.borrow().iter() {
            let delay = self.schedule_rng.borrow_mut().between(100, 50_000);
            let core = Rc::clone(core);
            self.schedule_call(self.now() + delay, move |_| {
                if core.life().is_alive()
                    && let Some(context) = core.context()
                {
                    context.shutdown.trigger();
                }
            });
        }
    }
}

/// Marks a place in the code, so that a simulation can count how often it is passed and crash the
/// node there. Costs next to nothing on the real backend.
pub fn event(name: &'static str) {
    let Some(context) = context::try_current() else {
        return;
    };
    if let Backend::Sim(core) = &context.backend {
        core.state().world().mark(core.state().life(), name);
    }
}

/// Adds to a figure that a simulation reports among the node's events; crashes are not placed at
/// it. Does nothing on the real backend.
pub fn count(name: &'static str, number: u64) {
    let Some(context) = context::try_current() else {
        return;
    };
    if let Backend::Sim(core) = &context.backend {
        core.state()
            .world()
            .count(core.state().life(), name, number);
    }
}

/// The simulated node on which the caller runs, for its log; `None` elsewhere.
pub fn node_name() -> Option<String> {
    match &context::try_current()?.backend {
        Backend::Sim(core) => Some(core.state().node().name.clone()),
        Backend::Real(_) => None,
    }
}

/// True when the caller runs in a simulation.
pub fn is_simulated() -> bool {
    context::try_current().is_some_and(|context| matches!(context.backend, Backend::Sim(_)))
}

/// Runs `future` on a node of one core and gives its output.
///
/// # Panics
/// When the future waits for something that never comes.
pub fn block_on<F>(seed: u64, future: F) -> F::Output
where
    F: Future + 'static,
    F::Output: 'static,
{
    let future = Rc::new(RefCell::new(Some(future)));
    let mut outputs = run_cores(seed, 1, move |_| {
        future.borrow_mut().take().expect("main runs once")
    });
    outputs.pop().expect("one core gives one output")
}

/// Runs `main` on each core of a node and gives the outputs in the order of the cores.
///
/// # Panics
/// When one of them waits for something that never comes.
pub fn run_cores<F, Fut>(seed: u64, cores: usize, main: F) -> Vec<Fut::Output>
where
    F: Fn(CoreId) -> Fut + 'static,
    Fut: Future + 'static,
    Fut::Output: 'static,
{
    let sim = Sim::new(seed, SimOptions::default());
    let outputs: Rc<RefCell<Vec<Option<Fut::Output>>>> =
        Rc::new(RefCell::new((0..cores).map(|_| None).collect()));
    let results = Rc::clone(&outputs);
    let node = sim.add_node("node", cores, move |core| {
        let (results, future) = (Rc::clone(&results), main(core));
        async move {
            let output = future.await;
            results.borrow_mut()[usize::from(core.0)] = Some(output);
        }
    });
    if let Err(stuck) = sim.run_until_down(node) {
        panic!("the simulation with seed {seed} did not finish: {stuck:?}");
    }
    drop(sim);
    let outputs = std::mem::take(&mut *outputs.borrow_mut());
    outputs
        .into_iter()
        .map(|output| output.expect("every main has returned"))
        .collect()
}
