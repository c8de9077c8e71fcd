//! Point reads and snapshot pins.

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use pinion_clock::Timestamp;
use pinion_runtime::sync::Notify;
use smallvec::SmallVec;

use super::core::{Partition, State};
use super::delta::{Delta, Needed, TreeDelta, Version, newer};
use super::intents::Intent;
use super::run::{Run, RunLook, RunVersion};
use super::view::View;
use crate::base::TreeRoot;
use crate::types::{Op, Read, ReadAt, ReadError, TreeId, VersionToken};

/// How far a lookup got without waiting.
enum Look {
    Done(Option<Read>),
    /// A unit is being decided.
    Undecided(Notify),
    /// A page must be loaded. Holding the view keeps the page's blocks from being reused.
    Load(Rc<View>, TreeRoot),
    /// Runs must be read.
    Runs(Box<InRuns>),
}

/// A lookup that needs pages of runs. What was found is of one moment, whatever is committed while
/// it is completed. Holding the view and the runs keeps their blocks from being reused.
struct InRuns {
    view: Rc<View>,
    runs: RunList,
    /// What the deltas have.
    upper: Option<Version>,
}

impl Partition {
    /// The value of `key`. Does not yield when every page on the way is in memory and no unit that
    /// changes the key is being decided, for a newest read, or prepared. The future can be dropped
    /// at any time.
    pub async fn get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: ReadAt,
    ) -> Result<Option<Read>, ReadError> {
        loop {
            match self.look(tree, key, at)? {
                Look::Done(read) => return Ok(read),
                Look::Undecided(decided) => self.wait_decided(decided).await?,
                // Whatever is committed while this waits, the state found here was newest when the
                // read began.
                Look::Load(_view, root) => return self.get_in_base(tree, &root, key).await,
                Look::Runs(found) => return self.get_beneath(tree, key, at, *found).await,
            }
        }
    }

    async fn get_in_base(
        &self,
        tree: TreeId,
        root: &TreeRoot,
        key: &[u8],
    ) -> Result<Option<Read>, ReadError> {
        let Some((stored, token)) = self.store.get(tree, root, key).await? else {
            return Ok(None);
        };
        let value = self.store.value(tree, &stored).await?;
        Ok(Some(Read { value, token }))
    }

    async fn get_beneath(
        &self,
        tree: TreeId,
        key: &[u8],
        at: ReadAt,
        found: InRuns,
    ) -> Result<Option<Read>, ReadError> {
        let InRuns { view, runs, upper } = found;
        let in_runs = self.get_in_runs(&runs, tree, key, at).await?;
        match (in_runs, upper) {
            (Some(lower), upper) if upper.as_ref().is_none_or(|upper| upper.ts < lower.ts) => {
                self.read_run_version(tree, lower).await
            }
            (_, Some(upper)) => Ok(read_version(&upper)),
            (_, None) => match view.root(tree, at) {
                Some(root) => self.get_in_base(tree, &root, key).await,
                None => Ok(None),
            },
        }
    }

    /// The value of `key` if it can be had without waiting.
    pub fn try_get(
        &self,
        tree: TreeId,
        key: &[u8],
        at: ReadAt,
    ) -> Option<Result<Option<Read>, ReadError>> {
        match self.look(tree, key, at) {
            Ok(Look::Done(read)) => Some(Ok(read)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Refuses a snapshot of which versions may be gone.
    fn check_horizon(&self, at: ReadAt) -> Result<(), ReadError> {
        match at.snapshot() {
            Some(ts) if ts < self.horizon.get() && !self.pins.borrow().contains_key(&ts) => {
                Err(ReadError::SnapshotTooOld)
            }
            _ => Ok(()),
        }
    }

    /// Waits until a unit is decided. What was found with it need not hold any more.
    pub(super) async fn wait_decided(&self, decided: Notify) -> Result<(), ReadError> {
        // What is prepared is decided by others, perhaps only when the partition is open again.
        if !self.closed.get() {
            decided.notified().await;
        }
        match self.closed.get() {
            true => Err(ReadError::Interrupted),
            false => Ok(()),
        }
    }

    fn look(&self, tree: TreeId, key: &[u8], at: ReadAt) -> Result<Look, ReadError> {
        self.check_horizon(at)?;
        let state = self.state.borrow();
        if state.intents.concern(tree, at) {
            if let ReadAt::In { unit, .. } = at
                && let Some(intent) = state.intents.own(unit, tree, key)
            {
                return Ok(Look::Done(read_intent(intent)));
            }
            if let Some(decided) = state.intents.blocks_read(tree, key, at) {
                return Ok(Look::Undecided(decided));
            }
        }
        let view = state.views.of(at)?;
        if state.has_runs(view) {
            if let Some(look) = self.look_in_runs(&state, view, tree, key, at) {
                return Ok(look);
            }
        } else if let Some(read) =
            state.with_visible(view, tree, key, at, |version| version.map(read_version))
        {
            return Ok(Look::Done(read));
        }
        let Some(root) = view.root(tree, at) else {
            return Ok(Look::Done(None));
        };
        Ok(match self.store.try_get(&root, key) {
            Some(None) => Look::Done(None),
            Some(Some((stored, token))) => match self.store.try_value(stored) {
                Ok(value) => Look::Done(Some(Read { value, token })),
                Err(_) => Look::Load(view.clone(), root),
            },
            None => Look::Load(view.clone(), root),
        })
    }

    /// What deltas and runs say of a key; none if none of them has a version of it.
    fn look_in_runs(
        &self,
        state: &State,
        view: &Rc<View>,
        tree: TreeId,
        key: &[u8],
        at: ReadAt,
    ) -> Option<Look> {
        let upper = state.with_visible(view, tree, key, at, |version| version.cloned());
        let runs = self.runs_below(state, view, tree, at);
        let mut newest: Option<RunVersion> = None;
        let mut waits = false;
        for run in &runs {
            match run.look(&self.store, tree, key, at) {
                RunLook::Absent => {}
                RunLook::Load => waits = true,
                RunLook::Found(found) => {
                    if newest.as_ref().is_none_or(|newest| newest.ts < found.ts) {
                        newest = Some(found);
                    }
                }
            }
        }
        let lower = newest.filter(|lower| upper.as_ref().is_none_or(|upper| upper.ts < lower.ts));
        if !waits {
            let Some(lower) = lower else {
                return upper.map(|upper| Look::Done(read_version(&upper)));
            };
            let token = lower.token();
            match lower.value.map(|value| self.store.try_value(value)) {
                None => return Some(Look::Done(None)),
                Some(Ok(value)) => return Some(Look::Done(Some(Read { value, token }))),
                Some(Err(_)) => {}
            }
        }
        let view = view.clone();
        Some(Look::Runs(Box::new(InRuns { view, runs, upper })))
    }

    /// The runs that a read of a tree looks into.
    pub(super) fn runs_below(
        &self,
        state: &State,
        view: &View,
        tree: TreeId,
        at: ReadAt,
    ) -> RunList {
        if self.store.options.skips_runs {
            return RunList::new();
        }
        let runs = state.runs(view);
        runs.filter(|run| run.concerns(tree, at)).collect()
    }

    /// Keeps the state at `ts` readable while the pin is held, unless the disk that old states may
    /// take runs out: then the oldest of them end, and reads there give
    /// [`ReadError::SnapshotTooOld`].
    pub fn pin(&self, ts: Timestamp) -> Result<SnapshotPin, ReadError> {
        self.check_horizon(ReadAt::At(ts))?;
        self.state.borrow().views.of(ReadAt::At(ts))?;
        *self.pins.borrow_mut().entry(ts).or_default() += 1;
        Ok(SnapshotPin {
            partition: self.me.clone(),
            ts,
        })
    }

    /// What readers may still ask for.
    pub(super) fn needed<'a>(&self, pins: &'a BTreeMap<Timestamp, u32>) -> Needed<'a> {
        Needed {
            horizon: self.horizon.get(),
            pins,
        }
    }

    fn unpin(&self, ts: Timestamp) {
        let mut pins = self.pins.borrow_mut();
        let count = pins.get_mut(&ts).expect("a pin that is held is counted");
        *count -= 1;
        if *count == 0 {
            pins.remove(&ts);
            drop(pins);
            self.reap_views();
        }
    }
}

