//! `viewOn` and `pipeline`, of `create` and `collMod`.

use pinion_bson::{RawArray, RawArrayBuf, RawBsonRef};
use pinion_catalog::ViewDefinition;
use pinion_query::{InViews, Pipeline, StageRow, Variables};
use pinion_service::compute::compute;
use pinion_wire::idl::{FieldReader, Namespace};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::topology::is_member;

/// Reads a pipeline, whose elements must be documents. Null among them is passed over.
pub(in crate::commands) fn read_pipeline(
    reader: &FieldReader<'_, '_>,
) -> Result<Option<RawArrayBuf>> {
    let Some(stages) = reader.opt_objects("pipeline")? else {
        return Ok(None);
    };
    let mut pipeline = RawArrayBuf::new();
    for stage in stages {
        pipeline.push(RawBsonRef::Document(stage?.1));
    }
    Ok(Some(pipeline))
}

/// The definition of a view, checked as far as it can be without the other views.
pub(super) async fn definition(
    ctx: &OpContext,
    ns: &Namespace,
    on: &str,
    pipeline: Option<RawArrayBuf>,
) -> Result<ViewDefinition> {
    check_on(ns, on)?;
    let pipeline = pipeline.unwrap_or_default();
    check_pipeline(ctx, ns, &pipeline).await?;
    Ok(ViewDefinition {
        on: on.to_owned(),
        pipeline,
    })
}

/// Refuses what is no name of a collection.
pub(in crate::commands) fn check_on(ns: &Namespace, on: &str) -> Result<()> {
    if on.is_empty() {
        return Err(Error::bad_value("'viewOn' cannot be empty"));
    }
    Namespace::new(ns.db(), on).map(|_| ()).map_err(|_| {
        Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("invalid name for 'viewOn': {on}"),
        )
    })
}

/// Refuses a stage that no view can have.
fn check_stage(ns: &Namespace, at: usize, row: &StageRow) -> Result<()> {
    let name = row.name;
    let (code, message) = match row.in_views {
        InViews::Yes => return Ok(()),
        InViews::Output => (
            ErrorCode::OPTION_NOT_SUPPORTED_ON_VIEW,
            format!(
                "The aggregation stage {name} in location {at} of the pipeline cannot be used in the view definition of {ns}"
            ),
        ),
        InViews::WithoutCollection => (
            ErrorCode::INVALID_NAMESPACE,
            format!("'{name}' can only be run with {{aggregate: 1}}"),
        ),
        InViews::Stream if is_member() => (
            ErrorCode::OPTION_NOT_SUPPORTED_ON_VIEW,
            format!("{name} cannot be used in a view definition"),
        ),
        InViews::Stream => (
            ErrorCode(40573),
            format!("The {name} stage is only supported on replica sets"),
        ),
    };
    Err(Error::new(code, message))
}

/// Refuses a pipeline that no view can have: one that writes, or that does not begin with a
/// collection.
pub(in crate::commands) async fn check_pipeline(
    ctx: &OpContext,
    ns: &Namespace,
    pipeline: &RawArray,
) -> Result<()> {
    for (at, stage) in pinion_bson::values(pipeline).enumerate() {
        let row = match stage {
            RawBsonRef::Document(stage) => pinion_query::stage_row_of(stage),
            _ => None,
        };
        if let Some(row) = row {
            check_stage(ns, at, row)?;
        }
    }
    let variables = Variables {
        now_ms: Some(pinion_runtime::wall_ms()),
        // Whether there is one is found out when the view is read.
        cluster_time: Some(pinion_bson::Timestamp {
            time: 0,
            increment: 1,
        }),
        ..Variables::default()
    };
    let parse = || Pipeline::parse_from(pipeline, 0, &variables).map(|_| ());
    compute(ctx, parse).await
}
