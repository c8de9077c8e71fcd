//! `_shardsvrMovePrimary`: the unsharded collections of a database are copied to another shard,
//! which becomes its primary.
//!
//! The gates of all namespaces of the database are closed to writes before the copy, and to reads
//! before the commit; sharded collections stay open, since they do not move. So what is copied does
//! not change, and what waits at the gates finds another version of the database. A read of a
//! secondary is kept out by the version: it is taken from the secondaries before the commit, and
//! they get none while the gates are closed.

use pinion_bson::{Binary, DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Uuid};
use pinion_wire::idl::{FieldReader, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

use super::action::{Action, DatabaseFacts, Outcome};
use super::documents::{CriticalSectionDocument, DdlId};
use super::operation::{ABORT, Operation, Phase, PhaseEnd, Progress};
use crate::shard_id::ShardId;
use crate::values::append_uuid;
use crate::version::{DatabaseVersion, Form};

const CLONE: &str = "clone";
const ENTER: &str = "enterCriticalSection";
const COMMIT: &str = "commit";
const CLEAN: &str = "clean";
const LEAVE: &str = "exitCriticalSection";

const PHASES: [Phase; 5] = [
    Phase {
        name: CLONE,
        end: PhaseEnd::Aborts,
    },
    Phase {
        name: ENTER,
        end: PhaseEnd::Aborts,
    },
    Phase {
        name: COMMIT,
        end: PhaseEnd::AbortsIfRefused,
    },
    Phase {
        name: CLEAN,
        end: PhaseEnd::Never,
    },
    Phase {
        name: LEAVE,
        end: PhaseEnd::Never,
    },
];

/// What `_shardsvrMovePrimary` asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct MovePrimaryRequest {
    pub to: ShardId,
}

impl MovePrimaryRequest {
    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("to", self.to.as_str());
        out.finish()
    }

    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(request: &RawDocument) -> Result<MovePrimaryRequest> {
        let reader = FieldReader::object(Path::root("_shardsvrMovePrimary"), request)?;
        Ok(MovePrimaryRequest {
            to: ShardId::new(reader.str("to")?),
        })
    }
}

/// What the donor asks of the recipient: `_shardsvrCloneCatalogData`, and
/// `_shardsvrMovePrimaryAbort`.
///
/// One may come late. So it names the attempt and its phase, and the recipient compares them with
/// the document of the donor.
#[derive(Clone, Debug, PartialEq)]
pub struct MoveMessage {
    pub reason: DdlId,
    pub attempt: Uuid,
    pub phase: String,
    /// Collections of the donor, which may be dropped there by now: what has their UUIDs on the
    /// recipient is a copy.
    pub copies: Vec<Uuid>,
}

impl MoveMessage {
    /// The command of this name, as the coordinator on the shard `from` sends it.
    pub fn to_command(&self, name: &str, from: &ShardId) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append(name, 1i32)
            .append("reason", &*self.reason.to_bson());
        append_uuid(&mut out, "attempt", self.attempt);
        out.append("phase", self.phase.as_str())
            .append("from", from.as_str());
        append_uuids(&mut out, "copies", &self.copies);
        out.append("$db", self.reason.db());
        out.finish()
    }

    /// The command's fields, and the shard that sends it.
    ///
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(command: &RawDocument) -> Result<(MoveMessage, ShardId)> {
        let reader = FieldReader::object(Path::root("_shardsvrCloneCatalogData"), command)?;
        let message = MoveMessage {
            reason: DdlId::parse(reader.path().field("reason"), reader.doc("reason")?)?,
            attempt: attempt_in(&reader)?,
            phase: reader.str("phase")?.to_owned(),
            copies: uuids_in(&reader, "copies")?,
        };
        Ok((message, ShardId::new(reader.str("from")?)))
    }

    pub fn fields() -> &'static [&'static str] {
        &["reason", "attempt", "phase", "from", "copies"]
    }

    /// Whether the coordinator that has stored this document is where it sent the message from.
    pub fn is_of(&self, phase: &str, state: &RawDocument) -> bool {
        let attempt =
            FieldReader::object(Path::root("state"), state).and_then(|reader| attempt_in(&reader));
        phase == self.phase && attempt.is_ok_and(|attempt| attempt == self.attempt)
    }
}

fn append_uuids(out: &mut DocBuilder, name: &str, uuids: &[Uuid]) {
    out.start_array(name);
    for uuid in uuids {
        out.push(&Binary::from(*uuid));
    }
    out.end();
}

fn uuids_in(reader: &FieldReader<'_, '_>, name: &str) -> Result<Vec<Uuid>> {
    let uuids = pinion_bson::values(reader.array(name)?).map(|uuid| match uuid {
        RawBsonRef::Binary(uuid) => {
            let bytes: std::result::Result<[u8; 16], _> = uuid.bytes.try_into();
            bytes.map(Uuid::from_bytes).map_err(|_| not_uuids(name))
        }
        _ => Err(not_uuids(name)),
    });
    uuids.collect()
}

