//! Filters of measurements as filters of the buckets that may have matching ones.
//!
//! What is said of the meta field holds for all measurements of a bucket, and is said of the bucket
//! instead. Of other fields a bucket has the least and the greatest value: it is left out where
//! those say that nothing in it can match, and only where that is sure.

use pinion_bson::{
    DateTime, DocBuilder, ElementType, ObjectId, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc,
};

use super::SeriesForm;
use super::pack::bucket_id;
use crate::matcher::CompareOp;
use crate::value::{elements, first, is_empty, is_nan, items};

/// A filter of buckets, and what is still asked of the measurements of those that match it.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketFilter {
    pub buckets: RawDocumentBuf,
    /// `None` where all measurements of the buckets match.
    pub measurements: Option<RawDocumentBuf>,
}

/// Divides a filter. `alike` says that strings compare in it as they do in the collection, whose
/// buckets know their least and greatest strings by that.
pub fn bucket_filter(form: &SeriesForm, filter: &RawDocument, alike: bool) -> BucketFilter {
    let (mut buckets, mut left) = (Vec::new(), DocBuilder::new());
    let mut all_meta = true;
    for (name, value) in elements(filter) {
        let part = single(name, value);
        if let Some(exact) = meta_filter(form, &part) {
            buckets.push(exact);
            continue;
        }
        all_meta = false;
        left.append_raw(name, value);
        buckets.extend(may_match(form, name, value, alike));
    }
    BucketFilter {
        buckets: joined("$and", buckets),
        measurements: (!all_meta).then(|| left.finish()),
    }
}

fn single(name: &str, value: RawBsonRef<'_>) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append_raw(name, value);
    out.finish()
}

fn joined(operator: &str, mut parts: Vec<RawDocumentBuf>) -> RawDocumentBuf {
    match parts.len() {
        0 => RawDocumentBuf::new(),
        1 => parts.remove(0),
        _ => {
            let mut out = DocBuilder::new();
            out.start_array(operator);
            for part in &parts {
                out.push(&**part);
            }
            out.end();
            out.finish()
        }
    }
}

/// Whether a filter speaks of the meta field alone.
pub fn is_about_meta(form: &SeriesForm, filter: &RawDocument) -> bool {
    meta_filter(form, filter).is_some()
}

/// The filter of buckets that a filter of the meta field alone is; `None` for others.
pub fn meta_filter(form: &SeriesForm, filter: &RawDocument) -> Option<RawDocumentBuf> {
    let mut out = DocBuilder::new();
    for (name, value) in elements(filter) {
        match (name, value) {
            ("$and" | "$or" | "$nor", RawBsonRef::Array(parts)) => {
                out.start_array(name);
                for part in items(parts) {
                    let RawBsonRef::Document(part) = part else {
                        return None;
                    };
                    out.push(&*meta_filter(form, part)?);
                }
                out.end();
            }
            _ => {
                out.append_raw(&form.meta_path(name)?, value);
            }
        }
    }
    Some(out.finish())
}

/// What a bucket with a matching measurement matches; `None` where nothing is known of it.
fn may_match(
    form: &SeriesForm,
    name: &str,
    value: RawBsonRef<'_>,
    alike: bool,
) -> Option<RawDocumentBuf> {
    match (name, value) {
        ("$and" | "$or", RawBsonRef::Array(parts)) => {
            let mut found = Vec::new();
            for part in items(parts) {
                let RawBsonRef::Document(part) = part else {
                    return None;
                };
                let filter = bucket_filter(form, part, alike).buckets;
                match (name, is_empty(&filter)) {
                    ("$or", true) => return None,
                    (_, true) => {}
                    (_, false) => found.push(filter),
                }
            }
            (!found.is_empty()).then(|| joined(name, found))
        }
        (name, _) if name.starts_with('$') => None,
        (path, value) if is_plain(path) => predicates(form, path, value, alike),
        _ => None,
    }
}

/// Whether a path can stand behind `control.min.`.
fn is_plain(path: &str) -> bool {
    path.split('.')
        .all(|part| !part.is_empty() && !part.starts_with('$'))
}

