//! What a member does that applies the entries of a check: it reads the same, compares, and writes
//! down what it finds.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{Uuid, from_fatal, stored_document};
use pinion_clock::Timestamp;
use pinion_exec::cluster_time::bson_time;
use pinion_runtime::{CoreId, core_id, now};
use pinion_service::interrupt::interruptible;
use pinion_storage::storage;
use pinion_wire::OpContext;
use pinion_wire::idl::Namespace;

use super::digest::{Digest, Fault, Limits, Unread, View};
use super::entry::{Batch, CheckEntry, Step, is_batch};
use super::health_log::{BATCH, Note, OF_CLUSTER, START, STOP, Severity, failure};
use crate::db_check::db_check_tasks;
use crate::limits::{MAX_FOLLOWED_CHECK_BYTES, MAX_FOLLOWED_CHECKS};

/// Takes an entry that the applier has met, and returns at once: what it says is done behind the
/// applier. Called on core 0, where a member's applier is.
pub fn follow(entry: &[u8]) {
    assert!(core_id() == CoreId(0), "members are compared by core 0");
    let tasks = &db_check_tasks();
    let has_room = tasks.followed.borrow_mut().push(entry);
    if !has_room {
        tasks.missed.set(tasks.missed.get() + 1);
    }
    tasks.changed.notify_all();
}

/// Entries that a member has not examined yet, the oldest first.
#[derive(Default)]
pub(super) struct Followed {
    entries: VecDeque<Bytes>,
    batches: usize,
    bytes: usize,
}

impl Followed {
    /// Takes a copy of an entry, which is a part of all that was fetched with it. False if there is
    /// no room.
    fn push(&mut self, entry: &[u8]) -> bool {
        let is_batch = is_batch(stored_document(entry));
        let most = match is_batch {
            true => MAX_FOLLOWED_CHECK_BYTES,
            // Where many batches wait, it has to be seen that the run has ended all the same.
            false => 2 * MAX_FOLLOWED_CHECK_BYTES,
        };
        let has_place = !is_batch || self.batches < MAX_FOLLOWED_CHECKS;
        if !has_place || self.bytes + entry.len() > most {
            return false;
        }
        self.batches += usize::from(is_batch);
        self.bytes += entry.len();
        self.entries.push_back(Bytes::copy_from_slice(entry));
        true
    }

    fn pop(&mut self) -> Option<Bytes> {
        let entry = self.entries.pop_front()?;
        self.batches -= usize::from(is_batch(stored_document(&entry)));
        self.bytes -= entry.len();
        Some(entry)
    }
}

/// Does what entries say, one after the other, until the tasks are to end.
pub(super) async fn follow_all() {
    let tasks = &db_check_tasks();
    let first = || tasks.followed.borrow_mut().pop();
    while let Some(entry) = tasks.next(&first).await {
        let entry = stored_document(&entry);
        let ctx = OpContext::internal(0, pinion_command::row("dbCheck"), "", now().as_nanos());
        *tasks.following.borrow_mut() = Some(ctx.clone());
        let read = CheckEntry::read(entry);
        let missed = tasks.missed.take();
        if missed > 0 {
            let what = format!(
                "{missed} entries came while too many waited: what they tell of was not compared"
            );
            note_unread(entry, &what).await;
        }
        match read {
            Ok(read) => step(&ctx, &read, timestamp_of(entry)).await,
            Err(what) => note_unread(entry, &what).await,
        }
        *tasks.following.borrow_mut() = None;
    }
}

fn timestamp_of(entry: &RawDocument) -> Timestamp {
    match pinion_bson::get(entry, "ts") {
        Some(RawBsonRef::Timestamp(ts)) => Timestamp::new(ts.time, ts.increment),
        _ => Timestamp::MIN,
    }
}

/// Writes down that an entry was passed over.
async fn note_unread(entry: &RawDocument, what: &str) {
    let o = pinion_bson::get(entry, "o").and_then(|o| o.as_document());
    let ns = o.and_then(|o| pinion_bson::get(o, "dbCheck"));
    let ns = match ns {
        Some(RawBsonRef::String(ns)) => Namespace::parse_sought(ns).ok(),
        _ => None,
    };
    let Some(ns) = ns.or_else(|| Namespace::parse_sought("admin.$cmd").ok()) else {
        return;
    };
    let note = Note {
        severity: Severity::Warning,
        scope: OF_CLUSTER,
        msg: "abandoning dbCheck batch",
        operation: BATCH,
        ns: &ns,
        uuid: pinion_bson::get(entry, "ui").and_then(Uuid::from_bson),
        data: failure(what),
    };
    note.write().await;
}

async fn step(ctx: &OpContext, entry: &CheckEntry, logged_at: Timestamp) {
    let Step::Batch(batch) = &entry.step else {
        return note_step(entry).await;
    };
    let found = Found {
        ns: &entry.ns,
        uuid: entry.uuid,
        batch,
        logged_at,
    };
    let digest = match compare(ctx, entry, batch, logged_at).await {
        // The state that it is about may be rolled back: nothing is known of it.
        Err(Unread::Interrupted(_)) => return,
        Err(Unread::Unavailable(what)) => {
            return found.note_failure(Severity::Warning, &what).await;
        }
        Err(Unread::Damaged(what)) => return found.note_failure(Severity::Error, &what).await,
        Ok(digest) => digest,
    };
    note_faults(&entry.ns, entry.uuid, &digest).await;
    if digest.md5 != batch.md5 || batch.is_logged {
        found.note(&digest).await;
    }
}

