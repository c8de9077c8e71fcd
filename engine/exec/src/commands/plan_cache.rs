//! `planCacheClear`, and the commands that set, clear and list index filters.
//!
//! As in MongoDB they pass over fields that they do not know, and do not even parse a command on a
//! collection that does not exist.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument, document_of};
use pinion_catalog::{Collection, Uuid, core_catalog};
use pinion_query::{IndexFilter, Projection, QueryShape, parse_collation};
use pinion_runtime::{CoreId, Queue};
use pinion_service::compute::compute;
use pinion_service::node_info::node_info;
use pinion_wire::idl::{CommandReader, Namespace};
use pinion_wire::{Error, Invocation, Reply, Result};

use super::variables::of_filter;
use crate::acquire::{AcquiredCollection, acquire_read};
use crate::plan_cache::{IndexFilters, SetFilter, ShownPlan, index_filters, plan_cache};
use crate::read::{ReadRequest, parse_sort};

/// `planCacheClear`.
pub async fn clear(cmd: Invocation) -> Result<Reply> {
    let (reader, acquired) = acquire(&cmd).await?;
    let Some(collection) = acquired.collection() else {
        return Ok(Reply::new());
    };
    let shape = match PlanCacheRequest::read_or_all(&reader)? {
        Some(asked) => Some(asked.shape(&cmd, &acquired, collection).await?),
        None => None,
    };
    forget_plans(collection.uuid, shape).await;
    Ok(Reply::new())
}

/// `planCacheSetFilter`.
pub async fn set_filter(cmd: Invocation) -> Result<Reply> {
    let (reader, acquired) = acquire(&cmd).await?;
    let Some(collection) = acquired.collection() else {
        return Err(Error::bad_value("no such collection"));
    };
    let filter = read_indexes(&reader)?;
    let asked = PlanCacheRequest::read(&reader)?;
    let shape = asked.shape(&cmd, &acquired, collection).await?;
    let owned =
        |document: Option<&RawDocument>| document.map(RawDocument::to_owned).unwrap_or_default();
    let set = Arc::new(SetFilter {
        query: asked.query.to_owned(),
        sort: owned(asked.sort),
        projection: owned(asked.projection),
        collation: owned(asked.collation),
        filter,
    });
    let uuid = collection.uuid;
    let of = shape.clone();
    change_filters(move |filters| filters.set(uuid, of.clone(), set.clone())).await?;
    forget_plans(uuid, Some(shape)).await;
    Ok(Reply::new())
}

/// `planCacheClearFilters`.
pub async fn clear_filters(cmd: Invocation) -> Result<Reply> {
    let (reader, acquired) = acquire(&cmd).await?;
    let Some(collection) = acquired.collection() else {
        return Ok(Reply::new());
    };
    let shape = match PlanCacheRequest::read_or_all(&reader)? {
        Some(asked) => Some(asked.shape(&cmd, &acquired, collection).await?),
        None => None,
    };
    let uuid = collection.uuid;
    let of = shape.clone();
    change_filters(move |filters| {
        filters.clear(uuid, of.as_ref());
        Ok(())
    })
    .await?;
    // Those of other shapes go as well where all filters do; they are found again.
    forget_plans(uuid, shape).await;
    Ok(Reply::new())
}

/// `planCacheListFilters`.
pub async fn list_filters(cmd: Invocation) -> Result<Reply> {
    let (_, acquired) = acquire(&cmd).await?;
    let mut out = Reply::new();
    out.start_array("filters");
    if let Some(collection) = acquired.collection() {
        for set in index_filters().borrow().list(collection.uuid) {
            out.push_document()
                .append("query", &*set.query)
                .append("sort", &*set.sort)
                .append("projection", &*set.projection);
            if !set.collation.is_empty() {
                out.append("collation", &*set.collation);
            }
            out.start_array("indexes");
            for key in &set.filter.keys {
                out.push(&**key);
            }
            for name in &set.filter.names {
                out.push(name.as_str());
            }
            out.end().end();
        }
    }
    out.end();
    Ok(out)
}

/// The collection that a command names in its own field.
async fn acquire(cmd: &Invocation) -> Result<(CommandReader<'_>, AcquiredCollection)> {
    let reader = cmd.reader()?;
    let ns = reader.sought(cmd.message.command_name(), cmd.db())?;
    let acquired = acquire_read(&cmd.ctx, ns, None).await?;
    Ok((reader, acquired))
}

/// A query that represents its shape.
struct PlanCacheRequest<'d> {
    query: &'d RawDocument,
    sort: Option<&'d RawDocument>,
    projection: Option<&'d RawDocument>,
    collation: Option<&'d RawDocument>,
}

/// An array is a document too, as MongoDB reads these fields.
fn object(value: RawBsonRef<'_>) -> Option<&RawDocument> {
    match value {
        RawBsonRef::Document(document) => Some(document),
        RawBsonRef::Array(array) => Some(document_of(array)),
        _ => None,
    }
}

