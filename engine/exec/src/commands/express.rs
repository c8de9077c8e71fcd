//! A `find` of one document by its `_id`, the commonest command: it is read without a plan, parts
//! or a cursor, and the next one like it is not even parsed.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument, RawElem, raw_elements};
use pinion_catalog::{GateAccess, id_key, partition_of, stored_document};
use pinion_clock::Timestamp;
use pinion_runtime::call_on;
use pinion_service::fail_points::fail_points;
use pinion_service::interrupt::interruptible;
use pinion_service::login::is_user_current;
use pinion_service::metrics::{OpClass, metrics};
use pinion_service::profile_settings::profiles;
use pinion_service::session_table::session_table;
use pinion_storage::{Key, Partition, ReadAt, TreeId, storage};
use pinion_wire::idl::{Lsid, Namespace, ReadConcernLevel};
use pinion_wire::{
    Attempt, ClientInfo, Handler, HandlerFuture, Invocation, LogicalOp, Pattern, Repeat,
    Repeatable, Reply, Result,
};

use super::cursors::{Left, append_batch, append_cursor};
use crate::acquire::{
    AcquiredCollection, Peek, PrepareConflictBehavior, ReadSource, acquire_viewed, peek, try_pass,
};
use crate::concern::default_concerns;
use crate::limits::LARGE_BATCH_BYTES;
use crate::options::{PlantedFault, node_options};
use crate::placement::{self, Ownership, SentVersions};
use crate::read::{LeafReport, existing_trees, read_at};
use crate::topology::{is_member, is_writable};
use crate::tree_uses::tree_metrics;

/// Generic arguments that such a command may have. They have been read before.
const GENERIC: [&[u8]; 13] = [
    b"$db",
    b"lsid",
    b"$clusterTime",
    b"$readPreference",
    b"readConcern",
    b"maxTimeMS",
    b"maxTimeMSOpOnly",
    b"comment",
    b"apiVersion",
    // Of a router.
    b"shardVersion",
    b"databaseVersion",
    b"$configTime",
    b"$topologyTime",
];

/// What the reply has beside document and namespace: `cursor`, `firstBatch`, `id`, `ns`, `ok`.
const REPLY_FRAME_BYTES: usize = 128;

/// What such a command asks for.
pub(super) struct Express<'a> {
    ns: Namespace,
    key: Key,
    /// Where the body has the `_id`: the filter, and its only element. `None` for a command that
    /// repeats another.
    asked: Option<(&'a RawDocument, RawElem<'a>)>,
}

/// Reads the command, if it is one of these: an equality on `_id` alone, and no option that asks
/// for more than the document as it is stored. Every other command, also one with a mistake, is for
/// the general reader, whose answer would be the same.
pub(super) fn parse<'a>(body: &'a RawDocument, db: &str) -> Option<Express<'a>> {
    let mut ns = None;
    let mut asked = None;
    // A field that is there twice is a mistake.
    let mut seen = 0u32;
    let mut first = |field: u32| {
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
                asked = Some((filter, id_of(filter)?));
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
    let (filter, (elem, key)) = asked?;
    Some(Express {
        ns: ns?,
        key,
        asked: Some((filter, elem)),
    })
}

/// The `_id` that a filter asks for and nothing else, of a type that says nothing but itself; and
/// the key it makes.
fn id_of(filter: &RawDocument) -> Option<(RawElem<'_>, Key)> {
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
    (plain && elements.next().is_none()).then(|| (elem, id_key(value)))
}

fn integer(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(v) => Some(v.into()),
        RawBsonRef::Int64(v) => Some(v),
        _ => None,
    }
}

/// What became of such a command.
pub(super) enum Ran {
    Replied(Reply),
    /// The documents are not read as they are stored, or not as they are now.
    NotPlain(AcquiredCollection),
}

