//! Writes: expectations, intents, and the versions that decided units leave in the delta.
//!
//! Everything that may have to be loaded from the base is loaded by [`Partition::prepare`] and remembered in
//! [`Prepared`]; all that follows runs to completion without waiting.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::{Queue, sim, spawn};
use smallvec::SmallVec;

use super::core::{Partition, State};
use super::delta::{Needed, Newest, TreeDelta, Version, newer};
use super::intents::{Intent, UnitId, UnitState};
use super::view::View;
use crate::base::{BaseCursor, TreeRoot};
use crate::limits::{MAX_KEY_BYTES, MAX_PREFIX_WITNESSES, MAX_VALUE_BYTES};
use crate::types::{
    Direction, Expect, Key, Op, ReadAt, ReadError, TreeId, VersionToken, Write, WriteError,
};

/// What the base says of one write. Consulted only while no delta has a version of the key.
#[derive(Debug, Default)]
pub(super) struct Fact {
    /// What the deltas said of the key, where they were asked before the base was.
    seen: Option<Seen>,
    /// Length of the value in the base, and its identity.
    base: Option<(u64, VersionToken)>,
    /// For [`Expect::UniquePrefix`]: other keys of the prefix in the base that no delta had a version of.
    pub(super) witnesses: Vec<Key>,
    /// There may be more of them.
    more: bool,
    /// For a unit: the value in the base is another one than in its snapshot, which is older than the base.
    pub(super) changed: bool,
    /// For a unit: a witness is newer than its snapshot.
    pub(super) is_taken_since: bool,
}

/// What the deltas said of one key. It holds as long as they are not edited, so nobody searches them for it again.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Which of the active delta's edits was the last one then.
    edits: u64,
    /// The length of the newest version's value, unless it is a deletion, and its number; none if no delta has the key.
    newest: Option<(Option<u64>, u64)>,
    /// What the sealed delta alone has.
    sealed: Option<Newest>,
}

/// What a statement needs to know of the base.
pub(crate) struct Prepared {
    pub(super) view: Rc<View>,
    number: u64,
    pub(super) facts: SmallVec<[Fact; 1]>,
}

/// For whom writes are checked, where that is a unit that stays open.
#[derive(Clone, Copy)]
pub(super) struct Of {
    pub unit: UnitId,
    pub snapshot: Timestamp,
}

/// The newest live version of a key: its value's length, and its identity where it is known.
#[derive(Clone, Copy)]
struct Live {
    len: u64,
    token: Option<VersionToken>,
}

impl Partition {
    /// Loads what checking and counting these writes needs. Does not yield when it is in memory.
    pub(crate) async fn prepare(&self, writes: &[Write]) -> Result<Prepared, ReadError> {
        self.gather(writes, true).await
    }

