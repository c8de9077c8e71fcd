//! Nodes and their lives: a life is what runs between a start and the crash or end that follows.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::rc::{Rc, Weak};

use super::disk::Disk;
use super::world::World;
use crate::context::CoreContext;
use crate::core::CoreId;
use crate::process::RuntimeStats;
use crate::random::Rng;

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The machine loses power: of what was not synced, any part may be lost.
    PowerCut,
    /// The process is killed: whatever it had handed to the operating system survives.
    Kill,
    /// Its main functions returned.
    Exit,
}

pub(super) type Main = Rc<dyn Fn(CoreId) -> Pin<Box<dyn Future<Output = ()>>>>;

/// A machine: its disk and address outlive its lives.
pub(super) struct Node {
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) disk: RefCell<Disk>,
    pub(super) disk_rng: RefCell<Rng>,
    pub(super) wall_offset_us: Cell<i64>,
    pub(super) life: RefCell<Option<Rc<Life>>>,
    pub(super) main: RefCell<Main>,
    pub(super) starts: Cell<u64>,
    pub(super) last_death: Cell<Option<Death>>,
    /// How often each named event occurred, over all lives.
    pub(super) marks: RefCell<BTreeMap<&'static str, u64>>,
    pub(super) triggers: RefCell<Vec<Trigger>>,
}

/// Ends the node's life at the n-th occurrence of an event from now, or a while after it.
pub(super) struct Trigger {
    pub(super) event: String,
    pub(super) remaining: u64,
    pub(super) after_ns: u64,
    pub(super) death: Death,
}

impl Node {
    pub(super) fn ip(&self) -> IpAddr {
        let number = u32::try_from(self.index + 1).expect("few nodes");
        IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | number))
    }

    pub(super) fn life(&self) -> Option<Rc<Life>> {
        self.life.borrow().clone()
    }
}

/// One run of a node.
pub(super) struct Life {
    pub(super) world: Weak<World>,
    pub(super) node: Rc<Node>,
    pub(super) cores: RefCell<Vec<Rc<CoreState>>>,
    pub(super) mains_left: Cell<usize>,
    alive: Cell<bool>,
    /// The end is decided, and whatever the running poll still does has no effect outside of it.
    dying: Cell<bool>,
}

impl Life {
    pub(super) fn new(world: &Rc<World>, node: &Rc<Node>, cores: usize) -> Rc<Life> {
        Rc::new(Life {
            world: Rc::downgrade(world),
            node: Rc::clone(node),
            cores: RefCell::new(Vec::new()),
            mains_left: Cell::new(cores),
            alive: Cell::new(true),
            dying: Cell::new(false),
        })
    }

    pub(super) fn is_alive(&self) -> bool {
        self.alive.get()
    }

    /// True while what this life does has an effect on the world.
    pub(super) fn has_effect(&self) -> bool {
        self.alive.get() && !self.dying.get()
    }

    /// True when the end was not decided before.
    pub(super) fn begin_dying(&self) -> bool {
        !self.dying.replace(true)
    }

    pub(super) fn set_dead(&self) {
        self.alive.set(false);
    }
}

/// One core of a life.
pub(super) struct CoreState {
    pub(super) id: CoreId,
    life: Rc<Life>,
    context: RefCell<Option<Rc<CoreContext>>>,
    /// Ready tasks, foreground and background.
    pub(super) ready: RefCell<[Vec<usize>; 2]>,
    pub(super) runnable: Cell<bool>,
    pub(super) paused: Cell<bool>,
    /// How often the running poll may still ask `should_yield` and hear no.
    pub(super) slice: Cell<u64>,
    /// See [`crate::foreground_idles`].
    pub(super) foreground_idles: Cell<u64>,
    /// See [`crate::set_background_shares`].
    pub(super) background_shares: Cell<usize>,
    pub(super) busy_ns: Cell<u64>,
    pub(super) started_ns: u64,
    pub(super) mesh_rng: RefCell<Rng>,
    pub(super) stats: RefCell<RuntimeStats>,
    /// For each other core: messages under way, arrival of the last, and whether one was refused.
    links: Vec<MeshLink>,
}

#[derive(Default)]
pub(super) struct MeshLink {
    pub(super) under_way: Cell<usize>,
    pub(super) last_arrival: Cell<u64>,
    pub(super) refused: Cell<bool>,
}

impl CoreState {
    pub(super) fn new(
        life: &Rc<Life>,
        id: CoreId,
        count: usize,
        started_ns: u64,
        mesh_rng: Rng,
    ) -> Rc<CoreState> {
        Rc::new(CoreState {
            id,
            life: Rc::clone(life),
            context: RefCell::new(None),
            ready: RefCell::new([Vec::new(), Vec::new()]),
            runnable: Cell::new(false),
            paused: Cell::new(false),
            slice: Cell::new(0),
            foreground_idles: Cell::new(0),
            background_shares: Cell::new(crate::BACKGROUND_SHARES),
            busy_ns: Cell::new(0),
            started_ns,
            mesh_rng: RefCell::new(mesh_rng),
            stats: RefCell::new(RuntimeStats::default()),
            links: (0..count).map(|_| MeshLink::default()).collect(),
        })
    }

    pub(super) fn life(&self) -> &Rc<Life> {
        &self.life
    }

    pub(super) fn node(&self) -> &Rc<Node> {
        &self.life.node
    }

    pub(super) fn world(&self) -> Rc<World> {
        self.life
            .world
            .upgrade()
            .expect("a core does not outlive its simulation")
    }

    pub(super) fn context(&self) -> Option<Rc<CoreContext>> {
        self.context.borrow().clone()
    }

    pub(super) fn set_context(&self, context: Option<Rc<CoreContext>>) -> Option<Rc<CoreContext>> {
        self.context.replace(context)
    }

    pub(super) fn link(&self, to: CoreId) -> &MeshLink {
        &self.links[usize::from(to.0)]
    }

    pub(super) fn trace_id(&self) -> u64 {
        (self.life.node.index as u64) << 32 | u64::from(self.id.0)
    }
}
