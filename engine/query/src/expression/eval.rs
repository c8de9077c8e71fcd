//! Evaluation of expressions.

use pinion_bson::{DocBuilder, ObjectId, RawBson, RawBsonRef, RawDocument};
use pinion_wire::Result;
use smallvec::SmallVec;

use super::Random;
use super::meta::Subject;
use super::operators::Operator;
use super::parse::{Expr, FieldPath};
use super::value::Value;
use crate::error::error;
use crate::limits::{check_string_bytes, check_value_bytes};
use crate::value::field;
use crate::work::{STEP, spend, spend_bytes};

/// The document and the bound variables of one evaluation.
pub(crate) struct Env<'a> {
    root: Subject<'a>,
    /// Where paths begin: the root, but for the parts that `$redact` looks at.
    current: &'a RawDocument,
    slots: Vec<Value<'a>>,
}

impl<'a> Env<'a> {
    pub(crate) fn new(root: Subject<'a>, current: &'a RawDocument, slots: usize) -> Env<'a> {
        Env {
            root,
            current,
            // Few expressions bind a variable, and `vec!` is a call even for none.
            slots: match slots {
                0 => Vec::new(),
                _ => vec![Value::Missing; slots],
            },
        }
    }

    /// Binds the index of an array's item, where it has a name.
    fn bind_index(&mut self, slot: Option<usize>, at: usize) {
        if let Some(slot) = slot {
            self.slots[slot] = Value::integer(at as i64);
        }
    }
}

/// An id of a second, its other bytes drawn.
fn new_id(seconds: u32, random: &Random) -> ObjectId {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&seconds.to_be_bytes());
    bytes[4..].copy_from_slice(&random.next_u64().to_be_bytes());
    ObjectId::from_bytes(bytes)
}

