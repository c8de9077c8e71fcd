//! What documents store and queries ask for: points, lines and polygons of the sphere, and shapes
//! of the plane.

use pinion_wire::Result;
use s2::cap::Cap;
use s2::cell::Cell;
use s2::cellid::CellID;
use s2::point::Point;
use s2::region::Region;
use s2::s1::{Angle, Rad};

use super::edges::{angle, angle_to_edge};
use super::flat::{FlatBox, FlatCircle, FlatPoint, FlatPolygon};
use super::line::Line;
use super::polygon::{BigPolygon, Polygon};
use super::ring::Ring;

/// The sphere's radius in meters.
pub(crate) const EARTH_RADIUS_M: f64 = 6_378_100.0;

/// A point of the sphere with the smallest cell around it, by which points that are equal but for
/// rounding are so.
#[derive(Clone, Debug)]
pub(crate) struct SpherePoint {
    pub point: Point,
    pub cell: Cell,
}

impl SpherePoint {
    pub(crate) fn new(point: Point) -> SpherePoint {
        SpherePoint {
            point,
            cell: Cell::from(CellID::from(&point)),
        }
    }
}

/// A point as it was written, and on the sphere where it was written so.
#[derive(Clone, Debug)]
pub(crate) struct GeoPoint {
    pub flat: FlatPoint,
    pub sphere: Option<SpherePoint>,
}

impl GeoPoint {
    /// The point on the sphere; a pair of legacy coordinates is one where it is a longitude and a
    /// latitude.
    pub(crate) fn on_sphere(&self) -> Option<SpherePoint> {
        match &self.sphere {
            Some(point) => Some(point.clone()),
            None => sphere_point(&self.flat).map(SpherePoint::new),
        }
    }
}

/// The point of a longitude and a latitude; `None` when out of bounds.
pub(crate) fn sphere_point(at: &FlatPoint) -> Option<Point> {
    let valid = at.x.abs() <= 180.0 && at.y.abs() <= 90.0;
    valid.then(|| {
        let point: Point = s2::latlng::LatLng::from_degrees(at.y, at.x)
            .normalized()
            .into();
        // Products of smaller coordinates would vanish, and predicates not be exact.
        let kept = |c: f64| if c.abs() < 1e-90 { 0.0 } else { c };
        Point(s2::r3::vector::Vector::new(
            kept(point.0.x),
            kept(point.0.y),
            kept(point.0.z),
        ))
    })
}

/// A geometry of GeoJSON, or a pair of legacy coordinates.
#[derive(Clone, Debug)]
pub(crate) enum Geometry {
    Point(GeoPoint),
    Line(Line),
    Polygon(Polygon),
    /// With strict winding; only queries use these.
    BigPolygon(Box<BigPolygon>),
    MultiPoint(Vec<SpherePoint>),
    MultiLine(Vec<Line>),
    MultiPolygon(Vec<Polygon>),
    Collection(Vec<Geometry>),
}

