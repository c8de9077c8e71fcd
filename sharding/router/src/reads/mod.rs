//! Reads of sharded collections: what is asked of each shard, and how their answers are put
//! together.

// A module uses those above it.

mod options;
mod part;
mod stream;
mod variables;

mod count;
mod distinct;
mod find;

mod pipeline;
mod sources;

mod explain;

pub(crate) use count::count;
pub(crate) use distinct::distinct;
pub(crate) use explain::explain;
pub(crate) use find::find;
pub(crate) use pipeline::aggregate;
