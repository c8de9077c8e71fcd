//! A core's ends of the rings to and from the other cores.

use std::cell::{Cell, RefCell};

use super::limits::MESH_BATCH;
use super::shared::Node;
use crate::CoreId;
use crate::limits::MESH_RING_SLOTS;
use crate::mesh::{self, MeshMessage, ring};

/// The rings between this core and each other one; absent for the core itself.
pub(super) struct Ports {
    outgoing: Vec<Option<RefCell<ring::Sender<MeshMessage>>>>,
    incoming: Vec<Option<RefCell<ring::Receiver<MeshMessage>>>>,
    /// Whether the ring to core i refused a message since it last had room.
    blocked: Vec<Cell<bool>>,
    blocked_count: Cell<usize>,
    sent: Cell<u64>,
}

impl Ports {
    /// The ports of all `count` cores.
    pub fn all(count: usize) -> Vec<Ports> {
        let mut ports: Vec<Ports> = (0..count)
            .map(|_| Ports {
                outgoing: (0..count).map(|_| None).collect(),
                incoming: (0..count).map(|_| None).collect(),
                blocked: (0..count).map(|_| Cell::new(false)).collect(),
                blocked_count: Cell::new(0),
                sent: Cell::new(0),
            })
            .collect();
        for from in 0..count {
            for to in (0..count).filter(|&to| to != from) {
                let (sender, receiver) = ring::channel(MESH_RING_SLOTS);
                ports[from].outgoing[to] = Some(RefCell::new(sender));
                ports[to].incoming[from] = Some(RefCell::new(receiver));
            }
        }
        ports
    }

    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Sends a message, waking the other core if it sleeps; gives it back when the ring is full.
    pub fn try_push(
        &self,
        node: &Node,
        to: CoreId,
        message: MeshMessage,
    ) -> Result<(), MeshMessage> {
        let index = usize::from(to.0);
        let sender = self.outgoing[index]
            .as_ref()
            .expect("a core sends no parcels to itself");
        let mut sender = sender.borrow_mut();
        let mut refused = message;
        loop {
            match sender.try_send(refused) {
                Ok(()) => {
                    self.sent.set(self.sent.get() + 1);
                    node.cores[index].ring_bell();
                    return Ok(());
                }
                Err(message) => refused = message,
            }
            if !sender.want_space() {
                if !self.blocked[index].replace(true) {
                    self.blocked_count.set(self.blocked_count.get() + 1);
                }
                return Err(refused);
            }
        }
    }

    /// Delivers messages that have come, and notifies the mesh of rings that have room again.
    pub fn receive(&self, node: &Node) {
        for (from, incoming) in self.incoming.iter().enumerate() {
            let Some(incoming) = incoming else { continue };
            if incoming.borrow().is_empty() {
                continue;
            }
            for _ in 0..MESH_BATCH {
                let Some(message) = incoming.borrow_mut().try_recv() else {
                    break;
                };
                mesh::deliver(CoreId(from as u16), message);
            }
            if incoming.borrow_mut().take_space_wanted() {
                node.cores[from].ring_bell();
            }
        }
        if self.blocked_count.get() > 0 {
            for (to, blocked) in self.blocked.iter().enumerate() {
                if blocked.replace(false) {
                    self.blocked_count.set(self.blocked_count.get() - 1);
                    mesh::space_available(CoreId(to as u16));
                }
            }
        }
    }

    /// Whether messages have come.
    pub fn has_mail(&self) -> bool {
        self.incoming
            .iter()
            .flatten()
            .any(|incoming| !incoming.borrow().is_empty())
    }

    /// Whether every ring that refused a message is still full, so that its receiver will ring when
    /// it is not.
    pub fn nothing_blocked_has_space(&self) -> bool {
        self.blocked_count.get() == 0
            || self
                .blocked
                .iter()
                .zip(&self.outgoing)
                .all(|(blocked, outgoing)| {
                    !blocked.get()
                        || outgoing
                            .as_ref()
                            .is_none_or(|sender| !sender.borrow_mut().want_space())
                })
    }
}
