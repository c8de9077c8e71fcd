//! Decimals: the next double towards zero, a marker, and where needed how far the decimal lies
//! above it.

use core::cmp::Ordering;

use pinion_bson::Decimal;
use pinion_bson::decimal::{
    MAX_COEFFICIENT, MAX_DIGITS, MAX_EXPONENT, MIN_EXPONENT, Rounding, digit_count, round_double,
};

use super::{
    HIGHEST_BIT, Marker, Shape, TWO_53, TWO_63, TWO_256, TWO_MINUS_255, TWO_MINUS_256,
    fraction_double, push_large, push_marked_double, push_shifted, push_small, push_u64, tiny_bits,
};
use crate::Corrupt;
use crate::bytes::{Reader, Sink};
use crate::ctype;
use crate::type_bits::{self, EXPONENT_BITS, NumberType, TypeBits};

/// A positive number `coefficient * 10^exponent`.
#[derive(Clone, Copy, Debug)]
struct Magnitude {
    coefficient: u128,
    exponent: i32,
}

/// Decimals with fewer digits than this have distinct doubles.
const TEN_TO_15: u128 = 10u128.pow(15);

/// Appends a decimal with its type bits.
pub(crate) fn push_decimal(out: &mut impl Sink, bits: &mut TypeBits, decimal: Decimal) {
    let (negative, coefficient, exponent) = match decimal {
        Decimal::Nan => {
            bits.push_number(NumberType::Decimal);
            out.push(ctype::NAN);
            return;
        }
        Decimal::Infinity { negative } => {
            bits.push_number(NumberType::Decimal);
            push_large(out, f64::INFINITY, negative, Marker::Equal);
            return;
        }
        Decimal::Finite {
            negative,
            coefficient,
            exponent,
        } => (negative, coefficient, exponent),
    };
    let biased_exponent = (exponent - MIN_EXPONENT).unsigned_abs();
    if coefficient == 0 {
        bits.push_decimal_zero(negative, biased_exponent);
        out.push(ctype::ZERO);
        return;
    }
    bits.push_number(NumberType::Decimal);
    bits.push_decimal_exponent(biased_exponent);

    let magnitude = Magnitude {
        coefficient,
        exponent,
    };
    let (double, exact) = magnitude
        .decimal()
        .to_f64_toward_zero()
        .expect("a finite number");
    if exact {
        push_marked_double(out, double, negative, Marker::Equal);
    } else if double < f64::MIN_POSITIVE {
        push_tiny(out, magnitude, double, negative);
    } else if double == f64::MAX {
        out.push(if negative {
            ctype::NEGATIVE_LARGE
        } else {
            ctype::POSITIVE_LARGE
        });
        let (high, low) = magnitude.normalized_halves();
        push_u64(out, high | HIGHEST_BIT, negative);
        push_u64(out, low, negative);
    } else if double >= TWO_63 {
        push_large(out, double, negative, Marker::Above);
        push_u64(out, magnitude.above(Magnitude::stored(double)), negative);
    } else if double < TWO_MINUS_255 {
        push_small(out, double, negative, Marker::Above);
        push_u64(out, magnitude.above(Magnitude::stored(double)), negative);
    } else if double >= TWO_53 as f64 {
        push_beyond_fractions(out, magnitude, negative);
    } else if coefficient < TEN_TO_15 {
        push_marked_double(out, double, negative, Marker::Rounded);
    } else {
        let marker = match magnitude.compare(Magnitude::rounded_up(double, 15)) {
            Ordering::Less => Marker::Below,
            Ordering::Equal => Marker::Rounded,
            Ordering::Greater => Marker::Above,
        };
        push_marked_double(out, double, negative, marker);
        if marker != Marker::Rounded {
            push_u64(out, magnitude.above(Magnitude::stored(double)), negative);
        }
    }
}

/// Here the double may have lost the last places of the integer part, so that part is kept itself.
fn push_beyond_fractions(out: &mut impl Sink, magnitude: Magnitude, negative: bool) {
    let decimal = magnitude.decimal();
    let whole = decimal
        .truncated()
        .and_then(|w| u64::try_from(w).ok())
        .expect("below 2^63");
    let has_fraction = !decimal.is_integral();
    push_shifted(out, whole << 1 | u64::from(has_fraction), negative);
    if has_fraction {
        if whole < 1 << 55 {
            // Seven bytes held the integer part; the eighth has no fraction to hold but the marker.
            out.push(Marker::Above as u8 ^ if negative { 0xff } else { 0 });
        }
        push_u64(out, magnitude.above(Magnitude::whole(whole)), negative);
    }
}

