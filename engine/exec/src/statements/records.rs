//! The records that retryable statements leave, in the unit of the write and in the partition of
//! its document.
//!
//! A record is a document of `config.transactions`,
//! `{_id: lsid, txnNum, lastWriteOpTime: {ts, t}, lastWriteDate}`, and says besides which statement
//! it is of: `{stmtId, op, docId, docKey, image}`. Each statement has a key of its own, which the
//! same statement of the next transaction number overwrites. So what a session has executed is
//! known without the oplog, however far back that goes, and no record grows with the number of
//! statements.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocument};
use pinion_catalog::{
    Collection, OpKind, Placement, RETRY_IMAGES, RetryImage, SESSION_RECORDS, SessionStamp,
    append_lsid, bson_timestamp, core_catalog, ensure_collection, partition_of, read_lsid,
    session_key, statement_key,
};
use pinion_clock::{OpTime, Timestamp};
use pinion_storage::{Expect, FirstStamp, Key, Op, PartitionId, Write};
use pinion_wire::idl::{Lsid, Namespace};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::history::{Change, Executed, Record, Recorded};
use crate::transaction_state::TxnState;

/// The collections that records go to.
#[derive(Clone, Debug)]
pub struct RecordCollections {
    pub records: Arc<Collection>,
    /// Another's log may not have made it yet.
    pub images: Option<Arc<Collection>>,
}

impl RecordCollections {
    /// Those of this core's catalog, if they are there.
    pub fn find() -> Option<RecordCollections> {
        let catalog = core_catalog().current();
        let found = |name| {
            let collection: Option<&Arc<Collection>> = catalog.get_full(name);
            collection.filter(|found| found.placement == Placement::Scattered)
        };
        Some(RecordCollections {
            records: found(SESSION_RECORDS)?.clone(),
            images: found(RETRY_IMAGES).cloned(),
        })
    }

    /// Finds them, or makes them as a first write does.
    ///
    /// # Errors
    /// They cannot be made here, or are what a standalone once made of their names.
    pub(crate) async fn ensure(ctx: &OpContext) -> Result<Arc<RecordCollections>> {
        let complete = || RecordCollections::find().filter(|found| found.images.is_some());
        if let Some(found) = complete() {
            return Ok(Arc::new(found));
        }
        for name in [SESSION_RECORDS, RETRY_IMAGES] {
            ensure_collection(ctx, Namespace::parse(name)?).await?;
        }
        complete().map(Arc::new).ok_or_else(|| {
            let what = format!(
                "{SESSION_RECORDS} and {RETRY_IMAGES} must be dropped before this node can write retryably"
            );
            Error::new(ErrorCode::ILLEGAL_OPERATION, what)
        })
    }
}

/// The statements that a write is of, and where their records go.
#[derive(Clone, Debug)]
pub struct Stamp {
    pub session: SessionStamp,
    pub collections: Arc<RecordCollections>,
}

impl Stamp {
    /// The stamp of an insert: no document was there before that a reply could show. The document
    /// afterwards is recorded, where MongoDB reads it from the entry: no reply depends on how far
    /// back the oplog goes.
    pub(crate) fn of_insert(mut self) -> Stamp {
        let image = self.session.image;
        self.session.image = image.filter(|image| *image == RetryImage::Post);
        self
    }
}

/// A change of a document, as its records show it.
pub struct RecordedChange<'a> {
    pub kind: OpKind,
    pub old: Option<&'a RawDocument>,
    pub new: Option<&'a RawDocument>,
    /// The key of the document, if the entry has it.
    pub document_key: Option<&'a RawDocument>,
    /// As the entry has them.
    pub wall_ms: i64,
    pub term: i64,
    /// What was changed need not be what the primary changed.
    pub is_inconsistent: bool,
}

