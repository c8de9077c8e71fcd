//! `$geoNear`: the documents of a collection by their distance from a point, with that distance.
//!
//! The stage is two things: a filter of the read in front of the pipeline, which asks for the
//! order, and behind it a stage that adds to each document what was asked for.

use std::sync::Arc;

use pinion_bson::{DocBuilder, Number, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, RawElems};
use pinion_wire::Result;

use crate::error::{bad_value, error, type_mismatch};
use crate::expression::{Expression, Variables, check_field_path};
use crate::geo::Near;
use crate::index::{IndexKind, IndexSpec};
use crate::limits::{MAX_GEO_NEAR_KEY_COMPONENTS, MAX_PATH_COMPONENTS};
use crate::path::Path;
use crate::series::SeriesForm;
use crate::sort::SortPattern;
use crate::value::{array_document, elements, field, is_true, type_name};
use crate::work;

/// The parsed stage.
#[derive(Clone, Debug)]
pub(super) struct GeoNear {
    near: Arc<Near>,
    /// The field that is searched, once it is known.
    key: Option<Path>,
    query: RawDocumentBuf,
    distance_field: Option<Path>,
    include_locs: Option<Path>,
    multiplier: f64,
}

/// Options that MongoDB once had.
const GONE: [(&str, i32, &str); 4] = [
    (
        "collation",
        40227,
        "$geoNear does not accept the 'collation' parameter. Instead, specify a collation for the entire aggregation \
         command.",
    ),
    (
        "limit",
        50858,
        "$geoNear no longer supports the 'limit' parameter. Use a $limit stage instead.",
    ),
    (
        "num",
        50857,
        "$geoNear no longer supports the 'num' parameter. Use a $limit stage instead.",
    ),
    (
        "start",
        50856,
        "$geoNear no longer supports the 'start' argument. Use a $skip stage instead.",
    ),
];

impl GeoNear {
    pub(super) fn parse(spec: RawBsonRef<'_>, variables: &Variables) -> Result<GeoNear> {
        let options = match spec {
            RawBsonRef::Document(options) => options,
            RawBsonRef::Array(items) => array_document(items),
            _ => {
                return Err(error(
                    10065,
                    "invalid parameter: expected an object ($geoNear)",
                ));
            }
        };
        for (name, code, message) in GONE {
            if field(options, name).is_some() {
                return Err(error(code, message));
            }
        }
        let Some(near) = field(options, "near") else {
            return Err(error(5_860_400, "$geoNear requires a 'near' argument"));
        };
        let near = center(near, variables)?;
        let distance_field = output_path(options, "distanceField", 16606)?;
        let distance = |name: &str, code: i32| distance(options, name, code, variables);
        let (max, min) = (
            distance("maxDistance", 7_555_702)?,
            distance("minDistance", 7_555_701)?,
        );
        let multiplier = match field(options, "distanceMultiplier") {
            None => 1.0,
            Some(value) => non_negative("distanceMultiplier", value)?,
        };
        let query = match field(options, "query") {
            None => RawDocumentBuf::new(),
            Some(RawBsonRef::Document(query)) => query.to_owned(),
            Some(_) => return Err(type_mismatch("query must be an object")),
        };
        let spherical = field(options, "spherical").is_some_and(is_true);
        let include_locs = output_path(options, "includeLocs", 16607)?;
        let key = field(options, "key").map(key_path).transpose()?;
        Ok(GeoNear {
            near: Arc::new(Near::parse(&operators(&near, spherical, min, max))?),
            key,
            query,
            distance_field,
            include_locs,
            multiplier,
        })
    }

