//! The one maker of logged writes of documents: the statement that changes one, with its index
//! entries, its entry in the oplog, and what a retryable write leaves behind.

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{
    Collection, Observers, OpEvent, OpKind, OplogFormat, check_v44_can_follow,
    encode_entry_with_image, encode_operation, oplog_format, stored_document,
};
use pinion_query::{DocumentKeyPattern, Update};
use pinion_service::compute::compute_bytes;
use pinion_storage::{
    Entry, Expect, Key, Op, PartitionId, Statement, VersionToken, Write, storage,
};
use pinion_wire::{Error, ErrorCode, Result};

use crate::limits::MAX_LOGGED_BYTES;
use crate::placement;
use crate::statements::{RecordedChange, Stamp, record_writes};

/// A change of one document.
pub(super) struct LoggedWrite<'a> {
    pub collection: &'a Collection,
    pub partition: PartitionId,
    pub key: Key,
    /// The number of its record, in a collection that is ordered by these.
    pub record: Option<i64>,
    /// The document that is changed, which must not have been changed meanwhile; `None` if there
    /// must be none.
    pub old: Option<(&'a RawDocument, VersionToken)>,
    /// `None` to delete it.
    pub new: Option<&'a Bytes>,
    /// The update that made the new document, if it was one: the entry is that of an update then.
    pub update: Option<&'a Update>,
    /// The retryable statements that it is of.
    pub stamp: Option<&'a Stamp>,
    /// It moves the document between shards, as the entry then says.
    pub from_migrate: bool,
    /// It is one of a transaction, whose entry has it.
    pub in_transaction: bool,
}

/// How the log has a write.
#[derive(Clone, Copy)]
enum Form {
    /// By an entry of its own.
    Entry,
    /// As one of the operations of a transaction's entry.
    Operation,
}

impl LoggedWrite<'_> {
    /// The statement: the document first, then `index`, what is written of its index entries.
    ///
    /// # Errors
    /// An observer refuses it.
    pub(super) async fn statement(self, index: Vec<Write>) -> Result<Statement> {
        let (entry, records) = match self.collection.is_replicated() {
            true => {
                let (entry, records) = self.logged().await?;
                (Some(entry), records)
            }
            // Local collections leave no record: no other member could know of it.
            false => (None, Vec::new()),
        };
        let LoggedWrite {
            collection,
            partition,
            key,
            old,
            new,
            ..
        } = self;
        let token = old.map(|(_, token)| token);
        let mut writes = Vec::with_capacity(1 + index.len() + records.len());
        writes.push(Write {
            partition,
            tree: collection.tree(),
            key,
            op: new.cloned().map_or(Op::Delete, Op::Put),
            expect: token.map_or(Expect::Absent, Expect::Version),
        });
        writes.extend(index);
        writes.extend(records);
        Ok(Statement { writes, entry })
    }

    /// What the log has of the write, and what its statements leave behind in the partition of the
    /// document.
    async fn logged(&self) -> Result<(Entry, Vec<Write>)> {
        let documents = (
            self.old.map(|(old, _)| old),
            self.new.map(|new| stored_document(new)),
        );
        let (old, new) = documents;
        let document = old.or(new).expect("a document is written or deleted");
        let document_key = logged_key(self.collection, document).await?;
        let fields = OplogFields {
            record: self.record,
            documents,
            document_key: &document_key,
            update: self.update,
            from_migrate: self.from_migrate,
            wall_ms: pinion_runtime::wall_ms(),
        };
        let form = match self.in_transaction {
            true => Form::Operation,
            false => Form::Entry,
        };
        let (kind, entry) = entry(self.collection, &fields, (self.stamp, form)).await?;
        let records = match self.stamp {
            Some(stamp) => stamp.writes(self.partition, kind, &fields),
            None => Vec::new(),
        };
        Ok((entry, records))
    }
}

/// The key of a document as the log has it, made on a compute thread where the document is large:
/// its `_id`, and the fields of the shard key.
pub(super) async fn logged_key(
    collection: &Collection,
    document: &RawDocument,
) -> Result<RawDocumentBuf> {
    static ID: DocumentKeyPattern = DocumentKeyPattern::ID;
    let ownership = placement::ownership_of_node(&collection.ns);
    let pattern = match &ownership {
        Some(ownership) => ownership.document_key(),
        None => &ID,
    };
    let bytes = document.as_bytes().len();
    compute_bytes(bytes, || collection.logged_key(document, pattern)).await
}

impl Stamp {
    /// What the statements leave behind in the partition of the document that they change.
    fn writes(&self, partition: PartitionId, kind: OpKind, fields: &OplogFields<'_>) -> Vec<Write> {
        let (old, new) = fields.documents;
        let change = RecordedChange {
            kind,
            old,
            new,
            document_key: Some(fields.document_key),
            wall_ms: fields.wall_ms,
            term: storage().term(),
            is_inconsistent: false,
        };
        record_writes(&self.collections, partition, &self.session, &change)
    }
}

/// The fields of an entry.
struct OplogFields<'a> {
    record: Option<i64>,
    documents: (Option<&'a RawDocument>, Option<&'a RawDocument>),
    document_key: &'a RawDocument,
    update: Option<&'a Update>,
    from_migrate: bool,
    wall_ms: i64,
}

