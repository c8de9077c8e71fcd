//! `$rankFusion`: several pipelines over one collection, whose documents are ranked by the places
//! that they have in each.
//!
//! The first pipeline takes the place of the stage, and unions append the others. Behind each a
//! document is given its place; then those with the same `_id` come together, and the best come
//! first.

mod input;
mod parse;
mod step;

#[cfg(test)]
mod tests;

pub(super) use input::{check_inputs, not_first as fusion_not_first};
pub(super) use parse::parse;
pub(super) use step::{Fusing, Fusion, Ranking, Ranks};

/// Where the document that came stands while its places are counted.
const DOCUMENT: &str = "docs";

/// The field of a document's place in an input pipeline.
fn rank_field(pipeline: &str) -> String {
    format!("{pipeline}_rank")
}
