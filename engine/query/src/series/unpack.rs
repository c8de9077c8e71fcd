//! Buckets made into measurements again: `$_internalUnpackBucket`.

use std::collections::VecDeque;
use std::sync::Arc;

use pinion_bson::{
    DateTime, DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, RawElem, RawElems,
};
use pinion_collation::Collation;
use pinion_wire::Result;

use super::SeriesForm;
use super::ends::Ends;
use super::horizon::Horizon;
use crate::error::error;
use crate::matcher::Matcher;
use crate::pipeline::{Accepted, Document, FieldNames, Produced, Step};
use crate::value::{elements, field};
use crate::work;

/// The stage's parsed specification, and what is known of the stages behind it.
#[derive(Clone, Debug)]
pub(crate) struct Unpack {
    pub form: SeriesForm,
    /// The fields that are read of the measurements; `None` where that may be any.
    pub include: Option<Arc<FieldNames>>,
    pub gives: Gives,
    /// How the strings of the buckets compare; `None` where that is not known.
    buckets: Option<Option<Arc<Collation>>>,
}

/// Which measurements come out.
#[derive(Clone, Debug, Default)]
pub(crate) enum Gives {
    #[default]
    All,
    /// Where a bucket's least and greatest values say all, the documents with those in place of the
    /// measurements.
    Ends(Arc<Ends>),
    /// Those that may be among the first by time.
    First(Box<Horizon>),
}

impl Unpack {
    pub(crate) fn parse(spec: RawBsonRef<'_>) -> Result<Unpack> {
        Ok(Unpack {
            form: SeriesForm::parse(spec)?,
            include: None,
            gives: Gives::All,
            buckets: None,
        })
    }

    /// The collection that is read compares strings like this.
    pub(crate) fn locate(&mut self, collation: Option<&Arc<Collation>>) {
        self.buckets = Some(collation.cloned());
    }

    /// Whether strings compare in a filter as they do in the buckets.
    pub(crate) fn collates_like(&self, matcher: &Matcher) -> bool {
        self.compares_by(matcher.collation())
    }

    /// Whether the strings of the buckets compare like this.
    pub(crate) fn compares_by(&self, collation: Option<&Arc<Collation>>) -> bool {
        let alike = |buckets: &Option<Arc<Collation>>| buckets.as_ref() == collation;
        self.buckets.as_ref().is_some_and(alike)
    }

    /// Whether what comes out of a bucket does not depend on other ones.
    pub(crate) fn is_of_one_bucket(&self) -> bool {
        !matches!(self.gives, Gives::First(_))
    }

    /// The specification, with the fields that come out.
    pub(crate) fn to_document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        match &self.include {
            Some(_) => out.start_array("include"),
            None => out.start_array("exclude"),
        };
        for name in self.include.iter().flat_map(|names| names.iter()) {
            out.push(name.as_str());
        }
        out.end();
        out.append("timeField", self.form.time.as_str());
        if let Some(meta) = &self.form.meta {
            out.append("metaField", meta.as_str());
        }
        out.append("bucketMaxSpanSeconds", self.form.max_span_secs);
        out.finish()
    }
}

/// The stage at work.
#[derive(Debug)]
pub(crate) struct Unpacking {
    form: SeriesForm,
    include: Option<Arc<FieldNames>>,
    gives: Gives,
    current: Option<Current>,
    /// What stands for the measurements of a bucket.
    instead: VecDeque<RawDocumentBuf>,
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
    /// Whether the time comes out.
    with_time: bool,
    with_meta: bool,
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
    pub(crate) fn new(unpack: Unpack) -> Unpacking {
        Unpacking {
            form: unpack.form,
            include: unpack.include,
            gives: unpack.gives,
            current: None,
            instead: VecDeque::new(),
        }
    }
}

impl Step for Unpacking {
    fn take(&mut self, document: &Document) -> Result<Accepted> {
        match &self.gives {
            Gives::First(horizon) if horizon.ends_before(&self.form, document) => {
                return Ok(Accepted::KeptLast);
            }
            Gives::First(horizon) if horizon.hides(&self.form, document) => {
                return Ok(Accepted::Kept);
            }
            Gives::Ends(ends) => {
                if let Some(instead) = ends.of(&self.form, document) {
                    self.instead = instead;
                    return Ok(Accepted::Gives);
                }
            }
            _ => {}
        }
        let places = Places::of(&self.form, self.include.as_deref(), document)?;
        self.current = places.map(|places| Current {
            bucket: document.clone(),
            places,
        });
        Ok(match self.current {
            Some(_) => Accepted::Gives,
            None => Accepted::Kept,
        })
    }