    /// Chooses the field that is searched, where the stage names none: that of the only index that
    /// there is. The indexes of a series are those of its buckets.
    pub(super) fn locate(
        &mut self,
        indexes: &[IndexSpec],
        namespace: &str,
        series: Option<&SeriesForm>,
    ) -> Result<()> {
        if self.key.is_some() {
            return Ok(());
        }
        for (kind, name) in [(IndexKind::TwoD, "2d"), (IndexKind::TwoDSphere, "2dsphere")] {
            let mut found = indexes
                .iter()
                .filter(|index| index.ready && index.kind == kind);
            let Some(index) = found.next() else {
                continue;
            };
            if found.next().is_some() {
                return Err(error(
                    27,
                    format!(
                        "There is more than one {name} index on {namespace}; unsure which to use for $geoNear"
                    ),
                ));
            }
            let mut fields = elements(&index.key);
            let field = fields.find(|(_, kind)| *kind == RawBsonRef::String(name));
            let measured = |field: &str| match series {
                Some(form) => form.measured_path(field),
                None => Some(field.to_owned()),
            };
            let field = field.and_then(|(field, _)| measured(field));
            self.key = field.map(|field| Path::parse(&field));
            return Ok(());
        }
        Err(no_index())
    }

    /// What a find is asked for: the query, in the order of distances.
    pub(super) fn filter(&self) -> Result<RawDocumentBuf> {
        let key = self.key.as_ref().ok_or_else(no_index)?;
        let mut filter = DocBuilder::new();
        filter
            .append_all(&self.query)
            .append(key.text(), RawBsonRef::Document(&self.near.source));
        Ok(filter.finish())
    }

    /// What is asked of the documents beside their distances.
    pub(super) fn query(&self) -> &RawDocument {
        &self.query
    }

    /// The filter of a find of buckets in the order of distances, if all measurements of a bucket
    /// have the same distance; `query` is what is asked of the buckets beside that.
    pub(super) fn bucket_filter(
        &self,
        form: &SeriesForm,
        query: &RawDocument,
    ) -> Result<RawDocumentBuf> {
        let key = self.key.as_ref().ok_or_else(no_index)?;
        let key = form.meta_path(key.text()).ok_or_else(no_index)?;
        let mut filter = DocBuilder::new();
        filter
            .append_all(query)
            .append(&key, RawBsonRef::Document(&self.near.source));
        Ok(filter.finish())
    }

    /// The order of the documents by the field that has their distances; `None` where none has.
    pub(super) fn order(&self) -> Result<Option<SortPattern>> {
        let Some(path) = &self.distance_field else {
            return Ok(None);
        };
        let mut pattern = DocBuilder::new();
        pattern.append(path.text(), 1);
        SortPattern::parse(&pattern.finish()).map(Some)
    }

    /// Whether the documents show where they are.
    pub(super) fn shows_points(&self) -> bool {
        self.include_locs.is_some()
    }

    /// A document with what was asked for.
    pub(super) fn transform(&self, document: &RawDocument) -> Result<RawDocumentBuf> {
        work::spend_bytes(document.as_bytes().len())?;
        let mut out = document.to_owned();
        let Some(key) = &self.key else {
            return Ok(out);
        };
        let Some((distance, location)) = self.near.document_distance(document, key)? else {
            return Ok(out);
        };
        if let Some(path) = &self.distance_field {
            let distance = self.near.reported(distance) * self.multiplier;
            out = with_value(&out, path, RawBsonRef::Double(distance));
        }
        if let Some(path) = &self.include_locs {
            out = with_value(&out, path, location);
        }
        Ok(out)
    }
}

fn no_index() -> pinion_wire::Error {
    error(
        27,
        "$geoNear requires a 2d or 2dsphere index, but none were found",
    )
}

/// The point: a constant that is a document or an array.
fn center(near: RawBsonRef<'_>, variables: &Variables) -> Result<RawBson> {
    let constant = Expression::parse(near, variables)?.constant();
    let value = constant.ok_or_else(|| {
        error(
            5_860_402,
            "$geoNear requires a constant near argument, which does not depend on the document",
        )
    })?;
    match value {
        RawBson::Document(_) | RawBson::Array(_) => Ok(value),
        other => Err(error(
            5_860_401,
            format!(
                "$geoNear requires near argument to be an object or an array, but found: {}",
                type_name(other.as_raw_bson_ref())
            ),
        )),
    }
}

