//! Measurements put into buckets.

use pinion_bson::{
    DateTime, DocBuilder, ObjectId, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, RawElem,
    RawElems,
};
use pinion_collation::Collation;
use pinion_wire::Result;

use super::SeriesForm;
use super::extremes::{Extremes, Side};
use crate::error::{bad_value, error};
use crate::limits::{
    MAX_BUCKET_BYTES, MAX_BUCKET_MEASUREMENTS, MAX_LARGE_BUCKET_BYTES, MIN_BUCKET_MEASUREMENTS,
};
use crate::value::{elements, field, items};
use crate::work;

/// What measurements are put into.
#[derive(Clone, Copy, Debug)]
pub enum Packing<'a> {
    /// A bucket that begins at this time, a whole number of roundings.
    New {
        id: ObjectId,
        start_ms: i64,
        meta: Option<&'a RawBson>,
    },
    /// One that is there.
    Into(&'a RawDocument),
}

/// A bucket and how many of the measurements went into it, from the first.
#[derive(Debug)]
pub struct Packed {
    pub bucket: RawDocumentBuf,
    pub taken: usize,
}

/// The time of a measurement.
///
/// # Errors
/// `BadValue` where it has none.
pub fn time_of(form: &SeriesForm, measurement: &RawDocument) -> Result<i64> {
    match field(measurement, &form.time) {
        Some(RawBsonRef::DateTime(time)) => Ok(time.timestamp_millis()),
        _ => Err(bad_value(format!(
            "'{}' must be present and contain a valid BSON UTC datetime value",
            form.time
        ))),
    }
}

/// The meta value in the form in which it distinguishes sources: fields of documents by their
/// names.
pub fn normal_meta(value: RawBsonRef<'_>) -> RawBson {
    match value {
        RawBsonRef::Document(document) => RawBson::Document(normal_document(document)),
        RawBsonRef::Array(array) => {
            let mut out = pinion_bson::RawArrayBuf::new();
            items(array).for_each(|item| out.push(normal_meta(item)));
            RawBson::Array(out)
        }
        other => other.into(),
    }
}

fn normal_document(document: &RawDocument) -> RawDocumentBuf {
    let mut fields: Vec<(&str, RawBsonRef<'_>)> = elements(document).collect();
    fields.sort_by(|a, b| a.0.cmp(b.0));
    let mut out = DocBuilder::with_capacity(document.as_bytes().len());
    for (name, value) in fields {
        match value {
            RawBsonRef::Document(_) | RawBsonRef::Array(_) => {
                out.append_raw(name, normal_meta(value).as_raw_bson_ref());
            }
            other => {
                out.append_raw(name, other);
            }
        }
    }
    out.finish()
}

/// The `_id` of a bucket that begins at this time: ObjectIds are in the order of the times, at
/// whose ends they stay.
pub fn bucket_id(start_ms: i64, unique: ObjectId) -> ObjectId {
    let secs = start_ms.div_euclid(1000).clamp(0, i64::from(u32::MAX)) as u32;
    let mut bytes = unique.bytes();
    bytes[..4].copy_from_slice(&secs.to_be_bytes());
    ObjectId::from_bytes(bytes)
}

/// How many measurements a bucket holds.
pub fn measurement_count(form: &SeriesForm, bucket: &RawDocument) -> usize {
    match field(bucket, "data") {
        Some(RawBsonRef::Document(data)) => match field(data, &form.time) {
            Some(RawBsonRef::Document(times)) => crate::value::count(times),
            _ => 0,
        },
        _ => 0,
    }
}

/// Puts measurements into a bucket, as many from the first on as it takes.
///
/// # Errors
/// When one has no time. Nothing has changed then.
pub fn pack(
    form: &SeriesForm,
    collation: Option<&Collation>,
    into: Packing<'_>,
    measurements: &[&RawDocument],
) -> Result<Packed> {
    let mut bucket = match into {
        Packing::New { id, start_ms, meta } => Bucket::new(form, id, start_ms, meta.cloned()),
        Packing::Into(present) => match Bucket::open(form, present)? {
            Some(bucket) => bucket,
            None => {
                return Ok(Packed {
                    bucket: present.to_owned(),
                    taken: 0,
                });
            }
        },
    };
    let mut taken = 0;
    for measurement in measurements {
        let time_ms = time_of(form, measurement)?;
        if !bucket.fits(time_ms, measurement.as_bytes().len()) {
            break;
        }
        work::spend_bytes(measurement.as_bytes().len())?;
        bucket.add(measurement, collation);
        taken += 1;
    }
    work::check()?;
    Ok(Packed {
        bucket: bucket.finish()?,
        taken,
    })
}

/// The values of one field.
#[derive(Debug)]
struct Column {
    name: String,
    /// The elements of its document, without its length and its end.
    body: Vec<u8>,
}

/// A bucket taken apart.
#[derive(Debug)]
struct Bucket<'f> {
    form: &'f SeriesForm,
    id: ObjectId,
    meta: Option<RawBson>,
    start_ms: i64,
    least: Extremes,
    greatest: Extremes,
    columns: Vec<Column>,
    /// The number of the next measurement.
    next: usize,
    /// Of the columns.
    bytes: usize,
}

