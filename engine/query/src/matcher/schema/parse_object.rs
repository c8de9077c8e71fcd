//! The keywords for objects: properties, how many, and what depends on them.

use std::collections::BTreeSet;

use pinion_bson::{RawArray, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::parse::{Keywords, Rules, Subject, parse, quoted_if_flag};
use super::rules::{
    AdditionalProperties, Demands, Dependency, Others, PatternProperty, Property, Test,
};
use crate::error::{bad_value, failed_to_parse, type_mismatch};
use crate::path::Path;
use crate::regex::Regex;
use crate::value::{elements, items, type_name};
use crate::work::{PATH, spend};

pub(super) fn parse_object_rules(keywords: &Keywords<'_>, rules: &mut Rules) -> Result<()> {
    let required = keywords.get("required").map(parse_required).transpose()?;
    let mut named = BTreeSet::new();
    if let Some(operand) = keywords.get("properties") {
        let properties = parse_properties(operand, &mut named)?;
        rules.add("properties", &[], Test::Properties(properties));
    }
    let patterns = keywords.get("patternProperties");
    let patterns = patterns.map(parse_pattern_properties).transpose()?;
    let regexes = patterns.iter().flatten().map(|p| p.pattern.clone());
    let regexes: Vec<Regex> = regexes.collect();
    if let Some(patterns) = patterns {
        rules.add("patternProperties", &[], Test::PatternProperties(patterns));
    }
    if let Some(operand) = keywords.get("additionalProperties")
        && let Some(others) = parse_additional_properties(operand)?
    {
        let test = Test::AdditionalProperties(AdditionalProperties {
            named,
            patterns: regexes,
            others,
        });
        rules.add("additionalProperties", quoted_if_flag(&operand), test);
    }
    if let (Some(paths), Some(operand)) = (required, keywords.get("required")) {
        rules.add("required", &[operand], Test::Required(paths));
    }
    if let (Some(size), Some(operand)) = (
        keywords.size("minProperties")?,
        keywords.get("minProperties"),
    ) {
        rules.add("minProperties", &[operand], Test::MinProperties(size));
    }
    if let (Some(size), Some(operand)) = (
        keywords.size("maxProperties")?,
        keywords.get("maxProperties"),
    ) {
        rules.add("maxProperties", &[operand], Test::MaxProperties(size));
    }
    if let Some(operand) = keywords.get("dependencies") {
        let dependencies = parse_dependencies(operand, rules.subject())?;
        rules.add("dependencies", &[], Test::Dependencies(dependencies));
    }
    Ok(())
}

fn parse_required(operand: RawBsonRef<'_>) -> Result<Vec<Path>> {
    let RawBsonRef::Array(array) = operand else {
        return Err(type_mismatch(format!(
            "$jsonSchema keyword 'required' must be an array, but found an element of type {}",
            type_name(operand)
        )));
    };
    let not_a_text = |item: RawBsonRef<'_>| {
        type_mismatch(format!(
            "$jsonSchema keyword 'required' must be an array of strings, but found an element of type: {}",
            type_name(item)
        ))
    };
    let duplicate = |_: &str| {
        failed_to_parse("$jsonSchema keyword 'required' array cannot contain duplicate values")
    };
    let names = distinct_names(array, not_a_text, duplicate)?;
    if names.is_empty() {
        return Err(failed_to_parse(
            "$jsonSchema keyword 'required' cannot be an empty array",
        ));
    }
    Ok(names.into_iter().map(Path::parse).collect())
}

/// The texts of an array in its order, each of which may stand there once.
fn distinct_names(
    array: &RawArray,
    not_a_text: impl Fn(RawBsonRef<'_>) -> pinion_wire::Error,
    duplicate: impl Fn(&str) -> pinion_wire::Error,
) -> Result<Vec<&str>> {
    let (mut names, mut seen) = (Vec::new(), BTreeSet::new());
    for item in items(array) {
        spend(PATH)?;
        let RawBsonRef::String(name) = item else {
            return Err(not_a_text(item));
        };
        if !seen.insert(name) {
            return Err(duplicate(name));
        }
        names.push(name);
    }
    Ok(names)
}

fn object<'a>(name: &str, operand: RawBsonRef<'a>) -> Result<&'a RawDocument> {
    match operand {
        RawBsonRef::Document(object) => Ok(object),
        _ => Err(type_mismatch(format!(
            "$jsonSchema keyword '{name}' must be an object"
        ))),
    }
}

