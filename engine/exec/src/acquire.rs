//! The one door to a collection: every command that reads or changes documents comes in here.
//!
//! What has to hold at each access is checked here and nowhere else, in this order: a write has its
//! ticket where the set lags, the operation is not interrupted, the namespace's gate admits it, the
//! node's state allows it, a write is of nothing that the node keeps for itself (`guard.rs`), the
//! versions that a router sent are those of the shard (`placement.rs`), the name is no view's
//! unless the caller can have one, the caller means the collection that has the name
//! (`collectionUUID`), and the collection is there. Filters and pipelines are parsed behind the
//! door, as what they mean depends on what the name stands for.

use std::sync::Arc;

use pinion_catalog::{
    AccessGuard, Catalog, ClosedBy, Collection, CollectionOptions, GateAccess, ResolvedView, Uuid,
    check_collection_uuid, check_not_scattered, check_not_view, core_catalog, ensure_collection,
    from_fatal, is_replicated,
};
use pinion_clock::{OpTime, Timestamp};
use pinion_collation::Collation;
use pinion_query::{Matcher, TimeSeries};
use pinion_service::interrupt::interruptible;
use pinion_storage::{UnitId, storage};
use pinion_wire::idl::{Namespace, ReadConcernLevel};
use pinion_wire::{Error, ErrorCode, GateKind, OpContext, Result};

use crate::access_collections::make_access_collection;
use crate::gate_entry::enter;
use crate::guard;
use crate::limits::NESTED_GATE_TIMEOUT;
use crate::open_transactions::{self, InUnit, Running};
use crate::placement::{self, Ownership, Reach};
use crate::replication::take_ticket;
use crate::sharded_view;
use crate::topology::{Intent, SetView, check_access, is_member, replica_set, set_view};

/// Which state of the node a read sees. A standalone serves every read concern that it accepts from
/// the newest state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadSource {
    /// Everything that was acknowledged before the read began.
    Newest(PrepareConflictBehavior),
    /// What a member that follows another has applied, with nothing missing before it.
    LastApplied(PrepareConflictBehavior),
    /// What a majority of the set holds.
    Majority(PrepareConflictBehavior),
    /// `atClusterTime`.
    At(Timestamp),
    /// The snapshot of a transaction, and what it has written.
    In(InUnit),
}

/// Which newer states a read may take while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewal {
    /// None: it promises the state that it began with.
    Never,
    /// What this node has applied.
    Applied,
    /// What a majority of the set holds.
    Committed,
}

/// What a read does that meets what a prepared transaction has written. Reads of a snapshot wait
/// for its outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrepareConflictBehavior {
    /// It waits for the outcome.
    Enforce,
    /// It reads what was there before.
    Ignore,
}

impl PrepareConflictBehavior {
    /// Source: replication document, "Prepare Conflicts".
    fn of_read(ctx: &OpContext) -> PrepareConflictBehavior {
        let concern = &ctx.read_concern;
        let promises = matches!(
            concern.level,
            Some(ReadConcernLevel::Linearizable | ReadConcernLevel::Snapshot)
        );
        match promises || concern.after_cluster_time.is_some() {
            true => PrepareConflictBehavior::Enforce,
            false => PrepareConflictBehavior::Ignore,
        }
    }
}

impl ReadSource {
    /// What an operation reads of a namespace.
    fn of(view: Option<&SetView>, ctx: &OpContext, ns: &Namespace, intent: Intent) -> ReadSource {
        // What a write looks for is what it changes.
        if intent == Intent::Write {
            return ReadSource::Newest(PrepareConflictBehavior::Enforce);
        }
        let prepare_conflicts = PrepareConflictBehavior::of_read(ctx);
        let Some(view) = view else {
            return ReadSource::Newest(prepare_conflicts);
        };
        // A member is alone with what is its own.
        if !is_replicated(ns) {
            return ReadSource::Newest(prepare_conflicts);
        }
        let concern = ctx.read_concern;
        match (concern.at_cluster_time, concern.level) {
            (Some(at), _) => ReadSource::At(at),
            (None, Some(ReadConcernLevel::Majority)) => ReadSource::Majority(prepare_conflicts),
            _ if view.writable => ReadSource::Newest(prepare_conflicts),
            _ => ReadSource::LastApplied(prepare_conflicts),
        }
    }

