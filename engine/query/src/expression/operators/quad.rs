//! Functions of decimals, computed as MongoDB's decimal library does: by way of binary128.
//!
//! That format has 113 bits, a little more than 34 digits. The argument is cut off to it and the
//! result rounded to it, so the last digit of the decimal that comes out is not always that of the
//! exact result; here it is the same one.

use astro_float_num::{BigFloat, Consts, Radix, RoundingMode, Sign};
use pinion_bson::Decimal128;
use pinion_bson::decimal::{Decimal, MAX_COEFFICIENT, MIN_EXPONENT};
use pinion_wire::Result;

use crate::work::{self, spend};

/// Bits of what lies between argument and result.
const PRECISION: usize = 256;
/// Bits of a binary128.
const BITS: u32 = 113;
/// The exponents of a binary128 whose significand lies below one.
const EXPONENTS: core::ops::RangeInclusive<i32> = -16_493..=16_384;
const ROUNDING: RoundingMode = RoundingMode::ToEven;
/// What a function takes, its constants included.
const FUNCTION: work::Units = 60_000;
/// And where the argument's whole periods of a circle have to be taken off.
const WIDE_ARGUMENT: work::Units = 20_000_000;

/// What computes a function to [`PRECISION`] bits.
pub(super) type Function = fn(&BigFloat, &mut Consts) -> BigFloat;

macro_rules! functions {
    ($($name:ident)*) => {
        $(pub(super) fn $name(x: &BigFloat, constants: &mut Consts) -> BigFloat {
            x.$name(PRECISION, ROUNDING, constants)
        })*
    };
}

functions!(exp ln log10 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh);

/// A function of one decimal.
pub(super) fn function(value: Decimal128, compute: Function) -> Result<Decimal128> {
    spend(FUNCTION)?;
    let mut constants = constants();
    let argument = argument(value, &mut constants);
    if argument.exponent().is_some_and(|e| e > BITS as i32) {
        spend(WIDE_ARGUMENT)?;
    }
    let exact = compute(&argument, &mut constants);
    Ok(result(&exact, &mut constants))
}

/// The angle of a point.
pub(super) fn atan2(y: Decimal128, x: Decimal128) -> Result<Decimal128> {
    spend(FUNCTION)?;
    let mut constants = constants();
    let (y, x) = (argument(y, &mut constants), argument(x, &mut constants));
    if y.is_nan() || x.is_nan() {
        return Ok(Decimal::Nan.pack());
    }
    let pi = constants.pi(PRECISION, ROUNDING);
    let part_of_pi = |times: u64, of: u64| {
        let times = BigFloat::from_u64(times, PRECISION);
        let of = BigFloat::from_u64(of, PRECISION);
        pi.mul(&times, PRECISION, ROUNDING)
            .div(&of, PRECISION, ROUNDING)
    };
    // The angle in the upper half, which the sign of `y` turns over.
    let magnitude = if y.is_inf() && x.is_inf() {
        part_of_pi(if x.is_negative() { 3 } else { 1 }, 4)
    } else if y.is_zero() || x.is_inf() {
        part_of_pi(u64::from(x.sign() == Some(Sign::Neg)), 1)
    } else if x.is_zero() || y.is_inf() {
        part_of_pi(1, 2)
    } else {
        let slope = y.abs().div(&x.abs(), PRECISION, ROUNDING);
        let angle = slope.atan(PRECISION, ROUNDING, &mut constants);
        if x.is_negative() {
            pi.sub(&angle, PRECISION, ROUNDING)
        } else {
            angle
        }
    };
    let angle = if y.sign() == Some(Sign::Neg) {
        magnitude.neg()
    } else {
        magnitude
    };
    Ok(result(&angle, &mut constants))
}

/// A power. The result has all 34 digits, since zero with the smallest exponent is added to it.
pub(super) fn pow(base: Decimal128, exponent: Decimal128) -> Result<Decimal128> {
    spend(2 * FUNCTION)?;
    let mut constants = constants();
    let base = in_range(argument(base, &mut constants));
    let exponent = in_range(argument(exponent, &mut constants));
    let power = power(&base, &exponent, &mut constants);
    let made = Decimal::unpack(result(&in_range(rounded(&power, false)), &mut constants));
    let zero = Decimal::Finite {
        negative: false,
        coefficient: 0,
        exponent: MIN_EXPONENT,
    };
    Ok((made + zero).pack())
}

