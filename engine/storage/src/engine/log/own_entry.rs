//! What an entry of the ring of unreplicated writes holds: the changes themselves, all of one
//! partition.
//!
//! ```text
//! a change:  0 tree u64                8 kind u8 (1: put, 2: delete)
//!            9 length of the key u32  13 length of the value u32
//!           17 key, value
//! ```

use bytes::Bytes;

use crate::engine::write::Statement;
use crate::layout::{u32_at, u64_at};
use crate::types::{Expect, Key, Op, PartitionId, TreeId, Write};

const HEADER_BYTES: usize = 17;
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// Where everything lies that is not replicated.
pub(in crate::engine) const PARTITION: PartitionId = PartitionId(0);

/// The length of [`encode`]'s result.
pub(in crate::engine) fn encoded_len(statement: &Statement) -> usize {
    let of_write = |write: &Write| match &write.op {
        Op::Put(value) => HEADER_BYTES + write.key.len() + value.len(),
        Op::Delete => HEADER_BYTES + write.key.len(),
        Op::Check => 0,
        Op::PutStamped { .. } => unreachable!("a value with a timestamp is replicated"),
    };
    statement.writes.iter().map(of_write).sum()
}

pub(in crate::engine) fn encode(writes: &[Write]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for write in writes {
        let (kind, value) = match &write.op {
            Op::Put(value) => (PUT, &value[..]),
            Op::Delete => (DELETE, &[][..]),
            Op::Check => continue,
            Op::PutStamped { .. } => unreachable!("a value with a timestamp is replicated"),
        };
        bytes.extend_from_slice(&write.tree.0.to_le_bytes());
        bytes.push(kind);
        bytes.extend_from_slice(&(write.key.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&write.key);
        bytes.extend_from_slice(value);
    }
    bytes
}

/// The changes of an entry; `None` if it is not one.
pub(crate) fn decode(mut bytes: &[u8]) -> Option<Vec<Write>> {
    let mut writes = Vec::new();
    while !bytes.is_empty() {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        let (key, rest) = rest.split_at_checked(u32_at(header, 9) as usize)?;
        let (value, rest) = rest.split_at_checked(u32_at(header, 13) as usize)?;
        bytes = rest;
        writes.push(Write {
            partition: PARTITION,
            tree: TreeId(u64_at(header, 0)),
            key: Key::from_slice(key),
            op: match header[8] {
                PUT => Op::Put(Bytes::copy_from_slice(value)),
                DELETE if value.is_empty() => Op::Delete,
                _ => return None,
            },
            expect: Expect::Any,
        });
    }
    Some(writes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(key: &[u8], op: Op) -> Write {
        Write {
            partition: PARTITION,
            tree: TreeId(1 << 62 | 7),
            key: Key::from_slice(key),
            op,
            expect: Expect::Any,
        }
    }

    #[test]
    fn changes_are_read_as_they_were_written() {
        let changes = |writes: &[Write]| {
            let shown = writes.iter().filter(|write| write.op != Op::Check);
            let shown = shown.map(|write| (write.tree, write.key.clone(), write.op.clone()));
            shown.collect::<Vec<_>>()
        };
        let check = |writes: Vec<Write>| {
            let bytes = encode(&writes);
            let read = decode(&bytes).expect("whole");
            assert_eq!(changes(&read), changes(&writes));
            let statement = Statement {
                writes,
                entry: None,
            };
            assert_eq!(encoded_len(&statement), bytes.len());
        };
        check(vec![]);
        check(vec![write(b"k", Op::Check)]);
        check(vec![
            write(b"", Op::Put(Bytes::new())),
            write(b"key", Op::Put(Bytes::from_static(b"value"))),
            write(b"check", Op::Check),
            write(b"gone", Op::Delete),
        ]);
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        let good = encode(&[write(b"key", Op::Put(Bytes::from_static(b"value")))]);
        for len in 1..good.len() {
            assert!(decode(&good[..len]).is_none(), "{len} bytes");
        }
        for kind in [0, DELETE, 3] {
            let mut bytes = good.clone();
            bytes[8] = kind;
            assert!(decode(&bytes).is_none(), "kind {kind}");
        }
    }
}
