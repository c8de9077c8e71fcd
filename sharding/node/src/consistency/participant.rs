//! What this shard has of a database, or of one collection.

use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocumentBuf, Uuid};
use pinion_catalog::{Collection, core_catalog};
use pinion_sharding_protocol::consistency::{CollectionOnShard, KnownTable};
use pinion_wire::idl::Namespace;
use pinion_wire::{Invocation, Reply, Result};

use super::look::Scope;
use crate::limits::{REPORTED_BYTES, REPORTED_COLLECTIONS};
use crate::part::part;
use crate::shard::{Known, membership};

/// `_shardsvrCheckMetadataConsistencyParticipant: <collection> or 1, startAfter?` -> `collections`,
/// `more`.
pub(crate) async fn check_metadata_consistency_participant(cmd: Invocation) -> Result<Reply> {
    membership(&part())?;
    let reader = cmd.reader()?;
    let scope = Scope::read(&reader, cmd.name(), cmd.db())?;
    let after = reader.opt_str("startAfter")?;
    reader.finish()?;
    let (mut count, mut bytes, mut more) = (0, 0, false);
    let mut out = Reply::new();
    out.start_array("collections");
    for collection in collections(&scope) {
        if after.is_some_and(|after| collection.ns.as_str() <= after) {
            continue;
        }
        if count >= REPORTED_COLLECTIONS || bytes > REPORTED_BYTES {
            more = true;
            break;
        }
        let reported = report(&collection).to_bson();
        count += 1;
        bytes += reported.as_bytes().len();
        out.push(&*reported);
    }
    out.end().append("more", more);
    Ok(out)
}

/// Those of the scope, by their names.
fn collections(scope: &Scope) -> Vec<Arc<Collection>> {
    let catalog = core_catalog().current();
    let mut found: Vec<Arc<Collection>> = match &scope.collection {
        Some(ns) => catalog.get(ns).into_iter().cloned().collect(),
        None => catalog.collections_of(&scope.db).cloned().collect(),
    };
    found.sort_unstable_by(|one, other| one.ns.as_str().cmp(other.ns.as_str()));
    found
}

fn report(collection: &Collection) -> CollectionOnShard {
    let in_tree = collection.id_index_in_tree();
    let others = collection.ready_indexes().map(|index| index.listed.clone());
    CollectionOnShard {
        ns: collection.ns.clone(),
        uuid: Uuid::from_bytes(collection.uuid.0),
        options: collection.options.to_document(),
        indexes: in_tree.into_iter().chain(others).collect(),
        table: table(&collection.ns),
    }
}

fn table(ns: &Namespace) -> KnownTable {
    match part().collection(ns) {
        Known::Unsharded => KnownTable::Unsharded,
        Known::Stale => KnownTable::Stale,
        Known::Table(_) => KnownTable::Table,
    }
}

/// The collections of a reply, and whether there are more.
///
/// # Errors
/// The reply is none of a shard.
pub(super) fn reported(reply: &RawDocumentBuf) -> Result<(Vec<CollectionOnShard>, bool)> {
    let list = pinion_bson::get(reply, "collections").and_then(|list| list.as_array());
    let documents = list.into_iter().flat_map(pinion_bson::values);
    let documents = documents.filter_map(|value| value.as_document());
    let collections = documents.map(CollectionOnShard::parse);
    let more = pinion_bson::get(reply, "more") == Some(RawBsonRef::Boolean(true));
    Ok((collections.collect::<Result<_>>()?, more))
}
