//! Point reads and snapshot pins.

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use pinion_clock::Timestamp;
use pinion_runtime::sync::Notify;

use super::core::{Partition, State};
use super::delta::{Delta, Needed, TreeDelta, Version, newer};
use super::intents::Intent;
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
}

impl Partition {
    /// The value of `key`. Does not yield when every page on the way is in memory and no unit that changes the key is being
    /// decided, for a newest read, or prepared. The future can be dropped at any time.
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
                Look::Load(_view, root) => {
                    // Whatever is committed while this waits, the state found here was newest when the read began.
                    let Some((stored, token)) = self.store.get(tree, &root, key).await? else {
                        return Ok(None);
                    };
                    let value = self.store.value(tree, &stored).await?;
                    return Ok(Some(Read { value, token }));
                }
            }
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
        let in_delta = state.with_visible(view, tree, key, at, |version| version.map(read_version));
        if let Some(read) = in_delta {
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

    /// Keeps the state at `ts` readable while the pin is held, unless memory for the changes that only old snapshots need
    /// runs out: then the oldest of them end, and reads there give [`ReadError::SnapshotTooOld`].
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

/// What a unit reads of a key that it changes itself. A stamp is not there before the unit is committed.
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

impl State {
    /// Whether neither delta has a change of the tree.
    pub(super) fn is_unchanged(&self, view: &View, tree: TreeId) -> bool {
        let none = |delta: &Delta| delta.tree(tree).is_none_or(TreeDelta::is_empty);
        none(&self.active)
            && view.with_sealed(|sealed| sealed.is_none_or(|sealed| none(&sealed.delta)))
    }

    /// Calls `f` with the version of `key` that a read at `at` sees in the active and the sealed delta.
    pub(super) fn with_visible<R>(
        &self,
        view: &View,
        tree: TreeId,
        key: &[u8],
        at: ReadAt,
        f: impl FnOnce(Option<&Version>) -> R,
    ) -> R {
        let active = self.active.visible(tree, key, at);
        view.with_sealed(|sealed| {
            f(newer(
                active,
                sealed.and_then(|sealed| sealed.delta.visible(tree, key, at)),
            ))
        })
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
