//! Numbers as bytes: integers of one to eight bytes with a bit for the fraction, doubles in that
//! same scale, and decimals as the double below them plus what is missing.
//!
//! | magnitude | bytes after the type byte |
//! |---|---|
//! | zero, NaN | none |
//! | an integer below 2^63 | twice the integer, in as few bytes as it takes |
//! | with a fraction, from 1 to 2^53 | twice the integer part plus one, then the fraction: 8 bytes, the lowest two bits a marker |
//! | a decimal with a fraction, from 2^53 to 2^63 | twice the integer part plus one; below 2^55 a byte with the marker; the continuation |
//! | from 2^-255 to 1 | the double's bits times 4, the lowest two bits a marker |
//! | from 2^-1074 to 2^-255 | the bits of the double times 2^256, times 2, the lowest bit a marker, plus 2^62 |
//! | below that (decimals) | the normalized decimal: 16 bytes |
//! | from 2^63 | the double's bits times 2, the lowest bit a marker |
//! | above all doubles (decimals) | the normalized decimal with the highest bit set: 16 bytes |
//! | infinity | eight bytes 0xff |
//!
//! Negative numbers have all bytes after the type byte inverted.

mod decimal;

use crate::Corrupt;
use crate::bytes::{Reader, Sink};
use crate::ctype;
use crate::type_bits::{self, NumberType, TypeBits, Zero};

use pinion_bson::{DateTime, Decimal, RawBsonRef};

pub(crate) use decimal::push_decimal;

/// How a decimal relates to the double that its key begins with, the next one towards zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    /// It is the double. Doubles themselves have this marker too.
    Equal = 0,
    /// It is below the double rounded up to 15 digits, and a continuation follows.
    Below = 1,
    /// It is the double rounded up to 15 digits: true of all decimals with at most 15 digits.
    Rounded = 2,
    /// It is above, and a continuation follows.
    Above = 3,
}

/// The first double that is no 64-bit integer.
pub(super) const TWO_63: f64 = 9_223_372_036_854_775_808.0;
/// Below this, doubles have room for one bit of the marker only.
const TWO_MINUS_255: f64 = f64::from_bits((1023 - 255) << 52);
/// What lifts the tiniest doubles out of the subnormal ones.
const TWO_256: f64 = f64::from_bits((1023 + 256) << 52);
const TWO_MINUS_256: f64 = f64::from_bits((1023 - 256) << 52);
/// The second highest bit distinguishes tiny doubles from tinier decimals.
const TINY_OFFSET: u64 = 1 << 62;
const HIGHEST_BIT: u64 = 1 << 63;
const INFINITY_BITS: u64 = u64::MAX;

/// Appends an integer without type bits.
#[inline]
pub(crate) fn push_integer(out: &mut impl Sink, n: i64) {
    if n == 0 {
        out.push(ctype::ZERO);
    } else if n == i64::MIN {
        // Its magnitude does not fit beside the fraction bit.
        push_large(out, TWO_63, true, Marker::Equal);
    } else {
        push_shifted(out, n.unsigned_abs() << 1, n < 0);
    }
}

/// Appends a double without type bits.
#[inline]
pub(crate) fn push_double(out: &mut impl Sink, x: f64) {
    push_marked_double(out, x.abs(), x < 0.0, Marker::Equal);
}

/// Appends an integer part, already doubled, with the fraction bit in its lowest place.
#[inline]
fn push_shifted(out: &mut impl Sink, shifted: u64, negative: bool) {
    let len = 8 - shifted.leading_zeros() / 8;
    let word = (shifted ^ flip(negative)) << (64 - 8 * len);
    push_word(out, integer_ctype(len, negative), word, len as usize);
}

/// The type byte of a number whose integer part takes this many bytes.
#[inline]
fn integer_ctype(len: u32, negative: bool) -> u8 {
    if negative {
        ctype::NEGATIVE_1_BYTE + 1 - len as u8
    } else {
        ctype::POSITIVE_1_BYTE - 1 + len as u8
    }
}

/// Appends a type byte and the highest bytes of a word.
#[inline]
fn push_word(out: &mut impl Sink, ctype: u8, word: u64, len: usize) {
    let mut bytes = [ctype; 9];
    bytes[1..].copy_from_slice(&word.to_be_bytes());
    out.extend_part(&bytes, 1 + len);
}

