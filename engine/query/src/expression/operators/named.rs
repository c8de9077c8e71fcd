//! Operators with named arguments whose work is done on evaluated values.

use pinion_bson::{RawBson, RawBsonRef};
use pinion_wire::Result;

use super::string::places;
use super::{Arity, NamedZone, Operator, Value};
use crate::error::error;
use crate::expression::parse::{Expr, Guarded, Parser};
use crate::limits::check_string_bytes;
use crate::text::value_text;
use crate::value::{elements, type_name};
use crate::work::{self, STEP, spend};

/// One operator: the names of its arguments in the order its function takes them, and the errors of
/// its syntax.
pub(super) struct Named {
    pub operator: Operator,
    pub arguments: &'static [&'static str],
    pub required: &'static [(&'static str, i32)],
    pub not_an_object: i32,
    pub unknown: i32,
}

const fn operator(name: &'static str, evaluate: super::Function) -> Operator {
    Operator {
        name,
        arity: Arity::Any,
        evaluate,
    }
}

pub(super) const OPERATORS: &[Named] = &[
    Named {
        operator: operator("$trim", |v| trim("$trim", v, true, true)),
        arguments: &["input", "chars"],
        required: &[("input", 50695)],
        not_an_object: 50696,
        unknown: 50694,
    },
    Named {
        operator: operator("$ltrim", |v| trim("$ltrim", v, true, false)),
        arguments: &["input", "chars"],
        required: &[("input", 50695)],
        not_an_object: 50696,
        unknown: 50694,
    },
    Named {
        operator: operator("$rtrim", |v| trim("$rtrim", v, false, true)),
        arguments: &["input", "chars"],
        required: &[("input", 50695)],
        not_an_object: 50696,
        unknown: 50694,
    },
    Named {
        operator: operator("$replaceOne", |v| replace("$replaceOne", v, 1)),
        arguments: &["input", "find", "replacement"],
        required: &[("input", 51749), ("find", 51748), ("replacement", 51747)],
        not_an_object: 51751,
        unknown: 51750,
    },
    Named {
        operator: operator("$replaceAll", |v| replace("$replaceAll", v, usize::MAX)),
        arguments: &["input", "find", "replacement"],
        required: &[("input", 51749), ("find", 51748), ("replacement", 51747)],
        not_an_object: 51751,
        unknown: 51750,
    },
    Named {
        operator: operator("$regexMatch", |v| super::regex::is_match("$regexMatch", v)),
        arguments: &["input", "regex", "options"],
        required: &[("input", 31022), ("regex", 31023)],
        not_an_object: 51103,
        unknown: 31024,
    },
    Named {
        operator: operator("$regexFind", |v| super::regex::find("$regexFind", v, false)),
        arguments: &["input", "regex", "options"],
        required: &[("input", 31022), ("regex", 31023)],
        not_an_object: 51103,
        unknown: 31024,
    },
    Named {
        operator: operator("$regexFindAll", |v| {
            super::regex::find("$regexFindAll", v, true)
        }),
        arguments: &["input", "regex", "options"],
        required: &[("input", 31022), ("regex", 31023)],
        not_an_object: 51103,
        unknown: 31024,
    },
    Named {
        operator: operator("$dateToString", super::date::date_to_string),
        arguments: &["date", "format", "timezone", "onNull"],
        required: &[("date", 18628)],
        not_an_object: 18629,
        unknown: 18534,
    },
    Named {
        operator: operator("$dateFromString", super::date_parse::from_string),
        arguments: &["dateString", "format", "timezone", "onError", "onNull"],
        required: &[("dateString", 40542)],
        not_an_object: 40540,
        unknown: 40541,
    },
    Named {
        operator: operator("$dateToParts", super::date_parts::to_parts),
        arguments: &["date", "timezone", "iso8601"],
        required: &[("date", 40522)],
        not_an_object: 40524,
        unknown: 40520,
    },
    Named {
        operator: operator("$dateFromParts", super::date_parts::from_parts),
        arguments: super::date_parts::FROM_PARTS,
        required: &[],
        not_an_object: 40519,
        unknown: 40518,
    },
    Named {
        operator: operator("$dateAdd", |v| super::date_math::add("$dateAdd", false, v)),
        arguments: &["startDate", "unit", "amount", "timezone"],
        required: &[
            ("startDate", 5_166_402),
            ("unit", 5_166_402),
            ("amount", 5_166_402),
        ],
        not_an_object: 5_166_400,
        unknown: 5_166_401,
    },
    Named {
        operator: operator("$dateSubtract", |v| {
            super::date_math::add("$dateSubtract", true, v)
        }),
        arguments: &["startDate", "unit", "amount", "timezone"],
        required: &[
            ("startDate", 5_166_402),
            ("unit", 5_166_402),
            ("amount", 5_166_402),
        ],
        not_an_object: 5_166_400,
        unknown: 5_166_401,
    },
    Named {
        operator: operator("$dateDiff", super::date_math::diff),
        arguments: &["startDate", "endDate", "unit", "timezone", "startOfWeek"],
        required: &[
            ("startDate", 5_166_303),
            ("endDate", 5_166_304),
            ("unit", 5_166_305),
        ],
        not_an_object: 5_166_301,
        unknown: 5_166_302,
    },
    Named {
        operator: operator("$dateTrunc", super::date_math::truncate),
        arguments: &["date", "unit", "binSize", "timezone", "startOfWeek"],
        required: &[("date", 5_439_009), ("unit", 5_439_010)],
        not_an_object: 5_439_007,
        unknown: 5_439_008,
    },
    Named {
        operator: operator("$hash", super::hash::hash),
        arguments: &["input", "algorithm"],
        required: &[("input", 9), ("algorithm", 9)],
        not_an_object: 9,
        unknown: 9,
    },
    Named {
        operator: operator("$hexHash", super::hash::hex_hash),
        arguments: &["input", "algorithm"],
        required: &[("input", 9), ("algorithm", 9)],
        not_an_object: 9,
        unknown: 9,
    },
    Named {
        operator: operator("$serializeEJSON", super::ejson::serialize),
        arguments: &["input", "relaxed", "onError"],
        required: &[("input", 9)],
        not_an_object: 9,
        unknown: 9,
    },
    Named {
        operator: operator("$deserializeEJSON", super::ejson::deserialize),
        arguments: &["input", "onError"],
        required: &[("input", 9)],
        not_an_object: 9,
        unknown: 9,
    },
];