fn distance(
    options: &RawDocument,
    name: &str,
    code: i32,
    variables: &Variables,
) -> Result<Option<f64>> {
    let Some(given) = field(options, name) else {
        return Ok(None);
    };
    let constant = Expression::parse(given, variables)?.constant();
    let value = constant.ok_or_else(|| {
        error(
            code,
            format!(
                "$geoNear requires {name} to be a constant, which does not depend on the document"
            ),
        )
    })?;
    non_negative(name, value.as_raw_bson_ref()).map(Some)
}

fn non_negative(name: &str, value: RawBsonRef<'_>) -> Result<f64> {
    let Some(number) = Number::from_value(value).map(Number::to_f64) else {
        return Err(type_mismatch(format!("{name} must be a number")));
    };
    if number >= 0.0 {
        Ok(number)
    } else {
        Err(bad_value(format!("{name} must be nonnegative")))
    }
}

/// The operators that a filter would have.
fn operators(
    near: &RawBson,
    spherical: bool,
    min: Option<f64>,
    max: Option<f64>,
) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    let name = if spherical { "$nearSphere" } else { "$near" };
    out.append(name, near.as_raw_bson_ref());
    for (name, distance) in [("$minDistance", min), ("$maxDistance", max)] {
        if let Some(distance) = distance {
            out.append(name, RawBsonRef::Double(distance));
        }
    }
    out.finish()
}

/// The path of a field that is added.
fn output_path(options: &RawDocument, name: &str, code: i32) -> Result<Option<Path>> {
    let text = match field(options, name) {
        None => return Ok(None),
        Some(RawBsonRef::String(text)) => text,
        Some(_) => {
            return Err(error(
                code,
                format!("$geoNear requires that the '{name}' option is a String"),
            ));
        }
    };
    check_field_path(text)?;
    let path = Path::parse(text);
    // The value itself is one level more.
    if path.components().len() >= MAX_PATH_COMPONENTS {
        return Err(error(
            5_984_700,
            format!(
                "the path of $geoNear's '{name}' must have fewer than {MAX_PATH_COMPONENTS} components"
            ),
        ));
    }
    Ok(Some(path))
}

fn key_path(value: RawBsonRef<'_>) -> Result<Path> {
    let RawBsonRef::String(text) = value else {
        return Err(type_mismatch(format!(
            "$geoNear parameter 'key' must be of type string but found type: {}",
            type_name(value)
        )));
    };
    if text.is_empty() {
        return Err(bad_value(
            "$geoNear parameter 'key' cannot be the empty string",
        ));
    }
    check_field_path(text)?;
    let path = Path::parse(text);
    if path.components().len() > MAX_GEO_NEAR_KEY_COMPONENTS {
        return Err(error(
            5_729_100,
            format!(
                "$geoNear parameter 'key' must have at most {MAX_GEO_NEAR_KEY_COMPONENTS} components"
            ),
        ));
    }
    Ok(path)
}

/// The document with a value at a path, in the place of what is in the way.
fn with_value(document: &RawDocument, path: &Path, value: RawBsonRef<'_>) -> RawDocumentBuf {
    let names: Vec<&str> = path
        .components()
        .iter()
        .map(|component| &*component.name)
        .collect();
    let mut out = DocBuilder::with_capacity(document.as_bytes().len());
    write_with_value(&mut out, Some(document), &names, value);
    out.finish()
}

