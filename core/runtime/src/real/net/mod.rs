//! Sockets on the core's ring: listeners and connections, and what a loop turn does for them.

mod connection;
mod listener;
mod resolve;
mod send;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use slab::Slab;

pub(crate) use connection::RealConnection;
pub(crate) use listener::{RealIncoming, RealListener};
pub(crate) use resolve::resolve;

use connection::Socket;
use listener::Acceptor;

use super::core::RealCore;
use super::ring::Completion;

/// The sockets of a core.
pub(super) struct Net {
    /// Connections, until the kernel is done with them.
    sockets: RefCell<Slab<Rc<Socket>>>,
    acceptors: RefCell<Slab<Rc<Acceptor>>>,
    /// Connections that hold receive buffers: emptied at the end of the turn.
    holding: RefCell<Vec<Rc<Socket>>>,
    /// Connections with output to submit at the end of the turn.
    dirty: RefCell<Vec<Rc<Socket>>>,
    /// Connections whose receive ended for want of buffers: started again when the turn has given
    /// them back.
    starved: RefCell<Vec<Rc<Socket>>>,
    received_bytes: Cell<u64>,
    receives: Cell<u64>,
    sent_bytes: Cell<u64>,
    sends: Cell<u64>,
}

impl Net {
    pub fn new() -> Net {
        Net {
            sockets: RefCell::default(),
            acceptors: RefCell::default(),
            holding: RefCell::default(),
            dirty: RefCell::default(),
            starved: RefCell::default(),
            received_bytes: Cell::new(0),
            receives: Cell::new(0),
            sent_bytes: Cell::new(0),
            sends: Cell::new(0),
        }
    }

    /// Connections and listeners that the kernel still uses, or that are open.
    pub fn len(&self) -> usize {
        self.sockets.borrow().len() + self.acceptors.borrow().len()
    }

    /// Adds the network counters.
    pub fn count(&self, stats: &mut crate::RuntimeStats) {
        stats.network_in_bytes = self.received_bytes.get();
        stats.network_receives = self.receives.get();
        stats.network_out_bytes = self.sent_bytes.get();
        stats.network_sends = self.sends.get();
        stats.connections_open = self.sockets.borrow().len() as u64;
    }

    /// Takes a completion of a listener.
    pub fn accepted(&self, core: &RealCore, index: u32, completion: Completion) {
        let acceptor = self.acceptors.borrow()[index as usize].clone();
        acceptor.completed(core, completion);
    }

    /// Takes a completion of a connection's receive.
    pub fn received(&self, core: &RealCore, index: u32, completion: Completion) {
        let socket = self.sockets.borrow()[index as usize].clone();
        socket.received(core, completion);
    }

    /// Takes a completion of a connection's send.
    pub fn sent(&self, core: &RealCore, index: u32, completion: Completion) {
        let socket = self.sockets.borrow()[index as usize].clone();
        socket.sent(core, completion.result);
    }

    /// Ends a loop turn: frees all receive buffers, restarts starved receives, submits queued
    /// output.
    pub fn end_turn(&self, core: &RealCore) {
        // None of these calls adds to the list that it works on, so the lists keep their memory.
        let mut holding = self.holding.take();
        holding.drain(..).for_each(|socket| socket.spill(core));
        self.holding.replace(holding);
        core.buffers().publish();

        let mut starved = self.starved.take();
        starved.drain(..).for_each(|socket| socket.restart(core));
        self.starved.replace(starved);

        let mut dirty = self.dirty.take();
        dirty
            .drain(..)
            .for_each(|socket| socket.submit_output(core));
        self.dirty.replace(dirty);
    }

    /// Breaks all connections and stops all listeners; their entries go as the kernel releases
    /// them.
    pub fn close_all(&self, core: &RealCore) {
        let sockets: Vec<_> = self
            .sockets
            .borrow()
            .iter()
            .map(|(_, socket)| socket.clone())
            .collect();
        sockets.iter().for_each(|socket| socket.abort(core));
        let acceptors: Vec<_> = self
            .acceptors
            .borrow()
            .iter()
            .map(|(_, acceptor)| acceptor.clone())
            .collect();
        acceptors.iter().for_each(|acceptor| acceptor.stop(core));
    }
}

fn add(counter: &Cell<u64>, n: u64) {
    counter.set(counter.get() + n);
}
