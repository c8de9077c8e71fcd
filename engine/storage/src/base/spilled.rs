//! Records of the tree [`TreeId::SPILLED`]: changes that a checkpoint wrote and did not merge.
//!
//! ```text
//! key:   0 tree u64
//! value: the exact counts of the tree at the last checkpoint (24 bytes)
//!
//! key:   1 checkpoint u64 tree u64 key
//! value: 0 timestamp u64   8 whether there is a value u8   9 the value
//! ```
//!
//! Numbers in keys are big-endian. Of several versions of one key the one of the latest checkpoint
//! counts. The counts stand there because finding them again would take a look at the base for each
//! key.

use bytes::{Buf, Bytes};
use pinion_clock::Timestamp;

use super::roots::Counts;
use crate::types::{Key, TreeId};

const COUNTS: u8 = 0;
const VERSION: u8 = 1;
/// Bytes before the value of a version.
const VERSION_HEAD: usize = 9;

/// One record.
#[derive(Debug, PartialEq)]
pub(crate) enum SpilledRecord {
    /// A tree's exact counts.
    Counts(TreeId, Counts),
    /// A key's version; without a value it is a deletion.
    Version {
        tree: TreeId,
        key: Key,
        ts: Timestamp,
        value: Option<Bytes>,
    },
}

impl SpilledRecord {
    /// Reads a record; none if it is not sound. The value may be a part of `value`.
    pub(crate) fn decode(key: &[u8], mut value: Bytes) -> Option<SpilledRecord> {
        let (&kind, rest) = key.split_first()?;
        match kind {
            COUNTS => {
                let tree = TreeId(u64::from_be_bytes(rest.try_into().ok()?));
                let mut number = || value.try_get_u64_le().ok();
                let counts = Counts {
                    records: number()?,
                    key_bytes: number()?,
                    value_bytes: number()?,
                };
                value
                    .is_empty()
                    .then_some(SpilledRecord::Counts(tree, counts))
            }
            VERSION => {
                let (_checkpoint, rest) = rest.split_first_chunk::<8>()?;
                let (tree, key) = rest.split_first_chunk::<8>()?;
                let ts = Timestamp::from_u64(value.try_get_u64_le().ok()?);
                let value = match value.try_get_u8().ok()? {
                    0 if value.is_empty() => None,
                    1 => Some(value),
                    _ => return None,
                };
                Some(SpilledRecord::Version {
                    tree: TreeId(u64::from_be_bytes(*tree)),
                    key: Key::from_slice(key),
                    ts,
                    value,
                })
            }
            _ => None,
        }
    }
}

/// The key of a tree's counts.
pub(crate) fn spilled_counts_key(tree: TreeId) -> Key {
    let mut key = Key::new();
    key.push(COUNTS);
    key.extend_from_slice(&tree.0.to_be_bytes());
    key
}

/// The key of a version that a checkpoint spills.
pub(crate) fn spilled_version_key(checkpoint: u64, tree: TreeId, key: &[u8]) -> Key {
    let mut spilled = Key::with_capacity(17 + key.len());
    spilled.push(VERSION);
    spilled.extend_from_slice(&checkpoint.to_be_bytes());
    spilled.extend_from_slice(&tree.0.to_be_bytes());
    spilled.extend_from_slice(key);
    spilled
}

/// The value of a tree's counts.
pub(crate) fn encode_spilled_counts(counts: &Counts) -> Bytes {
    let numbers = [counts.records, counts.key_bytes, counts.value_bytes];
    Bytes::from(numbers.map(u64::to_le_bytes).concat())
}

/// The value of a version.
pub(crate) fn encode_spilled_version(ts: Timestamp, value: Option<&[u8]>) -> Bytes {
    let mut bytes = Vec::with_capacity(VERSION_HEAD + value.map_or(0, <[u8]>::len));
    bytes.extend_from_slice(&ts.as_u64().to_le_bytes());
    bytes.push(u8::from(value.is_some()));
    bytes.extend_from_slice(value.unwrap_or_default());
    Bytes::from(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written_and_nothing_else_is() {
        let counts = Counts {
            records: 1,
            key_bytes: 2,
            value_bytes: u64::MAX,
        };
        let (key, value) = (
            spilled_counts_key(TreeId(7)),
            encode_spilled_counts(&counts),
        );
        let decoded = SpilledRecord::decode(&key, value.clone());
        assert_eq!(decoded, Some(SpilledRecord::Counts(TreeId(7), counts)));
        assert_eq!(SpilledRecord::decode(&key, value.slice(1..)), None);
        assert_eq!(SpilledRecord::decode(&key[1..], value), None);
        let ts = Timestamp::from_u64(77);
        for value in [None, Some(&b""[..]), Some(b"value")] {
            for user_key in [&b""[..], b"k", b"\x00\xff"] {
                let key = spilled_version_key(3, TreeId(u64::MAX - 1), user_key);
                let bytes = encode_spilled_version(ts, value);
                let version = SpilledRecord::Version {
                    tree: TreeId(u64::MAX - 1),
                    key: Key::from_slice(user_key),
                    ts,
                    value: value.map(Bytes::copy_from_slice),
                };
                assert_eq!(
                    SpilledRecord::decode(&key, bytes.clone()),
                    Some(version),
                    "{value:?}"
                );
                assert_eq!(SpilledRecord::decode(&key[..16], bytes.clone()), None);
                assert_eq!(SpilledRecord::decode(&key, bytes.slice(..8)), None);
            }
        }
        let deletion_with_a_value = Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        let key = spilled_version_key(3, TreeId(1), b"k");
        assert_eq!(SpilledRecord::decode(&key, deletion_with_a_value), None);
    }
}
