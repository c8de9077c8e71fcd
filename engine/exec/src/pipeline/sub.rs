//! Pipelines that stages run over other collections.

use std::rc::Rc;

use pinion_bson::{RawArray, RawArrayBuf, RawBson};
use pinion_merge::Passes;
use pinion_query::{Pipeline, Variables};
use pinion_service::compute::compute;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, OpContext, Result};

use super::split::{open_split, request_of};
use super::{Node, Surroundings};
use crate::acquire::{NestedAcquisition, ReadTarget, acquire_nested, check_view};

/// A pipeline over another collection; without one the stages make their documents. The second
/// value keeps the collection from being dropped while it is read.
pub(super) async fn open_pipeline(
    ctx: &OpContext,
    around: &Rc<Surroundings>,
    from: Option<&str>,
    stages: &RawArray,
    (vars, passes): (&Variables, Passes),
) -> Result<(Node, Option<NestedAcquisition>)> {
    let parse = |stages: &RawArray| {
        let made = Pipeline::documents(stages, vars)?;
        Ok((made, Pipeline::parse_sub(stages, vars)?))
    };
    let (made, mut pipeline) = compute(ctx, || parse(stages)).await?;
    let inner = |vars: &Variables, ns: Namespace| {
        Rc::new(Surroundings {
            ns,
            opened: around.opened.clone(),
            vars: vars.clone(),
            validation: around.validation,
            memory: around.memory.clone(),
            out_series: None,
            settings: around.settings.clone(),
            merges_into_source: false,
            written: Default::default(),
        })
    };
    let Some(from) = from else {
        let list = made.into_iter().flatten().collect();
        let around = inner(vars, around.ns.clone());
        return Ok((Node::chain(Node::List(list), pipeline, &around), None));
    };
    if made.is_some() {
        return Err(Error::new(
            pinion_wire::ErrorCode::INVALID_NAMESPACE,
            "$documents is only valid for a pipeline without a collection",
        ));
    }
    let Ok(ns) = Namespace::new(around.ns.db(), from) else {
        // No collection can be called that.
        let around = inner(vars, around.ns.clone());
        return Ok((Node::chain(Node::nothing(), pipeline, &around), None));
    };
    let held = acquire_nested(ctx, &ns, &around.ns, &around.opened).await?;
    if let Some(view) = held.view() {
        check_view(&ns, view, vars.collation.as_ref())?;
    }
    let around = inner(vars, ns);
    if let Some(view) = held.view() {
        let mut behind = RawArrayBuf::new();
        for stage in &view.pipeline {
            behind.push(stage.clone());
        }
        for stage in pinion_bson::values(stages) {
            behind.push(RawBson::from(stage));
        }
        (_, pipeline) = compute(ctx, || parse(&behind)).await?;
    }
    let node = open_over(ctx, &around, &held, (pipeline, passes)).await?;
    Ok((node, Some(held)))
}

/// A pipeline over the collection that its surroundings are about.
pub(super) async fn open_own(
    ctx: &OpContext,
    around: &Rc<Surroundings>,
    pipeline: &Pipeline,
) -> Result<Node> {
    let held = acquire_nested(ctx, &around.ns, &around.ns, &around.opened).await?;
    open_over(ctx, around, &held, (pipeline.clone(), Passes::LetGo)).await
}

/// A pipeline over what was acquired.
async fn open_over(
    ctx: &OpContext,
    around: &Rc<Surroundings>,
    held: &NestedAcquisition,
    (pipeline, passes): (Pipeline, Passes),
) -> Result<Node> {
    let Some(collection) = held.collection().cloned() else {
        return Ok(Node::chain(Node::nothing(), pipeline, around));
    };
    let vars = &around.vars;
    let split = || {
        let mut pipeline = pipeline.clone();
        let collation = collection.collation.as_ref();
        pipeline.locate(collection.index_specs(), collation, collection.ns.as_str())?;
        pipeline.split(Some(collection.index_specs()), vars)
    };
    let split = compute(ctx, split).await?;
    // A collection that is sharded was refused.
    let mut request = request_of(&split, ReadTarget::unfiltered(collection));
    request.allow_disk_use = Some(around.memory.disk);
    request.settings = around.settings.clone();
    request.is_unguarded = passes == Passes::LetGo;
    let makes_groups = passes == Passes::LetGo;
    let wanted = (usize::MAX, makes_groups);
    let opening = open_split(ctx, held.source(), request, split, wanted, around);
    let opened = Box::pin(opening).await?;
    Ok(Node::chain(opened.source, opened.merger, around))
}