fn push_marked_double(out: &mut impl Sink, magnitude: f64, negative: bool, marker: Marker) {
    if magnitude >= TWO_63 {
        push_large(out, magnitude, negative, marker);
    } else if magnitude >= 1.0 {
        let whole = magnitude as u64;
        if whole as f64 == magnitude && marker == Marker::Equal {
            push_shifted(out, whole << 1, negative);
            return;
        }
        let spare = (whole << 1).leading_zeros() / 8;
        // The product is exact: it scales by a power of two and stays below 2^63.
        let scaled = (magnitude * (1u64 << (8 * spare)) as f64) as u64;
        // Adding the integer part once more, and one, doubles it and sets the fraction bit; the
        // fraction keeps its place.
        let encoded = scaled + ((whole + 1) << (8 * spare));
        assert!(encoded & 3 == 0, "a double with a fraction leaves two bits");
        let word = (encoded | marker as u64) ^ flip(negative);
        push_word(out, integer_ctype(8 - spare, negative), word, 8);
    } else if magnitude > 0.0 {
        push_small(out, magnitude, negative, marker);
    } else {
        out.push(if magnitude == 0.0 {
            ctype::ZERO
        } else {
            ctype::NAN
        });
    }
}

fn push_small(out: &mut impl Sink, magnitude: f64, negative: bool, marker: Marker) {
    out.push(if negative {
        ctype::NEGATIVE_SMALL
    } else {
        ctype::POSITIVE_SMALL
    });
    let encoded = if magnitude >= TWO_MINUS_255 {
        // The two highest bits of such a double are zero; its third is one.
        magnitude.to_bits() << 2 | marker as u64
    } else {
        tiny_bits(magnitude * TWO_256, marker != Marker::Equal)
    };
    push_u64(out, encoded, negative);
}

/// The bytes of a double below 2^-255 that has been multiplied by 2^256.
fn tiny_bits(lifted: f64, continued: bool) -> u64 {
    (lifted.to_bits() << 1 | u64::from(continued)) + TINY_OFFSET
}

fn push_large(out: &mut impl Sink, magnitude: f64, negative: bool, marker: Marker) {
    out.push(if negative {
        ctype::NEGATIVE_LARGE
    } else {
        ctype::POSITIVE_LARGE
    });
    let encoded = if magnitude.is_finite() {
        // All of these have the second highest bit set; shifting it out of the way makes room for
        // the marker.
        (magnitude.to_bits() << 1) & !HIGHEST_BIT | u64::from(marker != Marker::Equal)
    } else {
        INFINITY_BITS
    };
    push_u64(out, encoded, negative);
}

#[inline]
fn push_u64(out: &mut impl Sink, value: u64, negative: bool) {
    out.extend(&(value ^ flip(negative)).to_be_bytes());
}

#[inline]
const fn flip(negative: bool) -> u64 {
    if negative { u64::MAX } else { 0 }
}

/// Passes over a number whose type byte has been read.
pub(crate) fn skip(reader: &mut Reader<'_>, ctype_byte: u8) -> Result<(), Corrupt> {
    match Shape::read(reader, ctype_byte)? {
        Shape::Zero | Shape::Nan | Shape::Integer { .. } | Shape::Infinity { .. } => {}
        Shape::Fraction { word, .. } | Shape::Small { word, .. } if word & 1 == 0 => {}
        Shape::Fraction { .. } | Shape::Small { .. } | Shape::DecimalFraction { .. } => {
            reader.u64()?;
        }
        Shape::Tiny { continued, .. } | Shape::Large { continued, .. } => {
            if continued {
                reader.u64()?;
            }
        }
        Shape::TinyDecimal { .. } | Shape::HugeDecimal { .. } => {
            reader.u64()?;
        }
    }
    Ok(())
}

/// What the first bytes of a number say, before its continuation and independent of type bits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Zero,
    Nan,
    Integer {
        negative: bool,
        magnitude: u64,
    },
    /// The eight bytes with integer part, fraction and marker; `spare` of them belong to the
    /// fraction.
    Fraction {
        negative: bool,
        word: u64,
        spare: u32,
    },
    /// A decimal whose double has no room for a fraction.
    DecimalFraction {
        negative: bool,
        magnitude: u64,
    },
    Small {
        negative: bool,
        word: u64,
    },
    Tiny {
        negative: bool,
        lifted: f64,
        continued: bool,
    },
    TinyDecimal {
        negative: bool,
        high: u64,
    },
    Large {
        negative: bool,
        double: f64,
        continued: bool,
    },
    HugeDecimal {
        negative: bool,
        high: u64,
    },
    Infinity {
        negative: bool,
    },
}

