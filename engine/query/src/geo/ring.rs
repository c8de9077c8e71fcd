//! Rings: simple closed chains of edges, whose inside is on the left of every edge.
//!
//! The predicates are those of S2: a ring contains a point, another ring, or intersects one; rings
//! that merely touch along edges or at vertices do not intersect.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use pinion_wire::Result;
use s2::cell::Cell;
use s2::cellid::CellID;
use s2::point::Point;
use s2::r3::vector::Vector;

use super::bound::{Arc, Bound};
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
    /// Of a long ring: its edges in order, with what is around some of them. Most are passed over
    /// by that.
    blocks: Vec<Block>,
}

/// Edges that follow each other, from the first up to the last but not that one.
#[derive(Clone, Debug)]
struct Block {
    first: usize,
    end: usize,
    around: Bound,
}

/// How far outside of a cell the ring around it is, in the coordinates of a face: more than
/// rounding, far less than a cell.
const AROUND_CELLS: f64 = 1e-14;

/// How many edges are in a block, and from how many on a ring has blocks.
const BLOCK: usize = 32;
const BLOCKS_FROM: usize = 2 * BLOCK;

/// From how many edges on those near to another edge are found by a list.
const LISTED_FROM: usize = 8;

/// How far from an edge a point that was meant to be on it may be, in radians: some ten nanometers.
const ROUNDING: f64 = 2e-15;

impl Ring {
    /// The ring through these vertices, of which there are at least three.
    pub(crate) fn new(vertices: Vec<Point>) -> Result<Ring> {
        work::spend(vertices.len() as work::Units * 2 * STEP)?;
        let mut ring = Ring {
            vertices,
            origin_inside: false,
            bound: Bound::Everything,
            blocks: Vec::new(),
        };
        ring.blocks = ring.made_blocks();
        // A ring contains its vertex exactly when the direction that is fixed for the vertex points
        // inside.
        let [before, vertex, after] = [ring.vertex(0), ring.vertex(1), ring.vertex(2)];
        let inside = ordered_ccw(&vertex.ortho(), before, after, vertex);
        ring.origin_inside = inside != ring.contains(vertex)?;
        ring.bound = ring.tight_bound()?;
        Ok(ring)
    }

    /// The boundary of a cell.
    pub(super) fn of_cell(cell: &Cell) -> Result<Ring> {
        Ring::of_corners(cell, cell.vertices().to_vec())
    }

    /// A ring so little outside of a cell that what touches the cell but for rounding intersects
    /// it.
    pub(super) fn around_cell(cell: &Cell) -> Result<Ring> {
        let square = cell.bound_uv().expanded_by_margin(AROUND_CELLS);
        let corners = square.vertices();
        Ring::of_corners(
            cell,
            corners.map(|at| on_face(cell.face(), at.x, at.y)).to_vec(),
        )
    }

    fn of_corners(cell: &Cell, vertices: Vec<Point>) -> Result<Ring> {
        work::spend(4 * STEP)?;
        // The fixed point lies on the boundary of no cell, nor next to it.
        let origin = CellID::from(&Point::origin());
        Ok(Ring {
            origin_inside: cell.id.contains(&origin),
            bound: Bound::of(&vertices),
            vertices,
            blocks: Vec::new(),
        })
    }

    fn made_blocks(&self) -> Vec<Block> {
        let count = self.vertices.len();
        if count < BLOCKS_FROM {
            return Vec::new();
        }
        let block = |first: usize| {
            let end = (first + BLOCK).min(count);
            let mut around = self.vertices[first..end].to_vec();
            around.push(*self.vertex(end));
            Block {
                first,
                end,
                around: Bound::of(&around),
            }
        };
        (0..count).step_by(BLOCK).map(block).collect()
    }

    /// The edges of the blocks that are wanted, as ranges of their places; all of them where there
    /// are no blocks.
    fn spans(&self, wanted: impl Fn(&Bound) -> bool) -> Result<Vec<Range<usize>>> {
        if self.blocks.is_empty() {
            work::spend(self.vertices.len() as work::Units * STEP)?;
            return Ok(std::iter::once(0..self.vertices.len()).collect());
        }
        work::spend(self.blocks.len() as work::Units * work::ITEM)?;
        let blocks = self.blocks.iter().filter(|block| wanted(&block.around));
        let spans: Vec<Range<usize>> = blocks.map(|block| block.first..block.end).collect();
        work::spend((spans.len() * BLOCK) as work::Units * STEP)?;
        Ok(spans)
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
        // The sum of the turns is a full one less the area; a hemisphere may come out a little
        // less.
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
        let origin = Point::origin();
        let path = Arc::new(&origin, p);
        let mut crossings = 0;
        for span in self.spans(|around| path.may_meet(around))? {
            let mut crosser = Crosser::new(&origin, p, self.vertex(span.start));
            crossings += span
                .filter(|place| crosser.next_counts(self.vertex(place + 1)))
                .count();
        }
        Ok(self.origin_inside != (crossings % 2 == 1))
    }

    /// Whether a point is on the boundary but for rounding.
    pub(super) fn touches(&self, p: &Point) -> Result<bool> {
        if !self.bound.contains(p) {
            return Ok(false);
        }
        let spans = self.spans(|around| around.contains(p))?;
        Ok(spans
            .into_iter()
            .flatten()
            .any(|place| super::edges::angle_to_edge(p, &self.edge(place)) <= ROUNDING))
    }

