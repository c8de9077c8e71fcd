//! The operators on arrays: `$push`, `$addToSet`, `$pull`.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, get_path};
use pinion_collation::Collation;
use pinion_wire::Result;

use crate::collation::{Ordered, compare, equal};
use crate::error::{bad_value, type_mismatch};
use crate::matcher::Matcher;
use crate::number::exact_i64;
use crate::text::document_text;
use crate::value::{count, elements, field, first, items, owned, type_name};
use crate::work::{STEP, spend};

/// `$push`
#[derive(Clone, Debug)]
pub(super) struct Push {
    values: Vec<RawBson>,
    slice: Option<i64>,
    sort: Option<ItemSort>,
    position: Option<i64>,
}

/// The order of `$sort`: whole items, or by fields of theirs.
#[derive(Clone, Debug)]
pub(crate) enum ItemSort {
    Whole { descending: bool },
    Fields(Vec<(String, bool)>),
}

/// An array value of these items.
pub(super) fn build(items: &[RawBson]) -> RawBson {
    build_kept(items, |_| true)
}

pub(super) fn build_kept(items: &[RawBson], keep: impl Fn(RawBsonRef<'_>) -> bool) -> RawBson {
    let mut builder = DocBuilder::new();
    builder.start_array("");
    for item in items
        .iter()
        .map(RawBson::as_raw_bson_ref)
        .filter(|item| keep(*item))
    {
        builder.push(item);
    }
    builder.end();
    let document = builder.finish();
    first(&document).map_or(RawBson::Null, |(_, value)| value.into())
}

impl Push {
    pub(super) fn parse(operand: RawBsonRef<'_>) -> Result<Push> {
        let modifiers = match operand {
            RawBsonRef::Document(document) if field(document, "$each").is_some() => document,
            other => {
                return Ok(Push {
                    values: vec![owned(other)],
                    slice: None,
                    sort: None,
                    position: None,
                });
            }
        };
        let mut push = Push {
            values: Vec::new(),
            slice: None,
            sort: None,
            position: None,
        };
        for (name, _) in elements(modifiers) {
            if !matches!(name, "$each" | "$slice" | "$sort" | "$position") {
                return Err(bad_value(format!("Unrecognized clause in $push: {name}")));
            }
            if elements(modifiers)
                .filter(|(other, _)| *other == name)
                .count()
                > 1
            {
                return Err(bad_value(format!("Only one {name} is supported.")));
            }
        }
        match field(modifiers, "$each") {
            Some(RawBsonRef::Array(array)) => push.values = items(array).map(owned).collect(),
            Some(other) => {
                return Err(bad_value(format!(
                    "The argument to $each in $push must be an array but it was of type: {}",
                    type_name(other)
                )));
            }
            None => {}
        }
        if let Some(value) = field(modifiers, "$slice") {
            push.slice = Some(exact_i64(value).ok_or_else(|| {
                bad_value(format!(
                    "The value for $slice must be an integer value but was given type: {}",
                    type_name(value)
                ))
            })?);
        }
        if let Some(value) = field(modifiers, "$sort") {
            push.sort = Some(ItemSort::parse(value)?);
        }
        if let Some(value) = field(modifiers, "$position") {
            push.position = Some(exact_i64(value).ok_or_else(|| {
                bad_value(format!(
                    "The value for $position must be an integer value, not of type: {}",
                    type_name(value)
                ))
            })?);
        }
        Ok(push)
    }

    /// Whether what it pushes stands at the end, behind everything that was there.
    pub(super) fn appends(&self) -> bool {
        self.slice.is_none() && self.sort.is_none() && self.position.is_none()
    }

    /// Whether it does something with an array of `items` items, whatever comes out: MongoDB counts
    /// a change where an item is added, even if the slice takes it away, where there is a sort, and
    /// where the slice takes something away.
    pub(super) fn rewrites(&self, items: usize) -> bool {
        let sliced = |slice: i64| slice.unsigned_abs() < items as u64;
        !self.values.is_empty() || self.sort.is_some() || self.slice.is_some_and(sliced)
    }

    pub(super) fn apply(
        &self,
        mut items: Vec<RawBson>,
        collation: Option<&Collation>,
    ) -> Result<RawBson> {
        let len = items.len() as i64;
        let at = match self.position {
            None => len,
            Some(position) if position < 0 => (len + position).max(0),
            Some(position) => position.min(len),
        } as usize;
        items.splice(at..at, self.values.iter().cloned());
        if let Some(sort) = &self.sort {
            items.sort_by(|a, b| sort.compare(a.as_raw_bson_ref(), b.as_raw_bson_ref(), collation));
        }
        if let Some(slice) = self.slice {
            let len = items.len() as i64;
            if slice >= 0 {
                items.truncate(slice.min(len) as usize);
            } else {
                items.drain(..(len.saturating_add(slice)).max(0) as usize);
            }
        }
        Ok(build(&items))
    }
}

impl ItemSort {
    pub(crate) fn parse(value: RawBsonRef<'_>) -> Result<ItemSort> {
        let direction = |value: RawBsonRef<'_>| match exact_i64(value) {
            Some(1) => Ok(false),
            Some(-1) => Ok(true),
            _ => Err(bad_value("The $sort element value must be either 1 or -1")),
        };
        match value {
            RawBsonRef::Document(pattern) => {
                if count(pattern) == 0 {
                    return Err(bad_value(
                        "The $sort pattern is empty when it should be a set of fields.",
                    ));
                }
                let mut fields = Vec::new();
                for (name, value) in elements(pattern) {
                    let descending = direction(value)?;
                    if name.is_empty() {
                        return Err(bad_value("The $sort field cannot be empty"));
                    }
                    if name.split('.').any(str::is_empty) {
                        return Err(bad_value(format!(
                            "The $sort field is a dotted field but has an empty part: {name}"
                        )));
                    }
                    fields.push((name.to_string(), descending));
                }
                Ok(ItemSort::Fields(fields))
            }
            number if crate::value::is_number(number) => Ok(ItemSort::Whole {
                descending: direction(number)?,
            }),
            _ => Err(bad_value(
                "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort embedded fields",
            )),
        }
    }

    pub(crate) fn compare(
        &self,
        a: RawBsonRef<'_>,
        b: RawBsonRef<'_>,
        collation: Option<&Collation>,
    ) -> Ordering {
        match self {
            ItemSort::Whole { descending: false } => compare(collation, a, b),
            ItemSort::Whole { descending: true } => compare(collation, b, a),
            ItemSort::Fields(fields) => fields
                .iter()
                .map(|(path, descending)| {
                    let order = compare(collation, sort_field(a, path), sort_field(b, path));
                    if *descending { order.reverse() } else { order }
                })
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal),
        }
    }
}

