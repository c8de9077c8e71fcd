//! Timestamp, Term and OpTime: the logical times that order every write.

use std::fmt;

/// A logical time: Unix seconds in the high 32 bits, a counter within that second in the low 32.
///
/// It is BSON's timestamp type, MongoDB's `LogicalTime`, and the key of Pinion's MVCC. The order is
/// that of the 64-bit number.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The null timestamp, below every allotted one.
    pub const MIN: Timestamp = Timestamp(0);
    /// Above every timestamp that can be allotted.
    pub const MAX: Timestamp = Timestamp(u64::MAX);

    /// A timestamp from its two halves.
    pub const fn new(secs: u32, inc: u32) -> Timestamp {
        Timestamp(((secs as u64) << 32) | inc as u64)
    }

    /// A timestamp from its 64-bit form, seconds in the high half.
    pub const fn from_u64(raw: u64) -> Timestamp {
        Timestamp(raw)
    }

    /// The 64-bit form, seconds in the high half.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Unix seconds.
    pub const fn secs(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The counter within the second.
    pub const fn inc(self) -> u32 {
        self.0 as u32
    }

    /// True for the null timestamp.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The timestamp right after this one.
    ///
    /// # Panics
    /// At `Timestamp::MAX`: a clock there has no room left, which the drift limit prevents.
    #[must_use]
    pub const fn next(self) -> Timestamp {
        self.plus(1)
    }

    /// The timestamp `n` places after this one. Panics on overflow.
    #[must_use]
    pub const fn plus(self, n: u64) -> Timestamp {
        match self.0.checked_add(n) {
            Some(raw) => Timestamp(raw),
            None => panic!("timestamp overflow"),
        }
    }

    /// The timestamp right before this one; `None` for the null timestamp.
    pub const fn prev(self) -> Option<Timestamp> {
        match self.0.checked_sub(1) {
            Some(raw) => Some(Timestamp(raw)),
            None => None,
        }
    }

    /// The 8 bytes of a BSON timestamp value: little-endian counter, then little-endian seconds.
    pub const fn to_bson_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// Reads the 8 bytes of a BSON timestamp value.
    pub const fn from_bson_bytes(bytes: [u8; 8]) -> Timestamp {
        Timestamp(u64::from_le_bytes(bytes))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({}, {})", self.secs(), self.inc())
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of an election; every entry of the oplog carries the term of the primary that wrote
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub i64);

impl Term {
    /// The term of a node that is no member of a set, and of a set before its first election.
    pub const UNINITIALIZED: Term = Term(-1);
    /// The term in which a new replica set starts.
    pub const INITIAL: Term = Term(0);
}

impl Default for Term {
    fn default() -> Term {
        Term::UNINITIALIZED
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The position of an oplog entry: its timestamp and the term of the primary that wrote it.
///
/// Positions of two nodes are compared by term first: after an election an entry of the older term
/// may carry the higher timestamp and still be the one that is rolled back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpTime {
    pub ts: Timestamp,
    pub term: Term,
}

impl OpTime {
    /// Below every entry.
    pub const NULL: OpTime = OpTime {
        ts: Timestamp::MIN,
        term: Term::UNINITIALIZED,
    };

    pub const fn new(ts: Timestamp, term: Term) -> OpTime {
        OpTime { ts, term }
    }

    /// True for the null optime.
    pub const fn is_null(self) -> bool {
        self.ts.is_null()
    }
}

impl PartialOrd for OpTime {
    fn partial_cmp(&self, other: &OpTime) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OpTime {
    /// By term, then by timestamp. An uninitialized term is below every other, so that the order is
    /// total.
    fn cmp(&self, other: &OpTime) -> std::cmp::Ordering {
        (self.term, self.ts).cmp(&(other.term, other.ts))
    }
}

impl fmt::Display for OpTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{ ts: {}, t: {} }}", self.ts, self.term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_and_order() {
        let t = Timestamp::new(1_495_470_881, 5);
        assert_eq!((t.secs(), t.inc()), (1_495_470_881, 5));
        assert_eq!(Timestamp::from_u64(t.as_u64()), t);
        assert_eq!(Timestamp::from_bson_bytes(t.to_bson_bytes()), t);
        assert_eq!(&t.to_bson_bytes()[..4], &5u32.to_le_bytes());
        assert!(Timestamp::new(1, u32::MAX) < Timestamp::new(2, 0));
        assert_eq!(Timestamp::new(1, u32::MAX).next(), Timestamp::new(2, 0));
        assert_eq!(Timestamp::MIN.prev(), None);
        assert_eq!(t.next().prev(), Some(t));
        assert_eq!(t.to_string(), "Timestamp(1495470881, 5)");
    }

    #[test]
    fn optimes_compare_by_term_first() {
        let old = OpTime::new(Timestamp::new(9, 9), Term(1));
        let new = OpTime::new(Timestamp::new(1, 1), Term(2));
        assert!(old < new);
        assert!(OpTime::NULL < old);
        assert_eq!(OpTime::default(), OpTime::NULL);
    }
}
