//! A seeded generator of values of all types, weighted towards the edges where orders and encodings
//! go wrong.

use bson::oid::ObjectId;
use bson::raw::CString;
use bson::spec::BinarySubtype;
use bson::{Binary, DateTime, RawBson, RawDocumentBuf, Regex, Timestamp};

use crate::builder::DocBuilder;
use crate::decimal::{
    MAX_COEFFICIENT, MAX_EXPONENT, MIN_EXPONENT, Rounding, digit_count, power_of_ten, round_double,
};
use crate::view::{RawElems, View};
use crate::{Decimal, Number};

/// splitmix64: small, seeded, the same everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A stream of its own for each seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// How deep generated documents and arrays nest.
const DEPTH: u32 = 3;

/// A value of any type.
pub fn value(rng: &mut Rng) -> RawBson {
    nested_value(rng, DEPTH)
}

/// A pair of values that are more often close to each other than chance would have it.
pub fn pair(rng: &mut Rng) -> (RawBson, RawBson) {
    let first = value(rng);
    let second = match (Number::from_value(first.as_raw_bson_ref()), rng.below(4)) {
        (_, 0) => value(rng),
        (Some(number), _) => neighbour(rng, number).to_raw_bson(),
        _ => sibling(rng, &first),
    };
    (first, second)
}

/// A pair of numbers that are more often close to each other than chance would have it.
pub fn number_pair(rng: &mut Rng) -> (Number, Number) {
    let first = number(rng);
    let second = if rng.below(2) == 0 {
        number(rng)
    } else {
        neighbour(rng, first)
    };
    (first, second)
}

/// A document with fields of all types.
pub fn document(rng: &mut Rng) -> RawDocumentBuf {
    fields(rng, DEPTH)
}

fn nested_value(rng: &mut Rng, depth: u32) -> RawBson {
    match rng.below(if depth == 0 { 20 } else { 26 }) {
        0..8 => number(rng).to_raw_bson(),
        8..11 => RawBson::String(text(rng)),
        11 => RawBson::Symbol(text(rng)),
        12 => rng
            .pick(&[
                &RawBson::MinKey,
                &RawBson::MaxKey,
                &RawBson::Null,
                &RawBson::Undefined,
            ])
            .clone(),
        13 => binary(rng),
        14 => RawBson::ObjectId(ObjectId::from_bytes(object_id(rng))),
        15 => RawBson::Boolean(rng.below(2) == 0),
        16 => RawBson::DateTime(DateTime::from_millis(integer(rng))),
        17 => {
            let word = integer(rng) as u64;
            RawBson::Timestamp(Timestamp {
                time: (word >> 32) as u32,
                increment: word as u32,
            })
        }
        18 => RawBson::RegularExpression(Regex {
            pattern: cstring(rng),
            options: cstring(rng),
        }),
        19 => match rng.below(3) {
            0 => db_pointer(rng),
            1 => RawBson::JavaScriptCode(text(rng)),
            _ => RawBson::JavaScriptCodeWithScope(bson::raw::RawJavaScriptCodeWithScope {
                code: text(rng),
                scope: fields(rng, depth.saturating_sub(1)),
            }),
        },
        20..23 => RawBson::Document(fields(rng, depth - 1)),
        _ => {
            let mut array = bson::RawArrayBuf::new();
            for _ in 0..rng.below(4) {
                array.push(nested_value(rng, depth - 1));
            }
            RawBson::Array(array)
        }
    }
}

/// A value of the same type as another.
fn sibling(rng: &mut Rng, of: &RawBson) -> RawBson {
    for _ in 0..64 {
        let other = value(rng);
        if other.element_type() == of.element_type() {
            return other;
        }
    }
    of.clone()
}

fn fields(rng: &mut Rng, depth: u32) -> RawDocumentBuf {
    let mut builder = DocBuilder::new();
    for _ in 0..rng.below(4) {
        let name = rng.pick(&["", "a", "b", "ab", "\u{1}", "é"]);
        // A name twice in a document has no defined meaning.
        if !builder.contains(name) {
            builder.append_raw(name, nested_value(rng, depth).as_raw_bson_ref());
        }
    }
    builder.finish()
}

fn text(rng: &mut Rng) -> String {
    (0..rng.below(5))
        .map(|_| {
            rng.pick(&[
                "\0",
                "\u{1}",
                "a",
                "b",
                "\u{7f}",
                "é",
                "\u{ffff}",
                "\u{10ffff}",
                "long piece",
            ])
        })
        .collect()
}

