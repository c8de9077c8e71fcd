//! The parser of schemas: the keywords, and those for numbers, texts, arrays and alternatives; the
//! errors are MongoDB's.

use std::collections::BTreeMap;

use pinion_bson::{DocBuilder, Number, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use super::parse_encrypt::{check_encrypt_metadata, parse_encrypt};
use super::parse_object::parse_object_rules;
use super::parse_type::{parse_bson_type, parse_json_type};
use super::rules::{Others, Rule, Schema, Test};
use super::unordered::Unordered;
use crate::error::{bad_value, failed_to_parse, type_mismatch};
use crate::number::{exact_i64, truncated_i64};
use crate::regex::Regex;
use crate::text::element_text;
use crate::value::{elements, is_nan, is_number, items, owned, type_name};
use crate::work::{STEP, spend};

/// Every keyword MongoDB knows and acts on.
const KEYWORDS: [&str; 31] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "bsonType",
    "dependencies",
    "description",
    "encrypt",
    "encryptMetadata",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "properties",
    "required",
    "title",
    "type",
    "uniqueItems",
];

/// Keywords of the standard that MongoDB refuses.
const REFUSED_KEYWORDS: [&str; 6] = ["$ref", "$schema", "default", "definitions", "format", "id"];

/// What a schema describes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// A whole document. What concerns other values is checked for errors, and has no effect.
    Document,
    /// A property or an item: a value of any type.
    Value,
}

/// The keywords of one schema with their operands.
pub(super) struct Keywords<'a>(BTreeMap<&'static str, RawBsonRef<'a>>);

impl<'a> Keywords<'a> {
    fn read(schema: &'a RawDocument) -> Result<Keywords<'a>> {
        let mut found = BTreeMap::new();
        for (name, value) in elements(schema) {
            spend(STEP)?;
            let Ok(at) = KEYWORDS.binary_search(&name) else {
                return Err(failed_to_parse(if REFUSED_KEYWORDS.contains(&name) {
                    format!("$jsonSchema keyword '{name}' is not currently supported")
                } else {
                    format!("Unknown $jsonSchema keyword: {name}")
                }));
            };
            if found.insert(KEYWORDS[at], value).is_some() {
                return Err(failed_to_parse(format!(
                    "Duplicate $jsonSchema keyword: {name}"
                )));
            }
        }
        Ok(Keywords(found))
    }

    pub(super) fn get(&self, name: &str) -> Option<RawBsonRef<'a>> {
        self.0.get(name).copied()
    }

    fn text(&self, name: &str) -> Result<Option<Box<str>>> {
        match self.get(name) {
            None => Ok(None),
            Some(RawBsonRef::String(text)) => Ok(Some(text.into())),
            Some(_) => Err(type_mismatch(format!(
                "$jsonSchema keyword '{name}' must be of type string"
            ))),
        }
    }

    fn boolean(&self, name: &str) -> Result<Option<bool>> {
        match self.get(name) {
            None => Ok(None),
            Some(RawBsonRef::Boolean(value)) => Ok(Some(value)),
            Some(_) => Err(type_mismatch(format!(
                "$jsonSchema keyword '{name}' must be a boolean"
            ))),
        }
    }

    /// A number of items, properties or characters.
    pub(super) fn size(&self, name: &str) -> Result<Option<i64>> {
        self.get(name)
            .map(|value| parse_size(name, value))
            .transpose()
    }
}

/// The rules of one schema while it is parsed.
pub(super) struct Rules {
    subject: Subject,
    rules: Vec<Rule>,
}

impl Rules {
    pub(super) fn subject(&self) -> Subject {
        self.subject
    }

    /// Adds a rule that concerns documents, or values of every type.
    pub(super) fn add(&mut self, keyword: &'static str, specified: &[RawBsonRef<'_>], test: Test) {
        self.rules.push(Rule {
            keyword,
            specified: quoted(keyword, specified),
            test,
        });
    }

    /// Adds a rule that concerns values which no document is.
    fn add_for_values(
        &mut self,
        keyword: &'static str,
        specified: &[RawBsonRef<'_>],
        test: impl FnOnce() -> Result<Test>,
    ) -> Result<()> {
        if self.subject == Subject::Value {
            self.add(keyword, specified, test()?);
        }
        Ok(())
    }
}

