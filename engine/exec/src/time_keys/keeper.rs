//! The task of core 0 that has the keys: it makes them on the primary, reads them on every member,
//! and gives them to all cores.

use std::cell::{Cell, RefCell};

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_catalog::stored_document;
use pinion_clock::{KEY_BYTES, Key, KeyId, KeyRing};
use pinion_query::Matcher;
use pinion_runtime::sync::Notify;
use pinion_runtime::{
    CoreId, Duration, JoinHandle, Queue, now, on_all_cores, sleep, spawn, submit_to, timeout,
};
use pinion_service::interrupt::interruptible;
use pinion_service::members::member_access;
use pinion_service::parking::parking;
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{CommandSpec, ErrorCode, OpContext, Result};

use super::TimeKeys;
use crate::acquire::acquire_read;
use crate::limits::{KEY_COMMIT_PATIENCE, KEY_LOOK_INTERVAL, KEY_PAUSE, MAX_TIME_KEYS};
use crate::parameters::parameters;
use crate::placement::cluster_node;
use crate::read::{ReadRequest, open};
use crate::time_keys::time_keys;
use crate::topology::{ReplicaSet, replica_set};
use crate::write::upsert;
use pinion_service::key_document::{KeyDocument, PURPOSE};

const DATABASE: &str = "admin";
const COLLECTION: &str = "system.keys";

/// What the task runs, in the place of a command.
static REFRESH: CommandSpec = CommandSpec::of_task("refreshTimeKeys");

/// The task. That of core 0 is the node's.
#[derive(Default)]
pub struct Keeper {
    is_stopping: Cell<bool>,
    /// There is something to be examined.
    due: Notify,
    /// What it does now.
    running: RefCell<Option<OpContext>>,
    task: RefCell<Option<JoinHandle<()>>>,
    /// The keys that every core knows, and those of them that it signs with.
    known: RefCell<Vec<KeyDocument>>,
    lasting: RefCell<Vec<KeyDocument>>,
}

/// Begins, where members have a key file. Called on core 0.
pub fn start() {
    if member_access().is_none() {
        return;
    }
    let task = spawn(Queue::Background, keep());
    *time_keys().keeper.task.borrow_mut() = Some(task);
}

/// Ends the task; when this returns it writes nothing any more. Called on core 0.
pub async fn stop() {
    let time_keys = time_keys();
    let keeper = &time_keys.keeper;
    keeper.is_stopping.set(true);
    if let Some(running) = &*keeper.running.borrow() {
        running.kill(ErrorCode::INTERRUPTED_AT_SHUTDOWN);
    }
    keeper.due.notify_one();
    let task = keeper.task.borrow_mut().take();
    if let Some(task) = task {
        // One that was dropped has ended too.
        let _ = task.await;
    }
}

/// Has the task look at once: a key is missing, or this node is something else in its set than
/// before.
pub async fn wake() {
    submit_to(CoreId(0), Queue::Background, || async {
        time_keys().keeper.due.notify_one();
    })
    .await;
}

async fn keep() {
    let time_keys = time_keys();
    let keeper = &time_keys.keeper;
    while !keeper.is_stopping.get() {
        let looked = look().await;
        let next = match looked {
            Ok(next) => next,
            Err(error) => {
                if !keeper.is_stopping.get() {
                    tracing::info!(target: "CONTROL", id = 7_300_030u64, ctx = "KeysCollectionManager", error = error.message, "The keys for cluster times could not be read or made; it is tried again");
                }
                KEY_COMMIT_PATIENCE
            }
        };
        let _ = timeout(next, keeper.due.notified()).await;
        // However many miss a key, it is not looked for without a pause.
        sleep(KEY_PAUSE).await;
    }
}

/// Checks the keys, and returns when to check again.
async fn look() -> Result<Duration> {
    let Some(set) = replica_set() else {
        return Ok(KEY_LOOK_INTERVAL);
    };
    if !set.view().state.is_readable() {
        return Ok(KEY_LOOK_INTERVAL);
    }
    let ctx = OpContext::internal(0, &REFRESH, DATABASE, now().as_nanos());
    let deadline = now() + KEY_COMMIT_PATIENCE;
    let ctx = ctx.with_deadline(Some(deadline.as_nanos()));
    let time_keys = time_keys();
    let keeper = &time_keys.keeper;
    *keeper.running.borrow_mut() = Some(ctx.clone());
    let looked = look_with(&ctx, &*set).await;
    *keeper.running.borrow_mut() = None;
    looked
}

