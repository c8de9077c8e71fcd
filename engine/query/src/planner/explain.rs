//! Plans as explain prints them.

use pinion_bson::{CString, DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};

use super::choose::pattern_names;
use super::residual::residual;
use super::{Access, IndexAccess, Plan, PlanRequest, explain_merge, explain_text};
use crate::index::{IndexKind, IndexSpec};
use crate::limits::{MAX_EXPLAIN_BYTES, MAX_SORT_BYTES};
use crate::matcher::{Leaf, Matcher, Node, Predicate};
use crate::path::Path;
use crate::sort::Direction;
use crate::text::{document_text, format_general};
use crate::value::{bytes, elements, field};

/// The stage that passes over documents that the shard does not own.
const SHARDING_FILTER: &str = "SHARDING_FILTER";

/// One stage of a plan.
#[derive(Clone, Debug)]
pub struct ExplainStage {
    pub name: &'static str,
    /// What the stage shows beside its name.
    pub details: RawDocumentBuf,
    pub inputs: Vec<ExplainStage>,
}

impl ExplainStage {
    pub(super) fn new(
        name: &'static str,
        details: DocBuilder,
        inputs: Vec<ExplainStage>,
    ) -> ExplainStage {
        ExplainStage {
            name,
            details: details.finish(),
            inputs,
        }
    }

    /// What stands in the place of a plan where there is no collection.
    pub fn without_collection() -> ExplainStage {
        ExplainStage::end("nonExistentNamespace")
    }

    /// A stage that has nothing below it and shows no more than its name.
    pub fn leaf(name: &'static str) -> ExplainStage {
        ExplainStage::new(name, DocBuilder::new(), Vec::new())
    }

    /// The same plan, whose scan of the collection begins and ends at these records.
    #[must_use]
    pub fn within_records(mut self, [first, last]: [Option<i64>; 2]) -> ExplainStage {
        if self.name == "COLLSCAN" {
            for (name, record) in [("minRecord", first), ("maxRecord", last)] {
                if let Some(record) = record {
                    let name = CString::try_from(name).expect("a name without zero bytes");
                    self.details.append(name, record);
                }
            }
        }
        let inputs = self.inputs.into_iter();
        self.inputs = inputs
            .map(|input| input.within_records([first, last]))
            .collect();
        self
    }

    /// A plan that gives nothing, with the reason.
    fn end(reason: &str) -> ExplainStage {
        let mut details = DocBuilder::new();
        details.append("type", reason);
        ExplainStage::new("EOF", details, Vec::new())
    }

    /// A stage above this one.
    #[must_use]
    pub fn below(self, name: &'static str) -> ExplainStage {
        ExplainStage::new(name, DocBuilder::new(), vec![self])
    }

    /// Writes the whole plan into an open document. Explain looks at no plan of the cache.
    pub fn write_plan(
        &self,
        out: &mut DocBuilder,
        statistics: &dyn Fn(&ExplainStage, &mut DocBuilder),
    ) {
        out.append("isCached", false);
        self.write(out, statistics);
    }

    /// Writes the stage into an open document; `statistics` may add to each stage behind its name.
    pub fn write(&self, out: &mut DocBuilder, statistics: &dyn Fn(&ExplainStage, &mut DocBuilder)) {
        out.append("stage", RawBsonRef::String(self.name));
        statistics(self, out);
        for (name, value) in elements(&self.details) {
            append_if_room(out, name, value, MAX_EXPLAIN_BYTES);
        }
        match &self.inputs[..] {
            [] => {}
            [input] => {
                out.start_document("inputStage");
                input.write(out, statistics);
                out.end();
            }
            inputs => {
                out.start_array("inputStages");
                for input in inputs {
                    out.push_document();
                    input.write(out, statistics);
                    out.end();
                }
                out.end();
            }
        }
    }
}

/// Appends a field where the document then fits into the limit; otherwise a warning stands for it.
pub fn append_if_room(out: &mut DocBuilder, name: &str, value: RawBsonRef<'_>, most_bytes: usize) {
    if out.len() + name.len() + bytes(value) <= most_bytes {
        out.append_raw(name, value);
        return;
    }
    let warning = format!("'{name}' has been omitted due to BSON size limit");
    out.append("warning", warning.as_str());
}

