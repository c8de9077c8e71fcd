//! What an entry of one document writes: the document, and the entries of its collection's indexes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{
    ApplyMode, Clustering, Collection, OpKind, SessionStamp, Uuid, core_catalog, document_id,
    index_writes, partition_of, record_of, session_key, stored_document,
};
use pinion_clock::Timestamp;
use pinion_exec::capped::{RECORDS, capped_table};
use pinion_exec::session_refresh::{is_removal, removals_here};
use pinion_exec::statements::{
    RecordCollections, RecordedChange, RecordedEnd, TransactionStamp, is_image_of, record_writes,
    stamp_of,
};
use pinion_exec::write::update_context;
use pinion_keystring::Builder;
use pinion_query::Update;
use pinion_runtime::{Queue, core_id, submit_to};
use pinion_service::compute::compute_bytes;
use pinion_storage::{
    Direction, Expect, Key, KeyRange, Op, PartitionId, ReadAt, TreeId, Write, storage,
};
use pinion_wire::idl::i64_exact;
use pinion_wire::{Error, ErrorCode, Result};

use super::entry::{damaged, document, field, text};

/// The number of a record that an entry does not give: it is looked up, or allotted, where the
/// entry is applied. No record has it.
const UNKNOWN_RECORD: i64 = 0;

/// The document by whose `_id` an entry of one document is applied. It may have other fields: those
/// of the document, or of a shard key.
fn naming(entry: &RawDocument) -> Result<&RawDocument> {
    document(entry, if text(entry, "op")? == "u" { "o2" } else { "o" })
}

/// What an entry of one document names.
pub(super) struct Target {
    pub collection: Arc<Collection>,
    /// The number of its record, where the collection is ordered by these.
    pub record: Option<i64>,
    /// Its key in the collection's tree.
    pub key: Key,
}

impl Target {
    /// What the entry of one document names, in this core's catalog; `None` if the collection is
    /// gone and that may be.
    ///
    /// # Errors
    /// The entry does not say it, or names a collection that must be there and is not.
    pub(super) fn of(entry: &RawDocument, mode: ApplyMode) -> Result<Option<Target>> {
        let named = naming(entry)?;
        let Some((collection, record)) = collection_of(entry, mode)? else {
            return Ok(None);
        };
        let key = collection.document_key(document_id(named)?, record);
        Ok(Some(Target {
            collection,
            record,
            key,
        }))
    }

    /// The same, of an entry whose key is known, and whose collection is there.
    pub(super) fn with_key(entry: &RawDocument, key: Key, mode: ApplyMode) -> Result<Target> {
        let found = collection_of(entry, mode)?;
        let (collection, record) = found.expect("the catalog is as it was when the key was made");
        Ok(Target {
            collection,
            record,
            key,
        })
    }
}

impl Target {
    /// Whether the number of its record is to be found out.
    pub(super) fn is_unresolved(&self) -> bool {
        self.record == Some(UNKNOWN_RECORD)
    }

    /// The same with the number of its record: that of the document with the `_id`, or of an insert
    /// the next one. Call it on the owner, when what comes before the entry is applied. `None`
    /// where the document is not there.
    ///
    /// # Errors
    /// Those of a read.
    pub(super) async fn resolved(self, entry: &RawDocument) -> Result<Option<Target>> {
        let op = text(entry, "op")?;
        let id = document_id(naming(entry)?)?;
        let record = match record_with_id(&self.collection, id).await? {
            Some(record) => record,
            None if op == "i" => {
                let capped = capped_table().of(self.collection.tree());
                capped.next_record(&self.collection).await?
            }
            None => return Ok(None),
        };
        Ok(Some(Target {
            key: self.collection.document_key(id, Some(record)),
            record: Some(record),
            collection: self.collection,
        }))
    }
}

/// The number of the record of the document with this `_id`, on the owner of the records.
async fn record_with_id(collection: &Collection, id: RawBsonRef<'_>) -> Result<Option<i64>> {
    let Some(index) = collection.id_index_beside_tree() else {
        return Ok(None);
    };
    let mut builder = Builder::new(index.spec.ordering);
    builder.append_as(id, index.spec.strings(0));
    let point = Key::from_slice(&builder.finish().bytes);
    let owned = storage().partition(RECORDS).expect("asked its owner");
    let range = KeyRange::prefix(&point);
    let mut cursor = owned.cursor(index.tree, range, Direction::Forward, ReadAt::Newest);
    let found = cursor
        .next()
        .await
        .map_err(pinion_catalog::from_read_error)?;
    // Behind the fields of an entry stands the key of its document.
    let record = |key: &[u8]| record_of(&key[pinion_catalog::prefix_len(index, key)?..]);
    Ok(found.and_then(|(key, _)| record(&key)))
}

