//! What the layers below and above the registry report to each other: a hook of the dispatcher, and
//! the counters of the connection layer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_bson::DocBuilder;

use super::context::{ClientInfo, OpContext};
use crate::error::ErrorCode;
use crate::limits::DEFAULT_SLOW_MS;
use crate::message::Compressor;

/// What a node puts behind every reply, whatever the command; one for each core, set with
/// `Registry::set_epilogue`.
pub trait ReplyEpilogue {
    /// Appends it; all other fields are there.
    ///
    /// `ctx` is that of the command. There is none where the command is not known or its arguments
    /// are wrong, and of a read that repeated another. `failure` is the code of the command's
    /// error, or that of its write concern.
    fn append(&self, ctx: Option<&OpContext>, failure: Option<ErrorCode>, reply: &mut DocBuilder);
}

/// Bytes that one compressor took and gave.
#[derive(Debug, Default)]
pub struct CompressorCounters {
    pub compressed_in: Cell<u64>,
    pub compressed_out: Cell<u64>,
    pub decompressed_in: Cell<u64>,
    pub decompressed_out: Cell<u64>,
}

/// What the connection layer counts on one core. It is a core-local value of the runtime, so that
/// `serverStatus` reads it without knowing the connection layer.
#[derive(Debug)]
pub struct ServerCounters {
    /// Connections open on this core, and all ever opened.
    pub current: Cell<u64>,
    pub total_created: Cell<u64>,
    /// Connections whose command is running.
    pub active: Cell<u64>,
    /// Connections refused because there were too many (counted on the accepting core).
    pub rejected: Cell<u64>,
    /// The most connections the node takes.
    pub max_connections: Cell<u64>,
    /// Message bytes before compression, and messages.
    pub bytes_in: Cell<u64>,
    pub bytes_out: Cell<u64>,
    pub requests: Cell<u64>,
    /// Exhaust streams that are open, by the command that streams.
    pub exhaust_hello: Cell<u64>,
    pub exhaust_is_master: Cell<u64>,
    /// What each compressor made of messages.
    pub compression: [CompressorCounters; Compressor::OFFERED.len()],
    /// Messages that could not be read.
    pub malformed: Cell<u64>,
    /// Handlers that panicked.
    pub panics: Cell<u64>,
    /// Not a count: commands that took at least so long are logged ("Slow query"). It may be
    /// changed at any time.
    pub slow_ms: Cell<u64>,
    /// Not a count either: leaves the lines about single connections out of the log.
    pub quiet: Cell<bool>,
    clients: RefCell<BTreeMap<i32, Arc<ClientInfo>>>,
}

impl Default for ServerCounters {
    fn default() -> ServerCounters {
        ServerCounters::new()
    }
}

impl ServerCounters {
    pub fn new() -> ServerCounters {
        let zero = || Cell::new(0);
        ServerCounters {
            current: zero(),
            total_created: zero(),
            active: zero(),
            rejected: zero(),
            max_connections: zero(),
            bytes_in: zero(),
            bytes_out: zero(),
            requests: zero(),
            exhaust_hello: zero(),
            exhaust_is_master: zero(),
            compression: Default::default(),
            malformed: zero(),
            panics: zero(),
            slow_ms: Cell::new(DEFAULT_SLOW_MS),
            quiet: Cell::new(false),
            clients: RefCell::default(),
        }
    }

    /// Adds to a counter.
    pub fn add(counter: &Cell<u64>, n: u64) {
        counter.set(counter.get() + n);
    }

    /// Takes one off a gauge.
    pub fn less(gauge: &Cell<u64>) {
        gauge.set(
            gauge
                .get()
                .checked_sub(1)
                .expect("a gauge goes down as often as up"),
        );
    }

    /// Counts a message that was compressed, from `from` bytes to `to` bytes.
    pub fn compressed(&self, compressor: Compressor, from: usize, to: usize) {
        if let Some(counters) = self.of(compressor) {
            ServerCounters::add(&counters.compressed_in, from as u64);
            ServerCounters::add(&counters.compressed_out, to as u64);
        }
    }

    /// Counts a message that was decompressed, from `from` bytes to `to` bytes.
    pub fn decompressed(&self, compressor: Compressor, from: usize, to: usize) {
        if let Some(counters) = self.of(compressor) {
            ServerCounters::add(&counters.decompressed_in, from as u64);
            ServerCounters::add(&counters.decompressed_out, to as u64);
        }
    }

    fn of(&self, compressor: Compressor) -> Option<&CompressorCounters> {
        let mut offered = Compressor::OFFERED.iter();
        let place = offered.position(|offered| *offered == compressor)?;
        self.compression.get(place)
    }

    pub fn opened(&self, client: Arc<ClientInfo>) {
        ServerCounters::add(&self.current, 1);
        ServerCounters::add(&self.total_created, 1);
        self.clients
            .borrow_mut()
            .insert(client.connection_id, client);
    }

    pub fn closed(&self, client: &ClientInfo) {
        ServerCounters::less(&self.current);
        self.clients.borrow_mut().remove(&client.connection_id);
    }

    /// The clients connected to this core, by connection id.
    pub fn clients(&self) -> Vec<Arc<ClientInfo>> {
        self.clients.borrow().values().cloned().collect()
    }
}