pub(super) fn find(name: &str) -> Option<&'static Named> {
    OPERATORS.iter().find(|named| named.operator.name == name)
}

/// Parses the document of named arguments into a call.
pub(super) fn parse(parser: &mut Parser<'_>, name: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let Some(named) = find(name) else {
        return Err(error(168, format!("Unrecognized expression '{name}'")));
    };
    let RawBsonRef::Document(document) = operand else {
        return Err(error(
            named.not_an_object,
            not_an_object(name, type_name(operand)),
        ));
    };
    let mut arguments: Vec<Option<Expr>> = vec![None; named.arguments.len()];
    for (field, value) in elements(document) {
        match named
            .arguments
            .iter()
            .position(|argument| *argument == field)
        {
            Some(at) => arguments[at] = Some(parser.parse(value)?),
            None => {
                return Err(error(named.unknown, unknown_argument(name, field)));
            }
        }
    }
    for (required, code) in named.required {
        let given = named
            .arguments
            .iter()
            .position(|a| a == required)
            .is_some_and(|at| arguments[at].is_some());
        if !given {
            return Err(error(*code, missing_message(name, required)));
        }
    }
    if name == "$dateFromParts" {
        super::date_parts::check_from_parts(|field| {
            let at = named.arguments.iter().position(|name| *name == field);
            at.is_some_and(|at| arguments[at].is_some())
        })?;
    }
    let (mut on_error, mut on_null, mut eager) = (None, None, Vec::new());
    for (argument, field) in arguments.into_iter().zip(named.arguments) {
        match (argument, *field) {
            // What these give takes the place of the result, and is evaluated only then.
            (argument, "onNull") => on_null = argument,
            (argument, "onError") => on_error = argument,
            (None, _) => eager.push(Expr::Remove),
            (Some(argument), "timezone") => eager.push(zone_argument(argument)),
            (Some(argument), _) => eager.push(missing_as_null(argument)),
        }
    }
    let is_guarded = ["onNull", "onError"]
        .iter()
        .any(|argument| named.arguments.contains(argument));
    Ok(if is_guarded {
        Expr::Guarded(Box::new(Guarded {
            operator: &named.operator,
            arguments: eager,
            on_error,
            on_null,
        }))
    } else {
        Expr::Call(&named.operator, eager)
    })
}

/// An argument whose value, where it is missing, is distinguished from one that was not given.
pub(super) fn missing_as_null(argument: Expr) -> Expr {
    match argument {
        Expr::Literal(_) => argument,
        Expr::Remove => Expr::literal(RawBson::Null),
        other => Expr::IfNull(vec![other, Expr::literal(RawBson::Null)]),
    }
}

/// The argument that names a time zone, which is looked up now where it is constant.
pub(super) fn zone_argument(argument: Expr) -> Expr {
    if let Expr::Literal(value) = &argument
        && let RawBson::String(name) = &**value
        && let Some(zone) = NamedZone::find(name)
    {
        return Expr::Zone(Box::new(zone));
    }
    missing_as_null(argument)
}

