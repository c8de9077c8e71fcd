//! The bits that distinguish what compares equal: the types of numbers, strings from symbols, the
//! exponents of decimals, the signs of zeros.

use smallvec::SmallVec;

use crate::Corrupt;

/// The types of the ambiguous values of a key, in their order. They are kept beside the key and
/// take no part in comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeBits {
    /// Only up to the last byte that is not zero; most keys hold none.
    bytes: SmallVec<[u8; 8]>,
    /// How many bits were written.
    len: usize,
}

/// The type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberType {
    Int32 = 0,
    Int64 = 1,
    Double = 2,
    Decimal = 3,
}

/// Which zero a zero was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zero {
    Int32,
    Int64,
    Double,
    NegativeDouble,
    Decimal {
        negative: bool,
        biased_exponent: u32,
    },
}

/// The biased exponents of decimals, whose range is followed by that of the negative zeros.
const BIASED_EXPONENTS: u32 = 6 * (1 << 11);
/// Prefix of the double -0.0 among the zeros that are no plain number.
const NEGATIVE_DOUBLE_ZERO: u32 = 0b11000;
/// The decimal zeros take this prefix and the five after it, each with twelve bits more.
const FIRST_DECIMAL_ZERO: u32 = 0b11010;
/// The low bits of a decimal's biased exponent; the digits give the rest.
pub(crate) const EXPONENT_BITS: u32 = 6;

impl TypeBits {
    /// No bits.
    pub fn new() -> TypeBits {
        TypeBits::default()
    }

    /// Forgets all bits.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.len = 0;
    }

    /// Whether there is nothing to keep: int32 and string values need no bits.
    pub fn is_all_zeros(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The stored form, empty when all bits are zero: then the types are the plain ones and nothing
    /// need be kept. Otherwise up to seven bits stand alone in one byte, and more follow a byte
    /// with their length in bytes (over 127: the byte 0x80 and four bytes, little endian).
    pub fn as_bytes(&self) -> SmallVec<[u8; 16]> {
        let mut out = SmallVec::new();
        if self.is_all_zeros() {
            return out;
        }
        let len = self.len.div_ceil(8);
        if len == 1 && self.bytes[0] < 0x80 {
            out.push(self.bytes[0]);
            return out;
        }
        if len < 0x80 {
            out.push(0x80 | len as u8);
        } else {
            out.push(0x80);
            out.extend_from_slice(
                &u32::try_from(len)
                    .expect("type bits are bounded by the key")
                    .to_le_bytes(),
            );
        }
        out.extend_from_slice(&self.bytes);
        out.resize(out.len() + len - self.bytes.len(), 0);
        out
    }

    /// Reads the stored form, which must fill `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Result<TypeBits, Corrupt> {
        match TypeBits::from_prefix(bytes)? {
            (bits, used) if used == bytes.len() => Ok(bits),
            _ => Err(Corrupt("bytes after the type bits")),
        }
    }

    /// Reads the stored form at the front of `bytes` and returns its length. Where more follows,
    /// type bits that are all zero are stored as one zero byte.
    pub fn from_prefix(bytes: &[u8]) -> Result<(TypeBits, usize), Corrupt> {
        let short = Corrupt("type bits are cut off");
        let Some((&first, rest)) = bytes.split_first() else {
            return Ok((TypeBits::new(), 0));
        };
        let (data, used) = match first {
            0..0x80 => (&bytes[..1], 1),
            0x80 => {
                let len: [u8; 4] = rest.get(..4).and_then(|b| b.try_into().ok()).ok_or(short)?;
                let len = u32::from_le_bytes(len) as usize;
                (rest.get(4..4 + len).ok_or(short)?, 5 + len)
            }
            _ => {
                let len = usize::from(first & 0x7f);
                (rest.get(..len).ok_or(short)?, 1 + len)
            }
        };
        let significant = data
            .iter()
            .rposition(|&b| b != 0)
            .map_or(0, |last| last + 1);
        Ok((
            TypeBits {
                bytes: SmallVec::from_slice(&data[..significant]),
                len: data.len() * 8,
            },
            used,
        ))
    }

    #[inline]
    pub(crate) fn push_string(&mut self) {
        self.len += 1;
    }

    #[inline]
    pub(crate) fn push_symbol(&mut self) {
        self.push(1, 1);
    }

    #[inline]
    pub(crate) fn push_number(&mut self, number: NumberType) {
        match number {
            NumberType::Int32 => self.len += 2,
            other => self.push(other as u32, 2),
        }
    }

    pub(crate) fn push_decimal_exponent(&mut self, biased_exponent: u32) {
        self.push(biased_exponent & ((1 << EXPONENT_BITS) - 1), EXPONENT_BITS);
    }

    pub(crate) fn push_negative_double_zero(&mut self) {
        self.push(NEGATIVE_DOUBLE_ZERO, 5);
    }

    pub(crate) fn push_decimal_zero(&mut self, negative: bool, biased_exponent: u32) {
        assert!(biased_exponent < BIASED_EXPONENTS, "exponent of a decimal");
        let which = biased_exponent + if negative { BIASED_EXPONENTS } else { 0 };
        self.push(FIRST_DECIMAL_ZERO + (which >> 12), 5);
        self.push(which & 0xfff, 12);
    }

    /// Appends bits, the most significant first.
    fn push(&mut self, value: u32, bits: u32) {
        for bit in (0..bits).rev() {
            if value >> bit & 1 == 1 {
                let byte = self.len / 8;
                if self.bytes.len() <= byte {
                    self.bytes.resize(byte + 1, 0);
                }
                self.bytes[byte] |= 1 << (self.len % 8);
            }
            self.len += 1;
        }
    }
}

