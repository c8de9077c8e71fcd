//! Executing statements: units of writes that are checked, logged and applied as one.
//!
//! When one core owns every partition of a step, that core coordinates it: checks, allotment,
//! append and application happen there in one poll, without intents. Otherwise this core does, and
//! intents are placed on all owners in parallel; the lowest failing statement decides for an
//! ordered batch; then come one range of timestamps, one append, and the resolution on every owner.
//! Until then the coordinator holds its applying mark. A step that leaves this core is a task of
//! its own: a caller that goes away cannot leave it half done.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, Queue, join_all, sim, spawn, submit_to, wall_ms, yield_if_due};
use smallvec::SmallVec;

use super::allotment::Allotment;
use super::batch::{Ahead, Part, Placement, check_sizes, divide};
use super::entry::{Chain, Entry, append_to, timestamps_of};
use crate::engine::options::PlantedFault;
use crate::engine::storage::{Storage, storage};
use crate::limits::{LARGE_VALUE_BYTES, MAX_STEP_BYTES, MAX_STEP_STATEMENTS};
use crate::partition::UnitId;
use crate::ring::{Reservation, Ring, RingStopped};
use crate::types::{Op, PartitionId, Write, WriteError};
use crate::watermarks::Mark;

/// Writes that take place together or not at all, and the oplog entry that logs them. Where that
/// has an image beside it, it takes two timestamps, and takes place at the second.
#[derive(Clone, Debug)]
pub struct Statement {
    /// The writes, in any partitions; each key at most once.
    pub writes: Vec<Write>,
    /// The entry. Without one the writes are timestamped and not logged: recovery does not repeat
    /// them.
    pub entry: Option<Entry>,
}

pub(super) type Outcome = Result<Timestamp, WriteError>;

/// With [`PlantedFault::PanicInCommit`] one of this many timestamps ends in a panic.
const PANIC_EVERY: u64 = 101;

impl Statement {
    /// Whether it writes to trees that are not replicated; all of its writes are alike in that.
    fn is_unreplicated(&self) -> bool {
        let first = self.writes.first();
        first.is_some_and(|write| !write.tree.is_replicated())
    }

    /// The lengths of what it logs: of a link none, which takes a place in the log as well.
    fn lens(&self) -> impl Iterator<Item = usize> {
        let entry = self.entry.as_ref();
        let link = entry.is_none().then_some(0);
        entry.into_iter().flat_map(Entry::lens).chain(link)
    }

    fn entry_bytes(&self) -> usize {
        self.lens().sum()
    }
}

/// What one step did: an outcome for each statement, or nothing for one that must be tried again.
struct StepResult {
    outcomes: Vec<Option<Outcome>>,
    /// An ordered batch ends here.
    stopped: bool,
}

