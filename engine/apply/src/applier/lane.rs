//! What one core has to apply, in order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use bytes::Bytes;
use pinion_bson::RawDocument;
use pinion_catalog::{ApplyMode, core_catalog, stored_document};
use pinion_exec::capped::capped_table;
use pinion_exec::limits::{APPLY_BATCH_BYTES, APPLY_BATCH_ENTRIES};
use pinion_exec::write::beyond_bounds;
use pinion_runtime::yield_if_due;
use pinion_service::metrics::metrics;
use pinion_storage::{ApplyError, storage};
use pinion_wire::Result;

use super::decode::{Operations, Place};
use super::documents::{Target, commit_write, writes_of};
use super::entry::{Entry, damaged, document, operations, text};
use super::settings::Changed;

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
            bytes += item.entry.len();
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
        let done = for_each(entry, operations, async |operation, key| {
            let Some(operation) = operation else {
                let writes = commit_write(stored_document(&entry.bytes))?;
                let others = storage.apply_here(entry.ts, writes).await;
                let others = others.map_err(|error| pinion_wire::Error::internal(error.0))?;
                assert!(others.is_empty(), "a record goes to its owner");
                return Ok(());
            };
            let mut target = Target::with_key(operation, key, mode)?;
            let is_unresolved = target.is_unresolved();
            if is_unresolved {
                let Some(resolved) = target.resolved(operation).await? else {
                    passed_over += 1;
                    return Ok(());
                };
                target = resolved;
            }
            let whole = stored_document(&entry.bytes);
            let Some(writes) = writes_of(operation, whole, &target, mode).await? else {
                passed_over += 1;
                return Ok(());
            };
            let others = storage.apply_here(entry.ts, writes).await;
            let others = others.map_err(|error| pinion_wire::Error::internal(error.0))?;
            elsewhere.extend(others.into_iter().map(|write| (entry.ts, write)));
            settings.note(&target.collection.ns, operation);
            if mode != ApplyMode::Recovery {
                metrics().counters.applied(text(operation, "op")?);
            }
            if let Some(record) = target.record {
                capped_table().applied(target.collection.tree(), record);
            }
            if is_unresolved && mode != ApplyMode::InitialSync {
                // Nor do entries say which documents are removed for it: each member finds those
                // itself.
                for writes in beyond_bounds(&target.collection).await? {
                    let others = storage.apply_here(entry.ts, writes).await;
                    let others = others.map_err(|error| pinion_wire::Error::internal(error.0))?;
                    assert!(
                        others.is_empty(),
                        "all of a capped collection is in one place"
                    );
                }
            }
            Ok(())
        });
        done.await.map_err(|error| entry.failed(error))?;
        yield_if_due().await;
    }
    // What is written of unique indexes is keyed by its document, so it keeps its order behind that
    // of the batch before.
    storage.apply_each(elsewhere).await?;
    // Behind the pass: what is read of them waits for gates as any read does.
    drop(pass);
    settings.take_effect(mode).await;
    Ok(passed_over)
}

/// Calls `f` with each of the operations, in their order, and its key; without one for the record
/// of a commit.
async fn for_each(
    entry: &Entry,
    wanted: &Operations,
    mut f: impl AsyncFnMut(Option<&RawDocument>, pinion_storage::Key) -> Result<()>,
) -> Result<()> {
    let parts: Vec<&Bytes> = entry.parts().collect();
    let mut listed = None;
    for operation in wanted {
        let key = operation.key.clone();
        let (part, place) = match operation.place {
            Place::Whole => {
                f(Some(stored_document(&entry.bytes)), key).await?;
                continue;
            }
            Place::Commit => {
                f(None, key).await?;
                continue;
            }
            Place::Listed { part, place } => (part, place),
        };
        if listed.as_ref().is_none_or(|(open, _)| *open != part) {
            let list = operations(document(stored_document(parts[part]), "o")?)?;
            listed = list.map(|list| (part, list.enumerate()));
        }
        let found = listed
            .as_mut()
            .and_then(|(_, list)| list.find(|(at, _)| *at == place));
        let (_, found) = found.ok_or_else(|| damaged("applyOps has lost an operation"))?;
        f(Some(found?), key).await?;
    }
    Ok(())
}
