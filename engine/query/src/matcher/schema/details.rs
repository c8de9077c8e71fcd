//! Why a value breaks a schema, in the form that MongoDB documents for `errInfo.details`.

use pinion_bson::{DocBuilder, RawArray, RawBsonRef, RawDocument, RawDocumentBuf};

use super::eval::{missing, reaches};
use super::rules::{
    AdditionalProperties, Demands, Dependency, Others, Property, Rule, Schema, Test,
};
use super::unordered::first_duplicate;
use crate::limits::{MAX_CONSIDERED_VALUES, MAX_DETAILS_BYTES};
use crate::path::Path;
use crate::value::{bytes, count, elements, items, type_name};

/// The details of a failure while they are written. What would make them too large is left out, and
/// `finish` says so.
#[derive(Default)]
pub(crate) struct Details {
    pub(crate) out: DocBuilder,
    too_large: bool,
}

impl Details {
    /// Appends a value that comes from the document or from the rule.
    pub(crate) fn value(&mut self, name: &str, value: RawBsonRef<'_>) {
        if self.has_room(bytes(value)) {
            self.out.append(name, value);
        }
    }

    pub(crate) fn text(&mut self, name: &str, text: &str) {
        self.value(name, RawBsonRef::String(text));
    }

    pub(crate) fn operator(&mut self, name: &str) {
        self.text("operatorName", name);
    }

    pub(crate) fn reason(&mut self, reason: &str) {
        self.text("reason", reason);
    }

    pub(crate) fn document(&mut self, name: &str, document: &RawDocument) {
        self.value(name, RawBsonRef::Document(document));
    }

    pub(crate) fn position(&mut self, name: &str, position: usize) {
        self.value(name, RawBsonRef::Int32(position as i32));
    }

    /// The values that were examined: the first few of many.
    pub(crate) fn considered(&mut self, values: &[RawBsonRef<'_>]) {
        match values {
            [] => {}
            [one] => self.value("consideredValue", *one),
            many => {
                self.out.start_array("consideredValues");
                for value in many.iter().take(MAX_CONSIDERED_VALUES) {
                    if self.has_room(bytes(*value)) {
                        self.out.push(*value);
                    }
                }
                self.out.end();
                if many.len() > MAX_CONSIDERED_VALUES {
                    self.value("consideredValuesTruncated", RawBsonRef::Boolean(true));
                }
            }
        }
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        self.too_large |= self.out.len() + bytes > MAX_DETAILS_BYTES;
        !self.too_large
    }

    pub(crate) fn finish(self) -> RawDocumentBuf {
        if !self.too_large {
            return self.out.finish();
        }
        let mut out = DocBuilder::new();
        let reason = "the details of the failure exceed the largest size of a document";
        out.append("reason", RawBsonRef::String(reason));
        out.finish()
    }
}

/// Writes why the document breaks the schema.
pub(crate) fn schema_details(schema: &Schema, document: &RawDocument, to: &mut Details) {
    to.operator("$jsonSchema");
    write_annotations(schema, to);
    write_failures(
        "schemaRulesNotSatisfied",
        schema,
        RawBsonRef::Document(document),
        to,
    );
}

fn write_annotations(schema: &Schema, to: &mut Details) {
    for (name, text) in [
        ("title", &schema.title),
        ("description", &schema.description),
    ] {
        if let Some(text) = text {
            to.text(name, text);
        }
    }
}

/// The rules that the value breaks, as an array.
fn write_failures(name: &str, schema: &Schema, value: RawBsonRef<'_>, to: &mut Details) {
    to.out.start_array(name);
    for rule in schema.rules.iter().filter(|r| !r.test.accepts(value)) {
        to.out.push_document();
        write_rule(rule, value, to);
        to.out.end();
    }
    to.out.end();
}

fn write_rule(rule: &Rule, value: RawBsonRef<'_>, to: &mut Details) {
    to.operator(rule.keyword);
    if !crate::value::is_empty(&rule.specified) {
        to.document("specifiedAs", &rule.specified);
    }
    if let Some(reason) = reason_of_value(&rule.test) {
        to.reason(reason);
        to.considered(&[value]);
        match (&rule.test, value) {
            (Test::Type(_), _) => to.text("consideredType", type_name(value)),
            (Test::UniqueItems, RawBsonRef::Array(array)) => {
                if let Some(item) = first_duplicate(items(array)) {
                    to.value("duplicatedValue", item);
                }
            }
            _ => {}
        }
        return;
    }
    match (&rule.test, value) {
        (Test::AllOf(schemas) | Test::AnyOf(schemas), _) => write_schemas(schemas, value, to),
        (Test::OneOf(schemas), _) => write_one_of(schemas, value, to),
        (Test::Not(_), _) => to.reason("child expression matched"),
        (Test::Encrypted(types), _) => to.reason(match (types, value) {
            (Some(_), RawBsonRef::Binary(data)) if u8::from(data.subtype) == 6 => {
                "encrypted value has wrong type"
            }
            _ => "value was not encrypted",
        }),
        (test, RawBsonRef::Array(array)) => write_array_rule(test, array, to),
        (test, RawBsonRef::Document(object)) => write_object_rule(test, object, to),
        _ => {}
    }
}

/// The reason of the rules that are broken by the value as a whole.
fn reason_of_value(test: &Test) -> Option<&'static str> {
    Some(match test {
        Test::Pattern(_) => "regular expression did not match",
        Test::MaxLength(_) | Test::MinLength(_) => "specified string length was not satisfied",
        Test::MultipleOf(_) => "considered value is not a multiple of the specified value",
        Test::Maximum { .. } | Test::Minimum { .. } => "comparison failed",
        Test::MinItems(_) | Test::MaxItems(_) => "array did not match specified length",
        Test::UniqueItems => "found a duplicate item",
        Test::Enum(_) => "value was not found in enum",
        Test::Type(_) => "type did not match",
        _ => return None,
    })
}

