//! `_configsvrCollMod`: what the buckets of a sharded time series are: `timeseriesFields`.

use pinion_bson::{Binary, DocBuilder, RawBson, RawDocument, RawDocumentBuf, Uuid, rawdoc};
use pinion_query::TimeSeries;
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

use crate::documents::{ChunkDocument, CollectionDocument};
use crate::series::{SERIES_FIELDS, series_in};
use crate::shard_id::ShardId;
use crate::values::{append_uuid, bson_time};
use crate::version::ChunkVersion;

const COMMAND: &str = "_configsvrCollMod";

/// A series gets other buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct SeriesChange {
    /// The collection of its buckets.
    pub ns: Namespace,
    pub uuid: Uuid,
    pub was: TimeSeries,
    pub to: TimeSeries,
    /// All that may own chunks: they keep requests out.
    pub shards: Vec<ShardId>,
    /// The definition that sends it, its phase and its run, and the shard that coordinates it: a
    /// message that is late comes when that has ended.
    pub reason: RawDocumentBuf,
    pub phase: String,
    pub run: Uuid,
    pub from: ShardId,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum SeriesChangeStep {
    /// An earlier attempt has written it.
    Done,
    /// These commands in one transaction.
    Write(Vec<RawDocumentBuf>),
}

impl SeriesChange {
    pub fn to_command(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append(COMMAND, self.ns.as_str());
        append_uuid(&mut out, "collectionUUID", self.uuid);
        out.append("was", &*self.was.to_document())
            .append(SERIES_FIELDS, &*self.to.to_document())
            .start_array("shards");
        for shard in &self.shards {
            out.push(shard.as_str());
        }
        out.end()
            .append("reason", &*self.reason)
            .append("phase", self.phase.as_str());
        append_uuid(&mut out, "run", self.run);
        out.append("from", self.from.as_str())
            .append("$db", "admin");
        out.finish()
    }

    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(ns: Namespace, command: &RawDocument) -> Result<SeriesChange> {
        let reader = FieldReader::object(Path::root(COMMAND), command)?;
        let uuid = |name| {
            let uuid = reader.opt_uuid(name)?.map(Uuid::from_bytes);
            uuid.ok_or_else(|| missing_field(reader.path().field(name)))
        };
        let series = |name| {
            let series = series_in(&reader, name)?;
            series.ok_or_else(|| missing_field(reader.path().field(name)))
        };
        let shards = pinion_bson::values(reader.array("shards")?);
        let shards = shards.filter_map(|shard| shard.as_str()).map(ShardId::new);
        Ok(SeriesChange {
            ns,
            uuid: uuid("collectionUUID")?,
            was: series("was")?,
            to: series(SERIES_FIELDS)?,
            shards: shards.collect(),
            reason: reader.doc("reason")?.to_owned(),
            phase: reader.str("phase")?.to_owned(),
            run: uuid("run")?,
            from: ShardId::new(reader.str("from")?),
        })
    }

