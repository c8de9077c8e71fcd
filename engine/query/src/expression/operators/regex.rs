//! Regular expressions in expressions: `$regexMatch`, `$regexFind`, `$regexFindAll`.

use pcre2::bytes::Regex as Compiled;
use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_wire::Result;

use super::Value;
use crate::error::error;
use crate::limits::check_value_bytes;
use crate::regex::{Failure, Regex};
use crate::work::{self, spend};

/// What it takes to compile a regular expression, and to take down a match.
const REGEX_COMPILED: work::Units = 20_000;
const REGEX_MATCH: work::Units = 300;

/// The regular expression that two arguments give; `None` where it is null. Its errors come before
/// those of the input.
fn compiled(name: &str, regex: &Value<'_>, options: &Value<'_>) -> Result<Option<Regex>> {
    let (pattern, own_options) = match regex.as_ref() {
        Some(RawBsonRef::String(text)) => (Some(text), ""),
        Some(RawBsonRef::RegularExpression(regex)) => {
            (Some(regex.pattern.as_str()), regex.options.as_str())
        }
        _ if regex.is_nullish() => (None, ""),
        _ => {
            return Err(error(
                51105,
                format!("{name} needs 'regex' to be of type string or regex"),
            ));
        }
    };
    let given_options = match options.as_ref() {
        Some(RawBsonRef::String(text)) => Some(text),
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
    if pattern.is_some_and(|p| p.contains('\0')) {
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
    let compiled = pattern.map(|pattern| Regex::compile(pattern, options));
    compiled.transpose().map_err(|e| match e.code.0 {
        51091 => error(51111, format!("Invalid Regex in {name}: {}", e.message)),
        _ => e,
    })
}

/// Refuses a regular expression that is known before the input is.
pub(super) fn check(name: &str, regex: &Value<'_>, options: &Value<'_>) -> Result<()> {
    compiled(name, regex, options).map(|_| ())
}

/// The arguments of a regular expression operator; `None` where one of them is null.
fn arguments<'v>(name: &str, values: &'v [Value<'_>]) -> Result<Option<(&'v str, Regex)>> {
    let [input, regex, options] = values else {
        return Ok(None);
    };
    let compiled = compiled(name, regex, options)?;
    let input = match input.as_ref() {
        Some(RawBsonRef::String(text)) => Some(text),
        _ if input.is_nullish() => None,
        _ => {
            return Err(error(
                51104,
                format!("{name} needs 'input' to be of type string"),
            ));
        }
    };
    let Some((input, regex)) = input.zip(compiled) else {
        return Ok(None);
    };
    crate::regex::spend_text(input)?;
    Ok(Some((input, regex)))
}

pub(super) fn is_match<'a>(name: &str, values: &[Value<'a>]) -> Result<Value<'a>> {
    let matched = arguments(name, values)?.is_some_and(|(input, regex)| regex.is_match(input));
    Ok(Value::boolean(matched))
}

pub(super) fn find<'a>(name: &str, values: &[Value<'a>], all: bool) -> Result<Value<'a>> {
    let found = match arguments(name, values)? {
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
    // Characters are counted from match to match: from the front each time they would be counted
    // over and over.
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