    /// Begins to read the leaves that these writes will ask for, as far as they are not in memory: at most as many as a cursor
    /// has read ahead. Returns how many writes were looked at.
    pub(crate) fn read_ahead<'a>(&self, writes: impl Iterator<Item = &'a Write>) -> usize {
        let view = self.state.borrow().views.current().clone();
        let mut looked_at = 0;
        for write in writes.take(self.store.leaves_at_once()) {
            looked_at += 1;
            let Some(root) = view.root(write.tree, ReadAt::Newest) else {
                continue;
            };
            let Some(ptr) = self.store.try_leaf_on_disk(&root, &write.key) else {
                continue;
            };
            sim::count("leaves read ahead of writes", 1);
            let partition = self
                .me
                .upgrade()
                .expect("a partition that is called exists");
            let (view, tree) = (view.clone(), write.tree);
            // The task holds the view, so that the page's blocks are not reused meanwhile. What fails to be read is told by
            // whoever needs it.
            drop(spawn(Queue::Foreground, async move {
                let _ = partition.store.page(&ptr, tree).await;
                drop(view);
            }));
        }
        looked_at
    }

    /// Pages that were not in memory when they were asked for, since the partition was opened.
    pub(crate) fn page_misses(&self) -> u64 {
        self.store.cache.misses.get()
    }

    pub(super) async fn gather(
        &self,
        writes: &[Write],
        expectations: bool,
    ) -> Result<Prepared, ReadError> {
        let view = self.state.borrow().views.current().clone();
        let number = view.number();
        let mut facts = SmallVec::with_capacity(writes.len());
        for write in writes {
            assert_eq!(
                write.partition,
                self.id(),
                "a write was sent to the wrong partition"
            );
            let mut fact = Fact::default();
            if let Some(root) = view.root(write.tree, ReadAt::Newest) {
                let seen = self.state.borrow().look_up(&view, write.tree, &write.key);
                fact.seen = Some(seen);
                // Nobody asks the base for a key that a delta has.
                if seen.newest.is_none() {
                    fact.base = self.base_len(&root, write).await?;
                }
            }
            if let Expect::UniquePrefix { len } = write.expect
                && expectations
            {
                Box::pin(self.find_witnesses(&view, write, len, &mut fact)).await?;
            }
            facts.push(fact);
        }
        Ok(Prepared {
            view,
            number,
            facts,
        })
    }

    /// Length of the key's value in the base, and its identity.
    async fn base_len(
        &self,
        root: &TreeRoot,
        write: &Write,
    ) -> Result<Option<(u64, VersionToken)>, ReadError> {
        if let Some(len) = self.store.try_len(root, &write.key) {
            return Ok(len);
        }
        // In a box, as few writes need its room.
        let stored = Box::pin(self.store.get(write.tree, root, &write.key)).await?;
        Ok(stored.map(|(stored, token)| (stored.len(), token)))
    }

    async fn find_witnesses(
        &self,
        view: &View,
        write: &Write,
        len: usize,
        fact: &mut Fact,
    ) -> Result<(), ReadError> {
        let Some(root) = view.root(write.tree, ReadAt::Newest) else {
            return Ok(());
        };
        let prefix = &write.key[..len];
        let mut cursor = BaseCursor::default();
        loop {
            let from = Bound::Included(prefix);
            if !cursor.is_ready()
                && !cursor.try_place(&self.store, Some(&root), from, Direction::Forward)
            {
                cursor
                    .place(&self.store, write.tree, &root, from, Direction::Forward)
                    .await?;
            }
            let Some((page, index)) = cursor.record() else {
                return Ok(());
            };
            let key = page.key(index);
            if !key.starts_with(prefix) {
                return Ok(());
            }
            if key != write.key && !self.state.borrow().is_masked(view, write.tree, &key) {
                if fact.witnesses.len() == MAX_PREFIX_WITNESSES {
                    fact.more = true;
                    return Ok(());
                }
                fact.witnesses.push(key);
            }
            cursor.advance(Direction::Forward);
        }
    }

    /// Whether no checkpoint, or part of one, has come to readers since: then the writes must be prepared again.
    pub(crate) fn is_current(&self, prepared: &Prepared) -> bool {
        self.state.borrow().views.current().number() == prepared.number
    }

    /// Checks expectations and conflicts; changes nothing. [`WriteError::Conflict`] also if `prepared` is stale.
    pub(crate) fn check(&self, writes: &[Write], prepared: &Prepared) -> Result<(), WriteError> {
        self.check_of(writes, prepared, None)
    }

    pub(super) fn check_of(
        &self,
        writes: &[Write],
        prepared: &Prepared,
        of: Option<Of>,
    ) -> Result<(), WriteError> {
        if !self.is_current(prepared) {
            return Err(WriteError::Conflict);
        }
        let ignores = self.store.options.ignores_intents;
        self.state.borrow().check(writes, prepared, of, ignores)
    }

    /// Commits checked writes at `ts`, in the same poll as the check. `Timestamp::MIN` is for unreplicated writes, which
    /// are visible at any timestamp.
    pub(crate) fn write_now(&self, ts: Timestamp, writes: &[Write], prepared: Prepared) {
        assert!(
            self.is_current(&prepared),
            "writes were committed on a stale check"
        );
        let pins = self.pins.borrow();
        let needed = self.needed(&pins);
        let state = &mut *self.state.borrow_mut();
        for (write, fact) in writes.iter().zip(&prepared.facts) {
            state.apply(&prepared.view, ts, write, fact, &needed);
        }
    }

    /// Checks expectations and conflicts and places deciding intents on every key: all or nothing.
    pub(crate) fn place_intents(
        &self,
        unit: UnitId,
        writes: &[Write],
        prepared: Prepared,
    ) -> Result<(), WriteError> {
        self.check(writes, &prepared)?;
        let state = &mut *self.state.borrow_mut();
        state.place(unit, UnitState::Deciding, writes, &prepared);
        Ok(())
    }

    /// Applies writes that were decided elsewhere or before: no checks, any order of timestamps. Does not yield when what
    /// counting needs is in memory.
    pub(crate) async fn apply_at(&self, ts: Timestamp, writes: &[Write]) -> Result<(), ReadError> {
        loop {
            let prepared = self.gather(writes, false).await?;
            if self.is_current(&prepared) {
                self.write_now(ts, writes, prepared);
                return Ok(());
            }
        }
    }
}

