//! `_shardsvrSetAllowMigrations`: chunks of a collection may move, or not.
//!
//! The config servers note it and raise the collection's version, by which the shards that own
//! chunks learn it.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid};
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

use super::action::{Action, AskedShards, Outcome, flush};
use super::documents::DdlId;
use super::operation::{Operation, Phase, PhaseEnd, Progress};
use crate::config::MigrationPermission;
use crate::shard_id::ShardId;
use crate::values::append_uuid;

const COMMIT: &str = "setPermitMigrations";
const FLUSH: &str = "refreshShards";

const PHASES: [Phase; 2] = [
    Phase {
        name: COMMIT,
        end: PhaseEnd::AbortsIfRefused,
    },
    Phase {
        name: FLUSH,
        end: PhaseEnd::Never,
    },
];

/// What `_shardsvrSetAllowMigrations` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowMigrationsRequest {
    pub allows: bool,
}

impl AllowMigrationsRequest {
    pub fn to_bson(self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("allowMigrations", self.allows);
        out.finish()
    }

    /// # Errors
    /// The field is missing or of a wrong type.
    pub fn parse(request: &RawDocument) -> Result<AllowMigrationsRequest> {
        let reader = FieldReader::object(Path::root("_shardsvrSetAllowMigrations"), request)?;
        let allows = reader.bool("allowMigrations")?;
        Ok(AllowMigrationsRequest { allows })
    }
}

#[derive(Debug)]
pub(super) struct SetAllowMigrations {
    id: DdlId,
    ns: Namespace,
    request: AllowMigrationsRequest,
    found: Option<Found>,
    /// Listed, in the phase that needs it.
    owners: Vec<ShardId>,
}

/// What there is of the collection.
#[derive(Clone, Debug)]
struct Found {
    uuid: Uuid,
    me: ShardId,
}

impl SetAllowMigrations {
    pub(super) fn new(
        id: &DdlId,
        request: &RawDocument,
        state: &RawDocument,
    ) -> Result<SetAllowMigrations> {
        let reader = FieldReader::object(Path::root("state"), state)?;
        let found = match reader.opt_uuid("uuid")? {
            None => None,
            Some(uuid) => Some(Found {
                uuid: Uuid::from_bytes(uuid),
                me: ShardId::new(
                    reader
                        .opt_str("me")?
                        .ok_or_else(|| missing_field(reader.path().field("me")))?,
                ),
            }),
        };
        Ok(SetAllowMigrations {
            id: id.clone(),
            ns: Namespace::parse_sought(&id.namespace)?,
            request: AllowMigrationsRequest::parse(request)?,
            found,
            owners: Vec::new(),
        })
    }

    fn found(&self) -> &Found {
        self.found.as_ref().expect("a look came before")
    }

    fn permission(&self) -> MigrationPermission {
        MigrationPermission {
            ns: self.ns.clone(),
            uuid: self.found().uuid,
            allows: self.request.allows,
            reason: self.id.to_bson(),
            phase: COMMIT.to_owned(),
            from: self.found().me.clone(),
        }
    }
}

impl Operation for SetAllowMigrations {
    fn phases(&self) -> &'static [Phase] {
        &PHASES
    }

    fn state(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        if let Some(found) = &self.found {
            append_uuid(&mut out, "uuid", found.uuid);
            out.append("me", found.me.as_str());
        }
        out.finish()
    }

    fn check(&self, at: usize) -> Option<Action> {
        (at == 0).then(|| Action::Look {
            ns: self.ns.clone(),
            expected: None,
        })
    }

    fn take_check(&mut self, outcome: Outcome) -> Result<Progress> {
        let Outcome::Facts(facts) = outcome else {
            return Err(Error::internal("a look gives facts"));
        };
        let known = facts.sharded.as_ref().and_then(|(known, _)| known.uuid);
        let uuid = known.ok_or_else(|| {
            Error::new(
                ErrorCode::NAMESPACE_NOT_SHARDED,
                format!(
                    "Collection {} must be sharded so migrations can be blocked",
                    self.ns
                ),
            )
        })?;
        self.found = Some(Found {
            uuid,
            me: facts.me.clone(),
        });
        Ok(Progress::Continue)
    }

    fn action(&self, phase: &str, at: usize) -> Option<Action> {
        Some(match (phase, at) {
            (COMMIT, 0) => Action::Configure(self.permission().to_command()),
            (FLUSH, 0) => Action::ListOwners {
                uuid: self.found().uuid,
            },
            (FLUSH, 1) => Action::AskShards {
                shards: AskedShards::These(self.owners.clone()),
                command: flush(&self.ns),
            },
            _ => return None,
        })
    }

    fn take(&mut self, _: &str, outcome: Outcome) -> Result<()> {
        if let Outcome::Shards(owners) = outcome {
            self.owners = owners;
        }
        Ok(())
    }

    fn undo(&self, _: usize) -> Option<Action> {
        None
    }

    fn reply(&self) -> RawDocumentBuf {
        RawDocumentBuf::new()
    }
}