/// Of the keywords that take a flag or a schema, failures quote the flag.
pub(super) fn quoted_if_flag<'o, 'a>(operand: &'o RawBsonRef<'a>) -> &'o [RawBsonRef<'a>] {
    match operand {
        RawBsonRef::Boolean(_) => std::slice::from_ref(operand),
        _ => &[],
    }
}

/// The keyword with its operand, where there is one to be quoted.
fn quoted(keyword: &str, operands: &[RawBsonRef<'_>]) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for operand in operands {
        out.append(keyword, *operand);
    }
    out.finish()
}

/// Parses the operand of `$jsonSchema`.
pub(in crate::matcher) fn parse_schema(schema: &RawDocument) -> Result<Schema> {
    parse(schema, Subject::Document)
}

/// Parses a schema. How deep they nest has the bound that documents have.
pub(super) fn parse(schema: &RawDocument, subject: Subject) -> Result<Schema> {
    let keywords = Keywords::read(schema)?;
    let title = keywords.text("title")?;
    let description = keywords.text("description")?;
    let types = parse_types(&keywords)?;
    let mut rules = Rules {
        subject,
        rules: Vec::new(),
    };
    parse_text_rules(&keywords, &mut rules)?;
    parse_number_rules(&keywords, &mut rules)?;
    parse_array_rules(&keywords, &mut rules)?;
    check_encrypt_metadata(&keywords)?;
    let encrypted = parse_encrypt(&keywords)?;
    parse_object_rules(&keywords, &mut rules)?;
    parse_logical_rules(&keywords, &mut rules)?;
    rules.rules.extend(types);
    rules.rules.extend(encrypted);
    Ok(Schema {
        title,
        description,
        rules: rules.rules,
    })
}

fn parse_types(keywords: &Keywords<'_>) -> Result<Option<Rule>> {
    let (json, bson) = (keywords.get("type"), keywords.get("bsonType"));
    if json.is_some() && bson.is_some() {
        return Err(failed_to_parse(
            "Cannot specify both $jsonSchema keywords 'type' and 'bsonType'",
        ));
    }
    let keyword = match (json, bson) {
        (Some(_), _) => "type",
        (None, Some(_)) => "bsonType",
        (None, None) => return Ok(None),
    };
    if keywords.get("encrypt").is_some() {
        return Err(failed_to_parse(format!(
            "$jsonSchema keyword 'encrypt' cannot be used in conjunction with '{keyword}'"
        )));
    }
    let (specified, types) = match (json, bson) {
        (Some(value), _) => (value, parse_json_type(keyword, value)?),
        (None, Some(value)) => (value, parse_bson_type(keyword, value)?),
        (None, None) => return Ok(None),
    };
    Ok(Some(Rule {
        keyword,
        specified: quoted(keyword, &[specified]),
        test: Test::Type(types),
    }))
}

fn parse_text_rules(keywords: &Keywords<'_>, rules: &mut Rules) -> Result<()> {
    if let Some(pattern) = keywords.get("pattern") {
        let RawBsonRef::String(text) = pattern else {
            return Err(type_mismatch(
                "$jsonSchema keyword 'pattern' must be a string",
            ));
        };
        rules.add_for_values("pattern", &[pattern], || {
            Ok(Test::Pattern(Regex::compile(text, "")?))
        })?;
    }
    add_size(keywords, rules, "maxLength", Test::MaxLength)?;
    add_size(keywords, rules, "minLength", Test::MinLength)
}

fn add_size(
    keywords: &Keywords<'_>,
    rules: &mut Rules,
    name: &'static str,
    test: fn(i64) -> Test,
) -> Result<()> {
    if let (Some(size), Some(operand)) = (keywords.size(name)?, keywords.get(name)) {
        rules.add_for_values(name, &[operand], || Ok(test(size)))?;
    }
    Ok(())
}

