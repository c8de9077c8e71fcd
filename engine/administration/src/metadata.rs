//! `validateDBMetadata`: what of collections and indexes a version of the stable API does not have.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_catalog::{Collection, Index, View, core_catalog};
use pinion_exec::limits::MAX_METADATA_REPLY_BYTES;
use pinion_wire::idl::{FieldReader, Namespace, is_valid_database_name, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

/// `validateDBMetadata`.
pub(crate) async fn validate_db_metadata(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["validateDBMetadata"]);
    let db = reader.opt_str("db")?;
    let collection = reader.opt_str("collection")?;
    let api = reader
        .opt_object("apiParameters")?
        .ok_or_else(|| pinion_wire::idl::missing_field(reader.path().field("apiParameters")))?;
    let is_checked = is_strict_v1(&api)?;
    reader.finish()?;
    if let Some(db) = db
        && !is_valid_database_name(db)
    {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("Invalid database name: '{db}'"),
        ));
    }
    if let Some(name) = collection {
        Namespace::sought(db.unwrap_or(cmd.db()), name)?;
    }
    let mut out = Reply::new();
    out.start_array("apiVersionErrors");
    let mut complete = true;
    if is_checked {
        let catalog = core_catalog().current();
        let meant = |found: &&Arc<Collection>| {
            db.is_none_or(|db| db == found.ns.db())
                && collection.is_none_or(|name| name == found.ns.collection())
        };
        for found in catalog.collections().filter(meant) {
            pinion_runtime::yield_if_due().await;
            complete = out.len() < MAX_METADATA_REPLY_BYTES;
            if !complete {
                break;
            }
            check_collection(found, &mut out);
        }
        let meant = |found: &&Arc<View>| {
            db.is_none_or(|db| db == found.ns.db())
                && collection.is_none_or(|name| name == found.ns.collection())
        };
        for found in catalog.views().filter(meant) {
            pinion_runtime::yield_if_due().await;
            complete &= out.len() < MAX_METADATA_REPLY_BYTES;
            if !complete {
                break;
            }
            check_view(found, &mut out);
        }
    }
    out.end();
    if !complete {
        out.append("hasMoreErrors", true);
    }
    Ok(out)
}

/// Whether the parameters ask for the check of version 1: nothing else is refused in any version.
fn is_strict_v1(api: &FieldReader<'_, '_>) -> Result<bool> {
    api.only(&["version", "strict", "deprecationErrors"])?;
    let version = api.str("version")?;
    let strict = api.opt_bool("strict")?.unwrap_or(false);
    api.opt_bool("deprecationErrors")?;
    Ok(version == "1" && strict)
}

fn check_collection(collection: &Collection, out: &mut DocBuilder) {
    let refused = collection.indexes.iter().filter(|index| !is_in_v1(index));
    for index in refused {
        let message = format!(
            "The index with name {} is not allowed in API version 1.",
            index.name()
        );
        push_error(&collection.ns, &message, out);
    }
}

fn check_view(view: &View, out: &mut DocBuilder) {
    for stage in pinion_bson::values(&view.definition().pipeline) {
        if let RawBsonRef::Document(stage) = stage
            && let Some(name) = pinion_query::stage_outside_v1(stage)
        {
            let message = format!(
                "The pipeline of the view has the stage {name}, which is not allowed in API version 1."
            );
            push_error(&view.ns, &message, out);
        }
    }
}

fn push_error(ns: &Namespace, message: &str, out: &mut DocBuilder) {
    let code = ErrorCode::API_STRICT_ERROR;
    out.push_document()
        .append("ns", ns.as_str())
        .append("code", code.0)
        .append("codeName", code.name().as_ref())
        .append("errmsg", message)
        .end();
}

/// Version 1 has neither text indexes nor sparse ones.
fn is_in_v1(index: &Index) -> bool {
    let is_text = |(_, kind)| matches!(kind, RawBsonRef::String("text"));
    let listed = &index.listed;
    let key = match pinion_bson::get(listed, "key") {
        Some(RawBsonRef::Document(key)) => key,
        _ => return true,
    };
    !pinion_bson::get(listed, "sparse").is_some_and(truthy)
        && !pinion_bson::elements(key).any(is_text)
}
