//! Decimals read from text, their square roots, which the `dec` crate computes to the last digit,
//! and remainders, for which it has too few of them.

use pinion_bson::{Decimal, Decimal128};

type Wide = dec::Decimal<12>;

/// The square root with 34 digits.
pub(super) fn sqrt(value: Decimal128) -> Decimal128 {
    let mut context = dec::Context::<Wide>::default();
    context
        .set_precision(34)
        .expect("the precision fits the type");
    context
        .set_max_exponent(6144)
        .expect("the exponent is in range");
    context
        .set_min_exponent(-6143)
        .expect("the exponent is in range");
    let mut number: Wide = context
        .parse(value.to_string())
        .expect("a decimal's text is a number");
    context.sqrt(&mut number);
    // The two formats agree in digits and exponents, so the text is read back as it was.
    number.to_string().parse().unwrap_or_else(|_| nan())
}

/// The remainder of the truncating division, with the sign of the dividend: exact, however large
/// the quotient is.
pub(super) fn remainder(dividend: Decimal, divisor: Decimal) -> Decimal {
    let (x, y) = match (dividend, divisor) {
        (Decimal::Finite { .. }, Decimal::Infinity { .. }) => return dividend,
        (
            Decimal::Finite {
                negative,
                coefficient,
                exponent,
            },
            Decimal::Finite {
                coefficient: by,
                exponent: by_exponent,
                ..
            },
        ) if by > 0 => ((negative, coefficient, exponent), (by, by_exponent)),
        _ => return Decimal::Nan,
    };
    let ((negative, coefficient, exponent), (by, by_exponent)) = (x, y);
    if exponent < by_exponent {
        // A divisor of more digits than the dividend has is larger.
        let scale = 10u128.checked_pow((by_exponent - exponent) as u32);
        let by = scale.and_then(|scale| by.checked_mul(scale));
        return Decimal::Finite {
            negative,
            coefficient: by.map_or(coefficient, |by| coefficient % by),
            exponent,
        };
    }
    // A remainder has at most 34 digits, so there is room for four more of the dividend at a time.
    let mut rest = coefficient % by;
    let mut zeros = (exponent - by_exponent) as u32;
    while zeros > 0 && rest > 0 {
        let step = zeros.min(4);
        rest = rest * 10u128.pow(step) % by;
        zeros -= step;
    }
    Decimal::Finite {
        negative,
        coefficient: rest,
        exponent: by_exponent,
    }
}

/// Reads a decimal's text; what it has beyond 34 digits is cut off.
pub(super) fn parse(text: &str) -> Option<Decimal128> {
    let named = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let is_name = matches!(&named[..], "nan" | "inf" | "infinity");
    if !is_name && !text.bytes().any(|b| b.is_ascii_digit()) {
        return None;
    }
    let mut context = dec::Context::<dec::Decimal128>::default();
    context.set_rounding(dec::Rounding::Down);
    let number = context.parse(text).ok()?;
    let status = context.status();
    if status.overflow() || status.underflow() {
        return None;
    }
    number.to_string().parse().ok()
}

/// The decimal of 34 digits that is nearest to a number's text.
pub(super) fn rounded(text: &str) -> Decimal128 {
    let number = dec::Context::<dec::Decimal128>::default().parse(text);
    let text = number.map(|number| number.to_string()).unwrap_or_default();
    text.parse().unwrap_or_else(|_| nan())
}

fn nan() -> Decimal128 {
    pinion_bson::decimal::Decimal::Nan.pack()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remainders() {
        let check = |dividend: &str, divisor: &str, expected: &str| {
            let decimal = |text: &str| Decimal::unpack(text.parse().expect("a decimal"));
            let rest = remainder(decimal(dividend), decimal(divisor)).pack();
            assert_eq!(rest.to_string(), expected, "{dividend} {divisor}");
        };
        check("10.5", "3", "1.5");
        check("-10.5", "3", "-1.5");
        check("10", "0.3", "0.1");
        check("1E+40", "3", "1");
        check("9.999999999999999999999999999999999E+6144", "7", "4");
        check("5", "1E+40", "5");
        check("5", "Infinity", "5");
        check("-0", "3", "-0");
        check("6.0", "3", "0.0");
        check("Infinity", "3", "NaN");
        check("NaN", "3", "NaN");
    }

    #[track_caller]
    fn check(made: Decimal128, expected: &str) {
        assert_eq!(made.to_string(), expected);
    }

    #[test]
    fn square_roots() {
        let sqrt = |text: &str| sqrt(text.parse().expect("a decimal"));
        check(sqrt("2"), "1.414213562373095048801688724209698");
        check(sqrt("9"), "3");
        check(sqrt("0.09"), "0.3");
        check(sqrt("1E-6143"), "3.162277660168379331998893544432719E-3072");
    }

    #[test]
    fn digits_beyond_34_are_cut_off() {
        let parsed = |text: &str| parse(text).expect("a decimal");
        check(
            parsed("1.00000000000000000000000000000000099999"),
            "1.000000000000000000000000000000000",
        );
        check(
            rounded("1.00000000000000000000000000000000099999"),
            "1.000000000000000000000000000000001",
        );
        check(parsed("-1e3"), "-1E+3");
        assert_eq!(parse("1e7000"), None);
        assert_eq!(parse("e"), None);
    }
}
