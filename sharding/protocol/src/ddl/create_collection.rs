//! `_shardsvrCreateCollection`: a collection is sharded.
//!
//! Its gate keeps writes out while its indexes are looked at and its copies are made on the shards
//! that get chunks, and everything from the commit at the config servers until all these shards
//! have the table.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, Uuid};
use pinion_query::document_text;
use pinion_wire::idl::{FieldReader, Namespace, Path};
use pinion_wire::{Error, ErrorCode, Result};

use super::action::{
    Action, AskedShards, CollectionFacts, Facts, LocalKind, NewCollection, Outcome, flush,
};
use super::create_request::{CreateCollectionRequest, SESSIONS, check_namespace};
use super::documents::{CriticalSectionDocument, DdlId};
use super::key_index::missing_index;
use super::operation::{Operation, Phase, PhaseEnd, Progress};
use crate::config::{InitialChunk, InitialSplit, Zone, initial_chunks};
use crate::documents::CollectionDocument;
use crate::limits::MAX_CREATE_PLAN_BYTES;
use crate::shard_id::ShardId;
use crate::values::{append_time, append_uuid};
use crate::version::{ChunkVersion, Form, Incarnation, ShardVersion};

const ACQUIRE: &str = "acquireCriticalSection";
const CREATE_HERE: &str = "createCollectionOnCoordinator";
const CREATE_THERE: &str = "createCollectionOnParticipants";
const COMMIT: &str = "commit";
const INSTALL: &str = "installRoutingTable";
const LEAVE: &str = "exitCriticalSection";