fn predicates(
    form: &SeriesForm,
    path: &str,
    value: RawBsonRef<'_>,
    alike: bool,
) -> Option<RawDocumentBuf> {
    let mut found = Vec::new();
    match value {
        RawBsonRef::Document(operators)
            if first(operators).is_some_and(|(name, _)| name.starts_with('$')) =>
        {
            for (operator, value) in elements(operators) {
                if let Some(op) = compare_op(operator) {
                    found.extend(compared(form, path, op, value, alike));
                } else if let ("$in", RawBsonRef::Array(values)) = (operator, value) {
                    let any = items(values)
                        .map(|value| compared(form, path, CompareOp::Eq, value, alike));
                    let any: Option<Vec<_>> = any.collect();
                    let any = any.filter(|any| !any.is_empty() && any.len() <= MAX_IN_VALUES);
                    found.extend(any.map(|any| joined("$or", any)));
                }
            }
        }
        value => found.extend(compared(form, path, CompareOp::Eq, value, alike)),
    }
    (!found.is_empty()).then(|| joined("$and", found))
}

/// Longest list of values that is looked for in a bucket one by one.
const MAX_IN_VALUES: usize = 64;

fn compare_op(name: &str) -> Option<CompareOp> {
    let all = [
        CompareOp::Eq,
        CompareOp::Lt,
        CompareOp::Lte,
        CompareOp::Gt,
        CompareOp::Gte,
    ];
    all.into_iter().find(|op| op.name() == name)
}

/// What a bucket matches that has a value which compares so with this one.
fn compared(
    form: &SeriesForm,
    path: &str,
    op: CompareOp,
    value: RawBsonRef<'_>,
    alike: bool,
) -> Option<RawDocumentBuf> {
    match value {
        RawBsonRef::DateTime(time) if path == form.time => Some(at_time(form, op, time)),
        _ if path == form.time => None,
        RawBsonRef::String(_) if !alike => None,
        value => {
            let kind = kind_of(value).filter(|_| !is_nan(value))?;
            Some(between(path, op, value, kind))
        }
    }
}

/// The type as `$type` takes it, of values that compare with those of their type alone.
fn kind_of(value: RawBsonRef<'_>) -> Option<&'static str> {
    Some(match value.element_type() {
        ElementType::Double | ElementType::Int32 | ElementType::Int64 | ElementType::Decimal128 => {
            "number"
        }
        ElementType::String => "string",
        ElementType::DateTime => "date",
        ElementType::Boolean => "bool",
        ElementType::ObjectId => "objectId",
        ElementType::Timestamp => "timestamp",
        _ => return None,
    })
}

/// The least and the greatest value are numbers, say, between which such a value can lie. A bucket
/// where one of them is something else may have anything in between, as may one with arrays.
fn between(path: &str, op: CompareOp, value: RawBsonRef<'_>, kind: &str) -> RawDocumentBuf {
    let (min, max) = (format!("control.min.{path}"), format!("control.max.{path}"));
    let mut out = DocBuilder::new();
    out.start_array("$or");
    let is_below = matches!(op, CompareOp::Lt | CompareOp::Lte | CompareOp::Eq);
    let is_above = matches!(op, CompareOp::Gt | CompareOp::Gte | CompareOp::Eq);
    let inclusive = |op: CompareOp, name: &'static str| match op {
        CompareOp::Eq if name == "$lt" => "$lte",
        CompareOp::Eq => "$gte",
        op => op.name(),
    };
    out.push_document();
    if is_below {
        out.start_document(&min)
            .append_raw(inclusive(op, "$lt"), value)
            .end();
    }
    if is_above {
        out.start_document(&max)
            .append_raw(inclusive(op, "$gt"), value)
            .end();
    }
    out.end();
    for end in [&min, &max] {
        let other = rawdoc! { "$exists": true, "$not": { "$type": kind } };
        out.push_document().append(end, &*other).end();
    }
    // Not a number is less than all numbers, and hides the least of them.
    if kind == "number" && is_below {
        out.push_document().append(&min, f64::NAN).end();
    }
    for (at, _) in path.match_indices('.').chain([(path.len(), "")]) {
        for end in ["min", "max"] {
            let holder = format!("control.{end}.{}", &path[..at]);
            out.push_document()
                .append(&holder, &*rawdoc! { "$type": "array" })
                .end();
            // Where something hides what lies deeper, nothing is known of that.
            if at < path.len() {
                let hidden = rawdoc! { "$exists": true, "$not": { "$type": "object" } };
                out.push_document().append(&holder, &*hidden).end();
            }
        }
    }
    out.end();
    out.finish()
}

