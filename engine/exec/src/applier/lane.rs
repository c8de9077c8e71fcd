//! What one core has to apply, in order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use pinion_bson::RawDocument;
use pinion_catalog::{ApplyMode, core_catalog, stored_document};
use pinion_runtime::yield_if_due;
use pinion_storage::{ApplyError, storage};
use pinion_wire::Result;

use super::decode::Operations;
use super::documents::{Target, writes_of};
use super::entry::{Entry, damaged, document, operations, text};
use super::settings::Changed;
use crate::limits::{APPLY_BATCH_BYTES, APPLY_BATCH_ENTRIES};
use crate::state::state;

/// What a core has to do of one entry.
pub(super) struct Item {
    pub entry: Entry,
    pub operations: Operations,
}

/// The items of one core. A part of them is with it, all others wait.
#[derive(Default)]
pub(super) struct Lane {
    waiting: RefCell<VecDeque<Item>>,
    /// The number of the first entry that the core has now.
    under_way: Cell<Option<u64>>,
}

impl Lane {
    pub(super) fn push(&self, item: Item) {
        self.waiting.borrow_mut().push_back(item);
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.get().is_some()
    }

    /// The number of the first entry that is not applied; `None` if there is none.
    pub(super) fn floor(&self) -> Option<u64> {
        let waiting = || self.waiting.borrow().front().map(|item| item.entry.number);
        self.under_way.get().or_else(waiting)
    }

    /// What the core gets next, now that it is done with what it had. Empty if nothing waits.
    pub(super) fn next(&self) -> Vec<Item> {
        let mut waiting = self.waiting.borrow_mut();
        self.under_way
            .set(waiting.front().map(|item| item.entry.number));
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < APPLY_BATCH_ENTRIES
            && bytes < APPLY_BATCH_BYTES
            && let Some(item) = waiting.pop_front()
        {
            bytes += item.entry.bytes.len();
            batch.push(item);
        }
        batch
    }
}

/// Applies items whose documents this core owns; gives how many operations were passed over.
///
/// # Errors
/// The first that cannot be applied; those behind it are not.
pub(super) async fn apply_batch(
    batch: Vec<Item>,
    mode: ApplyMode,
) -> std::result::Result<u64, ApplyError> {
    let storage = storage();
    let pass = match mode {
        ApplyMode::Recovery => None,
        _ => {
            storage.wait_for_room().await;
            Some(core_catalog().gates().begin_change().await)
        }
    };
    let mut passed_over = 0;
    let mut elsewhere = Vec::new();
    let mut settings = Changed::default();
    for item in batch {
        let Item { entry, operations } = &item;
        let whole = stored_document(&entry.bytes);
        let done = for_each(whole, operations, async |operation, key| {
            let target = Target::with_key(operation, key, mode)?;
            let Some(writes) = writes_of(operation, &target, mode).await? else {
                passed_over += 1;
                return Ok(());
            };
            let others = storage.apply_here(entry.ts, writes).await;
            let others = others.map_err(|error| pinion_wire::Error::internal(error.0))?;
            elsewhere.extend(others.into_iter().map(|write| (entry.ts, write)));
            settings.note(&target.collection.ns);
            if mode != ApplyMode::Recovery {
                state().metrics.counters.applied(text(operation, "op")?);
            }
            if let Some(record) = target.record {
                state().capped.applied(target.collection.tree(), record);
            }
            Ok(())
        });
        done.await.map_err(|error| entry.failed(error))?;
        yield_if_due().await;
    }
    // What is written of unique indexes is keyed by its document, so it keeps its order behind that of the batch before.
    storage.apply_each(elsewhere).await?;
    // Behind the pass: what is read of them waits for gates as any read does.
    drop(pass);
    settings.take_effect(mode).await;
    Ok(passed_over)
}

/// Calls `f` with each of the operations, in their order, and its key.
async fn for_each(
    whole: &RawDocument,
    wanted: &Operations,
    mut f: impl AsyncFnMut(&RawDocument, pinion_storage::Key) -> Result<()>,
) -> Result<()> {
    let mut listed = None;
    for operation in wanted {
        let Some(place) = operation.place else {
            f(whole, operation.key.clone()).await?;
            continue;
        };
        if listed.is_none() {
            listed = operations(document(whole, "o")?)?.map(Iterator::enumerate);
        }
        let found = listed
            .as_mut()
            .and_then(|listed| listed.find(|(at, _)| *at == place));
        let (_, found) = found.ok_or_else(|| damaged("applyOps has lost an operation"))?;
        f(found?, operation.key.clone()).await?;
    }
    Ok(())
}