impl<'f> Bucket<'f> {
    fn new(form: &'f SeriesForm, id: ObjectId, start_ms: i64, meta: Option<RawBson>) -> Bucket<'f> {
        let mut least = Extremes::default();
        let start = RawBsonRef::DateTime(DateTime::from_millis(start_ms));
        least.add(&form.time, start, Side::Least, None, 0);
        Bucket {
            form,
            id,
            meta,
            start_ms,
            least,
            greatest: Extremes::default(),
            columns: Vec::new(),
            next: 0,
            bytes: 0,
        }
    }

    /// Takes a bucket apart; `None` for one that takes no more measurements.
    fn open(form: &'f SeriesForm, present: &RawDocument) -> Result<Option<Bucket<'f>>> {
        work::spend_bytes(present.as_bytes().len())?;
        let parts = (
            field(present, "_id"),
            field(present, "control"),
            field(present, "data"),
        );
        let (
            Some(RawBsonRef::ObjectId(id)),
            Some(RawBsonRef::Document(control)),
            Some(RawBsonRef::Document(data)),
        ) = parts
        else {
            return Ok(None);
        };
        let is_closed = matches!(field(control, "closed"), Some(RawBsonRef::Boolean(true)));
        let is_first_version = matches!(field(control, "version"), Some(RawBsonRef::Int32(1)));
        let ends = (field(control, "min"), field(control, "max"));
        let (Some(RawBsonRef::Document(least)), Some(RawBsonRef::Document(greatest))) = ends else {
            return Ok(None);
        };
        let Some(RawBsonRef::DateTime(start)) = field(least, &form.time) else {
            return Ok(None);
        };
        if is_closed || !is_first_version {
            return Ok(None);
        }
        let mut columns = Vec::new();
        let mut next = 0;
        for (name, column) in elements(data) {
            let RawBsonRef::Document(column) = column else {
                return Ok(None);
            };
            if name == form.time {
                let last = RawElems::new(column.as_bytes()).last();
                let last = last.and_then(|last| last.name_str()?.parse::<usize>().ok());
                next = last.map_or(0, |last| last + 1);
            }
            let bytes = column.as_bytes();
            columns.push(Column {
                name: name.to_owned(),
                body: bytes[4..bytes.len() - 1].to_vec(),
            });
        }
        Ok(Some(Bucket {
            form,
            id,
            meta: field(present, "meta").map(RawBson::from),
            start_ms: start.timestamp_millis(),
            least: Extremes::of(least),
            greatest: Extremes::of(greatest),
            bytes: columns.iter().map(|column| column.body.len()).sum(),
            columns,
            next,
        }))
    }

    /// Whether a measurement of this time and size goes into it.
    fn fits(&self, time_ms: i64, bytes: usize) -> bool {
        let span_ms = i64::from(self.form.max_span_secs) * 1000;
        let within = time_ms >= self.start_ms
            && time_ms
                .checked_sub(self.start_ms)
                .is_some_and(|since| since < span_ms);
        let most = match self.next < MIN_BUCKET_MEASUREMENTS {
            true => MAX_LARGE_BUCKET_BYTES,
            false => MAX_BUCKET_BYTES,
        };
        let has_room = self.next == 0 || self.bytes + bytes <= most;
        within && has_room && self.next < MAX_BUCKET_MEASUREMENTS
    }

    fn add(&mut self, measurement: &RawDocument, collation: Option<&Collation>) {
        let number = self.next.to_string();
        let fields = RawElems::new(measurement.as_bytes());
        let meta = self.form.meta.as_ref();
        let is_meta = |elem: &RawElem<'_>| meta.is_some_and(|meta| elem.name == meta.as_bytes());
        // Where a field was in the measurement before, it mostly is in this one.
        for (hint, elem) in fields.filter(|elem| !is_meta(elem)).enumerate() {
            let (Some(name), Some(value)) = (elem.name_str(), elem.to_value()) else {
                continue;
            };
            self.least.add(name, value, Side::Least, collation, hint);
            self.greatest
                .add(name, value, Side::Greatest, collation, hint);
            self.append(name, &number, &elem, hint);
        }
        self.next += 1;
    }

    fn append(&mut self, name: &str, number: &str, elem: &RawElem<'_>, hint: usize) {
        let is_hinted = self
            .columns
            .get(hint)
            .is_some_and(|column| column.name == name);
        let found = match is_hinted {
            true => Some(hint),
            false => self.columns.iter().position(|column| column.name == name),
        };
        let at = found.unwrap_or_else(|| {
            self.columns.push(Column {
                name: name.to_owned(),
                body: Vec::new(),
            });
            self.columns.len() - 1
        });
        let body = &mut self.columns[at].body;
        body.push(elem.kind as u8);
        body.extend_from_slice(number.as_bytes());
        body.push(0);
        body.extend_from_slice(elem.value);
        self.bytes += number.len() + 2 + elem.value.len();
    }

    fn finish(self) -> Result<RawDocumentBuf> {
        let mut out = DocBuilder::with_capacity(self.bytes + self.bytes / 8 + 512);
        out.append("_id", RawBsonRef::ObjectId(self.id));
        out.start_document("control").append("version", 1i32);
        out.start_document("min");
        self.least.append_all(&mut out);
        out.end().start_document("max");
        self.greatest.append_all(&mut out);
        out.end().end();
        if let Some(meta) = &self.meta {
            out.append_raw("meta", meta.as_raw_bson_ref());
        }
        out.start_document("data");
        let mut column_bytes = Vec::new();
        for column in &self.columns {
            column_bytes.clear();
            let length = i32::try_from(column.body.len() + 5);
            let length = length.map_err(|_| too_large())?;
            column_bytes.extend_from_slice(&length.to_le_bytes());
            column_bytes.extend_from_slice(&column.body);
            column_bytes.push(0);
            let document = RawDocument::from_bytes(&column_bytes);
            out.append(&column.name, document.expect("made of elements"));
        }
        out.end();
        let bucket = out.finish();
        match bucket.as_bytes().len() > pinion_bson::MAX_USER_DOCUMENT_BYTES {
            true => Err(too_large()),
            false => Ok(bucket),
        }
    }
}

fn too_large() -> pinion_wire::Error {
    error(
        10334,
        "a measurement is too large for a bucket, which holds it with its least and its greatest values",
    )
}