/// The collection that an entry names, and the number of the record if the collection is ordered by
/// these.
fn collection_of(
    entry: &RawDocument,
    mode: ApplyMode,
) -> Result<Option<(Arc<Collection>, Option<i64>)>> {
    let uuid = field(entry, "ui")
        .and_then(Uuid::from_bson)
        .ok_or_else(|| damaged("an oplog entry has no ui"))?;
    let catalog = core_catalog().current();
    let collection = match catalog.by_uuid(uuid) {
        Some(collection) => collection.clone(),
        None if mode == ApplyMode::InitialSync => return Ok(None),
        None => {
            return Err(damaged(format!(
                "an oplog entry names the unknown collection {uuid}"
            )));
        }
    };
    let record = match collection.clustering {
        Clustering::Id => None,
        Clustering::Log => return Err(damaged("an oplog entry writes to the oplog")),
        Clustering::Record => match field(entry, "rid") {
            Some(RawBsonRef::Int64(record)) => Some(record),
            // MongoDB's members do not log it.
            _ => Some(UNKNOWN_RECORD),
        },
    };
    Ok(Some((collection, record)))
}

/// What an entry of one document writes, in the partitions of this core if it is the removal of a
/// session's records; `None` if it is passed over. Behind that of the document and its index
/// entries comes what a retryable statement leaves behind, whatever has become of its document.
/// `whole` is the entry that the operation is in.
///
/// # Errors
/// It cannot be applied to the document that is there, or there is none.
pub(super) async fn writes_of(
    operation: &RawDocument,
    whole: &RawDocument,
    target: &Target,
    mode: ApplyMode,
) -> Result<Option<Vec<Write>>> {
    if is_removal(operation, &target.collection) {
        let writes = removals_here(target.collection.tree(), &target.key).await?;
        return Ok((!writes.is_empty()).then_some(writes));
    }
    let change = change_of(operation, target, mode).await?;
    let Some(session) = stamp_of(operation, whole) else {
        return Ok(change.map(|change| change.writes));
    };
    let is_passed_over = change.is_none();
    let mut change = change.unwrap_or_default();
    let is_inconsistent = is_passed_over || mode == ApplyMode::InitialSync;
    let records = records_of(
        (operation, whole),
        &session,
        target,
        &change,
        is_inconsistent,
    )?;
    change.writes.extend(records);
    Ok((!change.writes.is_empty()).then_some(change.writes))
}

/// What a retryable statement leaves behind that has changed a document.
fn records_of(
    (operation, whole): (&RawDocument, &RawDocument),
    session: &SessionStamp,
    target: &Target,
    change: &Change,
    is_inconsistent: bool,
) -> Result<Vec<Write>> {
    let Some(collections) = RecordCollections::find() else {
        return Ok(Vec::new());
    };
    let kind = match text(operation, "op")? {
        "i" => OpKind::Insert,
        "u" => OpKind::Update,
        _ => OpKind::Delete,
    };
    let key_field = if kind == OpKind::Delete { "o" } else { "o2" };
    let change = RecordedChange {
        kind,
        // MongoDB's members may log none of an insert.
        document_key: document(operation, key_field).ok(),
        old: change.old.as_deref().map(stored_document),
        new: change.new.as_deref().map(stored_document),
        wall_ms: wall_of(whole)?,
        term: field(whole, "t").and_then(i64_exact).unwrap_or(-1),
        is_inconsistent,
    };
    let partition = partition_of(&target.collection, &target.key);
    Ok(record_writes(&collections, partition, session, &change))
}

/// What records that the transaction of an entry is committed; nothing where there is no record of
/// any.
///
/// # Errors
/// The entry is damaged.
pub(super) fn commit_write(entry: &RawDocument) -> Result<Vec<Write>> {
    match TransactionStamp::of(entry) {
        Some(stamp) => record_write(entry, stamp, RecordedEnd::Committed),
        None => Ok(Vec::new()),
    }
}

