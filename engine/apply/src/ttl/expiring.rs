//! What expires: the collections and indexes that say so, and the way to their expired documents.

use pinion_bson::{DateTime, DocBuilder, ObjectId, RawBsonRef, RawDocumentBuf};
use pinion_catalog::{Collection, Index, Uuid, core_catalog};
use pinion_exec::read::{Access, RangeAccess};
use pinion_exec::write::Deletion;
use pinion_keystring::{Builder, Discriminator};
use pinion_query::{IndexKind, Matcher, Variables};
use pinion_storage::KeyRange;
use pinion_wire::Result;
use pinion_wire::idl::Namespace;

/// Documents of a collection that expire by one rule.
pub(super) struct Expiring {
    pub ns: Namespace,
    pub uuid: Uuid,
    /// The TTL index; `None` for the `_id` of a clustered collection.
    pub index: Option<String>,
}

/// Everything that expires.
pub(super) async fn expiring() -> Vec<Expiring> {
    let catalog = core_catalog().current();
    let mut found = Vec::new();
    for collection in catalog.collections() {
        let of = |index| Expiring {
            ns: collection.ns.clone(),
            uuid: collection.uuid,
            index,
        };
        if collection.options.expire_after_secs.is_some() {
            found.push(of(None));
        }
        let indexes = collection.ready_indexes();
        let indexes = indexes.filter(|index| is_ttl(collection, index));
        found.extend(indexes.map(|index| of(Some(index.name().to_owned()))));
        pinion_runtime::yield_if_due().await;
    }
    found
}

/// Only keys that are the dates of one field give the time at which their documents expire, or the
/// two ends of a bucket's times.
fn is_ttl(collection: &Collection, index: &Index) -> bool {
    let spec = &index.spec;
    let fields = match collection.options.time_series {
        Some(_) => 2,
        None => 1,
    };
    spec.expire_after_secs.is_some()
        && spec.ready
        && spec.kind == IndexKind::Btree
        && spec.fields() == fields
}

/// The field with the last time in a bucket, in a collection of buckets.
fn bucket_end(collection: &Collection) -> Option<String> {
    let series = collection.options.time_series.as_ref()?;
    Some(format!("control.max.{}", series.time_field))
}

/// The last moment of which documents have expired.
fn expiry_ms(now_ms: i64, after_secs: i64) -> i64 {
    now_ms.saturating_sub(after_secs.saturating_mul(1000))
}

impl Expiring {
    /// How to find the documents that have expired by now; `None` if the rule is gone.
    ///
    /// # Errors
    /// Those of the parser of partial filters.
    pub(super) fn expired(&self, collection: &Collection, now_ms: i64) -> Result<Option<Deletion>> {
        let Some(name) = &self.index else {
            return expired_by_id(collection, now_ms);
        };
        let index = collection
            .index(name)
            .filter(|index| is_ttl(collection, index));
        let Some(index) = index else {
            return Ok(None);
        };
        let after_secs = index.spec.expire_after_secs.expect("filtered");
        let end = DateTime::from_millis(expiry_ms(now_ms, after_secs));
        let variables = Variables {
            collation: index.spec.collation.clone(),
            ..Variables::default()
        };
        let matcher = Matcher::parse_with(&filter_of(collection, index, end), &variables)?;
        let access = Access::Index(RangeAccess {
            ranges: vec![dates_until(index, end)],
            repeats: index.spec.is_multikey(),
            index: Some(index.clone()),
            descending: false,
            points: None,
        });
        Ok(Some(Deletion { access, matcher }))
    }
}

/// What documents of an index match that have expired. A document that has changed since its key
/// was read must match it too, and the filter of the index.
fn filter_of(collection: &Collection, index: &Index, end: DateTime) -> RawDocumentBuf {
    let (field, _) = pinion_bson::elements(&index.spec.key)
        .next()
        .expect("an index has a field");
    let mut filter = DocBuilder::new();
    filter.start_array("$and");
    filter
        .push_document()
        .start_document(bucket_end(collection).as_deref().unwrap_or(field))
        .append_raw("$lte", RawBsonRef::DateTime(end))
        .end()
        .end();
    if let Some(partial) = &index.spec.filter {
        filter.push(partial.filter());
    }
    filter.end();
    filter.finish()
}

/// The keys of all dates up to one.
fn dates_until(index: &Index, end: DateTime) -> KeyRange {
    let mut builder = Builder::new(index.spec.ordering);
    let mut bound = |date, discriminator| {
        builder.append(RawBsonRef::DateTime(date));
        builder.append_discriminator(discriminator);
        builder.finish().bytes
    };
    let (mut first, mut last) = (DateTime::from_millis(i64::MIN), end);
    if index.spec.ordering.is_descending(0) {
        std::mem::swap(&mut first, &mut last);
    }
    let lower = bound(first, Discriminator::ExclusiveBefore);
    let upper = bound(last, Discriminator::ExclusiveAfter);
    KeyRange::half_open(&lower, &upper)
}

/// Documents that a clustered collection holds in the order of their expiry: by the dates in `_id`,
/// or for buckets by the time in their ObjectIds, which lies before that of all their measurements.
fn expired_by_id(collection: &Collection, now_ms: i64) -> Result<Option<Deletion>> {
    let options = &collection.options;
    let (Some(after_secs), Some(_)) = (options.expire_after_secs, &options.clustered) else {
        return Ok(None);
    };
    let end_ms = expiry_ms(now_ms, after_secs);
    let dates = [i64::MIN, end_ms].map(|ms| RawBsonRef::DateTime(DateTime::from_millis(ms)));
    let [first, last] = match &options.time_series {
        None => dates,
        Some(series) => {
            let end_ms = expiry_ms(end_ms, i64::from(series.max_span_secs));
            let Ok(secs) = u32::try_from(end_ms.div_euclid(1000)) else {
                return Ok(None);
            };
            let mut last = [0xff; 12];
            last[..4].copy_from_slice(&secs.to_be_bytes());
            [[0; 12], last].map(|bytes| RawBsonRef::ObjectId(ObjectId::from_bytes(bytes)))
        }
    };
    let mut filter = DocBuilder::new();
    filter.start_document("_id").append_raw("$lte", last).end();
    let matcher = Matcher::parse(&filter.finish())?;
    let range = KeyRange {
        lower: std::ops::Bound::Included(collection.id_key(first)),
        upper: std::ops::Bound::Included(collection.id_key(last)),
    };
    let access = Access::Collection(RangeAccess {
        ranges: vec![range],
        ..RangeAccess::everything(false)
    });
    Ok(Some(Deletion { access, matcher }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_do_not_overflow() {
        let check = |now_ms, after_secs, expected| {
            assert_eq!(expiry_ms(now_ms, after_secs), expected);
        };
        check(5000, 3, 2000);
        check(5000, 0, 5000);
        check(1000, 3, -2000);
        check(-5, i64::MAX, i64::MIN);
        check(i64::MIN, 1, i64::MIN);
    }
}
