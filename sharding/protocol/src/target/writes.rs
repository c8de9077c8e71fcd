//! Which shards a statement goes to that writes.
//!
//! Source: sharding document, "Routing"; which statements need the whole key is MongoDB's.

use std::collections::BTreeSet;

use pinion_bson::{RawDocument, rawdoc};
use pinion_query::Matcher;
use pinion_wire::{Error, ErrorCode, Result};

use crate::chunk::ShardIdx;
use crate::key::ShardKeyPattern;
use crate::table::RoutingTable;

/// A statement that changes documents which match a filter.
#[derive(Clone, Copy, Debug)]
pub struct ModifyStatement<'q> {
    pub matcher: &'q Matcher,
    pub is_multi: bool,
    pub is_upsert: bool,
    /// Whether the statement may go to several shards of which one has the document with its
    /// `_id`. In a transaction all of them would count as written.
    pub may_broadcast: bool,
}

/// How a statement that changes documents is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WritePlan {
    /// One shard owns all that the statement can match or insert.
    One(ShardIdx),
    /// It changes what matches at each of these shards.
    Each(BTreeSet<ShardIdx>),
    /// It changes the document with an `_id`, at whichever of these shards has it.
    ById(BTreeSet<ShardIdx>),
    /// It changes one of the documents that match at these shards, so that this has to be found
    /// first. What an upsert inserts may belong to another shard.
    Found(BTreeSet<ShardIdx>),
}

impl RoutingTable {
    /// The shard that owns a document which is inserted; of a measurement that which owns the
    /// bucket it opens.
    ///
    /// # Errors
    /// `ShardKeyNotFound` for a document without a key.
    pub fn target_insert(&self, document: &RawDocument) -> Result<ShardIdx> {
        let Some(series) = &self.time_series else {
            return self.owner(&self.key.key_of(document)?, None);
        };
        match series.bucket_origin(document) {
            Some(bucket) => self.owner(&self.key.key_of(&bucket)?, None),
            // Any shard refuses it.
            None => self.owner(&self.key.min(), None),
        }
    }

    /// The shards of a statement that changes documents.
    ///
    /// # Errors
    /// `ShardKeyNotFound` for an upsert of several documents whose filter does not name the whole
    /// key by equalities.
    pub fn target_modify(&self, statement: &ModifyStatement<'_>) -> Result<WritePlan> {
        let targeted = self.target(statement.matcher, None)?;
        let mut all = targeted.shards.iter();
        let only = match (all.next(), all.next()) {
            (Some(only), None) => Some(*only),
            _ => None,
        };
        if statement.is_upsert && targeted.key.is_none() {
            // What is inserted may belong to a shard that owns nothing of what matches.
            return match statement.is_multi {
                false => Ok(WritePlan::Found(targeted.shards)),
                true => Err(Error::new(
                    ErrorCode::SHARD_KEY_NOT_FOUND,
                    "Failed to target upsert by query :: could not extract exact shard key",
                )),
            };
        }
        Ok(match only {
            Some(only) => WritePlan::One(only),
            None if statement.is_multi => WritePlan::Each(targeted.shards),
            // There may be several measurements with an `_id`.
            None if self.time_series.is_none()
                && statement.may_broadcast
                && names_id(statement.matcher) =>
            {
                WritePlan::ById(targeted.shards)
            }
            None => WritePlan::Found(targeted.shards),
        })
    }

    /// The shards to which a statement still has to go that under an earlier table was executed by
    /// all targeted shards but `left`, each for all keys that it owned. `None` where no set of
    /// shards owns what is left and nothing that was done, as where a shard now owns keys of both,
    /// and where the table is of another life of the collection.
    pub fn shards_of_rest(
        &self,
        earlier: &RoutingTable,
        left: &BTreeSet<ShardIdx>,
        done: &BTreeSet<ShardIdx>,
    ) -> Option<BTreeSet<ShardIdx>> {
        if !self.of.is_same(earlier.of) || self.key != earlier.key {
            return None;
        }
        let (mut wanted, mut refused) = (BTreeSet::new(), BTreeSet::new());
        for chunk in self.chunks() {
            for before in earlier.overlapping(&chunk.range) {
                if left.contains(&before.shard) {
                    wanted.insert(chunk.shard);
                } else if done.contains(&before.shard) {
                    refused.insert(chunk.shard);
                }
            }
        }
        wanted.is_disjoint(&refused).then_some(wanted)
    }
}

/// Whether a filter names one `_id`.
fn names_id(matcher: &Matcher) -> bool {
    let by_id = ShardKeyPattern::parse(&rawdoc! { "_id": 1 }).expect("a pattern");
    let is_simple = matcher.collation().is_none();
    by_id.key_of_filter(matcher.filter(), is_simple).is_some()
}
