//! A database copied from its primary shard: the definitions of all that is in it, and the
//! documents of what is not sharded.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, get, rawdoc};
use pinion_catalog::{
    CollectionOptions, SYSTEM_VIEWS, Uuid, core_catalog, create_collection, is_replicated,
};
use pinion_exec::acquire::acquire_write;
use pinion_exec::write::{
    BatchOutcome, InsertOptions, Validation, insert_documents, prepare_for_insert,
};
use pinion_query::BUCKETS_PREFIX;
use pinion_runtime::{Queue, now, spawn};
use pinion_sharding_protocol::{ConnectionString, ShardId};
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{CommandSpec, Error, ErrorCode, OpContext, Result, interruption};

use super::cloning::Cloning;
use super::facts::{self, is_empty};
use super::leadership::Leadership;
use super::participants;
use super::perform::make_indexes;
use crate::config_servers::bson_timestamp;
use crate::limits::CLONE_BATCH;
use crate::local::wait_majority;
use crate::part::{Membership, part};
use crate::remote_cursor::RemoteCursor;
use crate::shard::membership;

static TASK: CommandSpec = CommandSpec::of_task("movePrimary");

fn context(db: &str) -> OpContext {
    OpContext::internal(0, &TASK, db, now().as_nanos())
}

/// A clone at work.
pub(super) struct Copy<'a> {
    pub leadership: &'a Leadership,
    pub cloning: &'a Cloning,
    pub db: &'a str,
}

/// What the donor lists.
struct Listed {
    ns: Namespace,
    kind: Kind,
    options: RawDocumentBuf,
    /// That of a collection.
    uuid: Option<Uuid>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Collection,
    View,
    TimeSeries,
}