/// Reads what the primary has read.
async fn compare(
    ctx: &OpContext,
    entry: &CheckEntry,
    batch: &Batch,
    logged_at: Timestamp,
) -> Result<Digest, Unread> {
    let unavailable = |what: &str| Err(Unread::Unavailable(what.to_owned()));
    let Some(uuid) = entry.uuid else {
        return unavailable("the entry names no collection");
    };
    // That time may never come.
    if batch.read_at >= logged_at {
        return unavailable("the readTimestamp is not before the entry");
    }
    let visible = interruptible(ctx, storage().wait_visible(batch.read_at)).await?;
    visible.map_err(from_fatal)?;
    let view = View::open(ctx, uuid, &entry.checks, batch.read_at).await?;
    view.digest(&batch.range, &Limits::NONE).await
}

/// Writes down that a run has started or ended.
pub(super) async fn note_step(entry: &CheckEntry) {
    let (operation, early) = match &entry.step {
        Step::Start => (START, None),
        Step::Stop(early) => (STOP, early.as_ref()),
        Step::Batch(_) => return,
    };
    let mut data = DocBuilder::new();
    match early {
        None => data.append("success", true),
        Some(early) => data.append_all(&failure(&early.what)),
    };
    data.append("dbCheckParameters", &*entry.checks.to_document());
    let (severity, msg) = match early {
        None => (Severity::Info, ""),
        Some(early) if early.is_killed => (Severity::Warning, "dbCheck terminated"),
        Some(_) => (Severity::Warning, "abandoning dbCheck"),
    };
    let note = Note {
        severity,
        scope: OF_CLUSTER,
        msg,
        operation,
        ns: &entry.ns,
        uuid: entry.uuid,
        data: data.finish(),
    };
    note.write().await;
}

/// Writes down what is wrong on this member, whatever others have.
pub(super) async fn note_faults(ns: &Namespace, uuid: Option<Uuid>, digest: &Digest) {
    let faults = &digest.faults;
    for fault in &faults.listed {
        let mut data = DocBuilder::new();
        data.append("success", false)
            .append("error", fault.msg)
            .append("found", &*fault.found);
        note_fault(ns, uuid, fault, data.finish()).await;
    }
    let more = faults.count - faults.listed.len() as u64;
    if let (1.., Some(last)) = (more, faults.listed.last()) {
        let what = format!("{more} more of the batch are not listed");
        note_fault(ns, uuid, last, failure(&what)).await;
    }
}

async fn note_fault(ns: &Namespace, uuid: Option<Uuid>, fault: &Fault, data: RawDocumentBuf) {
    let note = Note {
        severity: Severity::Error,
        scope: fault.scope,
        msg: fault.msg,
        operation: BATCH,
        ns,
        uuid,
        data,
    };
    note.write().await;
}

/// What this member says of a batch.
pub(super) struct Found<'a> {
    pub ns: &'a Namespace,
    pub uuid: Option<Uuid>,
    pub batch: &'a Batch,
    /// The timestamp of its entry.
    pub logged_at: Timestamp,
}

impl Found<'_> {
    /// Writes down whether this member has the same as the primary.
    pub(super) async fn note(&self, digest: &Digest) {
        let is_same = digest.md5 == self.batch.md5;
        let mut data = DocBuilder::new();
        data.append("success", is_same)
            .append("count", digest.count as i64)
            .append("bytes", digest.bytes as i64)
            .start_document("md5")
            .append("expected", self.batch.md5.as_str())
            .append("found", digest.md5.as_str())
            .end();
        self.append_place(&mut data);
        let (severity, msg) = match is_same {
            true => (Severity::Info, "dbCheck batch consistent"),
            false => (Severity::Error, "dbCheck batch inconsistent"),
        };
        self.write(severity, msg, data.finish()).await;
    }

    async fn note_failure(&self, severity: Severity, what: &str) {
        let mut data = DocBuilder::new();
        data.append_all(&failure(what));
        self.append_place(&mut data);
        self.write(severity, "abandoning dbCheck batch", data.finish())
            .await;
    }

    fn append_place(&self, data: &mut DocBuilder) {
        let range = &self.batch.range;
        data.append("batchStart", &*range.start.shown)
            .append("batchEnd", &*range.end.shown)
            .append("readTimestamp", bson_time(self.batch.read_at))
            .append("optime", bson_time(self.logged_at));
    }

    async fn write(&self, severity: Severity, msg: &str, data: RawDocumentBuf) {
        let note = Note {
            severity,
            scope: OF_CLUSTER,
            msg,
            operation: BATCH,
            ns: self.ns,
            uuid: self.uuid,
            data,
        };
        note.write().await;
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    fn entry(kind: &str, padding: usize) -> RawDocumentBuf {
        rawdoc! { "op": "c", "o": { "dbCheck": "d.c", "type": kind, "md5": "x".repeat(padding) } }
    }

    #[test]
    fn what_waits_is_bounded_but_for_ends() {
        let mut followed = Followed::default();
        let batch = entry("batch", 0);
        for _ in 0..MAX_FOLLOWED_CHECKS {
            assert!(followed.push(batch.as_bytes()));
        }
        assert!(!followed.push(batch.as_bytes()));
        assert!(followed.push(entry("stop", 0).as_bytes()));
        let first = followed.pop().expect("an entry");
        // It keeps nothing alive but itself.
        assert_eq!(&first[..], batch.as_bytes());
        assert_ne!(first.as_ptr(), batch.as_bytes().as_ptr());
        assert!(followed.push(batch.as_bytes()));
        while followed.pop().is_some() {}
        assert_eq!((followed.batches, followed.bytes), (0, 0));
        let large = entry("batch", MAX_FOLLOWED_CHECK_BYTES / 2);
        assert!(followed.push(large.as_bytes()));
        assert!(!followed.push(large.as_bytes()));
        assert!(followed.push(entry("start", 0).as_bytes()));
    }
}
