//! A cluster as definitions see it, and the runs of their machines in it.

use std::collections::{BTreeMap, BTreeSet};

use pinion_bson::{ObjectId, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, Uuid, rawdoc};
use pinion_clock::Timestamp;
use pinion_query::{Granularity, TimeSeries, series_of};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use super::super::*;
use crate::config::MetadataRename;
use crate::documents::{CollectionDocument, ShardDocument, TagDocument};
use crate::version::{ChunkVersion, DatabaseVersion, Incarnation};

/// What is there. Gates alone are lost with a primary.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct World {
    pub document: Option<RawDocumentBuf>,
    pub sections: BTreeMap<String, bool>,
    pub gates: BTreeMap<String, bool>,
    /// Gates on the other shard, which keeps them closed by itself.
    pub blocked_there: BTreeMap<String, bool>,
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
    /// Collections with the finer key, at the config servers and by these tables.
    pub finer: BTreeSet<String>,
    pub finer_here: BTreeSet<String>,
    pub finer_there: BTreeSet<String>,
    /// Collections whose chunks stay where they are, as the config servers and these shards know.
    pub kept: BTreeSet<String>,
    pub kept_here: BTreeSet<String>,
    pub kept_there: BTreeSet<String>,
    /// Collections that were changed on these shards.
    pub changed_here: BTreeSet<String>,
    pub changed_there: BTreeSet<String>,
    /// Collections of buckets that became longer: at the config servers, by the tables of these
    /// shards, and by their options.
    pub longer: BTreeSet<String>,
    pub longer_table_here: BTreeSet<String>,
    pub longer_table_there: BTreeSet<String>,
    pub longer_here: BTreeSet<String>,
    pub longer_there: BTreeSet<String>,
    /// The shard that refuses to change a collection.
    pub refuses: Option<&'static str>,
    /// Collections with a range of a zone.
    pub zones: BTreeSet<String>,
    /// Which collections have these names, where it is not the one of [`UUID`].
    pub uuids: BTreeMap<String, [u8; 16]>,
    /// What is closed together with a collection, here and on the other shard.
    pub together: BTreeMap<String, String>,
    /// Unsharded collections that the other shard has copied.
    pub copies: BTreeSet<String>,
    /// Secondaries go by the place that the database has had.
    pub is_cached: bool,
    /// The database is on the other shard; and this one goes by that.
    pub is_moved: bool,
    pub is_move_known: bool,
}

pub(super) const UUID: [u8; 16] = [7; 16];
/// That of a collection which is to lose its name.
pub(super) const OTHER: [u8; 16] = [8; 16];

fn series(granularity: Granularity) -> TimeSeries {
    TimeSeries {
        time_field: "t".into(),
        meta_field: None,
        granularity: Some(granularity),
        rounding_secs: None,
        max_span_secs: granularity.max_span_secs(),
    }
}

