//! The seam to the sharded cluster: what a shard or a config server reports to the executor of the
//! cluster, and what the executor asks of it.
//!
//! The node's part registers itself on each core with [`set_cluster_node`]; what is no node of a
//! cluster has none and checks nothing. The versions in a request are compared twice: before the
//! command runs, where the shard may learn newer ones first, and behind the gate of each namespace
//! that it reaches, so that a change which closes the gate is seen by what waited there. Source:
//! sharding document, "Shard versioning and database versioning".

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_catalog::{Collection, CollectionKind, core_catalog};
use pinion_clock::Timestamp;
use pinion_query::{DocumentKeyPattern, series_of};
use pinion_service::interrupt::interruptible;
use pinion_service::node_info::is_behind_v44;
use pinion_wire::idl::{
    Lsid, Namespace, ReadConcernLevel, RoutingArguments, SentDatabaseVersion, SentShardVersion,
};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::options::{PlantedFault, node_options};
use crate::topology::Waiting;

/// What a shard owns of a sharded collection, by the table that an operation goes by. An operation
/// keeps it as long as it reads: what it owned when it came in is not deleted before it has ended.
pub trait Ownership: std::fmt::Debug + Send + Sync {
    /// The shard key, as `shardCollection` has it.
    fn key(&self) -> &RawDocument;

    /// By which fields the log names documents.
    fn document_key(&self) -> &DocumentKeyPattern;

    /// Whether the shard owns every key, so that no document needs a look.
    fn owns_all(&self) -> bool;

    /// Whether a write has come to all shards, whichever owns what it means: it cannot give a
    /// document another key, which may belong to another shard.
    fn keeps_keys(&self) -> bool {
        false
    }

    /// Whether the shard owns a document. One without a key is owned by no shard.
    ///
    /// # Errors
    /// `StaleChunkHistory` where a snapshot is older than what is known of the chunk.
    fn owns_document(&self, document: &RawDocument) -> Result<bool>;
}

/// What this node is in its cluster, as one core sees it.
pub trait ClusterNode {
    /// Whether the node is a shard that has been added to a cluster.
    fn is_shard(&self) -> bool;

    /// Compares the version of a database with the one that this node knows.
    ///
    /// # Errors
    /// `StaleDbVersion`, with what is known.
    fn check_database(&self, db: &str, sent: &SentDatabaseVersion) -> Result<()>;

    /// Compares the version of a collection.
    ///
    /// # Errors
    /// `StaleConfig`, with what is known.
    fn check_collection(&self, ns: &Namespace, sent: &SentShardVersion) -> Result<()>;

    /// What the shard owns of a collection that an operation reaches with a version that was
    /// checked, now or at the time of a snapshot; `None` where the collection is not sharded, or
    /// the version asks for no filter. Without a version: for a task of the node's own.
    fn ownership(
        &self,
        ns: &Namespace,
        sent: Option<&SentShardVersion>,
        at: Option<Timestamp>,
    ) -> Option<Arc<dyn Ownership>>;

    /// Refuses to read a collection that the request has no version for, if it is sharded.
    ///
    /// # Errors
    /// `StaleConfig`, by which a router comes to know it.
    fn check_unsharded(&self, ns: &Namespace) -> Result<()>;

    /// Learns the newest table of a collection, because this version was sent and is not the known
    /// one. Nothing is asked for where the known one is newer.
    ///
    /// # Errors
    /// The source cannot be reached.
    fn refresh_collection(&self, ns: &Namespace, sent: &SentShardVersion) -> Waiting<Result<()>>;

    /// Learns the newest version of a database, because this one was sent and is not the known one.
    /// Nothing is asked for where the known one is newer.
    ///
    /// # Errors
    /// The source cannot be reached.
    fn refresh_database(&self, db: &str, sent: &SentDatabaseVersion) -> Waiting<Result<()>>;

    /// Waits while indexes of a sharded collection are being dropped on all shards, of which this
    /// node coordinates it: one that is made meanwhile could be left on some of them.
    fn indexes_settle(&self, _ns: &Namespace) -> Waiting<()> {
        Box::pin(async {})
    }

    /// The documents of the keys that cluster times are signed with, where other nodes make them.
    fn time_keys(&self) -> Option<Waiting<Result<Vec<RawDocumentBuf>>>>;

