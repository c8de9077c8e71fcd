//! The shards of a cluster, as `config.shards` lists them, and its config servers.

use std::collections::BTreeMap;

use pinion_bson::{RawBsonRef, RawDocument, get, values};
use pinion_clock::Timestamp;
use pinion_wire::idl::truthy;
use pinion_wire::{Error, HostPort, Result};

use crate::connection_string::ConnectionString;

/// The id under which the config servers are found.
pub const CONFIG_ID: &str = "config";

/// One document of `config.shards`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardEntry {
    pub id: String,
    pub string: ConnectionString,
    /// The zones that it belongs to.
    pub tags: Vec<String>,
    pub is_draining: bool,
    /// When the list of shards changed with it.
    pub topology_time: Timestamp,
}

impl ShardEntry {
    /// Reads a document of `config.shards`.
    ///
    /// # Errors
    /// `FailedToParse` where `_id` or `host` is missing or malformed, or names no set.
    pub fn parse(document: &RawDocument) -> Result<ShardEntry> {
        let text = |name: &str| {
            let value = get(document, name).and_then(|value| value.as_str());
            value.ok_or_else(|| {
                Error::failed_to_parse(format!(
                    "A document of config.shards has no string '{name}'"
                ))
            })
        };
        let id = text("_id")?.to_owned();
        let string = ConnectionString::parse(text("host")?)?;
        if string.set.is_empty() {
            return Err(Error::failed_to_parse(format!(
                "The host of shard {id} names no replica set: {string}"
            )));
        }
        let tags = match get(document, "tags") {
            Some(RawBsonRef::Array(tags)) => {
                let tags = values(tags).filter_map(|tag| tag.as_str().map(str::to_owned));
                tags.collect()
            }
            _ => Vec::new(),
        };
        let time = get(document, "topologyTime").and_then(|time| time.as_timestamp());
        Ok(ShardEntry {
            id,
            string,
            tags,
            is_draining: get(document, "draining").is_some_and(truthy),
            topology_time: time.map_or(Timestamp::MIN, |t| Timestamp::new(t.time, t.increment)),
        })
    }
}

/// What is cached of `config.shards`: immutable but for [`ShardRegistry::apply_string`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardRegistry {
    shards: BTreeMap<String, ShardEntry>,
    config: Option<ConnectionString>,
    /// The id of the shard with this set, or with this host.
    by_set: BTreeMap<String, String>,
    by_host: BTreeMap<HostPort, String>,
}

impl ShardRegistry {
    /// From the documents of `config.shards`, and the string of the config servers.
    ///
    /// # Errors
    /// Those of [`ShardEntry::parse`].
    pub fn new<'d>(
        documents: impl IntoIterator<Item = &'d RawDocument>,
        config: Option<ConnectionString>,
    ) -> Result<ShardRegistry> {
        let mut shards = BTreeMap::new();
        for document in documents {
            let entry = ShardEntry::parse(document)?;
            shards.insert(entry.id.clone(), entry);
        }
        let mut registry = ShardRegistry {
            shards,
            config,
            ..ShardRegistry::default()
        };
        registry.index();
        Ok(registry)
    }

    fn index(&mut self) {
        self.by_set.clear();
        self.by_host.clear();
        let mut all: Vec<(&str, &ConnectionString)> = Vec::new();
        all.extend(self.config.as_ref().map(|config| (CONFIG_ID, config)));
        // Where the config servers are a shard too, the shard's document counts.
        all.extend(
            self.shards
                .values()
                .map(|shard| (&*shard.id, &shard.string)),
        );
        for (id, string) in all {
            self.by_set.insert(string.set.clone(), id.to_owned());
            for host in &string.hosts {
                self.by_host.insert(host.clone(), id.to_owned());
            }
        }
    }

    /// The shards, ascending by id.
    pub fn shards(&self) -> impl Iterator<Item = &ShardEntry> {
        self.shards.values()
    }

    pub fn shard(&self, id: &str) -> Option<&ShardEntry> {
        self.shards.get(id)
    }

    /// Where a shard is found, or the config servers under [`CONFIG_ID`].
    pub fn string(&self, id: &str) -> Option<&ConnectionString> {
        match self.shards.get(id) {
            Some(shard) => Some(&shard.string),
            None => self.config.as_ref().filter(|_| id == CONFIG_ID),
        }
    }

    /// The id of the shard whose replica set has this name.
    pub fn id_of_set(&self, set: &str) -> Option<&str> {
        self.by_set.get(set).map(|id| &**id)
    }

    /// The id of the shard that this host is a member of.
    pub fn id_of_host(&self, host: &HostPort) -> Option<&str> {
        self.by_host.get(host).map(|id| &**id)
    }

    /// The id of the shard with this connection string, in whatever order it names its hosts.
    pub fn id_of_string(&self, string: &ConnectionString) -> Option<&str> {
        let id = self.id_of_set(&string.set)?;
        self.string(id).filter(|of| of.is_same(string)).map(|_| id)
    }

    /// The shard of a name in any of its forms: the id, the name of the set, a host, or a whole
    /// connection string.
    pub fn id_of(&self, name: &str) -> Option<&str> {
        if let Some((id, _)) = self.shards.get_key_value(name) {
            return Some(id);
        }
        if name == CONFIG_ID && self.config.is_some() {
            return Some(CONFIG_ID);
        }
        if let Some(id) = self.id_of_set(name) {
            return Some(id);
        }
        let string = ConnectionString::parse(name).ok()?;
        match (&*string.set, &string.hosts[..]) {
            ("", [host]) => self.id_of_host(host),
            _ => self.id_of_string(&string),
        }
    }

    /// The newest time of all documents: what is gossiped as `$topologyTime`.
    pub fn topology_time(&self) -> Timestamp {
        let times = self.shards.values().map(|shard| shard.topology_time);
        times.max().unwrap_or(Timestamp::MIN)
    }

    /// Takes over what a set's monitor has learned: the id of the shard whose string has changed.
    pub fn apply_string(&mut self, string: &ConnectionString) -> Option<String> {
        let id = self.id_of_set(&string.set)?.to_owned();
        let is_config = self.config.as_ref().is_some_and(|of| of.set == string.set);
        let mut has_changed = false;
        if is_config && !self.config.as_ref().is_some_and(|of| of.is_same(string)) {
            self.config = Some(string.clone());
            has_changed = true;
        }
        if let Some(shard) = self.shards.get_mut(&id)
            && !shard.string.is_same(string)
        {
            shard.string = string.clone();
            has_changed = true;
        }
        if !has_changed {
            return None;
        }
        self.index();
        Some(id)
    }

    /// What is different in a newer list: the ids of the shards that were added or changed, and of
    /// those that are gone.
    pub fn difference(&self, newer: &ShardRegistry) -> ShardChanges {
        let changed = newer.shards.iter();
        let changed = changed.filter(|(id, shard)| self.shards.get(*id) != Some(*shard));
        let removed = self
            .shards
            .keys()
            .filter(|id| !newer.shards.contains_key(*id));
        ShardChanges {
            changed: changed.map(|(id, _)| id.clone()).collect(),
            removed: removed.cloned().collect(),
        }
    }
}