impl<'d> PlanCacheRequest<'d> {
    fn read(reader: &CommandReader<'d>) -> Result<PlanCacheRequest<'d>> {
        let optional = |name: &str| match reader.value(name) {
            None => Ok(None),
            Some(value) => match object(value) {
                Some(document) => Ok(Some(document)),
                None => Err(Error::bad_value(format!(
                    "optional field {name} must be an object"
                ))),
            },
        };
        let Some(query) = reader.value("query") else {
            return Err(Error::bad_value("required field query missing"));
        };
        let Some(query) = object(query) else {
            return Err(Error::bad_value("required field query must be an object"));
        };
        let asked = PlanCacheRequest {
            query,
            sort: optional("sort")?,
            projection: optional("projection")?,
            collation: optional("collation")?,
        };
        if asked.collation.is_some_and(RawDocument::is_empty) {
            return Err(Error::bad_value(
                "optional field collation cannot be an empty object",
            ));
        }
        Ok(asked)
    }

    /// The query, if one is given; without one all are meant, and then nothing else may be given.
    fn read_or_all(reader: &CommandReader<'d>) -> Result<Option<PlanCacheRequest<'d>>> {
        if reader.has("query") {
            return PlanCacheRequest::read(reader).map(Some);
        }
        if ["sort", "projection", "collation"]
            .into_iter()
            .any(|name| reader.has(name))
        {
            return Err(Error::bad_value(
                "sort, projection, or collation provided without query",
            ));
        }
        Ok(None)
    }

    /// The shape, as a `find` of this query has it.
    async fn shape(
        &self,
        cmd: &Invocation,
        acquired: &AcquiredCollection,
        collection: &Arc<Collection>,
    ) -> Result<QueryShape> {
        let mut vars = of_filter();
        vars.collation = match self.collation {
            Some(spec) => parse_collation(spec)?,
            None => acquired.collation().cloned(),
        };
        let target = acquired.target(collection);
        let parse = || {
            let matcher = pinion_query::Matcher::parse_query(self.query, &vars)?;
            let parse = |spec| Projection::parse_find(spec, &vars);
            let projection = self.projection.map(parse).transpose()?;
            let mut request = ReadRequest::new(target.clone(), matcher);
            request.sort = parse_sort(self.sort, vars.collation.as_ref())?;
            request.projection = projection.filter(|p| !p.is_identity());
            Ok(QueryShape::of(&request.plan_request()))
        };
        compute(&cmd.ctx, parse).await
    }
}

fn read_indexes(reader: &CommandReader<'_>) -> Result<IndexFilter> {
    let items = match reader.value("indexes") {
        None => return Err(Error::bad_value("required field indexes missing")),
        Some(RawBsonRef::Array(items)) => items,
        Some(_) => return Err(Error::bad_value("required field indexes must be an array")),
    };
    let mut filter = IndexFilter::default();
    for item in pinion_bson::values(items) {
        match item {
            RawBsonRef::Document(key) if key.is_empty() => {
                return Err(Error::bad_value("index specification cannot be empty"));
            }
            RawBsonRef::Document(key) => filter.keys.push(key.to_owned()),
            RawBsonRef::String(name) => filter.names.push(name.to_owned()),
            _ => {
                return Err(Error::bad_value(
                    "each item in indexes must be an object or string",
                ));
            }
        }
    }
    if filter.keys.is_empty() && filter.names.is_empty() {
        return Err(Error::bad_value(
            "required field indexes must contain at least one index",
        ));
    }
    filter.names.sort();
    filter.names.dedup();
    filter
        .keys
        .sort_by(|a, b| pinion_bson::compare_documents(a, b));
    filter
        .keys
        .dedup_by(|a, b| pinion_bson::compare_documents(a, b).is_eq());
    Ok(filter)
}

/// Changes the filters of every core alike: one change at a time, and none where the first core
/// refuses it.
async fn change_filters(
    change: impl Fn(&mut IndexFilters) -> Result<()> + Clone + Send + Sync + 'static,
) -> Result<()> {
    pinion_runtime::submit_to(CoreId(0), Queue::Foreground, move || async move {
        let _turn = index_filters().turn.acquire().await;
        let catalog = core_catalog().current();
        let mut changed = index_filters().borrow().clone();
        changed.keep(|uuid| catalog.by_uuid(uuid).is_some());
        change(&mut changed)?;
        let changed = Arc::new(changed);
        pinion_runtime::on_all_cores(move |_| {
            let changed = changed.clone();
            async move {
                *index_filters().borrow_mut() = IndexFilters::clone(&changed);
            }
        })
        .await;
        Ok(())
    })
    .await
}

/// Forgets the plans of a shape, or of all queries of a collection, on every core.
async fn forget_plans(uuid: Uuid, shape: Option<QueryShape>) {
    pinion_runtime::on_all_cores(move |_| {
        let shape = shape.clone();
        async move { plan_cache().clear(uuid, shape.as_ref()) }
    })
    .await;
}

/// What `$planCacheStats` gives: one document for each plan. Where several cores have one for the
/// same queries, that which is in use is shown, or else the latest.
pub(super) async fn stats(ns: &Namespace) -> Vec<Bytes> {
    let ns = ns.clone();
    let of_cores = pinion_runtime::on_all_cores(move |_| {
        let ns = ns.clone();
        async move {
            let info = node_info();
            let shown = |collection: Arc<Collection>| {
                plan_cache().shown(collection.uuid, &collection, &info.options.host)
            };
            core_catalog().get(&ns).map(shown).unwrap_or_default()
        }
    })
    .await;
    let mut found: BTreeMap<String, ShownPlan> = BTreeMap::new();
    for plan in of_cores.into_iter().flatten() {
        let rank = |plan: &ShownPlan| (plan.is_active, plan.created_ms);
        match found.get(&plan.key) {
            Some(other) if rank(other) >= rank(&plan) => {}
            _ => {
                found.insert(plan.key.clone(), plan);
            }
        }
    }
    let documents = found.into_values().map(|plan| plan.document.into_bytes());
    documents.map(Bytes::from).collect()
}