    /// Those of these sessions that the config servers list as in use; `None` where this node's set
    /// has a list of its own. A majority of the config servers has what is read. Called on core 0,
    /// for a limited number of sessions.
    ///
    /// # Errors
    /// The config servers cannot be reached, or refuse. Then nothing is known of any session.
    fn listed_sessions(&self, _lsids: Vec<Lsid>) -> Option<Waiting<Result<BTreeSet<Lsid>>>> {
        None
    }

    /// Has the config servers list sessions as used, each with the time of its last use in
    /// milliseconds since 1970, and remove ended ones from the list; `None` where this node's set
    /// has a list of its own. A majority of them has it then. Called on core 0, for a limited
    /// number of sessions.
    ///
    /// # Errors
    /// The config servers cannot be reached, or refuse.
    fn publish_sessions(
        &self,
        _used: Vec<(Lsid, i64)>,
        _ended: Vec<Lsid>,
    ) -> Option<Waiting<Result<()>>> {
        None
    }

    /// Documents of these collections, which the node keeps of the cluster, were written by what
    /// was applied from the log, and can be read soon. Must not wait for that.
    fn documents_applied(&self, written: WrittenDocuments) -> Waiting<()>;

    /// The node has become primary and accepts writes. Called on core 0.
    fn became_primary(&self) -> Waiting<()>;

    /// The node accepts writes no longer, and its critical sections are about to end. Called on
    /// core 0.
    fn stopped_leading(&self) -> Waiting<()> {
        Box::pin(async {})
    }

    /// Has all shards go through a phase of the change to this node's feature compatibility
    /// version. Called on config servers.
    ///
    /// # Errors
    /// A shard cannot be reached, or refuses.
    fn raise_shards(&self, _phase: FeatureVersionPhase) -> Waiting<Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// Has all shards get what is stored of a cluster parameter, or of the query settings. Does
    /// nothing but on config servers.
    ///
    /// # Errors
    /// The node is no primary any more.
    fn spread_parameter(&self, _id: &str) -> Waiting<Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// The data are about to be closed, and opened again as of an earlier time: what waits for
    /// them, and is no operation, gives up. Called on core 0.
    fn data_close(&self);
}

/// The phases in which shards change their feature compatibility version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureVersionPhase {
    Start,
    Prepare,
    Complete,
}

impl FeatureVersionPhase {
    pub const ALL: [FeatureVersionPhase; 3] = [
        FeatureVersionPhase::Start,
        FeatureVersionPhase::Prepare,
        FeatureVersionPhase::Complete,
    ];

    /// As commands name it.
    pub fn name(self) -> &'static str {
        match self {
            FeatureVersionPhase::Start => "start",
            FeatureVersionPhase::Prepare => "prepare",
            FeatureVersionPhase::Complete => "complete",
        }
    }
}

/// Most entries that are distinguished in one [`WrittenEntries`].
const MAX_NAMED: usize = 64;

/// Which entries of a collection that the node keeps of its cluster have been written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WrittenEntries {
    #[default]
    None,
    /// Those with these names as `_id`.
    Named(BTreeSet<String>),
    /// It is not known which.
    All,
}

impl WrittenEntries {
    fn note(&mut self, name: Option<String>) {
        match (std::mem::take(self), name) {
            (WrittenEntries::None, Some(name)) => {
                *self = WrittenEntries::Named(BTreeSet::from([name]));
            }
            (WrittenEntries::Named(mut names), Some(name)) if names.len() < MAX_NAMED => {
                names.insert(name);
                *self = WrittenEntries::Named(names);
            }
            _ => *self = WrittenEntries::All,
        }
    }
}

/// Which of the collections that a node keeps of its cluster have been written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenDocuments {
    /// `admin.system.version`, which has the identity of a shard.
    pub identity: bool,
    /// `config.cache.databases`.
    pub databases: WrittenEntries,
    /// `config.cache.collections`.
    pub collections: WrittenEntries,
    /// `config.shards`.
    pub shards: bool,
}

impl WrittenDocuments {
    /// The data of this node are others than before.
    pub const ALL: WrittenDocuments = WrittenDocuments {
        identity: true,
        databases: WrittenEntries::All,
        collections: WrittenEntries::All,
        shards: true,
    };

