//! Write concerns: which of them is a command's, and the wait that it asks for.

use std::rc::Rc;

use pinion_auth::ADMIN_DATABASE;
use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_catalog::from_fatal;
use pinion_clock::Timestamp;
use pinion_runtime::Duration;
use pinion_service::interrupt::{interruptible, is_interruption};
use pinion_service::login::forget_users;
use pinion_service::metrics::{Counters, Gauge, metrics};
use pinion_service::session_ids::is_in;
use pinion_storage::storage;
use pinion_wire::idl::{WriteConcern, WriteConcernW};
use pinion_wire::{CommandClass, Error, ErrorCode, OpContext, Reply, Result};

use super::counts::{Source, WriteKind};
use super::defaults::{self, DefaultConcerns, SETTINGS};
use crate::concern::{concern_counts, default_concerns};
use crate::limits::OUTCOME_MAJORITY_TIMEOUT_MS;
use crate::options::{PlantedFault, node_options};
use crate::parameters::parameters;
use crate::topology::{LOCAL, ReplicaSet, is_member, replica_set};

/// A write concern that was not reached. The write has taken place all the same.
#[derive(Debug)]
pub struct Failure {
    pub error: Error,
    applied: Applied,
}

/// The write concern that holds for a command, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
struct Applied {
    concern: WriteConcern,
    provenance: &'static str,
}

impl Applied {
    /// What holds for a command on a member.
    async fn of(ctx: &OpContext) -> Applied {
        let defaults = default_concerns().get().await;
        Applied::on_member(ctx.args.write_concern.as_ref(), &defaults)
    }

    /// What holds on a member: the command's own, completed by the default.
    fn on_member(given: Option<&WriteConcern>, defaults: &DefaultConcerns) -> Applied {
        let given = given.filter(|given| **given != WriteConcern::default());
        let default = defaults.write.clone();
        let (default, source) = match default {
            Some(default) => (default, "customDefault"),
            None => (defaults.implicit_write.clone(), "implicitDefault"),
        };
        let (mut concern, provenance) = match given {
            None => (default, source),
            Some(given) if given.w.is_some() => (given.clone(), "clientSupplied"),
            // Where the default is that of MongoDB before 5.0, what the command leaves open is not
            // taken for a default.
            Some(given) if source == "implicitDefault" && !is_majority(&default) => {
                (given.clone(), "clientSupplied")
            }
            Some(given) => {
                let completed = WriteConcern {
                    w: default.w,
                    journal: given.journal.or(default.journal),
                    timeout_ms: given.timeout_ms,
                };
                (completed, source)
            }
        };
        concern.w.get_or_insert(WriteConcernW::Members(1));
        Applied {
            concern,
            provenance,
        }
    }

    /// Whether the command did not name it.
    fn is_default(&self) -> bool {
        self.provenance != "clientSupplied"
    }

    /// Whether more is waited for than that the write was applied here.
    fn waits_for_others(&self) -> bool {
        !matches!(self.concern.w, Some(WriteConcernW::Members(0 | 1)) | None)
    }
}

fn is_majority(concern: &WriteConcern) -> bool {
    concern.w == Some(WriteConcernW::Majority)
}

/// Whether a command of a client may have written collections that users are stored in, as far as
/// its row and its database say that. Statements of a transaction may not, and writes of several
/// collections look at their names.
pub(crate) fn may_write_users(ctx: &OpContext) -> bool {
    let spec = ctx.command;
    let may_be_of_admin = match spec.namespace.names_databases() {
        true => spec.class != CommandClass::Write,
        false => &*ctx.db == ADMIN_DATABASE,
    };
    may_be_of_admin && spec.supports_write_concern && !spec.in_transaction.ends()
}

/// Notes that a command has written at `ts`, and has every core see what that may have changed of
/// the default concerns and of users.
pub async fn written(ctx: &OpContext, ts: Timestamp) {
    ctx.wrote(ts);
    let db = &*ctx.db;
    let may_be_settings = db == SETTINGS.0 || ctx.command.namespace.names_databases();
    if may_be_settings && is_member() {
        defaults::forget_everywhere().await;
    }
    if may_write_users(ctx) {
        forget_users().await;
    }
}

