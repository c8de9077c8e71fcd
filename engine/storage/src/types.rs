//! Types shared by every part of storage and by its callers: identities, writes, expectations,
//! errors.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use smallvec::SmallVec;

use crate::partition::UnitId;

/// One tree (a collection's documents or one index) in every partition's page file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeId(pub u64);

impl TreeId {
    /// The tree of trees: [`TreeId`] to root page and counts. Callers never write to it.
    pub(crate) const MASTER: TreeId = TreeId(0);
    /// The tree of changes that a checkpoint wrote and did not merge. Only an inspection of the
    /// pages shows it.
    pub const SPILLED: TreeId = TreeId(u64::MAX);
    /// The trees from this number on are each node's own: what is written to them is not
    /// replicated.
    pub const FIRST_UNREPLICATED: TreeId = TreeId(1 << 62);

    /// Whether what is written to the tree goes to the oplog.
    pub fn is_replicated(self) -> bool {
        self < TreeId::FIRST_UNREPLICATED
    }
}

impl fmt::Display for TreeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tree {}", self.0)
    }
}

/// The tree of `_mdb_catalog`; it lives in partition 0.
pub const CATALOG_TREE: TreeId = TreeId(1);

/// One of the `P` partitions of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u16);

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {}", self.0)
    }
}

/// A key as trees store it. Keys up to 32 bytes (every ObjectId, most index entries) need no
/// allocation.
pub type Key = SmallVec<[u8; 32]>;

/// What a write does to its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Stores the value. The delta keeps this very buffer until a checkpoint, so it should not be a
    /// small slice of a large one.
    Put(Bytes),
    /// Stores the value with the timestamp of its unit, as BSON has it, in the 8 bytes at `at`: for
    /// values that name the write that they are part of.
    PutStamped {
        /// The value, whatever stands at `at`.
        value: Bytes,
        /// Where the timestamp goes.
        at: usize,
        /// Where another one goes, if the value names that too.
        first: Option<FirstStamp>,
    },
    /// Removes the key; removing an absent key is allowed.
    Delete,
    /// Changes nothing: only the expectation is checked, and held until the unit is decided.
    Check,
}

/// Where a value names the timestamp of the first entry of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstStamp {
    /// Where the 8 bytes go.
    pub at: usize,
    /// How many entries the unit has; at least one.
    pub entries: u64,
}

impl Op {
    /// The length of the value that is stored, if one is.
    pub(crate) fn value_len(&self) -> Option<usize> {
        match self {
            Op::Put(value) | Op::PutStamped { value, .. } => Some(value.len()),
            Op::Delete | Op::Check => None,
        }
    }

    /// The value that is stored by a unit at `ts`, if one is.
    ///
    /// # Panics
    /// When a stamp would lie outside of its value.
    pub(crate) fn value_at(&self, ts: Timestamp) -> Option<Bytes> {
        match self {
            Op::Put(value) => Some(value.clone()),
            Op::PutStamped { value, at, first } => {
                let mut stamped = value.to_vec();
                stamped[*at..*at + 8].copy_from_slice(&ts.to_bson_bytes());
                if let Some(FirstStamp { at, entries }) = *first {
                    // The entries of a unit have timestamps that follow one another.
                    let first = Timestamp::from_u64(ts.as_u64() - (entries - 1));
                    stamped[at..at + 8].copy_from_slice(&first.to_bson_bytes());
                }
                Some(Bytes::from(stamped))
            }
            Op::Delete | Op::Check => None,
        }
    }
}

/// What must hold of a key, at newest, for its write to take place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Any,
    /// The key is absent; otherwise [`WriteError::Exists`].
    Absent,
    /// The key is present; otherwise [`WriteError::Missing`].
    Present,
    /// The key is present and unchanged since the read that returned this token; otherwise
    /// [`WriteError::Conflict`].
    Version(VersionToken),
    /// No other live key shares the first `len` bytes of this one; otherwise
    /// [`WriteError::Duplicate`]. The key itself may be present.
    UniquePrefix {
        /// Bytes of the key that must be unique.
        len: usize,
    },
}

/// One change of one key, with what it expects.
#[derive(Clone, Debug)]
pub struct Write {
    /// The partition that owns the key.
    pub partition: PartitionId,
    /// The tree within it.
    pub tree: TreeId,
    /// The key.
    pub key: Key,
    /// The change.
    pub op: Op,
    /// The condition.
    pub expect: Expect,
}

/// Identifies the version that a read returned, for [`Expect::Version`]. A token is meaningful only
/// within the process that gave it. Two different versions never have equal tokens; one version may
/// change its token when a checkpoint moves it into the base, so a conflict may be reported where
/// nothing changed, never the reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VersionToken(pub(crate) u64);

