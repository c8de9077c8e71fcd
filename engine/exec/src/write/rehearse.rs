//! What an update would do, for `explain`: worked out with all its errors, and not written.

use pinion_bson::RawDocument;
use pinion_wire::Result;

use super::document::{prepare_for_insert, update_context};
use super::modify::Change;
use super::target::ModifyStatement;
use crate::state::state;

impl ModifyStatement {
    /// Whether the statement would change this document, which its filter has found.
    pub(crate) fn would_change(&self, document: &RawDocument) -> Result<bool> {
        let Change::Update(update) = &*self.change else {
            return Ok(true);
        };
        let Some(position) = self.matcher.matches_with_position(document)? else {
            return Ok(false);
        };
        let changed = update.apply(document, &update_context(false, position.array_index))?;
        Ok(changed.is_some())
    }

    /// Whether the statement would insert a document, since its filter has found none.
    pub(crate) fn would_upsert(&self) -> Result<bool> {
        let Change::Update(update) = &*self.change else {
            return Ok(false);
        };
        if !self.upsert {
            return Ok(false);
        }
        let made = update.upsert(
            &self.matcher,
            &update_context(true, None),
            state().new_object_id(),
        )?;
        prepare_for_insert(&made, update.keeps_empty_timestamps())?;
        Ok(true)
    }
}