impl Storage {
    /// Executes statements, wherever their partitions are. Each is atomic and gets its own
    /// timestamp; they take place in their order. With `ordered`, the statements after the lowest
    /// failing one give [`WriteError::NotReached`].
    ///
    /// When this returns, every write that succeeded is applied on its owners. It is durable after
    /// [`Storage::wait_durable`]. Dropping the future may leave statements executed or not, each as
    /// a whole.
    ///
    /// # Panics
    /// When an entry does not begin with `ts` and `t`, or a partition does not exist.
    pub async fn execute(&self, mut statements: Vec<Statement>, ordered: bool) -> Vec<Outcome> {
        if statements.first().is_some_and(Statement::is_unreplicated) {
            return Box::pin(self.execute_unreplicated(statements, ordered)).await;
        }
        let bytes: usize = statements.iter().map(Statement::entry_bytes).sum();
        // What one step takes, which is most, is not taken apart.
        let result = match statements.len() <= MAX_STEP_STATEMENTS && bytes <= MAX_STEP_BYTES {
            true => {
                let result = self.execute_step(&mut statements, ordered).await;
                yield_if_due().await;
                result
            }
            false => StepResult {
                outcomes: statements.iter().map(|_| None).collect(),
                stopped: false,
            },
        };
        let outcomes = match result.stopped || result.outcomes.iter().all(Option::is_some) {
            true => result.outcomes,
            false => Box::pin(self.execute_rest(statements, result.outcomes, ordered)).await,
        };
        outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or(Err(WriteError::NotReached)))
            .collect()
    }

    /// Executes the statements that have no outcome yet, in as many steps as they need.
    async fn execute_rest(
        &self,
        statements: Vec<Statement>,
        mut outcomes: Vec<Option<Outcome>>,
        ordered: bool,
    ) -> Vec<Option<Outcome>> {
        let mut stopped = false;
        // Of the statements without an outcome yet, in order: their positions and themselves.
        let mut rest: std::collections::VecDeque<(usize, Statement)> = statements
            .into_iter()
            .enumerate()
            .filter(|(position, _)| outcomes[*position].is_none())
            .collect();
        while !rest.is_empty() && !stopped {
            let (mut positions, mut step, mut bytes) = (Vec::new(), Vec::new(), 0);
            while let Some((_, next)) = rest.front() {
                let len = next.entry_bytes();
                if step.len() == MAX_STEP_STATEMENTS
                    || (!step.is_empty() && bytes + len > MAX_STEP_BYTES)
                {
                    break;
                }
                bytes += len;
                let (position, statement) = rest.pop_front().expect("just seen");
                positions.push(position);
                step.push(statement);
            }
            let last = outcomes.iter().flatten().flatten().max();
            if let Some(last) = last {
                let entries = step.iter_mut().filter_map(|step| step.entry.as_mut());
                for entry in entries.filter(|entry| entry.is_linked()) {
                    entry.set_previous(*last, self.term());
                }
            }
            let result = self.execute_step(&mut step, ordered).await;
            stopped = result.stopped;
            // Put back, in order, what must be tried again.
            for ((position, statement), outcome) in
                positions.into_iter().zip(step).zip(result.outcomes).rev()
            {
                match outcome {
                    Some(outcome) => outcomes[position] = Some(outcome),
                    None => rest.push_front((position, statement)),
                }
            }
            yield_if_due().await;
        }
        outcomes
    }

    async fn execute_step(&self, step: &mut Vec<Statement>, ordered: bool) -> StepResult {
        let (ring, _inside) = match self.enter() {
            Ok(entered) => entered,
            Err(error) => return StepResult::all(step.len(), ordered, error),
        };
        // Before anything is allotted, so that a wrong entry does not stop the node.
        assert!(
            (step.iter().filter_map(|statement| statement.entry.as_ref())).all(Entry::has_optime),
            "an entry begins with ts and t"
        );
        // What cannot fit fails by itself, and an ordered step ends before it.
        let oversized = step
            .iter()
            .position(|statement| check_sizes(statement).is_err());
        if let Some(at) = oversized {
            return Box::pin(self.execute_around(step, at, ordered)).await;
        }
        let writes = || step.iter().flat_map(|statement| &statement.writes);
        // An entry without writes may go ahead: without that of its term no member would lead.
        let room = match writes().next() {
            Some(_) => self.check_room(),
            None => Ok(()),
        };
        if let Err(error) = room {
            return StepResult::all(step.len(), ordered, error);
        }
        if let Err(error) = self.wait_for_memory(writes).await {
            return StepResult::all(step.len(), ordered, error);
        }
        let owners = step
            .iter()
            .flat_map(|statement| &statement.writes)
            .map(|write| self.owner(write.partition));
        let owner = only_owner(owners, self.core);
        if owner == Some(self.core) {
            return self.execute_here(step, ordered, &ring).await;
        }
        let statements = std::mem::take(step);
        let (statements, result) = match owner {
            Some(owner) => {
                let (statements, _values, result) =
                    submit_to(owner, Queue::Foreground, move || async move {
                        storage().execute_for_another(statements, ordered).await
                    })
                    .await;
                (statements, result)
            }
            None => {
                let this = self.rc();
                let task = spawn(Queue::Foreground, async move {
                    this.execute_everywhere(statements, ordered).await
                });
                task.await.expect("a step runs to its end")
            }
        };
        *step = statements;
        result
    }

    /// A step of another core all of whose partitions are here. The statements go back with the
    /// result, and the values are copied, since memory is freed most cheaply by the core that
    /// allocated it. The allocator has large ones from the system, and copying them would hold this
    /// core for long.
    async fn execute_for_another(
        &self,
        mut step: Vec<Statement>,
        ordered: bool,
    ) -> (Vec<Statement>, Vec<Bytes>, StepResult) {
        let mut theirs = Vec::new();
        for write in step.iter_mut().flat_map(|statement| &mut statement.writes) {
            if let Op::Put(value) | Op::PutStamped { value, .. } = &mut write.op
                && value.len() < LARGE_VALUE_BYTES
            {
                let copy = Bytes::copy_from_slice(value);
                theirs.push(std::mem::replace(value, copy));
            }
        }
        let result = match self.enter() {
            Ok((ring, _inside)) => self.execute_here(&mut step, ordered, &ring).await,
            Err(error) => StepResult::all(step.len(), ordered, error),
        };
        (step, theirs, result)
    }

    /// Room for the entries of a step; waits for it.
    async fn reserve(
        &self,
        ring: &Rc<Ring>,
        step: &[Statement],
    ) -> Result<Reservation, WriteError> {
        let reserved = ring.reserve(step.iter().flat_map(Statement::lens)).await;
        reserved.map_err(|RingStopped| self.stopped())
    }

    /// A step in which the statement at `at` is too large: those before it come first, then it
    /// fails.
    async fn execute_around(
        &self,
        step: &mut Vec<Statement>,
        at: usize,
        ordered: bool,
    ) -> StepResult {
        if at > 0 {
            // The statements from there on are tried again, then without others before them.
            let mut later = step.split_off(at);
            let mut result = self.execute_step(step, ordered).await;
            if result.stopped {
                result
                    .outcomes
                    .extend(later.iter().map(|_| Some(Err(WriteError::NotReached))));
            } else {
                result.outcomes.extend(later.iter().map(|_| None));
            }
            step.append(&mut later);
            return result;
        }
        let mut outcomes: Vec<Option<Outcome>> = step.iter().map(|_| None).collect();
        outcomes[0] = Some(Err(WriteError::TooLarge));
        StepResult {
            outcomes,
            stopped: ordered,
        }
    }

    /// A step all of whose partitions are here: no intents, no hop.
    async fn execute_here(
        &self,
        step: &mut [Statement],
        ordered: bool,
        ring: &Rc<Ring>,
    ) -> StepResult {
        let fault = self.options.planted_fault;
        let mut reservation = match self.reserve(ring, step).await {
            Ok(reservation) => reservation,
            Err(error) => return StepResult::all(step.len(), ordered, error),
        };
        let statements = step.len();
        // The parts of all statements, and each statement's entry with the end of its parts.
        let mut parts: Vec<Part<'_>> = Vec::with_capacity(statements);
        let mut entries: SmallVec<[(&mut Option<Entry>, usize); 1]> = SmallVec::new();
        for Statement { writes, entry } in step {
            divide(writes, fault, &mut parts);
            entries.push((entry, parts.len()));
        }
        let mut prepared = Vec::with_capacity(parts.len());
        let mut ahead = Ahead::default();
        loop {
            for (at, part) in parts.iter().enumerate() {
                let later = parts[at + 1..].iter();
                match self.prepare(part, &mut ahead, later).await {
                    Ok(ready) => prepared.push(ready),
                    Err(error) => return StepResult::all(statements, ordered, error),
                }
            }
            // A checkpoint installed meanwhile changes the base that was looked at.
            if prepared
                .iter()
                .all(|(partition, prepared)| partition.is_current(prepared))
            {
                break;
            }
            prepared.clear();
        }
        if let Err(error) = self.check_allots() {
            return StepResult::all(statements, ordered, error);
        }
        // From here to the end nothing awaits.
        let wall_secs = (wall_ms() / 1000) as u32;
        let mut outcomes = Vec::with_capacity(statements);
        let mut stopped = false;
        let mut chain = Chain::default();
        let mut begin = 0;
        let mut prepared = prepared.into_iter();
        for (entry, end) in entries {
            let parts = &parts[begin..end];
            let ready = &prepared.as_slice()[..parts.len()];
            begin = end;
            if stopped {
                outcomes.push(Some(Err(WriteError::NotReached)));
                continue;
            }
            let check = parts
                .iter()
                .zip(ready)
                .try_for_each(|(part, (partition, prepared))| {
                    partition
                        .check(&part.writes, prepared)
                        .map_err(|error| part.translate(error))
                });
            if let Err(error) = check {
                stopped = ordered;
                outcomes.push(Some(Err(error)));
                prepared.by_ref().take(parts.len()).for_each(drop);
                continue;
            }
            let allotment = Allotment::new(self, timestamps_of(entry.as_ref()), wall_secs);
            let ts = append_to(
                ring,
                &mut reservation,
                entry,
                &mut chain,
                (allotment.range(), 0),
                self.term(),
            );
            if fault == PlantedFault::PanicInCommit && ts.as_u64().is_multiple_of(PANIC_EVERY) {
                panic!("planted between allotment and application");
            }
            for (part, (partition, prepared)) in parts.iter().zip(prepared.by_ref()) {
                partition.write_now(ts, &part.writes, prepared);
            }
            allotment.finish();
            outcomes.push(Some(Ok(ts)));
        }
        drop(reservation);
        self.announce(Mark::Appending);
        self.announce(Mark::Applying);
        self.publish_memory();
        StepResult { outcomes, stopped }
    }

    /// A step over several cores. Runs in a task of its own, to its end.
    async fn execute_everywhere(
        self: Rc<Self>,
        mut step: Vec<Statement>,
        ordered: bool,
    ) -> (Vec<Statement>, StepResult) {
        let (ring, _inside) = match self.enter() {
            Ok(entered) => entered,
            Err(error) => {
                let result = StepResult::all(step.len(), ordered, error);
                return (step, result);
            }
        };
        let mut reservation = match self.reserve(&ring, &step).await {
            Ok(reservation) => reservation,
            Err(error) => {
                let result = StepResult::all(step.len(), ordered, error);
                return (step, result);
            }
        };
        let units: Vec<UnitId> = step.iter().map(|_| self.units.number()).collect();
        let owners = self.place_everywhere(&step, &units, ordered).await;
        sim::event("unit placed");

        // Every core's answers, by statement. A statement that some core did not reach has failed
        // elsewhere.
        let mut placed: Vec<Result<(), WriteError>> = step.iter().map(|_| Ok(())).collect();
        for (index, error) in owners.iter().flat_map(|owner| &owner.failures) {
            if placed[*index].is_ok() {
                placed[*index] = Err(error.clone());
            }
        }
        let lowest_failure = placed.iter().position(Result::is_err);
        let goes_ahead = |index: usize| match lowest_failure {
            Some(failure) if ordered => index < failure,
            _ => placed[index].is_ok(),
        };
        let mut going: Vec<usize> = (0..step.len()).filter(|&index| goes_ahead(index)).collect();
        // Storage may have failed or closed, or follow another node, since intents were placed;
        // nothing is allotted then.
        let stop = self.check_allots().err();
        if stop.is_some() {
            going.clear();
        }

        // From here to `finish` nothing awaits.
        let mut timestamps: BTreeMap<usize, Timestamp> = BTreeMap::new();
        let mut held = None;
        if !going.is_empty() {
            let taken = |&index: &usize| timestamps_of(step[index].entry.as_ref());
            let count: u64 = going.iter().map(taken).sum();
            let allotment = Allotment::new(&self, count, (wall_ms() / 1000) as u32);
            let mut chain = Chain::default();
            let mut nth = 0;
            for &index in &going {
                let entry = &mut step[index].entry;
                let first = nth;
                nth += timestamps_of(entry.as_ref());
                let ts = append_to(
                    &ring,
                    &mut reservation,
                    entry,
                    &mut chain,
                    (allotment.range(), first),
                    self.term(),
                );
                timestamps.insert(index, ts);
            }
            assert_eq!(nth, count, "every timestamp has its place in the log");
            self.progress.hold_applying(allotment.range());
            held = Some(allotment.range().first);
            allotment.finish();
            self.announce(Mark::Appending);
        }
        drop(reservation);
        self.resolve_everywhere(owners, &units, &timestamps).await;
        if let Some(first) = held {
            self.release_applying(first);
        }

        let result = match stop {
            Some(error) => StepResult::all(step.len(), ordered, error),
            None => StepResult::from_placements(placed, &timestamps, ordered),
        };
        (step, result)
    }

    /// Places the intents of every statement on its owners, all owners at once.
    async fn place_everywhere(
        &self,
        step: &[Statement],
        units: &[UnitId],
        ordered: bool,
    ) -> Vec<OwnerAnswer> {
        let fault = self.options.planted_fault;
        let mut by_core: BTreeMap<CoreId, Vec<Placement>> = BTreeMap::new();
        for (index, statement) in step.iter().enumerate() {
            let mut parts = Vec::new();
            divide(&statement.writes, fault, &mut parts);
            for part in parts.into_iter().map(Part::into_owned) {
                let placements = by_core.entry(self.owner(part.partition)).or_default();
                match placements.last_mut() {
                    Some(last) if last.index == index => last.parts.push(part),
                    _ => placements.push(Placement {
                        index,
                        unit: units[index],
                        parts: vec![part],
                    }),
                }
            }
        }
        join_all(by_core.into_iter().map(|(core, placements)| async move {
            let partitions: Vec<(usize, Vec<PartitionId>)> = placements
                .iter()
                .map(|placement| {
                    (
                        placement.index,
                        placement.parts.iter().map(|part| part.partition).collect(),
                    )
                })
                .collect();
            let results = submit_to(core, Queue::Foreground, move || async move {
                storage().place_all(placements, ordered).await
            })
            .await;
            let mut answer = OwnerAnswer {
                core,
                placed: Vec::new(),
                failures: Vec::new(),
            };
            for ((index, partitions), (answered, result)) in partitions.into_iter().zip(results) {
                assert_eq!(
                    index, answered,
                    "answers come in the order of the placements"
                );
                match result {
                    Ok(()) => answer.placed.push((index, partitions)),
                    Err(error) => answer.failures.push((index, error)),
                }
            }
            answer
        }))
        .await
    }

    /// Resolves or withdraws the units' intents on every owner, and waits until all have done so.
    async fn resolve_everywhere(
        &self,
        owners: Vec<OwnerAnswer>,
        units: &[UnitId],
        timestamps: &BTreeMap<usize, Timestamp>,
    ) {
        let messages = owners
            .into_iter()
            .filter(|owner| !owner.placed.is_empty())
            .map(|owner| {
                let decisions: Vec<(UnitId, Option<Timestamp>, Vec<PartitionId>)> = owner
                    .placed
                    .into_iter()
                    .map(|(index, partitions)| {
                        (units[index], timestamps.get(&index).copied(), partitions)
                    })
                    .collect();
                submit_to(owner.core, Queue::Foreground, move || async move {
                    storage().decide(decisions)
                })
            });
        join_all(messages).await;
    }

    /// Resolves or withdraws units on this core, all in one poll.
    fn decide(&self, decisions: Vec<(UnitId, Option<Timestamp>, Vec<PartitionId>)>) {
        for (unit, ts, partitions) in decisions {
            for partition in partitions {
                let partition = self.owned_partition(partition);
                match ts {
                    Some(ts) => partition.resolve(unit, ts),
                    None => partition.withdraw(unit),
                }
            }
        }
        self.publish_memory();
    }
}