/// Waits until a write at `ts` is as safe as its write concern asks for. Where it does not become
/// so, the write has taken place all the same, and `out` says so: it gets a `writeConcernError`.
///
/// # Errors
/// When the journal cannot be written any more.
pub async fn acknowledge(ctx: &OpContext, ts: Option<Timestamp>, out: &mut Reply) -> Result<()> {
    // A statement of a transaction is as safe as the commit will be.
    if is_in(ctx) && !ctx.command.in_transaction.ends() {
        return Ok(());
    }
    if let Some(ts) = ts {
        written(ctx, ts).await;
    }
    if let Some(failure) = wait(ctx, ts).await? {
        append_failure(out, &failure);
    }
    Ok(())
}

/// A command that fails may have written before, and one that fails because of others' writes
/// discloses these: both wait as a success does, and the error says so if the wait failed.
pub(crate) async fn complete_error(ctx: &OpContext, error: Error) -> Error {
    let shows_data = matches!(
        error.code,
        ErrorCode::DUPLICATE_KEY | ErrorCode::NAMESPACE_NOT_FOUND | ErrorCode::NAMESPACE_EXISTS
    );
    let written_at = ctx.written_at();
    if written_at.is_none() && !shows_data {
        return error;
    }
    match wait(ctx, written_at).await {
        Ok(Some(failure)) => with_failure(error, &failure),
        // The error stands, whatever became of the journal.
        Ok(None) | Err(_) => error,
    }
}

/// An error that says that nothing of a transaction has taken place, or ever will. It is true once
/// a majority has the entry at `ts`, which was logged behind what this node knows of the
/// transaction: until then another member may have the commit and lead again. So that is waited for
/// whatever weaker write concern the command has. Where it fails the error gets a
/// `writeConcernError`, and with that no label `TransientTransactionError`.
pub async fn complete_outcome(ctx: &OpContext, error: Error, ts: Timestamp) -> Error {
    ctx.wrote(ts);
    if node_options().planted_fault == PlantedFault::OutcomeNotAwaited {
        return error;
    }
    let waited = match wait(ctx, Some(ts)).await {
        Ok(None) => wait_for_majority(ctx, ts).await,
        failed => failed,
    };
    match waited {
        Ok(Some(failure)) => with_failure(error, &failure),
        Ok(None) => error,
        Err(unknown) => unknown,
    }
}

fn with_failure(error: Error, failure: &Failure) -> Error {
    let mut extra = DocBuilder::new();
    if let Some(further) = &error.extra {
        extra.append_all(further);
    }
    append_failure(&mut extra, failure);
    error.with_extra(extra.finish())
}

/// Waits as [`acknowledge`] does, and gives what it would append.
///
/// # Errors
/// When the journal cannot be written any more.
pub(crate) async fn wait(ctx: &OpContext, ts: Option<Timestamp>) -> Result<Option<Failure>> {
    let given = ctx.args.write_concern.as_ref();
    let set = match ctx.client.is_internal() {
        true => None,
        false => replica_set(),
    };
    let waited = match (set, given) {
        (Some(set), _) if &*ctx.db != LOCAL => return wait_on_member(ctx, ts, &*set).await,
        (_, None) => return Ok(None),
        (_, Some(concern)) => wait_for_journal(ctx, ts, concern).await,
    };
    match waited {
        Err(error) if is_interruption(&error) => {
            let concern = given.cloned().unwrap_or_default();
            let provenance = "clientSupplied";
            let applied = Applied {
                concern,
                provenance,
            };
            Ok(Some(Failure { error, applied }))
        }
        waited => waited.map(|()| None),
    }
}

async fn wait_for_journal(
    ctx: &OpContext,
    ts: Option<Timestamp>,
    concern: &WriteConcern,
) -> Result<()> {
    let journaled =
        concern.journal == Some(true) || (is_majority(concern) && concern.journal != Some(false));
    if !journaled {
        return Ok(());
    }
    // A write that changed nothing still reports what it saw, which must not be lost afterwards.
    let ts = ts.unwrap_or_else(|| storage().last_allotted());
    let durable = async {
        match ts == Timestamp::MIN {
            // What is not replicated has no timestamp.
            true => storage().wait_unreplicated().await,
            false => storage().wait_durable(ts).await,
        }
    };
    let durable = interruptible(ctx, durable).await?;
    durable.map_err(from_fatal)
}

