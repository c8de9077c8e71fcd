//! Operators on arrays with named arguments: `$zip`, `$sortArray`, `$firstN` and its kin.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_collation::Collation;
use pinion_wire::Result;

use super::{Arity, Comparing, Operator, Value};
use crate::collation::compare;
use crate::error::error;
use crate::expression::parse::{Expr, Parser};
use crate::limits::check_value_bytes;
use crate::text::value_text;
use crate::update::ItemSort;
use crate::value::{elements, is_nullish, items, owned, type_name};

const fn operator(name: &'static str, evaluate: super::Function) -> Operator {
    Operator {
        name,
        arity: Arity::Any,
        evaluate,
    }
}

type Compares = for<'a> fn(&[Value<'a>], Option<&Collation>) -> Result<Value<'a>>;

const fn comparing(name: &'static str, evaluate: Compares) -> Comparing {
    Comparing {
        name,
        arity: Arity::Any,
        evaluate,
    }
}

static ZIP: Operator = operator("$zip", zip);
static SORT: Comparing = comparing("$sortArray", sort);
static FIRST: Operator = operator("$firstN", |v| first_n("$firstN", v));
static LAST: Operator = operator("$lastN", |v| first_n("$lastN", v));
static LEAST: Comparing = comparing("$minN", |v, c| extreme_n("$minN", v, c));
static MOST: Comparing = comparing("$maxN", |v, c| extreme_n("$maxN", v, c));

fn argument_document<'a>(
    code: i32,
    name: &str,
    operand: RawBsonRef<'a>,
) -> Result<&'a RawDocument> {
    match operand {
        RawBsonRef::Document(document) => Ok(document),
        _ => Err(error(
            code,
            format!(
                "{name} only supports an object as an argument, found {}",
                type_name(operand)
            ),
        )),
    }
}

/// `$zip`: whether to continue to the longest, the number of inputs, the inputs, the defaults.
pub(super) fn parse_zip(
    parser: &mut Parser<'_>,
    name: &str,
    operand: RawBsonRef<'_>,
) -> Result<Expr> {
    let document = argument_document(34460, name, operand)?;
    let (mut inputs, mut defaults, mut longest) = (Vec::new(), Vec::new(), false);
    for (field, value) in elements(document) {
        let list = |parser: &mut Parser<'_>, code: i32| match value {
            RawBsonRef::Array(array) => items(array)
                .map(|item| parser.parse(item))
                .collect::<Result<Vec<_>>>(),
            other => Err(error(
                code,
                format!(
                    "{field} must be an array of expressions, found {}",
                    type_name(other)
                ),
            )),
        };
        match field {
            "inputs" => inputs = list(parser, 34461)?,
            "defaults" => defaults = list(parser, 34462)?,
            "useLongestLength" => {
                let RawBsonRef::Boolean(value) = value else {
                    return Err(error(
                        34463,
                        format!(
                            "useLongestLength must be a bool, found {}",
                            type_name(value)
                        ),
                    ));
                };
                longest = value;
            }
            other => {
                return Err(error(
                    34464,
                    format!("$zip found an unknown argument: {other}"),
                ));
            }
        }
    }
    if inputs.is_empty() {
        return Err(error(34465, "$zip requires at least one input array"));
    }
    if !defaults.is_empty() && !longest {
        return Err(error(
            34466,
            "cannot specify defaults unless useLongestLength is true",
        ));
    }
    if !defaults.is_empty() && defaults.len() != inputs.len() {
        return Err(error(
            34467,
            "defaults and inputs must have the same length",
        ));
    }
    let mut arguments = vec![
        Expr::literal(pinion_bson::RawBson::Boolean(longest)),
        Expr::literal(pinion_bson::RawBson::Int64(inputs.len() as i64)),
    ];
    arguments.extend(inputs);
    arguments.extend(defaults);
    Ok(Expr::Call(&ZIP, arguments))
}

fn zip<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [longest, number, lists @ ..] = values else {
        return Ok(Value::null());
    };
    let number = crate::number::exact_i64(number.or_null()).unwrap_or_default() as usize;
    let (inputs, defaults) = lists.split_at(number.min(lists.len()));
    let mut rows: Vec<Vec<RawBsonRef<'_>>> = Vec::with_capacity(inputs.len());
    for input in inputs {
        if input.is_nullish() {
            return Ok(Value::null());
        }
        let Some(array) = input.as_array() else {
            return Err(error(
                34468,
                format!(
                    "$zip found a non-array expression in input: {}",
                    value_text(input.or_null())
                ),
            ));
        };
        rows.push(items(array).collect());
    }
    let lengths = rows.iter().map(Vec::len);
    let length = if longest.is_true() {
        lengths.max()
    } else {
        lengths.min()
    }
    .unwrap_or_default();
    let mut out = DocBuilder::new();
    out.start_array("");
    for at in 0..length {
        out.push_array();
        for (column, row) in rows.iter().enumerate() {
            out.push(match row.get(at) {
                Some(value) => *value,
                None => defaults
                    .get(column)
                    .map_or(RawBsonRef::Null, Value::or_null),
            });
        }
        out.end();
        check_value_bytes(out.len())?;
    }
    out.end();
    Ok(Value::wrapped(out))
}