    fn give(&mut self) -> Result<Produced> {
        if let Some(instead) = self.instead.pop_front() {
            return Ok(Produced::Document(instead.into()));
        }
        let Some(Current { bucket, places }) = &mut self.current else {
            return Ok(Produced::Nothing);
        };
        let Some((time, measurement)) = places.next(&self.form, bucket)? else {
            self.current = None;
            return Ok(Produced::Nothing);
        };
        let wanted = match &self.gives {
            Gives::First(horizon) => horizon.wants(time, &measurement)?,
            _ => true,
        };
        // What was refused for its work has not moved on.
        work::check()?;
        places.move_on(bucket);
        if let Gives::First(horizon) = &mut self.gives
            && wanted
        {
            horizon.gives(time);
        }
        Ok(match wanted {
            true => Produced::Document(Document::from(measurement).with_order_of(bucket)),
            false => Produced::Working,
        })
    }
}

/// All measurements of a bucket.
///
/// # Errors
/// When the bucket has another form than this node makes.
pub fn measurements(form: &SeriesForm, bucket: &RawDocument) -> Result<Vec<RawDocumentBuf>> {
    let mut out = Vec::new();
    if let Some(mut places) = Places::of(form, None, bucket)? {
        while let Some((_, measurement)) = places.next(form, bucket)? {
            places.move_on(bucket);
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

    /// The value of the measurement of this number, and the place behind it.
    fn value<'b>(&self, bucket: &'b RawDocument, number: &[u8]) -> Option<(RawElem<'b>, usize)> {
        self.next(bucket).filter(|(elem, _)| elem.name == number)
    }
}

impl Places {
    /// The places of a bucket's first measurement; `None` where it has none.
    fn of(
        form: &SeriesForm,
        include: Option<&FieldNames>,
        bucket: &RawDocument,
    ) -> Result<Option<Places>> {
        let Some(RawBsonRef::Document(data)) = field(bucket, "data") else {
            return Err(error(
                5_346_510,
                "An object with a 'data' field was expected where buckets are unpacked",
            ));
        };
        check_version(bucket)?;
        let comes_out = |name: &str| include.is_none_or(|names| names.contains(name));
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
                false if comes_out(name) => others.push(column),
                false => {}
            }
        }
        let with_meta = form.meta.as_deref().is_some_and(comes_out);
        Ok(time.map(|time| Places {
            time,
            with_time: comes_out(&form.time),
            with_meta: with_meta && field(bucket, "meta").is_some(),
            others,
        }))
    }

    /// The next measurement with its time.
    fn next(
        &self,
        form: &SeriesForm,
        bucket: &RawDocument,
    ) -> Result<Option<(DateTime, RawDocumentBuf)>> {
        let Some((time, _)) = self.time.next(bucket) else {
            return Ok(None);
        };
        let at = match time.to_value() {
            Some(RawBsonRef::DateTime(at)) => at,
            _ => DateTime::from_millis(0),
        };
        let mut out = DocBuilder::new();
        if self.with_time {
            out.append_elem_as(&form.time, &time);
        }
        if self.with_meta
            && let (Some(name), Some(meta)) = (&form.meta, field(bucket, "meta"))
        {
            out.append_raw(name, meta);
        }
        for column in &self.others {
            if let Some((elem, _)) = column.value(bucket, time.name) {
                out.append_elem_as(&column.name, &elem);
            }
        }
        work::spend_bytes(out.len())?;
        Ok(Some((at, out.finish())))
    }

    /// Continues behind that measurement.
    fn move_on(&mut self, bucket: &RawDocument) {
        let Some((time, behind)) = self.time.next(bucket) else {
            return;
        };
        for column in &mut self.others {
            if let Some((_, behind)) = column.value(bucket, time.name) {
                column.position = behind;
            }
        }
        self.time.position = behind;
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