impl Copy<'_> {
    /// Copies all that is in the database. A majority has it when this returns.
    ///
    /// # Errors
    /// `NamespaceExists` where there are other documents in the way; it is cancelled; the donor
    /// does not answer; those of a write.
    pub(super) async fn run(&self, from: &ShardId) -> Result<()> {
        let shard = membership(&part())?;
        let sharded = self.unless_cancelled(facts::all_collections_of(&shard, self.db));
        let sharded: BTreeMap<Namespace, Uuid> = (sharded.await??.into_iter())
            .map(|(ns, uuid)| (ns, Uuid(uuid.bytes())))
            .collect();
        let donor = self.unless_cancelled(donor(from)).await??;
        let listed = self.unless_cancelled(list(&donor, self.db)).await??;
        let mine = uuids_of(&listed, &sharded);
        let owned = self.unless_cancelled(owned_of(&shard, &sharded)).await??;
        clear_unowned(self.db, &sharded, &owned).await?;
        clear(self.db, &sharded, &mine, Foreign::Refused).await?;
        for collection in &listed {
            self.check()?;
            self.define(&donor, collection, &listed, &sharded).await?;
        }
        for collection in &listed {
            let is_copied = collection.kind == Kind::Collection
                && !sharded.contains_key(&collection.ns)
                && collection.ns.collection() != SYSTEM_VIEWS;
            if let Some(uuid) = collection.uuid.filter(|_| is_copied) {
                self.copy_documents(&donor, &collection.ns, uuid).await?;
            }
        }
        wait_majority().await
    }

    fn check(&self) -> Result<()> {
        match self.cloning.is_cancelled() || self.leadership.is_over() {
            true => Err(interruption(ErrorCode::INTERRUPTED)),
            false => Ok(()),
        }
    }

    /// Waits for another node. What changes this one is never given up in between.
    async fn unless_cancelled<F: Future>(&self, work: F) -> Result<F::Output> {
        let part = part();
        let is_over = || self.check().is_err().then_some(());
        let mut ended = pin!(part.core_0.definitions.until(is_over));
        let mut work = pin!(work);
        poll_fn(|cx| {
            if ended.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(interruption(ErrorCode::INTERRUPTED)));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Makes a collection, a view or a series, with its indexes.
    async fn define(
        &self,
        donor: &ConnectionString,
        listed: &Listed,
        all: &[Listed],
        sharded: &BTreeMap<Namespace, Uuid>,
    ) -> Result<()> {
        let ns = &listed.ns;
        let ctx = context(self.db);
        let options = CollectionOptions::from_document(&listed.options);
        let options = options.map_err(|bad| Error::bad_value(bad.0))?;
        match listed.kind {
            // That of the views comes with the first of them.
            Kind::Collection if ns.collection() == SYSTEM_VIEWS => Ok(()),
            // Buckets come with their series.
            Kind::Collection if ns.collection().starts_with(BUCKETS_PREFIX) => Ok(()),
            Kind::Collection => {
                let uuid = listed.uuid.ok_or_else(|| no_uuid(ns))?;
                let indexes = self.indexes(donor, listed).await?;
                let here = core_catalog().get(ns).map(|here| here.uuid);
                if sharded.contains_key(ns) && here == Some(uuid) {
                    return make_indexes(&ctx, ns, &indexes).await;
                }
                participants::create(&ctx, ns, uuid, options, &indexes).await
            }
            Kind::View => create_collection(&ctx, ns.clone(), options).await.map(drop),
            Kind::TimeSeries => {
                let buckets = format!("{BUCKETS_PREFIX}{}", ns.collection());
                let of = |other: &&Listed| other.ns.collection() == buckets;
                let buckets = all.iter().find(of).ok_or_else(|| no_uuid(ns))?;
                let uuid = buckets.uuid.ok_or_else(|| no_uuid(ns))?;
                let indexes = self.indexes(donor, buckets).await?;
                let here = core_catalog().get(&buckets.ns).map(|here| here.uuid);
                let is_whole = here == Some(uuid) && facts::series_here(&buckets.ns).is_some();
                if sharded.contains_key(&buckets.ns) && is_whole {
                    return make_indexes(&ctx, &buckets.ns, &indexes).await;
                }
                participants::create(&ctx, &buckets.ns, uuid, options, &indexes).await
            }
        }
    }

    /// The indexes of a collection but that on `_id`, as another one with its options is asked for
    /// them.
    async fn indexes(
        &self,
        donor: &ConnectionString,
        listed: &Listed,
    ) -> Result<Vec<RawDocumentBuf>> {
        let command = rawdoc! { "listIndexes": listed.ns.collection(), "$db": self.db };
        let listing = async { RemoteCursor::open(donor, &command).await?.all().await };
        let found = self.unless_cancelled(listing).await??;
        let has_collation = get(&listed.options, "collation").is_some();
        let is_other = |index: &RawDocumentBuf| {
            get(index, "name").and_then(|name| name.as_str()) != Some("_id_")
                && get(index, "clustered").is_none()
        };
        let others = found.into_iter().filter(is_other);
        Ok(others
            .map(|index| request_of(&index, has_collation))
            .collect())
    }

    /// Copies documents in the order in which the donor has them.
    async fn copy_documents(
        &self,
        donor: &ConnectionString,
        ns: &Namespace,
        uuid: Uuid,
    ) -> Result<()> {
        let command = read_of(ns);
        let opening = RemoteCursor::open(donor, &command);
        let mut cursor = self.unless_cancelled(opening).await??;
        while let Some(documents) = self.unless_cancelled(cursor.next()).await?? {
            if documents.is_empty() {
                continue;
            }
            let ns = ns.clone();
            // A task of its own: it comes to its end although this one is ended.
            let inserting = spawn(Queue::Background, insert(ns, uuid, documents));
            let inserted = inserting.await;
            inserted.unwrap_or_else(|_| Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN)))?;
            // The members of this set keep up with it.
            wait_majority().await?;
        }
        Ok(())
    }
}

fn no_uuid(ns: &Namespace) -> Error {
    Error::failed_to_parse(format!("the collection {ns} was listed without a UUID"))
}

