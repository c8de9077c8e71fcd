//! The quorum check: before an operator's configuration is taken, its members are asked whether
//! they could take it.

use pinion_bson::RawDocumentBuf;
use pinion_wire::{Error, ErrorCode, Result};

use super::change::Change;
use super::reconfig::{Kind, RequestedChange};
use super::{CommandId, Node, Pending};
use crate::config::Config;
use crate::message::{HeartbeatResponse, Request};

/// The members that agree with a change, as far as they have answered.
#[derive(Debug, Default)]
pub(super) struct Quorum {
    waiting: Vec<usize>,
    responded: Vec<usize>,
    failed: Vec<(usize, String)>,
    veto: Option<Error>,
}

impl Node {
    pub(super) fn check_quorum(
        &mut self,
        id: CommandId,
        config: Config,
        self_index: usize,
        kind: Kind,
    ) {
        let others = (0..config.members.len()).filter(|at| *at != self_index);
        let others: Vec<usize> = match kind {
            Kind::Forced => Vec::new(),
            Kind::Initiate | Kind::Reconfig => others.collect(),
        };
        let me = &config.members[self_index];
        let mut request = self.heartbeat_request();
        request.check_empty = kind == Kind::Initiate;
        request.config = config.config_version();
        request.sender = Some(me.host.clone());
        request.sender_id = Some(me.id);
        let timeout_ms = super::positive(config.settings.heartbeat_timeout_secs);
        let timeout_ms = timeout_ms.saturating_mul(1000);
        for at in &others {
            let host = config.members[*at].host.clone();
            let request = Request::Heartbeat(request.clone());
            self.send(host, request, timeout_ms, Pending::Quorum { index: *at });
        }
        self.change = Some(Change::Requested(RequestedChange {
            id,
            config,
            self_index,
            kind,
            term: self.term,
            quorum: Some(Quorum {
                waiting: others,
                responded: vec![self_index],
                ..Quorum::default()
            }),
        }));
        self.judge_quorum();
    }

    pub(super) fn quorum_response(&mut self, index: usize, reply: Result<RawDocumentBuf>) {
        let Some(Change::Requested(asked)) = &mut self.change else {
            panic!("a change waits for the answers that it asked for");
        };
        asked.hear(index, reply);
        self.judge_quorum();
    }

    /// Continues the change when enough have agreed, and answers when it is clear that they will
    /// not.
    fn judge_quorum(&mut self) {
        let Some(Change::Requested(asked)) = &self.change else {
            panic!("a quorum is asked for a change");
        };
        let Some(mut verdict) = asked.verdict() else {
            return;
        };
        if asked.kind == Kind::Reconfig && (!self.is_writable_primary() || self.term != asked.term)
        {
            verdict = Err(self.not_primary_for_reconfig());
        }
        self.forget_pending(|pending| matches!(pending, Pending::Quorum { .. }));
        let Some(Change::Requested(mut asked)) = self.change.take() else {
            panic!("a quorum is asked for a change");
        };
        match verdict {
            Err(error) => self.reply(asked.id, Err(error)),
            Ok(()) => {
                asked.quorum = None;
                self.store_requested(asked);
            }
        }
    }
}

impl RequestedChange {
    fn hear(&mut self, index: usize, reply: Result<RawDocumentBuf>) {
        let quorum = self.quorum.as_mut().expect("the quorum is not complete");
        quorum.waiting.retain(|at| *at != index);
        let host = &self.config.members[index].host;
        let version = self.config.version;
        match reply.and_then(|reply| HeartbeatResponse::parse(&reply)) {
            Err(error) => {
                if error.code == ErrorCode::INCONSISTENT_REPLICA_SET_NAMES {
                    quorum.veto = Some(Config::incompatible(format!(
                        "Our set name did not match that of {host}"
                    )));
                }
                quorum.failed.push((index, error.message));
            }
            Ok(response) if response.has_data == Some(true) && self.kind == Kind::Initiate => {
                quorum.veto = Some(Error::new(
                    ErrorCode::CANNOT_INITIALIZE_NODE_WITH_DATA,
                    format!("'{host}' has data already, cannot initiate set."),
                ));
            }
            Ok(response) if response.config_version >= version => {
                quorum.veto = Some(Config::incompatible(format!(
                    "Our config version of {version} is no larger than the version on {host}, which is {}",
                    response.config_version
                )));
            }
            Ok(_) => quorum.responded.push(index),
        }
    }

    /// `None` while others may still answer.
    fn verdict(&self) -> Option<Result<()>> {
        let quorum = self.quorum.as_ref().expect("the quorum is not complete");
        if let Some(veto) = &quorum.veto {
            return Some(Err(veto.clone()));
        }
        let config = &self.config;
        let members = quorum.responded.iter().map(|at| &config.members[*at]);
        let votes = members.clone().filter(|member| member.is_voter()).count();
        let electable = members.clone().any(|member| member.is_electable());
        let all = quorum.responded.len() == config.members.len();
        let enough = match self.kind {
            Kind::Initiate => all,
            Kind::Reconfig => votes >= config.majority_votes() && electable,
            Kind::Forced => true,
        };
        if enough {
            return Some(Ok(()));
        }
        if !quorum.waiting.is_empty() {
            return None;
        }
        let failed = quorum.failed.iter();
        let failed =
            failed.map(|(at, why)| format!("{} failed with {why}", config.members[*at].host));
        let failed = failed.collect::<Vec<_>>().join(", ");
        let message = match self.kind {
            Kind::Initiate => format!(
                "replSetInitiate quorum check failed because not all proposed set members responded affirmatively: {failed}"
            ),
            Kind::Reconfig | Kind::Forced if votes < config.majority_votes() => {
                let hosts = members.filter(|member| member.is_voter());
                let hosts: Vec<String> = hosts.map(|member| member.host.to_string()).collect();
                format!(
                    "replSetReconfig quorum check failed because not enough voting nodes responded; required {} but only the following {votes} voting nodes responded: {}; the following nodes did not respond affirmatively: {failed}",
                    config.majority_votes(),
                    hosts.join(", ")
                )
            }
            Kind::Reconfig | Kind::Forced => format!(
                "replSetReconfig quorum check failed because no electable nodes responded; the following nodes did not respond affirmatively: {failed}"
            ),
        };
        Some(Err(Error::new(ErrorCode::NODE_NOT_FOUND, message)))
    }
}