const PHASES: [Phase; 6] = [
    Phase {
        name: ACQUIRE,
        end: PhaseEnd::Aborts,
    },
    Phase {
        name: CREATE_HERE,
        end: PhaseEnd::Aborts,
    },
    Phase {
        name: CREATE_THERE,
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
pub(super) struct CreateCollection {
    id: DdlId,
    ns: Namespace,
    request: CreateCollectionRequest,
    request_bytes: usize,
    /// While the collection is made here: what of it.
    making: Option<Making>,
    /// What the config servers, and the other shards, are to have.
    plan: Option<Plan>,
}

#[derive(Debug)]
struct Making {
    uuid: Uuid,
    index: Option<RawDocumentBuf>,
}

/// Decided once, so that it is the same after a failover.
#[derive(Clone, Debug, PartialEq)]
struct Plan {
    uuid: Uuid,
    of: Incarnation,
    now_ms: i64,
    primary: ShardId,
    options: RawDocumentBuf,
    collation: Option<RawDocumentBuf>,
    id_index: Option<RawDocumentBuf>,
    indexes: Vec<RawDocumentBuf>,
    chunks: Vec<InitialChunk>,
}

impl CreateCollection {
    pub(super) fn new(
        id: &DdlId,
        request: &RawDocument,
        state: &RawDocument,
    ) -> Result<CreateCollection> {
        let ns = Namespace::parse_sought(&id.namespace)?;
        let parsed = CreateCollectionRequest::parse(request)?;
        // Config servers of MongoDB 4.4 shard it; for clusters of Pinion the command refuses it.
        let is_sessions = ns.as_str() == SESSIONS;
        if !is_sessions && parsed.series.is_none() {
            check_namespace(&ns)?;
        }
        let request_bytes = request.as_bytes().len();
        check_size(request_bytes)?;
        let plan = pinion_bson::get(state, "uuid").map(|_| Plan::parse(state));
        Ok(CreateCollection {
            id: id.clone(),
            ns,
            request: parsed,
            request_bytes,
            making: None,
            plan: plan.transpose()?,
        })
    }

    fn look(&self) -> Action {
        Action::Look {
            ns: self.ns.clone(),
            expected: None,
        }
    }

    fn section(&self, blocks_reads: bool) -> Action {
        Action::EnterSection(CriticalSectionDocument {
            namespace: self.ns.to_string(),
            reason: self.id.clone(),
            blocks_reads,
            coordinator: None,
            to: None,
            open: Vec::new(),
        })
    }

    fn leave(&self) -> Action {
        Action::LeaveSection {
            namespace: self.ns.to_string(),
        }
    }

    fn plan(&self) -> &Plan {
        self.plan
            .as_ref()
            .expect("what is made elsewhere was planned")
    }

    /// What change streams show of it.
    fn event(&self) -> RawDocumentBuf {
        let chunks = self.request.chunks.unwrap_or(0) as i64;
        let mut out = DocBuilder::new();
        out.append("shardCollection", self.ns.as_str())
            .append("shardKey", &*self.request.key.to_bson())
            .append("unique", self.request.is_unique)
            .append("numInitialChunks", chunks)
            .append("presplitHashedZones", self.request.presplits_hashed_zones);
        out.finish()
    }

    /// Decides on the collection and its index, while neither changes.
    fn take_first_look(&mut self, facts: &Facts) -> Result<()> {
        check_local(&self.ns, &self.request, &facts.local)?;
        self.making = Some(Making {
            uuid: facts.local.uuid.unwrap_or(facts.fresh.uuid),
            index: missing_index(&self.ns, &self.request, &facts.local)?,
        });
        Ok(())
    }

    /// Decides on all else, once both are there.
    fn take_second_look(&mut self, facts: &Facts) -> Result<()> {
        let making = self.making.as_ref().expect("the first look came before");
        if facts.local.uuid != Some(making.uuid) {
            return Err(Error::internal(format!(
                "{} is not the collection that was made",
                self.ns
            )));
        }
        let plan = Plan::of(&self.request, making.uuid, facts)?;
        check_size(self.request_bytes + plan.to_bson().as_bytes().len())?;
        self.plan = Some(plan);
        Ok(())
    }
}

impl Operation for CreateCollection {
    fn phases(&self) -> &'static [Phase] {
        &PHASES
    }

    fn state(&self) -> RawDocumentBuf {
        self.plan
            .as_ref()
            .map_or_else(RawDocumentBuf::new, Plan::to_bson)
    }

    fn check(&self, at: usize) -> Option<Action> {
        (at == 0).then(|| self.look())
    }

    fn take_check(&mut self, outcome: Outcome) -> Result<Progress> {
        let Outcome::Facts(facts) = outcome else {
            return Err(Error::internal("a look gives facts"));
        };
        if let Some((known, version)) = &facts.sharded {
            check_same(&self.request, known, &facts.local)?;
            let uuid = known.uuid.unwrap_or(facts.fresh.uuid);
            return Ok(Progress::Finish(reply(uuid, *version)));
        }
        check_local(&self.ns, &self.request, &facts.local)?;
        missing_index(&self.ns, &self.request, &facts.local)?;
        Ok(Progress::Continue)
    }

    fn action(&self, phase: &str, at: usize) -> Option<Action> {
        Some(match (phase, at) {
            (ACQUIRE, 0) => self.section(false),
            (CREATE_HERE, 0 | 2) => self.look(),
            (CREATE_HERE, 1) => {
                let making = self.making.as_ref().expect("a look came before");
                Action::MakeCollection(NewCollection {
                    ns: self.ns.clone(),
                    uuid: making.uuid,
                    options: creation_options(&self.request),
                    index: making.index.clone(),
                })
            }
            (CREATE_THERE, 0) => self.plan().on_others(self.plan().creation(&self.ns)),
            (COMMIT, 0) => self.section(true),
            (COMMIT, 1) => Action::Configure(self.plan().commit(&self.ns, &self.request)),
            (INSTALL, 0) => Action::InstallTable(self.ns.clone()),
            (INSTALL, 1) => self.plan().on_others(flush(&self.ns)),
            (INSTALL, 2) => Action::NoteEvent {
                ns: self.ns.clone(),
                uuid: self.plan().uuid,
                event: self.event(),
            },
            (LEAVE, 0) => self.leave(),
            _ => return None,
        })
    }

    fn take(&mut self, _: &str, outcome: Outcome) -> Result<()> {
        match (outcome, &self.making) {
            (Outcome::Facts(facts), None) => self.take_first_look(&facts),
            (Outcome::Facts(facts), Some(_)) => self.take_second_look(&facts),
            _ => Ok(()),
        }
    }

    fn undo(&self, at: usize) -> Option<Action> {
        match (&self.plan, at) {
            (Some(plan), 0) => Some(plan.on_others(plan.removal(&self.ns))),
            (Some(_), 1) | (None, 0) => Some(self.leave()),
            _ => None,
        }
    }

    fn reply(&self) -> RawDocumentBuf {
        let plan = self.plan();
        reply(plan.uuid, plan.version())
    }
}

impl Plan {
    fn of(request: &CreateCollectionRequest, uuid: Uuid, facts: &Facts) -> Result<Plan> {
        let in_use = facts.shards.iter().filter(|shard| !shard.is_draining);
        let shards: Vec<ShardId> = in_use.map(|shard| shard.id.clone()).collect();
        let zones: Vec<Zone> = (facts.zones.iter())
            .map(|range| {
                let has_it = facts
                    .shards
                    .iter()
                    .filter(|shard| shard.tags.contains(&range.zone));
                Zone {
                    name: range.zone.clone(),
                    min: range.min.clone(),
                    max: range.max.clone(),
                    shards: has_it.map(|shard| shard.id.clone()).collect(),
                }
            })
            .collect();
        let chunks = initial_chunks(&InitialSplit {
            key: &request.key,
            primary: &facts.me,
            shards: &shards,
            zones: &zones,
            is_empty: facts.local.is_empty,
            chunks: request.chunks,
            presplits_hashed_zones: request.presplits_hashed_zones,
            points: request.points.as_deref(),
        })?;
        if chunks.is_empty() {
            return Err(Error::internal("a collection has at least one chunk"));
        }
        Ok(Plan {
            uuid,
            of: Incarnation {
                epoch: facts.fresh.epoch,
                timestamp: facts.fresh.timestamp,
            },
            now_ms: facts.fresh.now_ms,
            primary: facts.me.clone(),
            options: facts.local.options.clone(),
            collation: facts.local.collation.clone(),
            id_index: facts.local.id_index.clone(),
            indexes: facts.local.other_indexes.clone(),
            chunks,
        })
    }

    fn parse(state: &RawDocument) -> Result<Plan> {
        let reader = FieldReader::object(Path::root("state"), state)?;
        let missing = |name| pinion_wire::idl::missing_field(reader.path().field(name));
        let uuid = reader.opt_uuid("uuid")?.ok_or_else(|| missing("uuid"))?;
        let epoch = reader.opt_object_id("epoch")?;
        let timestamp = reader.opt_timestamp("timestamp")?;
        let chunk = |document: RawDocumentBuf| -> Result<InitialChunk> {
            let reader = FieldReader::object(Path::root("chunks"), &document)?;
            Ok(InitialChunk {
                min: reader.doc("min")?.to_owned(),
                shard: ShardId::new(reader.str("shard")?),
            })
        };
        let chunks = documents(&reader, "chunks")?;
        Ok(Plan {
            uuid: Uuid::from_bytes(uuid),
            of: Incarnation {
                epoch: epoch.ok_or_else(|| missing("epoch"))?,
                timestamp: timestamp.ok_or_else(|| missing("timestamp"))?,
            },
            now_ms: reader.i64("nowMs")?,
            primary: ShardId::new(reader.str("primary")?),
            options: reader.doc("options")?.to_owned(),
            collation: reader.opt_doc("collation")?.map(RawDocument::to_owned),
            id_index: reader.opt_doc("idIndex")?.map(RawDocument::to_owned),
            indexes: documents(&reader, "indexes")?,
            chunks: chunks.into_iter().map(chunk).collect::<Result<_>>()?,
        })
    }

    fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        append_uuid(&mut out, "uuid", self.uuid);
        out.append("epoch", self.of.epoch);
        append_time(&mut out, "timestamp", self.of.timestamp);
        out.append("nowMs", self.now_ms)
            .append("primary", self.primary.as_str());
        self.append_definition(&mut out);
        if let Some(collation) = &self.collation {
            out.append("collation", &**collation);
        }
        self.append_chunks(&mut out);
        out.finish()
    }

    fn append_definition(&self, out: &mut DocBuilder) {
        out.append("options", &*self.options).start_array("indexes");
        for index in &self.indexes {
            out.push(&**index);
        }
        out.end();
        if let Some(index) = &self.id_index {
            out.append("idIndex", &**index);
        }
    }

    fn append_chunks(&self, out: &mut DocBuilder) {
        out.start_array("chunks");
        for chunk in &self.chunks {
            out.push_document()
                .append("min", &*chunk.min)
                .append("shard", chunk.shard.as_str())
                .end();
        }
        out.end();
    }

    /// The version of the collection: each chunk has the next minor version.
    fn version(&self) -> ChunkVersion {
        ChunkVersion {
            minor: self.chunks.len() as u32 - 1,
            ..ChunkVersion::first(self.of)
        }
    }

    /// A command for the other shards that get chunks.
    fn on_others(&self, command: RawDocumentBuf) -> Action {
        let shards = self.chunks.iter().map(|chunk| chunk.shard.clone());
        let mut others: Vec<ShardId> = shards.filter(|shard| *shard != self.primary).collect();
        others.sort();
        others.dedup();
        Action::AskShards {
            shards: AskedShards::These(others),
            command,
        }
    }

    fn creation(&self, ns: &Namespace) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_shardsvrCreateCollectionParticipant", ns.collection());
        append_uuid(&mut out, "collectionUUID", self.uuid);
        self.append_definition(&mut out);
        out.append("$db", ns.db());
        out.finish()
    }

    fn removal(&self, ns: &Namespace) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_shardsvrDropCollectionParticipant", ns.collection());
        append_uuid(&mut out, "collectionUUID", self.uuid);
        out.append("$db", ns.db());
        out.finish()
    }

    fn commit(&self, ns: &Namespace, request: &CreateCollectionRequest) -> RawDocumentBuf {
        let key = request.key.to_bson();
        let mut collection =
            CollectionDocument::new(ns.clone(), self.of, self.now_ms, self.uuid, key);
        collection.is_unique = request.is_unique;
        collection.default_collation = self.collation.clone();
        collection.time_series = request.series.as_ref().map(|series| series.options.clone());
        let mut out = DocBuilder::new();
        out.append("_configsvrCommitCreateCollection", ns.as_str());
        out.append("collection", &*collection.to_bson());
        self.append_chunks(&mut out);
        out.append("$db", "admin");
        out.finish()
    }
}

