//! Oplog entries, and the observers through which every write passes before it has one.
//!
//! An entry is a complete oplog document: `{ts, t, v: 2, op, ns, ui, o, o2, wall}`; `prevOpTime`,
//! `lsid`, `txnNumber`, `stmtId` and `needsRetryImage` for a retryable statement, `rid` for a
//! record of a collection that is ordered by these, `fromMigrate` for a document that moves between
//! shards, and `preImage`, the document before the write, of a collection whose change streams show
//! it. `ts`, `t` and `prevOpTime` come first, because storage fills them in at fixed offsets once
//! the timestamp is allotted. Entries that change the catalog carry the changed rows in `o2`, so
//! that replay makes exactly the same catalog; but for the removal of a view as MongoDB 4.4 logs
//! it, which names the view alone. Those of documents carry the document's key there, and that of a
//! deletion in `o` ([`Collection::logged_key`](crate::Collection::logged_key)): it is the `_id` in
//! it by which they are applied.
//!
//! An image that an entry has no room for is *apart*: the entry says `preImageApart: true`, and the
//! no-op right before it, with the timestamp before its own, is
//! `{ts, t, v: 2, op: "n", ns, ui, o: {msg}, preImage, wall}`. In an `applyOps` it is the operation
//! right before, which may be the last one of the transaction's entry before.

use std::rc::Rc;

use pinion_bson::{
    DateTime, DocBuilder, MAX_USER_DOCUMENT_BYTES, RawBsonRef, RawDocument,
    Timestamp as BsonTimestamp,
};
use pinion_clock::{OpTime, Timestamp};
use pinion_storage::{ENTRY_TS_OFFSET, Entry};
use pinion_wire::Result;
use pinion_wire::idl::Lsid;

use crate::lsid::append_lsid;
use crate::oplog_format::OplogFormat;
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
    /// That of the client, whichever session executes the statements for it.
    pub lsid: Lsid,
    pub txn_number: i64,
    /// The session of the internal transaction that they are executed in.
    pub child: Option<Lsid>,
    /// Usually one; several where one write is of several statements.
    pub stmt_ids: Vec<i32>,
    /// The last write of the same `txn_number`. Of statements that are executed together only the
    /// first keeps it.
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
    /// The document inserted, the update (`{$v: 2, diff}` or the replacement), the key of the
    /// document deleted, or the command.
    pub o: &'a RawDocument,
    /// The key of the document before the write, of an insert its own; or the catalog rows of a
    /// command. Observers see it of deletions too.
    pub o2: Option<&'a RawDocument>,
    /// It moves a document between shards: change streams do not show it.
    pub from_migrate: bool,
    pub wall_ms: i64,
    pub session: Option<&'a SessionStamp>,
    /// The number of the document's record, in a collection that is ordered by these.
    pub record: Option<i64>,
    pub form: OplogFormat,
}

impl<'a> OpEvent<'a> {
    /// The `o2` of the entry. That of a deletion has none, as the key is its `o`.
    fn logged_o2(&self) -> Option<&'a RawDocument> {
        self.o2.filter(|_| self.kind != OpKind::Delete)
    }
}

/// Sees every replicated write of this core. Replication and sharding hook in here; they may refuse
/// a write.
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

/// The entry of a write that every observer has seen. It copies the write's documents, on any
/// thread.
pub fn encode_entry(event: &OpEvent<'_>) -> Entry {
    let mut doc = begin_entry(256 + event.o.as_bytes().len(), event.session);
    append_operation(&mut doc, event);
    finish_entry(doc, event.wall_ms, event.session, event.form)
}

/// As [`encode_entry`], with the document as it was before the write: change streams show it, on
/// whatever member. It lives as long as the entry.
pub fn encode_entry_with_image(event: &OpEvent<'_>, image: Option<&RawDocument>) -> Entry {
    let image = ImagePlace::of(event, image);
    let mut doc = begin_entry(256 + image.entry_bytes(event), event.session);
    append_operation(&mut doc, event);
    image.append(&mut doc);
    let apart = image.apart().map(|image| {
        let mut doc = begin_entry(256 + image.as_bytes().len(), None);
        append_apart(&mut doc, event, image);
        finish_entry(doc, event.wall_ms, None, event.form).bytes
    });
    Entry {
        image: apart,
        ..finish_entry(doc, event.wall_ms, event.session, event.form)
    }
}