impl VersionToken {
    /// Set in the token of a version that was read from a leaf.
    const OF_LEAF: u64 = 1 << 63;

    /// The token of a version in a leaf that this checkpoint wrote.
    pub(crate) fn of_leaf(checkpoint: u64) -> VersionToken {
        VersionToken(Self::OF_LEAF | checkpoint)
    }
}

/// A value with the identity of its version.
#[derive(Clone, Debug)]
pub struct Read {
    /// The value: a slice of a page or of the delta, not a copy.
    pub value: Bytes,
    /// Which version this is.
    pub token: VersionToken,
}

/// Which state a read sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAt {
    /// The newest committed state of the partition. Waits for a unit that is just being decided.
    Newest,
    /// The state at a timestamp at or below the visible timestamp. Waits for a unit that is
    /// prepared at or below it.
    At(Timestamp),
    /// As [`ReadAt::Newest`], but what is prepared is not waited for: nothing of it is there before
    /// it is committed.
    NewestDecided,
    /// As [`ReadAt::At`], but what is prepared is not waited for: of what was prepared it sees what
    /// an entry at or below the timestamp commits.
    DecidedAt(Timestamp),
    /// As [`ReadAt::At`], and over it what the unit has written itself.
    In {
        /// The timestamp.
        at: Timestamp,
        /// The unit.
        unit: UnitId,
    },
}

impl ReadAt {
    /// The timestamp of a read that sees a snapshot.
    pub(crate) fn snapshot(self) -> Option<Timestamp> {
        match self {
            ReadAt::Newest | ReadAt::NewestDecided => None,
            ReadAt::At(ts) | ReadAt::DecidedAt(ts) | ReadAt::In { at: ts, .. } => Some(ts),
        }
    }
}

/// The direction of a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// A range of keys, independent of the direction in which it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The low end.
    pub lower: Bound<Key>,
    /// The high end.
    pub upper: Bound<Key>,
}

impl KeyRange {
    /// Every key.
    pub fn all() -> KeyRange {
        KeyRange {
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
        }
    }

    /// `lower <= key < upper`.
    pub fn half_open(lower: &[u8], upper: &[u8]) -> KeyRange {
        KeyRange {
            lower: Bound::Included(Key::from_slice(lower)),
            upper: Bound::Excluded(Key::from_slice(upper)),
        }
    }

    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: &[u8]) -> KeyRange {
        let upper = match prefix_successor(prefix) {
            Some(key) => Bound::Excluded(key),
            None => Bound::Unbounded,
        };
        KeyRange {
            lower: Bound::Included(Key::from_slice(prefix)),
            upper,
        }
    }

    /// Whether `key` lies within.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.above_lower(key) && self.below_upper(key)
    }

    pub(crate) fn above_lower(&self, key: &[u8]) -> bool {
        match &self.lower {
            Bound::Unbounded => true,
            Bound::Included(bound) => key >= bound.as_slice(),
            Bound::Excluded(bound) => key > bound.as_slice(),
        }
    }

    pub(crate) fn below_upper(&self, key: &[u8]) -> bool {
        match &self.upper {
            Bound::Unbounded => true,
            Bound::Included(bound) => key <= bound.as_slice(),
            Bound::Excluded(bound) => key < bound.as_slice(),
        }
    }
}

/// The smallest key above every key that begins with `prefix`; none if the prefix is empty or all
/// `0xff`.
pub fn prefix_successor(prefix: &[u8]) -> Option<Key> {
    let keep = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut key = Key::from_slice(&prefix[..=keep]);
    key[keep] += 1;
    Some(key)
}

/// A condition after which the node must stop serving: a failed write or flush, a broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatal(pub Arc<str>);