fn write_array_rule(test: &Test, array: &RawArray, to: &mut Details) {
    let mut write_item = |reason: &str, position: usize, schema: &Schema, item| {
        to.reason(reason);
        to.position("itemIndex", position);
        write_failures("details", schema, item, to);
    };
    match test {
        Test::Items(schema) => {
            let broken = items(array).enumerate().find(|(_, i)| !schema.accepts(*i));
            if let Some((position, item)) = broken {
                write_item(
                    "At least one item did not match the sub-schema",
                    position,
                    schema,
                    item,
                );
            }
        }
        Test::ItemsByPosition(schemas) => {
            to.out.start_array("details");
            for (position, (schema, item)) in schemas.iter().zip(items(array)).enumerate() {
                if !schema.accepts(item) {
                    to.out.push_document();
                    to.position("itemIndex", position);
                    write_annotations(schema, to);
                    write_failures("details", schema, item, to);
                    to.out.end();
                }
            }
            to.out.end();
        }
        Test::AdditionalItems { from, others } => match others {
            Others::Forbidden => {
                to.reason("found additional items");
                to.out.start_array("additionalItems");
                for item in items(array).skip(*from) {
                    if to.has_room(bytes(item)) {
                        to.out.push(item);
                    }
                }
                to.out.end();
            }
            Others::Schema(schema) => {
                let mut additional = items(array).enumerate().skip(*from);
                if let Some((position, item)) = additional.find(|(_, i)| !schema.accepts(*i)) {
                    let reason = "At least one additional item did not match the sub-schema";
                    write_item(reason, position, schema, item);
                }
            }
        },
        _ => {}
    }
}

