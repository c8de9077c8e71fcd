//! `drop`, `dropDatabase`, `renameCollection`, `listCollections`, `listDatabases`.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{
    Collection, CollectionKind, Definition, DropTarget, Uuid, View, core_catalog,
};
use pinion_query::Matcher;
use pinion_service::command_checks::check_drop_database;
use pinion_service::compute::compute;
use pinion_service::interrupt::pause;
use pinion_service::profile_settings;
use pinion_wire::idl::{FieldReader, Namespace, Types};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::acknowledge;
use super::cursors::{CursorRequest, batch_size_of, first_batch};
use crate::acquire::check_uuid;
use crate::guard;
use crate::read::Stream;
use crate::stats::database_sizes;

/// `drop`.
pub async fn drop(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.sought("drop", cmd.db())?;
    reader.unsupported_unless_empty("encryptedFields", Types::OBJECT)?;
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.finish()?;
    check_uuid(&ns, uuid)?;
    let mut out = Reply::new();
    let dropped = pinion_catalog::drop_collection(&cmd.ctx, ns.clone()).await?;
    let ts = dropped.as_ref().map(|dropped| dropped.ts);
    if let Some(dropped) = dropped {
        if let Some(indexes) = dropped.indexes {
            out.append("nIndexesWas", indexes as i32);
        }
        out.append("ns", ns.as_str());
    }
    acknowledge(&cmd.ctx, ts, &mut out).await?;
    Ok(out)
}

/// `dropDatabase`.
pub async fn drop_database(cmd: Invocation) -> Result<Reply> {
    check_drop_database(&cmd)?;
    let db = cmd.db().to_owned();
    // The catalog asks too, but then the database's profile would be gone.
    guard::check(&cmd.ctx, &Definition::DropDatabase(db.clone()))?;
    let mut out = Reply::new();
    // Before the last collection is gone, so that no operation that ends meanwhile makes the
    // database again.
    profile_settings::forget(&db).await;
    let dropped = pinion_catalog::drop_database(&cmd.ctx, db).await?;
    acknowledge(&cmd.ctx, dropped, &mut out).await?;
    Ok(out)
}

/// `renameCollection`, on the admin database alone.
pub async fn rename_collection(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let from = namespace_of(&reader, "renameCollection")?;
    let to = namespace_of(&reader, "to")?;
    let drop_target = drop_target(&reader, &from, &to)?;
    let stays_temporary = reader.opt_bool("stayTemp")?.unwrap_or(false);
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.finish()?;
    check_uuid(&from, uuid)?;
    let ts =
        pinion_catalog::rename_collection(&cmd.ctx, from, to, drop_target, stays_temporary).await?;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(ts), &mut out).await?;
    Ok(out)
}

/// Whether a collection that has the new name goes: any, or the one with a UUID.
fn drop_target(
    reader: &FieldReader<'_, '_>,
    from: &Namespace,
    to: &Namespace,
) -> Result<DropTarget> {
    let uuid = match reader.value("dropTarget") {
        None | Some(RawBsonRef::Boolean(false)) => return Ok(DropTarget::No),
        Some(RawBsonRef::Boolean(true)) => return Ok(DropTarget::Yes),
        Some(RawBsonRef::Binary(uuid)) => Uuid::from_bson(RawBsonRef::Binary(uuid)),
        Some(other) => {
            let types = Types::Many(&["bool", "binData"]);
            return Err(reader.wrong_type("dropTarget", other, types));
        }
    };
    let uuid = uuid.ok_or_else(|| {
        Error::new(
            ErrorCode::INVALID_UUID,
            "uuid must be a 16-byte binary field with UUID (4) subtype",
        )
    })?;
    if from.db() != to.db() {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "The dropTarget option may not be a UUID when renaming between databases",
        ));
    }
    Ok(DropTarget::Only(uuid))
}

fn namespace_of(reader: &FieldReader<'_, '_>, field: &str) -> Result<Namespace> {
    let text = reader.str(field)?;
    Namespace::parse(text)
}

