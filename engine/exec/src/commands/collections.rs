//! `create`, `drop`, `dropDatabase`, `renameCollection`, `listCollections`, `listDatabases`.

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{Collection, core_catalog};
use pinion_query::Matcher;
use pinion_wire::idl::{FieldReader, Namespace};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};
use std::collections::{BTreeMap, VecDeque};

use super::cursors::{CursorRequest, batch_size_of, first_batch};
use super::{acknowledge, refuse};
use crate::acquire::check_uuid;
use crate::compute::compute;
use crate::interrupt::pause;
use crate::read::Stream;
use crate::stats::database_sizes;

/// Options of a collection that MongoDB has and this node does not.
const UNSUPPORTED_OPTIONS: [&str; 16] = [
    "timeseries",
    "expireAfterSeconds",
    "clusteredIndex",
    "changeStreamPreAndPostImages",
    "size",
    "max",
    "viewOn",
    "pipeline",
    "validator",
    "validationLevel",
    "validationAction",
    "storageEngine",
    "indexOptionDefaults",
    "encryptedFields",
    "recordIdsReplicated",
    "temp",
];

/// `create`.
pub(crate) async fn create(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.namespace("create", cmd.db())?;
    reader.opt_safe_bool("capped")?;
    reader.unsupported_unless_empty("capped")?;
    refuse::collation(&reader)?;
    // A wrong type is told before the option is refused.
    for option in ["size", "max"] {
        reader.opt_i64(option)?;
    }
    for option in ["viewOn", "validationLevel", "validationAction"] {
        reader.opt_str(option)?;
    }
    for option in ["validator", "storageEngine", "indexOptionDefaults"] {
        reader.opt_doc(option)?;
    }
    reader.opt_array("pipeline")?;
    reader.opt_safe_bool("autoIndexId")?;
    let id_index = reader.opt_doc("idIndex")?;
    if id_index.is_some() {
        // These have no index on `_id`.
        let mut others = ["viewOn", "timeseries", "clusteredIndex"].into_iter();
        if let Some(other) = others.find(|other| {
            !matches!(
                reader.value(other),
                None | Some(RawBsonRef::Null | RawBsonRef::Undefined)
            )
        }) {
            return Err(Error::new(
                ErrorCode::INVALID_OPTIONS,
                format!("'{other}' is not allowed with 'idIndex'"),
            ));
        }
    }
    for option in UNSUPPORTED_OPTIONS {
        reader.unsupported_unless(option, |value| {
            matches!(option, "size" | "max") && is_zero(value)
        })?;
    }
    // Options of storage engines past; they have no effect in MongoDB either.
    reader.ignore(&["flags"]);
    reader.unsupported_unless("autoIndexId", |value| {
        matches!(value, RawBsonRef::Boolean(true))
    })?;
    if let Some(id_index) = id_index {
        pinion_catalog::check_id_index_spec(id_index)?;
    }
    reader.finish()?;
    let created = pinion_catalog::create_collection(&cmd.ctx, ns, RawDocumentBuf::new()).await?;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, created.ts, &mut out).await?;
    Ok(out)
}

fn is_zero(value: RawBsonRef<'_>) -> bool {
    pinion_wire::idl::is_number(value) && !pinion_wire::idl::truthy(value)
}

pub(crate) fn is_simple_collation(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Document(collation) => {
            collation.is_empty()
                || collation
                    .get_str("locale")
                    .is_ok_and(|locale| locale == "simple")
        }
        _ => false,
    }
}

/// `drop`.
pub(crate) async fn drop(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.namespace("drop", cmd.db())?;
    reader.unsupported_unless_empty("encryptedFields")?;
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.finish()?;
    check_uuid(&ns, uuid)?;
    let mut out = Reply::new();
    let dropped = pinion_catalog::drop_collection(&cmd.ctx, ns.clone()).await?;
    let ts = dropped.as_ref().map(|dropped| dropped.ts);
    if let Some(dropped) = dropped {
        out.append("nIndexesWas", dropped.indexes as i32)
            .append("ns", ns.as_str());
    }
    acknowledge(&cmd.ctx, ts, &mut out).await?;
    Ok(out)
}

/// `dropDatabase`.
pub(crate) async fn drop_database(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    match reader.value("dropDatabase") {
        Some(value)
            if pinion_wire::idl::is_number(value)
                && pinion_wire::idl::i64_clamped(value) == Some(1) => {}
        Some(value) if pinion_wire::idl::is_number(value) => {
            return Err(Error::new(
                ErrorCode(5255100),
                "Have to pass 1 as 'dropDatabase' parameter",
            ));
        }
        Some(value) => {
            return Err(reader.wrong_type("dropDatabase", value, pinion_wire::idl::Types::NUMBER));
        }
        None => {
            return Err(pinion_wire::idl::missing_field(
                reader.path().field("dropDatabase"),
            ));
        }
    }
    reader.finish()?;
    let db = cmd.db().to_owned();
    if db == "admin" {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            format!("Dropping the '{db}' database is prohibited."),
        ));
    }
    let mut out = Reply::new();
    let dropped = pinion_catalog::drop_database(&cmd.ctx, db.clone()).await?;
    if dropped.is_some() {
        out.append("dropped", db.as_str());
    }
    acknowledge(&cmd.ctx, dropped, &mut out).await?;
    Ok(out)
}

/// `renameCollection`, on the admin database alone.
pub(crate) async fn rename_collection(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let from = namespace_of(&reader, "renameCollection")?;
    let to = namespace_of(&reader, "to")?;
    let drop_target = match reader.value("dropTarget") {
        None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => false,
        Some(RawBsonRef::Boolean(drop)) => drop,
        Some(RawBsonRef::Binary(_)) => true,
        Some(other) => {
            return Err(reader.wrong_type(
                "dropTarget",
                other,
                pinion_wire::idl::Types::Many(&["bool", "binData"]),
            ));
        }
    };
    reader.opt_bool("stayTemp")?;
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.finish()?;
    check_uuid(&from, uuid)?;
    let ts = pinion_catalog::rename_collection(&cmd.ctx, from, to, drop_target).await?;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(ts), &mut out).await?;
    Ok(out)
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
    let mut list = VecDeque::new();
    for collection in core_catalog().current().collections_of(cmd.db()) {
        // The filter sees what is listed: with `nameOnly` there are no options to ask for.
        let info = collection_info(collection, name_only);
        if lists(&cmd.ctx, matcher.as_ref(), &info).await? {
            list.push_back(Bytes::from(info.into_bytes()));
        }
    }
    let mut out = Reply::new();
    let request = CursorRequest {
        ns: Namespace::new(cmd.db(), "$cmd.listCollections")?,
        uuid: None,
        indexes: Vec::new(),
        batch_size: Some(batch_size.unwrap_or(usize::MAX)),
        single_batch: false,
        no_timeout: false,
    };
    first_batch(&cmd, Stream::List(list), request, &mut out).await?;
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
        .append("type", "collection");
    if !name_only {
        out.append("options", &*collection.options);
        out.start_document("info")
            .append("readOnly", false)
            .append("uuid", collection.uuid.to_bson())
            .end();
        out.append("idIndex", &*Collection::id_index());
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
