//! Functions of decimals to all their digits, which the `dec` crate computes.

use pinion_bson::Decimal128;

type Wide = dec::Decimal<12>;

/// Computes a function of one decimal with 34 digits.
pub(super) fn function(
    value: Decimal128,
    compute: impl FnOnce(&mut dec::Context<Wide>, &mut Wide),
) -> Decimal128 {
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
    compute(&mut context, &mut number);
    // The two formats agree in digits and exponents, so the text is read back as it was.
    number
        .to_string()
        .parse()
        .unwrap_or_else(|_| "NaN".parse().expect("the name of a number"))
}

/// Reads a decimal's text, rounded to 34 digits where it has more.
pub(super) fn parse(text: &str) -> Option<Decimal128> {
    let named = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let is_name = matches!(&named[..], "nan" | "inf" | "infinity");
    if !is_name && !text.bytes().any(|b| b.is_ascii_digit()) {
        return None;
    }
    let mut context = dec::Context::<dec::Decimal128>::default();
    let number = context.parse(text).ok()?;
    let status = context.status();
    if status.overflow() || status.underflow() {
        return None;
    }
    number.to_string().parse().ok()
}

/// `1 / (1 + e^-x)`
pub(super) fn sigmoid(value: Decimal128) -> Decimal128 {
    function(value, |context, x| {
        context.neg(x);
        context.exp(x);
        let one = Wide::from(1);
        context.add(x, &one);
        let mut result = one;
        context.div(&mut result, x);
        *x = result;
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_digits() {
        let check = |made: Decimal128, expected: &str| assert_eq!(made.to_string(), expected);
        let decimal = |text: &str| text.parse::<Decimal128>().expect("a decimal");
        let sqrt = |text: &str| function(decimal(text), |c, x| c.sqrt(x));
        check(sqrt("2"), "1.414213562373095048801688724209698");
        check(sqrt("9"), "3");
        check(sqrt("0.09"), "0.3");
        check(sqrt("1E-6143"), "3.162277660168379331998893544432719E-3072");
        check(
            function(decimal("-1"), |c, x| c.exp(x)),
            "0.3678794411714423215955237701614609",
        );
        check(function(decimal("1E-6143"), |c, x| c.log10(x)), "-6143");
        check(
            sigmoid(decimal("1.0")),
            "0.7310585786300048792511592418218362",
        );
        check(sigmoid(decimal("Infinity")), "1");
    }
}