/// Integer parts from here on have a double without a fraction.
const TWO_53: u64 = 1 << 53;

impl Shape {
    fn read(reader: &mut Reader<'_>, byte: u8) -> Result<Shape, Corrupt> {
        let negative = byte < ctype::ZERO;
        let flip = flip(negative);
        Ok(match byte {
            ctype::NAN => Shape::Nan,
            ctype::ZERO => Shape::Zero,
            ctype::NEGATIVE_LARGE | ctype::POSITIVE_LARGE => {
                let word = reader.u64()? ^ flip;
                if word & HIGHEST_BIT == 0 {
                    let double = f64::from_bits(word >> 1 | TINY_OFFSET);
                    if !double.is_finite() {
                        return Err(Corrupt("a large number is no double"));
                    }
                    Shape::Large {
                        negative,
                        double,
                        continued: word & 1 == 1,
                    }
                } else if word == INFINITY_BITS {
                    Shape::Infinity { negative }
                } else {
                    Shape::HugeDecimal {
                        negative,
                        high: word & !HIGHEST_BIT,
                    }
                }
            }
            ctype::NEGATIVE_SMALL | ctype::POSITIVE_SMALL => {
                let word = reader.u64()? ^ flip;
                match word >> 62 {
                    0 => Shape::TinyDecimal {
                        negative,
                        high: word,
                    },
                    3 => Shape::Small { negative, word },
                    _ => {
                        let lifted = f64::from_bits((word - TINY_OFFSET) >> 1);
                        Shape::Tiny {
                            negative,
                            lifted,
                            continued: word & 1 == 1,
                        }
                    }
                }
            }
            ctype::NEGATIVE_8_BYTES..=ctype::NEGATIVE_1_BYTE
            | ctype::POSITIVE_1_BYTE..=ctype::POSITIVE_8_BYTES => {
                let len = if negative {
                    ctype::NEGATIVE_1_BYTE - byte
                } else {
                    byte - ctype::POSITIVE_1_BYTE
                } + 1;
                let shifted = reader.be_bytes(usize::from(len), negative)?;
                let magnitude = shifted >> 1;
                if magnitude == 0 {
                    return Err(Corrupt("an integer part of zero"));
                }
                if shifted & 1 == 0 {
                    return Ok(Shape::Integer {
                        negative,
                        magnitude,
                    });
                }
                let spare = 8 - usize::from(len);
                if spare == 0 {
                    return Ok(Shape::DecimalFraction {
                        negative,
                        magnitude,
                    });
                }
                let fraction = reader.be_bytes(spare, negative)?;
                if magnitude >= TWO_53 {
                    if fraction != Marker::Above as u64 {
                        return Err(Corrupt("a marker without a double"));
                    }
                    return Ok(Shape::DecimalFraction {
                        negative,
                        magnitude,
                    });
                }
                let spare = spare as u32;
                Shape::Fraction {
                    negative,
                    word: shifted << (8 * spare) | fraction,
                    spare,
                }
            }
            _ => return Err(Corrupt("not the type byte of a number")),
        })
    }
}