/// Reads the document.
pub(super) async fn run(cmd: &Invocation, express: Express<'_>) -> Result<Ran> {
    let metrics = &metrics();
    let Express { ns, key, asked } = express;
    metrics.counters.query.inc();
    let acquired = acquire_viewed(&cmd.ctx, ns, None).await?;
    let at = match acquired.source() {
        ReadSource::Newest(PrepareConflictBehavior::Enforce) => ReadAt::Newest,
        ReadSource::Newest(PrepareConflictBehavior::Ignore) => ReadAt::NewestDecided,
        _ => return Ok(Ran::NotPlain(acquired)),
    };
    if !acquired.is_plain() {
        return Ok(Ran::NotPlain(acquired));
    }
    let mut found = None;
    if let Some(collection) = acquired.collection() {
        tree_metrics().record_index(collection.tree(), existing_trees);
        let read = read_at(collection.tree(), partition_of(collection, &key), key, at);
        found = owned(acquired.ownership(), interruptible(&cmd.ctx, read).await??)?;
    }
    let work = cmd.ctx.work();
    work.left_cursor(0);
    work.planned(Arc::new(LeafReport("IDHACK")));
    if found.is_some() {
        work.examined(1, 1);
        work.returned(1);
    }
    let ns = acquired.ns();
    let mut out = empty_reply(found.as_ref(), ns);
    let documents = found.as_slice();
    append_batch(
        &mut out,
        "firstBatch",
        documents,
        Left::nothing(ns.as_str()),
    )
    .await;
    if let Some((filter, id)) = asked
        && cmd.ctx.read_concern.level != Some(ReadConcernLevel::Linearizable)
        && let Some(pattern) = Pattern::around(&cmd.message, filter, &id)
    {
        let concern = cmd.ctx.args.read_concern.unwrap_or_default();
        let find = FindById {
            lsid: cmd.ctx.args.lsid,
            has_level: concern.level.is_some(),
            after: concern.after_cluster_time,
            sent: placement::sent_for(&cmd.ctx, acquired.ns()),
            is_filtered: placement::is_filtered(&cmd.ctx),
            client: cmd.ctx.client.clone(),
            user_generation: cmd.ctx.client.user_generation(),
            ns: acquired.into_ns(),
        };
        let repeat = Box::new(RepeatedFind(Rc::new(find)));
        out.repeatable(Repeatable { pattern, repeat });
    }
    Ok(Ran::Replied(out))
}

/// The document, unless it is one that the shard does not own.
fn owned(ownership: Option<&Arc<dyn Ownership>>, found: Option<Bytes>) -> Result<Option<Bytes>> {
    let (Some(ownership), Some(document)) = (ownership, &found) else {
        return Ok(found);
    };
    if ownership.owns_all() || node_options().planted_fault == PlantedFault::FilterSkippedById {
        return Ok(found);
    }
    let is_owned = ownership.owns_document(stored_document(document))?;
    Ok(found.filter(|_| is_owned))
}

/// A reply with room for the document that was found, and the counters of its find.
fn empty_reply(found: Option<&Bytes>, ns: &Namespace) -> Reply {
    let metrics = metrics();
    let counters = &metrics.counters;
    counters.finds_by_id.inc();
    if found.is_some() {
        counters.keys_examined.inc();
        counters.docs_examined.inc();
        counters.documents_returned.inc();
    }
    let document_bytes = found.map_or(0, Bytes::len);
    Reply::with_capacity(document_bytes + ns.as_str().len() + REPLY_FRAME_BYTES)
}

/// What all finds by `_id` share that repeat one another.
#[derive(Debug)]
struct FindById {
    ns: Namespace,
    lsid: Option<Lsid>,
    /// Whether the message names a level. If it does not, it has the default, which may change.
    has_level: bool,
    /// `afterClusterTime`.
    after: Option<Timestamp>,
    /// The versions that a router sent.
    sent: Option<SentVersions>,
    /// Whether documents that the shard does not own are passed over.
    is_filtered: bool,
    /// The connection, and which user it was that sent the first one.
    client: Arc<ClientInfo>,
    user_generation: u64,
}

impl FindById {
    /// Whether the newest version is what the message asks for, and is there without waiting.
    fn reads_newest(&self) -> bool {
        if self.after.is_some_and(|after| storage().visible() < after) {
            return false;
        }
        self.has_level || !is_member() || {
            let default = default_concerns().known_read_level();
            matches!(
                default,
                None | Some(ReadConcernLevel::Local | ReadConcernLevel::Available)
            )
        }
    }

    /// Whether the connection is that of the same user, who is as then.
    fn is_of_same_user(&self) -> bool {
        self.client.user_generation() == self.user_generation && is_user_current(&self.client)
    }

    /// What the shard owns of the collection, where documents may be others'.
    ///
    /// # Errors
    /// The versions that were sent are not those of the shard.
    fn ownership(&self) -> Result<Option<Arc<dyn Ownership>>> {
        let Some(sent) = self.sent else {
            return Ok(None);
        };
        sent.check_behind_gate(&self.ns)?;
        Ok(sent.ownership(&self.ns, None).filter(|_| self.is_filtered))
    }