fn zone_of(ns: &str) -> TagDocument {
    TagDocument {
        id: RawBson::Int32(1),
        ns: Namespace::parse(ns).expect("a namespace"),
        zone: "z".to_owned(),
        min: rawdoc! { "a": 1 },
        max: rawdoc! { "a": 2 },
        other: RawDocumentBuf::new(),
    }
}

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
        world.share(ns);
        world.here.insert(ns.to_owned(), 1);
        world.there.insert(ns.to_owned());
        world
    }

    /// The same, with another one that has two indexes beside that on `_id`.
    pub(super) fn with_two(ns: &str, other: &str) -> World {
        let mut world = World::with_sharded(ns);
        world.share(other);
        world.here.insert(other.to_owned(), 2);
        world.there.insert(other.to_owned());
        world.uuids.insert(other.to_owned(), OTHER);
        world
    }

    fn share(&mut self, ns: &str) {
        for set in [
            &mut self.sharded,
            &mut self.table_here,
            &mut self.table_there,
        ] {
            set.insert(ns.to_owned());
        }
    }

    /// No other shard has anything of it.
    pub(super) fn unshare(&mut self, ns: &str) {
        for set in [
            &mut self.sharded,
            &mut self.table_here,
            &mut self.table_there,
            &mut self.there,
        ] {
            set.remove(ns);
        }
    }

    fn uuid(&self, ns: &str) -> [u8; 16] {
        self.uuids.get(ns).copied().unwrap_or(UUID)
    }

    /// With an unsharded collection beside it.
    pub(super) fn with_unsharded(ns: &str) -> World {
        let mut world = World::with_sharded("d.c");
        world.here.insert(ns.to_owned(), 0);
        world.is_cached = true;
        world
    }

    fn unsharded(&self) -> BTreeSet<String> {
        let here = self.here.keys();
        here.filter(|ns| !self.sharded.contains(*ns))
            .cloned()
            .collect()
    }

    fn database_facts(&self) -> DatabaseFacts {
        let ns = Namespace::parse("d.x").expect("a namespace");
        let sharded = self.sharded.iter();
        DatabaseFacts {
            // A client that asks again comes to the new primary shard.
            me: if self.is_moved { "s1" } else { "s0" }.into(),
            shards: self.facts(&ns).shards,
            sharded: sharded.filter_map(|ns| Namespace::parse(ns).ok()).collect(),
            unsharded: vec![Uuid::from_bytes(UUID)],
            fresh: Uuid::from_bytes(UUID),
        }
    }

    fn facts(&self, ns: &Namespace) -> Facts {
        let of = Incarnation {
            epoch: ObjectId::from_bytes([1; 12]),
            timestamp: Timestamp::new(9, 1),
        };
        let mut local = CollectionFacts::absent();
        if let Some(indexes) = self.here.get(ns.as_str()) {
            local.kind = LocalKind::Collection;
            local.uuid = Some(Uuid::from_bytes(self.uuid(ns.as_str())));
            local.index_count = indexes + 1;
            for at in 0..=*indexes {
                let key = match at {
                    0 => rawdoc! { "_id": 1 },
                    1 => rawdoc! { "a": 1 },
                    _ => rawdoc! { "a": 1, "b": 1 },
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
        let uuid = Uuid::from_bytes(self.uuid(ns.as_str()));
        let known = || {
            let (key, epoch) = match self.finer.contains(ns.as_str()) {
                true => (rawdoc! { "a": 1, "b": 1 }, of.epoch),
                false => (rawdoc! { "a": 1 }, ObjectId::from_bytes([4; 12])),
            };
            let of = Incarnation { epoch, ..of };
            let mut document = CollectionDocument::new(ns.clone(), of, 5, uuid, key);
            let granularity = match self.longer.contains(ns.as_str()) {
                true => Granularity::Minutes,
                false => Granularity::Seconds,
            };
            document.time_series = series_of(ns).map(|_| series(granularity));
            (document, ChunkVersion::first(of))
        };
        let shard = |id: &str| ShardDocument::new(id.into(), "s/a:1".to_owned(), Timestamp::MIN);
        Facts {
            me: "s0".into(),
            local,
            sharded: self.sharded.contains(ns.as_str()).then(known),
            shards: vec![shard("s0"), shard("s1")],
            zones: self
                .zones
                .get(ns.as_str())
                .map(|ns| zone_of(ns))
                .into_iter()
                .collect(),
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
            Action::LookAtDatabase { .. } => {
                return Outcome::Database(Box::new(self.database_facts()));
            }
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
                if let Some(to) = &section.to {
                    self.together.insert(ns.clone(), to.to_string());
                }
                self.sections.insert(ns, reads);
            }
            Action::LeaveSection { namespace } => {
                let is_dropped = self.unsharded().is_empty();
                assert!(!self.is_moved || (self.is_move_known && is_dropped));
                let of_options = [&self.longer_here, &self.longer_there];
                assert!(of_options.iter().all(|longer| **longer == self.longer));
                self.sections.remove(namespace);
                self.gates.remove(namespace);
                self.together.remove(namespace);
            }
            Action::MakeCollection(new) => {
                self.assert_closed(new.ns.as_str(), false);
                let indexes = self.here.entry(new.ns.to_string()).or_default();
                *indexes = (*indexes).max(usize::from(new.index.is_some()));
            }
            Action::AskShards { command, .. } => self.ask(command),
            Action::GatherShards { shards, command } => {
                let replies = shards.iter().map(|shard| {
                    let reply = self.gather(shard, command);
                    (shard.clone(), reply)
                });
                return Outcome::Replies(replies.collect());
            }
            Action::ListOwners { .. } => {
                let there = (!self.there.is_empty()).then(|| "s1".into());
                return Outcome::Shards([Some("s0".into()), there].into_iter().flatten().collect());
            }
            Action::BlockShards { block, .. } => match block.block {
                BlockType::Unblock => {
                    let ns = block.ns.as_str();
                    self.assert_is_in(&block.phase);
                    assert_eq!(self.finer.contains(ns), self.finer_there.contains(ns));
                    assert_eq!(self.longer, self.longer_table_there);
                    assert_eq!(self.longer, self.longer_there);
                    self.blocked_there.remove(ns);
                }
                kind => {
                    self.assert_is_in(&block.phase);
                    let reads = kind == BlockType::ReadsAndWrites;
                    self.blocked_there.insert(block.ns.to_string(), reads);
                }
            },
            Action::Configure(command) => self.configure(command),
            Action::NoteEvent { .. } => {}
            Action::InstallTable(ns) => {
                self.assert_closed(ns.as_str(), true);
                assert!(self.sharded.contains(ns.as_str()));
                self.table_here.insert(ns.to_string());
                self.finer_here = self.finer.clone();
                self.longer_table_here = self.longer.clone();
            }
            Action::DropCollection { ns, .. } => {
                self.assert_closed(ns.as_str(), true);
                self.here.remove(ns.as_str());
                self.table_here.remove(ns.as_str());
            }
            Action::RenameHere(part) => {
                self.assert_renaming(part);
                self.assert_closed(part.from.as_str(), true);
                assert!(
                    !self.there.contains(part.from.as_str()),
                    "it is renamed there"
                );
                let (from, to) = (part.from.as_str(), part.to.as_str());
                if let Some(indexes) = self.here.remove(from) {
                    self.here.insert(to.to_owned(), indexes);
                    self.uuids.remove(to);
                }
                self.table_here.remove(from);
                match self.sharded.contains(to) {
                    true => drop(self.table_here.insert(to.to_owned())),
                    false => drop(self.table_here.remove(to)),
                }
            }
            Action::RenameOnOthers(part) => {
                self.assert_renaming(part);
                let (from, to) = (part.from.as_str(), part.to.as_str());
                let is_renamed = !self.there.contains(from) && self.table_there.contains(to);
                match self.there.remove(from) || is_renamed && self.sharded.contains(to) {
                    true => drop(self.there.insert(to.to_owned())),
                    false => drop(self.there.remove(to)),
                }
                self.table_there.remove(from);
                match self.sharded.contains(to) {
                    true => drop(self.table_there.insert(to.to_owned())),
                    false => drop(self.table_there.remove(to)),
                }
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
            moving => self.perform_move(moving),
        }
        Outcome::Done
    }

    /// Both names are closed here and there, and the config servers have the new one alone.
    fn assert_renaming(&self, part: &RenamePart) {
        let (from, to) = (part.from.as_str(), part.to.as_str());
        assert_eq!(self.together.get(from).map(String::as_str), Some(to));
        assert_eq!(self.blocked_there.get(from), Some(&true), "{from} is open");
        assert!(!self.sharded.contains(from), "{from} is not committed");
        self.assert_is_in(&part.phase);
    }

    /// What is of another phase is refused as late.
    fn assert_is_in(&self, phase: &str) {
        let stored = self.document.as_ref().and_then(|document| {
            pinion_bson::get(document, "phase").and_then(|phase| phase.as_str())
        });
        assert_eq!(stored, Some(phase));
    }

    fn perform_move(&mut self, action: &Action) {
        match action {
            Action::CloneDatabase { to, message } => {
                assert_eq!((to.as_str(), &*message.phase), ("s1", "clone"));
                self.assert_closed("d", false);
                assert_eq!(message.copies, [Uuid::from_bytes(UUID)]);
                self.copies = self.unsharded();
            }
            Action::ForgetClone { message, .. } => {
                let stored = self
                    .document
                    .as_ref()
                    .map(|stored| DdlDocument::parse(stored));
                let stored = stored.and_then(Result::ok).expect("it is stored");
                assert!(message.is_of(&stored.phase, &stored.state), "{message:?}");
                assert!(!self.is_moved);
                self.copies.clear();
            }
            Action::UncacheDatabase { .. } => {
                self.assert_closed("d", true);
                self.is_cached = false;
            }
            Action::LearnDatabase { version, .. } => {
                self.assert_closed("d", true);
                assert!(self.is_moved && version.last_mod == 2);
                self.is_move_known = true;
            }
            Action::DropUnsharded { sharded, .. } => {
                self.assert_closed("d", true);
                assert!(self.is_move_known);
                assert!(self.sharded.iter().eq(sharded));
                self.here.retain(|ns, _| sharded.contains(ns));
            }
            other => panic!("{other:?} is no part of a move"),
        }
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
                self.finer_there = self.finer.clone();
                self.longer_table_there = self.longer.clone();
                self.kept_here = self.kept.clone();
                self.kept_there = self.kept.clone();
            }
            "_shardsvrCollModParticipant" => {
                self.assert_closed(&ns, true);
                assert_eq!(self.blocked_there.get(&ns), Some(&true));
                self.assert_is_in("updateShards");
                let tables = [&self.longer_table_here, &self.longer_table_there];
                assert!(tables.iter().all(|longer| longer.contains(&ns)));
                self.longer_here.insert(ns.clone());
                self.longer_there.insert(ns);
            }
            name => panic!("{name} is no command of shards"),
        }
    }

    fn gather(&mut self, shard: &str, command: &RawDocument) -> Result<RawDocumentBuf> {
        let (name, collection) = pinion_bson::elements(command).next().expect("a name");
        let ns = format!("d.{}", collection.as_str().expect("a collection"));
        let flag = |name| pinion_bson::get(command, name) == Some(RawBsonRef::Boolean(true));
        let refuses = self.refuses == Some(shard);
        let refused = || Err(Error::new(ErrorCode::INVALID_OPTIONS, "it is not changed"));
        match name {
            "_shardsvrRefineCollectionShardKey" => {
                assert!(flag("checksIndexes") && self.blocked_there.contains_key(&ns));
                if refuses { refused() } else { Ok(rawdoc! {}) }
            }
            "_shardsvrCollModParticipant" | "_shardsvrDropIndexesParticipant" => {
                let (changed, has_it) = match shard {
                    "s0" => (&mut self.changed_here, self.here.contains_key(&ns)),
                    _ => (&mut self.changed_there, self.there.contains(&ns)),
                };
                assert!(has_it, "{ns} is not on {shard}");
                let was_changed = changed.contains(&ns);
                let phase = pinion_bson::get(command, "phase").and_then(|phase| phase.as_str());
                let is_blocked = phase == Some("blockShards");
                let asked = pinion_bson::get(command, "command");
                let asked = asked.and_then(|asked| asked.as_document()).expect("one");
                let is_of_buckets = pinion_bson::elements(asked)
                    .all(|(name, _)| matches!(name, "collMod" | "timeseries"));
                match flag("check") {
                    true if is_blocked && refuses => refused(),
                    true if was_changed || self.refuses == Some("all") => {
                        Ok(rawdoc! { "missing": [0] })
                    }
                    true => Ok(rawdoc! {}),
                    false if refuses => refused(),
                    // A shard has such buckets already.
                    false if is_of_buckets => Ok(rawdoc! {}),
                    false => {
                        changed.insert(ns);
                        Ok(rawdoc! { "nIndexesWas": 2 })
                    }
                }
            }
            name => panic!("{name} has no reply"),
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
            "_configsvrCommitRefineCollectionShardKey" => {
                self.assert_closed(ns, true);
                assert_eq!(self.blocked_there.get(ns), Some(&true));
                self.finer.insert(ns.to_owned());
            }
            "_configsvrCollMod" => {
                self.assert_closed(ns, true);
                assert_eq!(self.blocked_there.get(ns), Some(&true));
                self.assert_is_in("updateConfig");
                self.longer.insert(ns.to_owned());
            }
            "_configsvrSetAllowMigrations" => {
                assert!(self.sharded.contains(ns));
                let allows = pinion_bson::get(command, "allowMigrations");
                match allows == Some(RawBsonRef::Boolean(true)) {
                    true => self.kept.remove(ns),
                    false => self.kept.insert(ns.to_owned()),
                };
            }
            "_configsvrRenameCollectionMetadata" => {
                self.assert_closed(ns, true);
                let rename = MetadataRename::parse(command).expect("readable");
                let (from, to) = (rename.from.as_str(), rename.to.as_str());
                assert_eq!(self.blocked_there.get(from), Some(&true), "{from} is open");
                if rename.source.is_some() {
                    self.sharded.remove(from);
                    self.sharded.insert(to.to_owned());
                } else {
                    self.sharded.remove(to);
                }
            }
            "_configsvrCommitMovePrimary" => {
                self.assert_closed(ns, true);
                assert!(!self.is_cached && self.copies.contains("d.u"));
                self.is_moved = true;
            }
            name => panic!("{name} is no command of config servers"),
        }
    }

    pub(super) fn carry_out(&mut self, effect: &Effect) -> Option<Outcome> {
        match effect {
            Effect::Store(document) => self.document = Some(document.to_bson()),
            Effect::Remove(_) => {
                assert!(self.sections.is_empty(), "a gate stays closed");
                assert!(self.blocked_there.is_empty(), "a gate stays closed there");
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
            Action::Look { .. } | Action::LookAtDatabase { .. } => "look".to_owned(),
            Action::ListCollections { .. } => "list".to_owned(),
            Action::EnterSection(section) => match section.blocks_reads {
                true => "close".to_owned(),
                false => "close to writes".to_owned(),
            },
            Action::LeaveSection { .. } => "open".to_owned(),
            Action::MakeCollection(new) => format!("make, index {}", new.index.is_some()),
            Action::AskShards { command: asked, .. } => format!("shards {}", command(asked)),
            Action::GatherShards {
                command: asked,
                shards,
            } => {
                let phase = pinion_bson::get(asked, "phase").and_then(|phase| phase.as_str());
                format!("gather {} {}", phase.unwrap_or("check"), shards.len())
            }
            Action::ListOwners { .. } => "owners".to_owned(),
            Action::BlockShards { block, .. } => format!("shards {:?}", block.block),
            Action::Configure(asked) => format!("config {}", command(asked)),
            Action::NoteEvent { event, .. } => format!("note {}", command(event)),
            Action::InstallTable(_) => "install".to_owned(),
            Action::DropCollection { .. } => "drop collection".to_owned(),
            Action::RenameHere(_) => "rename".to_owned(),
            Action::RenameOnOthers(_) => "shards rename".to_owned(),
            Action::DropDatabase { .. } => "drop database".to_owned(),
            Action::ForgetDatabase { .. } => "forget database".to_owned(),
            Action::CloneDatabase { .. } => "clone".to_owned(),
            Action::ForgetClone { .. } => "forget clone".to_owned(),
            Action::UncacheDatabase { .. } => "uncache".to_owned(),
            Action::LearnDatabase { .. } => "learn".to_owned(),
            Action::DropUnsharded { .. } => "drop unsharded".to_owned(),
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