/// What records what an entry makes of a transaction; nothing where there is no record of any.
///
/// # Errors
/// The entry is damaged.
pub(super) fn record_write(
    entry: &RawDocument,
    stamp: TransactionStamp,
    end: RecordedEnd,
) -> Result<Vec<Write>> {
    let Some(found) = RecordCollections::find() else {
        return Ok(Vec::new());
    };
    let term = field(entry, "t").and_then(i64_exact).unwrap_or(-1);
    let wall_ms = wall_of(entry)?;
    Ok(vec![stamp.write(&found.records, end, wall_ms, term)])
}

/// Documents as the operations before have left them, of those that take place together: `None`
/// where one is gone.
#[derive(Default)]
pub(super) struct Before(BTreeMap<(TreeId, Key), Option<Bytes>>);

/// What an operation writes of a transaction whose operations are all placed together; `whole` is
/// the entry that it is in.
///
/// # Errors
/// It cannot be applied to the document that is there, or there is none.
pub(super) async fn prepared_change(
    (operation, whole): (&RawDocument, &RawDocument),
    target: &Target,
    mode: ApplyMode,
    before: &mut Before,
) -> Result<Vec<Write>> {
    let place = (target.collection.tree(), target.key.clone());
    let known = before.0.get(&place).cloned();
    let change = change_over(operation, target, mode, known).await?;
    let is_passed_over = change.is_none();
    let mut change = change.unwrap_or_default();
    if let Some(session) = stamp_of(operation, whole) {
        // No other write has changed what is prepared, so the documents are those that the primary
        // had.
        let mut records = records_of(
            (operation, whole),
            &session,
            target,
            &change,
            is_passed_over,
        )?;
        if mode == ApplyMode::InitialSync
            && let Some(images) = image_in_base(&session, whole, target).await?
        {
            records.retain(|write| write.tree != images);
        }
        change.writes.extend(records);
    }
    if !is_passed_over {
        before.0.insert(place, change.new);
    }
    Ok(change.writes)
}

/// Where the image of a statement lies, if it is there: what was copied from another member may
/// have the commit, whose entry is yet to come, and what the document was before is known from
/// there alone. `whole` is the entry that prepares.
async fn image_in_base(
    session: &SessionStamp,
    whole: &RawDocument,
    target: &Target,
) -> Result<Option<TreeId>> {
    let images = RecordCollections::find().and_then(|found| found.images);
    let (Some(images), Some(_)) = (images, session.image) else {
        return Ok(None);
    };
    let partition = partition_of(&target.collection, &target.key);
    let found = stored(&images, partition, &session_key(&session.lsid)).await?;
    let prepared = match field(whole, "ts") {
        Some(RawBsonRef::Timestamp(ts)) => Timestamp::new(ts.time, ts.increment),
        _ => return Err(damaged("an oplog entry has no ts")),
    };
    let is_of_session = |found: &Bytes| is_image_of(stored_document(found), session, prepared);
    Ok(found.filter(is_of_session).map(|_| images.tree()))
}

fn wall_of(entry: &RawDocument) -> Result<i64> {
    match field(entry, "wall") {
        Some(RawBsonRef::DateTime(wall)) => Ok(wall.timestamp_millis()),
        _ => Err(damaged("an oplog entry has no wall")),
    }
}

/// What becomes of a document, and what is written for that.
#[derive(Default)]
struct Change {
    old: Option<Bytes>,
    new: Option<Bytes>,
    writes: Vec<Write>,
}

async fn change_of(
    entry: &RawDocument,
    target: &Target,
    mode: ApplyMode,
) -> Result<Option<Change>> {
    change_over(entry, target, mode, None).await
}

