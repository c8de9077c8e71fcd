//! `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`, `$cmp`, `$not`, `$type` and `$isNumber`.

use std::cmp::Ordering;

use pinion_bson::RawBsonRef;
use pinion_collation::Collation;
use pinion_wire::Result;

use super::{Arity, Comparing, Operator, Value};
use crate::collation::compare;
use crate::value::is_number;

pub(super) const COMPARING: &[Comparing] = &[
    Comparing {
        name: "$eq",
        arity: Arity::Exactly(2),
        evaluate: |v, c| holds(v, c, Ordering::is_eq),
    },
    Comparing {
        name: "$ne",
        arity: Arity::Exactly(2),
        evaluate: |v, c| holds(v, c, Ordering::is_ne),
    },
    Comparing {
        name: "$gt",
        arity: Arity::Exactly(2),
        evaluate: |v, c| holds(v, c, Ordering::is_gt),
    },
    Comparing {
        name: "$gte",
        arity: Arity::Exactly(2),
        evaluate: |v, c| holds(v, c, Ordering::is_ge),
    },
    Comparing {
        name: "$lt",
        arity: Arity::Exactly(2),
        evaluate: |v, c| holds(v, c, Ordering::is_lt),
    },
    Comparing {
        name: "$lte",
        arity: Arity::Exactly(2),
        evaluate: |v, c| holds(v, c, Ordering::is_le),
    },
    Comparing {
        name: "$cmp",
        arity: Arity::Exactly(2),
        evaluate: |v, c| Ok(Value::int(order(&v[0], &v[1], c) as i32)),
    },
];

pub(super) const OPERATORS: &[Operator] = &[
    Operator {
        name: "$not",
        arity: Arity::Exactly(1),
        evaluate: |v| Ok(Value::boolean(!v[0].is_true())),
    },
    Operator {
        name: "$type",
        arity: Arity::Exactly(1),
        evaluate: |v| Ok(Value::string(v[0].type_name())),
    },
    Operator {
        name: "$isNumber",
        arity: Arity::Exactly(1),
        evaluate: |v| Ok(Value::boolean(v[0].as_ref().is_some_and(is_number))),
    },
];

/// The comparison order with missing values below undefined and null.
pub(crate) fn order(a: &Value<'_>, b: &Value<'_>, collation: Option<&Collation>) -> Ordering {
    match (a.as_ref(), b.as_ref()) {
        (Some(a), Some(b)) => compare(collation, a, b),
        (None, None) => Ordering::Equal,
        (None, Some(RawBsonRef::MinKey)) => Ordering::Greater,
        (Some(RawBsonRef::MinKey), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
    }
}

fn holds<'a>(
    values: &[Value<'a>],
    collation: Option<&Collation>,
    test: fn(Ordering) -> bool,
) -> Result<Value<'a>> {
    Ok(Value::boolean(test(order(
        &values[0], &values[1], collation,
    ))))
}
