//! Writes: statements built beside the document they change, executed by storage, retried on
//! conflict.

mod backoff;
mod batch;
mod batch_uniqueness;
mod capped;
mod delete_by_plan;
mod document;
mod explain_update;
mod group;
mod insert;
mod internal_upsert;
mod modify;
mod multikey;
mod order;
mod perform;
mod prepare;
mod series;
mod shard_key;
mod target;
mod unit;
mod validation;

pub use batch::{BatchOutcome, StatementError, Upserted};
pub use capped::{beyond_bounds, insert_capped};
pub use delete_by_plan::{Deletion, DeletionTargets, delete_by_plan};
pub use document::{prepare_for_insert, update_context};
pub use insert::{InsertOptions, Stamps, insert_documents};
pub use internal_upsert::{upsert, upsert_by_id};
pub use modify::Change;
pub use series::{
    AllSeriesCounts, OpenBuckets, SeriesCounts, insert_measurements, open_buckets, series_counts,
    series_targets,
};
pub use target::{ModifyOutcome, ModifyStatement, parse_and_run, run, run_and_report, sort_beside};
pub use validation::Validation;
