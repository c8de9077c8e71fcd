//! `$densify` at work: each document is given behind those that are missing before it.

use std::sync::Arc;

use indexmap::IndexMap;
use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_keystring::encode_id_in;
use pinion_wire::Result;
use rustc_hash::FxBuildHasher;

use super::sequence::{Bounds, Densify, Place};
use crate::error::error;
use crate::limits::{MAX_DENSIFIED_DOCUMENTS, MAX_DENSIFY_BYTES};
use crate::pipeline::Document;
use crate::pipeline::step::{Accepted, Produced, Step};
use crate::work::{self, STEP, spend, spend_bytes};

/// The stage at work. Documents come in the order of their partitions and values.
#[derive(Debug)]
pub(in crate::pipeline) struct Densifying {
    stage: Arc<Densify>,
    /// The partitions that documents are made for, in the order in which they came up.
    partitions: IndexMap<Vec<u8>, Filled, FxBuildHasher>,
    bytes: usize,
    /// The document that was taken last, until it is given.
    next: Option<Next>,
    /// The least and the greatest value of all documents.
    least: Option<Place>,
    greatest: Option<Place>,
    made: usize,
    /// At the end: the partition that is being filled up.
    ending: Option<usize>,
}

/// A partition.
#[derive(Debug)]
struct Filled {
    fields: RawDocumentBuf,
    /// The next value of the sequence.
    next: Place,
}

#[derive(Debug)]
struct Next {
    document: Document,
    fields: RawDocumentBuf,
    key: Vec<u8>,
    /// `None` where the document has no value, and only passes.
    place: Option<Place>,
}

impl Densifying {
    pub(in crate::pipeline) fn new(stage: Arc<Densify>) -> Densifying {
        Densifying {
            stage,
            partitions: IndexMap::default(),
            bytes: 0,
            next: None,
            least: None,
            greatest: None,
            made: 0,
            ending: None,
        }
    }

    /// Makes the document at a place.
    fn make(&mut self, fields: &RawDocument, place: Place) -> Result<Produced> {
        if self.made >= MAX_DENSIFIED_DOCUMENTS {
            return Err(error(
                5_897_900,
                format!(
                    "Generated {} documents in $densify, which is over the limit of \
                     {MAX_DENSIFIED_DOCUMENTS}. Increase the 'internalQueryMaxAllowedDensifyDocs' \
                     parameter to allow more generated documents",
                    self.made + 1
                ),
            ));
        }
        self.made += 1;
        Ok(Produced::Document(self.stage.made(fields, place).into()))
    }

    /// Where the sequence of a partition begins that comes up at this place.
    fn beginning(&self, place: Place) -> Place {
        match self.stage.bounds {
            Bounds::Full => self.least.unwrap_or(place),
            Bounds::Partition => place,
            Bounds::Explicit(low, _) => low,
        }
    }

    /// Adds the partition of the document that was taken, where it is new.
    fn add_partition(&mut self, key: &[u8], fields: &RawDocument, place: Place) -> Result<()> {
        if self.partitions.contains_key(key) {
            return Ok(());
        }
        self.bytes += 128 + key.len() + fields.as_bytes().len();
        if self.bytes > MAX_DENSIFY_BYTES {
            return Err(error(
                6_007_200,
                format!(
                    "$densify exceeded memory limit of {MAX_DENSIFY_BYTES} bytes for its partitions"
                ),
            ));
        }
        let next = self.beginning(place);
        self.partitions.insert(
            key.to_vec(),
            Filled {
                fields: fields.to_owned(),
                next,
            },
        );
        Ok(())
    }

    /// What comes before the document that was taken, or the document itself.
    fn before(&mut self, next: Next) -> Result<Produced> {
        let Some(place) = next.place else {
            return Ok(Produced::Document(next.document));
        };
        self.least.get_or_insert(place);
        self.greatest = Some(match self.greatest {
            Some(greatest) if greatest.compare(place).is_gt() => greatest,
            _ => place,
        });
        // Below a range nothing is made, and above it only up to its end.
        let limit = match self.stage.bounds {
            Bounds::Explicit(low, _) if place.compare(low).is_lt() => {
                self.add_partition(&next.key, &next.fields, place)?;
                return Ok(Produced::Document(next.document));
            }
            Bounds::Explicit(_, high) if place.compare(high).is_gt() => high,
            _ => place,
        };
        self.add_partition(&next.key, &next.fields, place)?;
        let partition = self.partitions.get_mut(&next.key[..]);
        let partition = partition.expect("the partition was just added");
        let at = partition.next;
        match at.compare(limit) {
            std::cmp::Ordering::Less => {
                partition.next = self.stage.next(at)?;
                let fields = next.fields.clone();
                self.next = Some(next);
                self.make(&fields, at)
            }
            std::cmp::Ordering::Equal if at.compare(place).is_eq() => {
                partition.next = self.stage.next(at)?;
                Ok(Produced::Document(next.document))
            }
            _ => Ok(Produced::Document(next.document)),
        }
    }

    /// What is missing behind the last document of each partition.
    fn behind(&mut self) -> Result<Produced> {
        let at = self.ending.unwrap_or_default();
        let Some((_, partition)) = self.partitions.get_index_mut(at) else {
            return Ok(Produced::Nothing);
        };
        let place = partition.next;
        let is_missing = match (self.stage.bounds, self.greatest) {
            (Bounds::Explicit(_, high), _) => place.compare(high).is_lt(),
            (Bounds::Full, Some(greatest)) => place.compare(greatest).is_le(),
            _ => false,
        };
        if !is_missing {
            self.ending = Some(at + 1);
            return Ok(Produced::Working);
        }
        partition.next = self.stage.next(place)?;
        let fields = partition.fields.clone();
        self.make(&fields, place)
    }
}

impl Step for Densifying {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        spend_bytes(document.as_bytes().len())?;
        let place = self.stage.place(document)?;
        let fields = self.stage.partition_of(document);
        work::check()?;
        let collation = self.stage.collation.as_deref();
        let key = encode_id_in(collation, RawBsonRef::Document(&fields)).to_vec();
        self.next = Some(Next {
            document: document.clone(),
            fields,
            key,
            place,
        });
        Ok(Accepted::Gives)
    }

    fn end(&mut self) -> Result<()> {
        self.ending = Some(0);
        // A range is filled even where there is no document.
        if let Bounds::Explicit(low, _) = self.stage.bounds
            && self.stage.partition.is_empty()
        {
            let nothing = RawDocumentBuf::new();
            let collation = self.stage.collation.as_deref();
            let key = encode_id_in(collation, RawBsonRef::Document(&nothing)).to_vec();
            self.add_partition(&key, &nothing, low)?;
        }
        Ok(())
    }

    fn give(&mut self) -> Result<Produced> {
        spend(10 * STEP)?;
        match self.next.take() {
            Some(next) => self.before(next),
            None if self.ending.is_some() => self.behind(),
            None => Ok(Produced::Nothing),
        }
    }
}
