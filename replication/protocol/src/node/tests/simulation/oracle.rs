//! What must hold whatever happens.

use std::collections::BTreeMap;

use pinion_clock::{OpTime, Term};

/// What the set has promised so far.
#[derive(Default)]
pub(super) struct Oracle {
    primaries: BTreeMap<Term, usize>,
    /// The entries that are committed, in their order.
    pub(super) committed: Vec<OpTime>,
}

/// What one life of a member has reported.
#[derive(Clone, Copy, Default)]
pub(super) struct Reported {
    term: Term,
    committed: OpTime,
    stable: OpTime,
}

impl Oracle {
    pub(super) fn elected(&mut self, member: usize, term: Term) -> Result<(), String> {
        match self.primaries.insert(term, member) {
            Some(other) if other != member => Err(format!(
                "members {other} and {member} are both the primary of term {term}"
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn elections(&self) -> usize {
        self.primaries.len()
    }

    /// A member says that a majority holds this much, and what of it it has in its log itself.
    pub(super) fn commit_point_moved(
        &mut self,
        before: &mut Reported,
        log: &[OpTime],
        term: Term,
        committed: OpTime,
        stable: OpTime,
    ) -> Result<(), String> {
        if term < before.term || committed < before.committed || stable < before.stable {
            return Err(format!(
                "from {:?} back to {term}, {committed}, {stable}",
                before.term
            ));
        }
        *before = Reported {
            term,
            committed,
            stable,
        };
        // What lies ahead of its log follows from what it has.
        let held = log.last().map_or(OpTime::NULL, |last| committed.min(*last));
        if held.is_null() {
            return Ok(());
        }
        let Ok(at) = log.binary_search(&held) else {
            return Err(format!(
                "{held} is committed, and not in the log of who says so"
            ));
        };
        let known = self.committed.len();
        if let Some(entry) = self.committed.get(at) {
            return match *entry == held {
                true => Ok(()),
                false => Err(format!(
                    "both {entry} and {held} are committed as entry {at}"
                )),
            };
        }
        if let Some(last) = self.committed.last()
            && log[known - 1] != *last
        {
            return Err(format!(
                "{held} follows {}, and {last} was committed",
                log[known - 1]
            ));
        }
        self.committed.extend_from_slice(&log[known..=at]);
        Ok(())
    }

    /// A primary that begins its term has all that was ever committed.
    pub(super) fn begins(&self, log: &[OpTime]) -> Result<(), String> {
        match log.starts_with(&self.committed) {
            true => Ok(()),
            false => Err("a primary lacks what is committed".into()),
        }
    }

    /// A client heard that a majority holds its write.
    pub(super) fn acknowledged(&self, entry: OpTime) -> Result<(), String> {
        match self.committed.last().is_some_and(|last| entry <= *last) {
            true => Ok(()),
            false => Err(format!("{entry} was acknowledged and is not committed")),
        }
    }
}
