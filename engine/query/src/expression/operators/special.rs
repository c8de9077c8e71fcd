//! Operators that are parsed in their own way: they bind variables, choose what to evaluate or name
//! their arguments.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_wire::{LanguageVersion, Result};

use super::Arity;
use crate::error::{error, failed_to_parse, no_javascript};
use crate::expression::parse::{Expr, Parser, check_variable_name};
use crate::text::{document_text, element_text};
use crate::value::{elements, field, items, owned, type_name};

type Parse = fn(&mut Parser<'_>, &str, RawBsonRef<'_>) -> Result<Expr>;

/// The operators below, but for those with tables of their own.
pub(super) const NAMES: &[&str] = &[
    "$and",
    "$cond",
    "$const",
    "$convert",
    "$createObjectId",
    "$encStrContains",
    "$encStrEndsWith",
    "$encStrNormalizedEq",
    "$encStrStartsWith",
    "$filter",
    "$firstN",
    "$function",
    "$getField",
    "$ifNull",
    "$lastN",
    "$let",
    "$literal",
    "$map",
    "$maxN",
    "$median",
    "$meta",
    "$minN",
    "$or",
    "$percentile",
    "$rand",
    "$reduce",
    "$setField",
    "$sortArray",
    "$switch",
    "$unsetField",
    "$zip",
];

/// The parser of an operator that needs one.
pub(in crate::expression) fn special(name: &str) -> Option<Parse> {
    Some(match name {
        "$literal" | "$const" => |_, _, operand| {
            crate::work::spend_bytes(crate::value::bytes(operand))?;
            Ok(Expr::literal(owned(operand)))
        },
        "$and" => |parser, _, operand| Ok(Expr::And(parser.parse_arguments(operand)?)),
        "$or" => |parser, _, operand| Ok(Expr::Or(parser.parse_arguments(operand)?)),
        "$rand" => parse_random,
        "$createObjectId" => parse_new_id,
        "$cond" => parse_cond,
        "$ifNull" => parse_if_null,
        "$switch" => parse_switch,
        "$let" => parse_let,
        "$map" => parse_map,
        "$filter" => parse_filter,
        "$reduce" => parse_reduce,
        "$getField" => parse_get_field,
        "$setField" | "$unsetField" => super::sequence::parse_set_field,
        "$convert" => super::convert::parse,
        "$meta" => crate::expression::meta::parse,
        "$function" => |_, _, operand| Err(refuse_function(operand)),
        "$encStrContains" | "$encStrEndsWith" | "$encStrNormalizedEq" | "$encStrStartsWith" => {
            |_, name, _| {
                Err(error(
                    115,
                    format!("the expression {name} is not supported"),
                ))
            }
        }
        "$zip" => super::sequence::parse_zip,
        "$sortArray" => super::sequence::parse_sort,
        "$firstN" | "$lastN" | "$minN" | "$maxN" => super::sequence::parse_n,
        "$percentile" | "$median" => super::statistics::parse,
        name if super::named::find(name).is_some() => super::named::parse,
        name if super::date::is_date_part(name) => parse_date_part,
        _ => return None,
    })
}

/// The error of `$function`: of what is wrong with its arguments, or that there is no JavaScript.
fn refuse_function(operand: RawBsonRef<'_>) -> pinion_wire::Error {
    let RawBsonRef::Document(arguments) = operand else {
        return error(
            4_660_800,
            format!(
                "$function requires an object as an argument, found: {}",
                type_name(operand)
            ),
        );
    };
    let known = ["body", "args", "lang"];
    if let Some((name, _)) = elements(arguments).find(|(name, _)| !known.contains(name)) {
        return error(
            4_660_801,
            format!("$function found an unknown argument: {name}"),
        );
    }
    for (name, code, message) in [
        ("body", 4_660_802, "The body function must be specified."),
        ("args", 4_660_803, "The args field must be specified."),
        ("lang", 4_660_804, "The lang field must be specified."),
    ] {
        if field(arguments, name).is_none() {
            return error(code, message);
        }
    }
    no_javascript("$function")
}

fn document_operand<'a>(
    code: i32,
    message: &str,
    operand: RawBsonRef<'a>,
) -> Result<&'a RawDocument> {
    match operand {
        RawBsonRef::Document(document) => Ok(document),
        _ => Err(error(code, message)),
    }
}

fn parse_random(parser: &mut Parser<'_>, _: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let is_empty = match operand {
        RawBsonRef::Document(document) => crate::value::is_empty(document),
        RawBsonRef::Array(array) => array.is_empty(),
        _ => {
            return Err(error(
                10065,
                "invalid parameter: expected an object ($rand)",
            ));
        }
    };
    if !is_empty {
        return Err(error(
            3_040_501,
            "$rand does not currently accept arguments",
        ));
    }
    Ok(Expr::Random(parser.variables().random.clone()))
}

