//! Commands that repeat: what was read of one is kept for those that differ from it in one value
//! alone.
//!
//! Applications send the same few commands over and over. Reading one costs more than running it
//! where it asks for one document by its key, so a handler may leave a [`Repeatable`] with its
//! reply. The connection keeps it, as [`Prepared`], and runs the next command through it if that
//! fits.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use pinion_bson::RawBsonRef;

use super::context::OpContext;
use super::registry::{Command, HandlerFuture, Invocation};
use crate::message::{Message, Pattern, Reply};

/// A command that was read and may be run again, with another value.
///
/// It was permitted and succeeded before. What may have changed since (the catalog, gates,
/// sessions) it looks at each time.
pub trait Repeat: Debug {
    /// Runs the command, if it can be answered at once, here or by one call to another core.
    ///
    /// `started_ns` is of the runtime's monotonic clock.
    fn run_now(&self, value: RawBsonRef<'_>, started_ns: u64) -> Attempt;

    /// Runs the command, whatever that takes, as the handler would.
    fn run(&self, value: RawBsonRef<'_>, invocation: Invocation) -> HandlerFuture;
}

/// What came of running a command at once.
pub enum Attempt {
    Ran(Ran),
    /// Another core was asked. It answers at once, so no client need see or stop the operation
    /// meanwhile.
    Asked(Pin<Box<dyn Future<Output = Option<Ran>>>>),
    /// It would have to wait, or it fails: nothing was done and nothing counted, and
    /// [`Repeat::run`] is to be called. That is also what the other core may answer.
    Not,
}

/// A command that was run at once.
#[derive(Debug)]
pub struct Ran {
    pub reply: Reply,
    /// When it ended, in nanoseconds of the runtime's monotonic clock.
    pub ended_ns: u64,
}

/// What a handler leaves of a command.
#[derive(Debug)]
pub struct Repeatable {
    pub pattern: Pattern,
    pub repeat: Box<dyn Repeat>,
}

/// The command that a connection can run again.
pub struct Prepared {
    repeatable: Box<Repeatable>,
    pub command: Rc<Command>,
    ctx: OpContext,
}

impl Prepared {
    /// Keeps a command that was run with this context.
    pub fn new(repeatable: Box<Repeatable>, command: Rc<Command>, ctx: OpContext) -> Prepared {
        Prepared {
            repeatable,
            command,
            ctx,
        }
    }

    /// Runs the command of this message, header included, if it fits and can be answered at once.
    pub fn run_now(&self, bytes: &[u8], started_ns: u64) -> Attempt {
        match self.repeatable.pattern.value_in(bytes) {
            Some(value) => self.repeatable.repeat.run_now(value, started_ns),
            None => Attempt::Not,
        }
    }

    /// The message, if it fits: it need not be checked.
    pub fn message(&self, bytes: &Bytes) -> Option<Message> {
        let pattern = &self.repeatable.pattern;
        pattern
            .value_in(bytes)
            .is_some()
            .then(|| pattern.message(bytes.clone()))
    }

    /// Runs the command of a message that fits.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn run(&self, invocation: Invocation) -> HandlerFuture {
        let message = invocation.message.clone();
        let Repeatable { pattern, repeat } = &*self.repeatable;
        let value = pattern.value_in(message.bytes());
        repeat.run(value.expect("the caller asked before"), invocation)
    }

    /// The context of the command's next run.
    pub fn context(&mut self, op_id: i32, now_ns: u64) -> OpContext {
        self.ctx.renew(op_id, now_ns);
        self.ctx.clone()
    }
}
