//! Named limits of the query language; each is MongoDB's unless it says otherwise.

use pinion_wire::Result;

use crate::error::error;

/// Deepest nesting of a filter's operators.
pub const MAX_FILTER_DEPTH: usize = 100;

/// Most fields a sort or an index key pattern may name.
pub const MAX_KEY_PATTERN_FIELDS: usize = 32;

/// Deepest nesting of a stored document, which counts as one level: what stands around it in
/// commands, in replies and in the oplog has the rest of the depth that documents may have.
pub const MAX_STORED_DEPTH: usize = pinion_bson::MAX_DEPTH - 20;

/// Deepest nesting of an expression.
pub const MAX_EXPRESSION_DEPTH: usize = pinion_bson::MAX_DEPTH;

/// Longest dotted path, in components, of an update, a projection or an expression.
pub const MAX_PATH_COMPONENTS: usize = 200;

/// Longest dotted path, in components, of the field that a `$geoNear` searches.
pub(crate) const MAX_GEO_NEAR_KEY_COMPONENTS: usize = 180;

/// Most alternatives of a filter by which the fields of a key are bounded; with more of them only
/// what holds for all does.
pub(crate) const MAX_KEY_ALTERNATIVES: usize = 1000;

/// Bytes a blocking sort may hold before it spills: MongoDB's
/// `internalQueryMaxBlockingSortMemoryUsageBytes`.
pub const MAX_SORT_BYTES: usize = 100 * 1024 * 1024;

/// What explain's answer may hold before it leaves details out: MongoDB's
/// `internalQueryExplainSizeThresholdBytes`.
pub const MAX_EXPLAIN_BYTES: usize = 10 * 1024 * 1024;

const _: () = assert!(MAX_EXPLAIN_BYTES < pinion_bson::MAX_USER_DOCUMENT_BYTES);

/// Of up to this many documents groups add up doubles in their order, as MongoDB adds them; of more
/// their sums are exact, so that parts can add up what they have. A report of a few documents shows
/// the last digit that MongoDB shows.
pub(crate) const MAX_ORDERED_DOCUMENTS: u64 = 1024;

/// Bytes that one accumulator of one group may hold: MongoDB's `internalQueryMaxPushBytes` and its
/// kin.
pub(crate) const MAX_ACCUMULATOR_BYTES: usize = 100 * 1024 * 1024;

/// Parts of its limit by which what a stage holds has to change before it is reported to its other
/// places.
pub(crate) const ROOM_STEPS: usize = 64;

/// Bytes that a stage may hold even where the operations of its node hold too much together.
pub(crate) const MIN_SPILL_BYTES: usize = 1024 * 1024;

/// Bytes of a block of entries that is spilled, but for its last entry.
pub(crate) const MIN_SPILL_BLOCK_BYTES: usize = 1024;
pub(crate) const MAX_SPILL_BLOCK_BYTES: usize = 256 * 1024;

/// Most runs on disk that are read at once.
pub(crate) const MAX_FAN_IN: usize = 32;

const _: () = assert!(MAX_FAN_IN * MAX_SPILL_BLOCK_BYTES < MAX_SORT_BYTES / 8);

/// Bytes a `$group` may hold before it spills: MongoDB's
/// `internalDocumentSourceGroupMaxMemoryBytes`.
pub const MAX_GROUP_BYTES: usize = 100 * 1024 * 1024;

/// Bytes that a partition of `$setWindowFields` may hold before it fails.
pub const MAX_WINDOW_BYTES: usize = 100 * 1024 * 1024;

/// Most documents that a `$densify` makes: MongoDB's `internalQueryMaxAllowedDensifyDocs`.
pub(crate) const MAX_DENSIFIED_DOCUMENTS: usize = 500_000;

/// Bytes that the partitions of a `$densify` may hold before it fails.
pub(crate) const MAX_DENSIFY_BYTES: usize = 100 * 1024 * 1024;

/// Values that a sketch of quantiles keeps as they are before it puts them together (Pinion's own
/// bound).
pub(crate) const DIGEST_BUFFER: usize = 4096;

/// How many values a sketch of quantiles keeps of many, at most twice: MongoDB's
/// `internalQueryTdigestDelta`.
pub(crate) const DIGEST_COMPRESSION: f64 = 1000.0;

/// Bytes the results of a `$facet` may come to.
pub const MAX_FACET_BYTES: usize = 100 * 1024 * 1024;

/// Most keys one document may put into one index. This is Pinion's own bound: an array's keys are
/// built in memory.
pub const MAX_INDEX_KEYS_PER_DOCUMENT: usize = 1 << 20;

/// Most numbers of a path that may be positions in arrays where a wildcard index is to serve it.
pub const MAX_WILDCARD_POSITIONS: usize = 8;

/// Most paths of arrays that a wildcard index knows by name; beyond, all of its paths count as such
/// (Pinion's own bound).
pub const MAX_WILDCARD_ARRAYS: usize = 1024;

/// A text in an expression is shorter than this.
pub const MAX_STRING_BYTES: usize = 16 * 1024 * 1024;

/// Bytes a value in an expression, or the arguments of an operator together, may come to. MongoDB
/// has the bound for `$range`; its other values share their parts, ours are copied.
pub const MAX_VALUE_BYTES: usize = 100 * 1024 * 1024;

/// Most terms of a `$text` query, each of which is a range of the index (Pinion's own bound).
pub(crate) const MAX_TEXT_QUERY_TERMS: usize = MAX_INTERVALS_PER_FIELD;

