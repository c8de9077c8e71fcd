//! How the values of parameters are read, which is one rule for all of them.
//!
//! As in MongoDB a command's value is coerced: whatever is true or false is a flag, a fraction is
//! cut to a whole number, and a flag is a number too. Bounds are checked behind that. Texts of the
//! command line are not coerced.

use pinion_bson::RawBsonRef;
use pinion_wire::idl::{f64_lossy, i64_exact, truthy};
use pinion_wire::{Error, Result};

/// A value that nothing for this parameter can be made of.
pub fn unreadable(name: &str, value: RawBsonRef<'_>) -> Error {
    Error::bad_value(format!(
        "Failed to parse value {} for parameter {name}",
        pinion_query::value_text(value)
    ))
}

/// Every value is a flag: zero, null and what is absent are false.
pub fn flag(value: RawBsonRef<'_>) -> bool {
    truthy(value)
}

/// A whole number of 64 bits.
pub fn whole(name: &str, value: RawBsonRef<'_>) -> Result<i64> {
    if let RawBsonRef::Boolean(flag) = value {
        return Ok(flag.into());
    }
    i64_exact(value)
        .or_else(|| cut(f64_lossy(value)?))
        .ok_or_else(|| unreadable(name, value))
}

/// A number without its fraction, where that fits.
fn cut(number: f64) -> Option<i64> {
    const LIMIT: f64 = -(i64::MIN as f64);
    let number = number.trunc();
    (-LIMIT..LIMIT).contains(&number).then_some(number as i64)
}

/// A whole number within `least..=most`.
pub fn within(name: &str, value: RawBsonRef<'_>, least: i64, most: i64) -> Result<i64> {
    let number = whole(name, value)?;
    if number < least {
        return Err(Error::bad_value(format!(
            "Invalid value for parameter {name}: {number} is not greater than or equal to {least}"
        )));
    }
    if number > most {
        return Err(Error::bad_value(format!(
            "Invalid value for parameter {name}: {number} is not less than or equal to {most}"
        )));
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_coerced() {
        use RawBsonRef::{Boolean, Double, Int32, Int64, Null, String};
        let check = |value, expected: Option<i64>| {
            assert_eq!(whole("p", value).ok(), expected, "{value:?}");
        };
        check(Int32(3), Some(3));
        check(Double(1.9), Some(1));
        check(Double(-1.9), Some(-1));
        check(Boolean(true), Some(1));
        check(Int64(i64::MIN), Some(i64::MIN));
        check(Double(-9_223_372_036_854_775_808.0), Some(i64::MIN));
        check(Double(9_223_372_036_854_775_808.0), None);
        check(Double(f64::NAN), None);
        check(Double(f64::NEG_INFINITY), None);
        let decimal = |text: &str| RawBsonRef::Decimal128(text.parse().expect("a number"));
        check(decimal("2.5"), Some(2));
        check(decimal("9007199254740993"), Some(9_007_199_254_740_993));
        check(decimal("1E+400"), None);
        check(String("1"), None);
        check(Null, None);
        assert!(flag(String("")) && flag(Double(f64::NAN)));
        assert!(!flag(Null) && !flag(Double(0.0)));
        assert!(within("p", Int32(0), 1, 9).is_err() && within("p", Int32(10), 1, 9).is_err());
        assert_eq!(within("p", Double(9.9), 1, 9).ok(), Some(9));
    }
}
