//! Buckets made into measurements again: `$_internalUnpackBucket`.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, RawElem, RawElems};
use pinion_collation::Collation;
use pinion_wire::Result;

use super::SeriesForm;
use crate::error::error;
use crate::matcher::Matcher;
use crate::pipeline::{Document, Given, Step, Taken};
use crate::value::{elements, field};
use crate::work;

/// The stage's parsed specification.
#[derive(Clone, Debug)]
pub(crate) struct Unpack {
    pub form: SeriesForm,
    /// How the strings of the buckets compare; `None` where that is not known.
    buckets: Option<Option<Arc<Collation>>>,
}

impl Unpack {
    pub(crate) fn parse(spec: RawBsonRef<'_>) -> Result<Unpack> {
        Ok(Unpack {
            form: SeriesForm::parse(spec)?,
            buckets: None,
        })
    }

    /// The collection that is read compares strings like this.
    pub(crate) fn locate(&mut self, collation: Option<&Arc<Collation>>) {
        self.buckets = Some(collation.cloned());
    }

    /// Whether strings compare in a filter as they do in the buckets.
    pub(crate) fn collates_like(&self, matcher: &Matcher) -> bool {
        let alike = |buckets: &Option<Arc<Collation>>| buckets.as_ref() == matcher.collation();
        self.buckets.as_ref().is_some_and(alike)
    }
}

/// The stage at work.
#[derive(Debug)]
pub(crate) struct Unpacking {
    form: SeriesForm,
    current: Option<Current>,
}

/// A bucket that gives a measurement at a time.
#[derive(Debug)]
struct Current {
    bucket: Document,
    places: Places,
}

/// Where the next measurement's values are in a bucket, by bytes.
#[derive(Debug)]
struct Places {
    time: Column,
    meta: bool,
    others: Vec<Column>,
}

/// The document of one field's values.
#[derive(Debug)]
struct Column {
    name: String,
    /// Where it begins in the bucket, and ends.
    start: usize,
    end: usize,
    /// Where its next value is, from its beginning.
    position: usize,
}

impl Unpacking {
    pub(crate) fn new(form: SeriesForm) -> Unpacking {
        Unpacking {
            form,
            current: None,
        }
    }
}

impl Step for Unpacking {
    fn take(&mut self, document: &Document) -> Result<Taken> {
        let places = Places::of(&self.form, document)?;
        self.current = places.map(|places| Current {
            bucket: document.clone(),
            places,
        });
        Ok(match self.current {
            Some(_) => Taken::Gives,
            None => Taken::Kept,
        })
    }

    fn give(&mut self) -> Result<Given> {
        let Some(Current { bucket, places }) = &mut self.current else {
            return Ok(Given::Nothing);
        };
        match places.next(&self.form, bucket)? {
            Some(measurement) => Ok(Given::Document(measurement.into())),
            None => {
                self.current = None;
                Ok(Given::Nothing)
            }
        }
    }
}

/// All measurements of a bucket.
///
/// # Errors
/// When the bucket has another form than this node makes.
pub fn measurements(form: &SeriesForm, bucket: &RawDocument) -> Result<Vec<RawDocumentBuf>> {
    let mut out = Vec::new();
    if let Some(mut places) = Places::of(form, bucket)? {
        while let Some(measurement) = places.next(form, bucket)? {
            out.push(measurement);
        }
    }
    Ok(out)
}

impl Column {
    /// The next value of the column, and the place behind it.
    fn next<'b>(&self, bucket: &'b RawDocument) -> Option<(RawElem<'b>, usize)> {
        let bytes = &bucket.as_bytes()[self.start..self.end];
        let mut rest = RawElems::resume(bytes, self.position);
        let elem = rest.next()?;
        Some((elem, rest.position()))
    }
}

impl Places {
    /// The places of a bucket's first measurement; `None` where it has none.
    fn of(form: &SeriesForm, bucket: &RawDocument) -> Result<Option<Places>> {
        let Some(RawBsonRef::Document(data)) = field(bucket, "data") else {
            return Err(error(
                5_346_510,
                "An object with a 'data' field was expected where buckets are unpacked",
            ));
        };
        check_version(bucket)?;
        let base = bucket.as_bytes().as_ptr() as usize;
        let (mut time, mut others) = (None, Vec::new());
        for (name, column) in elements(data) {
            let RawBsonRef::Document(column) = column else {
                return Err(compressed());
            };
            work::spend(work::ITEM)?;
            let bytes = column.as_bytes();
            let start = bytes.as_ptr() as usize - base;
            let column = Column {
                name: name.to_owned(),
                start,
                end: start + bytes.len(),
                position: RawElems::new(bytes).position(),
            };
            match name == form.time {
                true => time = Some(column),
                false => others.push(column),
            }
        }
        Ok(time.map(|time| Places {
            time,
            meta: form.meta.is_some() && field(bucket, "meta").is_some(),
            others,
        }))
    }

    /// The next measurement.
    fn next(&mut self, form: &SeriesForm, bucket: &RawDocument) -> Result<Option<RawDocumentBuf>> {
        let Some((time, behind)) = self.time.next(bucket) else {
            return Ok(None);
        };
        let mut out = DocBuilder::new();
        out.append_elem_as(&form.time, &time);
        if self.meta
            && let (Some(name), Some(meta)) = (&form.meta, field(bucket, "meta"))
        {
            out.append_raw(name, meta);
        }
        let number = time.name;
        let given = |column: &Column| {
            let next = column.next(bucket);
            next.filter(|(elem, _)| elem.name == number)
        };
        for column in &self.others {
            if let Some((elem, _)) = given(column) {
                out.append_elem_as(&column.name, &elem);
            }
        }
        // What was refused for its work has not moved on.
        work::spend_bytes(out.len())?;
        for column in &mut self.others {
            if let Some((_, behind)) = given(column) {
                column.position = behind;
            }
        }
        self.time.position = behind;
        Ok(Some(out.finish()))
    }
}

/// Refuses buckets whose columns are compressed.
fn check_version(bucket: &RawDocument) -> Result<()> {
    let Some(RawBsonRef::Document(control)) = field(bucket, "control") else {
        return Err(error(
            5_346_511,
            "An object with a 'control' field was expected where buckets are unpacked",
        ));
    };
    match field(control, "version").and_then(crate::number::exact_i64) {
        Some(1) => Ok(()),
        Some(2 | 3) => Err(compressed()),
        _ => Err(error(5_346_509, "Invalid bucket version")),
    }
}

fn compressed() -> pinion_wire::Error {
    error(
        238,
        "buckets of the versions 2 and 3, whose columns are compressed, are not supported by this server",
    )
}
