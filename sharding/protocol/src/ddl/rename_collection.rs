//! `_shardsvrRenameCollection`: a collection gets another name on all shards, where it or the
//! collection that has the name is sharded.
//!
//! The gates of both names are closed on every shard from before the commit at the config servers
//! until all shards have renamed what they have of the collection. MongoDB's phases rename first
//! and commit then; here the commit comes first, so that a rename that the config servers refuse
//! has changed nothing. The primary shard renames last: its event is the one that change streams
//! show, and no shard has the old name any more when they do.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid};
use pinion_wire::idl::{FieldReader, Namespace, Path};
use pinion_wire::{Error, ErrorCode, Result};

use super::action::{Action, AskedShards, CollectionFacts, Facts, LocalKind, Outcome};
use super::block::{BlockType, ParticipantBlock};
use super::create_request::check_length;
use super::documents::{CriticalSectionDocument, DdlId};
use super::operation::{ABORT, Operation, Phase, PhaseEnd, Progress};
use super::rename_part::RenamePart;
use super::rename_request::RenameRequest;
use crate::config::{MetadataRename, ShardedEntry, append_incarnation, incarnation};
use crate::values::append_uuid;
use crate::version::Incarnation;

const BLOCK: &str = "blockCRUD";
const COMMIT: &str = "renameMetadata";
const RENAME_THERE: &str = "renameOnParticipants";
const RENAME_HERE: &str = "renameOnCoordinator";
const UNBLOCK: &str = "unblockCRUD";

const PHASES: [Phase; 5] = [
    Phase {
        name: BLOCK,
        end: PhaseEnd::Aborts,
    },
    Phase {
        name: COMMIT,
        end: PhaseEnd::AbortsIfRefused,
    },
    Phase {
        name: RENAME_THERE,
        end: PhaseEnd::Never,
    },
    Phase {
        name: RENAME_HERE,
        end: PhaseEnd::Never,
    },
    Phase {
        name: UNBLOCK,
        end: PhaseEnd::Never,
    },
];

/// In the reply where neither collection is sharded, and nothing was done.
pub const UNSHARDED: &str = "unsharded";

#[derive(Debug)]
pub(super) struct RenameCollection {
    id: DdlId,
    from: Namespace,
    request: RenameRequest,
    /// What has the old name, once it was looked at.
    source: Option<Box<Facts>>,
    decided: Option<Decided>,
}

/// What is renamed.
#[derive(Clone, Copy, Debug)]
struct Decided {
    uuid: Uuid,
    source: Option<ShardedEntry>,
    target: Option<ShardedEntry>,
    new: Incarnation,
}

impl RenameCollection {
    pub(super) fn new(
        id: &DdlId,
        request: &RawDocument,
        state: &RawDocument,
    ) -> Result<RenameCollection> {
        let reader = FieldReader::object(Path::root("state"), state)?;
        let decided = match reader.opt_uuid("uuid")? {
            Some(uuid) => Some(Decided {
                uuid: Uuid::from_bytes(uuid),
                source: ShardedEntry::parse(&reader, "source")?,
                target: ShardedEntry::parse(&reader, "target")?,
                new: incarnation(&reader)?,
            }),
            None => None,
        };
        Ok(RenameCollection {
            id: id.clone(),
            from: Namespace::parse_sought(&id.namespace)?,
            request: RenameRequest::parse(request)?,
            source: None,
            decided,
        })
    }

    fn to(&self) -> &Namespace {
        &self.request.to
    }

    fn decided(&self) -> Decided {
        self.decided.expect("it is decided before its first phase")
    }

    fn close(&self) -> Action {
        Action::EnterSection(CriticalSectionDocument {
            namespace: self.from.to_string(),
            reason: self.id.clone(),
            blocks_reads: true,
            coordinator: None,
            open: Vec::new(),
            to: Some(self.to().clone()),
        })
    }

    fn open(&self) -> Action {
        Action::LeaveSection {
            namespace: self.from.to_string(),
        }
    }

    fn on_others(&self, block: BlockType, phase: &str) -> Action {
        Action::BlockShards {
            shards: AskedShards::AllOthers,
            block: ParticipantBlock {
                ns: self.from.clone(),
                to: Some(self.to().clone()),
                block,
                reason: self.id.clone(),
                phase: phase.to_owned(),
            },
        }
    }

    fn commit(&self) -> Action {
        let decided = self.decided();
        let rename = MetadataRename {
            from: self.from.clone(),
            to: self.to().clone(),
            source: decided.source,
            target: decided.target,
            new: decided.new,
        };
        Action::Configure(rename.to_command())
    }

    fn part(&self, phase: &str) -> RenamePart {
        RenamePart {
            from: self.from.clone(),
            to: self.to().clone(),
            uuid: self.decided().uuid,
            reason: self.id.clone(),
            phase: phase.to_owned(),
        }
    }

