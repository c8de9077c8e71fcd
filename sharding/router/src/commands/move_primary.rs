//! `movePrimary`.

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_wire::idl::is_valid_database_name;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::sharding::append_majority;
use crate::dispatch::{WhenAbsent, at_coordinator};
use crate::placement::{database, flush_database};
use crate::reply::append_passed_on;
use crate::request::Request;
use crate::shards::{current_shards, reload_shards};

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message)
}

/// `movePrimary: <database>, to: <shard>`: the primary shard of the database has the other one copy
/// what is unsharded. A database that is there already is a success.
pub(super) async fn move_primary(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let db = reader.str(cmd.message.command_name())?.to_owned();
    let to = match reader.value("to") {
        Some(RawBsonRef::String("")) | None => {
            return Err(invalid("you have to specify where you want to move it"));
        }
        Some(_) => reader.str("to")?.to_owned(),
    };
    reader.finish()?;
    if !is_valid_database_name(&db) {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("invalid db name specified: {db}"),
        ));
    }
    if matches!(&*db, "admin" | "config" | "local") {
        return Err(invalid(format!("Can't move primary for {db} database")));
    }
    let absent = || {
        Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("database {db} not found"),
        )
    };
    if database(&db).await?.is_none() {
        return Err(absent());
    }
    let to = shard_named(&to).await?;
    let make = |out: &mut DocBuilder| {
        out.append("_shardsvrMovePrimary", 1i32)
            .append("to", to.as_str());
        append_majority(out, &cmd);
    };
    let moved = at_coordinator(&cmd, &db, WhenAbsent::Answer, |versions| {
        Request::own(&db, versions, make)
    })
    .await;
    // Also where it failed: it may be moved all the same.
    flush_database(&db).await;
    match moved {
        // Where there is no such database the config servers are asked, which refuse the command.
        Err(_) if database(&db).await?.is_none() => Err(absent()),
        Err(error) => Err(error),
        Ok(answer) => {
            let mut out = Reply::new();
            append_passed_on(&mut out, answer.body(), |name| name == b"writeConcernError");
            Ok(out)
        }
    }
}

/// The shard of a name, or of the set or the hosts that are named.
async fn shard_named(name: &str) -> Result<String> {
    let known = current_shards().await?;
    if let Some(id) = known.id_of(name) {
        return Ok(id.to_owned());
    }
    reload_shards().await?;
    let known = current_shards().await?;
    let found = known.id_of(name).map(str::to_owned);
    found.ok_or_else(|| {
        let message = format!("Shard {name} not found");
        Error::new(ErrorCode::SHARD_NOT_FOUND, message)
    })
}
