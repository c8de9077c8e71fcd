//! Read and write concerns: which of them a node refuses, what a command waits for before it runs,
//! and what its reply waits for.
//!
//! Source: replication document, "Read Concern" and "Write Concern".

mod counts;
mod defaults;
mod read;
mod write;

use pinion_bson::RawBsonRef;
use pinion_wire::idl::{ReadConcern, ReadConcernLevel, WriteConcern, WriteConcernW};
use pinion_wire::{
    CommandClass, CommandRole, CommandSpec, Error, ErrorCode, Handler, Invocation,
    ReadConcernSupport, Reply, Result,
};

pub use counts::{ConcernCounts, ConcernValues, WriteKind, concern_counts};
pub use defaults::{Change, DefaultsCache, SETTINGS, STORED_AS, default_concerns};
pub use defaults::{forget_everywhere, has_default_write_concern};
pub(crate) use read::{confirm, prepare_transaction};
pub(crate) use write::may_write_users;
pub use write::{
    acknowledge, append_write_concern, complete_outcome, count_writes, wait_for_check,
    wait_for_setting, written,
};

use self::counts::Source;
use crate::topology::set_view;

/// Refuses the concerns of a command that this node does not take.
pub(crate) fn check(cmd: &Invocation) -> Result<()> {
    let Some(view) = set_view() else {
        return check_alone(cmd);
    };
    let args = &cmd.ctx.args;
    (args.read_concern).map_or(Ok(()), |concern| read::check(cmd, &concern, &view))
}

/// Whether a command reads with a read concern of its own, and not with that of a cursor.
fn has_read_concern(spec: &CommandSpec) -> bool {
    spec.class == CommandClass::Read
        && spec.read_concern != ReadConcernSupport::Local
        && spec.role != CommandRole::GetMore
}

/// Counts the read concern of a read.
pub(crate) fn count_read(cmd: &Invocation) {
    if !has_read_concern(cmd.command.spec) || cmd.ctx.client.is_internal() {
        return;
    }
    let in_transaction = pinion_service::session_ids::is_in(&cmd.ctx);
    let counts = concern_counts();
    let named = cmd.ctx.args.read_concern.as_ref();
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        return counts.read(named, Source::Client, in_transaction);
    }
    let level = default_concerns().known_read_level();
    let source = match level {
        Some(_) => Source::CustomDefault,
        None => Source::ImplicitDefault,
    };
    let concern = ReadConcern {
        level,
        ..ReadConcern::default()
    };
    counts.read(&concern, source, in_transaction);
}

/// Runs a command of a member: once what it reads is there, and to the end of what its read concern
/// promises.
pub(crate) async fn surround(mut cmd: Invocation, handler: Handler) -> Result<Reply> {
    read::prepare(&mut cmd).await?;
    let (ctx, command) = (cmd.ctx.clone(), cmd.command.clone());
    match handler(cmd).await {
        Ok(reply) => {
            confirm(&ctx, &ctx.read_concern).await?;
            Ok(reply)
        }
        Err(error) if command.spec.supports_write_concern => {
            Err(write::complete_error(&ctx, error).await)
        }
        Err(error) => Err(error),
    }
}

/// A stage's unsupported read concern is reported before the node's.
fn check_stages(cmd: &Invocation, concern: &ReadConcern) -> Result<()> {
    if cmd.command.spec.role == CommandRole::Pipeline
        && let Some(level) = concern.level
        && let Some(RawBsonRef::Array(stages)) = pinion_bson::get(cmd.body(), "pipeline")
    {
        pinion_query::check_read_concern(stages, level)?;
    }
    Ok(())
}

/// Refuses what needs a replica set.
fn check_alone(cmd: &Invocation) -> Result<()> {
    let args = &cmd.ctx.args;
    if args.txn_number.is_some() && cmd.command.spec.class != CommandClass::Command {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "Transaction numbers are only allowed on a replica set member or mongos",
        ));
    }
    if let Some(concern) = &args.read_concern {
        check_stages(cmd, concern)?;
        match concern.level {
            Some(ReadConcernLevel::Snapshot) => {
                return Err(Error::new(
                    ErrorCode::NOT_A_REPLICA_SET,
                    "node needs to be a replica set member to use readConcern: snapshot",
                ));
            }
            Some(ReadConcernLevel::Linearizable) => {
                return Err(Error::new(
                    ErrorCode::NOT_A_REPLICA_SET,
                    "node needs to be a replica set member to use read concern",
                ));
            }
            _ => {}
        }
        if concern.after_cluster_time.is_some() || concern.at_cluster_time.is_some() {
            return Err(Error::new(
                ErrorCode::ILLEGAL_OPERATION,
                "Cannot specify afterClusterTime readConcern without replication enabled",
            ));
        }
    }
    if let Some(concern) = &args.write_concern {
        check_write_concern(concern)?;
    }
    Ok(())
}

fn check_write_concern(concern: &WriteConcern) -> Result<()> {
    match &concern.w {
        Some(WriteConcernW::Members(members)) if *members > 1 => Err(Error::bad_value(
            "cannot use 'w' > 1 when a host is not replicated",
        )),
        Some(WriteConcernW::Mode(mode)) => Err(Error::bad_value(format!(
            "cannot use non-majority 'w' mode \"{mode}\" when a host is not a member of a replica set"
        ))),
        _ => Ok(()),
    }
}