    /// The timestamp that a snapshot of this source has now.
    ///
    /// # Errors
    /// The operation is interrupted, storage has failed, or no commit point is known yet.
    pub async fn timestamp(self, ctx: &OpContext) -> Result<Timestamp> {
        match self {
            ReadSource::Newest(_) => interruptible(ctx, storage().read_timestamp())
                .await?
                .map_err(from_fatal),
            ReadSource::LastApplied(_) => Ok(storage().visible()),
            ReadSource::Majority(_) => committed(),
            ReadSource::At(at) | ReadSource::In(InUnit { at, .. }) => Ok(at),
        }
    }

    /// Which newer states a read of this source may take while it runs.
    pub(crate) fn renewal(self, ctx: &OpContext) -> Renewal {
        let level = ctx.read_concern.level;
        let promises = matches!(
            level,
            Some(ReadConcernLevel::Linearizable | ReadConcernLevel::Snapshot)
        );
        match self {
            _ if promises => Renewal::Never,
            ReadSource::Newest(_) | ReadSource::LastApplied(_) => Renewal::Applied,
            ReadSource::Majority(_) => Renewal::Committed,
            ReadSource::At(_) | ReadSource::In(_) => Renewal::Never,
        }
    }

    /// The time of the snapshot that it is promised.
    fn snapshot(self) -> Option<Timestamp> {
        match self {
            ReadSource::At(at) | ReadSource::In(InUnit { at, .. }) => Some(at),
            ReadSource::Newest(_) | ReadSource::LastApplied(_) | ReadSource::Majority(_) => None,
        }
    }

    /// The unit whose writes it sees beside that.
    pub(crate) fn unit(self) -> Option<UnitId> {
        match self {
            ReadSource::In(InUnit { unit, .. }) => Some(unit),
            _ => None,
        }
    }

    /// Whether it waits for the outcome of prepared transactions that it meets.
    pub(crate) fn prepare_conflicts(self) -> PrepareConflictBehavior {
        match self {
            ReadSource::Newest(prepare_conflicts)
            | ReadSource::LastApplied(prepare_conflicts)
            | ReadSource::Majority(prepare_conflicts) => prepare_conflicts,
            ReadSource::At(_) | ReadSource::In(_) => PrepareConflictBehavior::Enforce,
        }
    }
}

impl ReadSource {
    /// The version of the catalog that a read of a snapshot sees, before which nothing has to be
    /// checked: what was dropped, renamed or made since is there as it then was. None for other
    /// accesses, and where that version is not kept any more.
    fn catalog(self, intent: Intent) -> Option<Arc<Catalog>> {
        match self {
            ReadSource::At(at) | ReadSource::In(InUnit { at, .. }) if intent == Intent::Read => {
                core_catalog().at(at)
            }
            _ => None,
        }
    }

    /// The collection of that name in the version of the catalog that a snapshot sees. Where it is
    /// the same now, it is given as it is now: a transaction itself may have written arrays into
    /// its indexes.
    fn found_in(then: &Catalog, ns: &Namespace) -> Option<Arc<Collection>> {
        let found = then.get(ns)?;
        let current = core_catalog().current();
        let is_same = |now: &&Arc<Collection>| {
            now.ns == *ns && current.changed_at(now.number) == then.changed_at(now.number)
        };
        let now = current.by_number(found.number).filter(is_same);
        Some(now.unwrap_or(found).clone())
    }

    /// A collection as a read of this source may use it: without the indexes that were not ready by
    /// its snapshot, which lack what was written while they were built.
    ///
    /// # Errors
    /// `SnapshotUnavailable` for a snapshot of a time before the collection was there, or had its
    /// name.
    fn seen(self, collection: Option<Arc<Collection>>) -> Result<Option<Arc<Collection>>> {
        let Some(found) = collection else {
            return Ok(None);
        };
        // The snapshot is opened later, and is not older.
        let at = match self {
            // A transaction refuses what has changed since its snapshot.
            ReadSource::Newest(_) | ReadSource::In(_) => return Ok(Some(found)),
            ReadSource::LastApplied(_) => storage().visible(),
            ReadSource::Majority(_) => committed().unwrap_or(Timestamp::MIN),
            ReadSource::At(at) if at < found.visible_from => {
                return Err(Error::new(
                    ErrorCode::SNAPSHOT_UNAVAILABLE,
                    format!(
                        "Unable to read from a snapshot due to pending collection catalog changes; please retry the operation. Snapshot timestamp is {at}. Collection minimum is {}",
                        found.visible_from
                    ),
                ));
            }
            ReadSource::At(at) => at,
        };
        Ok(Some(found.seen_at(at)))
    }
}

