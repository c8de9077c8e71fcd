//! Documents: names of keys, and values that key, field and version determine, so that any reply
//! can be checked.

use super::distribution::fnv_hash;
use super::random::mix;

/// Characters at a value's beginning that carry its version, six bits each.
const VERSION_CHARS: usize = 11;
/// The 64 characters of values are '#'..='b', but '~' in the place of the backslash: printable, and
/// nothing that JSON must escape.
const FIRST: u8 = b'#';

/// What all documents of a run look like.
#[derive(Clone, Debug)]
pub struct Document {
    /// Fields `field0`, `field1`, ...
    pub fields: usize,
    pub field_bytes: usize,
    /// Hashed names scatter inserts over the key space; ordered ones append.
    pub ordered: bool,
    pub zero_padding: usize,
    /// A field `k` with the key's number, which a secondary index covers.
    pub indexed: bool,
    /// A field `at` with the time of the insert, which a TTL index covers.
    pub timed: bool,
}

impl Document {
    /// YCSB's `CoreWorkload.buildKeyName`.
    pub fn key_name(&self, key: u64, out: &mut Vec<u8>) {
        let number = if self.ordered { key } else { fnv_hash(key) };
        let mut digits = [0_u8; 20];
        let mut at = digits.len();
        let mut rest = number;
        while rest > 0 || at == digits.len() {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        out.extend_from_slice(b"user");
        for _ in digits.len() - at..self.zero_padding {
            out.push(b'0');
        }
        out.extend_from_slice(&digits[at..]);
    }

    /// The bytes of all values together.
    pub fn value_bytes(&self) -> usize {
        self.fields * self.field_bytes
    }
}

fn clean(word: u64) -> u64 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    let word = (word & (LOW * 0x3f)) + LOW * u64::from(FIRST);
    // A backslash becomes '~': the high bit is left in exactly those bytes that differ in nothing
    // from a backslash.
    let backslash = (LOW * 0x80 - (word ^ (LOW * u64::from(b'\\')))) & (LOW * 0x80);
    word ^ ((backslash >> 7) * u64::from(b'\\' ^ b'~'))
}

fn char_of(six_bits: u64) -> u8 {
    clean(six_bits) as u8
}

fn bits_of(char: u8) -> Option<u64> {
    let char = if char == b'~' {
        b'\\'
    } else if char == b'\\' {
        return None;
    } else {
        char
    };
    char.checked_sub(FIRST)
        .filter(|&bits| bits < 64)
        .map(u64::from)
}

/// Appends the value of a key's field at a version: the version, then text that looks random.
pub fn value(key: u64, field: usize, version: u64, bytes: usize, out: &mut Vec<u8>) {
    let end = out.len() + bytes;
    let version_chars = VERSION_CHARS.min(bytes);
    for place in 0..version_chars {
        out.push(char_of((version >> (6 * place)) & 63));
    }
    let kept = 6 * version_chars as u32;
    let version = if kept >= 64 {
        version
    } else {
        version & ((1 << kept) - 1)
    };
    let mut state = mix(key ^ mix(version ^ mix(field as u64)));
    while out.len() < end {
        // xorshift64*: a value's bytes cost less than sending them.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let word = clean(state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 2).to_le_bytes();
        let take = (end - out.len()).min(word.len());
        out.extend_from_slice(&word[..take]);
    }
}

/// Whether bytes are the value of a key's field at the version that they themselves name.
pub fn check_value(key: u64, field: usize, bytes: &[u8], scratch: &mut Vec<u8>) -> bool {
    let mut version = 0;
    for (place, &char) in bytes.iter().take(VERSION_CHARS).enumerate() {
        let Some(bits) = bits_of(char) else {
            return false;
        };
        version |= bits << (6 * place);
    }
    scratch.clear();
    value(key, field, version, bytes.len(), scratch);
    scratch == bytes
}
