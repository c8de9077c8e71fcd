//! Entries of the log without writes.

use pinion_bson::RawDocument;
use pinion_clock::Timestamp;
use pinion_runtime::LocalBoxFuture;
use pinion_storage::{Statement, storage};
use pinion_wire::Result;

use crate::catalog::core_catalog;
use crate::errors::from_write_error;
use crate::oplog::{Observers, OpEvent, OpKind};
use crate::oplog_format::oplog_format;
use crate::uuid::Uuid;

/// What an entry says that changes nothing.
#[derive(Clone, Copy)]
pub struct Noop<'a> {
    /// The collection that it is about; empty for none.
    pub ns: &'a str,
    pub uuid: Option<Uuid>,
    pub o: &'a RawDocument,
    pub o2: Option<&'a RawDocument>,
}

/// Logs an entry that changes nothing, and gives its timestamp.
///
/// # Errors
/// Storage takes no writes.
pub fn log_noop(noop: Noop<'_>) -> LocalBoxFuture<'_, Result<Timestamp>> {
    Box::pin(async move {
        let event = OpEvent {
            kind: OpKind::Noop,
            ns: noop.ns,
            uuid: noop.uuid,
            o: noop.o,
            o2: noop.o2,
            from_migrate: false,
            wall_ms: pinion_runtime::wall_ms(),
            session: None,
            record: None,
            form: oplog_format(),
        };
        // Nothing is written while the node is locked.
        let _pass = core_catalog().gates().begin_change().await;
        log_alone(&event).await
    })
}

/// Logs an entry without writes, for a caller that has a place behind the gates. Gives its
/// timestamp.
///
/// # Errors
/// Storage takes no writes.
pub async fn log_alone(event: &OpEvent<'_>) -> Result<Timestamp> {
    let entry = pinion_runtime::core_local::<Observers>().entry(event)?;
    let statement = Statement {
        writes: Vec::new(),
        entry: Some(entry),
    };
    let mut results = storage().execute(vec![statement], true).await;
    let result = results.pop().expect("one statement has one result");
    result.map_err(from_write_error)
}
