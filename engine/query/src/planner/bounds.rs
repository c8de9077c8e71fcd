//! What the predicates of a filter leave of the fields of an index.
//!
//! Bounds never leave out a key of a matching document; what they let in beside is filtered after
//! the fetch.

use pinion_bson::{ElementType, RawBson, RawBsonRef};
use pinion_collation::Collation;

use super::interval::{Interval, Intervals, class_range};
use crate::collation::{has_strings, with_sort_keys};
use crate::expression::{Comparison, Expression};
use crate::matcher::{CompareOp, Node, Predicate, TypeSet};
use crate::value::is_nan;

/// One predicate at a path.
#[derive(Clone, Debug)]
pub(super) struct Constraint {
    pub path: String,
    pub intervals: Intervals,
    /// Whether a document without the field may match: a sparse index does not hold it.
    pub matches_missing: bool,
    /// Predicates of one `$elemMatch` speak of one item: they may be combined even where the path
    /// has arrays. The path of the array, and a number that distinguishes one `$elemMatch` from
    /// another.
    pub group: Option<(String, usize)>,
    /// A negation of equality with null: arrays on the path may give matching documents the key of
    /// null.
    pub negates_null: bool,
    /// Speaks of whole values, as expressions do, of which an array's keys say nothing.
    pub of_whole_values: bool,
    /// The operands are no documents or arrays, which a wildcard index holds by their parts.
    pub leaf_operands: bool,
    /// Rank for choosing among predicates that cannot be combined: lower is narrower.
    pub breadth: u8,
}

/// How an index can use the strings of a filter.
#[derive(Clone, Copy, Debug)]
pub(super) enum FilterStrings<'c> {
    /// Both compare strings by their bytes.
    Plain,
    /// Both have this collation: the bounds hold the sort keys of the strings.
    Collated(&'c Collation),
    /// They compare strings in different ways: where a filter compares with a value in which
    /// strings are or could be, the index's order says nothing.
    Incomparable,
}

impl FilterStrings<'_> {
    /// A value of the filter as the bounds hold it, if they can.
    fn value(self, value: &RawBson) -> Option<RawBson> {
        match self {
            FilterStrings::Plain => Some(value.clone()),
            _ if !has_strings(value.as_raw_bson_ref()) => Some(value.clone()),
            FilterStrings::Collated(collation) => {
                with_sort_keys(collation, value.as_raw_bson_ref())
            }
            FilterStrings::Incomparable => None,
        }
    }
}

/// Collects the predicates that all documents of the result satisfy.
pub(super) fn constraints(nodes: &[Node], strings: FilterStrings<'_>) -> Vec<Constraint> {
    let mut collector = Collector {
        strings,
        out: Vec::new(),
        groups: 0,
    };
    nodes.iter().for_each(|node| collector.node(node, "", None));
    collector.out
}

struct Collector<'c> {
    strings: FilterStrings<'c>,
    out: Vec<Constraint>,
    groups: usize,
}