/// `listCollections`.
pub(crate) async fn list_collections(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let filter = reader.opt_doc("filter")?;
    let name_only = reader.opt_bool("nameOnly")?.unwrap_or(false);
    reader.opt_bool("authorizedCollections")?;
    let batch_size = batch_size_of(reader.opt_doc("cursor")?, "listCollections")?;
    reader.ignore(&["listCollections"]);
    reader.finish()?;
    let matcher = listing_filter(&cmd.ctx, filter).await?;
    let catalog = core_catalog().current();
    let collections = catalog.collections_of(cmd.db());
    let views = catalog.views_of(cmd.db());
    // The filter sees what is listed: with `nameOnly` there are no options to ask for.
    let entries = collections
        .map(|collection| collection_info(collection, name_only))
        .chain(views.map(|view| view_info(view, name_only)));
    let mut list = VecDeque::new();
    for info in entries {
        if lists(&cmd.ctx, matcher.as_ref(), &info).await? {
            list.push_back(Bytes::from(info.into_bytes()));
        }
    }
    let mut out = Reply::new();
    let request = CursorRequest::of_list(
        Namespace::new(cmd.db(), "$cmd.listCollections")?,
        Some(batch_size.unwrap_or(usize::MAX)),
    );
    first_batch(&cmd, Box::new(Stream::List(list)), request, &mut out).await?;
    Ok(out)
}

async fn listing_filter(ctx: &OpContext, filter: Option<&RawDocument>) -> Result<Option<Matcher>> {
    match filter {
        Some(filter) => compute(ctx, || Matcher::parse(filter)).await.map(Some),
        None => Ok(None),
    }
}

/// Whether a listing shows this entry. There may be many entries, and the filter may be long.
async fn lists(ctx: &OpContext, matcher: Option<&Matcher>, entry: &RawDocument) -> Result<bool> {
    pause(ctx).await?;
    match matcher {
        Some(matcher) => compute(ctx, || matcher.matches(entry)).await,
        None => Ok(true),
    }
}

/// A collection as `listCollections` shows it.
pub(crate) fn collection_info(collection: &Collection, name_only: bool) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("name", collection.ns.collection())
        .append("type", CollectionKind::Collection.name());
    if !name_only {
        out.append("options", &*collection.options.to_document());
        out.start_document("info")
            .append("readOnly", false)
            .append("uuid", collection.uuid.to_bson())
            .end();
        if collection.options.clustered.is_none() && !collection.is_oplog() {
            out.append("idIndex", &*collection.options.id_index());
        }
    }
    out.finish()
}

/// A view or a time series as `listCollections` shows it.
pub(super) fn view_info(view: &View, name_only: bool) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("name", view.ns.collection())
        .append("type", view.kind().name());
    if !name_only {
        let is_series = view.kind() == CollectionKind::TimeSeries;
        out.append("options", &*view.listed_options());
        out.start_document("info")
            .append("readOnly", !is_series)
            .end();
    }
    out.finish()
}

/// `listDatabases`.
pub(crate) async fn list_databases(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let filter = reader.opt_doc("filter")?;
    let name_only = reader.opt_safe_bool("nameOnly")?.unwrap_or(false);
    reader.opt_bool("authorizedDatabases")?;
    reader.ignore(&["listDatabases"]);
    reader.finish()?;
    let matcher = listing_filter(&cmd.ctx, filter).await?;
    let mut out = Reply::new();
    let mut total = 0i64;
    let sizes = if name_only && filter.is_none() {
        BTreeMap::new()
    } else {
        database_sizes().await
    };
    out.start_array("databases");
    for db in core_catalog().current().databases() {
        let size = sizes.get(&db).map_or(0, |size| *size as i64);
        let mut entry = DocBuilder::new();
        entry.append("name", db.as_str());
        if !name_only {
            entry.append("sizeOnDisk", size).append("empty", size == 0);
        }
        let entry = entry.finish();
        if lists(&cmd.ctx, matcher.as_ref(), &entry).await? {
            total += size;
            out.push(&*entry);
        }
    }
    out.end();
    if !name_only {
        out.append("totalSize", total)
            .append("totalSizeMb", total >> 20);
    }
    Ok(out)
}