    fn has_vertex(&self, p: &Point) -> bool {
        self.vertices.contains(p)
    }

    /// Meets the edges of two rings: returns whether any cross properly. At each vertex that both
    /// have, `shared` is given the wedges, and ends the walk by true.
    fn boundaries_cross(
        &self,
        other: &Ring,
        shared: &mut dyn FnMut(&Wedge<'_>, &Wedge<'_>) -> bool,
    ) -> Result<bool> {
        // The fewer edges are examined for each of the more that are near to them.
        let swap = self.vertices.len() > other.vertices.len();
        let (fewer, more) = if swap { (other, self) } else { (self, other) };
        let mut pair = |at: usize, place: usize| -> ControlFlow<bool> {
            let (near, edge) = (fewer.edge(at), more.edge(place));
            match super::exact::crossing(edge.from, edge.to, near.from, near.to) {
                Crossing::Proper => return ControlFlow::Break(true),
                Crossing::Touching if near.to == edge.to => {
                    let (near, edge) = (fewer.wedge(at + 1), more.wedge(place + 1));
                    let (own, wedge) = if swap { (edge, near) } else { (near, edge) };
                    if shared(&own, &wedge) {
                        return ControlFlow::Break(false);
                    }
                }
                _ => {}
            }
            ControlFlow::Continue(())
        };
        let around = Bound::of(&fewer.vertices);
        let spans = more.spans(|block| block.intersects(&around))?;
        // A list pays where it leaves out more than it costs.
        let list = (fewer.vertices.len() > LISTED_FROM)
            .then(|| fewer.edge_list())
            .transpose()?;
        for place in spans.into_iter().flatten() {
            let ended = match &list {
                Some(list) => list
                    .near(&more.edge(place))?
                    .into_iter()
                    .try_for_each(|at| pair(at, place)),
                None => {
                    work::spend(fewer.vertices.len() as work::Units * STEP)?;
                    (0..fewer.vertices.len()).try_for_each(|at| pair(at, place))
                }
            };
            if let ControlFlow::Break(crosses) = ended {
                return Ok(crosses);
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
        let may_be_all = [&self.bound, &other.bound]
            .iter()
            .any(|bound| matches!(bound, Bound::Everything));
        if may_be_all && other.contains(own)? && !other.has_vertex(own) {
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

/// The point of a face of the cube around the sphere.
fn on_face(face: u8, u: f64, v: f64) -> Point {
    let at = match face {
        0 => Vector::new(1.0, u, v),
        1 => Vector::new(-u, 1.0, v),
        2 => Vector::new(-u, -v, 1.0),
        3 => Vector::new(-1.0, -v, -u),
        4 => Vector::new(v, -1.0, -u),
        _ => Vector::new(v, u, -1.0),
    };
    Point(at.normalize())
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
        // What is around a square does not contain a larger square, though it contains its
        // boundary.
        let around = square.inverted().expect("unbounded");
        let larger = ring(&SQUARE.map(|(x, y)| (x * 2.0 - 5.0, y * 2.0 - 5.0)));
        assert!(!around.contains_ring(&larger).expect("unbounded"));
        assert!(around.intersects_ring(&larger).expect("unbounded"));
    }

    #[test]
    fn rings_of_cells() {
        let fixed = CellID::from(&Point::origin());
        let elsewhere = CellID::from(&at(33.0, -44.0));
        for id in [fixed, elsewhere] {
            for level in [0, 1, 5, 17, 30] {
                let cell = Cell::from(id.parent(level));
                let ring = Ring::of_cell(&cell).expect("unbounded");
                let same = Ring::new(cell.vertices().to_vec()).expect("unbounded");
                assert_eq!(ring.origin_inside, same.origin_inside, "{cell:?}");
                assert!(
                    ring.contains(&cell.center()).expect("unbounded"),
                    "{cell:?}"
                );
            }
        }
    }

    #[test]
    fn long_rings_pass_over_most_edges() {
        let circle = |count: u32| {
            let corner = |i: u32| {
                let (sin, cos) =
                    (f64::from(i) / f64::from(count) * std::f64::consts::TAU).sin_cos();
                (179.0 + 20.0 * cos, 50.0 + 20.0 * sin)
            };
            ring(&(0..count).map(corner).collect::<Vec<_>>())
        };
        let (long, cell) = (circle(10_000), Cell::from(&at(179.0, 69.999)));
        let cell = Ring::of_cell(&cell).expect("unbounded");
        assert!(cell.intersects_ring(&long).expect("unbounded"));
        for i in 0..200 {
            let (sin, cos) = (f64::from(i) * 0.77).sin_cos();
            let reach = 20.0 + f64::from(i % 5 - 2) * 5.0;
            let p = at(179.0 + reach * cos, 50.0 + reach * sin);
            let inside = match i % 5 {
                2 => continue,
                nearer => nearer < 2,
            };
            assert_eq!(long.contains(&p).expect("unbounded"), inside, "{i}");
        }
        // A point is found with a fraction of the work that all edges are.
        let found = work::within(10_000 * STEP / 4, || long.contains(&at(179.0, 50.0)));
        assert!(matches!(found, Some(Ok(true))));
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