/// Where the log has the document as it was before a write.
#[derive(Clone, Copy)]
enum ImagePlace<'i> {
    Nowhere,
    /// In what is said of the write.
    Inside(&'i RawDocument),
    /// In a no-op before that: both together are more than an entry may have.
    Apart(&'i RawDocument),
}

impl<'i> ImagePlace<'i> {
    fn of(event: &OpEvent<'_>, image: Option<&'i RawDocument>) -> ImagePlace<'i> {
        let Some(image) = image.filter(|_| event.form == OplogFormat::Native) else {
            return ImagePlace::Nowhere;
        };
        match ImagePlace::Inside(image).entry_bytes(event) <= MAX_USER_DOCUMENT_BYTES {
            true => ImagePlace::Inside(image),
            false => ImagePlace::Apart(image),
        }
    }

    /// The bytes of the documents in what is said of the write.
    fn entry_bytes(self, event: &OpEvent<'_>) -> usize {
        let bytes = |document: &RawDocument| document.as_bytes().len();
        let inside = match self {
            ImagePlace::Inside(image) => bytes(image),
            ImagePlace::Nowhere | ImagePlace::Apart(_) => 0,
        };
        bytes(event.o) + event.logged_o2().map_or(0, bytes) + inside
    }

    fn append(self, doc: &mut DocBuilder) {
        match self {
            ImagePlace::Nowhere => {}
            ImagePlace::Inside(image) => {
                doc.append("preImage", image);
            }
            ImagePlace::Apart(_) => {
                doc.append("preImageApart", true);
            }
        }
    }

    fn apart(self) -> Option<&'i RawDocument> {
        match self {
            ImagePlace::Apart(image) => Some(image),
            ImagePlace::Nowhere | ImagePlace::Inside(_) => None,
        }
    }
}

/// What the no-op before a write says, which has the document as it was before.
fn append_apart(doc: &mut DocBuilder, event: &OpEvent<'_>, image: &RawDocument) {
    doc.append("op", OpKind::Noop.letter())
        .append("ns", event.ns);
    if let Some(uuid) = &event.uuid {
        doc.append("ui", uuid.to_bson());
    }
    doc.start_document("o").append("msg", "pre-image").end();
    doc.append("preImage", image);
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

/// What an entry says of one write, alone: as an element of the `applyOps` of a transaction. Every
/// observer has seen it. With the document as it was before the write, as
/// [`encode_entry_with_image`] has it. A retryable statement says which it is, and the entry of the
/// transaction in which session.
pub fn encode_operation(event: &OpEvent<'_>, image: Option<&RawDocument>) -> Entry {
    let image = ImagePlace::of(event, image);
    let mut doc = DocBuilder::with_capacity(160 + image.entry_bytes(event));
    append_operation(&mut doc, event);
    if let Some(session) = event.session {
        append_statements(&mut doc, session, event.form);
    }
    image.append(&mut doc);
    let apart = image.apart().map(|image| {
        let mut doc = DocBuilder::with_capacity(160 + image.as_bytes().len());
        append_apart(&mut doc, event, image);
        doc.finish_bytes()
    });
    Entry {
        bytes: doc.finish_bytes(),
        image: apart,
    }
}

/// Which of a transaction's entries one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransactionPart {
    /// The only one.
    Whole,
    /// More come behind it.
    Partial,
    /// The last of several, of `count` operations in all.
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

/// An entry of a transaction: operations as [`encode_operation`] makes them, which take place, or
/// are prepared, with the last of its entries.
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
    finish_entry(doc, wall_ms, Some(&session), OplogFormat::Native)
}

/// The entry that ends a transaction that was prepared by the entry at `prepared`: it is committed
/// at this time, or aborted.
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
    finish_entry(doc, wall_ms, Some(&session), OplogFormat::Native)
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
    if let Some(o2) = event.logged_o2() {
        doc.append("o2", o2);
    }
    if event.from_migrate {
        doc.append("fromMigrate", true);
    }
    if let Some(record) = event.record
        && event.form == OplogFormat::Native
    {
        doc.append("rid", record);
    }
}

fn append_session(doc: &mut DocBuilder, session: &SessionStamp, form: OplogFormat) {
    append_lsid(doc, "lsid", &session.lsid);
    doc.append("txnNumber", session.txn_number);
    append_statements(doc, session, form);
}

