//! What is true of a command, whatever runs it. Each command has one such row, and whatever treats
//! commands differently asks the row, not the name.

/// What a command is, for statistics of latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandClass {
    Read,
    Write,
    Command,
}

/// What surrounds every command and treats this one apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandRole {
    /// Nothing does.
    Plain,
    /// `hello`: it describes its client, waits for changes because the client asked it to, and may
    /// be answered by a stream.
    Hello,
    /// `isMaster`: the same, in its old form.
    IsMaster,
    /// Its `pipeline` has stages with rules of their own, and one of them may list what runs.
    Pipeline,
    /// Continues a cursor, which has the deadline and the read concern of the command.
    GetMore,
    /// Ends what others run: it is not ended itself with the session that it is sent in.
    Kill,
    /// Sets fail points, which never act on it: nothing could be set back.
    FailPoint,
}

/// Where a command names what it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandNamespace {
    /// The first field is the name of a collection; it may be a UUID, or a number for none.
    FirstField,
    /// The field `collection` is the name of a collection.
    CollectionField,
    /// The first field is a database and a collection, with a dot between them.
    FullName,
    /// Its arguments name collections, of other databases too.
    InBody,
    /// It is on the database that it is sent to, or on what its arguments name there.
    Database,
    /// It is on the node, the set, a session or a connection.
    None,
}

impl CommandNamespace {
    /// Whether the command may be on collections of other databases than that which it is sent to.
    pub fn names_databases(self) -> bool {
        matches!(self, CommandNamespace::FullName | CommandNamespace::InBody)
    }
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

/// What a command is in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InTransaction {
    /// Refused.
    Never,
    /// Refused with a hint at what transactions have instead.
    Alternative,
    /// A statement on a namespace of the database that it is sent to.
    Statement,
    /// A statement that is sent to `admin` and names its namespaces in its arguments.
    AdminStatement,
    /// Continues a cursor of the transaction.
    Cursor,
    /// Closes cursors of the transaction, which it cannot start.
    CloseCursor,
    Commit,
    Abort,
    Prepare,
}

impl InTransaction {
    /// Whether the transaction takes no statements after the command.
    pub fn ends(self) -> bool {
        matches!(self, Self::Commit | Self::Abort | Self::Prepare)
    }

    /// Whether the command is about the transaction's cursors.
    pub fn is_of_cursors(self) -> bool {
        matches!(self, Self::Cursor | Self::CloseCursor)
    }

    /// Whether the command is sent to the database `admin`, whatever the transaction is on.
    pub fn is_of_admin(self) -> bool {
        self.ends() || self == Self::AdminStatement
    }
}

/// Which command `explain` explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExplainedCommand {
    Aggregate,
    Count,
    Delete,
    Distinct,
    Find,
    FindAndModify,
    Update,
}

/// What an operation is in the words of `currentOp`, `top` and the profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogicalOp {
    Query,
    GetMore,
    Insert,
    Update,
    Remove,
    Command,
}

impl LogicalOp {
    /// Its name in `currentOp` and in entries of the profiler.
    pub fn name(self) -> &'static str {
        match self {
            LogicalOp::Query => "query",
            LogicalOp::GetMore => "getmore",
            LogicalOp::Insert => "insert",
            LogicalOp::Update => "update",
            LogicalOp::Remove => "remove",
            LogicalOp::Command => "command",
        }
    }
}

/// Which privileges a command asks for. Authorization declares them for each command; until then
/// nothing reads this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandPrivileges {
    Undeclared,
}

/// Where a router sends a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandRouting {
    /// The router has a handler of its own, which answers or knows where to send what.
    Router,
    /// To the primary shard of its database; where there is no such database the answer is that
    /// of a node without it.
    PrimaryShard,
    /// The same, but a database that is not there is made.
    MakesDatabase,
    /// To the primary of the config servers.
    ConfigServer,
    /// To the primary of every shard. The replies stand beside each other, by shard.
    EveryShard,
    /// Of nodes alone: a router has no such command.
    Node,
}

/// The row of a command. A row has an answer to each question: nothing is so by default.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    pub name: &'static str,
    /// Other spellings.
    pub aliases: &'static [&'static str],
    pub help: &'static str,
    pub class: CommandClass,
    pub role: CommandRole,
    pub namespace: CommandNamespace,
    /// May be run on the admin database alone.
    pub admin_only: bool,
    /// Part of Stable API version 1, so allowed with `apiStrict`.
    pub in_api_v1: bool,
    /// Its arguments that may come as document sequences.
    pub sequences: &'static [&'static str],
    pub read_concern: ReadConcernSupport,
    /// Takes `writeConcern`; for others it is refused.
    pub supports_write_concern: bool,
    pub on_secondary: AllowedOnSecondary,
    pub in_transaction: InTransaction,
    /// May have a transaction number outside of transactions: it is executed once, however often
    /// it is sent.
    pub is_retryable: bool,
    /// How it is explained; `None` if it cannot be.
    pub explain: Option<ExplainedCommand>,
    pub op: LogicalOp,
    /// What it counts as in `top`; `None` if it does not count there.
    pub top: Option<LogicalOp>,
    /// Counts as a command in `opcounters`. The handlers of others count what they do.
    pub counts_as_command: bool,
    /// A connection may begin with it, before its client has authenticated: a cluster time that
    /// cannot be verified does not keep the client from it.
    pub before_login: bool,
    /// Runs while the data directory is closed to be opened again, since it does not touch what is
    /// stored.
    pub during_reopen: bool,
    /// Sent by other members of the set only, which have to authenticate where the set has a key.
    pub for_members: bool,
    pub privileges: CommandPrivileges,
    pub routing: CommandRouting,
}

impl CommandSpec {
    /// What contexts of the node's own work have in the place of a command. No client can send it.
    pub const fn of_task(name: &'static str) -> CommandSpec {
        CommandSpec {
            name,
            aliases: &[],
            help: "",
            class: CommandClass::Command,
            role: CommandRole::Plain,
            namespace: CommandNamespace::None,
            admin_only: false,
            in_api_v1: false,
            sequences: &[],
            read_concern: ReadConcernSupport::Local,
            supports_write_concern: false,
            on_secondary: AllowedOnSecondary::Always,
            in_transaction: InTransaction::Never,
            is_retryable: false,
            explain: None,
            op: LogicalOp::Command,
            top: None,
            counts_as_command: true,
            before_login: false,
            during_reopen: false,
            for_members: false,
            privileges: CommandPrivileges::Undeclared,
            routing: CommandRouting::Node,
        }
    }

    pub fn is_write(&self) -> bool {
        self.class == CommandClass::Write
    }

    /// Whether this is a name of the command.
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}
