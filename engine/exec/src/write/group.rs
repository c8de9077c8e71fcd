//! Documents of a statement that changes several: they are prepared on all their owners at once and
//! written in their order, so that behind the first that fails nothing is changed, on however many
//! partitions they lie. A document that meets another writer, or finds no memory, is tried again
//! when those behind it may be changed already.

use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_catalog::partition_of;
use pinion_clock::Timestamp;
use pinion_query::MultikeyPaths;
use pinion_runtime::{CoreId, Queue};
use pinion_service::session_ids::is_in;
use pinion_storage::{Expect, Key, Statement, TreeId, Write, WriteError, storage};
use pinion_wire::{Error, OpContext, Result};

use super::backoff::Backoff;
use super::modify::{ModifyRequest, retry};
use super::perform;
use super::prepare::{Prepared, PreparedChange, prepare};
use super::target::ModifyOutcome;
use crate::limits::{MODIFY_STEP_STATEMENTS, MODIFY_STEP_WRITES, PREPARED_BYTES};

/// Why not all of a group was written.
enum Stop {
    /// The next one is not prepared yet.
    Unprepared,
    Multikey(Vec<(TreeId, MultikeyPaths)>),
    /// The first one that storage has refused.
    Refused(Box<PreparedChange>, WriteError),
    Failed(Error),
}

/// Changes a group of documents. Returns the indexes that must be multikey for the next of those
/// that it leaves in `waiting`.
///
/// # Errors
/// Those of the first document that fails; the ones before it are changed, and counted in
/// `outcome`.
pub(super) async fn change_group(
    ctx: &OpContext,
    request: &Arc<ModifyRequest>,
    mut left: Vec<Key>,
    waiting: &mut Vec<Key>,
    outcome: &mut ModifyOutcome,
) -> Result<Vec<(TreeId, MultikeyPaths)>> {
    let mut backoff = Backoff::default();
    while !left.is_empty() {
        let prepared = prepare_all(ctx, request, &left).await;
        let (places, stop) = write_in_order(ctx, prepared, outcome).await;
        if places.len() < left.len() {
            backoff = Backoff::default();
        }
        left = places
            .into_iter()
            .map(|place| left[place].clone())
            .collect();
        match stop {
            None | Some(Stop::Unprepared) => {}
            Some(Stop::Multikey(trees)) => {
                waiting.append(&mut left);
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

/// Writes what is prepared, up to the first that cannot be. The places of those that are left, and
/// why they are.
async fn write_in_order(
    ctx: &OpContext,
    prepared: Vec<Option<Result<Prepared>>>,
    outcome: &mut ModifyOutcome,
) -> (Vec<usize>, Option<Stop>) {
    let all = prepared.len();
    let mut stop = None;
    let mut step = Step::default();
    // Where what is not in a step yet begins.
    let mut begin = 0;
    for (place, prepared) in prepared.into_iter().enumerate() {
        stop = match prepared {
            Some(Ok(Prepared::Nothing(modified))) => {
                outcome.count(modified);
                None
            }
            Some(Ok(Prepared::Change { change, statement })) => {
                step.push(place, change, statement);
                None
            }
            Some(Ok(Prepared::NeedsMultikey(trees))) => Some(Stop::Multikey(trees)),
            Some(Err(error)) => Some(Stop::Failed(error)),
            None => Some(Stop::Unprepared),
        };
        if stop.is_some() {
            break;
        }
        begin = place + 1;
        if step.is_full() {
            let (mut left, refused) = std::mem::take(&mut step).write(ctx, outcome).await;
            if refused.is_some() {
                left.extend(begin..all);
                return (left, refused);
            }
        }
    }
    let (mut left, refused) = step.write(ctx, outcome).await;
    left.extend(begin..all);
    (left, refused.or(stop))
}

/// What is executed together.
#[derive(Default)]
struct Step {
    changes: Vec<(usize, PreparedChange)>,
    statements: Vec<Statement>,
    writes: usize,
}

impl Step {
    fn push(&mut self, place: usize, change: PreparedChange, statement: Statement) {
        self.changes.push((place, change));
        self.writes += statement.writes.len();
        self.statements.push(statement);
    }

    fn is_full(&self) -> bool {
        self.statements.len() >= MODIFY_STEP_STATEMENTS || self.writes >= MODIFY_STEP_WRITES
    }

    /// The places of what was refused, and the first of them.
    async fn write(
        self,
        ctx: &OpContext,
        outcome: &mut ModifyOutcome,
    ) -> (Vec<usize>, Option<Stop>) {
        let results = match is_in(ctx) {
            false => execute(self.statements).await,
            true => perform::execute(ctx, self.statements, true).await,
        };
        assert_eq!(results.len(), self.changes.len(), "each has one result");
        let (mut left, mut refused) = (Vec::new(), None);
        for ((place, change), result) in self.changes.into_iter().zip(results) {
            match result {
                Ok(ts) => {
                    outcome.count(change.done(ts, false));
                }
                Err(error) => {
                    left.push(place);
                    refused.get_or_insert_with(|| Stop::Refused(Box::new(change), error));
                }
            }
        }
        (left, refused)
    }
}

/// Executes statements in their order; those behind one that is refused are not reached. Where none
/// can be refused but for a conflict with another writer or for lack of memory, each owner executes
/// its own at once, and continues behind a refused one.
async fn execute(statements: Vec<Statement>) -> Vec<std::result::Result<Timestamp, WriteError>> {
    let owners: Option<Vec<CoreId>> = statements.iter().map(only_owner).collect();
    let Some(owners) = owners.filter(|owners| owners.iter().any(|owner| *owner != owners[0]))
    else {
        return match statements.is_empty() {
            true => Vec::new(),
            false => storage().execute(statements, true).await,
        };
    };
    let mut by_owner: BTreeMap<CoreId, (Vec<usize>, Vec<Statement>)> = BTreeMap::new();
    let all = statements.len();
    for (place, (owner, statement)) in owners.into_iter().zip(statements).enumerate() {
        let (places, own) = by_owner.entry(owner).or_default();
        places.push(place);
        own.push(statement);
    }
    let executed = by_owner.into_iter().map(|(owner, (places, own))| {
        pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
            (places, storage().execute(own, false).await)
        })
    });
    let mut results: Vec<_> = (0..all).map(|_| Err(WriteError::NotReached)).collect();
    for (places, own) in pinion_runtime::join_all(executed).await {
        for (place, result) in places.into_iter().zip(own) {
            results[place] = result;
        }
    }
    results
}

/// The one core that a statement concerns, if no write of it needs a unique value.
fn only_owner(statement: &Statement) -> Option<CoreId> {
    let owner = storage().owner(statement.writes[0].partition);
    let is_of_owner = |write: &Write| {
        storage().owner(write.partition) == owner
            && matches!(write.expect, Expect::Any | Expect::Version(_))
    };
    statement.writes.iter().all(is_of_owner).then_some(owner)
}