/// A part of a geometry on the sphere.
#[derive(Clone, Debug)]
pub(crate) enum Part<'a> {
    Point(std::borrow::Cow<'a, SpherePoint>),
    Line(&'a Line),
    Polygon(&'a Polygon),
    BigPolygon(&'a BigPolygon),
    Cap(&'a SphereCap),
}

impl Geometry {
    /// The parts on the sphere; `None` when the geometry is a point that is not on it.
    pub(crate) fn parts(&self) -> Option<Vec<Part<'_>>> {
        use std::borrow::Cow;
        Some(match self {
            Geometry::Point(GeoPoint {
                sphere: Some(point),
                ..
            }) => vec![Part::Point(Cow::Borrowed(point))],
            Geometry::Point(point) => vec![Part::Point(Cow::Owned(point.on_sphere()?))],
            Geometry::Line(line) => vec![Part::Line(line)],
            Geometry::Polygon(polygon) => vec![Part::Polygon(polygon)],
            Geometry::BigPolygon(polygon) => vec![Part::BigPolygon(polygon)],
            Geometry::MultiPoint(points) => {
                let points = points.iter().map(|p| Part::Point(Cow::Borrowed(p)));
                points.collect()
            }
            Geometry::MultiLine(lines) => lines.iter().map(Part::Line).collect(),
            Geometry::MultiPolygon(polygons) => polygons.iter().map(Part::Polygon).collect(),
            Geometry::Collection(geometries) => {
                let mut parts = Vec::new();
                for geometry in geometries {
                    parts.extend(geometry.parts()?);
                }
                parts
            }
        })
    }
}

impl Part<'_> {
    /// The angle from a point to the nearest one of the part, in radians.
    pub(crate) fn distance(&self, p: &Point) -> Result<f64> {
        match self {
            Part::Point(own) => Ok(angle(p, &own.point)),
            Part::Line(line) => line.distance(p),
            Part::Polygon(polygon) => polygon_distance(polygon, p),
            Part::BigPolygon(polygon) => {
                if polygon.ring().contains(p)? {
                    return Ok(0.0);
                }
                let edges = polygon.ring().edges();
                Ok(edges.fold(f64::INFINITY, |least, e| least.min(angle_to_edge(p, &e))))
            }
            Part::Cap(cap) => Ok((angle(p, &cap.center) - cap.radius).max(0.0)),
        }
    }

    /// Whether the part has a point in a cell, or so near to it that a predicate may take it for
    /// one.
    pub(crate) fn may_meet(&self, cell: &Cell) -> Result<bool> {
        match self {
            Part::Point(point) => Ok(cell.id.contains(&point.cell.id)),
            Part::Line(line) => line.meets_square(cell, Ring::around_cell(cell)?.vertices()),
            Part::Polygon(polygon) => polygon.meets(Ring::around_cell(cell)?),
            Part::BigPolygon(polygon) => Ring::around_cell(cell)?.intersects_ring(polygon.ring()),
            Part::Cap(cap) => Ok(cap.wider.intersects_cell(cell)),
        }
    }

    pub(crate) fn contains_cell(&self, cell: &Cell) -> Result<bool> {
        match self {
            Part::Point(_) | Part::Line(_) => Ok(false),
            Part::Polygon(polygon) => polygon.contains_cell(cell),
            Part::BigPolygon(polygon) => polygon.contains_cell(cell),
            Part::Cap(cap) => Ok(cap.cap.contains_cell(cell)),
        }
    }
}

fn polygon_distance(polygon: &Polygon, p: &Point) -> Result<f64> {
    if polygon.contains_point(p)? {
        return Ok(0.0);
    }
    let edges = polygon.rings().iter().flat_map(|ring| ring.edges());
    Ok(edges.fold(f64::INFINITY, |least, edge| {
        least.min(angle_to_edge(p, &edge))
    }))
}

/// What is within an angle of a point of the sphere.
#[derive(Clone, Debug)]
pub(crate) struct SphereCap {
    pub center: Point,
    /// In radians; may be more than a half turn.
    pub radius: f64,
    /// The center as it was written.
    pub flat: FlatPoint,
    cap: Cap,
    /// Wider than the cap by what rounding may do.
    wider: Cap,
}

/// By how much a wider cap is wider, in radians.
const WIDER: f64 = 1e-14;

impl SphereCap {
    pub(crate) fn new(flat: FlatPoint, center: Point, radius: f64) -> SphereCap {
        let cap = |radius: f64| match radius >= std::f64::consts::PI {
            true => Cap::full(),
            false => Cap::from_center_angle(&center, &Angle::from(Rad(radius))),
        };
        SphereCap {
            center,
            radius,
            flat,
            cap: cap(radius),
            wider: cap(radius + WIDER),
        }
    }

    pub(super) fn covers_point(&self, p: &Point, cell: &Cell) -> bool {
        self.cap.contains_point(p) || self.cap.intersects_cell(cell)
    }

    /// Whether no point of the part is nearer to the cap's opposite than the cap's edge is.
    fn contains_all(&self, part: &Part<'_>) -> Result<bool> {
        let outside = std::f64::consts::PI - self.radius;
        if outside <= 0.0 {
            return Ok(true);
        }
        let opposite = Point(self.center.0 * -1.0);
        Ok(part.distance(&opposite)? >= outside)
    }

    pub(super) fn contains_line(&self, line: &Line) -> Result<bool> {
        self.contains_all(&Part::Line(line))
    }

    pub(super) fn contains_polygon(&self, polygon: &Polygon) -> Result<bool> {
        self.contains_all(&Part::Polygon(polygon))
    }
}

/// What a query asks for.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Geometry(Geometry),
    Cap(SphereCap),
    Box(FlatBox),
    Circle(FlatCircle),
    FlatPolygon(FlatPolygon),
}

impl Shape {
    /// Whether the shape is of the plane.
    pub(crate) fn is_flat(&self) -> bool {
        match self {
            Shape::Geometry(Geometry::Point(point)) => point.sphere.is_none(),
            _ => self.is_flat_area(),
        }
    }

    /// Whether the shape is an area of the plane, which has no edges on the sphere.
    pub(crate) fn is_flat_area(&self) -> bool {
        matches!(
            self,
            Shape::Box(_) | Shape::Circle(_) | Shape::FlatPolygon(_)
        )
    }

    /// Whether anything may be within the shape.
    pub(crate) fn has_area(&self) -> bool {
        fn is_area(geometry: &Geometry) -> bool {
            match geometry {
                Geometry::Polygon(_) | Geometry::BigPolygon(_) | Geometry::MultiPolygon(_) => true,
                Geometry::Collection(geometries) => geometries.iter().any(is_area),
                _ => false,
            }
        }
        match self {
            Shape::Geometry(geometry) => is_area(geometry),
            _ => true,
        }
    }

    /// Whether a point of the plane is within the shape.
    pub(crate) fn contains_flat(&self, p: &FlatPoint) -> Result<bool> {
        match self {
            Shape::Box(shape) => Ok(shape.contains(p)),
            Shape::Circle(shape) => Ok(shape.contains(p)),
            Shape::FlatPolygon(shape) => shape.contains(p),
            Shape::Geometry(_) | Shape::Cap(_) => Ok(false),
        }
    }

    /// The parts on the sphere; `None` for a shape of the plane.
    pub(crate) fn parts(&self) -> Option<Vec<Part<'_>>> {
        match self {
            Shape::Geometry(geometry) => geometry.parts(),
            Shape::Cap(cap) => Some(vec![Part::Cap(cap)]),
            Shape::Box(_) | Shape::Circle(_) | Shape::FlatPolygon(_) => None,
        }
    }
}
