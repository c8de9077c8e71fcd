//! What the parts of a read give, merged in order, and the pipelines that run over that, wherever
//! the parts and the collections are: a node has them on its cores, a router on other nodes.

// A module uses those of its own group, in no circle, and of the groups above.

mod item;
mod limits;

mod order;

mod pipeline;
mod stream;

pub use item::{Batch, Item, OrderKey, PartCounters, StepSize};
pub use limits::{PART_BATCH_BYTES, PART_BATCH_DOCUMENTS};
pub use order::{MergeSpec, NextItem, OrderedMerge};
pub use pipeline::{Buffered, Node, Passes, PipelineStream, RunNode, Sources, Spool, step_run};
pub use stream::{MergeObserver, MergedStream, Part};
