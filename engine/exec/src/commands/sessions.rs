//! `startSession`, `endSessions`, `refreshSessions`, `killSessions` and their relatives.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_service::cursors::cursors;
use pinion_service::generate::random_bytes;
use pinion_service::limits::SESSION_TIMEOUT;
use pinion_service::session_table::{self, session_table};
use pinion_wire::idl::NO_USER;
use pinion_wire::idl::{CommandReader, FieldReader, Lsid, Path, append_lsid, read_lsid};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::commands::ops;
use crate::session_refresh::session_refresh;
use crate::transactions;

/// `startSession`.
pub(crate) async fn start_session(cmd: Invocation) -> Result<Reply> {
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

fn digest(bytes: &[u8]) -> Result<[u8; 32]> {
    bytes.try_into().map_err(|_| {
        Error::new(
            ErrorCode::UNSUPPORTED_FORMAT,
            "Unsupported SHA256Block hash length",
        )
    })
}

fn parse_lsid(path: Path<'_>, document: &RawDocument) -> Result<Lsid> {
    let reader = FieldReader::object(path, document)?;
    read_lsid(&reader)
}

fn lsids(cmd: &Invocation, field: &str) -> Result<Vec<Lsid>> {
    let reader = cmd.reader()?;
    let list = read_lsids(&reader, field)?;
    reader.finish()?;
    Ok(list)
}

fn read_lsids(reader: &CommandReader<'_>, field: &str) -> Result<Vec<Lsid>> {
    let mut list = Vec::new();
    if let Some(objects) = reader.opt_objects(field)? {
        let path = objects.path();
        for object in objects {
            let (at, document) = object?;
            list.push(parse_lsid(path.index(at), document)?);
        }
    } else {
        return Err(pinion_wire::idl::missing_field(reader.path().field(field)));
    }
    Ok(list)
}

/// `endSessions`: the client is done with them.
pub(crate) async fn end_sessions(cmd: Invocation) -> Result<Reply> {
    let ended = lsids(&cmd, "endSessions")?;
    session_refresh().ended(&ended);
    end(ended, false).await;
    Ok(Reply::new())
}

/// `killSessions`: those named, or all when none is named; with them what runs in them. Fields that
/// it does not know it passes over, as MongoDB does.
pub(crate) async fn kill_sessions(cmd: Invocation) -> Result<Reply> {
    let mut list = read_lsids(&cmd.reader()?, "killSessions")?;
    if list.is_empty() {
        list = session_table::known().await;
    }
    end(list, true).await;
    Ok(Reply::new())
}

/// `killAllSessionsByPattern`: the sessions that match one of the patterns, or all when there is
/// none.
pub(crate) async fn kill_all_sessions_by_pattern(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let Some(objects) = reader.opt_objects(cmd.name())? else {
        return Err(pinion_wire::idl::missing_field(
            reader.path().field(cmd.name()),
        ));
    };
    let mut patterns = Vec::new();
    let path = objects.path();
    for object in objects {
        let (at, document) = object?;
        patterns.push(SessionPattern::parse(path.index(at), document)?);
    }
    reader.finish()?;
    let mut doomed = session_table::known().await;
    if !patterns.is_empty() {
        doomed.retain(|lsid| patterns.iter().any(|pattern| pattern.matches(lsid)));
    }
    end(doomed, true).await;
    Ok(Reply::new())
}

/// Which sessions are meant: one, or those of a user.
#[derive(Debug, Default)]
struct SessionPattern {
    lsid: Option<Lsid>,
    uid: Option<[u8; 32]>,
}

impl SessionPattern {
    fn parse(path: Path<'_>, document: &RawDocument) -> Result<SessionPattern> {
        let reader = FieldReader::object(path, document)?;
        reader.only(&["lsid", "uid", "users", "roles"])?;
        let lsid = match reader.opt_doc("lsid")? {
            Some(lsid) => Some(parse_lsid(reader.path().field("lsid"), lsid)?),
            None => None,
        };
        let uid = reader.opt_binary("uid")?.map(digest).transpose()?;
        // On whose behalf a router asks, which a node without users need not know.
        for (field, part) in [("users", "user"), ("roles", "role")] {
            for object in reader.opt_objects(field)?.into_iter().flatten() {
                let (at, document) = object?;
                check_name(reader.path().field(field).index(at), document, part)?;
            }
        }
        reader.finish()?;
        Ok(SessionPattern { lsid, uid })
    }

    fn matches(&self, lsid: &Lsid) -> bool {
        let user = |lsid: &Lsid| lsid.uid.unwrap_or(NO_USER);
        match (&self.lsid, self.uid) {
            (Some(meant), _) => meant.id == lsid.id && user(meant) == user(lsid),
            (None, Some(uid)) => uid == user(lsid),
            (None, None) => true,
        }
    }
}

/// `killAllSessions`: those of the users named, or all when none is named. No session here belongs
/// to a user. MongoDB minds no unknown field here.
pub(crate) async fn kill_all_sessions(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let Some(users) = reader.opt_objects(cmd.name())? else {
        return Err(pinion_wire::idl::missing_field(
            reader.path().field(cmd.name()),
        ));
    };
    let mut named = 0;
    let path = users.path();
    for user in users {
        let (at, document) = user?;
        check_name(path.index(at), document, "user")?;
        named += 1;
    }
    if named == 0 {
        end(session_table::known().await, true).await;
    }
    Ok(Reply::new())
}

/// Checks the name of a user, `{user, db}`, or of a role.
fn check_name(path: Path<'_>, document: &RawDocument, part: &str) -> Result<()> {
    let reader = FieldReader::object(path, document)?;
    reader.only(&[part, "db"])?;
    reader.str(part)?;
    reader.str("db")?;
    reader.finish()
}

/// Reads the specification of a stage that lists sessions and returns whether it asks for those of
/// named users alone.
pub(super) fn parse_list(stage: &str, spec: &RawDocument) -> Result<bool> {
    let reader = FieldReader::object(Path::root(stage), spec)?;
    let all = reader.opt_bool("allUsers")?.unwrap_or(false);
    let mut named = 0;
    if let Some(users) = reader.opt_array("users")? {
        let path = reader.path().field("users");
        for (at, user) in pinion_bson::values(users).enumerate() {
            match user {
                RawBsonRef::Null => continue,
                RawBsonRef::Document(user) => check_name(path.index(at), user, "user")?,
                other => {
                    return Err(pinion_wire::idl::wrong_type(
                        path.index(at),
                        other,
                        pinion_wire::idl::Types::OBJECT,
                    ));
                }
            }
            named += 1;
        }
    }
    reader.finish()?;
    if all && named > 0 {
        return Err(Error::new(
            ErrorCode::UNSUPPORTED_FORMAT,
            format!(
                "{stage} may not specify {{allUsers:true}} and {{users:[...]}} at the same time"
            ),
        ));
    }
    Ok(named > 0)
}

/// The documents of `$listLocalSessions`.
pub(super) async fn list_local() -> Vec<bytes::Bytes> {
    let uses = session_table::last_uses().await;
    uses.into_iter()
        .map(|(lsid, used_ms)| {
            let mut out = DocBuilder::new();
            append_lsid(&mut out, "_id", &lsid);
            out.append(
                "lastUse",
                RawBsonRef::DateTime(pinion_bson::DateTime::from_millis(used_ms)),
            );
            bytes::Bytes::from(out.finish().into_bytes())
        })
        .collect()
}

/// `refreshSessions`.
pub(crate) async fn refresh_sessions(cmd: Invocation) -> Result<Reply> {
    for lsid in lsids(&cmd, "refreshSessions")? {
        session_table().touch(&lsid, cmd.ctx.started_ns)?;
    }
    Ok(Reply::new())
}

/// `refreshLogicalSessionCacheNow`: what is done from time to time is done at once.
pub async fn refresh_now(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&[cmd.name()]);
    reader.finish()?;
    crate::session_refresh::publish().await?;
    Ok(Reply::new())
}