impl State {
    /// Holds the keys of checked writes for a unit.
    pub(super) fn place(
        &mut self,
        unit: UnitId,
        as_state: UnitState,
        writes: &[Write],
        prepared: &Prepared,
    ) {
        // Of several writes to one key the last counts, unless it only checks.
        let mut last: BTreeMap<(TreeId, &[u8]), Intent> = BTreeMap::new();
        for (write, fact) in writes.iter().zip(&prepared.facts) {
            let seq = self.sequence();
            let intent = last.entry((write.tree, &write.key)).or_insert_with(|| {
                let live = self.live(&prepared.view, write.tree, &write.key, fact);
                Intent {
                    unit,
                    op: Op::Check,
                    before: live.map(|live| live.len),
                    seq,
                }
            });
            if write.op != Op::Check {
                intent.op = write.op.clone();
                intent.seq = seq;
            }
        }
        let intents = last
            .into_iter()
            .map(|((tree, key), intent)| (tree, Key::from_slice(key), intent))
            .collect();
        self.intents.place(unit, as_state, intents);
    }

    /// Whether a delta has a version of the key, so that the base says nothing of its newest state.
    fn is_masked(&self, view: &View, tree: TreeId, key: &[u8]) -> bool {
        self.with_visible(view, tree, key, ReadAt::Newest, |version| version.is_some())
    }

    /// What the deltas say of a key's newest state.
    fn look_up(&self, view: &View, tree: TreeId, key: &[u8]) -> Seen {
        let active = self.active.visible(tree, key, ReadAt::Newest);
        view.with_sealed(|sealed| {
            let sealed = sealed.and_then(|sealed| sealed.delta.visible(tree, key, ReadAt::Newest));
            let newest = newer(active, sealed);
            Seen {
                edits: self.active.edits(),
                newest: newest.map(|version| (Newest::of(version).len, version.seq)),
                sealed: sealed.map(Newest::of),
            }
        })
    }

    /// The newest live version of a key, as `fact` has it or, if the deltas were edited since, as they have it now.
    fn live(&self, view: &View, tree: TreeId, key: &[u8], fact: &Fact) -> Option<Live> {
        let newest = match fact.seen {
            Some(seen) if seen.edits == self.active.edits() => seen.newest,
            _ => self.look_up(view, tree, key).newest,
        };
        match newest {
            Some((len, seq)) => len.map(|len| Live {
                len,
                token: Some(VersionToken(seq)),
            }),
            None => fact.base.map(|(len, token)| Live {
                len,
                token: Some(token),
            }),
        }
    }

    fn apply(
        &mut self,
        view: &View,
        ts: Timestamp,
        write: &Write,
        fact: &Fact,
        needed: &Needed<'_>,
    ) {
        if write.op == Op::Check {
            return;
        }
        let value = write.op.value_at(ts);
        let len = value.as_ref().map(|value| value.len() as u64);
        let seq = self.sequence();
        let version = Version {
            ts,
            decided: ts,
            seq,
            value,
        };
        let edits = self.active.edits();
        let (active, newest) = self.active.insert(write.tree, &write.key, version, needed);
        let sealed = match fact.seen {
            Some(seen) if seen.edits == edits => seen.sealed,
            _ => view.with_sealed(|sealed| {
                sealed?
                    .delta
                    .visible(write.tree, &write.key, ReadAt::Newest)
                    .map(Newest::of)
            }),
        };
        // A version may come late: then another stays the newest, here or in the sealed delta, and nothing changes.
        if newest == ts && sealed.is_none_or(|sealed| sealed.ts <= ts) {
            let before = match (active, sealed) {
                (Some(active), Some(sealed)) if sealed.ts > active.ts => sealed.len,
                (Some(active), _) => active.len,
                (None, Some(sealed)) => sealed.len,
                (None, None) => fact.base.map(|(len, _)| len),
            };
            self.counts
                .entry(write.tree)
                .or_default()
                .change(write.key.len(), before, len);
        }
    }