fn parse_number_rules(keywords: &Keywords<'_>, rules: &mut Rules) -> Result<()> {
    if let Some(operand) = keywords.get("multipleOf") {
        let Some(divisor) = Number::from_value(operand) else {
            return Err(type_mismatch(
                "$jsonSchema keyword 'multipleOf' must be a number",
            ));
        };
        if divisor.is_zero() || divisor.is_negative() {
            return Err(failed_to_parse(
                "$jsonSchema keyword 'multipleOf' must have a positive value",
            ));
        }
        rules.add_for_values("multipleOf", &[operand], || {
            if divisor.is_nan() {
                return Err(bad_value("divisor cannot be NaN"));
            }
            if !divisor.is_finite() {
                return Err(bad_value("divisor cannot be infinite"));
            }
            Ok(Test::MultipleOf(divisor.to_decimal()))
        })?;
    }
    let maximum = |limit, exclusive| Test::Maximum { limit, exclusive };
    add_limit(keywords, rules, "maximum", "exclusiveMaximum", maximum)?;
    let minimum = |limit, exclusive| Test::Minimum { limit, exclusive };
    add_limit(keywords, rules, "minimum", "exclusiveMinimum", minimum)
}

fn add_limit(
    keywords: &Keywords<'_>,
    rules: &mut Rules,
    name: &'static str,
    exclusive_name: &'static str,
    test: fn(RawBson, bool) -> Test,
) -> Result<()> {
    let Some(limit) = keywords.get(name) else {
        return match keywords.get(exclusive_name) {
            None => Ok(()),
            Some(_) => Err(failed_to_parse(format!(
                "$jsonSchema keyword '{name}' must be a present if {exclusive_name} is present"
            ))),
        };
    };
    let exclusive = keywords.boolean(exclusive_name)?;
    if !is_number(limit) {
        return Err(type_mismatch(format!(
            "$jsonSchema keyword '{name}' must be a number"
        )));
    }
    if rules.subject == Subject::Document {
        return Ok(());
    }
    let mut specified = DocBuilder::new();
    specified.append(name, limit);
    if let Some(exclusive) = exclusive {
        specified.append(exclusive_name, RawBsonRef::Boolean(exclusive));
    }
    rules.rules.push(Rule {
        keyword: name,
        specified: specified.finish(),
        test: test(owned(limit), exclusive == Some(true)),
    });
    Ok(())
}

fn parse_array_rules(keywords: &Keywords<'_>, rules: &mut Rules) -> Result<()> {
    add_size(keywords, rules, "minItems", Test::MinItems)?;
    add_size(keywords, rules, "maxItems", Test::MaxItems)?;
    if keywords.boolean("uniqueItems")? == Some(true) {
        rules.add_for_values("uniqueItems", &[RawBsonRef::Boolean(true)], || {
            Ok(Test::UniqueItems)
        })?;
    }
    let mut by_position = None;
    if let Some(operand) = keywords.get("items") {
        let test = match operand {
            RawBsonRef::Array(array) => {
                let schemas = items(array)
                    .map(parse_item)
                    .collect::<Result<Vec<Schema>>>()?;
                by_position = Some(schemas.len());
                Test::ItemsByPosition(schemas)
            }
            RawBsonRef::Document(schema) => Test::Items(parse(schema, Subject::Value)?),
            other => {
                return Err(type_mismatch(format!(
                    "$jsonSchema keyword 'items' must be an array or an object, not {}",
                    type_name(other)
                )));
            }
        };
        rules.add_for_values("items", &[], || Ok(test))?;
    }
    let Some(operand) = keywords.get("additionalItems") else {
        return Ok(());
    };
    let others = match operand {
        RawBsonRef::Boolean(true) => return Ok(()),
        RawBsonRef::Boolean(false) => Others::Forbidden,
        RawBsonRef::Document(schema) => Others::Schema(Box::new(parse(schema, Subject::Value)?)),
        other => {
            return Err(type_mismatch(format!(
                "$jsonSchema keyword 'additionalItems' must be either an object or a boolean, but got a {}",
                type_name(other)
            )));
        }
    };
    // Where no item has a schema of its own, none is additional.
    match by_position {
        Some(from) => rules.add_for_values("additionalItems", quoted_if_flag(&operand), || {
            Ok(Test::AdditionalItems { from, others })
        }),
        None => Ok(()),
    }
}

fn parse_item(item: RawBsonRef<'_>) -> Result<Schema> {
    match item {
        RawBsonRef::Document(schema) => parse(schema, Subject::Value),
        other => Err(type_mismatch(format!(
            "$jsonSchema keyword 'items' requires that each element of the array is an object, but found a {}",
            type_name(other)
        ))),
    }
}

