//! `_shardsvrRefineCollectionShardKey`: a collection gets a finer shard key, under which every
//! chunk keeps its documents.
//!
//! Writes are kept out of all shards that own chunks while their indexes are looked at, and
//! everything from the commit at the config servers until these shards have the new table: so no
//! index that the key needs is dropped meanwhile, and no array gets into one of its fields.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid};
use pinion_query::{document_text, series_of};
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

use super::action::{Action, AskedShards, Facts, LocalKind, Outcome, ShardReply, flush};
use super::block::{BlockType, ParticipantBlock};
use super::create_request::check_namespace;
use super::documents::{CriticalSectionDocument, DdlId};
use super::operation::{ABORT, Operation, Phase, PhaseEnd, Progress};
use super::refine_request::{IndexCheck, RefineRequest, check_indexes};
use crate::config::KeyRefinement;
use crate::documents::CollectionDocument;
use crate::key::ShardKeyPattern;
use crate::shard_id::ShardId;
use crate::values::append_uuid;
use crate::version::Incarnation;

const ACQUIRE: &str = "acquireCriticalSection";
const CHECK: &str = "checkIndexes";
const COMMIT: &str = "commit";
const INSTALL: &str = "installRoutingTable";
const LEAVE: &str = "exitCriticalSection";

const PHASES: [Phase; 5] = [
    Phase {
        name: ACQUIRE,
        end: PhaseEnd::Aborts,
    },
    Phase {
        name: CHECK,
        end: PhaseEnd::Aborts,
    },
    Phase {
        name: COMMIT,
        end: PhaseEnd::AbortsIfRefused,
    },
    Phase {
        name: INSTALL,
        end: PhaseEnd::Never,
    },
    Phase {
        name: LEAVE,
        end: PhaseEnd::Never,
    },
];

#[derive(Debug)]
pub(super) struct RefineShardKey {
    id: DdlId,
    ns: Namespace,
    request: RefineRequest,
    plan: Option<Plan>,
}

/// Decided before anything is done.
#[derive(Clone, Debug, PartialEq)]
struct Plan {
    uuid: Uuid,
    was: Incarnation,
    key_was: RawDocumentBuf,
    of: Incarnation,
    now_ms: i64,
    is_unique: bool,
    primary: ShardId,
    /// The other shards that own chunks.
    others: Vec<ShardId>,
}

impl RefineShardKey {
    pub(super) fn new(
        id: &DdlId,
        request: &RawDocument,
        state: &RawDocument,
    ) -> Result<RefineShardKey> {
        let ns = Namespace::parse_sought(&id.namespace)?;
        if series_of(&ns).is_none() {
            check_namespace(&ns)?;
        }
        let plan = pinion_bson::get(state, "uuid").map(|_| Plan::parse(state));
        Ok(RefineShardKey {
            id: id.clone(),
            ns,
            request: RefineRequest::parse(request)?,
            plan: plan.transpose()?,
        })
    }

    fn plan(&self) -> &Plan {
        self.plan.as_ref().expect("it was planned before")
    }

    fn look(&self, expected: Option<Uuid>) -> Action {
        Action::Look {
            ns: self.ns.clone(),
            expected,
        }
    }

    fn section(&self, blocks_reads: bool) -> Action {
        Action::EnterSection(CriticalSectionDocument {
            namespace: self.ns.to_string(),
            reason: self.id.clone(),
            blocks_reads,
            coordinator: None,
            open: Vec::new(),
            to: None,
        })
    }

    fn leave(&self) -> Action {
        Action::LeaveSection {
            namespace: self.ns.to_string(),
        }
    }

    fn block(&self, block: BlockType, phase: &str) -> Action {
        Action::BlockShards {
            shards: AskedShards::These(self.plan().others.clone()),
            block: ParticipantBlock {
                ns: self.ns.clone(),
                block,
                reason: self.id.clone(),
                phase: phase.to_owned(),
                to: None,
            },
        }
    }

    fn index_check(&self) -> IndexCheck {
        let plan = self.plan();
        IndexCheck {
            uuid: plan.uuid,
            key: self.request.key.clone(),
            is_unique: plan.is_unique,
            enforces_uniqueness: self.request.enforces_uniqueness,
        }
    }

