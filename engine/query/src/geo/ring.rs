//! Rings: simple closed chains of edges, whose inside is on the left of every edge.
//!
//! The predicates are those of S2: a ring contains a point, another ring, or intersects one; rings that merely touch along
//! edges or at vertices do not intersect.

use std::collections::BTreeMap;

use pinion_wire::Result;
use s2::cell::Cell;
use s2::point::Point;

use super::edges::{Edge, EdgeList};
use super::exact::{Crosser, Crossing, ordered_ccw, sign};
use super::wedge::{Containment, ContainsOrCrosses, Wedge};
use crate::work::{self, STEP};

/// A ring of at least three vertices, the first not repeated at the end.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    vertices: Vec<Point>,
    /// Whether the fixed point that crossings are counted from is inside.
    origin_inside: bool,
    bound: Bound,
}

/// A part of the sphere outside of which nothing of a ring's inside lies.
#[derive(Clone, Debug)]
pub(super) enum Bound {
    Everything,
    /// What is within this squared chord of the center; less than a hemisphere.
    Cap {
        center: Point,
        chord2: f64,
    },
}

/// How far from an edge a point that was meant to be on it may be, in radians: some ten nanometers.
const ROUNDING: f64 = 2e-15;

/// What is added to a bound's squared chord for rounding.
const BOUND_MARGIN: f64 = 1e-13;

impl Bound {
    /// The bound of points and the arcs between them.
    fn of(points: &[Point]) -> Bound {
        let sum = points
            .iter()
            .fold(s2::r3::vector::Vector::new(0.0, 0.0, 0.0), |sum, p| {
                sum + p.0
            });
        if sum.norm2() < 1e-6 {
            return Bound::Everything;
        }
        let center = Point(sum.normalize());
        let chord2 = points
            .iter()
            .fold(0.0f64, |most, p| most.max((p.0 - center.0).norm2()));
        // A cap smaller than a hemisphere is convex: it contains the arcs as well.
        if chord2 > 1.9 {
            return Bound::Everything;
        }
        Bound::Cap {
            center,
            chord2: chord2 + BOUND_MARGIN,
        }
    }

    pub(super) fn contains(&self, p: &Point) -> bool {
        match self {
            Bound::Everything => true,
            Bound::Cap { center, chord2 } => (p.0 - center.0).norm2() <= *chord2,
        }
    }

    pub(super) fn intersects(&self, other: &Bound) -> bool {
        match (self, other) {
            (
                Bound::Cap {
                    center: a,
                    chord2: r,
                },
                Bound::Cap {
                    center: b,
                    chord2: s,
                },
            ) => {
                let radius = |chord2: f64| 2.0 * (0.5 * chord2.sqrt()).min(1.0).asin();
                super::edges::angle(a, b) <= radius(*r) + radius(*s) + BOUND_MARGIN
            }
            _ => true,
        }
    }
}

impl Ring {
    /// The ring through these vertices, of which there are at least three.
    pub(crate) fn new(vertices: Vec<Point>) -> Result<Ring> {
        work::spend(vertices.len() as work::Units * 2 * STEP)?;
        let mut ring = Ring {
            vertices,
            origin_inside: false,
            bound: Bound::Everything,
        };
        // A ring contains its vertex exactly when the direction that is fixed for the vertex points inside.
        let [before, vertex, after] = [ring.vertex(0), ring.vertex(1), ring.vertex(2)];
        let inside = ordered_ccw(&vertex.ortho(), before, after, vertex);
        ring.origin_inside = inside != ring.contains(vertex)?;
        ring.bound = ring.tight_bound()?;
        Ok(ring)
    }

    /// The boundary of a cell.
    pub(super) fn of_cell(cell: &Cell) -> Result<Ring> {
        Ring::new(cell.vertices().to_vec())
    }

    fn tight_bound(&self) -> Result<Bound> {
        let bound = Bound::of(&self.vertices);
        if let Bound::Cap { center, .. } = &bound
            && self.contains(&Point(center.0 * -1.0))?
        {
            // The boundary is small, but the inside is what is around it.
            return Ok(Bound::Everything);
        }
        Ok(bound)
    }

