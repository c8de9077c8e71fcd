//! The parser of filters.

use std::sync::Arc;

use pinion_bson::{
    ElementType, Number, RawBsonRef, RawDocument, type_from_alias, type_from_number,
};
use pinion_collation::Collation;
use pinion_wire::Result;

use super::bits::{BitOp, BitTest};
use super::node::{CompareOp, Leaf, Node, Predicate, TypeSet};
use super::schema::parse_schema;
use super::text::TextPredicate;
use crate::error::{bad_value, error, failed_to_parse, type_mismatch};
use crate::expression::{Expression, Variables};
use crate::geo::{GeoPredicate, Near, is_near};
use crate::limits::MAX_FILTER_DEPTH;
use crate::number::{exact_i64, truncated_i64};
use crate::operator_uses::{OperatorKind, note};
use crate::path::Path;
use crate::regex::Regex;
use crate::text::{document_text, element_text, value_text};
use crate::value::{
    array_document, count, elements, field, first, is_empty, is_nan, is_number, items, owned,
};

/// The operators that MongoDB rewrites a schema into. It answers to them without documenting them;
/// here a schema stays one.
const INTERNAL_SCHEMA: &str = "$_internalSchema";

/// Where the parser stands.
#[derive(Clone, Copy)]
struct Place<'v> {
    variables: &'v Variables,
    depth: usize,
    /// Outside every `$elemMatch`, where `$expr` and its like may stand.
    top: bool,
    special: Special,
    /// `$near` and its like are allowed: something gives the documents in their order.
    near: bool,
}

/// Which of the operators on whole documents may stand in a filter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    All,
    /// Those that look at nothing but the document: no `$text`, no `$near`, no `$where`.
    OfOneDocument,
    /// Where only a part of a document is matched.
    None,
}

impl<'v> Place<'v> {
    fn new(variables: &'v Variables, special: Special) -> Place<'v> {
        Place {
            variables,
            depth: 0,
            top: true,
            special,
            near: false,
        }
    }

    fn deeper(self) -> Result<Place<'v>> {
        if self.depth >= MAX_FILTER_DEPTH {
            return Err(bad_value(format!(
                "exceeded maximum query tree depth of {MAX_FILTER_DEPTH}"
            )));
        }
        Ok(Place {
            depth: self.depth + 1,
            ..self
        })
    }

    /// Refuses an operator on the whole document where it may not stand.
    fn check_special(self, name: &str) -> Result<()> {
        let beyond = matches!(name, "$text" | "$where");
        if self.special == Special::All || self.special == Special::OfOneDocument && !beyond {
            return Ok(());
        }
        let code = if beyond { 2 } else { 224 };
        Err(error(
            code,
            format!("{name} is not allowed in this context"),
        ))
    }

    fn collation(self) -> Option<&'v Collation> {
        self.variables.collation.as_deref()
    }

    fn in_elem_match(self) -> Result<Place<'v>> {
        Ok(Place {
            top: false,
            ..self.deeper()?
        })
    }
}

pub(super) fn parse_filter(filter: &RawDocument, variables: &Variables) -> Result<Node> {
    let root = parse_document(filter, Place::new(variables, Special::All))?;
    super::text::check(&root)?;
    Ok(root)
}

pub(super) fn parse_validator(filter: &RawDocument, variables: &Variables) -> Result<Node> {
    parse_document(filter, Place::new(variables, Special::OfOneDocument))
}

/// A filter that may ask for an order by distance, once and beside what else it asks.
pub(super) fn parse_query(filter: &RawDocument, variables: &Variables) -> Result<Node> {
    let place = Place {
        near: true,
        ..Place::new(variables, Special::All)
    };
    let root = parse_document(filter, place)?;
    super::text::check(&root)?;
    let is_near = |node: &Node| matches!(node, Node::Leaf(leaf) if matches!(leaf.predicate, Predicate::Near(_)));
    match root.nears() {
        0 => Ok(root),
        1 if root.conjuncts().iter().any(is_near) => Ok(root),
        1 => Err(bad_value("geoNear must be top-level expr")),
        _ => Err(bad_value("Too many geoNear expressions")),
    }
}

pub(super) fn parse_nested(filter: &RawDocument, variables: &Variables) -> Result<Node> {
    parse_document(filter, Place::new(variables, Special::None))
}

