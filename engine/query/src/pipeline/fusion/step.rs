//! The stages of a fusion at work: one that gives documents their places, and one that makes a
//! score of them.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use super::{DOCUMENT, rank_field};
use crate::expression::{MetaKind, MetaSet};
use crate::pipeline::Document;
use crate::pipeline::step::{Accepted, Step};
use crate::sort::SortPattern;
use crate::value::field;
use crate::work::{self, spend_bytes};

/// What is added to a document's place, so that the first do not outweigh all others.
const RANK_CONSTANT: f64 = 60.0;

const DESCRIPTION: &str = "value output by reciprocal rank fusion algorithm, computed as sum of (weight * (1 / (60 + \
                           rank))) across input pipelines from which this document is output, from:";

/// How the documents of one input pipeline are given their places.
#[derive(Debug)]
pub(in crate::pipeline) struct Ranks {
    name: String,
    /// The order in which they come. Documents that are equal in it share a place; without an order
    /// each has its own.
    order: Option<SortPattern>,
}

impl Ranks {
    pub(super) fn new(name: &str, order: Option<SortPattern>) -> Ranks {
        Ranks {
            name: name.to_owned(),
            order,
        }
    }

    /// What the order reads beside the documents.
    pub(in crate::pipeline) fn reads(&self) -> MetaSet {
        self.order
            .as_ref()
            .map(SortPattern::reads)
            .unwrap_or_default()
    }

    /// The stage as it is shown.
    pub(super) fn source(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        if let Some(order) = &self.order {
            out.append("sortBy", order.source());
        }
        out.start_document("output")
            .start_document(&rank_field(&self.name))
            .start_document("$rank");
        out.end().end().end();
        out.finish()
    }
}

/// The stage that gives places at work.
#[derive(Debug)]
pub(in crate::pipeline) struct Ranking {
    ranks: Arc<Ranks>,
    taken: i64,
    rank: i64,
    key: Option<Vec<u8>>,
}

impl Ranking {
    pub(in crate::pipeline) fn new(ranks: Arc<Ranks>) -> Ranking {
        Ranking {
            ranks,
            taken: 0,
            rank: 0,
            key: None,
        }
    }
}

impl Step for Ranking {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        spend_bytes(document.as_bytes().len())?;
        let order = self.ranks.order.as_ref();
        let key = order.map(|order| order.value_key(document)).transpose()?;
        work::check()?;
        self.taken += 1;
        if key.is_none() || key != self.key {
            (self.rank, self.key) = (self.taken, key);
        }
        let mut out = DocBuilder::with_capacity(document.as_bytes().len() + 64);
        out.append(DOCUMENT, RawBsonRef::Document(document));
        out.append(&rank_field(&self.ranks.name), self.rank);
        Ok(Accepted::Made(out.finish().into()))
    }
}

/// An input pipeline.
#[derive(Debug)]
pub(super) struct Input {
    pub name: String,
    pub weight: f64,
}

/// How scores are made of places.
#[derive(Debug)]
pub(in crate::pipeline) struct Fusion {
    inputs: Vec<Input>,
    details: bool,
}

impl Fusion {
    pub(super) fn new(inputs: Vec<Input>, details: bool) -> Fusion {
        Fusion { inputs, details }
    }

    /// What is known behind the stage.
    pub(in crate::pipeline) fn provides(&self) -> MetaSet {
        let mut provided = MetaSet::default();
        provided.insert(MetaKind::Score);
        if self.details {
            provided.insert(MetaKind::ScoreDetails);
        }
        provided
    }

    /// The stage as it is shown.
    pub(super) fn source(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.start_document("score").start_array("$add");
        for input in &self.inputs {
            let place = format!("${}", rank_field(&input.name));
            out.push_document().start_array("$multiply");
            out.push(input.weight);
            out.push_document().start_array("$divide");
            out.push(1);
            out.push_document().start_array("$add");
            out.push(RANK_CONSTANT).push(&*place);
            out.end().end().end().end().end().end();
        }
        out.end().end();
        if self.details {
            out.append("scoreDetails", DESCRIPTION);
        }
        out.finish()
    }

    /// The input pipelines, each with the document's place in it; none in one that did not give it.
    fn places<'a>(
        &'a self,
        found: &'a RawDocument,
    ) -> impl Iterator<Item = (&'a Input, Option<i64>)> {
        self.inputs.iter().map(|input| {
            let place = match field(found, &rank_field(&input.name)) {
                Some(RawBsonRef::Int64(place)) => Some(place),
                _ => None,
            };
            (input, place)
        })
    }

    fn score(&self, found: &RawDocument) -> f64 {
        let parts = self.places(found).filter_map(|(input, place)| {
            place.map(|place| input.weight * (1.0 / (RANK_CONSTANT + place as f64)))
        });
        parts.fold(0.0, |sum, part| sum + part)
    }

    fn details(&self, found: &RawDocument, score: f64) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("value", score)
            .append("description", DESCRIPTION);
        out.start_array("details");
        for (input, place) in self.places(found) {
            let entry = out.push_document();
            entry.append("inputPipelineName", &*input.name);
            match place {
                Some(place) => entry.append("rank", place),
                None => entry.append("rank", "NA"),
            };
            entry.append("weight", input.weight);
            entry.start_array("details").end();
            entry.end();
        }
        out.end();
        out.finish()
    }
}

/// The stage that makes scores at work.
#[derive(Debug)]
pub(in crate::pipeline) struct Fusing(pub Arc<Fusion>);

impl Step for Fusing {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        spend_bytes(document.as_bytes().len())?;
        let Some(RawBsonRef::Document(found)) = field(document, DOCUMENT) else {
            return Ok(Accepted::Kept);
        };
        let score = self.0.score(document);
        let mut metadata = crate::expression::Metadata::default().with(MetaKind::Score, score);
        if self.0.details {
            metadata = metadata.with(MetaKind::ScoreDetails, self.0.details(document, score));
        }
        let found = Document::from(found.to_owned());
        Ok(Accepted::Made(found.with_metadata(metadata)))
    }
}
