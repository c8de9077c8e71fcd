//! How a connection is set up: this process introduces itself, and proves to have a key of its set
//! or cluster where that has one.

use pinion_auth::MemberAuth;
use pinion_bson::{RawDocumentBuf, cstr, rawdoc};
use pinion_wire::HostPort;

use super::login::{Derived, Login, log_in};
use super::options::Introduction;
use crate::remote::{Remote, RemoteError};

/// What all connections of a pool are set up with.
pub(super) struct Greeter {
    introduction: RawDocumentBuf,
    auth: Option<MemberAuth>,
    derived: Derived,
}

impl Greeter {
    pub(super) fn new(introduction: &Introduction, auth: Option<MemberAuth>) -> Greeter {
        Greeter {
            introduction: first_command(introduction),
            auth,
            derived: Derived::default(),
        }
    }

    /// Opens a connection, introduces this process on it and, where there is a key, proves to have
    /// that.
    ///
    /// # Errors
    /// `Refused` with `AuthenticationFailed` where either side does not have a key of the other's.
    pub(super) async fn set_up(&self, address: &HostPort) -> Result<Remote, RemoteError> {
        let mut remote = Remote::open(&address.host, address.port).await?;
        let Some(auth) = &self.auth else {
            remote.run(&self.introduction).await?;
            return Ok(remote);
        };
        // Most often this saves one way there and back.
        let login = Login::new()?;
        let mut introduction = self.introduction.clone();
        introduction.append(cstr!("speculativeAuthenticate"), login.speculative());
        let greeted = remote.run(&introduction).await?;
        log_in(&mut remote, auth, &self.derived, login, greeted.body()).await?;
        Ok(remote)
    }
}

/// The first command on a connection between processes of a set or cluster. Those of MongoDB 4.4
/// know it by its older name alone.
fn first_command(introduction: &Introduction) -> RawDocumentBuf {
    let Introduction {
        name,
        version,
        max_wire_version,
    } = *introduction;
    rawdoc! {
        "isMaster": 1,
        "client": {
            "driver": { "name": name, "version": version },
            "os": { "type": "Linux", "name": "Linux", "architecture": "", "version": "" },
        },
        "internalClient": { "minWireVersion": 0, "maxWireVersion": max_wire_version },
        "$db": "admin",
    }
}
