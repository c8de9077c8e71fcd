//! Decimal128 in BSON's encoding (IEEE 754 with a binary integer coefficient, "BID"): its parts and
//! its order.

mod arithmetic;
mod double;

use core::cmp::Ordering;

use bson::Decimal128;

use crate::compare::compare_doubles;
use crate::exact::compare_with_double;

pub use arithmetic::Rounding;
pub use double::round_double;

use double::{nearest_double, truncate_to_double};

/// The digits a coefficient can have.
pub const MAX_DIGITS: u32 = 34;
/// The largest coefficient.
pub const MAX_COEFFICIENT: u128 = 10u128.pow(MAX_DIGITS) - 1;
/// The smallest exponent of the coefficient's last digit.
pub const MIN_EXPONENT: i32 = -6176;
/// The largest exponent of the coefficient's last digit.
pub const MAX_EXPONENT: i32 = 6111;

const EXPONENT_BIAS: i32 = 6176;
const SIGN_BIT: u128 = 1 << 127;
const INFINITY_BITS: u128 = 0b11110 << 122;
const NAN_BITS: u128 = 0b11111 << 122;
const EXPONENT_MASK: u128 = (1 << 14) - 1;
const COEFFICIENT_MASK: u128 = (1 << 113) - 1;

/// A decimal number taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decimal {
    /// Not a number: payload and kind of NaN are not kept.
    Nan,
    /// An infinity.
    Infinity {
        /// Whether it is the negative one.
        negative: bool,
    },
    /// `coefficient * 10^exponent`, negated when `negative`.
    Finite {
        /// The sign, which a zero has too.
        negative: bool,
        /// At most `MAX_COEFFICIENT`.
        coefficient: u128,
        /// Between `MIN_EXPONENT` and `MAX_EXPONENT`.
        exponent: i32,
    },
}

/// What `10^n` is, for an `n` that a coefficient can be shifted by.
#[inline]
pub(crate) fn power_of_ten(n: u32) -> u128 {
    assert!(n <= 38, "10^{n} does not fit 128 bits");
    POWERS[n as usize]
}

static POWERS: [u128; 39] = {
    let mut powers = [1u128; 39];
    let mut i = 1;
    while i < 39 {
        powers[i] = powers[i - 1] * 10;
        i += 1;
    }
    powers
};

/// The number of decimal digits; 1 for zero.
#[inline]
pub fn digit_count(n: u128) -> u32 {
    if n == 0 {
        return 1;
    }
    // 1233/4096 approximates log10(2) closely enough to be right or one too small.
    let guess = ((128 - n.leading_zeros()) * 1233) >> 12;
    guess + u32::from(n >= POWERS[guess as usize])
}

impl Decimal {
    /// Zero, with exponent 0.
    pub const ZERO: Decimal = Decimal::Finite {
        negative: false,
        coefficient: 0,
        exponent: 0,
    };

    /// Takes an encoded number apart. A coefficient that is not canonical counts as zero, as the
    /// standard says.
    #[inline]
    pub fn unpack(value: Decimal128) -> Decimal {
        Decimal::from_bid(u128::from_le_bytes(value.bytes()))
    }

    /// Takes the encoded bits apart.
    #[inline]
    pub fn from_bid(bits: u128) -> Decimal {
        let negative = bits & SIGN_BIT != 0;
        if bits >> 125 & 0b11 != 0b11 {
            let exponent = (bits >> 113 & EXPONENT_MASK) as i32 - EXPONENT_BIAS;
            let coefficient = bits & COEFFICIENT_MASK;
            let coefficient = if coefficient <= MAX_COEFFICIENT {
                coefficient
            } else {
                0
            };
            return Decimal::Finite {
                negative,
                coefficient,
                exponent,
            };
        }
        if bits & NAN_BITS == NAN_BITS {
            return Decimal::Nan;
        }
        if bits & NAN_BITS == INFINITY_BITS {
            return Decimal::Infinity { negative };
        }
        // The second form of the coefficient holds only values above the largest one.
        let exponent = (bits >> 111 & EXPONENT_MASK) as i32 - EXPONENT_BIAS;
        Decimal::Finite {
            negative,
            coefficient: 0,
            exponent,
        }
    }

