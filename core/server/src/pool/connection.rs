//! A connection of a pool while it is in use.

use std::io;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use pinion_runtime::timeout_at;

use super::Deadline;
use super::host::Host;
use crate::remote::{Outgoing, Remote, RemoteError, RemoteReply};

/// A connection that one caller has to itself. Dropping it closes it: what it was in the middle of
/// is not known.
pub struct PooledConnection {
    /// `None` once it was given back.
    remote: Option<Remote>,
    host: Rc<Host>,
    /// The host's generation when this was set up: another one now means that the host was
    /// forgotten since.
    generation: u64,
    /// It has run commands, so the other side may have closed it since.
    was_used: bool,
}

impl PooledConnection {
    /// One that the host has counted as in use.
    pub(super) fn new(
        host: Rc<Host>,
        remote: Remote,
        generation: u64,
        was_used: bool,
    ) -> PooledConnection {
        PooledConnection {
            remote: Some(remote),
            host,
            generation,
            was_used,
        }
    }

    /// Whether commands were run on it before it was handed out, so that the other side may have
    /// closed it meanwhile.
    pub fn was_used(&self) -> bool {
        self.was_used
    }

    /// Runs one command within a time, and gives the connection back.
    ///
    /// # Errors
    /// `Broken` also when the time is up.
    pub(super) async fn run_once(
        mut self,
        command: Outgoing<'_>,
        deadline: &Deadline,
    ) -> Result<RemoteReply, RemoteError> {
        let Ok(reply) = timeout_at(deadline.at, self.run(command)).await else {
            return Err(RemoteError::Broken(io::ErrorKind::TimedOut.into()));
        };
        self.give_back(&reply);
        reply
    }

    /// Gives the connection back to its pool after the reply to its last command. A refusal, also
    /// by a node that is not the primary, leaves the connection as it was; anything else leaves it
    /// in the middle of something, and it is closed. If one connection breaks, those that are left
    /// over most likely are broken too, and are closed with it.
    pub fn give_back(mut self, reply: &Result<RemoteReply, RemoteError>) {
        match reply {
            Ok(reply) if reply.more_to_come() => {}
            Ok(_) | Err(RemoteError::Refused(_)) => {
                self.was_used = true;
                self.put_back();
            }
            Err(error) => {
                if error.is_broken_connection() {
                    self.host.broke(self.generation);
                }
            }
        }
    }

    /// Gives it back as it is.
    pub(super) fn put_back(mut self) {
        if let Some(remote) = self.remote.take() {
            let host = self.host.clone();
            host.take_back(remote, self.generation, self.was_used);
        }
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if self.remote.take().is_some() {
            self.host.closed();
        }
    }
}

impl Deref for PooledConnection {
    type Target = Remote;

    fn deref(&self) -> &Remote {
        self.remote.as_ref().expect("it is not given back")
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut Remote {
        self.remote.as_mut().expect("it is not given back")
    }
}
