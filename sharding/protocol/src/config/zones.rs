//! `updateZoneKeyRange`: the range that is put into a zone, or taken out of it.
//!
//! Source: the rules and their messages are MongoDB's.

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_query::document_text;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use super::zone_ranges::{is_hash, overlap, shown};
use crate::chunk::ChunkRange;
use crate::documents::{ShardDocument, TagDocument};
use crate::key::{KeyBytes, ShardKeyPattern};

/// A range of keys of a namespace, with bounds that have all fields of its shard key where it is
/// sharded.
#[derive(Clone, Debug)]
pub struct ZoneKeyRange {
    ns: Namespace,
    key: ShardKeyPattern,
    range: ChunkRange,
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
}

impl ZoneKeyRange {
    /// Reads a range. `key` is that of the collection, `None` where it is not sharded. What a
    /// bound lacks of it is the least value, and the greatest in the bound above all keys.
    ///
    /// # Errors
    /// `BadValue` for an empty bound and for what no key has; `FailedToParse` where `min` is not
    /// below `max`; `ShardKeyNotFound` where a bound does not have the first fields of the key, or
    /// the bounds have different fields; `InvalidOptions` for what is no hash.
    pub fn new(
        ns: &Namespace,
        key: Option<&ShardKeyPattern>,
        min: &RawDocument,
        max: &RawDocument,
    ) -> Result<ZoneKeyRange> {
        for (name, bound) in [("min", min), ("max", max)] {
            check_bound(name, bound)?;
        }
        let key = match key {
            Some(key) => {
                check_prefix("min", min, key, ns)?;
                check_prefix("max", max, key, ns)?;
                key.clone()
            }
            None => pattern_of(min, max)?,
        };
        check_hashes(&key, min, max)?;
        let range = ChunkRange {
            min: key.extended_bound(min)?,
            max: key.extended_bound(max)?,
        };
        if range.min >= range.max {
            return Err(Error::failed_to_parse(format!(
                "min: {} should be less than max: {}",
                document_text(min),
                document_text(max)
            )));
        }
        let full = |bound: &RawDocument, extended: &KeyBytes| {
            let is_full = pinion_bson::field_count(bound) == key.paths().len();
            match is_full {
                true => bound.to_owned(),
                false => key.document(extended),
            }
        };
        Ok(ZoneKeyRange {
            ns: ns.clone(),
            min: full(min, &range.min),
            max: full(max, &range.max),
            key,
            range,
        })
    }

    /// The document that puts the range into a zone, given all shards and the ranges that the
    /// namespace has; `None` where it is in that zone already. `id` is that of a new document.
    ///
    /// # Errors
    /// `ZoneNotFound`; `RangeOverlapConflict`; `BadValue` where another range is of another key.
    pub fn assigned(
        &self,
        zone: &str,
        shards: &[ShardDocument],
        tags: &[TagDocument],
        id: RawBson,
    ) -> Result<Option<TagDocument>> {
        if !shards.iter().any(|shard| has_tag(shard, zone)) {
            return Err(Error::new(
                ErrorCode::ZONE_NOT_FOUND,
                format!("zone {zone} does not exist"),
            ));
        }
        let mut is_there = false;
        for tag in tags {
            let other = ChunkRange {
                min: self.key.extended_bound(&tag.min)?,
                max: self.key.extended_bound(&tag.max)?,
            };
            if other == self.range && tag.zone == zone {
                is_there = true;
            } else if other.overlaps(&self.range) {
                return Err(overlap(
                    &shown(&self.min, &self.max, zone),
                    &shown(&tag.min, &tag.max, &tag.zone),
                ));
            }
        }
        Ok((!is_there).then(|| TagDocument {
            id,
            ns: self.ns.clone(),
            zone: zone.to_owned(),
            min: self.min.clone(),
            max: self.max.clone(),
            other: RawDocumentBuf::new(),
        }))
    }
}

fn has_tag(shard: &ShardDocument, zone: &str) -> bool {
    shard.tags.iter().any(|tag| tag == zone)
}

/// Checks that a shard can be put into a zone.
///
/// # Errors
/// `ShardNotFound`.
pub fn check_zone_addition<'s>(
    shard: &str,
    shards: &'s [ShardDocument],
) -> Result<&'s ShardDocument> {
    let found = shards.iter().find(|found| found.id == *shard);
    found.ok_or_else(|| {
        Error::new(
            ErrorCode::SHARD_NOT_FOUND,
            format!("shard {shard} does not exist"),
        )
    })
}

