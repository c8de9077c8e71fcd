//! Which shards an operation has to ask: those that own keys of the documents which its filter may
//! match.
//!
//! Source: sharding document, "Routing"; the rules of collations are MongoDB's.

mod writes;

use std::collections::BTreeSet;

use pinion_clock::Timestamp;
use pinion_query::Matcher;
use pinion_wire::Result;

use crate::chunk::ShardIdx;
use crate::key::{KeyBytes, MatchedKeys};
use crate::series::stored_filter;
use crate::table::RoutingTable;

pub use writes::{ModifyStatement, WritePlan};

/// The shards of an operation, at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetedShards {
    pub shards: BTreeSet<ShardIdx>,
    /// The key, where all documents that match have the same one.
    pub key: Option<KeyBytes>,
}

impl RoutingTable {
    /// The shards that own what a filter may match at a time; now without one. A filter that
    /// nothing matches has one shard too, which answers with nothing.
    ///
    /// # Errors
    /// `StaleChunkHistory` where the history of a chunk does not reach back to the time.
    pub fn target(&self, matcher: &Matcher, at: Option<Timestamp>) -> Result<TargetedShards> {
        let mut key = None;
        let stored = stored_filter(self.time_series.as_ref(), matcher)?;
        let mut shards = match self.key.matched_keys(&stored)? {
            MatchedKeys::Any => self.all_shards(at)?,
            MatchedKeys::Ranges(ranges) => self.shards_of(&ranges, at)?,
            MatchedKeys::One(one) => {
                let owner = self.owner(&one, at)?;
                key = Some(one);
                BTreeSet::from([owner])
            }
        };
        if shards.is_empty() {
            shards.insert(self.owner(&self.key.min(), at)?);
        }
        Ok(TargetedShards { shards, key })
    }
}

#[cfg(test)]
mod tests;