fn sort_field<'v>(item: RawBsonRef<'v>, path: &str) -> RawBsonRef<'v> {
    match item {
        RawBsonRef::Document(document) => get_path(document, path).unwrap_or(RawBsonRef::Null),
        _ => RawBsonRef::Null,
    }
}

/// `$addToSet`
#[derive(Clone, Debug)]
pub(super) struct AddToSet {
    values: Vec<RawBson>,
}

impl AddToSet {
    pub(super) fn parse(
        operand: RawBsonRef<'_>,
        collation: Option<&Arc<Collation>>,
    ) -> Result<AddToSet> {
        let each = match operand {
            RawBsonRef::Document(document) => first(document)
                .filter(|(name, _)| *name == "$each")
                .map(|e| (document, e.1)),
            _ => None,
        };
        let Some((document, each)) = each else {
            return Ok(AddToSet {
                values: vec![owned(operand)],
            });
        };
        let RawBsonRef::Array(array) = each else {
            return Err(type_mismatch(format!(
                "The argument to $each in $addToSet must be an array but it was of type {}",
                type_name(each)
            )));
        };
        if count(document) > 1 {
            return Err(bad_value(format!(
                "Found unexpected fields after $each in $addToSet: {}",
                document_text(document)
            )));
        }
        let mut seen = BTreeSet::new();
        let mut values: Vec<RawBson> = Vec::new();
        for item in items(array) {
            spend(STEP)?;
            if seen.insert(Ordered::new(item, collation.map(Arc::as_ref))) {
                values.push(owned(item));
            }
        }
        Ok(AddToSet { values })
    }

    pub(super) fn apply(&self, mut items: Vec<RawBson>, collation: Option<&Collation>) -> RawBson {
        let values = self.values.iter();
        let mut missing: BTreeSet<Ordered<'_>> = values
            .clone()
            .map(|value| Ordered::new(value.as_raw_bson_ref(), collation))
            .collect();
        for item in &items {
            if missing.is_empty() {
                break;
            }
            missing.remove(&Ordered::new(item.as_raw_bson_ref(), collation));
        }
        let new: Vec<RawBson> = values
            .filter(|value| missing.contains(&Ordered::new(value.as_raw_bson_ref(), collation)))
            .cloned()
            .collect();
        items.extend(new);
        build(&items)
    }
}

/// `$pull`
#[derive(Clone, Debug)]
pub(super) enum Pull {
    /// A filter on items that are documents.
    Documents(Box<Matcher>),
    /// A filter on items as values, under an empty field name.
    Values(Box<Matcher>),
    Equal(RawBson, Option<Arc<Collation>>),
}