/// Checks that a shard can be taken out of a zone, which has ranges or none. Whether it is in it.
///
/// # Errors
/// `ShardNotFound`; `ZoneStillInUse` where it is the last shard of a zone with ranges.
pub fn check_zone_removal(
    shard: &str,
    zone: &str,
    shards: &[ShardDocument],
    has_ranges: bool,
) -> Result<bool> {
    let is_member = has_tag(check_zone_addition(shard, shards)?, zone);
    let has_others = shards
        .iter()
        .any(|other| other.id != *shard && has_tag(other, zone));
    match is_member && !has_others && has_ranges {
        true => Err(Error::new(
            ErrorCode::ZONE_STILL_IN_USE,
            "cannot remove a shard from zone if a chunk range is associated with it",
        )),
        false => Ok(is_member),
    }
}

pub(super) fn check_bound(name: &str, bound: &RawDocument) -> Result<()> {
    if bound.is_empty() {
        return Err(Error::bad_value(format!("The {name} key cannot be empty")));
    }
    for (name, value) in pinion_bson::elements(bound) {
        let has_operator = |document: &RawDocument| {
            pinion_bson::elements(document).any(|(name, _)| name.starts_with('$'))
        };
        let is_storable = match value {
            RawBsonRef::Array(_) | RawBsonRef::RegularExpression(_) | RawBsonRef::Undefined => {
                false
            }
            RawBsonRef::Document(document) => !has_operator(document),
            _ => true,
        };
        if !is_storable {
            return Err(Error::bad_value(format!(
                "Shard key element {name}: {} is not valid for storage",
                pinion_query::value_text(value)
            )));
        }
    }
    Ok(())
}

/// The fields of the bounds, ascending.
fn pattern_of(min: &RawDocument, max: &RawDocument) -> Result<ShardKeyPattern> {
    let names = |bound| pinion_bson::elements(bound).map(|(name, _)| name);
    if !names(min).eq(names(max)) {
        return Err(Error::new(
            ErrorCode::SHARD_KEY_NOT_FOUND,
            format!(
                "the shard key of min {} doesn't match with the shard key of max {}",
                document_text(min),
                document_text(max)
            ),
        ));
    }
    let mut pattern = DocBuilder::new();
    for name in names(min) {
        pattern.append(name, 1i32);
    }
    ShardKeyPattern::parse(&pattern.finish())
}

fn check_prefix(
    name: &str,
    bound: &RawDocument,
    key: &ShardKeyPattern,
    ns: &Namespace,
) -> Result<()> {
    let mut paths = key.paths();
    let mut names = pinion_bson::elements(bound).map(|(name, _)| name);
    match names.all(|name| paths.next() == Some(name)) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::SHARD_KEY_NOT_FOUND,
            format!(
                "{name}: {} is not a prefix of the shard key {} of ns: {ns}",
                document_text(bound),
                document_text(&key.to_bson())
            ),
        )),
    }
}

