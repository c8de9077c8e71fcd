//! Conversion between decimals and doubles, rounded exactly as asked.

use core::cmp::Ordering;
use core::fmt::Write;

use super::{MAX_DIGITS, Rounding, power_of_ten};
use crate::exact::compare_with_double;

/// The digits of a positive finite double, rounded to exactly `digits` of them, and the exponent of
/// the last one.
///
/// # Panics
/// When the double is not positive and finite, or `digits` is not between 1 and 34.
pub fn round_double(x: f64, digits: u32, rounding: Rounding) -> (u128, i32) {
    assert!(x > 0.0 && x.is_finite() && (1..=MAX_DIGITS).contains(&digits));
    let mut text = StackText::default();
    // One digit, the point, the others, and the exponent: exact and rounded half to even.
    write!(text, "{:.*e}", digits as usize - 1, x)
        .expect("the buffer holds 34 digits and an exponent");
    let mut coefficient = 0u128;
    let mut bytes = text.as_bytes().iter();
    for &b in bytes.by_ref() {
        match b {
            b'0'..=b'9' => coefficient = coefficient * 10 + u128::from(b - b'0'),
            b'e' => break,
            _ => {}
        }
    }
    let exponent: i32 = core::str::from_utf8(bytes.as_slice())
        .ok()
        .and_then(|e| e.parse().ok())
        .expect("the exponent was written by the formatter");
    let mut exponent = exponent - (digits as i32 - 1);
    let upward = matches!(rounding, Rounding::AwayFromZero | Rounding::Ceiling);
    if rounding != Rounding::HalfEven {
        match compare_with_double(coefficient, exponent, x) {
            Ordering::Less if upward => coefficient += 1,
            Ordering::Greater if !upward => coefficient -= 1,
            _ => {}
        }
        if coefficient == power_of_ten(digits) {
            (coefficient, exponent) = (coefficient / 10, exponent + 1);
        } else if coefficient < power_of_ten(digits - 1) {
            (coefficient, exponent) = (power_of_ten(digits) - 1, exponent - 1);
        }
    }
    (coefficient, exponent)
}

/// The double nearest to `coefficient * 10^exponent`, ties to even.
pub(super) fn nearest_double(coefficient: u128, exponent: i32) -> f64 {
    if coefficient < 1 << 53 && exponent.unsigned_abs() < EXACT_POWERS.len() as u32 {
        // Both operands are exact, so the one operation rounds correctly.
        let power = EXACT_POWERS[exponent.unsigned_abs() as usize];
        let coefficient = coefficient as f64;
        return if exponent < 0 {
            coefficient / power
        } else {
            coefficient * power
        };
    }
    let mut text = StackText::default();
    write!(text, "{coefficient}e{exponent}").expect("the buffer holds 34 digits and an exponent");
    core::str::from_utf8(text.as_bytes())
        .ok()
        .and_then(|t| t.parse().ok())
        .expect("digits with an exponent are a number")
}

/// The powers of ten that are doubles.
static EXACT_POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// The double next to `coefficient * 10^exponent` towards zero, and whether it is the number
/// itself.
pub(super) fn truncate_to_double(coefficient: u128, exponent: i32) -> (f64, bool) {
    let nearest = nearest_double(coefficient, exponent);
    if nearest == f64::INFINITY {
        return (f64::MAX, false);
    }
    if nearest == 0.0 {
        return (0.0, false);
    }
    match compare_with_double(coefficient, exponent, nearest) {
        Ordering::Equal => (nearest, true),
        Ordering::Greater => (nearest, false),
        Ordering::Less => (nearest.next_down(), false),
    }
}

/// Text of bounded length without an allocation.
struct StackText {
    bytes: [u8; 48],
    len: usize,
}

impl Default for StackText {
    fn default() -> StackText {
        StackText {
            bytes: [0; 48],
            len: 0,
        }
    }
}

impl StackText {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Write for StackText {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let end = self.len + s.len();
        self.bytes
            .get_mut(self.len..end)
            .ok_or(core::fmt::Error)?
            .copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}