/// `reapLogicalSessionCacheNow`.
pub async fn reap_now(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&[cmd.name()]);
    reader.finish()?;
    crate::session_refresh::reap().await?;
    Ok(Reply::new())
}

/// Ends sessions on every core, and their children: their cursors are killed, their transactions
/// aborted, their operations interrupted.
async fn end(lsids: Vec<Lsid>, interrupt: bool) {
    transactions::abort_sessions(&lsids).await;
    let lsids = std::sync::Arc::new(lsids);
    pinion_runtime::on_all_cores(move |_| {
        let lsids = lsids.clone();
        async move {
            for lsid in lsids.iter() {
                cursors().kill_session(lsid);
                if interrupt {
                    ops().kill_session(lsid);
                }
                session_table().remove(lsid);
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let lsid = |id: u8, uid: Option<u8>| Lsid::of_client([id; 16], uid.map(|uid| [uid; 32]));
        let check = |pattern: SessionPattern, expected: [bool; 3]| {
            let sessions = [lsid(1, None), lsid(2, None), lsid(1, Some(7))];
            assert_eq!(sessions.map(|session| pattern.matches(&session)), expected);
        };
        let of = |lsid, uid| SessionPattern { lsid, uid };
        check(of(None, None), [true; 3]);
        check(of(Some(lsid(1, None)), None), [true, false, false]);
        let no_user = Lsid::of_client([2; 16], Some(NO_USER));
        check(of(Some(no_user), None), [false, true, false]);
        check(of(None, Some([7; 32])), [false, false, true]);
        check(of(None, Some(NO_USER)), [true, true, false]);
    }
}
