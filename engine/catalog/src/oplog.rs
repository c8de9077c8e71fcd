//! Oplog entries, and the observers through which every write passes before it has one.
//!
//! An entry is a complete oplog document: `{ts, t, v: 2, op, ns, ui, o, o2, wall}`; `prevOpTime`, `lsid`, `txnNumber`, `stmtId` and
//! `needsRetryImage` for a retryable statement, `rid` for a record of a collection that is ordered by these, and `preImage`, the
//! document before the write, of a collection whose change streams show it. `ts`, `t` and
//! `prevOpTime` come first, because storage fills them in at fixed offsets once the timestamp is allotted.
//! Entries that change the catalog carry the changed rows in `o2`, so that replay makes exactly the same catalog.

use std::rc::Rc;

use pinion_bson::{
    DateTime, DocBuilder, MAX_USER_DOCUMENT_BYTES, RawBsonRef, RawDocument,
    Timestamp as BsonTimestamp,
};
use pinion_clock::{OpTime, Timestamp};
use pinion_storage::{ENTRY_TS_OFFSET, Entry};
use pinion_wire::Result;
use pinion_wire::idl::Lsid;

use crate::log_form::LogForm;
use crate::lsid::append_lsid;
use crate::uuid::Uuid;

/// What an entry does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    Insert,
    Update,
    Delete,
    Command,
    Noop,
}

impl OpKind {
    /// The letter in the entry's `op` field.
    pub fn letter(self) -> &'static str {
        match self {
            OpKind::Insert => "i",
            OpKind::Update => "u",
            OpKind::Delete => "d",
            OpKind::Command => "c",
            OpKind::Noop => "n",
        }
    }
}

/// Which document a retried `findAndModify` answers with, as it was before the write or after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryImage {
    Pre,
    Post,
}

impl RetryImage {
    /// As an entry's `needsRetryImage` has it.
    pub fn name(self) -> &'static str {
        match self {
            RetryImage::Pre => "preImage",
            RetryImage::Post => "postImage",
        }
    }

    pub fn named(name: &str) -> Option<RetryImage> {
        let all = [RetryImage::Pre, RetryImage::Post];
        all.into_iter().find(|image| image.name() == name)
    }
}

/// What an entry says of the retryable statements that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStamp {
    /// That of the client, whoever executes the statements for it.
    pub lsid: Lsid,
    pub txn_number: i64,
    /// The session of the internal transaction that they are executed in.
    pub child: Option<Lsid>,
    /// Usually one; several where one write is of several statements.
    pub stmt_ids: Vec<i32>,
    /// The last write of the same `txn_number`. Of statements that are executed together only the first keeps it.
    pub previous: OpTime,
    pub image: Option<RetryImage>,
}

impl SessionStamp {
    /// What the entries of a transaction say, which is none of the statements.
    fn of_transaction(lsid: &Lsid, txn_number: i64, previous: OpTime) -> SessionStamp {
        SessionStamp {
            lsid: *lsid,
            txn_number,
            child: None,
            stmt_ids: Vec::new(),
            previous,
            image: None,
        }
    }
}

/// One write, as observers see it before its timestamp is allotted.
pub struct OpEvent<'a> {
    pub kind: OpKind,
    /// `database.collection`, or `database.$cmd` for commands.
    pub ns: &'a str,
    pub uuid: Option<Uuid>,
    /// The document inserted, the update (`{$v: 2, diff}` or the replacement), the `_id` deleted, or the command.
    pub o: &'a RawDocument,
    /// The `_id` of the document updated, or the catalog rows of a command.
    pub o2: Option<&'a RawDocument>,
    pub wall_ms: i64,
    pub session: Option<&'a SessionStamp>,
    /// The number of the document's record, in a collection that is ordered by these.
    pub record: Option<i64>,
    pub form: LogForm,
}

/// Sees every replicated write of this core. Replication and sharding hook in here; they may refuse a write.
pub trait OpObserver {
    /// Called before the write's timestamp is allotted.
    ///
    /// # Errors
    /// The statement then fails with this error and writes nothing.
    fn on_op(&self, event: &OpEvent<'_>) -> Result<()>;
}

/// The observers of one core, in the order they were registered.
#[derive(Default, Clone)]
pub struct Observers(Vec<Rc<dyn OpObserver>>);

impl Observers {
    /// Adds an observer after those already there.
    pub fn register(&mut self, observer: Rc<dyn OpObserver>) {
        self.0.push(observer);
    }