/// The catalog at the time that an operation's read concern names, for what shows the catalog
/// itself.
///
/// # Errors
/// `SnapshotUnavailable` where that version is not kept any more; no commit point is known yet.
pub(crate) fn catalog_of(ctx: &OpContext) -> Result<Arc<Catalog>> {
    let catalog = core_catalog();
    let concern = &ctx.read_concern;
    let at = match (concern.at_cluster_time, concern.level) {
        _ if !is_member() => return Ok(catalog.current()),
        (Some(at), _) => at,
        (None, Some(ReadConcernLevel::Majority)) => committed()?,
        _ => return Ok(catalog.current()),
    };
    catalog.at(at).ok_or_else(|| {
        Error::new(
            ErrorCode::SNAPSHOT_UNAVAILABLE,
            format!("the catalog at {at} is not kept any more; please retry the operation"),
        )
    })
}

/// The commit point, as far as all of it can be read here.
pub(crate) fn committed() -> Result<Timestamp> {
    let set = replica_set();
    let point = set.map_or(OpTime::NULL, |set| set.commit_point());
    match point.is_null() {
        false => Ok(point.ts.min(storage().visible())),
        true => Err(Error::new(
            ErrorCode::READ_CONCERN_MAJORITY_NOT_AVAILABLE_YET,
            "Read concern majority reads are currently not possible.",
        )),
    }
}

/// What a command wants to reach.
#[derive(Clone, Debug)]
pub struct AcquisitionRequest {
    pub ns: Namespace,
    /// `collectionUUID`.
    pub uuid: Option<Uuid>,
    /// What the access does with documents, which says whether this node gives it.
    pub intent: Intent,
    /// What the gate has to admit.
    pub access: GateAccess,
    pub views: Views,
}

/// What a name means that is that of a view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Views {
    Refused,
    /// The collection under it, and the stages in front of it.
    Resolved,
    /// That of a series: the collection of its buckets. Others are refused.
    Series,
}

impl AcquisitionRequest {
    pub(crate) fn read(ns: Namespace, uuid: Option<[u8; 16]>) -> AcquisitionRequest {
        AcquisitionRequest {
            ns,
            uuid: uuid.map(Uuid),
            intent: Intent::Read,
            access: GateAccess::Read,
            views: Views::Refused,
        }
    }

    pub fn write(ns: Namespace, uuid: Option<[u8; 16]>) -> AcquisitionRequest {
        AcquisitionRequest {
            intent: Intent::Write,
            ..AcquisitionRequest::alone(ns, uuid)
        }
    }

    /// For a read that takes the gate as a write does.
    pub fn alone(ns: Namespace, uuid: Option<[u8; 16]>) -> AcquisitionRequest {
        AcquisitionRequest {
            access: GateAccess::Write,
            views: Views::Series,
            ..AcquisitionRequest::read(ns, uuid)
        }
    }

    /// Whether the caller can have what a view resolves to.
    fn takes(&self, view: &ResolvedView) -> bool {
        match self.views {
            Views::Refused => false,
            Views::Resolved => true,
            Views::Series => view.series.is_some(),
        }
    }
}

/// A collection to be read, and which of its documents are given.
#[derive(Clone, Debug)]
pub struct ReadTarget {
    pub collection: Arc<Collection>,
    /// What the shard owns of it; `None` where all documents are given.
    pub(crate) ownership: Option<Arc<dyn Ownership>>,
}

impl ReadTarget {
    /// With all documents: those of the node, or of a collection that is known to be unsharded.
    pub fn unfiltered(collection: Arc<Collection>) -> ReadTarget {
        ReadTarget {
            collection,
            ownership: None,
        }
    }
}

