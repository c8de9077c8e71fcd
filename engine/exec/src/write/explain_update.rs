//! What an update would do, for `explain`: worked out with all its errors, and not written.

use pinion_bson::RawDocument;
use pinion_service::compute::compute;
use pinion_wire::{OpContext, Result};

use super::document::{prepare_for_insert, update_context};
use super::modify::Change;
use super::target::{ModifyStatement, upserted};

impl ModifyStatement {
    /// Whether the statement would change this document, which its filter has found.
    pub(crate) async fn would_change(
        &self,
        ctx: &OpContext,
        document: &RawDocument,
    ) -> Result<bool> {
        let Change::Update(update) = &*self.change else {
            return Ok(true);
        };
        let matches = || self.matcher.matches_with_position(document);
        let Some(position) = compute(ctx, matches).await? else {
            return Ok(false);
        };
        let context = update_context(update, false, position.array_index);
        let changed = compute(ctx, || update.apply(document, &context)).await?;
        Ok(changed.is_some())
    }

    /// Whether the statement would insert a document, since its filter has found none.
    pub(crate) async fn would_upsert(&self, ctx: &OpContext) -> Result<bool> {
        let Change::Update(update) = &*self.change else {
            return Ok(false);
        };
        if !self.upsert {
            return Ok(false);
        }
        let made = upserted(ctx, self, update).await?;
        prepare_for_insert(&made, update.keeps_empty_timestamps()).await?;
        Ok(true)
    }
}
