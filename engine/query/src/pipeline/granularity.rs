//! The series of numbers that `$bucketAuto` rounds boundaries to.

use pinion_bson::Number;
use pinion_bson::decimal::Decimal;

/// A `granularity`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Granularity {
    /// Preferred numbers: these, and these times powers of ten.
    Series(&'static [u16]),
    PowersOfTwo,
}

const R5: &[u16] = &[10, 16, 25, 40, 63];
const R10: &[u16] = &[100, 125, 160, 200, 250, 315, 400, 500, 630, 800];
const R20: &[u16] = &[
    100, 112, 125, 140, 160, 180, 200, 224, 250, 280, 315, 355, 400, 450, 500, 560, 630, 710, 800,
    900,
];
const R40: &[u16] = &[
    100, 106, 112, 118, 125, 132, 140, 150, 160, 170, 180, 190, 200, 212, 224, 236, 250, 265, 280,
    300, 315, 335, 355, 375, 400, 425, 450, 475, 500, 530, 560, 600, 630, 670, 710, 750, 800, 850,
    900, 950,
];
const R80: &[u16] = &[
    103, 109, 115, 122, 128, 136, 145, 155, 165, 175, 185, 195, 206, 218, 230, 243, 258, 272, 290,
    307, 325, 345, 365, 387, 412, 437, 462, 487, 515, 545, 575, 615, 650, 690, 730, 775, 825, 875,
    925, 975,
];
const ONE_TWO_FIVE: &[u16] = &[10, 20, 50];
const E6: &[u16] = &[10, 15, 22, 33, 47, 68];
const E12: &[u16] = &[10, 12, 15, 18, 22, 27, 33, 39, 47, 56, 68, 82];
const E24: &[u16] = &[
    10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91,
];
const E48: &[u16] = &[
    100, 105, 110, 115, 121, 127, 133, 140, 147, 154, 162, 169, 178, 187, 196, 205, 215, 226, 237,
    249, 261, 274, 287, 301, 316, 332, 348, 365, 383, 402, 422, 442, 464, 487, 511, 536, 562, 590,
    619, 649, 681, 715, 750, 787, 825, 866, 909, 953,
];
const E96: &[u16] = &[
    100, 102, 105, 107, 110, 113, 115, 118, 121, 124, 127, 130, 133, 137, 140, 143, 147, 150, 154,
    158, 162, 165, 169, 174, 178, 182, 187, 191, 196, 200, 205, 210, 215, 221, 226, 232, 237, 243,
    249, 255, 261, 267, 274, 280, 287, 294, 301, 309, 316, 324, 332, 340, 348, 357, 365, 374, 383,
    392, 402, 412, 422, 432, 442, 453, 464, 475, 487, 499, 511, 523, 536, 549, 562, 576, 590, 604,
    619, 634, 649, 665, 681, 698, 715, 732, 750, 768, 787, 806, 825, 845, 866, 887, 909, 931, 953,
    976,
];
const E192: &[u16] = &[
    100, 101, 102, 104, 105, 106, 107, 109, 110, 111, 113, 114, 115, 117, 118, 120, 121, 123, 124,
    126, 127, 129, 130, 132, 133, 135, 137, 138, 140, 142, 143, 145, 147, 149, 150, 152, 154, 156,
    158, 160, 162, 164, 165, 167, 169, 172, 174, 176, 178, 180, 182, 184, 187, 189, 191, 193, 196,
    198, 200, 203, 205, 208, 210, 213, 215, 218, 221, 223, 226, 229, 232, 234, 237, 240, 243, 246,
    249, 252, 255, 258, 261, 264, 267, 271, 274, 277, 280, 284, 287, 291, 294, 298, 301, 305, 309,
    312, 316, 320, 324, 328, 332, 336, 340, 344, 348, 352, 357, 361, 365, 370, 374, 379, 383, 388,
    392, 397, 402, 407, 412, 417, 422, 427, 432, 437, 442, 448, 453, 459, 464, 470, 475, 481, 487,
    493, 499, 505, 511, 517, 523, 530, 536, 542, 549, 556, 562, 569, 576, 583, 590, 597, 604, 612,
    619, 626, 634, 642, 649, 657, 665, 673, 681, 690, 698, 706, 715, 723, 732, 741, 750, 759, 768,
    777, 787, 796, 806, 816, 825, 835, 845, 856, 866, 876, 887, 898, 909, 920, 931, 942, 953, 965,
    976, 988,
];