fn power(base: &BigFloat, exponent: &BigFloat, constants: &mut Consts) -> BigFloat {
    let one = BigFloat::from_u64(1, PRECISION);
    let is_one = |x: &BigFloat| x.cmp(&one) == Some(0);
    if exponent.is_zero() || is_one(base) {
        return one;
    }
    if base.is_nan() || exponent.is_nan() {
        return BigFloat::nan(None);
    }
    if exponent.is_inf() {
        return match (base.abs().cmp(&one).unwrap_or(0), exponent.is_negative()) {
            (0, _) => one,
            (1.., false) | (..0, true) => INFINITY,
            _ => zero(),
        };
    }
    let odd = exponent.is_int() && {
        let half = exponent.div(&BigFloat::from_u64(2, PRECISION), PRECISION, ROUNDING);
        !half.is_int()
    };
    let magnitude = if base.is_zero() || base.is_inf() {
        match base.is_inf() == exponent.is_positive() {
            true => INFINITY,
            false => zero(),
        }
    } else {
        let logarithm = base.abs().ln(PRECISION, ROUNDING, constants);
        logarithm
            .mul(exponent, PRECISION, ROUNDING)
            .exp(PRECISION, ROUNDING, constants)
    };
    match base.is_negative() {
        true if odd => magnitude.neg(),
        true if !exponent.is_int() && !base.is_zero() && !base.is_inf() => BigFloat::nan(None),
        _ => magnitude,
    }
}

/// `1 / (1 + e^-x)`, in decimals but for the exponential.
pub(super) fn sigmoid(value: Decimal128) -> Result<Decimal128> {
    let opposite = (-Decimal::unpack(value)).pack();
    let exponential = Decimal::unpack(function(opposite, exp)?);
    let one = Decimal::from_i64(1);
    Ok((one / (one + exponential)).pack())
}

const INFINITY: BigFloat = astro_float_num::INF_POS;

fn zero() -> BigFloat {
    BigFloat::from_u64(0, PRECISION)
}

fn constants() -> Consts {
    Consts::new().expect("there is memory for a few constants")
}

/// A decimal as a binary128, what does not fit cut off.
fn argument(value: Decimal128, constants: &mut Consts) -> BigFloat {
    match Decimal::unpack(value) {
        Decimal::Nan => BigFloat::nan(None),
        Decimal::Infinity { negative: false } => INFINITY,
        Decimal::Infinity { negative: true } => astro_float_num::INF_NEG,
        Decimal::Finite {
            negative,
            coefficient: 0,
            ..
        } => match negative {
            true => zero().neg(),
            false => zero(),
        },
        Decimal::Finite {
            negative,
            coefficient,
            exponent,
        } => {
            let sign = if negative { "-" } else { "" };
            let text = format!("{sign}{coefficient}e{exponent}");
            let exact = BigFloat::parse(&text, Radix::Dec, PRECISION, ROUNDING, constants);
            rounded(&exact, true)
        }
    }
}

/// The 113 bits that a finite number begins with, the exponent of the last of them, and what is
/// left of it, as a share of `u64::MAX`. `None` for zero and what is not finite.
fn leading_bits(value: &BigFloat) -> Option<(u128, i32, u64)> {
    let (words, _, _, exponent, _) = value.as_raw_parts()?;
    let [rest @ .., low, high] = words else {
        return None;
    };
    let top = u128::from(*high) << 64 | u128::from(*low);
    if top == 0 {
        return None;
    }
    let cut = top.leading_zeros();
    let (top, exponent) = (top << cut, exponent - cut as i32);
    let sticky = rest.iter().any(|word| *word != 0);
    let below = (top as u64) << (BITS - 64) | u64::from(sticky);
    Some((top >> (128 - BITS), exponent - BITS as i32, below))
}

/// A number of the same value but for the bits behind the 113th.
fn rounded(value: &BigFloat, cut_off: bool) -> BigFloat {
    let Some((mut bits, mut exponent, rest)) = leading_bits(value) else {
        return value.clone();
    };
    const HALF: u64 = 1 << 63;
    if !cut_off && (rest > HALF || (rest == HALF && bits & 1 == 1)) {
        bits += 1;
        if bits >> BITS != 0 {
            (bits, exponent) = (bits >> 1, exponent + 1);
        }
    }
    let top = bits << (128 - BITS);
    let words = [top as u64, (top >> 64) as u64];
    let sign = value.sign().unwrap_or(Sign::Pos);
    BigFloat::from_words(&words, sign, exponent + BITS as i32)
}

/// An infinity or zero in the place of what a binary128 cannot hold.
fn in_range(value: BigFloat) -> BigFloat {
    match value.exponent() {
        Some(e) if !value.is_zero() && e > *EXPONENTS.end() => match value.is_negative() {
            true => astro_float_num::INF_NEG,
            false => INFINITY,
        },
        Some(e) if !value.is_zero() && e < *EXPONENTS.start() => zero(),
        _ => value,
    }
}

