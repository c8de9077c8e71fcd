//! The first chunks of a collection that becomes sharded, and the shards that own them.
//!
//! Source: the rules, limits and messages are those of MongoDB's `shardCollection`.

use std::collections::BTreeMap;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::{Error, ErrorCode, Result};

use super::zone_ranges::{ZoneRange, zone_ranges};
use crate::balancer::MAX_SPLIT_POINTS;
use crate::documents::{ShardDocument, TagDocument};
use crate::key::{KeyBytes, ShardKeyPattern};
use crate::limits::MAX_INITIAL_CHUNKS;
use crate::shard_id::ShardId;

/// What the first chunks of a collection depend on.
#[derive(Clone, Copy, Debug)]
pub struct InitialSplit<'a> {
    pub key: &'a ShardKeyPattern,
    /// The primary shard of the database.
    pub primary: &'a ShardId,
    /// The shards that may get chunks: those that stay, in a fixed order.
    pub shards: &'a [ShardId],
    /// The ranges of zones that the namespace has.
    pub zones: &'a [Zone],
    /// Whether the collection has no documents.
    pub is_empty: bool,
    /// `numInitialChunks`.
    pub chunks: Option<u64>,
    /// `presplitHashedZones`.
    pub presplits_hashed_zones: bool,
    /// `initialSplitPoints`.
    pub points: Option<&'a [RawDocumentBuf]>,
}

/// A range of a zone, and the shards that the zone has.
#[derive(Clone, Debug, PartialEq)]
pub struct Zone {
    pub name: String,
    pub min: RawDocumentBuf,
    pub max: RawDocumentBuf,
    pub shards: Vec<ShardId>,
}

impl Zone {
    /// The range of a document of `config.tags`, with the shards of its zone that stay.
    pub fn new(tag: &TagDocument, shards: &[ShardDocument]) -> Zone {
        let of_zone = shards
            .iter()
            .filter(|shard| !shard.is_draining && shard.tags.contains(&tag.zone));
        Zone {
            name: tag.zone.clone(),
            min: tag.min.clone(),
            max: tag.max.clone(),
            shards: of_zone.map(|shard| shard.id.clone()).collect(),
        }
    }
}

/// A chunk, up to where the next one begins, or to the end of all keys.
#[derive(Clone, Debug, PartialEq)]
pub struct InitialChunk {
    pub min: RawDocumentBuf,
    pub shard: ShardId,
}

/// The first chunks of a collection in their order: the first begins at the least key.
///
/// # Errors
/// `InvalidOptions` for `numInitialChunks` beyond its limits or where no field is hashed, and for
/// zones of another key; those of `presplitHashedZones`; `CannotCreateChunkDistribution` where a
/// zone has no shard; `RangeOverlapConflict`; `ShardNotFound` without shards; `BadValue` for split
/// points of another key.
pub fn initial_chunks(request: &InitialSplit<'_>) -> Result<Vec<InitialChunk>> {
    let key = request.key;
    if request.shards.is_empty() {
        return Err(Error::new(
            ErrorCode::SHARD_NOT_FOUND,
            "No non-draining shard found",
        ));
    }
    check_count(request)?;
    let zones = zone_ranges(key, request.zones)?;
    if request.presplits_hashed_zones {
        check_presplit(request)?;
        check_shards_of(request.zones)?;
        return Ok(presplit(request, &zones));
    }
    if !request.is_empty {
        return Ok(single(request));
    }
    if let Some(points) = request.points {
        return by_points(request, points);
    }
    if !zones.is_empty() {
        check_shards_of(request.zones)?;
        return Ok(by_zones(request, &zones));
    }
    match key.hashed_at() {
        Some(0) => Ok(by_hash(request)),
        _ => Ok(single(request)),
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message.into())
}

/// Checks `numInitialChunks` in a cluster with this number of shards.
///
/// # Errors
/// `InvalidOptions`.
pub fn check_initial_chunks(count: i64, shards: usize) -> Result<()> {
    let of_shards = (shards * MAX_SPLIT_POINTS) as u64;
    match u64::try_from(count) {
        Ok(count) if count <= of_shards && count <= MAX_INITIAL_CHUNKS => Ok(()),
        _ => Err(invalid(format!(
            "numInitialChunks cannot be more than either: {of_shards}, {MAX_SPLIT_POINTS} * number \
             of shards; or {MAX_INITIAL_CHUNKS}"
        ))),
    }
}

/// Checks `numInitialChunks`, and what goes with split points.
fn check_count(request: &InitialSplit<'_>) -> Result<()> {
    let has_prefix_hashed = request.key.hashed_at() == Some(0);
    if let Some(count) = request.chunks.filter(|count| *count > 0) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        check_initial_chunks(count, request.shards.len())?;
        if !request.key.is_hashed() || !request.is_empty {
            return Err(invalid(
                "numInitialChunks is only supported when the collection is empty and has a hashed \
                 field in the shard key pattern",
            ));
        }
        if !has_prefix_hashed && !request.presplits_hashed_zones {
            return Err(invalid(
                "When the prefix of the hashed shard key is a range field, 'numInitialChunks' can \
                 only be used when the 'presplitHashedZones' is true",
            ));
        }
    }
    match request.points {
        Some(_) if !request.zones.is_empty() => Err(invalid(
            "Cannot have both initial split points and tags set",
        )),
        Some(points) if points.len() as u64 >= MAX_INITIAL_CHUNKS => Err(invalid(format!(
            "there are {} initial split points, and a collection starts with {MAX_INITIAL_CHUNKS} \
             chunks at most",
            points.len()
        ))),
        _ => Ok(()),
    }
}