/// What a version in the delta answers: its value, or that the key is deleted.
pub(super) fn read_version(version: &Version) -> Option<Read> {
    version.value.as_ref().map(|value| Read {
        value: value.clone(),
        token: VersionToken(version.seq),
    })
}

/// What a unit reads of a key that it changes itself. A stamp is not there before the unit is
/// committed.
pub(super) fn read_intent(intent: &Intent) -> Option<Read> {
    match &intent.op {
        Op::Put(value) | Op::PutStamped { value, .. } => Some(Read {
            value: value.clone(),
            token: VersionToken(intent.seq),
        }),
        Op::Delete => None,
        Op::Check => unreachable!("a check changes nothing"),
    }
}

/// The runs below a read.
pub(super) type RunList = SmallVec<[Rc<Run>; 2]>;

impl State {
    /// Whether reads of this view have to look into runs.
    #[inline]
    pub(super) fn has_runs(&self, view: &View) -> bool {
        self.layers.has_runs() || view.has_run()
    }

    /// The runs that reads of this view look into.
    pub(super) fn runs(&self, view: &View) -> impl Iterator<Item = Rc<Run>> {
        self.layers.runs().cloned().chain(view.run())
    }

    /// Whether no delta and no run has a change of the tree.
    pub(super) fn is_unchanged(&self, view: &View, tree: TreeId) -> bool {
        if view.has_past() || !self.layers.is_empty() {
            return false;
        }
        let none = |delta: &Delta| delta.tree(tree).is_none_or(TreeDelta::is_empty);
        none(&self.active)
            && view.with_sealed(|sealed| sealed.is_none_or(|sealed| none(&sealed.delta)))
    }

    /// Calls `f` with the version of `key` that a read at `at` sees in the deltas.
    pub(super) fn with_visible<R>(
        &self,
        view: &View,
        tree: TreeId,
        key: &[u8],
        at: ReadAt,
        f: impl FnOnce(Option<&Version>) -> R,
    ) -> R {
        let mut upper = self.active.visible(tree, key, at);
        if let Some(layer) = self.layers.delta() {
            upper = newer(upper, layer.visible(tree, key, at));
        }
        view.with_visible(tree, key, at, |lower| f(newer(upper, lower)))
    }
}

/// Keeps a snapshot of one partition readable while it is held.
pub struct SnapshotPin {
    partition: Weak<Partition>,
    ts: Timestamp,
}

impl SnapshotPin {
    /// The pinned timestamp.
    pub fn timestamp(&self) -> Timestamp {
        self.ts
    }
}

impl Drop for SnapshotPin {
    fn drop(&mut self) {
        if let Some(partition) = self.partition.upgrade() {
            partition.unpin(self.ts);
        }
    }
}
