//! Whether a filter implies another one: a partial index holds every document of a query that
//! implies its filter.
//!
//! The answer may be no where it is yes; never the other way round.

use std::sync::Arc;

use pinion_bson::{RawBson, canonical_type};
use pinion_collation::Collation;

use crate::collation::{compare, has_strings};
use crate::matcher::{CompareOp, Leaf, Matcher, Node, Predicate, TypeSet};
use crate::regex::Regex;
use crate::value::is_nan;

/// Whether every document for which all these predicates hold satisfies the filter. The predicates
/// have this collation.
pub(super) fn implies(
    predicates: &[&[Node]],
    collation: Option<&Collation>,
    filter: &Matcher,
) -> bool {
    let alike = collation == filter.collation().map(Arc::as_ref);
    Implication { alike, collation }.of_all(predicates, filter.root())
}

/// How the strings of both sides compare.
#[derive(Clone, Copy)]
struct Implication<'c> {
    /// Both sides compare strings in this way; otherwise nothing is concluded from comparisons of
    /// strings.
    alike: bool,
    collation: Option<&'c Collation>,
}

impl Implication<'_> {
    fn of_all(self, predicates: &[&[Node]], filter: &Node) -> bool {
        match filter {
            Node::AlwaysTrue => true,
            Node::And(parts) => parts.iter().all(|part| self.of_all(predicates, part)),
            _ => predicates
                .iter()
                .flat_map(|list| list.iter())
                .any(|node| self.by_node(node, filter)),
        }
    }

    fn by_node(self, node: &Node, filter: &Node) -> bool {
        match (node, filter) {
            (Node::AlwaysFalse, _) | (_, Node::AlwaysTrue) => true,
            (_, Node::And(parts)) => parts.iter().all(|part| self.by_node(node, part)),
            (Node::And(parts), _) => parts.iter().any(|part| self.by_node(part, filter)),
            (Node::Or(parts), _) => parts.iter().all(|part| self.by_node(part, filter)),
            (_, Node::Or(parts)) => parts.iter().any(|part| self.by_node(node, part)),
            (Node::Leaf(leaf), Node::Leaf(wanted)) if leaf.path == wanted.path => {
                self.by_leaf(&leaf.predicate, &wanted.predicate)
            }
            (Node::Not(inner), Node::Leaf(wanted)) => match &**inner {
                Node::Leaf(leaf) if leaf.path == wanted.path => {
                    matches!(wanted.predicate, Predicate::Exists) && matches_missing(leaf)
                }
                _ => false,
            },
            _ => false,
        }
    }

    fn by_leaf(self, have: &Predicate, wanted: &Predicate) -> bool {
        match wanted {
            Predicate::Compare { op, value } => self.of_comparison(have, *op, value),
            Predicate::In {
                values,
                regexes,
                has_null,
            } => match have {
                Predicate::Compare {
                    op: CompareOp::Eq,
                    value,
                } => self.contains(values, value) || (*has_null && *value == RawBson::Null),
                Predicate::In {
                    values: have,
                    regexes: have_regexes,
                    has_null: have_null,
                } => {
                    have.iter().all(|value| self.contains(values, value))
                        && have_regexes.iter().all(|regex| has_regex(regexes, regex))
                        && (*has_null || !have_null)
                }
                Predicate::Regex(regex) => has_regex(regexes, regex),
                _ => false,
            },
            Predicate::Exists => implies_existence(have),
            Predicate::Geo(wanted) => {
                matches!(have, Predicate::Geo(have) if have.source == wanted.source)
            }
            Predicate::Type(wanted) => match have {
                Predicate::Type(have) => is_subset(have, wanted),
                Predicate::Compare {
                    op: CompareOp::Eq,
                    value,
                } => is_of_type_alone(value, wanted),
                _ => false,
            },
            _ => false,
        }
    }

    fn contains(self, values: &[RawBson], value: &RawBson) -> bool {
        values
            .iter()
            .any(|other| self.by_comparison(CompareOp::Eq, value, CompareOp::Eq, other))
    }

    fn of_comparison(self, have: &Predicate, op: CompareOp, value: &RawBson) -> bool {
        match have {
            Predicate::Compare {
                op: have_op,
                value: have,
            } => self.by_comparison(*have_op, have, op, value),
            Predicate::In {
                values,
                regexes,
                has_null,
            } => {
                regexes.is_empty()
                    && values
                        .iter()
                        .all(|have| self.by_comparison(CompareOp::Eq, have, op, value))
                    && (!has_null || self.by_comparison(CompareOp::Eq, &RawBson::Null, op, value))
            }
            _ => false,
        }
    }

    fn by_comparison(
        self,
        have_op: CompareOp,
        have: &RawBson,
        op: CompareOp,
        value: &RawBson,
    ) -> bool {
        use CompareOp::{Eq, Gt, Gte, Lt, Lte};
        let (have, value) = (have.as_raw_bson_ref(), value.as_raw_bson_ref());
        // A comparison matches values of its operand's type alone.
        if canonical_type(have.element_type()) != canonical_type(value.element_type()) {
            return false;
        }
        if is_nan(have) || is_nan(value) {
            let admits_equal = |op| matches!(op, Eq | Lte | Gte);
            return is_nan(have) && is_nan(value) && admits_equal(have_op) && admits_equal(op);
        }
        if !self.alike && has_strings(value) {
            return false;
        }
        let order = compare(self.collation, have, value);
        match (have_op, op) {
            (Eq, Eq) => order.is_eq(),
            (Eq | Lt | Lte, Lte) | (Lt, Lt) => order.is_le(),
            (Eq | Lte, Lt) => order.is_lt(),
            (Eq | Gt | Gte, Gte) | (Gt, Gt) => order.is_ge(),
            (Eq | Gte, Gt) => order.is_gt(),
            _ => false,
        }
    }
}