/// Subnormal doubles have too few digits to begin with, so these are lifted by 2^256 as decimals.
fn push_tiny(out: &mut impl Sink, magnitude: Magnitude, double: f64, negative: bool) {
    out.push(if negative {
        ctype::NEGATIVE_SMALL
    } else {
        ctype::POSITIVE_SMALL
    });
    if double == 0.0 {
        let (high, low) = magnitude.normalized_halves();
        push_u64(out, high, negative);
        push_u64(out, low, negative);
        return;
    }
    // Rounding down at every step keeps the order, and not going below the subnormal double keeps
    // the order with doubles.
    let lifted = magnitude
        .decimal()
        .multiply(factor(TWO_256), Rounding::TowardZero);
    let (lifted, _) = lifted.to_f64_toward_zero().expect("a finite number");
    let lifted = lifted.max(double * TWO_256);
    push_u64(out, tiny_bits(lifted, true), negative);
    push_u64(out, magnitude.above(lowered(lifted)), negative);
}

/// A power of two as a decimal of 34 digits, rounded down.
fn factor(power: f64) -> Decimal {
    let (coefficient, exponent) = round_double(power, MAX_DIGITS, Rounding::TowardZero);
    Decimal::Finite {
        negative: false,
        coefficient,
        exponent,
    }
}

/// The decimal a lifted double stands for, rounded down.
fn lowered(lifted: f64) -> Magnitude {
    let product = factor(lifted).multiply(factor(TWO_MINUS_256), Rounding::TowardZero);
    let Decimal::Finite {
        coefficient,
        exponent,
        ..
    } = product.normalized()
    else {
        unreachable!("a product of finite numbers far from the largest")
    };
    Magnitude {
        coefficient,
        exponent,
    }
}

impl Magnitude {
    /// The double with 34 digits, rounded up: where the continuation counts from.
    fn stored(double: f64) -> Magnitude {
        Magnitude::rounded_up(double, MAX_DIGITS)
    }

    fn rounded_up(double: f64, digits: u32) -> Magnitude {
        let (coefficient, exponent) = round_double(double, digits, Rounding::AwayFromZero);
        Magnitude {
            coefficient,
            exponent,
        }
    }

    /// An integer with 34 digits.
    fn whole(whole: u64) -> Magnitude {
        let room = MAX_DIGITS - digit_count(u128::from(whole));
        Magnitude {
            coefficient: u128::from(whole) * 10u128.pow(room),
            exponent: -(room as i32),
        }
    }

    fn decimal(self) -> Decimal {
        Decimal::Finite {
            negative: false,
            coefficient: self.coefficient,
            exponent: self.exponent,
        }
    }

    fn compare(self, other: Magnitude) -> Ordering {
        self.decimal().compare(other.decimal())
    }

    /// How far this lies above `stored`, in units of the last place of `stored`.
    fn above(self, stored: Magnitude) -> u64 {
        // A number of at most 34 digits that is not below `stored` has no digits below its last
        // place.
        u32::try_from(self.exponent - stored.exponent)
            .ok()
            .filter(|&shift| shift <= 38)
            .and_then(|shift| self.coefficient.checked_mul(10u128.pow(shift)))
            .and_then(|scaled| scaled.checked_sub(stored.coefficient))
            .and_then(|difference| u64::try_from(difference).ok())
            .expect("the decimal lies between two neighbouring doubles")
    }

    /// The inverse of `above`: this number plus a continuation.
    fn plus(self, continuation: u64) -> Magnitude {
        Magnitude {
            coefficient: self.coefficient + u128::from(continuation),
            exponent: self.exponent,
        }
    }

    /// The two halves of the encoded decimal with the smallest exponent.
    fn normalized_halves(self) -> (u64, u64) {
        let bits = u128::from_le_bytes(self.decimal().normalized().pack().bytes());
        ((bits >> 64) as u64, bits as u64)
    }

