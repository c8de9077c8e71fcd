//! A command of several statements in rounds: each sends what is left by the table that is known,
//! until all was executed, or an ordered one has met an error. A statement that a shard refuses
//! since its table is another is sent again, and nothing else, so that none has its effect twice.
//!
//! A statement for several shards is sent to all of them at once, to each with its own version of
//! the table, and shards change what they own by it. If some refuse it, what is left are the keys
//! that these own by the table which it was sent by. Under the next table it is sent to the shards
//! that own those keys, if they own none that were done: otherwise it fails with `QueryPlanKilled`.
//! MongoDB ignores versions there, and changes documents that a shard does not own any more.
//!
//! Source: sharding document, "Routing"; MongoDB's `batch_write_exec`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pinion_runtime::join_all;
use pinion_service::interrupt::{check, interruptible};
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::{RoutingTable, ShardId, Targets};
use pinion_wire::{Category, Error, ErrorCode, Reply, Result};

use super::outcome::owner_would_change;
use super::plan::{Plan, Rest, half_done};
use super::statements::{Statements, Unsharded};
use crate::dispatch::{Answer, Route, pause_before_retry, send};
use crate::limits::{MAX_PART_BYTES, MAX_ROUND_BYTES, MAX_STALE_RETRIES, MAX_TARGETINGS};
use crate::placement::{error_is_stale, table_of};
use crate::reply::refused;
use crate::request::Request;
use crate::transactions;

/// How a round has ended.
enum Round {
    Passed(Reply),
    /// Something was refused: what is known of the routing table is old.
    Stale,
    /// There may be more to send.
    More,
}

/// A command while it runs.
struct Running<S> {
    all: S,
    /// In their order.
    left: Vec<usize>,
    rest: BTreeMap<usize, Rest>,
    /// The last error by which a shard has refused something as stale.
    stale: Option<Error>,
}

/// Statements for one shard.
struct Part {
    shard: ShardId,
    sent: Vec<usize>,
    bytes: usize,
}

/// Runs the statements of a command, whatever their collections are.
///
/// # Errors
/// Those of the whole command; others stand in the reply.
pub(crate) async fn run(statements: impl Statements) -> Result<Reply> {
    let mut running = Running {
        left: (0..statements.len()).collect(),
        rest: BTreeMap::new(),
        stale: None,
        all: statements,
    };
    let (mut attempt, mut fruitless) = (0, 0);
    while !running.left.is_empty() {
        let before = running.progress();
        let is_sharded = match running.all.look_up().await {
            Ok(is_sharded) => is_sharded,
            Err(error) => {
                running.lookup_failed(error)?;
                continue;
            }
        };
        let round = match (is_sharded, running.is_ordered()) {
            (false, _) => running.unsharded().await?,
            (true, true) => running.in_order().await?,
            (true, false) => running.in_any_order().await?,
        };
        let has_progress = running.progress() != before;
        match round {
            Round::Passed(reply) => return Ok(reply),
            Round::Stale => {
                attempt = if has_progress { 0 } else { attempt + 1 };
                if attempt > MAX_STALE_RETRIES {
                    running.give_up()?;
                    break;
                }
                pause_before_retry(running.all.cmd(), attempt.saturating_sub(1)).await?;
            }
            Round::More => {
                fruitless = if has_progress { 0 } else { fruitless + 1 };
                if fruitless > MAX_TARGETINGS {
                    running.give_up()?;
                    break;
                }
            }
        }
    }
    running.all.into_reply().await
}

impl<S: Statements> Running<S> {
    fn progress(&self) -> (usize, usize) {
        (self.left.len(), self.all.progress())
    }

    /// In a transaction nothing is executed behind an error.
    fn is_ordered(&self) -> bool {
        self.all.is_ordered() || is_in(&self.all.cmd().ctx)
    }

    /// Ends what is left with the error by which it was refused last.
    fn give_up(&mut self) -> Result<()> {
        let left = std::mem::take(&mut self.left);
        let error = self.stale.take().unwrap_or_else(|| {
            Error::new(
                ErrorCode::NO_PROGRESS_MADE,
                format!(
                    "the routing table of {} changes faster than it can be used",
                    self.all.ns(left[0])
                ),
            )
        });
        self.part_failed(&left, &left, refused(error))
    }

