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

mod output;
mod pipeline;
mod sources;
mod statistics;

mod explain;

mod change_stream;

pub(crate) use change_stream::change_stream;
pub(crate) use count::count;
pub(crate) use distinct::distinct;
pub(crate) use explain::{explain, explained_write};
pub(crate) use find::find;
pub(crate) use options::{CollationOption, parse_filter, snapshot_time};
pub(crate) use part::SORT_KEY;
pub(crate) use pipeline::{aggregate, check_output_at_shard};
pub(crate) use statistics::data_distribution;
pub(crate) use variables::variables;
