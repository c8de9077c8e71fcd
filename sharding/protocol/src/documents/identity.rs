//! By what a node knows that it is of a shard: a document of `admin.system.version`.

use pinion_bson::{DocBuilder, ObjectId, RawDocument, RawDocumentBuf};
use pinion_wire::idl::{FieldReader, Path, missing_field};
use pinion_wire::{Error, Result};

use super::other_fields;
use crate::shard_id::ShardId;

/// Where it is kept, under [`ShardIdentityDocument::ID`].
pub const IDENTITY: &str = "admin.system.version";

/// `{_id: "shardIdentity", shardName, clusterId, configsvrConnectionString}`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardIdentityDocument {
    pub shard: ShardId,
    /// `clusterId` of `config.version`.
    pub cluster: ObjectId,
    /// `set/host:port,host:port` of the config servers.
    pub config_servers: String,
    pub other: RawDocumentBuf,
}

const FIELDS: [&str; 4] = ["_id", "shardName", "clusterId", "configsvrConnectionString"];

impl ShardIdentityDocument {
    pub const ID: &str = "shardIdentity";

    /// Reads it with or without `_id`, as `_addShard` sends it.
    ///
    /// # Errors
    /// A field that is missing or of a wrong type; `BadValue` for another `_id`, an empty name, an
    /// absent cluster, and for config servers that are no set.
    pub fn parse(document: &RawDocument) -> Result<ShardIdentityDocument> {
        let reader = FieldReader::object(Path::root(Self::ID), document)?;
        if let Some(id) = reader.opt_str("_id")?
            && id != Self::ID
        {
            return Err(Error::bad_value(format!(
                "the _id of a shardIdentity document is \"{}\", not \"{id}\"",
                Self::ID
            )));
        }
        let shard = reader.str("shardName")?;
        let cluster = reader
            .opt_object_id("clusterId")?
            .ok_or_else(|| missing_field(reader.path().field("clusterId")))?;
        let config_servers = reader.str("configsvrConnectionString")?;
        let is_set = config_servers
            .split_once('/')
            .is_some_and(|(set, hosts)| !set.is_empty() && !hosts.is_empty());
        if !is_set {
            return Err(Error::bad_value(format!(
                "config server connection string can only be replica sets, initialized with {config_servers}"
            )));
        }
        if shard.is_empty() {
            return Err(Error::bad_value("shardName must not be empty"));
        }
        if cluster.bytes() == [0; 12] {
            return Err(Error::bad_value("clusterId must be set"));
        }
        Ok(ShardIdentityDocument {
            shard: ShardId::new(shard),
            cluster,
            config_servers: config_servers.to_owned(),
            other: other_fields(document, &FIELDS),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", Self::ID)
            .append("shardName", self.shard.as_str())
            .append("clusterId", self.cluster)
            .append("configsvrConnectionString", self.config_servers.as_str());
        out.append_all(&self.other);
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawBson, rawdoc};

    use super::super::testing::{check_kept, check_required, check_types, with};
    use super::*;

    #[test]
    fn forms() {
        let parse = ShardIdentityDocument::parse;
        let full = rawdoc! {
            "_id": "shardIdentity", "shardName": "s1", "clusterId": ObjectId::from_bytes([1; 12]),
            "configsvrConnectionString": "cfg/a:1", "deferShardingInitialization": true,
        };
        let found = check_kept(&full, parse, ShardIdentityDocument::to_bson);
        assert_eq!((&*found.shard, &*found.config_servers), ("s1", "cfg/a:1"));
        check_types(&full, &FIELDS, parse, "shardIdentity");
        check_required(&full, &FIELDS[1..], parse);
        assert_eq!(parse(&other_fields(&full, &["_id"])).ok(), Some(found));
        let check = |name, value| {
            let error = parse(&with(&full, name, value)).expect_err(name);
            assert_eq!(error.code.0, 2, "{name}");
        };
        check("_id", RawBson::String("x".into()));
        check("shardName", RawBson::String(String::new()));
        check(
            "clusterId",
            RawBson::ObjectId(ObjectId::from_bytes([0; 12])),
        );
        for host in ["a:1", "cfg/", "/a:1"] {
            check("configsvrConnectionString", RawBson::String(host.into()));
        }
    }
}
