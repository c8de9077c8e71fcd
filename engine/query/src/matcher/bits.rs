//! The `$bits...` operators.

use pinion_bson::{Decimal, RawBsonRef, RawDocument};
use pinion_wire::Result;

use crate::error::{bad_value, failed_to_parse};
use crate::number::{exact_i64, truncated_i64};
use crate::text::element_text;
use crate::value::{array_document, elements, is_nan, is_number};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BitOp {
    AllSet,
    AllClear,
    AnySet,
    AnyClear,
}

impl BitOp {
    pub(crate) fn name(self) -> &'static str {
        match self {
            BitOp::AllSet => "$bitsAllSet",
            BitOp::AllClear => "$bitsAllClear",
            BitOp::AnySet => "$bitsAnySet",
            BitOp::AnyClear => "$bitsAnyClear",
        }
    }
}

/// Positions to test, in ascending order without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BitTest {
    pub op: BitOp,
    pub positions: Vec<u32>,
}

impl BitTest {
    pub(crate) fn parse(op: BitOp, path: &str, operand: RawBsonRef<'_>) -> Result<BitTest> {
        let mut positions = match operand {
            RawBsonRef::Array(array) => parse_positions(array_document(array))?,
            RawBsonRef::Binary(binary) => set_positions(
                binary_bytes(&binary).flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1)),
            ),
            number if is_number(number) => {
                let element = element_text(op.name(), number);
                if is_nan(number) {
                    return Err(failed_to_parse(format!(
                        "Expected an integer, but found NaN in: {element}"
                    )));
                }
                let mask = exact_i64(number).ok_or_else(|| {
                    // A double with a fraction is distinguished from one out of range; a decimal is
                    // not.
                    let fraction =
                        matches!(number, RawBsonRef::Double(_)) && truncated_i64(number).is_some();
                    failed_to_parse(if fraction {
                        format!("Expected an integer: {element}")
                    } else {
                        format!("Cannot represent as a 64-bit integer: {element}")
                    })
                })?;
                if mask < 0 {
                    return Err(failed_to_parse(format!(
                        "Expected a positive number in: {element}"
                    )));
                }
                set_positions((0..64).map(|bit| mask >> bit & 1 == 1))
            }
            other => {
                let element = element_text(op.name(), other);
                return Err(bad_value(format!(
                    "{path} takes an Array, a number, or a BinData but received: {element}"
                )));
            }
        };
        positions.sort_unstable();
        positions.dedup();
        Ok(BitTest { op, positions })
    }

    pub(crate) fn matches(&self, value: RawBsonRef<'_>) -> bool {
        match value {
            RawBsonRef::Binary(binary) => {
                let bytes: Vec<u8> = binary_bytes(&binary).collect();
                self.test(|position| {
                    bytes
                        .get(position as usize / 8)
                        .is_some_and(|b| b >> (position % 8) & 1 == 1)
                })
            }
            // Only numbers in the range of 64 bits have bits; beyond the last the sign continues.
            number if is_number(number) => match bits_of(number) {
                Some(bits) => self.test(|position| bits >> position.min(63) & 1 == 1),
                None => false,
            },
            _ => false,
        }
    }

    fn test(&self, is_set: impl Fn(u32) -> bool) -> bool {
        let mut positions = self.positions.iter().copied();
        match self.op {
            BitOp::AllSet => positions.all(is_set),
            BitOp::AllClear => positions.all(|p| !is_set(p)),
            BitOp::AnySet => positions.any(is_set),
            BitOp::AnyClear => positions.any(|p| !is_set(p)),
        }
    }
}

/// A number as the integer whose bits are tested: a double must be whole, a decimal is rounded to
/// the nearest even one.
fn bits_of(number: RawBsonRef<'_>) -> Option<i64> {
    let RawBsonRef::Decimal128(value) = number else {
        return exact_i64(number);
    };
    let whole = truncated_i64(number)?;
    let rest = Decimal::unpack(value) - Decimal::from_i64(whole);
    let twice = rest + rest;
    let up = twice.compare(Decimal::from_i64(1));
    let down = twice.compare(Decimal::from_i64(-1));
    let odd = whole % 2 != 0;
    if up.is_gt() || (up.is_eq() && odd) {
        whole.checked_add(1)
    } else if down.is_lt() || (down.is_eq() && odd) {
        whole.checked_sub(1)
    } else {
        Some(whole)
    }
}

/// The payload as stored: the old subtype repeats its length in front.
fn binary_bytes<'a>(binary: &pinion_bson::RawBinaryRef<'a>) -> impl Iterator<Item = u8> + 'a {
    let old = u8::from(binary.subtype) == 2;
    let prefix = if old {
        (binary.bytes.len() as u32).to_le_bytes().to_vec()
    } else {
        Vec::new()
    };
    prefix.into_iter().chain(binary.bytes.iter().copied())
}

fn set_positions(bits: impl Iterator<Item = bool>) -> Vec<u32> {
    bits.enumerate()
        .filter(|(_, set)| *set)
        .map(|(position, _)| position as u32)
        .collect()
}

fn parse_positions(array: &RawDocument) -> Result<Vec<u32>> {
    let mut positions = Vec::new();
    for (name, value) in elements(array) {
        let element = || element_text(name, value);
        if !is_number(value) {
            return Err(bad_value(format!(
                "bit positions must be an integer but got: {}",
                element()
            )));
        }
        let position = match exact_i64(value) {
            Some(position) => position,
            None if truncated_i64(value).is_some() => {
                return Err(bad_value(format!(
                    "bit positions must be an integer but got: {}",
                    element()
                )));
            }
            None => {
                return Err(bad_value(format!(
                    "bit positions cannot be represented as a 32-bit signed integer: {}",
                    element()
                )));
            }
        };
        if position < 0 {
            return Err(bad_value(format!(
                "bit positions must be >= 0 but got: {}",
                element()
            )));
        }
        if position > i64::from(i32::MAX) {
            return Err(bad_value(format!(
                "bit positions cannot be represented as a 32-bit signed integer: {}",
                element()
            )));
        }
        positions.push(position as u32);
    }
    Ok(positions)
}
