//! `$facet`: several pipelines over the same documents.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use super::{Pipeline, PipelineRun};
use crate::error::error;
use crate::expression::{Variables, check_field_path};
use crate::limits::MAX_FACET_BYTES;
use crate::value::{elements, first, is_empty, items, type_name};
use crate::work::{Units, spend, spend_bytes, unbounded};

/// Stages that read or write elsewhere, or that must come first.
const NOT_ALLOWED: &[&str] = &[
    "$changeStream",
    "$collStats",
    "$currentOp",
    "$documents",
    "$facet",
    "$geoNear",
    "$indexStats",
    "$listLocalSessions",
    "$listSessions",
    "$merge",
    "$out",
    "$planCacheStats",
    "$search",
    "$searchMeta",
    "$vectorSearch",
];

/// The stage's parsed specification: names with pipelines.
#[derive(Clone, Debug)]
pub(super) struct Facet(Vec<(String, Pipeline)>);

impl Facet {
    pub(super) fn parse(spec: RawBsonRef<'_>, variables: &Variables) -> Result<Facet> {
        let document = match spec {
            RawBsonRef::Document(document) if !is_empty(document) => document,
            _ => {
                return Err(error(
                    40169,
                    format!(
                        "the $facet specification must be a non-empty object, but found: {}",
                        crate::text::value_text(spec)
                    ),
                ));
            }
        };
        let mut facets = Vec::new();
        for (name, value) in elements(document) {
            check_name(name)?;
            let RawBsonRef::Array(stages) = value else {
                return Err(error(
                    40170,
                    format!(
                        "arguments to $facet must be arrays, {name} is type {}",
                        type_name(value)
                    ),
                ));
            };
            for stage in items(stages) {
                let RawBsonRef::Document(stage) = stage else {
                    return Err(error(
                        40171,
                        format!(
                            "elements of arrays in $facet spec must be non-empty objects, {name} argument contained an \
                             element of type {}",
                            type_name(stage)
                        ),
                    ));
                };
                if let Some((stage, _)) = first(stage).filter(|(s, _)| NOT_ALLOWED.contains(s)) {
                    return Err(error(
                        40600,
                        format!("{stage} is not allowed to be used within a $facet stage"),
                    ));
                }
            }
            let pipeline = Pipeline::parse_inner(stages, 0, variables)?;
            facets.push((name.to_string(), pipeline));
        }
        Ok(Facet(facets))
    }
}

fn check_name(name: &str) -> Result<()> {
    if name.contains('.') {
        return Err(error(
            16412,
            "FieldPath field names may not contain '.'. Consider using $getField or $setField.",
        ));
    }
    check_field_path(name)
}

/// The pipelines at work.
#[derive(Debug)]
pub(super) struct Facets {
    runs: Vec<(String, PipelineRun, Vec<RawDocumentBuf>)>,
    bytes: usize,
}

impl Facets {
    pub(super) fn new(facet: &Facet) -> Facets {
        Facets {
            runs: facet
                .0
                .iter()
                .map(|(name, pipeline)| (name.clone(), PipelineRun::new(pipeline), Vec::new()))
                .collect(),
            bytes: 0,
        }
    }

    /// The pipelines cannot go on where they were refused for their work, so most of it is accounted for before.
    pub(super) fn push(&mut self, document: &RawDocument) -> Result<()> {
        spend_bytes(self.runs.len() * document.as_bytes().len())?;
        unbounded(|| self.push_to_all(document))
    }

    fn push_to_all(&mut self, document: &RawDocument) -> Result<()> {
        for (_, run, found) in &mut self.runs {
            if !run.is_satisfied() {
                run.push(document)?;
            }
            drain(run, found, &mut self.bytes)?;
        }
        Ok(())
    }

    /// Accounts for [`Facets::finish`], which cannot go on where it is refused: all that the pipelines found is copied, and
    /// what they have not given yet is not known.
    pub(super) fn spend_finish(&self) -> Result<()> {
        spend(Units::from(u32::MAX))
    }

    /// One document with an array for each pipeline.
    pub(super) fn finish(mut self) -> Result<RawDocumentBuf> {
        let mut out = DocBuilder::new();
        for (name, mut run, mut found) in self.runs {
            while !run.finish_some(FINISHED_AT_ONCE)? {
                drain(&mut run, &mut found, &mut self.bytes)?;
            }
            drain(&mut run, &mut found, &mut self.bytes)?;
            out.start_array(&name);
            for document in &found {
                out.push(RawBsonRef::Document(document));
            }
            out.end();
        }
        Ok(out.finish())
    }
}

/// Takes all that can come out of a pipeline by now.
fn drain(run: &mut PipelineRun, found: &mut Vec<RawDocumentBuf>, bytes: &mut usize) -> Result<()> {
    take(run, found, bytes)?;
    while run.is_held_up() {
        run.resume()?;
        take(run, found, bytes)?;
    }
    Ok(())
}

/// Documents that a pipeline gives before they are counted.
const FINISHED_AT_ONCE: usize = 100;

/// Moves what a pipeline has finished to what was found before.
fn take(run: &mut PipelineRun, found: &mut Vec<RawDocumentBuf>, bytes: &mut usize) -> Result<()> {
    while let Some(document) = run.pop() {
        *bytes += document.as_bytes().len();
        if *bytes > MAX_FACET_BYTES {
            return Err(error(
                4_031_700,
                format!(
                    "document constructed by $facet is {bytes} bytes, which exceeds the limit of {MAX_FACET_BYTES} bytes"
                ),
            ));
        }
        found.push(document);
    }
    Ok(())
}
