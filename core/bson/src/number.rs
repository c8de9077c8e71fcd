//! Numbers of the four types: order, arithmetic with MongoDB's promotion rules, conversions.

use core::cmp::Ordering;
use core::ops::{Add, Mul, Sub};

use bson::spec::ElementType;
use bson::{Decimal128, RawBson, RawBsonRef};

use crate::compare::compare_values;
use crate::decimal::Decimal;

/// A number as it stands in a document.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the variants are the numeric BSON types")]
pub enum Number {
    Int32(i32),
    Int64(i64),
    Double(f64),
    Decimal(Decimal128),
}

impl Number {
    /// The number a value is; `None` for all other types.
    #[inline]
    pub fn from_value(value: RawBsonRef<'_>) -> Option<Number> {
        Some(match value {
            RawBsonRef::Int32(v) => Number::Int32(v),
            RawBsonRef::Int64(v) => Number::Int64(v),
            RawBsonRef::Double(v) => Number::Double(v),
            RawBsonRef::Decimal128(v) => Number::Decimal(v),
            _ => return None,
        })
    }

    /// The number as a value.
    #[inline]
    pub fn to_value(self) -> RawBsonRef<'static> {
        match self {
            Number::Int32(v) => RawBsonRef::Int32(v),
            Number::Int64(v) => RawBsonRef::Int64(v),
            Number::Double(v) => RawBsonRef::Double(v),
            Number::Decimal(v) => RawBsonRef::Decimal128(v),
        }
    }

    /// The number as an owned value.
    pub fn to_raw_bson(self) -> RawBson {
        self.to_value().into()
    }

    /// The BSON type.
    #[inline]
    pub fn kind(self) -> ElementType {
        self.to_value().element_type()
    }

    /// The order of all numbers: NaN lowest and equal to itself, both zeros equal.
    #[inline]
    pub fn compare(self, other: Number) -> Ordering {
        compare_values(self.to_value(), other.to_value())
    }

    /// The sum as `$inc` makes it: a decimal if either is one, else a double if either is one, else
    /// an int64 if either is one or the int32 sum overflows. `None` when an int64 sum overflows.
    pub fn checked_add(self, other: Number) -> Option<Number> {
        self.combine(other, i64::checked_add, |a, b| a + b, Add::add)
    }

    /// The product as `$mul` makes it, with the rules of `checked_add`.
    pub fn checked_mul(self, other: Number) -> Option<Number> {
        self.combine(other, i64::checked_mul, |a, b| a * b, Mul::mul)
    }

    /// The difference, with the rules of `checked_add`.
    pub fn checked_sub(self, other: Number) -> Option<Number> {
        self.combine(other, i64::checked_sub, |a, b| a - b, Sub::sub)
    }

    /// The sum as aggregation makes it: like `checked_add`, but an int64 overflow gives a double.
    pub fn add_widening(self, other: Number) -> Number {
        self.checked_add(other)
            .unwrap_or_else(|| Number::Double(self.to_f64() + other.to_f64()))
    }

    /// The product as aggregation makes it: like `checked_mul`, but an int64 overflow gives a
    /// double.
    pub fn mul_widening(self, other: Number) -> Number {
        self.checked_mul(other)
            .unwrap_or_else(|| Number::Double(self.to_f64() * other.to_f64()))
    }

    /// The difference as aggregation makes it: like `checked_sub`, but an int64 overflow gives a
    /// double.
    pub fn sub_widening(self, other: Number) -> Number {
        self.checked_sub(other)
            .unwrap_or_else(|| Number::Double(self.to_f64() - other.to_f64()))
    }

    fn combine(
        self,
        other: Number,
        integers: fn(i64, i64) -> Option<i64>,
        doubles: fn(f64, f64) -> f64,
        decimals: fn(Decimal, Decimal) -> Decimal,
    ) -> Option<Number> {
        Some(match (self, other) {
            (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
                Number::Decimal(decimals(self.to_decimal(), other.to_decimal()).pack())
            }
            (Number::Double(_), _) | (_, Number::Double(_)) => {
                Number::Double(doubles(self.to_f64(), other.to_f64()))
            }
            (Number::Int32(a), Number::Int32(b)) => {
                let wide = integers(i64::from(a), i64::from(b))?;
                i32::try_from(wide).map_or(Number::Int64(wide), Number::Int32)
            }
            (Number::Int32(a), Number::Int64(b)) => Number::Int64(integers(i64::from(a), b)?),
            (Number::Int64(a), Number::Int32(b)) => Number::Int64(integers(a, i64::from(b))?),
            (Number::Int64(a), Number::Int64(b)) => Number::Int64(integers(a, b)?),
        })
    }

    /// The number with the other sign; an int64 (int32) that has none becomes a double (int64).
    pub fn negate(self) -> Number {
        match self {
            Number::Int32(v) => v
                .checked_neg()
                .map_or(Number::Int64(-i64::from(v)), Number::Int32),
            Number::Int64(v) => v
                .checked_neg()
                .map_or(Number::Double(-(v as f64)), Number::Int64),
            Number::Double(v) => Number::Double(-v),
            Number::Decimal(v) => Number::Decimal((-Decimal::unpack(v)).pack()),
        }
    }

    /// The nearest double.
    pub fn to_f64(self) -> f64 {
        match self {
            Number::Int32(v) => f64::from(v),
            Number::Int64(v) => v as f64,
            Number::Double(v) => v,
            Number::Decimal(v) => Decimal::unpack(v).to_f64(),
        }
    }

    /// The decimal that arithmetic uses: integers exactly, doubles with 15 digits.
    pub fn to_decimal(self) -> Decimal {
        match self {
            Number::Int32(v) => Decimal::from_i64(i64::from(v)),
            Number::Int64(v) => Decimal::from_i64(v),
            Number::Double(v) => Decimal::from_f64_15(v),
            Number::Decimal(v) => Decimal::unpack(v),
        }
    }

    /// The integer this is exactly; `None` for fractions, for what is not finite, and beyond 64
    /// bits.
    pub fn to_i64_exact(self) -> Option<i64> {
        match self {
            Number::Int32(v) => Some(i64::from(v)),
            Number::Int64(v) => Some(v),
            Number::Double(v) if v.fract() == 0.0 => double_to_i64(v),
            Number::Double(_) => None,
            Number::Decimal(v) => Decimal::unpack(v).to_i64_exact(),
        }
    }

    /// The integer part; `None` for NaN, infinities, and beyond 64 bits.
    pub fn to_i64_truncated(self) -> Option<i64> {
        match self {
            Number::Int32(v) => Some(i64::from(v)),
            Number::Int64(v) => Some(v),
            Number::Double(v) => double_to_i64(v.trunc()),
            Number::Decimal(v) => i64::try_from(Decimal::unpack(v).truncated()?).ok(),
        }
    }

    /// The integer part, 0 for NaN, the nearest 64-bit integer for what lies outside their range.
    pub fn to_i64_saturating(self) -> i64 {
        match self {
            Number::Int32(v) => i64::from(v),
            Number::Int64(v) => v,
            Number::Double(v) => v as i64,
            Number::Decimal(v) => {
                let decimal = Decimal::unpack(v);
                match (decimal, self.to_i64_truncated()) {
                    (_, Some(n)) => n,
                    (Decimal::Nan, None) => 0,
                    (Decimal::Infinity { negative } | Decimal::Finite { negative, .. }, None) => {
                        if negative {
                            i64::MIN
                        } else {
                            i64::MAX
                        }
                    }
                }
            }
        }
    }

    /// Whether this is a zero of either sign.
    pub fn is_zero(self) -> bool {
        match self {
            Number::Int32(v) => v == 0,
            Number::Int64(v) => v == 0,
            Number::Double(v) => v == 0.0,
            Number::Decimal(v) => Decimal::unpack(v).is_zero(),
        }
    }

    /// Whether this is not a number.
    pub fn is_nan(self) -> bool {
        match self {
            Number::Int32(_) | Number::Int64(_) => false,
            Number::Double(v) => v.is_nan(),
            Number::Decimal(v) => Decimal::unpack(v).is_nan(),
        }
    }

    /// Whether this is neither an infinity nor NaN.
    pub fn is_finite(self) -> bool {
        match self {
            Number::Int32(_) | Number::Int64(_) => true,
            Number::Double(v) => v.is_finite(),
            Number::Decimal(v) => matches!(Decimal::unpack(v), Decimal::Finite { .. }),
        }
    }

    /// Whether this is finite and has no fraction.
    pub fn is_integral(self) -> bool {
        match self {
            Number::Int32(_) | Number::Int64(_) => true,
            Number::Double(v) => v.is_finite() && v.fract() == 0.0,
            Number::Decimal(v) => Decimal::unpack(v).is_integral(),
        }
    }

    /// Whether this is below zero; false for NaN and for both zeros.
    pub fn is_negative(self) -> bool {
        !self.is_nan() && self.compare(Number::Int32(0)).is_lt()
    }
}

