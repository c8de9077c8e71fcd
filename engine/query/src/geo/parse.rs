//! GeoJSON and legacy coordinates, checked as MongoDB checks them.

use pinion_bson::{Number, RawBsonRef, RawDocument};
use pinion_wire::Result;
use s2::point::Point;

use super::flat::{FlatBox, FlatCircle, FlatPoint, FlatPolygon};
use super::line::Line;
use super::polygon::{BigPolygon, NestingFault, Polygon};
use super::ring::Ring;
use super::shape::{GeoPoint, Geometry, Shape, SphereCap, SpherePoint, sphere_point};
use crate::error::bad_value;
use crate::text::{document_text, value_text};
use crate::value::{array_document, elements, field, first, is_number, items, type_name};
use crate::work::{self, STEP};

/// How polygons are bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crs {
    /// By the smaller of the two sides of a ring.
    Sphere,
    /// By the side on the left of a ring.
    StrictWinding,
}

/// What accounts for a vertex: its functions of angles.
const VERTEX: work::Units = 5 * STEP;

fn at<'a>(document: &'a RawDocument, name: &str) -> Option<RawBsonRef<'a>> {
    field(document, name)
}

/// A document or an array, whose items are then taken as its fields.
pub(crate) fn object(value: RawBsonRef<'_>) -> Option<&RawDocument> {
    match value {
        RawBsonRef::Document(document) => Some(document),
        RawBsonRef::Array(array) => Some(array_document(array)),
        _ => None,
    }
}

