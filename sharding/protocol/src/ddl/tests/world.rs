//! A cluster as definitions see it, and the runs of their machines in it.

use std::collections::{BTreeMap, BTreeSet};

use pinion_bson::{ObjectId, RawBsonRef, RawDocument, RawDocumentBuf, Uuid, rawdoc};
use pinion_clock::Timestamp;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use super::super::*;
use crate::documents::{CollectionDocument, ShardDocument};
use crate::version::{ChunkVersion, DatabaseVersion, Incarnation};

/// What is there. Gates alone are lost with a primary.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct World {
    pub document: Option<RawDocumentBuf>,
    pub sections: BTreeMap<String, bool>,
    pub gates: BTreeMap<String, bool>,
    /// Collections on this shard, and how many indexes they have beside that on `_id`.
    pub here: BTreeMap<String, usize>,
    /// Collections on the other shard.
    pub there: BTreeSet<String>,
    /// Collections that the config servers have.
    pub sharded: BTreeSet<String>,
    /// Tables that this shard, and the other one, go by.
    pub table_here: BTreeSet<String>,
    pub table_there: BTreeSet<String>,
    pub has_database: bool,
}

pub(super) const UUID: [u8; 16] = [7; 16];

/// What goes wrong with the effect of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    None,
    /// The primary dies before the effect, or before it hears of it.
    Crash {
        after: bool,
    },
    /// The effect fails, and has happened or not.
    Error {
        after: bool,
        code: i32,
    },
}

impl World {
    pub(super) fn new() -> World {
        World {
            has_database: true,
            ..World::default()
        }
    }

    /// Two chunks on each shard.
    pub(super) fn with_sharded(ns: &str) -> World {
        let mut world = World::new();
        for set in [
            &mut world.sharded,
            &mut world.table_here,
            &mut world.table_there,
        ] {
            set.insert(ns.to_owned());
        }
        world.here.insert(ns.to_owned(), 1);
        world.there.insert(ns.to_owned());
        world
    }

    fn facts(&self, ns: &Namespace) -> Facts {
        let of = Incarnation {
            epoch: ObjectId::from_bytes([1; 12]),
            timestamp: Timestamp::new(9, 1),
        };
        let mut local = CollectionFacts::absent();
        if let Some(indexes) = self.here.get(ns.as_str()) {
            local.kind = LocalKind::Collection;
            local.uuid = Some(Uuid::from_bytes(UUID));
            local.index_count = indexes + 1;
            for at in 0..=*indexes {
                let key = match at {
                    0 => rawdoc! { "_id": 1 },
                    _ => rawdoc! { "a": 1 },
                };
                local.indexes.push(IndexFacts {
                    name: at.to_string(),
                    key,
                    is_unique: at == 0,
                    is_sparse: false,
                    is_partial: false,
                    is_hidden: false,
                    is_multikey: false,
                    has_collation: false,
                });
            }
        }
        let uuid = Uuid::from_bytes(UUID);
        let known = || {
            let key = rawdoc! { "a": 1 };
            let document = CollectionDocument::new(ns.clone(), of, 5, uuid, key);
            (document, ChunkVersion::first(of))
        };
        let shard = |id: &str| ShardDocument::new(id.into(), "s/a:1".to_owned(), Timestamp::MIN);
        Facts {
            me: "s0".into(),
            local,
            sharded: self.sharded.contains(ns.as_str()).then(known),
            shards: vec![shard("s0"), shard("s1")],
            zones: Vec::new(),
            fresh: FreshIds {
                uuid,
                epoch: of.epoch,
                timestamp: of.timestamp,
                now_ms: 5,
            },
        }
    }

