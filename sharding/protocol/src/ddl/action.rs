//! What definitions have performed, and what comes of it.

use pinion_bson::{DocBuilder, ObjectId, RawDocumentBuf, Uuid};
use pinion_clock::Timestamp;
use pinion_wire::Result;
use pinion_wire::idl::Namespace;

use super::block::ParticipantBlock;
use super::documents::CriticalSectionDocument;
use super::move_primary::MoveMessage;
use super::rename_part::RenamePart;
use crate::documents::{CollectionDocument, ShardDocument, TagDocument};
use crate::shard_id::ShardId;
use crate::version::{ChunkVersion, DatabaseVersion};

/// Something to be performed, which may have been performed before. What is written here or
/// elsewhere has a majority when it is done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Look at a collection: `Outcome::Facts`. Changes nothing.
    Look {
        ns: Namespace,
        /// Refuses a local collection with another UUID.
        expected: Option<Uuid>,
    },
    /// Look at a database: `Outcome::Database`. Changes nothing.
    LookAtDatabase { db: String },
    /// List sharded collections of a database: `Outcome::Collections`, empty if there are none.
    ListCollections { db: String },
    /// Close the gate, and write the document.
    EnterSection(CriticalSectionDocument),
    /// Remove the document, and open the gate.
    LeaveSection { namespace: String },
    /// Make the collection here unless it is there, and this index of it. Of buckets the series is
    /// made, and the index is one of its measurements.
    MakeCollection(NewCollection),
    /// Send a command to the primaries of shards.
    AskShards {
        shards: AskedShards,
        command: RawDocumentBuf,
    },
    /// The same for each shard's reply: `Outcome::Replies`, once no shard has failed in a way that
    /// is waited out.
    GatherShards {
        shards: Vec<ShardId>,
        command: RawDocumentBuf,
    },
    /// List the shards that own chunks of a collection: `Outcome::Shards`. Changes nothing.
    ListOwners { uuid: Uuid },
    /// Close the gate of a collection on the primaries of shards, or open it.
    BlockShards {
        shards: AskedShards,
        block: ParticipantBlock,
    },
    /// Send a command to the config servers.
    Configure(RawDocumentBuf),
    /// Note in the log, for change streams, what a definition has done to a collection.
    NoteEvent {
        ns: Namespace,
        uuid: Uuid,
        event: RawDocumentBuf,
    },
    /// Take the new table of a collection from the config servers.
    InstallTable(Namespace),
    /// Drop a collection, of this UUID if one is named, and forget its table.
    DropCollection { ns: Namespace, uuid: Option<Uuid> },
    /// Rename what this shard has of a collection, and take the tables of both names.
    RenameHere(RenamePart),
    /// Have all other shards do that.
    RenameOnOthers(RenamePart),
    /// Drop a database and forget the tables of its collections.
    DropDatabase { db: String },
    /// Have the config servers forget a database of this version, and forget it.
    ForgetDatabase {
        db: String,
        version: DatabaseVersion,
    },
    /// Have a shard copy the unsharded collections of a database from this one.
    CloneDatabase { to: ShardId, message: MoveMessage },
    /// Have it remove what it has copied.
    ForgetClone { to: ShardId, message: MoveMessage },
    /// Take the place of a database from the secondaries, which get none before its gate opens.
    UncacheDatabase { db: String },
    /// Take the place of a database, of at least this version, from the config servers.
    LearnDatabase {
        db: String,
        version: DatabaseVersion,
    },
    /// Drop the collections and views of a database but for those that are sharded. Change streams
    /// do not show it.
    DropUnsharded { db: String, sharded: Vec<String> },
}

/// A collection that is made to be sharded.
#[derive(Clone, Debug, PartialEq)]
pub struct NewCollection {
    pub ns: Namespace,
    pub uuid: Uuid,
    /// As `create` takes them.
    pub options: RawDocumentBuf,
    pub index: Option<RawDocumentBuf>,
}

/// Has a shard learn the table of a collection.
pub(super) fn flush(ns: &Namespace) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("_flushRoutingTableCacheUpdates", ns.as_str())
        .append("syncFromConfig", true)
        .append("$db", "admin");
    out.finish()
}

#[derive(Clone, Debug, PartialEq)]
pub enum AskedShards {
    These(Vec<ShardId>),
    /// All shards of the cluster but this one.
    AllOthers,
}

/// What came of an action.
#[derive(Clone, Debug)]
pub enum Outcome {
    Done,
    Facts(Box<Facts>),
    Collections(Vec<(Namespace, Uuid)>),
    Replies(Vec<ShardReply>),
    Shards(Vec<ShardId>),
    Database(Box<DatabaseFacts>),
}

/// What is known of a database.
#[derive(Clone, Debug)]
pub struct DatabaseFacts {
    /// The shard that this node is of.
    pub me: ShardId,
    pub shards: Vec<ShardDocument>,
    pub sharded: Vec<Namespace>,
    /// The collections of this node that are not.
    pub unsharded: Vec<Uuid>,
    pub fresh: Uuid,
}

/// What a shard has answered.
pub type ShardReply = (ShardId, Result<RawDocumentBuf>);

/// What is known of a namespace.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The shard that this node is of.
    pub me: ShardId,
    pub local: CollectionFacts,
    /// The entry of `config.collections`, and the collection's version.
    pub sharded: Option<(CollectionDocument, ChunkVersion)>,
    pub shards: Vec<ShardDocument>,
    /// The zones of the collection.
    pub zones: Vec<TagDocument>,
    pub fresh: FreshIds,
}

/// For a collection that is being sharded.
#[derive(Clone, Copy, Debug)]
pub struct FreshIds {
    pub uuid: Uuid,
    pub epoch: ObjectId,
    /// Later than those of all that was sharded before.
    pub timestamp: Timestamp,
    pub now_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalKind {
    Absent,
    Collection,
    View,
    TimeSeries,
}

/// A collection of this node.
#[derive(Clone, Debug)]
pub struct CollectionFacts {
    pub kind: LocalKind,
    pub uuid: Option<Uuid>,
    /// As `create` takes them.
    pub options: RawDocumentBuf,
    /// The default collation, where that is not the simple one.
    pub collation: Option<RawDocumentBuf>,
    pub is_capped: bool,
    pub is_empty: bool,
    /// Indexes of it are being built.
    pub has_builds: bool,
    pub id_index: Option<RawDocumentBuf>,
    /// The other indexes, as another collection with the same options is asked for them.
    pub other_indexes: Vec<RawDocumentBuf>,
    /// How many are ready, that on `_id` among them.
    pub index_count: usize,
    /// Those of them that have documents in the order of values.
    pub indexes: Vec<IndexFacts>,
}

impl CollectionFacts {
    pub fn absent() -> CollectionFacts {
        CollectionFacts {
            kind: LocalKind::Absent,
            uuid: None,
            options: RawDocumentBuf::new(),
            collation: None,
            is_capped: false,
            is_empty: true,
            has_builds: false,
            id_index: None,
            other_indexes: Vec::new(),
            index_count: 0,
            indexes: Vec::new(),
        }
    }
}

/// An index that is ready.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexFacts {
    pub name: String,
    pub key: RawDocumentBuf,
    /// Whether it refuses duplicates, or is about to.
    pub is_unique: bool,
    pub is_sparse: bool,
    pub is_partial: bool,
    pub is_hidden: bool,
    pub is_multikey: bool,
    pub has_collation: bool,
}
