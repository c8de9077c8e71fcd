//! What a stream watches: a collection, a database, or all of them.

use pinion_bson::{RawBsonRef, RawDocument, raw_elements};
use smallvec::{SmallVec, smallvec};

use super::unwind::{TransactionEnd, is_migration, operations_of, transaction_end};
use crate::value::{field, first};

/// What a stream watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A collection, by its full name.
    Collection(String),
    /// A database.
    Database(String),
    /// Every database that is not the set's own.
    Cluster,
}

/// The message of a note in a log that changes nothing: routers have it written where they wait for
/// a shard that has no changes. Streams of routers report how far they have come when they see one.
pub const CHANGE_STREAM_MARK: &str = "mark of change streams";

/// Whether an entry is such a note.
pub fn is_mark(entry: &RawDocument) -> bool {
    let message = || match field(entry, "o") {
        Some(RawBsonRef::Document(o)) => field(o, "msg"),
        _ => None,
    };
    field(entry, "op") == Some(RawBsonRef::String("n"))
        && message() == Some(RawBsonRef::String(CHANGE_STREAM_MARK))
}

/// What shards note in their logs of the shard keys of collections: expanded events. The first
/// field of `o2` says which it is.
pub(super) const DEFINITIONS: [&str; 3] = [
    "shardCollection",
    "refineCollectionShardKey",
    "reshardCollection",
];

/// Whether an entry that changes nothing notes such a definition.
pub(super) fn is_definition(entry: &RawDocument) -> bool {
    match field(entry, "o2") {
        Some(RawBsonRef::Document(o2)) => {
            first(o2).is_some_and(|(name, _)| DEFINITIONS.contains(&name))
        }
        _ => false,
    }
}

/// Databases whose changes are in no stream.
const INTERNAL_DATABASES: [&str; 3] = ["admin", "config", "local"];

fn divided(ns: &str) -> (&str, &str) {
    ns.split_once('.').unwrap_or((ns, ""))
}

impl Scope {
    /// Whether changes of this collection are shown.
    pub fn has(&self, ns: &str) -> bool {
        let (db, collection) = divided(ns);
        let is_users = !collection.starts_with("system.") && !collection.starts_with('$');
        match self {
            Scope::Collection(watched) => watched == ns,
            Scope::Database(watched) => watched == db && is_users && !collection.is_empty(),
            Scope::Cluster => {
                is_users && !collection.is_empty() && !INTERNAL_DATABASES.contains(&db)
            }
        }
    }

    /// Whether the drop of this database is shown.
    pub(super) fn has_database(&self, db: &str) -> bool {
        match self {
            Scope::Collection(_) => false,
            Scope::Database(watched) => watched == db,
            Scope::Cluster => !INTERNAL_DATABASES.contains(&db),
        }
    }

    /// Whether an entry may be of something that is shown, by its first fields: most entries are
    /// dropped here.
    pub fn may_concern(&self, entry: &RawDocument) -> bool {
        let mut op = "";
        for elem in raw_elements(entry) {
            match elem.name {
                b"op" => match elem.to_value() {
                    Some(RawBsonRef::String("n")) if !is_definition(entry) => return false,
                    Some(RawBsonRef::String(found)) => op = found,
                    _ => return false,
                },
                b"ns" if !op.is_empty() => {
                    let Some(RawBsonRef::String(ns)) = elem.to_value() else {
                        return false;
                    };
                    return op == "c" || self.has(ns);
                }
                _ => {}
            }
        }
        false
    }

    /// Whether a command's entry is about what is watched, by its namespace and its document.
    pub(super) fn has_command(&self, ns: &str, o: &RawDocument) -> bool {
        let db = divided(ns).0;
        match first(o) {
            Some(("renameCollection", RawBsonRef::String(from))) => {
                let to = match pinion_bson::get(o, "to") {
                    Some(RawBsonRef::String(to)) => to,
                    _ => "",
                };
                self.has(from) || self.has(to)
            }
            Some(("dropDatabase", _)) => self.has_database(db),
            Some((_, RawBsonRef::String(collection))) => self.has(&[db, ".", collection].concat()),
            _ => false,
        }
    }
}

/// Which streams an entry of the log may concern, whatever is watched: a stream that examines it
/// decides more exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Concerned<'e> {
    NoStream,
    /// Streams that watch one of these collections.
    Namespaces(SmallVec<[&'e str; 4]>),
    AllStreams,
}

/// Examines an entry for all streams at once.
pub fn concerned_by(entry: &RawDocument) -> Concerned<'_> {
    let ns = match field(entry, "ns") {
        Some(RawBsonRef::String(ns)) => ns,
        _ => "",
    };
    match field(entry, "op") {
        _ if is_migration(entry) => Concerned::NoStream,
        Some(RawBsonRef::String("i" | "u" | "d")) => Concerned::Namespaces(smallvec![ns]),
        Some(RawBsonRef::String("n")) if is_mark(entry) => Concerned::AllStreams,
        Some(RawBsonRef::String("n")) if is_definition(entry) => {
            Concerned::Namespaces(smallvec![ns])
        }
        Some(RawBsonRef::String("c")) => match transaction_end(entry) {
            // It takes place with the last of its transaction.
            TransactionEnd::Part => Concerned::NoStream,
            TransactionEnd::Last { .. } => Concerned::AllStreams,
            TransactionEnd::Whole => concerned_by_operations(entry),
        },
        _ => Concerned::NoStream,
    }
}

fn concerned_by_operations(entry: &RawDocument) -> Concerned<'_> {
    let Some(operations) = operations_of(entry) else {
        return Concerned::AllStreams;
    };
    let mut namespaces = SmallVec::new();
    for operation in operations {
        match (field(operation, "op"), field(operation, "ns")) {
            _ if is_migration(operation) => {}
            (Some(RawBsonRef::String("i" | "u" | "d")), Some(RawBsonRef::String(ns))) => {
                if namespaces.last() != Some(&ns) {
                    namespaces.push(ns);
                }
            }
            (Some(RawBsonRef::String("n")), _) => {}
            _ => return Concerned::AllStreams,
        }
    }
    Concerned::Namespaces(namespaces)
}