    pub(crate) fn vertices(&self) -> &[Point] {
        &self.vertices
    }

    /// The vertex at a place, counted around.
    fn vertex(&self, place: usize) -> &Point {
        &self.vertices[place % self.vertices.len()]
    }

    fn wedge(&self, place: usize) -> Wedge<'_> {
        Wedge {
            before: self.vertex(place + self.vertices.len() - 1),
            vertex: self.vertex(place),
            after: self.vertex(place + 1),
        }
    }

    /// The edge that begins at the vertex of this place.
    pub(super) fn edge(&self, place: usize) -> Edge<'_> {
        Edge {
            from: self.vertex(place),
            to: self.vertex(place + 1),
        }
    }

    pub(super) fn edges(&self) -> impl Iterator<Item = Edge<'_>> {
        (0..self.vertices.len()).map(|place| self.edge(place))
    }

    /// The edges for finding those that meet others.
    pub(super) fn edge_list(&self) -> Result<EdgeList<'_>> {
        EdgeList::new(self.edges().collect())
    }

    /// The ring with the same boundary and everything else inside.
    pub(super) fn inverted(&self) -> Result<Ring> {
        let mut vertices = self.vertices.clone();
        vertices.reverse();
        Ring::new(vertices)
    }

    /// Whether the inside is at most half of the sphere.
    pub(super) fn is_normalized(&self) -> bool {
        // The sum of the turns is a full one less the area; a hemisphere may come out a little less.
        self.turning_angle() >= -1e-14
    }

    /// This ring or the inverted one, whichever has the smaller inside.
    pub(super) fn normalized(self) -> Result<Ring> {
        if self.is_normalized() {
            Ok(self)
        } else {
            self.inverted()
        }
    }

    fn turning_angle(&self) -> f64 {
        let mut sum = 0.0;
        for place in 0..self.vertices.len() {
            let Wedge {
                before,
                vertex,
                after,
            } = self.wedge(place);
            let turn = before.cross(vertex).0.angle(&vertex.cross(after).0).rad();
            sum += turn * f64::from(sign(before, vertex, after));
        }
        sum
    }

    pub(crate) fn contains(&self, p: &Point) -> Result<bool> {
        if !self.bound.contains(p) {
            return Ok(false);
        }
        work::spend(self.vertices.len() as work::Units * STEP)?;
        let origin = Point::origin();
        let mut crosser = Crosser::new(&origin, p, &self.vertices[0]);
        let crossings = (1..=self.vertices.len())
            .filter(|place| crosser.next_counts(self.vertex(*place)))
            .count();
        Ok(self.origin_inside != (crossings % 2 == 1))
    }

    /// Whether a point is on the boundary but for rounding.
    pub(super) fn touches(&self, p: &Point) -> Result<bool> {
        if !self.bound.contains(p) {
            return Ok(false);
        }
        work::spend(self.vertices.len() as work::Units * 2 * STEP)?;
        Ok(self
            .edges()
            .any(|edge| super::edges::angle_to_edge(p, &edge) <= ROUNDING))
    }

    fn has_vertex(&self, p: &Point) -> bool {
        self.vertices.contains(p)
    }

    /// Meets the edges of two rings: tells whether any cross properly. At each vertex that both have, `shared` is given the
    /// wedges, and ends the walk by true.
    fn boundaries_cross(
        &self,
        other: &Ring,
        shared: &mut dyn FnMut(&Wedge<'_>, &Wedge<'_>) -> bool,
    ) -> Result<bool> {
        // The fewer edges are searched for those that may meet each of the more.
        let swap = self.vertices.len() > other.vertices.len();
        let (fewer, more) = if swap { (other, self) } else { (self, other) };
        let list = fewer.edge_list()?;
        for place in 0..more.vertices.len() {
            let edge = more.edge(place);
            for at in list.near(&edge)? {
                let near = list.edge(at);
                match super::exact::crossing(edge.from, edge.to, near.from, near.to) {
                    Crossing::Proper => return Ok(true),
                    Crossing::Touching if near.to == edge.to => {
                        let (near, edge) = (fewer.wedge(at + 1), more.wedge(place + 1));
                        let (own, wedge) = if swap { (edge, near) } else { (near, edge) };
                        if shared(&own, &wedge) {
                            return Ok(false);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(false)
    }

    /// Whether the whole inside of the other ring is inside of this one.
    pub(super) fn contains_ring(&self, other: &Ring) -> Result<bool> {
        if !self.bound.intersects(&other.bound) {
            return Ok(false);
        }
        let first = &other.vertices[0];
        if !self.contains(first)? && !self.has_vertex(first) {
            return Ok(false);
        }
        let mut sticks_out = false;
        let crosses = self.boundaries_cross(other, &mut |own, wedge| {
            sticks_out = !own.contains(wedge);
            sticks_out
        })?;
        if crosses || sticks_out {
            return Ok(false);
        }
        // Two rings that together are the whole sphere contain each other's boundaries.
        let own = &self.vertices[0];
        if matches!(self.bound, Bound::Everything)
            && matches!(other.bound, Bound::Everything)
            && other.contains(own)?
            && !other.has_vertex(own)
        {
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether the insides have points in common.
    pub(super) fn intersects_ring(&self, other: &Ring) -> Result<bool> {
        if !self.bound.intersects(&other.bound) {
            return Ok(false);
        }
        let first = &other.vertices[0];
        if self.contains(first)? && !self.has_vertex(first) {
            return Ok(true);
        }
        let mut overlap = false;
        let crosses = self.boundaries_cross(other, &mut |own, wedge| {
            overlap = own.intersects(wedge);
            overlap
        })?;
        if crosses || overlap {
            return Ok(true);
        }
        let own = &self.vertices[0];
        Ok(other.contains(own)? && !other.has_vertex(own))
    }

    /// Whether the boundaries cross, or this ring contains the other.
    pub(super) fn contains_or_crosses(&self, other: &Ring) -> Result<Containment> {
        if !self.bound.intersects(&other.bound) {
            return Ok(Containment::No);
        }
        let mut known = ContainsOrCrosses::default();
        let crosses = self.boundaries_cross(other, &mut |own, wedge| known.add(own, wedge))?;
        if crosses {
            return Ok(Containment::Crosses);
        }
        let so_far = known.so_far();
        if so_far != Containment::Yes {
            return Ok(so_far);
        }
        let first = &other.vertices[0];
        if self.contains(first)? || self.has_vertex(first) {
            Ok(Containment::Yes)
        } else {
            Ok(Containment::No)
        }
    }

    pub(super) fn intersects_cell(&self, cell: &Cell) -> Result<bool> {
        Ring::of_cell(cell)?.intersects_ring(self)
    }

    pub(super) fn contains_cell(&self, cell: &Cell) -> Result<bool> {
        self.contains_ring(&Ring::of_cell(cell)?)
    }

    /// What makes the ring no simple one, as S2 says it.
    pub(super) fn fault(&self) -> Result<Option<String>> {
        let mut places: BTreeMap<[u64; 3], usize> = BTreeMap::new();
        work::spend(self.vertices.len() as work::Units * 2 * STEP)?;
        for (place, vertex) in self.vertices.iter().enumerate() {
            if let Some(other) = places.insert(vertex_key(vertex), place) {
                return Ok(Some(format!("Duplicate vertices: {other} and {place}")));
            }
        }
        let list = self.edge_list()?;
        for place in 0..self.vertices.len() {
            let edge = self.edge(place);
            let mut near = list.near(&edge)?;
            near.sort_unstable();
            for at in near.into_iter().filter(|at| *at > place + 1) {
                let other = list.edge(at);
                if super::exact::crossing(edge.from, edge.to, other.from, other.to)
                    == Crossing::Proper
                {
                    let [a, b, c, d] = [edge.from, edge.to, other.from, other.to].map(degrees);
                    return Ok(Some(format!(
                        "Edges {place} and {at} cross. Edge locations in degrees: {a}-{b} and {c}-{d}"
                    )));
                }
            }
        }
        Ok(None)
    }
}

/// A vertex as a key: equal vertices have equal ones.
pub(super) fn vertex_key(p: &Point) -> [u64; 3] {
    // Both zeros are one number.
    [p.0.x, p.0.y, p.0.z].map(|c| (c + 0.0).to_bits())
}

fn degrees(p: &Point) -> String {
    format!("[{:.7}, {:.7}]", p.latitude().deg(), p.longitude().deg())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(corners: &[(f64, f64)]) -> Ring {
        let vertices = corners
            .iter()
            .map(|(lng, lat)| s2::latlng::LatLng::from_degrees(*lat, *lng).into())
            .collect();
        Ring::new(vertices).expect("unbounded")
    }

    fn at(lng: f64, lat: f64) -> Point {
        s2::latlng::LatLng::from_degrees(lat, lng).into()
    }

    const SQUARE: [(f64, f64); 4] = [(0.0, 0.0), (10.0, 0.0), (10.0, 10.0), (0.0, 10.0)];

    #[test]
    fn points() {
        let square = ring(&SQUARE);
        assert!(square.is_normalized());
        assert!(square.contains(&at(5.0, 5.0)).expect("unbounded"));
        assert!(!square.contains(&at(15.0, 5.0)).expect("unbounded"));
        let around = square.inverted().expect("unbounded");
        assert!(!around.is_normalized());
        assert!(!around.contains(&at(5.0, 5.0)).expect("unbounded"));
        assert!(around.contains(&at(-170.0, -5.0)).expect("unbounded"));
        // Every vertex of squares that tile the plane is in exactly one of them.
        let tiles: Vec<Ring> = [(0.0, 0.0), (-10.0, 0.0), (0.0, -10.0), (-10.0, -10.0)]
            .iter()
            .map(|(x, y)| ring(&SQUARE.map(|(lng, lat)| (lng + x, lat + y))))
            .collect();
        let owners = tiles
            .iter()
            .filter(|tile| tile.contains(&at(0.0, 0.0)).expect("unbounded"))
            .count();
        assert_eq!(owners, 1);
    }

    #[test]
    fn relations() {
        let square = ring(&SQUARE);
        let check = |other: &Ring, contains: bool, intersects: bool| {
            assert_eq!(square.contains_ring(other).expect("unbounded"), contains);
            assert_eq!(
                square.intersects_ring(other).expect("unbounded"),
                intersects
            );
            assert_eq!(
                other.intersects_ring(&square).expect("unbounded"),
                intersects
            );
        };
        check(&square, true, true);
        check(
            &ring(&SQUARE.map(|(x, y)| (x / 2.0 + 1.0, y / 2.0 + 1.0))),
            true,
            true,
        );
        check(&ring(&SQUARE.map(|(x, y)| (x + 5.0, y + 5.0))), false, true);
        check(&ring(&SQUARE.map(|(x, y)| (x + 10.0, y))), false, false);
        check(
            &ring(&SQUARE.map(|(x, y)| (x + 10.0, y + 10.0))),
            false,
            false,
        );
        check(&ring(&SQUARE.map(|(x, y)| (x + 20.0, y))), false, false);
        check(&square.inverted().expect("unbounded"), false, false);
    }

    #[test]
    fn faults() {
        let fault = |corners: &[(f64, f64)]| ring(corners).fault().expect("unbounded");
        assert_eq!(fault(&SQUARE), None);
        let bowtie = fault(&[(0.0, 0.0), (2.0, 2.0), (2.0, 0.0), (0.0, 2.0)]);
        assert!(bowtie.is_some_and(|fault| fault.starts_with("Edges 0 and 2 cross.")));
        let twice = fault(&[(0.0, 0.0), (1.0, 0.0), (2.0, 2.0), (1.0, 0.0), (0.0, 3.0)]);
        assert_eq!(twice.as_deref(), Some("Duplicate vertices: 1 and 3"));
    }
}