    /// Shows the write to every observer and makes its entry.
    pub fn entry(&self, event: &OpEvent<'_>) -> Result<Entry> {
        self.show(event)?;
        Ok(encode_entry(event))
    }

    /// Shows the write to every observer, before its entry is made.
    pub fn show(&self, event: &OpEvent<'_>) -> Result<()> {
        self.0.iter().try_for_each(|observer| observer.on_op(event))
    }
}

/// The entry of a write that every observer has seen. It copies what the write tells, on any thread.
pub fn encode_entry(event: &OpEvent<'_>) -> Entry {
    let mut doc = begin_entry(256 + event.o.as_bytes().len(), event.session);
    append_operation(&mut doc, event);
    finish_entry(doc, event.wall_ms, event.session, event.form)
}

/// As [`encode_entry`], with the document as it was before the write: change streams show it, on whatever member. It lives as
/// long as the entry. One that is too large for an entry beside what the write tells is left out.
pub fn encode_entry_with_image(event: &OpEvent<'_>, image: Option<&RawDocument>) -> Entry {
    let image = fitting(event, image);
    let mut doc = begin_entry(256 + told_bytes(event, image), event.session);
    append_operation(&mut doc, event);
    append_image(&mut doc, image);
    finish_entry(doc, event.wall_ms, event.session, event.form)
}

/// The image, if an entry has room for it beside what the write tells.
fn fitting<'i>(event: &OpEvent<'_>, image: Option<&'i RawDocument>) -> Option<&'i RawDocument> {
    image.filter(|image| {
        event.form == LogForm::Full
            && image.as_bytes().len() + event.o.as_bytes().len() <= MAX_USER_DOCUMENT_BYTES
    })
}

fn told_bytes(event: &OpEvent<'_>, image: Option<&RawDocument>) -> usize {
    event.o.as_bytes().len() + image.map_or(0, |image| image.as_bytes().len())
}

fn append_image(doc: &mut DocBuilder, image: Option<&RawDocument>) {
    if let Some(image) = image {
        doc.append("preImage", image);
    }
}

/// The entry of several writes of documents that take place together, each of which every observer
/// has seen.
///
/// # Panics
/// When there is none.
pub fn encode_apply_ops(events: &[OpEvent<'_>]) -> Entry {
    let bytes: usize = events
        .iter()
        .map(|event| 128 + event.o.as_bytes().len())
        .sum();
    let mut doc = begin_entry(256 + bytes, None);
    doc.append("op", OpKind::Command.letter())
        .append("ns", "admin.$cmd")
        .start_document("o")
        .start_array("applyOps");
    for event in events {
        let mut operation = DocBuilder::new();
        append_operation(&mut operation, event);
        doc.push(&*operation.finish());
    }
    doc.end().end();
    finish_entry(doc, events[0].wall_ms, None, events[0].form)
}

/// What an entry says of one write, alone: as an element of the `applyOps` of a transaction. Every observer has seen it. With
/// the document as it was before the write, as [`encode_entry_with_image`] has it. A retryable statement says which it is, and
/// the entry of the transaction in which session.
pub fn encode_operation(event: &OpEvent<'_>, image: Option<&RawDocument>) -> Entry {
    let image = fitting(event, image);
    let mut doc = DocBuilder::with_capacity(160 + told_bytes(event, image));
    append_operation(&mut doc, event);
    if let Some(session) = event.session {
        append_statements(&mut doc, session, event.form);
    }
    append_image(&mut doc, image);
    Entry {
        bytes: doc.finish_bytes(),
    }
}

/// Which of a transaction's entries one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransactionPart {
    /// The only one.
    Whole,
    /// More come behind it.
    Partial,
    /// The last of several, of so many operations in all.
    Last { count: i64 },
}

/// What becomes of a transaction with its last entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransactionEnd {
    /// It takes place.
    Commit,
    /// It is prepared, and takes place with a later entry or never ([`encode_outcome`]).
    Prepare,
}

