//! Writes: statements built beside the document they change, executed by storage, retried on
//! conflict.

mod backoff;
mod batch;
mod capped;
mod claims;
mod document;
mod group;
mod insert;
mod modify;
mod multikey;
mod order;
mod perform;
mod prepare;
mod put;
mod rehearse;
mod series;
mod target;
mod through;
mod unit;
mod validation;

pub use batch::{BatchOutcome, Upserted};
pub use capped::{beyond_bounds, insert_capped};
pub use document::{prepare_for_insert, update_context};
pub use insert::{InsertOptions, Stamps, insert_documents};
pub use modify::Change;
pub use put::{put, put_document};
pub use series::{
    AllSeriesCounts, OpenBuckets, SeriesCounts, insert_measurements, open_buckets, series_counts,
    series_targets,
};
pub use target::{ModifyOutcome, ModifyStatement, run, run_and_report, sort_beside};
pub use through::{Deletion, DeletionTargets, delete_through};
pub use validation::Validation;