    fn check(
        &self,
        writes: &[Write],
        prepared: &Prepared,
        of: Option<Of>,
        ignores_intents: bool,
    ) -> Result<(), WriteError> {
        assert_eq!(
            writes.len(),
            prepared.facts.len(),
            "other writes were prepared"
        );
        // What the earlier writes of the same statement leave.
        let mut earlier: BTreeMap<(TreeId, &[u8]), Option<u64>> = BTreeMap::new();
        for (index, (write, fact)) in writes.iter().zip(&prepared.facts).enumerate() {
            let value_len = write.op.value_len();
            if write.key.len() > MAX_KEY_BYTES || value_len.is_some_and(|len| len > MAX_VALUE_BYTES)
            {
                return Err(WriteError::TooLarge);
            }
            let own = match of {
                Some(of) => self.check_first(&prepared.view, of, write, fact)?,
                None if self.intents.is_empty() || ignores_intents => None,
                None if self.intents.get(write.tree, &write.key).is_some() => {
                    return Err(WriteError::Conflict);
                }
                None => None,
            };
            let live = match (earlier.get(&(write.tree, write.key.as_slice())), own) {
                (Some(after), _) => after.map(|len| Live { len, token: None }),
                (None, Some(own)) => own.op.value_len().map(|len| Live {
                    len: len as u64,
                    token: Some(VersionToken(own.seq)),
                }),
                (None, None) => self.live(&prepared.view, write.tree, &write.key, fact),
            };
            match (&write.expect, live) {
                (Expect::Any, _) | (Expect::Absent, None) | (Expect::Present, Some(_)) => {}
                (Expect::Absent, Some(_)) => return Err(WriteError::Exists { write: index }),
                (Expect::Present, None) => return Err(WriteError::Missing { write: index }),
                (Expect::Version(token), Some(live)) if live.token == Some(*token) => {}
                // What a unit has read and not written is what it was: only the number may be another one.
                (Expect::Version(_), Some(live))
                    if of.is_some() && own.is_none() && live.token.is_some() => {}
                (Expect::Version(_), _) => return Err(WriteError::Conflict),
                (Expect::UniquePrefix { len }, _) => {
                    self.check_unique(&prepared.view, (index, write), *len, fact, &earlier, of)?;
                }
            }
            if writes.len() > 1 && write.op != Op::Check {
                earlier.insert((write.tree, &write.key), value_len.map(|len| len as u64));
            }
        }
        Ok(())
    }

    fn check_unique(
        &self,
        view: &View,
        (index, write): (usize, &Write),
        len: usize,
        fact: &Fact,
        earlier: &BTreeMap<(TreeId, &[u8]), Option<u64>>,
        of: Option<Of>,
    ) -> Result<(), WriteError> {
        let prefix = &write.key[..len];
        let tree = write.tree;
        let duplicate = |key: &[u8]| {
            Err(WriteError::Duplicate {
                write: index,
                existing_key: Key::from_slice(key),
            })
        };
        let unit = of.map(|of| of.unit);
        for (key, intent) in self.intents.with_prefix(tree, prefix) {
            if *key == write.key || !intent.changes() {
                continue;
            }
            if Some(intent.unit) != unit {
                return Err(WriteError::Conflict);
            }
            let is_overwritten = earlier.contains_key(&(tree, key.as_slice()));
            if !is_overwritten && intent.op.value_len().is_some() {
                return duplicate(key);
            }
        }
        let mine = earlier
            .range((tree, prefix)..)
            .take_while(|((at, key), _)| *at == tree && key.starts_with(prefix));
        for ((_, key), after) in mine {
            if *key != write.key.as_slice() && after.is_some() {
                return duplicate(key);
            }
        }
        let is_own =
            |key: &[u8]| unit.is_some_and(|unit| self.intents.own(unit, tree, key).is_some());
        let removed = |key: &[u8]| earlier.contains_key(&(tree, key)) || is_own(key);
        if let Some(of) = of {
            let changed = |key: &Key| {
                *key != write.key && !removed(key) && self.is_changed(view, tree, key, of.snapshot)
            };
            let active = self.active.tree(tree);
            let in_active =
                active.is_some_and(|delta| keys_with_prefix(delta, prefix).any(changed));
            let in_sealed = view.with_sealed(|sealed| {
                let delta = sealed.and_then(|sealed| sealed.delta.tree(tree));
                delta.is_some_and(|delta| keys_with_prefix(delta, prefix).any(changed))
            });
            if in_active || in_sealed {
                return Err(WriteError::Conflict);
            }
        }
        let live = |key: &Key| {
            *key != write.key
                && !removed(key)
                && self.live(view, tree, key, &Fact::default()).is_some()
        };
        if let Some(key) = self
            .active
            .tree(tree)
            .and_then(|delta| keys_with_prefix(delta, prefix).find(|key| live(key)))
        {
            return duplicate(key);
        }
        view.with_sealed(|sealed| {
            let delta = sealed.and_then(|sealed| sealed.delta.tree(tree));
            match delta.and_then(|delta| keys_with_prefix(delta, prefix).find(|key| live(key))) {
                Some(key) => duplicate(key),
                None => Ok(()),
            }
        })?;
        match fact
            .witnesses
            .iter()
            .find(|key| !removed(key) && !self.is_masked(view, tree, key))
        {
            Some(_) if fact.is_taken_since => Err(WriteError::Conflict),
            Some(key) => duplicate(key),
            // Every key that was found has been removed since; whether there are others must be looked up again.
            None if fact.more => Err(WriteError::Conflict),
            None => Ok(()),
        }
    }
}

fn keys_with_prefix<'a>(delta: &'a TreeDelta, prefix: &'a [u8]) -> impl Iterator<Item = &'a Key> {
    delta
        .range_from(prefix)
        .map(|(key, _)| key)
        .take_while(move |key| key.starts_with(prefix))
}
