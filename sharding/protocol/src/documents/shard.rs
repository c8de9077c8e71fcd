//! A shard: `config.shards`.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Path, Types, wrong_type};

use super::other_fields;
use crate::shard_id::ShardId;
use crate::values::append_time;

pub const SHARDS: &str = "config.shards";

/// `{_id, host, state, topologyTime, draining?, tags?}`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardDocument {
    pub id: ShardId,
    /// The connection string: `set/host:port,host:port`.
    pub host: String,
    /// 1 where the shard knows that it is one.
    pub state: i32,
    /// When it was added, or its removal began. Absent in MongoDB 4.4's form.
    pub topology_time: Option<Timestamp>,
    /// Whether it is being removed.
    pub is_draining: bool,
    /// The zones that it belongs to.
    pub tags: Vec<String>,
    pub other: RawDocumentBuf,
}

const FIELDS: [&str; 6] = ["_id", "host", "state", "topologyTime", "draining", "tags"];
/// The state of a shard that knows that it is one.
const SHARD_AWARE: i32 = 1;

impl ShardDocument {
    /// A shard that was just added.
    pub fn new(id: ShardId, host: String, topology_time: Timestamp) -> ShardDocument {
        ShardDocument {
            id,
            host,
            state: SHARD_AWARE,
            topology_time: Some(topology_time),
            is_draining: false,
            tags: Vec::new(),
            other: RawDocumentBuf::new(),
        }
    }

    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(document: &RawDocument) -> Result<ShardDocument> {
        let reader = FieldReader::object(Path::root(SHARDS), document)?;
        let mut tags = Vec::new();
        if let Some(values) = reader.opt_array("tags")? {
            for (at, value) in pinion_bson::values(values).enumerate() {
                let RawBsonRef::String(tag) = value else {
                    let path = reader.path().field("tags");
                    return Err(wrong_type(path.index(at), value, Types::STRING));
                };
                tags.push(tag.to_owned());
            }
        }
        Ok(ShardDocument {
            id: ShardId::new(reader.str("_id")?),
            host: reader.str("host")?.to_owned(),
            state: reader.opt_i32("state")?.unwrap_or(0),
            topology_time: reader.opt_timestamp("topologyTime")?,
            is_draining: reader.opt_safe_bool("draining")?.unwrap_or(false),
            tags,
            other: other_fields(document, &FIELDS),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", self.id.as_str())
            .append("host", self.host.as_str())
            .append("state", self.state);
        if let Some(time) = self.topology_time {
            append_time(&mut out, "topologyTime", time);
        }
        if self.is_draining {
            out.append("draining", true);
        }
        if !self.tags.is_empty() {
            out.start_array("tags");
            for tag in &self.tags {
                out.push(tag.as_str());
            }
            out.end();
        }
        out.append_all(&self.other);
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::super::testing::{check_kept, check_required, check_types};
    use super::*;
    use crate::values::bson_time;

    #[test]
    fn forms() {
        let full = rawdoc! {
            "_id": "s1", "host": "rs1/a:1,b:2", "state": 1,
            "topologyTime": bson_time(Timestamp::new(5, 1)),
            "draining": true, "tags": ["eu", "us"], "maxSize": 4i64,
        };
        let shard = check_kept(&full, ShardDocument::parse, ShardDocument::to_bson);
        assert!(shard.is_draining);
        assert_eq!(shard.tags, ["eu", "us"]);
        assert_eq!(shard.topology_time, Some(Timestamp::new(5, 1)));
        let fields = ["_id", "host", "state", "topologyTime", "draining", "tags"];
        check_types(&full, &fields, ShardDocument::parse, SHARDS);
        check_required(&full, &["_id", "host"], ShardDocument::parse);
        let old = rawdoc! { "_id": "s1", "host": "rs1/a:1", "state": 1 };
        check_kept(&old, ShardDocument::parse, ShardDocument::to_bson);
        let bad_tag = rawdoc! { "_id": "s1", "host": "rs1/a:1", "tags": ["a", 1] };
        let error = ShardDocument::parse(&bad_tag).expect_err("a number");
        assert!(error.message.contains("config.shards.tags.1"), "{error}");
        let new = ShardDocument::new("s2".into(), "rs/x:1".into(), Timestamp::new(7, 0));
        let expected = rawdoc! {
            "_id": "s2", "host": "rs/x:1", "state": 1,
            "topologyTime": bson_time(Timestamp::new(7, 0)),
        };
        assert_eq!(new.to_bson(), expected);
    }
}