/// The options of a collection that is made to be sharded.
fn creation_options(request: &CreateCollectionRequest) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    if let Some(series) = &request.series {
        out.append("timeseries", &*series.options.to_document());
    }
    out.finish()
}

/// The request and the plan are one document.
fn check_size(bytes: usize) -> Result<()> {
    match bytes > MAX_CREATE_PLAN_BYTES {
        false => Ok(()),
        true => Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!(
                "the initial chunks take {bytes} bytes, the maximum is {MAX_CREATE_PLAN_BYTES}"
            ),
        )),
    }
}

fn documents(reader: &FieldReader<'_, '_>, name: &str) -> Result<Vec<RawDocumentBuf>> {
    let values = pinion_bson::values(reader.array(name)?);
    let documents = values.map(|value| match value {
        RawBsonRef::Document(document) => Ok(document.to_owned()),
        _ => Err(Error::failed_to_parse(format!(
            "'{name}' has documents alone"
        ))),
    });
    documents.collect()
}

fn reply(uuid: Uuid, version: ChunkVersion) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    append_uuid(&mut out, "collectionUUID", uuid);
    ShardVersion::Placed(version).append_to(&mut out, "collectionVersion", Form::Own);
    out.finish()
}

/// Refuses a collection that is sharded in another way than it is asked for.
fn check_same(
    request: &CreateCollectionRequest,
    known: &CollectionDocument,
    local: &CollectionFacts,
) -> Result<()> {
    let is_same_key = pinion_bson::compare_documents(&known.key, &request.key.to_bson()).is_eq();
    // It was sharded with the simple collation, whichever its queries have by default.
    let names_collation = request.names_simple_collation || local.collation.is_none();
    let series = request.series.as_ref().map(|series| &series.options);
    let is_same_series = series == known.time_series.as_ref();
    if is_same_key && known.is_unique == request.is_unique && names_collation && is_same_series {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::ALREADY_INITIALIZED,
        format!("sharding already enabled for collection {}", known.ns),
    ))
}

