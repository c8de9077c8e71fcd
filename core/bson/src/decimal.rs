//! Decimal128 in BSON's encoding (IEEE 754 with a binary integer coefficient, "BID"): its parts, its order, and
//! its arithmetic, which the `dec` crate does in the other encoding of the standard.

use core::cmp::Ordering;
use core::fmt::Write;
use core::ops::{Add, Div, Mul, Neg, Rem, Sub};

use bson::Decimal128;

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

    /// Takes an encoded number apart. A coefficient that is not canonical counts as zero, as the standard says.
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

    /// The decimal of 34 digits nearest to a double, ties to even: what comparison of a double with a decimal
    /// uses. Distinct doubles give distinct decimals in the same order.
    pub fn from_f64(x: f64) -> Decimal {
        Decimal::rounded_from_f64(x, MAX_DIGITS)
    }

    /// The decimal with 15 digits nearest to a double, ties to even: what arithmetic of a double with a decimal
    /// uses, so that 0.1 becomes 0.100000000000000.
    pub fn from_f64_15(x: f64) -> Decimal {
        if x == 0.0 {
            return Decimal::Finite {
                negative: x.is_sign_negative(),
                coefficient: 0,
                exponent: 0,
            };
        }
        Decimal::rounded_from_f64(x, 15)
    }

    fn rounded_from_f64(x: f64, digits: u32) -> Decimal {
        let negative = x.is_sign_negative();
        if x.is_nan() {
            return Decimal::Nan;
        }
        if x.is_infinite() {
            return Decimal::Infinity { negative };
        }
        if x == 0.0 {
            return Decimal::Finite {
                negative,
                coefficient: 0,
                exponent: 0,
            };
        }
        if digits == MAX_DIGITS && x.fract() == 0.0 && x.abs() < 1e18 {
            return Decimal::Finite {
                negative,
                coefficient: x.abs() as u128,
                exponent: 0,
            };
        }
        let mut text = StackText::default();
        // One digit, the point, the others, and the exponent: exact and rounded half to even.
        write!(text, "{:.*e}", digits as usize - 1, x.abs())
            .expect("the buffer holds 34 digits and an exponent");
        let mut coefficient = 0u128;
        let mut bytes = text.as_bytes().iter();
        for &b in bytes.by_ref() {
            match b {
                b'0'..=b'9' => coefficient = coefficient * 10 + u128::from(b - b'0'),
                b'e' => break,
                _ => {}
            }
        }
        let exponent: i32 = core::str::from_utf8(bytes.as_slice())
            .ok()
            .and_then(|e| e.parse().ok())
            .expect("the exponent was written by the formatter");
        let mut exponent = exponent - (digits as i32 - 1);
        if digits == MAX_DIGITS {
            // Trailing zeros would only make later alignment longer; the value is the same.
            while coefficient.is_multiple_of(10) {
                coefficient /= 10;
                exponent += 1;
            }
        }
        Decimal::Finite {
            negative,
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

    /// The nearest double.
    pub fn to_f64(self) -> f64 {
        match self {
            Decimal::Nan => f64::NAN,
            Decimal::Infinity { negative } => signed(f64::INFINITY, negative),
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            } => {
                let mut text = StackText::default();
                write!(text, "{coefficient}e{exponent}")
                    .expect("the buffer holds 34 digits and an exponent");
                let magnitude: f64 = core::str::from_utf8(text.as_bytes())
                    .ok()
                    .and_then(|t| t.parse().ok())
                    .expect("digits with an exponent are a number");
                signed(magnitude, negative)
            }
        }
    }

    /// Rounds to a multiple of `10^exponent`, ties to even; NaN when the result has more than 34 digits.
    pub fn quantize(self, exponent: i32, rounding: Rounding) -> Decimal {
        let quantum = Decimal::Finite {
            negative: false,
            coefficient: 1,
            exponent,
        };
        let mut context = dec::Context::<dec::Decimal128>::default();
        context.set_rounding(match rounding {
            Rounding::HalfEven => dec::Rounding::HalfEven,
            Rounding::TowardZero => dec::Rounding::Down,
            Rounding::Floor => dec::Rounding::Floor,
            Rounding::Ceiling => dec::Rounding::Ceiling,
        });
        from_dec(context.quantize(to_dec(self), to_dec(quantum)))
    }
}