/// A namespace that an operation is behind the gate of. As long as this lives, no DDL changes it.
pub struct AcquiredCollection {
    wanted: AcquisitionRequest,
    view: Option<Box<ResolvedView>>,
    collection: Option<Arc<Collection>>,
    source: ReadSource,
    /// What the shard owns of the collection. `None`: all of its documents are meant.
    ownership: Option<Arc<dyn Ownership>>,
    /// Dropped last: whatever is read of the collection is read behind the gate. A transaction
    /// keeps its own.
    _pass: Option<AccessGuard>,
}

/// Waits until the namespace's gate admits the access, and looks at what is behind it.
pub async fn acquire(ctx: &OpContext, wanted: AcquisitionRequest) -> Result<AcquiredCollection> {
    let catalog = core_catalog();
    if wanted.intent == Intent::Write {
        take_ticket(ctx, &wanted.ns).await?;
    }
    let transaction = open_transactions::of(ctx);
    let mut view: Option<Box<ResolvedView>> = None;
    let (pass, collection, source, then, ownership) = loop {
        let ns = view.as_ref().map_or(&wanted.ns, |view| &view.on);
        let pass = match &transaction {
            None => Some(enter(ctx, ns, wanted.access).await?),
            // Most operations are in none: they need no room for it.
            Some(running) => {
                Box::pin(running.enter_gate(ctx, ns, wanted.access)).await?;
                None
            }
        };
        // Behind the gate, as the state may have changed while that was waited for.
        let set = set_view();
        check_access(set.as_deref(), ctx, ns, wanted.intent)?;
        if wanted.intent == Intent::Write {
            guard::check_write(set.as_deref(), ctx, ns)?;
        }
        let source = match &transaction {
            None => ReadSource::of(set.as_deref(), ctx, &wanted.ns, wanted.intent),
            Some(running) => ReadSource::In(running.reads()),
        };
        if let Err(error) = placement::check_behind_gate(ctx, ns) {
            return Err(refused_behind(&wanted, view.is_some(), source, error));
        }
        let ownership = placement::ownership_behind_gate(ctx, ns, source.snapshot());
        let then = source.catalog(wanted.intent);
        let planned = transaction.as_ref().and_then(|running| running.planned(ns));
        let is_planned = planned.is_some();
        let collection = planned.or_else(|| match &then {
            Some(then) => ReadSource::found_in(then, ns),
            None => catalog.get(ns),
        });
        if collection.is_none() {
            let seen = then.clone().unwrap_or_else(|| catalog.current());
            if let Some(resolved) = seen.resolve_view(ns)? {
                if !wanted.takes(&resolved) {
                    check_not_view(&seen, ns)?;
                }
                // What is under it may have become a view while its gate was waited for.
                view = Some(Box::new(match view {
                    Some(above) => above.over(resolved),
                    None => resolved,
                }));
                continue;
            }
        }
        if let Some(at) = source.snapshot().filter(|_| then.is_some() && !is_planned) {
            let seen = (collection.as_deref(), at);
            placement::check_snapshot(ctx, ns, seen, Reach::Named)?;
        }
        if let Some(resolved) = view.as_deref().filter(|_| wanted.views == Views::Resolved) {
            let seen = then.clone().unwrap_or_else(|| catalog.current());
            if let Err(error) = sharded_view::check_sources(ctx, &seen, resolved) {
                return Err(refused_behind(&wanted, true, source, error));
            }
        }
        if view.is_none()
            && let Some(found) = collection.as_deref()
            && let Some(merged) = found.merged()
        {
            if wanted.intent == Intent::Write {
                check_not_scattered(ns)?;
            }
            if wanted.views == Views::Resolved && !ctx.args.raw_data {
                view = Some(Box::new(merged));
            }
        }
        break (pass, collection, source, then, ownership);
    };
    if let Some(expected) = wanted.uuid {
        let named = collection.as_deref().filter(|_| view.is_none());
        let seen = then.clone().unwrap_or_else(|| catalog.current());
        check_collection_uuid(&seen, &wanted.ns, named, expected)?;
    }
    if let Some(running) = &transaction {
        // The writes of a series are refused by the statement, which knows what it does, and by the
        // name of the series.
        if wanted.intent == Intent::Write && view.is_none() {
            crate::open_transactions::check_written(&wanted.ns, collection.as_deref())?;
        }
        if then.is_none() {
            let ns = view.as_ref().map_or(&wanted.ns, |view| &view.on);
            running.check_unchanged(ns, collection.as_deref(), wanted.intent)?;
        }
    }
    Ok(AcquiredCollection {
        collection: source.seen(collection)?,
        source,
        ownership,
        wanted,
        view,
        _pass: pass,
    })
}