fn parse_document(document: &RawDocument, place: Place<'_>) -> Result<Node> {
    let mut parts = Vec::new();
    for (name, value) in elements(document) {
        if let Some(operator) = name.strip_prefix('$') {
            note(OperatorKind::Match, name);
            match operator {
                "and" => parts.push(Node::and(parse_list("$and", value, place)?)),
                "or" => parts.push(Node::or(
                    parse_list("$or", value, place)?,
                    place.collation(),
                )),
                "nor" => parts.push(nor(parse_list("$nor", value, place)?)),
                "comment" | "atomic" | "isolated" => {}
                // The parts of a DBRef are fields when they stand in an array's item.
                "ref" | "id" | "db" if !place.top => {
                    parts.push(leaf(name, comparison(name, CompareOp::Eq, value)?))
                }
                "alwaysTrue" | "alwaysFalse" => {
                    if exact_i64(value) != Some(1) {
                        return Err(failed_to_parse(format!(
                            "{name} must be an integer value of 1"
                        )));
                    }
                    parts.push(if operator == "alwaysTrue" {
                        Node::AlwaysTrue
                    } else {
                        Node::AlwaysFalse
                    });
                }
                "expr" => {
                    if !place.top {
                        return Err(bad_value(
                            "$expr can only be applied to the top-level document",
                        ));
                    }
                    place.check_special(name)?;
                    parts.push(parse_expr(value, place.variables)?);
                }
                "where"
                    if !matches!(
                        value,
                        RawBsonRef::String(_)
                            | RawBsonRef::JavaScriptCode(_)
                            | RawBsonRef::JavaScriptCodeWithScope(_)
                    ) =>
                {
                    return Err(bad_value("$where got bad type"));
                }
                "jsonSchema" => {
                    place.check_special(name)?;
                    parts.push(parse_json_schema(value)?);
                }
                "sampleRate" => {
                    if !place.top {
                        return Err(bad_value(
                            "$sampleRate can only be applied to the top-level document",
                        ));
                    }
                    place.check_special(name)?;
                    parts.push(parse_sample_rate(value, place.variables)?);
                }
                "where" | "text" => {
                    if !place.top {
                        return Err(bad_value(format!(
                            "{name} can only be applied to the top-level document"
                        )));
                    }
                    place.check_special(name)?;
                    if operator == "where" {
                        return Err(bad_value(
                            "no globalScriptEngine in $where parsing: $where is not supported",
                        ));
                    }
                    parts.push(Node::Text(Box::new(TextPredicate::parse(value)?)));
                }
                _ if name.starts_with(INTERNAL_SCHEMA) => return Err(unsupported(name)),
                _ => {
                    return Err(bad_value(format!(
                        "unknown top level operator: {name}. If you have a field name that starts with a '$' \
                         symbol, consider using $getField or $setField."
                    )));
                }
            }
            continue;
        }
        match value {
            RawBsonRef::Document(operators) if is_operator_document(operators, false) => {
                parts.extend(parse_operators(name, operators, place)?);
            }
            RawBsonRef::RegularExpression(regex) => {
                note(OperatorKind::Match, "$regex");
                let regex = Regex::compile(regex.pattern.as_str(), regex.options.as_str())?;
                parts.push(leaf(name, Predicate::Regex(regex)));
            }
            _ => {
                note(OperatorKind::Match, "$eq");
                parts.push(leaf(name, comparison(name, CompareOp::Eq, value)?));
            }
        }
    }
    Ok(Node::and(parts))
}

/// The refusal of an operator that MongoDB has and Pinion does not offer.
fn unsupported(name: &str) -> pinion_wire::Error {
    error(115, format!("the query operator {name} is not supported"))
}

/// Whether a value is a document of operators: its first field starts with `$` and it is no DBRef.
fn is_operator_document(document: &RawDocument, allow_incomplete_dbref: bool) -> bool {
    let Some((name, _)) = first(document) else {
        return false;
    };
    if !name.starts_with('$') {
        return false;
    }
    let has = |name| field(document, name).is_some();
    let dbref = if allow_incomplete_dbref {
        has("$ref") || has("$id") || has("$db")
    } else {
        has("$ref") && has("$id")
    };
    !dbref
}