fn not_an_object(name: &str, found: &str) -> String {
    match name {
        "$dateAdd" | "$dateSubtract" => format!("{name} expects an object as its argument"),
        "$dateFromString" => {
            format!("{name} only supports an object as an argument, found: {found}")
        }
        name if name.starts_with("$date") => {
            format!("{name} only supports an object as its argument")
        }
        "$replaceOne" | "$replaceAll" => {
            format!("{name} requires an object as an argument, found: {found}")
        }
        "$regexMatch" | "$regexFind" | "$regexFindAll" => {
            format!("{name} expects an object of named arguments but found: {found}")
        }
        _ => format!("{name} only supports an object as an argument, found {found}"),
    }
}

fn unknown_argument(name: &str, argument: &str) -> String {
    match name {
        "$dateAdd" | "$dateSubtract" => format!(
            "Unrecognized argument to {name}: {argument}. Expected arguments are startDate, unit, amount, and optionally timezone."
        ),
        name if name.starts_with("$date") => {
            format!("Unrecognized argument to {name}: {argument}")
        }
        _ => format!("{name} found an unknown argument: {argument}"),
    }
}

fn missing_message(name: &str, argument: &str) -> String {
    match name {
        "$dateAdd" | "$dateSubtract" => {
            format!("{name} requires startDate, unit, and amount to be present")
        }
        name if name.starts_with("$date") => {
            format!("Missing '{argument}' parameter to {name}")
        }
        "$trim" | "$ltrim" | "$rtrim" => format!("{name} requires an '{argument}' field"),
        _ => format!("{name} requires '{argument}' to be specified"),
    }
}

fn described(value: &Value<'_>) -> String {
    format!(
        "{} (of type {})",
        value_text(value.or_null()),
        value.type_name()
    )
}

/// What `$trim` takes off by default: white space and the null character.
const WHITE_SPACE: &[char] = &[
    '\0', ' ', '\t', '\n', '\u{b}', '\u{c}', '\r', '\u{a0}', '\u{1680}', '\u{2000}', '\u{2001}',
    '\u{2002}', '\u{2003}', '\u{2004}', '\u{2005}', '\u{2006}', '\u{2007}', '\u{2008}', '\u{2009}',
    '\u{200a}',
];

fn trim<'a>(name: &str, values: &[Value<'a>], left: bool, right: bool) -> Result<Value<'a>> {
    let [input, chars] = values else {
        return Ok(Value::null());
    };
    if input.is_nullish() {
        return Ok(Value::null());
    }
    let Some(RawBsonRef::String(text)) = input.as_ref() else {
        return Err(error(
            50699,
            format!(
                "{name} requires its input to be a string, got {} instead.",
                described(input)
            ),
        ));
    };
    let set: Vec<char> = match chars.as_ref() {
        None => WHITE_SPACE.to_vec(),
        Some(RawBsonRef::String(set)) => set.chars().collect(),
        Some(other) if crate::value::is_nullish(other) => return Ok(Value::null()),
        Some(_) => {
            return Err(error(
                50700,
                format!(
                    "{name} requires 'chars' to be a string, got {} instead.",
                    described(chars)
                ),
            ));
        }
    };
    let text = if left {
        text.trim_start_matches(&set[..])
    } else {
        text
    };
    Ok(Value::string(if right {
        text.trim_end_matches(&set[..])
    } else {
        text
    }))
}

fn replace<'a>(name: &str, values: &[Value<'a>], times: usize) -> Result<Value<'a>> {
    let [input, find, replacement] = values else {
        return Ok(Value::null());
    };
    let input = replaced_text(name, input, 10503904, "input")?;
    let find = replaced_text(name, find, 10503901, "find")?;
    let replacement = replaced_text(name, replacement, 10503902, "replacement")?;
    let (Some(input), Some(find), Some(replacement)) = (input, find, replacement) else {
        return Ok(Value::null());
    };
    let mut out = String::with_capacity(input.len());
    let mut from = 0;
    let mut put = |at: usize| -> Result<()> {
        spend(STEP + replacement.len() as work::Units)?;
        check_string_bytes(out.len() + (at - from) + replacement.len())?;
        out.push_str(&input[from..at]);
        out.push_str(replacement);
        from = at + find.len();
        Ok(())
    };
    if find.is_empty() {
        // Nothing is found before each character and at the end.
        let places = input.char_indices().map(|(at, _)| at);
        places
            .chain([input.len()])
            .take(times)
            .try_for_each(&mut put)?;
    } else {
        places(input, find).take(times).try_for_each(&mut put)?;
    }
    check_string_bytes(out.len() + (input.len() - from))?;
    out.push_str(&input[from..]);
    Ok(Value::string(out))
}

/// A text argument of `$replaceOne` and `$replaceAll`; `None` for null.
fn replaced_text<'v>(
    name: &str,
    value: &'v Value<'_>,
    code: i32,
    what: &str,
) -> Result<Option<&'v str>> {
    match value.as_ref() {
        Some(RawBsonRef::String(text)) => Ok(Some(text)),
        _ if value.is_nullish() => Ok(None),
        _ => Err(error(
            code,
            format!(
                "{name} requires that '{what}' be a string, found: {}",
                value_text(value.or_null())
            ),
        )),
    }
}