fn check_shards_of(zones: &[Zone]) -> Result<()> {
    match zones.iter().any(|zone| zone.shards.is_empty()) {
        false => Ok(()),
        true => Err(Error::new(
            ErrorCode::CANNOT_CREATE_CHUNK_DISTRIBUTION,
            "The initial split policy is not able to find a chunk distribution that satisfies the \
             given set of zones with the current shards",
        )),
    }
}

/// All keys on the primary shard.
fn single(request: &InitialSplit<'_>) -> Vec<InitialChunk> {
    vec![InitialChunk {
        min: request.key.document(&request.key.min()),
        shard: request.primary.clone(),
    }]
}

/// Chunks that begin at the least key and at these, which are in order: `contiguous` of them on
/// each shard, one shard after the other.
fn spread(
    request: &InitialSplit<'_>,
    points: impl IntoIterator<Item = RawDocumentBuf>,
    contiguous: usize,
) -> Vec<InitialChunk> {
    let first = request.key.document(&request.key.min());
    let mins = [first].into_iter().chain(points);
    mins.enumerate()
        .map(|(at, min)| InitialChunk {
            min,
            shard: request.shards[at / contiguous % request.shards.len()].clone(),
        })
        .collect()
}

fn by_points(request: &InitialSplit<'_>, points: &[RawDocumentBuf]) -> Result<Vec<InitialChunk>> {
    let key = request.key;
    let points: Result<Vec<KeyBytes>> = points.iter().map(|point| key.bound(point)).collect();
    let mut points = points?;
    points.sort();
    points.dedup();
    points.retain(|point| *point != key.min() && *point != key.max());
    let points = points.iter().map(|point| key.document(point));
    Ok(spread(request, points, 1))
}

/// Neighbouring chunks are on one shard, as far as their number is a multiple of that of the
/// shards.
fn by_hash(request: &InitialSplit<'_>) -> Vec<InitialChunk> {
    let shards = request.shards.len();
    let chunks = request.chunks.filter(|count| *count > 0);
    let chunks = chunks.map_or(shards, |count| count as usize);
    let points = hashed_points(request.key, None, chunks);
    spread(request, points, (chunks / shards).max(1))
}

/// The hashes at which chunks of this number begin, but for the first one: they are symmetric
/// around zero.
fn hashes(chunks: usize) -> Vec<i64> {
    if chunks < 2 {
        return Vec::new();
    }
    let interval = i64::MAX / chunks as i64 * 2;
    let is_even = chunks.is_multiple_of(2);
    let first = if is_even { interval } else { interval / 2 };
    let above = (0..(chunks as i64 - 1) / 2).map(|at| first + at * interval);
    let below = above.clone().rev().map(|hash| -hash);
    below.chain(is_even.then_some(0)).chain(above).collect()
}

/// The same as bounds: fields before the hashed one are those of `prefix`, those behind it MinKey.
fn hashed_points<'a>(
    key: &'a ShardKeyPattern,
    prefix: Option<&'a RawDocument>,
    chunks: usize,
) -> impl Iterator<Item = RawDocumentBuf> + 'a {
    let hashed_at = key.hashed_at().expect("a field is hashed");
    hashes(chunks).into_iter().map(move |hash| {
        let mut out = DocBuilder::new();
        for (at, path) in key.paths().enumerate() {
            let of_prefix = prefix.and_then(|prefix| pinion_bson::elements(prefix).nth(at));
            match (at.cmp(&hashed_at), of_prefix) {
                (std::cmp::Ordering::Less, Some((_, value))) => out.append_raw(path, value),
                (std::cmp::Ordering::Equal, _) => out.append(path, hash),
                _ => out.append_raw(path, RawBsonRef::MinKey),
            };
        }
        out.finish()
    })
}

/// Chunks of zones, with one on each gap between them: gaps go to all shards in turn.
fn around_zones<'z>(
    request: &InitialSplit<'_>,
    zones: &[ZoneRange<'z>],
    mut of_zone: impl FnMut(&'z Zone, &mut Vec<InitialChunk>),
) -> Vec<InitialChunk> {
    let key = request.key;
    let mut gap_shards = request.shards.iter().cycle();
    let mut next = key.min();
    let mut chunks = Vec::new();
    let mut fill_gap = |min: &KeyBytes, chunks: &mut Vec<InitialChunk>| {
        chunks.push(InitialChunk {
            min: key.document(min),
            shard: gap_shards.next().expect("there are shards").clone(),
        });
    };
    for zone in zones {
        if next < zone.range.min {
            fill_gap(&next, &mut chunks);
        }
        of_zone(zone.zone, &mut chunks);
        next = zone.range.max.clone();
    }
    if next < key.max() {
        fill_gap(&next, &mut chunks);
    }
    chunks
}

/// One chunk for each range, on the shards of its zone in turn.
fn by_zones(request: &InitialSplit<'_>, zones: &[ZoneRange<'_>]) -> Vec<InitialChunk> {
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    around_zones(request, zones, |zone, chunks| {
        let used = used.entry(&zone.name).or_default();
        chunks.push(InitialChunk {
            min: zone.min.clone(),
            shard: zone.shards[*used % zone.shards.len()].clone(),
        });
        *used += 1;
    })
}

