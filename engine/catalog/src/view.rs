//! Views: their rows, their documents in `system.views`, and what they stand on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pinion_bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_collation::Collation;
use pinion_query::TimeSeries;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use crate::catalog::Catalog;
use crate::entry::BadRow;
use crate::limits::{MAX_VIEW_DEPTH, MAX_VIEW_PIPELINE_BYTES};
use crate::options::{CollectionKind, CollectionOptions, ViewDefinition};

/// One view as the catalog knows it. Immutable: a change makes a new one.
#[derive(Clone, Debug)]
pub struct View {
    /// Its name.
    pub ns: Namespace,
    /// Its number, the key of its row.
    pub number: u64,
    /// What it was created with; `options.view` is there.
    pub options: CollectionOptions,
    collation: Option<Arc<Collation>>,
}

/// The names of the collection in which a database has its views.
pub const SYSTEM_VIEWS: &str = "system.views";

/// A namespace of views, resolved: what is read, and the stages in front of the command's own.
#[derive(Clone, Debug)]
pub struct ResolvedView {
    /// The collection that is read; it need not be there.
    pub on: Namespace,
    /// The stages of all views on the way, the innermost first.
    pub pipeline: Vec<RawDocumentBuf>,
    /// The collation of the view that was named: it is that of all that is read through it.
    pub collation: Option<Arc<Collation>>,
    /// What was named is no view on documents but a series, in these buckets.
    pub series: Option<TimeSeries>,
}

impl ResolvedView {
    /// This view, if what it is on has turned out to be one itself.
    #[must_use]
    pub fn over(self, below: ResolvedView) -> ResolvedView {
        let mut pipeline = below.pipeline;
        pipeline.extend(self.pipeline);
        ResolvedView {
            on: below.on,
            pipeline,
            collation: self.collation,
            series: None,
        }
    }
}

impl View {
    /// The view with these options.
    ///
    /// # Panics
    /// When they are not those of a view.
    pub(crate) fn new(ns: Namespace, number: u64, options: CollectionOptions) -> View {
        assert!(options.view.is_some(), "a view has a definition");
        View {
            collation: options.parsed_collation(),
            ns,
            number,
            options,
        }
    }

    /// What it is defined as.
    pub fn definition(&self) -> &ViewDefinition {
        self.options.view.as_ref().expect("a view has a definition")
    }

    /// Whether it is a view or a time series.
    pub fn kind(&self) -> CollectionKind {
        self.options.kind()
    }

    /// The namespace that it is defined on.
    pub fn on(&self) -> Namespace {
        let on = Namespace::new(self.ns.db(), &self.definition().on);
        on.expect("checked when the view was made")
    }

    /// Its options as they are listed: how a series is made out of its buckets is not among them.
    pub fn listed_options(&self) -> RawDocumentBuf {
        let mut options = self.options.clone();
        if self.kind() == CollectionKind::TimeSeries {
            options.view = None;
        }
        options.to_document()
    }

    /// Its document in `system.views`.
    pub fn to_system_document(&self) -> RawDocumentBuf {
        let mut out = pinion_bson::DocBuilder::new();
        out.append("_id", self.ns.as_str())
            .append("viewOn", self.definition().on.as_str())
            .append_raw("pipeline", RawBsonRef::Array(&self.definition().pipeline));
        if let Some(collation) = &self.options.collation {
            out.append("collation", &**collation);
        }
        if let Some(series) = &self.options.time_series {
            out.append("timeseries", &*series.to_document());
        }
        out.finish()
    }

    /// The row of this view. Its type distinguishes it from that of a collection.
    pub(crate) fn to_row(&self) -> RawDocumentBuf {
        rawdoc! {
            "type": "view",
            "number": self.number as i64,
            "ns": self.ns.as_str(),
            "md": { "ns": self.ns.as_str(), "options": self.options.to_document() },
        }
    }

