//! The parser of operator updates.

use std::sync::Arc;

use pinion_bson::{Number, RawBsonRef, RawDocument};
use pinion_collation::Collation;
use pinion_wire::Result;

use super::apply::Conflicts;
use super::array::{AddToSet, Pull, Push};
use super::filters::ArrayFilters;
use super::operator::{BitOp, Operator, pop_direction};
use super::path::{Part, UpdatePath};
use crate::error::{bad_value, error, failed_to_parse, type_mismatch};
use crate::text::{document_text, element_text};
use crate::value::{elements, is_empty, items, owned, type_name};

/// One operator with its path.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub path: UpdatePath,
    pub operator: Operator,
}

pub(super) fn parse(
    update: &RawDocument,
    filters: &ArrayFilters,
    collation: Option<&Arc<Collation>>,
) -> Result<Vec<Entry>> {
    let mut entries = Entries {
        collation,
        filters,
        entries: Vec::new(),
        conflicts: Conflicts::new(),
    };
    for (modifier, operand) in elements(update) {
        if !is_modifier(modifier) {
            return Err(failed_to_parse(format!(
                "Unknown modifier: {modifier}. Expected a valid update modifier or pipeline-style update specified \
                 as an array"
            )));
        }
        let RawBsonRef::Document(fields) = operand else {
            return Err(failed_to_parse(format!(
                "Modifiers operate on fields but we found type {} instead. For example: {{$mod: {{<field>: ...}}}} \
                 not {{{}}}",
                type_name(operand),
                element_text(modifier, operand)
            )));
        };
        for (name, value) in elements(fields) {
            parse_field(modifier, name, value, &mut entries)?;
        }
    }
    let entries = entries.entries;
    let used = |id: &str| {
        entries
            .iter()
            .any(|e| e.path.identifiers().any(|u| u == id))
    };
    if let Some(unused) = filters.identifiers().find(|id| !used(id)) {
        return Err(failed_to_parse(format!(
            "The array filter for identifier '{unused}' was not used in the update {}",
            document_text(update)
        )));
    }
    Ok(entries)
}

/// The operators read so far.
struct Entries<'f> {
    collation: Option<&'f Arc<Collation>>,
    filters: &'f ArrayFilters,
    entries: Vec<Entry>,
    conflicts: Conflicts,
}

impl Entries<'_> {
    fn push(&mut self, entry: Entry) -> Result<()> {
        crate::work::spend(crate::work::PATH)?;
        self.conflicts.add(&entry)?;
        // A filter that is not there is reported after a conflict above it.
        if let Some(id) = entry.path.identifiers().find(|id| !self.filters.knows(id)) {
            return Err(bad_value(format!(
                "No array filter found for identifier '{id}' in path '{}'",
                entry.path.text()
            )));
        }
        self.entries.push(entry);
        Ok(())
    }
}

fn is_modifier(name: &str) -> bool {
    matches!(
        name,
        "$set"
            | "$setOnInsert"
            | "$unset"
            | "$inc"
            | "$mul"
            | "$min"
            | "$max"
            | "$currentDate"
            | "$bit"
            | "$rename"
            | "$push"
            | "$addToSet"
            | "$pop"
            | "$pull"
            | "$pullAll"
    )
}

fn parse_field(
    modifier: &str,
    name: &str,
    value: RawBsonRef<'_>,
    entries: &mut Entries<'_>,
) -> Result<()> {
    if modifier == "$rename" {
        return parse_rename(name, value, entries);
    }
    // The path is checked before the operand, as MongoDB does: a statement with both wrong reports
    // the path.
    let path = UpdatePath::parse(name)?;
    let number = |verb: &str| {
        Number::from_value(value).ok_or_else(|| {
            type_mismatch(format!(
                "Cannot {verb} with non-numeric argument: {{{}}}",
                element_text(name, value)
            ))
        })
    };
    let operator = match modifier {
        "$set" => Operator::Set(owned(value)),
        "$setOnInsert" => Operator::SetOnInsert(owned(value)),
        "$unset" => Operator::Unset,
        "$inc" => Operator::Inc(number("increment")?),
        "$mul" => Operator::Mul(number("multiply")?),
        "$min" => Operator::Min(owned(value)),
        "$max" => Operator::Max(owned(value)),
        "$currentDate" => Operator::CurrentDate {
            timestamp: parse_current_date(value)?,
        },
        "$bit" => Operator::Bit(parse_bit(value)?),
        "$push" => Operator::Push(Push::parse(value)?),
        "$addToSet" => Operator::AddToSet(AddToSet::parse(value, entries.collation)?),
        "$pop" => Operator::Pop {
            first: pop_direction(name, value)?,
        },
        "$pull" => Operator::Pull(Pull::parse(value, entries.collation)?),
        _ => match value {
            RawBsonRef::Array(array) => Operator::PullAll(items(array).map(owned).collect()),
            other => {
                return Err(bad_value(format!(
                    "$pullAll requires an array argument but was given a {}",
                    type_name(other)
                )));
            }
        },
    };
    entries.push(Entry { path, operator })
}

