//! The routing table of a collection that gets another name, as a shard asks for it.
//!
//! A message may be late, and the same collection may have had several names since. So a request
//! names the incarnations that it goes by: the new one is later than both.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid};
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Result};

use crate::documents::CollectionDocument;
use crate::values::{append_time, append_uuid};
use crate::version::Incarnation;

/// A sharded collection in one of its incarnations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShardedEntry {
    pub uuid: Uuid,
    pub of: Incarnation,
}

impl ShardedEntry {
    /// That of a document, unless it is of a collection without a UUID.
    pub fn of(document: &CollectionDocument) -> Option<ShardedEntry> {
        document.uuid.map(|uuid| ShardedEntry {
            uuid,
            of: document.of,
        })
    }

    fn is_of(self, document: &CollectionDocument) -> bool {
        document.uuid == Some(self.uuid) && document.of.is_same(self.of)
    }

    pub(crate) fn append_to(self, out: &mut DocBuilder, name: &str) {
        let mut entry = DocBuilder::new();
        append_uuid(&mut entry, "uuid", self.uuid);
        append_incarnation(&mut entry, self.of);
        out.append(name, &*entry.finish());
    }

    pub(crate) fn parse(reader: &FieldReader<'_, '_>, name: &str) -> Result<Option<ShardedEntry>> {
        let Some(entry) = reader.opt_object(name)? else {
            return Ok(None);
        };
        let uuid = entry.opt_uuid("uuid")?;
        let uuid = uuid.ok_or_else(|| missing_field(entry.path().field("uuid")))?;
        Ok(Some(ShardedEntry {
            uuid: Uuid::from_bytes(uuid),
            of: incarnation(&entry)?,
        }))
    }
}

pub(crate) fn append_incarnation(out: &mut DocBuilder, of: Incarnation) {
    out.append("lastmodEpoch", of.epoch);
    append_time(out, "timestamp", of.timestamp);
}

pub(crate) fn incarnation(reader: &FieldReader<'_, '_>) -> Result<Incarnation> {
    let missing = |name| missing_field(reader.path().field(name));
    let epoch = reader.opt_object_id("lastmodEpoch")?;
    let timestamp = reader.opt_timestamp("timestamp")?;
    Ok(Incarnation {
        epoch: epoch.ok_or_else(|| missing("lastmodEpoch"))?,
        timestamp: timestamp.ok_or_else(|| missing("timestamp"))?,
    })
}

/// `_configsvrRenameCollectionMetadata: <from>, to, source?, target?, lastmodEpoch, timestamp`.
#[derive(Clone, Debug, PartialEq)]
pub struct MetadataRename {
    pub from: Namespace,
    pub to: Namespace,
    /// The collection that gets the name, where it is sharded.
    pub source: Option<ShardedEntry>,
    /// The one that loses it, where that is sharded.
    pub target: Option<ShardedEntry>,
    /// The incarnation of the collection under its new name.
    pub new: Incarnation,
}

/// What is to be done for it.
#[derive(Clone, Debug, PartialEq)]
pub enum RenameChange {
    /// An earlier attempt has done it.
    Done,
    /// The entries of both names go, with the zones of the new one; the zones of the old one get
    /// the new name, and this entry is written.
    Write(Option<Box<CollectionDocument>>),
}

impl MetadataRename {
    pub fn to_command(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        let name = "_configsvrRenameCollectionMetadata";
        out.append(name, self.from.as_str());
        out.append("to", self.to.as_str());
        for (name, entry) in [("source", self.source), ("target", self.target)] {
            if let Some(entry) = entry {
                entry.append_to(&mut out, name);
            }
        }
        append_incarnation(&mut out, self.new);
        out.append("$db", "admin");
        out.finish()
    }

    /// # Errors
    /// A field that is missing or of a wrong type; `BadValue` where neither is sharded.
    pub fn parse(command: &RawDocument) -> Result<MetadataRename> {
        let name = "_configsvrRenameCollectionMetadata";
        let reader = FieldReader::object(Path::root(name), command)?;
        let rename = MetadataRename {
            from: Namespace::parse_sought(reader.str(name)?)?,
            to: Namespace::parse_sought(reader.str("to")?)?,
            source: ShardedEntry::parse(&reader, "source")?,
            target: ShardedEntry::parse(&reader, "target")?,
            new: incarnation(&reader)?,
        };
        match (rename.source, rename.target) {
            (None, None) => Err(Error::bad_value(format!(
                "neither {} nor {} is given as sharded",
                rename.from, rename.to
            ))),
            _ => Ok(rename),
        }
    }