fn leaf(path: &str, predicate: Predicate) -> Node {
    Node::Leaf(Leaf::new(Path::parse(path), predicate))
}

fn not(node: Node) -> Node {
    Node::Not(Box::new(node))
}

/// A `$nor` of one predicate is its negation, which an index may serve.
fn nor(mut children: Vec<Node>) -> Node {
    match &children[..] {
        [Node::Leaf(_)] => children.pop().map_or(Node::AlwaysTrue, not),
        _ => Node::Nor(children),
    }
}

fn parse_list(name: &str, value: RawBsonRef<'_>, place: Place<'_>) -> Result<Vec<Node>> {
    let RawBsonRef::Array(array) = value else {
        return Err(bad_value(format!("{name} must be an array")));
    };
    let place = place.deeper()?;
    let mut nodes = Vec::new();
    for item in items(array) {
        let RawBsonRef::Document(document) = item else {
            return Err(bad_value("$or/$and/$nor entries need to be full objects"));
        };
        nodes.push(parse_document(document, place)?);
    }
    if nodes.is_empty() {
        return Err(bad_value("$and/$or/$nor must be a nonempty array"));
    }
    Ok(nodes)
}

fn parse_expr(value: RawBsonRef<'_>, variables: &Variables) -> Result<Node> {
    let mut source = pinion_bson::DocBuilder::new();
    source.append("$expr", value);
    Ok(Node::Expr(
        Box::new(Expression::parse_filter(value, variables)?),
        source.finish(),
    ))
}

/// `$sampleRate`: the document matches with this probability.
fn parse_sample_rate(rate: RawBsonRef<'_>, variables: &Variables) -> Result<Node> {
    let Some(number) = Number::from_value(rate) else {
        return Err(bad_value("argument to $sampleRate must be a numeric type"));
    };
    let number = number.to_f64();
    if !(0.0..=1.0).contains(&number) {
        return Err(bad_value(
            "numeric argument to $sampleRate must be in [0, 1]",
        ));
    }
    if number == 0.0 {
        return Ok(Node::AlwaysFalse);
    }
    if number == 1.0 {
        return Ok(Node::AlwaysTrue);
    }
    let mut expression = pinion_bson::DocBuilder::new();
    expression.start_array("$lt");
    expression.push_document();
    expression.start_document("$rand").end();
    expression.end();
    expression.push(number);
    expression.end();
    let expression = expression.finish();
    let mut source = pinion_bson::DocBuilder::new();
    source.append("$sampleRate", rate);
    Ok(Node::Expr(
        Box::new(Expression::parse(
            RawBsonRef::Document(&expression),
            variables,
        )?),
        source.finish(),
    ))
}

fn parse_json_schema(value: RawBsonRef<'_>) -> Result<Node> {
    let RawBsonRef::Document(schema) = value else {
        return Err(type_mismatch("$jsonSchema must be an object"));
    };
    let mut source = pinion_bson::DocBuilder::new();
    source.append("$jsonSchema", value);
    let schema = parse_schema(schema)?;
    Ok(Node::Schema(Arc::new(schema), source.finish()))
}

/// Equality or an order with a value.
fn comparison(path: &str, op: CompareOp, value: RawBsonRef<'_>) -> Result<Predicate> {
    match value {
        RawBsonRef::Undefined => return Err(bad_value("cannot compare to undefined")),
        RawBsonRef::RegularExpression(_) if op != CompareOp::Eq => {
            return Err(bad_value(format!(
                "Can't have RegEx as arg to predicate over field '{path}'."
            )));
        }
        _ => {}
    }
    Ok(Predicate::Compare {
        op,
        value: owned(value),
    })
}