/// Each range split by hashes over the shards of its zone, so that each shard gets about as many
/// chunks, however many ranges it has.
fn presplit(request: &InitialSplit<'_>, zones: &[ZoneRange<'_>]) -> Vec<InitialChunk> {
    let mut ranges_on: BTreeMap<&ShardId, u64> = BTreeMap::new();
    for shard in request.zones.iter().flat_map(|zone| &zone.shards) {
        *ranges_on.entry(shard).or_default() += 1;
    }
    let count = request.chunks.filter(|count| *count > 0);
    let of_shard = count.map_or(1, |count| count.div_ceil(ranges_on.len() as u64));
    around_zones(request, zones, |zone, chunks| {
        let counts = zone.shards.iter().map(|shard| {
            let count = of_shard.div_ceil(ranges_on[shard]);
            (shard, count as usize)
        });
        let total = counts.clone().map(|(_, count)| count).sum();
        let first = [zone.min.clone()].into_iter();
        let mut mins = first.chain(hashed_points(request.key, Some(&zone.min), total));
        for (shard, count) in counts {
            chunks.extend(mins.by_ref().take(count).map(|min| InitialChunk {
                min,
                shard: shard.clone(),
            }));
        }
    })
}

/// Whether the zones can be split by hashes.
fn check_presplit(request: &InitialSplit<'_>) -> Result<()> {
    let (key, zones) = (request.key, request.zones);
    let refused = |code, message: String| Err(Error::new(ErrorCode(code), message));
    let hashed_at = match key.hashed_at() {
        Some(hashed_at) if request.is_empty && !zones.is_empty() => hashed_at,
        _ => {
            let message = "'presplitHashedZones' is only supported when the collection is empty, \
                zones are set up and shard key pattern has a hashed field";
            return refused(31_387, message.to_owned());
        }
    };
    if hashed_at == 0 {
        let covers_all = |zone: &Zone| {
            key.bound(&zone.min).is_ok_and(|min| min == key.min())
                && key.bound(&zone.max).is_ok_and(|max| max == key.max())
        };
        return match zones {
            [zone] if covers_all(zone) => Ok(()),
            _ => {
                let message = "For hashed prefix shard keys, 'presplitHashedZones' is only \
                    supported when there is a single zone defined which covers entire shard key \
                    range";
                refused(31_412, message.to_owned())
            }
        };
    }
    zones
        .iter()
        .try_for_each(|zone| check_presplit_of(key, zone, hashed_at))
}

/// The same of one range, where fields that are not hashed stand before the hashed one.
fn check_presplit_of(key: &ShardKeyPattern, zone: &Zone, hashed_at: usize) -> Result<()> {
    let refused = |code, what: &str| {
        let message = format!(
            "One or more zones are not defined in a manner that supports hashed pre-splitting. \
             {what}, for zone {}",
            zone.name
        );
        Err(Error::new(ErrorCode(code), message))
    };
    let mut fields = pinion_bson::elements(&zone.min).map(|(_, value)| value);
    let mut prefix = fields.by_ref().take(hashed_at);
    if prefix.any(|value| matches!(value, RawBsonRef::MinKey | RawBsonRef::MaxKey)) {
        let what = "Cannot have MinKey or MaxKey in the lower bound for fields preceding the \
            hashed field but found one";
        return refused(31_388, what);
    }
    if prefix_of(key, &zone.min, hashed_at)? == prefix_of(key, &zone.max, hashed_at)? {
        let what = "The value preceding hashed field of the upper bound should be greater than \
            that of lower bound";
        return refused(31_390, what);
    }
    if fields.next() != Some(RawBsonRef::MinKey) {
        let what = "The hashed field value for lower bound must be MinKey";
        return refused(31_389, what);
    }
    match fields.all(|value| value == RawBsonRef::MinKey) {
        true => Ok(()),
        false => refused(
            31_391,
            "The fields after the hashed field must have MinKey value",
        ),
    }
}

/// A bound with the least values from its hashed field on.
fn prefix_of(key: &ShardKeyPattern, bound: &RawDocument, hashed_at: usize) -> Result<KeyBytes> {
    let mut out = DocBuilder::new();
    for (at, (name, value)) in pinion_bson::elements(bound).enumerate() {
        match at < hashed_at {
            true => out.append_raw(name, value),
            false => out.append_raw(name, RawBsonRef::MinKey),
        };
    }
    key.bound(&out.finish())
}

#[cfg(test)]
mod tests;