async fn wait_on_member(
    ctx: &OpContext,
    ts: Option<Timestamp>,
    set: &dyn ReplicaSet,
) -> Result<Option<Failure>> {
    let applied = Applied::of(ctx).await;
    reach(ctx, ts, set, applied).await
}

/// Waits until a majority has the write at `ts`, where the command's own write concern does not ask
/// for that.
async fn wait_for_majority(ctx: &OpContext, ts: Timestamp) -> Result<Option<Failure>> {
    let Some(set) = replica_set() else {
        return Ok(None);
    };
    let asked = Applied::of(ctx).await.concern;
    if is_majority(&asked) {
        return Ok(None);
    }
    let timeout_ms = match asked.timeout_ms {
        0 => OUTCOME_MAJORITY_TIMEOUT_MS,
        asked => asked,
    };
    reach(ctx, Some(ts), &*set, majority_within(timeout_ms)).await
}

/// As [`wait`] for a command that may have set the default write concern, which does not hold for
/// it: where it has none of its own, it waits for a majority.
pub async fn wait_for_setting(ctx: &OpContext, ts: Timestamp) -> Result<Option<Failure>> {
    match replica_set() {
        Some(set) if ctx.args.write_concern.is_none() => {
            let applied = majority_within(OUTCOME_MAJORITY_TIMEOUT_MS);
            reach(ctx, Some(ts), &*set, applied).await
        }
        _ => wait(ctx, Some(ts)).await,
    }
}

/// Waits until a batch of `dbCheck` that was logged at `ts` is as safe as its write concern asks
/// for, or the default one. Gives why it is not.
///
/// # Errors
/// When the journal cannot be written any more.
pub async fn wait_for_check(
    ctx: &OpContext,
    ts: Timestamp,
    given: Option<&WriteConcern>,
) -> Result<Option<Error>> {
    let Some(set) = replica_set() else {
        return Ok(None);
    };
    let defaults = default_concerns().get().await;
    let applied = Applied::on_member(given, &defaults);
    let failure = reach(ctx, Some(ts), &*set, applied).await?;
    Ok(failure.map(|failure| failure.error))
}

fn majority_within(timeout_ms: u32) -> Applied {
    Applied {
        concern: WriteConcern {
            w: Some(WriteConcernW::Majority),
            journal: None,
            timeout_ms,
        },
        provenance: "internalWriteDefault",
    }
}

async fn reach(
    ctx: &OpContext,
    ts: Option<Timestamp>,
    set: &dyn ReplicaSet,
    applied: Applied,
) -> Result<Option<Failure>> {
    // What is not replicated has no timestamp, and no other member.
    let is_replicated = ts != Some(Timestamp::MIN);
    let metrics = metrics();
    let counters = &metrics.counters;
    let waited = if applied.waits_for_others() && is_replicated {
        let ts = ts.unwrap_or_else(|| storage().last_allotted());
        let mut concern = applied.concern.clone();
        if is_majority(&concern) {
            let by_default = set.view().journal_default;
            concern.journal.get_or_insert(by_default);
        }
        let timeout = Duration::from_millis(u64::from(concern.timeout_ms));
        let deadline = (concern.timeout_ms > 0).then(|| pinion_runtime::now() + timeout);
        let reached = set.wait_write_concern(ts, &concern, deadline);
        let began = pinion_runtime::now();
        let waiting = Gauge::up(|counters| &counters.waiting_for_replication);
        let reached = interruptible(ctx, reached).await;
        drop(waiting);
        counters.concern_waits.inc();
        let us = began.elapsed().as_micros() as u64;
        counters.concern_wait_us.add(us);
        reached.and_then(|reached| reached)
    } else {
        wait_for_journal(ctx, ts, &applied.concern).await
    };
    match waited {
        Ok(()) => Ok(None),
        // Storage has failed: nothing is known of the write.
        Err(error) if error.code == ErrorCode::INTERNAL_ERROR => Err(error),
        Err(error) => {
            count_failure(counters, error.code, applied.is_default());
            Ok(Some(Failure { error, applied }))
        }
    }
}

/// Counts a write concern that was not reached.
fn count_failure(counters: &Counters, code: ErrorCode, is_default: bool) {
    match code {
        ErrorCode::WRITE_CONCERN_TIMEOUT => {
            counters.concern_timeouts.inc();
            if is_default {
                counters.default_concern_timeouts.inc();
            }
        }
        ErrorCode::UNSATISFIABLE_WRITE_CONCERN if is_default => {
            counters.default_concern_unsatisfiable.inc();
        }
        _ => {}
    }
}