fn cstring(rng: &mut Rng) -> CString {
    CString::try_from(text(rng).replace('\0', "")).expect("no NUL is left")
}

fn object_id(rng: &mut Rng) -> [u8; 12] {
    let mut id = [rng.pick(&[0, 1, 127, 128, 255]); 12];
    id[rng.below(12) as usize] = rng.next_u64() as u8;
    id
}

fn binary(rng: &mut Rng) -> RawBson {
    let len = rng.pick(&[0, 1, 2, 3, 4, 5, 250, 251, 254, 255, 256, 300]);
    let fill = rng.pick(&[0, 1, 255]);
    let mut bytes = vec![fill; len];
    if let Some(last) = bytes.last_mut() {
        *last = rng.next_u64() as u8;
    }
    let subtype = BinarySubtype::from(rng.pick(&[0u8, 1, 2, 3, 4, 5, 9, 127, 128, 255]));
    RawBson::Binary(Binary { subtype, bytes })
}

fn db_pointer(rng: &mut Rng) -> RawBson {
    let mut builder = DocBuilder::new();
    // MongoDB takes the namespace of a DBPointer to end at its first NUL, so one with a NUL has no
    // order to compare.
    let namespace = cstring(rng);
    let namespace = namespace.as_str().as_bytes();
    builder.append_view(
        "p",
        View::DbPointer {
            namespace,
            id: object_id(rng),
        },
    );
    let document = builder.finish();
    let elem = RawElems::new(document.as_bytes())
        .next()
        .expect("one field was written");
    elem.to_value().expect("it was written well-formed").into()
}

/// An integer near a power of two, near a power of ten, or anywhere.
fn integer(rng: &mut Rng) -> i64 {
    let base = match rng.below(4) {
        0 => rng.below(300) as i64,
        1 => 1i64.wrapping_shl(rng.below(64) as u32),
        2 => 10i64.pow(rng.below(19) as u32),
        _ => rng.next_u64() as i64 >> rng.below(64),
    };
    let near = base.wrapping_add(rng.pick(&[0, 0, 1, -1, 2, -2]));
    if rng.below(2) == 0 {
        near
    } else {
        near.wrapping_neg()
    }
}

fn double(rng: &mut Rng) -> f64 {
    let base = match rng.below(8) {
        0 => rng.pick(&[
            0.0,
            f64::NAN,
            f64::INFINITY,
            f64::MAX,
            f64::MIN_POSITIVE,
            5e-324,
            0.1,
            0.5,
            1e22,
            1e23,
        ]),
        1 => integer(rng) as f64,
        2 => integer(rng) as f64 / rng.pick(&[2.0, 4.0, 1024.0, 10.0, 1e6, 1e15]),
        3 => 2f64.powi(rng.below(2100) as i32 - 1075),
        4 => f64::from_bits(rng.below(1 << 52)),
        5 => rng.below(1_000_000) as f64 / rng.pick(&[100.0, 1e4, 1e9]),
        _ => f64::from_bits(rng.next_u64()),
    };
    let near = match rng.below(4) {
        0 => base.next_up(),
        1 => base.next_down(),
        _ => base,
    };
    if rng.below(2) == 0 { near } else { -near }
}

fn number(rng: &mut Rng) -> Number {
    match rng.below(4) {
        0 => Number::Int32(integer(rng) as i32),
        1 => Number::Int64(integer(rng)),
        2 => Number::Double(double(rng)),
        _ => Number::Decimal(decimal(rng).pack()),
    }
}

fn decimal(rng: &mut Rng) -> Decimal {
    let any = match rng.below(6) {
        0 => rng.pick(&[
            Decimal::Nan,
            Decimal::Infinity { negative: false },
            Decimal::ZERO,
        ]),
        1 => Decimal::from_i64(integer(rng)),
        2 | 3 => {
            let near = double(rng);
            from_double(rng, near)
        }
        4 => Decimal::Finite {
            negative: false,
            coefficient: u128::from(rng.next_u64()) % 10u128.pow(1 + rng.below(18) as u32),
            exponent: rng.below(40) as i32 - 30,
        },
        _ => Decimal::Finite {
            negative: false,
            coefficient: (u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()))
                % power_of_ten(1 + rng.below(34) as u32),
            exponent: match rng.below(3) {
                0 => rng.below(12288) as i32 + MIN_EXPONENT,
                1 => rng.pick(&[
                    MIN_EXPONENT,
                    MIN_EXPONENT + 1,
                    MAX_EXPONENT,
                    -358,
                    -341,
                    -324,
                    -308,
                    275,
                    308,
                ]),
                _ => rng.below(80) as i32 - 60,
            },
        },
    };
    let any = nudged(rng, any);
    if rng.below(2) == 0 { any } else { -any }
}