/// `$createObjectId`: an id of the time of the operation, or of none where that has no time.
fn parse_new_id(parser: &mut Parser<'_>, name: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let is_empty =
        matches!(operand, RawBsonRef::Document(document) if crate::value::is_empty(document));
    if !is_empty {
        return Err(failed_to_parse(format!(
            "{name} requires an empty object as its argument, found: {}",
            crate::text::value_text(operand)
        )));
    }
    let variables = parser.variables();
    let seconds = variables.now_ms.unwrap_or(0) / 1000;
    // As in every id, the seconds wrap around.
    Ok(Expr::NewId(seconds as u32, variables.random.clone()))
}

fn parse_cond(parser: &mut Parser<'_>, _: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let RawBsonRef::Document(document) = operand else {
        let mut parts = parser.parse_arguments(operand)?;
        super::check_arity("$cond", Arity::Exactly(3), parts.len())?;
        let otherwise = parts.remove(2);
        let then = parts.remove(1);
        return Ok(Expr::Cond(Box::new([parts.remove(0), then, otherwise])));
    };
    let (mut condition, mut then, mut otherwise) = (None, None, None);
    for (name, value) in elements(document) {
        let place = match name {
            "if" => &mut condition,
            "then" => &mut then,
            "else" => &mut otherwise,
            _ => {
                return Err(error(
                    17083,
                    format!("Unrecognized parameter to $cond: {name}"),
                ));
            }
        };
        *place = Some(parser.parse(value)?);
    }
    let missing = |code, name: &str| error(code, format!("Missing '{name}' parameter to $cond"));
    Ok(Expr::Cond(Box::new([
        condition.ok_or_else(|| missing(17080, "if"))?,
        then.ok_or_else(|| missing(17081, "then"))?,
        otherwise.ok_or_else(|| missing(17082, "else"))?,
    ])))
}

fn parse_if_null(parser: &mut Parser<'_>, _: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let parts = parser.parse_arguments(operand)?;
    if parts.len() < 2 {
        return Err(error(
            1257300,
            format!("$ifNull needs at least two arguments, had: {}", parts.len()),
        ));
    }
    Ok(Expr::IfNull(parts))
}

fn parse_switch(parser: &mut Parser<'_>, _: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let document = document_operand(
        40060,
        &format!(
            "$switch requires an object as an argument, found: {}",
            type_name(operand)
        ),
        operand,
    )?;
    let mut branches = Vec::new();
    let mut default = None;
    for (name, value) in elements(document) {
        match name {
            "branches" => {
                let RawBsonRef::Array(array) = value else {
                    return Err(error(
                        40061,
                        format!(
                            "$switch expected an array for 'branches', found: {}",
                            type_name(value)
                        ),
                    ));
                };
                for branch in items(array) {
                    branches.push(parse_branch(parser, branch)?);
                }
            }
            "default" => default = Some(Box::new(parser.parse(value)?)),
            _ => {
                return Err(error(
                    40067,
                    format!("$switch found an unknown argument: {name}"),
                ));
            }
        }
    }
    if branches.is_empty() {
        return Err(error(40068, "$switch requires at least one branch."));
    }
    Ok(Expr::Switch(branches, default))
}

fn parse_branch(parser: &mut Parser<'_>, branch: RawBsonRef<'_>) -> Result<(Expr, Expr)> {
    let RawBsonRef::Document(document) = branch else {
        return Err(error(
            40062,
            format!(
                "$switch expected each branch to be an object, found: {}",
                type_name(branch)
            ),
        ));
    };
    let (mut case, mut then) = (None, None);
    for (name, value) in elements(document) {
        match name {
            "case" => case = Some(parser.parse(value)?),
            "then" => then = Some(parser.parse(value)?),
            _ => {
                return Err(error(
                    40063,
                    format!("$switch found an unknown argument to a branch: {name}"),
                ));
            }
        }
    }
    let case = case.ok_or_else(|| {
        error(
            40064,
            "$switch requires each branch have a 'case' expression",
        )
    })?;
    let then = then.ok_or_else(|| {
        error(
            40065,
            "$switch requires each branch have a 'then' expression.",
        )
    })?;
    Ok((case, then))
}