fn write_with_value(
    out: &mut DocBuilder,
    document: Option<&RawDocument>,
    names: &[&str],
    value: RawBsonRef<'_>,
) {
    let Some((name, rest)) = names.split_first() else {
        return;
    };
    let write = |out: &mut DocBuilder, inner: Option<&RawDocument>| {
        if rest.is_empty() {
            out.append(name, value);
        } else {
            out.start_document(name);
            write_with_value(out, inner, rest, value);
            out.end();
        }
    };
    let mut written = false;
    let fields = document.map(|document| RawElems::new(document.as_bytes()));
    for elem in fields.into_iter().flatten() {
        if elem.name != name.as_bytes() {
            out.append_elem(&elem);
            continue;
        }
        written = true;
        let inner = match elem.to_value() {
            Some(RawBsonRef::Document(inner)) => Some(inner),
            _ => None,
        };
        write(out, inner);
    }
    if !written {
        write(out, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawdoc;

    #[track_caller]
    fn check(options: RawDocumentBuf, document: RawDocumentBuf, expected: RawDocumentBuf) {
        let spec = RawBsonRef::Document(&options);
        let stage = GeoNear::parse(spec, &Variables::default()).expect("the stage parses");
        assert_eq!(stage.transform(&document).expect("unbounded"), expected);
    }

    #[track_caller]
    fn check_error(options: RawDocumentBuf, code: i32) {
        let spec = RawBsonRef::Document(&options);
        let error = GeoNear::parse(spec, &Variables::default()).expect_err("refused");
        assert_eq!(error.code.0, code, "{}", error.message);
    }

    #[test]
    fn what_is_added() {
        let document = || rawdoc! { "a": [3, 4], "d": ["x"], "e": { "f": 1, "g": 2 } };
        check(
            rawdoc! { "near": [0, 0], "key": "a", "distanceField": "d.0", "distanceMultiplier": 2 },
            document(),
            rawdoc! { "a": [3, 4], "d": { "0": 10.0 }, "e": { "f": 1, "g": 2 } },
        );
        check(
            rawdoc! { "near": [0, 0], "key": "a", "distanceField": "e.f", "includeLocs": "e.h" },
            document(),
            rawdoc! { "a": [3, 4], "d": ["x"], "e": { "f": 5.0, "g": 2, "h": [3, 4] } },
        );
        check(
            rawdoc! { "near": [0, 0], "key": "a", "spherical": true, "distanceField": "r" },
            rawdoc! { "a": [0, 90] },
            rawdoc! { "a": [0, 90], "r": std::f64::consts::FRAC_PI_2 },
        );
    }

    #[test]
    fn refusals() {
        check_error(rawdoc! {}, 5_860_400);
        check_error(rawdoc! { "near": "$loc" }, 5_860_402);
        check_error(rawdoc! { "near": 1 }, 5_860_401);
        check_error(rawdoc! { "near": [1] }, 2);
        check_error(rawdoc! { "near": [0, 0], "limit": 5 }, 50858);
        check_error(rawdoc! { "near": [0, 0], "distanceField": 1 }, 16606);
        check_error(rawdoc! { "near": [0, 0], "distanceField": "a." }, 40353);
        check_error(rawdoc! { "near": [0, 0], "maxDistance": "x" }, 14);
        check_error(rawdoc! { "near": [0, 0], "minDistance": "$x" }, 7_555_701);
        check_error(rawdoc! { "near": [0, 0], "distanceMultiplier": -1 }, 2);
        check_error(rawdoc! { "near": [0, 0], "key": "" }, 2);
        let deep = vec!["a"; 181].join(".");
        check_error(rawdoc! { "near": [0, 0], "key": deep }, 5_729_100);
    }

    #[test]
    fn the_field_of_the_only_index() {
        let locate = |keys: &[RawDocumentBuf]| {
            let indexes: Vec<IndexSpec> = keys
                .iter()
                .map(|key| IndexSpec::new("i", key).expect("a pattern"))
                .collect();
            let near = rawdoc! { "near": [0, 0] };
            let mut stage = GeoNear::parse(RawBsonRef::Document(&near), &Variables::default())
                .expect("the stage parses");
            let located = stage.locate(&indexes, "d.c", None);
            let key = stage.key.map(|key| key.text().to_string());
            located.map(|()| key).map_err(|error| error.message)
        };
        let (plane, sphere) = (rawdoc! { "p": "2d" }, rawdoc! { "a": 1, "s": "2dsphere" });
        assert_eq!(
            locate(&[sphere.clone(), plane.clone()]),
            Ok(Some("p".into()))
        );
        assert_eq!(locate(std::slice::from_ref(&sphere)), Ok(Some("s".into())));
        assert_eq!(
            locate(&[sphere.clone(), sphere]),
            Err(
                "There is more than one 2dsphere index on d.c; unsure which to use for $geoNear"
                    .into()
            )
        );
        assert_eq!(
            locate(&[rawdoc! { "a": 1 }]),
            Err("$geoNear requires a 2d or 2dsphere index, but none were found".into())
        );
    }
}