/// A bucket's measurements lie between its least time and that with its span.
fn at_time(form: &SeriesForm, op: CompareOp, time: DateTime) -> RawDocumentBuf {
    let span_ms = i64::from(form.max_span_secs) * 1000;
    let at_ms = time.timestamp_millis();
    let date = |ms| RawBsonRef::DateTime(DateTime::from_millis(ms));
    let id = |ms, filler: u8| bucket_id(ms, ObjectId::from_bytes([filler; 12]));
    let is_below = matches!(op, CompareOp::Lt | CompareOp::Lte | CompareOp::Eq);
    let is_above = matches!(op, CompareOp::Gt | CompareOp::Gte | CompareOp::Eq);
    let earliest_ms = at_ms.saturating_sub(span_ms);
    let latest_ms = at_ms.saturating_add(span_ms);
    let strict = |strict: CompareOp, name: &'static str, or_equal: &'static str| match op == strict
    {
        true => name,
        false => or_equal,
    };
    let (lower, upper) = (
        strict(CompareOp::Gt, "$gt", "$gte"),
        strict(CompareOp::Lt, "$lt", "$lte"),
    );
    let mut out = DocBuilder::new();
    out.start_document(&format!("control.min.{}", form.time));
    if is_above {
        out.append("$gte", date(earliest_ms));
    }
    if is_below {
        out.append(upper, date(at_ms));
    }
    out.end();
    out.start_document(&format!("control.max.{}", form.time));
    if is_above {
        out.append(lower, date(at_ms));
    }
    if is_below {
        out.append("$lte", date(latest_ms));
    }
    out.end();
    out.start_document("_id");
    if is_above {
        out.append("$gte", RawBsonRef::ObjectId(id(earliest_ms, 0)));
    }
    if is_below {
        out.append("$lte", RawBsonRef::ObjectId(id(at_ms, 0xff)));
    }
    out.end();
    out.finish()
}

/// What the filter of a partial index of measurements says of buckets, in the words that such a
/// filter may have; `None` where it says what no bucket can show.
pub fn index_filter(form: &SeriesForm, filter: &RawDocument) -> Option<RawDocumentBuf> {
    if let Some(exact) = meta_filter(form, filter) {
        return Some(exact);
    }
    let mut out = Vec::new();
    for (name, value) in elements(filter) {
        if let ("$and" | "$or", RawBsonRef::Array(parts)) = (name, value) {
            let parts = items(parts).map(|part| match part {
                RawBsonRef::Document(part) => index_filter(form, part),
                _ => None,
            });
            out.push(joined(name, parts.collect::<Option<Vec<_>>>()?));
            continue;
        }
        if let Some(path) = form.meta_path(name) {
            out.push(single(&path, value));
            continue;
        }
        let operators = match value {
            RawBsonRef::Document(operators)
                if first(operators).is_some_and(|(name, _)| name.starts_with('$')) =>
            {
                operators.to_owned()
            }
            value => single("$eq", value),
        };
        for (operator, value) in elements(&operators) {
            let ends: &[(&str, &str)] = match operator {
                "$eq" => &[("min", "$lte"), ("max", "$gte")],
                "$lt" | "$lte" => &[("min", operator)],
                "$gt" | "$gte" => &[("max", operator)],
                "$exists" => &[("min", operator)],
                _ => return None,
            };
            for (end, operator) in ends {
                let path = format!("control.{end}.{name}");
                out.push(single(
                    &path,
                    RawBsonRef::Document(&single(operator, value)),
                ));
            }
        }
    }
    Some(joined("$and", out))
}
