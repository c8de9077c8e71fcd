//! MongoDB's total order over all values and over documents.

use core::cmp::Ordering;

use bson::{RawBsonRef, RawDocument};

use crate::decimal::Decimal;
use crate::limits::MAX_DEPTH;
use crate::types::canonical_type;
use crate::view::{OLD_BINARY_SUBTYPE, RawElems, View, with_view};

/// Orders two values as an ascending sort does: by class of type, then by value. Names of the
/// fields that hold the values play no part; those inside documents do. Numbers of all types
/// compare by their mathematical value, doubles and decimals exactly; NaN is below all numbers and
/// equal to itself.
#[inline]
pub fn compare_values(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    match (a, b) {
        (RawBsonRef::Int32(a), RawBsonRef::Int32(b)) => a.cmp(&b),
        (RawBsonRef::String(a), RawBsonRef::String(b)) => a.as_bytes().cmp(b.as_bytes()),
        (RawBsonRef::Int64(a), RawBsonRef::Int64(b)) => a.cmp(&b),
        (RawBsonRef::ObjectId(a), RawBsonRef::ObjectId(b)) => a.bytes().cmp(&b.bytes()),
        (RawBsonRef::Double(a), RawBsonRef::Double(b)) => compare_doubles(a, b),
        (a, b) => compare_as_views(a, b),
    }
}

#[inline(never)]
fn compare_as_views(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    with_view(a, |a| with_view(b, |b| compare_views(a, b)))
}

/// An order of strings that takes the place of that of their bytes. Equal bytes are equal in every
/// such order.
pub trait TextOrder {
    /// Orders two strings.
    fn compare_strings(&self, a: &[u8], b: &[u8]) -> Ordering;

    /// Orders a string and a symbol: symbols keep the order of their bytes among themselves.
    fn compare_string_with_symbol(&self, string: &[u8], symbol: &[u8]) -> Ordering;
}

/// The order of the bytes.
struct BytesOrder;

impl TextOrder for BytesOrder {
    #[inline(always)]
    fn compare_strings(&self, a: &[u8], b: &[u8]) -> Ordering {
        a.cmp(b)
    }

    #[inline(always)]
    fn compare_string_with_symbol(&self, string: &[u8], symbol: &[u8]) -> Ordering {
        string.cmp(symbol)
    }
}

/// Orders two values as [`compare_values`] does, but for the strings in them, at any depth.
#[inline]
pub fn compare_values_by(order: &impl TextOrder, a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    match (a, b) {
        (RawBsonRef::Int32(a), RawBsonRef::Int32(b)) => a.cmp(&b),
        (RawBsonRef::String(a), RawBsonRef::String(b)) => {
            order.compare_strings(a.as_bytes(), b.as_bytes())
        }
        (a, b) => with_view(a, |a| with_view(b, |b| compare_nested(order, a, b, 0))),
    }
}

/// Orders two documents as [`compare_documents`] does, but for the strings in them, at any depth.
pub fn compare_documents_by(order: &impl TextOrder, a: &RawDocument, b: &RawDocument) -> Ordering {
    compare_fields(order, a.as_bytes(), b.as_bytes(), Names::Matter, 0)
}

/// Whether the values are equal in the order, so that 1, 1.0 and Decimal128 1.00 are.
#[inline]
pub fn values_equal(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> bool {
    compare_values(a, b).is_eq()
}

/// Orders two documents field by field: by class of type, then field name, then value. A document
/// that is a proper prefix of another comes first.
#[inline]
pub fn compare_documents(a: &RawDocument, b: &RawDocument) -> Ordering {
    compare_fields(&BytesOrder, a.as_bytes(), b.as_bytes(), Names::Matter, 0)
}

/// Whether field names are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    Matter,
    /// In arrays the position says it all.
    Ignored,
}

/// Orders two documents or arrays given as bytes. What is malformed counts as its end, and what
/// nests deeper than anything that was ever validated is ordered by its bytes, for it must not cost
/// the stack.
fn compare_fields(
    order: &impl TextOrder,
    a: &[u8],
    b: &[u8],
    names: Names,
    depth: usize,
) -> Ordering {
    if a == b {
        return Ordering::Equal;
    }
    if depth > MAX_DEPTH {
        return a.cmp(b);
    }
    let (mut left, mut right) = (RawElems::new(a), RawElems::new(b));
    loop {
        let (l, r) = match (left.next(), right.next()) {
            (Some(l), Some(r)) => (l, r),
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
        };
        let mut found = canonical_type(l.kind).cmp(&canonical_type(r.kind));
        if found.is_eq() && names == Names::Matter {
            found = l.name.cmp(r.name);
        }
        if found.is_eq() && !(l.kind == r.kind && l.value == r.value) {
            found = match (l.view(), r.view()) {
                (Some(l), Some(r)) => compare_nested(order, l, r, depth + 1),
                (l, r) => l.is_some().cmp(&r.is_some()),
            };
        }
        #[cfg(feature = "planted")]
        if names == Names::Matter
            && crate::planted::is_planted(crate::planted::Planted::ComparisonOrder)
        {
            found = l.name.cmp(r.name).then(found);
        }
        if found.is_ne() {
            return found;
        }
    }
}

/// Orders two values given as views.
#[inline]
pub fn compare_views(a: View<'_>, b: View<'_>) -> Ordering {
    compare_nested(&BytesOrder, a, b, 0)
}

