//! A `find` of one document by its `_id`, the commonest command: it is read without a plan, parts or a cursor.

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument, raw_elements};
use pinion_catalog::{
    Access, Collection, core_catalog, from_fatal, from_read_error, id_key, partition_of,
};
use pinion_runtime::Queue;
use pinion_storage::{Key, ReadAt, storage};
use pinion_wire::idl::Namespace;
use pinion_wire::{ErrorCode, Invocation, OpContext, Reply, Result};

use super::cursors::append_cursor;
use crate::interrupt::interruptible;
use crate::limits::MAX_SNAPSHOT_RETRIES;
use crate::read::existing_trees;
use crate::state::state;

/// Generic arguments that such a command may have. They have been read before.
const GENERIC: [&[u8]; 8] = [
    b"$db",
    b"lsid",
    b"$clusterTime",
    b"$readPreference",
    b"readConcern",
    b"maxTimeMS",
    b"comment",
    b"apiVersion",
];

/// What the reply has beside document and namespace: `cursor`, `firstBatch`, `id`, `ns`, `ok`.
const REPLY_FRAME_BYTES: usize = 128;

/// What such a command asks for.
pub(super) struct Express {
    ns: Namespace,
    key: Key,
}

/// Reads the command, if it is one of these: an equality on `_id` alone, and no option that asks for more than the document as
/// it is stored. Every other command, also one with a mistake, is for the general reader, whose answer would be the same.
pub(super) fn parse(body: &RawDocument, db: &str) -> Option<Express> {
    let mut ns = None;
    let mut key = None;
    // A field that is there twice is a mistake.
    let mut seen = 0u16;
    let mut first = |field: u16| {
        let new = seen & field == 0;
        seen |= field;
        new
    };
    for (at, elem) in raw_elements(body).enumerate() {
        if at == 0 {
            let RawBsonRef::String(collection) = elem.to_value()? else {
                return None;
            };
            ns = Some(Namespace::new(db, collection).ok()?);
            continue;
        }
        let fits = match elem.name {
            b"filter" => {
                let RawBsonRef::Document(filter) = elem.to_value()? else {
                    return None;
                };
                key = Some(key_of(filter)?);
                first(1)
            }
            b"limit" => integer(elem.to_value()?)? >= 0 && first(2),
            // A first batch of none makes a cursor.
            b"batchSize" => integer(elem.to_value()?)? >= 1 && first(4),
            b"singleBatch" => matches!(elem.to_value()?, RawBsonRef::Boolean(_)) && first(8),
            name => {
                let generic = GENERIC.iter().position(|generic| *generic == name)?;
                first(16 << generic)
            }
        };
        if !fits {
            return None;
        }
    }
    Some(Express { ns: ns?, key: key? })
}

/// The key of the document that a filter wants by an `_id` of a type that says nothing but itself.
fn key_of(filter: &RawDocument) -> Option<Key> {
    let mut elements = raw_elements(filter);
    let elem = elements.next().filter(|elem| elem.name == b"_id")?;
    let value = elem.to_value()?;
    let plain = matches!(
        value,
        RawBsonRef::String(_)
            | RawBsonRef::ObjectId(_)
            | RawBsonRef::Int32(_)
            | RawBsonRef::Int64(_)
            | RawBsonRef::Double(_)
            | RawBsonRef::Decimal128(_)
            | RawBsonRef::Binary(_)
            | RawBsonRef::DateTime(_)
            | RawBsonRef::Timestamp(_)
            | RawBsonRef::Boolean(_)
    );
    (plain && elements.next().is_none()).then(|| id_key(value))
}

fn integer(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(v) => Some(v.into()),
        RawBsonRef::Int64(v) => Some(v),
        _ => None,
    }
}

/// Reads the document.
pub(super) async fn run(cmd: &Invocation, express: Express) -> Result<Reply> {
    let metrics = &state().metrics;
    let counters = &metrics.counters;
    counters.query.inc();
    let Express { ns, key } = express;
    let catalog = core_catalog();
    let _pass = interruptible(&cmd.ctx, catalog.gates().enter(&ns, Access::Read)).await?;
    let mut found = None;
    if let Some(collection) = catalog.get(&ns) {
        metrics.record_index_use(collection.tree(), existing_trees);
        found = read(&cmd.ctx, &collection, key).await?;
    }
    if found.is_some() {
        counters.keys_examined.inc();
        counters.docs_examined.inc();
        counters.documents_returned.inc();
    }
    let document_bytes: usize = found.iter().map(Bytes::len).sum();
    let mut out = Reply::with_capacity(document_bytes + ns.as_str().len() + REPLY_FRAME_BYTES);
    append_cursor(&mut out, "firstBatch", found.as_slice(), 0, ns.as_str());
    Ok(out)
}

/// The document with this key, as of now.
async fn read(ctx: &OpContext, collection: &Collection, key: Key) -> Result<Option<Bytes>> {
    let tree = collection.tree();
    let partition = partition_of(collection, &key);
    let here = storage();
    let mut attempts = 0;
    loop {
        let at = interruptible(ctx, here.read_timestamp())
            .await?
            .map_err(from_fatal)?;
        let at = ReadAt::At(at);
        let found = match here.partition(partition) {
            Some(partition) => partition.get(tree, &key, at).await,
            None => {
                let (owner, key) = (here.owner(partition), key.clone());
                pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
                    let partition = storage().partition(partition).expect("asked its owner");
                    partition.get(tree, &key, at).await
                })
                .await
            }
        };
        match found.map_err(from_read_error) {
            Ok(found) => return Ok(found.map(|read| read.value)),
            // A checkpoint moved the base past the timestamp before it was read.
            Err(error)
                if error.code == ErrorCode::SNAPSHOT_TOO_OLD && attempts < MAX_SNAPSHOT_RETRIES =>
            {
                attempts += 1
            }
            Err(error) => return Err(error),
        }
    }
}