/// The plans of a query as explain shows them.
#[derive(Clone, Copy, Debug)]
pub struct ShownPlans<'a> {
    pub winning: &'a ExplainStage,
    pub rejected: &'a [ExplainStage],
    pub shape_hash: &'a str,
    pub key_hash: &'a str,
    /// How long the choice took.
    pub millis: i64,
}

/// The part of explain about the plans: namespace, the filter's normal form, what was chosen and
/// what was not.
pub fn query_planner(
    namespace: &str,
    matcher: &Matcher,
    index_filter_set: bool,
    plans: &ShownPlans<'_>,
) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("namespace", RawBsonRef::String(namespace));
    let parsed = matcher.parsed_query();
    let parsed = RawBsonRef::Document(&parsed);
    append_if_room(&mut out, "parsedQuery", parsed, MAX_EXPLAIN_BYTES);
    if let Some(collation) = matcher.collation() {
        out.append("collation", RawBsonRef::Document(&collation.document()));
    }
    out.append("indexFilterSet", index_filter_set)
        .append("queryHash", plans.shape_hash)
        .append("planCacheShapeHash", plans.shape_hash)
        .append("planCacheKey", plans.key_hash)
        .append("optimizationTimeMillis", plans.millis as i32);
    for reached in [
        "maxIndexedOrSolutionsReached",
        "maxIndexedAndSolutionsReached",
        "maxScansToExplodeReached",
        "prunedSimilarIndexes",
    ] {
        out.append(reached, false);
    }
    out.start_document("winningPlan");
    plans.winning.write_plan(&mut out, &|_, _| {});
    out.end();
    out.start_array("rejectedPlans");
    for rejected in plans.rejected {
        out.push_document();
        rejected.write_plan(&mut out, &|_, _| {});
        out.end();
    }
    out.end();
    out.finish()
}

/// The stages of a `count`, which fetches no documents where the index decides the filter.
pub(super) fn count_stages(plan: &Plan, request: &PlanRequest<'_>) -> ExplainStage {
    if request.shard_key.is_some() {
        return count_owned(plan, request);
    }
    match &plan.access {
        Access::Index(access) if plan.filter_satisfied => match count_scan(access, request) {
            Some(scan) => scan,
            None => index_scan(access, request),
        },
        Access::Union(_) if plan.filter_satisfied => explain_merge::together(plan, request).0,
        _ => stages(plan, request, None, None, None),
    }
}

/// The same where it counts the documents that the shard owns alone.
fn count_owned(plan: &Plan, request: &PlanRequest<'_>) -> ExplainStage {
    match &plan.access {
        Access::Index(access) if plan.filter_satisfied && plan.has_shard_key(request) => {
            index_scan(access, request).below(SHARDING_FILTER)
        }
        Access::Union(_) if plan.filter_satisfied && plan.has_shard_key(request) => {
            explain_merge::together(plan, request)
                .0
                .below(SHARDING_FILTER)
        }
        _ => stages(plan, request, None, None, None),
    }
}

/// One range of keys of an index, as `COUNT_SCAN` shows it.
fn count_scan(access: &IndexAccess, request: &PlanRequest<'_>) -> Option<ExplainStage> {
    let index = access.spec(request.indexes);
    let [_] = access.ranges[..] else {
        return None;
    };
    let mut out = DocBuilder::new();
    append_index(&mut out, index);
    out.start_document("indexBounds");
    let mut ends = Vec::new();
    for (at, (name, intervals)) in pattern_names(index).zip(&access.bounds).enumerate() {
        let [interval] = &intervals.0[..] else {
            return None;
        };
        let low = (&interval.lower, interval.lower_inclusive);
        let high = (&interval.upper, interval.upper_inclusive);
        ends.push(match index.ordering.is_descending(at as u32) {
            true => (name, high, low),
            false => (name, low, high),
        });
    }
    out.start_document("startKey");
    for (name, (value, _), _) in &ends {
        out.append(name, value.as_raw_bson_ref());
    }
    out.end();
    out.append(
        "startKeyInclusive",
        ends.iter().all(|(_, (_, is_in), _)| *is_in),
    );
    out.start_document("endKey");
    for (name, _, (value, _)) in &ends {
        out.append(name, value.as_raw_bson_ref());
    }
    out.end();
    out.append(
        "endKeyInclusive",
        ends.iter().all(|(_, _, (_, is_in))| *is_in),
    );
    out.end();
    Some(ExplainStage::new("COUNT_SCAN", out, Vec::new()))
}

