//! Decimals read from text, and their square roots, which the `dec` crate computes to the last digit.

use pinion_bson::Decimal128;

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
