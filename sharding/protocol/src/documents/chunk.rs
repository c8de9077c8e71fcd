//! A chunk: `config.chunks`.

use pinion_bson::{DocBuilder, ObjectId, RawBson, RawDocument, RawDocumentBuf, Uuid};
use pinion_clock::Timestamp;
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Path, missing_field};

use super::{any_value, append_document, append_value, other_fields};
use crate::shard_id::ShardId;
use crate::values::{append_time, append_uuid};

pub const CHUNKS: &str = "config.chunks";

/// `{_id, uuid, min, max, shard, lastmod, onCurrentShardSince?, history, jumbo?}`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkDocument {
    /// An ObjectId; a string in old documents of MongoDB 4.4.
    pub id: RawBson,
    pub of: ChunkOf,
    /// The first key that it has.
    pub min: RawDocumentBuf,
    /// The first key behind it.
    pub max: RawDocumentBuf,
    pub shard: ShardId,
    /// Major and minor version as seconds and counter.
    pub placement: Timestamp,
    /// Absent in documents of MongoDB before 6.3.
    pub on_current_shard_since: Option<Timestamp>,
    /// Owners, the latest first.
    pub history: Vec<OwnerSince>,
    /// It could not be moved or split for its size.
    pub is_jumbo: bool,
    pub other: RawDocumentBuf,
}

/// The collection that a chunk is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkOf {
    Uuid(Uuid),
    /// The form of MongoDB 4.4: `ns` and `lastmodEpoch`.
    Named {
        ns: String,
        epoch: ObjectId,
    },
}

/// A shard owned the chunk from this time to that of the entry before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerSince {
    pub valid_after: Timestamp,
    pub shard: ShardId,
}

const FIELDS: [&str; 11] = [
    "_id",
    "uuid",
    "ns",
    "lastmodEpoch",
    "min",
    "max",
    "shard",
    "lastmod",
    "onCurrentShardSince",
    "history",
    "jumbo",
];

impl ChunkDocument {
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(document: &RawDocument) -> Result<ChunkDocument> {
        let reader = FieldReader::object(Path::root(CHUNKS), document)?;
        let missing = |name| missing_field(reader.path().field(name));
        let of = match (reader.opt_uuid("uuid")?, reader.opt_str("ns")?) {
            (Some(uuid), _) => ChunkOf::Uuid(Uuid::from_bytes(uuid)),
            (None, Some(ns)) => ChunkOf::Named {
                ns: ns.to_owned(),
                epoch: reader
                    .opt_object_id("lastmodEpoch")?
                    .ok_or_else(|| missing("lastmodEpoch"))?,
            },
            (None, None) => return Err(missing("uuid")),
        };
        let mut history = Vec::new();
        if let Some(entries) = reader.opt_objects("history")? {
            let path = entries.path();
            for entry in entries {
                let (at, entry) = entry?;
                history.push(OwnerSince::parse(path.index(at), entry)?);
            }
        }
        Ok(ChunkDocument {
            id: any_value(&reader, "_id")?,
            of,
            min: reader.doc("min")?.to_owned(),
            max: reader.doc("max")?.to_owned(),
            shard: ShardId::new(reader.str("shard")?),
            placement: reader
                .opt_timestamp("lastmod")?
                .ok_or_else(|| missing("lastmod"))?,
            on_current_shard_since: reader.opt_timestamp("onCurrentShardSince")?,
            history,
            is_jumbo: reader.opt_safe_bool("jumbo")?.unwrap_or(false),
            other: other_fields(document, &FIELDS),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::with_capacity(256);
        append_value(&mut out, "_id", &self.id);
        self.of.append_to(&mut out);
        append_document(&mut out, "min", &self.min);
        append_document(&mut out, "max", &self.max);
        out.append("shard", self.shard.as_str());
        append_time(&mut out, "lastmod", self.placement);
        if let Some(since) = self.on_current_shard_since {
            append_time(&mut out, "onCurrentShardSince", since);
        }
        out.start_array("history");
        for entry in &self.history {
            out.push_document();
            append_time(&mut out, "validAfter", entry.valid_after);
            out.append("shard", entry.shard.as_str()).end();
        }
        out.end();
        if self.is_jumbo {
            out.append("jumbo", true);
        }
        out.append_all(&self.other);
        out.finish()
    }
}

impl ChunkOf {
    pub(super) fn append_to(&self, out: &mut DocBuilder) {
        match self {
            ChunkOf::Uuid(uuid) => append_uuid(out, "uuid", *uuid),
            ChunkOf::Named { ns, epoch } => {
                out.append("ns", ns.as_str()).append("lastmodEpoch", *epoch);
            }
        }
    }
}

impl OwnerSince {
    fn parse(path: Path<'_>, document: &RawDocument) -> Result<OwnerSince> {
        let reader = FieldReader::object(path, document)?;
        Ok(OwnerSince {
            valid_after: reader
                .opt_timestamp("validAfter")?
                .ok_or_else(|| missing_field(reader.path().field("validAfter")))?,
            shard: ShardId::new(reader.str("shard")?),
        })
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{Binary, rawdoc};

    use super::super::testing::{check_kept, check_required, check_types, with};
    use super::*;
    use crate::values::bson_time;

    #[test]
    fn forms() {
        let time = |secs, inc| bson_time(Timestamp::new(secs, inc));
        let full = rawdoc! {
            "_id": ObjectId::from_bytes([1; 12]),
            "uuid": Binary::from(Uuid::from_bytes([2; 16])),
            "min": { "a": RawBson::MinKey }, "max": { "a": 5 }, "shard": "s1",
            "lastmod": time(7, 3), "onCurrentShardSince": time(90, 1),
            "history": [
                { "validAfter": time(90, 1), "shard": "s1" },
                { "validAfter": time(80, 1), "shard": "s0" },
            ],
            "jumbo": true, "estimatedDataSizeBytes": 5i64,
        };
        let found = check_kept(&full, ChunkDocument::parse, ChunkDocument::to_bson);
        assert_eq!(found.placement, Timestamp::new(7, 3));
        assert_eq!(found.history[1].shard, "s0");
        let typed = [
            "uuid",
            "min",
            "max",
            "shard",
            "lastmod",
            "onCurrentShardSince",
            "history",
            "jumbo",
        ];
        check_types(&full, &typed, ChunkDocument::parse, CHUNKS);
        let required = ["_id", "uuid", "min", "max", "shard", "lastmod"];
        check_required(&full, &required, ChunkDocument::parse);
        let history = rawdoc! { "h": [{ "shard": "s1" }] };
        let history = pinion_bson::get(&history, "h").expect("there").into();
        let error = ChunkDocument::parse(&with(&full, "history", history)).expect_err("no time");
        assert!(
            error.message.contains("config.chunks.history.0.validAfter"),
            "{error}"
        );

        let old = rawdoc! {
            "_id": "d.c-a_MinKey", "ns": "d.c", "lastmodEpoch": ObjectId::from_bytes([1; 12]),
            "min": { "a": RawBson::MinKey }, "max": { "a": 5 }, "shard": "s1",
            "lastmod": time(7, 3), "history": [],
        };
        let found = check_kept(&old, ChunkDocument::parse, ChunkDocument::to_bson);
        assert!(matches!(found.of, ChunkOf::Named { ns, .. } if ns == "d.c"));
        check_required(&old, &["lastmodEpoch"], ChunkDocument::parse);
    }
}
