//! Exact comparison of a decimal number with a double, whose common scale needs up to a thousand
//! bits.

use core::cmp::Ordering;

/// The widest product is that of the smallest doubles: 53 bits times 5^358.
const LIMBS: usize = 16;
/// The largest power of five that fits a limb is 5^27.
const STEP: u32 = 27;
const FIVE_TO_STEP: u64 = 5u64.pow(STEP);

/// Orders `coefficient * 10^exponent` and a positive finite double.
///
/// # Panics
/// When the two are so far apart that the exponents alone decide (beyond 10^±360).
pub(crate) fn compare_with_double(coefficient: u128, exponent: i32, double: f64) -> Ordering {
    assert!(coefficient != 0 && double > 0.0 && double.is_finite());
    assert!(
        (-360..=310).contains(&exponent),
        "10^{exponent} is outside the doubles"
    );
    let (mantissa, binary_exponent) = split_double(double);
    // 10^e is 5^e 2^e; the side that has it in its denominator gives it to the other as a factor.
    let (left_fives, right_fives) = if exponent >= 0 {
        (exponent as u32, 0)
    } else {
        (0, exponent.unsigned_abs())
    };
    let shift = binary_exponent - exponent;
    let small = |value: u128, fives: u32| {
        (fives <= STEP).then(|| value.checked_mul(u128::from(5u64.pow(fives))))?
    };
    if let (Some(left), Some(right)) = (
        small(coefficient, left_fives),
        small(u128::from(mantissa), right_fives),
    ) {
        return compare_scaled(left, right, shift);
    }
    let left = Wide::product(coefficient, left_fives);
    let right = Wide::product(u128::from(mantissa), right_fives);
    left.compare_scaled(&right, shift)
}

/// The double as `mantissa * 2^exponent`.
pub(crate) fn split_double(double: f64) -> (u64, i32) {
    let bits = double.to_bits();
    let fraction = bits & ((1 << 52) - 1);
    match (bits >> 52 & 0x7ff) as i32 {
        0 => (fraction, -1074),
        biased => (fraction | 1 << 52, biased - 1075),
    }
}

/// Orders `left` and `right * 2^shift`, neither of them zero.
fn compare_scaled(left: u128, right: u128, shift: i32) -> Ordering {
    let length = |n: u128| 128 - n.leading_zeros() as i32;
    let tops = length(left).cmp(&(length(right) + shift));
    if tops.is_ne() {
        return tops;
    }
    // With the highest bits at one place, shifting the shorter number to the longer one loses
    // nothing.
    if shift >= 0 {
        left.cmp(&(right << shift))
    } else {
        (left << -shift).cmp(&right)
    }
}

/// A wide unsigned integer, least significant limb first.
struct Wide([u64; LIMBS]);

impl Wide {
    /// `value * 5^fives`.
    fn product(value: u128, mut fives: u32) -> Wide {
        let mut wide = Wide([0; LIMBS]);
        wide.0[0] = value as u64;
        wide.0[1] = (value >> 64) as u64;
        while fives >= STEP {
            wide.multiply(FIVE_TO_STEP);
            fives -= STEP;
        }
        wide.multiply(5u64.pow(fives));
        wide
    }

    fn multiply(&mut self, factor: u64) {
        let mut carry = 0u128;
        for limb in &mut self.0 {
            let product = u128::from(*limb) * u128::from(factor) + carry;
            *limb = product as u64;
            carry = product >> 64;
        }
        assert_eq!(carry, 0, "the product fits");
    }

    /// The number of significant bits.
    fn length(&self) -> i32 {
        let top = self.0.iter().rposition(|&l| l != 0).unwrap_or(0);
        (top as i32 + 1) * 64 - self.0[top].leading_zeros() as i32
    }

    fn shifted_left(&self, bits: u32) -> Wide {
        let (limbs, bits) = (bits as usize / 64, bits % 64);
        let mut shifted = Wide([0; LIMBS]);
        for i in (limbs..LIMBS).rev() {
            let low = if bits == 0 || i == limbs {
                0
            } else {
                self.0[i - limbs - 1] >> (64 - bits)
            };
            shifted.0[i] = self.0[i - limbs] << bits | low;
        }
        shifted
    }

    /// Orders this and `other * 2^shift`.
    fn compare_scaled(&self, other: &Wide, shift: i32) -> Ordering {
        let tops = self.length().cmp(&(other.length() + shift));
        if tops.is_ne() {
            return tops;
        }
        let ordered = |a: &Wide, b: &Wide| a.0.iter().rev().cmp(b.0.iter().rev());
        if shift >= 0 {
            ordered(self, &other.shifted_left(shift.unsigned_abs()))
        } else {
            ordered(&self.shifted_left(shift.unsigned_abs()), other)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exact decimal digits of a double, as many as a coefficient takes, and whether they are
    /// all.
    fn leading_digits(double: f64) -> (u128, i32, bool) {
        let text = format!("{double:.1100}");
        let digits: String = text.chars().filter(|c| *c != '.').collect();
        let point = text.find('.').expect("a point") as i32;
        let start = digits.find(|c| c != '0').expect("not zero");
        let (head, tail) = digits[start..].split_at(34.min(digits.len() - start));
        let exponent = point - start as i32 - head.len() as i32;
        (
            head.parse().expect("digits"),
            exponent,
            tail.chars().all(|c| c == '0'),
        )
    }

    #[test]
    fn agrees_with_the_exact_digits() {
        let mut doubles = vec![
            1.0,
            0.1,
            1e22,
            1e23,
            5e-324,
            1e-310,
            2.2250738585072014e-308,
            f64::MAX,
            0.5,
            123.456,
            1e300,
            9007199254740993.0,
        ];
        doubles.extend((-1074..1024).step_by(7).map(|e| 2f64.powi(e)));
        for double in doubles.into_iter().filter(|d| *d > 0.0) {
            let (coefficient, exponent, exact) = leading_digits(double);
            let expected = if exact {
                Ordering::Equal
            } else {
                Ordering::Less
            };
            assert_eq!(
                compare_with_double(coefficient, exponent, double),
                expected,
                "{double:e}"
            );
            assert_eq!(
                compare_with_double(coefficient + 1, exponent, double),
                Ordering::Greater,
                "{double:e}"
            );
            assert_eq!(
                compare_with_double(coefficient - 1, exponent, double),
                Ordering::Less,
                "{double:e}"
            );
        }
    }
}
