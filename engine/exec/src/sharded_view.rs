//! Views that read sharded collections: a shard has only its part of them, so the router that sent
//! the read runs what the view stands for. Source: sharding catalog, "Router role".

use std::collections::BTreeSet;

use pinion_bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocumentBuf, rawdoc};
use pinion_catalog::{Catalog, ResolvedView, for_each_source};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::placement;

/// Refuses to resolve a view here one of whose stages reads a collection that is sharded.
///
/// # Errors
/// `StaleConfig`, as for the collection; those of views that cannot be resolved.
pub(crate) fn check_sources(ctx: &OpContext, catalog: &Catalog, view: &ResolvedView) -> Result<()> {
    if ctx.args.routing.is_none() {
        return Ok(());
    }
    let mut pending = vec![array_of(&view.pipeline)];
    // Views may branch: what is known is not examined again.
    let mut examined = BTreeSet::new();
    while let Some(stages) = pending.pop() {
        let mut sources = Vec::new();
        for_each_source(&stages, &mut |name| {
            sources.extend(Namespace::new(view.on.db(), name));
        });
        for ns in sources {
            if !examined.insert(ns.clone()) {
                continue;
            }
            match catalog.resolve_view(&ns)? {
                Some(below) => {
                    placement::check_nested(ctx, &below.on)?;
                    pending.push(array_of(&below.pipeline));
                }
                None => placement::check_nested(ctx, &ns)?,
            }
        }
    }
    Ok(())
}

fn array_of(stages: &[RawDocumentBuf]) -> RawArrayBuf {
    let mut all = RawArrayBuf::new();
    for stage in stages {
        all.push(RawBson::Document(stage.clone()));
    }
    all
}

/// The answer to a read of a view where a version that came with it is not that of what the view
/// reads: what the view stands for, which the router runs by the versions of that. An error that is
/// about something else stays as it is.
pub(crate) fn refusal(catalog: &Catalog, named: &Namespace, error: Error) -> Error {
    if error.code != ErrorCode::STALE_CONFIG {
        return error;
    }
    let Some(view) = catalog.view(named) else {
        return error;
    };
    let mut stages: Vec<RawDocumentBuf> = Vec::new();
    let (mut on, mut below) = (named.clone(), Some(view));
    // A time series is read by its name: how its buckets are unpacked is its shard's to know.
    while let Some(view) = below.filter(|view| view.options.time_series.is_none()) {
        let own = pinion_bson::values(&view.definition().pipeline);
        let own = own.filter_map(|stage| stage.as_document().map(|stage| stage.to_owned()));
        stages.splice(0..0, own);
        on = view.on();
        below = catalog.view(&on);
    }
    if on == *named {
        return error;
    }
    let collation = view.options.collation.as_deref();
    let collation = collation.map_or_else(|| rawdoc! { "locale": "simple" }, |own| own.to_owned());
    let mut resolved = pinion_bson::DocBuilder::new();
    resolved
        .start_document("resolvedView")
        .append("ns", on.as_str())
        .append_raw("pipeline", RawBsonRef::Array(&array_of(&stages)))
        .append("collation", &*collation)
        .end();
    Error::new(
        ErrorCode::COMMAND_ON_SHARDED_VIEW_NOT_SUPPORTED_ON_MONGOD,
        format!("Resolved views on sharded collections must be executed by mongos: {named}"),
    )
    .with_extra(resolved.finish())
}
