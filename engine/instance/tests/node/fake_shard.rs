//! A shard of no cluster: which collection is sharded, by which version, and what the shard owns of
//! it is what the test says.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{
    Document, ObjectId, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp as BsonTimestamp, doc,
};
use pinion_clock::Timestamp;
use pinion_exec::Waiting;
use pinion_exec::placement::{ClusterNode, Ownership, WrittenDocuments, set_cluster_node};
use pinion_query::DocumentKeyPattern;
use pinion_runtime::{CoreId, call_on, core_local, on_all_cores, set_core_local};
use pinion_service::session_ids::at_home;
use pinion_wire::idl::{Lsid, Namespace, SentDatabaseVersion, SentShardVersion};
use pinion_wire::{Error, ErrorCode, Result};

const SHARDED: &str = "test.c";

/// What one core knows.
#[derive(Default)]
pub struct FakeShard {
    /// The shard key, once the collection is sharded.
    key: RefCell<Option<RawDocumentBuf>>,
    /// The major version.
    version: Cell<u32>,
    /// Before this time, the shard owned all of it.
    since: Cell<Timestamp>,
    /// No document has to be looked at.
    owns_all: Cell<bool>,
    /// The sessions that the config servers list; `None` while they do not answer.
    listed: RefCell<Option<BTreeSet<Lsid>>>,
}

/// The shard owns documents whose key is an even number, or a text of an even length. The second
/// field of a key says nothing.
#[derive(Debug)]
struct Evens {
    key: RawDocumentBuf,
    owns_all: bool,
    document_key: DocumentKeyPattern,
}

fn is_even(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Int32(number) => number % 2 == 0,
        RawBsonRef::Int64(number) => number % 2 == 0,
        RawBsonRef::Double(number) => number % 2.0 == 0.0,
        RawBsonRef::String(text) => text.len() % 2 == 0,
        _ => false,
    }
}

impl Ownership for Evens {
    fn key(&self) -> &RawDocument {
        &self.key
    }

    fn document_key(&self) -> &DocumentKeyPattern {
        &self.document_key
    }

    fn owns_all(&self) -> bool {
        self.owns_all
    }

    fn owns_document(&self, document: &RawDocument) -> Result<bool> {
        let (path, _) = pinion_bson::elements(&self.key).next().expect("a field");
        let value = pinion_bson::get_path(document, path);
        Ok(self.owns_all || value.is_some_and(is_even))
    }
}

struct Seam;

impl ClusterNode for Seam {
    fn is_shard(&self) -> bool {
        true
    }

    fn check_database(&self, _: &str, _: &SentDatabaseVersion) -> Result<()> {
        Ok(())
    }

    fn check_collection(&self, ns: &Namespace, sent: &SentShardVersion) -> Result<()> {
        let shard = core_local::<FakeShard>();
        match ns.as_str() == SHARDED && sent.placement.time != shard.version.get() {
            true => Err(stale()),
            false => Ok(()),
        }
    }

    fn ownership(
        &self,
        ns: &Namespace,
        _: Option<&SentShardVersion>,
        at: Option<Timestamp>,
    ) -> Option<Arc<dyn Ownership>> {
        let shard = core_local::<FakeShard>();
        let key = shard
            .key
            .borrow()
            .clone()
            .filter(|_| ns.as_str() == SHARDED)?;
        let was_all = at.is_some_and(|at| at < shard.since.get());
        let owns_all = was_all || shard.owns_all.get();
        let paths = pinion_bson::elements(&key).map(|(path, _)| path.to_owned());
        let document_key = DocumentKeyPattern::of_shard_key(paths);
        Some(Arc::new(Evens {
            key,
            owns_all,
            document_key,
        }))
    }

    fn check_unsharded(&self, ns: &Namespace) -> Result<()> {
        let is_sharded = ns.as_str() == SHARDED && core_local::<FakeShard>().key.borrow().is_some();
        match is_sharded {
            true => Err(stale()),
            false => Ok(()),
        }
    }