/// The change of a document that is stored, or known to be like this.
async fn change_over(
    entry: &RawDocument,
    target: &Target,
    mode: ApplyMode,
    known: Option<Option<Bytes>>,
) -> Result<Option<Change>> {
    let (op, o) = (text(entry, "op")?, document(entry, "o")?);
    let Target {
        collection,
        record,
        key,
    } = target;
    let partition = partition_of(collection, key);
    let old = match (op, mode, known) {
        (.., Some(known)) => known,
        // Nothing is there before an insert: the base ends where replay begins.
        ("i", ApplyMode::Recovery, None) => None,
        // What is there may be put over unseen where no index has entries of it.
        ("i", _, None) if collection.indexes.is_empty() => None,
        _ => stored(collection, partition, key).await?,
    };
    let new = match (op, &old) {
        ("d", None) => return Ok(None),
        ("d", Some(_)) => None,
        ("i", _) => Some(Bytes::copy_from_slice(o.as_bytes())),
        (_, Some(old)) => Some(updated(old, o, mode).await?),
        (_, None) if mode == ApplyMode::InitialSync => return Ok(None),
        (_, None) => {
            return Err(Error::new(
                ErrorCode::UPDATE_OPERATION_FAILED,
                format!(
                    "Failed to apply operation: {}: the document to update is not there",
                    pinion_query::document_text(entry)
                ),
            ));
        }
    };
    let bytes = [&old, &new].into_iter().flatten().map(Bytes::len).sum();
    let hash = storage().partition_hash();
    let made = || {
        let old = old.as_ref().map(|bytes| stored_document(bytes));
        let new = new.as_ref().map(|bytes| stored_document(bytes));
        index_writes(collection, partition, hash, *record, old, new, false)
    };
    let made = compute_bytes(bytes, made).await?;
    let mut writes = vec![Write {
        partition,
        tree: collection.tree(),
        key: key.clone(),
        op: new.clone().map_or(Op::Delete, Op::Put),
        expect: Expect::Any,
    }];
    writes.extend(made.writes);
    Ok(Some(Change { old, new, writes }))
}

/// The document after an update: by a difference, by operators, or as a whole.
async fn updated(old: &Bytes, o: &RawDocument, mode: ApplyMode) -> Result<Bytes> {
    let apply = || {
        if is_whole(o) {
            return Ok(Bytes::copy_from_slice(o.as_bytes()));
        }
        if let (Some(RawBsonRef::Int32(2)), Some(RawBsonRef::Document(diff))) =
            (field(o, "$v"), field(o, "diff"))
        {
            let new = pinion_query::apply_diff(stored_document(old), diff)?;
            return Ok(Bytes::from(new.into_bytes()));
        }
        let mut names = pinion_bson::elements(o).map(|(name, _)| name);
        if names.any(|name| name.starts_with('$')) {
            return with_operators(old, o, mode);
        }
        Ok(Bytes::copy_from_slice(o.as_bytes()))
    };
    compute_bytes(old.len() + o.as_bytes().len(), apply).await
}

fn with_operators(old: &Bytes, o: &RawDocument, mode: ApplyMode) -> Result<Bytes> {
    let mut new = old.clone();
    let whole = change(&mut new, o);
    match whole {
        // The document is newer than the entry: what has no place in it was replaced later.
        Err(error)
            if error.code == ErrorCode::PATH_NOT_VIABLE && mode == ApplyMode::InitialSync =>
        {
            for (name, fields) in pinion_bson::elements(o) {
                let RawBsonRef::Document(fields) = fields else {
                    continue;
                };
                for (path, value) in pinion_bson::elements(fields) {
                    let mut one = DocBuilder::new();
                    one.start_document(name).append_raw(path, value);
                    one.end();
                    match change(&mut new, &one.finish()) {
                        Err(error) if error.code != ErrorCode::PATH_NOT_VIABLE => {
                            return Err(error);
                        }
                        _ => {}
                    }
                }
            }
        }
        whole => whole?,
    }
    Ok(new)
}

fn change(document: &mut Bytes, o: &RawDocument) -> Result<()> {
    let update = update_of(o)?;
    let context = update_context(&update, false, None);
    if let Some(new) = update.apply(stored_document(document), &context)? {
        *document = Bytes::from(new.into_bytes());
    }
    Ok(())
}

/// Whether an entry of an update has the whole document. Only its `_id` shows that: its other
/// fields may be called what those of a difference or operators are, and neither of these has an
/// `_id`.
fn is_whole(o: &RawDocument) -> bool {
    field(o, "_id").is_some()
}

/// What an entry of an update makes of the document: a difference, or a whole document; of old
/// dumps operators too.
///
/// # Errors
/// An update of a version that there is not.
pub(crate) fn update_of(o: &RawDocument) -> Result<Update> {
    if is_whole(o) {
        return Ok(Update::from_logged(o));
    }
    match (field(o, "$v"), field(o, "diff")) {
        (Some(RawBsonRef::Int32(2)), Some(RawBsonRef::Document(diff))) => {
            Ok(Update::from_diff(diff))
        }
        (Some(RawBsonRef::Int32(1)) | None, _) => {
            let mut operators = DocBuilder::new();
            for (name, value) in pinion_bson::elements(o).filter(|(name, _)| *name != "$v") {
                operators.append_raw(name, value);
            }
            Update::from_logged_operators(&operators.finish())
        }
        (Some(version), _) => Err(Error::new(
            ErrorCode(4_772_604),
            format!(
                "Unrecognized value for '$v' (Version) field: {}",
                pinion_query::value_text(version)
            ),
        )),
    }
}