/// What the statements of a change leave in the partition of its document.
pub fn record_writes(
    collections: &RecordCollections,
    partition: PartitionId,
    session: &SessionStamp,
    change: &RecordedChange<'_>,
) -> Vec<Write> {
    let write = |collection: &Collection, key: Key, (value, at): (Bytes, usize)| Write {
        partition,
        tree: collection.tree(),
        key,
        op: Op::PutStamped {
            value,
            at,
            first: None,
        },
        expect: Expect::Any,
    };
    let mut writes = Vec::with_capacity(session.stmt_ids.len() + 1);
    for stmt_id in &session.stmt_ids {
        let key = statement_key(&session.lsid, *stmt_id);
        let record = encode(session, *stmt_id, change);
        writes.push(write(&collections.records, key, record));
    }
    if let (Some(kind), Some(images)) = (session.image, &collections.images) {
        let key = session_key(&session.lsid);
        let image = encode_image(session, kind, change);
        writes.push(write(images, key, image));
    }
    writes
}

/// Appends a timestamp that storage fills in; its offset.
fn append_stamp(out: &mut DocBuilder, name: &str, nested: usize) -> usize {
    out.append(name, RawBsonRef::Timestamp(bson_timestamp(Timestamp::MIN)));
    // The document's length counts an end for itself and for each that is open in it.
    out.len() - 1 - nested - 8
}

/// A record, and where its timestamp goes.
fn encode(session: &SessionStamp, stmt_id: i32, change: &RecordedChange<'_>) -> (Bytes, usize) {
    let mut out = DocBuilder::with_capacity(256);
    append_lsid(&mut out, "_id", &session.lsid);
    out.append("txnNum", session.txn_number)
        .start_document("lastWriteOpTime");
    let at = append_stamp(&mut out, "ts", 1);
    out.append("t", change.term).end();
    let date = DateTime::from_millis(change.wall_ms);
    out.append("lastWriteDate", RawBsonRef::DateTime(date))
        .append("stmtId", stmt_id)
        .append("op", change.kind.letter());
    if let Some(child) = &session.child {
        append_lsid(&mut out, "child", child);
    }
    // The answer to an update that inserted names what it inserted.
    if change.kind == OpKind::Insert
        && let Some(id) = change.new.and_then(|new| pinion_bson::get(new, "_id"))
    {
        out.append_raw("docId", id);
    }
    // Shows the range of the shard key that a document was in, also of one that was deleted.
    if let Some(key) = change.document_key
        && pinion_bson::elements(key).any(|(name, _)| name != "_id")
    {
        out.append("docKey", key);
    }
    if let Some(image) = session.image {
        out.append("image", image.name());
    }
    (Bytes::from(out.finish_bytes()), at)
}

/// What an entry makes of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedEnd {
    Committed,
    /// By the last of `entries` entries.
    Prepared {
        entries: u64,
    },
    /// What was prepared is given up.
    Aborted,
}

/// What `state` says in the record of a transaction.
const COMMITTED: &str = "committed";
const PREPARED: &str = "prepared";
const ABORTED: &str = "aborted";
const IN_PROGRESS: &str = "inProgress";

/// The record of a transaction, with the timestamps that are filled in when it has them.
fn encode_end(stamp: &TransactionStamp, end: RecordedEnd, wall_ms: i64, term: i64) -> Op {
    let mut out = DocBuilder::with_capacity(256);
    append_lsid(&mut out, "_id", &stamp.lsid);
    if stamp.lsid.retryable_number().is_some() {
        append_lsid(&mut out, "parentLsid", &stamp.lsid.parent());
    }
    out.append("txnNum", stamp.txn_number)
        .start_document("lastWriteOpTime");
    let at = append_stamp(&mut out, "ts", 1);
    out.append("t", term).end();
    let date = DateTime::from_millis(wall_ms);
    out.append("lastWriteDate", RawBsonRef::DateTime(date));
    let mut first = None;
    if let RecordedEnd::Prepared { entries } = end {
        out.start_document("startOpTime");
        let at = append_stamp(&mut out, "ts", 1);
        out.append("t", term).end();
        first = Some(FirstStamp { at, entries });
    }
    out.append(
        "state",
        match end {
            RecordedEnd::Committed => COMMITTED,
            RecordedEnd::Prepared { .. } => PREPARED,
            RecordedEnd::Aborted => ABORTED,
        },
    );
    let value = Bytes::from(out.finish_bytes());
    Op::PutStamped { value, at, first }
}

/// The transaction that an entry is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransactionStamp {
    pub lsid: Lsid,
    pub txn_number: i64,
}

