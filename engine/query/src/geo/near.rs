//! `$near`, `$nearSphere` and `$geoNear`: a point, and how near what is sought must be.

use pinion_bson::{Number, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use super::flat::FlatPoint;
use super::parse::{object, query_point};
use super::shape::{EARTH_RADIUS_M, GeoPoint, Geometry, SpherePoint};
use crate::error::{bad_value, error};
use crate::path::Path;
use crate::text::{document_text, element_text};
use crate::value::{array_document, elements, items};

/// What orders documents by their distance from a point.
#[derive(Clone, Debug)]
pub(crate) struct Near {
    /// The point as it was written.
    pub center: GeoPoint,
    /// Distances are along the sphere, in meters; otherwise along the plane, in its units.
    pub spherical: bool,
    /// Distances were given in radians, and are reported so; they are kept in meters here.
    pub radians: bool,
    /// The point was given as GeoJSON: no index of the plane serves it.
    pub wrapping: bool,
    pub min: f64,
    pub max: f64,
    /// The operators as they were written.
    pub source: RawDocumentBuf,
}

/// What was read of the operators.
struct Read {
    center: GeoPoint,
    is_near_sphere: bool,
    min: f64,
    max: f64,
}

pub(crate) fn is_near(name: &str) -> bool {
    matches!(name, "$near" | "$nearSphere" | "$geoNear")
}

impl Near {
    /// Reads the operators at a path, the first of which is one of these.
    pub(crate) fn parse(operators: &RawDocument) -> Result<Near> {
        let read = match Read::legacy(operators)? {
            Some(read) => read,
            None => Read::geojson(operators)?,
        };
        let from_geojson = read.center.sphere.is_some();
        let spherical = read.is_near_sphere || from_geojson;
        let mut center = read.center;
        if spherical && !from_geojson {
            let point = center.on_sphere();
            let point = point
                .ok_or_else(|| bad_value("Legacy point is out of bounds for spherical query"))?;
            center.sphere = Some(point);
        }
        Ok(Near::new(
            center,
            spherical,
            spherical && !from_geojson,
            read.min,
            read.max,
            operators.to_owned(),
        ))
    }

    /// Distances in radians are given in these.
    pub(crate) fn new(
        center: GeoPoint,
        spherical: bool,
        radians: bool,
        min: f64,
        max: f64,
        source: RawDocumentBuf,
    ) -> Near {
        let scale = if radians { EARTH_RADIUS_M } else { 1.0 };
        Near {
            wrapping: spherical && !radians,
            center,
            spherical,
            radians,
            min: (min * scale).max(0.0),
            max: max * scale,
            source,
        }
    }

    fn sphere_center(&self) -> Option<&SpherePoint> {
        self.center.sphere.as_ref().filter(|_| self.spherical)
    }

    /// The distance of a stored geometry; `None` where it has none, since it is no point of the
    /// plane or not on the sphere.
    pub(crate) fn distance(&self, geometry: &Geometry) -> Result<Option<f64>> {
        let Some(center) = self.sphere_center() else {
            return Ok(match geometry {
                Geometry::Point(point) => Some(self.center.flat.distance(&point.flat)),
                _ => None,
            });
        };
        let Some(parts) = geometry.parts() else {
            return Ok(None);
        };
        let mut least: Option<f64> = None;
        for part in parts {
            let distance = part.distance(&center.point)? * EARTH_RADIUS_M;
            least = Some(least.map_or(distance, |least| least.min(distance)));
        }
        Ok(least)
    }

    /// The least distance of what a document stores at a path, with the value that has it.
    pub(crate) fn document_distance<'a>(
        &self,
        document: &'a RawDocument,
        path: &Path,
    ) -> Result<Option<(f64, RawBsonRef<'a>)>> {
        let mut least: Option<(f64, RawBsonRef<'a>)> = None;
        let mut consider = |value: RawBsonRef<'a>| -> Result<bool> {
            let Ok(geometry) = super::parse::stored(value) else {
                crate::work::check()?;
                return Ok(false);
            };
            if let Some(distance) = self.distance(&geometry)?
                && least.is_none_or(|(least, _)| distance < least)
            {
                least = Some((distance, value));
            }
            Ok(true)
        };
        let mut failed = None;
        super::values_at(document, path, &mut Vec::new(), &mut |value| {
            let mut one = || -> Result<()> {
                if !consider(value)?
                    && let RawBsonRef::Array(array) = value
                {
                    for item in items(array) {
                        consider(item)?;
                    }
                }
                Ok(())
            };
            if let Err(error) = one() {
                failed.get_or_insert(error);
            }
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(least),
        }
    }

    /// Whether a distance is wanted.
    pub(crate) fn is_wanted(&self, distance: f64) -> bool {
        self.min <= distance && distance <= self.max
    }

    /// The greatest distance that is wanted, as it was given.
    pub(crate) fn max_given(&self) -> f64 {
        if self.max.is_finite() {
            self.reported(self.max)
        } else {
            f64::MAX
        }
    }

    /// A distance in the unit in which it is reported.
    pub(crate) fn reported(&self, distance: f64) -> f64 {
        if self.radians {
            distance / EARTH_RADIUS_M
        } else {
            distance
        }
    }
}

impl Read {
    /// `{$near: [x, y], $maxDistance: d}`; `None` when the point is written in another way.
    fn legacy(operators: &RawDocument) -> Result<Option<Read>> {
        let mut center = None;
        let mut is_near_sphere = false;
        let (mut min, mut max) = (0.0, f64::MAX);
        let distance = |value: RawBsonRef<'_>, name: &str, codes: (i32, i32)| {
            let Some(distance) = Number::from_value(value).map(Number::to_f64) else {
                return Err(error(codes.0, format!("{name} must be a number")));
            };
            if distance >= 0.0 {
                Ok(distance)
            } else {
                Err(error(codes.1, format!("{name} must be non-negative")))
            }
        };
        for (name, value) in elements(operators) {
            match name {
                name if is_near(name) => {
                    match (query_point(value), point_with_distance(value)) {
                        (Ok(point), _) => center = Some(point),
                        (Err(_), Some((point, distance))) => {
                            if distance < 0.0 {
                                return Err(error(18522, "max distance must be non-negative"));
                            }
                            (center, max) = (Some(point), distance);
                        }
                        _ => {
                            crate::work::check()?;
                            return Ok(None);
                        }
                    }
                    is_near_sphere = name == "$nearSphere";
                }
                "$minDistance" => min = distance(value, name, (16893, 16894))?,
                "$maxDistance" => max = distance(value, name, (16895, 16896))?,
                "$uniqueDocs" => {}
                other => {
                    return Err(error(
                        34413,
                        format!("invalid argument in geo near query: {other}"),
                    ));
                }
            }
        }
        Ok(center.map(|center| Read {
            center,
            is_near_sphere,
            min,
            max,
        }))
    }

    /// `{$near: {$geometry: point, $maxDistance: d}}`
    fn geojson(operators: &RawDocument) -> Result<Read> {
        let mut fields = elements(operators);
        let Some((name, argument)) = fields.next() else {
            return Err(bad_value("empty geo near query object"));
        };
        if let Some((name, value)) = fields.next() {
            return Err(bad_value(format!(
                "geo near accepts just one argument when querying for a GeoJSON point. Extra field found: {}",
                element_text(name, value)
            )));
        }
        let Some(options) = object(argument) else {
            return Err(bad_value("geo near query argument is not an object"));
        };
        if !is_near(name) {
            return Err(bad_value(format!(
                "invalid geo near query operator: {name}"
            )));
        }
        let mut center = None;
        let (mut min, mut max) = (0.0, f64::MAX);
        for (name, value) in elements(options) {
            match (name, object(value)) {
                ("$geometry", Some(geometry)) => {
                    center = Some(geojson_center(value, geometry)?);
                }
                ("$minDistance", _) => min = finite_distance(name, value)?,
                ("$maxDistance", _) => max = finite_distance(name, value)?,
                _ => {}
            }
        }
        let center = center.ok_or_else(|| bad_value("$geometry is required for geo near query"))?;
        Ok(Read {
            center,
            is_near_sphere: name == "$nearSphere",
            min,
            max,
        })
    }
}

