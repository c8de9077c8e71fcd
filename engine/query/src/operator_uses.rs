//! The operators that a command uses, counted while what its client has written is parsed.
//!
//! The node parses filters and pipelines of its own too, with the same parsers: those count inside
//! of [`counted`] alone.

use std::collections::BTreeMap;

use crate::expression::expression_names;
use crate::work;

/// Where an operator stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum OperatorKind {
    Expression,
    GroupAccumulator,
    Match,
    WindowFunction,
}

// The names of each list ascend, as they are searched.
const ACCUMULATORS: [&str; 24] = [
    "$addToSet",
    "$avg",
    "$bottom",
    "$bottomN",
    "$concatArrays",
    "$count",
    "$first",
    "$firstN",
    "$last",
    "$lastN",
    "$max",
    "$maxN",
    "$median",
    "$mergeObjects",
    "$min",
    "$minN",
    "$percentile",
    "$push",
    "$setUnion",
    "$stdDevPop",
    "$stdDevSamp",
    "$sum",
    "$top",
    "$topN",
];

const MATCH: [&str; 36] = [
    "$all",
    "$alwaysFalse",
    "$alwaysTrue",
    "$and",
    "$bitsAllClear",
    "$bitsAllSet",
    "$bitsAnyClear",
    "$bitsAnySet",
    "$comment",
    "$elemMatch",
    "$eq",
    "$exists",
    "$expr",
    "$geoIntersects",
    "$geoNear",
    "$geoWithin",
    "$gt",
    "$gte",
    "$in",
    "$jsonSchema",
    "$lt",
    "$lte",
    "$mod",
    "$ne",
    "$near",
    "$nearSphere",
    "$nin",
    "$nor",
    "$not",
    "$or",
    "$regex",
    "$sampleRate",
    "$size",
    "$text",
    "$type",
    "$within",
];

/// Functions of windows that are no accumulators.
const OVER_WINDOWS: [&str; 12] = [
    "$covariancePop",
    "$covarianceSamp",
    "$denseRank",
    "$derivative",
    "$documentNumber",
    "$expMovingAvg",
    "$integral",
    "$linearFill",
    "$locf",
    "$minMaxScaler",
    "$rank",
    "$shift",
];

impl OperatorKind {
    pub const ALL: [OperatorKind; 4] = [
        OperatorKind::Expression,
        OperatorKind::GroupAccumulator,
        OperatorKind::Match,
        OperatorKind::WindowFunction,
    ];

    /// The operators of this kind, in no order.
    pub fn names(self) -> Box<dyn Iterator<Item = &'static str>> {
        match self {
            OperatorKind::Expression => Box::new(expression_names()),
            OperatorKind::GroupAccumulator => Box::new(ACCUMULATORS.into_iter()),
            OperatorKind::Match => Box::new(MATCH.into_iter()),
            OperatorKind::WindowFunction => {
                let windowed = ACCUMULATORS.into_iter();
                let windowed = windowed.filter(|name| *name != "$mergeObjects");
                Box::new(windowed.chain(OVER_WINDOWS))
            }
        }
    }
}

impl OperatorKind {
    fn known(self, name: &str) -> Option<&'static str> {
        let among = |names: &[&'static str]| {
            let place = names.binary_search(&name).ok()?;
            Some(names[place])
        };
        match self {
            OperatorKind::Expression => expression_names().find(|known| *known == name),
            OperatorKind::GroupAccumulator => among(&ACCUMULATORS),
            OperatorKind::Match => among(&MATCH),
            OperatorKind::WindowFunction => among(&OVER_WINDOWS).or_else(|| among(&ACCUMULATORS)),
        }
    }
}

/// How often operators are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorUses(BTreeMap<(OperatorKind, &'static str), u64>);

impl OperatorUses {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn of(&self, kind: OperatorKind, name: &'static str) -> u64 {
        self.0.get(&(kind, name)).copied().unwrap_or_default()
    }