async fn look_with(ctx: &OpContext, set: &dyn ReplicaSet) -> Result<Duration> {
    if let Some(documents) = cluster_node().and_then(|node| node.time_keys()) {
        let documents = interruptible(ctx, documents).await??;
        return take_clusters(ctx, &documents).await;
    }
    let keys = {
        // While the data directory is opened again there is nothing to be read. The reopening wakes
        // the task afterwards.
        let Some(_inside) = parking().enter() else {
            return Ok(KEY_LOOK_INTERVAL);
        };
        let keys = stored(ctx).await?;
        match set.view().writable && make_missing(ctx, &keys).await? {
            true => stored(ctx).await?,
            false => keys,
        }
    };
    let time_keys = time_keys();
    let keeper = &time_keys.keeper;
    if *keeper.known.borrow() != keys {
        give(&keys, TimeKeys::replace_known).await;
        keeper.known.replace(keys.clone());
    }
    if *keeper.lasting.borrow() != keys {
        // All that was read is at or below this.
        let seen = match set.view().writable {
            true => storage().last_allotted(),
            false => storage().visible(),
        };
        interruptible(ctx, set.wait_committed(seen)).await??;
        give(&keys, TimeKeys::replace_lasting).await;
        keeper.lasting.replace(keys);
    }
    Ok(until_next_expiry(&keeper.lasting.borrow()))
}

/// Takes over the keys of the cluster, which a majority of its config servers has. A shard makes
/// none, and what it was signed with before it was one still verifies.
async fn take_clusters(ctx: &OpContext, documents: &[RawDocumentBuf]) -> Result<Duration> {
    let parsed = documents
        .iter()
        .filter_map(|found| KeyDocument::parse(found));
    let keys: Vec<KeyDocument> = parsed.collect();
    let known = {
        let Some(_inside) = parking().enter() else {
            return Ok(KEY_LOOK_INTERVAL);
        };
        [stored(ctx).await?, keys.clone()].concat()
    };
    let time_keys = time_keys();
    let keeper = &time_keys.keeper;
    if *keeper.known.borrow() != known {
        give(&known, TimeKeys::replace_known).await;
        keeper.known.replace(known);
    }
    if *keeper.lasting.borrow() != keys {
        give(&keys, TimeKeys::replace_lasting).await;
        keeper.lasting.replace(keys);
    }
    Ok(until_next_expiry(&keeper.lasting.borrow()))
}

/// Gives keys to every core.
async fn give(keys: &[KeyDocument], replace: fn(&TimeKeys, KeyRing)) {
    let ring = ring_of(keys);
    on_all_cores(move |_| {
        let ring = ring.clone();
        async move { replace(&time_keys(), ring) }
    })
    .await;
}

fn ring_of(keys: &[KeyDocument]) -> KeyRing {
    let mut ring = KeyRing::new();
    for key in keys {
        ring.insert(key.id, key.key.clone(), key.expires_at);
    }
    ring
}

/// When the first of the keys that are valid now expires, the one after the next is to be made.
fn until_next_expiry(keys: &[KeyDocument]) -> Duration {
    let time = storage().cluster_time();
    let expiries = keys.iter().map(|key| key.expires_at);
    let next = expiries.filter(|expiry| *expiry > time).min();
    let secs = next.map(|next| u64::from(next.secs() - time.secs()));
    let until = secs.map_or(KEY_LOOK_INTERVAL, Duration::from_secs);
    until.clamp(Duration::from_secs(1), KEY_LOOK_INTERVAL)
}

/// The keys that are stored, the newest of them if they are more than there can be.
async fn stored(ctx: &OpContext) -> Result<Vec<KeyDocument>> {
    let acquired = acquire_read(ctx, Namespace::new(DATABASE, COLLECTION)?, None).await?;
    let Some(found) = acquired.collection() else {
        return Ok(Vec::new());
    };
    let matcher = Matcher::parse(&rawdoc! { "purpose": PURPOSE })?;
    let request = ReadRequest::new(acquired.target(found), matcher);
    let mut stream = open(ctx, acquired.source(), request, MAX_TIME_KEYS)
        .await?
        .stream;
    let mut keys = Vec::new();
    while let Some(document) = stream.next_wanted(ctx, MAX_TIME_KEYS).await? {
        keys.extend(KeyDocument::parse(stored_document(&document)));
        // They come in the order of their names, which are the times at which they were made.
        if keys.len() > MAX_TIME_KEYS {
            keys.remove(0);
        }
    }
    Ok(keys)
}

/// Makes the keys that are missing, and returns whether there were any.
async fn make_missing(ctx: &OpContext, keys: &[KeyDocument]) -> Result<bool> {
    let interval_secs = parameters().borrow().keys_rotation_secs;
    let time = storage().cluster_time();
    let missing = ring_of(keys).missing_keys(time, interval_secs);
    for (at, expires_at) in missing.iter().enumerate() {
        let mut key = [0; KEY_BYTES];
        pinion_runtime::os_random(&mut key);
        let made = KeyDocument {
            id: KeyId(time.as_u64() as i64 + at as i64),
            key: Key(key),
            expires_at: *expires_at,
        };
        let ns = Namespace::new(DATABASE, COLLECTION)?;
        upsert(ctx, ns, rawdoc! { "_id": made.id.0 }, &made.to_bson()).await?;
        tracing::info!(target: "CONTROL", id = 7_300_031u64, ctx = "KeysCollectionManager", keyId = made.id.0, expiresAt = %expires_at, "A key for cluster times was made");
    }
    Ok(!missing.is_empty())
}
