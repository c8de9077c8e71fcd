//! Edges of the sphere: where they meet, how far they are from a point, and which of many may meet
//! at all.

use pinion_wire::Result;
use s2::point::Point;

use crate::work::{self, STEP};

/// Vertices nearer to each other than this are one: it bounds the error of an intersection.
pub(super) const INTERSECTION_TOLERANCE: f64 = 1.5e-15;

/// A great-circle edge between two vertices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge<'a> {
    pub from: &'a Point,
    pub to: &'a Point,
}

impl Edge<'_> {
    /// The range of one coordinate over the edge. An arc bulges out of its chord by no more than
    /// its sagitta.
    fn range(&self, axis: Axis) -> (f64, f64) {
        let (a, b) = (axis.of(self.from), axis.of(self.to));
        let chord2 = (self.from.0 - self.to.0).norm2();
        let sagitta = 1.0 - (1.0 - (0.25 * chord2).min(1.0)).sqrt();
        let margin = sagitta + 4.0 * f64::EPSILON;
        (a.min(b) - margin, a.max(b) + margin)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    X,
    Y,
    Z,
}

impl Axis {
    fn of(self, point: &Point) -> f64 {
        match self {
            Axis::X => point.0.x,
            Axis::Y => point.0.y,
            Axis::Z => point.0.z,
        }
    }
}

/// The edges of rings and lines, in an order in which those that may meet an edge are near to each
/// other.
pub(super) struct EdgeList<'a> {
    edges: Vec<Edge<'a>>,
    axis: Axis,
    /// By lower end of the range on the axis, with the place of the edge.
    sorted: Vec<(f64, f64, u32)>,
    /// The longest range.
    widest: f64,
}

impl<'a> EdgeList<'a> {
    pub(super) fn new(edges: Vec<Edge<'a>>) -> Result<EdgeList<'a>> {
        work::spend(edges.len() as work::Units * 4 * STEP)?;
        let axis = widest_axis(&edges);
        let mut sorted: Vec<(f64, f64, u32)> = Vec::with_capacity(edges.len());
        let mut widest: f64 = 0.0;
        for (place, edge) in edges.iter().enumerate() {
            let (low, high) = edge.range(axis);
            widest = widest.max(high - low);
            sorted.push((low, high, place as u32));
        }
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(EdgeList {
            edges,
            axis,
            sorted,
            widest,
        })
    }

    pub(super) fn edge(&self, place: usize) -> Edge<'a> {
        self.edges[place]
    }

    /// The places of the edges that may meet this one.
    pub(super) fn near(&self, edge: &Edge<'_>) -> Result<Vec<usize>> {
        let (low, high) = edge.range(self.axis);
        let begin = self.sorted.partition_point(|e| e.0 < low - self.widest);
        let end = self.sorted.partition_point(|e| e.0 <= high);
        let passed = end.saturating_sub(begin);
        work::spend(passed as work::Units * 2 + STEP)?;
        let near: Vec<usize> = self.sorted[begin..end.max(begin)]
            .iter()
            .filter(|e| e.1 >= low)
            .map(|e| e.2 as usize)
            .collect();
        // What the caller does with each.
        work::spend(near.len() as work::Units * 2 * STEP)?;
        Ok(near)
    }
}