fn parse_logical_rules(keywords: &Keywords<'_>, rules: &mut Rules) -> Result<()> {
    add_alternatives(keywords, rules, "allOf", Test::AllOf)?;
    add_alternatives(keywords, rules, "anyOf", Test::AnyOf)?;
    add_alternatives(keywords, rules, "oneOf", Test::OneOf)?;
    if let Some(operand) = keywords.get("not") {
        let RawBsonRef::Document(schema) = operand else {
            return Err(type_mismatch(format!(
                "$jsonSchema keyword 'not' must be an object, but found an element of type {}",
                type_name(operand)
            )));
        };
        let schema = parse(schema, rules.subject)?;
        rules.add("not", &[], Test::Not(Box::new(schema)));
    }
    if let Some(operand) = keywords.get("enum") {
        let values = parse_enum(operand)?;
        rules.add("enum", &[operand], Test::Enum(values));
    }
    Ok(())
}

fn add_alternatives(
    keywords: &Keywords<'_>,
    rules: &mut Rules,
    name: &'static str,
    test: fn(Vec<Schema>) -> Test,
) -> Result<()> {
    let Some(operand) = keywords.get(name) else {
        return Ok(());
    };
    let RawBsonRef::Array(array) = operand else {
        return Err(type_mismatch(format!(
            "$jsonSchema keyword '{name}' must be an array, but found an element of type {}",
            type_name(operand)
        )));
    };
    let parse_one = |item| match item {
        RawBsonRef::Document(schema) => parse(schema, rules.subject),
        other => Err(type_mismatch(format!(
            "$jsonSchema keyword '{name}' must be an array of objects, but found an element of type {}",
            type_name(other)
        ))),
    };
    let schemas = items(array)
        .map(parse_one)
        .collect::<Result<Vec<Schema>>>()?;
    if schemas.is_empty() {
        return Err(bad_array(name, "must be a non-empty array"));
    }
    rules.add(name, &[], test(schemas));
    Ok(())
}

fn bad_array(name: &str, reason: &str) -> pinion_wire::Error {
    failed_to_parse(format!("$jsonSchema keyword '{name}' {reason}"))
}

/// The values of `enum` in comparison order. Of a whole document's, those that are no documents
/// match nothing.
fn parse_enum(operand: RawBsonRef<'_>) -> Result<Vec<RawBson>> {
    let RawBsonRef::Array(array) = operand else {
        return Err(type_mismatch(format!(
            "$jsonSchema keyword 'enum' must be an array, but found an element of type {}",
            type_name(operand)
        )));
    };
    let mut values = Vec::new();
    for item in items(array) {
        spend(4 * STEP)?;
        values.push(Unordered::new(item));
    }
    if values.is_empty() {
        return Err(bad_array("enum", "cannot be an empty array"));
    }
    values.sort_by(Unordered::compare);
    if values
        .windows(2)
        .any(|pair| pair[0].compare(&pair[1]).is_eq())
    {
        return Err(bad_array("enum", "array cannot contain duplicate values."));
    }
    Ok(values.into_iter().map(Unordered::into_owned).collect())
}

/// A whole number that is not negative.
fn parse_size(name: &str, value: RawBsonRef<'_>) -> Result<i64> {
    let refused = |reason: &str| {
        Err(failed_to_parse(format!(
            "{reason} in: {}",
            element_text(name, value)
        )))
    };
    if !is_number(value) {
        return refused("Expected a number");
    }
    match exact_i64(value) {
        Some(size) if size >= 0 => Ok(size),
        Some(_) => refused("Expected a non-negative number"),
        None if matches!(value, RawBsonRef::Double(_)) && is_nan(value) => {
            refused("Expected an integer, but found NaN")
        }
        None => {
            let is_fraction =
                matches!(value, RawBsonRef::Double(_)) && truncated_i64(value).is_some();
            Err(failed_to_parse(format!(
                "{}: {}",
                if is_fraction {
                    "Expected an integer"
                } else {
                    "Cannot represent as a 64-bit integer"
                },
                element_text(name, value)
            )))
        }
    }
}
