//! RecordIds at the end of a key, readable from the last byte on.

use crate::limits::{MAX_RECORD_ID_BYTES, MAX_RECORD_ID_LENGTH_BYTES};
use crate::{Corrupt, bytes::Sink};

/// Where a record is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordId {
    /// A position; not negative where it is stored.
    Long(i64),
    /// The key of a clustered record: at least one byte, at most `MAX_RECORD_ID_BYTES`.
    Binary(Vec<u8>),
}

/// Appends a position: the number of bytes between the first and the last stands in the highest
/// three bits of the first and the lowest three of the last; all other bits are the value. Negative
/// positions, which are only ever bounds, become 0.
pub(crate) fn push_long(out: &mut impl Sink, id: i64) {
    let value = id.max(0).unsigned_abs();
    let bits = 64 - value.leading_zeros();
    let between = bits.saturating_sub(10).div_ceil(8);
    out.push((between << 5) as u8 | (value >> (5 + 8 * between)) as u8);
    out.extend(&(value >> 5).to_be_bytes()[8 - between as usize..]);
    out.push((value << 3) as u8 | between as u8);
}

/// Appends a clustered key and its length, seven bits to a byte, the lowest first; from the second
/// on the bytes of the length have the highest bit set, so it is read from the right.
///
/// # Panics
/// When the id is empty or longer than `MAX_RECORD_ID_BYTES`.
pub(crate) fn push_binary(out: &mut impl Sink, id: &[u8]) {
    assert!(
        (1..=MAX_RECORD_ID_BYTES).contains(&id.len()),
        "a RecordId of {} bytes",
        id.len()
    );
    out.extend(id);
    out.push(id.len() as u8 & 0x7f);
    let mut rest = id.len() >> 7;
    while rest != 0 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
}

impl RecordId {
    /// Reads a position at the end of a key; also gives where it starts.
    pub fn long_at_end(key: &[u8]) -> Result<(RecordId, usize), Corrupt> {
        let (&last, rest) = key.split_last().ok_or(Corrupt("no RecordId"))?;
        let between = usize::from(last & 7);
        let start = rest
            .len()
            .checked_sub(between + 1)
            .ok_or(Corrupt("the RecordId is cut off"))?;
        let first = rest[start];
        if usize::from(first >> 5) != between {
            return Err(Corrupt("the ends of the RecordId disagree"));
        }
        let head = u64::from(first & 0x1f);
        let value = rest[start + 1..]
            .iter()
            .fold(head, |value, &b| value << 8 | u64::from(b));
        // Seven bytes between and ten bits at the ends exceed 64 bits by two.
        if value >> 59 != 0 {
            return Err(Corrupt("the RecordId exceeds 64 bits"));
        }
        let value = value << 5 | u64::from(last >> 3);
        let id = i64::try_from(value).map_err(|_| Corrupt("a negative RecordId"))?;
        Ok((RecordId::Long(id), start))
    }

    /// Reads a clustered key at the end of a key; also gives where it starts.
    pub fn binary_at_end(key: &[u8]) -> Result<(RecordId, usize), Corrupt> {
        let mut len = 0usize;
        let mut end = key.len();
        for _ in 0..MAX_RECORD_ID_LENGTH_BYTES {
            end = end
                .checked_sub(1)
                .ok_or(Corrupt("the RecordId is cut off"))?;
            len = len << 7 | usize::from(key[end] & 0x7f);
            if key[end] & 0x80 == 0 {
                if !(1..=MAX_RECORD_ID_BYTES).contains(&len) {
                    return Err(Corrupt("the length of the RecordId"));
                }
                let start = end
                    .checked_sub(len)
                    .ok_or(Corrupt("the RecordId is cut off"))?;
                return Ok((RecordId::Binary(key[start..end].to_vec()), start));
            }
        }
        Err(Corrupt("the length of the RecordId does not end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_keep_order_and_come_back() {
        let mut ids: Vec<i64> = (0..63)
            .flat_map(|b| [(1i64 << b) - 1, 1 << b, (1 << b) + 1])
            .collect();
        ids.extend([i64::MAX, i64::MAX - 1]);
        ids.sort_unstable();
        ids.dedup();
        let mut previous: Vec<u8> = Vec::new();
        for id in ids {
            let mut key = b"prefix".to_vec();
            push_long(&mut key, id);
            assert_eq!(
                RecordId::long_at_end(&key),
                Ok((RecordId::Long(id), 6)),
                "{id}"
            );
            assert!(key > previous, "{id}");
            previous = key;
        }
        let mut bound = Vec::new();
        push_long(&mut bound, i64::MIN);
        assert_eq!(RecordId::long_at_end(&bound), Ok((RecordId::Long(0), 0)));
        assert!(RecordId::long_at_end(&[]).is_err() && RecordId::long_at_end(&[1]).is_err());
        assert!(RecordId::long_at_end(&[0xff; 9]).is_err());
    }

    #[test]
    fn clustered_keys_come_back() {
        for len in [
            1,
            2,
            127,
            128,
            129,
            16_383,
            16_384,
            2_097_151,
            2_097_152,
            MAX_RECORD_ID_BYTES,
        ] {
            let id = vec![0xab; len];
            let mut key = b"prefix".to_vec();
            push_binary(&mut key, &id);
            assert_eq!(
                RecordId::binary_at_end(&key),
                Ok((RecordId::Binary(id), 6)),
                "{len}"
            );
        }
        for bad in [&[][..], &[0], &[1], &[0x80; 5], &[2, 5]] {
            assert!(RecordId::binary_at_end(bad).is_err(), "{bad:?}");
        }
    }
}
