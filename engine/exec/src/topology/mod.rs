//! The seam to the replica set: what a member reports to the executor of its place in the set, and
//! what the executor asks of the driver of that member.
//!
//! The driver registers itself on each core with [`set_replica_set`]; a standalone has
//! none, and nothing here changes what it does. What the node may do now is read off one immutable
//! [`SetView`], which the driver replaces whole. Source: replication document, "Replica Set Member
//! States" and "Read Concern"; the messages are MongoDB's.

mod commit_quorum;
mod figures;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::RawDocumentBuf;
use pinion_catalog::is_replicated;
use pinion_clock::{OpTime, Timestamp};
use pinion_runtime::{Duration, Instant, LocalBoxFuture};
use pinion_service::connections::HostConnections;
use pinion_wire::idl::{GenericArguments, Namespace, ReadPreferenceMode, WriteConcern};
use pinion_wire::{
    AllowedOnSecondary, CommandClass, CommandSpec, Error, ErrorCode, Invocation, MemberState,
    OpContext, Reply, Result,
};

pub use self::commit_quorum::CommitQuorum;
pub use self::figures::{Buffered, Elections, MemberFigures, Rounds, Transition};

/// What a member knows of its set at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct SetView {
    /// The name in the configuration; before there is one, that which the node was started with.
    pub set_name: String,
    pub state: MemberState,
    /// It accepts clients' writes. A primary that still catches up or steps down does not.
    pub writable: bool,
    pub term: i64,
    /// 0 while there is no configuration.
    pub config_version: i64,
    /// -1 where the configuration has none.
    pub config_term: i64,
    /// `topologyVersion.counter`: higher with each change of what `hello` reports.
    pub counter: i64,
    /// What `hello` reports of the set, in this order and each where it applies: `hosts`,
    /// `passives`, `arbiters`, `setName`, `setVersion`, `secondary`, `primary`, `arbiterOnly`,
    /// `passive`, `hidden`, `secondaryDelaySecs`, `tags`, `me`, `electionId`. `hello` itself adds
    /// whether the node is writable, in front of `secondary`. Empty while there is no
    /// configuration.
    pub hello: RawDocumentBuf,
    /// The modes that a write concern may name, `majority` not among them.
    pub modes: Vec<String>,
    /// Members that bear data: the most that `w` can ask for.
    pub data_members: u32,
    /// Members that vote, and how many of them that bear data make a majority.
    pub voters: u32,
    pub write_majority: u32,
    /// Whether commands that name no write concern wait for a majority (`{w: 1}` where arbiters
    /// could leave that unsatisfied).
    pub default_is_majority: bool,
    /// `writeConcernMajorityJournalDefault`.
    pub journal_default: bool,
    /// When the process ends at the latest, in milliseconds of [`pinion_runtime::now`]: clients are
    /// sent to other members.
    pub quiesces_until_ms: Option<u64>,
}

impl SetView {
    pub fn has_config(&self) -> bool {
        self.config_version > 0
    }
}

/// The last write that a member has applied, and the last one that a majority has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastWrite {
    pub op_time: OpTime,
    /// Milliseconds since 1970, as the primary's clock was when it wrote.
    pub wall_ms: i64,
    pub majority_op_time: OpTime,
    pub majority_wall_ms: i64,
}

/// Something that is waited for. It borrows nothing, so the caller may give up at any time.
pub type Waiting<T> = LocalBoxFuture<'static, T>;

/// What drives this node as a member of a replica set, as one core sees it.
pub trait ReplicaSet {
    /// What is known now. Within a poll it does not change.
    fn view(&self) -> Arc<SetView>;

    /// Completes when the counter of the view is above this one.
    fn wait_changed(&self, counter: i64) -> Waiting<()>;

    fn last_write(&self) -> LastWrite;

    /// The last entry that a majority holds and that this member has applied; null while none is
    /// known.
    fn commit_point(&self) -> OpTime;

    /// Waits until the commit point is at or above `ts`.
    ///
    /// # Errors
    /// The node stops, or its history has parted from the set's at or below `ts`.
    fn wait_committed(&self, ts: Timestamp) -> Waiting<Result<()>>;

