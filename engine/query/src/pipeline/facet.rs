//! `$facet`: several pipelines over the same documents.

use std::collections::VecDeque;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use super::grouping::Role;
use super::partial::PartialPipeline;
use super::row::stage_row_of;
use super::step::{Accepted, Input, OnDisk, Produced, StageRequest, Step};
use super::{Document, Pipeline, PipelineRun};
use crate::error::{bad_value, error};
use crate::expression::{Variables, check_field_path};
use crate::limits::MAX_FACET_BYTES;
use crate::spill::{DiskReply, DiskRequest, Memory};
use crate::value::{elements, field, is_empty, items, type_name};
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

impl Facet {
    /// The pipelines as parts run them, and as what all parts give of each is put together, if all
    /// of them can be divided.
    pub(super) fn divided(&self) -> Option<DividedFacet> {
        let (mut in_part, mut merge, mut needs_order) = (Vec::new(), Vec::new(), false);
        for (name, pipeline) in &self.0 {
            let mut partial = PartialPipeline::of(pipeline.stages.iter())?;
            needs_order |= partial.needs_order;
            in_part.push((name.clone(), partial.part));
            partial.merge.stages.append(&mut partial.rest.stages);
            merge.push((name.clone(), partial.merge));
        }
        Some(DividedFacet {
            in_part: Facet(in_part),
            merge: Facet(merge),
            needs_order,
        })
    }

    /// The stage as it could be written.
    pub(super) fn source(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.start_document("$facet");
        for (name, pipeline) in &self.0 {
            out.start_array(name);
            for stage in pipeline.sources() {
                out.push(RawBsonRef::Document(stage));
            }
            out.end();
        }
        out.end();
        out.finish()
    }
}

/// The stage in parts.
pub(super) struct DividedFacet {
    pub in_part: Facet,
    pub merge: Facet,
    /// Whether a part has to know the order of its documents among those of all parts.
    pub needs_order: bool,
}

/// What a pipeline in a part gives, with the place of the pipeline.
fn of_branch(place: usize, document: &RawDocument) -> Document {
    let mut out = DocBuilder::new();
    out.append("branch", place as i64)
        .append("document", RawBsonRef::Document(document));
    out.finish().into()
}

/// The same read again.
fn read_of_branch(given: &RawDocument) -> Result<(usize, Document)> {
    match (field(given, "branch"), field(given, "document")) {
        (Some(RawBsonRef::Int64(place)), Some(RawBsonRef::Document(document))) => {
            Ok((place as usize, document.to_owned().into()))
        }
        _ => Err(bad_value(
            "what a part gives of a $facet has a form that is not known",
        )),
    }
}

/// The pipelines at work, one after the other with each document.
#[derive(Debug)]
pub(super) struct Faceting {
    branches: Vec<Branch>,
    role: Role,
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
    found: VecDeque<Document>,
}

impl Faceting {
    pub(super) fn new(facet: Facet, role: Role, memory: &Memory) -> Faceting {
        let branch = |(name, pipeline)| Branch {
            name,
            run: PipelineRun::new(pipeline, memory),
            found: VecDeque::new(),
        };
        Faceting {
            role,
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
        self.branches[self.turn].found.push_back(document);
        Ok(())
    }

    /// What all pipelines have given: one document with an array for each of them. A part gives
    /// their documents one by one, each with the place of its pipeline.
    fn finish(&mut self) -> Result<Produced> {
        if self.role == Role::Part {
            for (place, branch) in self.branches.iter_mut().enumerate() {
                let Some(found) = branch.found.front() else {
                    continue;
                };
                spend_bytes(found.as_bytes().len())?;
                let given = of_branch(place, found);
                branch.found.pop_front();
                return Ok(Produced::Document(given));
            }
            return Ok(Produced::Nothing);
        }
        if self.finished {
            return Ok(Produced::Nothing);
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
        Ok(Produced::Document(out.finish().into()))
    }
}

impl Step for Faceting {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        match self.role {
            Role::Whole | Role::Part => self.begin(Some(document.clone())),
            Role::Merge => {
                spend_bytes(document.as_bytes().len())?;
                let (place, document) = read_of_branch(document)?;
                self.begin(Some(document));
                self.turn = place;
            }
        }
        Ok(Accepted::Gives)
    }

    fn end(&mut self) -> Result<()> {
        self.begin(None);
        Ok(())
    }

    fn give(&mut self) -> Result<Produced> {
        let Some(branch) = self.branches.get_mut(self.turn) else {
            return match self.document {
                Some(_) => Ok(Produced::Nothing),
                None => self.finish(),
            };
        };
        match branch.run.advance()? {
            None => {}
            Some(StageRequest::Output(document)) => self.keep(document)?,
            Some(StageRequest::Document) if !self.given => {
                let input = self.document.clone().map_or(Input::End, Input::Document);
                branch.run.accept(input)?;
                self.given = true;
            }
            Some(StageRequest::Disk(request)) => {
                self.asked = Some(request);
                return Ok(Produced::Disk);
            }
            // What a part gives is for one pipeline alone.
            Some(_) if self.role == Role::Merge && self.document.is_some() => {
                self.turn = self.branches.len();
            }
            Some(_) => (self.turn, self.given) = (self.turn + 1, false),
        }
        Ok(Produced::Working)
    }

    fn disk(&mut self) -> Result<OnDisk> {
        Ok(self.asked.take().into())
    }

    fn reply(&mut self, reply: DiskReply) -> Result<()> {
        let branch = &mut self.branches[self.turn];
        branch.run.accept(Input::Disk(reply))
    }
}