    /// Counts the find, and answers it.
    fn finish(
        &self,
        tree: Option<TreeId>,
        found: Option<&Bytes>,
        started_ns: u64,
    ) -> pinion_wire::Ran {
        let metrics = &metrics();
        metrics.counters.query.inc();
        if let Some(tree) = tree {
            tree_metrics().record_index(tree, existing_trees);
        }
        let mut reply = empty_reply(found, &self.ns);
        let documents = found.map(std::slice::from_ref).unwrap_or_default();
        append_cursor(
            &mut reply,
            "firstBatch",
            documents,
            Left::nothing(self.ns.as_str()),
        );
        let top = Some((LogicalOp::Query, self.ns.as_str()));
        let ended_ns = super::finished(metrics, OpClass::Read, top, started_ns);
        pinion_wire::Ran { reply, ended_ns }
    }
}

/// Such a command, to be run again with another `_id`.
#[derive(Debug)]
struct RepeatedFind(Rc<FindById>);

impl RepeatedFind {
    fn attempt(&self, id: RawBsonRef<'_>, started_ns: u64) -> Option<Attempt> {
        let find = &self.0;
        // The message says what it said when a node that accepts writes answered it, and such a
        // node answers it again.
        if profiles().borrow().is_on() || !is_writable() || fail_points().any_is_on() {
            return None;
        }
        if !find.reads_newest() || !find.is_of_same_user() {
            return None;
        }
        let seen = peek(&find.ns, GateAccess::Read, |collection| {
            let key = id_key(id);
            (collection.tree(), partition_of(collection, &key), key)
        });
        let place = match seen {
            Peek::Closed | Peek::NotPlain => return None,
            Peek::Absent => None,
            Peek::Found(place) => Some(place),
        };
        // Nothing is waited for since the gate was found open.
        let ownership = find.ownership().ok()?;
        if let Some(lsid) = &find.lsid {
            session_table().touch(lsid, started_ns).ok()?;
        }
        let Some((tree, partition, key)) = place else {
            return Some(Attempt::Ran(find.finish(None, None, started_ns)));
        };
        let here = storage();
        if let Some(partition) = here.partition(partition) {
            let found = found_now(&partition, tree, &key)?;
            let found = owned(ownership.as_ref(), found).ok()?;
            let ran = find.finish(Some(tree), found.as_ref(), started_ns);
            return Some(Attempt::Ran(ran));
        }
        let pass = try_pass(&find.ns, GateAccess::Read)?;
        let (owner, find) = (here.owner(partition), find.clone());
        Some(Attempt::Asked(Box::pin(async move {
            let found = call_on(owner, move || {
                let partition = storage().partition(partition).expect("asked its owner");
                found_now(&partition, tree, &key)
            })
            .await?;
            let found = owned(ownership.as_ref(), found).ok()?;
            drop(pass);
            Some(find.finish(Some(tree), found.as_ref(), started_ns))
        })))
    }
}

/// The newest version of a document of this core; `None` where that would have to wait, or fails,
/// or where the reply would be built on a compute thread.
fn found_now(partition: &Partition, tree: TreeId, key: &[u8]) -> Option<Option<Bytes>> {
    let read = partition.try_get(tree, key, ReadAt::Newest)?.ok()?;
    let found = read.map(|read| read.value);
    let is_large = |value: &Bytes| value.len() > LARGE_BATCH_BYTES;
    (!found.as_ref().is_some_and(is_large)).then_some(found)
}

impl Repeat for RepeatedFind {
    fn run_now(&self, id: RawBsonRef<'_>, started_ns: u64) -> Attempt {
        self.attempt(id, started_ns).unwrap_or(Attempt::Not)
    }

    fn run(&self, id: RawBsonRef<'_>, invocation: Invocation) -> HandlerFuture {
        let (ns, key) = (self.0.ns.clone(), id_key(id));
        let again: Handler = Rc::new(move |cmd| {
            let (ns, key, asked) = (ns.clone(), key.clone(), None);
            Box::pin(async move {
                match run(&cmd, Express { ns, key, asked }).await? {
                    Ran::Replied(reply) => Ok(reply),
                    Ran::NotPlain(acquired) => super::find::find_behind(&cmd, acquired).await,
                }
            })
        });
        Box::pin(super::run(invocation, again))
    }
}
