//! What this shard has of a database, or of one collection.

use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, Uuid};
use pinion_catalog::{Catalog, Collection, CollectionKind, View, core_catalog};
use pinion_query::series_of;
use pinion_sharding_protocol::consistency::{BareSeries, CollectionOnShard, KnownTable};
use pinion_wire::idl::Namespace;
use pinion_wire::{Invocation, Reply, Result};

use super::look::Scope;
use crate::limits::{REPORTED_BYTES, REPORTED_COLLECTIONS};
use crate::part::part;
use crate::shard::{Known, membership};

/// `_shardsvrCheckMetadataConsistencyParticipant: <collection> or 1, startAfter?` -> `collections`,
/// `more`; and from the start, `bareSeries`.
pub(crate) async fn check_metadata_consistency_participant(cmd: Invocation) -> Result<Reply> {
    membership(&part())?;
    let reader = cmd.reader()?;
    let scope = Scope::read(&reader, cmd.name(), cmd.db())?;
    let after = reader.opt_str("startAfter")?;
    reader.finish()?;
    let (mut count, mut bytes, mut more) = (0, 0, false);
    let catalog = core_catalog().current();
    let mut out = Reply::new();
    out.start_array("collections");
    for collection in collections(&catalog, &scope) {
        if after.is_some_and(|after| collection.ns.as_str() <= after) {
            continue;
        }
        if count >= REPORTED_COLLECTIONS || bytes > REPORTED_BYTES {
            more = true;
            break;
        }
        let reported = report(&catalog, &collection).to_bson();
        count += 1;
        bytes += reported.as_bytes().len();
        out.push(&*reported);
    }
    out.end().append("more", more);
    if after.is_none() {
        out.start_array("bareSeries");
        for series in bare_series(&catalog, &scope) {
            out.push(&*series.to_bson());
        }
        out.end();
    }
    Ok(out)
}

/// Those of the scope, by their names.
fn collections(catalog: &Catalog, scope: &Scope) -> Vec<Arc<Collection>> {
    let mut found: Vec<Arc<Collection>> = match &scope.collection {
        Some(ns) => catalog.get(ns).into_iter().cloned().collect(),
        None => catalog.collections_of(&scope.db).cloned().collect(),
    };
    found.sort_unstable_by(|one, other| one.ns.as_str().cmp(other.ns.as_str()));
    found
}

/// The time series of the scope whose buckets are not here.
fn bare_series(catalog: &Catalog, scope: &Scope) -> Vec<BareSeries> {
    let views: Vec<&Arc<View>> = match &scope.collection {
        Some(ns) => {
            let names = [Some(ns.clone()), series_of(ns)];
            let names = names.iter().flatten();
            names.filter_map(|name| catalog.view(name)).collect()
        }
        None => catalog.views_of(&scope.db).collect(),
    };
    let is_bare = |view: &&Arc<View>| {
        view.kind() == CollectionKind::TimeSeries && catalog.get(&view.on()).is_none()
    };
    let bare = views.into_iter().filter(is_bare).map(|view| BareSeries {
        ns: view.ns.clone(),
        options: view.options.to_document(),
    });
    bare.take(REPORTED_COLLECTIONS).collect()
}

/// The options of what has the name of the series that a collection has the buckets of.
fn series_options(catalog: &Catalog, buckets: &Namespace) -> Option<RawDocumentBuf> {
    let series = series_of(buckets)?;
    let view = catalog.view(&series).map(|view| &view.options);
    let options = view.or_else(|| catalog.get(&series).map(|found| &found.options));
    Some(options?.to_document())
}

fn report(catalog: &Catalog, collection: &Collection) -> CollectionOnShard {
    let in_tree = collection.id_index_in_tree();
    let others = collection.ready_indexes().map(|index| index.listed.clone());
    CollectionOnShard {
        ns: collection.ns.clone(),
        uuid: Uuid::from_bytes(collection.uuid.0),
        options: collection.options.to_document(),
        indexes: in_tree.into_iter().chain(others).collect(),
        table: table(&collection.ns),
        series: series_options(catalog, &collection.ns),
    }
}

fn table(ns: &Namespace) -> KnownTable {
    match part().collection(ns) {
        Known::Unsharded => KnownTable::Unsharded,
        Known::Stale => KnownTable::Stale,
        Known::Table(_) => KnownTable::Table,
    }
}

/// What a shard has answered.
pub(super) struct Reported {
    pub(super) collections: Vec<CollectionOnShard>,
    pub(super) bare_series: Vec<BareSeries>,
    /// There are more collections.
    pub(super) more: bool,
}

impl Reported {
    /// # Errors
    /// The reply is none of a shard.
    pub(super) fn parse(reply: &RawDocument) -> Result<Reported> {
        let collections = documents(reply, "collections").map(CollectionOnShard::parse);
        let bare_series = documents(reply, "bareSeries").map(BareSeries::parse);
        Ok(Reported {
            collections: collections.collect::<Result<_>>()?,
            bare_series: bare_series.collect::<Result<_>>()?,
            more: pinion_bson::get(reply, "more") == Some(RawBsonRef::Boolean(true)),
        })
    }
}

/// The documents of a list in a reply.
fn documents<'r>(reply: &'r RawDocument, name: &str) -> impl Iterator<Item = &'r RawDocument> {
    let list = pinion_bson::get(reply, name).and_then(|list| list.as_array());
    let values = list.into_iter().flat_map(pinion_bson::values);
    values.filter_map(|value| value.as_document())
}
