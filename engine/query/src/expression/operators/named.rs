//! Operators with named arguments whose work is done on evaluated values: trimming, replacing, matching, fields, dates.

use pcre2::bytes::Regex as Compiled;
use pinion_bson::{DocBuilder, RawBson, RawBsonRef};
use pinion_wire::{Error, Result};

use super::string::places;
use super::{Arity, NamedZone, Operator, Value};
use crate::error::error;
use crate::expression::parse::{Expr, Parser};
use crate::limits::{check_string_bytes, check_value_bytes};
use crate::regex::{Failure, Regex};
use crate::text::value_text;
use crate::value::{elements, type_name};
use crate::work::{self, STEP, spend};

/// One operator: the names of its arguments in the order its function takes them, and the errors of its syntax.
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
        operator: operator("$regexMatch", |v| regex_match("$regexMatch", v)),
        arguments: &["input", "regex", "options"],
        required: &[("input", 31022), ("regex", 31023)],
        not_an_object: 51103,
        unknown: 31024,
    },
    Named {
        operator: operator("$regexFind", |v| regex_find("$regexFind", v, false)),
        arguments: &["input", "regex", "options"],
        required: &[("input", 31022), ("regex", 31023)],
        not_an_object: 51103,
        unknown: 31024,
    },
    Named {
        operator: operator("$regexFindAll", |v| regex_find("$regexFindAll", v, true)),
        arguments: &["input", "regex", "options"],
        required: &[("input", 31022), ("regex", 31023)],
        not_an_object: 51103,
        unknown: 31024,
    },
    Named {
        operator: operator("$convert", super::convert::convert_with),
        arguments: &["input", "to", "onError", "onNull"],
        required: &[("input", 9), ("to", 9)],
        not_an_object: 9,
        unknown: 9,
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
            format!(
                "{name} only supports an object as an argument, found {}",
                type_name(operand)
            ),
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
                return Err(error(
                    named.unknown,
                    format!("{name} found an unknown argument: {field}"),
                ));
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
    let arguments = arguments
        .into_iter()
        .zip(named.arguments)
        .map(|(argument, field)| match (argument, *field) {
            (None, _) => Expr::Remove,
            // What these give takes the place of the result.
            (Some(argument), "onNull" | "onError") => argument,
            (Some(argument), "timezone") => zone_argument(argument),
            (Some(argument), _) => missing_as_null(argument),
        })
        .collect();
    Ok(Expr::Call(&named.operator, arguments))
}

/// An argument whose value, where it is missing, is told from one that was not given.
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