fn parse_operators(path: &str, operators: &RawDocument, place: Place<'_>) -> Result<Vec<Node>> {
    if let Some((name, RawBsonRef::Document(_) | RawBsonRef::Array(_))) = first(operators)
        && is_near(name)
    {
        note(OperatorKind::Match, name);
        return Ok(vec![parse_near(path, operators, place)?]);
    }
    let mut nodes = Vec::new();
    for (name, value) in elements(operators) {
        note(OperatorKind::Match, name);
        let predicate = match name {
            "$eq" => comparison(path, CompareOp::Eq, value)?,
            "$gt" => comparison(path, CompareOp::Gt, value)?,
            "$gte" => comparison(path, CompareOp::Gte, value)?,
            "$lt" => comparison(path, CompareOp::Lt, value)?,
            "$lte" => comparison(path, CompareOp::Lte, value)?,
            "$ne" => {
                if matches!(value, RawBsonRef::RegularExpression(_)) {
                    return Err(bad_value("Can't have regex as arg to $ne."));
                }
                nodes.push(not(leaf(path, comparison(path, CompareOp::Eq, value)?)));
                continue;
            }
            "$in" => parse_in("$in", value, place)?,
            "$nin" => {
                nodes.push(not(leaf(path, parse_in("$nin", value, place)?)));
                continue;
            }
            "$not" => {
                nodes.push(parse_not(path, value, place)?);
                continue;
            }
            "$exists" => {
                let node = leaf(path, Predicate::Exists);
                nodes.push(if crate::value::is_true(value) {
                    node
                } else {
                    not(node)
                });
                continue;
            }
            "$type" => Predicate::Type(parse_type(path, value)?),
            "$mod" => parse_mod(value)?,
            "$size" => parse_size(value)?,
            "$all" => {
                nodes.push(parse_all(path, value, place)?);
                continue;
            }
            "$elemMatch" => parse_elem_match(value, place)?,
            "$regex" => Predicate::Regex(parse_regex(operators)?),
            "$options" => {
                if field(operators, "$regex").is_none() {
                    return Err(bad_value("$options needs a $regex"));
                }
                continue;
            }
            "$bitsAllSet" => Predicate::Bits(BitTest::parse(BitOp::AllSet, path, value)?),
            "$bitsAllClear" => Predicate::Bits(BitTest::parse(BitOp::AllClear, path, value)?),
            "$bitsAnySet" => Predicate::Bits(BitTest::parse(BitOp::AnySet, path, value)?),
            "$bitsAnyClear" => Predicate::Bits(BitTest::parse(BitOp::AnyClear, path, value)?),
            "$geoWithin" | "$within" | "$geoIntersects" => {
                Predicate::Geo(Arc::new(GeoPredicate::parse(operators)?))
            }
            name if is_near(name) => {
                return Err(bad_value(format!(
                    "near must be first in: {}",
                    document_text(operators)
                )));
            }
            "$where" => return Err(bad_value("$where cannot be applied to a field")),
            _ if name.starts_with(INTERNAL_SCHEMA) => return Err(unsupported(name)),
            _ => return Err(bad_value(format!("unknown operator: {name}"))),
        };
        nodes.push(leaf(path, predicate));
    }
    Ok(nodes)
}

fn parse_near(path: &str, operators: &RawDocument, place: Place<'_>) -> Result<Node> {
    if !place.near {
        return Err(error(
            5_626_500,
            "$geoNear, $near, and $nearSphere are not allowed in this context, as these operators require sorting \
             geospatial data. If you do not need sort, consider using $geoWithin instead. Check out \
             https://dochub.mongodb.org/core/near-sort-operation and \
             https://dochub.mongodb.org/core/nearSphere-sort-operation for more details.",
        ));
    }
    Ok(leaf(
        path,
        Predicate::Near(Arc::new(Near::parse(operators)?)),
    ))
}

fn parse_in(name: &str, value: RawBsonRef<'_>, place: Place<'_>) -> Result<Predicate> {
    let RawBsonRef::Array(array) = value else {
        return Err(bad_value(format!("{name} needs an array")));
    };
    let mut values = Vec::new();
    let mut regexes = Vec::new();
    for item in items(array) {
        match item {
            RawBsonRef::Document(document) if is_operator_document(document, false) => {
                return Err(bad_value("cannot nest $ under $in"));
            }
            RawBsonRef::Undefined => {
                return Err(bad_value("InMatchExpression equality cannot be undefined"));
            }
            RawBsonRef::RegularExpression(regex) => {
                regexes.push(Regex::compile(
                    regex.pattern.as_str(),
                    regex.options.as_str(),
                )?);
            }
            item => values.push(owned(item)),
        }
    }
    Ok(Predicate::any_of(values, regexes, place.collation()))
}