/// An entry of a transaction: operations as [`encode_operation`] makes them, which take place, or are prepared, with the last of
/// its entries.
pub fn encode_transaction(
    lsid: &Lsid,
    txn_number: i64,
    part: TransactionPart,
    end: TransactionEnd,
    operations: &[bytes::Bytes],
    wall_ms: i64,
) -> Entry {
    let session = SessionStamp::of_transaction(lsid, txn_number, OpTime::NULL);
    let bytes: usize = operations
        .iter()
        .map(|operation| 16 + operation.len())
        .sum();
    let mut doc = begin_entry(256 + bytes, Some(&session));
    doc.append("op", OpKind::Command.letter())
        .append("ns", "admin.$cmd")
        .start_document("o")
        .start_array("applyOps");
    for operation in operations {
        doc.push(crate::keys::stored_document(operation));
    }
    doc.end();
    if end == TransactionEnd::Prepare && part != TransactionPart::Partial {
        doc.append("prepare", true);
    }
    match part {
        TransactionPart::Whole => {}
        TransactionPart::Partial => {
            doc.append("partialTxn", true);
        }
        TransactionPart::Last { count } => {
            doc.append("count", count);
        }
    }
    doc.end();
    finish_entry(doc, wall_ms, Some(&session), LogForm::Full)
}

/// The entry that tells what became of a transaction that was prepared by the entry at `prepared`: it is committed at this time,
/// or aborted.
pub fn encode_outcome(
    lsid: &Lsid,
    txn_number: i64,
    prepared: OpTime,
    commit: Option<Timestamp>,
    wall_ms: i64,
) -> Entry {
    let session = SessionStamp::of_transaction(lsid, txn_number, prepared);
    let mut doc = begin_entry(256, Some(&session));
    doc.append("op", OpKind::Command.letter())
        .append("ns", "admin.$cmd")
        .start_document("o");
    match commit {
        Some(at) => doc
            .append("commitTransaction", 1i32)
            .append("commitTimestamp", RawBsonRef::Timestamp(bson_timestamp(at))),
        None => doc.append("abortTransaction", 1i32),
    };
    doc.end();
    finish_entry(doc, wall_ms, Some(&session), LogForm::Full)
}

fn begin_entry(capacity: usize, session: Option<&SessionStamp>) -> DocBuilder {
    let mut doc = DocBuilder::with_capacity(capacity);
    // The allotted timestamp goes here.
    doc.append("ts", RawBsonRef::Timestamp(bson_timestamp(Timestamp::MIN)));
    // No term: a standalone has had no election.
    doc.append("t", -1i64);
    if let Some(session) = session {
        doc.start_document("prevOpTime")
            .append(
                "ts",
                RawBsonRef::Timestamp(bson_timestamp(session.previous.ts)),
            )
            .append("t", session.previous.term.0)
            .end();
    }
    doc.append("v", 2i64);
    doc
}

/// What an entry says of one write.
fn append_operation(doc: &mut DocBuilder, event: &OpEvent<'_>) {
    doc.append("op", event.kind.letter()).append("ns", event.ns);
    if let Some(uuid) = &event.uuid {
        doc.append("ui", uuid.to_bson());
    }
    doc.append("o", event.o);
    if let Some(o2) = event.o2 {
        doc.append("o2", o2);
    }
    if let Some(record) = event.record
        && event.form == LogForm::Full
    {
        doc.append("rid", record);
    }
}

fn append_session(doc: &mut DocBuilder, session: &SessionStamp, form: LogForm) {
    append_lsid(doc, "lsid", &session.lsid);
    doc.append("txnNumber", session.txn_number);
    append_statements(doc, session, form);
}

fn append_statements(doc: &mut DocBuilder, session: &SessionStamp, form: LogForm) {
    match session.stmt_ids.as_slice() {
        // A transaction is none of them.
        [] => {}
        [one] => {
            doc.append("stmtId", *one);
        }
        // Measurements alone are written together, and those there are not in this form.
        [first, ..] if form == LogForm::Plain => {
            doc.append("stmtId", *first);
        }
        several => {
            doc.start_array("stmtId");
            for id in several {
                doc.push(*id);
            }
            doc.end();
        }
    }
    if let Some(image) = session.image
        && form == LogForm::Full
    {
        doc.append("needsRetryImage", image.name());
    }
}

/// A timestamp as BSON has it.
pub fn bson_timestamp(ts: Timestamp) -> BsonTimestamp {
    BsonTimestamp {
        time: ts.secs(),
        increment: ts.inc(),
    }
}

fn finish_entry(
    mut doc: DocBuilder,
    wall_ms: i64,
    session: Option<&SessionStamp>,
    form: LogForm,
) -> Entry {
    doc.append("wall", RawBsonRef::DateTime(DateTime::from_millis(wall_ms)));
    if let Some(session) = session {
        append_session(&mut doc, session, form);
    }
    let bytes = doc.finish_bytes();
    assert!(
        bytes[4] == 0x11 && &bytes[5..8] == b"ts\0",
        "the first field of an entry is its timestamp"
    );
    const { assert!(ENTRY_TS_OFFSET == 8) };
    Entry { bytes }
}
