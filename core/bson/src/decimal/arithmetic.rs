//! Decimal arithmetic, which the `dec` crate does in the other encoding of the standard.

use core::ops::{Add, Div, Mul, Neg, Rem, Sub};

use super::Decimal;

/// How a result is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest, ties to even.
    HalfEven,
    /// Drops digits.
    TowardZero,
    /// To the next multiple with a larger magnitude.
    AwayFromZero,
    /// Downward.
    Floor,
    /// Upward.
    Ceiling,
}

impl Rounding {
    fn context(self) -> dec::Context<dec::Decimal128> {
        let mut context = dec::Context::default();
        context.set_rounding(match self {
            Rounding::HalfEven => dec::Rounding::HalfEven,
            Rounding::TowardZero => dec::Rounding::Down,
            Rounding::AwayFromZero => dec::Rounding::Up,
            Rounding::Floor => dec::Rounding::Floor,
            Rounding::Ceiling => dec::Rounding::Ceiling,
        });
        context
    }
}

impl Decimal {
    /// Rounds to a multiple of `10^exponent`; NaN when the result has more than 34 digits.
    pub fn quantize(self, exponent: i32, rounding: Rounding) -> Decimal {
        let quantum = Decimal::Finite {
            negative: false,
            coefficient: 1,
            exponent,
        };
        from_dec(rounding.context().quantize(to_dec(self), to_dec(quantum)))
    }

    /// The product rounded in the given way.
    pub fn multiply(self, other: Decimal, rounding: Rounding) -> Decimal {
        from_dec(rounding.context().mul(to_dec(self), to_dec(other)))
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
        self + -other
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
    // Negation as an operation turns a zero positive; both encodings keep the sign in the highest
    // bit.
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