    /// Decides by what has the two names.
    fn decide(&mut self, source: &Facts, target: &Facts) -> Result<Progress> {
        let entry = |facts: &Facts| {
            let known = facts.sharded.as_ref();
            known.and_then(|(known, _)| ShardedEntry::of(known))
        };
        let (sharded, target_sharded) = (entry(source), entry(target));
        let of_target = target_sharded.map(|entry| entry.uuid).or(target.local.uuid);
        let is_gone = sharded.is_none() && source.local.kind == LocalKind::Absent;
        if is_gone && of_target.is_some() && of_target == self.request.known_uuid {
            return Ok(Progress::Finish(self.reply()));
        }
        if sharded.is_none() && target_sharded.is_none() {
            let mut reply = DocBuilder::new();
            reply.append(UNSHARDED, true);
            return Ok(Progress::Finish(reply.finish()));
        }
        self.check_source(sharded.is_some(), &source.local)?;
        self.check_target(&target.local, target_sharded.is_some())?;
        if !target.zones.is_empty() {
            return Err(Error::new(
                ErrorCode::COMMAND_FAILED,
                format!(
                    "Can't rename to target collection {} because it must not have associated tags",
                    self.to()
                ),
            ));
        }
        let uuid = sharded.map(|entry| entry.uuid).or(source.local.uuid);
        self.decided = Some(Decided {
            uuid: uuid.ok_or_else(|| self.absent())?,
            source: sharded,
            target: target_sharded,
            new: Incarnation {
                epoch: target.fresh.epoch,
                timestamp: target.fresh.timestamp,
            },
        });
        Ok(Progress::Continue)
    }

    fn absent(&self) -> Error {
        Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("Collection {} doesn't exist.", self.from),
        )
    }

    fn check_source(&self, is_sharded: bool, local: &CollectionFacts) -> Result<()> {
        let (from, to) = (&self.from, self.to());
        match local.kind {
            LocalKind::View | LocalKind::TimeSeries => {
                return Err(Error::new(
                    ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
                    format!("Can't rename source collection `{from}` because it is a view."),
                ));
            }
            LocalKind::Absent if !is_sharded => return Err(self.absent()),
            LocalKind::Absent | LocalKind::Collection => {}
        }
        if from.db() != to.db() {
            let sharded = if is_sharded { from } else { to };
            return Err(Error::new(
                ErrorCode::COMMAND_FAILED,
                format!(
                    "Source and destination collections must be on the same database because {sharded} is sharded."
                ),
            ));
        }
        if to.collection().starts_with("system.") || from.collection().starts_with("system.") {
            return Err(Error::new(
                ErrorCode::ILLEGAL_OPERATION,
                format!(
                    "renaming {from} to {to} is not allowed: a sharded collection is no system collection"
                ),
            ));
        }
        if is_sharded {
            check_length(to)?;
        }
        self.check_builds(from, local)
    }

    fn check_target(&self, local: &CollectionFacts, is_sharded: bool) -> Result<()> {
        let to = self.to();
        if matches!(local.kind, LocalKind::View | LocalKind::TimeSeries) {
            return Err(Error::new(
                ErrorCode::NAMESPACE_EXISTS,
                format!("a view already exists with that name: {to}"),
            ));
        }
        let is_there = is_sharded || local.kind == LocalKind::Collection;
        if is_there && !self.request.drops_target {
            return Err(Error::new(
                ErrorCode::NAMESPACE_EXISTS,
                format!("Target collection {to} exists but dropTarget is not set"),
            ));
        }
        self.check_builds(to, local)
    }

    fn check_builds(&self, ns: &Namespace, local: &CollectionFacts) -> Result<()> {
        match local.has_builds {
            false => Ok(()),
            true => Err(Error::new(
                ErrorCode::BACKGROUND_OPERATION_IN_PROGRESS_FOR_NAMESPACE,
                format!(
                    "cannot perform operation: an index build is currently running for collection {ns}"
                ),
            )),
        }
    }
}

impl Operation for RenameCollection {
    fn phases(&self) -> &'static [Phase] {
        &PHASES
    }

    fn state(&self) -> RawDocumentBuf {
        let decided = self.decided();
        let mut out = DocBuilder::new();
        append_uuid(&mut out, "uuid", decided.uuid);
        for (name, entry) in [("source", decided.source), ("target", decided.target)] {
            if let Some(entry) = entry {
                entry.append_to(&mut out, name);
            }
        }
        append_incarnation(&mut out, decided.new);
        out.finish()
    }

    fn check(&self, at: usize) -> Option<Action> {
        let (ns, expected) = match at {
            0 => (&self.from, self.request.expected_uuid),
            1 => (self.to(), self.request.target_uuid),
            _ => return None,
        };
        Some(Action::Look {
            ns: ns.clone(),
            expected,
        })
    }

    fn take_check(&mut self, outcome: Outcome) -> Result<Progress> {
        let Outcome::Facts(facts) = outcome else {
            return Err(Error::internal("a look gives facts"));
        };
        match self.source.take() {
            None => {
                self.source = Some(facts);
                Ok(Progress::Continue)
            }
            Some(source) => self.decide(&source, &facts),
        }
    }

    fn action(&self, phase: &str, at: usize) -> Option<Action> {
        Some(match (phase, at) {
            (BLOCK, 0) => self.close(),
            (BLOCK, 1) => self.on_others(BlockType::ReadsAndWrites, BLOCK),
            (COMMIT, 0) => self.commit(),
            (RENAME_THERE, 0) => Action::RenameOnOthers(self.part(RENAME_THERE)),
            (RENAME_HERE, 0) => Action::RenameHere(self.part(RENAME_HERE)),
            (UNBLOCK, 0) => self.on_others(BlockType::Unblock, UNBLOCK),
            (UNBLOCK, 1) => self.open(),
            _ => return None,
        })
    }

    fn take(&mut self, _: &str, _: Outcome) -> Result<()> {
        Ok(())
    }

    fn undo(&self, at: usize) -> Option<Action> {
        match at {
            0 => Some(self.on_others(BlockType::Unblock, ABORT)),
            1 => Some(self.open()),
            _ => None,
        }
    }

    fn reply(&self) -> RawDocumentBuf {
        RawDocumentBuf::new()
    }
}
