//! Shard keys as bytes whose order is that of the keys, and ranges of them.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pinion_keystring::{Builder, TypeBits};

/// The KeyString of MinKey.
pub(super) const MIN_KEY: u8 = 10;
/// The KeyString of MaxKey.
pub(super) const MAX_KEY: u8 = 240;
/// Behind every key that starts alike.
const AFTER: u8 = 255;

/// The components of a KeyString without an end byte. The types of the values stand behind them and
/// take no part in comparison. A copy costs a counter.
#[derive(Clone)]
pub struct KeyBytes {
    bytes: Arc<[u8]>,
    /// Where the types begin.
    len: u32,
}

impl KeyBytes {
    /// Values that need no types.
    pub(super) fn of(key: &[u8]) -> KeyBytes {
        KeyBytes {
            bytes: key.into(),
            len: length(key),
        }
    }

    pub(super) fn built(builder: &Builder) -> KeyBytes {
        let key = builder.bytes();
        let types = builder.type_bits().as_bytes();
        match types.is_empty() {
            true => KeyBytes::of(key),
            false => KeyBytes {
                len: length(key),
                bytes: [key, &types].concat().into(),
            },
        }
    }

    /// What is compared.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    pub(super) fn type_bits(&self) -> TypeBits {
        TypeBits::from_bytes(&self.bytes[self.len as usize..]).expect("written by this module")
    }

    /// The key with components behind it that need no types.
    pub(super) fn followed_by(&self, more: &[u8]) -> KeyBytes {
        let types = &self.bytes[self.len as usize..];
        KeyBytes {
            bytes: [self.as_bytes(), more, types].concat().into(),
            len: self.len + length(more),
        }
    }

    /// Behind every key that starts with these components, and before every other one that is
    /// above them.
    pub(super) fn after(&self) -> KeyBytes {
        self.followed_by(&[AFTER])
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a key is shorter than a document")
}

impl Borrow<[u8]> for KeyBytes {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for KeyBytes {
    fn eq(&self, other: &KeyBytes) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for KeyBytes {}

impl PartialOrd for KeyBytes {
    fn partial_cmp(&self, other: &KeyBytes) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyBytes {
    fn cmp(&self, other: &KeyBytes) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for KeyBytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for KeyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