/// Reads type bits in the order in which they were written.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bits: &'a TypeBits,
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bits: &'a TypeBits) -> Reader<'a> {
        Reader { bits, at: 0 }
    }

    /// The next bits. Stored type bits that are all zero have any length; others end.
    fn take(&mut self, bits: u32) -> Result<u32, Corrupt> {
        let mut value = 0;
        for _ in 0..bits {
            if self.at >= self.bits.len && !self.bits.is_all_zeros() {
                return Err(Corrupt("too few type bits"));
            }
            let byte = self.bits.bytes.get(self.at / 8).copied().unwrap_or(0);
            value = value << 1 | u32::from(byte >> (self.at % 8) & 1);
            self.at += 1;
        }
        Ok(value)
    }

    pub(crate) fn is_symbol(&mut self) -> Result<bool, Corrupt> {
        Ok(self.take(1)? == 1)
    }

    pub(crate) fn number(&mut self) -> Result<NumberType, Corrupt> {
        Ok(match self.take(2)? {
            0 => NumberType::Int32,
            1 => NumberType::Int64,
            2 => NumberType::Double,
            _ => NumberType::Decimal,
        })
    }

    pub(crate) fn decimal_exponent(&mut self) -> Result<u32, Corrupt> {
        self.take(EXPONENT_BITS)
    }

    pub(crate) fn zero(&mut self) -> Result<Zero, Corrupt> {
        Ok(match self.number()? {
            NumberType::Int32 => Zero::Int32,
            NumberType::Int64 => Zero::Int64,
            NumberType::Double => Zero::Double,
            NumberType::Decimal => {
                let prefix = 0b11000 | self.take(3)?;
                if prefix == NEGATIVE_DOUBLE_ZERO {
                    return Ok(Zero::NegativeDouble);
                }
                let high = prefix
                    .checked_sub(FIRST_DECIMAL_ZERO)
                    .ok_or(Corrupt("unknown zero"))?;
                let which = high << 12 | self.take(12)?;
                Zero::Decimal {
                    negative: which >= BIASED_EXPONENTS,
                    biased_exponent: which % BIASED_EXPONENTS,
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_forms() {
        let check = |write: &dyn Fn(&mut TypeBits), expected: &[u8]| {
            let mut bits = TypeBits::new();
            write(&mut bits);
            assert_eq!(bits.as_bytes().as_slice(), expected);
            let read = TypeBits::from_bytes(expected).expect("the stored form");
            assert_eq!(read.bytes, bits.bytes);
        };
        check(&|_| {}, &[]);
        check(
            &|b| (0..100).for_each(|_| b.push_number(NumberType::Int32)),
            &[],
        );
        check(&|b| b.push_number(NumberType::Int64), &[0b10]);
        check(&|b| b.push_symbol(), &[1]);
        check(
            &|b| (0..4).for_each(|_| b.push_number(NumberType::Double)),
            &[0b0101_0101],
        );
        check(
            &|b| (0..4).for_each(|_| b.push_number(NumberType::Int64)),
            &[0x81, 0b1010_1010],
        );
        check(
            &|b| {
                b.push_symbol();
                b.push_number(NumberType::Int32);
                (0..9).for_each(|_| b.push_string());
            },
            &[0x82, 1, 0],
        );
        let mut long = vec![0x80, 128, 0, 0, 0];
        long.extend([0xff; 128]);
        check(&|b| (0..1024).for_each(|_| b.push_symbol()), &long);
    }

    #[test]
    fn zeros_come_back() {
        let mut bits = TypeBits::new();
        let exponents = [0, 1, 4095, 4096, 6176, 12287];
        for exponent in exponents {
            bits.push_decimal_zero(false, exponent);
            bits.push_decimal_zero(true, exponent);
        }
        bits.push_negative_double_zero();
        bits.push_number(NumberType::Double);
        let mut reader = Reader::new(&bits);
        for biased_exponent in exponents {
            for negative in [false, true] {
                assert_eq!(
                    reader.zero(),
                    Ok(Zero::Decimal {
                        negative,
                        biased_exponent
                    })
                );
            }
        }
        assert_eq!(reader.zero(), Ok(Zero::NegativeDouble));
        assert_eq!(reader.zero(), Ok(Zero::Double));
        assert!(reader.zero().is_err());
    }
}