fn not_uuids(name: &str) -> Error {
    Error::failed_to_parse(format!("'{name}' has UUIDs alone"))
}

fn attempt_in(reader: &FieldReader<'_, '_>) -> Result<Uuid> {
    let attempt = reader.opt_uuid("attempt")?;
    let attempt = attempt.ok_or_else(|| missing_field(reader.path().field("attempt")))?;
    Ok(Uuid::from_bytes(attempt))
}

#[derive(Debug)]
pub(super) struct MovePrimary {
    id: DdlId,
    version: DatabaseVersion,
    request: MovePrimaryRequest,
    plan: Option<Plan>,
}

/// What is decided once.
#[derive(Clone, Debug, PartialEq)]
struct Plan {
    attempt: Uuid,
    /// The sharded collections.
    open: Vec<String>,
    /// The others, once the gates are closed.
    copies: Vec<Uuid>,
}

impl MovePrimary {
    pub(super) fn new(
        id: &DdlId,
        version: DatabaseVersion,
        request: &RawDocument,
        state: &RawDocument,
    ) -> Result<MovePrimary> {
        Ok(MovePrimary {
            id: id.clone(),
            version,
            request: MovePrimaryRequest::parse(request)?,
            plan: match state.is_empty() {
                true => None,
                false => Some(Plan::parse(state)?),
            },
        })
    }

    fn db(&self) -> String {
        self.id.namespace.clone()
    }

    fn plan(&self) -> &Plan {
        let plan = self.plan.as_ref();
        plan.expect("it is decided before the first phase is stored")
    }

    fn enter(&self, blocks_reads: bool) -> Action {
        Action::EnterSection(CriticalSectionDocument {
            namespace: self.db(),
            reason: self.id.clone(),
            blocks_reads,
            coordinator: None,
            to: None,
            open: self.plan().open.clone(),
        })
    }

    fn leave(&self) -> Action {
        Action::LeaveSection {
            namespace: self.db(),
        }
    }

    fn message(&self, phase: &str) -> MoveMessage {
        MoveMessage {
            reason: self.id.clone(),
            attempt: self.plan().attempt,
            phase: phase.to_owned(),
            copies: self.plan().copies.clone(),
        }
    }

    fn commit(&self) -> Action {
        let mut out = DocBuilder::new();
        out.append("_configsvrCommitMovePrimary", self.id.namespace.as_str());
        self.version
            .append_to(&mut out, "expectedDatabaseVersion", Form::Own);
        out.append("to", self.request.to.as_str())
            .append("$db", "admin");
        Action::Configure(out.finish())
    }

    fn take_facts(&mut self, facts: &DatabaseFacts) -> Result<Progress> {
        let to = &self.request.to;
        if facts.me == *to {
            return Ok(Progress::Finish(RawDocumentBuf::new()));
        }
        let refused = |message: String| Error::new(ErrorCode::SHARD_NOT_FOUND, message);
        match facts.shards.iter().find(|shard| shard.id == *to) {
            None => return Err(refused(format!("Shard {to} not found"))),
            Some(shard) if shard.is_draining => {
                let message = format!("Requested primary shard {to} is draining");
                return Err(refused(message));
            }
            Some(_) => {}
        }
        self.plan = Some(Plan {
            attempt: facts.fresh,
            open: facts.sharded.iter().map(ToString::to_string).collect(),
            copies: Vec::new(),
        });
        Ok(Progress::Continue)
    }
}

impl Plan {
    fn parse(state: &RawDocument) -> Result<Plan> {
        let reader = FieldReader::object(Path::root("state"), state)?;
        let open = pinion_bson::values(reader.array("open")?).map(|ns| match ns {
            RawBsonRef::String(ns) => Ok(ns.to_owned()),
            _ => Err(Error::failed_to_parse("'open' has names alone")),
        });
        Ok(Plan {
            attempt: attempt_in(&reader)?,
            open: open.collect::<Result<_>>()?,
            copies: uuids_in(&reader, "copies")?,
        })
    }

    fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        append_uuid(&mut out, "attempt", self.attempt);
        out.start_array("open");
        for ns in &self.open {
            out.push(ns.as_str());
        }
        out.end();
        append_uuids(&mut out, "copies", &self.copies);
        out.finish()
    }
}