    /// Puts the number together again.
    ///
    /// # Panics
    /// When the coefficient or the exponent is outside its range.
    #[inline]
    pub fn pack(self) -> Decimal128 {
        let bits = match self {
            Decimal::Nan => NAN_BITS,
            Decimal::Infinity { negative } => INFINITY_BITS | sign(negative),
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            } => {
                assert!(
                    coefficient <= MAX_COEFFICIENT,
                    "coefficient {coefficient} has more than 34 digits"
                );
                assert!(
                    (MIN_EXPONENT..=MAX_EXPONENT).contains(&exponent),
                    "exponent {exponent} out of range"
                );
                sign(negative) | ((exponent + EXPONENT_BIAS) as u128) << 113 | coefficient
            }
        };
        Decimal128::from_bytes(bits.to_le_bytes())
    }

    /// An integer, exactly.
    #[inline]
    pub fn from_i64(n: i64) -> Decimal {
        Decimal::Finite {
            negative: n < 0,
            coefficient: u128::from(n.unsigned_abs()),
            exponent: 0,
        }
    }

    /// The decimal with 15 digits nearest to a double, ties to even: what arithmetic of a double
    /// with a decimal uses, so that 0.1 becomes 0.100000000000000.
    pub fn from_f64_15(x: f64) -> Decimal {
        let negative = x.is_sign_negative();
        if x.is_nan() {
            Decimal::Nan
        } else if x.is_infinite() {
            Decimal::Infinity { negative }
        } else if x == 0.0 {
            Decimal::Finite {
                negative,
                coefficient: 0,
                exponent: 0,
            }
        } else {
            let (coefficient, exponent) = round_double(x.abs(), 15, Rounding::HalfEven);
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            }
        }
    }

    /// A double with all its digits, or the 34 that a decimal holds: what sums of doubles and
    /// decimals use, so that 0.1 becomes 0.1000000000000000055511151231257827 and 1.5 stays as it
    /// is.
    pub fn from_f64_34(x: f64) -> Decimal {
        if x == 0.0 || !x.is_finite() {
            return Decimal::from_f64_15(x);
        }
        let (mut coefficient, mut exponent) = round_double(x.abs(), MAX_DIGITS, Rounding::HalfEven);
        // What was rounded keeps its zeros.
        if compare_with_double(coefficient, exponent, x.abs()) == Ordering::Equal {
            while exponent < 0 && coefficient.is_multiple_of(10) {
                coefficient /= 10;
                exponent += 1;
            }
        }
        Decimal::Finite {
            negative: x < 0.0,
            coefficient,
            exponent,
        }
    }

    /// Whether this is not a number.
    pub fn is_nan(self) -> bool {
        self == Decimal::Nan
    }

    /// Whether this is a zero of either sign.
    pub fn is_zero(self) -> bool {
        matches!(self, Decimal::Finite { coefficient: 0, .. })
    }

    /// The order of MongoDB: NaN below all numbers and equal to itself, both zeros equal.
    #[inline]
    pub fn compare(self, other: Decimal) -> Ordering {
        self.rank()
            .cmp(&other.rank())
            .then_with(|| match (self, other) {
                (
                    Decimal::Finite {
                        negative,
                        coefficient: a,
                        exponent: ae,
                    },
                    Decimal::Finite {
                        coefficient: b,
                        exponent: be,
                        ..
                    },
                ) if a != 0 => {
                    let magnitude = compare_magnitudes(a, ae, b, be);
                    if negative {
                        magnitude.reverse()
                    } else {
                        magnitude
                    }
                }
                _ => Ordering::Equal,
            })
    }

    /// The exact order of a decimal and a double, NaN below all numbers and equal to itself.
    pub fn compare_f64(self, other: f64) -> Ordering {
        let Some((double, exact)) = self.to_f64_toward_zero() else {
            return if other.is_nan() {
                Ordering::Equal
            } else {
                Ordering::Less
            };
        };
        if exact || other.is_nan() {
            return compare_doubles(double, other);
        }
        // The decimal lies strictly between `double` and its neighbour away from zero.
        match self {
            Decimal::Finite { negative: true, .. } if other >= double => Ordering::Less,
            Decimal::Finite { negative: true, .. } => Ordering::Greater,
            _ if other <= double => Ordering::Greater,
            _ => Ordering::Less,
        }
    }

    /// The double next to the number towards zero, at most the largest finite one unless the number
    /// is an infinity, and whether it is the number itself. `None` for NaN.
    pub fn to_f64_toward_zero(self) -> Option<(f64, bool)> {
        match self {
            Decimal::Nan => None,
            Decimal::Infinity { negative } => Some((signed(f64::INFINITY, negative), true)),
            Decimal::Finite {
                negative,
                coefficient: 0,
                ..
            } => Some((signed(0.0, negative), true)),
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            } => {
                let (magnitude, exact) = truncate_to_double(coefficient, exponent);
                Some((signed(magnitude, negative), exact))
            }
        }
    }

    /// Where the number lies roughly: equal ranks need a closer look only if finite and not zero.
    fn rank(self) -> i8 {
        match self {
            Decimal::Nan => -3,
            Decimal::Infinity { negative: true } => -2,
            Decimal::Finite { coefficient: 0, .. } => 0,
            Decimal::Finite { negative: true, .. } => -1,
            Decimal::Finite {
                negative: false, ..
            } => 1,
            Decimal::Infinity { negative: false } => 2,
        }
    }

    /// The integer this is exactly, if it is one and fits.
    pub fn to_i64_exact(self) -> Option<i64> {
        if !self.is_integral() {
            return None;
        }
        i64::try_from(self.truncated()?).ok()
    }

    /// The integer part, `None` when not finite or beyond 128 bits.
    pub fn truncated(self) -> Option<i128> {
        let Decimal::Finite {
            negative,
            coefficient,
            exponent,
        } = self
        else {
            return None;
        };
        let magnitude = if coefficient == 0 {
            0
        } else if exponent >= 0 {
            let shift = u32::try_from(exponent).ok().filter(|&e| e <= 38)?;
            coefficient.checked_mul(power_of_ten(shift))?
        } else if exponent.unsigned_abs() >= MAX_DIGITS {
            0
        } else {
            coefficient / power_of_ten(exponent.unsigned_abs())
        };
        let magnitude = i128::try_from(magnitude).ok()?;
        Some(if negative { -magnitude } else { magnitude })
    }

    /// Whether there is no fractional part. Infinities and NaN have none to speak of: false.
    pub fn is_integral(self) -> bool {
        match self {
            Decimal::Finite { coefficient: 0, .. } => true,
            Decimal::Finite { exponent, .. } if exponent >= 0 => true,
            Decimal::Finite {
                coefficient,
                exponent,
                ..
            } => {
                let drop = exponent.unsigned_abs();
                drop < MAX_DIGITS && coefficient.is_multiple_of(power_of_ten(drop))
            }
            _ => false,
        }
    }

    /// The same number with its exponent as small as 34 digits and the range of exponents allow.
    pub fn normalized(self) -> Decimal {
        match self {
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            } if coefficient != 0 => {
                let room = (MAX_DIGITS - digit_count(coefficient))
                    .min((exponent - MIN_EXPONENT).unsigned_abs());
                Decimal::Finite {
                    negative,
                    coefficient: coefficient * power_of_ten(room),
                    exponent: exponent - room as i32,
                }
            }
            other => other,
        }
    }

    /// The nearest double.
    pub fn to_f64(self) -> f64 {
        match self {
            Decimal::Nan => f64::NAN,
            Decimal::Infinity { negative } => signed(f64::INFINITY, negative),
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            } => signed(nearest_double(coefficient, exponent), negative),
        }
    }
}

#[inline]
fn sign(negative: bool) -> u128 {
    if negative { SIGN_BIT } else { 0 }
}

fn signed(magnitude: f64, negative: bool) -> f64 {
    if negative { -magnitude } else { magnitude }
}

/// Orders `a * 10^ae` and `b * 10^be`, neither of them zero.
#[inline]
pub(crate) fn compare_magnitudes(a: u128, ae: i32, b: u128, be: i32) -> Ordering {
    if ae == be {
        return a.cmp(&b);
    }
    let (a_top, b_top) = (digit_count(a) as i32 + ae, digit_count(b) as i32 + be);
    if a_top != b_top {
        return a_top.cmp(&b_top);
    }
    // The same highest digit, so the exponents differ by at most the digits of a coefficient.
    let shift = ae.abs_diff(be);
    if ae > be {
        (a * power_of_ten(shift)).cmp(&b)
    } else {
        a.cmp(&(b * power_of_ten(shift)))
    }
}

#[cfg(test)]
mod tests;
