//! Pipelines over the collections of this node: what their stages share, how they come to other
//! collections, and what is written.

mod output;
mod partial;
mod split;
mod sub;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::RawArray;
use pinion_catalog::Catalog;
use pinion_clock::Timestamp;
use pinion_merge::{Passes, Sources};
use pinion_query::{ExternalStage, Memory, Pipeline, TimeSeries, Variables};
use pinion_service::query_settings::QuerySettings;
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

pub(crate) use self::partial::collect_partial;
pub(crate) use self::split::{open_split, request_of};
use crate::acquire::NestedAcquisition;
use crate::read::ReadStream;
use crate::write::Validation;

/// Where the documents of a pipeline on this node come from.
pub type Node = pinion_merge::Node<Surroundings>;

/// The documents that come out of a pipeline on this node.
pub type PipelineStream = pinion_merge::PipelineStream<Surroundings>;

/// What the stages of one aggregation share.
pub struct Surroundings {
    /// What is read; stages in it may read the same again.
    pub(crate) ns: Namespace,
    /// The catalog in which the aggregation began: its stages find what had their names there,
    /// whatever is changed meanwhile.
    pub(crate) opened: Arc<Catalog>,
    pub(crate) vars: Variables,
    /// Whether validators look at what `$out` and `$merge` write.
    pub(crate) validation: Validation,
    /// What the stages may hold.
    pub(crate) memory: Memory,
    /// What `$out` makes, if that is a time series.
    pub(crate) out_series: Option<TimeSeries>,
    /// What plans may use.
    pub(crate) settings: Option<Arc<QuerySettings>>,
    /// Whether `$merge` writes into what the pipeline reads.
    pub(crate) merges_into_source: bool,
    /// When the last write of `$out` or `$merge` took place.
    pub(crate) written: Cell<Option<Timestamp>>,
}

impl Sources for Surroundings {
    type Read = ReadStream;
    type Held = NestedAcquisition;

    fn vars(&self) -> &Variables {
        &self.vars
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    async fn open(
        self: &Rc<Self>,
        ctx: &OpContext,
        from: Option<&str>,
        stages: &RawArray,
        vars: &Variables,
        passes: Passes,
    ) -> Result<(Node, Option<NestedAcquisition>)> {
        sub::open_pipeline(ctx, self, from, stages, (vars, passes)).await
    }

    async fn open_own(self: &Rc<Self>, ctx: &OpContext, pipeline: &Pipeline) -> Result<Node> {
        sub::open_own(ctx, self, pipeline).await
    }

    async fn write(
        self: &Rc<Self>,
        ctx: &OpContext,
        stage: &ExternalStage,
        source: Node,
    ) -> Result<()> {
        output::write(ctx, self, stage, source).await
    }
}
