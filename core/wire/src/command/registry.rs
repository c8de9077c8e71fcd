//! The command registry: each subsystem attaches the handlers of its commands, the dispatcher looks
//! them up.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use pinion_bson::RawDocument;
use rustc_hash::FxHashMap;

use super::context::OpContext;
use super::observer::ReplyEpilogue;
use super::spec::{CommandSpec, ReadConcernSupport};
use crate::error::{Error, ErrorCode, Result};
use crate::idl::{CommandReader, Path, ReadConcernLevel, missing_field, unknown_field};
use crate::message::{Documents, Message, MessageKind, Reply};

pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Reply>>>>;
pub type Handler = Rc<dyn Fn(Invocation) -> HandlerFuture>;

/// A command that has a handler, with this core's counters.
pub struct Command {
    pub spec: &'static CommandSpec,
    handler: Handler,
    total: Cell<u64>,
    failed: Cell<u64>,
}

impl Command {
    /// How often the command was run on this core, failures included.
    pub fn total(&self) -> u64 {
        self.total.get()
    }

    pub fn failed(&self) -> u64 {
        self.failed.get()
    }

    pub fn count_start(&self) {
        self.total.set(self.total.get() + 1);
    }

    pub fn count_failure(&self) {
        self.failed.set(self.failed.get() + 1);
    }

    /// Runs the handler.
    pub fn invoke(&self, invocation: Invocation) -> HandlerFuture {
        (self.handler)(invocation)
    }
}

/// The commands of one core. Every core has the same.
#[derive(Default)]
pub struct Registry {
    commands: Vec<Rc<Command>>,
    by_name: FxHashMap<&'static str, usize>,
    unknown: Cell<u64>,
    epilogue: Option<Rc<dyn ReplyEpilogue>>,
}

impl Registry {
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Attaches its handler to a command.
    ///
    /// # Panics
    /// If its name or an alias is taken.
    pub fn attach<F, Fut>(&mut self, spec: &'static CommandSpec, handler: F)
    where
        F: Fn(Invocation) -> Fut + 'static,
        Fut: Future<Output = Result<Reply>> + 'static,
    {
        self.attach_handler(
            spec,
            Rc::new(move |invocation| Box::pin(handler(invocation))),
        );
    }

    /// Attaches a handler that gives futures of one type, as [`Registry::attach`] does.
    ///
    /// # Panics
    /// If its name or an alias is taken.
    pub fn attach_handler(&mut self, spec: &'static CommandSpec, handler: Handler) {
        let at = self.commands.len();
        for name in std::iter::once(&spec.name).chain(spec.aliases) {
            let before = self.by_name.insert(name, at);
            assert!(before.is_none(), "the command {name} has two handlers");
        }
        self.commands.push(Rc::new(Command {
            spec,
            handler,
            total: Cell::new(0),
            failed: Cell::new(0),
        }));
    }

    /// Sets what stands behind every reply.
    pub fn set_epilogue(&mut self, epilogue: Rc<dyn ReplyEpilogue>) {
        self.epilogue = Some(epilogue);
    }

    /// What stands behind every reply.
    pub fn epilogue(&self) -> Option<&dyn ReplyEpilogue> {
        self.epilogue.as_deref()
    }

    pub fn lookup(&self, name: &str) -> Option<&Rc<Command>> {
        self.by_name.get(name).map(|at| &self.commands[*at])
    }

    /// The command with this name; CommandNotFound (59) otherwise, which is counted.
    pub fn find(&self, name: &str) -> Result<&Rc<Command>> {
        self.lookup(name).ok_or_else(|| {
            self.unknown.set(self.unknown.get() + 1);
            Error::new(
                ErrorCode::COMMAND_NOT_FOUND,
                format!("no such command: '{name}'"),
            )
        })
    }

    /// The commands in the order in which their handlers were attached.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Command> {
        self.commands.iter().map(|command| &**command)
    }

    /// How often a name was asked for that is no command (`metrics.commands.<UNKNOWN>`).
    pub fn unknown(&self) -> u64 {
        self.unknown.get()
    }
}

/// What a handler is given.
#[derive(Clone)]
pub struct Invocation {
    pub message: Message,
    pub ctx: OpContext,
    pub command: Rc<Command>,
    /// The client accepts an exhaust stream: the reply may name the next invocation's body.
    pub exhaust_allowed: bool,
}

impl Invocation {
    /// The command's name in its main spelling.
    pub fn name(&self) -> &'static str {
        self.command.spec.name
    }

    pub fn body(&self) -> &RawDocument {
        self.message.body()
    }

    pub fn db(&self) -> &str {
        &self.ctx.db
    }

    /// A strict reader of the body; errors name the command as the client spelled it.
    pub fn reader(&self) -> Result<CommandReader<'_>> {
        CommandReader::new(self.message.command_name(), self.body())
    }

    /// The documents of a required argument, from the body or from a document sequence.
    pub fn documents(&self, name: &str) -> Result<Documents> {
        self.message
            .documents(name)?
            .ok_or_else(|| missing_field(Path::root(self.message.command_name()).field(name)))
    }
}

/// The rules that hold before any handler runs: where a command may be run, and what it may be
/// given.
pub fn check_permitted(spec: &CommandSpec, message: &Message, ctx: &OpContext) -> Result<()> {
    if !crate::idl::is_valid_database_name(&ctx.db) {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid database name specified '{}'", ctx.db),
        ));
    }
    let name = spec.name;
    if spec.admin_only && &*ctx.db != "admin" {
        return Err(Error::new(
            ErrorCode::UNAUTHORIZED,
            format!("{name} may only be run against the admin database."),
        ));
    }
    for sequence in message.sequence_names() {
        if !spec.sequences.contains(&sequence) {
            return Err(unknown_field(Path::root(name).field(sequence)));
        }
    }
    if ctx.args.write_concern.is_some() && !spec.supports_write_concern {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "Command does not support writeConcern",
        ));
    }
    // The first statement of a transaction says the read concern of all, whatever it does itself.
    let is_of_transaction = ctx.args.autocommit == Some(false);
    if let Some(level) = ctx.args.read_concern.and_then(|concern| concern.level)
        && !is_of_transaction
    {
        let supported = match spec.read_concern {
            ReadConcernSupport::Local => level == ReadConcernLevel::Local,
            ReadConcernSupport::NoSnapshot => level != ReadConcernLevel::Snapshot,
            ReadConcernSupport::All => true,
        };
        if !supported {
            return Err(Error::new(
                ErrorCode::INVALID_OPTIONS,
                format!(
                    "Command {name} does not support {{ readConcern: {{ level: \"{}\", provenance: \
                     \"clientSupplied\" }} }} :: caused by :: read concern not supported",
                    level.name()
                ),
            ));
        }
    }
    if ctx.args.api.strict && !spec.in_api_v1 && message.kind() == MessageKind::OpMsg {
        return Err(Error::new(
            ErrorCode::API_STRICT_ERROR,
            format!(
                "Provided apiStrict:true, but the command {name} is not in API Version 1. Information on \
                 supported commands and migrations in API Version 1 can be found at \
                 https://dochub.mongodb.org/core/manual-versioned-api"
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
