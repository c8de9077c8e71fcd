//! `checkMetadataConsistency`: what the shards have of collections, compared with the catalog, and
//! the catalog compared with itself.
//!
//! Source: types of inconsistencies and their fields are MongoDB's.

mod inconsistency;

mod chunks;
mod cluster;
mod collections;
mod facts;
mod series;
#[cfg(test)]
mod tests;

pub use chunks::{RoutingFindings, check_chunks, check_zones};
pub use cluster::{ClusterCatalog, check_cluster};
pub use collections::{CatalogCollection, ShardFacts, check_collections};
pub use facts::{BareSeries, CollectionOnShard, KnownTable};
pub use inconsistency::{Inconsistencies, confirmed};