/// `$sortArray`: the input, and the order as it is given.
pub(super) fn parse_sort(
    parser: &mut Parser<'_>,
    name: &str,
    operand: RawBsonRef<'_>,
) -> Result<Expr> {
    let document = argument_document(2_942_500, name, operand)?;
    let (mut input, mut order) = (None, None);
    for (field, value) in elements(document) {
        match field {
            "input" => input = Some(parser.parse(value)?),
            "sortBy" => order = Some(value),
            other => {
                return Err(error(
                    2_942_501,
                    format!("$sortArray found an unknown argument: {other}"),
                ));
            }
        }
    }
    let input =
        input.ok_or_else(|| error(2_942_502, "$sortArray requires 'input' to be specified"))?;
    let order =
        order.ok_or_else(|| error(2_942_503, "$sortArray requires 'sortBy' to be specified"))?;
    let code = match order {
        RawBsonRef::Document(_) => 2_942_505,
        number if crate::value::is_number(number) => 2_942_506,
        other => {
            return Err(error(
                2_942_507,
                format!(
                    "$sortArray requires 'sortBy' to be a number or an object, found {}",
                    type_name(other)
                ),
            ));
        }
    };
    ItemSort::parse(order).map_err(|e| error(code, e.message))?;
    let arguments = vec![input, Expr::literal(owned(order))];
    Ok(Expr::Compare(&SORT, arguments, parser.collation()))
}

fn sort<'a>(values: &[Value<'a>], collation: Option<&Collation>) -> Result<Value<'a>> {
    let [input, order] = values else {
        return Ok(Value::null());
    };
    if input.is_nullish() {
        return Ok(Value::null());
    }
    let Some(array) = input.as_array() else {
        return Err(error(
            2_942_504,
            format!(
                "The input argument to $sortArray must be an array, but was of type: {}",
                input.type_name()
            ),
        ));
    };
    let order = ItemSort::parse(order.or_null())?;
    let mut sorted: Vec<RawBsonRef<'_>> = items(array).collect();
    // Each is compared with some ten to twenty others.
    crate::work::spend(20 * crate::work::STEP * sorted.len() as u64)?;
    sorted.sort_by(|a, b| order.compare(*a, *b, collation));
    Ok(Value::array(sorted))
}

/// `$firstN` and its kin: the number, the input.
pub(super) fn parse_n(
    parser: &mut Parser<'_>,
    name: &str,
    operand: RawBsonRef<'_>,
) -> Result<Expr> {
    let RawBsonRef::Document(document) = operand else {
        let code = match name {
            "$firstN" | "$lastN" => 5_787_801,
            _ => 5_787_900,
        };
        return Err(error(
            code,
            format!(
                "specification must be an object; found {}",
                value_text(operand)
            ),
        ));
    };
    let (mut number, mut input) = (None, None);
    for (field, value) in elements(document) {
        match field {
            "n" => number = Some(parser.parse(value)?),
            "input" => input = Some(parser.parse(value)?),
            other => {
                return Err(error(
                    5_787_901,
                    format!("Unknown argument for 'n' operator: {other}"),
                ));
            }
        }
    }
    let number = number.ok_or_else(|| error(5_787_906, "Missing value for 'n'"))?;
    let input = input.ok_or_else(|| error(5_787_907, "Missing value for 'input'"))?;
    let arguments = vec![number, input];
    Ok(match name {
        "$firstN" => Expr::Call(&FIRST, arguments),
        "$lastN" => Expr::Call(&LAST, arguments),
        "$minN" => Expr::Compare(&LEAST, arguments, parser.collation()),
        _ => Expr::Compare(&MOST, arguments, parser.collation()),
    })
}

