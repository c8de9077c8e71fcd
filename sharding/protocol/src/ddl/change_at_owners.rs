//! `_shardsvrCollMod` and `_shardsvrDropIndexes`: a change of a collection on its primary shard and
//! on every shard that owns chunks.
//!
//! All shards look whether they could do it before one does. The primary shard is the first that
//! does: what it refuses ends the definition, and nothing has changed. What another shard refuses
//! afterwards stands in the reply, as nothing brings back what the others have done.
//!
//! The buckets of a time series are changed behind all else, and in another way.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Uuid};
use pinion_query::document_text;
use pinion_wire::idl::{FieldReader, Namespace, Path, i64_exact, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

use super::action::{Action, Facts, Outcome, ShardReply};
use super::bucket_change::{self, BLOCK, BucketChange, OfDefinition, UNBLOCK, other_changes};
use super::change_request::{
    OwnerChange, ParticipantChange, append_replies, named_indexes, replies_in,
};
use super::documents::{DdlId, OperationKind};
use super::operation::{Operation, Phase, PhaseEnd, Progress};
use crate::shard_id::ShardId;
use crate::values::append_uuid;

const CHECK: &str = "checkOnShards";
const HERE: &str = "changeOnCoordinator";
const THERE: &str = "changeOnParticipants";

const PHASES: [Phase; 3] = [
    Phase {
        name: CHECK,
        end: PhaseEnd::Aborts,
    },
    Phase {
        name: HERE,
        end: PhaseEnd::Aborts,
    },
    Phase {
        name: THERE,
        end: PhaseEnd::Never,
    },
];

/// Where buckets alone are changed.
const PHASES_OF_BUCKETS: [Phase; 5] = {
    let [block, commit, update, unblock] = bucket_change::PHASES;
    [PHASES[0], block, commit, update, unblock]
};

/// Where other things are changed too.
const PHASES_OF_ALL: [Phase; 7] = {
    let [block, commit, update, unblock] = bucket_change::PHASES;
    let [check, here, there] = PHASES;
    [check, here, there, block, commit, update, unblock]
};

#[derive(Debug)]
pub(super) struct ChangeAtOwners {
    id: DdlId,
    ns: Namespace,
    request: OwnerChange,
    plan: Option<Plan>,
    /// What the shards that were asked for the change have answered.
    replies: Vec<ShardReply>,
}

#[derive(Clone, Debug, PartialEq)]
struct Plan {
    uuid: Uuid,
    run: Uuid,
    me: ShardId,
    /// The other shards that own chunks.
    others: Vec<ShardId>,
    buckets: Option<BucketChange>,
}

impl ChangeAtOwners {
    pub(super) fn new(
        id: &DdlId,
        request: &RawDocument,
        state: &RawDocument,
    ) -> Result<ChangeAtOwners> {
        let plan = pinion_bson::get(state, "uuid").map(|_| Plan::parse(state));
        Ok(ChangeAtOwners {
            id: id.clone(),
            ns: Namespace::parse_sought(&id.namespace)?,
            request: OwnerChange::parse(request)?,
            plan: plan.transpose()?,
            replies: replies_in(state)?.unwrap_or_default(),
        })
    }

    fn plan(&self) -> &Plan {
        self.plan.as_ref().expect("a look came before")
    }

    /// The plan, and what it has of buckets.
    fn bucket_change(&self) -> Option<(OfDefinition<'_>, &BucketChange)> {
        let plan = self.plan();
        let of = OfDefinition {
            id: &self.id,
            ns: &self.ns,
            uuid: plan.uuid,
            run: plan.run,
            me: &plan.me,
            others: &plan.others,
        };
        Some((of, plan.buckets.as_ref()?))
    }

    /// What is changed in ways other than buckets are.
    fn other_changes(&self) -> Option<RawDocumentBuf> {
        match self.plan().buckets {
            Some(_) => other_changes(&self.request.command),
            None => Some(self.request.command.clone()),
        }
    }

    fn at_shards(&self, shards: Vec<ShardId>, phase: &str) -> Action {
        let plan = self.plan();
        let is_check = phase == CHECK;
        let buckets = plan.buckets.as_ref().filter(|_| is_check);
        let command = self.other_changes().filter(|_| !is_check);
        let part = ParticipantChange {
            uuid: plan.uuid,
            command: command.unwrap_or_else(|| self.request.command.clone()),
            series: buckets.map(|buckets| buckets.to().clone()),
            is_check,
            reason: self.id.clone(),
            phase: phase.to_owned(),
            run: plan.run,
            from: plan.me.clone(),
        };
        Action::GatherShards {
            shards,
            command: part.to_command(&self.ns),
        }
    }

    fn take_facts(&mut self, facts: &Facts) -> Result<()> {
        let known = facts.sharded.as_ref().map(|(known, _)| known);
        let Some((known, uuid)) = known.and_then(|known| Some((known, known.uuid?))) else {
            return Err(Error::new(
                ErrorCode::NAMESPACE_NOT_SHARDED,
                format!("the collection {} is not sharded", self.ns),
            ));
        };
        let buckets = match self.id.kind {
            OperationKind::CollMod => {
                BucketChange::decide(known, &facts.shards, &self.request.command)?
            }
            _ => None,
        };
        self.plan = Some(Plan {
            uuid,
            run: facts.fresh.uuid,
            me: facts.me.clone(),
            others: Vec::new(),
            buckets,
        });
        Ok(())
    }

    fn check_replies(&self, replies: Vec<ShardReply>) -> Result<()> {
        let replies = all_or_first_error(replies)?;
        match self.id.kind {
            OperationKind::DropIndexes => self.check_found(&replies),
            _ => Ok(()),
        }
    }

    /// Refuses indexes that no shard has.
    fn check_found(&self, replies: &[RawDocumentBuf]) -> Result<()> {
        for (at, index) in named_indexes(&self.request.command).into_iter().enumerate() {
            if replies.iter().all(|reply| is_missing(reply, at)) {
                let message = match index {
                    RawBsonRef::Document(key) => {
                        format!("can't find index with key: {}", document_text(key))
                    }
                    name => format!(
                        "index not found with name [{}]",
                        name.as_str().unwrap_or_default()
                    ),
                };
                return Err(Error::new(ErrorCode::INDEX_NOT_FOUND, message));
            }
        }
        Ok(())
    }
}

/// Whether a shard lists the index of this place as one that it does not have.
fn is_missing(reply: &RawDocument, at: usize) -> bool {
    let Some(RawBsonRef::Array(missing)) = pinion_bson::get(reply, "missing") else {
        return false;
    };
    pinion_bson::values(missing).any(|place| i64_exact(place) == Some(at as i64))
}

/// # Errors
/// The first one, with what each shard has answered beside it.
fn all_or_first_error(replies: Vec<ShardReply>) -> Result<Vec<RawDocumentBuf>> {
    let Some((_, Err(first))) = replies.iter().find(|(_, reply)| reply.is_err()) else {
        return replies.into_iter().map(|(_, reply)| reply).collect();
    };
    let mut extra = DocBuilder::new();
    append_replies(&mut extra, &replies);
    Err(Error::new(first.code, first.message.clone()).with_extra(extra.finish()))
}

impl Operation for ChangeAtOwners {
    fn phases(&self) -> &'static [Phase] {
        match self.plan().buckets {
            None => &PHASES,
            Some(_) if self.other_changes().is_none() => &PHASES_OF_BUCKETS,
            Some(_) => &PHASES_OF_ALL,
        }
    }

    fn state(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        if let Some(plan) = &self.plan {
            plan.append_to(&mut out);
        }
        if !self.replies.is_empty() {
            append_replies(&mut out, &self.replies);
        }
        out.finish()
    }

    fn check(&self, at: usize) -> Option<Action> {
        match at {
            0 => Some(Action::Look {
                ns: self.ns.clone(),
                expected: self.request.uuid,
            }),
            1 => Some(Action::ListOwners {
                uuid: self.plan().uuid,
            }),
            _ => None,
        }
    }

    fn take_check(&mut self, outcome: Outcome) -> Result<Progress> {
        match outcome {
            Outcome::Facts(facts) => self.take_facts(&facts)?,
            Outcome::Shards(mut owners) => {
                let plan = self.plan.as_mut().expect("a look came before");
                owners.retain(|owner| *owner != plan.me);
                if let Some(buckets) = &mut plan.buckets {
                    buckets.take_owners(&owners, &plan.me);
                }
                plan.others = owners;
            }
            _ => return Err(Error::internal("a look gives facts")),
        }
        Ok(Progress::Continue)
    }

    fn action(&self, phase: &str, at: usize) -> Option<Action> {
        let plan = self.plan();
        let all = || {
            let mut all = plan.others.clone();
            all.push(plan.me.clone());
            all
        };
        Some(match (phase, at) {
            (CHECK, 0) => self.at_shards(all(), CHECK),
            (HERE, 0) => self.at_shards(vec![plan.me.clone()], HERE),
            (THERE, 0) => self.at_shards(plan.others.clone(), THERE),
            (CHECK | HERE | THERE, _) => return None,
            _ => {
                let (of, buckets) = self.bucket_change()?;
                return buckets.action(&of, phase, at);
            }
        })
    }

    fn take(&mut self, phase: &str, outcome: Outcome) -> Result<()> {
        let replies = match outcome {
            Outcome::Replies(replies) => replies,
            _ if [CHECK, HERE, THERE].contains(&phase) => {
                return Err(Error::internal("shards give replies"));
            }
            _ => return Ok(()),
        };
        match phase {
            CHECK => self.check_replies(replies),
            BLOCK => all_or_first_error(replies).map(drop),
            // They own nothing: what they refuse is of no consequence.
            UNBLOCK => Ok(()),
            HERE => {
                let shards: Vec<ShardId> = replies.iter().map(|(shard, _)| shard.clone()).collect();
                let replies = all_or_first_error(replies)?;
                let here = shards.into_iter().zip(replies.into_iter().map(Ok));
                self.replies = here.collect();
                Ok(())
            }
            _ => {
                self.replies.extend(replies);
                Ok(())
            }
        }
    }

    fn undo(&self, at: usize) -> Option<Action> {
        let (of, _) = self.bucket_change()?;
        BucketChange::undo(&of, at)
    }

    fn reply(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        match &self.plan {
            // Where nothing else is changed, each has done all of it.
            Some(plan) if self.replies.is_empty() => {
                let all = plan.others.iter().chain([&plan.me]);
                let all = all.map(|shard| (shard.clone(), Ok(RawDocumentBuf::new())));
                append_replies(&mut out, &all.collect::<Vec<ShardReply>>());
            }
            _ => append_replies(&mut out, &self.replies),
        }
        out.finish()
    }
}

impl Plan {
    fn parse(state: &RawDocument) -> Result<Plan> {
        let reader = FieldReader::object(Path::root("state"), state)?;
        let uuid = |name| {
            let uuid = reader.opt_uuid(name)?.map(Uuid::from_bytes);
            uuid.ok_or_else(|| missing_field(reader.path().field(name)))
        };
        let others = pinion_bson::values(reader.array("others")?);
        let others = others.filter_map(|shard| shard.as_str()).map(ShardId::new);
        Ok(Plan {
            uuid: uuid("uuid")?,
            run: uuid("run")?,
            me: ShardId::new(reader.str("me")?),
            others: others.collect(),
            buckets: BucketChange::parse(&reader)?,
        })
    }

    fn append_to(&self, out: &mut DocBuilder) {
        append_uuid(out, "uuid", self.uuid);
        append_uuid(out, "run", self.run);
        out.append("me", self.me.as_str()).start_array("others");
        for shard in &self.others {
            out.push(shard.as_str());
        }
        out.end();
        if let Some(buckets) = &self.buckets {
            buckets.append_to(out);
        }
    }
}