/// An index as it is asked for. A listed one without a collation has the simple one, a request
/// without one that of the collection.
fn request_of(listed: &RawDocument, has_collation: bool) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append_all(listed);
    if has_collation && get(listed, "collation").is_none() {
        out.start_document("collation")
            .append("locale", "simple")
            .end();
    }
    out.finish()
}

/// A read of all documents, of a majority, and of no time before the message that asked for it.
fn read_of(ns: &Namespace) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("find", ns.collection())
        .append("batchSize", CLONE_BATCH)
        .append("noCursorTimeout", true);
    out.start_document("readConcern")
        .append("level", "majority")
        .append(
            "afterClusterTime",
            bson_timestamp(storage().vector_time().cluster()),
        )
        .end();
    out.append("$db", ns.db());
    out.finish()
}

async fn insert(ns: Namespace, uuid: Uuid, documents: Vec<RawDocumentBuf>) -> Result<()> {
    let ctx = context(ns.db());
    let mut prepared: Vec<(usize, Bytes)> = Vec::with_capacity(documents.len());
    for (at, document) in documents.iter().enumerate() {
        prepared.push((at, prepare_for_insert(document, true).await?));
        pinion_runtime::yield_if_due().await;
    }
    let acquired = acquire_write(&ctx, ns, Some(uuid.0)).await?;
    let options = InsertOptions {
        validation: Validation::Bypassed,
        from_migrate: true,
        ..InsertOptions::default()
    };
    let mut outcome = BatchOutcome::default();
    insert_documents(&ctx, acquired, prepared, options, &mut outcome).await?;
    match outcome.errors.into_iter().next() {
        Some(failed) => Err(failed.error),
        None => Ok(()),
    }
}

async fn donor(from: &ShardId) -> Result<ConnectionString> {
    let shard = membership(&part())?;
    let known = facts::shards(&shard).await?;
    let found = known.iter().find(|known| known.id == *from);
    let found = found.ok_or_else(|| {
        Error::new(
            ErrorCode::SHARD_NOT_FOUND,
            format!("Shard {from} not found"),
        )
    })?;
    ConnectionString::parse(&found.host)
}

/// What the donor has in a database, but for what each node keeps for itself.
async fn list(donor: &ConnectionString, db: &str) -> Result<Vec<Listed>> {
    let command = rawdoc! { "listCollections": 1, "$db": db };
    let found = RemoteCursor::open(donor, &command).await?.all().await?;
    let mut listed = Vec::with_capacity(found.len());
    for found in found {
        let text = |name| get(&found, name).and_then(|value| value.as_str());
        let malformed = || Error::failed_to_parse("a listed collection has no name or no options");
        let ns = Namespace::sought(db, text("name").ok_or_else(malformed)?)?;
        let options = get(&found, "options").and_then(|options| options.as_document());
        let uuid = get(&found, "info").and_then(|info| get(info.as_document()?, "uuid"));
        let kind = match text("type") {
            Some("view") => Kind::View,
            Some("timeseries") => Kind::TimeSeries,
            _ => Kind::Collection,
        };
        if is_replicated(&ns) {
            listed.push(Listed {
                ns,
                kind,
                options: options.ok_or_else(malformed)?.to_owned(),
                uuid: uuid.and_then(Uuid::from_bson),
            });
        }
    }
    Ok(listed)
}

/// The UUIDs of the unsharded collections of the donor.
fn uuids_of(listed: &[Listed], sharded: &BTreeMap<Namespace, Uuid>) -> BTreeSet<[u8; 16]> {
    let unsharded = listed
        .iter()
        .filter(|listed| !sharded.contains_key(&listed.ns));
    unsharded
        .filter_map(|listed| Some(listed.uuid?.0))
        .collect()
}

/// Which of these collections this shard has chunks of.
async fn owned_of(
    shard: &Membership,
    sharded: &BTreeMap<Namespace, Uuid>,
) -> Result<BTreeSet<Namespace>> {
    let mut owned = BTreeSet::new();
    for (ns, uuid) in sharded {
        let uuid = pinion_bson::Uuid::from_bytes(uuid.0);
        if facts::owners(shard, uuid).await?.contains(shard.shard()) {
            owned.insert(ns.clone());
        }
    }
    Ok(owned)
}