    /// A document of this collection was written, whose `_id` is `id` where that is a text.
    pub fn note(&mut self, ns: &Namespace, id: impl FnOnce() -> Option<String>) {
        match (ns.db(), ns.collection()) {
            ("admin", "system.version") => self.identity = true,
            ("config", "cache.databases") => self.databases.note(id()),
            ("config", "cache.collections") => self.collections.note(id()),
            ("config", "shards") => self.shards = true,
            _ => {}
        }
    }

    /// A command of this database was applied, whose first field may name a collection. The chunks
    /// of a collection are made and removed with an entry that says more.
    pub fn note_command(&mut self, db: &str, collection: Option<&str>) {
        match db {
            "admin" => self.identity = true,
            "config" if collection.is_some_and(|name| name.starts_with("cache.chunks.")) => {}
            "config" => {
                self.databases = WrittenEntries::All;
                self.collections = WrittenEntries::All;
                self.shards = true;
            }
            _ => {}
        }
    }

    pub fn any(&self) -> bool {
        *self != WrittenDocuments::default()
    }
}

/// The part of this core in its cluster; what is no node of a cluster has none.
#[derive(Default)]
pub struct ClusterMembership(RefCell<Option<Rc<dyn ClusterNode>>>);

/// Makes this core part of a node of a cluster. Called on each core before it serves clients.
///
/// # Panics
/// If the core is one already.
pub fn set_cluster_node(node: Rc<dyn ClusterNode>) {
    let membership = pinion_runtime::core_local::<ClusterMembership>();
    let before = membership.0.replace(Some(node));
    assert!(before.is_none(), "a node is part of one cluster");
}

/// This core's part of the node, where it was started as a shard or a config server.
pub fn cluster_node() -> Option<Rc<dyn ClusterNode>> {
    let membership = pinion_runtime::try_core_local::<ClusterMembership>()?;
    membership.0.borrow().clone()
}

/// Whether this node is a shard that has been added to a cluster.
pub fn is_shard() -> bool {
    cluster_node().is_some_and(|node| node.is_shard())
}

/// Whether databases of this name have no version: they are of the node that holds them.
fn is_unversioned(db: &str) -> bool {
    matches!(db, "admin" | "config" | "local")
}

fn not_initialized() -> Error {
    Error::new(
        ErrorCode::SHARDING_STATE_NOT_INITIALIZED,
        "Cannot accept sharding commands if sharding state has not been initialized with a shardIdentity document",
    )
}

/// The versions that a request names for what it reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentVersions {
    pub database: Option<SentDatabaseVersion>,
    pub collection: Option<SentShardVersion>,
}

impl SentVersions {
    pub(crate) fn of(routing: &RoutingArguments) -> SentVersions {
        SentVersions {
            database: routing.database_version,
            collection: routing.shard_version,
        }
    }

    fn is_empty(self) -> bool {
        self == SentVersions::default()
    }