/// Arithmetic that series need, of doubles and of decimals.
trait Scaled: Copy {
    fn from_series(number: u16) -> Self;
    fn times_ten(self) -> Self;
    fn tenth(self) -> Self;
    fn times(self, other: Self) -> Self;
    fn below(self, other: Self) -> bool;
}

impl Scaled for f64 {
    fn from_series(number: u16) -> f64 {
        f64::from(number)
    }

    fn times_ten(self) -> f64 {
        self * 10.0
    }

    fn tenth(self) -> f64 {
        self / 10.0
    }

    fn times(self, other: f64) -> f64 {
        self * other
    }

    fn below(self, other: f64) -> bool {
        self < other
    }
}

impl Scaled for Decimal {
    fn from_series(number: u16) -> Decimal {
        Decimal::from_i64(i64::from(number))
    }

    fn times_ten(self) -> Decimal {
        self * Decimal::from_i64(10)
    }

    fn tenth(self) -> Decimal {
        self / Decimal::from_i64(10)
    }

    fn times(self, other: Decimal) -> Decimal {
        self * other
    }

    fn below(self, other: Decimal) -> bool {
        self.compare(other).is_lt()
    }
}

impl Granularity {
    /// The granularity of this name.
    pub(super) fn find(name: &str) -> Option<Granularity> {
        Some(Granularity::Series(match name {
            "R5" => R5,
            "R10" => R10,
            "R20" => R20,
            "R40" => R40,
            "R80" => R80,
            "1-2-5" => ONE_TWO_FIVE,
            "E6" => E6,
            "E12" => E12,
            "E24" => E24,
            "E48" => E48,
            "E96" => E96,
            "E192" => E192,
            "POWERSOF2" => return Some(Granularity::PowersOfTwo),
            _ => return None,
        }))
    }

    /// The next number of the series above one that is not negative; zero and infinity stay.
    pub(super) fn round_up(self, number: Number) -> Number {
        if number.is_zero() || !number.is_finite() {
            return number;
        }
        match (self, number) {
            (Granularity::Series(series), Number::Decimal(v)) => {
                let up = above(series, Decimal::unpack(v), Decimal::from_i64(1));
                Number::Decimal(up.pack())
            }
            (Granularity::Series(series), number) => {
                Number::Double(above(series, number.to_f64(), 1.0))
            }
            (Granularity::PowersOfTwo, Number::Decimal(v)) => {
                let number = Decimal::unpack(v);
                let (one, two) = (Decimal::from_i64(1), Decimal::from_i64(2));
                let mut power = one;
                while !number.below(power) {
                    power = power * two;
                }
                while number.below(power / two) {
                    power = power / two;
                }
                Number::Decimal(power.pack())
            }
            (Granularity::PowersOfTwo, number) => {
                power_of_two(number.to_f64().log2().floor() as i32 + 1)
            }
        }
    }

    /// The last number of the series below one that is not negative; zero and infinity stay.
    pub(super) fn round_down(self, number: Number) -> Number {
        if number.is_zero() || !number.is_finite() {
            return number;
        }
        match (self, number) {
            (Granularity::Series(series), Number::Decimal(v)) => {
                let down = below(series, Decimal::unpack(v), Decimal::from_i64(1));
                Number::Decimal(down.pack())
            }
            (Granularity::Series(series), number) => {
                Number::Double(below(series, number.to_f64(), 1.0))
            }
            (Granularity::PowersOfTwo, Number::Decimal(v)) => {
                let number = Decimal::unpack(v);
                let (one, two) = (Decimal::from_i64(1), Decimal::from_i64(2));
                let mut power = one;
                while !power.below(number) {
                    power = power / two;
                }
                while (power * two).below(number) {
                    power = power * two;
                }
                Number::Decimal(power.pack())
            }
            (Granularity::PowersOfTwo, number) => {
                power_of_two(number.to_f64().log2().ceil() as i32 - 1)
            }
        }
    }
}

