//! The command registry: each subsystem registers its commands, the dispatcher looks them up.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use pinion_bson::RawDocument;
use rustc_hash::FxHashMap;

use super::context::OpContext;
use super::observer::ReplyEpilogue;
use crate::error::{Error, ErrorCode, Result};
use crate::idl::{CommandReader, Path, ReadConcernLevel, missing_field, unknown_field};
use crate::message::{Documents, Message, MessageKind, Reply};

/// What a command is, for statistics of latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandClass {
    Read,
    Write,
    Command,
}

/// Which levels of `readConcern` a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadConcernSupport {
    /// `local`, which every command has anyway.
    Local,
    /// All but `snapshot`.
    NoSnapshot,
    All,
}

/// Whether a member of a replica set runs a command while it accepts no clients' writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedOnSecondary {
    Always,
    /// Where the read preference of the command allows another member than the primary.
    OptIn,
    Never,
}

/// What the dispatcher and listCommands know of a command.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub help: &'static str,
    pub class: CommandClass,
    /// May be run on the admin database alone.
    pub admin_only: bool,
    /// Takes `writeConcern`; for others it is refused.
    pub supports_write_concern: bool,
    pub read_concern: ReadConcernSupport,
    pub on_secondary: AllowedOnSecondary,
    /// Part of Stable API version 1, so allowed with `apiStrict`.
    pub in_api_v1: bool,
    /// Its arguments that may come as document sequences.
    pub sequences: &'static [&'static str],
    /// Sent by other members of the set only, which have to authenticate where the set has a key.
    pub for_members: bool,
}

impl CommandSpec {
    /// A command of the general class without special rights.
    pub const fn new(name: &'static str) -> CommandSpec {
        CommandSpec {
            name,
            aliases: &[],
            help: "",
            class: CommandClass::Command,
            admin_only: false,
            supports_write_concern: false,
            read_concern: ReadConcernSupport::Local,
            on_secondary: AllowedOnSecondary::Always,
            in_api_v1: false,
            sequences: &[],
            for_members: false,
        }
    }

    #[must_use]
    pub const fn aliases(mut self, aliases: &'static [&'static str]) -> CommandSpec {
        self.aliases = aliases;
        self
    }

    #[must_use]
    pub const fn help(mut self, help: &'static str) -> CommandSpec {
        self.help = help;
        self
    }

    /// A read; it takes every read concern, and a secondary answers it to clients that ask for
    /// that.
    #[must_use]
    pub const fn read(mut self) -> CommandSpec {
        self.class = CommandClass::Read;
        self.read_concern = ReadConcernSupport::All;
        self.on_secondary = AllowedOnSecondary::OptIn;
        self
    }

    /// A read that does not accept read concern snapshot (count).
    #[must_use]
    pub const fn no_snapshot(mut self) -> CommandSpec {
        self.read_concern = ReadConcernSupport::NoSnapshot;
        self
    }

    /// A write; it takes a write concern, and primaries alone run it.
    #[must_use]
    pub const fn write(mut self) -> CommandSpec {
        self.class = CommandClass::Write;
        self.supports_write_concern = true;
        self.on_secondary = AllowedOnSecondary::Never;
        self
    }

    /// Takes a write concern, so it writes, and primaries alone run it:
    /// [`CommandSpec::on_secondary`] behind it says otherwise.
    #[must_use]
    pub const fn write_concern(mut self) -> CommandSpec {
        self.supports_write_concern = true;
        self.on_secondary = AllowedOnSecondary::Never;
        self
    }

    #[must_use]
    pub const fn on_secondary(mut self, allowed: AllowedOnSecondary) -> CommandSpec {
        self.on_secondary = allowed;
        self
    }

    #[must_use]
    pub const fn admin_only(mut self) -> CommandSpec {
        self.admin_only = true;
        self
    }

    #[must_use]
    pub const fn api_v1(mut self) -> CommandSpec {
        self.in_api_v1 = true;
        self
    }

    #[must_use]
    pub const fn sequences(mut self, names: &'static [&'static str]) -> CommandSpec {
        self.sequences = names;
        self
    }

    #[must_use]
    pub const fn for_members(mut self) -> CommandSpec {
        self.for_members = true;
        self
    }

    pub fn is_write(&self) -> bool {
        self.class == CommandClass::Write
    }
}

pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<Reply>>>>;
pub type Handler = Rc<dyn Fn(Invocation) -> HandlerFuture>;

/// A registered command with this core's counters.
pub struct Command {
    pub spec: CommandSpec,
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

/// The commands of one core. Every core registers the same.
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

    /// Registers a command.
    ///
    /// # Panics
    /// If its name or an alias is taken.
    pub fn register<F, Fut>(&mut self, spec: CommandSpec, handler: F)
    where
        F: Fn(Invocation) -> Fut + 'static,
        Fut: Future<Output = Result<Reply>> + 'static,
    {
        self.register_handler(
            spec,
            Rc::new(move |invocation| Box::pin(handler(invocation))),
        );
    }

    /// Adds a command whose handler gives futures of one type, as [`Registry::register`] does.
    ///
    /// # Panics
    /// If its name or an alias is taken.
    pub fn register_handler(&mut self, spec: CommandSpec, handler: Handler) {
        let at = self.commands.len();
        for name in std::iter::once(&spec.name).chain(spec.aliases) {
            let before = self.by_name.insert(name, at);
            assert!(before.is_none(), "the command {name} is registered twice");
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

    /// The commands in the order of their registration.
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