    fn check_others(&self) -> Action {
        Action::GatherShards {
            shards: self.plan().others.clone(),
            command: self.index_check().to_command(&self.ns),
        }
    }

    fn commit(&self) -> Action {
        let plan = self.plan();
        let mut shards = plan.others.clone();
        shards.push(plan.primary.clone());
        let refinement = KeyRefinement {
            ns: self.ns.clone(),
            uuid: plan.uuid,
            key: self.request.key.clone(),
            was: plan.was,
            of: plan.of,
            now_ms: plan.now_ms,
            shards,
        };
        Action::Configure(refinement.to_command())
    }

    fn flush_others(&self) -> Action {
        Action::AskShards {
            shards: AskedShards::These(self.plan().others.clone()),
            command: flush(&self.ns),
        }
    }

    /// What change streams show of it.
    fn note_event(&self) -> Action {
        let plan = self.plan();
        let mut out = DocBuilder::new();
        out.append("refineCollectionShardKey", self.ns.as_str())
            .append("shardKey", &*self.request.key.to_bson())
            .append("oldShardKey", &*plan.key_was);
        Action::NoteEvent {
            ns: self.ns.clone(),
            uuid: plan.uuid,
            event: out.finish(),
        }
    }

    /// Decides all but the shards.
    fn take_first_look(&mut self, facts: &Facts) -> Result<Progress> {
        let known = sharded(&self.ns, facts)?;
        let wanted = self.request.key.to_bson();
        if pinion_bson::compare_documents(&known.key, &wanted).is_eq() {
            return Ok(Progress::Finish(RawDocumentBuf::new()));
        }
        if !self
            .request
            .key
            .extends(&ShardKeyPattern::parse(&known.key)?)
        {
            return Err(Error::new(
                ErrorCode::INVALID_OPTIONS,
                format!(
                    "refineCollectionShardKey shard key {} does not extend the current shard key {}",
                    document_text(&wanted),
                    document_text(&known.key)
                ),
            ));
        }
        self.plan = Some(Plan {
            uuid: known.uuid.ok_or_else(|| {
                Error::internal(format!("the sharded collection {} has no UUID", self.ns))
            })?,
            was: known.of,
            key_was: known.key.clone(),
            of: Incarnation {
                epoch: facts.fresh.epoch,
                timestamp: facts.fresh.timestamp,
            },
            now_ms: facts.fresh.now_ms,
            is_unique: known.is_unique,
            primary: facts.me.clone(),
            others: Vec::new(),
        });
        check_indexes(&self.ns, &self.index_check(), &facts.local)?;
        Ok(Progress::Continue)
    }

    /// The same once no write can change it.
    fn take_second_look(&self, facts: &Facts) -> Result<()> {
        let known = sharded(&self.ns, facts)?;
        if !known.of.is_same(self.plan().was) {
            return Err(Error::new(
                ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                format!("the collection {} was changed meanwhile", self.ns),
            ));
        }
        check_indexes(&self.ns, &self.index_check(), &facts.local)
    }
}

