//! A shard `s1` without data, and tables of its collection `d.c`, for tests.

use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{ObjectId, RawBson, RawDocumentBuf, Uuid, rawdoc};
use pinion_clock::Timestamp;
use pinion_runtime::sim::{Sim, SimOptions};
use pinion_sharding_protocol::documents::{ChunkDocument, ChunkOf, CollectionDocument};
use pinion_sharding_protocol::{Incarnation, RoutingTable};
use pinion_wire::idl::Namespace;

use crate::testing::{become_shard, start_part};

/// Runs a test on core 0 of a shard.
pub(super) fn on_shard<F: Future<Output = ()> + 'static>(test: impl Fn() -> F + Clone + 'static) {
    let sim = Sim::new(1, SimOptions::default());
    let ended = Rc::new(std::cell::Cell::new(false));
    let end = ended.clone();
    sim.add_node("node", 1, move |_| {
        let (end, test) = (end.clone(), test.clone());
        Box::pin(async move {
            start_part();
            become_shard().await;
            test().await;
            end.set(true);
        })
    });
    assert!(sim.run_until(move || ended.get()).is_ok());
}

pub(super) fn ns() -> Namespace {
    Namespace::new("d", "c").expect("a name")
}

pub(super) fn incarnation(secs: u32) -> Incarnation {
    Incarnation {
        epoch: ObjectId::from_bytes([secs as u8; 12]),
        timestamp: Timestamp::new(secs, 1),
    }
}

pub(super) fn collection(secs: u32) -> CollectionDocument {
    let uuid = Uuid::from_bytes([7; 16]);
    CollectionDocument::new(ns(), incarnation(secs), 0, uuid, rawdoc! { "a": 1 })
}

/// Chunks that meet at these keys, each with its owner and version.
pub(super) fn chunks(bounds: &[i64], owners: &[(&str, u32, u32)]) -> Vec<ChunkDocument> {
    assert_eq!(bounds.len() + 1, owners.len());
    let key = |at: usize| bounds.get(at).map(|key| rawdoc! { "a": *key });
    let chunk = |(at, (shard, major, minor)): (usize, &(&str, u32, u32))| ChunkDocument {
        id: RawBson::ObjectId(ObjectId::from_bytes([at as u8; 12])),
        of: ChunkOf::Uuid(Uuid::from_bytes([7; 16])),
        min: (at.checked_sub(1).and_then(key)).unwrap_or(rawdoc! { "a": RawBson::MinKey }),
        max: key(at).unwrap_or(rawdoc! { "a": RawBson::MaxKey }),
        shard: (*shard).into(),
        placement: Timestamp::new(*major, *minor),
        on_current_shard_since: None,
        history: Vec::new(),
        is_jumbo: false,
        other: RawDocumentBuf::new(),
    };
    owners.iter().enumerate().map(chunk).collect()
}

/// The table of the incarnation of this second.
pub(super) fn table(secs: u32, bounds: &[i64], owners: &[(&str, u32, u32)]) -> Arc<RoutingTable> {
    let table = RoutingTable::new(&collection(secs), chunks(bounds, owners));
    Arc::new(table.expect("a table"))
}