fn append_statements(doc: &mut DocBuilder, session: &SessionStamp, form: OplogFormat) {
    match session.stmt_ids.as_slice() {
        // A transaction is none of them.
        [] => {}
        [one] => {
            doc.append("stmtId", *one);
        }
        // Measurements alone are written together, and those there are not in this form.
        [first, ..] if form == OplogFormat::V44 => {
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
        && form == OplogFormat::Native
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
    form: OplogFormat,
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
    Entry::new(bytes)
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::*;

    fn event<'a>(o: &'a RawDocument, o2: &'a RawDocument, form: OplogFormat) -> OpEvent<'a> {
        OpEvent {
            kind: OpKind::Update,
            ns: "d.c",
            uuid: Some(Uuid([7; 16])),
            o,
            o2: Some(o2),
            from_migrate: false,
            wall_ms: 5000,
            session: None,
            record: None,
            form,
        }
    }

    fn document(bytes: &[u8]) -> RawDocumentBuf {
        RawDocument::from_bytes(bytes)
            .expect("a document")
            .to_owned()
    }

    fn names(document: &RawDocument) -> Vec<&str> {
        pinion_bson::elements(document)
            .map(|(name, _)| name)
            .collect()
    }

    #[test]
    fn documents_are_named_by_their_keys() {
        let key = rawdoc! { "a": 5, "_id": 1 };
        let o = rawdoc! { "_id": 1, "a": 6 };
        let check = |kind: OpKind, o: &RawDocument, from_migrate: bool, expected: &[&str]| {
            let event = OpEvent {
                kind,
                from_migrate,
                ..event(o, &key, OplogFormat::Native)
            };
            let operation = document(&encode_operation(&event, None).bytes);
            assert_eq!(names(&operation), expected);
            let entry = document(&encode_entry(&event).bytes);
            assert_eq!(
                names(&entry),
                [&["ts", "t", "v"], expected, &["wall"]].concat()
            );
            let named = entry.get_document("o2").or(entry.get_document("o"));
            assert_eq!(named.ok(), Some(&*key));
            assert_eq!(entry.get_bool("fromMigrate").unwrap_or(false), from_migrate);
        };
        let (o, full) = (&*o, ["op", "ns", "ui", "o", "o2"]);
        check(OpKind::Insert, o, false, &full);
        check(OpKind::Update, o, false, &full);
        check(OpKind::Delete, &key, false, &full[..4]);
        let migrated = ["op", "ns", "ui", "o", "o2", "fromMigrate"];
        check(OpKind::Insert, o, true, &migrated);
        check(OpKind::Update, o, true, &migrated);
        check(
            OpKind::Delete,
            &key,
            true,
            &["op", "ns", "ui", "o", "fromMigrate"],
        );
    }

    #[test]
    fn an_image_without_room_in_the_entry_is_apart() {
        let text = |bytes: usize| rawdoc! { "_id": 1, "x": "y".repeat(bytes) };
        let key = rawdoc! { "_id": 1 };
        let large = MAX_USER_DOCUMENT_BYTES - 100;
        let check = |o: usize, image: usize, is_apart: bool| {
            let (o, image) = (text(o), text(image));
            let event = event(&o, &key, OplogFormat::Native);
            for encode in [encode_entry_with_image, encode_operation] {
                let entry = encode(&event, Some(&image));
                let (of_write, flag) = (document(&entry.bytes), "preImageApart");
                assert_eq!(of_write.get_bool(flag).is_ok(), is_apart);
                assert_eq!(of_write.get_document("preImage").is_ok(), !is_apart);
                assert_eq!(entry.image.is_some(), is_apart);
                let of_image = entry.image.map_or(of_write, |image| document(&image));
                assert_eq!(of_image.get_document("preImage").ok(), Some(&*image));
            }
        };
        check(10, 10, false);
        check(large / 2, large / 2, false);
        check(10, large, false);
        check(large, 200, true);
        check(large, large, true);
        let (o, image) = (text(large), text(large));
        let apart =
            encode_entry_with_image(&event(&o, &key, OplogFormat::Native), Some(&image)).image;
        let apart = document(&apart.expect("it is apart"));
        assert_eq!(
            names(&apart),
            ["ts", "t", "v", "op", "ns", "ui", "o", "preImage", "wall"]
        );
        // MongoDB 4.4 knows no images.
        let plain = encode_entry_with_image(&event(&o, &key, OplogFormat::V44), Some(&image));
        assert!(plain.image.is_none());
        assert!(!names(&document(&plain.bytes)).contains(&"preImageApart"));
    }
}