impl Expr {
    pub(crate) fn evaluate<'a>(&'a self, env: &mut Env<'a>) -> Result<Value<'a>> {
        spend(STEP)?;
        Ok(match self {
            Expr::Literal(value) | Expr::Given(value) => Value::Ref(value.as_raw_bson_ref()),
            Expr::Field(path) => found(path_in_document(env.current, path))?,
            Expr::Root(path) => found(path_in_document(env.root.document, path))?,
            Expr::Slot(slot, path) => found(path_in_value(env.slots[*slot].clone(), path))?,
            Expr::Remove => Value::Missing,
            Expr::Random(random) => Value::Ref(RawBsonRef::Double(random.next_f64())),
            Expr::NewId(seconds, random) => {
                Value::Ref(RawBsonRef::ObjectId(new_id(*seconds, random)))
            }
            Expr::Meta(kind) => env.root.metadata.value(*kind),
            Expr::Zone(zone) => Value::Zone(zone),
            Expr::Object(fields) => {
                let mut builder = DocBuilder::new();
                for (name, expr) in fields {
                    let value = expr.evaluate(env)?;
                    spend_bytes(value.bytes())?;
                    if let Some(value) = value.as_ref() {
                        builder.append(name, value);
                        check_value_bytes(builder.len())?;
                    }
                }
                Value::document(builder.finish())
            }
            Expr::Array(parts) => {
                let mut builder = DocBuilder::new();
                builder.start_array("");
                for part in parts {
                    let value = part.evaluate(env)?;
                    spend_bytes(value.bytes())?;
                    builder.push(value.or_null());
                    check_value_bytes(builder.len())?;
                }
                builder.end();
                Value::wrapped(builder)
            }
            Expr::Compare(operator, arguments, collation) => {
                let values = evaluate_all(arguments, env)?;
                let value = (operator.evaluate)(&values, collation.as_deref())?;
                crate::work::check()?;
                value
            }
            Expr::Call(operator, arguments) => call(operator, arguments, env)?,
            Expr::Guarded(guarded) => match call(guarded.operator, &guarded.arguments, env) {
                Ok(Value::Missing) => match &guarded.on_null {
                    Some(value) => value.evaluate(env)?,
                    None => Value::null(),
                },
                Err(e) if e.code.0 == CONVERSION_FAILURE => match &guarded.on_error {
                    Some(value) => value.evaluate(env)?,
                    None => return Err(e),
                },
                other => other?,
            },
            Expr::And(parts) => {
                for part in parts {
                    if !part.evaluate(env)?.is_true() {
                        return Ok(Value::boolean(false));
                    }
                }
                Value::boolean(true)
            }
            Expr::Or(parts) => {
                for part in parts {
                    if part.evaluate(env)?.is_true() {
                        return Ok(Value::boolean(true));
                    }
                }
                Value::boolean(false)
            }
            Expr::Truth(part) => Value::boolean(part.evaluate(env)?.is_true()),
            Expr::Cond(parts) => {
                let [condition, then, otherwise] = &**parts;
                let chosen = if condition.evaluate(env)?.is_true() {
                    then
                } else {
                    otherwise
                };
                chosen.evaluate(env)?
            }
            Expr::IfNull(parts) => {
                let mut value = Value::Missing;
                for part in parts {
                    value = part.evaluate(env)?;
                    if !value.is_nullish() {
                        break;
                    }
                }
                value
            }
            Expr::Switch(branches, default) => {
                for (case, then) in branches {
                    if case.evaluate(env)?.is_true() {
                        return then.evaluate(env);
                    }
                }
                match default {
                    Some(default) => default.evaluate(env)?,
                    None => {
                        return Err(error(
                            40066,
                            "$switch could not find a matching branch for an input, and no default was specified.",
                        ));
                    }
                }
            }
            Expr::Let(bindings, body) => {
                let values = bindings
                    .iter()
                    .map(|(_, expr)| expr.evaluate(env))
                    .collect::<Result<Vec<Value<'a>>>>()?;
                for ((slot, _), value) in bindings.iter().zip(values) {
                    env.slots[*slot] = value;
                }
                body.evaluate(env)?
            }
            Expr::Map {
                input,
                slot,
                index,
                body,
            } => {
                let input = input.evaluate(env)?;
                if input.is_nullish() {
                    return Ok(Value::null());
                }
                if input.as_array().is_none() {
                    return Err(error(
                        16883,
                        format!("input to $map must be an array not {}", input.type_name()),
                    ));
                }
                spend_bytes(input.bytes())?;
                let mut builder = DocBuilder::new();
                builder.start_array("");
                for (at, item) in input.item_values().into_iter().enumerate() {
                    env.slots[*slot] = item;
                    env.bind_index(*index, at);
                    let value = body.evaluate(env)?;
                    spend_bytes(value.bytes())?;
                    builder.push(value.or_null());
                    check_value_bytes(builder.len())?;
                }
                builder.end();
                Value::wrapped(builder)
            }
            Expr::Filter {
                input,
                slot,
                index,
                condition,
                limit,
            } => {
                let input = input.evaluate(env)?;
                if input.is_nullish() {
                    return Ok(Value::null());
                }
                if input.as_array().is_none() {
                    return Err(error(
                        28651,
                        format!(
                            "input to $filter must be an array not {}",
                            input.type_name()
                        ),
                    ));
                }
                let limit = match limit {
                    Some(limit) => {
                        let value = limit.evaluate(env)?;
                        if value.is_nullish() {
                            None
                        } else {
                            Some(filter_limit(&value)?)
                        }
                    }
                    None => None,
                };
                spend_bytes(input.bytes())?;
                let mut builder = DocBuilder::new();
                builder.start_array("");
                let mut kept = 0;
                for (at, item) in input.item_values().into_iter().enumerate() {
                    if limit.is_some_and(|limit| kept >= limit) {
                        break;
                    }
                    env.slots[*slot] = item.clone();
                    env.bind_index(*index, at);
                    if condition.evaluate(env)?.is_true() {
                        builder.push(item.or_null());
                        kept += 1;
                    }
                }
                builder.end();
                Value::wrapped(builder)
            }
            Expr::GetField { field, input } => {
                let field = field.evaluate(env)?;
                let Some(RawBsonRef::String(name)) = field.as_ref() else {
                    return Err(error(
                        3_041_704,
                        format!(
                            "$getField requires 'field' to evaluate to type String, but got {}",
                            field.type_name()
                        ),
                    ));
                };
                input.evaluate(env)?.field(name)
            }
            Expr::Reduce {
                input,
                initial,
                value,
                this,
                index,
                body,
            } => {
                let input = input.evaluate(env)?;
                if input.is_nullish() {
                    return Ok(Value::null());
                }
                if input.as_array().is_none() {
                    return Err(error(
                        40080,
                        format!(
                            "$reduce requires that 'input' be an array, found: {}",
                            crate::text::value_text(input.or_null())
                        ),
                    ));
                }
                spend_bytes(input.bytes())?;
                let mut accumulated = initial.evaluate(env)?;
                for (at, item) in input.item_values().into_iter().enumerate() {
                    env.slots[*this] = item;
                    env.bind_index(*index, at);
                    env.slots[*value] = accumulated;
                    accumulated = body.evaluate(env)?;
                }
                accumulated
            }
        })
    }
}

