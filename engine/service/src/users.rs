//! `usersInfo` and `rolesInfo` of a node that has neither users nor roles of its own, and what its
//! connections learn about themselves.

use std::net::SocketAddr;

use pinion_bson::{BinarySubtype, DocBuilder, RawBinaryRef, RawBsonRef};
use pinion_wire::{ClientInfo, Error, ErrorCode, Invocation, Reply, Result};

use crate::members::{MEMBER_DATABASE, MEMBER_USER};
use crate::node_info::node_info;

/// `usersInfo`.
pub async fn users_info(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    check_subject(&cmd, "usersInfo", "user")?;
    for flag in [
        "showCredentials",
        "showCustomData",
        "showPrivileges",
        "showAuthenticationRestrictions",
    ] {
        reader.opt_safe_bool(flag)?;
    }
    reader.opt_doc("filter")?;
    reader.ignore(&["usersInfo"]);
    reader.finish()?;
    let mut out = Reply::new();
    out.start_array("users").end();
    Ok(out)
}

/// `rolesInfo`.
pub async fn roles_info(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    check_subject(&cmd, "rolesInfo", "role")?;
    for flag in ["showAuthenticationRestrictions", "showBuiltinRoles"] {
        reader.opt_safe_bool(flag)?;
    }
    // A flag, or a word for another form of the answer.
    reader.ignore(&["rolesInfo", "showPrivileges"]);
    reader.finish()?;
    let mut out = Reply::new();
    out.start_array("roles").end();
    Ok(out)
}

/// Refuses what can name neither all users or roles, nor one, nor several.
fn check_subject(cmd: &Invocation, command: &str, part: &str) -> Result<()> {
    let names_one = |value: RawBsonRef<'_>| match value {
        RawBsonRef::String(_) => true,
        RawBsonRef::Document(name) => {
            matches!(
                pinion_bson::get(name, "forAllDBs"),
                Some(RawBsonRef::Boolean(true))
            ) || [part, "db"]
                .iter()
                .all(|field| matches!(pinion_bson::get(name, field), Some(RawBsonRef::String(_))))
        }
        _ => false,
    };
    let value = pinion_bson::get(cmd.body(), command);
    let is_subject = match value {
        Some(RawBsonRef::Array(several)) => pinion_bson::values(several).all(names_one),
        Some(number) if pinion_wire::idl::is_number(number) => true,
        Some(value) => names_one(value),
        None => false,
    };
    if is_subject {
        return Ok(());
    }
    Err(Error::bad_value(format!(
        "{command} names a {part} by a string, by {{{part}, db}}, by an array of these, or all by 1"
    )))
}

/// `connectionStatus`.
pub async fn connection_status(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let privileges = reader.opt_safe_bool("showPrivileges")?.unwrap_or(false);
    reader.ignore(&["connectionStatus"]);
    reader.finish()?;
    let mut out = Reply::new();
    out.start_document("authInfo");
    let is_member = cmd.ctx.client.is_member();
    for (list, name) in [
        ("authenticatedUsers", "user"),
        ("authenticatedUserRoles", "role"),
    ] {
        out.start_array(list);
        if is_member {
            let mut member = DocBuilder::new();
            member
                .append(name, MEMBER_USER)
                .append("db", MEMBER_DATABASE);
            out.push(&*member.finish());
        }
        out.end();
    }
    if privileges {
        out.start_array("authenticatedUserPrivileges").end();
    }
    out.end();
    out.append(
        "uuid",
        RawBsonRef::Binary(RawBinaryRef {
            subtype: BinarySubtype::Uuid,
            bytes: &connection_uuid(&cmd),
        }),
    );
    Ok(out)
}

/// Names the connection in all processes: the process by its random number, the connection in it by
/// its own.
fn connection_uuid(cmd: &Invocation) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..12].copy_from_slice(&node_info().process_id.bytes());
    bytes[12..].copy_from_slice(&cmd.ctx.client.connection_id.to_be_bytes());
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    bytes
}

/// `dropConnections`: to other nodes, of which this one has none.
pub async fn drop_connections(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["dropConnections"]);
    for host in pinion_bson::values(reader.array("hostAndPort")?) {
        let RawBsonRef::String(host) = host else {
            return Err(Error::type_mismatch(
                "hostAndPort has to be an array of strings",
            ));
        };
        let port = host.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        if host.is_empty() || port.is_some_and(|port| port.is_err()) {
            return Err(Error::failed_to_parse(format!(
                "'{host}' is no host with a port"
            )));
        }
    }
    reader.finish()?;
    Ok(Reply::new())
}

/// Without users any client that reaches a node could end it, so the sender must be on its machine,
/// or a member with the set's key.
///
/// # Errors
/// `Unauthorized`.
pub fn check_may_stop(client: &ClientInfo) -> Result<()> {
    let is_loopback = |remote: SocketAddr| remote.ip().to_canonical().is_loopback();
    let is_local = client.remote.is_none_or(is_loopback);
    match is_local || client.is_trusted() {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::UNAUTHORIZED,
            "shutdown must run from localhost when running db without auth",
        )),
    }
}
