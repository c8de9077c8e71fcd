//! Keys and values: the same for every engine, made without looking anything up, and distinguished
//! from one another when read.

/// The bytes of a key: eight that spread the records at random, then the record's number.
pub const KEY_BYTES: usize = 16;
/// A value begins with the record's number and its version.
pub const STAMP_BYTES: usize = 16;
/// Random printable bytes that values are cut from.
const POOL_BYTES: usize = 4 << 20;

pub type Key = [u8; KEY_BYTES];

/// The finalizer of splitmix64: a permutation of all 64-bit numbers.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The key of a record. Records in the order of their numbers come in no order of keys.
pub fn key(record: u64) -> Key {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&mix(record).to_be_bytes());
    key[8..].copy_from_slice(&record.to_be_bytes());
    key
}

/// The record that a key belongs to, if it is one of ours.
pub fn record_of(bytes: &[u8]) -> Option<u64> {
    let record = u64::from_be_bytes(bytes.get(8..)?.try_into().ok()?);
    (bytes == key(record)).then_some(record)
}

/// A sequence of random numbers (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(mix(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Makes and checks values.
pub struct Values {
    pool: Vec<u8>,
    len: usize,
}

impl Values {
    pub fn new(len: usize) -> Values {
        assert!((STAMP_BYTES..POOL_BYTES / 2).contains(&len));
        const PRINTABLE: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut random = Random::new(20);
        let mut pool = Vec::with_capacity(POOL_BYTES);
        while pool.len() < POOL_BYTES {
            let bits = random.next();
            pool.extend((0..10).map(|at| PRINTABLE[(bits >> (6 * at)) as usize & 63]));
        }
        Values { pool, len }
    }

    fn tail(&self, record: u64, version: u64) -> &[u8] {
        let at = mix(record ^ version << 40) as usize % (POOL_BYTES / 2);
        &self.pool[at..at + self.len - STAMP_BYTES]
    }

    /// Writes the value of a record into `value`.
    pub fn make(&self, record: u64, version: u64, value: &mut Vec<u8>) {
        value.clear();
        value.extend_from_slice(&record.to_le_bytes());
        value.extend_from_slice(&version.to_le_bytes());
        value.extend_from_slice(self.tail(record, version));
    }

    /// Whether `value` is one that this record had, by its length and stamp; `closely`: every byte.
    pub fn is_of(&self, record: u64, value: &[u8], closely: bool) -> bool {
        if value.len() != self.len || value[..8] != record.to_le_bytes() {
            return false;
        }
        let version = u64::from_le_bytes(value[8..16].try_into().expect("eight bytes"));
        !closely || &value[STAMP_BYTES..] == self.tail(record, version)
    }
}

/// The sum of all bytes that were read, eight at a time: every line of a value is touched.
#[derive(Default)]
pub struct Sum(pub u64);

impl Sum {
    pub fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let words = words.iter().fold(0u64, |sum, word| {
            sum.wrapping_add(u64::from_le_bytes(*word))
        });
        let rest = rest.iter().map(|&byte| u64::from(byte)).sum();
        self.0 = self.0.wrapping_add(words).wrapping_add(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_names_its_record() {
        let values = Values::new(1000);
        let mut value = Vec::new();
        values.make(7, 3, &mut value);
        assert!(value.len() == 1000 && values.is_of(7, &value, true));
        assert!(!values.is_of(8, &value, false));
        value[999] ^= 1;
        assert!(values.is_of(7, &value, false) && !values.is_of(7, &value, true));
        value.pop();
        assert!(!values.is_of(7, &value, false));
    }

    #[test]
    fn keys_are_spread_and_distinct() {
        let mut keys: Vec<Key> = (0..1000).map(key).collect();
        assert!(
            keys.iter()
                .zip(0..)
                .all(|(key, n)| record_of(key) == Some(n))
        );
        let in_order = keys.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((400..600).contains(&in_order));
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 1000);
        assert_eq!(record_of(b"0123456789abcdef"), None);
    }

    #[test]
    fn the_sum_is_of_all_bytes() {
        let mut sum = Sum::default();
        sum.add(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 3]);
        assert_eq!(sum.0, 6);
    }
}