fn missing_message(name: &str, argument: &str) -> String {
    match name {
        "$convert" | "$dateToString" | "$dateToParts" | "$dateFromString" => {
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

/// What `$trim` takes off when it is not told: white space and the null character.
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

/// What it takes to compile a regular expression, and to take down a match.
const REGEX_COMPILED: work::Units = 20_000;
const REGEX_MATCH: work::Units = 300;

/// The arguments of a regular expression operator; `None` where one of them is null.
fn regex_arguments<'v>(name: &str, values: &'v [Value<'_>]) -> Result<Option<(&'v str, Regex)>> {
    let [input, regex, options] = values else {
        return Ok(None);
    };
    let (pattern, own_options) = match regex.as_ref() {
        Some(RawBsonRef::String(text)) => (Some(text.to_string()), String::new()),
        Some(RawBsonRef::RegularExpression(regex)) => (
            Some(regex.pattern.as_str().to_string()),
            regex.options.as_str().to_string(),
        ),
        _ if regex.is_nullish() => (None, String::new()),
        _ => {
            return Err(error(
                51105,
                format!("{name} needs 'regex' to be of type string or regex"),
            ));
        }
    };
    let given_options = match options.as_ref() {
        Some(RawBsonRef::String(text)) => Some(text.to_string()),
        _ if options.is_nullish() => None,
        _ => {
            return Err(error(
                51106,
                format!("{name} needs 'options' to be of type string"),
            ));
        }
    };
    if !own_options.is_empty() && given_options.is_some() {
        return Err(error(
            51107,
            format!("{name} found regex option(s) specified in both 'regex' and 'option' fields"),
        ));
    }
    if pattern.as_ref().is_some_and(|p| p.contains('\0')) {
        return Err(error(
            51109,
            format!("{name}: regular expression cannot contain an embedded null byte"),
        ));
    }
    let options = given_options.unwrap_or(own_options);
    if options.contains('\0') {
        return Err(error(
            51110,
            format!("{name}: regular expression options cannot contain an embedded null byte"),
        ));
    }
    spend(REGEX_COMPILED)?;
    let compiled = pattern.map(|pattern| Regex::compile(&pattern, &options));
    if let Some(Err(e)) = &compiled
        && e.code.0 == 51108
    {
        return Err(e.clone());
    }
    let input_text = match input.as_ref() {
        Some(RawBsonRef::String(text)) => Some(text),
        _ if input.is_nullish() => None,
        _ => {
            return Err(error(
                51104,
                format!("{name} needs 'input' to be of type string"),
            ));
        }
    };
    let (Some(input), Some(compiled)) = (input_text, compiled) else {
        return Ok(None);
    };
    let regex = compiled.map_err(|e| -> Error {
        if e.code.0 == 51091 {
            error(51111, format!("Invalid Regex in {name}: {}", e.message))
        } else {
            e
        }
    })?;
    crate::regex::spend_text(input)?;
    Ok(Some((input, regex)))
}

fn regex_match<'a>(name: &str, values: &[Value<'a>]) -> Result<Value<'a>> {
    let matched =
        regex_arguments(name, values)?.is_some_and(|(input, regex)| regex.is_match(input));
    Ok(Value::boolean(matched))
}

fn regex_find<'a>(name: &str, values: &[Value<'a>], all: bool) -> Result<Value<'a>> {
    let found = match regex_arguments(name, values)? {
        None => {
            let mut none = DocBuilder::new();
            none.start_array("").end();
            Value::wrapped(none)
        }
        Some((input, regex)) => {
            let matches = regex.search(|compiled| matches_in(input, compiled, all));
            Value::wrapped(matches.map_err(|failure| match failure {
                Failure::Match(e) => error(
                    51156,
                    format!("Error occurred while executing the regular expression in {name}: {e}"),
                ),
                Failure::Other(e) => e,
            })?)
        }
    };
    if all {
        return Ok(found);
    }
    Ok(found
        .item_values()
        .into_iter()
        .next()
        .unwrap_or_else(Value::null))
}

/// The matches in a text, or the first of them, as an array.
fn matches_in(input: &str, compiled: &Compiled, all: bool) -> Result<DocBuilder, Failure> {
    let mut out = DocBuilder::new();
    out.start_array("");
    // Characters are counted from match to match: from the front each time they would be counted over and over.
    let (mut counted, mut points) = (0, 0);
    for captures in compiled.captures_iter(input.as_bytes()) {
        let captures = captures?;
        // PCRE checks the encoding of the whole text for each match.
        spend(REGEX_MATCH + input.len() as work::Units)?;
        let Some(whole) = captures.get(0) else {
            continue;
        };
        let text = |from: usize, to: usize| input.get(from..to).unwrap_or_default();
        out.push_document();
        out.append(
            "match",
            RawBsonRef::String(text(whole.start(), whole.end())),
        );
        points += text(counted, whole.start()).chars().count();
        counted = whole.start();
        out.append("idx", RawBsonRef::Int32(points as i32));
        out.start_array("captures");
        for group in 1..captures.len() {
            match captures.get(group) {
                Some(found) => out.push(RawBsonRef::String(text(found.start(), found.end()))),
                None => out.push(RawBsonRef::Null),
            };
        }
        out.end();
        out.end();
        check_value_bytes(out.len())?;
        if !all {
            break;
        }
    }
    out.end();
    Ok(out)
}