    /// A part was not executed. Where nothing was before, or the client can repeat the whole, the
    /// error is that of the command.
    fn part_failed(&mut self, part: &[usize], all: &[usize], error: Error) -> Result<()> {
        let ctx = &self.all.cmd().ctx;
        let error = match error.code {
            ErrorCode::WOULD_CHANGE_OWNING_SHARD => owner_would_change(self.all.ns(part[0])),
            _ => error,
        };
        let is_repeatable = ctx.args.txn_number.is_some() && error.is(Category::RETRIABLE);
        let is_whole = self.all.progress() == 0 && part == all;
        if is_in(ctx) || is_repeatable || is_whole {
            return Err(error);
        }
        let failed = if self.is_ordered() { &part[..1] } else { part };
        self.all.fail(failed, &error);
        self.ended(part);
        Ok(())
    }

    /// The tables cannot be known that what is left is to be sent by.
    fn lookup_failed(&mut self, error: Error) -> Result<()> {
        check(&self.all.cmd().ctx)?;
        let left = self.left.clone();
        self.part_failed(&left, &left, error)
    }

    /// Statements that are over; in order, what stands behind one that has failed is, too.
    fn ended(&mut self, which: &[usize]) {
        if self.is_ordered() && self.all.has_errors() {
            self.left.clear();
            return;
        }
        match which {
            [only] => self.left.retain(|at| at != only),
            _ => {
                let which: BTreeSet<usize> = which.iter().copied().collect();
                self.left.retain(|at| !which.contains(at));
            }
        }
    }

    fn fail(&mut self, at: usize, error: Error) -> Result<()> {
        if is_in(&self.all.cmd().ctx) {
            return Err(error);
        }
        self.all.fail(&[at], &error);
        self.rest.remove(&at);
        self.ended(&[at]);
        Ok(())
    }

    /// No collection is sharded.
    async fn unsharded(&mut self) -> Result<Round> {
        for at in std::mem::take(&mut self.rest).into_keys() {
            self.fail(at, half_done(self.all.ns(at)))?;
        }
        if self.left.is_empty() {
            return Ok(Round::More);
        }
        let left = self.left.clone();
        match self.all.run_unsharded(left.clone()).await? {
            Unsharded::Passed(reply) => Ok(Round::Passed(reply)),
            Unsharded::Failed(error) => {
                self.part_failed(&left, &left, error)?;
                Ok(Round::More)
            }
            Unsharded::Left(left, stale) => {
                self.left = left;
                if self.left.is_empty() {
                    return Ok(Round::More);
                }
                self.stale = stale;
                Ok(Round::Stale)
            }
        }
    }

    /// Whether parts may be sent. Where the tables cannot be known, what is left has failed.
    async fn may_send(&mut self, parts: &[Part]) -> Result<bool> {
        match self.is_current(parts).await {
            Ok(is_current) => Ok(is_current),
            Err(error) => self.lookup_failed(error).map(|()| false),
        }
    }

