//! `_shardsvrDropCollection`: a collection is dropped on all shards.
//!
//! The gate on the primary shard stays closed from before the commit at the config servers until
//! every shard has dropped its part: requests that find the collection unsharded come there.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Uuid};
use pinion_query::series_of;
use pinion_wire::idl::{FieldReader, Namespace, Path};
use pinion_wire::{Error, ErrorCode, Result};

use super::action::{Action, AskedShards, LocalKind, Outcome};
use super::documents::{CriticalSectionDocument, DdlId};
use super::operation::{Operation, Phase, PhaseEnd, Progress};
use crate::values::append_uuid;

const ENTER: &str = "enterCriticalSection";
const COMMIT: &str = "removeFromCatalog";
const DROP_THERE: &str = "dropOnParticipants";
const DROP_HERE: &str = "dropOnCoordinator";
const LEAVE: &str = "exitCriticalSection";

const PHASES: [Phase; 5] = [
    Phase {
        name: ENTER,
        end: PhaseEnd::Aborts,
    },
    Phase {
        name: COMMIT,
        end: PhaseEnd::AbortsIfRefused,
    },
    Phase {
        name: DROP_THERE,
        end: PhaseEnd::Never,
    },
    Phase {
        name: DROP_HERE,
        end: PhaseEnd::Never,
    },
    Phase {
        name: LEAVE,
        end: PhaseEnd::Never,
    },
];

/// What `_shardsvrDropCollection` asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct DropCollectionRequest {
    /// Another collection of that name is not dropped.
    pub uuid: Option<Uuid>,
}

impl DropCollectionRequest {
    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        if let Some(uuid) = self.uuid {
            append_uuid(&mut out, "collectionUUID", uuid);
        }
        out.finish()
    }

    /// # Errors
    /// A field of a wrong type.
    pub fn parse(request: &RawDocument) -> Result<DropCollectionRequest> {
        let reader = FieldReader::object(Path::root("_shardsvrDropCollection"), request)?;
        let uuid = reader.opt_uuid("collectionUUID")?;
        Ok(DropCollectionRequest {
            uuid: uuid.map(Uuid::from_bytes),
        })
    }
}

#[derive(Debug)]
pub(super) struct DropCollection {
    id: DdlId,
    ns: Namespace,
    request: DropCollectionRequest,
    found: Found,
}

/// What there was of the collection.
#[derive(Debug, Default)]
struct Found {
    /// None of a view.
    uuid: Option<Uuid>,
    is_sharded: bool,
    indexes: Option<i32>,
}

impl DropCollection {
    pub(super) fn new(
        id: &DdlId,
        request: &RawDocument,
        state: &RawDocument,
    ) -> Result<DropCollection> {
        let reader = FieldReader::object(Path::root("state"), state)?;
        let found = Found {
            uuid: reader.opt_uuid("uuid")?.map(Uuid::from_bytes),
            is_sharded: reader.opt_bool("sharded")?.unwrap_or(false),
            indexes: reader.opt_i32("indexes")?,
        };
        Ok(DropCollection {
            id: id.clone(),
            ns: Namespace::parse_sought(&id.namespace)?,
            request: DropCollectionRequest::parse(request)?,
            found,
        })
    }

    fn leave(&self) -> Action {
        Action::LeaveSection {
            namespace: self.ns.to_string(),
        }
    }

    fn on_others(&self) -> Action {
        let mut out = DocBuilder::new();
        out.append("_shardsvrDropCollectionParticipant", self.ns.collection());
        if let Some(uuid) = self.found.uuid {
            append_uuid(&mut out, "collectionUUID", uuid);
        }
        out.append("$db", self.ns.db());
        Action::AskShards {
            shards: AskedShards::AllOthers,
            command: out.finish(),
        }
    }
}

/// Has the config servers forget a sharded collection.
pub(super) fn removal(ns: &Namespace, uuid: Uuid) -> Action {
    let mut out = DocBuilder::new();
    out.append("_configsvrCommitDropCollection", ns.as_str());
    append_uuid(&mut out, "uuid", uuid);
    out.append("$db", "admin");
    Action::Configure(out.finish())
}

impl Operation for DropCollection {
    fn phases(&self) -> &'static [Phase] {
        &PHASES
    }

    fn state(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        if let Some(uuid) = self.found.uuid {
            append_uuid(&mut out, "uuid", uuid);
        }
        out.append("sharded", self.found.is_sharded);
        if let Some(indexes) = self.found.indexes {
            out.append("indexes", indexes);
        }
        out.finish()
    }

    fn check(&self, at: usize) -> Option<Action> {
        (at == 0).then(|| Action::Look {
            ns: self.ns.clone(),
            expected: self.request.uuid,
        })
    }

    fn take_check(&mut self, outcome: Outcome) -> Result<Progress> {
        let Outcome::Facts(facts) = outcome else {
            return Err(Error::internal("a look gives facts"));
        };
        if facts.local.kind == LocalKind::TimeSeries {
            // It is dropped by the name of its buckets.
            return Err(Error::new(
                ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                format!("{} has become a time series meanwhile", self.ns),
            ));
        }
        let known = facts.sharded.as_ref().map(|(known, _)| known);
        if facts.local.kind == LocalKind::Absent && known.is_none() {
            return Ok(Progress::Finish(RawDocumentBuf::new()));
        }
        let indexes = i32::try_from(facts.local.index_count).unwrap_or(i32::MAX);
        self.found = Found {
            uuid: known.and_then(|known| known.uuid).or(facts.local.uuid),
            is_sharded: known.is_some_and(|known| known.uuid.is_some()),
            indexes: (facts.local.kind == LocalKind::Collection).then_some(indexes),
        };
        Ok(Progress::Continue)
    }

    fn action(&self, phase: &str, at: usize) -> Option<Action> {
        Some(match (phase, at, self.found.uuid) {
            (ENTER, 0, _) => Action::EnterSection(CriticalSectionDocument {
                namespace: self.ns.to_string(),
                reason: self.id.clone(),
                blocks_reads: true,
                coordinator: None,
                to: None,
                open: Vec::new(),
            }),
            (COMMIT, 0, Some(uuid)) if self.found.is_sharded => removal(&self.ns, uuid),
            (DROP_THERE, 0, _) if self.found.is_sharded => self.on_others(),
            (DROP_HERE, 0, uuid) => Action::DropCollection {
                ns: self.ns.clone(),
                uuid,
            },
            (LEAVE, 0, _) => self.leave(),
            _ => return None,
        })
    }

    fn take(&mut self, _: &str, _: Outcome) -> Result<()> {
        Ok(())
    }

    fn undo(&self, at: usize) -> Option<Action> {
        (at == 0).then(|| self.leave())
    }

    fn reply(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        if let Some(indexes) = self.found.indexes {
            out.append_raw("nIndexesWas", RawBsonRef::Int32(indexes));
        }
        let series = series_of(&self.ns);
        out.append("ns", series.as_ref().unwrap_or(&self.ns).as_str());
        out.finish()
    }
}