fn parse_let(parser: &mut Parser<'_>, _: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let document = document_operand(
        16874,
        "$let only supports an object as its argument",
        operand,
    )?;
    let (mut vars, mut body) = (None, None);
    for (name, value) in elements(document) {
        match name {
            "vars" => vars = Some(value),
            "in" => body = Some(value),
            _ => {
                return Err(error(
                    16875,
                    format!("Unrecognized parameter to $let: {name}"),
                ));
            }
        }
    }
    let vars = vars.ok_or_else(|| error(16876, "Missing 'vars' parameter to $let"))?;
    let body = body.ok_or_else(|| error(16877, "Missing 'in' parameter to $let"))?;
    let RawBsonRef::Document(vars) = vars else {
        return Err(error(
            10065,
            format!(
                "invalid parameter: expected an object ({})",
                element_text("vars", vars)
            ),
        ));
    };
    let mut names = Vec::new();
    let mut bindings = Vec::new();
    for (name, value) in elements(vars) {
        check_variable_name(name, false)?;
        // A binding does not see the others.
        let expr = parser.parse(value)?;
        let slot = parser.new_slot();
        names.push((name.to_string(), slot));
        bindings.push((slot, expr));
    }
    let body = parser.bind(&names, |parser| parser.parse(body))?;
    Ok(Expr::Let(bindings, Box::new(body)))
}

/// The name bound by `as`, "this" by default.
fn bound_name<'a>(value: Option<RawBsonRef<'a>>) -> Result<&'a str> {
    let name = match value {
        None => return Ok("this"),
        Some(RawBsonRef::String(name)) => name,
        Some(other) => {
            return Err(error(
                9,
                format!("'as' must be a string, found: {}", type_name(other)),
            ));
        }
    };
    check_variable_name(name, false)?;
    Ok(name)
}

/// Binds the index of the item that the operator `of` looks at, beside the `names` that it binds
/// already: by the name that `arrayIndexAs` gives, or as `$$IDX`. Versions before 8.3 have none.
fn bind_index(
    parser: &mut Parser<'_>,
    of: &str,
    value: Option<RawBsonRef<'_>>,
    names: &mut Vec<(String, usize)>,
) -> Result<Option<usize>> {
    if parser.variables().version < LanguageVersion::V8_3 {
        return Ok(None);
    }
    let name = match value {
        None => "IDX",
        Some(RawBsonRef::String(name)) => {
            check_variable_name(name, false)?;
            name
        }
        Some(other) => {
            return Err(failed_to_parse(format!(
                "'arrayIndexAs' of {of} must be a string, found: {}",
                type_name(other)
            )));
        }
    };
    if names.iter().any(|(other, _)| other == name) {
        return Err(failed_to_parse(format!(
            "'arrayIndexAs' of {of} must not be the name of another variable of it, found: {name}"
        )));
    }
    let slot = parser.new_slot();
    names.push((name.to_owned(), slot));
    Ok(Some(slot))
}

/// Whether an operator over an array has a field of this name that names the index.
fn names_index(parser: &Parser<'_>, field: &str) -> bool {
    field == "arrayIndexAs" && parser.variables().version >= LanguageVersion::V8_3
}

fn parse_map(parser: &mut Parser<'_>, _: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let document = document_operand(
        16878,
        "$map only supports an object as its argument",
        operand,
    )?;
    let (mut input, mut name, mut index, mut body) = (None, None, None, None);
    for (field, value) in elements(document) {
        match field {
            "input" => input = Some(value),
            "as" => name = Some(value),
            "in" => body = Some(value),
            _ if names_index(parser, field) => index = Some(value),
            _ => {
                return Err(error(
                    16879,
                    format!("Unrecognized parameter to $map: {field}"),
                ));
            }
        }
    }
    let input = input.ok_or_else(|| error(16880, "Missing 'input' parameter to $map"))?;
    let body = body.ok_or_else(|| error(16882, "Missing 'in' parameter to $map"))?;
    let input = Box::new(parser.parse(input)?);
    let name = bound_name(name)?;
    let slot = parser.new_slot();
    let mut names = vec![(name.to_string(), slot)];
    let index = bind_index(parser, "$map", index, &mut names)?;
    let body = parser.bind(&names, |parser| parser.parse(body))?;
    Ok(Expr::Map {
        input,
        slot,
        index,
        body: Box::new(body),
    })
}

fn parse_filter(parser: &mut Parser<'_>, _: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let document = document_operand(
        28646,
        "$filter only supports an object as its argument",
        operand,
    )?;
    let (mut input, mut name, mut condition, mut limit) = (None, None, None, None);
    let mut index = None;
    for (field, value) in elements(document) {
        match field {
            "input" => input = Some(value),
            "as" => name = Some(value),
            "cond" => condition = Some(value),
            "limit" => limit = Some(value),
            _ if names_index(parser, field) => index = Some(value),
            _ => {
                return Err(error(
                    28647,
                    format!("Unrecognized parameter to $filter: {field}"),
                ));
            }
        }
    }
    let input = input.ok_or_else(|| error(28648, "Missing 'input' parameter to $filter"))?;
    let condition = condition.ok_or_else(|| error(28650, "Missing 'cond' parameter to $filter"))?;
    let input = Box::new(parser.parse(input)?);
    let name = bound_name(name)?;
    let slot = parser.new_slot();
    let mut names = vec![(name.to_string(), slot)];
    let index = bind_index(parser, "$filter", index, &mut names)?;
    let condition = Box::new(parser.bind(&names, |parser| parser.parse(condition))?);
    let limit = limit
        .map(|limit| parser.parse(limit).map(Box::new))
        .transpose()?;
    Ok(Expr::Filter {
        input,
        slot,
        index,
        condition,
        limit,
    })
}