/// The stages of a `distinct` that goes from value to value of an index.
pub(super) fn distinct_stages(
    access: &IndexAccess,
    request: &PlanRequest<'_>,
    key: &str,
) -> ExplainStage {
    let scan = index_scan(access, request);
    let mut details = DocBuilder::new();
    details.append_all(&scan.details);
    details
        .append("isShardFiltering", false)
        .append("isFetching", false);
    let scan = ExplainStage::new("DISTINCT_SCAN", details, Vec::new());
    let mut details = DocBuilder::new();
    details
        .start_document("transformBy")
        .append("_id", 0i32)
        .append(key, 1i32)
        .end();
    ExplainStage::new("PROJECTION_COVERED", details, vec![scan])
}

pub(super) fn stages(
    plan: &Plan,
    request: &PlanRequest<'_>,
    skip: Option<i64>,
    limit: Option<i64>,
    projection: Option<&RawDocument>,
) -> ExplainStage {
    let with_filter = || {
        let mut details = DocBuilder::new();
        if !plan.filter_satisfied && !request.matcher.is_empty() {
            let filter = request.matcher.parsed_query();
            details.append("filter", RawBsonRef::Document(&filter));
        }
        details
    };
    let mut stage = match &plan.access {
        Access::Nothing => ExplainStage::end("predicateEvalsToFalse"),
        Access::Id(_) if clustered_by(request).is_some() => {
            let mut details = DocBuilder::new();
            details.append("keyPattern", "{ _id: 1 }");
            ExplainStage::new("EXPRESS_CLUSTERED_IXSCAN", details, Vec::new())
        }
        Access::Id(_) if plan.filter_satisfied => {
            ExplainStage::new("IDHACK", DocBuilder::new(), Vec::new())
        }
        Access::Id(id) => {
            let scan = request
                .indexes
                .iter()
                .position(IndexSpec::is_id)
                .map(|index| {
                    let point = super::Intervals(vec![super::Interval {
                        lower: id.clone(),
                        lower_inclusive: true,
                        upper: id.clone(),
                        upper_inclusive: true,
                    }]);
                    let access = IndexAccess {
                        index,
                        expanded: None,
                        bounds: vec![point],
                        ranges: Vec::new(),
                        decided_fields: 1,
                        direction: Direction::Forward,
                        multikey: false,
                        repeats: false,
                    };
                    index_scan(&access, request)
                });
            ExplainStage::new("FETCH", with_filter(), scan.into_iter().collect())
        }
        Access::Collection(direction) => {
            let mut details = with_filter();
            details.append("direction", RawBsonRef::String(direction_name(*direction)));
            ExplainStage::new("COLLSCAN", details, Vec::new())
        }
        Access::Index(access) if request.indexes[access.index].kind == IndexKind::Text => {
            explain_text::text_match(access, request)
        }
        Access::Index(access) if request.indexes[access.index].clustered => {
            clustered_scan(access, request, with_filter())
        }
        Access::Index(access) if plan.covered => index_scan(access, request),
        Access::Index(access) => {
            let rest = residual(request, access, request.matcher.root().conjuncts());
            fetch(&rest, index_scan(access, request))
        }
        Access::Near(access) => {
            let index = &request.indexes[access.index];
            let mut details = DocBuilder::new();
            details.append("keyPattern", RawBsonRef::Document(&index.key));
            details.append("indexName", RawBsonRef::String(&index.name));
            details.append("indexVersion", 2i32);
            ExplainStage::new(access.stage(), details, Vec::new())
        }
        Access::Union(_) | Access::Merge(_) => explain_merge::fetched(plan, request),
    };
    if request.shard_key.is_some() && !matches!(plan.access, Access::Nothing) {
        stage = stage.below(SHARDING_FILTER);
    }
    let skip = skip.filter(|n| *n > 0);
    let limit = limit.filter(|n| *n > 0);
    let sort = request.sort.filter(|_| plan.needs_sort(request.sort));
    if let Some(sort) = sort {
        let mut details = DocBuilder::new();
        details.append("sortPattern", RawBsonRef::Document(sort.source()));
        details.append("memLimit", RawBsonRef::Int32(MAX_SORT_BYTES as i32));
        if let Some(limit) = limit {
            details.append("limitAmount", RawBsonRef::Int64(limit + skip.unwrap_or(0)));
        }
        details.append("type", RawBsonRef::String("simple"));
        stage = ExplainStage::new("SORT", details, vec![stage]);
    }
    let amount = |name: &'static str, field: &str, n: i64, input: ExplainStage| {
        let mut details = DocBuilder::new();
        match i32::try_from(n) {
            Ok(small) => details.append(field, RawBsonRef::Int32(small)),
            Err(_) => details.append(field, RawBsonRef::Int64(n)),
        };
        ExplainStage::new(name, details, vec![input])
    };
    if let Some(skip) = skip {
        stage = amount("SKIP", "skipAmount", skip, stage);
    }
    if request.return_key {
        stage = ExplainStage::new("RETURN_KEY", DocBuilder::new(), vec![stage]);
    }
    if let (Some(projection), Some(parsed)) = (projection, request.projection)
        && !parsed.is_identity()
    {
        let mut details = DocBuilder::new();
        details.append("transformBy", RawBsonRef::Document(projection));
        let name = if plan.covered {
            "PROJECTION_COVERED"
        } else if parsed.is_simple() {
            "PROJECTION_SIMPLE"
        } else {
            "PROJECTION_DEFAULT"
        };
        stage = ExplainStage::new(name, details, vec![stage]);
    }
    if let (Some(limit), None) = (limit, sort) {
        stage = amount("LIMIT", "limitAmount", limit, stage);
    }
    stage
}