    /// Refuses a request to a node that is no shard. What config servers have is of no shard.
    ///
    /// # Errors
    /// `ShardingStateNotInitialized`.
    pub(crate) fn check_accepted(self, db: &str) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        match cluster_node() {
            Some(node) if node.is_shard() || is_unversioned(db) => Ok(()),
            _ => Err(not_initialized()),
        }
    }

    /// Compares the versions, and has the node learn newer ones where it knows older ones, or none.
    /// Called before anything is done.
    ///
    /// # Errors
    /// `StaleDbVersion`, `StaleConfig`; the operation is interrupted.
    pub(crate) async fn admit(
        self,
        ctx: &OpContext,
        ns: Option<&Namespace>,
        db: &str,
    ) -> Result<()> {
        let has_version = !self.is_empty() && !is_unversioned(db);
        let Some(node) = cluster_node().filter(|_| has_version) else {
            return Ok(());
        };
        if let Some(sent) = &self.database
            && node.check_database(db, sent).is_err()
        {
            // A source that does not answer leaves the request stale: its sender tries again.
            let refreshed = interruptible(ctx, node.refresh_database(db, sent)).await?;
            if let Err(error) = refreshed {
                tracing::info!(target: "SH_REFR", id = 4_619_902u64, db, error = error.message, "Error refreshing cached database entry");
            }
            node.check_database(db, sent)?;
        }
        let (Some(ns), Some(sent)) = (ns, &self.collection) else {
            return Ok(());
        };
        if node.check_collection(ns, sent).is_ok() {
            return Ok(());
        }
        let buckets = buckets_here(ns);
        let ns = buckets.as_ref().unwrap_or(ns);
        if buckets.is_some() && node.check_collection(ns, sent).is_ok() {
            return Ok(());
        }
        let refreshed = interruptible(ctx, node.refresh_collection(ns, sent)).await?;
        if let Err(error) = refreshed {
            tracing::info!(target: "SH_REFR", id = 4_619_903u64, ns = ns.as_str(), error = error.message, "Error refreshing cached collection");
        }
        node.check_collection(ns, sent)
    }

    /// What the shard owns of a collection by these versions, once they were compared.
    pub(crate) fn ownership(
        self,
        ns: &Namespace,
        at: Option<Timestamp>,
    ) -> Option<Arc<dyn Ownership>> {
        let sent = self.collection?;
        cluster_node()?.ownership(ns, Some(&sent), at)
    }

    /// Compares the versions, where this must not wait: behind the gate of the namespace.
    ///
    /// # Errors
    /// `StaleDbVersion`, `StaleConfig`.
    pub(crate) fn check_behind_gate(self, ns: &Namespace) -> Result<()> {
        match node_options().planted_fault {
            PlantedFault::VersionUnchecked => Ok(()),
            _ => self.check(ns),
        }
    }

    fn check(self, ns: &Namespace) -> Result<()> {
        if self.is_empty() || is_unversioned(ns.db()) {
            return Ok(());
        }
        let Some(node) = cluster_node() else {
            return Err(not_initialized());
        };
        if let Some(sent) = &self.database {
            node.check_database(ns.db(), sent)?;
        }
        let Some(sent) = &self.collection else {
            return Ok(());
        };
        if let Some(series) = series_of(ns) {
            // Definitions look at the buckets too that a name may have. The version is the name's
            // where that is none of a series.
            return match buckets_here(&series) {
                Some(buckets) => node.check_collection(&buckets, sent),
                None => node.check_unsharded(ns),
            };
        }
        // Most names are those of no series.
        node.check_collection(ns, sent).or_else(|error| {
            buckets_here(ns).map_or(Err(error), |buckets| node.check_collection(&buckets, sent))
        })
    }
}

/// The buckets of a name that is that of a series here: what is sent for the name is their version.
fn buckets_here(ns: &Namespace) -> Option<Namespace> {
    let catalog = core_catalog().current();
    let series = catalog
        .view(ns)
        .filter(|view| view.kind() == CollectionKind::TimeSeries);
    series.map(|series| series.on())
}

/// Whether the error of a statement of a batch is that of all statements behind it too, and not one
/// of the whole command: routers of MongoDB 4.4 learn newer versions from such errors of
/// statements, and from no others.
pub(crate) fn stops_batch(error: &Error) -> bool {
    is_of_versions(error.code) && is_behind_v44()
}

/// Whether an error is about the versions that a router goes by, or about what it has to make
/// before it writes.
pub(crate) fn is_of_versions(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::STALE_CONFIG
            | ErrorCode::STALE_DB_VERSION
            | ErrorCode::CANNOT_IMPLICITLY_CREATE_COLLECTION
    )
}

/// Compares the versions of a request with what is known now of a namespace that it has passed the
/// gate of. Namespaces of other databases than the request's have versions of their own.
///
/// # Errors
/// `StaleDbVersion`, `StaleConfig`.
pub(crate) fn check_behind_gate(ctx: &OpContext, ns: &Namespace) -> Result<()> {
    match sent_for(ctx, ns) {
        Some(sent) => sent.check_behind_gate(ns),
        None => Ok(()),
    }
}

/// How a read comes to a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It names the collection, whose version comes with it.
    Named,
    /// A stage of it reads the collection, which the router takes for unsharded.
    ByStage,
}

