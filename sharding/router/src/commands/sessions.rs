//! `startSession`, `endSessions`, `refreshSessions`, `killSessions` and their relatives: at this
//! router, and where something is killed, at every shard too.

use pinion_bson::RawDocument;
use pinion_runtime::on_all_cores;
use pinion_service::cursors::cursors;
use pinion_service::generate::random_bytes;
use pinion_service::limits::SESSION_TIMEOUT;
use pinion_service::ops::ops;
use pinion_service::session_table::{self, session_table};
use pinion_wire::idl::{CommandReader, FieldReader, Lsid, append_lsid, missing_field, read_lsid};
use pinion_wire::{Invocation, Reply, Result};

use super::forward::shard_ids;
use crate::dispatch::at_every_shard;
use crate::reply::refused;
use crate::request::Request;
use crate::sessions;
use crate::transactions::transactions;

/// `startSession`.
pub(super) async fn start_session(cmd: Invocation) -> Result<Reply> {
    // Nothing but the name is read, and MongoDB passes over every other field.
    let mut id: [u8; 16] = random_bytes();
    id[6] = (id[6] & 0x0f) | 0x40;
    id[8] = (id[8] & 0x3f) | 0x80;
    let lsid = Lsid::of_client(id, None);
    session_table().touch(&lsid, cmd.ctx.started_ns)?;
    let mut out = Reply::new();
    append_lsid(&mut out, "id", &lsid);
    out.append("timeoutMinutes", (SESSION_TIMEOUT.as_secs() / 60) as i32);
    Ok(out)
}

fn lsids(reader: &CommandReader<'_>, field: &str) -> Result<Vec<Lsid>> {
    let Some(objects) = reader.opt_objects(field)? else {
        return Err(missing_field(reader.path().field(field)));
    };
    let path = objects.path();
    let mut list = Vec::new();
    for object in objects {
        let (at, document) = object?;
        list.push(read_lsid(&FieldReader::object(path.index(at), document)?)?);
    }
    Ok(list)
}

/// `refreshSessions`.
pub(super) async fn refresh_sessions(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let list = lsids(&reader, "refreshSessions")?;
    reader.finish()?;
    for lsid in &list {
        session_table().touch(lsid, cmd.ctx.started_ns)?;
    }
    Ok(Reply::new())
}

/// `endSessions`: the client is done with them, and with what they left at the shards.
pub(super) async fn end_sessions(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let list = lsids(&reader, "endSessions")?;
    reader.finish()?;
    sessions::ended(&list);
    end(list, false).await;
    Ok(Reply::new())
}

/// Ends sessions on all cores: their cursors, and what runs in them where that is killed.
async fn end(list: Vec<Lsid>, kills: bool) {
    on_all_cores(move |_| {
        let list = list.clone();
        async move {
            for lsid in &list {
                cursors().kill_session(lsid);
                transactions().session_ended(lsid);
                if kills {
                    ops().kill_session(lsid);
                } else {
                    session_table().remove(lsid);
                }
            }
        }
    })
    .await;
}

/// `killSessions`: those named, or all when none is named.
pub(super) async fn kill_sessions(cmd: Invocation) -> Result<Reply> {
    let mut list = lsids(&cmd.reader()?, "killSessions")?;
    if list.is_empty() {
        list = session_table::known().await;
    }
    end(list, true).await;
    at_shards(&cmd).await
}

/// `killAllSessions`.
pub(super) async fn kill_all_sessions(cmd: Invocation) -> Result<Reply> {
    end(session_table::known().await, true).await;
    at_shards(&cmd).await
}

/// `killAllSessionsByPattern`: the sessions that a pattern names, or all where one names none.
pub(super) async fn kill_all_sessions_by_pattern(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let Some(objects) = reader.opt_objects(cmd.name())? else {
        return Err(missing_field(reader.path().field(cmd.name())));
    };
    let path = objects.path();
    let (mut named, mut all) = (Vec::new(), true);
    for object in objects {
        let (at, document) = object?;
        let lsid: Option<&RawDocument> =
            FieldReader::object(path.index(at), document)?.opt_doc("lsid")?;
        match lsid {
            Some(lsid) => named.push(read_lsid(&FieldReader::object(path.index(at), lsid)?)?),
            None => all = false,
        }
    }
    reader.finish()?;
    // Patterns of users say nothing here, where there are none: each session is of no user.
    let list = match named.is_empty() && all {
        true => session_table::known().await,
        false => named,
    };
    end(list, true).await;
    at_shards(&cmd).await
}

/// Has every shard do the same. The first error is the command's.
async fn at_shards(cmd: &Invocation) -> Result<Reply> {
    let shards = shard_ids().await?;
    let outcomes = at_every_shard(cmd, &shards, |_| Request::of(cmd, cmd.db(), None)).await?;
    for (_, outcome) in outcomes {
        outcome.map_err(refused)?;
    }
    Ok(Reply::new())
}

/// `refreshLogicalSessionCacheNow`.
pub(super) async fn refresh_now(_: Invocation) -> Result<Reply> {
    sessions::refresh().await?;
    Ok(Reply::new())
}