/// A decimal at or near a double.
fn from_double(rng: &mut Rng, x: f64) -> Decimal {
    if x == 0.0 || !x.is_finite() {
        return Decimal::from_f64_15(x);
    }
    let digits = rng.pick(&[34, 34, 33, 20, 17, 16, 15, 14, 5]);
    let rounding = rng.pick(&[
        Rounding::HalfEven,
        Rounding::TowardZero,
        Rounding::AwayFromZero,
    ]);
    let (coefficient, exponent) = round_double(x.abs(), digits, rounding);
    Decimal::Finite {
        negative: x < 0.0,
        coefficient,
        exponent,
    }
}

/// A unit more or less in the last place, and trailing zeros more or fewer.
fn nudged(rng: &mut Rng, decimal: Decimal) -> Decimal {
    let Decimal::Finite {
        negative,
        mut coefficient,
        mut exponent,
    } = decimal
    else {
        return decimal;
    };
    match rng.below(4) {
        0 => coefficient = (coefficient + 1).min(MAX_COEFFICIENT),
        1 => coefficient = coefficient.saturating_sub(1),
        _ => {}
    }
    match rng.below(3) {
        0 => {
            let room =
                u64::from(34 - digit_count(coefficient)).min((exponent - MIN_EXPONENT) as u64);
            let zeros = rng.below(room + 1) as u32;
            coefficient *= power_of_ten(zeros);
            exponent -= zeros as i32;
        }
        1 => {
            while coefficient != 0 && coefficient.is_multiple_of(10) && exponent < MAX_EXPONENT {
                coefficient /= 10;
                exponent += 1;
            }
        }
        _ => {}
    }
    Decimal::Finite {
        negative,
        coefficient,
        exponent,
    }
}

/// A number of any type at or next to another.
fn neighbour(rng: &mut Rng, number: Number) -> Number {
    match rng.below(5) {
        0 => Number::Double(number.to_f64()),
        1 => {
            let double = number.to_f64();
            Number::Double(if rng.below(2) == 0 {
                double.next_up()
            } else {
                double.next_down()
            })
        }
        2 => {
            let integer = number
                .to_i64_saturating()
                .wrapping_add(rng.pick(&[0, 1, -1]));
            i32::try_from(integer).map_or(Number::Int64(integer), Number::Int32)
        }
        3 => match number {
            Number::Double(x) => {
                let near = from_double(rng, x);
                Number::Decimal(nudged(rng, near).pack())
            }
            other => {
                let near = nudged(rng, other.to_decimal());
                Number::Decimal(near.pack())
            }
        },
        _ => Number::Decimal(number.to_decimal().pack()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cmp::Ordering;
    use std::collections::BTreeSet;

    #[test]
    fn every_type_is_generated_and_pairs_are_close() {
        let mut rng = Rng::new(1);
        let mut kinds = BTreeSet::new();
        let mut orders = [0; 3];
        for _ in 0..20_000 {
            let (a, b) = pair(&mut rng);
            kinds.insert(a.element_type() as u8);
            let order = crate::compare_values(a.as_raw_bson_ref(), b.as_raw_bson_ref());
            orders[(order as i8 + 1) as usize] += 1;
        }
        assert_eq!(kinds.len(), 21);
        assert!(orders.iter().all(|&n| n > 1000), "{orders:?}");
    }

    #[test]
    fn the_order_is_total() {
        let mut rng = Rng::new(2);
        for _ in 0..20_000 {
            let (a, b) = pair(&mut rng);
            let c = value(&mut rng);
            let order = |x: &RawBson, y: &RawBson| {
                crate::compare_values(x.as_raw_bson_ref(), y.as_raw_bson_ref())
            };
            assert_eq!(order(&a, &a), Ordering::Equal);
            assert_eq!(order(&a, &b), order(&b, &a).reverse(), "{a:?} {b:?}");
            let mut three = [a, b, c];
            three.sort_by(order);
            assert!(order(&three[0], &three[2]).is_le(), "{three:?}");
        }
    }

    #[test]
    fn generated_documents_are_valid() {
        let mut rng = Rng::new(3);
        for _ in 0..2_000 {
            let document = document(&mut rng);
            assert!(crate::validate(document.as_bytes()).is_ok(), "{document:?}");
        }
    }
}
