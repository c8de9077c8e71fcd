//! Chains of great-circle edges, and what is left of one inside of a polygon.

use pinion_wire::Result;
use s2::cell::Cell;
use s2::point::Point;

use super::edges::{
    Edge, EdgeList, INTERSECTION_TOLERANCE, angle, angle_to_edge, fraction, intersection,
};
use super::exact::{Crosser, Crossing, crossing, vertex_crossing};
use super::ring::Ring;
use crate::work::{self, STEP};

/// A line through its vertices, of which there is at least one.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    vertices: Vec<Point>,
}

/// How near a line's vertices must be to another line that covers it, in radians: 1e-10 degrees.
const COVERING_TOLERANCE: f64 = 1e-10 * std::f64::consts::PI / 180.0;

impl Line {
    pub(crate) fn new(vertices: Vec<Point>) -> Line {
        assert!(!vertices.is_empty(), "a line has vertices");
        Line { vertices }
    }

    pub(crate) fn vertices(&self) -> &[Point] {
        &self.vertices
    }

    pub(super) fn edges(&self) -> impl Iterator<Item = Edge<'_>> {
        self.vertices.windows(2).map(|pair| Edge {
            from: &pair[0],
            to: &pair[1],
        })
    }

    /// What makes these vertices no line, as S2 says it.
    pub(super) fn fault(vertices: &[Point]) -> Option<String> {
        let pairs = vertices.windows(2).enumerate();
        let mut faults =
            pairs.filter(|(_, pair)| pair[0] == pair[1] || pair[0] == Point(pair[1].0 * -1.0));
        let (place, _) = faults.next()?;
        Some(format!(
            "Vertices {place} and {} are identical or antipodal",
            place + 1
        ))
    }

    pub(crate) fn intersects(&self, other: &Line) -> Result<bool> {
        let (fewer, more) = if self.vertices.len() <= other.vertices.len() {
            (self, other)
        } else {
            (other, self)
        };
        let list = EdgeList::new(fewer.edges().collect())?;
        for edge in more.edges() {
            for at in list.near(&edge)? {
                let near = list.edge(at);
                if crossing(edge.from, edge.to, near.from, near.to) != Crossing::Apart {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    pub(crate) fn intersects_cell(&self, cell: &Cell) -> Result<bool> {
        self.meets_square(cell, &cell.vertices())
    }

    /// Whether a point of the line is in a cell, or on an edge between these corners.
    pub(super) fn meets_square(&self, cell: &Cell, corners: &[Point]) -> Result<bool> {
        work::spend(self.vertices.len() as work::Units * 4 * STEP)?;
        if self
            .vertices
            .iter()
            .any(|vertex| cell.contains_point(vertex))
        {
            return Ok(true);
        }
        for (side, from) in corners.iter().enumerate() {
            let to = &corners[(side + 1) % corners.len()];
            let mut crosser = Crosser::new(from, to, &self.vertices[0]);
            if self.vertices[1..]
                .iter()
                .any(|vertex| crosser.next(vertex) != Crossing::Apart)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The angle from a point to the nearest one of the line, in radians.
    pub(crate) fn distance(&self, p: &Point) -> Result<f64> {
        work::spend(self.vertices.len() as work::Units * 2 * STEP)?;
        let edges = self.edges().map(|edge| angle_to_edge(p, &edge));
        Ok(edges.fold(angle(p, &self.vertices[0]), f64::min))
    }

    /// Whether every vertex of the other line is on this one, up to rounding.
    pub(super) fn nearly_covers(&self, other: &Line) -> Result<bool> {
        // A line that was cut to itself has the same vertices in the same order.
        let mut at = 0;
        for vertex in &other.vertices {
            let found = self.vertices[at..]
                .iter()
                .position(|own| angle(own, vertex) <= COVERING_TOLERANCE);
            match found {
                Some(further) => at += further,
                None if self.distance(vertex)? <= COVERING_TOLERANCE => {}
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// The parts of a line that lie inside of what these rings together bound, or outside of it.
pub(super) fn clip(line: &Line, rings: &[Ring], outside: bool) -> Result<Vec<Line>> {
    let list = EdgeList::new(rings.iter().flat_map(Ring::edges).collect())?;
    let mut parts: Vec<Line> = Vec::new();
    let mut part: Vec<Point> = Vec::new();
    let mut inside = outside;
    for ring in rings {
        inside ^= ring.contains(&line.vertices[0])?;
    }
    for edge in line.edges() {
        let mut cuts = cuts(&edge, &list)?;
        if inside {
            cuts.push((0.0, *edge.from));
        }
        inside = cuts.len() % 2 == 1;
        if inside {
            cuts.push((1.0, *edge.to));
        }
        cuts.sort_by(|a, b| a.0.total_cmp(&b.0));
        for pair in cuts.chunks_exact(2) {
            let ((from_at, from), (to_at, to)) = (pair[0], pair[1]);
            if from_at == to_at && from == to {
                continue;
            }
            if part
                .last()
                .is_some_and(|last| angle(last, &from) > INTERSECTION_TOLERANCE)
            {
                parts.push(Line::new(std::mem::take(&mut part)));
            }
            if part.is_empty() {
                part.push(from);
            }
            if part
                .last()
                .is_some_and(|last| angle(last, &to) > INTERSECTION_TOLERANCE)
            {
                part.push(to);
            }
        }
    }
    if !part.is_empty() {
        parts.push(Line::new(part));
    }
    Ok(parts)
}

/// Where an edge passes from the inside to the outside or back, with how far along that is.
fn cuts(edge: &Edge<'_>, list: &EdgeList<'_>) -> Result<Vec<(f64, Point)>> {
    let mut cuts = Vec::new();
    for at in list.near(edge)? {
        let other = list.edge(at);
        match crossing(edge.from, edge.to, other.from, other.to) {
            Crossing::Apart => {}
            Crossing::Proper => {
                let x = intersection(edge, &other);
                cuts.push((fraction(&x, edge), x));
            }
            Crossing::Touching => {
                if vertex_crossing(edge.from, edge.to, other.from, other.to) {
                    let at_start = edge.from == other.from || edge.from == other.to;
                    cuts.push(if at_start {
                        (0.0, *edge.from)
                    } else {
                        (1.0, *edge.to)
                    });
                }
            }
        }
    }
    Ok(cuts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(vertices: &[(f64, f64)]) -> Line {
        Line::new(
            vertices
                .iter()
                .map(|(lng, lat)| s2::latlng::LatLng::from_degrees(*lat, *lng).into())
                .collect(),
        )
    }

    #[test]
    fn lines_meet() {
        let check = |a: &[(f64, f64)], b: &[(f64, f64)], expected: bool| {
            assert_eq!(line(a).intersects(&line(b)).expect("unbounded"), expected);
            assert_eq!(line(b).intersects(&line(a)).expect("unbounded"), expected);
        };
        check(
            &[(-1.0, -1.0), (1.0, 1.0)],
            &[(-1.0, 1.0), (1.0, -1.0)],
            true,
        );
        check(&[(0.0, 0.0), (1.0, 0.0)], &[(1.0, 0.0), (2.0, 1.0)], true);
        check(&[(0.0, 0.0), (1.0, 0.0)], &[(0.0, 2.0), (1.0, 2.0)], false);
        // Over the antimeridian the way is short.
        check(
            &[(179.0, 0.0), (-179.0, 0.0)],
            &[(180.0, -1.0), (180.0, 1.0)],
            true,
        );
        check(
            &[(179.0, 0.0), (-179.0, 0.0)],
            &[(0.0, -1.0), (0.0, 1.0)],
            false,
        );
    }

    #[test]
    fn distances() {
        let degree = std::f64::consts::PI / 180.0;
        let equator = line(&[(0.0, 0.0), (10.0, 0.0), (20.0, 0.0)]);
        let far = line(&[(15.0, 3.0)]);
        let distance = equator.distance(&far.vertices[0]).expect("unbounded");
        assert!((distance - 3.0 * degree).abs() < 1e-14);
    }
}
