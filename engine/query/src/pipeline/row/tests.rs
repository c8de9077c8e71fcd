//! Every row against each rule that stages are asked about. The lists are written by hand, so that
//! a change of a row has to be stated here too.

use std::collections::BTreeSet;

use pinion_bson::{DocBuilder, rawdoc};

use super::*;

/// Checks which stages answer a question with yes.
#[track_caller]
fn check(question: impl Fn(&StageRow) -> bool, expected: &[&str]) {
    let found = ROWS.iter().filter(|row| question(row));
    let found: BTreeSet<&str> = found.map(|row| row.name).collect();
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    assert_eq!(found, expected);
}

#[test]
fn a_name_has_one_row() {
    let names: BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), ROWS.len());
    for row in ROWS {
        assert_eq!(stage_row(row.name).map(|row| row.name), Some(row.name));
    }
    let stage = rawdoc! { "$match": {} };
    assert_eq!(stage_row_of(&stage).map(|row| row.name), Some("$match"));
    assert!(stage_row("$nothing").is_none() && stage_row_of(&rawdoc! {}).is_none());
}

#[test]
fn what_a_pipeline_runs() {
    check(
        |row| row.support == StageSupport::Pipeline,
        &[
            "$_internalUnpackBucket",
            "$addFields",
            "$bucket",
            "$bucketAuto",
            "$count",
            "$densify",
            "$facet",
            "$fill",
            "$geoNear",
            "$graphLookup",
            "$group",
            "$limit",
            "$lookup",
            "$match",
            "$merge",
            "$out",
            "$project",
            "$rankFusion",
            "$redact",
            "$replaceRoot",
            "$replaceWith",
            "$sample",
            "$set",
            "$setWindowFields",
            "$skip",
            "$sort",
            "$sortByCount",
            "$unionWith",
            "$unset",
            "$unwind",
        ],
    );
    check(
        StageRow::is_of_front,
        &[
            "$collStats",
            "$currentOp",
            "$documents",
            "$indexStats",
            "$listCatalog",
            "$listClusterCatalog",
            "$listLocalSessions",
            "$listMqlEntities",
            "$listSessions",
            "$planCacheStats",
            "$querySettings",
            "$queryStats",
        ],
    );
    check(
        |row| row.support == StageSupport::FrontHere,
        &["$collStats", "$documents", "$indexStats", "$planCacheStats"],
    );
    check(
        |row| {
            matches!(
                row.support,
                StageSupport::Stream | StageSupport::Unsupported
            )
        },
        &[
            "$changeStream",
            "$changeStreamSplitLargeEvent",
            "$listSampledQueries",
            "$listSearchIndexes",
            "$score",
            "$scoreFusion",
            "$search",
            "$searchMeta",
            "$shardedDataDistribution",
            "$vectorSearch",
        ],
    );
    let named: BTreeSet<&str> = stage_names().collect();
    for row in ROWS {
        let runs = !row.is_lacking() || row.is_of_front() || row.name.starts_with("$changeStream");
        assert_eq!(named.contains(row.name), runs, "{}", row.name);
    }
}

#[test]
fn where_a_stage_may_stand() {
    check(
        |row| !row.in_facet,
        &[
            "$changeStream",
            "$collStats",
            "$documents",
            "$facet",
            "$geoNear",
            "$indexStats",
            "$merge",
            "$out",
            "$planCacheStats",
            "$rankFusion",
            "$scoreFusion",
        ],
    );
    check(
        |row| row.in_lookup == InSubPipeline::No(51_047),
        &["$changeStream", "$merge", "$out"],
    );
    check(
        |row| row.in_union == InSubPipeline::No(31_441),
        &["$merge", "$out"],
    );
    check(
        |row| row.in_union == InSubPipeline::No(9_621_301),
        &["$listClusterCatalog"],
    );
    check(
        |row| row.in_views == InViews::WithoutCollection,
        &[
            "$currentOp",
            "$documents",
            "$listClusterCatalog",
            "$listLocalSessions",
            "$listSessions",
            "$querySettings",
            "$queryStats",
        ],
    );
    check(|row| row.in_views == InViews::Output, &["$merge", "$out"]);
    check(|row| row.in_views == InViews::Stream, &["$changeStream"]);
    check(
        |row| row.in_updates,
        &[
            "$addFields",
            "$project",
            "$replaceRoot",
            "$replaceWith",
            "$set",
            "$unset",
        ],
    );
    check(
        |row| !row.in_transactions,
        &[
            "$changeStream",
            "$collStats",
            "$currentOp",
            "$indexStats",
            "$listCatalog",
            "$listClusterCatalog",
            "$listLocalSessions",
            "$listSampledQueries",
            "$listSearchIndexes",
            "$listSessions",
            "$merge",
            "$out",
            "$planCacheStats",
            "$querySettings",
            "$queryStats",
            "$search",
            "$vectorSearch",
        ],
    );
}

