//! What connections learn about themselves, and what they may end.

use std::net::SocketAddr;

use pinion_auth::{Privilege, RoleName, UserName};
use pinion_bson::{BinarySubtype, DocBuilder, RawBinaryRef, RawBsonRef};
use pinion_wire::{ClientInfo, Error, ErrorCode, Invocation, Reply, Result};

use crate::members::{MEMBER_DATABASE, MEMBER_USER};
use crate::node_info::node_info;

/// As whom a connection has authenticated: as a member or as a user.
pub fn authenticated_user(client: &ClientInfo) -> Option<UserName> {
    match client.is_member() {
        true => Some(UserName::new(MEMBER_USER, MEMBER_DATABASE)),
        false => client.user().map(|user| user.name().clone()),
    }
}

/// Appends the users of a connection, of whom there is one at most, as an array.
pub fn append_users(client: &ClientInfo, name: &str, out: &mut DocBuilder) {
    out.start_array(name);
    if let Some(user) = authenticated_user(client) {
        out.push_document()
            .append("user", &*user.user)
            .append("db", &*user.db)
            .end();
    }
    out.end();
}

/// `connectionStatus`.
pub async fn connection_status(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let privileges = reader.opt_safe_bool("showPrivileges")?.unwrap_or(false);
    reader.ignore(&["connectionStatus"]);
    reader.finish()?;
    let mut out = Reply::new();
    out.start_document("authInfo");
    let client = &cmd.ctx.client;
    append_users(client, "authenticatedUsers", &mut out);
    let member = RoleName::new(MEMBER_USER, MEMBER_DATABASE);
    let user = client.user();
    let roles = match (&user, client.is_member()) {
        (_, true) => std::slice::from_ref(&member),
        (Some(user), false) => user.all_roles(),
        (None, false) => &[],
    };
    RoleName::append_all(roles, &mut out, "authenticatedUserRoles");
    if privileges {
        let shown = user
            .as_ref()
            .map_or(&[][..], |user| user.shown_privileges());
        Privilege::append_all(shown, &mut out, "authenticatedUserPrivileges");
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

/// Nothing is denied to any user, so a client could end each node that it reaches: the sender must
/// be on its machine, or a member with the set's key.
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