    /// Completes when the commit point is above `ts`.
    fn wait_commit_beyond(&self, ts: Timestamp) -> Waiting<()>;

    /// Waits until members hold what was written up to `ts`, as the concern asks; on this one too
    /// it is journaled where that is asked. The concern is complete: its `w` is not absent.
    ///
    /// # Errors
    /// `UnknownReplWriteConcern` for a mode that the configuration lacks,
    /// `UnsatisfiableWriteConcern`, `WriteConcernTimeout` when the deadline passes,
    /// `PrimarySteppedDown` and the like when the node is no primary any more.
    fn wait_write_concern(
        &self,
        ts: Timestamp,
        concern: &WriteConcern,
        deadline: Option<Instant>,
    ) -> Waiting<Result<()>>;

    /// Appends what another member asks of every reply: `$replData`, `$oplogQueryData`.
    fn append_metadata(&self, args: &GenericArguments, out: &mut Reply);

    /// Whether the members that are ready, by their names in the configuration, are those that a
    /// build of indexes waits for. Called on core 0.
    fn is_commit_quorum_met(&self, quorum: &CommitQuorum, ready: &[String]) -> bool;

    /// Runs a command on the primary, which names its database, and gives the reply. Called on core
    /// 0 of a node that is not the primary itself.
    ///
    /// # Errors
    /// The primary's; `NotWritablePrimary` where none is known, and `HostUnreachable` and the like
    /// where it does not answer.
    fn run_on_primary(&self, command: RawDocumentBuf) -> Waiting<Result<RawDocumentBuf>>;

    /// What the driver counts.
    fn figures(&self) -> Waiting<MemberFigures> {
        Box::pin(async { MemberFigures::default() })
    }

    /// The connections of this node to other members, by core and host.
    fn connections(&self) -> Waiting<Vec<HostConnections>> {
        Box::pin(async { Vec::new() })
    }

    /// `replSetGetStatus`.
    ///
    /// # Errors
    /// The node has no configuration, or one that does not name it.
    fn status(&self) -> Waiting<Result<RawDocumentBuf>> {
        Box::pin(async {
            Err(Error::new(
                ErrorCode::NOT_YET_INITIALIZED,
                "no replset config has been received",
            ))
        })
    }

    /// How often this member rolled back, and once more.
    fn rollback_id(&self) -> Waiting<i32> {
        Box::pin(async { 1 })
    }

    /// Has a primary step down since its process is to end, and waits for another member to catch
    /// up, for so long at most. Without `force` it fails if none does. Nothing happens on a node
    /// that is no primary, or the only member.
    ///
    /// # Errors
    /// `ExceededTimeLimit`: the node stays primary.
    fn leave(&self, limit: Duration, force: bool) -> Waiting<Result<()>>;