/// The entry of a change of a document: of an update a diff where there is a short one, otherwise
/// the whole new document. Where the collection keeps images, it has the document as it was before,
/// or that is in a no-op before it.
async fn entry(
    collection: &Collection,
    fields: &OplogFields<'_>,
    (stamp, form): (Option<&Stamp>, Form),
) -> Result<(OpKind, Entry)> {
    let event = |kind, o| OpEvent {
        kind,
        ns: collection.ns.as_str(),
        uuid: Some(collection.uuid),
        o,
        o2: Some(fields.document_key),
        from_migrate: fields.from_migrate,
        wall_ms: fields.wall_ms,
        session: stamp.map(|stamp| &stamp.session),
        record: fields.record,
        form: oplog_format(),
    };
    let (old, new) = match fields.documents {
        (None, Some(new)) => {
            let entry = entry_of(&event(OpKind::Insert, new), form, None).await?;
            return Ok((OpKind::Insert, entry));
        }
        (Some(old), new) => (old, new),
        (None, None) => unreachable!("a document is written or deleted"),
    };
    let image = collection.options.pre_and_post_images.then_some(old);
    let Some(new) = new else {
        if oplog_format() == OplogFormat::V44 {
            check_capped(collection, old, None)?;
        }
        let event = event(OpKind::Delete, fields.document_key);
        return Ok((OpKind::Delete, entry_of(&event, form, image).await?));
    };
    if oplog_format() == OplogFormat::V44 {
        check_capped(collection, old, Some(new))?;
        // MongoDB 4.4 fills in empty timestamps of documents that replace others, on each member
        // its own.
        check_v44_can_follow(
            has_empty_timestamp(new),
            "an empty timestamp in a document that is updated",
        )?;
        // It knows no differences either.
        let entry = entry_of(&event(OpKind::Update, new), form, None).await?;
        return Ok((OpKind::Update, entry));
    }
    let bytes = old.as_bytes().len() + new.as_bytes().len();
    let changes = compute_bytes(bytes, || match fields.update {
        Some(update) => update.diff(old, new),
        None => pinion_query::diff(old, new),
    });
    let changes = changes.await;
    let o = changes.as_deref().unwrap_or(new);
    let entry = entry_of(&event(OpKind::Update, o), form, image).await?;
    Ok((OpKind::Update, entry))
}

fn has_empty_timestamp(document: &RawDocument) -> bool {
    pinion_bson::elements(document).any(|(name, value)| {
        let is_empty =
            matches!(value, RawBsonRef::Timestamp(ts) if ts.time == 0 && ts.increment == 0);
        is_empty && name != "_id"
    })
}

/// Refuses what MongoDB 4.4's members do not apply to a capped collection.
fn check_capped(
    collection: &Collection,
    old: &RawDocument,
    new: Option<&RawDocument>,
) -> Result<()> {
    if collection.options.capped.is_none() {
        return Ok(());
    }
    let Some(new) = new else {
        let what = format!("cannot remove from a capped collection: {}", collection.ns);
        return Err(Error::new(ErrorCode::ILLEGAL_OPERATION, what));
    };
    let (old, new) = (old.as_bytes().len(), new.as_bytes().len());
    if old == new {
        return Ok(());
    }
    let what =
        format!("Cannot change the size of a document in a capped collection: {old} != {new}");
    Err(Error::new(
        ErrorCode::CANNOT_GROW_DOCUMENT_IN_CAPPED_NAMESPACE,
        what,
    ))
}

/// Shows a write to this core's observers and makes its entry, on a compute thread where that
/// copies much.
async fn entry_of(event: &OpEvent<'_>, form: Form, image: Option<&RawDocument>) -> Result<Entry> {
    pinion_runtime::core_local::<Observers>().show(event)?;
    let bytes = event.o.as_bytes().len() + image.map_or(0, |image| image.as_bytes().len());
    let encode = || match form {
        Form::Entry => encode_entry_with_image(event, image),
        Form::Operation => encode_operation(event, image),
    };
    let entry = compute_bytes(bytes, encode).await;
    let image = entry.image.as_ref().map_or(0, Vec::len);
    let size = entry.bytes.len().max(image);
    if size > MAX_LOGGED_BYTES {
        return Err(Error::new(
            ErrorCode::BSON_OBJECT_TOO_LARGE,
            format!(
                "the oplog entry of a write to {} would have {size} bytes, and may have {MAX_LOGGED_BYTES}",
                event.ns
            ),
        ));
    }
    Ok(entry)
}

/// An insert of a document with this key, as observers see it and as it is in the oplog.
pub(super) fn insert_event<'a>(
    collection: &'a Collection,
    (document, document_key): (&'a RawDocument, &'a RawDocument),
    record: Option<i64>,
    from_migrate: bool,
) -> OpEvent<'a> {
    OpEvent {
        kind: OpKind::Insert,
        ns: collection.ns.as_str(),
        uuid: Some(collection.uuid),
        o: document,
        o2: Some(document_key),
        from_migrate,
        wall_ms: pinion_runtime::wall_ms(),
        session: None,
        record,
        form: oplog_format(),
    }
}
