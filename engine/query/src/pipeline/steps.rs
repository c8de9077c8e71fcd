//! Stages at work that hold back no documents, and the simplest that does: a count.

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_wire::Result;

use super::step::{Accepted, Produced, Step};
use super::{Document, Stage};
use crate::expression::{Expression, MetaKind};
use crate::matcher::{Matcher, MetaSource};
use crate::number::exact_i64;
use crate::sort::SortPattern;
use crate::value::field;
use crate::work;

/// `$match`.
#[derive(Debug)]
pub(super) struct Filtering(pub Matcher);

impl Step for Filtering {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        Ok(match self.0.matches(document)? {
            true => Accepted::Passed,
            false => Accepted::Kept,
        })
    }
}

/// Adds the metadata that a filter provides for the documents that it has found.
#[derive(Debug)]
pub(super) struct Knowing(pub MetaSource);

impl Step for Knowing {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        let metadata = document.metadata().clone();
        let metadata = metadata.and(self.0.metadata(document)?);
        Ok(Accepted::Made(document.clone().with_metadata(metadata)))
    }
}

/// Adds the values by which a sort has ordered a document.
#[derive(Debug)]
pub(super) struct Ordered(pub SortPattern);

impl Step for Ordered {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        let values = self.0.sort_values(document)?;
        let metadata = document.metadata().clone();
        let metadata = metadata.with(MetaKind::SortKey, values);
        Ok(Accepted::Made(document.clone().with_metadata(metadata)))
    }
}

/// A stage that makes one document out of one.
#[derive(Debug)]
pub(super) struct Transforming(pub Stage);

impl Step for Transforming {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        let made = self.0.transform(document.into())?;
        Ok(Accepted::Made(made.expect("such a stage").into()))
    }
}

/// `$redact`.
#[derive(Debug)]
pub(super) struct Redacting(pub Expression);

impl Step for Redacting {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        work::spend_bytes(document.as_bytes().len())?;
        let left = super::redact::redact(&self.0, document, document)?;
        Ok(left.map_or(Accepted::Kept, |left| Accepted::Made(left.into())))
    }
}

/// `$skip`, with how many it still skips.
#[derive(Debug)]
pub(super) struct Skipping(pub i64);

impl Step for Skipping {
    fn take(&mut self, _: &Document) -> Result<Accepted> {
        if self.0 == 0 {
            return Ok(Accepted::Passed);
        }
        self.0 -= 1;
        Ok(Accepted::Kept)
    }
}

/// `$limit`, with how many still pass.
#[derive(Debug)]
pub(super) struct Limiting(pub i64);

impl Step for Limiting {
    fn take(&mut self, _: &Document) -> Result<Accepted> {
        self.0 -= 1;
        Ok(match self.0 {
            0 => Accepted::PassedLast,
            _ => Accepted::Passed,
        })
    }
}

/// `$count`.
#[derive(Debug)]
pub(super) struct Counting {
    name: String,
    /// Whether the documents are counts themselves.
    sums: bool,
    counted: i64,
}

impl Counting {
    pub(super) fn new(name: String) -> Counting {
        Counting {
            name,
            sums: false,
            counted: 0,
        }
    }

    /// The sum of what documents have in the field of this name.
    pub(super) fn of_counts(name: String) -> Counting {
        Counting {
            sums: true,
            ..Counting::new(name)
        }
    }
}

impl Step for Counting {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        self.counted += match self.sums {
            true => field(document, &self.name).and_then(exact_i64).unwrap_or(0),
            false => 1,
        };
        Ok(Accepted::Kept)
    }

    fn give(&mut self) -> Result<Produced> {
        // Of no documents there is no count.
        let counted = match std::mem::take(&mut self.counted) {
            0 => return Ok(Produced::Nothing),
            counted => counted,
        };
        let mut document = DocBuilder::new();
        document.append(
            &self.name,
            i32::try_from(counted).map_or(RawBsonRef::Int64(counted), RawBsonRef::Int32),
        );
        Ok(Produced::Document(document.finish().into()))
    }
}
