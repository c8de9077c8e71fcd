//! `findAndModify`.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_catalog::{core_catalog, stored_document};
use pinion_query::{Matcher, Projection, Update};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, Invocation, Reply, Result};

use super::acknowledge;
use super::collections::check_uuid;
use super::refuse;
use super::update::{array_filters, check_modification};
use super::variables::variables;
use crate::compute::{compute, compute_bytes};
use crate::read::parse_hint;
use crate::state::state;
use crate::write::{Change, ModifyOutcome, ModifyStatement, run, sort_beside};

/// A parsed `findAndModify`.
pub(super) struct FindAndModify {
    pub ns: Namespace,
    pub statement: ModifyStatement,
    pub remove: bool,
    pub new: bool,
    pub projection: Option<Projection>,
}

/// Reads the command.
pub(super) async fn parse(
    cmd: &Invocation,
    body: &RawDocument,
    command: &str,
) -> Result<FindAndModify> {
    let reader = pinion_wire::idl::CommandReader::new(command, body)?;
    let ns = reader.namespace(command, cmd.db())?;
    let empty = pinion_bson::RawDocumentBuf::new();
    let query = reader.opt_doc("query")?.unwrap_or(&empty);
    let sort = reader.opt_doc("sort")?;
    let fields = reader.opt_doc("fields")?;
    let remove = reader.opt_safe_bool("remove")?.unwrap_or(false);
    let new = reader.opt_safe_bool("new")?.unwrap_or(false);
    let upsert = reader.opt_safe_bool("upsert")?.unwrap_or(false);
    let update = match reader.value("update") {
        None | Some(RawBsonRef::Null | RawBsonRef::Undefined) => None,
        Some(update) => Some(update),
    };
    let hint = parse_hint(reader.value("hint"))?;
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.opt_safe_bool("bypassDocumentValidation")?;
    let keep_empty_timestamps = reader
        .opt_safe_bool("bypassEmptyTsReplacement")?
        .unwrap_or(false);
    reader.opt_i32("stmtId")?;
    let filters = array_filters(&reader)?;
    refuse::collation(&reader)?;
    let vars = variables(&cmd.ctx, reader.opt_doc("let")?).await?;
    reader.ignore(&["runtimeConstants", "legacyRuntimeConstants"]);
    reader.unsupported("encryptionInformation")?;
    reader.finish()?;
    if remove {
        if update.is_some() {
            return Err(Error::failed_to_parse(
                "Cannot specify both an update and remove=true",
            ));
        }
        if filters.is_some_and(|filters| !filters.is_empty()) {
            return Err(Error::failed_to_parse(
                "Cannot specify arrayFilters and remove=true",
            ));
        }
        if upsert {
            return Err(Error::failed_to_parse(
                "Cannot specify both upsert=true and remove=true",
            ));
        }
        if new {
            return Err(Error::failed_to_parse(
                "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document",
            ));
        }
    }
    let change = match update {
        _ if remove => Change::Delete,
        Some(update) => {
            check_modification(update)?;
            let parse_update = || Update::parse_with(update, filters, &vars);
            Change::Update(
                compute(&cmd.ctx, parse_update)
                    .await?
                    .keeping_empty_timestamps(keep_empty_timestamps),
            )
        }
        None => {
            return Err(Error::failed_to_parse(
                "Either an update or remove=true must be specified",
            ));
        }
    };
    check_uuid(&ns, uuid)?;
    let matcher = compute(&cmd.ctx, || Matcher::parse_with(query, &vars)).await?;
    let sort = sort_beside(&matcher, query, sort)?;
    // Without a collection there is nothing to project, and MongoDB does not look at how.
    let is_explained = cmd.message.command_name() == "explain";
    let has_collection = core_catalog().get(&ns).is_some() || upsert && !is_explained;
    let projection = match fields {
        Some(fields) if has_collection && !fields.is_empty() => {
            let projection = compute(&cmd.ctx, || Projection::parse_find(fields, &vars)).await?;
            projection.check_filter(&matcher)?;
            if new && projection.needs_position() {
                return Err(Error::bad_value(
                    "cannot use a positional projection and return the new document",
                ));
            }
            Some(projection)
        }
        _ => None,
    };
    let statement = ModifyStatement {
        filter: compute_bytes(query.as_bytes().len(), || query.to_owned()).await,
        matcher,
        change: Arc::new(change),
        multi: false,
        upsert,
        hint,
        sort,
        wants_documents: true,
    };
    Ok(FindAndModify {
        ns,
        statement,
        remove,
        new,
        projection,
    })
}

/// `findAndModify`.
pub(crate) async fn find_and_modify(cmd: Invocation) -> Result<Reply> {
    let parsed = parse(&cmd, cmd.body(), cmd.message.command_name()).await?;
    let mut done = ModifyOutcome::default();
    run(&cmd.ctx, &parsed.ns, &parsed.statement, &mut done).await?;
    let counters = &state().metrics.counters;
    if parsed.remove {
        counters.documents_deleted.add(done.modified as u64);
    } else {
        counters.documents_updated.add(done.modified as u64);
    }
    counters
        .documents_inserted
        .add(u64::from(done.upserted.is_some()));
    let mut out = Reply::new();
    out.start_document("lastErrorObject");
    out.append(
        "n",
        done.matched as i32 + i32::from(done.upserted.is_some()),
    );
    if !parsed.remove {
        out.append("updatedExisting", done.matched > 0);
        if let Some(id) = &done.upserted {
            out.append("upserted", id.as_raw_bson_ref());
        }
    }
    out.end();
    let value = if parsed.new { &done.new } else { &done.old };
    match value {
        None => {
            out.append("value", RawBsonRef::Null);
        }
        Some(bytes) => {
            counters.documents_returned.inc();
            let document = stored_document(bytes);
            match &parsed.projection {
                Some(projection) => {
                    let apply = || projection.apply(document, None);
                    let projected = compute(&cmd.ctx, apply).await?;
                    let fields: &mut DocBuilder = &mut out;
                    let append = || {
                        fields.append("value", &*projected);
                    };
                    compute_bytes(projected.as_bytes().len(), append).await;
                }
                None => {
                    let fields: &mut DocBuilder = &mut out;
                    let append = || {
                        fields.append("value", document);
                    };
                    compute_bytes(bytes.len(), append).await;
                }
            };
        }
    }
    acknowledge(&cmd.ctx, done.last, &mut out).await?;
    Ok(out)
}
