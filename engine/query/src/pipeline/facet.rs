//! `$facet`: several pipelines over the same documents.

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_wire::Result;

use super::row::stage_row_of;
use super::step::{Given, Input, OnDisk, Step, Taken, Want};
use super::{Document, Pipeline, PipelineRun};
use crate::error::error;
use crate::expression::{Variables, check_field_path};
use crate::limits::MAX_FACET_BYTES;
use crate::spill::{DiskReply, DiskRequest, Memory};
use crate::value::{elements, is_empty, items, type_name};
use crate::work::spend_bytes;

/// The stage's parsed specification: names with pipelines.
#[derive(Clone, Debug)]
pub(super) struct Facet(pub Vec<(String, Pipeline)>);

impl Facet {
    pub(super) fn parse(spec: RawBsonRef<'_>, variables: &Variables) -> Result<Facet> {
        let document = match spec {
            RawBsonRef::Document(document) if !is_empty(document) => document,
            _ => {
                return Err(error(
                    40169,
                    format!(
                        "the $facet specification must be a non-empty object, but found: {}",
                        crate::text::element_text("$facet", spec)
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
                if let Some(row) = stage_row_of(stage).filter(|row| !row.in_facet) {
                    return Err(error(
                        40600,
                        format!(
                            "{} is not allowed to be used within a $facet stage",
                            row.name
                        ),
                    ));
                }
            }
            let pipeline = Pipeline::parse_inner(stages, 0, variables)?;
            pipeline.check_text(true)?;
            if pipeline.has_text() {
                return Err(error(
                    40600,
                    "$match is not allowed to be used within a $facet stage",
                ));
            }
            facets.push((name.to_string(), pipeline));
        }
        Ok(Facet(facets))
    }
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(error(
            15998,
            "FieldPath field names may not be empty strings.",
        ));
    }
    if name.contains('.') {
        return Err(error(
            16412,
            "FieldPath field names may not contain '.'. Consider using $getField or $setField.",
        ));
    }
    check_field_path(name)
}

/// The pipelines at work, one after the other with each document.
#[derive(Debug)]
pub(super) struct Faceting {
    branches: Vec<Branch>,
    /// The document that they see, none after the last.
    document: Option<Document>,
    /// Whose turn it is.
    turn: usize,
    /// Whether that one has been given the document.
    given: bool,
    /// What that one asks of the disk.
    asked: Option<DiskRequest>,
    bytes: usize,
    finished: bool,
}

#[derive(Debug)]
struct Branch {
    name: String,
    run: PipelineRun,
    found: Vec<Document>,
}

impl Faceting {
    pub(super) fn new(facet: Facet, memory: &Memory) -> Faceting {
        let branch = |(name, pipeline)| Branch {
            name,
            run: PipelineRun::new(pipeline, memory),
            found: Vec::new(),
        };
        Faceting {
            branches: facet.0.into_iter().map(branch).collect(),
            document: None,
            turn: 0,
            given: false,
            asked: None,
            bytes: 0,
            finished: false,
        }
    }

    /// Every pipeline sees this document, or that none follows.
    fn begin(&mut self, document: Option<Document>) {
        self.document = document;
        (self.turn, self.given) = (0, false);
    }

    /// Keeps what a pipeline has found.
    fn keep(&mut self, document: Document) -> Result<()> {
        self.bytes += document.as_bytes().len();
        let bytes = self.bytes;
        if bytes > MAX_FACET_BYTES {
            return Err(error(
                4_031_700,
                format!(
                    "document constructed by $facet is {bytes} bytes, which exceeds the limit of {MAX_FACET_BYTES} bytes"
                ),
            ));
        }
        self.branches[self.turn].found.push(document);
        Ok(())
    }

    /// One document with an array for each pipeline.
    fn finish(&mut self) -> Result<Given> {
        if self.finished {
            return Ok(Given::Nothing);
        }
        spend_bytes(self.bytes)?;
        let mut out = DocBuilder::new();
        for branch in std::mem::take(&mut self.branches) {
            out.start_array(&branch.name);
            for document in &branch.found {
                out.push(RawBsonRef::Document(document));
            }
            out.end();
        }
        self.finished = true;
        Ok(Given::Document(out.finish().into()))
    }
}

impl Step for Faceting {
    fn take(&mut self, document: &Document) -> Result<Taken> {
        self.begin(Some(document.clone()));
        Ok(Taken::Gives)
    }

    fn end(&mut self) -> Result<()> {
        self.begin(None);
        Ok(())
    }

    fn give(&mut self) -> Result<Given> {
        let Some(branch) = self.branches.get_mut(self.turn) else {
            return match self.document {
                Some(_) => Ok(Given::Nothing),
                None => self.finish(),
            };
        };
        match branch.run.advance()? {
            None => {}
            Some(Want::Output(document)) => self.keep(document)?,
            Some(Want::Document) if !self.given => {
                let input = self.document.clone().map_or(Input::End, Input::Document);
                branch.run.accept(input)?;
                self.given = true;
            }
            Some(Want::Disk(request)) => {
                self.asked = Some(request);
                return Ok(Given::Disk);
            }
            Some(_) => (self.turn, self.given) = (self.turn + 1, false),
        }
        Ok(Given::Working)
    }

    fn disk(&mut self) -> Result<OnDisk> {
        Ok(self.asked.take().into())
    }

    fn reply(&mut self, reply: DiskReply) -> Result<()> {
        let branch = &mut self.branches[self.turn];
        branch.run.accept(Input::Disk(reply))
    }
}