    pub fn fields() -> &'static [&'static str] {
        &["to", "source", "target", "lastmodEpoch", "timestamp"]
    }

    /// Decides, given the documents that have the two names.
    ///
    /// # Errors
    /// `ConflictingOperationInProgress` where a name is of another collection, or of another
    /// incarnation of it.
    pub fn decide(
        &self,
        from: Option<&CollectionDocument>,
        to: Option<&CollectionDocument>,
        now_ms: i64,
    ) -> Result<RenameChange> {
        let is_as = |entry: Option<ShardedEntry>, found: Option<&CollectionDocument>| match entry {
            Some(entry) => found.is_some_and(|found| entry.is_of(found)),
            None => found.is_none(),
        };
        let renamed = self.source.map(|source| ShardedEntry {
            of: self.new,
            ..source
        });
        if from.is_none() && is_as(renamed, to) {
            return Ok(RenameChange::Done);
        }
        for (ns, entry, found) in [(&self.from, self.source, from), (&self.to, self.target, to)] {
            if !is_as(entry, found) {
                return Err(Error::new(
                    ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                    format!("the collection {ns} has changed since it was to be renamed"),
                ));
            }
        }
        let new = from.map(|from| {
            Box::new(CollectionDocument {
                ns: self.to.clone(),
                of: self.new,
                last_changed_ms: now_ms,
                ..from.clone()
            })
        });
        Ok(RenameChange::Write(new))
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{ObjectId, rawdoc};
    use pinion_clock::Timestamp;

    use super::*;

    fn ns(text: &str) -> Namespace {
        Namespace::parse(text).expect("a namespace")
    }

    fn of(number: u8) -> Incarnation {
        Incarnation {
            epoch: ObjectId::from_bytes([number; 12]),
            timestamp: Timestamp::new(number.into(), 1),
        }
    }

    fn entry(uuid: u8, number: u8) -> ShardedEntry {
        ShardedEntry {
            uuid: Uuid::from_bytes([uuid; 16]),
            of: of(number),
        }
    }

    fn document(name: &str, entry: ShardedEntry) -> CollectionDocument {
        let key = rawdoc! { "a": 1 };
        CollectionDocument {
            no_balance: true,
            ..CollectionDocument::new(ns(name), entry.of, 5, entry.uuid, key)
        }
    }

    fn rename(source: Option<ShardedEntry>, target: Option<ShardedEntry>) -> MetadataRename {
        MetadataRename {
            from: ns("d.a"),
            to: ns("d.b"),
            source,
            target,
            new: of(9),
        }
    }

    #[test]
    fn forms() {
        for (source, target) in [
            (Some(entry(1, 1)), None),
            (Some(entry(1, 1)), Some(entry(2, 2))),
            (None, Some(entry(2, 2))),
        ] {
            let asked = rename(source, target);
            let read = MetadataRename::parse(&asked.to_command());
            assert_eq!(read.ok(), Some(asked));
        }
        assert!(MetadataRename::parse(&rename(None, None).to_command()).is_err());
    }

    #[test]
    fn decisions() {
        let (a, b) = (entry(1, 1), entry(2, 2));
        let check = |asked: (Option<ShardedEntry>, Option<ShardedEntry>),
                     found: (Option<ShardedEntry>, Option<ShardedEntry>),
                     expected: Option<RenameChange>| {
            let from = found.0.map(|entry| document("d.a", entry));
            let to = found.1.map(|entry| document("d.b", entry));
            let decided = rename(asked.0, asked.1).decide(from.as_ref(), to.as_ref(), 7);
            let refused = |error: Error| assert_eq!(error.code.0, 117);
            assert_eq!(
                decided.map_err(refused).ok(),
                expected,
                "{asked:?} {found:?}"
            );
        };
        let renamed = entry(1, 9);
        let new = CollectionDocument {
            last_changed_ms: 7,
            ..document("d.b", renamed)
        };
        let write = || Some(RenameChange::Write(Some(Box::new(new.clone()))));
        let done = || Some(RenameChange::Done);
        check((Some(a), None), (Some(a), None), write());
        check((Some(a), None), (None, Some(renamed)), done());
        check((Some(a), Some(b)), (Some(a), Some(b)), write());
        check((Some(a), Some(b)), (None, Some(renamed)), done());
        check(
            (None, Some(b)),
            (None, Some(b)),
            Some(RenameChange::Write(None)),
        );
        check((None, Some(b)), (None, None), done());
        // It has had another name since, and has this one again.
        check((Some(a), None), (Some(entry(1, 11)), None), None);
        check((None, Some(b)), (None, Some(entry(2, 11))), None);
        // Others have a name.
        check((Some(a), None), (Some(entry(3, 1)), None), None);
        check((Some(a), None), (Some(a), Some(b)), None);
        check((Some(a), Some(b)), (Some(a), Some(entry(4, 2))), None);
        check((Some(a), Some(b)), (Some(a), None), None);
        check((Some(a), None), (Some(entry(5, 5)), Some(renamed)), None);
        check((Some(a), None), (None, None), None);
        check((None, Some(b)), (Some(a), Some(b)), None);
    }
}
