//! `createIndexes`, `dropIndexes`, `listIndexes`.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{
    BuildInfo, CollectionOptions, Index, IndexSelection, IndexesCreated, core_catalog, listing_of,
    plan_indexes, series_index,
};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::acknowledge;
use super::create::refuse_configuration;
use super::cursors::{CursorRequest, batch_size_of, first_batch};
use super::namespace_args::named_or_uuid;
use crate::acquire::{acquire_stored, check_uuid};
use crate::open_transactions::{Running, not_empty, not_made};
use crate::parameters::parameters;
use crate::placement::indexes_settle;
use crate::read::Stream;
use crate::topology::{CommitQuorum, is_member, set_view};

/// `createIndexes`.
pub async fn create_indexes(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.namespace("createIndexes", cmd.db())?;
    // Read first: it says how the specifications are read.
    let ignore_unknown = reader
        .opt_safe_bool("ignoreUnknownIndexOptions")?
        .unwrap_or(false);
    let mut specs = Vec::new();
    match reader.opt_objects("indexes")? {
        None => {
            return Err(pinion_wire::idl::missing_field(
                reader.path().field("indexes"),
            ));
        }
        Some(objects) => {
            for object in objects {
                let spec = object?.1;
                specs.push(pinion_catalog::parse_index_spec(spec, ignore_unknown)?);
                if let Some(RawBsonRef::Document(engines)) = pinion_bson::get(spec, "storageEngine")
                {
                    refuse_configuration(engines)?;
                }
                pinion_runtime::yield_if_due().await;
            }
        }
    }
    let asked = reader
        .value("commitQuorum")
        .map(CommitQuorum::parse)
        .transpose()?;
    let quorum = match (set_view(), asked) {
        (None, None) => None,
        (None, Some(_)) => {
            return Err(Error::bad_value("Standalones can't specify commitQuorum"));
        }
        (Some(_), None) => Some(CommitQuorum::default()),
        (Some(view), Some(asked)) => {
            asked.check(&view)?;
            Some(asked)
        }
    };
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.ignore(&["v"]);
    reader.finish()?;
    if specs.is_empty() {
        return Err(Error::bad_value(
            "Must specify at least one index to create",
        ));
    }
    indexes_settle(&cmd.ctx, &ns).await?;
    check_uuid(&ns, uuid)?;
    pinion_catalog::check_creatable(&ns)?;
    pinion_catalog::check_index_specs(&specs)?;
    let limits = parameters().borrow().build_limits();
    let asked = quorum.as_ref().map(|quorum| {
        let mut asked = DocBuilder::new();
        quorum.append("commitQuorum", &mut asked);
        asked.finish()
    });
    let planned = match crate::open_transactions::of(&cmd.ctx) {
        Some(running) => plan(&running, &cmd.ctx, &ns, &specs).await?,
        None => None,
    };
    let made = match planned {
        Some(made) => made,
        None => {
            let making = pinion_catalog::create_indexes(&cmd.ctx, ns.clone(), specs, limits, asked);
            crate::open_transactions::changing(&cmd.ctx, &ns, making).await?
        }
    };
    let mut out = Reply::new();
    out.append("numIndexesBefore", made.before as i32)
        .append("numIndexesAfter", made.after as i32);
    if made.collection_made || made.after != made.before {
        out.append("createdCollectionAutomatically", made.collection_made);
        // What is built with its collection is built at once.
        if let Some(quorum) = quorum.filter(|_| !made.collection_made) {
            quorum.append("commitQuorum", &mut out);
        }
    }
    if made.after == made.before {
        out.append("note", "all indexes already exist");
    }
    acknowledge(&cmd.ctx, made.ts, &mut out).await?;
    Ok(out)
}

/// Makes indexes in a transaction, of a collection that it makes and has not written to. `None`
/// where all of them are there.
///
/// # Errors
/// `OperationNotSupportedInTransaction`.
async fn plan(
    running: &Running,
    ctx: &OpContext,
    ns: &Namespace,
    specs: &[RawDocumentBuf],
) -> Result<Option<IndexesCreated>> {
    let known = running.planned(ns);
    if known.is_none()
        && let Some(collection) = core_catalog().get(ns)
    {
        let is_there = |spec: &RawDocumentBuf| {
            spec.get_str("name")
                .is_ok_and(|name| name == "_id_" || collection.index(name).is_some())
        };
        return match specs.iter().all(is_there) {
            true => Ok(None),
            false => Err(not_made(ns)),
        };
    }
    let collection_made = known.is_none();
    if collection_made && !running.plan(ctx, ns, CollectionOptions::default()).await? {
        return Err(not_made(ns));
    }
    let planned = running.planned(ns).expect("it is planned by now");
    if running.has_written(planned.uuid) {
        return Err(not_empty(ns));
    }
    let before = planned.index_count();
    let planned = plan_indexes(ctx, planned, specs.to_vec()).await?;
    let after = planned.index_count();
    running.replan(planned);
    Ok(Some(IndexesCreated {
        before,
        after,
        collection_made,
        ts: None,
    }))
}