/// The source counts as touched, and may conflict, before anything is said of the target.
fn parse_rename(name: &str, value: RawBsonRef<'_>, entries: &mut Entries<'_>) -> Result<()> {
    let from = UpdatePath::parse(name)?;
    let dynamic = |path: &UpdatePath| path.parts().iter().any(|p| !matches!(p, Part::Name(_)));
    let from_dynamic = dynamic(&from);
    entries.push(Entry {
        path: from,
        operator: Operator::RenameSource,
    })?;
    let RawBsonRef::String(target) = value else {
        return Err(bad_value(format!(
            "The 'to' field for $rename must be a string: {}",
            element_text(name, value)
        )));
    };
    if target.contains('\0') {
        return Err(error(
            9867600,
            "The 'to' field for $rename cannot contain an embedded null byte",
        ));
    }
    let to = UpdatePath::parse(target)?;
    let text = || element_text(name, value);
    if name == target {
        return Err(bad_value(format!(
            "The source and target field for $rename must differ: {}",
            text()
        )));
    }
    let is_prefix = |a: &str, b: &str| b.strip_prefix(a).is_some_and(|rest| rest.starts_with('.'));
    if is_prefix(name, target) || is_prefix(target, name) {
        return Err(bad_value(format!(
            "The source and target field for $rename must not be on the same path: {}",
            text()
        )));
    }
    if from_dynamic {
        return Err(bad_value(format!(
            "The source field for $rename may not be dynamic: {name}"
        )));
    }
    if dynamic(&to) {
        return Err(bad_value(format!(
            "The destination field for $rename may not be dynamic: {target}"
        )));
    }
    entries.push(Entry {
        path: to,
        operator: Operator::RenameFrom(name.into()),
    })
}

fn parse_current_date(value: RawBsonRef<'_>) -> Result<bool> {
    match value {
        RawBsonRef::Boolean(_) => Ok(false),
        RawBsonRef::Document(document) => {
            let mut timestamp = None;
            for (name, value) in elements(document) {
                if name != "$type" {
                    return Err(bad_value(format!(
                        "Unrecognized $currentDate option: {name}"
                    )));
                }
                timestamp = match value {
                    RawBsonRef::String("date") => Some(false),
                    RawBsonRef::String("timestamp") => Some(true),
                    _ => None,
                };
            }
            timestamp.ok_or_else(|| {
                bad_value(
                    "The '$type' string field is required to be 'date' or 'timestamp': {$currentDate: {field : \
                     {$type: 'date'}}}",
                )
            })
        }
        other => Err(bad_value(format!(
            "{} is not valid type for $currentDate. Please use a boolean ('true') or a $type expression ({{$type: \
             'timestamp/date'}}).",
            type_name(other)
        ))),
    }
}

fn parse_bit(value: RawBsonRef<'_>) -> Result<Vec<(BitOp, Number)>> {
    let RawBsonRef::Document(document) = value else {
        return Err(bad_value(format!(
            "The $bit modifier is not compatible with a {}. You must pass in an embedded document: {{$bit: {{field: \
             {{and/or/xor: #}}}}",
            type_name(value)
        )));
    };
    if is_empty(document) {
        return Err(bad_value(
            "You must pass in at least one bitwise operation. The format is: {$bit: {field: {and/or/xor: #}}",
        ));
    }
    let mut operations = Vec::new();
    for (name, operand) in elements(document) {
        let op = match name {
            "and" => BitOp::And,
            "or" => BitOp::Or,
            "xor" => BitOp::Xor,
            _ => {
                return Err(bad_value(format!(
                    "The $bit modifier only supports 'and', 'or', and 'xor', not '{name}' which is an unknown \
                     operator: {{{}}}",
                    element_text(name, operand)
                )));
            }
        };
        let number = match operand {
            RawBsonRef::Int32(v) => Number::Int32(v),
            RawBsonRef::Int64(v) => Number::Int64(v),
            other => {
                return Err(bad_value(format!(
                    "The $bit modifier field must be an Integer(32/64 bit); a '{}' is not supported here: {{{}}}",
                    type_name(other),
                    element_text(name, other)
                )));
            }
        };
        operations.push((op, number));
    }
    Ok(operations)
}
