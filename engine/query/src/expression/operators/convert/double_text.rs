//! Text as a double, as C's `strtod` reads it: decimal and hexadecimal digits, infinities, NaN.

/// Why a text is no double.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoDouble {
    NoDigits,
    /// Something stands behind the number.
    Rest,
    /// Its magnitude is too large for a double, or so small that digits are lost.
    OutOfRange,
}

/// Reads the whole of a text that does not begin with a space.
pub(super) fn parse_double(text: &str) -> Result<f64, NoDouble> {
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let magnitude = match rest.get(..2) {
        Some("0x" | "0X") => hexadecimal(&rest[2..]),
        _ if is_nan(rest) => Ok(f64::NAN),
        _ => decimal(rest),
    }?;
    Ok(if negative { -magnitude } else { magnitude })
}

/// `nan`, or `nan(letters)`.
fn is_nan(text: &str) -> bool {
    let Some(rest) = text
        .get(3..)
        .filter(|_| text[..3].eq_ignore_ascii_case("nan"))
    else {
        return false;
    };
    let inner = rest
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'));
    rest.is_empty()
        || inner.is_some_and(|inner| {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            inner.bytes().all(is_letter)
        })
}

fn decimal(text: &str) -> Result<f64, NoDouble> {
    let is_named = |name: &str| text.eq_ignore_ascii_case(name);
    if is_named("inf") || is_named("infinity") {
        return Ok(f64::INFINITY);
    }
    // A second sign, and names, are no digits.
    let begins = |text: &str| {
        text.bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_digit())
    };
    if !begins(text) && !text.strip_prefix('.').is_some_and(begins) {
        return Err(NoDouble::NoDigits);
    }
    let number: f64 = text.parse().map_err(|_| NoDouble::Rest)?;
    let digits = text.split(['e', 'E']).next().unwrap_or_default();
    let is_zero = digits.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    // No shorter text than a subnormal double's own digits, some hundreds, is exact.
    if number.is_infinite() || (!is_zero && number < f64::MIN_POSITIVE) {
        return Err(NoDouble::OutOfRange);
    }
    Ok(number)
}

/// What stands behind `0x`: digits with a point, and an exponent of two.
fn hexadecimal(text: &str) -> Result<f64, NoDouble> {
    let (digits, exponent) = match text.find(['p', 'P']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    // As many bits as a double has and three more: what follows only says whether there is more.
    let (mut kept, mut scale, mut is_more) = (0u64, 0i64, false);
    let (mut seen, mut behind_point) = (false, false);
    for character in digits.chars() {
        match character.to_digit(16) {
            Some(digit) => {
                seen = true;
                if kept >> 56 == 0 {
                    kept = kept << 4 | u64::from(digit);
                    scale -= if behind_point { 4 } else { 0 };
                } else {
                    is_more |= digit != 0;
                    scale += if behind_point { 0 } else { 4 };
                }
            }
            None if character == '.' && !behind_point => behind_point = true,
            None => return Err(NoDouble::Rest),
        }
    }
    // Only the zero of the prefix is a number then.
    if !seen {
        return Err(NoDouble::Rest);
    }
    let exponent: i64 = match exponent {
        None => 0,
        Some(exponent) => {
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(NoDouble::Rest);
            }
            let most = if exponent.starts_with('-') {
                i64::MIN
            } else {
                i64::MAX
            };
            exponent.parse().unwrap_or(most)
        }
    };
    if kept == 0 {
        return Ok(0.0);
    }
    // An odd bit below all that count makes the conversion round as the whole number would.
    let exact = kept << 1 | u64::from(is_more);
    let scale = scale.saturating_add(exponent).saturating_sub(1);
    scaled(exact, scale).ok_or(NoDouble::OutOfRange)
}

/// `whole * 2^scale`, where it is a normal double, or a subnormal one that loses nothing.
fn scaled(whole: u64, scale: i64) -> Option<f64> {
    let top = i64::from(63 - whole.leading_zeros()).saturating_add(scale);
    if !(-1074..=1023).contains(&top) {
        return None;
    }
    // Both factors are powers of two that a double holds; only the last step can round or overflow.
    let half = scale / 2;
    let power = |exponent: i64| 2f64.powi(exponent as i32);
    let number = whole as f64 * power(half) * power(scale - half);
    let is_exact = || {
        let kept = number / power(scale - half) / power(half);
        kept == whole as f64 && kept as u64 == whole
    };
    (number.is_finite() && (number >= f64::MIN_POSITIVE || is_exact())).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<f64, NoDouble>) {
        assert_eq!(
            parse_double(text).map(f64::to_bits),
            expected.map(f64::to_bits),
            "{text}"
        );
    }

    #[test]
    fn decimal_digits() {
        check("1.5", Ok(1.5));
        check("-.5e1", Ok(-5.0));
        check("+5.", Ok(5.0));
        check("-0", Ok(-0.0));
        check("0e-9999", Ok(0.0));
        check("1.7976931348623157e308", Ok(f64::MAX));
        check("1e309", Err(NoDouble::OutOfRange));
        check("1e-400", Err(NoDouble::OutOfRange));
        check("1e-310", Err(NoDouble::OutOfRange));
        check("2.2250738585072014e-308", Ok(f64::MIN_POSITIVE));
        for text in ["", "x", "-", "+-1", ".", "e5"] {
            check(text, Err(NoDouble::NoDigits));
        }
        for text in ["1x", "1e", "1 ", "1.2.3", "1_000"] {
            check(text, Err(NoDouble::Rest));
        }
    }

    #[test]
    fn names() {
        check("Infinity", Ok(f64::INFINITY));
        check("-INF", Ok(f64::NEG_INFINITY));
        for text in ["nan", "NaN", "-nan", "nan(1_a)"] {
            assert!(parse_double(text).is_ok_and(f64::is_nan), "{text}");
        }
        check("nan(", Err(NoDouble::NoDigits));
        check("infinit", Err(NoDouble::NoDigits));
    }

    #[test]
    fn hexadecimal_digits() {
        check("0X1A", Ok(26.0));
        check("-0x1.8p1", Ok(-3.0));
        check("0x.8", Ok(0.5));
        check("0x1p-1074", Ok(5e-324));
        check("0x1p-1075", Err(NoDouble::OutOfRange));
        check("0x1p1024", Err(NoDouble::OutOfRange));
        check("0x1p99999999999999999999", Err(NoDouble::OutOfRange));
        check("0x0p99999999999999999999", Ok(0.0));
        check("0x20000000000001", Ok(9_007_199_254_740_993_f64));
        check("0x200000000000011", Ok(144_115_188_075_855_889_f64));
        check(
            "0x2000000000000100000000000001",
            Ok(649_037_107_316_853_597_681_500_117_008_384_f64),
        );
        for text in ["0x", "0x.", "0x1p", "0x1p+", "0xg", "0x1.2.3"] {
            check(text, Err(NoDouble::Rest));
        }
    }
}