    /// Logs an entry that changes nothing and says why, and returns its timestamp.
    ///
    /// # Errors
    /// `NotWritablePrimary` on a node that is none.
    fn write_noop(&self, why: &'static str) -> Waiting<Result<Timestamp>>;
}

/// The set that a node is a member of, as one core knows it; a standalone has none.
#[derive(Default)]
pub struct Membership(RefCell<Option<Rc<dyn ReplicaSet>>>);

/// Makes this core part of a member. Called on each core before it serves clients.
///
/// # Panics
/// If the core is one already.
pub fn set_replica_set(set: Rc<dyn ReplicaSet>) {
    let membership = pinion_runtime::core_local::<Membership>();
    let before = membership.0.replace(Some(set));
    assert!(before.is_none(), "a node is a member of one set");
}

/// The set that this node is, or is to be, a member of; none before the node is open.
pub fn replica_set() -> Option<Rc<dyn ReplicaSet>> {
    let membership = pinion_runtime::try_core_local::<Membership>()?;
    membership.0.borrow().clone()
}

/// Whether the node was started as a member of a replica set.
pub fn is_member() -> bool {
    replica_set().is_some()
}

/// Whether clients may write what is replicated.
pub fn is_writable() -> bool {
    set_view().is_none_or(|view| view.writable)
}

/// What the node knows of its set; `None` on a standalone.
pub fn set_view() -> Option<Arc<SetView>> {
    replica_set().map(|set| set.view())
}

/// `$$CLUSTER_TIME` of an operation that begins now; none where there is no cluster.
pub fn cluster_time() -> Option<pinion_bson::Timestamp> {
    let time = is_member().then(|| pinion_storage::storage().cluster_time())?;
    Some(pinion_bson::Timestamp {
        time: time.secs(),
        increment: time.inc(),
    })
}

/// The database that each member writes for itself.
pub(crate) const LOCAL: &str = "local";

/// Refuses a command that a node in this state does not run: the rule for all commands, whether
/// they come through the door or not.
///
/// # Errors
/// Those of the NotPrimary family.
pub(crate) fn check_runs_here(cmd: &Invocation) -> Result<()> {
    let (spec, ctx) = (cmd.command.spec, &cmd.ctx);
    match set_view() {
        Some(view) if &*ctx.db != LOCAL && !ctx.client.is_internal() => {
            check_command(spec, ctx, &view)
        }
        _ => Ok(()),
    }
}

fn check_command(spec: &CommandSpec, ctx: &OpContext, view: &SetView) -> Result<()> {
    if view.writable {
        return Ok(());
    }
    let in_transaction = ctx.args.autocommit == Some(false);
    match spec.on_secondary {
        _ if in_transaction => return Err(not_primary()),
        AllowedOnSecondary::Always => {}
        AllowedOnSecondary::OptIn if allows_secondary(ctx) => {}
        AllowedOnSecondary::OptIn => {
            return Err(Error::new(
                ErrorCode::NOT_PRIMARY_NO_SECONDARY_OK,
                "not primary and secondaryOk=false",
            ));
        }
        AllowedOnSecondary::Never => return Err(not_primary()),
    }
    // What looks after the node itself runs in every state.
    let reads = spec.class == CommandClass::Read || spec.on_secondary == AllowedOnSecondary::OptIn;
    let message = match view.state {
        state if !reads || state.is_readable() => return Ok(()),
        MemberState::Recovering => "node is recovering",
        _ => "node is not in primary or recovering state",
    };
    Err(Error::new(ErrorCode::NOT_PRIMARY_OR_SECONDARY, message))
}

/// Whether the command may be answered by another member than the primary.
fn allows_secondary(ctx: &OpContext) -> bool {
    let preference = ctx.args.read_preference.as_ref();
    preference.is_some_and(|preference| preference.mode != ReadPreferenceMode::Primary)
}

/// Refuses a command that members send to one another where no other member can have sent it. All
/// such commands are checked here.
///
/// # Errors
/// `NoReplicationEnabled` on a standalone.
pub fn check_from_member(cmd: &Invocation) -> Result<()> {
    match set_view() {
        Some(view) if view.has_config() => Ok(()),
        _ => Err(Error::new(
            ErrorCode::NO_REPLICATION_ENABLED,
            format!(
                "{} is a command of members of a replica set, and this node is none",
                cmd.name()
            ),
        )),
    }
}

/// What an access does with documents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    Read,
    Write,
}

/// Refuses an access that a node in this state does not give: the state may have changed since the
/// command began.
///
/// A write of the node's own is refused as a client's is: this member's data would diverge from the
/// set's. Its own reads are allowed in every state.
///
/// # Errors
/// Those of the NotPrimary family.
pub(crate) fn check_access(
    view: Option<&SetView>,
    ctx: &OpContext,
    ns: &Namespace,
    intent: Intent,
) -> Result<()> {
    let Some(view) = view else {
        return Ok(());
    };
    if view.writable || !is_replicated(ns) {
        return Ok(());
    }
    match intent {
        Intent::Write => Err(not_primary()),
        Intent::Read if ctx.client.is_internal() => Ok(()),
        Intent::Read => check_command(ctx.command, ctx, view),
    }
}

/// The refusal of a write by a member that takes none.
pub fn not_primary() -> Error {
    Error::new(ErrorCode::NOT_WRITABLE_PRIMARY, "not primary")
}