fn parse_reduce(parser: &mut Parser<'_>, _: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let document = document_operand(
        40075,
        &format!(
            "$reduce requires an object as an argument, found: {}",
            type_name(operand)
        ),
        operand,
    )?;
    let (mut input, mut initial, mut body) = (None, None, None);
    for (name, value) in elements(document) {
        match name {
            "input" => input = Some(parser.parse(value)?),
            "initialValue" => initial = Some(parser.parse(value)?),
            "in" => {
                let (this, accumulated) = (parser.new_slot(), parser.new_slot());
                let mut names = vec![
                    ("this".to_string(), this),
                    ("value".to_string(), accumulated),
                ];
                let index = field(document, "arrayIndexAs");
                let index = bind_index(parser, "$reduce", index, &mut names)?;
                let expr = parser.bind(&names, |parser| parser.parse(value))?;
                body = Some((this, accumulated, index, expr));
            }
            _ if names_index(parser, name) => {}
            _ => {
                return Err(error(
                    40076,
                    format!("$reduce found an unknown argument: {name}"),
                ));
            }
        }
    }
    let text = || document_text(document);
    let input = input.ok_or_else(|| {
        error(
            40077,
            format!(
                "$reduce requires 'input' to be specified, found: {}",
                text()
            ),
        )
    })?;
    let initial = initial.ok_or_else(|| {
        error(
            40078,
            format!(
                "$reduce requires 'initialValue' to be specified, found: {}",
                text()
            ),
        )
    })?;
    let (this, value, index, body) = body.ok_or_else(|| {
        error(
            40079,
            format!("$reduce requires 'in' to be specified, found: {}", text()),
        )
    })?;
    Ok(Expr::Reduce {
        input: Box::new(input),
        initial: Box::new(initial),
        value,
        this,
        index,
        body: Box::new(body),
    })
}

/// `$getField`: a field by a name that may hold dots and dollar signs.
fn parse_get_field(parser: &mut Parser<'_>, _: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let (field, input) = match operand {
        RawBsonRef::Document(document)
            if !elements(document)
                .next()
                .is_some_and(|(name, _)| name.starts_with('$')) =>
        {
            let (mut field, mut input) = (None, None);
            for (name, value) in elements(document) {
                match name {
                    "field" => field = Some(value),
                    "input" => input = Some(parser.parse(value)?),
                    _ => {
                        return Err(error(
                            3041701,
                            format!("$getField found an unknown argument: {name}"),
                        ));
                    }
                }
            }
            let field = field
                .ok_or_else(|| error(3041702, "$getField requires 'field' to be specified"))?;
            let input = input
                .ok_or_else(|| error(3041703, "$getField requires 'input' to be specified"))?;
            (field, input)
        }
        other => (other, parser.field(Box::default())),
    };
    let field = parser.parse(field)?;
    Ok(Expr::GetField {
        field: Box::new(field),
        input: Box::new(input),
    })
}

/// The date operators take a date, or a document of a date and a time zone.
fn parse_date_part(parser: &mut Parser<'_>, name: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let Some(operator) = super::find(name) else {
        return Err(error(168, format!("Unrecognized expression '{name}'")));
    };
    let arguments = match operand {
        RawBsonRef::Document(document)
            if !elements(document)
                .next()
                .is_some_and(|(field, _)| field.starts_with('$')) =>
        {
            let (mut date, mut zone) = (None, None);
            for (field, value) in elements(document) {
                match field {
                    "date" => date = Some(parser.parse(value)?),
                    "timezone" => {
                        zone = Some(super::named::zone_argument(parser.parse(value)?));
                    }
                    _ => {
                        return Err(error(
                            40535,
                            format!("unrecognized option to {name}: \"{field}\""),
                        ));
                    }
                }
            }
            let date = date.ok_or_else(|| {
                error(
                    40539,
                    format!(
                        "missing 'date' argument to {name}, provided: {}",
                        element_text(name, operand)
                    ),
                )
            })?;
            std::iter::once(date).chain(zone).collect()
        }
        RawBsonRef::Array(array) => match &items(array).collect::<Vec<_>>()[..] {
            [one] => vec![parser.parse(*one)?],
            given => {
                return Err(error(
                    40536,
                    format!(
                        "{name} accepts exactly one argument if given an array, but was given {}",
                        given.len()
                    ),
                ));
            }
        },
        other => vec![parser.parse(other)?],
    };
    Ok(Expr::Call(operator, arguments))
}