fn parse_not(path: &str, value: RawBsonRef<'_>, place: Place<'_>) -> Result<Node> {
    match value {
        RawBsonRef::RegularExpression(regex) => {
            let regex = Regex::compile(regex.pattern.as_str(), regex.options.as_str())?;
            Ok(not(leaf(path, Predicate::Regex(regex))))
        }
        RawBsonRef::Document(operators) => {
            if is_empty(operators) {
                return Err(bad_value("$not cannot be empty"));
            }
            Ok(not(Node::and(parse_operators(
                path,
                operators,
                place.deeper()?,
            )?)))
        }
        _ => Err(bad_value("$not needs a regex or a document")),
    }
}

fn parse_regex(operators: &RawDocument) -> Result<Regex> {
    let mut pattern = None;
    let mut options: Option<&str> = None;
    for (name, value) in elements(operators) {
        match (name, value) {
            ("$regex", RawBsonRef::String(text)) => pattern = Some(text),
            ("$regex", RawBsonRef::RegularExpression(regex)) => {
                pattern = Some(regex.pattern.as_str());
                if !regex.options.as_str().is_empty() {
                    if options.is_some_and(|o| !o.is_empty()) {
                        return Err(error(51074, "options set in both $regex and $options"));
                    }
                    options = Some(regex.options.as_str());
                }
            }
            ("$regex", _) => return Err(bad_value("$regex has to be a string")),
            ("$options", RawBsonRef::String(text)) => {
                if options.is_some_and(|o| !o.is_empty()) {
                    return Err(error(51075, "options set in both $regex and $options"));
                }
                options = Some(text);
            }
            ("$options", _) => return Err(bad_value("$options has to be a string")),
            _ => {}
        }
    }
    Regex::compile(pattern.unwrap_or_default(), options.unwrap_or_default())
}

/// The types of `$type`, also those of the aggregation's and schema's uses.
pub(crate) fn parse_type(path: &str, value: RawBsonRef<'_>) -> Result<TypeSet> {
    let mut set = TypeSet::default();
    match value {
        RawBsonRef::Array(array) => {
            for item in items(array) {
                add_type(&mut set, item)?;
            }
            if set == TypeSet::default() {
                return Err(failed_to_parse(format!(
                    "{path} must match at least one type"
                )));
            }
        }
        other => add_type(&mut set, other)?,
    }
    Ok(set)
}

fn add_type(set: &mut TypeSet, value: RawBsonRef<'_>) -> Result<()> {
    let kind: ElementType = match value {
        RawBsonRef::String("number") => {
            set.all_numbers = true;
            return Ok(());
        }
        RawBsonRef::String("missing") => {
            return Err(bad_value(
                "'missing' is not a legal type name. To query for non-existence of a field, use {$exists:false}.",
            ));
        }
        RawBsonRef::String(alias) => type_from_alias(alias)
            .ok_or_else(|| bad_value(format!("Unknown type name alias: {alias}")))?,
        number if is_number(number) => {
            let code = exact_i64(number).and_then(|code| i32::try_from(code).ok());
            match code {
                Some(0) => {
                    return Err(bad_value(
                        "Invalid numerical type code: 0. Instead use {$exists:false}.",
                    ));
                }
                code => code.and_then(type_from_number).ok_or_else(|| {
                    bad_value(format!(
                        "Invalid numerical type code: {}",
                        value_text(number)
                    ))
                })?,
            }
        }
        _ => {
            return Err(type_mismatch(
                "type must be represented as a number or a string",
            ));
        }
    };
    if !set.types.contains(&kind) {
        set.types.push(kind);
    }
    Ok(())
}