/// Fetches documents, and looks at what is left of the filter.
pub(super) fn fetch(rest: &[&Node], below: ExplainStage) -> ExplainStage {
    let mut details = DocBuilder::new();
    if !rest.is_empty() {
        let filter = crate::matcher::serialize_all(rest);
        details.append("filter", RawBsonRef::Document(&filter));
    }
    ExplainStage::new("FETCH", details, vec![below])
}

/// The index by which the collection is declared to be clustered.
fn clustered_by<'a>(request: &PlanRequest<'a>) -> Option<&'a IndexSpec> {
    request.indexes.iter().find(|index| index.clustered)
}

/// A scan of a clustered collection, between the first and the last `_id` where there are such
/// bounds.
fn clustered_scan(
    access: &IndexAccess,
    request: &PlanRequest<'_>,
    mut details: DocBuilder,
) -> ExplainStage {
    let ends = access.bounds.first().map(|bounds| &bounds.0[..]);
    let (first, last) = match ends {
        Some([first, .., last]) => (Some(&first.lower), Some(&last.upper)),
        Some([only]) => (Some(&only.lower), Some(&only.upper)),
        _ => (None, None),
    };
    let is_bound = |bound: &&pinion_bson::RawBson| {
        let value = bound.as_raw_bson_ref();
        !matches!(value, RawBsonRef::MinKey | RawBsonRef::MaxKey)
    };
    let (first, last) = (first.filter(is_bound), last.filter(is_bound));
    details.append("direction", direction_name(access.direction));
    for (name, bound) in [("minRecord", first), ("maxRecord", last)] {
        if let Some(bound) = bound {
            details.append_raw(name, bound.as_raw_bson_ref());
        }
    }
    let is_asked_for = request.hint.is_some() || first.is_some() || last.is_some();
    let name = match is_asked_for {
        true => "CLUSTERED_IXSCAN",
        false => "COLLSCAN",
    };
    ExplainStage::new(name, details, Vec::new())
}

fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "forward",
        Direction::Backward => "backward",
    }
}

pub(super) fn index_scan(access: &IndexAccess, request: &PlanRequest<'_>) -> ExplainStage {
    let index = access.spec(request.indexes);
    let mut out = DocBuilder::new();
    append_index(&mut out, index);
    out.append(
        "direction",
        RawBsonRef::String(direction_name(access.direction)),
    );
    match bounds_of(access, request) {
        Some(bounds) => out.append("indexBounds", &*bounds),
        None => out.append(
            "warning",
            "index bounds omitted due to BSON size limit for explain",
        ),
    };
    ExplainStage::new("IXSCAN", out, Vec::new())
}

