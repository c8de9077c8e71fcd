//! `initialSyncStatus` of `replSetGetStatus`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinion_bson::{DateTime, DocBuilder, RawBsonRef};
use pinion_clock::Timestamp;
use pinion_exec::InitialSyncMethod;
use pinion_replication_protocol::config::HostPort;
use pinion_runtime::{Instant, now, wall_ms};

use super::most_attempts;
use crate::fetch::bson_ts;

/// What is counted of a collection while it is copied, on whatever core that is.
#[derive(Default)]
pub(super) struct CopyCounters {
    documents: AtomicU64,
    bytes: AtomicU64,
    batches: AtomicU64,
    expected_documents: AtomicU64,
    expected_bytes: AtomicU64,
}

impl CopyCounters {
    pub(super) fn expect(&self, documents: u64, bytes: u64) {
        self.expected_documents.store(documents, Ordering::Relaxed);
        self.expected_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn add(&self, documents: u64, bytes: u64) {
        self.documents.fetch_add(documents, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn documents(&self) -> u64 {
        self.documents.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// A stretch of time, which may not have ended.
#[derive(Clone, Copy)]
struct Span {
    began: Instant,
    began_wall_ms: i64,
    ended: Option<(Instant, i64)>,
}

impl Span {
    fn new() -> Span {
        Span {
            began: now(),
            began_wall_ms: wall_ms(),
            ended: None,
        }
    }

    fn end(&mut self) {
        self.ended = Some((now(), wall_ms()));
    }

    fn millis(&self) -> i64 {
        let end = self.ended.map_or_else(now, |(end, _)| end);
        (end - self.began).as_millis() as i64
    }

    fn append_to(&self, out: &mut DocBuilder) {
        append_date(out, "start", self.began_wall_ms);
        if let Some((_, wall_ms)) = self.ended {
            append_date(out, "end", wall_ms);
        }
        out.append("elapsedMillis", self.millis());
    }
}

fn append_date(out: &mut DocBuilder, name: &str, wall_ms: i64) {
    out.append(name, RawBsonRef::DateTime(DateTime::from_millis(wall_ms)));
}

struct Copied {
    indexes: i32,
    span: Option<Span>,
    counters: Arc<CopyCounters>,
}

/// Files that are copied.
struct Files {
    expected_bytes: u64,
    counters: Arc<CopyCounters>,
    began: Instant,
}

struct FailedAttempt {
    millis: i64,
    why: String,
    source: String,
    rollback_id: i32,
}

/// How far an initial sync is.
pub(super) struct Status {
    whole: Span,
    attempt: Span,
    failed: Vec<FailedAttempt>,
    source: String,
    rollback_id: i32,
    begin: Timestamp,
    stop: Option<Timestamp>,
    applied: u64,
    /// Where files are copied.
    files: Option<Files>,
    /// By database and full name.
    databases: BTreeMap<String, BTreeMap<String, Copied>>,
}

impl Status {
    pub(super) fn new() -> Status {
        Status {
            whole: Span::new(),
            attempt: Span::new(),
            failed: Vec::new(),
            source: String::new(),
            rollback_id: 0,
            begin: Timestamp::MIN,
            stop: None,
            applied: 0,
            files: None,
            databases: BTreeMap::new(),
        }
    }

    pub(super) fn begin_attempt(&mut self, source: &HostPort) {
        let (whole, failed) = (self.whole, std::mem::take(&mut self.failed));
        *self = Status {
            whole,
            failed,
            source: source.to_string(),
            ..Status::new()
        };
    }

    pub(super) fn attempt_failed(&mut self, why: &str) {
        self.failed.push(FailedAttempt {
            millis: self.attempt.millis(),
            why: why.to_owned(),
            source: self.source.clone(),
            rollback_id: self.rollback_id,
        });
    }

    pub(super) fn begin_at(&mut self, rollback_id: i32, begin: Timestamp) {
        self.rollback_id = rollback_id;
        self.begin = begin;
    }

    /// `bytes` of files are to be copied, which hold everything up to `begin`.
    pub(super) fn begin_files(&mut self, rollback_id: i32, begin: Timestamp, bytes: u64) {
        self.begin_at(rollback_id, begin);
        self.files = Some(Files {
            expected_bytes: bytes,
            counters: Arc::default(),
            began: now(),
        });
    }

    /// No files are copied after all.
    pub(super) fn without_files(&mut self) {
        self.files = None;
    }

    /// What counts the bytes of files.
    ///
    /// # Panics
    /// Where none are copied.
    pub(super) fn pages(&self) -> Arc<CopyCounters> {
        let files = self.files.as_ref().expect("files are copied");
        files.counters.clone()
    }

    pub(super) fn stop_at(&mut self, stop: Timestamp) {
        self.stop = Some(stop);
    }

    pub(super) fn applied(&mut self, entries: u64) {
        self.applied += entries;
    }

    /// A collection that is to be copied, and what counts it.
    pub(super) fn expect(&mut self, ns: &str, indexes: usize) -> Arc<CopyCounters> {
        let counters = Arc::new(CopyCounters::default());
        let db = ns.split('.').next().unwrap_or_default().to_owned();
        let copied = Copied {
            indexes: indexes as i32,
            span: None,
            counters: counters.clone(),
        };
        let of_db = self.databases.entry(db).or_default();
        of_db.insert(ns.to_owned(), copied);
        counters
    }

    fn collection(&mut self, ns: &str) -> Option<&mut Copied> {
        let mut all = self.databases.values_mut();
        all.find_map(|of_db| of_db.get_mut(ns))
    }

    pub(super) fn collection_begins(&mut self, ns: &str) {
        if let Some(copied) = self.collection(ns) {
            copied.span = Some(Span::new());
        }
    }

    pub(super) fn collection_ends(&mut self, ns: &str) {
        if let Some(span) = self.collection(ns).and_then(|copied| copied.span.as_mut()) {
            span.end();
        }
    }

    /// Documents and bytes that are copied.
    pub(super) fn totals(&self) -> (u64, u64) {
        let all = self.databases.values().flat_map(BTreeMap::values);
        let of_files = self
            .files
            .as_ref()
            .map_or(0, |files| files.counters.bytes());
        all.fold((0, of_files), |(documents, bytes), copied| {
            let counters = &copied.counters;
            (documents + counters.documents(), bytes + counters.bytes())
        })
    }

    pub(super) fn append_to(&self, out: &mut DocBuilder) {
        let time = |ts: Timestamp| RawBsonRef::Timestamp(bson_ts(ts));
        out.start_document("initialSyncStatus")
            .append("method", self.method().name())
            .append("failedInitialSyncAttempts", self.failed.len() as i32)
            .append("maxFailedInitialSyncAttempts", most_attempts() as i32);
        append_date(out, "initialSyncStart", self.whole.began_wall_ms);
        out.append("totalInitialSyncElapsedMillis", self.whole.millis())
            .start_array("initialSyncAttempts");
        for failed in &self.failed {
            out.push_document()
                .append("durationMillis", failed.millis)
                .append("status", failed.why.as_str())
                .append("syncSource", failed.source.as_str())
                .append("rollBackId", failed.rollback_id)
                .end();
        }
        out.end().append("appliedOps", self.applied as i64);
        if !self.begin.is_null() {
            out.append("initialSyncOplogStart", time(self.begin));
        }
        if let Some(stop) = self.stop {
            out.append("initialSyncOplogEnd", time(stop));
        }
        match &self.files {
            Some(files) => files.append_to(out),
            None => self.append_databases(out),
        }
        out.end();
    }

    fn method(&self) -> InitialSyncMethod {
        match self.files {
            Some(_) => InitialSyncMethod::FileCopyBased,
            None => InitialSyncMethod::Logical,
        }
    }

    fn append_databases(&self, out: &mut DocBuilder) {
        let is_copied = |copied: &&Copied| copied.span.is_some_and(|span| span.ended.is_some());
        let copied_of = |of_db: &BTreeMap<String, Copied>| of_db.values().filter(is_copied).count();
        let cloned = self
            .databases
            .values()
            .filter(|of_db| copied_of(of_db) == of_db.len());
        out.start_document("databases")
            .append("databasesToClone", self.databases.len() as i32)
            .append("databasesCloned", cloned.count() as i32);
        for (db, of_db) in &self.databases {
            out.start_document(db)
                .append("collections", of_db.len() as i32)
                .append("clonedCollections", copied_of(of_db) as i32);
            for (ns, copied) in of_db {
                copied.append_to(out, ns);
            }
            out.end();
        }
        out.end();
    }
}

impl Files {
    fn append_to(&self, out: &mut DocBuilder) {
        let (copied, expected) = (self.counters.bytes(), self.expected_bytes);
        out.append("approxTotalDataSize", expected as i64)
            .append("approxTotalBytesCopied", copied as i64);
        // As long as what was copied has taken, for what is left.
        let millis = self.began.elapsed().as_millis() as u64;
        let left = expected.saturating_sub(copied);
        if copied > 0 {
            let estimate = u128::from(millis) * u128::from(left) / u128::from(copied);
            out.append("remainingInitialSyncEstimatedMillis", estimate as i64);
        }
    }
}

impl Copied {
    fn append_to(&self, out: &mut DocBuilder, ns: &str) {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as i64;
        let counters = &self.counters;
        out.start_document(ns)
            .append("documentsToCopy", number(&counters.expected_documents))
            .append("documentsCopied", number(&counters.documents))
            .append("indexes", self.indexes)
            .append("fetchedBatches", number(&counters.batches))
            .append("bytesToCopy", number(&counters.expected_bytes))
            .append("approxBytesCopied", number(&counters.bytes));
        if let Some(span) = &self.span {
            span.append_to(out);
        }
        out.append("receivedBatches", number(&counters.batches))
            .end();
    }
}