/// The sum, rounded to 34 digits, ties to even; overflow gives an infinity.
impl Add for Decimal {
    type Output = Decimal;
    fn add(self, other: Decimal) -> Decimal {
        from_dec(to_dec(self) + to_dec(other))
    }
}

/// The difference, rounded like the sum.
impl Sub for Decimal {
    type Output = Decimal;
    fn sub(self, other: Decimal) -> Decimal {
        from_dec(to_dec(self) - to_dec(other))
    }
}

/// The product, rounded like the sum.
impl Mul for Decimal {
    type Output = Decimal;
    fn mul(self, other: Decimal) -> Decimal {
        from_dec(to_dec(self) * to_dec(other))
    }
}

/// The quotient, rounded like the sum; division by zero gives an infinity or NaN.
impl Div for Decimal {
    type Output = Decimal;
    fn div(self, other: Decimal) -> Decimal {
        from_dec(to_dec(self) / to_dec(other))
    }
}

/// The remainder of the truncating division, with the sign of the dividend.
impl Rem for Decimal {
    type Output = Decimal;
    fn rem(self, other: Decimal) -> Decimal {
        from_dec(to_dec(self) % to_dec(other))
    }
}

/// The number with the other sign, zeros too.
impl Neg for Decimal {
    type Output = Decimal;
    fn neg(self) -> Decimal {
        match self {
            Decimal::Nan => Decimal::Nan,
            Decimal::Infinity { negative } => Decimal::Infinity {
                negative: !negative,
            },
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            } => Decimal::Finite {
                negative: !negative,
                coefficient,
                exponent,
            },
        }
    }
}

/// How `Decimal::quantize` rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest, ties to even.
    HalfEven,
    /// Drops digits.
    TowardZero,
    /// Downward.
    Floor,
    /// Upward.
    Ceiling,
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

fn to_dec(value: Decimal) -> dec::Decimal128 {
    let mut context = dec::Context::<dec::Decimal128>::default();
    let (negative, magnitude) = match value {
        Decimal::Nan => return dec::Decimal128::NAN,
        Decimal::Infinity { negative } => (
            negative,
            context.parse("Infinity").expect("the name of a number"),
        ),
        Decimal::Finite {
            negative,
            coefficient,
            exponent,
        } => {
            let mut n = context.from_u128(coefficient);
            context.set_exponent(&mut n, exponent);
            (negative, n)
        }
    };
    if !negative {
        return magnitude;
    }
    // Negation as an operation turns a zero positive; both encodings keep the sign in the highest bit.
    let mut bytes = magnitude.to_le_bytes();
    bytes[15] |= 0x80;
    dec::Decimal128::from_le_bytes(bytes)
}

fn from_dec(value: dec::Decimal128) -> Decimal {
    if value.is_nan() {
        return Decimal::Nan;
    }
    let negative = value.is_signed();
    if value.is_infinite() {
        return Decimal::Infinity { negative };
    }
    Decimal::Finite {
        negative,
        coefficient: value.coefficient().unsigned_abs(),
        exponent: value.exponent(),
    }
}

/// Text of bounded length without an allocation.
struct StackText {
    bytes: [u8; 48],
    len: usize,
}

impl Default for StackText {
    fn default() -> StackText {
        StackText {
            bytes: [0; 48],
            len: 0,
        }
    }
}

impl StackText {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Write for StackText {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let end = self.len + s.len();
        self.bytes
            .get_mut(self.len..end)
            .ok_or(core::fmt::Error)?
            .copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Decimal {
        Decimal::unpack(text.parse::<Decimal128>().expect("a decimal"))
    }

    #[test]
    fn packing_is_what_the_bson_crate_does() {
        for text in [
            "0",
            "-0",
            "1",
            "-1",
            "1E-6176",
            "9.999999999999999999999999999999999E+6144",
            "0E+6111",
            "123.4560",
        ] {
            let encoded: Decimal128 = text.parse().expect("a decimal");
            assert_eq!(Decimal::unpack(encoded).pack(), encoded, "{text}");
        }
        assert_eq!(parse("NaN"), Decimal::Nan);
        assert_eq!(parse("-Infinity"), Decimal::Infinity { negative: true });
        assert_eq!(
            parse("1.50"),
            Decimal::Finite {
                negative: false,
                coefficient: 150,
                exponent: -2
            }
        );
    }