    /// Whether a row is that of a view.
    pub(crate) fn is_row(row: &RawDocument) -> bool {
        row.get_str("type").is_ok_and(|kind| kind == "view")
    }

    /// Reads a row back.
    pub(crate) fn from_row(row: &RawDocument) -> Result<View, BadRow> {
        let bad = |what: &str| BadRow(format!("catalog row of a view: {what}"));
        let ns = row.get_str("ns").map_err(|_| bad("no ns"))?;
        let ns = Namespace::parse(ns).map_err(|error| bad(&error.message))?;
        let number = row.get_i64("number").map_err(|_| bad("no number"))?;
        let options = row
            .get_document("md")
            .and_then(|md| md.get_document("options"))
            .map_err(|_| bad("no md.options"))?;
        let options = CollectionOptions::from_document(options).map_err(|error| bad(&error.0))?;
        if options.view.is_none() {
            return Err(bad("no definition"));
        }
        let number = u64::try_from(number).map_err(|_| bad("a negative number"))?;
        Ok(View::new(ns, number, options))
    }
}

/// Calls `f` with the name of every collection that a pipeline reads beside its own.
pub fn for_each_source<'a>(pipeline: &'a RawArray, f: &mut dyn FnMut(&'a str)) {
    for stage in pinion_bson::values(pipeline) {
        if let RawBsonRef::Document(stage) = stage
            && let Some((name, value)) = pinion_bson::elements(stage).next()
        {
            sources_of_stage(name, value, f);
        }
    }
}

fn sources_of_stage<'a>(name: &str, value: RawBsonRef<'a>, f: &mut dyn FnMut(&'a str)) {
    let (from, document) = match (name, value) {
        ("$unionWith", RawBsonRef::String(from)) => return f(from),
        ("$unionWith", RawBsonRef::Document(document)) => ("coll", document),
        ("$lookup" | "$graphLookup", RawBsonRef::Document(document)) => ("from", document),
        ("$facet", RawBsonRef::Document(facets)) => {
            for (_, pipeline) in pinion_bson::elements(facets) {
                if let RawBsonRef::Array(pipeline) = pipeline {
                    for_each_source(pipeline, f);
                }
            }
            return;
        }
        _ => return,
    };
    if let Some(RawBsonRef::String(from)) = pinion_bson::get(document, from) {
        f(from);
    }
    if let Some(RawBsonRef::Array(pipeline)) = pinion_bson::get(document, "pipeline") {
        for_each_source(pipeline, f);
    }
}

impl ViewDefinition {
    /// The collections that the view reads, with that which it is defined on.
    fn sources(&self) -> Vec<&str> {
        let mut sources = vec![self.on.as_str()];
        for_each_source(&self.pipeline, &mut |name| sources.push(name));
        sources
    }
}

impl Catalog {
    /// The collection under a view, and the stages of all views on the way; `None` if `ns` is none.
    ///
    /// # Errors
    /// `ViewDepthLimitExceeded`, `ViewPipelineMaxSizeExceeded`: views that were made before the
    /// limits were as they are.
    pub fn resolve_view(&self, ns: &Namespace) -> Result<Option<ResolvedView>> {
        let Some(named) = self.view(ns) else {
            return Ok(None);
        };
        let mut stages: VecDeque<RawDocumentBuf> = VecDeque::new();
        let (mut view, mut bytes) = (named, 0);
        for _ in 0..MAX_VIEW_DEPTH {
            let pipeline = &view.definition().pipeline;
            bytes += pipeline.as_bytes().len();
            if bytes > MAX_VIEW_PIPELINE_BYTES {
                return Err(pipeline_too_large());
            }
            let own: Vec<RawDocumentBuf> = pinion_bson::values(pipeline)
                .filter_map(|stage| match stage {
                    RawBsonRef::Document(stage) => Some(stage.to_owned()),
                    _ => None,
                })
                .collect();
            own.into_iter()
                .rev()
                .for_each(|stage| stages.push_front(stage));
            let on = view.on();
            match self.view(&on) {
                Some(below) => view = below,
                None => {
                    return Ok(Some(ResolvedView {
                        on,
                        pipeline: stages.into(),
                        collation: named.collation.clone(),
                        series: named.options.time_series.clone(),
                    }));
                }
            }
        }
        Err(too_deep())
    }

