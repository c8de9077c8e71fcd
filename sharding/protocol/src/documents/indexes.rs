//! The indexes of the `config` database's collections, beside that on `_id`.

use super::{CHUNKS, SHARDS, TAGS};

/// One index that the config servers make when they first become primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogIndex {
    pub ns: &'static str,
    /// All ascending.
    pub fields: &'static [&'static str],
    pub is_unique: bool,
}

impl CatalogIndex {
    /// `uuid_1_min_1`.
    pub fn name(&self) -> String {
        let parts: Vec<String> = self.fields.iter().map(|name| format!("{name}_1")).collect();
        parts.join("_")
    }

    /// `{uuid: 1, min: 1}`.
    pub fn key(&self) -> pinion_bson::RawDocumentBuf {
        let mut out = pinion_bson::DocBuilder::new();
        for name in self.fields {
            out.append(name, 1i32);
        }
        out.finish()
    }
}

const fn index(ns: &'static str, fields: &'static [&'static str], is_unique: bool) -> CatalogIndex {
    CatalogIndex {
        ns,
        fields,
        is_unique,
    }
}

/// All of them. Those of the two collections of locks serve nodes of MongoDB 4.4.
pub const INDEXES: [CatalogIndex; 9] = [
    index(CHUNKS, &["uuid", "min"], true),
    index(CHUNKS, &["uuid", "shard", "min"], true),
    index(CHUNKS, &["uuid", "lastmod"], true),
    index(SHARDS, &["host"], true),
    index(TAGS, &["ns", "min"], true),
    index(TAGS, &["ns", "tag"], false),
    index("config.locks", &["ts"], false),
    index("config.locks", &["state", "process"], false),
    index("config.lockpings", &["ping"], false),
];

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn names_and_keys() {
        let second = INDEXES[1];
        assert_eq!(second.name(), "uuid_1_shard_1_min_1");
        assert_eq!(second.key(), rawdoc! { "uuid": 1, "shard": 1, "min": 1 });
        let mut names: Vec<(&str, String)> = INDEXES.iter().map(|i| (i.ns, i.name())).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), INDEXES.len());
        let unique: Vec<&str> = INDEXES
            .iter()
            .filter(|i| i.is_unique)
            .map(|i| i.ns)
            .collect();
        assert_eq!(unique, [CHUNKS, CHUNKS, CHUNKS, SHARDS, TAGS]);
    }
}