/// The least number of the series above this one.
fn above<T: Scaled>(series: &[u16], number: T, one: T) -> T {
    let (first, last): (T, T) = ends(series);
    let mut scale = one;
    while !number.below(first.times(scale).times_ten()) {
        scale = scale.times_ten();
    }
    while number.below(first.times(scale)) {
        let next = scale.tenth();
        if !number.below(last.times(next)) {
            // It lies between the last of the smaller numbers and the first of these.
            return first.times(scale);
        }
        scale = next;
    }
    series
        .iter()
        .map(|number| T::from_series(*number).times(scale))
        .find(|candidate| number.below(*candidate))
        .unwrap_or_else(|| first.times(scale.times_ten()))
}

/// The greatest number of the series below this one.
fn below<T: Scaled>(series: &[u16], number: T, one: T) -> T {
    let (first, last): (T, T) = ends(series);
    let mut scale = one;
    while !first.times(scale).below(number) {
        scale = scale.tenth();
    }
    while last.times(scale).below(number) {
        let next = scale.times_ten();
        if !first.times(next).below(number) {
            return last.times(scale);
        }
        scale = next;
    }
    series
        .iter()
        .rev()
        .map(|number| T::from_series(*number).times(scale))
        .find(|candidate| candidate.below(number))
        .unwrap_or_else(|| last.times(scale.tenth()))
}

fn ends<T: Scaled>(series: &[u16]) -> (T, T) {
    let of = |number: Option<&u16>| T::from_series(number.copied().unwrap_or(10));
    (of(series.first()), of(series.last()))
}

/// A power of two, as an integer where it is one.
fn power_of_two(exponent: i32) -> Number {
    match exponent {
        0..=30 => Number::Int32(1 << exponent),
        31..=62 => Number::Int64(1 << exponent),
        _ => Number::Double(2.0_f64.powi(exponent)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, number: Number, down: Number, up: Number) {
        let granularity = Granularity::find(name).expect("a granularity");
        let found = (granularity.round_down(number), granularity.round_up(number));
        let text = |number: Number| format!("{:?}", number.to_raw_bson());
        assert_eq!(text(found.0), text(down), "{name} down {number:?}");
        assert_eq!(text(found.1), text(up), "{name} up {number:?}");
    }

    #[test]
    fn series() {
        let (int, double) = (Number::Int32, Number::Double);
        check("R5", int(1), double(0.63), double(1.6));
        check("R5", double(1.6), double(1.0), double(2.5));
        check("R5", double(0.05), double(0.04), double(0.063));
        check("R5", int(65), double(63.0), double(100.0));
        check("R5", int(1000), double(630.0), double(1600.0));
        check("1-2-5", int(1), double(0.5), double(2.0));
        check("1-2-5", int(7), double(5.0), double(10.0));
        check("E6", int(1), double(0.68), double(1.5));
        check("E192", int(989), double(988.0), double(1000.0));
        check("R80", int(100), double(97.5), double(103.0));
        let decimal = |text: &str| Number::Decimal(text.parse().expect("a decimal"));
        check("R5", decimal("1"), decimal("0.63"), decimal("1.6"));
        check("POWERSOF2", decimal("5"), decimal("4"), decimal("8"));
        check("POWERSOF2", decimal("0.5"), decimal("0.25"), decimal("1"));
    }

    #[test]
    fn powers_of_two() {
        let (int, double) = (Number::Int32, Number::Double);
        check("POWERSOF2", int(1), double(0.5), int(2));
        check("POWERSOF2", int(10), int(8), int(16));
        check(
            "POWERSOF2",
            double(1e12),
            Number::Int64(1 << 39),
            Number::Int64(1 << 40),
        );
        check(
            "POWERSOF2",
            double(1e300),
            double(2.0_f64.powi(996)),
            double(2.0_f64.powi(997)),
        );
    }

    #[test]
    fn zero_and_infinity_stay() {
        for name in ["R5", "POWERSOF2"] {
            for number in [Number::Int32(0), Number::Double(f64::INFINITY)] {
                check(name, number, number, number);
            }
        }
        assert_eq!(Granularity::find("R6"), None);
    }

    #[test]
    fn all_series_ascend_within_a_power_of_ten() {
        for name in [
            "R5", "R10", "R20", "R40", "R80", "1-2-5", "E6", "E12", "E24", "E48", "E96", "E192",
        ] {
            let Some(Granularity::Series(series)) = Granularity::find(name) else {
                panic!("{name} is a series");
            };
            assert!(series.is_sorted_by(|a, b| a < b), "{name}");
            assert!(series[series.len() - 1] < 10 * series[0], "{name}");
        }
    }
}
