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

mod cluster_catalog;

mod explain;
mod views;

mod change_stream;

pub(crate) use change_stream::change_stream;
pub(crate) use cluster_catalog::cluster_catalog;
pub(crate) use count::count;
pub(crate) use distinct::distinct;
pub(crate) use explain::{explain, explained_write};
pub(crate) use find::{FindOf, find};
pub(crate) use options::{CollationOption, parse_filter, snapshot_time};
pub(crate) use part::SORT_KEY;
pub(crate) use pipeline::{aggregate, write_documents};
pub(crate) use statistics::{data_distribution, over_documents};
pub(crate) use variables::{definitions, reads_time, variables};
pub(crate) use views::{ResolvedView, explain_in_series, explain_view, find_in_series, read_view};