/// Counts writes that are about to be made by what their command waits for, where that is shown.
pub async fn count_writes(ctx: &OpContext, kind: WriteKind, writes: u64) {
    let is_shown = parameters().borrow().shows_write_concerns;
    if !is_shown || is_in(ctx) || ctx.client.is_internal() {
        return;
    }
    let given = ctx.args.write_concern.as_ref();
    let defaults = match is_member() {
        true => default_concerns().get().await,
        false => Rc::default(),
    };
    let applied = Applied::on_member(given, &defaults);
    let source = match applied.provenance {
        "clientSupplied" => Source::Client,
        "customDefault" => Source::CustomDefault,
        _ => Source::ImplicitDefault,
    };
    let counts = concern_counts();
    counts.wrote(kind, writes, &applied.concern, source);
}

/// As `CommandHelpers::appendCommandWCStatus` of MongoDB.
#[cold]
fn append_failure(out: &mut DocBuilder, failure: &Failure) {
    let Failure { error, applied } = failure;
    out.start_document("writeConcernError")
        .append("code", error.code.0)
        .append("codeName", &*error.code_name())
        .append("errmsg", error.message.as_str());
    out.start_document("errInfo");
    if error.code == ErrorCode::WRITE_CONCERN_TIMEOUT {
        out.append("wtimeout", true);
    }
    out.start_document("writeConcern");
    append_write_concern(out, &applied.concern);
    out.append("provenance", applied.provenance);
    out.end().end().end();
}

/// Appends the fields of a write concern as MongoDB shows them.
pub fn append_write_concern(out: &mut DocBuilder, concern: &WriteConcern) {
    match &concern.w {
        Some(WriteConcernW::Members(members)) => out.append("w", i32::from(*members)),
        Some(WriteConcernW::Majority) => out.append("w", "majority"),
        Some(WriteConcernW::Mode(mode)) => out.append("w", mode.as_str()),
        Some(WriteConcernW::Tags(tags)) => {
            let tags = RawDocumentBuf::try_from(tags).expect("tags have numbers alone");
            out.append("w", &*tags)
        }
        None => out.append("w", 1),
    };
    if let Some(journal) = concern.journal {
        out.append("j", journal);
    }
    out.append("wtimeout", concern.timeout_ms as i32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn concern(w: Option<WriteConcernW>, journal: Option<bool>, timeout_ms: u32) -> WriteConcern {
        WriteConcern {
            w,
            journal,
            timeout_ms,
        }
    }

    #[track_caller]
    fn check(
        given: Option<WriteConcern>,
        (custom, implicit): (Option<WriteConcern>, WriteConcernW),
        expected: (WriteConcern, &'static str),
    ) {
        let defaults = DefaultConcerns {
            write: custom,
            implicit_write: concern(Some(implicit), None, 0),
            ..DefaultConcerns::default()
        };
        let applied = Applied::on_member(given.as_ref(), &defaults);
        assert_eq!((applied.concern, applied.provenance), expected, "{given:?}");
    }

    #[test]
    fn the_default_completes_what_a_command_leaves_open() {
        use WriteConcernW::{Majority, Members};
        let implicit = || (None, Majority);
        let majority = || concern(Some(Majority), None, 0);
        check(None, implicit(), (majority(), "implicitDefault"));
        let empty = Some(WriteConcern::default());
        check(empty, implicit(), (majority(), "implicitDefault"));
        let two = || concern(Some(Members(2)), None, 5);
        check(Some(two()), implicit(), (two(), "clientSupplied"));
        let timed = || Some(concern(None, None, 7));
        let completed = concern(Some(Majority), None, 7);
        check(timed(), implicit(), (completed, "implicitDefault"));
        let journaled = Some(concern(None, Some(true), 0));
        let one = concern(Some(Members(1)), Some(true), 0);
        check(journaled, (None, Members(1)), (one, "clientSupplied"));
        let custom = || (Some(two()), Majority);
        check(None, custom(), (two(), "customDefault"));
        let completed = concern(Some(Members(2)), None, 7);
        check(timed(), custom(), (completed, "customDefault"));
    }
}