/// A result, rounded to a binary128 and then to a decimal: in as few digits as it has, where these
/// are all.
fn result(exact: &BigFloat, constants: &mut Consts) -> Decimal128 {
    if exact.is_nan() {
        return Decimal::Nan.pack();
    }
    // Zero has a sign too.
    let negative = exact.sign() == Some(Sign::Neg);
    if exact.is_inf() {
        return Decimal::Infinity { negative }.pack();
    }
    let value = rounded(exact, false);
    let Some((bits, exponent, _)) = leading_bits(&value) else {
        let zero = Decimal::Finite {
            negative,
            coefficient: 0,
            exponent: 0,
        };
        return zero.pack();
    };
    if let Some((coefficient, exponent)) = all_digits(bits, exponent) {
        let made = Decimal::Finite {
            negative,
            coefficient,
            exponent,
        };
        return made.pack();
    }
    let text = value
        .format(Radix::Dec, ROUNDING, constants)
        .unwrap_or_else(|_| "NaN".into());
    super::decimal::rounded(&text)
}

/// `bits * 2^exponent` as a decimal of at most 34 digits, where it is one; integers have no
/// exponent.
fn all_digits(bits: u128, exponent: i32) -> Option<(u128, i32)> {
    let spare = bits.trailing_zeros();
    let (bits, exponent) = (bits >> spare, exponent + spare as i32);
    let coefficient = match u32::try_from(exponent) {
        Ok(twos) if twos < bits.leading_zeros() => bits << twos,
        Ok(_) => return None,
        Err(_) => bits.checked_mul(5_u128.checked_pow(exponent.unsigned_abs())?)?,
    };
    (coefficient <= MAX_COEFFICIENT).then_some((coefficient, exponent.min(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal128 {
        text.parse().expect("a decimal")
    }

    #[track_caller]
    fn check(made: Result<Decimal128>, expected: &str) {
        assert_eq!(made.expect("it is computed").to_string(), expected);
    }

    #[test]
    fn logarithms_and_exponentials() {
        check(
            function(decimal("-1"), exp),
            "0.3678794411714423215955237701614609",
        );
        check(function(decimal("0"), exp), "1");
        check(function(decimal("-Infinity"), exp), "0");
        check(
            function(decimal("2.718281828459045"), ln),
            "0.9999999999999999134157889710887611",
        );
        check(
            function(decimal("9.999999999999999999999999999999999E+6144"), ln),
            "14149.38539644841072829055748903542",
        );
        check(function(decimal("1E-6143"), log10), "-6143");
        check(
            function(decimal("9.999999999999999999999999999999999E+6144"), log10),
            "6145",
        );
    }

    #[test]
    fn powers() {
        check(
            pow(decimal("0.5"), decimal("2")),
            "0.2500000000000000000000000000000000",
        );
        check(
            pow(decimal("10"), decimal("20")),
            "100000000000000000000.0000000000000",
        );
        check(
            pow(
                decimal("0.4999999999999999999999999999999999"),
                decimal("2"),
            ),
            "0.2499999999999999999999999999999999",
        );
        check(
            pow(decimal("-2"), decimal("3")),
            "-8.000000000000000000000000000000000",
        );
        check(pow(decimal("-2"), decimal("0.5")), "NaN");
        check(pow(decimal("-0"), decimal("3")), "0E-6176");
        check(pow(decimal("-Infinity"), decimal("3")), "-Infinity");
        check(pow(decimal("-Infinity"), decimal("-1")), "0E-6176");
        // Beyond what a binary128 holds.
        check(pow(decimal("1E+5000"), decimal("1")), "Infinity");
        check(pow(decimal("1E-5000"), decimal("1")), "0E-6176");
    }

    #[test]
    fn angles() {
        check(
            function(decimal("0.5"), sin),
            "0.4794255386042030002732879352155714",
        );
        check(function(decimal("0"), cos), "1");
        check(
            atan2(decimal("1"), decimal("-1")),
            "2.356194490192344928846982537459627",
        );
        check(atan2(decimal("-0"), decimal("1")), "-0");
        check(
            atan2(decimal("0"), decimal("-1")),
            "3.141592653589793238462643383279503",
        );
    }

    #[test]
    fn sigmoids() {
        check(
            sigmoid(decimal("0.5")),
            "0.6224593312018545646389005657455087",
        );
        check(
            sigmoid(decimal("0.4999999999999999999999999999999999")),
            "0.6224593312018545646389005657455083",
        );
        check(sigmoid(decimal("-Infinity")), "0E-6176");
        check(sigmoid(decimal("NaN")), "NaN");
        check(sigmoid(decimal("1E-6143")), "0.5");
    }
}
