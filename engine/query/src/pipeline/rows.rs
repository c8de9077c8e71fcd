//! The rows of all stages that MongoDB has.

use super::row::{
    InSubPipeline, InViews, InnerPipelines, MakesDocuments, StageApi, StageDivision,
    StageReadConcern, StageRouting, StageRow, StageSupport,
};

/// Options of `$changeStream` that are in no version of the stable API.
const STREAM_OPTIONS: &[&str] = &[
    "showExpandedEvents",
    "showMigrationEvents",
    "showRawUpdateDescription",
    "showSystemEvents",
];

/// Every answer is required, and they come in one order.
macro_rules! stages {
    ($(
        $name:literal {
            support: $support:ident, first_only: $first:ident, makes_documents: $makes:ident,
            shows_collection: $shows:ident, writes: $writes:ident;
            inner: $inner:ident, division: $division:ident, ranks: $ranks:ident,
            selects: $selects:ident;
            in_facet: $facet:ident, in_lookup: $lookup:expr, in_union: $union:expr,
            in_views: $views:ident, in_updates: $updates:ident;
            in_transactions: $transactions:ident, read_concern: $read:ident, api_v1: $api:expr,
            routing: $routing:ident
        }
    )*) => {
        &[$(StageRow {
            name: $name,
            support: StageSupport::$support,
            first_only: answer!($first),
            makes_documents: MakesDocuments::$makes,
            shows_collection: answer!($shows),
            writes: answer!($writes),
            inner: InnerPipelines::$inner,
            division: StageDivision::$division,
            ranks: answer!($ranks),
            selects: answer!($selects),
            in_facet: answer!($facet),
            in_lookup: {
                use InSubPipeline::*;
                $lookup
            },
            in_union: {
                use InSubPipeline::*;
                $union
            },
            in_views: InViews::$views,
            in_updates: answer!($updates),
            in_transactions: answer!($transactions),
            read_concern: StageReadConcern::$read,
            api_v1: {
                use StageApi::*;
                $api
            },
            routing: StageRouting::$routing,
        }),*]
    };
}

macro_rules! answer {
    (yes) => {
        true
    };
    (no) => {
        false
    };
}