impl Fatal {
    /// A fatal condition, described for the log.
    pub fn new(what: impl Into<String>) -> Fatal {
        Fatal(Arc::from(what.into()))
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fatal {}

/// Why a statement did not take place. `write` is the position of the offending write in the
/// statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// [`Expect::Absent`] met a live key.
    Exists {
        /// Position of the write.
        write: usize,
    },
    /// [`Expect::Present`] met no live key.
    Missing {
        /// Position of the write.
        write: usize,
    },
    /// Another unit holds the key, or it changed; read again and retry.
    Conflict,
    /// [`Expect::UniquePrefix`] met another live key.
    Duplicate {
        /// Position of the write.
        write: usize,
        /// The key already there.
        existing_key: Key,
    },
    /// An earlier statement of an ordered batch failed.
    NotReached,
    /// A key, a value or the whole statement exceeds its limit.
    TooLarge,
    /// Memory for changes is exhausted; retry later.
    CacheFull,
    /// The disk is full; retry when there is room.
    DiskFull,
    /// The intents of the unit take more memory than one unit may.
    UnitTooLarge,
    /// The unit was ended: the node no longer led, or storage was closed.
    UnitEnded,
    /// The snapshot that the unit reads is no longer available.
    SnapshotTooOld,
    /// The node does not lead: another one allots the timestamps.
    Following,
    /// The node is no longer able to write.
    Fatal(Fatal),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Exists { write } => write!(f, "the key of write {write} already exists"),
            WriteError::Missing { write } => write!(f, "the key of write {write} does not exist"),
            WriteError::Conflict => f.write_str("write conflict"),
            WriteError::Duplicate { write, .. } => {
                write!(f, "the unique prefix of write {write} is taken")
            }
            WriteError::NotReached => f.write_str("an earlier statement failed"),
            WriteError::TooLarge => f.write_str("a key or value is too large"),
            WriteError::CacheFull => f.write_str("no memory for further changes at present"),
            WriteError::DiskFull => f.write_str("the disk is full"),
            WriteError::UnitTooLarge => {
                f.write_str("a unit's changes take more memory than one unit may")
            }
            WriteError::UnitEnded => f.write_str("the unit was ended"),
            WriteError::SnapshotTooOld => f.write_str("the snapshot is no longer available"),
            WriteError::Following => f.write_str("the node follows another"),
            WriteError::Fatal(fatal) => write!(f, "storage has stopped: {fatal}"),
        }
    }
}

impl std::error::Error for WriteError {}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The timestamp lies below the base, and nothing pinned the state it asks for.
    SnapshotTooOld,
    /// Bytes on disk are not what was written.
    Corrupt {
        /// File path.
        file: Arc<str>,
        /// Byte offset of the page.
        offset: u64,
        /// What is wrong.
        what: Arc<str>,
    },
    /// The device reported an error.
    Io(Arc<str>),
    /// The partition was closed or the operation stopped.
    Interrupted,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::SnapshotTooOld => f.write_str("the snapshot is no longer available"),
            ReadError::Corrupt { file, offset, what } => {
                write!(f, "{file} is corrupt at offset {offset}: {what}")
            }
            ReadError::Io(what) => write!(f, "read failed: {what}"),
            ReadError::Interrupted => f.write_str("the read was interrupted"),
        }
    }
}

impl std::error::Error for ReadError {}

/// Exact counts of one tree in one partition, at newest, and the size of its pages at the last
/// checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    /// Live keys.
    pub records: u64,
    /// Sum of the lengths of live keys.
    pub key_bytes: u64,
    /// Sum of the lengths of live values.
    pub value_bytes: u64,
    /// Pages of the tree in the base.
    pub pages: u64,
    /// Bytes of those pages, overflow extents included.
    pub page_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_successors() {
        let check = |prefix: &[u8], expected: Option<&[u8]>| {
            assert_eq!(prefix_successor(prefix).as_deref(), expected, "{prefix:?}");
        };
        check(b"", None);
        check(b"\xff\xff", None);
        check(b"a", Some(b"b"));
        check(b"a\xff", Some(b"b"));
        check(b"a\x00", Some(b"a\x01"));
    }

    #[test]
    fn a_stamp_replaces_eight_bytes() {
        let op = Op::PutStamped {
            value: Bytes::from_static(b"ab........c"),
            at: 2,
            first: None,
        };
        let ts = Timestamp::new(0x0403_0201, 0x0807_0605);
        let expected = Bytes::from_static(b"ab\x05\x06\x07\x08\x01\x02\x03\x04c");
        assert_eq!(
            (op.value_at(ts), op.value_len()),
            (Some(expected), Some(11))
        );
        assert_eq!(Op::Delete.value_at(ts), None);
        let with_first = Op::PutStamped {
            value: Bytes::from_static(b"................"),
            at: 8,
            first: Some(FirstStamp { at: 0, entries: 3 }),
        };
        let expected =
            Bytes::from_static(b"\x03\x06\x07\x08\x01\x02\x03\x04\x05\x06\x07\x08\x01\x02\x03\x04");
        assert_eq!(with_first.value_at(ts), Some(expected));
    }

    #[test]
    fn prefix_range_contains_exactly_the_prefix() {
        let range = KeyRange::prefix(b"ab");
        for (key, expected) in [
            (&b"ab"[..], true),
            (b"ab\xff\xff", true),
            (b"ac", false),
            (b"aa\xff", false),
        ] {
            assert_eq!(range.contains(key), expected, "{key:?}");
        }
    }
}