fn write_object_rule(test: &Test, object: &RawDocument, to: &mut Details) {
    match test {
        Test::Properties(properties) => {
            to.out.start_array("propertiesNotSatisfied");
            for property in properties {
                write_property(property, object, to);
            }
            to.out.end();
        }
        Test::PatternProperties(patterns) => {
            to.out.start_array("details");
            for pattern in patterns {
                for (name, value) in elements(object) {
                    if pattern.pattern.is_match(name) && !pattern.schema.accepts(value) {
                        to.out.push_document();
                        to.text("propertyName", name);
                        write_annotations(&pattern.schema, to);
                        to.text("regexMatched", &pattern.pattern.pattern);
                        write_failures("details", &pattern.schema, value, to);
                        to.out.end();
                    }
                }
            }
            to.out.end();
        }
        Test::AdditionalProperties(additional) => write_additional(additional, object, to),
        Test::Required(paths) => write_missing(missing(object, paths), to),
        Test::MinProperties(_) | Test::MaxProperties(_) => {
            to.reason("specified number of properties was not satisfied");
            to.position("numberOfProperties", count(object));
        }
        Test::Dependencies(all) => {
            to.out.start_array("failingDependencies");
            for dependency in all.iter().filter(|d| !d.is_met(object)) {
                write_dependency(dependency, object, to);
            }
            to.out.end();
        }
        _ => {}
    }
}

fn write_property(property: &Property, object: &RawDocument, to: &mut Details) {
    let mut broken = None;
    let accepted = reaches(object, &property.path, |value| {
        let accepted = property.schema.accepts(value);
        if !accepted {
            broken = broken.or(Some(value));
        }
        accepted
    });
    let (false, Some(value)) = (accepted, broken) else {
        return;
    };
    to.out.push_document();
    to.text("propertyName", property.path.text());
    write_annotations(&property.schema, to);
    write_failures("details", &property.schema, value, to);
    to.out.end();
}

fn write_additional(additional: &AdditionalProperties, object: &RawDocument, to: &mut Details) {
    match &additional.others {
        Others::Forbidden => {
            to.out.start_array("additionalProperties");
            for (name, _) in additional.of(object) {
                if to.has_room(name.len()) {
                    to.out.push(RawBsonRef::String(name));
                }
            }
            to.out.end();
        }
        Others::Schema(schema) => {
            let mut others = additional.of(object);
            if let Some((name, value)) = others.find(|(_, value)| !schema.accepts(*value)) {
                to.reason("at least one additional property did not match the subschema");
                to.text("failingProperty", name);
                write_failures("details", schema, value, to);
            }
        }
    }
}

fn write_missing<'a>(paths: impl Iterator<Item = &'a Path>, to: &mut Details) {
    to.out.start_array("missingProperties");
    for path in paths {
        if to.has_room(path.text().len()) {
            to.out.push(RawBsonRef::String(path.text()));
        }
    }
    to.out.end();
}

fn write_dependency(dependency: &Dependency, object: &RawDocument, to: &mut Details) {
    to.out.push_document();
    to.text("conditionalProperty", dependency.property.text());
    match &dependency.demands {
        Demands::Properties(paths) => write_missing(missing(object, paths), to),
        Demands::Schema(schema) => {
            write_annotations(schema, to);
            write_failures("details", schema, RawBsonRef::Document(object), to);
        }
    }
    to.out.end();
}

/// The alternatives that the value does not satisfy.
fn write_schemas(schemas: &[Schema], value: RawBsonRef<'_>, to: &mut Details) {
    to.out.start_array("schemasNotSatisfied");
    for (position, schema) in schemas.iter().enumerate() {
        if !schema.accepts(value) {
            to.out.push_document();
            to.position("index", position);
            write_annotations(schema, to);
            write_failures("details", schema, value, to);
            to.out.end();
        }
    }
    to.out.end();
}

fn write_one_of(schemas: &[Schema], value: RawBsonRef<'_>, to: &mut Details) {
    let satisfied = |(_, schema): &(usize, &Schema)| schema.accepts(value);
    let matching: Vec<usize> = schemas
        .iter()
        .enumerate()
        .filter(satisfied)
        .map(|(position, _)| position)
        .collect();
    if matching.is_empty() {
        return write_schemas(schemas, value, to);
    }
    to.reason("more than one subschema matched");
    to.out.start_array("matchingSchemaIndexes");
    for position in matching {
        to.out.push(RawBsonRef::Int32(position as i32));
    }
    to.out.end();
}