/// Removes the sharded collections of which this shard has no chunks. Since it had some, or was the
/// primary shard, their options and indexes may have changed.
async fn clear_unowned(
    db: &str,
    sharded: &BTreeMap<Namespace, Uuid>,
    owned: &BTreeSet<Namespace>,
) -> Result<()> {
    let ctx = context(db);
    for ns in sharded.keys().filter(|ns| !owned.contains(*ns)) {
        if core_catalog().get(ns).is_some() {
            pinion_catalog::drop_collection_unseen(&ctx, ns.clone()).await?;
        }
    }
    Ok(())
}

/// What becomes of documents that are no copies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Foreign {
    Refused,
    Kept,
}

/// Removes what an earlier attempt has copied, and what is empty. This shard is not the primary of
/// the database, so it has nothing unsharded of it otherwise.
async fn clear(
    db: &str,
    sharded: &BTreeMap<Namespace, Uuid>,
    copies: &BTreeSet<[u8; 16]>,
    foreign: Foreign,
) -> Result<()> {
    let catalog = core_catalog().current();
    let mut dropped = Vec::new();
    for found in catalog.collections_of(db) {
        let ns = &found.ns;
        let is_kept =
            sharded.contains_key(ns) || !is_replicated(ns) || ns.collection() == SYSTEM_VIEWS;
        if is_kept {
            continue;
        }
        if copies.contains(&found.uuid.0) || is_empty(ns).await? {
            dropped.push(ns.clone());
        } else if foreign == Foreign::Refused {
            return Err(Error::new(
                ErrorCode::NAMESPACE_EXISTS,
                format!(
                    "the collection {ns} is on this shard already, with documents and the UUID {}, which is none of the primary shard's. Manually drop it on this shard if it is from a previous incarnation of {db}",
                    found.uuid
                ),
            ));
        }
    }
    let ctx = context(db);
    for ns in dropped {
        pinion_catalog::drop_collection_unseen(&ctx, ns).await?;
    }
    let catalog = core_catalog().current();
    let views: Vec<Namespace> = catalog.views_of(db).map(|view| view.ns.clone()).collect();
    for view in views {
        // That of a series whose buckets are kept is kept with them.
        let buckets = Namespace::sought(db, &format!("{BUCKETS_PREFIX}{}", view.collection()))?;
        if core_catalog().get(&buckets).is_none() {
            pinion_catalog::drop_collection_unseen(&ctx, view).await?;
        }
    }
    Ok(())
}

/// Removes what was copied of a database that stays where it is. A majority has it when this
/// returns.
///
/// # Errors
/// The donor, or the config servers, do not answer; those of a write.
pub(super) async fn forget(db: &str, from: &ShardId, copies: &[pinion_bson::Uuid]) -> Result<()> {
    let shard = membership(&part())?;
    let sharded = facts::all_collections_of(&shard, db).await?;
    let sharded = sharded.into_iter();
    let sharded = sharded.map(|(ns, uuid)| (ns, Uuid(uuid.bytes()))).collect();
    let listed = list(&donor(from).await?, db).await?;
    let mut all = uuids_of(&listed, &sharded);
    all.extend(copies.iter().map(|uuid| uuid.bytes()));
    clear(db, &sharded, &all, Foreign::Kept).await?;
    wait_majority().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_asked_for_with_their_collation() {
        let check = |listed: RawDocumentBuf, has_collation, expected: RawDocumentBuf| {
            assert_eq!(request_of(&listed, has_collation), expected);
        };
        let plain = || rawdoc! { "v": 2, "key": { "a": 1 }, "name": "a_1" };
        let with = |locale| {
            let mut index = DocBuilder::new();
            index.append_all(&plain());
            index.append("collation", &*rawdoc! { "locale": locale });
            index.finish()
        };
        check(plain(), false, plain());
        check(plain(), true, with("simple"));
        check(with("de"), true, with("de"));
    }
}