/// Refuses what a snapshot shows of a name that stands for something else by now. The router goes
/// by what is now: where the snapshot has a collection, that may have been sharded, and this shard
/// has but a part of it. Where it has none, the collection may have come with its database from
/// another shard, or have had another name.
///
/// # Errors
/// `SnapshotUnavailable`.
pub(crate) fn check_snapshot(
    ctx: &OpContext,
    ns: &Namespace,
    (seen, at): (Option<&Collection>, Timestamp),
    reach: Reach,
) -> Result<()> {
    let Some(sent) = sent_for(ctx, ns).filter(|sent| !sent.is_empty()) else {
        return Ok(());
    };
    let current = core_catalog().current();
    let is_same = match seen {
        Some(seen) => current.get(ns).is_some_and(|now| now.uuid == seen.uuid),
        None => current.kind(ns).is_none(),
    };
    if is_same || is_unversioned(ns.db()) {
        return Ok(());
    }
    // A database that has never moved has the first version, from when it was made.
    let is_elsewhere = sent.database.is_some_and(|version| {
        let made = version.timestamp;
        let made = made.map(|made| Timestamp::new(made.time, made.increment));
        version.last_mod > 1 || made.is_some_and(|made| made > at)
    });
    // A shard that owns chunks has a major version.
    let has_chunks = reach == Reach::Named
        && (sent.collection).is_some_and(|version| version.placement.time > 0);
    if seen.is_none() && !is_elsewhere && !has_chunks {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::SNAPSHOT_UNAVAILABLE,
        format!(
            "the collection {ns} has come to this shard, or to its name, or has left it, after the snapshot that is read; please retry the operation"
        ),
    ))
}

/// What this shard owns of a namespace whose versions were compared, now or at the time of a
/// snapshot. `None` where all documents are meant: the request has no version of the collection, or
/// its read concern is `available`.
///
/// Source: sharding document, "Orphan filtering".
pub(crate) fn ownership_behind_gate(
    ctx: &OpContext,
    ns: &Namespace,
    at: Option<Timestamp>,
) -> Option<Arc<dyn Ownership>> {
    let sent = sent_for(ctx, ns).filter(|_| is_filtered(ctx))?;
    sent.ownership(ns, at)
}

/// Whether a read is to pass over documents that the shard does not own.
pub(crate) fn is_filtered(ctx: &OpContext) -> bool {
    ctx.read_concern.level != Some(ReadConcernLevel::Available)
}

/// The same for what the node does of its own accord, with no version.
pub(crate) fn ownership_of_node(ns: &Namespace) -> Option<Arc<dyn Ownership>> {
    cluster_node()?.ownership(ns, None, None)
}

/// The versions that a request names for a namespace.
pub(crate) fn sent_for(ctx: &OpContext, ns: &Namespace) -> Option<SentVersions> {
    let is_meant = |named: &Namespace| named == ns || series_of(ns).as_ref() == Some(named);
    if let Some(routed) = ctx.routed.as_deref().filter(|routed| is_meant(&routed.ns)) {
        return Some(SentVersions::of(&routed.versions));
    }
    let routing = ctx.args.routing.as_deref();
    routing
        .filter(|_| *ctx.db == *ns.db())
        .map(SentVersions::of)
}

/// The same for a namespace that a stage reads beside the one that the request names. Its
/// collection has a version of its own, which the request does not name: a router that has sent
/// the stage takes it for unsharded.
///
/// # Errors
/// `StaleDbVersion`, `StaleConfig`.
pub(crate) fn check_nested(ctx: &OpContext, ns: &Namespace) -> Result<()> {
    let Some(routing) = &ctx.args.routing else {
        return Ok(());
    };
    if *ctx.db == *ns.db() {
        let database = routing.database_version;
        let sent = SentVersions {
            database,
            collection: None,
        };
        sent.check(ns)?;
    }
    if SentVersions::of(routing).is_empty() || is_unversioned(ns.db()) {
        return Ok(());
    }
    cluster_node().map_or(Ok(()), |node| node.check_unsharded(ns))
}

/// Has the shards of a config server's cluster get what is stored of a cluster parameter.
///
/// # Errors
/// The node is no primary any more.
pub(crate) async fn spread_parameter(id: &str) -> Result<()> {
    match cluster_node() {
        Some(node) => node.spread_parameter(id).await,
        None => Ok(()),
    }
}

/// As [`ClusterNode::indexes_settle`], for a request that is sent to the primary shard of a
/// sharded collection.
///
/// # Errors
/// The operation is interrupted.
pub(crate) async fn indexes_settle(ctx: &OpContext, ns: &Namespace) -> Result<()> {
    let sent = sent_for(ctx, ns).unwrap_or_default();
    let is_of_all = sent.database.is_some() && sent.collection.is_some();
    let Some(node) = cluster_node().filter(|_| is_of_all) else {
        return Ok(());
    };
    let named = buckets_here(ns);
    interruptible(ctx, node.indexes_settle(named.as_ref().unwrap_or(ns))).await
}

