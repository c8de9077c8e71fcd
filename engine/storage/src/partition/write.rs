//! Writes: expectations, intents, and the versions that decided units leave in the delta.
//!
//! Everything that may have to be loaded from the base is loaded by [`Partition::prepare`] and
//! remembered in [`Prepared`]; all that follows runs to completion without waiting.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::{Queue, sim, spawn};
use smallvec::SmallVec;

use super::core::{Partition, State};
use super::delta::{Delta, Needed, Newest, TreeDelta, Version, newer};
use super::intents::{Intent, UnitId, UnitState};
use super::run::RunVersion;
use super::run_cursor::{RunsAhead, Unread};
use super::view::View;
use crate::base::{BaseCursor, Stored, TreeRoot};
use crate::limits::{MAX_KEY_BYTES, MAX_PREFIX_WITNESSES, MAX_VALUE_BYTES};
use crate::types::{
    Direction, Expect, Key, KeyRange, Op, ReadAt, ReadError, TreeId, VersionToken, Write,
    WriteError,
};

/// What the base says of one write, and runs above it. The base is consulted only while nothing
/// else has a version of the key.
#[derive(Debug, Default)]
pub(super) struct Fact {
    /// What the deltas said of the key, where they were asked before the base was.
    seen: Option<Seen>,
    /// What the layers on disk have, where there are any.
    layers: Option<Box<InLayers>>,
    /// Length of the value in the base, and its identity.
    base: Option<(u64, VersionToken)>,
    /// For [`Expect::UniquePrefix`]: other keys of the prefix in the base that no delta had a
    /// version of.
    pub(super) witnesses: Vec<Key>,
    /// There may be more of them.
    more: bool,
    /// For a unit: the value in the base is another one than in its snapshot, which is older than
    /// the base.
    pub(super) changed: bool,
    /// For a unit: a witness is newer than its snapshot.
    pub(super) is_taken_since: bool,
}

/// What the deltas said of one key. It holds as long as they are not edited, so they need not be
/// searched for it again.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Which of the active delta's edits was the last one then.
    edits: u64,
    /// None if no delta has the key.
    newest: Option<Found>,
    /// What the deltas below the active one have.
    below: Option<Newest>,
}

/// The newest version of a key, and its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) newest: Newest,
    seq: u64,
}

impl Found {
    fn of(version: &Version) -> Found {
        Found {
            newest: Newest::of(version),
            seq: version.seq,
        }
    }

    fn in_run(version: &RunVersion) -> Found {
        Found {
            newest: Newest {
                ts: version.ts,
                len: version.value.as_ref().map(Stored::len),
            },
            seq: version.seq,
        }
    }

    fn live(&self) -> Option<Live> {
        let token = Some(VersionToken(self.seq));
        self.newest.len.map(|len| Live { len, token })
    }
}

/// What the layers on disk have that one write asks for. It holds as long as the view keeps its
/// number.
#[derive(Debug, Default)]
struct InLayers {
    /// Of the key itself.
    own: Option<Found>,
    /// For [`Expect::UniquePrefix`]: of the keys with the prefix.
    with_prefix: BTreeMap<Key, Found>,
}

/// The later of two.
fn later(upper: Option<Found>, lower: Option<Found>) -> Option<Found> {
    match (upper, lower) {
        (Some(upper), Some(lower)) if lower.newest.ts > upper.newest.ts => Some(lower),
        (upper, lower) => upper.or(lower),
    }
}

/// What a statement needs to know of the base.
pub(crate) struct Prepared {
    pub(super) view: Rc<View>,
    number: u64,
    pub(super) facts: SmallVec<[Fact; 1]>,
}

