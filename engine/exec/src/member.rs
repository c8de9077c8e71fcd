//! What a member of a replica set asks of the executor beside commands: entries of its own, and the time of its cluster.

use pinion_bson::RawDocument;
use pinion_catalog::{Observers, OpEvent, OpKind, from_write_error};
use pinion_clock::Timestamp;
use pinion_storage::{Statement, storage};
use pinion_wire::Result;

use crate::state::state;

/// Logs an entry that changes nothing, and gives its timestamp.
///
/// # Errors
/// Storage takes no writes.
pub async fn log_note(o: &RawDocument) -> Result<Timestamp> {
    let event = OpEvent {
        kind: OpKind::Noop,
        ns: "",
        uuid: None,
        o,
        o2: None,
        wall_ms: pinion_runtime::wall_ms(),
        session: None,
        record: None,
    };
    let entry = pinion_runtime::core_local::<Observers>().entry(&event)?;
    let statement = Statement {
        writes: Vec::new(),
        entry: Some(entry),
    };
    let mut results = storage().execute(vec![statement], true).await;
    let result = results.pop().expect("one statement has one result");
    result.map_err(from_write_error)
}

/// `$$CLUSTER_TIME` of an operation that begins now; none where there is no cluster.
pub(crate) fn cluster_time() -> Option<pinion_bson::Timestamp> {
    let time = state().is_member().then(|| storage().cluster_time())?;
    Some(pinion_bson::Timestamp {
        time: time.secs(),
        increment: time.inc(),
    })
}