    fn perform(&mut self, action: &Action) -> Outcome {
        match action {
            Action::Look { ns, .. } => return Outcome::Facts(Box::new(self.facts(ns))),
            Action::ListCollections { db } => {
                let prefix = format!("{db}.");
                let found = self.sharded.iter().filter(|ns| ns.starts_with(&prefix));
                let found = found.map(|ns| Namespace::parse(ns).expect("a namespace"));
                // A list has a limit.
                let found = found.take(1).map(|ns| (ns, Uuid::from_bytes(UUID)));
                return Outcome::Collections(found.collect());
            }
            Action::EnterSection(section) => {
                let (ns, reads) = (section.namespace.clone(), section.blocks_reads);
                self.gates.insert(ns.clone(), reads);
                self.sections.insert(ns, reads);
            }
            Action::LeaveSection { namespace } => {
                self.sections.remove(namespace);
                self.gates.remove(namespace);
            }
            Action::MakeCollection { ns, index, .. } => {
                self.assert_closed(ns.as_str(), false);
                let indexes = self.here.entry(ns.to_string()).or_default();
                *indexes = (*indexes).max(usize::from(index.is_some()));
            }
            Action::AskShards { command, .. } => self.ask(command),
            Action::Configure(command) => self.configure(command),
            Action::InstallTable(ns) => {
                self.assert_closed(ns.as_str(), true);
                assert!(self.sharded.contains(ns.as_str()));
                self.table_here.insert(ns.to_string());
            }
            Action::DropCollection { ns, .. } => {
                self.assert_closed(ns.as_str(), true);
                self.here.remove(ns.as_str());
                self.table_here.remove(ns.as_str());
            }
            Action::DropDatabase { db } => {
                self.assert_closed(db, true);
                self.here.clear();
                self.table_here.clear();
            }
            Action::ForgetDatabase { db, .. } => {
                self.assert_closed(db, true);
                assert!(self.here.is_empty() && self.there.is_empty());
                self.has_database = false;
            }
        }
        Outcome::Done
    }

    /// The gate keeps out what the document says, which a new primary goes by.
    fn assert_closed(&self, namespace: &str, reads: bool) {
        let closed = |map: &BTreeMap<String, bool>| map.get(namespace).copied();
        assert!(closed(&self.gates) >= Some(reads), "{namespace} is open");
        assert!(
            closed(&self.sections) >= Some(reads),
            "{namespace} may open"
        );
    }

    fn ask(&mut self, command: &RawDocument) {
        let (name, value) = pinion_bson::elements(command).next().expect("a name");
        let db = pinion_bson::get(command, "$db").and_then(|db| db.as_str());
        let ns = match value {
            RawBsonRef::String(collection) => format!("{}.{collection}", db.expect("a database")),
            _ => String::new(),
        };
        match name {
            "_shardsvrCreateCollectionParticipant" => drop(self.there.insert(ns)),
            "_shardsvrDropCollectionParticipant" => {
                self.there.remove(&ns);
                self.table_there.remove(&ns);
            }
            "_shardsvrDropDatabaseParticipant" => {
                self.there.clear();
                self.table_there.clear();
            }
            "_flushRoutingTableCacheUpdates" => {
                let ns = value.as_str().expect("a namespace");
                self.table_there.insert(ns.to_owned());
            }
            name => panic!("{name} is no command of shards"),
        }
    }

    fn configure(&mut self, command: &RawDocument) {
        let (name, ns) = pinion_bson::elements(command).next().expect("a name");
        let ns = ns.as_str().expect("a namespace");
        match name {
            "_configsvrCommitCreateCollection" => {
                self.assert_closed(ns, true);
                assert!(self.here.contains_key(ns));
                self.sharded.insert(ns.to_owned());
            }
            "_configsvrCommitDropCollection" => {
                let db = ns.split_once('.').expect("a namespace").0;
                let closed = self.sections.contains_key(ns) || self.sections.contains_key(db);
                assert!(closed, "{ns} is open");
                self.sharded.remove(ns);
            }
            name => panic!("{name} is no command of config servers"),
        }
    }