    /// Checks a view that is about to be made or changed: the views that it stands on, and those
    /// that stand on it, make no circle, are not too many in a row, and have its collation.
    pub(crate) fn check_view(&self, changed: &View) -> Result<()> {
        let mut known = BTreeMap::new();
        self.stack(changed, changed, 0, &mut known)?;
        // Those above it, if there are any: a longer way down makes theirs longer.
        for above in self.views_of(changed.ns.db()) {
            self.stack(above, changed, 0, &mut known)?;
        }
        Ok(())
    }

    /// The row of views from `view` down, `changed` standing in for the one of its name. What is
    /// known of a view already is not found out again: views may branch as they like.
    fn stack(
        &self,
        view: &View,
        changed: &View,
        depth: usize,
        known: &mut BTreeMap<Namespace, Stack>,
    ) -> Result<Stack> {
        let view = if view.ns == changed.ns { changed } else { view };
        if let Some(stack) = known.get(&view.ns) {
            return Ok(*stack);
        }
        if depth >= MAX_VIEW_DEPTH {
            return Err(too_deep());
        }
        let mut stack = Stack {
            height: 1,
            bytes: view.definition().pipeline.as_bytes().len(),
        };
        for source in view.definition().sources() {
            let Ok(source) = Namespace::new(view.ns.db(), source) else {
                continue;
            };
            if source == changed.ns && !known.contains_key(&source) {
                return Err(Error::new(
                    ErrorCode::GRAPH_CONTAINS_CYCLE,
                    format!("View cycle detected: {} => {source}", view.ns),
                ));
            }
            let below = match self.view(&source) {
                _ if source == changed.ns => changed,
                Some(below) => below,
                None => continue,
            };
            if [&view.ns, &below.ns].contains(&&changed.ns) {
                check_collations(view, below)?;
            }
            let under = self.stack(below, changed, depth + 1, known)?;
            stack.height = stack.height.max(under.height + 1);
            // What a stage reads is not in front of this pipeline.
            if source == view.on() {
                stack.bytes += under.bytes;
            }
        }
        if stack.height > MAX_VIEW_DEPTH {
            return Err(too_deep());
        }
        if stack.bytes > MAX_VIEW_PIPELINE_BYTES {
            return Err(pipeline_too_large());
        }
        known.insert(view.ns.clone(), stack);
        Ok(stack)
    }
}

/// The views in a row, from one of them down.
#[derive(Clone, Copy)]
struct Stack {
    height: usize,
    /// Of the pipelines in front of the collection.
    bytes: usize,
}

/// Views on one another have one collation; the buckets below a time series have none of their own.
fn check_collations(above: &View, below: &View) -> Result<()> {
    let is_series = below.kind() == CollectionKind::TimeSeries;
    if is_series || above.options.collation == below.options.collation {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::OPTION_NOT_SUPPORTED_ON_VIEW,
        format!(
            "View {} has a collation that does not match the collation of view {}",
            above.ns, below.ns
        ),
    ))
}

fn too_deep() -> Error {
    Error::new(
        ErrorCode::VIEW_DEPTH_LIMIT_EXCEEDED,
        format!("View depth limit exceeded; maximum depth is {MAX_VIEW_DEPTH}"),
    )
}

