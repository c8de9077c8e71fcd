//! Transactions of clients that append numbers to lists and read lists: what was asked and what was
//! answered.

use std::collections::BTreeMap;
use std::fmt;

/// A list: a document of one of the collections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub collection: u8,
    pub id: i32,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.collection, self.id)
    }
}

/// What all lists hold at the end, on every member.
pub type Finals = BTreeMap<Key, Vec<i64>>;

/// One statement of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// No number is appended twice, by any client.
    Append(Key, i64),
    Read(Key, Vec<i64>),
}

/// What a client knows of the end of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A majority has it.
    Committed,
    /// The primary has answered, and no other member was asked: it may be rolled back.
    AcknowledgedByOne,
    /// Nothing of it was or will ever be there.
    Aborted,
    /// Nothing of it stays, but a reader of what may be rolled back may have seen it.
    RolledBack,
    /// It may be there or not.
    Unknown,
}

/// A transaction, or one statement without one.
#[derive(Clone, Debug)]
pub struct Txn {
    pub client: usize,
    pub outcome: Outcome,
    pub ops: Vec<Op>,
    /// What it has read a majority has, whether or not it has written anything.
    pub is_lasting: bool,
    /// It sees all that its client was answered before.
    pub is_causal: bool,
}

impl Txn {
    /// What it appends, in its order.
    pub fn appends(&self) -> impl Iterator<Item = (Key, i64)> + '_ {
        self.ops.iter().filter_map(|op| match op {
            Op::Append(key, number) => Some((*key, *number)),
            Op::Read(..) => None,
        })
    }
}

impl fmt::Display for Txn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[client {}, {:?}:", self.client, self.outcome)?;
        for op in &self.ops {
            match op {
                Op::Append(key, number) => write!(f, " {key}+{number}")?,
                // Of a long list its end says enough.
                Op::Read(key, list) => {
                    let tail = &list[list.len().saturating_sub(4)..];
                    write!(f, " {key}={}:{tail:?}", list.len())?;
                }
            }
        }
        f.write_str("]")
    }
}
