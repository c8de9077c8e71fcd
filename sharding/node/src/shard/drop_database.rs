//! `_shardsvrDropDatabase`: the primary shard of a database removes it, and has the config servers
//! forget it.

use std::sync::Arc;

use pinion_bson::DocBuilder;
use pinion_catalog::{GateMode, hold_database};
use pinion_clock::Timestamp;
use pinion_exec::commands::acknowledge;
use pinion_exec::replica_set;
use pinion_runtime::{now, sleep};
use pinion_service::profile_settings;
use pinion_sharding_protocol::documents::DatabaseDocument;
use pinion_sharding_protocol::{Form, has_fixed_placement};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::databases::{membership, persist};
use super::refreshes::exclusively;
use crate::config_servers::change_config;
use crate::limits::{DROP_DATABASE, RETRY_PAUSE};
use crate::local::wait_majority;
use crate::part::{Membership, install_database, on_core_0, part};

/// `_shardsvrDropDatabase: 1`, with the version of the database that it is sent to, which was
/// compared before it came here.
pub(crate) async fn drop_database(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["_shardsvrDropDatabase"]);
    reader.finish()?;
    let part = part();
    let shard = membership(&part)?;
    let db = cmd.db().to_owned();
    if has_fixed_placement(&db) || db == "local" {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            format!("Cannot drop '{db}' database"),
        ));
    }
    let routing = cmd.ctx.args.routing.as_ref();
    if routing.is_none_or(|routing| routing.database_version.is_none()) {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "Expected the request to have a database version",
        ));
    }
    let known = part.database(&db);
    let known = known.filter(|known| known.primary == *shard.shard());
    let Some(known) = known else {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            format!("this shard is not the primary of the database {db}"),
        ));
    };
    let dropped = drop_closed(&cmd, &shard, &known).await?;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, dropped, &mut out).await?;
    Ok(out)
}

/// Nothing is written to the database from here until no version of it is valid any more: what
/// waits finds that its own has gone.
async fn drop_closed(
    cmd: &Invocation,
    shard: &Arc<Membership>,
    known: &Arc<DatabaseDocument>,
) -> Result<Option<Timestamp>> {
    let db = &known.name;
    let deadline = now() + DROP_DATABASE;
    let hold = hold_database(db.clone(), GateMode::Closed, deadline).await?;
    // Another request may have dropped it while the gates were waited for.
    let is_same = part().database(db).is_some_and(|now| now == *known);
    if !is_same {
        hold.release().await;
        return Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!("the database {db} has changed while its removal waited"),
        ));
    }
    profile_settings::forget(db).await;
    let dropped = pinion_catalog::drop_database(&hold.admit(&cmd.ctx), db.clone()).await?;
    let (shard, known) = (shard.clone(), known.clone());
    // The database stays closed until it is forgotten, also where this command is interrupted.
    on_core_0(&cmd.ctx, move || async move {
        let forgotten = async {
            // The next primary has nothing of it either, whether it finds the entry or not.
            wait_majority().await?;
            exclusively(&known.name, forget(&shard, &known)).await
        }
        .await;
        hold.release().await;
        forgotten
    })
    .await?;
    Ok(dropped)
}

/// Has the config servers forget the database, while no refresh is under way that may have read
/// its entry. Whether they have or not is learned by the next request.
async fn forget(shard: &Membership, known: &DatabaseDocument) -> Result<()> {
    let db = &known.name;
    let removed = remove_entry(shard, known).await;
    install_database(db, None).await;
    if let Err(error) = persist(db, None).await {
        tracing::warn!(target: "SHARDING", id = 7_500_003u64, db, error = error.message, "The cached entry of a dropped database could not be removed");
    }
    removed.map(drop)
}

/// Sends the removal until it is known what has become of it, or another primary answers for the
/// database: while one may still take place, nothing may be written to the database.
async fn remove_entry(shard: &Membership, known: &DatabaseDocument) -> Result<()> {
    let db = &known.name;
    let mut command = DocBuilder::new();
    command.append("_configsvrDropDatabase", db.as_str());
    known.version.append_to(&mut command, "version", Form::Own);
    command.append("$db", "admin");
    let command = command.finish();
    let view = || replica_set().map(|set| set.view());
    let term = view().map(|view| view.term);
    let leads = || view().is_some_and(|view| view.writable && Some(view.term) == term);
    let mut may_take_place = false;
    loop {
        let error = match change_config(shard, command.clone()).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        may_take_place |= !is_refusal(error.code);
        if !may_take_place || !leads() || part().core_0.is_stopping() {
            return Err(error);
        }
        tracing::warn!(target: "SHARDING", id = 7_500_006u64, db, error = %error, "It is not known whether the config servers have removed a dropped database; they are asked again");
        sleep(RETRY_PAUSE).await;
    }
}

/// Whether a command is refused so before it does anything, by whichever config server.
fn is_refusal(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::UNAUTHORIZED
            | ErrorCode::AUTHENTICATION_FAILED
            | ErrorCode::COMMAND_NOT_FOUND
            | ErrorCode::ILLEGAL_OPERATION
            | ErrorCode::BAD_VALUE
            | ErrorCode::INVALID_OPTIONS
            | ErrorCode::FAILED_TO_PARSE
            | ErrorCode::TYPE_MISMATCH
    )
}