    pub fn fields() -> &'static [&'static str] {
        &[
            "collectionUUID",
            "was",
            SERIES_FIELDS,
            "shards",
            "reason",
            "phase",
            "run",
            "from",
        ]
    }

    /// Decides, given the document that has this name, if there is one, and of each shard that owns
    /// chunks the one with its version.
    ///
    /// # Errors
    /// `ConflictingOperationInProgress` where the collection is another one by now, has other
    /// buckets, or has chunks on another shard.
    pub fn decide(
        &self,
        found: Option<&CollectionDocument>,
        newest: &[ChunkDocument],
    ) -> Result<SeriesChangeStep> {
        let changed = |what: &str| {
            Error::new(
                ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                format!("the sharded collection {} {what}", self.ns),
            )
        };
        let found = found.filter(|found| !found.is_dropped && found.uuid == Some(self.uuid));
        let highest = newest.iter().map(|chunk| chunk.placement).max();
        let (Some(found), Some(highest)) = (found, highest) else {
            return Err(changed("is not there any more"));
        };
        if found.time_series.as_ref() == Some(&self.to) {
            return Ok(SeriesChangeStep::Done);
        }
        if found.time_series.as_ref() != Some(&self.was) {
            return Err(changed("was changed meanwhile"));
        }
        let is_known = |chunk: &ChunkDocument| self.shards.contains(&chunk.shard);
        if !newest.iter().all(is_known) {
            return Err(changed("has chunks on another shard by now"));
        }
        let highest = ChunkVersion::from_placement(found.of, highest);
        Ok(SeriesChangeStep::Write(vec![
            self.change_of_collection(),
            self.change_of_chunks(newest, highest),
        ]))
    }

    fn uuid(&self) -> RawBson {
        RawBson::Binary(Binary::from(self.uuid))
    }

    fn change_of_collection(&self) -> RawDocumentBuf {
        let mut set = DocBuilder::new();
        set.append(SERIES_FIELDS, &*self.to.to_document());
        rawdoc! {
            "update": "collections", "$db": "config",
            "updates": [{
                "q": { "_id": self.ns.as_str(), "uuid": self.uuid() },
                "u": { "$set": set.finish() },
            }],
        }
    }

    /// A higher major version for each shard: routers that go by the former buckets are refused.
    fn change_of_chunks(&self, newest: &[ChunkDocument], highest: ChunkVersion) -> RawDocumentBuf {
        let first = highest.moved().migrated;
        let versions = std::iter::once(first).chain(first.split(newest.len() - 1));
        let mut out = DocBuilder::new();
        out.append("update", "chunks").start_array("updates");
        for (chunk, version) in newest.iter().zip(versions) {
            let statement = rawdoc! {
                "q": { "uuid": self.uuid(), "min": chunk.min.clone() },
                "u": { "$set": { "lastmod": bson_time(version.placement()) } },
            };
            out.push(&*statement);
        }
        out.end().append("$db", "config");
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::ObjectId;
    use pinion_clock::Timestamp;
    use pinion_query::Granularity;

    use super::*;
    use crate::documents::ChunkOf;
    use crate::version::Incarnation;

    fn series(granularity: Granularity) -> TimeSeries {
        TimeSeries {
            time_field: "t".into(),
            meta_field: Some("m".into()),
            granularity: Some(granularity),
            rounding_secs: None,
            max_span_secs: granularity.max_span_secs(),
        }
    }

    fn change() -> SeriesChange {
        SeriesChange {
            ns: Namespace::new("d", "system.buckets.c").expect("a name"),
            uuid: Uuid::from_bytes([7; 16]),
            was: series(Granularity::Seconds),
            to: series(Granularity::Minutes),
            shards: vec!["s0".into(), "s1".into()],
            reason: rawdoc! { "namespace": "d.system.buckets.c" },
            phase: "x".to_owned(),
            run: Uuid::from_bytes([8; 16]),
            from: "s0".into(),
        }
    }

    fn document(uuid: u8, granularity: Granularity) -> CollectionDocument {
        let of = Incarnation {
            epoch: ObjectId::from_bytes([1; 12]),
            timestamp: Timestamp::new(5, 1),
        };
        let uuid = Uuid::from_bytes([uuid; 16]);
        let key = rawdoc! { "control.min.t": 1 };
        let mut found = CollectionDocument::new(change().ns, of, 5, uuid, key);
        found.time_series = Some(series(granularity));
        found
    }

    fn chunk(min: i32, shard: &str, placement: Timestamp) -> ChunkDocument {
        ChunkDocument {
            id: RawBson::Int32(min),
            of: ChunkOf::Uuid(Uuid::from_bytes([7; 16])),
            min: rawdoc! { "control.min.t": min },
            max: rawdoc! { "control.min.t": min + 1 },
            shard: shard.into(),
            placement,
            on_current_shard_since: None,
            history: Vec::new(),
            is_jumbo: false,
            other: RawDocumentBuf::new(),
        }
    }

    fn newest() -> Vec<ChunkDocument> {
        vec![
            chunk(1, "s0", Timestamp::new(2, 9)),
            chunk(5, "s1", Timestamp::new(3, 4)),
        ]
    }

    #[test]
    fn forms() {
        let change = change();
        let command = change.to_command();
        let fields = pinion_bson::elements(&command).map(|(name, _)| name);
        let known = |name: &str| SeriesChange::fields().contains(&name);
        assert!(fields.skip(1).all(|name| known(name) || name == "$db"));
        let read = SeriesChange::parse(change.ns.clone(), &command);
        assert_eq!(read.ok(), Some(change));
    }

    #[test]
    fn decisions() {
        let check = |found: Option<CollectionDocument>, newest: &[ChunkDocument], expected| {
            let code = match change().decide(found.as_ref(), newest) {
                Ok(SeriesChangeStep::Write(_)) => 0,
                Ok(SeriesChangeStep::Done) => -1,
                Err(error) => error.code.0,
            };
            assert_eq!(code, expected, "{found:?}");
        };
        check(Some(document(7, Granularity::Seconds)), &newest(), 0);
        check(Some(document(7, Granularity::Minutes)), &newest(), -1);
        check(Some(document(7, Granularity::Hours)), &newest(), 117);
        check(Some(document(8, Granularity::Seconds)), &newest(), 117);
        check(Some(document(7, Granularity::Seconds)), &[], 117);
        check(None, &newest(), 117);
        let mut moved = newest();
        moved[0].shard = "s2".into();
        check(Some(document(7, Granularity::Seconds)), &moved, 117);
    }

    #[test]
    fn what_is_written() {
        let found = document(7, Granularity::Seconds);
        let Ok(SeriesChangeStep::Write(commands)) = change().decide(Some(&found), &newest()) else {
            panic!("it is written");
        };
        let uuid = || Binary::from(change().uuid);
        let expected = rawdoc! {
            "update": "collections", "$db": "config",
            "updates": [{
                "q": { "_id": "d.system.buckets.c", "uuid": uuid() },
                "u": { "$set": { "timeseriesFields": {
                    "timeField": "t", "metaField": "m", "granularity": "minutes",
                    "bucketMaxSpanSeconds": 86_400,
                } } },
            }],
        };
        assert_eq!(commands[0], expected);
        let raised = |min: i32, minor: u32| {
            let placement = bson_time(Timestamp::new(4, minor));
            rawdoc! {
                "q": { "uuid": uuid(), "min": { "control.min.t": min } },
                "u": { "$set": { "lastmod": placement } },
            }
        };
        let expected = rawdoc! {
            "update": "chunks", "updates": [raised(1, 0), raised(5, 1)], "$db": "config",
        };
        assert_eq!(commands[1], expected);
    }
}