/// The oldest form, `[x, y, distance]`.
fn point_with_distance(value: RawBsonRef<'_>) -> Option<(GeoPoint, f64)> {
    let mut numbers =
        elements(object(value)?).map(|(_, value)| Some(Number::from_value(value)?.to_f64()));
    let (x, y, distance) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let only = numbers.next().is_none();
    let point = GeoPoint {
        flat: FlatPoint { x, y },
        sphere: None,
    };
    (only && x.is_finite() && y.is_finite()).then_some((point, distance))
}

fn geojson_center(value: RawBsonRef<'_>, geometry: &RawDocument) -> Result<GeoPoint> {
    let shown = || match value {
        RawBsonRef::Array(array) => document_text(array_document(array)),
        _ => document_text(geometry),
    };
    let point = query_point(value).map_err(|cause| {
        let code = cause.code.0;
        let text = format!(
            "invalid point in geo near query $geometry argument: {}  {}",
            shown(),
            cause.message
        );
        if code == 2 { bad_value(text) } else { cause }
    })?;
    if point.sphere.is_none() {
        let text = format!("$near requires geojson point, given {}", shown());
        return Err(error(16681, text));
    }
    Ok(point)
}

fn finite_distance(name: &str, value: RawBsonRef<'_>) -> Result<f64> {
    let Some(distance) = Number::from_value(value).map(Number::to_f64) else {
        return Err(bad_value(format!("{name} must be a number")));
    };
    if distance >= 0.0 && distance.is_finite() {
        Ok(distance)
    } else {
        Err(bad_value(format!("{name} must be non-negative")))
    }
}