/// Reads a number whose type byte has been read.
pub(crate) fn read(
    reader: &mut Reader<'_>,
    byte: u8,
    bits: &mut type_bits::Reader<'_>,
) -> Result<RawBsonRef<'static>, Corrupt> {
    let shape = Shape::read(reader, byte)?;
    if let Shape::Zero = shape {
        return Ok(match bits.zero()? {
            Zero::Int32 => RawBsonRef::Int32(0),
            Zero::Int64 => RawBsonRef::Int64(0),
            Zero::Double => RawBsonRef::Double(0.0),
            Zero::NegativeDouble => RawBsonRef::Double(-0.0),
            Zero::Decimal {
                negative,
                biased_exponent,
            } => {
                let exponent = biased_exponent as i32 + pinion_bson::decimal::MIN_EXPONENT;
                RawBsonRef::Decimal128(
                    Decimal::Finite {
                        negative,
                        coefficient: 0,
                        exponent,
                    }
                    .pack(),
                )
            }
        });
    }
    match bits.number()? {
        NumberType::Int32 => match shape {
            Shape::Integer {
                negative,
                magnitude,
            } => {
                let value = i64::try_from(magnitude)
                    .map(|m| if negative { -m } else { m })
                    .ok();
                let value = value.and_then(|v| i32::try_from(v).ok());
                value
                    .map(RawBsonRef::Int32)
                    .ok_or(Corrupt("the integer does not fit 32 bits"))
            }
            _ => Err(Corrupt("an int32 that is no integer")),
        },
        NumberType::Int64 => match shape {
            Shape::Integer {
                negative,
                magnitude,
            } => {
                let value = i64::try_from(magnitude)
                    .map_err(|_| Corrupt("the integer does not fit 64 bits"))?;
                Ok(RawBsonRef::Int64(if negative { -value } else { value }))
            }
            Shape::Large {
                negative: true,
                double: TWO_63,
                continued: false,
            } => Ok(RawBsonRef::Int64(i64::MIN)),
            _ => Err(Corrupt("an int64 that is no integer")),
        },
        NumberType::Double => double_of(shape)
            .map(RawBsonRef::Double)
            .ok_or(Corrupt("a double that is none")),
        NumberType::Decimal => {
            decimal::read(reader, shape, bits).map(|d| RawBsonRef::Decimal128(d.pack()))
        }
    }
}

/// The double of a shape that is one.
fn double_of(shape: Shape) -> Option<f64> {
    let signed = |x: f64, negative: bool| if negative { -x } else { x };
    match shape {
        Shape::Nan => Some(f64::NAN),
        Shape::Infinity { negative } => Some(signed(f64::INFINITY, negative)),
        Shape::Integer {
            negative,
            magnitude,
        } => {
            let double = magnitude as f64;
            (double < TWO_63 && double as u64 == magnitude).then(|| signed(double, negative))
        }
        Shape::Fraction {
            negative,
            word,
            spare,
        } if word & 3 == 0 => Some(signed(fraction_double(word, spare)?, negative)),
        Shape::Small { negative, word } if word & 3 == 0 => {
            Some(signed(f64::from_bits(word >> 2), negative))
        }
        Shape::Tiny {
            negative,
            lifted,
            continued: false,
        } => {
            let double = lifted * TWO_MINUS_256;
            (double > 0.0 && double * TWO_256 == lifted).then(|| signed(double, negative))
        }
        Shape::Large {
            negative,
            double,
            continued: false,
        } => Some(signed(double, negative)),
        _ => None,
    }
}

/// The double that a word with integer part and fraction begins with.
fn fraction_double(word: u64, spare: u32) -> Option<f64> {
    let whole = word >> (8 * spare) >> 1;
    let scaled = (word & !3).checked_sub((whole + 1) << (8 * spare))?;
    let double = scaled as f64;
    (double as u64 == scaled).then(|| double / (1u64 << (8 * spare)) as f64)
}

/// The type bits and bytes of any number.
#[inline]
pub(crate) fn push_number(out: &mut impl Sink, bits: &mut TypeBits, number: pinion_bson::Number) {
    match number {
        pinion_bson::Number::Int32(v) => {
            bits.push_number(NumberType::Int32);
            push_integer(out, i64::from(v));
        }
        pinion_bson::Number::Int64(v) => {
            bits.push_number(NumberType::Int64);
            push_integer(out, v);
        }
        pinion_bson::Number::Double(v) => {
            if v == 0.0 && v.is_sign_negative() {
                bits.push_negative_double_zero();
            } else {
                bits.push_number(NumberType::Double);
            }
            push_double(out, v);
        }
        pinion_bson::Number::Decimal(v) => push_decimal(out, bits, Decimal::unpack(v)),
    }
}

/// Dates sort by their signed milliseconds.
#[inline]
pub(crate) fn push_date(out: &mut impl Sink, millis: i64) {
    push_word(out, ctype::DATE, millis as u64 ^ HIGHEST_BIT, 8);
}

/// Reads a date whose type byte has been read.
pub(crate) fn read_date(reader: &mut Reader<'_>) -> Result<RawBsonRef<'static>, Corrupt> {
    Ok(RawBsonRef::DateTime(DateTime::from_millis(
        (reader.u64()? ^ HIGHEST_BIT) as i64,
    )))
}