impl Operation for RefineShardKey {
    fn phases(&self) -> &'static [Phase] {
        &PHASES
    }

    fn state(&self) -> RawDocumentBuf {
        self.plan
            .as_ref()
            .map_or_else(RawDocumentBuf::new, Plan::to_bson)
    }

    fn check(&self, at: usize) -> Option<Action> {
        match at {
            0 => Some(self.look(self.request.uuid)),
            1 => Some(Action::ListOwners {
                uuid: self.plan().uuid,
            }),
            _ => None,
        }
    }

    fn take_check(&mut self, outcome: Outcome) -> Result<Progress> {
        match outcome {
            Outcome::Facts(facts) => self.take_first_look(&facts),
            Outcome::Shards(mut owners) => {
                let plan = self.plan.as_mut().expect("a look came before");
                owners.retain(|owner| *owner != plan.primary);
                plan.others = owners;
                Ok(Progress::Continue)
            }
            _ => Err(Error::internal("a look gives facts")),
        }
    }

    fn action(&self, phase: &str, at: usize) -> Option<Action> {
        Some(match (phase, at) {
            (ACQUIRE, 0) => self.section(false),
            (ACQUIRE, 1) => self.block(BlockType::Writes, ACQUIRE),
            (CHECK, 0) => self.look(Some(self.plan().uuid)),
            (CHECK, 1) => self.check_others(),
            (COMMIT, 0) => self.block(BlockType::ReadsAndWrites, COMMIT),
            (COMMIT, 1) => self.section(true),
            (COMMIT, 2) => self.commit(),
            (INSTALL, 0) => Action::InstallTable(self.ns.clone()),
            (INSTALL, 1) => self.flush_others(),
            (INSTALL, 2) => self.note_event(),
            (LEAVE, 0) => self.block(BlockType::Unblock, LEAVE),
            (LEAVE, 1) => self.leave(),
            _ => return None,
        })
    }

    fn take(&mut self, _: &str, outcome: Outcome) -> Result<()> {
        match outcome {
            Outcome::Facts(facts) => self.take_second_look(&facts),
            Outcome::Replies(replies) => all_agree(replies),
            _ => Ok(()),
        }
    }

    fn undo(&self, at: usize) -> Option<Action> {
        match at {
            0 => Some(self.block(BlockType::Unblock, ABORT)),
            1 => Some(self.leave()),
            _ => None,
        }
    }

    fn reply(&self) -> RawDocumentBuf {
        RawDocumentBuf::new()
    }
}

/// What the config servers have of the collection.
fn sharded<'f>(ns: &Namespace, facts: &'f Facts) -> Result<&'f CollectionDocument> {
    match (&facts.sharded, facts.local.kind) {
        (Some((known, _)), _) => Ok(known),
        (None, LocalKind::View) => Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
            format!("Namespace {ns} is a view, not a collection"),
        )),
        (None, LocalKind::Absent | LocalKind::Collection | LocalKind::TimeSeries) => {
            Err(Error::new(
                ErrorCode::NAMESPACE_NOT_SHARDED,
                format!("refineCollectionShardKey namespace {ns} is not sharded"),
            ))
        }
    }
}

fn all_agree(replies: Vec<ShardReply>) -> Result<()> {
    for (shard, reply) in replies {
        reply.map_err(|error| error.context(format!("on shard {shard}")))?;
    }
    Ok(())
}

impl Plan {
    fn parse(state: &RawDocument) -> Result<Plan> {
        let reader = FieldReader::object(Path::root("state"), state)?;
        let missing = |name| missing_field(reader.path().field(name));
        let others = reader.array("others")?;
        let others = pinion_bson::values(others).filter_map(|shard| shard.as_str());
        let others = others.map(ShardId::new).collect();
        Ok(Plan {
            uuid: reader
                .opt_uuid("uuid")?
                .map(Uuid::from_bytes)
                .ok_or_else(|| missing("uuid"))?,
            was: Incarnation::parse(reader.path().field("was"), reader.doc("was")?)?,
            key_was: reader.doc("keyWas")?.to_owned(),
            of: Incarnation::parse(reader.path().field("of"), reader.doc("of")?)?,
            now_ms: reader.i64("nowMs")?,
            is_unique: reader.bool("unique")?,
            primary: ShardId::new(reader.str("primary")?),
            others,
        })
    }

    fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        append_uuid(&mut out, "uuid", self.uuid);
        self.was.append_to(&mut out, "was");
        out.append("keyWas", &*self.key_was);
        self.of.append_to(&mut out, "of");
        out.append("nowMs", self.now_ms)
            .append("unique", self.is_unique)
            .append("primary", self.primary.as_str());
        out.start_array("others");
        for shard in &self.others {
            out.push(shard.as_str());
        }
        out.end();
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{ObjectId, rawdoc};
    use pinion_clock::Timestamp;

    use super::*;

    #[test]
    fn plans() {
        let of = |number| Incarnation {
            epoch: ObjectId::from_bytes([number; 12]),
            timestamp: Timestamp::new(number.into(), 1),
        };
        let plan = Plan {
            uuid: Uuid::from_bytes([7; 16]),
            was: of(1),
            key_was: rawdoc! { "a": 1 },
            of: of(2),
            now_ms: 5,
            is_unique: true,
            primary: "s0".into(),
            others: vec!["s1".into(), "s2".into()],
        };
        assert_eq!(Plan::parse(&plan.to_bson()).ok(), Some(plan));
    }
}