impl Collector<'_> {
    fn node(&mut self, node: &Node, prefix: &str, group: Option<&(String, usize)>) {
        match node {
            Node::And(children) => children
                .iter()
                .for_each(|child| self.node(child, prefix, group)),
            Node::Leaf(leaf) => {
                let path = join(prefix, leaf.path.text());
                match &leaf.predicate {
                    Predicate::ElemMatchObject(inner) => {
                        self.groups += 1;
                        let group = (path.clone(), self.groups);
                        self.node(inner, &path, Some(&group));
                    }
                    Predicate::ElemMatchValue(nodes) => {
                        // An item that is a list is no key, so one inside says nothing of the keys.
                        let intervals = nodes
                            .iter()
                            .filter(|node| !is_elem_match(node))
                            .filter_map(|node| node_intervals(node, self.strings))
                            .map(|(intervals, _)| intervals)
                            .reduce(|both, intervals| both.intersect(&intervals));
                        if let Some(intervals) = intervals {
                            let constraint = self.push(path, intervals, false, group);
                            constraint.leaf_operands = nodes.iter().all(|node| match node {
                                Node::Leaf(leaf) => has_leaf_operands(&leaf.predicate),
                                _ => true,
                            });
                        }
                    }
                    _ => {
                        if let Some((intervals, matches_missing)) =
                            node_intervals(node, self.strings)
                        {
                            let constraint = self.push(path, intervals, matches_missing, group);
                            constraint.leaf_operands = has_leaf_operands(&leaf.predicate);
                        }
                    }
                }
            }
            Node::Not(inner) => {
                // A negation inside `$elemMatch` speaks of the item, as any other predicate.
                if let (Node::Leaf(leaf), Some((intervals, matches_missing))) =
                    (&**inner, node_intervals(node, self.strings))
                {
                    let path = join(prefix, leaf.path.text());
                    let constraint = self.push(path, intervals, matches_missing, group);
                    constraint.negates_null = matches_null(&leaf.predicate);
                    constraint.leaf_operands = has_leaf_operands(&leaf.predicate);
                }
            }
            Node::Expr(expression, _) if prefix.is_empty() => self.expression(expression),
            _ => {}
        }
    }

    /// What an expression demands of single fields. Missing values are below all others but the
    /// least, and their key is that of null.
    fn expression(&mut self, expression: &Expression) {
        for found in expression.comparisons() {
            if matches!(
                found.value,
                RawBson::Array(_) | RawBson::Undefined | RawBson::MinKey
            ) {
                continue;
            }
            let Some(value) = self.strings.value(found.value) else {
                continue;
            };
            let below = |inclusive| Interval::new(RawBson::MinKey, true, value.clone(), inclusive);
            let above = |inclusive| Interval::new(value.clone(), inclusive, RawBson::MaxKey, true);
            let is_null = value == RawBson::Null;
            let (interval, matches_missing) = match found.comparison {
                Comparison::Eq => (Interval::point(value.clone()), false),
                Comparison::Lt => (below(is_null), true),
                Comparison::Lte => (below(true), true),
                Comparison::Gt => (above(false), false),
                Comparison::Gte => (above(true), false),
            };
            let intervals = Intervals(vec![interval]);
            let constraint = self.push(found.path, intervals, matches_missing, None);
            constraint.of_whole_values = true;
            constraint.leaf_operands = is_leaf(found.value.as_raw_bson_ref());
        }
    }

    fn push(
        &mut self,
        path: String,
        intervals: Intervals,
        matches_missing: bool,
        group: Option<&(String, usize)>,
    ) -> &mut Constraint {
        let breadth = if intervals.single_point() {
            0
        } else if intervals.points_only() {
            1
        } else if intervals.is_all() {
            4
        } else if intervals.0.len() > 1 {
            3
        } else {
            2
        };
        self.out.push(Constraint {
            path,
            intervals,
            matches_missing,
            group: group.cloned(),
            negates_null: false,
            of_whole_values: false,
            leaf_operands: true,
            breadth,
        });
        self.out.last_mut().expect("just pushed")
    }
}

/// Whether the predicate holds for null.
fn matches_null(predicate: &Predicate) -> bool {
    match predicate {
        Predicate::Compare { op, value } => {
            matches!(op, CompareOp::Eq | CompareOp::Lte | CompareOp::Gte) && *value == RawBson::Null
        }
        Predicate::In { has_null, .. } => *has_null,
        _ => false,
    }
}

fn is_leaf(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Array(_) => false,
        RawBsonRef::Document(document) => crate::value::is_empty(document),
        _ => true,
    }
}

/// Whether no operand is an array or a document with fields. What equals an empty array has a key
/// of its own.
fn has_leaf_operands(predicate: &Predicate) -> bool {
    let is_equal_leaf = |value: RawBsonRef<'_>| {
        is_leaf(value)
            || matches!(value, RawBsonRef::Array(array) if crate::value::items(array).next().is_none())
    };
    match predicate {
        Predicate::Compare {
            op: CompareOp::Eq,
            value,
        } => is_equal_leaf(value.as_raw_bson_ref()),
        Predicate::Compare { value, .. } => is_leaf(value.as_raw_bson_ref()),
        Predicate::In { values, .. } => values.iter().all(|v| is_equal_leaf(v.as_raw_bson_ref())),
        _ => true,
    }
}

fn is_elem_match(node: &Node) -> bool {
    matches!(
        node,
        Node::Leaf(leaf) if matches!(leaf.predicate, Predicate::ElemMatchObject(_) | Predicate::ElemMatchValue(_))
    )
}

fn join(prefix: &str, path: &str) -> String {
    match (prefix.is_empty(), path.is_empty()) {
        (true, _) => path.to_string(),
        (_, true) => prefix.to_string(),
        _ => format!("{prefix}.{path}"),
    }
}