/// The bounds of each field; `None` where they are too large to be shown.
fn bounds_of(access: &IndexAccess, request: &PlanRequest<'_>) -> Option<RawDocumentBuf> {
    let index = access.spec(request.indexes);
    let mut out = DocBuilder::new();
    // `min` and `max` bound keys, not fields.
    let bounds = request
        .key_bounds
        .map_or(&access.bounds[..], |_| Default::default());
    for (at, (name, intervals)) in pattern_names(index).zip(bounds).enumerate() {
        let backward =
            index.ordering.is_descending(at as u32) != (access.direction == Direction::Backward);
        out.start_array(name);
        let count = intervals.0.len();
        for place in 0..count {
            let place = if backward { count - 1 - place } else { place };
            let text = intervals.0[place].text(backward, index.bound_strings(at as u32));
            out.push(RawBsonRef::String(&text));
            if out.len() > MAX_EXPLAIN_BYTES {
                return None;
            }
        }
        out.end();
    }
    Some(out.finish())
}

/// Appends what a scan shows of its index.
fn append_index(out: &mut DocBuilder, index: &crate::index::IndexSpec) {
    out.append("keyPattern", RawBsonRef::Document(&index.key));
    out.append("indexName", RawBsonRef::String(&index.name));
    if let Some(collation) = &index.collation {
        out.append("collation", RawBsonRef::Document(&collation.document()));
    }
    out.append("isMultiKey", RawBsonRef::Boolean(index.is_multikey()));
    if let Some(fields) = index.multikey_components() {
        append_multikey_paths(out, index.paths(), &fields);
    }
    out.append(
        "isUnique",
        RawBsonRef::Boolean(index.unique || index.is_id()),
    );
    out.append("isSparse", RawBsonRef::Boolean(index.sparse));
    out.append("isPartial", RawBsonRef::Boolean(index.filter.is_some()));
    out.append("indexVersion", RawBsonRef::Int32(2));
}

/// For each field of an index the paths that end in an array.
fn append_multikey_paths(out: &mut DocBuilder, paths: &[Path], fields: &[Vec<bool>]) {
    out.start_document("multiKeyPaths");
    for (path, flags) in paths.iter().zip(fields) {
        out.start_array(path.text());
        for (component, _) in flags.iter().enumerate().filter(|(_, is_array)| **is_array) {
            let names = path.components()[..=component].iter().map(|c| &*c.name);
            let names: Vec<&str> = names.collect();
            out.push(RawBsonRef::String(&names.join(".")));
        }
        out.end();
    }
    out.end();
}

/// A filter's tree as messages about plans print it.
pub(super) fn tree_text(node: &Node) -> String {
    let mut out = String::new();
    write_tree(node, 0, &mut out);
    out
}

fn write_tree(node: &Node, depth: usize, out: &mut String) {
    let indent = "    ".repeat(depth);
    let list = |name: &str, children: &[Node], out: &mut String| {
        out.push_str(&format!("{indent}{name}\n"));
        children
            .iter()
            .for_each(|child| write_tree(child, depth + 1, out));
    };
    match node {
        Node::And(children) => list("$and", children, out),
        Node::Or(children) => list("$or", children, out),
        Node::Nor(children) => list("$nor", children, out),
        Node::Not(child) => list("$not", std::slice::from_ref(child), out),
        Node::AlwaysTrue => out.push_str(&format!("{indent}$alwaysTrue: 1\n")),
        Node::AlwaysFalse => out.push_str(&format!("{indent}$alwaysFalse: 1\n")),
        Node::Expr(..) => out.push_str(&format!("{indent}$expr\n")),
        Node::Schema(..) => out.push_str(&format!("{indent}$jsonSchema\n")),
        Node::Text(text) => out.push_str(&format!("{indent}{}\n", text.summary())),
        Node::Leaf(Leaf {
            path,
            predicate: Predicate::Compare { op, value },
            ..
        }) => {
            let value = crate::text::value_text(value.as_raw_bson_ref());
            out.push_str(&format!("{indent}{} {} {value}\n", path.text(), op.name()));
        }
        Node::Leaf(Leaf {
            path,
            predicate: Predicate::Near(near),
            ..
        }) => {
            let is_near_sphere = field(&near.source, "$nearSphere").is_some();
            out.push_str(&format!(
                "{indent}GEONEAR  field={} maxdist={} isNearSphere={}\n",
                path.text(),
                format_general(near.max_given(), 6),
                u8::from(is_near_sphere)
            ));
        }
        Node::Leaf(Leaf {
            predicate: Predicate::Geo(geo),
            ..
        }) => {
            let raw = document_text(&geo.source);
            out.push_str(&format!("{indent}GEO raw = {raw}\n"));
        }
        Node::Leaf(leaf) => out.push_str(&format!("{indent}{}\n", leaf.path.text())),
    }
}
