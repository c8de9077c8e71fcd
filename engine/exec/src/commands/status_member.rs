//! What a member of a replica set reports of its set, in `hello` and in sections of `serverStatus`.

use pinion_bson::{DateTime, DocBuilder, RawBsonRef};
use pinion_clock::{OpTime, Timestamp};
use pinion_metrics::append_section;
use pinion_service::hello::append_topology_version;
use pinion_storage::storage;
use pinion_wire::Result;

use crate::cluster_time::bson_time;
use crate::concern::default_concerns;
use crate::read::from_log_error;
use crate::replication::{METRICS, ReplicationFigures};
use crate::topology::{LastWrite, SetView, replica_set};
use crate::user_write_block::blocked_user_work;

/// The sections of `serverStatus` that a standalone does not have.
pub async fn append_sections(
    out: &mut DocBuilder,
    figures: &ReplicationFigures,
    wanted: impl Fn(&str) -> bool,
) {
    // A standalone has called no elections, and says so.
    if wanted("electionMetrics") {
        append_section(METRICS, "electionMetrics", figures, out);
    }
    let Some(set) = replica_set() else {
        return;
    };
    if wanted("defaultRWConcern") {
        let defaults = default_concerns().get().await;
        out.start_document("defaultRWConcern");
        defaults.append_reported(out);
        out.end();
    }
    if wanted("flowControl") {
        crate::replication::append_status(out).await;
    }
    if wanted("oplogTruncation") {
        append_section(METRICS, "oplogTruncation", figures, out);
    }
    if wanted("repl") {
        let view = set.view();
        out.start_document("repl");
        append_topology_version(view.counter, out);
        append_member(out, &view, &set.last_write(), "isWritablePrimary");
        out.append("rbid", set.rollback_id().await);
        let mode = 1 + i32::from(blocked_user_work().writes);
        out.append("userWriteBlockMode", mode).end();
    }
}

/// The ends of the oplog, which are reported only on demand.
///
/// # Errors
/// The oplog cannot be read.
pub async fn append_oplog(out: &mut DocBuilder) -> Result<()> {
    let Some(set) = replica_set() else {
        return Ok(());
    };
    let oldest = storage().log_first().await.map_err(from_log_error)?;
    let oldest = oldest.unwrap_or(Timestamp::MIN);
    out.start_document("oplog")
        .append("latestOptime", bson_time(set.last_write().op_time.ts))
        .append("earliestOptime", bson_time(oldest))
        .end();
    Ok(())
}

/// What a member reports of its set and of its place in it; `role` is the name of the field that
/// says whether clients may write.
pub(super) fn append_member(out: &mut DocBuilder, view: &SetView, last: &LastWrite, role: &str) {
    if view.hello.is_empty() {
        out.append(role, false)
            .append("secondary", false)
            .append("info", "Does not have a valid replica set config")
            .append("isreplicaset", true);
        return;
    }
    for (name, value) in pinion_bson::elements(&view.hello) {
        if name == "secondary" {
            out.append(role, view.writable);
        }
        out.append(name, value);
    }
    let op_time = |out: &mut DocBuilder, name: &str, time: OpTime| {
        out.start_document(name)
            .append("ts", bson_time(time.ts))
            .append("t", time.term.0)
            .end();
    };
    let date = |ms| RawBsonRef::DateTime(DateTime::from_millis(ms));
    out.start_document("lastWrite");
    op_time(out, "opTime", last.op_time);
    out.append("lastWriteDate", date(last.wall_ms));
    op_time(out, "majorityOpTime", last.majority_op_time);
    out.append("majorityWriteDate", date(last.majority_wall_ms))
        .end();
}