impl Operation for MovePrimary {
    fn phases(&self) -> &'static [Phase] {
        &PHASES
    }

    fn state(&self) -> RawDocumentBuf {
        self.plan().to_bson()
    }

    fn check(&self, at: usize) -> Option<Action> {
        (at == 0).then(|| Action::LookAtDatabase { db: self.db() })
    }

    fn take_check(&mut self, outcome: Outcome) -> Result<Progress> {
        match outcome {
            Outcome::Database(facts) => self.take_facts(&facts),
            _ => Err(Error::internal("a look at a database gives its facts")),
        }
    }

    fn action(&self, phase: &str, at: usize) -> Option<Action> {
        Some(match (phase, at) {
            (CLONE, 0) => self.enter(false),
            (CLONE, 1) => Action::LookAtDatabase { db: self.db() },
            (CLONE, 2) => Action::CloneDatabase {
                to: self.request.to.clone(),
                message: self.message(CLONE),
            },
            (ENTER, 0) => self.enter(true),
            (ENTER, 1) => Action::UncacheDatabase { db: self.db() },
            (COMMIT, 0) => self.commit(),
            (CLEAN, 0) => Action::LearnDatabase {
                db: self.db(),
                version: self.version.next_primary(),
            },
            (CLEAN, 1) => Action::DropUnsharded {
                db: self.db(),
                sharded: self.plan().open.clone(),
            },
            (LEAVE, 0) => self.leave(),
            _ => return None,
        })
    }

    fn take(&mut self, _: &str, outcome: Outcome) -> Result<()> {
        if let (Outcome::Database(facts), Some(plan)) = (outcome, &mut self.plan) {
            plan.copies = facts.unsharded;
        }
        Ok(())
    }

    /// The gates open first: the recipient may be away for long.
    fn undo(&self, at: usize) -> Option<Action> {
        Some(match at {
            0 => self.leave(),
            1 => Action::ForgetClone {
                to: self.request.to.clone(),
                message: self.message(ABORT),
            },
            _ => return None,
        })
    }

    fn reply(&self) -> RawDocumentBuf {
        RawDocumentBuf::new()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;
    use pinion_clock::Timestamp;
    use pinion_wire::idl::Namespace;

    use super::super::documents::OperationKind;
    use super::*;
    use crate::documents::ShardDocument;

    fn id() -> DdlId {
        DdlId {
            namespace: "d".to_owned(),
            kind: OperationKind::MovePrimary,
        }
    }

    #[test]
    fn messages() {
        let message = MoveMessage {
            reason: id(),
            attempt: Uuid::from_bytes([4; 16]),
            phase: CLONE.to_owned(),
            copies: vec![Uuid::from_bytes([6; 16])],
        };
        let from = ShardId::new("s0");
        let command = message.to_command("_shardsvrCloneCatalogData", &from);
        let read = MoveMessage::parse(&command);
        assert_eq!(read.ok(), Some((message.clone(), from)));
        let plan = |attempt| Plan {
            attempt: Uuid::from_bytes([attempt; 16]),
            open: vec!["d.c".to_owned()],
            copies: vec![Uuid::from_bytes([6; 16])],
        };
        assert_eq!(Plan::parse(&plan(4).to_bson()).ok(), Some(plan(4)));
        assert!(message.is_of(CLONE, &plan(4).to_bson()));
        // Of another attempt, or a later phase.
        assert!(!message.is_of(CLONE, &plan(5).to_bson()));
        assert!(!message.is_of(ABORT, &plan(4).to_bson()));
        assert!(!message.is_of(CLONE, &rawdoc! {}));
    }

    #[test]
    fn shards_that_it_moves_to() {
        let shard = |id: &str, is_draining| ShardDocument {
            is_draining,
            ..ShardDocument::new(id.into(), format!("{id}/a:1"), Timestamp::MIN)
        };
        let facts = DatabaseFacts {
            me: "s0".into(),
            shards: vec![shard("s0", true), shard("s1", false), shard("s2", true)],
            sharded: vec![Namespace::parse("d.c").expect("a namespace")],
            unsharded: Vec::new(),
            fresh: Uuid::from_bytes([4; 16]),
        };
        let check = |to: &str, expected: std::result::Result<bool, &str>| {
            let version = DatabaseVersion::first(Uuid::from_bytes([3; 16]), Timestamp::new(5, 1));
            let request = rawdoc! { "to": to };
            let made = MovePrimary::new(&id(), version, &request, &rawdoc! {});
            let mut made = made.expect("a request");
            let found = made.take_check(Outcome::Database(Box::new(facts.clone())));
            match (found, expected) {
                (Ok(progress), Ok(finishes)) => {
                    assert_eq!(matches!(progress, Progress::Finish(_)), finishes);
                }
                (Err(error), Err(text)) => assert_eq!((error.code.0, &*error.message), (70, text)),
                other => panic!("{other:?}"),
            }
        };
        check("s0", Ok(true));
        check("s1", Ok(false));
        check("s2", Err("Requested primary shard s2 is draining"));
        check("s3", Err("Shard s3 not found"));
    }
}
