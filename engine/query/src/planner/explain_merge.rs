//! How explain prints plans of several scans.

use pinion_bson::{DocBuilder, RawBsonRef};

use super::alternatives::branches_of;
use super::explain::{ExplainStage, fetch, index_scan};
use super::residual::residual;
use super::{Access, IndexAccess, Plan, PlanRequest, explain_text};
use crate::index::IndexKind;
use crate::matcher::Node;

/// The scans of a plan, each with the branch of the `$or` that it is of; `None` where it is of the
/// whole filter.
fn scans(plan: &Plan) -> Vec<(&IndexAccess, Option<usize>)> {
    match &plan.access {
        Access::Union(scans) => (scans.iter().zip(0..))
            .map(|(scan, branch)| (scan, Some(branch)))
            .collect(),
        Access::Merge(sorted) => (sorted.iter())
            .map(|sorted| (&sorted.scan, sorted.branch))
            .collect(),
        _ => Vec::new(),
    }
}

/// The scans put together, and whether each of them gives documents.
pub(super) fn together(plan: &Plan, request: &PlanRequest<'_>) -> (ExplainStage, bool) {
    let branches = branches_of(request.matcher.root()).unwrap_or_default();
    let (mut inputs, mut all_fetched) = (Vec::new(), true);
    for (scan, branch) in scans(plan) {
        let branch = branch.and_then(|branch| branches.get(branch));
        let (input, is_fetched) = one_of(scan, branch, request);
        inputs.push(input);
        all_fetched &= is_fetched;
    }
    let mut details = DocBuilder::new();
    let name = match (&plan.access, request.sort) {
        (Access::Merge(_), Some(sort)) => {
            details.append("sortPattern", RawBsonRef::Document(sort.source()));
            "SORT_MERGE"
        }
        _ => "OR",
    };
    (ExplainStage::new(name, details, inputs), all_fetched)
}

/// The scan of a branch, which fetches documents itself where it has to look at more than keys.
fn one_of(
    scan: &IndexAccess,
    branch: Option<&Node>,
    request: &PlanRequest<'_>,
) -> (ExplainStage, bool) {
    if request.indexes[scan.index].kind == IndexKind::Text {
        return (explain_text::search(scan, request), true);
    }
    let below = index_scan(scan, request);
    let rest = branch.map(|branch| residual(request, scan, branch.conjuncts()));
    match rest {
        Some(rest) if !rest.is_empty() => (fetch(&rest, below), true),
        _ => (below, false),
    }
}

/// The plan with the documents fetched.
pub(super) fn fetched(plan: &Plan, request: &PlanRequest<'_>) -> ExplainStage {
    let (stage, all_fetched) = together(plan, request);
    if plan.covered {
        return stage;
    }
    let conjuncts = request.matcher.root().conjuncts();
    let rest: Vec<&Node> = match scans(plan).first() {
        Some((scan, None)) => residual(request, scan, conjuncts),
        _ => {
            let of_scans = conjuncts
                .iter()
                .position(|node| matches!(node, Node::Or(_)));
            let others = conjuncts.iter().enumerate();
            let others = others.filter(|(at, _)| Some(*at) != of_scans);
            others.map(|(_, node)| node).collect()
        }
    };
    match all_fetched && rest.is_empty() {
        true => stage,
        false => fetch(&rest, stage),
    }
}