/// As [`ClusterNode::listed_sessions`]; `None` also on a node of no cluster.
pub(crate) fn listed_sessions(lsids: Vec<Lsid>) -> Option<Waiting<Result<BTreeSet<Lsid>>>> {
    cluster_node()?.listed_sessions(lsids)
}

/// As [`ClusterNode::publish_sessions`]; `None` also on a node of no cluster.
pub(crate) fn publish_sessions(
    used: Vec<(Lsid, i64)>,
    ended: Vec<Lsid>,
) -> Option<Waiting<Result<()>>> {
    cluster_node()?.publish_sessions(used, ended)
}

/// Has the node do what a shard or config server does first as a primary.
pub async fn became_primary() {
    if let Some(node) = cluster_node() {
        node.became_primary().await;
    }
}

/// Has what only a primary does end, before its critical sections do.
pub async fn stopped_leading() {
    if let Some(node) = cluster_node() {
        node.stopped_leading().await;
    }
}

/// Has what waits for the data, and is no operation, give up before they are closed to be opened
/// again.
pub fn data_close() {
    if let Some(node) = cluster_node() {
        node.data_close();
    }
}

/// Hands on that documents of the cluster were written by what was applied.
pub async fn documents_applied(written: WrittenDocuments) {
    if let Some(node) = cluster_node().filter(|_| written.any()) {
        node.documents_applied(written).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use pinion_runtime::sim::{Sim, SimOptions};

    use super::*;

    #[test]
    fn collections_of_the_cluster() {
        let noted = |name: &str| {
            let mut written = WrittenDocuments::default();
            let ns = Namespace::parse(name).expect("a namespace");
            written.note(&ns, || Some("d".to_owned()));
            written
        };
        assert!(noted("admin.system.version").identity);
        let named = WrittenEntries::Named(BTreeSet::from(["d".to_owned()]));
        assert_eq!(noted("config.cache.databases").databases, named);
        assert_eq!(noted("config.cache.collections").collections, named);
        assert!(!noted("config.cache.chunks.d.c").any());
        assert!(noted("config.shards").shards);
        assert!(!noted("d.shards").any());
        let mut command = WrittenDocuments::default();
        command.note_command("d", None);
        command.note_command("config", Some("cache.chunks.d.c"));
        assert!(!command.any());
        command.note_command("config", Some("cache.collections"));
        assert!(command.shards && !command.identity);
        assert_eq!(command.databases, WrittenEntries::All);
        command.note_command("admin", None);
        assert_eq!(command, WrittenDocuments::ALL);
    }

    #[test]
    fn errors_about_versions() {
        for code in [227, 249, 13388] {
            assert!(is_of_versions(ErrorCode(code)), "{code}");
        }
        assert!(!is_of_versions(ErrorCode::DUPLICATE_KEY));
    }

    #[test]
    fn names_of_databases_are_bounded() {
        let mut written = WrittenEntries::default();
        for number in 0..MAX_NAMED {
            written.note(Some(number.to_string()));
        }
        assert!(matches!(&written, WrittenEntries::Named(names) if names.len() == MAX_NAMED));
        written.note(Some("one more".to_owned()));
        assert_eq!(written, WrittenEntries::All);
        let mut unnamed = WrittenEntries::default();
        unnamed.note(None);
        assert_eq!(unnamed, WrittenEntries::All);
    }

    #[test]
    fn what_is_no_shard_takes_no_versions() {
        let sim = Sim::new(1, SimOptions::default());
        let ended = Rc::new(Cell::new(false));
        let end = ended.clone();
        sim.add_node("node", 1, move |_| {
            let end = end.clone();
            Box::pin(async move {
                let sent = SentVersions {
                    database: Some(SentDatabaseVersion {
                        uuid: [1; 16],
                        timestamp: None,
                        last_mod: 1,
                    }),
                    collection: None,
                };
                for db in ["d", "admin"] {
                    let refused = sent.check_accepted(db).expect_err("no shard");
                    assert_eq!(refused.code, ErrorCode::SHARDING_STATE_NOT_INITIALIZED);
                    assert!(SentVersions::default().check_accepted(db).is_ok());
                }
                end.set(true);
            })
        });
        assert!(sim.run_until(move || ended.get()).is_ok());
    }
}