/// What a write to a collection of views makes of a view: its `_id`, and its document unless it is
/// removed.
///
/// # Errors
/// The entry is damaged, or there is no view to update.
pub(super) async fn view_document(entry: &RawDocument) -> Result<(String, Option<RawDocumentBuf>)> {
    let (op, o) = (text(entry, "op")?, document(entry, "o")?);
    let RawBsonRef::String(id) = document_id(naming(entry)?)? else {
        return Err(damaged("the _id of a view is no text"));
    };
    let made = match op {
        "d" => None,
        "i" => Some(o.to_owned()),
        _ => {
            let view = pinion_wire::idl::Namespace::parse(id)?;
            let present = core_catalog().current().view(&view).cloned();
            let present = present.map(|view| Bytes::from(view.to_system_document().into_bytes()));
            let old = present.ok_or_else(|| damaged("an oplog entry updates an unknown view"))?;
            let new = updated(&old, o, ApplyMode::Secondary).await?;
            Some(stored_document(&new).to_owned())
        }
    };
    Ok((id.to_owned(), made))
}

/// The document with this key in the collection's tree, as it is now.
///
/// # Errors
/// Those of a read.
pub(crate) async fn stored(
    collection: &Arc<Collection>,
    partition: PartitionId,
    key: &[u8],
) -> Result<Option<Bytes>> {
    async fn get(partition: PartitionId, tree: TreeId, key: &[u8]) -> Result<Option<Bytes>> {
        let owned = storage().partition(partition).expect("asked its owner");
        let read = owned
            .get(tree, key, ReadAt::Newest)
            .await
            .map_err(pinion_catalog::from_read_error)?;
        Ok(read.map(|read| read.value))
    }
    let (owner, tree) = (storage().owner(partition), collection.tree());
    if owner == core_id() {
        return get(partition, tree, key).await;
    }
    let key = key.to_vec();
    submit_to(owner, Queue::Foreground, move || async move {
        get(partition, tree, &key).await
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawdoc};

    #[track_caller]
    fn check(
        old: RawDocumentBuf,
        o: RawDocumentBuf,
        expected: std::result::Result<RawDocumentBuf, i32>,
    ) {
        let update = update_of(&o);
        let context = pinion_query::UpdateContext {
            now_ms: 0,
            timestamp: pinion_bson::Timestamp {
                time: 1,
                increment: 1,
            },
            insert: false,
            position: None,
        };
        let found = update.and_then(|update| update.apply(&old, &context));
        let found = found
            .map(|new| new.unwrap_or(old))
            .map_err(|error| error.code.0);
        assert_eq!(found, expected, "{o:?}");
    }

    #[test]
    fn updates_of_every_version() {
        let old = || rawdoc! { "_id": 1, "a": { "b": 1 }, "c": 2 };
        check(
            old(),
            rawdoc! { "$v": 2, "diff": { "u": { "c": 3 }, "sa": { "d": { "b": false } } } },
            Ok(rawdoc! { "_id": 1, "a": {}, "c": 3 }),
        );
        check(
            old(),
            rawdoc! { "$v": 1, "$set": { "a.b": 2 }, "$unset": { "c": true } },
            Ok(rawdoc! { "_id": 1, "a": { "b": 2 } }),
        );
        check(old(), rawdoc! { "$set": { "c": 2 } }, Ok(old()));
        check(old(), rawdoc! { "$v": 1, "$set": { "c.d": 1 } }, Err(28));
        check(old(), rawdoc! { "$v": 3 }, Err(4_772_604));
        for whole in [
            rawdoc! { "_id": 1, "$a": 1 },
            rawdoc! { "_id": 1, "$set": { "c": 1 } },
            rawdoc! { "_id": 1, "$v": 2, "diff": { "d": { "c": false } } },
        ] {
            check(old(), whole.clone(), Ok(whole));
        }
    }
}
