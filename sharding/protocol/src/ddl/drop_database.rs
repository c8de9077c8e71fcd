//! `_shardsvrDropDatabase`: a database is dropped on all shards, and forgotten.
//!
//! The gates of all its namespaces stay closed on the primary shard until the config servers have
//! forgotten it: what waits there finds that its version has gone.

use std::collections::VecDeque;

use pinion_bson::{DocBuilder, RawDocumentBuf, Uuid};
use pinion_wire::Result;
use pinion_wire::idl::Namespace;

use super::action::{Action, AskedShards, Outcome};
use super::documents::{CriticalSectionDocument, DdlId};
use super::drop_collection::removal;
use super::operation::{Operation, Phase, PhaseEnd, Progress};
use crate::version::{DatabaseVersion, Form};

const ENTER: &str = "enterCriticalSection";
const REMOVE_COLLECTIONS: &str = "removeCollectionsFromCatalog";
const DROP_THERE: &str = "dropOnParticipants";
const DROP_HERE: &str = "dropOnCoordinator";
const LEAVE: &str = "exitCriticalSection";

const PHASES: [Phase; 5] = [
    Phase {
        name: ENTER,
        end: PhaseEnd::Aborts,
    },
    Phase {
        name: REMOVE_COLLECTIONS,
        end: PhaseEnd::Never,
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

#[derive(Debug)]
pub(super) struct DropDatabase {
    id: DdlId,
    version: DatabaseVersion,
    /// Listed, and not removed yet.
    left: VecDeque<(Namespace, Uuid)>,
    /// The last list was empty.
    none_is_left: bool,
}

impl DropDatabase {
    pub(super) fn new(id: &DdlId, version: DatabaseVersion) -> DropDatabase {
        DropDatabase {
            id: id.clone(),
            version,
            left: VecDeque::new(),
            none_is_left: false,
        }
    }

    fn db(&self) -> String {
        self.id.namespace.clone()
    }

    fn leave(&self) -> Action {
        Action::LeaveSection {
            namespace: self.db(),
        }
    }

    fn on_others(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_shardsvrDropDatabaseParticipant", 1i32);
        self.version.append_to(&mut out, "version", Form::Own);
        out.append("$db", self.id.namespace.as_str());
        out.finish()
    }

    /// The collections are listed until none is left: a list has a limit.
    fn removal(&self) -> Option<Action> {
        match self.left.front() {
            _ if self.none_is_left => None,
            Some((ns, uuid)) => Some(removal(ns, *uuid)),
            None => Some(Action::ListCollections { db: self.db() }),
        }
    }
}

impl Operation for DropDatabase {
    fn phases(&self) -> &'static [Phase] {
        &PHASES
    }

    fn state(&self) -> RawDocumentBuf {
        RawDocumentBuf::new()
    }

    fn check(&self, _: usize) -> Option<Action> {
        None
    }

    fn take_check(&mut self, _: Outcome) -> Result<Progress> {
        Ok(Progress::Continue)
    }

    fn action(&self, phase: &str, at: usize) -> Option<Action> {
        Some(match (phase, at) {
            (ENTER, 0) => Action::EnterSection(CriticalSectionDocument {
                namespace: self.db(),
                reason: self.id.clone(),
                blocks_reads: true,
                coordinator: None,
                to: None,
                open: Vec::new(),
            }),
            (REMOVE_COLLECTIONS, _) => return self.removal(),
            (DROP_THERE, 0) => Action::AskShards {
                shards: AskedShards::AllOthers,
                command: self.on_others(),
            },
            (DROP_HERE, 0) => Action::DropDatabase { db: self.db() },
            (DROP_HERE, 1) => Action::ForgetDatabase {
                db: self.db(),
                version: self.version,
            },
            (LEAVE, 0) => self.leave(),
            _ => return None,
        })
    }

    fn take(&mut self, phase: &str, outcome: Outcome) -> Result<()> {
        match outcome {
            Outcome::Collections(found) => {
                self.none_is_left = found.is_empty();
                self.left = found.into();
            }
            _ if phase == REMOVE_COLLECTIONS => drop(self.left.pop_front()),
            _ => {}
        }
        Ok(())
    }

    fn undo(&self, at: usize) -> Option<Action> {
        (at == 0).then(|| self.leave())
    }

    fn reply(&self) -> RawDocumentBuf {
        RawDocumentBuf::new()
    }
}
