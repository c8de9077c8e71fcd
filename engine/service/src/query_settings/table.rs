//! The settings of all shapes. Every core holds the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_query::command_shape;
use pinion_wire::{Error, ErrorCode, Result};
use sha2::{Digest, Sha256};

use super::QuerySettings;
use crate::limits::MAX_QUERY_SETTINGS_BYTES;

/// What names a shape: a digest of its document.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct QueryShapeHash([u8; 32]);

impl QueryShapeHash {
    /// The digest of a shape.
    pub fn of(shape: &RawDocument) -> QueryShapeHash {
        QueryShapeHash(Sha256::digest(shape.as_bytes()).into())
    }

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<QueryShapeHash> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).ok()?;
            *byte = u8::from_str_radix(digits, 16).ok()?;
        }
        Some(QueryShapeHash(bytes))
    }
}

impl fmt::Display for QueryShapeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

/// The settings of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub settings: Arc<QuerySettings>,
    /// A command of the shape, with its `$db`.
    pub representative: RawDocumentBuf,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.settings.written().as_bytes().len() + self.representative.as_bytes().len()
    }

    /// Appends the entry as it is stored, and as `$querySettings` shows it.
    pub fn append(&self, hash: QueryShapeHash, out: &mut DocBuilder) {
        out.append("queryShapeHash", hash.to_string().as_str())
            .append("settings", self.settings.written())
            .append("representativeQuery", &*self.representative);
    }
}

/// The database of a command that represents its shape.
fn database_of(representative: &RawDocument) -> &str {
    match pinion_bson::get(representative, "$db") {
        Some(RawBsonRef::String(db)) => db,
        _ => "",
    }
}

/// The settings of all shapes.
#[derive(Clone, Debug, Default)]
pub struct SettingsTable {
    of: BTreeMap<QueryShapeHash, Entry>,
    /// The databases of which there are any: the shape of other commands is not worked out.
    databases: BTreeSet<String>,
    bytes: usize,
}

impl SettingsTable {
    /// Whether any command of a database has settings.
    pub fn any_of(&self, db: &str) -> bool {
        self.databases.contains(db)
    }

    /// The settings of a shape.
    pub fn find(&self, hash: QueryShapeHash) -> Option<&Entry> {
        self.of.get(&hash)
    }

    /// All settings, in the order of the digests.
    pub fn list(&self) -> impl Iterator<Item = (QueryShapeHash, &Entry)> {
        self.of.iter().map(|(hash, entry)| (*hash, entry))
    }

    /// How many shapes have settings, how many of them are rejected, and the bytes of all.
    pub fn counts(&self) -> (usize, usize, usize) {
        let rejected = self.of.values().filter(|entry| entry.settings.rejects());
        (self.of.len(), rejected.count(), self.bytes)
    }

    /// Sets an entry in the place of that of the same shape.
    ///
    /// # Errors
    /// `BSONObjectTooLarge` where they have become too many.
    pub fn set(&mut self, hash: QueryShapeHash, entry: Entry) -> Result<()> {
        let had = self.of.get(&hash).map_or(0, Entry::bytes);
        let bytes = self.bytes - had + entry.bytes();
        if bytes > MAX_QUERY_SETTINGS_BYTES {
            return Err(Error::new(
                ErrorCode::BSON_OBJECT_TOO_LARGE,
                format!("query settings may have {MAX_QUERY_SETTINGS_BYTES} bytes in all"),
            ));
        }
        self.bytes = bytes;
        self.databases
            .insert(database_of(&entry.representative).to_owned());
        self.of.insert(hash, entry);
        Ok(())
    }

    /// Takes an entry away; false if there is none.
    pub fn remove(&mut self, hash: QueryShapeHash) -> bool {
        let Some(entry) = self.of.remove(&hash) else {
            return false;
        };
        self.bytes -= entry.bytes();
        let left = self.of.values();
        self.databases = left
            .map(|entry| database_of(&entry.representative).to_owned())
            .collect();
        true
    }

    /// Appends all of them as they are stored.
    pub fn append(&self, out: &mut DocBuilder) {
        out.start_array("settingsArray");
        for (hash, entry) in self.list() {
            out.push_document();
            entry.append(hash, out);
            out.end();
        }
        out.end();
    }

    /// Reads what was stored. The shapes are computed again, so that an entry never stands under a
    /// name that its own commands no longer have. What is not understood is passed over.
    pub fn read_stored(document: &RawDocument) -> SettingsTable {
        let mut table = SettingsTable::default();
        let Some(RawBsonRef::Array(stored)) = pinion_bson::get(document, "settingsArray") else {
            return table;
        };
        for entry in pinion_bson::values(stored) {
            let read = || {
                let RawBsonRef::Document(entry) = entry else {
                    return None;
                };
                let settings = QuerySettings::parse(entry.get_document("settings").ok()?).ok()?;
                let representative = entry.get_document("representativeQuery").ok()?;
                let shape = command_shape(representative, database_of(representative));
                let entry = Entry {
                    settings: Arc::new(settings),
                    representative: representative.to_owned(),
                };
                Some((QueryShapeHash::of(&shape.ok()??), entry))
            };
            if let Some((hash, entry)) = read() {
                // All of them were stored together, so that they have room together.
                let _ = table.set(hash, entry);
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    fn entry(value: i32, settings: RawDocumentBuf) -> (QueryShapeHash, Entry) {
        let representative = rawdoc! { "find": "c", "filter": { "a": value }, "$db": "d" };
        let shape = command_shape(&representative, "d").expect("small");
        let entry = Entry {
            settings: Arc::new(QuerySettings::parse(&settings).expect("right")),
            representative,
        };
        (QueryShapeHash::of(&shape.expect("a find")), entry)
    }

    #[test]
    fn settings_stand_for_a_shape() {
        let mut table = SettingsTable::default();
        let (hash, first) = entry(1, rawdoc! { "reject": true });
        let (same, second) = entry(2, rawdoc! { "queryFramework": "sbe" });
        assert_eq!(hash, same);
        table.set(hash, first).expect("there is room");
        assert_eq!(table.counts().1, 1);
        table.set(hash, second.clone()).expect("there is room");
        assert_eq!((table.counts().0, table.counts().1), (1, 0));
        assert!(table.any_of("d") && !table.any_of("e"));
        assert_eq!(table.find(hash), Some(&second));
        let mut stored = DocBuilder::new();
        table.append(&mut stored);
        let again = SettingsTable::read_stored(&stored.finish());
        assert_eq!(again.find(hash), Some(&second));
        assert!(table.remove(hash) && !table.remove(hash));
        assert!(!table.any_of("d"));
        assert_eq!(table.counts(), (0, 0, 0));
    }

    #[test]
    fn settings_have_a_limit() {
        let mut table = SettingsTable::default();
        let comment = "x".repeat(MAX_QUERY_SETTINGS_BYTES);
        let (hash, large) = entry(1, rawdoc! { "reject": true, "comment": comment });
        let refused = table.set(hash, large).expect_err("too large");
        assert_eq!(refused.code, ErrorCode::BSON_OBJECT_TOO_LARGE);
        assert_eq!(table.counts(), (0, 0, 0));
    }

    #[test]
    fn hashes_are_read_as_they_are_written() {
        let (hash, _) = entry(1, rawdoc! { "reject": true });
        assert_eq!(QueryShapeHash::parse(&hash.to_string()), Some(hash));
        for wrong in ["", "12", &"G".repeat(64), &"ä".repeat(32), &"+1".repeat(32)] {
            assert_eq!(QueryShapeHash::parse(wrong), None, "{wrong}");
        }
    }
}