/// The unit that writes are checked for, where it stays open.
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

    /// Begins to read the leaves that these writes will ask for, as far as they are not in memory:
    /// at most as many as a cursor has read ahead. Returns how many writes were looked at.
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
            // The task holds the view, so that the page's blocks are not reused meanwhile. What
            // fails to be read is reported where it is needed.
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
            if self.state.borrow().layers.has_runs() {
                let prefix = expectations.then_some(write.expect.clone());
                fact.layers = Box::pin(self.find_in_layers(&view, write, prefix)).await?;
            }
            if let Some(root) = view.root(write.tree, ReadAt::Newest) {
                let seen = self.state.borrow().look_up(&view, write.tree, &write.key);
                fact.seen = Some(seen);
                // The base is not asked for a key that a delta or a layer has.
                if seen.newest.is_none() && fact.layers.as_ref().is_none_or(|l| l.own.is_none()) {
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

    /// What the layers on disk have of a key, and of those with its unique prefix if that is
    /// expected.
    async fn find_in_layers(
        &self,
        view: &View,
        write: &Write,
        expect: Option<Expect>,
    ) -> Result<Option<Box<InLayers>>, ReadError> {
        let (tree, at) = (write.tree, ReadAt::Newest);
        let runs = self.runs_below(&self.state.borrow(), view, tree, at);
        if runs.is_empty() {
            return Ok(None);
        }
        let own = self.get_in_runs(&runs, tree, &write.key, at).await?;
        let mut found = InLayers {
            own: own.as_ref().map(Found::in_run),
            with_prefix: BTreeMap::new(),
        };
        let Some(Expect::UniquePrefix { len }) = expect else {
            return Ok(Some(Box::new(found)));
        };
        let prefix = Key::from_slice(&write.key[..len]);
        let range = KeyRange {
            lower: Bound::Included(prefix.clone()),
            upper: Bound::Unbounded,
        };
        let mut ahead = RunsAhead::new(&runs, tree, at, Direction::Forward);
        let mut from = Bound::Included(prefix.clone());
        loop {
            let place = from.as_ref().map(Key::as_slice);
            match ahead.next(place) {
                Err(Unread) => ahead.fill(&self.store, place, &range).await?,
                Ok(Some((key, version))) if key.starts_with(&prefix) => {
                    let version = Found::in_run(version);
                    found.with_prefix.insert(key.clone(), version);
                    from = Bound::Excluded(key.clone());
                }
                Ok(_) => return Ok(Some(Box::new(found))),
            }
        }
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
            if key != write.key && !self.state.borrow().is_masked(view, write.tree, &key, fact) {
                if fact.witnesses.len() == MAX_PREFIX_WITNESSES {
                    fact.more = true;
                    return Ok(());
                }
                fact.witnesses.push(key);
            }
            cursor.advance(Direction::Forward);
        }
    }

    /// Whether no checkpoint, or part of one, has come to readers since: then the writes must be
    /// prepared again.
    pub(crate) fn is_current(&self, prepared: &Prepared) -> bool {
        self.state.borrow().views.current().number() == prepared.number
    }

    /// Checks expectations and conflicts; changes nothing. [`WriteError::Conflict`] also if
    /// `prepared` is stale.
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

    /// Commits checked writes at `ts`, in the same poll as the check. `Timestamp::MIN` is for
    /// unreplicated writes, which are visible at any timestamp.
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

    /// Applies writes that were decided elsewhere or before: no checks, any order of timestamps.
    /// Does not yield when what counting needs is in memory.
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
                let live = self.live(&prepared.view, write, fact);
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

    /// Whether a delta or a layer has a version of a key, other than that which is written, so that
    /// the base says nothing of its newest state.
    fn is_masked(&self, view: &View, tree: TreeId, key: &[u8], fact: &Fact) -> bool {
        self.newest_of_other(view, tree, key, fact).is_some()
    }

    /// What the deltas say of a key's newest state.
    fn look_up(&self, view: &View, tree: TreeId, key: &[u8]) -> Seen {
        let active = self.active.visible(tree, key, ReadAt::Newest);
        let below = self.look_below(view, tree, key);
        Seen {
            edits: self.active.edits(),
            newest: later(active.map(Found::of), below),
            below: below.map(|found| found.newest),
        }
    }

    /// The same of the deltas below the active one.
    fn look_below(&self, view: &View, tree: TreeId, key: &[u8]) -> Option<Found> {
        let at = ReadAt::Newest;
        let layers = self.layers.delta();
        let layer = layers.and_then(|layer| layer.visible(tree, key, at));
        view.with_sealed(|sealed| {
            let sealed = sealed.and_then(|sealed| sealed.delta.visible(tree, key, at));
            newer(layer, sealed).map(Found::of)
        })
    }

    /// What the deltas say of the key that is written, as `fact` has it or, if they were edited
    /// since, as they have it now.
    fn seen(&self, view: &View, write: &Write, fact: &Fact) -> Seen {
        match fact.seen {
            Some(seen) if seen.edits == self.active.edits() => seen,
            _ => self.look_up(view, write.tree, &write.key),
        }
    }

    /// The newest version of the key that is written, if it does not lie in the base.
    pub(super) fn newest_above_base(
        &self,
        view: &View,
        write: &Write,
        fact: &Fact,
    ) -> Option<Found> {
        let newest = self.seen(view, write, fact).newest;
        match &fact.layers {
            None => newest,
            Some(layers) => later(newest, layers.own),
        }
    }

    /// The same of another key with the unique prefix of the one that is written.
    fn newest_of_other(&self, view: &View, tree: TreeId, key: &[u8], fact: &Fact) -> Option<Found> {
        let newest = self.look_up(view, tree, key).newest;
        let layers = fact.layers.as_ref();
        later(
            newest,
            layers
                .and_then(|layers| layers.with_prefix.get(key))
                .copied(),
        )
    }

    /// The newest live version of the key that is written.
    fn live(&self, view: &View, write: &Write, fact: &Fact) -> Option<Live> {
        match self.newest_above_base(view, write, fact) {
            Some(found) => found.live(),
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
        let mut below = match fact.seen {
            Some(seen) if seen.edits == self.active.edits() => seen.below,
            _ => self
                .look_below(view, write.tree, &write.key)
                .map(|found| found.newest),
        };
        if let Some(layers) = &fact.layers
            && let Some(Found { newest, .. }) = layers.own
            && below.is_none_or(|below| below.ts < newest.ts)
        {
            below = Some(newest);
        }
        let (active, newest) = self.active.insert(write.tree, &write.key, version, needed);
        // A version may come late: then another stays the newest, here or below, and nothing
        // changes.
        if newest == ts && below.is_none_or(|below| below.ts <= ts) {
            let before = match (active, below) {
                (Some(active), Some(below)) if below.ts > active.ts => below.len,
                (Some(active), _) => active.len,
                (None, Some(below)) => below.len,
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
                (None, None) => self.live(&prepared.view, write, fact),
            };
            match (&write.expect, live) {
                (Expect::Any, _) | (Expect::Absent, None) | (Expect::Present, Some(_)) => {}
                (Expect::Absent, Some(_)) => return Err(WriteError::Exists { write: index }),
                (Expect::Present, None) => return Err(WriteError::Missing { write: index }),
                (Expect::Version(token), Some(live)) if live.token == Some(*token) => {}
                // What a unit has read and not written is what it was: only the number may be
                // another one.
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
            let is_changed = |key: &Key| {
                let newest = self.newest_of_other(view, tree, key, fact);
                newest.is_some_and(|found| found.newest.ts > of.snapshot)
            };
            let changed = |key: &Key| *key != write.key && !removed(key) && is_changed(key);
            if self
                .find_above_base(view, tree, prefix, fact, changed)
                .is_some()
            {
                return Err(WriteError::Conflict);
            }
        }
        let is_live = |key: &Key| {
            let newest = self.newest_of_other(view, tree, key, fact);
            newest.is_some_and(|found| found.newest.len.is_some())
        };
        let live = |key: &Key| *key != write.key && !removed(key) && is_live(key);
        if let Some(key) = self.find_above_base(view, tree, prefix, fact, live) {
            return duplicate(&key);
        }
        match fact
            .witnesses
            .iter()
            .find(|key| !removed(key) && !self.is_masked(view, tree, key, fact))
        {
            Some(_) if fact.is_taken_since => Err(WriteError::Conflict),
            Some(key) => duplicate(key),
            // Every key that was found has been removed since; whether there are others must be
            // looked up again.
            None if fact.more => Err(WriteError::Conflict),
            None => Ok(()),
        }
    }

    /// The first key with a prefix that a delta or a layer has and of which `is_it` holds.
    fn find_above_base(
        &self,
        view: &View,
        tree: TreeId,
        prefix: &[u8],
        fact: &Fact,
        is_it: impl Fn(&Key) -> bool,
    ) -> Option<Key> {
        let find = |delta: Option<&Delta>| {
            let mut keys = keys_with_prefix(delta?.tree(tree)?, prefix);
            keys.find(|key| is_it(key)).cloned()
        };
        find(Some(&self.active))
            .or_else(|| find(self.layers.delta()))
            .or_else(|| view.with_sealed(|sealed| find(sealed.map(|sealed| &sealed.delta))))
            .or_else(|| {
                let mut keys = fact.layers.as_ref()?.with_prefix.keys();
                keys.find(|key| is_it(key)).cloned()
            })
    }
}

fn keys_with_prefix<'a>(delta: &'a TreeDelta, prefix: &'a [u8]) -> impl Iterator<Item = &'a Key> {
    delta
        .range_from(prefix)
        .map(|(key, _)| key)
        .take_while(move |key| key.starts_with(prefix))
}