/// The core that all of `owners` are; `of_none` where there are none.
fn only_owner(mut owners: impl Iterator<Item = CoreId>, of_none: CoreId) -> Option<CoreId> {
    let Some(first) = owners.next() else {
        return Some(of_none);
    };
    owners.all(|owner| owner == first).then_some(first)
}

/// What one owner answered: the statements whose intents it holds, and those that failed there.
struct OwnerAnswer {
    core: CoreId,
    placed: Vec<(usize, Vec<PartitionId>)>,
    failures: Vec<(usize, WriteError)>,
}

impl StepResult {
    /// No statement of the step takes place; those behind the first of an ordered batch are not
    /// even reached.
    fn all(statements: usize, ordered: bool, error: WriteError) -> StepResult {
        let outcome = |index: usize| {
            Some(Err(if ordered && index > 0 {
                WriteError::NotReached
            } else {
                error.clone()
            }))
        };
        StepResult {
            outcomes: (0..statements).map(outcome).collect(),
            stopped: ordered,
        }
    }

    /// A statement may have met the intents of an earlier one of the same step. So a conflict is
    /// final only when the step got nowhere otherwise; else the statement is tried again.
    fn from_placements(
        placed: Vec<Result<(), WriteError>>,
        timestamps: &BTreeMap<usize, Timestamp>,
        ordered: bool,
    ) -> StepResult {
        let progress = !timestamps.is_empty();
        let mut outcomes = Vec::with_capacity(placed.len());
        let (mut stopped, mut again) = (false, false);
        for (index, placed) in placed.into_iter().enumerate() {
            outcomes.push(match (timestamps.get(&index), placed) {
                _ if stopped => Some(Err(WriteError::NotReached)),
                _ if again && ordered => None,
                (Some(&ts), _) => Some(Ok(ts)),
                (None, Err(WriteError::Conflict)) if progress => {
                    again = true;
                    None
                }
                (None, Err(error)) => {
                    stopped = ordered;
                    Some(Err(error))
                }
                (None, Ok(())) => {
                    unreachable!("a placed statement is withdrawn only behind a failed one")
                }
            });
        }
        StepResult { outcomes, stopped }
    }
}