/// The answer where the versions of a request are refused: behind a view what the view stands for,
/// which the router is to read.
fn refused_behind(
    wanted: &AcquisitionRequest,
    is_view: bool,
    source: ReadSource,
    error: Error,
) -> Error {
    if !is_view || wanted.views != Views::Resolved {
        return error;
    }
    let then = source.catalog(wanted.intent);
    let seen = then.unwrap_or_else(|| core_catalog().current());
    let meant = wanted.uuid.map_or(Ok(()), |expected| {
        check_collection_uuid(&seen, &wanted.ns, None, expected)
    });
    match meant {
        Ok(()) => sharded_view::refusal(&seen, &wanted.ns, error),
        Err(error) => error,
    }
}

/// Acquires for a read that a view can answer.
pub async fn acquire_viewed(
    ctx: &OpContext,
    ns: Namespace,
    uuid: Option<[u8; 16]>,
) -> Result<AcquiredCollection> {
    let wanted = AcquisitionRequest {
        views: Views::Resolved,
        ..AcquisitionRequest::read(ns, uuid)
    };
    acquire(ctx, wanted).await
}

/// Acquires for a read of a collection.
pub async fn acquire_read(
    ctx: &OpContext,
    ns: Namespace,
    uuid: Option<[u8; 16]>,
) -> Result<AcquiredCollection> {
    acquire(ctx, AcquisitionRequest::read(ns, uuid)).await
}

/// Acquires for a read of a collection, or of the buckets of a series.
pub async fn acquire_stored(
    ctx: &OpContext,
    ns: Namespace,
    uuid: Option<[u8; 16]>,
) -> Result<AcquiredCollection> {
    let wanted = AcquisitionRequest {
        views: Views::Series,
        ..AcquisitionRequest::read(ns, uuid)
    };
    acquire(ctx, wanted).await
}

/// Acquires for a write that the node does of its own accord: documents that it does not own are
/// left to the shard that owns them.
pub async fn acquire_owned(
    ctx: &OpContext,
    wanted: AcquisitionRequest,
) -> Result<AcquiredCollection> {
    let mut acquired = acquire(ctx, wanted).await?;
    let ns = acquired.collection.as_deref().map(|found| &found.ns);
    acquired.ownership = ns.and_then(placement::ownership_of_node);
    Ok(acquired)
}

/// Acquires for a write of documents, or of the measurements of a series.
pub async fn acquire_write(
    ctx: &OpContext,
    ns: Namespace,
    uuid: Option<[u8; 16]>,
) -> Result<AcquiredCollection> {
    acquire(ctx, AcquisitionRequest::write(ns, uuid)).await
}

/// The same for a statement of a batch, by its place there. Where a router's versions have become
/// old behind statements that were executed, this one alone fails; where it is one of MongoDB 4.4,
/// also the first.
pub(crate) async fn acquire_statement(
    ctx: &OpContext,
    ns: &Namespace,
    uuid: Option<[u8; 16]>,
    index: usize,
) -> Result<Result<AcquiredCollection>> {
    match acquire_write(ctx, ns.clone(), uuid).await {
        Err(error)
            if (index > 0
                && matches!(
                    error.code,
                    ErrorCode::STALE_DB_VERSION | ErrorCode::STALE_CONFIG
                ))
                || placement::stops_batch(&error) =>
        {
            Ok(Err(error))
        }
        outcome => outcome.map(Ok),
    }
}

impl AcquiredCollection {
    /// The namespace that was named: of a view its own.
    pub(crate) fn ns(&self) -> &Namespace {
        &self.wanted.ns
    }