/// Whether a negation of this predicate leaves only documents that have the field.
fn matches_missing(leaf: &Leaf) -> bool {
    match &leaf.predicate {
        Predicate::Compare {
            op: CompareOp::Eq,
            value,
        } => *value == RawBson::Null,
        Predicate::In { has_null, .. } => *has_null,
        _ => false,
    }
}

fn has_regex(regexes: &[Regex], regex: &Regex) -> bool {
    regexes
        .iter()
        .any(|other| other.pattern == regex.pattern && other.options == regex.options)
}

/// Whether a document that satisfies the predicate has the field.
fn implies_existence(have: &Predicate) -> bool {
    match have {
        // What is above the least value, or below the greatest, may be missing.
        Predicate::Compare { op, value } => match value {
            RawBson::MinKey | RawBson::MaxKey => *op == CompareOp::Eq,
            value => *value != RawBson::Null,
        },
        Predicate::In { has_null, .. } => !has_null,
        Predicate::Regex(_)
        | Predicate::Exists
        | Predicate::Type(_)
        | Predicate::Mod { .. }
        | Predicate::Bits(_)
        | Predicate::Size(_)
        | Predicate::ElemMatchObject(_)
        | Predicate::ElemMatchValue(_)
        | Predicate::Geo(_)
        | Predicate::Near(_) => true,
    }
}

fn is_subset(have: &TypeSet, wanted: &TypeSet) -> bool {
    (!have.all_numbers || wanted.all_numbers)
        && have.types.iter().all(|kind| wanted.contains(*kind))
}

/// Whether only values of a wanted type equal this one. Numbers of different types do, and texts
/// equal symbols.
fn is_of_type_alone(value: &RawBson, wanted: &TypeSet) -> bool {
    let kind = value.element_type();
    if pinion_bson::is_numeric(kind) {
        return wanted.all_numbers;
    }
    matches!(
        value,
        RawBson::ObjectId(_) | RawBson::Boolean(_) | RawBson::DateTime(_)
    ) && wanted.contains(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawdoc};

    #[track_caller]
    fn check(query: RawDocumentBuf, filter: RawDocumentBuf, expected: bool) {
        let parse = |filter: &RawDocumentBuf| Matcher::parse(filter).expect("a filter");
        let (matcher, wanted) = (parse(&query), parse(&filter));
        let implied = implies(&[matcher.root().conjuncts()], None, &wanted);
        assert_eq!(implied, expected, "{query:?} implies {filter:?}");
    }

    #[test]
    fn comparisons() {
        let above = || rawdoc! { "a": { "$gt": 5 } };
        check(rawdoc! { "a": 6 }, above(), true);
        check(rawdoc! { "a": 5 }, above(), false);
        check(rawdoc! { "a": { "$gt": 5.0 } }, above(), true);
        check(rawdoc! { "a": { "$gte": 5 } }, above(), false);
        check(rawdoc! { "a": { "$gte": 6 }, "b": 1 }, above(), true);
        check(rawdoc! { "a": { "$in": [6, 7] } }, above(), true);
        check(rawdoc! { "a": { "$in": [5, 7] } }, above(), false);
        check(rawdoc! { "a": "x" }, above(), false);
        check(rawdoc! { "b": 6 }, above(), false);
        check(rawdoc! { "a": { "$not": { "$gt": 5 } } }, above(), false);
        check(
            rawdoc! { "a": { "$lt": 5 } },
            rawdoc! { "a": { "$lte": 5 } },
            true,
        );
        check(
            rawdoc! { "a": { "$lt": 6 } },
            rawdoc! { "a": { "$lt": 5 } },
            false,
        );
    }

    #[test]
    fn several_predicates() {
        let both = || rawdoc! { "a": 1, "b": { "$gt": 2 } };
        check(rawdoc! { "a": 1, "b": 3, "c": 4 }, both(), true);
        check(rawdoc! { "a": 1 }, both(), false);
        let either = || rawdoc! { "$or": [{ "a": { "$gt": 9 } }, { "b": 2 }] };
        check(rawdoc! { "b": 2 }, either(), true);
        check(rawdoc! { "$or": [{ "a": 10 }, { "b": 2 }] }, either(), true);
        check(
            rawdoc! { "$or": [{ "a": 10 }, { "c": 2 }] },
            either(),
            false,
        );
        check(rawdoc! {}, rawdoc! {}, true);
        check(rawdoc! {}, rawdoc! { "a": 1 }, false);
    }

    #[test]
    fn existence_and_types() {
        let exists = || rawdoc! { "a": { "$exists": true } };
        check(rawdoc! { "a": 1 }, exists(), true);
        check(rawdoc! { "a": null }, exists(), false);
        check(rawdoc! { "a": { "$ne": null } }, exists(), true);
        check(rawdoc! { "a": { "$ne": 1 } }, exists(), false);
        check(rawdoc! { "a": { "$in": [1, null] } }, exists(), false);
        check(
            rawdoc! { "a": { "$elemMatch": { "b": 1 } } },
            exists(),
            true,
        );
        let text = || rawdoc! { "a": { "$type": "string" } };
        check(rawdoc! { "a": { "$type": "string" } }, text(), true);
        check(
            rawdoc! { "a": { "$type": ["string", "bool"] } },
            text(),
            false,
        );
        let listed = || rawdoc! { "a": { "$in": [1, 2, 3] } };
        check(rawdoc! { "a": 2 }, listed(), true);
        check(rawdoc! { "a": { "$in": [1, 3] } }, listed(), true);
        check(rawdoc! { "a": { "$in": [1, 4] } }, listed(), false);
    }
}