    #[test]
    fn digits_are_counted_at_every_power() {
        for n in 0..=38 {
            let power = power_of_ten(n);
            assert_eq!(digit_count(power), n + 1);
            assert_eq!(digit_count(power - 1), n.max(1));
        }
    }

    #[test]
    fn order() {
        let ascending = [
            "NaN",
            "-Infinity",
            "-9.999999999999999999999999999999999E+6144",
            "-1E3",
            "-999",
            "-1E-6176",
            "0",
            "1E-6176",
            "1E-10",
            "0.1",
            "0.11",
            "1",
            "10",
            "9999999999999999999999999999999999",
            "1E34",
            "1E+6144",
            "Infinity",
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(parse(a).compare(parse(b)), i.cmp(&j), "{a} {b}");
            }
        }
        for (a, b) in [
            ("0", "-0E100"),
            ("1.0", "1.00000"),
            ("1E33", "1000000000000000000000000000000000"),
            ("NaN", "-NaN"),
        ] {
            assert_eq!(parse(a).compare(parse(b)), Ordering::Equal, "{a} {b}");
        }
    }

    #[test]
    fn doubles_round_half_to_even() {
        // 2^-50 has 35 digits, the last of them a 5: a tie.
        assert_eq!(
            Decimal::from_f64(2f64.powi(-50))
                .compare(parse("8.881784197001252323389053344726562E-16")),
            Ordering::Equal
        );
        assert_eq!(
            Decimal::from_f64(3.0 * 2f64.powi(-50))
                .compare(parse("2.664535259100375697016716003417969E-15")),
            Ordering::Equal
        );
        assert_eq!(
            Decimal::from_f64(0.1).compare(parse("0.1000000000000000055511151231257827")),
            Ordering::Equal
        );
        assert_eq!(Decimal::from_f64_15(0.1), parse("0.100000000000000"));
        assert_eq!(Decimal::from_f64_15(1.0), parse("1.00000000000000"));
        assert_eq!(
            Decimal::from_f64_15(9_999_999.499_999_999),
            parse("9999999.50000000")
        );
        assert_eq!(
            Decimal::from_f64_15(9.999_999_999_999_999),
            parse("10.0000000000000")
        );
        assert_eq!(Decimal::from_f64_15(-0.0), parse("-0"));
        assert_eq!(Decimal::from_f64(f64::MAX).to_f64(), f64::MAX);
        assert_eq!(Decimal::from_f64(5e-324).to_f64(), 5e-324);
        assert_eq!(Decimal::from_f64(12.0), parse("12"));
    }

    #[test]
    fn arithmetic() {
        assert_eq!(parse("0.1") + parse("0.2"), parse("0.3"));
        assert_eq!(parse("1.10") * parse("3"), parse("3.30"));
        assert_eq!(
            parse("1") / parse("3"),
            parse("0.3333333333333333333333333333333333")
        );
        assert_eq!(parse("7") % parse("-3"), parse("1"));
        assert_eq!(parse("9E6144") + parse("9E6144"), parse("Infinity"));
        assert_eq!(parse("-0") + parse("-0"), parse("-0"));
        assert_eq!(parse("-5") * parse("0"), parse("-0"));
        assert_eq!(parse("2.5").quantize(0, Rounding::HalfEven), parse("2"));
        assert_eq!(parse("-2.5").quantize(0, Rounding::Floor), parse("-3"));
    }

    #[test]
    fn integers() {
        assert_eq!(parse("1E3").to_i64_exact(), Some(1000));
        assert_eq!(parse("1.000").to_i64_exact(), Some(1));
        assert_eq!(parse("1.5").to_i64_exact(), None);
        assert_eq!(parse("-9223372036854775808").to_i64_exact(), Some(i64::MIN));
        assert_eq!(parse("9223372036854775808").to_i64_exact(), None);
        assert_eq!(parse("0E6000").to_i64_exact(), Some(0));
        assert_eq!(parse("1E6000").to_i64_exact(), None);
        assert_eq!(parse("1E-6000").truncated(), Some(0));
        assert_eq!(parse("-1.99").truncated(), Some(-1));
        assert!(
            parse("1E5").is_integral()
                && !parse("1E-5").is_integral()
                && !parse("Infinity").is_integral()
        );
    }
}