/// How many are wanted, and the array they are taken from.
fn wanted<'v>(name: &str, values: &'v [Value<'_>]) -> Result<(usize, Vec<RawBsonRef<'v>>)> {
    let [number, input] = values else {
        return Ok((0, Vec::new()));
    };
    let Some(array) = input.as_array() else {
        return Err(error(
            5_788_200,
            format!(
                "{name}: Input must be an array, found {}",
                input.type_name()
            ),
        ));
    };
    if !crate::value::is_number(number.or_null()) {
        return Err(error(
            5_787_902,
            format!(
                "Value for 'n' must be of integral type, but found {}",
                value_text(number.or_null())
            ),
        ));
    }
    let wanted = crate::number::exact_i64(number.or_null()).ok_or_else(|| {
        error(
            5_787_903,
            format!(
                "Value for 'n' must be of integral type, but found {}",
                value_text(number.or_null())
            ),
        )
    })?;
    if wanted <= 0 {
        return Err(error(
            5_787_908,
            format!("'n' must be greater than 0, found {wanted}"),
        ));
    }
    Ok((wanted as usize, items(array).collect()))
}

fn first_n<'a>(name: &str, values: &[Value<'a>]) -> Result<Value<'a>> {
    let (wanted, list) = wanted(name, values)?;
    let from = if name == "$lastN" {
        list.len().saturating_sub(wanted)
    } else {
        0
    };
    Ok(Value::array(list.into_iter().skip(from).take(wanted)))
}

/// The least or greatest, null and missing left out.
fn extreme_n<'a>(
    name: &str,
    values: &[Value<'a>],
    collation: Option<&Collation>,
) -> Result<Value<'a>> {
    let (wanted, mut list) = wanted(name, values)?;
    list.retain(|item| !is_nullish(*item));
    list.sort_by(|a, b| {
        let order = compare(collation, *a, *b);
        if name == "$maxN" {
            order.reverse()
        } else {
            order
        }
    });
    Ok(Value::array(list.into_iter().take(wanted)))
}

static SET_FIELD: Operator = operator("$setField", set_field);

/// `$setField` and `$unsetField`: the field's name, the document, the value.
pub(super) fn parse_set_field(
    parser: &mut Parser<'_>,
    name: &str,
    operand: RawBsonRef<'_>,
) -> Result<Expr> {
    let document = argument_document(4_161_100, name, operand)?;
    let (mut field, mut input, mut value) = (None, None, None);
    for (argument, given) in elements(document) {
        match argument {
            "field" => field = Some(given),
            "input" => input = Some(parser.parse(given)?),
            "value" if name == "$setField" => value = Some(parser.parse(given)?),
            other => {
                return Err(error(
                    4_161_101,
                    format!("{name} found an unknown argument: {other}"),
                ));
            }
        }
    }
    let missing = |code: i32, argument: &str| {
        error(
            code,
            format!("{name} requires '{argument}' to be specified"),
        )
    };
    let field = field.ok_or_else(|| missing(4_161_102, "field"))?;
    let value = match value {
        None if name == "$setField" => return Err(missing(4_161_103, "value")),
        None => Expr::Remove,
        Some(value) => value,
    };
    let input = input.ok_or_else(|| missing(4_161_109, "input"))?;
    let field = match parser.parse(field)? {
        Expr::Literal(field) => field,
        Expr::Field(_) | Expr::Root(_) | Expr::Slot(..) => {
            return Err(error(
                4_161_108,
                format!(
                    "A field path reference which is not allowed in this context. Did you mean {{$literal: '{}'}}?",
                    value_text(field)
                ),
            ));
        }
        _ => {
            return Err(error(
                4_161_106,
                format!(
                    "{name} requires 'field' to evaluate to a constant, but got a non-constant argument"
                ),
            ));
        }
    };
    match field.as_raw_bson_ref() {
        RawBsonRef::String(text) if text.contains('\0') => {
            return Err(error(
                9_534_700,
                format!("{name} requires 'field' not to contain an embedded null byte"),
            ));
        }
        RawBsonRef::String(_) => {}
        other => {
            return Err(error(
                4_161_107,
                format!(
                    "{name} requires 'field' to evaluate to type String, but got {}",
                    type_name(other)
                ),
            ));
        }
    }
    Ok(Expr::Call(
        &SET_FIELD,
        vec![Expr::Literal(field), input, value],
    ))
}

fn set_field<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let [name, input, value] = values else {
        return Ok(Value::null());
    };
    if input.is_nullish() {
        return Ok(Value::null());
    }
    let (Some(RawBsonRef::String(name)), Some(document)) = (name.as_ref(), input.as_document())
    else {
        return Err(error(
            4_161_105,
            format!(
                "$setField requires 'input' to evaluate to type Object, but got {}",
                input.type_name()
            ),
        ));
    };
    let mut out = DocBuilder::with_capacity(document.as_bytes().len() + 32);
    let mut found = false;
    for (field, old) in elements(document) {
        if field != name {
            out.append(field, old);
        } else if let Some(value) = value.as_ref() {
            out.append(field, value);
            found = true;
        }
    }
    if let (false, Some(value)) = (found, value.as_ref()) {
        out.append(name, value);
    }
    Ok(Value::document(out.finish()))
}
