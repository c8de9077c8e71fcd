//! In which term each entry of the oplog was written, as far back as this node remembers.

use std::collections::VecDeque;
use std::sync::Arc;

use pinion_clock::{OpTime, Term, Timestamp};

use crate::limits::MAX_TERMS;

/// The first timestamps of terms, in order. Storage knows entries by their timestamps alone;
/// members compare them with terms. A copy shares them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Terms(Arc<VecDeque<(Timestamp, Term)>>);

impl Terms {
    /// Everything from the last entry of the oplog on, as far as it is not said otherwise, is of
    /// its term.
    pub(crate) fn starting_at(last: OpTime) -> Terms {
        let mut terms = Terms::default();
        if !last.is_null() {
            Arc::make_mut(&mut terms.0).push_back((last.ts, last.term));
        }
        terms
    }

    /// Entries from `first` on are of this term. Returns whether it is a later one.
    ///
    /// # Panics
    /// When timestamps or terms go back.
    pub(crate) fn begin(&mut self, first: Timestamp, term: Term) -> bool {
        if let Some((last, before)) = self.0.back() {
            if term == *before {
                return false;
            }
            assert!(first > *last && term > *before, "terms go back");
        }
        let terms = Arc::make_mut(&mut self.0);
        terms.push_back((first, term));
        if terms.len() > MAX_TERMS {
            terms.pop_front();
        }
        true
    }

    /// The entry at a timestamp, or the last one below it. What is older than all that is
    /// remembered counts to the oldest term.
    pub(crate) fn optime(&self, ts: Timestamp) -> OpTime {
        if ts.is_null() {
            return OpTime::NULL;
        }
        let known = self.0.iter().rev().find(|(first, _)| *first <= ts);
        match known.or(self.0.front()) {
            Some((_, term)) => OpTime::new(ts, *term),
            None => OpTime::NULL,
        }
    }

    /// Entries above `last` are gone. It may lie before all that is remembered.
    pub(crate) fn cut(&mut self, last: OpTime) {
        let terms = Arc::make_mut(&mut self.0);
        while terms.back().is_some_and(|(first, _)| *first > last.ts) {
            terms.pop_back();
        }
        match terms.back() {
            Some((_, term)) => assert!(*term == last.term, "an entry is of the term it was in"),
            None => terms.push_back((last.ts, last.term)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_of_entries() {
        let ts = |secs| Timestamp::new(secs, 1);
        let at = |secs, term| OpTime::new(ts(secs), Term(term));
        let mut terms = Terms::starting_at(at(10, 2));
        assert!(terms.begin(ts(20), Term(4)));
        assert!(!terms.begin(ts(25), Term(4)));
        terms.begin(ts(30), Term(5));
        let check = |terms: &Terms, secs, term| assert_eq!(terms.optime(ts(secs)), at(secs, term));
        for (secs, term) in [(5, 2), (10, 2), (19, 2), (20, 4), (29, 4), (30, 5), (99, 5)] {
            check(&terms, secs, term);
        }
        terms.cut(at(29, 4));
        check(&terms, 30, 4);
        // A process that has read its last entry alone knows of no other term. A rollback took it
        // to be of the later one, and the next entry of the term that it was in stopped the node:
        // seed 20 of the simulated sets.
        let mut terms = Terms::starting_at(at(30, 5));
        terms.cut(at(22, 4));
        check(&terms, 22, 4);
        terms.begin(ts(24), Term(4));
        check(&terms, 24, 4);
        assert_eq!(terms.optime(Timestamp::MIN), OpTime::NULL);
        assert_eq!(Terms::default().optime(ts(1)), OpTime::NULL);
    }

    #[test]
    fn they_are_bounded() {
        let mut terms = Terms::default();
        for n in 1..=MAX_TERMS as u32 + 5 {
            terms.begin(Timestamp::new(n, 1), Term(i64::from(n)));
        }
        assert_eq!(terms.0.len(), MAX_TERMS);
    }
}