fn parse_properties(
    operand: RawBsonRef<'_>,
    named: &mut BTreeSet<Box<str>>,
) -> Result<Vec<Property>> {
    let mut properties = Vec::new();
    for (name, value) in elements(object("properties", operand)?) {
        spend(PATH)?;
        let RawBsonRef::Document(schema) = value else {
            return Err(type_mismatch(format!(
                "Nested schema for $jsonSchema property '{name}' must be an object"
            )));
        };
        named.insert(name.into());
        properties.push(Property {
            path: Path::parse(name),
            schema: parse(schema, Subject::Value)?,
        });
    }
    Ok(properties)
}

fn parse_pattern_properties(operand: RawBsonRef<'_>) -> Result<Vec<PatternProperty>> {
    let mut patterns = Vec::new();
    for (text, value) in elements(object("patternProperties", operand)?) {
        spend(PATH)?;
        let RawBsonRef::Document(schema) = value else {
            return Err(type_mismatch(format!(
                "$jsonSchema keyword 'patternProperties' has property '{text}' which is not an object"
            )));
        };
        let pattern = Regex::compile(text, "").map_err(|error| {
            let reason = error.message.as_str();
            let reason = reason.split_once(": ").map_or(reason, |(_, rest)| rest);
            bad_value(format!(
                "Invalid regular expression in $jsonSchema keyword 'patternProperties': '{text}' PCRE error string: \
                 {reason}"
            ))
        })?;
        let schema = parse(schema, Subject::Value)?;
        patterns.push(PatternProperty { pattern, schema });
    }
    Ok(patterns)
}

/// What holds for additional properties, if anything does.
fn parse_additional_properties(operand: RawBsonRef<'_>) -> Result<Option<Others>> {
    match operand {
        RawBsonRef::Boolean(true) => Ok(None),
        RawBsonRef::Boolean(false) => Ok(Some(Others::Forbidden)),
        RawBsonRef::Document(schema) => {
            let schema = parse(schema, Subject::Value)?;
            Ok(Some(Others::Schema(Box::new(schema))))
        }
        _ => Err(type_mismatch(
            "$jsonSchema keyword 'additionalProperties' must be an object or a boolean",
        )),
    }
}

fn parse_dependencies(operand: RawBsonRef<'_>, subject: Subject) -> Result<Vec<Dependency>> {
    let mut dependencies = Vec::new();
    for (name, value) in elements(object("dependencies", operand)?) {
        spend(PATH)?;
        let demands = match value {
            RawBsonRef::Document(schema) => Demands::Schema(parse(schema, subject)?),
            RawBsonRef::Array(array) => Demands::Properties(parse_demanded(name, array)?),
            other => {
                return Err(type_mismatch(format!(
                    "$jsonSchema keyword 'dependencies' requires that each dependency be an object or an array, but \
                     found '{name}' of type {}",
                    type_name(other)
                )));
            }
        };
        dependencies.push(Dependency {
            property: Path::parse(name),
            demands,
        });
    }
    Ok(dependencies)
}

fn parse_demanded(dependency: &str, array: &RawArray) -> Result<Vec<Path>> {
    let not_a_text = |item: RawBsonRef<'_>| {
        type_mismatch(format!(
            "Property dependency '{dependency}' in $jsonSchema keyword 'dependencies' must be an array of strings, \
             but found an element of type {}",
            type_name(item)
        ))
    };
    let duplicate = |name: &str| {
        failed_to_parse(format!(
            "Property dependency '{dependency}' in $jsonSchema keyword 'dependencies' has duplicate value: {name}"
        ))
    };
    let names = distinct_names(array, not_a_text, duplicate)?;
    if names.is_empty() {
        return Err(failed_to_parse(format!(
            "Property dependency '{dependency}' in $jsonSchema keyword 'dependencies' must be a non-empty array"
        )));
    }
    Ok(names.into_iter().map(Path::parse).collect())
}
