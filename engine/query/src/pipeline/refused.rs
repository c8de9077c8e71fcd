//! Stages that MongoDB has and a pipeline refuses: where they stand, or on a node like this one.

use pinion_wire::Error;

use super::row::{StageRow, StageSupport, stage_row};
use crate::error::error;

/// The error for a stage, which stands at the front of another one's pipeline (`inside`), or
/// somewhere else.
pub(super) fn refused(name: &str, inside: bool) -> Error {
    if let Some(error) = on_a_standalone(name) {
        return error;
    }
    let row = stage_row(name);
    let is_here = row.is_some_and(|row| row.support == StageSupport::FrontHere);
    let wrong_place = |text: &str| error(73, format!("{name} {text}"));
    match name {
        "$listSessions" => wrong_place("may only be run against config.system.sessions"),
        "$listClusterCatalog" if inside => error(
            9_621_301,
            format!("{name} must be run against the database with {{aggregate: 1}}"),
        ),
        "$listLocalSessions" if inside => {
            wrong_place("must be run against the database with {aggregate: 1}, not a collection")
        }
        "$currentOp" | "$querySettings" | "$queryStats" | "$listMqlEntities" if inside => {
            wrong_place("must be run against the 'admin' database with {aggregate: 1}")
        }
        name if inside && is_here => error(
            115,
            format!("the aggregation stage {name} is not supported inside of another stage"),
        ),
        name if row.is_some_and(StageRow::is_of_front) => not_first(name),
        name => error(
            115,
            format!("the aggregation stage {name} is not supported"),
        ),
    }
}

/// A stage that must come first and does not.
pub(super) fn not_first(name: &str) -> Error {
    error(
        40602,
        format!("{name} is only valid as the first stage in a pipeline."),
    )
}

/// A misplaced change stream of a member: not in front, or in front of a pipeline inside of another
/// stage.
pub(super) fn misplaced_stream(inside: bool) -> Error {
    match inside {
        true => error(
            51047,
            "$changeStream is not allowed within a stage's sub-pipeline",
        ),
        false => not_first("$changeStream"),
    }
}

/// What a node without a search server answers to commands and stages on search indexes.
pub fn no_search_server() -> Error {
    error(
        31082,
        "Using Atlas Search Database Commands and the $listSearchIndexes aggregation stage requires additional \
         configuration. Please connect to Atlas or an AtlasCLI local deployment to enable. For more information on \
         how to connect, see https://dochub.mongodb.org/core/atlas-cli-deploy-local-reqs.",
    )
}

/// What only replica sets, clusters or nodes with a search server have.
fn on_a_standalone(name: &str) -> Option<Error> {
    Some(match name {
        "$changeStream" => error(
            40573,
            "The $changeStream stage is only supported on replica sets",
        ),
        "$changeStreamSplitLargeEvent" => error(
            7_182_801,
            "$changeStreamSplitLargeEvent can only be used in a $changeStream pipeline",
        ),
        "$listSampledQueries" => error(
            20,
            "$listSampledQueries is not supported on a standalone mongod",
        ),
        "$shardedDataDistribution" => error(
            6_789_100,
            "The $shardedDataDistribution stage can only be run on mongos",
        ),
        "$search" | "$searchMeta" | "$vectorSearch" => error(
            31082,
            "Using $search and $vectorSearch aggregation stages requires additional configuration. Please connect to \
             Atlas or an AtlasCLI local deployment to enable. For more information on how to connect, see \
             https://dochub.mongodb.org/core/atlas-cli-deploy-local-reqs.",
        ),
        "$listSearchIndexes" => no_search_server(),
        _ => return None,
    })
}
