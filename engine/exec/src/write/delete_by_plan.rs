//! Deletions of all documents that an access leads to, up to a number or a time.

use std::sync::Arc;

use pinion_catalog::core_catalog;
use pinion_query::Matcher;
use pinion_runtime::Instant;
use pinion_wire::{OpContext, Result};

use super::group::change_group;
use super::modify::{Change, ModifyRequest};
use super::shard_key::ownership_of_write;
use super::target::ModifyOutcome;
use super::validation::Validation;
use crate::acquire::AcquiredCollection;
use crate::limits::TARGET_GROUP;
use crate::read::{Access, Again, ReadRequest, open_ids};

/// What is deleted.
pub struct Deletion {
    pub access: Access,
    /// What a document that is found must still match when its turn comes.
    pub matcher: Matcher,
}

/// Where the deletions end, if something is left by then.
#[derive(Clone, Copy, Debug)]
pub struct DeletionTargets {
    pub documents: Option<usize>,
    pub until: Option<Instant>,
}

/// Deletes; counts what is deleted in `deleted`, also before an error. Gives whether there may be
/// more. While the node is locked against writes it does not continue.
pub async fn delete_by_plan(
    ctx: &OpContext,
    acquired: &AcquiredCollection,
    deletion: Deletion,
    targets: DeletionTargets,
    deleted: &mut u64,
) -> Result<bool> {
    let collection = acquired.collection().expect("asked by the caller");
    let request = Arc::new(ModifyRequest {
        collection: collection.clone(),
        ownership: ownership_of_write(acquired, false),
        matcher: deletion.matcher.clone(),
        change: Arc::new(Change::Delete),
        multi: true,
        validation: Validation::default(),
        wants_documents: false,
        is_lookup: false,
        stamp: None,
        from_migrate: false,
        reads: None,
    });
    let mut read = ReadRequest::new(acquired.target(collection), deletion.matcher);
    read.access = Some(deletion.access);
    read.limit = targets.documents;
    let mut keys = open_ids(ctx, acquired.source(), read, Again::Given).await?;
    let mut found = 0;
    loop {
        let mut group = Vec::new();
        while group.len() < TARGET_GROUP {
            match keys.next(ctx).await? {
                Some(key) => group.push(key),
                None => break,
            }
        }
        if group.is_empty() {
            return Ok(targets.documents.is_some_and(|most| found >= most));
        }
        found += group.len();
        let mut outcome = ModifyOutcome::default();
        let changed = change_group(ctx, &request, group, &mut Vec::new(), &mut outcome).await;
        *deleted += outcome.modified as u64;
        changed?;
        let is_over = |until| pinion_runtime::now() >= until;
        if targets.until.is_some_and(is_over) || core_catalog().gates().is_locked() {
            return Ok(true);
        }
    }
}
