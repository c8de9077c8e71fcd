//! Decimals: encoding, order, rounding and arithmetic.

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
    let digits = |x: f64, rounding| round_double(x, 34, rounding).0;
    let (tie, next) = (2f64.powi(-50), 3.0 * 2f64.powi(-50));
    assert_eq!(
        digits(tie, Rounding::HalfEven),
        8_881_784_197_001_252_323_389_053_344_726_562
    );
    assert_eq!(
        digits(tie, Rounding::AwayFromZero),
        8_881_784_197_001_252_323_389_053_344_726_563
    );
    assert_eq!(
        digits(next, Rounding::HalfEven),
        2_664_535_259_100_375_697_016_716_003_417_969
    );
    assert_eq!(
        digits(0.1, Rounding::TowardZero),
        1_000_000_000_000_000_055_511_151_231_257_827
    );
    assert_eq!(
        digits(0.1, Rounding::AwayFromZero),
        1_000_000_000_000_000_055_511_151_231_257_828
    );
    assert_eq!(
        round_double(12.0, 34, Rounding::AwayFromZero),
        (12 * 10u128.pow(32), -32)
    );
    assert_eq!(round_double(f64::MAX, 34, Rounding::TowardZero).1, 275);
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
}

#[test]
fn truncation_to_doubles() {
    let check = |text: &str, double: f64, exact: bool| {
        assert_eq!(
            parse(text).to_f64_toward_zero(),
            Some((double, exact)),
            "{text}"
        );
    };
    check("0.5", 0.5, true);
    check("0.1", 0.1f64.next_down(), false);
    check("0.2", 0.2f64.next_down(), false);
    check("0.3", 0.3, false);
    check("-0.3", -0.3, false);
    check("1E23", 1e23, false);
    check("9007199254740993", 9_007_199_254_740_992.0, false);
    check("1E400", f64::MAX, false);
    check("1E-400", 0.0, false);
    check("4.9E-324", 0.0, false);
    check("5E-324", 5e-324, false);
    check("1E22", 1e22, true);
    check("12345678901234567890", 12_345_678_901_234_567_168.0, false);
}

#[test]
fn normalizing() {
    let check = |text: &str, coefficient: u128, exponent: i32| {
        let expected = Decimal::Finite {
            negative: false,
            coefficient,
            exponent,
        };
        assert_eq!(parse(text).normalized(), expected, "{text}");
        assert_eq!(expected.compare(parse(text)), Ordering::Equal);
    };
    check("1", 10u128.pow(33), -33);
    check("1E-6170", 1_000_000, MIN_EXPONENT);
    check("9999999999999999999999999999999999", MAX_COEFFICIENT, 0);
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
