//! `$toHashedIndexKey`

use pinion_bson::RawBsonRef;

use super::{Arity, Operator, Value};
use crate::index::hash_value;

pub(super) const OPERATORS: &[Operator] = &[Operator {
    name: "$toHashedIndexKey",
    arity: Arity::Exactly(1),
    // What a hashed index stores, for which a missing value is null.
    evaluate: |values| {
        let hash = hash_value(values[0].or_null());
        Ok(Value::Ref(RawBsonRef::Int64(hash)))
    },
}];