/// Those that a pipeline runs, those of the front, and the others.
pub(super) static ROWS: &[StageRow] = stages! {
    "$match" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: PerDocument, ranks: no, selects: yes;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$project" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: PerDocument, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: yes;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$addFields" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: PerDocument, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: yes;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$set" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: PerDocument, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: yes;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$unset" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: PerDocument, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: yes;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$sort" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: yes;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$skip" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: yes;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$limit" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: yes;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$count" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Partial, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$group" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Partial, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$unwind" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: PerDocument, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$replaceRoot" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: PerDocument, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: yes;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$replaceWith" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: PerDocument, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: yes;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$redact" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: PerDocument, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$facet" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: Facets, division: Partial, ranks: no, selects: no;
        in_facet: no, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$geoNear" {
        support: Pipeline, first_only: yes, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: yes, selects: yes;
        in_facet: no, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$bucket" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$bucketAuto" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$densify" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$fill" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$sample" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: yes;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$setWindowFields" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$sortByCount" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$lookup" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: Pipeline, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$graphLookup" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: Foreign, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$unionWith" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: Pipeline, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$out" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: yes;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: no, in_lookup: No(51_047), in_union: No(31_441), in_views: Output, in_updates: no;
        in_transactions: no, read_concern: NotLinearizable, api_v1: Yes, routing: Undeclared }

    "$merge" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: yes;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: no, in_lookup: No(51_047), in_union: No(31_441), in_views: Output, in_updates: no;
        in_transactions: no, read_concern: NotLinearizable, api_v1: Yes, routing: Undeclared }

    "$rankFusion" {
        support: Pipeline, first_only: yes, makes_documents: No, shows_collection: no, writes: no;
        inner: Inputs, division: Whole, ranks: yes, selects: no;
        in_facet: no, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: No, routing: Undeclared }

    "$_internalUnpackBucket" {
        support: Pipeline, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: PerBucket, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$collStats" {
        support: FrontHere, first_only: yes, makes_documents: Yes, shows_collection: yes, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: no, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: no, read_concern: Any, api_v1: Only(&["count"]), routing: Undeclared }

    "$currentOp" {
        support: Front, first_only: yes, makes_documents: Yes, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: WithoutCollection, in_updates: no;
        in_transactions: no, read_concern: Local, api_v1: No, routing: Undeclared }

    "$documents" {
        support: FrontHere, first_only: yes, makes_documents: Yes, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: no, in_lookup: Yes, in_union: Yes, in_views: WithoutCollection, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$indexStats" {
        support: FrontHere, first_only: yes, makes_documents: Yes, shows_collection: yes, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: no, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: no, read_concern: Any, api_v1: No, routing: Undeclared }

    "$listCatalog" {
        support: Front, first_only: yes, makes_documents: Yes, shows_collection: yes, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: no, read_concern: Any, api_v1: No, routing: Undeclared }

    "$listClusterCatalog" {
        support: Front, first_only: yes, makes_documents: Yes, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: No(9_621_301), in_views: WithoutCollection, in_updates: no;
        in_transactions: no, read_concern: Local, api_v1: No, routing: Undeclared }

    "$listLocalSessions" {
        support: Front, first_only: yes, makes_documents: Yes, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: WithoutCollection, in_updates: no;
        in_transactions: no, read_concern: Local, api_v1: No, routing: Undeclared }

    "$listMqlEntities" {
        support: Front, first_only: yes, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Local, api_v1: No, routing: Undeclared }

    "$listSessions" {
        support: Front, first_only: yes, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: WithoutCollection, in_updates: no;
        in_transactions: no, read_concern: Any, api_v1: No, routing: Undeclared }

    "$planCacheStats" {
        support: FrontHere, first_only: yes, makes_documents: Yes, shows_collection: yes, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: no, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: no, read_concern: Local, api_v1: No, routing: Undeclared }

    "$querySettings" {
        support: Front, first_only: yes, makes_documents: Yes, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: WithoutCollection, in_updates: no;
        in_transactions: no, read_concern: Local, api_v1: No, routing: Undeclared }

    "$queryStats" {
        support: Front, first_only: yes, makes_documents: Yes, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: WithoutCollection, in_updates: no;
        in_transactions: no, read_concern: Local, api_v1: No, routing: Undeclared }

    "$changeStream" {
        support: Stream, first_only: yes, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: no, in_lookup: No(51_047), in_union: Yes, in_views: Stream, in_updates: no;
        in_transactions: no, read_concern: Any, api_v1: Without(STREAM_OPTIONS), routing: Undeclared }

    "$changeStreamSplitLargeEvent" {
        support: Stream, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: Yes, routing: Undeclared }

    "$listSampledQueries" {
        support: Unsupported, first_only: no, makes_documents: OnMembers, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: no, read_concern: Any, api_v1: No, routing: Undeclared }

    "$listSearchIndexes" {
        support: Unsupported, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: no, read_concern: Any, api_v1: No, routing: Undeclared }

    "$score" {
        support: Unsupported, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: No, routing: Undeclared }

    "$scoreFusion" {
        support: Unsupported, first_only: yes, makes_documents: No, shows_collection: no, writes: no;
        inner: Inputs, division: Whole, ranks: yes, selects: no;
        in_facet: no, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: No, routing: Undeclared }

    "$search" {
        support: Unsupported, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: yes, selects: yes;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: no, read_concern: Local, api_v1: No, routing: Undeclared }

    "$searchMeta" {
        support: Unsupported, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Local, api_v1: No, routing: Undeclared }

    "$shardedDataDistribution" {
        support: Unsupported, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: no, selects: no;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: yes, read_concern: Any, api_v1: No, routing: Undeclared }

    "$vectorSearch" {
        support: Unsupported, first_only: no, makes_documents: No, shows_collection: no, writes: no;
        inner: None, division: Whole, ranks: yes, selects: yes;
        in_facet: yes, in_lookup: Yes, in_union: Yes, in_views: Yes, in_updates: no;
        in_transactions: no, read_concern: Local, api_v1: No, routing: Undeclared }
};
