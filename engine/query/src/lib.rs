//! Match, project, update, expressions, pipelines and plans over raw documents.
//!
//! Everything here is pure: no I/O, no clock, no partitions. What the caller knows (the time, the
//! indexes) is passed in.

mod accumulator;
mod change_stream;
mod collation;
mod command_shape;
mod document_key;
mod error;
mod expression;
mod field_walk;
mod fulltext;
mod geo;
mod index;
mod keygen;
mod limits;
mod matcher;
mod number;
mod operator_uses;
mod path;
mod pipeline;
mod planner;
mod projection;
mod regex;
mod series;
mod sort;
mod sorter;
mod spill;
mod text;
mod update;
mod validator;
mod value;
pub mod work;

pub use change_stream::{
    BeforeChange, CHANGE_STREAM_MARK, Change, ChangeMerge, ChangeStreamOptions, Concerned, Event,
    FullDocument, Image, MAX_CHANGE_EVENT_BYTES, PartNumber, ReleasedEvent, Resume, ResumeToken,
    Scope, Seen, Start, TokenData, TokenForm, TransactionEnd, changes_of, check_event_id,
    check_stages, concerned_by, explained_stages, is_mark, split_event, transaction_end,
};
pub use collation::{has_strings, parse_collation, spend_sort_keys, with_sort_keys};
pub use command_shape::{command_shape, find_of_one_id};
pub use document_key::DocumentKeyPattern;
pub use expression::{
    Expression, MetaKind, MetaSet, Metadata, Random, Subject, Value, Variables, check_field_path,
    check_variable_name,
};
pub use fulltext::is_text_language;
pub use index::{
    IndexKey, IndexKeys, IndexKind, IndexSpec, MultikeyPaths, check_wildcard_overlap,
    check_wildcard_projection, hash_value, index_keys,
};
pub use limits::{
    MAX_BUCKET_MEASUREMENTS, MAX_EXPLAIN_BYTES, MAX_FACET_BYTES, MAX_GROUP_BYTES,
    MAX_KEY_PATTERN_FIELDS, MAX_SORT_BYTES,
};
pub use matcher::{MatchPosition, Matcher, MetaSource};
pub use operator_uses::{OperatorKind, OperatorUses, counted};
pub use pipeline::{
    DividedPipeline, Document, ExternalStage, GraphLookup, InSubPipeline, InViews, InnerPipelines,
    Input, Lookup, MakesDocuments, Merge, MergeWrite, NotMatched, OutputTo, PartStages,
    PartialPipeline, Pipeline, PipelineRun, Segment, SplitPipeline, StageApi, StageDivision,
    StageReadConcern, StageRequest, StageRouting, StageRow, StageSupport, Traversal, UnionWith,
    check_api_v1, check_documents, check_read_concern, keyed, no_search_server, stage_names,
    stage_outside_v1, stage_row, stage_row_of,
};
pub use planner::{
    Access, DistinctPlan, ExplainStage, Hint, IndexAccess, IndexFilter, Interval, Intervals,
    KeyBounds, KeyRange, NearAccess, NearSearch, Outline, Plan, PlanRequest, QueryShape,
    ShownPlans, SortedAccess, SortedField, append_if_room, distinct_plan, key_field_bounds, plan,
    plans, query_planner, shown_hash,
};
pub use projection::Projection;
pub use series::{
    BUCKETS_PREFIX, BucketFilter, BucketState, Granularity, Packed, Packing, SeriesForm,
    TimeSeries, TimeSeriesChange, bucket_filter, bucket_id, buckets_of, check_bucket, index_filter,
    is_about_meta, measurement_count, measurements, meta_filter, normal_meta, pack, series_of,
    time_of,
};
pub use sort::{Direction, SortPattern};
pub use spill::{
    DiskReply, DiskRequest, DiskSorter, Held, Memory, MemoryLimits, Next, Place, Room, SharedRoom,
    Spilled, Spiller,
};
pub use text::{document_text, element_text, value_text};
pub use update::{Update, UpdateContext, apply_diff, check_storable, diff, prepare_insert};
pub use validator::Validator;