impl TransactionStamp {
    /// What an oplog entry says of the transaction whose operations it has; `None` if it is none of
    /// a transaction.
    pub fn of(entry: &RawDocument) -> Option<TransactionStamp> {
        entry.get_document("o").ok()?.get_array("applyOps").ok()?;
        // Statements that are retryable say which they are.
        if pinion_bson::get(entry, "stmtId").is_some() {
            return None;
        }
        TransactionStamp::named(entry)
    }

    /// The transaction that an oplog entry names.
    pub fn named(entry: &RawDocument) -> Option<TransactionStamp> {
        let Some(RawBsonRef::Document(lsid)) = pinion_bson::get(entry, "lsid") else {
            return None;
        };
        Some(TransactionStamp {
            lsid: read_lsid(lsid)?,
            txn_number: entry.get_i64("txnNumber").ok()?,
        })
    }

    /// The key of its record.
    pub fn key(&self) -> Key {
        session_key(&self.lsid)
    }

    /// The write of the record of its end. It is written with the transaction, or with the entry of
    /// its end.
    pub fn write(&self, records: &Collection, end: RecordedEnd, wall_ms: i64, term: i64) -> Write {
        let key = self.key();
        Write {
            partition: partition_of(records, &key),
            tree: records.tree(),
            key,
            op: encode_end(self, end, wall_ms, term),
            expect: Expect::Any,
        }
    }
}

fn encode_image(
    session: &SessionStamp,
    kind: RetryImage,
    change: &RecordedChange<'_>,
) -> (Bytes, usize) {
    let image = match kind {
        RetryImage::Pre => change.old,
        RetryImage::Post => change.new,
    };
    let image = image.filter(|_| !change.is_inconsistent);
    let mut out = DocBuilder::with_capacity(256 + image.map_or(0, |image| image.as_bytes().len()));
    append_lsid(&mut out, "_id", &session.lsid);
    if let Some(child) = &session.child {
        append_lsid(&mut out, "child", child);
    }
    out.append("txnNum", session.txn_number);
    let at = append_stamp(&mut out, "ts", 0);
    out.append("imageKind", kind.name());
    match image {
        Some(image) => out.append("image", image),
        None => out.append("image", &*pinion_bson::RawDocumentBuf::new()),
    };
    out.append("invalidated", image.is_none());
    if image.is_none() {
        out.append("invalidatedReason", "initial sync");
    }
    (Bytes::from(out.finish_bytes()), at)
}

/// Whether a document is the image of a statement of this write, and of the transaction of the same
/// child that was prepared at or behind `prepared`: those that the child has committed before left
/// theirs at an earlier time.
pub fn is_image_of(image: &RawDocument, session: &SessionStamp, prepared: Timestamp) -> bool {
    let child = match pinion_bson::get(image, "child") {
        Some(RawBsonRef::Document(child)) => read_lsid(child),
        _ => None,
    };
    child == session.child
        && image.get_i64("txnNum").ok() == Some(session.txn_number)
        && timestamp(image, "ts").is_some_and(|ts| ts >= prepared)
}

/// Reads a record. One that another node's view gave names no statement.
///
/// # Errors
/// `DataCorruptionDetected`.
pub(crate) fn decode(document: &RawDocument) -> Result<Record> {
    read(document).ok_or_else(|| {
        let what = format!("a record of {SESSION_RECORDS} is malformed");
        Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, what)
    })
}

fn read(document: &RawDocument) -> Option<Record> {
    let last = document.get_document("lastWriteOpTime").ok()?;
    let last_write = OpTime::new(
        timestamp(last, "ts")?,
        pinion_clock::Term(last.get_i64("t").ok()?),
    );
    let is_by_child = pinion_bson::get(document, "child").is_some();
    let what = match pinion_bson::get(document, "stmtId") {
        None => match pinion_bson::get(document, "state") {
            // Members of MongoDB 4.4 also record a transaction whose last entry has not come.
            None | Some(RawBsonRef::String(IN_PROGRESS)) => Recorded::Unknown,
            Some(RawBsonRef::String(COMMITTED)) => Recorded::Transaction(TxnState::Committed),
            Some(RawBsonRef::String(PREPARED)) => Recorded::Transaction(TxnState::Prepared),
            // An abort is recorded only where a prepare was.
            Some(RawBsonRef::String(ABORTED)) => Recorded::Transaction(TxnState::AbortedPrepared),
            Some(_) => return None,
        },
        Some(RawBsonRef::Int32(stmt_id)) => {
            let change = match document.get_str("op").ok()? {
                "i" => Change::Insert {
                    id: pinion_bson::get(document, "docId").map(Into::into),
                },
                "u" => Change::Update,
                "d" => Change::Delete,
                _ => return None,
            };
            let image = pinion_bson::get(document, "image");
            let image = match image {
                Some(RawBsonRef::String(name)) => Some(RetryImage::named(name)?),
                _ => None,
            };
            let executed = Executed {
                ts: last_write.ts,
                change,
                image,
                is_by_child,
            };
            Recorded::Statement(stmt_id, executed)
        }
        Some(_) => return None,
    };
    Some(Record {
        txn_number: document.get_i64("txnNum").ok()?,
        last_write,
        what,
        is_by_child,
    })
}

