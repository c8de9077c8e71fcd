//! Numbers of a command document, converted as MongoDB's `safeNumberInt` and `safeNumberLong` do.

use pinion_bson::decimal::Rounding;
use pinion_bson::{Decimal, Number, RawBsonRef};

/// True for int, long, double and decimal.
pub fn is_number(value: RawBsonRef<'_>) -> bool {
    Number::from_value(value).is_some()
}

/// A number as i64: doubles are truncated, decimals rounded half to even, NaN is 0 and what lies
/// outside is clamped. `None` if it is no number.
pub fn i64_clamped(value: RawBsonRef<'_>) -> Option<i64> {
    let number = Number::from_value(value)?;
    Some(match number {
        Number::Decimal(n) if number.is_finite() && !number.is_integral() => {
            // What has a fraction is below 10^34, so the quantum of 1 loses no digit in front of
            // the point.
            let whole = Decimal::unpack(n).quantize(0, Rounding::HalfEven);
            Number::Decimal(whole.pack()).to_i64_saturating()
        }
        _ => number.to_i64_saturating(),
    })
}

/// As `i64_clamped`, for i32.
pub fn i32_clamped(value: RawBsonRef<'_>) -> Option<i32> {
    i64_clamped(value).map(|n| n.clamp(i32::MIN.into(), i32::MAX.into()) as i32)
}

/// A number that is a whole number within i64; `None` for every other value.
pub fn i64_exact(value: RawBsonRef<'_>) -> Option<i64> {
    Number::from_value(value)?.to_i64_exact()
}

/// A number as double; `None` if it is no number.
pub fn f64_lossy(value: RawBsonRef<'_>) -> Option<f64> {
    Number::from_value(value).map(Number::to_f64)
}

/// The truth of a value as MongoDB's `trueValue` sees it: false, numeric zero, null and undefined
/// are false, everything else is true.
pub fn truthy(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Boolean(b) => b,
        RawBsonRef::Null | RawBsonRef::Undefined => false,
        other => Number::from_value(other).is_none_or(|number| !number.is_zero()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> RawBsonRef<'static> {
        RawBsonRef::Decimal128(text.parse().unwrap())
    }

    #[test]
    fn clamped() {
        fn check(value: RawBsonRef<'_>, expected: Option<i64>) {
            assert_eq!(i64_clamped(value), expected, "{value:?}");
        }
        check(RawBsonRef::Int32(-3), Some(-3));
        check(RawBsonRef::Double(1.9), Some(1));
        check(RawBsonRef::Double(-1.9), Some(-1));
        check(RawBsonRef::Double(f64::NAN), Some(0));
        check(RawBsonRef::Double(1e300), Some(i64::MAX));
        check(decimal("0.5"), Some(0));
        check(decimal("1.5"), Some(2));
        check(decimal("50.5"), Some(50));
        check(decimal("-2.5"), Some(-2));
        check(decimal("51.4"), Some(51));
        check(decimal("50E2"), Some(5000));
        check(decimal("1E+6000"), Some(i64::MAX));
        check(decimal("-1E+40"), Some(i64::MIN));
        check(decimal("1E-6000"), Some(0));
        check(decimal("NaN"), Some(0));
        check(decimal("-Infinity"), Some(i64::MIN));
        check(RawBsonRef::String("1"), None);
        check(RawBsonRef::Boolean(true), None);
    }

    #[test]
    fn exact() {
        fn check(value: RawBsonRef<'_>, expected: Option<i64>) {
            assert_eq!(i64_exact(value), expected, "{value:?}");
        }
        check(RawBsonRef::Double(2.0), Some(2));
        check(RawBsonRef::Double(2.5), None);
        check(RawBsonRef::Double(f64::INFINITY), None);
        check(RawBsonRef::Double(f64::NAN), None);
        check(RawBsonRef::Double(9_223_372_036_854_775_808.0), None);
        check(
            RawBsonRef::Double(-9_223_372_036_854_775_808.0),
            Some(i64::MIN),
        );
        check(decimal("5000.0"), Some(5000));
        check(decimal("50000E-1"), Some(5000));
        check(decimal("1.5"), None);
        check(decimal("9223372036854775808"), None);
        check(decimal("-0E+10"), Some(0));
        check(decimal("NaN"), None);
    }

    #[test]
    fn truth() {
        assert!(truthy(RawBsonRef::Double(f64::NAN)));
        assert!(truthy(decimal("NaN")));
        assert!(!truthy(decimal("-0.00")));
        assert!(!truthy(RawBsonRef::Null));
        assert!(truthy(RawBsonRef::String("")));
    }
}