/// An integral double as an integer, if it fits.
fn double_to_i64(v: f64) -> Option<i64> {
    const TWO_63: f64 = 9_223_372_036_854_775_808.0;
    (-TWO_63..TWO_63).contains(&v).then_some(v as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Number {
        Number::Decimal(text.parse().expect("a decimal"))
    }

    fn check(actual: Option<Number>, expected: Option<Number>) {
        assert_eq!(actual.map(Number::to_value), expected.map(Number::to_value));
    }

    #[test]
    fn sums_and_products() {
        use Number::{Double, Int32, Int64};
        check(Int32(1).checked_add(Int32(2)), Some(Int32(3)));
        check(
            Int32(i32::MAX).checked_add(Int32(1)),
            Some(Int64(i64::from(i32::MAX) + 1)),
        );
        check(Int32(1).checked_add(Int64(2)), Some(Int64(3)));
        check(Int64(i64::MAX).checked_add(Int32(1)), None);
        check(
            Int64(i64::MAX).checked_add(Double(1.0)),
            Some(Double(9_223_372_036_854_775_808.0)),
        );
        check(
            Int32(1 << 20).checked_mul(Int32(1 << 20)),
            Some(Int64(1 << 40)),
        );
        check(Int64(i64::MIN).checked_mul(Int32(-1)), None);
        check(Int32(2).checked_mul(Double(1.5)), Some(Double(3.0)));
        check(
            decimal("0.1").checked_add(Double(0.2)),
            Some(decimal("0.300000000000000")),
        );
        check(decimal("1.5").checked_mul(Int32(2)), Some(decimal("3.0")));
        check(
            Some(Int64(i64::MAX).add_widening(Int64(1))),
            Some(Double(9_223_372_036_854_775_808.0)),
        );
        check(Some(Int32(i32::MIN).negate()), Some(Int64(1 << 31)));
        check(Int32(3).checked_sub(Int64(5)), Some(Int64(-2)));
    }

    #[test]
    fn conversions() {
        use Number::{Double, Int64};
        assert_eq!(Double(3.0).to_i64_exact(), Some(3));
        assert_eq!(Double(3.5).to_i64_exact(), None);
        assert_eq!(Double(3.5).to_i64_truncated(), Some(3));
        assert_eq!(
            Double(-9_223_372_036_854_775_808.0).to_i64_exact(),
            Some(i64::MIN)
        );
        assert_eq!(Double(9_223_372_036_854_775_808.0).to_i64_exact(), None);
        assert_eq!(Double(f64::NAN).to_i64_exact(), None);
        assert_eq!(Double(f64::INFINITY).to_i64_truncated(), None);
        assert_eq!(Double(f64::INFINITY).to_i64_saturating(), i64::MAX);
        assert_eq!(decimal("-1E100").to_i64_saturating(), i64::MIN);
        assert_eq!(decimal("NaN").to_i64_saturating(), 0);
        assert_eq!(decimal("1E2").to_i64_exact(), Some(100));
        assert_eq!(Int64(5).to_f64(), 5.0);
        assert!(
            decimal("-0.5").is_negative()
                && !Double(-0.0).is_negative()
                && !Double(f64::NAN).is_negative()
        );
        assert!(
            decimal("0E5").is_zero() && decimal("NaN").is_nan() && !decimal("Infinity").is_finite()
        );
        assert!(Double(2.0).is_integral() && !Double(f64::INFINITY).is_integral());
    }
}
