//! What a standalone makes of read and write concerns, and the wait that a write concern asks for.

use pinion_catalog::from_fatal;
use pinion_clock::Timestamp;
use pinion_storage::storage;
use pinion_wire::idl::{ReadConcernLevel, WriteConcern, WriteConcernW};
use pinion_wire::{CommandClass, Error, ErrorCode, Invocation, OpContext, Result};

use crate::interrupt::interruptible;

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

/// Waits until a write at `ts` is as safe as its write concern asks for.
pub(crate) async fn acknowledge(ctx: &OpContext, ts: Option<Timestamp>) -> Result<()> {
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
    interruptible(ctx, storage().wait_durable(ts))
        .await?
        .map_err(from_fatal)
}
