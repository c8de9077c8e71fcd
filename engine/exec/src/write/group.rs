//! Documents of a statement that changes several: they are prepared on all their owners at once and
//! written in their order, so that behind the first that fails nothing is changed, on however many
//! partitions they lie.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pinion_catalog::partition_of;
use pinion_query::MultikeyPaths;
use pinion_runtime::{CoreId, Queue};
use pinion_storage::{Key, Statement, TreeId, WriteError, storage};
use pinion_wire::{Error, OpContext, Result};

use super::backoff::Backoff;
use super::modify::{Modified, ModifyRequest, retry};
use super::prepare::{Prepared, PreparedChange, prepare};
use super::target::ModifyOutcome;
use crate::limits::{MODIFY_STEP_STATEMENTS, MODIFY_STEP_WRITES, PREPARED_BYTES};

/// Why not all of a group was written.
enum Stop {
    /// The next one is not prepared yet.
    Unprepared,
    Multikey(Vec<(TreeId, MultikeyPaths)>),
    /// The next one was refused by storage.
    Refused(Box<PreparedChange>, WriteError),
    Failed(Error),
}

/// Changes a group of documents. Returns the indexes that must be multikey for the next of those
/// that it leaves in `waiting`.
///
/// # Errors
/// Those of the first document that fails; the ones before it are changed, and counted in `outcome`.
pub(super) async fn change_group(
    ctx: &OpContext,
    request: &Arc<ModifyRequest>,
    group: Vec<Key>,
    waiting: &mut Vec<Key>,
    outcome: &mut ModifyOutcome,
) -> Result<Vec<(TreeId, MultikeyPaths)>> {
    let mut left: VecDeque<Key> = group.into();
    let mut backoff = Backoff::default();
    while !left.is_empty() {
        let prepared = prepare_all(ctx, request, left.make_contiguous()).await;
        let (done, stop) = write_in_order(prepared, outcome).await;
        left.drain(..done);
        if done > 0 {
            backoff = Backoff::default();
        }
        match stop {
            None | Some(Stop::Unprepared) => {}
            Some(Stop::Multikey(trees)) => {
                waiting.extend(left);
                return Ok(trees);
            }
            Some(Stop::Refused(change, error)) => {
                retry(&mut backoff, &request.collection, &change, error, ctx).await?;
            }
            Some(Stop::Failed(error)) => return Err(error),
        }
    }
    Ok(Vec::new())
}

/// Prepares documents on all their owners, of each up to the first that fails or as much as may be
/// held; what is not prepared is `None`. The first one is.
async fn prepare_all(
    ctx: &OpContext,
    request: &Arc<ModifyRequest>,
    keys: &[Key],
) -> Vec<Option<Result<Prepared>>> {
    let mut by_owner: BTreeMap<CoreId, Vec<(usize, Key)>> = BTreeMap::new();
    for (place, key) in keys.iter().enumerate() {
        let owner = storage().owner(partition_of(&request.collection, key));
        by_owner
            .entry(owner)
            .or_default()
            .push((place, key.clone()));
    }
    let owners = by_owner.into_iter().map(|(owner, keys)| {
        let (request, ctx) = (request.clone(), ctx.clone());
        pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
            prepare_here(&request, keys, &ctx).await
        })
    });
    let mut all: Vec<Option<Result<Prepared>>> = keys.iter().map(|_| None).collect();
    for (place, prepared) in pinion_runtime::join_all(owners).await.into_iter().flatten() {
        all[place] = Some(prepared);
    }
    all
}

async fn prepare_here(
    request: &ModifyRequest,
    keys: Vec<(usize, Key)>,
    ctx: &OpContext,
) -> Vec<(usize, Result<Prepared>)> {
    let mut all = Vec::with_capacity(keys.len());
    let mut bytes = 0;
    for (place, key) in keys {
        let partition = partition_of(&request.collection, &key);
        let prepared = prepare(request, partition, &key, ctx).await;
        bytes += prepared.as_ref().map_or(0, Prepared::bytes);
        let is_last = bytes >= PREPARED_BYTES
            || !matches!(prepared, Ok(Prepared::Nothing(_) | Prepared::Change { .. }));
        all.push((place, prepared));
        if is_last {
            break;
        }
        pinion_runtime::yield_if_due().await;
    }
    all
}

/// Writes what is prepared, up to the first that cannot be. How many are done, and why no more.
async fn write_in_order(
    prepared: Vec<Option<Result<Prepared>>>,
    outcome: &mut ModifyOutcome,
) -> (usize, Option<Stop>) {
    let mut done = 0;
    let mut stop = None;
    let mut step = Step::default();
    for prepared in prepared {
        stop = match prepared {
            Some(Ok(Prepared::Nothing(modified))) => {
                step.items.push(Item::Nothing(modified));
                None
            }
            Some(Ok(Prepared::Change { change, statement })) => {
                step.push(change, statement);
                None
            }
            Some(Ok(Prepared::NeedsMultikey(trees))) => Some(Stop::Multikey(trees)),
            Some(Err(error)) => Some(Stop::Failed(error)),
            None => Some(Stop::Unprepared),
        };
        if stop.is_some() {
            break;
        }
        if step.is_full() {
            let (written, refused) = std::mem::take(&mut step).write(outcome).await;
            done += written;
            if refused.is_some() {
                return (done, refused);
            }
        }
    }
    let (written, refused) = step.write(outcome).await;
    (done + written, refused.or(stop))
}

/// What storage executes together.
#[derive(Default)]
struct Step {
    items: Vec<Item>,
    statements: Vec<Statement>,
    writes: usize,
}

enum Item {
    Nothing(Modified),
    Change(Box<PreparedChange>),
}

impl Step {
    fn push(&mut self, change: PreparedChange, statement: Statement) {
        self.items.push(Item::Change(Box::new(change)));
        self.writes += statement.writes.len();
        self.statements.push(statement);
    }

    fn is_full(&self) -> bool {
        self.statements.len() >= MODIFY_STEP_STATEMENTS || self.writes >= MODIFY_STEP_WRITES
    }

    /// How many of the documents are done, and the first one that was refused.
    async fn write(self, outcome: &mut ModifyOutcome) -> (usize, Option<Stop>) {
        let mut results = match self.statements.is_empty() {
            true => Vec::new(),
            false => storage().execute(self.statements, true).await,
        }
        .into_iter();
        let all = self.items.len();
        for (done, item) in self.items.into_iter().enumerate() {
            let change = match item {
                Item::Nothing(modified) => {
                    outcome.count(modified);
                    continue;
                }
                Item::Change(change) => change,
            };
            match results.next().expect("each statement has one result") {
                Ok(ts) => {
                    outcome.count(change.done(ts, false));
                }
                Err(error) => return (done, Some(Stop::Refused(change, error))),
            }
        }
        (all, None)
    }
}