    /// Whether what the tables say of the shards of some parts is not known to be old.
    async fn is_current(&self, parts: &[Part]) -> Result<bool> {
        let mut wanted: Vec<(&Arc<RoutingTable>, BTreeSet<ShardId>)> = Vec::new();
        for part in parts {
            for at in &part.sent {
                let Some(table) = self.all.table(*at) else {
                    continue;
                };
                let known = wanted
                    .iter_mut()
                    .find(|(known, _)| Arc::ptr_eq(known, table));
                match known {
                    Some((_, shards)) if shards.contains(&part.shard) => {}
                    Some((_, shards)) => {
                        shards.insert(part.shard.clone());
                    }
                    None => wanted.push((table, BTreeSet::from([part.shard.clone()]))),
                }
            }
        }
        for (table, shards) in wanted {
            let name = table.name();
            let now = table_of(&name, Targets::Shards(shards));
            let now = interruptible(&self.all.cmd().ctx, now).await??;
            if !now.is_some_and(|now| Arc::ptr_eq(&now, table)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Statements one after the other; those that follow one another and have one and the same
    /// shard together.
    async fn in_order(&mut self) -> Result<Round> {
        loop {
            let Some(first) = self.left.first().copied() else {
                return Ok(Round::More);
            };
            let shards = match self.all.plan(first, self.rest.get(&first)) {
                Ok(Plan::Sent(shards)) => shards,
                Ok(Plan::Found) => {
                    if let Some(ends) = self.find_and_write(first).await? {
                        return Ok(ends);
                    }
                    continue;
                }
                Err(error) => {
                    self.fail(first, error)?;
                    continue;
                }
            };
            let sent = self.run_of(&shards).await;
            let part = |shard: &ShardId| Part {
                shard: shard.clone(),
                sent: sent.clone(),
                bytes: 0,
            };
            let parts: Vec<Part> = shards.iter().map(part).collect();
            if !self.may_send(&parts).await? {
                return Ok(Round::More);
            }
            if self.send_parts(parts).await? {
                return Ok(Round::Stale);
            }
        }
    }

    /// The first statement that is left, and those behind it that have the same one shard.
    async fn run_of(&self, shards: &BTreeSet<ShardId>) -> Vec<usize> {
        let mut sent = self.left[..1].to_vec();
        if shards.len() > 1 || self.rest.contains_key(&sent[0]) {
            return sent;
        }
        let mut bytes = self.all.size_of(sent[0]);
        for at in &self.left[1..] {
            pinion_runtime::yield_if_due().await;
            bytes += self.all.size_of(*at);
            let is_same = |plan: Plan| matches!(plan, Plan::Sent(found) if found == *shards);
            if bytes > MAX_PART_BYTES || !self.all.plan(*at, None).is_ok_and(is_same) {
                break;
            }
            sent.push(*at);
        }
        sent
    }

    /// Statements in groups for each shard, all at once; then those one by one whose documents
    /// have to be found first.
    async fn in_any_order(&mut self) -> Result<Round> {
        let (mut parts, mut total) = (BTreeMap::<ShardId, Part>::new(), 0);
        let mut found = Vec::new();
        for at in self.left.clone() {
            pinion_runtime::yield_if_due().await;
            let shards = match self.all.plan(at, self.rest.get(&at)) {
                Ok(Plan::Sent(shards)) => shards,
                Ok(Plan::Found) => {
                    found.push(at);
                    continue;
                }
                Err(error) => {
                    self.fail(at, error)?;
                    continue;
                }
            };
            let size = self.all.size_of(at);
            total += size * shards.len();
            let has_room = |shard| {
                let part: Option<&Part> = parts.get(shard);
                part.is_none_or(|part| part.bytes + size <= MAX_PART_BYTES)
            };
            if !shards.iter().all(has_room) || total > MAX_ROUND_BYTES && !parts.is_empty() {
                // The next round has room for it.
                break;
            }
            for shard in shards {
                let part = parts.entry(shard.clone()).or_insert(Part {
                    shard,
                    sent: Vec::new(),
                    bytes: 0,
                });
                part.sent.push(at);
                part.bytes += size;
            }
        }
        if !parts.is_empty() {
            let parts: Vec<Part> = parts.into_values().collect();
            if !self.may_send(&parts).await? {
                return Ok(Round::More);
            }
            return match self.send_parts(parts).await? {
                true => Ok(Round::Stale),
                false => Ok(Round::More),
            };
        }
        for at in found {
            if let Some(ends) = self.find_and_write(at).await? {
                return Ok(ends);
            }
        }
        Ok(Round::More)
    }

    /// Sends parts to their shards at once, and takes what they answer. Whether something was
    /// refused.
    async fn send_parts(&mut self, parts: Vec<Part>) -> Result<bool> {
        let cmd = self.all.cmd();
        let calls = parts.iter().map(|part| {
            let route = Route::of_shard(&part.shard);
            (route, self.all.request(&part.sent, &part.shard))
        });
        let send = async |(route, request): (Route, Request)| {
            let outcome = send(cmd, &route, request).await;
            (route, outcome)
        };
        let calls: Vec<(Route, Request)> = calls.collect();
        let outcomes = join_all(calls.into_iter().map(send)).await;
        check(&cmd.ctx)?;
        let all = match self.is_ordered() {
            true => parts[0].sent.clone(),
            false => self.left.clone(),
        };
        let mut answered = Answered::default();
        for (part, (route, outcome)) in parts.iter().zip(outcomes) {
            self.take(part, &route, outcome, &all, &mut answered)
                .await?;
        }
        Ok(self.settle(&answered))
    }

    /// Takes what a shard has answered to a part.
    async fn take(
        &mut self,
        part: &Part,
        route: &Route,
        outcome: Result<Answer>,
        all: &[usize],
        answered: &mut Answered,
    ) -> Result<()> {
        let again = match outcome {
            Ok(answer) => {
                let added = self.all.add(&answer, &part.sent).await?;
                // One that does not say what it did may have done something.
                let changed = added.changed.unwrap_or(1);
                answered.changed.insert(part.shard.clone(), changed);
                if part.sent.len() == 1 {
                    answered.alone.insert(part.shard.clone());
                }
                self.stale = added.stale.or(self.stale.take());
                added.refused
            }
            Err(error) if error_is_stale(&error).await? => {
                if !transactions::may_send_again(self.all.cmd(), route).await? {
                    return Err(refused(error));
                }
                self.stale = Some(error);
                part.sent.clone()
            }
            Err(error) => {
                self.part_failed(&part.sent, all, refused(error))?;
                Vec::new()
            }
        };
        for at in &part.sent {
            let sent = answered.sent.entry(*at).or_default();
            sent.insert(part.shard.clone());
        }
        for at in again {
            let refused = answered.refused.entry(at).or_default();
            refused.insert(part.shard.clone());
        }
        Ok(())
    }

    /// Notes what is left of the statements that were sent. Whether it is something.
    fn settle(&mut self, answered: &Answered) -> bool {
        let mut done = Vec::new();
        for (at, sent) in &answered.sent {
            let refused = answered.refused.get(at);
            let is_over = |refused: &BTreeSet<ShardId>| {
                let has_executed =
                    self.all.changes_one(*at) && answered.has_executed(sent, refused);
                self.all.has_failed(*at) || has_executed
            };
            let Some(refused) = refused.filter(|refused| !is_over(refused)) else {
                self.rest.remove(at);
                done.push(*at);
                continue;
            };
            let before = self.rest.remove(at);
            let has_changed = answered.has_changed(sent, refused);
            if let Some(table) = self
                .all
                .table(*at)
                .filter(|_| before.is_some() || has_changed)
            {
                let rest = Rest::new(table, sent, refused, before.as_ref());
                self.rest.insert(*at, rest);
            }
        }
        self.ended(&done);
        !answered.refused.is_empty() && !self.left.is_empty()
    }

    /// Executes a statement whose document has to be found first. The end of the round, where it
    /// ends one.
    async fn find_and_write(&mut self, at: usize) -> Result<Option<Round>> {
        match self.all.find_and_write(at).await {
            Ok(Some(answer)) => {
                self.all.add(&answer, &[at]).await?;
                self.ended(&[at]);
                Ok(None)
            }
            // The collection is not sharded any more.
            Ok(None) => Ok(Some(Round::More)),
            Err(error) if is_of_way(&error) => {
                let all = self.left.clone();
                self.part_failed(&[at], &all, error)?;
                Ok(None)
            }
            Err(error) => {
                self.fail(at, error)?;
                Ok(None)
            }
        }
    }
}

/// Whether an error is one of the nodes and the way to them, and not of a statement.
fn is_of_way(error: &Error) -> bool {
    let of_way = [
        Category::NETWORK,
        Category::NOT_PRIMARY,
        Category::SHUTDOWN,
        Category::CANCELLATION,
        Category::INTERRUPTION,
        Category::EXCEEDED_TIME_LIMIT,
        Category::SNAPSHOT,
        Category::RETRIABLE,
    ];
    // No member that fits was there in time: of a shard, or of the config servers.
    error.code == ErrorCode::FAILED_TO_SATISFY_READ_PREFERENCE
        || of_way.into_iter().any(|category| error.is(category))
}

/// What shards have answered in a round.
#[derive(Default)]
struct Answered {
    sent: BTreeMap<usize, BTreeSet<ShardId>>,
    refused: BTreeMap<usize, BTreeSet<ShardId>>,
    /// How many documents each has changed.
    changed: BTreeMap<ShardId, i64>,
    /// Those that were sent one statement.
    alone: BTreeSet<ShardId>,
}

impl Answered {
    fn changed(&self, shard: &ShardId) -> bool {
        self.changed.get(shard).is_some_and(|count| *count > 0)
    }

    /// Whether a shard that has not refused a statement may have changed something by it.
    fn has_changed(&self, sent: &BTreeSet<ShardId>, refused: &BTreeSet<ShardId>) -> bool {
        sent.difference(refused).any(|shard| self.changed(shard))
    }

    /// Whether a shard that has not refused a statement has changed something by it.
    fn has_executed(&self, sent: &BTreeSet<ShardId>, refused: &BTreeSet<ShardId>) -> bool {
        let mut executed = sent.difference(refused);
        executed.any(|shard| self.alone.contains(shard) && self.changed(shard))
    }
}