/// The keys of documents that satisfy a predicate, and whether those without the field may.
fn node_intervals(node: &Node, strings: FilterStrings<'_>) -> Option<(Intervals, bool)> {
    match node {
        Node::Leaf(leaf) => predicate_intervals(&leaf.predicate, strings),
        Node::Not(inner) => match &**inner {
            Node::Leaf(leaf) => match &leaf.predicate {
                // Missing fields are stored as null.
                Predicate::Exists => Some((null_point(), true)),
                Predicate::Compare { value, .. }
                    if !is_indexed_by_value(value.as_raw_bson_ref()) =>
                {
                    None
                }
                Predicate::In {
                    values, regexes, ..
                } if !regexes.is_empty()
                    || values
                        .iter()
                        .any(|v| !is_indexed_by_value(v.as_raw_bson_ref())) =>
                {
                    None
                }
                Predicate::Compare { .. } | Predicate::In { .. } => {
                    let (intervals, _) = predicate_intervals(&leaf.predicate, strings)?;
                    // An empty array is stored as undefined, and every negation matches it.
                    let mut rest = intervals.complement().0;
                    rest.push(Interval::point(RawBson::Undefined));
                    // Of the negations MongoDB lets a sparse index serve only that of null.
                    let is_not_null = matches!(
                        &leaf.predicate,
                        Predicate::Compare { op: CompareOp::Eq, value } if *value == RawBson::Null
                    );
                    Some((Intervals::union(rest), !is_not_null))
                }
                // Every key may belong to a match: reading the collection finds them with less.
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

/// Whether equality with the value means exactly one key: arrays are indexed by their items.
fn is_indexed_by_value(value: RawBsonRef<'_>) -> bool {
    !matches!(value, RawBsonRef::Array(_))
}

fn null_point() -> Intervals {
    Intervals(vec![Interval::point(RawBson::Null)])
}

fn predicate_intervals(
    predicate: &Predicate,
    strings: FilterStrings<'_>,
) -> Option<(Intervals, bool)> {
    Some(match predicate {
        Predicate::Compare {
            op: CompareOp::Eq,
            value,
        } => (equal(&strings.value(value)?), *value == RawBson::Null),
        Predicate::Compare { op, value } => {
            let value_ref = value.as_raw_bson_ref();
            let missing = match value_ref {
                RawBsonRef::Null => {
                    matches!(op, CompareOp::Lte | CompareOp::Gte)
                }
                RawBsonRef::MinKey => matches!(op, CompareOp::Gt | CompareOp::Gte),
                RawBsonRef::MaxKey => matches!(op, CompareOp::Lt | CompareOp::Lte),
                _ => false,
            };
            (range(*op, &strings.value(value)?), missing)
        }
        Predicate::In {
            values,
            regexes,
            has_null,
        } => {
            let mut all = Vec::new();
            for value in values {
                all.extend(equal(&strings.value(value)?).0);
            }
            for regex in regexes {
                all.extend(regex_intervals(regex, strings));
            }
            (Intervals::union(all), *has_null)
        }
        Predicate::Regex(regex) => (Intervals::union(regex_intervals(regex, strings)), false),
        Predicate::Exists => (Intervals::all(), false),
        Predicate::Mod { .. } => (Intervals(vec![all_numbers()]), false),
        Predicate::Type(types) => (type_intervals(types), false),
        // The keys say nothing about these.
        Predicate::Bits(_) | Predicate::Size(_) | Predicate::Geo(_) | Predicate::Near(_) => {
            return None;
        }
        Predicate::ElemMatchObject(_) | Predicate::ElemMatchValue(_) => (Intervals::all(), false),
    })
}

/// NaN sorts before every other number.
fn all_numbers() -> Interval {
    Interval::new(
        RawBson::Double(f64::NAN),
        true,
        RawBson::Double(f64::INFINITY),
        true,
    )
}

/// The keys of values of these types. An array is indexed by its items, so it may stand anywhere.
fn type_intervals(types: &TypeSet) -> Intervals {
    let mut all = Vec::new();
    if types.all_numbers {
        all.push(all_numbers());
    }
    for kind in &types.types {
        match type_interval(*kind) {
            Some(interval) => all.push(interval),
            None => return Intervals::all(),
        }
    }
    Intervals::union(all)
}

fn type_interval(kind: ElementType) -> Option<Interval> {
    let nothing = RawBson::Document(pinion_bson::RawDocumentBuf::new());
    let of_class = |value: RawBson| {
        class_range(value.as_raw_bson_ref())
            .map(|(least, beyond, belongs)| Interval::new(least, true, beyond, belongs))
    };
    match kind {
        ElementType::Double | ElementType::Int32 | ElementType::Int64 | ElementType::Decimal128 => {
            Some(all_numbers())
        }
        ElementType::String | ElementType::Symbol => of_class(RawBson::String(String::new())),
        ElementType::EmbeddedDocument => of_class(nothing),
        ElementType::Boolean => of_class(RawBson::Boolean(false)),
        ElementType::DateTime => of_class(RawBson::DateTime(pinion_bson::DateTime::MIN)),
        ElementType::ObjectId => of_class(RawBson::ObjectId(pinion_bson::ObjectId::from_bytes(
            [0; 12],
        ))),
        ElementType::Timestamp => of_class(RawBson::Timestamp(pinion_bson::Timestamp {
            time: 0,
            increment: 0,
        })),
        ElementType::Binary => of_class(RawBson::Binary(pinion_bson::Binary {
            subtype: pinion_bson::BinarySubtype::Generic,
            bytes: Vec::new(),
        })),
        ElementType::Null => Some(Interval::point(RawBson::Null)),
        ElementType::Undefined => Some(Interval::point(RawBson::Undefined)),
        ElementType::MinKey => Some(Interval::point(RawBson::MinKey)),
        ElementType::MaxKey => Some(Interval::point(RawBson::MaxKey)),
        _ => None,
    }
}

/// The keys of values that compare with an array in the way asked for. Arrays compare item by item,
/// and are indexed by their items: the first item of one that is less is no greater than the
/// operand's first, so one key lies below both bounds.
fn array_range(below: bool, value: &RawBson, array: &pinion_bson::RawArray) -> Intervals {
    let Some(first) = crate::value::items(array).next().map(RawBson::from) else {
        return Intervals::all();
    };
    let order = pinion_bson::compare_values(first.as_raw_bson_ref(), value.as_raw_bson_ref());
    let outer = if order.is_gt() == below {
        first
    } else {
        value.clone()
    };
    Intervals(vec![if below {
        Interval::new(RawBson::MinKey, true, outer, true)
    } else {
        Interval::new(outer, true, RawBson::MaxKey, true)
    }])
}

fn equal(value: &RawBson) -> Intervals {
    match value {
        RawBson::Array(array) => {
            // The array itself is a key where it is an item of another one; otherwise its items
            // are.
            let first = crate::value::items(array)
                .next()
                .map_or(RawBson::Undefined, RawBson::from);
            Intervals::union(vec![Interval::point(first), Interval::point(value.clone())])
        }
        value => Intervals(vec![Interval::point(value.clone())]),
    }
}

fn range(op: CompareOp, value: &RawBson) -> Intervals {
    let value_ref = value.as_raw_bson_ref();
    let inclusive = matches!(op, CompareOp::Lte | CompareOp::Gte);
    let below = matches!(op, CompareOp::Lt | CompareOp::Lte);
    if is_nan(value_ref) {
        return if inclusive {
            equal(value)
        } else {
            Intervals::none()
        };
    }
    match value_ref {
        RawBsonRef::Null => {
            if inclusive {
                null_point()
            } else {
                Intervals::none()
            }
        }
        RawBsonRef::MinKey if below => {
            if inclusive {
                Intervals(vec![Interval::point(RawBson::MinKey)])
            } else {
                Intervals::none()
            }
        }
        RawBsonRef::MaxKey if !below => {
            if inclusive {
                Intervals(vec![Interval::point(RawBson::MaxKey)])
            } else {
                Intervals::none()
            }
        }
        RawBsonRef::MinKey => Intervals(vec![Interval::new(
            RawBson::MinKey,
            inclusive,
            RawBson::MaxKey,
            true,
        )]),
        RawBsonRef::MaxKey => Intervals(vec![Interval::new(
            RawBson::MinKey,
            true,
            RawBson::MaxKey,
            inclusive,
        )]),
        RawBsonRef::Array(array) => array_range(below, value, array),
        other => match class_range(other) {
            Some((least, beyond, belongs)) => {
                let interval = if below {
                    Interval::new(least, true, value.clone(), inclusive)
                } else {
                    Interval::new(value.clone(), inclusive, beyond, belongs)
                };
                Intervals::union(vec![interval])
            }
            None => Intervals::all(),
        },
    }
}

fn regex_intervals(regex: &crate::regex::Regex, strings: FilterStrings<'_>) -> Vec<Interval> {
    let document = RawBson::Document(pinion_bson::RawDocumentBuf::new());
    // A regular expression matches characters, whatever the collation; sort keys do not begin as
    // their strings do.
    let by_bytes = matches!(strings, FilterStrings::Plain);
    let texts = match regex.literal_prefix() {
        Some((prefix, _)) if by_bytes && !prefix.is_empty() => {
            let beyond = after_prefix(&prefix).map_or(document, RawBson::String);
            Interval::new(RawBson::String(prefix), true, beyond, false)
        }
        _ => Interval::new(RawBson::String(String::new()), true, document, false),
    };
    let mut intervals = vec![texts];
    // A stored regular expression equal to this one matches as well.
    if let (Ok(pattern), Ok(options)) = ((&*regex.pattern).try_into(), (&*regex.options).try_into())
    {
        let value = RawBsonRef::RegularExpression(pinion_bson::RawRegexRef { pattern, options });
        intervals.push(Interval::point(value.into()));
    }
    intervals
}

/// The least text above all that begin with the prefix.
fn after_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        let next = match u32::from(last) + 1 {
            // The surrogates are no characters.
            0xd800 => 0xe000,
            next => next,
        };
        if let Some(next) = char::from_u32(next) {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}
