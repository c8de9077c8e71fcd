//! The row of a collection as it is stored.

use pinion_runtime::{LocalBoxFuture, Queue, submit_to};
use pinion_storage::{CATALOG_TREE, PartitionId, ReadAt, storage};
use pinion_wire::{Error, ErrorCode, Result};

use crate::change::row_key;
use crate::entry::Collection;
use crate::errors::from_read_error;

/// The collection of this number as its row has it; `None` without a row.
///
/// # Errors
/// The row cannot be read or understood.
pub fn stored_collection(number: u64) -> LocalBoxFuture<'static, Result<Option<Collection>>> {
    const ROWS: PartitionId = PartitionId(0);
    Box::pin(async move {
        let owner = storage().owner(ROWS);
        let read = submit_to(owner, Queue::Background, move || async move {
            let owned = storage().partition(ROWS).expect("asked its owner");
            let key = row_key(number);
            // What a transaction has prepared is not there yet.
            owned.get(CATALOG_TREE, &key, ReadAt::NewestDecided).await
        });
        let Some(row) = read.await.map_err(from_read_error)? else {
            return Ok(None);
        };
        let damaged = |what: String| Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, what);
        let row = pinion_bson::validate(&row.value);
        let row = row.map_err(|error| damaged(format!("catalog row {number}: {error}")))?;
        let collection = Collection::from_row(row).map_err(|bad| damaged(bad.0))?;
        Ok(Some(collection))
    })
}