    /// The same number with the exponent whose lowest bits are stored.
    fn with_stored_exponent(mut self, stored: u32) -> Result<Magnitude, Corrupt> {
        if self.coefficient == 0 {
            return Err(Corrupt("a decimal of zero that is none"));
        }
        while self.coefficient.is_multiple_of(10) {
            self.coefficient /= 10;
            self.exponent += 1;
        }
        // 34 digits leave fewer choices than the stored bits can distinguish.
        let period = 1i32 << EXPONENT_BITS;
        let excess = (self.exponent - MIN_EXPONENT - stored as i32).rem_euclid(period);
        let exponent = self.exponent - excess;
        let coefficient = u32::try_from(excess)
            .ok()
            .filter(|&e| e < MAX_DIGITS)
            .and_then(|e| self.coefficient.checked_mul(10u128.pow(e)))
            .filter(|&c| c <= MAX_COEFFICIENT && (MIN_EXPONENT..=MAX_EXPONENT).contains(&exponent))
            .ok_or(Corrupt("no decimal has this exponent"))?;
        Ok(Magnitude {
            coefficient,
            exponent,
        })
    }
}

/// Reads the rest of a decimal.
pub(super) fn read(
    reader: &mut Reader<'_>,
    shape: Shape,
    bits: &mut type_bits::Reader<'_>,
) -> Result<Decimal, Corrupt> {
    let (negative, magnitude) = match shape {
        Shape::Nan => return Ok(Decimal::Nan),
        Shape::Infinity { negative } => return Ok(Decimal::Infinity { negative }),
        Shape::Zero => return Err(Corrupt("a zero is told by its own type bits")),
        Shape::Integer {
            negative,
            magnitude,
        } => (
            negative,
            Magnitude {
                coefficient: u128::from(magnitude),
                exponent: 0,
            },
        ),
        Shape::DecimalFraction {
            negative,
            magnitude,
        } => (
            negative,
            Magnitude::whole(magnitude).plus(reader.continuation(negative)?),
        ),
        Shape::Fraction {
            negative,
            word,
            spare,
        } => {
            let double =
                fraction_double(word, spare).ok_or(Corrupt("a fraction that is no double"))?;
            (negative, read_marked(reader, double, word, negative)?)
        }
        Shape::Small { negative, word } => (
            negative,
            read_marked(reader, f64::from_bits(word >> 2), word, negative)?,
        ),
        Shape::Tiny {
            negative,
            lifted,
            continued,
        } => {
            if !continued || lifted <= 0.0 {
                return Err(Corrupt("a tiny decimal without a continuation"));
            }
            let stored = if lifted < f64::MIN_POSITIVE * TWO_256 {
                lowered(lifted)
            } else {
                Magnitude::stored(lifted * TWO_MINUS_256)
            };
            (negative, stored.plus(reader.continuation(negative)?))
        }
        Shape::Large {
            negative,
            double,
            continued,
        } => {
            let continuation = if continued {
                reader.continuation(negative)?
            } else {
                0
            };
            (negative, Magnitude::stored(double).plus(continuation))
        }
        Shape::TinyDecimal { negative, high } | Shape::HugeDecimal { negative, high } => {
            let low = reader.continuation(negative)?;
            match Decimal::from_bid(u128::from(high) << 64 | u128::from(low)) {
                Decimal::Finite {
                    negative: false,
                    coefficient,
                    exponent,
                } => (
                    negative,
                    Magnitude {
                        coefficient,
                        exponent,
                    },
                ),
                _ => return Err(Corrupt("a decimal that is no magnitude")),
            }
        }
    };
    let exact = magnitude.with_stored_exponent(bits.decimal_exponent()?)?;
    Ok(Decimal::Finite {
        negative,
        coefficient: exact.coefficient,
        exponent: exact.exponent,
    })
}

/// A decimal that begins with a double and has a two-bit marker.
fn read_marked(
    reader: &mut Reader<'_>,
    double: f64,
    word: u64,
    negative: bool,
) -> Result<Magnitude, Corrupt> {
    if double <= 0.0 || !double.is_finite() {
        return Err(Corrupt("a number that is no double"));
    }
    Ok(match word & 3 {
        0 => Magnitude::stored(double),
        2 => Magnitude::rounded_up(double, 15),
        _ => Magnitude::stored(double).plus(reader.continuation(negative)?),
    })
}