impl Pull {
    pub(super) fn parse(
        operand: RawBsonRef<'_>,
        collation: Option<&Arc<Collation>>,
    ) -> Result<Pull> {
        match operand {
            RawBsonRef::Document(document) if !starts_with_path_operator(document) => Ok(
                Pull::Documents(Box::new(Matcher::parse_nested(document, collation)?)),
            ),
            RawBsonRef::Document(_) | RawBsonRef::RegularExpression(_) => {
                let mut filter = DocBuilder::new();
                filter.append("", operand);
                Ok(Pull::Values(Box::new(Matcher::parse_nested(
                    &filter.finish(),
                    collation,
                )?)))
            }
            other => Ok(Pull::Equal(owned(other), collation.cloned())),
        }
    }

    pub(super) fn matches(&self, item: RawBsonRef<'_>) -> bool {
        match self {
            Pull::Documents(matcher) => match item {
                RawBsonRef::Document(document) => matcher.matches(document).unwrap_or(false),
                _ => false,
            },
            Pull::Values(matcher) => {
                let mut document = DocBuilder::new();
                document.append("", item);
                matcher.matches(&document.finish()).unwrap_or(false)
            }
            Pull::Equal(value, collation) => {
                equal(collation.as_deref(), value.as_raw_bson_ref(), item)
            }
        }
    }
}

/// Whether the first field is an operator that stands behind a path.
fn starts_with_path_operator(document: &RawDocument) -> bool {
    const OPERATORS: &[&str] = &[
        "$eq",
        "$ne",
        "$gt",
        "$gte",
        "$lt",
        "$lte",
        "$in",
        "$nin",
        "$exists",
        "$type",
        "$mod",
        "$size",
        "$all",
        "$elemMatch",
        "$regex",
        "$options",
        "$bitsAllSet",
        "$bitsAllClear",
        "$bitsAnySet",
        "$bitsAnyClear",
        "$near",
        "$nearSphere",
        "$geoNear",
        "$geoWithin",
        "$within",
        "$geoIntersects",
    ];
    first(document).is_some_and(|(name, _)| OPERATORS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{rawbson, rawdoc};

    fn check(operand: RawBson, items: RawBson, expected: RawBson) {
        let push = Push::parse(operand.as_raw_bson_ref()).expect("parses");
        let RawBson::Array(array) = items else {
            panic!("an array")
        };
        let items = crate::value::items(&array).map(RawBson::from).collect();
        assert_eq!(
            push.apply(items, None).expect("applies"),
            expected,
            "{operand:?}"
        );
    }

    #[test]
    fn push() {
        check(rawbson!(4), rawbson!([1]), rawbson!([1, 4]));
        check(
            rawbson!({ "$each": [5, 6], "$position": 0 }),
            rawbson!([1, 2]),
            rawbson!([5, 6, 1, 2]),
        );
        check(
            rawbson!({ "$each": [5], "$position": -1 }),
            rawbson!([1, 2]),
            rawbson!([1, 5, 2]),
        );
        check(
            rawbson!({ "$each": [5], "$position": -9 }),
            rawbson!([1, 2]),
            rawbson!([5, 1, 2]),
        );
        check(
            rawbson!({ "$each": [5, 0], "$sort": 1, "$slice": 2 }),
            rawbson!([3, 1]),
            rawbson!([0, 1]),
        );
        check(
            rawbson!({ "$each": [5, 0], "$slice": -2 }),
            rawbson!([3, 1]),
            rawbson!([5, 0]),
        );
        check(
            rawbson!({ "$each": [], "$slice": 0 }),
            rawbson!([3, 1]),
            rawbson!([]),
        );
        check(
            rawbson!({ "$each": [{ "a": 2 }], "$sort": { "a": -1 } }),
            rawbson!([{ "a": 1 }, { "a": 3 }]),
            rawbson!([{ "a": 3 }, { "a": 2 }, { "a": 1 }]),
        );
    }

    #[test]
    fn pull() {
        let pulls = |operand: RawBson, item: RawBson| {
            Pull::parse(operand.as_raw_bson_ref(), None)
                .expect("parses")
                .matches(item.as_raw_bson_ref())
        };
        assert!(pulls(rawbson!({ "$gt": 1 }), rawbson!(2)));
        assert!(!pulls(rawbson!({ "$gt": 1 }), rawbson!(1)));
        assert!(pulls(rawbson!({ "x": 1 }), rawbson!({ "x": 1, "y": 2 })));
        assert!(!pulls(rawbson!({}), rawbson!(1)));
        assert!(pulls(rawbson!({}), rawbson!({ "x": 1 })));
        assert!(pulls(rawbson!(1), rawbson!(1.0)));
        assert!(!pulls(rawbson!([1]), rawbson!(1)));
        assert!(Pull::parse(RawBsonRef::Document(&rawdoc! { "$foo": 1 }), None).is_err());
    }
}