    /// Adds uses of an operator.
    pub fn note(&mut self, kind: OperatorKind, name: &'static str, count: u64) {
        *self.0.entry((kind, name)).or_default() += count;
    }

    pub fn add(&mut self, other: &OperatorUses) {
        for (&(kind, name), &count) in &other.0 {
            self.note(kind, name, count);
        }
    }
}

/// Calls `parse`, and gives the operators in what it parses.
pub fn counted<T>(parse: impl FnOnce() -> T) -> (T, OperatorUses) {
    work::counting(parse)
}

/// Counts an operator that was parsed, where operators are counted.
pub(crate) fn note(kind: OperatorKind, name: &str) {
    work::count(|uses| {
        if let Some(name) = kind.known(name) {
            uses.note(kind, name, 1);
        }
    });
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;
    use crate::{Matcher, Pipeline, Variables};

    fn check(uses: &OperatorUses, expected: &[(OperatorKind, &'static str, u64)]) {
        let found = uses.0.iter().map(|((kind, name), n)| (*kind, *name, *n));
        let found: Vec<_> = found.collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_filters_say_plainly_and_with_operators_counts() {
        let filter = rawdoc! {
            "a": 1,
            "b": { "$gt": 1, "$not": { "$in": [5] } },
            "$or": [{ "c": { "$elemMatch": { "$eq": 1 } } }, { "$expr": { "$and": [true, { "$abs": "$x" }] } }],
            "d": { "e": { "$lt": 5 } },
        };
        let (parsed, uses) = counted(|| Matcher::parse(&filter));
        assert!(parsed.is_ok());
        let (expression, matched) = (OperatorKind::Expression, OperatorKind::Match);
        let expected = [
            (expression, "$abs", 1),
            (expression, "$and", 1),
            (matched, "$elemMatch", 1),
            (matched, "$eq", 3),
            (matched, "$expr", 1),
            (matched, "$gt", 1),
            (matched, "$in", 1),
            (matched, "$not", 1),
            (matched, "$or", 1),
        ];
        check(&uses, &expected);
        // Outside nothing is counted, and nothing of what was before.
        assert!(Matcher::parse(&filter).is_ok());
        let (parsed, uses) = counted(|| Matcher::parse(&rawdoc! { "a": { "$ne": 1 } }));
        assert!(parsed.is_ok());
        check(&uses, &[(matched, "$ne", 1)]);
    }

    #[test]
    fn accumulators_count_where_they_stand() {
        let command = rawdoc! { "pipeline": [
            { "$group": { "_id": "$a", "n": { "$sum": { "$add": ["$b", 1] } }, "c": { "$count": {} } } },
            { "$setWindowFields": {
                "sortBy": { "n": 1 },
                "output": { "r": { "$rank": {} }, "s": { "$sum": "$n", "window": { "documents": [-1, 0] } } },
            } },
        ] };
        let stages = command.get_array("pipeline").expect("an array");
        let (parsed, uses) = counted(|| Pipeline::parse(stages, &Variables::default()));
        assert!(parsed.is_ok());
        let (group, window) = (OperatorKind::GroupAccumulator, OperatorKind::WindowFunction);
        let expected = [
            (OperatorKind::Expression, "$add", 1),
            (group, "$count", 1),
            (group, "$sum", 1),
            (window, "$rank", 1),
            (window, "$sum", 1),
        ];
        check(&uses, &expected);
    }

    #[test]
    fn names_are_those_of_the_parsers() {
        let newest = pinion_wire::LanguageVersion::V8_3;
        let is_known = |name| crate::expression::is_expression_name(name, newest);
        assert!(expression_names().all(is_known));
        for kind in OperatorKind::ALL {
            let mut names: Vec<_> = kind.names().collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{kind:?}");
            assert!(names.iter().all(|name| kind.known(name) == Some(*name)));
        }
    }
}