fn parse_mod(value: RawBsonRef<'_>) -> Result<Predicate> {
    let RawBsonRef::Array(array) = value else {
        return Err(bad_value("malformed mod, needs to be an array"));
    };
    let parts: Vec<RawBsonRef<'_>> = items(array).take(3).collect();
    let (divisor, remainder) = match parts[..] {
        [divisor, remainder] => (divisor, remainder),
        [_, _, ..] => return Err(bad_value("malformed mod, too many elements")),
        _ => return Err(bad_value("malformed mod, not enough elements")),
    };
    let integer = |which: &str, value: RawBsonRef<'_>| {
        if !is_number(value) {
            return Err(bad_value(format!("malformed mod, {which} not a number")));
        }
        truncated_i64(value).ok_or_else(|| {
            let reason = if is_nan(value) {
                format!(
                    "Unable to coerce NaN/Inf to integral type: {}",
                    element_text("", value)
                )
            } else {
                format!(
                    "Out of bounds coercing to integral value: {}",
                    element_text("", value)
                )
            };
            bad_value(format!(
                "malformed mod, {which} value is invalid :: caused by :: {reason}"
            ))
        })
    };
    let divisor = integer("divisor", divisor)?;
    let remainder = integer("remainder", remainder)?;
    if divisor == 0 {
        return Err(bad_value("divisor cannot be 0"));
    }
    Ok(Predicate::Mod { divisor, remainder })
}

fn parse_size(value: RawBsonRef<'_>) -> Result<Predicate> {
    let element = || element_text("$size", value);
    if !is_number(value) {
        return Err(bad_value(format!(
            "Failed to parse $size. Expected a number in: {}",
            element()
        )));
    }
    match exact_i64(value) {
        Some(size) if size < 0 => Err(bad_value(format!(
            "Failed to parse $size. Expected a non-negative number in: {}",
            element()
        ))),
        Some(size) if size <= i64::from(i32::MAX) => Ok(Predicate::Size(size)),
        Some(_) => Err(bad_value(format!(
            "Failed to parse $size. Cannot represent as a 64-bit integer: {}",
            element()
        ))),
        None if is_nan(value) => Err(bad_value(format!(
            "Failed to parse $size. Expected an integer, but found NaN in: {}",
            element()
        ))),
        None => Err(bad_value(format!(
            "Failed to parse $size. Expected an integer: {}",
            element()
        ))),
    }
}

fn parse_all(path: &str, value: RawBsonRef<'_>, place: Place<'_>) -> Result<Node> {
    let RawBsonRef::Array(array) = value else {
        return Err(bad_value("$all needs an array"));
    };
    if count(array_document(array)) == 0 {
        return Ok(Node::AlwaysFalse);
    }
    let is_elem_match = |value: RawBsonRef<'_>| match value {
        RawBsonRef::Document(d) => first(d).is_some_and(|(name, _)| name == "$elemMatch"),
        _ => false,
    };
    let consistent = items(array).next().is_some_and(is_elem_match);
    let mut nodes = Vec::new();
    for item in items(array) {
        let predicate = match item {
            RawBsonRef::Document(document) if consistent => {
                if !is_elem_match(item) {
                    return Err(bad_value("$all/$elemMatch has to be consistent"));
                }
                let (_, operand) = first(document).unwrap_or(("", RawBsonRef::Null));
                parse_elem_match(operand, place)?
            }
            _ if consistent => return Err(bad_value("$all/$elemMatch has to be consistent")),
            RawBsonRef::RegularExpression(regex) => Predicate::Regex(Regex::compile(
                regex.pattern.as_str(),
                regex.options.as_str(),
            )?),
            RawBsonRef::Document(document) if is_operator_document(document, false) => {
                return Err(bad_value("no $ expressions in $all"));
            }
            item => comparison(path, CompareOp::Eq, item)?,
        };
        nodes.push(leaf(path, predicate));
    }
    Ok(Node::and(nodes))
}

fn parse_elem_match(value: RawBsonRef<'_>, place: Place<'_>) -> Result<Predicate> {
    let RawBsonRef::Document(document) = value else {
        return Err(bad_value("$elemMatch needs an Object"));
    };
    let place = place.in_elem_match()?;
    let on_values = is_operator_document(document, true)
        && !first(document).is_some_and(|(name, _)| {
            matches!(
                name,
                "$and"
                    | "$or"
                    | "$nor"
                    | "$where"
                    | "$sampleRate"
                    | "$expr"
                    | "$comment"
                    | "$text"
                    | "$jsonSchema"
                    | "$alwaysTrue"
                    | "$alwaysFalse"
            )
        });
    if on_values {
        Ok(Predicate::ElemMatchValue(parse_operators(
            "", document, place,
        )?))
    } else {
        Ok(Predicate::ElemMatchObject(Box::new(parse_document(
            document, place,
        )?)))
    }
}