    fn refresh_collection(&self, _: &Namespace, _: &SentShardVersion) -> Waiting<Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn refresh_database(&self, _: &str, _: &SentDatabaseVersion) -> Waiting<Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn time_keys(&self) -> Option<Waiting<Result<Vec<RawDocumentBuf>>>> {
        None
    }

    fn listed_sessions(&self, lsids: Vec<Lsid>) -> Option<Waiting<Result<BTreeSet<Lsid>>>> {
        let listed = core_local::<FakeShard>().listed.borrow().clone();
        Some(Box::pin(async move {
            let listed = listed.ok_or_else(away)?;
            let is_listed = |lsid: &Lsid| listed.contains(lsid);
            Ok(lsids.into_iter().filter(is_listed).collect())
        }))
    }

    fn publish_sessions(
        &self,
        used: Vec<(Lsid, i64)>,
        ended: Vec<Lsid>,
    ) -> Option<Waiting<Result<()>>> {
        let shard = core_local::<FakeShard>();
        Some(Box::pin(async move {
            let mut listed = shard.listed.borrow_mut();
            let listed = listed.as_mut().ok_or_else(away)?;
            listed.extend(used.iter().map(|(lsid, _)| at_home(lsid)));
            for lsid in &ended {
                listed.remove(&at_home(lsid));
            }
            Ok(())
        }))
    }

    fn documents_applied(&self, _: WrittenDocuments) -> Waiting<()> {
        Box::pin(async {})
    }

    fn became_primary(&self) -> Waiting<()> {
        Box::pin(async {})
    }

    fn data_close(&self) {}
}

fn away() -> Error {
    Error::new(ErrorCode::HOST_UNREACHABLE, "no config server answers")
}

fn stale() -> Error {
    Error::new(ErrorCode::STALE_CONFIG, "another version")
}

/// Makes the node a shard, with `test.c` sharded by this key in version 1.
pub async fn become_shard(key: Document) {
    on_all_cores(|_| async {
        set_core_local(Rc::new(FakeShard::default()));
        set_cluster_node(Rc::new(Seam));
    })
    .await;
    let key = RawDocumentBuf::try_from(&key).expect("a document");
    change(move |shard| {
        shard.key.replace(Some(key.clone()));
        shard.version.set(1);
    })
    .await;
}

/// The collection is in this version from now on.
pub async fn set_version(version: u32) {
    change(move |shard| shard.version.set(version)).await;
}

/// The shard owns what it owns since this time, and owned all before.
pub async fn set_since(since: Timestamp) {
    change(move |shard| shard.since.set(since)).await;
}

/// Whether the shard owns all documents.
pub async fn set_owns_all(owns_all: bool) {
    change(move |shard| shard.owns_all.set(owns_all)).await;
}

/// The config servers list these sessions, or do not answer.
pub async fn set_listed(listed: Option<BTreeSet<Lsid>>) {
    change(move |shard| {
        shard.listed.replace(listed.clone());
    })
    .await;
}

/// The sessions that the config servers list, as core 0 has changed that.
pub async fn listed() -> Option<BTreeSet<Lsid>> {
    let listed = || core_local::<FakeShard>().listed.borrow().clone();
    call_on(CoreId(0), listed).await
}

async fn change(change: impl Fn(&FakeShard) + Clone + Send + 'static) {
    on_all_cores(move |_| {
        change(&core_local::<FakeShard>());
        async {}
    })
    .await;
}

/// The command as a router sends it that goes by this version.
pub fn routed_by(version: u32, command: Document) -> Document {
    let mut command = command;
    command.insert("shardVersion", sent(version));
    command
}

pub fn sent(version: u32) -> Document {
    let time = |time| BsonTimestamp { time, increment: 0 };
    doc! { "e": ObjectId::from_bytes([3; 12]), "t": time(5), "v": time(version) }
}

/// The command as a router sends it.
pub fn routed(command: Document) -> Document {
    routed_by(1, command)
}