    pub(super) fn carry_out(&mut self, effect: &Effect) -> Option<Outcome> {
        match effect {
            Effect::Store(document) => self.document = Some(document.to_bson()),
            Effect::Remove(_) => {
                assert!(self.sections.is_empty(), "a gate stays closed");
                self.document = None;
            }
            Effect::Perform(action) => return Some(self.perform(action)),
            Effect::Pause(_) | Effect::End(_) => return None,
        }
        Some(Outcome::Done)
    }
}

/// Runs an operation to its end with a fault at the effect of a number: how it ends, how many
/// effects there were, and what they were.
pub(super) fn run(
    world: &mut World,
    make: impl Fn() -> Result<DdlMachine>,
    fault: (usize, Fault),
) -> (Result<RawDocumentBuf>, Vec<String>) {
    let mut trace = Vec::new();
    let mut machine = make().expect("a request");
    let mut input = Input::Start;
    for number in 0..200 {
        let effect = machine.step(input);
        if let Effect::End(outcome) = &effect {
            assert!(world.document.is_none() && world.gates.is_empty());
            return (outcome.clone(), trace);
        }
        trace.push(shown(&effect));
        let fault = if number == fault.0 {
            fault.1
        } else {
            Fault::None
        };
        let happens = !matches!(
            fault,
            Fault::Crash { after: false } | Fault::Error { after: false, .. }
        );
        let outcome = happens.then(|| world.carry_out(&effect)).flatten();
        input = match (fault, outcome) {
            (Fault::Crash { .. }, _) => {
                // A new primary closes the gates again, and resumes what is left; or the client
                // asks again.
                world.gates = world.sections.clone();
                machine = match &world.document {
                    Some(left) => {
                        let left = DdlDocument::parse(left).expect("a document");
                        DdlMachine::resume(left).expect("of a known phase")
                    }
                    None => make().expect("a request"),
                };
                Input::Start
            }
            (Fault::Error { code, .. }, _) => Input::Failed(Error::new(ErrorCode(code), "failed")),
            (Fault::None, Some(outcome)) => Input::Done(outcome),
            (Fault::None, None) => Input::Waited,
        };
    }
    panic!("the operation does not end: {trace:#?}");
}

fn shown(effect: &Effect) -> String {
    let command = |command: &RawDocument| {
        let first = pinion_bson::elements(command).next();
        first.map_or_else(String::new, |(name, _)| name.to_owned())
    };
    match effect {
        Effect::Store(document) => format!("store {}", document.phase),
        Effect::Remove(_) => "remove".to_owned(),
        Effect::Pause(error) => format!("pause {}", error.code.0),
        Effect::End(_) => "end".to_owned(),
        Effect::Perform(action) => match &**action {
            Action::Look { .. } => "look".to_owned(),
            Action::ListCollections { .. } => "list".to_owned(),
            Action::EnterSection(section) => match section.blocks_reads {
                true => "close".to_owned(),
                false => "close to writes".to_owned(),
            },
            Action::LeaveSection { .. } => "open".to_owned(),
            Action::MakeCollection { index, .. } => format!("make, index {}", index.is_some()),
            Action::AskShards { command: asked, .. } => format!("shards {}", command(asked)),
            Action::Configure(asked) => format!("config {}", command(asked)),
            Action::InstallTable(_) => "install".to_owned(),
            Action::DropCollection { .. } => "drop collection".to_owned(),
            Action::DropDatabase { .. } => "drop database".to_owned(),
            Action::ForgetDatabase { .. } => "forget database".to_owned(),
        },
    }
}

pub(super) fn machine(
    kind: OperationKind,
    namespace: &str,
    request: RawDocumentBuf,
) -> Result<DdlMachine> {
    let id = DdlId {
        namespace: namespace.to_owned(),
        kind,
    };
    let uuid = Uuid::from_bytes([3; 16]);
    let version = DatabaseVersion::first(uuid, Timestamp::new(5, 1));
    DdlMachine::new(id, version, request)
}