/// The axis along which the edges are spread most.
fn widest_axis(edges: &[Edge<'_>]) -> Axis {
    let spread = |axis: Axis| {
        let (low, high) = edges.iter().fold((1.0f64, -1.0f64), |(low, high), edge| {
            let value = axis.of(edge.from);
            (low.min(value), high.max(value))
        });
        high - low
    };
    let (x, y, z) = (spread(Axis::X), spread(Axis::Y), spread(Axis::Z));
    if x >= y && x >= z {
        Axis::X
    } else if y >= z {
        Axis::Y
    } else {
        Axis::Z
    }
}

/// The point where two edges that cross properly meet.
pub(super) fn intersection(a: &Edge<'_>, b: &Edge<'_>) -> Point {
    let a_normal = a.from.cross(a.to).normalize();
    let b_normal = b.from.cross(b.to).normalize();
    let mut x = a_normal.cross(&b_normal).normalize();
    // Of the two points that the great circles share, the one on the edges' side.
    let middle = (a.from.0 + a.to.0) + (b.from.0 + b.to.0);
    if x.0.dot(&middle) < 0.0 {
        x = Point(x.0 * -1.0);
    }
    // Rounding of edges that hardly differ in direction must not lead away from them.
    if is_between(a.from, &x, a.to, &a_normal) && is_between(b.from, &x, b.to, &b_normal) {
        return x;
    }
    let mut nearest = (f64::INFINITY, x);
    let ends = [
        (a.from, b.from, &b_normal, b.to),
        (a.to, b.from, &b_normal, b.to),
        (b.from, a.from, &a_normal, a.to),
        (b.to, a.from, &a_normal, a.to),
    ];
    for (end, from, normal, to) in ends {
        if is_between(from, end, to, normal) {
            let distance = (x.0 - end.0).norm2();
            if distance < nearest.0 {
                nearest = (distance, *end);
            }
        }
    }
    nearest.1
}

/// Whether a point near to the great circle of an edge lies between its ends.
fn is_between(from: &Point, x: &Point, to: &Point, normal: &Point) -> bool {
    normal.0.cross(&from.0).dot(&x.0) >= 0.0 && to.0.cross(&normal.0).dot(&x.0) >= 0.0
}

/// How far along the edge a point on it lies, from 0 to 1.
pub(super) fn fraction(x: &Point, edge: &Edge<'_>) -> f64 {
    let (before, after) = (angle(x, edge.from), angle(x, edge.to));
    before / (before + after)
}

/// The angle between two points, in radians.
pub(crate) fn angle(a: &Point, b: &Point) -> f64 {
    a.distance(b).rad()
}

/// The angle from a point to the nearest point of an edge, in radians.
pub(super) fn angle_to_edge(x: &Point, edge: &Edge<'_>) -> f64 {
    let ends = angle(x, edge.from).min(angle(x, edge.to));
    if edge.from == edge.to {
        return ends;
    }
    let normal = edge.from.cross(edge.to).normalize();
    if is_between(edge.from, x, edge.to, &normal) {
        // The foot of the perpendicular lies on the edge.
        x.0.dot(&normal.0).abs().min(1.0).asin().min(ends)
    } else {
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lng: f64, lat: f64) -> Point {
        s2::latlng::LatLng::from_degrees(lat, lng).into()
    }

    #[test]
    fn intersections_and_distances() {
        let (a, b, c, d) = (at(-10.0, 0.0), at(10.0, 0.0), at(0.0, -10.0), at(0.0, 10.0));
        let (ab, cd) = (Edge { from: &a, to: &b }, Edge { from: &c, to: &d });
        let x = intersection(&ab, &cd);
        assert!(angle(&x, &at(0.0, 0.0)) < 1e-15);
        assert!((fraction(&x, &ab) - 0.5).abs() < 1e-15);
        let degree = std::f64::consts::PI / 180.0;
        assert!((angle_to_edge(&at(3.0, 2.0), &ab) - 2.0 * degree).abs() < 1e-15);
        assert!((angle_to_edge(&at(12.0, 0.0), &ab) - 2.0 * degree).abs() < 1e-15);
        // On the other side of the earth the perpendicular's foot is not on the edge.
        assert!(angle_to_edge(&at(180.0, 1.0), &ab) > 160.0 * degree);
    }

    #[test]
    fn no_pair_that_meets_is_left_out() {
        let points: Vec<Point> = (0..200)
            .map(|i| {
                let i = f64::from(i);
                at((i * 37.3) % 360.0 - 180.0, (i * 17.7) % 170.0 - 85.0)
            })
            .collect();
        let edges: Vec<Edge<'_>> = points
            .windows(2)
            .map(|pair| Edge {
                from: &pair[0],
                to: &pair[1],
            })
            .collect();
        let list = EdgeList::new(edges.clone()).expect("unbounded");
        for edge in &edges {
            let near = list.near(edge).expect("unbounded");
            for (place, other) in edges.iter().enumerate() {
                let crossing =
                    super::super::exact::crossing(edge.from, edge.to, other.from, other.to);
                assert!(
                    crossing == super::super::exact::Crossing::Apart || near.contains(&place),
                    "{edge:?} {other:?}"
                );
            }
        }
    }
}