    /// What stands in front of the collection, if a view was named.
    pub(crate) fn view(&self) -> Option<&ResolvedView> {
        self.view.as_deref()
    }

    /// What was named, if it is a series: the collection holds its buckets.
    pub(crate) fn series(&self) -> Option<&TimeSeries> {
        self.view.as_ref()?.series.as_ref()
    }

    pub(crate) fn wanted(&self) -> &AcquisitionRequest {
        &self.wanted
    }

    /// Leaves; the namespace is the caller's again.
    pub(crate) fn into_ns(self) -> Namespace {
        self.wanted.ns
    }

    /// The collection, if there is one of that name.
    pub fn collection(&self) -> Option<&Arc<Collection>> {
        self.collection.as_ref()
    }

    /// What this shard owns of the collection, by the version that the operation came with. `None`
    /// where all documents are meant.
    pub(crate) fn ownership(&self) -> Option<&Arc<dyn Ownership>> {
        self.ownership.as_ref()
    }

    /// Whether no document of the collection has to be looked at for its owner.
    pub(crate) fn owns_all(&self) -> bool {
        let ownership = self.ownership.as_deref();
        ownership.is_none_or(Ownership::owns_all)
    }

    /// The collection as a read of this operation sees it: what is not owned is not given.
    pub fn target(&self, collection: &Arc<Collection>) -> ReadTarget {
        ReadTarget {
            collection: collection.clone(),
            ownership: self.ownership.clone(),
        }
    }

    /// Refuses a `$text` where there is no collection whose text index it could search.
    pub(crate) fn check_text(&self, matcher: &Matcher) -> Result<()> {
        match self.collection() {
            Some(_) => Ok(()),
            None => matcher.check_without_collection(self.ns().as_str()),
        }
    }

    /// The collation of operations that ask for none: of a view its own, whatever is under it.
    pub(crate) fn collation(&self) -> Option<&Arc<Collation>> {
        match self.view() {
            Some(view) => view.collation.as_ref(),
            None => self.collection().and_then(|found| found.collation.as_ref()),
        }
    }

    pub fn source(&self) -> ReadSource {
        self.source
    }

    /// Whether documents are read and written as they are stored, by their `_id` as it is: the
    /// short cuts past the planner hold for these alone. True also where there is no collection.
    pub(crate) fn is_plain(&self) -> bool {
        self.view.is_none() && self.collection().is_none_or(|found| found.is_plain())
    }

    /// Leaves. What was wanted can be acquired again: the collection may be another one then, or
    /// gone.
    pub(crate) fn leave(self) -> AcquisitionRequest {
        self.wanted
    }

    /// Leaves, makes the collection as a first write does, and acquires again. Gives the time of
    /// its making, if it was not there by then.
    pub(crate) async fn create(
        self,
        ctx: &OpContext,
    ) -> Result<(AcquiredCollection, Option<Timestamp>)> {
        // Held on to, the pass would be waited for by a DDL that this one has to wait for.
        let wanted = self.leave();
        let made = match open_transactions::of(ctx) {
            Some(running) => {
                // If others have made one meanwhile, that is found behind the door.
                let planning = running.plan(ctx, &wanted.ns, CollectionOptions::default());
                Box::pin(planning).await?;
                None
            }
            None => match make_access_collection(ctx, &wanted.ns) {
                Some(making) => making.await?,
                None => Box::pin(ensure_collection(ctx, wanted.ns.clone())).await?,
            },
        };
        Ok((acquire(ctx, wanted).await?, made))
    }
}

/// A collection that a stage reads beside the one that its operation is behind the gate of.
pub struct NestedAcquisition {
    /// What stands in front of the collection, if the name is that of a view.
    view: Option<ResolvedView>,
    collection: Option<Arc<Collection>>,
    source: ReadSource,
    _pass: Option<AccessGuard>,
}

impl NestedAcquisition {
    pub(crate) fn view(&self) -> Option<&ResolvedView> {
        self.view.as_ref()
    }

    pub(crate) fn collection(&self) -> Option<&Arc<Collection>> {
        self.collection.as_ref()
    }

    pub(crate) fn source(&self) -> ReadSource {
        self.source
    }
}