fn check_hashes(key: &ShardKeyPattern, min: &RawDocument, max: &RawDocument) -> Result<()> {
    let Some(at) = key.hashed_at() else {
        return Ok(());
    };
    let hashed = |bound| pinion_bson::elements(bound).nth(at).map(|(_, value)| value);
    match [min, max].into_iter().filter_map(hashed).all(is_hash) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!(
                "there exists a field in the range {} -->> {} not of type NumberLong, MinKey, or \
                 MaxKey which corresponds to a hashed field in the shard key pattern {}",
                document_text(min),
                document_text(max),
                document_text(&key.to_bson())
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;
    use pinion_clock::Timestamp;

    use super::*;

    const MIN: RawBson = RawBson::MinKey;
    const MAX: RawBson = RawBson::MaxKey;

    fn ns() -> Namespace {
        Namespace::new("d", "c").expect("a name")
    }

    fn shard(id: &str, tags: &[&str]) -> ShardDocument {
        ShardDocument {
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..ShardDocument::new(id.into(), String::new(), Timestamp::MIN)
        }
    }

    fn range(
        key: Option<RawDocumentBuf>,
        min: &RawDocument,
        max: &RawDocument,
    ) -> Result<ZoneKeyRange> {
        let key = key.map(|key| ShardKeyPattern::parse(&key).expect("a pattern"));
        ZoneKeyRange::new(&ns(), key.as_ref(), min, max)
    }

    #[test]
    fn bounds_get_all_fields_of_the_key() {
        let check = |key, min: RawDocumentBuf, max: RawDocumentBuf, full: [RawDocumentBuf; 2]| {
            let found = range(key, &min, &max).expect("a range");
            assert_eq!([found.min, found.max], full);
        };
        let a = |value: i32| rawdoc! { "a": value };
        let ab = |a: RawBson, b: RawBson| rawdoc! { "a": a, "b": b };
        let (one, two) = (RawBson::Int32(1), RawBson::Int32(2));
        check(None, a(1), a(2), [a(1), a(2)]);
        check(Some(rawdoc! { "a": 1 }), a(1), a(2), [a(1), a(2)]);
        let key = || Some(rawdoc! { "a": 1, "b": "hashed" });
        let expected = [ab(one.clone(), MIN), ab(two.clone(), MIN)];
        check(key(), a(1), a(2), expected.clone());
        check(key(), ab(one.clone(), MIN), ab(two, MIN), expected);
        let max = rawdoc! { "a": MAX };
        check(key(), a(1), max, [ab(one, MIN), ab(MAX, MAX)]);
        let dotted = rawdoc! { "a.b": 1 };
        check(
            None,
            dotted.clone(),
            rawdoc! { "a.b": 2 },
            [dotted, rawdoc! { "a.b": 2 }],
        );
    }

    #[test]
    fn ranges_that_are_refused() {
        let check = |key, min: RawDocumentBuf, max: RawDocumentBuf, code, text: &str| {
            let error = range(key, &min, &max).expect_err("refused");
            assert_eq!((error.code.0, &*error.message), (code, text));
        };
        let a = |value: i32| rawdoc! { "a": value };
        let ab = || Some(rawdoc! { "a": 1, "b": 1 });
        check(
            None,
            a(2),
            a(2),
            9,
            "min: { a: 2 } should be less than max: { a: 2 }",
        );
        check(None, rawdoc! {}, a(2), 2, "The min key cannot be empty");
        check(None, a(2), rawdoc! {}, 2, "The max key cannot be empty");
        check(
            None,
            a(1),
            rawdoc! { "b": 1 },
            61,
            "the shard key of min { a: 1 } doesn't match with the shard key of max { b: 1 }",
        );
        check(
            ab(),
            rawdoc! { "b": 1 },
            a(2),
            61,
            "min: { b: 1 } is not a prefix of the shard key { a: 1, b: 1 } of ns: d.c",
        );
        check(
            ab(),
            a(1),
            rawdoc! { "a": 2, "b": 1, "c": 1 },
            61,
            "max: { a: 2, b: 1, c: 1 } is not a prefix of the shard key { a: 1, b: 1 } of ns: d.c",
        );
        check(
            Some(rawdoc! { "a": "hashed" }),
            a(1),
            rawdoc! { "a": 5i64 },
            72,
            "there exists a field in the range { a: 1 } -->> { a: 5 } not of type NumberLong, \
             MinKey, or MaxKey which corresponds to a hashed field in the shard key pattern \
             { a: \"hashed\" }",
        );
        check(
            None,
            rawdoc! { "a": [1] },
            a(2),
            2,
            "Shard key element a: [ 1 ] is not valid for storage",
        );
    }

    fn tag(zone: &str, min: RawDocumentBuf, max: RawDocumentBuf) -> TagDocument {
        TagDocument {
            id: RawBson::Int32(7),
            ns: ns(),
            zone: zone.to_owned(),
            min,
            max,
            other: RawDocumentBuf::new(),
        }
    }

    #[test]
    fn zones_do_not_overlap() {
        let shards = [shard("s", &["eu", "us"])];
        let a = |value: i32| rawdoc! { "a": value };
        let tags = [tag("eu", a(10), a(20)), tag("us", a(20), a(30))];
        let assign = |zone: &str, min: i32, max: i32| {
            let range = range(None, &a(min), &a(max)).expect("a range");
            let made = range.assigned(zone, &shards, &tags, RawBson::Int32(7));
            made.map_err(|error| error.code.0)
        };
        assert_eq!(assign("eu", 30, 40), Ok(Some(tag("eu", a(30), a(40)))));
        assert_eq!(assign("us", 0, 10), Ok(Some(tag("us", a(0), a(10)))));
        // Sent again.
        assert_eq!(assign("eu", 10, 20), Ok(None));
        for (zone, min, max) in [
            ("us", 10, 20),
            ("eu", 5, 11),
            ("eu", 12, 15),
            ("eu", 0, 99),
            ("us", 29, 31),
            ("eu", 10, 15),
        ] {
            assert_eq!(assign(zone, min, max), Err(178), "{zone} {min} {max}");
        }
        assert_eq!(assign("as", 30, 40), Err(177));
    }

    #[test]
    fn shards_of_zones() {
        let shards = [shard("s", &["eu", "us"]), shard("t", &["eu"])];
        assert!(check_zone_addition("s", &shards).is_ok());
        let error = check_zone_addition("x", &shards).expect_err("none");
        assert_eq!(&*error.message, "shard x does not exist");
        let check = |shard, zone, has_ranges, expected| {
            let found = check_zone_removal(shard, zone, &shards, has_ranges);
            assert_eq!(found.map_err(|error| error.code.0), expected);
        };
        check("s", "eu", true, Ok(true));
        check("s", "us", true, Err(163));
        check("s", "us", false, Ok(true));
        check("t", "us", true, Ok(false));
        check("x", "us", true, Err(70));
    }
}
