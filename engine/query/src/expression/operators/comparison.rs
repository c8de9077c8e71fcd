//! `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`, `$cmp`, `$not`, `$type` and `$isNumber`.

use std::cmp::Ordering;

use pinion_bson::{RawBsonRef, compare_values};
use pinion_wire::Result;

use super::{Arity, Operator, Value};
use crate::value::is_number;

pub(super) const OPERATORS: &[Operator] = &[
    Operator {
        name: "$eq",
        arity: Arity::Exactly(2),
        evaluate: |v| holds(v, Ordering::is_eq),
    },
    Operator {
        name: "$ne",
        arity: Arity::Exactly(2),
        evaluate: |v| holds(v, Ordering::is_ne),
    },
    Operator {
        name: "$gt",
        arity: Arity::Exactly(2),
        evaluate: |v| holds(v, Ordering::is_gt),
    },
    Operator {
        name: "$gte",
        arity: Arity::Exactly(2),
        evaluate: |v| holds(v, Ordering::is_ge),
    },
    Operator {
        name: "$lt",
        arity: Arity::Exactly(2),
        evaluate: |v| holds(v, Ordering::is_lt),
    },
    Operator {
        name: "$lte",
        arity: Arity::Exactly(2),
        evaluate: |v| holds(v, Ordering::is_le),
    },
    Operator {
        name: "$cmp",
        arity: Arity::Exactly(2),
        evaluate: |v| Ok(Value::int(order(&v[0], &v[1]) as i32)),
    },
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
pub(crate) fn order(a: &Value<'_>, b: &Value<'_>) -> Ordering {
    match (a.as_ref(), b.as_ref()) {
        (Some(a), Some(b)) => compare_values(a, b),
        (None, None) => Ordering::Equal,
        (None, Some(RawBsonRef::MinKey)) => Ordering::Greater,
        (Some(RawBsonRef::MinKey), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
    }
}

fn holds<'a>(values: &[Value<'a>], test: fn(Ordering) -> bool) -> Result<Value<'a>> {
    Ok(Value::boolean(test(order(&values[0], &values[1]))))
}