/// Acquires for a read while the operation holds a pass of `held`. Names stand for what they stood
/// for in `opened`, the catalog in which the operation began, unless it reads a snapshot or is in a
/// transaction.
///
/// # Errors
/// `QueryPlanKilled` when the collection was dropped since, `LockTimeout` when its gate stays
/// closed.
pub(crate) async fn acquire_nested(
    ctx: &OpContext,
    ns: &Namespace,
    held: &Namespace,
    opened: &Arc<Catalog>,
) -> Result<NestedAcquisition> {
    let transaction = open_transactions::of(ctx);
    if let Some(running) = &transaction {
        return acquire_nested_in_transaction(ctx, running, ns).await;
    }
    let set = set_view();
    let source = ReadSource::of(set.as_deref(), ctx, ns, Intent::Read);
    let then = source.catalog(Intent::Read);
    let view = then.as_ref().unwrap_or(opened).resolve_view(ns)?;
    let ns = view.as_ref().map_or(ns, |view| &view.on);
    let (pass, found) = match &then {
        Some(then) => {
            let pass = nested_guard(ctx, ns, held).await?;
            let found = ReadSource::found_in(then, ns);
            if let Some(at) = source.snapshot() {
                placement::check_snapshot(ctx, ns, (found.as_deref(), at), Reach::ByStage)?;
            }
            (pass, found)
        }
        None => follow(ctx, opened, ns, held).await?,
    };
    let set = set_view();
    check_access(set.as_deref(), ctx, ns, Intent::Read)?;
    placement::check_nested(ctx, ns)?;
    let source = ReadSource::of(set.as_deref(), ctx, ns, Intent::Read);
    let collection = source.seen(found)?;
    Ok(NestedAcquisition {
        source,
        view: match view {
            None => collection.as_deref().and_then(Collection::merged),
            view => view,
        },
        collection,
        _pass: pass,
    })
}

/// The collection that has this name in `opened`, as it is now and whatever its name is, and a pass
/// of its gate.
async fn follow(
    ctx: &OpContext,
    opened: &Arc<Catalog>,
    ns: &Namespace,
    held: &Namespace,
) -> Result<(Option<AccessGuard>, Option<Arc<Collection>>)> {
    loop {
        let before = found_since(opened, ns)?;
        let named = before.as_ref().map_or(ns, |found| &found.ns);
        let pass = nested_guard(ctx, named, held).await?;
        match found_since(opened, ns)? {
            // It was renamed while the gate of its old name was waited for.
            Some(now) if now.ns != *named => {}
            now => return Ok((pass, now)),
        }
    }
}

/// The collection that has this name in `opened`, as it is now.
///
/// # Errors
/// `QueryPlanKilled` when it was dropped since.
fn found_since(opened: &Arc<Catalog>, ns: &Namespace) -> Result<Option<Arc<Collection>>> {
    let Some(found) = opened.get(ns) else {
        return Ok(None);
    };
    let current = core_catalog().current();
    if Arc::ptr_eq(opened, &current) {
        return Ok(Some(found.clone()));
    }
    match current.by_uuid(found.uuid) {
        Some(now) => Ok(Some(now.clone())),
        None => Err(Error::new(
            ErrorCode::QUERY_PLAN_KILLED,
            format!("collection dropped. UUID {}", found.uuid),
        )),
    }
}

/// A pass of the gate of a namespace to read; none where a DDL that has closed it waits for the
/// operation's pass of `held`.
async fn nested_guard(
    ctx: &OpContext,
    ns: &Namespace,
    held: &Namespace,
) -> Result<Option<AccessGuard>> {
    match core_catalog().gates().try_enter(ns, GateAccess::Read) {
        Some(pass) => {
            ctx.work().passed_gate(GateKind::Read, None);
            Ok(Some(pass))
        }
        // Its DDL cannot continue before this operation has ended.
        None if ns == held => Ok(None),
        // Another DDL may wait for the same pass, so there is a limit to this wait.
        None => Ok(Some(enter_nested(ctx, ns).await?)),
    }
}