pub(crate) fn timestamp(document: &RawDocument, name: &str) -> Option<Timestamp> {
    match pinion_bson::get(document, name) {
        Some(RawBsonRef::Timestamp(ts)) => Some(Timestamp::new(ts.time, ts.increment)),
        _ => None,
    }
}

/// What an operation of an oplog entry, or an entry that is no more than one, says of the retryable
/// statements that it is of; `None` if it is of none.
pub fn stamp_of(operation: &RawDocument, entry: &RawDocument) -> Option<SessionStamp> {
    let stmt_ids = match pinion_bson::get(operation, "stmtId")? {
        RawBsonRef::Int32(id) => vec![id],
        RawBsonRef::Array(ids) => pinion_bson::values(ids)
            .map(|id| match id {
                RawBsonRef::Int32(id) => Some(id),
                _ => None,
            })
            .collect::<Option<Vec<i32>>>()?,
        _ => return None,
    };
    let image = match pinion_bson::get(operation, "needsRetryImage") {
        Some(RawBsonRef::String(name)) => Some(RetryImage::named(name)?),
        _ => None,
    };
    let TransactionStamp { lsid, txn_number } = TransactionStamp::named(entry)?;
    let (child, txn_number) = match lsid.retryable_number() {
        Some(number) => (Some(lsid), number),
        None => (None, txn_number),
    };
    Some(SessionStamp {
        lsid: lsid.parent(),
        txn_number,
        child,
        stmt_ids,
        previous: OpTime::NULL,
        image,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawdoc;

    fn session(image: Option<RetryImage>) -> SessionStamp {
        SessionStamp {
            lsid: Lsid::of_client([3; 16], None),
            txn_number: 7,
            child: None,
            stmt_ids: vec![4],
            previous: OpTime::NULL,
            image,
        }
    }

    fn stamped((value, at): (Bytes, usize), ts: Timestamp) -> pinion_bson::RawDocumentBuf {
        let mut bytes = value.to_vec();
        bytes[at..at + 8].copy_from_slice(&ts.to_bson_bytes());
        pinion_bson::validate(&bytes).expect("valid").to_owned()
    }

    #[test]
    fn records_are_read_as_they_are_written() {
        let ts = Timestamp::new(100, 2);
        let check = |kind: OpKind, image: Option<RetryImage>, expected: Change| {
            let (new, id_alone) = (rawdoc! { "_id": "x", "a": 1 }, rawdoc! { "_id": "x" });
            let change = RecordedChange {
                kind,
                old: None,
                new: (kind != OpKind::Delete).then_some(&*new),
                document_key: Some(&id_alone),
                wall_ms: 5,
                term: 9,
                is_inconsistent: false,
            };
            let record = decode(&stamped(encode(&session(image), 4, &change), ts));
            let expected = Record {
                txn_number: 7,
                last_write: OpTime::new(ts, pinion_clock::Term(9)),
                what: Recorded::Statement(
                    4,
                    Executed {
                        ts,
                        change: expected,
                        image,
                        is_by_child: false,
                    },
                ),
                is_by_child: false,
            };
            assert_eq!(record.expect("a record"), expected);
        };
        let id = Some(pinion_bson::RawBson::String("x".into()));
        check(OpKind::Insert, None, Change::Insert { id });
        check(OpKind::Update, Some(RetryImage::Post), Change::Update);
        check(OpKind::Delete, Some(RetryImage::Pre), Change::Delete);
        assert!(decode(&rawdoc! { "_id": 1 }).is_err());
    }

    /// The record of a statement with the key of its document has a field more, which a record does
    /// not have that was made without one, and which changes nothing in how it is read.
    #[test]
    fn a_record_has_the_key_of_a_document_with_a_shard_key() {
        let ts = Timestamp::new(100, 2);
        let record = |kind: OpKind, document_key: Option<&RawDocument>| {
            let new = rawdoc! { "_id": 1, "a": 5 };
            let change = RecordedChange {
                kind,
                old: None,
                new: (kind == OpKind::Insert).then_some(&*new),
                document_key,
                wall_ms: 5,
                term: 9,
                is_inconsistent: false,
            };
            stamped(encode(&session(None), 4, &change), ts)
        };
        let id_alone = rawdoc! { "_id": 1 };
        for kind in [OpKind::Insert, OpKind::Update, OpKind::Delete] {
            let without = record(kind, None);
            assert!(pinion_bson::get(&without, "docKey").is_none());
            assert_eq!(record(kind, Some(&id_alone)), without);
            for key in [
                rawdoc! { "a": 5, "_id": 1 },
                rawdoc! { "_id": 1, "a": 5 },
                rawdoc! { "a.b": { "c": 1 }, "_id": 1 },
            ] {
                let with = record(kind, Some(&key));
                assert_eq!(with.get_document("docKey").ok(), Some(&*key));
                let read = |record: &RawDocument| decode(record).expect("a record");
                assert_eq!(read(&with), read(&without));
            }
        }
    }

    #[test]
    fn what_became_of_a_transaction_is_read_as_it_is_written() {
        let stamp = TransactionStamp {
            lsid: session(None).lsid,
            txn_number: 7,
        };
        let ts = Timestamp::new(100, 2);
        let check = |end: RecordedEnd, state: TxnState, first_ts: Option<Timestamp>| {
            let Op::PutStamped {
                value,
                at,
                first: first_at,
            } = encode_end(&stamp, end, 5, 9)
            else {
                panic!("it has a stamp");
            };
            let mut bytes = value.to_vec();
            bytes[at..at + 8].copy_from_slice(&ts.to_bson_bytes());
            if let (Some(first), Some(FirstStamp { at, .. })) = (first_ts, first_at) {
                bytes[at..at + 8].copy_from_slice(&first.to_bson_bytes());
            }
            let document = pinion_bson::validate(&bytes).expect("valid");
            let started = document.get_document("startOpTime").ok();
            assert_eq!(
                started.and_then(|started| timestamp(started, "ts")),
                first_ts
            );
            let expected = Record {
                txn_number: 7,
                last_write: OpTime::new(ts, pinion_clock::Term(9)),
                what: Recorded::Transaction(state),
                is_by_child: false,
            };
            assert_eq!(decode(document).expect("a record"), expected);
        };
        check(RecordedEnd::Committed, TxnState::Committed, None);
        check(RecordedEnd::Aborted, TxnState::AbortedPrepared, None);
        let prepared = RecordedEnd::Prepared { entries: 2 };
        check(prepared, TxnState::Prepared, Some(Timestamp::new(100, 1)));
    }

    #[test]
    fn images_carry_the_time_of_their_write() {
        let old = rawdoc! { "_id": 1, "a": 1 };
        let change = |is_inconsistent| RecordedChange {
            kind: OpKind::Delete,
            old: Some(&old),
            new: None,
            document_key: None,
            wall_ms: 5,
            term: 9,
            is_inconsistent,
        };
        let encoded = |is_inconsistent| {
            let change = change(is_inconsistent);
            let image = encode_image(&session(None), RetryImage::Pre, &change);
            stamped(image, Timestamp::new(100, 2))
        };
        let found = encoded(false);
        assert_eq!(timestamp(&found, "ts"), Some(Timestamp::new(100, 2)));
        assert_eq!(found.get_document("image").expect("an image"), &*old);
        assert_eq!(found.get_bool("invalidated").ok(), Some(false));
        assert_eq!(encoded(true).get_bool("invalidated").ok(), Some(true));
    }
}
