//! Stages at the front of a pipeline that make their documents themselves.

mod catalog;
mod coll_stats;
mod current_op;
mod refusals;

use bytes::Bytes;
use pinion_bson::{RawArray, RawArrayBuf, RawBsonRef};
use pinion_query::{Document, MakesDocuments, Pipeline, Variables, stage_row};
use pinion_runtime::LocalBoxFuture;
use pinion_service::compute::compute;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use self::catalog::{Catalog, ClusterCatalog};
use self::coll_stats::CollStats;
use self::current_op::CurrentOp;
use super::stats::index_stats;
use crate::acquire::AcquiredCollection;
use crate::topology::is_member;

pub(super) use self::current_op::Shown;

/// A first stage that makes its documents itself.
#[derive(Clone, Debug)]
pub(super) enum FirstStage {
    CollStats(CollStats),
    CurrentOp(CurrentOp),
    /// `$documents`, with the pipeline that it stands in.
    Documents(RawArrayBuf),
    IndexStats,
    PlanCacheStats,
    Catalog(Catalog),
    ClusterCatalog(ClusterCatalog),
    /// `$listLocalSessions`; there are none of named users.
    Sessions {
        of_users: bool,
    },
    QuerySettings {
        with_shapes: bool,
    },
    /// A list of things that this node has none of: query statistics are sampled at a rate of zero,
    /// queries only in clusters.
    Nothing,
}

/// The namespace that a pipeline runs on.
#[derive(Clone, Copy)]
pub(super) struct PipelineTarget<'n> {
    pub ns: &'n Namespace,
    /// `{aggregate: 1}`: the first stage makes the documents.
    pub collectionless: bool,
}

impl PipelineTarget<'_> {
    /// Refuses a stage that wants a collection where there is none.
    fn needs_collection(&self, name: &str) -> Result<()> {
        if !self.collectionless {
            return Ok(());
        }
        Err(wrong_place(format!(
            "{{aggregate: 1}} is not valid for '{name}'; a collection is required."
        )))
    }

    /// Refuses a stage that shows what no collection holds where there is one.
    fn needs_none(&self, name: &str) -> Result<()> {
        if self.collectionless {
            return Ok(());
        }
        Err(wrong_place(format!(
            "'{name}' can only be run with {{aggregate: 1}}"
        )))
    }

    /// Refuses a stage that shows the whole node's state anywhere but on the database `admin`.
    fn needs_admin(&self, name: &str) -> Result<()> {
        if self.collectionless && self.ns.db() == "admin" {
            return Ok(());
        }
        Err(wrong_place(format!(
            "{name} must be run against the 'admin' database with {{aggregate: 1}}"
        )))
    }

    /// Refuses what stands in front of a pipeline, and reads a collection, where there is none.
    pub(super) fn check_front(&self, stages: &RawArray) -> Result<()> {
        match front(stages) {
            Some((name, _)) => self.needs_collection(name),
            None if self.collectionless => Err(wrong_place(
                "{aggregate: 1} is not valid for an empty pipeline.".into(),
            )),
            None => Ok(()),
        }
    }
}

fn wrong_place(message: String) -> Error {
    Error::new(ErrorCode::INVALID_NAMESPACE, message)
}

/// The name and the specification of the stage in front.
fn front(stages: &RawArray) -> Option<(&str, RawBsonRef<'_>)> {
    match pinion_bson::values(stages).next() {
        Some(RawBsonRef::Document(stage)) => pinion_bson::elements(stage).next(),
        _ => None,
    }
}

/// Reads the stage in front where it makes its documents itself.
pub(super) fn first_stage(
    stages: &RawArray,
    place: PipelineTarget<'_>,
) -> Result<Option<FirstStage>> {
    let Some((name, spec)) = front(stages).filter(|(name, _)| makes_documents(name)) else {
        return Ok(None);
    };
    Pipeline::check_form(stages)?;
    Ok(Some(match name {
        "$collStats" => FirstStage::CollStats(CollStats::parse(spec, place)?),
        "$currentOp" => FirstStage::CurrentOp(CurrentOp::parse(spec, place)?),
        "$listCatalog" => FirstStage::Catalog(Catalog::parse(spec, place)?),
        "$listClusterCatalog" => FirstStage::ClusterCatalog(ClusterCatalog::parse(spec, place)?),
        "$listLocalSessions" => refusals::local_sessions(spec, place)?,
        "$indexStats" => {
            refusals::index_stats(spec)?;
            place.needs_collection(name)?;
            FirstStage::IndexStats
        }
        "$planCacheStats" => {
            refusals::plan_cache_stats(spec)?;
            place.needs_collection(name)?;
            FirstStage::PlanCacheStats
        }
        "$querySettings" => {
            let with_shapes = refusals::query_settings(spec)?;
            place.needs_none(name)?;
            FirstStage::QuerySettings { with_shapes }
        }
        "$queryStats" => {
            refusals::query_stats(spec, place)?;
            FirstStage::Nothing
        }
        "$listSampledQueries" => {
            refusals::list_sampled_queries(spec, place)?;
            FirstStage::Nothing
        }
        _ => {
            pinion_query::check_documents(spec)?;
            place.needs_none(name)?;
            FirstStage::Documents(stages.to_owned())
        }
    }))
}

/// Whether a stage of this name is read here.
fn makes_documents(name: &str) -> bool {
    match stage_row(name).map_or(MakesDocuments::No, |row| row.makes_documents) {
        MakesDocuments::No => false,
        MakesDocuments::Yes => true,
        MakesDocuments::OnMembers => is_member(),
    }
}

/// The pipeline with a filter in the place of a `$listSessions` in front, where the collection of
/// sessions is read.
pub(super) fn without_list_sessions(
    stages: &RawArray,
    ns: &Namespace,
) -> Result<Option<RawArrayBuf>> {
    match front(stages) {
        Some(("$listSessions", spec)) if ns.as_str() == "config.system.sessions" => {
            Pipeline::check_form(stages)?;
            refusals::list_sessions(spec, stages).map(Some)
        }
        _ => Ok(None),
    }
}

/// The documents that a first stage makes.
pub(super) fn documents_of<'a>(
    ctx: &'a OpContext,
    stage: &'a FirstStage,
    acquired: &'a AcquiredCollection,
    vars: &'a Variables,
) -> LocalBoxFuture<'a, Result<Vec<Bytes>>> {
    Box::pin(async move {
        Ok(match stage {
            FirstStage::Documents(stages) => {
                let made = compute(ctx, || Pipeline::documents(stages, vars)).await?;
                let made = made.into_iter().flatten();
                made.map(Document::into_bytes).collect()
            }
            FirstStage::Nothing | FirstStage::Sessions { of_users: true } => Vec::new(),
            FirstStage::QuerySettings { with_shapes } => {
                super::query_settings::documents(ctx, *with_shapes).await?
            }
            FirstStage::Sessions { of_users: false } => super::sessions::list_local().await,
            FirstStage::CurrentOp(stage) => stage.documents().await,
            FirstStage::Catalog(stage) => stage.documents(ctx)?,
            FirstStage::ClusterCatalog(stage) => stage.documents(),
            FirstStage::IndexStats => match acquired.collection() {
                Some(collection) => index_stats(collection, acquired.series()).await,
                None => Vec::new(),
            },
            FirstStage::PlanCacheStats => match acquired.collection() {
                Some(collection) => super::plan_cache::stats(&collection.ns).await,
                None => Vec::new(),
            },
            FirstStage::CollStats(stage) => vec![stage.document(acquired).await?],
        })
    })
}
