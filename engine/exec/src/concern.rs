//! What a standalone makes of read and write concerns, and the wait that a write concern asks for.

use pinion_bson::RawBsonRef;
use pinion_catalog::from_fatal;
use pinion_clock::Timestamp;
use pinion_storage::storage;
use pinion_wire::idl::{ReadConcernLevel, WriteConcern, WriteConcernW};
use pinion_wire::{CommandClass, Error, ErrorCode, Invocation, OpContext, Reply, Result};

use crate::interrupt::{interruptible, is_interruption};

/// Refuses what needs a replica set.
pub(crate) fn check(cmd: &Invocation) -> Result<()> {
    let args = &cmd.ctx.args;
    if args.txn_number.is_some() && cmd.command.spec.class != CommandClass::Command {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "Transaction numbers are only allowed on a replica set member or mongos",
        ));
    }
    if let Some(concern) = &args.read_concern {
        // What a stage cannot be read with is told before what a standalone cannot be read with.
        if cmd.name() == "aggregate"
            && let Some(level) = concern.level
            && let Some(RawBsonRef::Array(stages)) = pinion_bson::get(cmd.body(), "pipeline")
        {
            pinion_query::check_read_concern(stages, level)?;
        }
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

/// Waits until a write at `ts` is as safe as its write concern asks for. Where that wait is interrupted, the write has taken
/// place all the same, and `out` says so: it gets a `writeConcernError`.
///
/// # Errors
/// When the journal cannot be written any more.
pub(crate) async fn acknowledge(
    ctx: &OpContext,
    ts: Option<Timestamp>,
    out: &mut Reply,
) -> Result<()> {
    let Some(concern) = &ctx.args.write_concern else {
        return Ok(());
    };
    let journaled = concern.journal == Some(true)
        || (concern.w == Some(WriteConcernW::Majority) && concern.journal != Some(false));
    if !journaled {
        return Ok(());
    }
    // A write that changed nothing still tells what it saw, which must not be lost afterwards.
    let ts = ts.unwrap_or_else(|| storage().last_allotted());
    match interruptible(ctx, storage().wait_durable(ts)).await {
        Ok(durable) => durable.map_err(from_fatal),
        Err(error) if is_interruption(&error) => {
            append_write_concern_error(out, concern, &error);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// As `CommandHelpers::appendCommandWCStatus` of MongoDB.
#[cold]
fn append_write_concern_error(out: &mut Reply, concern: &WriteConcern, error: &Error) {
    out.start_document("writeConcernError")
        .append("code", error.code.0)
        .append("codeName", &*error.code_name())
        .append("errmsg", error.message.as_str());
    out.start_document("errInfo").start_document("writeConcern");
    match &concern.w {
        Some(WriteConcernW::Members(members)) => out.append("w", i32::from(*members)),
        Some(WriteConcernW::Majority) => out.append("w", "majority"),
        // A standalone has refused all others.
        Some(WriteConcernW::Mode(_) | WriteConcernW::Tags(_)) => out,
        None => out.append("w", 1),
    };
    if let Some(journal) = concern.journal {
        out.append("j", journal);
    }
    out.append("wtimeout", concern.timeout_ms as i32)
        .append("provenance", "clientSupplied");
    out.end().end().end();
}