/// Passes the gate of a namespace to read, while the operation may hold passes of others.
///
/// # Errors
/// `LockTimeout` when the gate stays closed.
pub(crate) async fn enter_nested(ctx: &OpContext, ns: &Namespace) -> Result<AccessGuard> {
    let entering = enter(ctx, ns, GateAccess::Read);
    match pinion_runtime::timeout(NESTED_GATE_TIMEOUT, entering).await {
        Ok(pass) => pass,
        Err(_) => {
            let closed_by = core_catalog().gates().closed_by(ns, GateAccess::Read);
            let what = match closed_by {
                Some(ClosedBy::CriticalSection) => "critical section",
                Some(ClosedBy::Ddl) | None => "change",
            };
            Err(Error::new(
                ErrorCode::LOCK_TIMEOUT,
                format!("a {what} of {ns} is under way, and has not ended in time"),
            ))
        }
    }
}

/// The same for a statement of a transaction, which keeps its passes.
async fn acquire_nested_in_transaction(
    ctx: &OpContext,
    running: &Running,
    ns: &Namespace,
) -> Result<NestedAcquisition> {
    let source = ReadSource::In(running.reads());
    let seen = || {
        let then = source.catalog(Intent::Read);
        let is_kept = then.is_some();
        (then.unwrap_or_else(|| core_catalog().current()), is_kept)
    };
    let view = seen().0.resolve_view(ns)?;
    let ns = view.as_ref().map_or(ns, |view| &view.on);
    running.enter_gate(ctx, ns, GateAccess::Read).await?;
    let set = set_view();
    check_access(set.as_deref(), ctx, ns, Intent::Read)?;
    placement::check_nested(ctx, ns)?;
    let (catalog, is_kept) = seen();
    let planned = running.planned(ns);
    let is_planned = planned.is_some();
    let collection = planned.or_else(|| ReadSource::found_in(&catalog, ns));
    if !is_kept {
        running.check_unchanged(ns, collection.as_deref(), Intent::Read)?;
    } else if let Some(at) = source.snapshot().filter(|_| !is_planned) {
        let seen = (collection.as_deref(), at);
        placement::check_snapshot(ctx, ns, seen, Reach::ByStage)?;
    }
    Ok(NestedAcquisition {
        source,
        view,
        collection,
        _pass: None,
    })
}

/// What an access finds that ends before anything else runs on this core, and so needs no pass.
pub(crate) enum Peek<R> {
    /// The gate does not admit it now.
    Closed,
    /// It has to come through [`acquire`], as the collection is not plain.
    NotPlain,
    Absent,
    Found(R),
}

/// Refuses to read a view with another collation than its own.
pub(crate) fn check_view(
    ns: &Namespace,
    view: &ResolvedView,
    collation: Option<&Arc<Collation>>,
) -> Result<()> {
    // The measurements of a series are documents of its own.
    if view.collation.as_ref() == collation || view.series.is_some() {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::OPTION_NOT_SUPPORTED_ON_VIEW,
        format!("Cannot override default collation of the view {ns}"),
    ))
}

/// Looks at a plain collection without waiting, and without a share in it.
pub(crate) fn peek<R>(
    ns: &Namespace,
    access: GateAccess,
    look: impl FnOnce(&Collection) -> R,
) -> Peek<R> {
    let catalog = core_catalog();
    if !catalog.gates().admits(ns, access) {
        return Peek::Closed;
    }
    let found = catalog.with(ns, |found| found.is_plain().then(|| look(found)));
    match found {
        None if catalog.current().view(ns).is_some() => Peek::NotPlain,
        None => Peek::Absent,
        Some(None) => Peek::NotPlain,
        Some(Some(seen)) => Peek::Found(seen),
    }
}

/// Passes the gate if it admits the access now, to continue with what a [`peek`] found.
pub(crate) fn try_pass(ns: &Namespace, access: GateAccess) -> Option<AccessGuard> {
    core_catalog().gates().try_enter(ns, access)
}

/// As the door checks it, for commands whose changes are made by the catalog's coordinator.
pub(crate) fn check_uuid(ns: &Namespace, expected: Option<[u8; 16]>) -> Result<()> {
    let Some(expected) = expected.map(Uuid) else {
        return Ok(());
    };
    let catalog = core_catalog();
    let current = catalog.current();
    check_collection_uuid(
        &current,
        ns,
        current.get(ns).map(|found| &**found),
        expected,
    )
}
