//! `$meta`: what a query knows of a document beside its fields.

use pinion_bson::RawBsonRef;
use pinion_wire::Result;

use crate::error::error;
use crate::expression::parse::{Expr, Parser};

/// What only search servers and random cursors give, so that no document here has it.
const NEVER_GIVEN: [&str; 9] = [
    "randVal",
    "score",
    "scoreDetails",
    "searchHighlights",
    "searchScore",
    "searchScoreDetails",
    "searchSequenceToken",
    "stream",
    "vectorSearchScore",
];

pub(super) fn parse(_: &mut Parser<'_>, _: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let RawBsonRef::String(name) = operand else {
        return Err(error(17307, "$meta only supports string arguments"));
    };
    let unavailable = |what: &str| {
        error(
            40218,
            format!("query requires {what} metadata, but it is not available"),
        )
    };
    match name {
        name if NEVER_GIVEN.contains(&name) => Ok(Expr::Remove),
        "textScore" => Err(unavailable("text score")),
        "geoNearDistance" => Err(unavailable("$geoNear distance")),
        "geoNearPoint" => Err(unavailable("$geoNear point")),
        "indexKey"
        | "recordId"
        | "sortKey"
        | "timeseriesBucketMinTime"
        | "timeseriesBucketMaxTime" => Err(error(
            115,
            format!("{{$meta: \"{name}\"}} is not supported"),
        )),
        _ => Err(error(
            17308,
            format!("Unsupported argument to $meta: {name}"),
        )),
    }
}