/// The ids of the shards whose documents differ between two lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardChanges {
    pub changed: Vec<String>,
    pub removed: Vec<String>,
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::*;

    fn registry() -> ShardRegistry {
        let documents = [
            rawdoc! { "_id": "s0", "host": "rs0/a:1,b:1", "state": 1, "tags": ["EU"] },
            rawdoc! { "_id": "s1", "host": "rs1/c:1", "draining": true,
            "topologyTime": pinion_bson::Timestamp { time: 7, increment: 2 } },
        ];
        let config = ConnectionString::parse("cfg/x:1,y:1").expect("it is well formed");
        let documents = documents.iter().map(|document| &**document);
        ShardRegistry::new(documents, Some(config)).expect("the documents are well formed")
    }

    #[test]
    fn names() {
        let registry = registry();
        for (name, expected) in [
            ("s0", Some("s0")),
            ("rs0", Some("s0")),
            ("b:1", Some("s0")),
            ("rs0/b:1,a:1", Some("s0")),
            ("rs0/b:1", None),
            ("rs1/c:1", Some("s1")),
            ("c", None),
            ("config", Some("config")),
            ("cfg", Some("config")),
            ("y:1", Some("config")),
            ("cfg/y:1,x:1", Some("config")),
            ("s2", None),
            ("", None),
        ] {
            assert_eq!(registry.id_of(name), expected, "{name}");
        }
        assert_eq!(registry.topology_time(), Timestamp::new(7, 2));
        assert_eq!(registry.shard("s0").expect("it is there").tags, ["EU"]);
        assert!(registry.shard("s1").expect("it is there").is_draining);
        assert!(registry.shard("config").is_none());
    }

    #[test]
    fn changes() {
        let mut registry = registry();
        let before = registry.clone();
        let mut apply = |text: &str| {
            let string = ConnectionString::parse(text).expect("it is well formed");
            registry.apply_string(&string)
        };
        assert_eq!(apply("rs0/b:1,a:1"), None);
        assert_eq!(apply("rs0/b:1,d:1"), Some("s0".to_owned()));
        assert_eq!(apply("rs0/b:1,d:1"), None);
        assert_eq!(apply("cfg/x:1"), Some("config".to_owned()));
        assert_eq!(apply("unknown/x:1"), None);
        assert_eq!(registry.id_of("a:1"), None);
        assert_eq!(registry.id_of("d:1"), Some("s0"));
        assert_eq!(registry.id_of("y:1"), None);
        let changes = before.difference(&registry);
        assert_eq!(changes.changed, ["s0"]);
        assert!(changes.removed.is_empty());
        let fewer = ShardRegistry::new([], None).expect("there are no documents");
        assert_eq!(before.difference(&fewer).removed, ["s0", "s1"]);
    }

    #[test]
    fn refused_documents() {
        let check = |document: RawDocumentBuf| {
            let refused = ShardEntry::parse(&document).expect_err("it is malformed");
            assert_eq!(refused.code.0, 9, "{document:?}");
        };
        check(rawdoc! { "_id": "s0" });
        check(rawdoc! { "_id": 1, "host": "rs/a:1" });
        check(rawdoc! { "_id": "s0", "host": "a:1" });
        check(rawdoc! { "_id": "s0", "host": "rs/" });
    }
}