#[inline]
fn compare_nested(order: &impl TextOrder, a: View<'_>, b: View<'_>, depth: usize) -> Ordering {
    match (a, b) {
        (View::Int32(a), View::Int32(b)) => a.cmp(&b),
        (View::String(a), View::String(b)) => order.compare_strings(a, b),
        (View::ObjectId(a), View::ObjectId(b)) => a.cmp(&b),
        (View::Int32(a), View::Int64(b)) => i64::from(a).cmp(&b),
        (View::Int64(a), View::Int32(b)) => a.cmp(&i64::from(b)),
        (View::Int64(a), View::Int64(b)) => a.cmp(&b),
        (View::Double(a), View::Double(b)) => compare_doubles(a, b),
        (View::Double(a), View::Int32(b)) => compare_doubles(a, f64::from(b)),
        (View::Int32(a), View::Double(b)) => compare_doubles(f64::from(a), b),
        (View::Int64(a), View::Double(b)) => compare_i64_double(a, b),
        (View::Double(a), View::Int64(b)) => compare_i64_double(b, a).reverse(),
        (View::DateTime(a), View::DateTime(b)) => a.cmp(&b),
        (View::Boolean(a), View::Boolean(b)) => a.cmp(&b),
        (View::Timestamp(a), View::Timestamp(b)) => a.cmp(&b),
        (View::Document(a), View::Document(b)) => compare_fields(order, a, b, Names::Matter, depth),
        (View::Array(a), View::Array(b)) => compare_fields(order, a, b, Names::Ignored, depth),
        (a, b) => compare_rare(order, a, b, depth),
    }
}

fn compare_rare(order: &impl TextOrder, a: View<'_>, b: View<'_>, depth: usize) -> Ordering {
    let classes = canonical_type(a.kind()).cmp(&canonical_type(b.kind()));
    if classes.is_ne() {
        return classes;
    }
    match (a, b) {
        (View::Decimal128(a), View::Double(b)) => return unpack(a).compare_f64(b),
        (View::Double(a), View::Decimal128(b)) => return unpack(b).compare_f64(a).reverse(),
        _ => {}
    }
    if let (Some(a), Some(b)) = (decimal_of(a), decimal_of(b)) {
        return a.compare(b);
    }
    match (a, b) {
        (View::Symbol(a), View::Symbol(b)) => a.cmp(b),
        (View::String(a), View::Symbol(b)) => order.compare_string_with_symbol(a, b),
        (View::Symbol(a), View::String(b)) => order.compare_string_with_symbol(b, a).reverse(),
        (
            View::Binary {
                subtype: st,
                bytes: a,
            },
            View::Binary {
                subtype: su,
                bytes: b,
            },
        ) => binary_len(st, a)
            .cmp(&binary_len(su, b))
            .then_with(|| st.cmp(&su))
            .then_with(|| a.cmp(b)),
        (
            View::Regex {
                pattern: p,
                options: o,
            },
            View::Regex {
                pattern: q,
                options: r,
            },
        ) => p.cmp(q).then_with(|| o.cmp(r)),
        (
            View::DbPointer {
                namespace: n,
                id: i,
            },
            View::DbPointer {
                namespace: m,
                id: j,
            },
        ) => n
            .len()
            .cmp(&m.len())
            .then_with(|| n.cmp(m))
            .then_with(|| i.cmp(&j)),
        (View::Code(a), View::Code(b)) => a.cmp(b),
        (View::CodeWithScope { code: c, scope: s }, View::CodeWithScope { code: d, scope: t }) => c
            .cmp(d)
            .then_with(|| compare_fields(order, s, t, Names::Matter, depth)),
        // MinKey, undefined, null, MaxKey: the class is the value.
        _ => Ordering::Equal,
    }
}

/// The length a binary value is ordered by: that of the payload, the repeated length of subtype 2
/// included.
#[inline]
fn binary_len(subtype: u8, bytes: &[u8]) -> usize {
    bytes.len() + if subtype == OLD_BINARY_SUBTYPE { 4 } else { 0 }
}

/// A number that is no double as a decimal.
fn decimal_of(view: View<'_>) -> Option<Decimal> {
    Some(match view {
        View::Int32(v) => Decimal::from_i64(i64::from(v)),
        View::Int64(v) => Decimal::from_i64(v),
        View::Decimal128(v) => unpack(v),
        _ => return None,
    })
}

#[inline]
fn unpack(bytes: [u8; 16]) -> Decimal {
    Decimal::from_bid(u128::from_le_bytes(bytes))
}

/// Orders doubles with NaN below all and equal to itself.
#[inline]
pub(crate) fn compare_doubles(a: f64, b: f64) -> Ordering {
    match a.partial_cmp(&b) {
        Some(order) => order,
        None => b.is_nan().cmp(&a.is_nan()),
    }
}

/// Orders an integer and a double exactly.
#[inline]
pub(crate) fn compare_i64_double(a: i64, b: f64) -> Ordering {
    const TWO_63: f64 = 9_223_372_036_854_775_808.0;
    if b.is_nan() {
        return Ordering::Greater;
    }
    if b >= TWO_63 {
        return Ordering::Less;
    }
    if b < -TWO_63 {
        return Ordering::Greater;
    }
    // The integer part fits now; the fraction decides between equal integer parts.
    let whole = b as i64;
    a.cmp(&whole).then_with(|| compare_doubles(0.0, b.fract()))
}

#[cfg(test)]
pub(crate) mod tests;