/// `dropIndexes` and `deleteIndexes`.
pub async fn drop_indexes(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.sought(cmd.message.command_name(), cmd.db())?;
    let index = reader
        .value("index")
        .ok_or_else(|| pinion_wire::idl::missing_field(reader.path().field("index")))?;
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.finish()?;
    let selection = match index {
        RawBsonRef::String("*") => IndexSelection::All,
        RawBsonRef::String(name) => IndexSelection::Names(vec![name.to_owned()]),
        RawBsonRef::Document(key) => IndexSelection::Key(key.to_owned()),
        RawBsonRef::Array(names) => {
            let mut list = Vec::new();
            for name in pinion_bson::values(names) {
                match name {
                    RawBsonRef::String(name) => list.push(name.to_owned()),
                    other => {
                        let path = reader.path().field("index");
                        return Err(pinion_wire::idl::wrong_type(
                            path.index(list.len()),
                            other,
                            pinion_wire::idl::Types::STRING,
                        ));
                    }
                }
            }
            if list == ["*"] {
                IndexSelection::All
            } else {
                IndexSelection::Names(list)
            }
        }
        other => {
            return Err(reader.wrong_type(
                "index",
                other,
                pinion_wire::idl::Types::Many(&["string", "object", "array"]),
            ));
        }
    };
    check_uuid(&ns, uuid)?;
    let all = matches!(selection, IndexSelection::All);
    let dropped = pinion_catalog::drop_indexes(&cmd.ctx, ns, selection).await?;
    let mut out = Reply::new();
    out.append("nIndexesWas", dropped.before as i32);
    if all {
        let message = match dropped.is_sharded {
            false => "non-_id indexes dropped for collection",
            true => "non-_id indexes and non-shard key indexes dropped for collection",
        };
        out.append("msg", message);
    }
    acknowledge(&cmd.ctx, dropped.ts, &mut out).await?;
    Ok(out)
}

/// `reIndex`.
pub async fn re_index(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.sought("reIndex", cmd.db())?;
    reader.finish()?;
    // Each member would do it at another time, and none of the others would know.
    if is_member() {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            format!(
                "reIndex is only allowed on a standalone mongod instance. Cannot reIndex '{ns}' while replication is active"
            ),
        ));
    }
    let (indexes, ts) = pinion_catalog::reindex(&cmd.ctx, ns).await?;
    let mut out = Reply::new();
    out.append("nIndexesWas", indexes.len() as i32)
        .append("nIndexes", indexes.len() as i32)
        .start_array("indexes");
    for index in &indexes {
        out.push(&**index);
    }
    out.end();
    acknowledge(&cmd.ctx, ts, &mut out).await?;
    Ok(out)
}

/// `listIndexes`.
pub(crate) async fn list_indexes(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = named_or_uuid(&reader, "listIndexes", cmd.db())?;
    let batch_size = batch_size_of(reader.opt_doc("cursor")?, "listIndexes")?;
    let uuids = reader.opt_safe_bool("includeBuildUUIDs")?.unwrap_or(false);
    let info = reader
        .opt_safe_bool("includeIndexBuildInfo")?
        .unwrap_or(false);
    reader.finish()?;
    if uuids && info {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "The 'includeBuildUUIDs' and 'includeIndexBuildInfo' options cannot both be set to true",
        ));
    }
    let acquired = acquire_stored(&cmd.ctx, ns.clone(), None).await?;
    let Some(collection) = acquired.collection() else {
        return Err(Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("ns does not exist: {ns}"),
        ));
    };
    let shown = match (uuids, info) {
        (true, _) => BuildShown::Uuid,
        (_, true) => BuildShown::Info(pinion_catalog::index_builds().await),
        _ => BuildShown::Nothing,
    };
    let as_seen = |stored: &RawDocument| match acquired.series() {
        Some(series) => Some(listing_of(&series_index(series, stored)?)),
        None => Some(listing_of(stored)),
    };
    let id_index = collection.id_index_in_tree();
    let id_index = id_index.and_then(|stored| as_seen(&stored));
    let others = collection.indexes.iter();
    let others = others.filter_map(|index| Some(shown.index(index, as_seen(&index.listed)?)));
    let list: VecDeque<Bytes> = (id_index.into_iter().chain(others))
        .map(|listed| Bytes::from(listed.into_bytes()))
        .collect();
    let mut out = Reply::new();
    let request = CursorRequest::of_list(ns, Some(batch_size.unwrap_or(usize::MAX)));
    first_batch(&cmd, Box::new(Stream::List(list)), request, &mut out).await?;
    Ok(out)
}

/// What `listIndexes` shows of the builds of indexes.
enum BuildShown {
    Nothing,
    Uuid,
    Info(Vec<BuildInfo>),
}

impl BuildShown {
    /// An index with this specification as it is listed: one that is being built with its build, if
    /// that is asked for.
    fn index(&self, index: &Index, listed: RawDocumentBuf) -> RawDocumentBuf {
        let Some(building) = &index.building else {
            return listed;
        };
        let mut out = DocBuilder::new();
        match self {
            BuildShown::Nothing => return listed,
            BuildShown::Uuid => {
                out.append("spec", &*listed)
                    .append("buildUUID", building.build.to_bson());
            }
            BuildShown::Info(builds) => {
                out.append("spec", &*listed)
                    .start_document("indexBuildInfo")
                    .append("buildUUID", building.build.to_bson());
                if let Some(info) = builds.iter().find(|info| info.uuid == building.build) {
                    let (name, number) = info.phase.name();
                    out.append("method", "Hybrid")
                        .append("phase", number)
                        .append("phaseStr", name)
                        .append("opid", info.op_id)
                        .append("resumable", true)
                        .start_document("replicationState")
                        .append("state", "In progress")
                        .end();
                }
                out.end();
            }
        }
        out.finish()
    }
}
