//! Commands at members of other sets, what their failures say of the members, and when they are
//! sent again.

use std::io;

use pinion_bson::{RawDocument, get};
use pinion_runtime::{Duration, now, sleep};
use pinion_server::{Outgoing, RemoteError, RemoteReply, Resend};
use pinion_sharding_protocol::Failure;
use pinion_wire::idl::{ReadPreference, i32_clamped};
use pinion_wire::{Category, Error, ErrorCode, HostPort};

use super::Hosts;
use super::monitors::FailedCommand;
use crate::limits::{MAX_UNKNOWN_SHARD_PAUSE, RUN_ATTEMPTS, UNKNOWN_SHARD_PAUSE};

/// Whether a command may be sent again when it is not known whether it had its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It has the same effect when it is executed twice.
    Idempotent,
    Never,
}

impl Hosts {
    /// Runs one command, which names its database, at a member within a time. What its failure says
    /// of the member is known to this core before this returns.
    ///
    /// # Errors
    /// Those of [`pinion_server::Pool::run`].
    pub async fn run_at(
        &self,
        set: &str,
        host: &HostPort,
        command: impl Into<Outgoing<'_>>,
        limit: Duration,
        resend: Resend,
    ) -> Result<RemoteReply, RemoteError> {
        let number = self.topology(set).map_or(0, |topology| topology.number);
        let outcome = self.pool().run(host, command, limit, resend).await;
        self.report_outcome(set, host, number, &outcome).await;
        outcome
    }

    /// Reports what the outcome of a command says of the member that it was sent to, for a caller
    /// that runs commands on a connection of its own. `number` is that of the topology by which the
    /// member was chosen.
    pub async fn report_outcome(
        &self,
        set: &str,
        host: &HostPort,
        number: u64,
        outcome: &Result<RemoteReply, RemoteError>,
    ) {
        let Some((failure, why)) = failure_of(outcome) else {
            return;
        };
        let host = host.clone();
        let failed = FailedCommand {
            host,
            number,
            failure,
            why,
        };
        self.report(set, failed).await;
    }

    /// Chooses a member and runs one command there, within a time for all attempts; where `retry`
    /// permits it, up to three times in all while members fail, change their role or shut down. A
    /// member that has not heard yet which shard it is of is as one that is not there yet.
    ///
    /// # Errors
    /// Those of [`Hosts::select`], and of the last attempt.
    pub async fn run(
        &self,
        set: &str,
        preference: &ReadPreference,
        command: impl Into<Outgoing<'_>>,
        limit: Duration,
        retry: Retry,
    ) -> Result<(HostPort, RemoteReply), Error> {
        let (command, until) = (command.into(), now() + limit);
        let (attempts, resend) = match retry {
            Retry::Idempotent => (RUN_ATTEMPTS, Resend::OverNewConnection),
            Retry::Never => (1, Resend::Never),
        };
        let known_until = until.min(now() + self.server_selection_timeout);
        let (mut attempt, mut pause) = (1, UNKNOWN_SHARD_PAUSE);
        loop {
            let selected_until = until.min(now() + self.server_selection_timeout);
            let host = self
                .select_until(set, preference, None, selected_until)
                .await?;
            let rest = until.saturating_since(now());
            let outcome = self.run_at(set, &host, command, rest, resend).await;
            if is_unknown_shard(&outcome) && now() + pause < known_until {
                sleep(pause).await;
                pause = (pause * 2).min(MAX_UNKNOWN_SHARD_PAUSE);
                continue;
            }
            let is_last = attempt == attempts || now() >= until;
            attempt += 1;
            match outcome {
                Ok(reply) if is_last || !is_retriable(write_concern_code(&reply)) => {
                    return Ok((host, reply));
                }
                Ok(_) => {}
                Err(error) => {
                    let error = error.into_error();
                    if is_last || !is_retriable(Some(error.code)) {
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// Whether a member has refused a command since it is of no shard that it knows of.
fn is_unknown_shard(outcome: &Result<RemoteReply, RemoteError>) -> bool {
    match outcome {
        Err(RemoteError::Refused(error)) => error.code == ErrorCode::SHARDING_STATE_NOT_INITIALIZED,
        _ => false,
    }
}

fn is_retriable(code: Option<ErrorCode>) -> bool {
    code.is_some_and(|code| code.is(Category::RETRIABLE))
}

/// The code of the error with which a write was done, but not acknowledged.
fn write_concern_code(reply: &RemoteReply) -> Option<ErrorCode> {
    let error = get(reply.body(), "writeConcernError")?.as_document()?;
    get(error, "code").and_then(i32_clamped).map(ErrorCode)
}

/// What the outcome of a command says of the member that it was sent to.
fn failure_of(outcome: &Result<RemoteReply, RemoteError>) -> Option<(Failure, String)> {
    match outcome {
        Ok(reply) => {
            let failure = Failure::of_code(write_concern_code(reply)?, reply.body())?;
            Some((failure, "a write concern has failed".to_owned()))
        }
        Err(RemoteError::Refused(error)) => {
            let empty = RawDocument::from_bytes(&[5, 0, 0, 0, 0]).ok()?;
            let reply = error.extra.as_ref().map_or(empty, |reply| &***reply);
            let failure = Failure::of_code(error.code, reply)?;
            Some((failure, error.message.clone()))
        }
        // Too many of this node's commands wait for one: that says nothing of the member.
        Err(RemoteError::NoConnection(error))
            if error.code == ErrorCode::POOLED_CONNECTION_ACQUISITION_REJECTED =>
        {
            None
        }
        Err(RemoteError::NoConnection(error)) => Some((Failure::TimedOut, error.message.clone())),
        Err(error @ RemoteError::Broken(why)) => {
            let failure = match why.kind() {
                io::ErrorKind::TimedOut => Failure::TimedOut,
                _ => Failure::Network,
            };
            Some((failure, error.to_string()))
        }
        Err(error @ RemoteError::Protocol(_)) => Some((Failure::Network, error.to_string())),
    }
}