#[test]
fn what_a_stage_shows_and_writes() {
    check(
        |row| row.shows_collection,
        &[
            "$collStats",
            "$indexStats",
            "$listCatalog",
            "$planCacheStats",
        ],
    );
    check(|row| row.writes, &["$merge", "$out"]);
    check(
        |row| row.makes_documents == MakesDocuments::Yes,
        &[
            "$collStats",
            "$currentOp",
            "$documents",
            "$indexStats",
            "$listCatalog",
            "$listClusterCatalog",
            "$listLocalSessions",
            "$planCacheStats",
            "$querySettings",
            "$queryStats",
        ],
    );
    check(
        |row| row.makes_documents == MakesDocuments::OnMembers,
        &["$listSampledQueries"],
    );
}

#[test]
fn read_concerns() {
    check(
        |row| row.read_concern == StageReadConcern::Local,
        &[
            "$currentOp",
            "$listClusterCatalog",
            "$listLocalSessions",
            "$listMqlEntities",
            "$planCacheStats",
            "$querySettings",
            "$queryStats",
            "$search",
            "$searchMeta",
            "$vectorSearch",
        ],
    );
    check(
        |row| row.read_concern == StageReadConcern::NotLinearizable,
        &["$merge", "$out"],
    );
}

#[test]
fn the_stable_api() {
    check(
        |row| row.api_v1 == StageApi::No,
        &[
            "$currentOp",
            "$indexStats",
            "$listCatalog",
            "$listClusterCatalog",
            "$listLocalSessions",
            "$listMqlEntities",
            "$listSampledQueries",
            "$listSearchIndexes",
            "$listSessions",
            "$planCacheStats",
            "$querySettings",
            "$queryStats",
            "$rankFusion",
            "$score",
            "$scoreFusion",
            "$search",
            "$searchMeta",
            "$shardedDataDistribution",
            "$vectorSearch",
        ],
    );
    let check = |name: &str, options: &[&str], expected: bool| {
        let mut spec = DocBuilder::new();
        for option in options {
            spec.append(option, 1);
        }
        let spec = spec.finish();
        let row = stage_row(name).expect("a stage");
        let found = row.is_in_v1(RawBsonRef::Document(&spec));
        assert_eq!(found, expected, "{name} {options:?}");
    };
    check("$collStats", &["count"], true);
    check("$collStats", &["count", "storageStats"], false);
    check("$changeStream", &["fullDocument"], true);
    check("$changeStream", &["showSystemEvents"], false);
    check("$group", &["_id"], true);
    check("$queryStats", &[], false);
}

#[test]
fn pipelines_inside_of_stages() {
    let has = |inner| move |row: &StageRow| row.inner == inner;
    check(has(InnerPipelines::Foreign), &["$graphLookup"]);
    check(has(InnerPipelines::Pipeline), &["$lookup", "$unionWith"]);
    check(has(InnerPipelines::Facets), &["$facet"]);
    check(StageRow::is_fusion, &["$rankFusion", "$scoreFusion"]);
    check(
        |row| row.ranks,
        &[
            "$geoNear",
            "$rankFusion",
            "$scoreFusion",
            "$search",
            "$vectorSearch",
        ],
    );
    check(
        |row| row.selects,
        &[
            "$geoNear",
            "$limit",
            "$match",
            "$sample",
            "$search",
            "$skip",
            "$sort",
            "$vectorSearch",
        ],
    );
}

#[test]
fn what_partitions_do() {
    check(
        |row| row.division == StageDivision::PerDocument,
        &[
            "$addFields",
            "$match",
            "$project",
            "$redact",
            "$replaceRoot",
            "$replaceWith",
            "$set",
            "$unset",
            "$unwind",
        ],
    );
    check(
        |row| row.division == StageDivision::PerBucket,
        &["$_internalUnpackBucket"],
    );
    check(
        |row| row.division == StageDivision::Partial,
        &["$count", "$facet", "$group"],
    );
}