fn type_of(value: Option<RawBsonRef<'_>>) -> &'static str {
    value.map_or("missing", type_name)
}

fn text_of(value: Option<RawBsonRef<'_>>) -> String {
    value.map_or_else(|| "EOO".to_string(), value_text)
}

fn number(value: RawBsonRef<'_>) -> Option<f64> {
    Some(Number::from_value(value)?.to_f64())
}

/// Whether a value is a pair of legacy coordinates: an array, or a document that begins with a
/// number.
fn is_legacy(value: RawBsonRef<'_>, document: &RawDocument) -> bool {
    matches!(value, RawBsonRef::Array(_))
        || first(document).is_some_and(|(_, value)| is_number(value))
}

/// A pair of numbers, as an array or as a document with any field names.
fn flat_point(value: Option<RawBsonRef<'_>>, allow_more: bool) -> Result<FlatPoint> {
    work::spend(STEP)?;
    let Some(document) = value.and_then(object) else {
        return Err(bad_value(format!(
            "Point must be an array or object, instead got type {}",
            type_of(value)
        )));
    };
    let mut fields = elements(document).map(|(_, value)| value);
    let mut coordinate = || {
        let value = fields.next();
        value.and_then(number).ok_or_else(|| {
            bad_value(format!(
                "Point must only contain numeric elements, instead got type {}",
                type_of(value)
            ))
        })
    };
    let (x, y) = (coordinate()?, coordinate()?);
    if !allow_more && fields.next().is_some() {
        return Err(bad_value("Point must only contain two numeric elements"));
    }
    if !x.is_finite() || !y.is_finite() {
        return Err(bad_value("Point coordinates must be finite numbers"));
    }
    Ok(FlatPoint { x, y })
}

fn on_sphere(at: &FlatPoint) -> Result<Point> {
    sphere_point(at).ok_or_else(|| {
        bad_value(format!(
            "longitude/latitude is out of bounds, lng: {} lat: {}",
            crate::text::format_general(at.x, 6),
            crate::text::format_general(at.y, 6)
        ))
    })
}

/// A position of GeoJSON, whose altitude is ignored.
fn position(value: Option<RawBsonRef<'_>>) -> Result<Point> {
    work::spend(VERTEX)?;
    on_sphere(&flat_point(value, true)?)
}

fn positions(value: Option<RawBsonRef<'_>>) -> Result<Vec<Point>> {
    let Some(RawBsonRef::Array(array)) = value else {
        return Err(bad_value(format!(
            "GeoJSON coordinates must be an array of coordinates, instead got type {}",
            type_of(value)
        )));
    };
    items(array).map(|item| position(Some(item))).collect()
}

fn crs(document: &RawDocument, allow_strict: bool) -> Result<Crs> {
    let Some(value) = at(document, "crs") else {
        return Ok(Crs::Sphere);
    };
    let Some(crs) = object(value) else {
        return Err(bad_value("GeoJSON CRS must be an object"));
    };
    if !matches!(at(crs, "type"), Some(RawBsonRef::String("name"))) {
        return Err(bad_value("GeoJSON CRS must have field \"type\": \"name\""));
    }
    let Some(properties) = at(crs, "properties").and_then(object) else {
        return Err(bad_value(
            "CRS must have field \"properties\" which is an object",
        ));
    };
    match at(properties, "name") {
        Some(RawBsonRef::String("urn:ogc:def:crs:OGC:1.3:CRS84" | "EPSG:4326")) => Ok(Crs::Sphere),
        Some(RawBsonRef::String("urn:x-mongodb:crs:strictwinding:EPSG:4326")) => {
            if !allow_strict {
                return Err(bad_value(
                    "Strict winding order is only supported by polygon",
                ));
            }
            Ok(Crs::StrictWinding)
        }
        Some(RawBsonRef::String(name)) => Err(bad_value(format!("Unknown CRS name: {name}"))),
        _ => Err(bad_value("In CRS, \"properties.name\" must be a string")),
    }
}

/// The vertices of a ring, without the repetition of the first.
fn ring_vertices(value: RawBsonRef<'_>, shown: RawBsonRef<'_>) -> Result<Vec<Point>> {
    let mut vertices = positions(Some(value))?;
    if vertices.is_empty() {
        let text = value_text(value);
        return Err(bad_value(format!("Loop has no vertices: {text}")));
    }
    if vertices.first() != vertices.last() {
        let text = value_text(value);
        return Err(bad_value(format!("Loop is not closed: {text}")));
    }
    vertices.dedup();
    vertices.pop();
    if vertices.len() < 3 {
        return Err(bad_value(format!(
            "Loop must have at least 3 different vertices: {}",
            value_text(shown)
        )));
    }
    Ok(vertices)
}

fn check_ring(ring: &Ring, shown: RawBsonRef<'_>) -> Result<()> {
    match ring.fault()? {
        None => Ok(()),
        Some(fault) => Err(bad_value(format!(
            "Loop is not valid: {} {fault}",
            value_text(shown)
        ))),
    }
}

fn polygon(value: Option<RawBsonRef<'_>>) -> Result<Polygon> {
    let Some(coordinates @ RawBsonRef::Array(array)) = value else {
        return Err(bad_value(format!(
            "Polygon coordinates must be an array, instead got type {}",
            type_of(value)
        )));
    };
    let mut rings: Vec<Ring> = Vec::new();
    for item in items(array) {
        let ring = Ring::new(ring_vertices(item, item)?)?;
        check_ring(&ring, item)?;
        let ring = ring.normalized()?;
        if let Some(shell) = rings.first()
            && !shell.contains_ring(&ring)?
        {
            return Err(bad_value(format!(
                "Secondary loops not contained by first exterior loop - secondary loops must be holes: {} first loop: {}",
                value_text(item),
                text_of(items(array).next())
            )));
        }
        rings.push(ring);
    }
    if rings.is_empty() {
        return Err(bad_value("Polygon has no loops."));
    }
    if let Some(fault) = Polygon::fault(&rings)? {
        let text = value_text(coordinates);
        return Err(bad_value(format!("Polygon isn't valid: {fault} {text}")));
    }
    let polygon = Polygon::new(rings);
    let text = || value_text(coordinates);
    match polygon.nesting_fault()? {
        None => Ok(polygon),
        Some(NestingFault::SharedVertices(hole)) => Err(bad_value(format!(
            "Loop {hole} shares more than one vertex with its parent loop 0: {}",
            text()
        ))),
        Some(NestingFault::NestedHoles) => Err(bad_value(format!(
            "Polygon interior loops cannot be nested: {}",
            text()
        ))),
    }
}

fn big_polygon(value: Option<RawBsonRef<'_>>) -> Result<BigPolygon> {
    let Some(coordinates @ RawBsonRef::Array(array)) = value else {
        return Err(bad_value(format!(
            "Coordinates of polygon must be an array, instead got type {}",
            type_of(value)
        )));
    };
    let rings: Vec<RawBsonRef<'_>> = items(array).collect();
    let [only] = rings[..] else {
        return Err(bad_value(format!(
            "Only one simple loop is allowed in a big polygon, instead provided {} loops: {}",
            rings.len(),
            value_text(coordinates)
        )));
    };
    let ring = Ring::new(ring_vertices(only, coordinates)?)?;
    check_ring(&ring, coordinates)?;
    BigPolygon::new(ring)
}

fn line(value: Option<RawBsonRef<'_>>) -> Result<Line> {
    let mut vertices = positions(value)?;
    vertices.dedup();
    if vertices.len() < 2 {
        return Err(bad_value(format!(
            "GeoJSON LineString must have at least 2 vertices: {}",
            text_of(value)
        )));
    }
    if let Some(fault) = Line::fault(&vertices) {
        return Err(bad_value(format!(
            "GeoJSON LineString is not valid: {fault} {}",
            text_of(value)
        )));
    }
    Ok(Line::new(vertices))
}

/// The coordinates of a geometry of several parts.
fn several<T>(
    name: &str,
    value: Option<RawBsonRef<'_>>,
    part: impl Fn(RawBsonRef<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let Some(RawBsonRef::Array(array)) = value else {
        return Err(bad_value(format!(
            "{name} coordinates must be an array, instead got type {}",
            type_of(value)
        )));
    };
    let parts: Vec<T> = items(array).map(part).collect::<Result<_>>()?;
    if parts.is_empty() {
        return Err(bad_value(format!(
            "{name} coordinates must have at least 1 element"
        )));
    }
    Ok(parts)
}

/// A point of GeoJSON. Its type is not examined.
fn json_point(document: &RawDocument) -> Result<GeoPoint> {
    crs(document, false)?;
    work::spend(VERTEX)?;
    let flat = flat_point(at(document, "coordinates"), true)?;
    let point = on_sphere(&flat)?;
    Ok(GeoPoint {
        flat,
        sphere: Some(SpherePoint::new(point)),
    })
}

fn collection(document: &RawDocument) -> Result<Geometry> {
    let value = at(document, "geometries");
    let Some(RawBsonRef::Array(array)) = value else {
        return Err(bad_value(format!(
            "GeometryCollection geometries must be an array, instead got type {}",
            type_of(value)
        )));
    };
    let mut geometries = Vec::new();
    for (place, item) in items(array).enumerate() {
        let RawBsonRef::Document(geometry) = item else {
            return Err(bad_value(format!(
                "Element {place} of \"geometries\" is not an object, instead got type {}",
                type_name(item)
            )));
        };
        match at(geometry, "type") {
            Some(RawBsonRef::String("GeometryCollection")) => {
                return Err(bad_value(format!(
                    "GeometryCollections cannot be nested: {}",
                    value_text(item)
                )));
            }
            Some(RawBsonRef::String(kind)) => match simple(kind, geometry, false)? {
                Some(parsed) => geometries.push(parsed),
                None => return Err(unknown_in_collection(item)),
            },
            _ => return Err(unknown_in_collection(item)),
        }
    }
    if geometries.is_empty() {
        return Err(bad_value(
            "GeometryCollection geometries must have at least 1 element",
        ));
    }
    Ok(Geometry::Collection(geometries))
}

fn unknown_in_collection(item: RawBsonRef<'_>) -> pinion_wire::Error {
    bad_value(format!("Unknown GeoJSON type: {}", value_text(item)))
}

/// A geometry of GeoJSON that is no collection; `None` when there is no such type.
fn simple(kind: &str, document: &RawDocument, allow_strict: bool) -> Result<Option<Geometry>> {
    let coordinates = at(document, "coordinates");
    let parsed = match kind {
        "Point" => Geometry::Point(json_point(document)?),
        "LineString" => {
            crs(document, false)?;
            Geometry::Line(line(coordinates)?)
        }
        "Polygon" => match crs(document, allow_strict)? {
            Crs::Sphere => Geometry::Polygon(polygon(coordinates)?),
            Crs::StrictWinding => Geometry::BigPolygon(Box::new(big_polygon(coordinates)?)),
        },
        "MultiPoint" => {
            crs(document, false)?;
            let points = positions(coordinates)?;
            if points.is_empty() {
                return Err(bad_value(
                    "MultiPoint coordinates must have at least 1 element",
                ));
            }
            Geometry::MultiPoint(points.into_iter().map(SpherePoint::new).collect())
        }
        "MultiLineString" => {
            crs(document, false)?;
            let lines = several("MultiLineString", coordinates, |item| line(Some(item)))?;
            Geometry::MultiLine(lines)
        }
        "MultiPolygon" => {
            crs(document, false)?;
            let polygons = several("MultiPolygon", coordinates, |item| polygon(Some(item)))?;
            Geometry::MultiPolygon(polygons)
        }
        _ => return Ok(None),
    };
    Ok(Some(parsed))
}

/// A geometry of GeoJSON.
fn geojson(document: &RawDocument) -> Result<Geometry> {
    let parsed = match at(document, "type") {
        Some(RawBsonRef::String("GeometryCollection")) => Some(collection(document)?),
        Some(RawBsonRef::String(kind)) => simple(kind, document, true)?,
        _ => None,
    };
    parsed.ok_or_else(|| bad_value(format!("unknown GeoJSON type: {}", document_text(document))))
}

/// The geometry that a document stores: GeoJSON, or a pair of legacy coordinates that may be
/// followed by more.
pub(crate) fn stored(value: RawBsonRef<'_>) -> Result<Geometry> {
    let Some(document) = object(value) else {
        return Err(bad_value(format!(
            "geo element must be an array or object: {}",
            value_text(value)
        )));
    };
    if !is_legacy(value, document) {
        return geojson(document);
    }
    Ok(Geometry::Point(GeoPoint {
        flat: flat_point(Some(value), true)?,
        sphere: None,
    }))
}

/// A point that a query is about: legacy coordinates or a point of GeoJSON.
pub(crate) fn query_point(value: RawBsonRef<'_>) -> Result<GeoPoint> {
    match object(value) {
        Some(document) if !is_legacy(value, document) => {
            // What has a type must be a point; what has none is taken for one.
            match at(document, "type") {
                None | Some(RawBsonRef::String("Point")) => json_point(document),
                Some(_) => Err(bad_value(format!(
                    "Expected a GeoJSON point: {}",
                    document_text(document)
                ))),
            }
        }
        _ => Ok(GeoPoint {
            flat: flat_point(Some(value), false)?,
            sphere: None,
        }),
    }
}

/// A pair of coordinates that an index of the plane holds.
pub(crate) fn flat_location(location: &RawDocument, document: &RawDocument) -> Result<FlatPoint> {
    let caused = |code: i32, text: &str| {
        crate::error::error(
            code,
            format!("{text} :: caused by :: {}", document_text(document)),
        )
    };
    let mut coordinates = elements(location).map(|(_, value)| value);
    let Some(x) = coordinates.next() else {
        return Err(caused(13067, "geo field is empty"));
    };
    let Some(y) = coordinates.next() else {
        return Err(caused(13068, "geo field only has 1 element"));
    };
    match (number(x), number(y)) {
        (Some(x), Some(y)) => Ok(FlatPoint { x, y }),
        _ => Err(caused(
            13026,
            "geo values must be 'legacy coordinate pairs' for 2d indexes",
        )),
    }
}

/// The shape that a specifier such as `$box` or `$geometry` names.
pub(crate) fn shape(name: &str, value: RawBsonRef<'_>) -> Result<Shape> {
    let unknown = || {
        bad_value(format!(
            "unknown geo specifier: {}",
            crate::text::element_text(name, value)
        ))
    };
    let document = object(value).ok_or_else(unknown)?;
    Ok(match name {
        "$box" => {
            let mut corners = elements(document).map(|(_, value)| value);
            let a = flat_point(corners.next(), false)?;
            let b = flat_point(corners.next(), false)?;
            Shape::Box(FlatBox::new(a, b))
        }
        "$polygon" => {
            let points: Vec<FlatPoint> = elements(document)
                .map(|(_, value)| flat_point(Some(value), false))
                .collect::<Result<_>>()?;
            if points.len() < 3 {
                return Err(bad_value("Polygon must have at least 3 points"));
            }
            Shape::FlatPolygon(FlatPolygon::new(points))
        }
        "$center" => {
            let (center, radius) = circle(document, |_| Ok(()))?;
            Shape::Circle(FlatCircle { center, radius })
        }
        "$centerSphere" => {
            let (center, radius) = circle(document, |center| on_sphere(center).map(|_| ()))?;
            Shape::Cap(SphereCap::new(center, on_sphere(&center)?, radius))
        }
        "$geometry" if is_legacy(value, document) => {
            Shape::Geometry(Geometry::Point(query_point(value)?))
        }
        "$geometry" => Shape::Geometry(geojson(document)?),
        _ => return Err(unknown()),
    })
}

/// A center and a radius; the center is checked before the radius is read.
fn circle(
    document: &RawDocument,
    check: impl FnOnce(&FlatPoint) -> Result<()>,
) -> Result<(FlatPoint, f64)> {
    let mut parts = elements(document);
    let center = flat_point(parts.next().map(|(_, value)| value), false)?;
    check(&center)?;
    let given = parts.next().map(|(_, value)| value);
    let radius = given.and_then(number).filter(|radius| *radius >= 0.0);
    let Some(radius) = radius else {
        return Err(bad_value(format!(
            "Radius must be a non-negative number: {}",
            text_of(given)
        )));
    };
    if parts.next().is_some() {
        return Err(bad_value(
            "Only 2 fields allowed for circular region, but more were provided",
        ));
    }
    Ok((center, radius))
}
