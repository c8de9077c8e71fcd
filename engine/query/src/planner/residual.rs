//! What the ranges of a scan leave of a filter: a predicate that they decide alone need not be
//! examined again.

use pinion_bson::RawBsonRef;

use super::{IndexAccess, PlanRequest};
use crate::collation::has_strings;
use crate::index::IndexSpec;
use crate::matcher::{CompareOp, Node, Predicate};
use crate::value::is_nan;

/// Those of the predicates that documents in the ranges of the scan may fail.
pub(super) fn residual<'a>(
    request: &PlanRequest<'_>,
    access: &IndexAccess,
    conjuncts: &'a [Node],
) -> Vec<&'a Node> {
    let index = access.spec(request.indexes);
    let alike = index.collation.as_ref() == request.matcher.collation();
    let open = |node: &&Node| !is_decided(index, access, node, alike);
    conjuncts.iter().filter(open).collect()
}

/// Whether every document whose key lies in the ranges satisfies the predicate. Where no value is
/// an array, all predicates of a field are in its bounds, and the key has the one value that is
/// compared.
fn is_decided(index: &IndexSpec, access: &IndexAccess, node: &Node, alike: bool) -> bool {
    let Node::Leaf(leaf) = node else {
        return false;
    };
    let decided = index.paths()[..access.decided_fields].iter().enumerate();
    !access.multikey
        && decided
            .filter(|(at, _)| !index.is_hashed_field(*at))
            .any(|(_, path)| path.text() == leaf.path.text())
        && has_exact_bounds(&leaf.predicate)
        // Where index and filter compare strings in different ways, no bound is made of them.
        && (alike || !compares_with_strings(&leaf.predicate))
}

fn compares_with_strings(predicate: &Predicate) -> bool {
    match predicate {
        Predicate::Compare { value, .. } => has_strings(value.as_raw_bson_ref()),
        Predicate::In { values, .. } => values.iter().any(|v| has_strings(v.as_raw_bson_ref())),
        _ => false,
    }
}

fn has_exact_bounds(predicate: &Predicate) -> bool {
    match predicate {
        Predicate::Compare {
            op: CompareOp::Eq,
            value,
        } => is_determined_by_its_key(value.as_raw_bson_ref()),
        Predicate::Compare { value, .. } => {
            let value = value.as_raw_bson_ref();
            is_determined_by_its_key(value)
                && !matches!(value, RawBsonRef::Document(_) | RawBsonRef::Binary(_))
        }
        Predicate::In {
            values,
            regexes,
            has_null,
        } => {
            let mut values = values.iter().map(|value| value.as_raw_bson_ref());
            regexes.is_empty() && !has_null && values.all(is_determined_by_its_key)
        }
        _ => false,
    }
}

/// Whether the value is of a type whose keys are those of equal values and of nothing else: null
/// stands for missing fields too, arrays for their items.
fn is_determined_by_its_key(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Double(_) | RawBsonRef::Decimal128(_) => !is_nan(value),
        RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::String(_)
        | RawBsonRef::ObjectId(_)
        | RawBsonRef::Boolean(_)
        | RawBsonRef::DateTime(_)
        | RawBsonRef::Timestamp(_)
        | RawBsonRef::Document(_)
        | RawBsonRef::Binary(_) => true,
        _ => false,
    }
}
