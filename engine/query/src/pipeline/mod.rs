//! Aggregation pipelines: parsed, divided into what the partitions find and what is left, and run.

mod bucket;
mod codes;
mod facet;
mod group;
mod parse;
mod redact;
mod run;
mod unwind;

#[cfg(test)]
mod tests;

use pinion_bson::{RawArray, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use crate::expression::{Expression, Variables};
use crate::matcher::Matcher;
use crate::projection::Projection;
use crate::sort::SortPattern;

pub use run::PipelineRun;

/// A parsed pipeline.
#[derive(Clone, Debug)]
pub struct Pipeline {
    stages: Vec<Stage>,
}

#[derive(Clone, Debug)]
enum Stage {
    Match(Matcher),
    Project(Projection),
    Sort(SortPattern),
    Skip(i64),
    Limit(i64),
    Count(String),
    Group(group::Group),
    Unwind(unwind::Unwind),
    /// With the words that the error for a value that is no document begins with.
    ReplaceRoot(Expression, &'static str),
    Redact(Expression),
    Facet(facet::Facet),
}

/// A pipeline divided: what a find over the partitions can do, and the stages behind it.
#[derive(Clone, Debug)]
pub struct PipelineParts {
    /// The leading `$match` stages as one filter.
    pub matcher: Matcher,
    /// The sort that comes next.
    pub sort: Option<SortPattern>,
    /// How many documents are wanted at most after filter and sort.
    pub limit: Option<i64>,
    /// What is left to run on the merged documents.
    pub rest: Pipeline,
}

impl Pipeline {
    /// Parses a pipeline; the errors are MongoDB's.
    pub fn parse(stages: &RawArray, variables: &Variables) -> Result<Pipeline> {
        Pipeline::parse_from(stages, 0, variables)
    }

    /// Parses a pipeline but for so many stages at its front.
    pub fn parse_from(stages: &RawArray, skip: usize, variables: &Variables) -> Result<Pipeline> {
        let mut pipeline = Pipeline::parse_inner(stages, skip, variables)?;
        codes::mark(&mut pipeline.stages);
        Ok(pipeline)
    }

    /// Parses a pipeline that is a part of a stage.
    fn parse_inner(stages: &RawArray, skip: usize, variables: &Variables) -> Result<Pipeline> {
        Ok(Pipeline {
            stages: parse::parse(stages, skip, variables)?,
        })
    }

    /// Whether there are no stages.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Whether MongoDB has a stage of this name that the parser refuses.
    pub(crate) fn is_lacking(name: &str) -> bool {
        parse::UNSUPPORTED.contains(&name) || parse::FIRST.contains(&name)
    }

    /// What stages that make one document out of one make of it; others leave it alone.
    pub(crate) fn transform(&self, document: &RawDocument) -> Result<RawDocumentBuf> {
        let mut current = owned(document);
        for stage in &self.stages {
            if let Some(made) = run::transformed(stage, &current)? {
                current = made;
            }
        }
        Ok(current)
    }

    /// Takes off the front what a find can do.
    pub fn divide(mut self, variables: &Variables) -> Result<PipelineParts> {
        filters_before_sorts(
            &mut self.stages,
            |stage| matches!(stage, Stage::Match(_)),
            |stage| matches!(stage, Stage::Sort(_)),
        );
        let mut stages = self.stages.into_iter().peekable();
        let mut filters: Vec<RawDocumentBuf> = Vec::new();
        while let Some(Stage::Match(matcher)) = stages.peek() {
            filters.push(matcher.filter().to_owned());
            stages.next();
        }
        let matcher = match &filters[..] {
            [] => Matcher::parse(&RawDocumentBuf::new())?,
            [filter] => Matcher::parse_with(filter, variables)?,
            filters => Matcher::parse_with(&join_filters(filters), variables)?,
        };
        let mut sort = None;
        if let Some(Stage::Sort(pattern)) = stages.peek() {
            sort = Some(pattern.clone());
            stages.next();
        }
        let limit = match stages.peek() {
            Some(Stage::Limit(limit)) => Some(*limit),
            _ => None,
        };
        if limit.is_some() {
            stages.next();
        }
        Ok(PipelineParts {
            matcher,
            sort,
            limit,
            rest: Pipeline {
                stages: stages.collect(),
            },
        })
    }
}

/// Moves filters that follow a sort in front of it: the same documents come out, and an index may find them.
pub fn filters_before_sorts<T>(
    stages: &mut [T],
    is_filter: impl Fn(&T) -> bool,
    is_sort: impl Fn(&T) -> bool,
) {
    for mut at in 1..stages.len() {
        while at > 0 && is_filter(&stages[at]) && is_sort(&stages[at - 1]) {
            stages.swap(at - 1, at);
            at -= 1;
        }
    }
}

fn join_filters(filters: &[RawDocumentBuf]) -> RawDocumentBuf {
    let mut out = pinion_bson::DocBuilder::new();
    out.start_array("$and");
    for filter in filters.iter().filter(|f| !crate::value::is_empty(f)) {
        out.push(pinion_bson::RawBsonRef::Document(filter));
    }
    out.end();
    let joined = out.finish();
    let is_empty = matches!(crate::value::field(&joined, "$and"), Some(pinion_bson::RawBsonRef::Array(a)) if a.is_empty());
    if is_empty {
        RawDocumentBuf::new()
    } else {
        joined
    }
}

/// A document as a stage hands it on.
fn owned(document: &RawDocument) -> RawDocumentBuf {
    document.to_owned()
}