/// The error that `onError` stands in for.
const CONVERSION_FAILURE: i32 = 241;

/// An operator with its arguments, which are evaluated before it.
fn call<'a>(
    operator: &'static Operator,
    arguments: &'a [Expr],
    env: &mut Env<'a>,
) -> Result<Value<'a>> {
    let value = (operator.evaluate)(&evaluate_all(arguments, env)?)?;
    if let Value::Owned(made) = &value
        && let RawBson::String(text) = &**made
    {
        check_string_bytes(text.len())?;
    }
    Ok(value)
}

/// The arguments of an operator.
fn evaluate_all<'a>(arguments: &'a [Expr], env: &mut Env<'a>) -> Result<SmallVec<[Value<'a>; 4]>> {
    let mut values = SmallVec::new();
    let mut bytes = 0;
    for argument in arguments {
        let value = argument.evaluate(env)?;
        bytes += value.bytes();
        values.push(value);
    }
    check_value_bytes(bytes)?;
    spend_bytes(bytes)?;
    Ok(values)
}

/// Accounts for what a path through arrays has copied.
pub(super) fn found(value: Value<'_>) -> Result<Value<'_>> {
    if let Value::Owned(_) = value {
        spend_bytes(value.bytes())?;
    }
    Ok(value)
}

fn filter_limit(value: &Value<'_>) -> Result<i64> {
    let number = crate::number::exact_i64(value.or_null()).filter(|n| i32::try_from(*n).is_ok());
    let Some(number) = number else {
        return Err(error(
            327391,
            format!(
                "$filter: limit must be represented as a 32-bit integral value: {}",
                crate::text::value_text(value.or_null())
            ),
        ));
    };
    if number < 1 {
        return Err(error(
            327392,
            format!("$filter: limit must be greater than 0: {number}"),
        ));
    }
    Ok(number)
}

/// A path in a document: through arrays it gives the array of what their documents have.
pub(crate) fn path_in_document<'a>(document: &'a RawDocument, path: &[Box<str>]) -> Value<'a> {
    let Some((name, rest)) = path.split_first() else {
        return Value::Ref(RawBsonRef::Document(document));
    };
    match field(document, name) {
        None => Value::Missing,
        Some(value) => path_in_ref(value, rest),
    }
}

pub(super) fn path_in_ref<'a>(value: RawBsonRef<'a>, path: &[Box<str>]) -> Value<'a> {
    if path.is_empty() {
        return Value::Ref(value);
    }
    match value {
        RawBsonRef::Document(inner) => path_in_document(inner, path),
        RawBsonRef::Array(array) => {
            let found: Vec<Value<'a>> = crate::value::items(array)
                .map(|item| match item {
                    RawBsonRef::Document(inner) => path_in_document(inner, path),
                    _ => Value::Missing,
                })
                .collect();
            Value::array(found.iter().filter_map(Value::as_ref))
        }
        _ => Value::Missing,
    }
}

fn path_in_value<'a>(value: Value<'a>, path: &[Box<str>]) -> Value<'a> {
    if path.is_empty() {
        return value;
    }
    match value {
        Value::Missing => Value::Missing,
        Value::Ref(value) => path_in_ref(value, path),
        Value::Owned(value) => match path_in_ref(value.as_raw_bson_ref(), path) {
            Value::Ref(found) => Value::copied(found),
            Value::Owned(found) => Value::Owned(found),
            Value::Missing | Value::Zone(_) => Value::Missing,
        },
        // Text has no fields.
        Value::Zone(_) => Value::Missing,
    }
}

/// A path in a variable's constant value.
pub(super) fn path_in_constant(value: RawBson, path: &FieldPath) -> Expr {
    match path_in_ref(value.as_raw_bson_ref(), path).as_ref() {
        Some(found) => Expr::literal(found.into()),
        None => Expr::Remove,
    }
}