fn pipeline_too_large() -> Error {
    Error::new(
        ErrorCode::VIEW_PIPELINE_MAX_SIZE_EXCEEDED,
        format!(
            "View pipeline is too large and exceeds maximum size of {MAX_VIEW_PIPELINE_BYTES} bytes"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::RawArrayBuf;

    fn ns(name: &str) -> Namespace {
        Namespace::new("d", name).expect("a name")
    }

    fn view(name: &str, on: &str, stages: &[RawDocumentBuf]) -> View {
        let mut pipeline = RawArrayBuf::new();
        stages.iter().for_each(|stage| pipeline.push(stage.clone()));
        let options = CollectionOptions {
            view: Some(ViewDefinition {
                on: on.into(),
                pipeline,
            }),
            ..CollectionOptions::default()
        };
        View::new(ns(name), 100, options)
    }

    fn catalog(views: &[View]) -> Catalog {
        let mut catalog = Catalog::empty();
        for (number, view) in (20..).zip(views) {
            let mut view = view.clone();
            view.number = number;
            catalog.put_view(view);
        }
        catalog
    }

    #[track_caller]
    fn check(views: &[View], made: View, expected: Option<ErrorCode>) {
        let refused = catalog(views).check_view(&made).err();
        assert_eq!(refused.map(|error| error.code), expected, "{:?}", made.ns);
    }

    #[test]
    fn circles_are_refused() {
        let cycle = Some(ErrorCode::GRAPH_CONTAINS_CYCLE);
        check(&[], view("a", "c", &[]), None);
        check(&[], view("a", "a", &[]), cycle);
        check(&[view("a", "b", &[])], view("b", "a", &[]), cycle);
        check(&[view("a", "b", &[])], view("b", "c", &[]), None);
        let lookup = rawdoc! { "$lookup": { "from": "b", "as": "x", "pipeline": [] } };
        check(&[view("a", "c", &[lookup])], view("b", "a", &[]), cycle);
        let union = rawdoc! { "$facet": { "f": [{ "$unionWith": "b" }] } };
        check(&[view("a", "c", &[union])], view("b", "a", &[]), cycle);
        let nested = rawdoc! { "$unionWith": { "coll": "x", "pipeline": [{ "$unionWith": "b" }] } };
        check(&[view("a", "c", &[nested])], view("b", "a", &[]), cycle);
    }

    #[test]
    fn too_many_in_a_row_are_refused() {
        let chain = |from: usize, to: usize| -> Vec<View> {
            (from..to)
                .map(|n| view(&format!("v{n}"), &format!("v{}", n + 1), &[]))
                .collect()
        };
        let deep = Some(ErrorCode::VIEW_DEPTH_LIMIT_EXCEEDED);
        check(&chain(1, MAX_VIEW_DEPTH), view("v0", "v1", &[]), None);
        check(&chain(1, MAX_VIEW_DEPTH + 1), view("v0", "v1", &[]), deep);
        // The same rows, closed by a view in their middle.
        let mut halves = chain(0, 10);
        halves.extend(chain(11, MAX_VIEW_DEPTH + 1));
        check(&halves, view("v10", "v11", &[]), deep);
        halves.pop();
        check(&halves, view("v10", "v11", &[]), None);
    }

    #[test]
    fn stages_stand_in_the_order_of_the_views() {
        let stage = |n: i32| rawdoc! { "$limit": n };
        let views = [
            view("a", "b", &[stage(3), stage(4)]),
            view("b", "c", &[stage(1), stage(2)]),
        ];
        let resolved = catalog(&views).resolve_view(&ns("a")).expect("views");
        let resolved = resolved.expect("a view");
        assert_eq!(resolved.on, ns("c"));
        assert_eq!(resolved.pipeline, [stage(1), stage(2), stage(3), stage(4)]);
        assert!(
            catalog(&views)
                .resolve_view(&ns("c"))
                .expect("views")
                .is_none()
        );
    }

    #[test]
    fn rows_come_back() {
        let made = view("a", "b", &[rawdoc! { "$match": { "x": 1 } }]);
        let read = View::from_row(&made.to_row()).expect("a row");
        assert_eq!(
            (read.ns, read.number, read.options),
            (made.ns, made.number, made.options)
        );
        assert!(View::is_row(&view("a", "b", &[]).to_row()));
    }
}