/// Longest text that is read as a date where it is not of the ISO form (Pinion's own bound).
pub(crate) const MAX_DATE_TEXT_BYTES: usize = 1024;

/// Longest regular expression, in bytes.
pub const MAX_REGEX_BYTES: usize = 16 * 1024;

/// Largest array that an update grows by padding with nulls in front of a numeric component.
pub const MAX_ARRAY_PADDING: usize = 1_500_000;

/// Moves that a pipeline's run makes in one step before it lets others run, and the part of the
/// step's budget after which it makes no other: the rest is for one that takes long.
pub(crate) const MOVES_PER_STEP: usize = 64;
pub(crate) const STEP_SHARE_OF_BUDGET: u64 = 16;

/// Bytes the details of a failed validation may come to: they are sent with the error, in one
/// document.
pub const MAX_DETAILS_BYTES: usize = 12 * 1024 * 1024;

/// How many of the values that a failed predicate examined its details show.
pub const MAX_CONSIDERED_VALUES: usize = 10;

/// Most stages of a pipeline.
pub const MAX_PIPELINE_STAGES: usize = 1000;
/// How deep the pipelines of stages may stand in each other.
pub const MAX_SUB_PIPELINE_DEPTH: usize = 20;

/// Most intervals an index scan's bounds may hold for one field before a wider one replaces them
/// (Pinion's own bound).
pub const MAX_INTERVALS_PER_FIELD: usize = 10_000;

const _: () = assert!(MAX_STORED_DEPTH >= MAX_FILTER_DEPTH);
const _: () = assert!(MAX_REGEX_BYTES < MAX_SORT_BYTES);

/// Entries that a sort in memory sorts at once: a millisecond's work.
pub(crate) const SORT_RUN: usize = 4096;

/// Most cells that a geographical index holds for one value, unless its coarsest level demands
/// more.
pub(crate) const MAX_GEO_CELLS_PER_VALUE: usize = 50;

/// Most cells in which a geographical index is searched for one shape, or for one ring around a
/// point.
pub(crate) const MAX_GEO_CELLS_PER_QUERY: usize = 20;

/// How much of a text a message quotes.
pub(crate) const MAX_QUOTED_BYTES: usize = 4096;

/// From this size on the search for a field of a document is accounted for.
pub(crate) const WIDE_BYTES: usize = 4096;
/// This many items of an array are accounted for at once.
pub(crate) const ACCOUNTED_ITEMS: usize = 64;
/// From this many comparisons on, the fields that an update names are found by a table.
pub(crate) const PLACES_FROM: usize = 4096;

/// Refuses a text of this many bytes where it is too long.
pub(crate) fn check_string_bytes(bytes: usize) -> Result<()> {
    if bytes < MAX_STRING_BYTES {
        return Ok(());
    }
    Err(error(16493, "Tried to create string longer than 16MB"))
}

/// Refuses a value of this many bytes where it is too large.
pub(crate) fn check_value_bytes(bytes: usize) -> Result<()> {
    if bytes <= MAX_VALUE_BYTES {
        return Ok(());
    }
    Err(error(
        146,
        format!(
            "an expression would use too much memory ({bytes} bytes) and cannot spill to disk. Memory limit: {MAX_VALUE_BYTES} bytes"
        ),
    ))
}

/// Bytes that a `$lookup` may join to one document: MongoDB's
/// `internalLookupStageIntermediateDocumentMaxSizeBytes`.
pub const MAX_JOINED_BYTES: usize = 100 * 1024 * 1024;

/// Bytes that one search of a `$graphLookup` may hold.
pub const MAX_GRAPH_BYTES: usize = 100 * 1024 * 1024;

/// Paths of an update that its diff follows.
pub(crate) const MAX_FOLLOWED_PATHS: usize = 1000;

/// Values that one round of such a search may look for (Pinion's own bound).
pub const MAX_GRAPH_FRONTIER: usize = 1_000_000;

/// Scans that one is taken apart into so that they can be merged in the order of a sort: MongoDB's
/// `internalQueryMaxScansToExplode`.
pub(crate) const MAX_EXPLODED_SCANS: usize = 200;

/// Plans of one query that a trial may choose from.
pub(crate) const MAX_PLANS: usize = 64;

/// Most measurements of a bucket.
pub const MAX_BUCKET_MEASUREMENTS: usize = 1000;

/// Bytes of measurements that a bucket of not too few holds.
pub const MAX_BUCKET_BYTES: usize = 125 * 1024;

/// Measurements up to which a bucket is one of few, for which there is more room.
pub const MIN_BUCKET_MEASUREMENTS: usize = 10;

/// Bytes of measurements that a bucket of few holds.
pub const MAX_LARGE_BUCKET_BYTES: usize = 4 * 1024 * 1024;

/// Most measurements that are wanted by time for which buckets are read only as far as they have to
/// be.
pub(crate) const MAX_FIRST_MEASUREMENTS: usize = 10_000;

// A bucket has its values up to three times: as they are, and as its least and greatest ones.
const _: () = assert!(3 * MAX_LARGE_BUCKET_BYTES < pinion_bson::MAX_USER_DOCUMENT_BYTES);
const _: () = assert!(MAX_BUCKET_BYTES < MAX_LARGE_BUCKET_BYTES);
const _: () = assert!(MIN_BUCKET_MEASUREMENTS < MAX_BUCKET_MEASUREMENTS);
