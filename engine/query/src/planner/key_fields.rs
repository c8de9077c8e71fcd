//! What a filter leaves of the fields of a key in which no document has an array, whatever indexes
//! there are: the shard key of a collection.

use super::bounds::{Constraint, FilterStrings, constraints};
use super::candidate::field_bounds;
use super::interval::Intervals;
use crate::index::IndexSpec;
use crate::limits::MAX_KEY_ALTERNATIVES;
use crate::matcher::{Matcher, Node};

/// The bounds of each field of a key, once for each alternative that the filter's `$or` leaves: a
/// document that matches, and has no array in the key, lies within those of one alternative. There
/// is none where nothing matches.
///
/// The key compares strings by their bytes; where the filter does not, a predicate with a string in
/// it bounds nothing.
pub fn key_field_bounds(matcher: &Matcher, key: &IndexSpec) -> Vec<Vec<Intervals>> {
    let strings = match matcher.collation() {
        None => FilterStrings::Plain,
        Some(_) => FilterStrings::Incomparable,
    };
    let mut out = Vec::new();
    if !expand(matcher.root(), &[], strings, key, &mut out) {
        // Too many: what holds for all of them bounds the key.
        let all = constraints(matcher.root().conjuncts(), strings);
        out = vec![bounds(key, &all)];
    }
    out.retain(|bounds| !bounds.iter().any(Intervals::is_empty));
    out
}

fn bounds(key: &IndexSpec, found: &[Constraint]) -> Vec<Intervals> {
    let bounds = field_bounds(key, found);
    bounds.into_iter().map(|(bounds, _)| bounds).collect()
}

/// Adds the alternatives of a node, whose predicates hold beside those that are given. False where
/// there are too many.
fn expand(
    node: &Node,
    given: &[Constraint],
    strings: FilterStrings<'_>,
    key: &IndexSpec,
    out: &mut Vec<Vec<Intervals>>,
) -> bool {
    let conjuncts = node.conjuncts();
    if conjuncts.iter().any(|n| matches!(n, Node::AlwaysFalse)) {
        return true;
    }
    let mut found = given.to_vec();
    found.extend(constraints(conjuncts, strings));
    let branches = conjuncts.iter().find_map(|node| match node {
        Node::Or(branches) => Some(branches),
        _ => None,
    });
    if let Some(branches) = branches {
        return branches
            .iter()
            .all(|branch| expand(branch, &found, strings, key, out));
    }
    out.push(bounds(key, &found));
    out.len() <= MAX_KEY_ALTERNATIVES
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};
    use pinion_keystring::Strings;

    use super::*;

    #[track_caller]
    fn check(filter: RawDocumentBuf, expected: &[&str]) {
        let matcher = Matcher::parse(&filter).expect("a filter");
        let key = IndexSpec::new("key", &rawdoc! { "a": 1, "b": 1 }).expect("a pattern");
        let shown = |bounds: &Vec<Intervals>| -> String {
            let fields = bounds.iter().map(|intervals| {
                let texts = intervals.0.iter().map(|i| i.text(false, Strings::Plain));
                texts.collect::<Vec<_>>().join(" ")
            });
            fields.collect::<Vec<_>>().join("; ")
        };
        let mut found: Vec<String> = key_field_bounds(&matcher, &key).iter().map(shown).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{filter:?}");
    }

    #[test]
    fn alternatives() {
        let all = "[MinKey, MaxKey]";
        check(rawdoc! {}, &[&format!("{all}; {all}")]);
        check(rawdoc! { "a": 5 }, &[&format!("[5, 5]; {all}")]);
        check(
            rawdoc! { "a": { "$in": [5, 7] }, "b": { "$gt": 1 } },
            &["[5, 5] [7, 7]; (1, inf.0]"],
        );
        check(
            rawdoc! { "b": 2, "$or": [{ "a": 1 }, { "a": 3, "b": { "$in": [2, 9] } }] },
            &["[1, 1]; [2, 2]", "[3, 3]; [2, 2]"],
        );
        check(
            rawdoc! { "$or": [{ "a": 1 }, { "$or": [{ "a": 2 }, { "c": 1 }] }] },
            &[
                &format!("[1, 1]; {all}"),
                &format!("[2, 2]; {all}"),
                &format!("{all}; {all}"),
            ],
        );
        check(rawdoc! { "a": { "$gt": 5, "$lt": 5 } }, &[]);
        check(rawdoc! { "a": 1, "$and": [{ "a": 2 }] }, &[]);
        check(rawdoc! { "a": { "$in": [] } }, &[]);
    }
}
