//! The update operators: their operands and what they do to one value.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use pinion_bson::{DateTime, Number, RawBson, RawBsonRef, Timestamp};
use pinion_wire::Result;

use super::apply::Applying;
use super::array::{AddToSet, Pull, Push};
use super::tree::Slot;
use crate::collation::{Ordered, compare_owned};
use crate::error::{bad_value, type_mismatch};
use crate::number::exact_i64;
use crate::text::element_text;

/// One operator at one path.
#[derive(Clone, Debug)]
pub(super) enum Operator {
    Set(RawBson),
    SetOnInsert(RawBson),
    Unset,
    Inc(Number),
    Mul(Number),
    Min(RawBson),
    Max(RawBson),
    CurrentDate {
        timestamp: bool,
    },
    Bit(Vec<(BitOp, Number)>),
    /// The value at this path moves to the operator's own.
    RenameFrom(Box<str>),
    /// Stands at the path a rename takes its value from; the rename itself removes it.
    RenameSource,
    /// A path whose `$` the filter's match has not resolved: it fails where it is reached.
    Unresolved,
    Push(Push),
    AddToSet(AddToSet),
    Pop {
        first: bool,
    },
    Pull(Pull),
    PullAll(Vec<RawBson>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BitOp {
    And,
    Or,
    Xor,
}

impl Operator {
    /// Whether the operator makes a field that does not exist.
    pub(super) fn creates(&self) -> bool {
        !matches!(
            self,
            Operator::Unset
                | Operator::RenameSource
                | Operator::Pop { .. }
                | Operator::Pull(_)
                | Operator::PullAll(_)
        )
    }

    /// Whether it adds items at the end of an array and does nothing else.
    pub(super) fn appends(&self) -> bool {
        matches!(self, Operator::Push(push) if push.appends())
    }

    /// Whether a path that cannot exist is passed over in silence.
    pub(super) fn ignores_unviable_paths(&self) -> bool {
        matches!(self, Operator::Unset | Operator::RenameSource)
    }

    /// The value of a field that does not exist yet; `None` where none is made.
    pub(super) fn create(&self, context: &Applying<'_>) -> Result<Option<RawBson>> {
        Ok(Some(match self {
            Operator::Set(value) | Operator::Min(value) | Operator::Max(value) => value.clone(),
            Operator::SetOnInsert(value) if context.insert => value.clone(),
            Operator::Unresolved => return Err(unresolved()),
            Operator::SetOnInsert(_)
            | Operator::Unset
            | Operator::RenameSource
            | Operator::RenameFrom(_)
            | Operator::Pop { .. }
            | Operator::Pull(_)
            | Operator::PullAll(_) => return Ok(None),
            Operator::Inc(by) => by.to_raw_bson(),
            #[cfg(feature = "planted")]
            Operator::Mul(_)
                if pinion_bson::planted::is_planted(
                    pinion_bson::planted::Planted::UpdateOperator,
                ) =>
            {
                RawBson::Int32(0)
            }
            // Zero of the operand's type, with its sign; NaN where it is infinite.
            Operator::Mul(by) => by
                .checked_mul(Number::Int32(0))
                .unwrap_or(Number::Int32(0))
                .to_raw_bson(),
            Operator::CurrentDate { timestamp } => now(*timestamp, context),
            Operator::Bit(operations) => apply_bits(Number::Int32(0), operations).to_raw_bson(),
            Operator::Push(push) => push.apply(Vec::new(), context.collation)?,
            Operator::AddToSet(add) => add.apply(Vec::new(), context.collation),
        }))
    }

    /// Whether it writes the cluster's time.
    pub(super) fn makes_timestamp(&self) -> bool {
        matches!(self, Operator::CurrentDate { timestamp: true })
    }

    /// Changes a value that exists. `Removed` asks the caller to take the field out.
    pub(super) fn apply(
        &self,
        name: &str,
        path: &str,
        slot: &mut Slot<'_>,
        context: &Applying<'_>,
    ) -> Result<Outcome> {
        let new = match self {
            Operator::Set(value) => Some(value.clone()),
            Operator::SetOnInsert(value) => context.insert.then(|| value.clone()),
            Operator::Unset => return Ok(Outcome::Removed),
            Operator::Unresolved => return Err(unresolved()),
            Operator::RenameSource | Operator::RenameFrom(_) => None,
            Operator::Inc(by) => Some(arithmetic("$inc", name, *by, slot, context)?),
            Operator::Mul(by) => Some(arithmetic("$mul", name, *by, slot, context)?),
            Operator::Min(value) => replace_if(value, slot, Ordering::Less, context),
            Operator::Max(value) => replace_if(value, slot, Ordering::Greater, context),
            Operator::CurrentDate { timestamp } => {
                context.rewrote.set(true);
                Some(now(*timestamp, context))
            }
            Operator::Bit(operations) => {
                let old = slot.to_value();
                let number = match old {
                    RawBson::Int32(v) => Number::Int32(v),
                    RawBson::Int64(v) => Number::Int64(v),
                    _ => {
                        return Err(bad_value(format!(
                            "Cannot apply $bit to a value of non-integral type.{} has the field {name} of \
                             non-integer type {}",
                            context
                                .id_text()
                                .replace("no id", "INVALID-MUTABLE-ELEMENT"),
                            slot.type_name()
                        )));
                    }
                };
                Some(apply_bits(number, operations).to_raw_bson())
            }
            Operator::Push(push) => {
                let items = array_of(slot).ok_or_else(|| {
                    bad_value(format!(
                        "The field '{path}' must be an array but is of type {} in document {{{}}}",
                        slot.type_name(),
                        context.id_text()
                    ))
                })?;
                if push.rewrites(items.len()) {
                    context.rewrote.set(true);
                }
                Some(push.apply(items, context.collation)?)
            }
            Operator::AddToSet(add) => {
                let items = array_of(slot).ok_or_else(|| {
                    bad_value(format!(
                        "Cannot apply $addToSet to non-array field. Field named '{name}' has non-array type {}",
                        slot.type_name()
                    ))
                })?;
                Some(add.apply(items, context.collation))
            }
            Operator::Pop { first } => {
                let mut items = array_of(slot).ok_or_else(|| {
                    type_mismatch(format!(
                        "Path '{path}' contains an element of non-array type '{}'",
                        slot.type_name()
                    ))
                })?;
                if *first && !items.is_empty() {
                    items.remove(0);
                } else {
                    items.pop();
                }
                Some(super::array::build(&items))
            }
            Operator::Pull(pull) => {
                let items = pull_items(slot)?;
                Some(super::array::build_kept(&items, |item| !pull.matches(item)))
            }
            Operator::PullAll(values) => {
                let items = pull_items(slot)?;
                let values = values.iter().map(RawBson::as_raw_bson_ref);
                let listed: BTreeSet<Ordered<'_>> = values
                    .map(|value| Ordered::new(value, context.collation))
                    .collect();
                let kept =
                    |item: RawBsonRef<'_>| !listed.contains(&Ordered::new(item, context.collation));
                Some(super::array::build_kept(&items, kept))
            }
        };
        if let Some(new) = new {
            *slot = Slot::Owned(new);
        }
        Ok(Outcome::Kept)
    }
}

/// The filter's match gave no array position.
pub(super) fn unresolved() -> pinion_wire::Error {
    bad_value("The positional operator did not find the match needed from the query.")
}

/// What became of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Kept,
    Removed,
}

/// The items of an array slot, each on its own.
fn array_of(slot: &Slot<'_>) -> Option<Vec<RawBson>> {
    match slot.to_value() {
        RawBson::Array(array) => Some(crate::value::items(&array).map(RawBson::from).collect()),
        _ => None,
    }
}

fn pull_items(slot: &Slot<'_>) -> Result<Vec<RawBson>> {
    array_of(slot).ok_or_else(|| bad_value("Cannot apply $pull to a non-array value"))
}

fn now(timestamp: bool, context: &Applying<'_>) -> RawBson {
    if timestamp {
        RawBson::Timestamp(context.timestamps.next())
    } else {
        RawBson::DateTime(DateTime::from_millis(context.now_ms))
    }
}

fn replace_if(
    value: &RawBson,
    slot: &Slot<'_>,
    wanted: Ordering,
    context: &Applying<'_>,
) -> Option<RawBson> {
    let old = slot.to_value();
    (compare_owned(context.collation, value, &old) == wanted).then(|| value.clone())
}

fn arithmetic(
    operator: &str,
    name: &str,
    by: Number,
    slot: &Slot<'_>,
    context: &Applying<'_>,
) -> Result<RawBson> {
    let old = slot.to_value();
    let Some(number) = Number::from_value(old.as_raw_bson_ref()) else {
        return Err(type_mismatch(format!(
            "Cannot apply {operator} to a value of non-numeric type. {{{}}} has the field '{name}' of non-numeric type {}",
            context.id_text(),
            slot.type_name()
        )));
    };
    let result = if operator == "$inc" {
        number.checked_add(by)
    } else {
        number.checked_mul(by)
    };
    match result {
        // Adding nothing to a negative zero leaves it.
        Some(result) if result.kind() == number.kind() && result.compare(number).is_eq() => Ok(old),
        Some(result) => Ok(result.to_raw_bson()),
        None => {
            let shown = match number {
                Number::Int32(v) => format!("(NumberInt){v}"),
                Number::Int64(v) => format!("(NumberLong){v}"),
                other => crate::text::value_text(other.to_value()),
            };
            Err(bad_value(format!(
                "Failed to apply {operator} operations to current value ({shown}) for document {{{}}}",
                context.id_text()
            )))
        }
    }
}

fn apply_bits(start: Number, operations: &[(BitOp, Number)]) -> Number {
    operations.iter().fold(start, |value, (op, operand)| {
        let combine = |a: i64, b: i64| match op {
            BitOp::And => a & b,
            BitOp::Or => a | b,
            BitOp::Xor => a ^ b,
        };
        match (value, *operand) {
            (Number::Int32(a), Number::Int32(b)) => {
                Number::Int32(combine(i64::from(a), i64::from(b)) as i32)
            }
            (a, b) => Number::Int64(combine(a.to_i64_saturating(), b.to_i64_saturating())),
        }
    })
}

/// The timestamp that `$currentDate` and the replacement of empty timestamps write.
pub(super) fn empty_timestamp(value: RawBsonRef<'_>) -> bool {
    matches!(
        value,
        RawBsonRef::Timestamp(Timestamp {
            time: 0,
            increment: 0
        })
    )
}

/// An operand as a whole number, with the messages of `$pop`.
pub(super) fn pop_direction(name: &str, value: RawBsonRef<'_>) -> Result<bool> {
    let element = || element_text(name, value);
    if !crate::value::is_number(value) {
        return Err(crate::error::failed_to_parse(format!(
            "Expected a number in: {}",
            element()
        )));
    }
    match exact_i64(value) {
        Some(1) => Ok(false),
        Some(-1) => Ok(true),
        Some(other) => Err(crate::error::failed_to_parse(format!(
            "$pop expects 1 or -1, found: {other}"
        ))),
        None => Err(crate::error::failed_to_parse(format!(
            "Expected an integer: {}",
            element()
        ))),
    }
}
