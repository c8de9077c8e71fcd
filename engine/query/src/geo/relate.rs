//! Whether a stored geometry is within a shape or intersects one.

use pinion_wire::Result;

use super::shape::{Geometry, Part, Shape};

/// Whether all of a geometry is within a shape: each of its parts within one part of the shape.
pub(crate) fn within(geometry: &Geometry, shape: &Shape) -> Result<bool> {
    if shape.is_flat() {
        return match geometry {
            Geometry::Point(point) => shape.contains_flat(&point.flat),
            _ => Ok(false),
        };
    }
    let (Some(parts), Some(areas)) = (geometry.parts(), shape.parts()) else {
        return Ok(false);
    };
    for part in &parts {
        let mut contained = false;
        for area in &areas {
            contained = contains(area, part)?;
            if contained {
                break;
            }
        }
        if !contained {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a geometry has a point in common with a shape on the sphere.
pub(crate) fn intersects(geometry: &Geometry, shape: &Shape) -> Result<bool> {
    let (Some(parts), Some(others)) = (geometry.parts(), shape.parts()) else {
        return Ok(false);
    };
    for part in &parts {
        for other in &others {
            if meet(part, other)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn contains(area: &Part<'_>, part: &Part<'_>) -> Result<bool> {
    match (area, part) {
        (Part::Polygon(area), Part::Point(p)) => area.covers_point(p),
        (Part::Polygon(area), Part::Line(line)) => area.contains_line(line),
        (Part::Polygon(area), Part::Polygon(polygon)) => area.contains(polygon),
        (Part::BigPolygon(area), Part::Point(p)) => area.covers_point(p),
        (Part::BigPolygon(area), Part::Line(line)) => area.contains_line(line),
        (Part::BigPolygon(area), Part::Polygon(polygon)) => area.contains(polygon),
        (Part::Cap(cap), Part::Point(p)) => Ok(cap.covers_point(&p.point, &p.cell)),
        (Part::Cap(cap), Part::Line(line)) => cap.contains_line(line),
        (Part::Cap(cap), Part::Polygon(polygon)) => cap.contains_polygon(polygon),
        (Part::Point(_) | Part::Line(_), _) | (_, Part::BigPolygon(_) | Part::Cap(_)) => Ok(false),
    }
}

fn meet(part: &Part<'_>, other: &Part<'_>) -> Result<bool> {
    match (part, other) {
        (Part::Point(a), Part::Point(b)) => Ok(a.cell.id == b.cell.id),
        (Part::Point(p), Part::Line(line)) | (Part::Line(line), Part::Point(p)) => {
            line.intersects_cell(&p.cell)
        }
        (Part::Point(p), Part::Polygon(polygon)) | (Part::Polygon(polygon), Part::Point(p)) => {
            polygon.covers_point(p)
        }
        (Part::Line(a), Part::Line(b)) => a.intersects(b),
        (Part::Line(line), Part::Polygon(polygon)) | (Part::Polygon(polygon), Part::Line(line)) => {
            polygon.intersects_line(line)
        }
        (Part::Polygon(a), Part::Polygon(b)) => a.intersects(b),
        (Part::Point(p), Part::BigPolygon(big)) => big.covers_point(p),
        (Part::Line(line), Part::BigPolygon(big)) => big.intersects_line(line),
        (Part::Polygon(polygon), Part::BigPolygon(big)) => big.intersects(polygon),
        // Stored polygons of strict winding match nothing, and circles are only for what is within.
        (Part::BigPolygon(_) | Part::Cap(_), _) | (_, Part::Cap(_)) => Ok(false),
    }
}