/// Refuses the buckets of a series that has become another one.
fn check_series(
    ns: &Namespace,
    request: &CreateCollectionRequest,
    local: &CollectionFacts,
) -> Result<()> {
    let options = request
        .series
        .as_ref()
        .map(|series| series.options.to_document());
    let here = pinion_bson::get(&local.options, "timeseries").and_then(|here| here.as_document());
    match here == options.as_deref() {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!("the time series of {ns} has been made or changed meanwhile"),
        )),
    }
}

/// Refuses what is not sharded.
fn check_local(
    ns: &Namespace,
    request: &CreateCollectionRequest,
    local: &CollectionFacts,
) -> Result<()> {
    match local.kind {
        LocalKind::View => {
            return Err(Error::new(
                ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
                format!("Namespace {ns} is a view. Views cannot be sharded."),
            ));
        }
        LocalKind::TimeSeries => {
            return Err(Error::new(
                ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                format!("{ns} has become a time series meanwhile"),
            ));
        }
        LocalKind::Collection => check_series(ns, request, local)?,
        LocalKind::Absent => {}
    }
    if local.is_capped {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "can't shard a capped collection",
        ));
    }
    if local.has_builds {
        return Err(Error::new(
            ErrorCode::BACKGROUND_OPERATION_IN_PROGRESS_FOR_NAMESPACE,
            format!("cannot shard {ns} while indexes of it are being built"),
        ));
    }
    match &local.collation {
        Some(collation) if !request.names_simple_collation => Err(Error::bad_value(format!(
            "If no collation was specified, the collection collation must be {{locale: 'simple'}}, but found: {}",
            document_text(collation)
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{ObjectId, rawdoc};
    use pinion_clock::Timestamp;

    use super::*;

    fn plan() -> Plan {
        let chunk = |min: i32, shard: &str| InitialChunk {
            min: rawdoc! { "a": min },
            shard: shard.into(),
        };
        Plan {
            uuid: Uuid::from_bytes([7; 16]),
            of: Incarnation {
                epoch: ObjectId::from_bytes([1; 12]),
                timestamp: Timestamp::new(9, 1),
            },
            now_ms: 5,
            primary: "s1".into(),
            options: rawdoc! { "collation": { "locale": "de" } },
            collation: Some(rawdoc! { "locale": "de" }),
            id_index: Some(rawdoc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" }),
            indexes: vec![rawdoc! { "v": 2, "key": { "a": 1 }, "name": "a_1" }],
            chunks: vec![
                chunk(0, "s2"),
                chunk(1, "s1"),
                chunk(2, "s0"),
                chunk(3, "s2"),
            ],
        }
    }

    #[test]
    fn plans() {
        let plan = plan();
        assert_eq!(Plan::parse(&plan.to_bson()).ok(), Some(plan.clone()));
        assert_eq!((plan.version().major, plan.version().minor), (1, 3));
        let Action::AskShards { shards, .. } = plan.on_others(RawDocumentBuf::new()) else {
            panic!("other shards are asked");
        };
        let others = vec![ShardId::new("s0"), ShardId::new("s2")];
        assert_eq!(shards, AskedShards::These(others));
    }

    #[test]
    fn commands() {
        let ns = Namespace::parse("d.c").expect("a namespace");
        let plan = plan();
        let get = |command: &RawDocument, path: &str| {
            pinion_bson::get_path(command, path).map(pinion_bson::RawBson::from)
        };
        let creation = plan.creation(&ns);
        assert_eq!(
            get(&creation, "options.collation.locale"),
            Some("de".into())
        );
        assert_eq!(get(&creation, "idIndex.name"), Some("_id_".into()));
        assert_eq!(get(&creation, "$db"), Some("d".into()));
        let request = rawdoc! {
            "shardKey": { "a": 1 }, "unique": true, "collation": { "locale": "simple" },
        };
        let request = CreateCollectionRequest::parse(&request).expect("a request");
        let commit = plan.commit(&ns, &request);
        let Some(RawBsonRef::Document(collection)) = pinion_bson::get(&commit, "collection") else {
            panic!("{commit:?}");
        };
        let collection = CollectionDocument::parse(collection).expect("a document");
        assert!(collection.is_unique && collection.of == plan.of);
        assert_eq!(collection.default_collation, plan.collation);
        let Some(RawBsonRef::Array(chunks)) = pinion_bson::get(&commit, "chunks") else {
            panic!("{commit:?}");
        };
        assert_eq!(pinion_bson::values(chunks).count(), 4);
    }

    #[test]
    fn what_is_not_sharded() {
        let ns = Namespace::parse("d.c").expect("a namespace");
        let check = |change: fn(&mut CollectionFacts), collation: bool, code: i32| {
            let request = match collation {
                true => rawdoc! { "shardKey": { "a": 1 }, "collation": { "locale": "simple" } },
                false => rawdoc! { "shardKey": { "a": 1 } },
            };
            let request = CreateCollectionRequest::parse(&request).expect("a request");
            let mut local = CollectionFacts::absent();
            change(&mut local);
            let found = check_local(&ns, &request, &local);
            assert_eq!(found.map_or_else(|error| error.code.0, |()| 0), code);
        };
        check(|_| {}, false, 0);
        check(|local| local.kind = LocalKind::View, false, 166);
        check(|local| local.kind = LocalKind::TimeSeries, false, 117);
        check(|local| local.is_capped = true, false, 72);
        check(|local| local.has_builds = true, false, 12_587);
        let german: fn(&mut CollectionFacts) =
            |local| local.collation = Some(rawdoc! { "locale": "de" });
        check(german, false, 2);
        check(german, true, 0);
    }
}
