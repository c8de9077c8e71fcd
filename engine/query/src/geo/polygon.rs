//! Polygons: a shell with holes, none larger than half of the sphere, or one simple ring of any
//! size.

use std::collections::{BTreeMap, BTreeSet};

use pinion_wire::Result;
use s2::cell::Cell;
use s2::point::Point;

use super::line::{Line, clip};
use super::ring::{Ring, vertex_key};
use super::shape::SpherePoint;
use super::wedge::Containment;

/// A shell and its holes. All rings are normalized: a hole's inside is what is cut out.
#[derive(Clone, Debug)]
pub(crate) struct Polygon {
    rings: Vec<Ring>,
}

impl Polygon {
    /// A polygon of rings that are normalized, the first of which contains all others.
    pub(super) fn new(rings: Vec<Ring>) -> Polygon {
        assert!(!rings.is_empty(), "a polygon has a shell");
        Polygon { rings }
    }

    pub(crate) fn rings(&self) -> &[Ring] {
        &self.rings
    }

    pub(super) fn shell(&self) -> &Ring {
        &self.rings[0]
    }

    fn holes(&self) -> &[Ring] {
        &self.rings[1..]
    }

    pub(crate) fn contains_point(&self, p: &Point) -> Result<bool> {
        let mut inside = false;
        for ring in &self.rings {
            inside ^= ring.contains(p)?;
        }
        Ok(inside)
    }

    /// Whether the boundary of a ring crosses one of this polygon's, or its inside lies in this
    /// polygon but for holes.
    fn contains_or_crosses(&self, ring: &Ring) -> Result<Containment> {
        let mut inside = false;
        for own in &self.rings {
            match own.contains_or_crosses(ring)? {
                Containment::Crosses => return Ok(Containment::Crosses),
                Containment::Yes => inside = !inside,
                Containment::No => {}
            }
        }
        Ok(if inside {
            Containment::Yes
        } else {
            Containment::No
        })
    }

    pub(crate) fn contains(&self, other: &Polygon) -> Result<bool> {
        if self.holes().is_empty() && other.holes().is_empty() {
            return self.shell().contains_ring(other.shell());
        }
        if self.contains_or_crosses(other.shell())? != Containment::Yes {
            return Ok(false);
        }
        // Each hole must lie outside of the other, or in a hole of it.
        for hole in self.holes() {
            if other.contains_or_crosses(hole)? != Containment::No {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn intersects(&self, other: &Polygon) -> Result<bool> {
        if self.holes().is_empty() && other.holes().is_empty() {
            return self.shell().intersects_ring(other.shell());
        }
        Ok(self.contains_or_crosses(other.shell())? != Containment::No
            || other.contains_or_crosses(self.shell())? != Containment::No)
    }

    pub(crate) fn intersects_cell(&self, cell: &Cell) -> Result<bool> {
        self.meets(Ring::of_cell(cell)?)
    }

    /// Whether the polygon intersects the inside of a small ring.
    pub(super) fn meets(&self, ring: Ring) -> Result<bool> {
        if self.holes().is_empty() {
            return ring.intersects_ring(self.shell());
        }
        self.intersects(&Polygon::new(vec![ring]))
    }

    pub(crate) fn contains_cell(&self, cell: &Cell) -> Result<bool> {
        if self.holes().is_empty() {
            return self.shell().contains_ring(&Ring::of_cell(cell)?);
        }
        self.contains(&Polygon::new(vec![Ring::of_cell(cell)?]))
    }

    /// Whether the polygon contains a point, or touches the smallest cell around it: so the
    /// boundary belongs to it.
    pub(crate) fn covers_point(&self, p: &SpherePoint) -> Result<bool> {
        if self.contains_point(&p.point)? || self.intersects_cell(&p.cell)? {
            return Ok(true);
        }
        for ring in &self.rings {
            if ring.touches(&p.point)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn intersects_line(&self, line: &Line) -> Result<bool> {
        Ok(!clip(line, &self.rings, false)?.is_empty())
    }

    pub(crate) fn contains_line(&self, line: &Line) -> Result<bool> {
        // What is left of the line must be the line.
        match &clip(line, &self.rings, false)?[..] {
            [inside] => inside.nearly_covers(line),
            _ => Ok(false),
        }
    }

    /// What makes these rings no polygon, as S2 says it.
    pub(super) fn fault(rings: &[Ring]) -> Result<Option<String>> {
        if let Some(fault) = duplicate_edge(rings) {
            return Ok(Some(fault));
        }
        for (i, ring) in rings.iter().enumerate() {
            for (j, other) in rings.iter().enumerate().skip(i + 1) {
                if ring.contains_or_crosses(other)? == Containment::Crosses {
                    return Ok(Some(format!("Loop {i} crosses loop {j}")));
                }
            }
        }
        Ok(None)
    }

    /// What makes this no polygon by the rules of GeoJSON: a hole may touch the shell at one
    /// vertex, and no other hole may lie in it.
    pub(super) fn nesting_fault(&self) -> Result<Option<NestingFault>> {
        let shell: BTreeSet<[u64; 3]> = self.shell().vertices().iter().map(vertex_key).collect();
        for (place, hole) in self.holes().iter().enumerate() {
            let shared = hole
                .vertices()
                .iter()
                .filter(|vertex| shell.contains(&vertex_key(vertex)))
                .count();
            if shared > 1 {
                return Ok(Some(NestingFault::SharedVertices(place + 1)));
            }
        }
        for (i, hole) in self.holes().iter().enumerate() {
            for (j, other) in self.holes().iter().enumerate() {
                if i != j && hole.contains_or_crosses(other)? == Containment::Yes {
                    return Ok(Some(NestingFault::NestedHoles));
                }
            }
        }
        Ok(None)
    }
}

pub(super) enum NestingFault {
    /// The hole of this number.
    SharedVertices(usize),
    NestedHoles,
}

fn duplicate_edge(rings: &[Ring]) -> Option<String> {
    if rings.len() < 2 {
        return None;
    }
    let mut places: BTreeMap<([u64; 3], [u64; 3]), (usize, usize)> = BTreeMap::new();
    for (i, ring) in rings.iter().enumerate() {
        for (j, edge) in ring.edges().enumerate() {
            let (from, to) = (vertex_key(edge.from), vertex_key(edge.to));
            for key in [(from, to), (to, from)] {
                if let Some((loop_, edge)) = places.insert(key, (i, j)) {
                    return Some(format!(
                        "Duplicate edge: loop {i}, edge {j} and loop {loop_}, edge {edge}"
                    ));
                }
            }
        }
    }
    None
}

/// A polygon of one ring that may be larger than half of the sphere: the order of its vertices
/// determines which side is inside.
#[derive(Clone, Debug)]
pub(crate) struct BigPolygon {
    ring: Ring,
    /// The ring itself where it is no larger than half of the sphere, otherwise what is around it.
    border: Polygon,
    is_normalized: bool,
}

impl BigPolygon {
    pub(super) fn new(ring: Ring) -> Result<BigPolygon> {
        let is_normalized = ring.is_normalized();
        let border = ring.clone().normalized()?;
        Ok(BigPolygon {
            ring,
            border: Polygon::new(vec![border]),
            is_normalized,
        })
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    pub(crate) fn contains_cell(&self, cell: &Cell) -> Result<bool> {
        self.ring.contains_ring(&Ring::of_cell(cell)?)
    }

    pub(crate) fn covers_point(&self, p: &SpherePoint) -> Result<bool> {
        Ok(self.ring.contains(&p.point)?
            || Ring::of_cell(&p.cell)?.intersects_ring(&self.ring)?
            || self.ring.touches(&p.point)?)
    }

    pub(crate) fn contains(&self, polygon: &Polygon) -> Result<bool> {
        if self.is_normalized {
            self.border.contains(polygon)
        } else {
            Ok(!self.border.intersects(polygon)?)
        }
    }

    pub(crate) fn intersects(&self, polygon: &Polygon) -> Result<bool> {
        if self.is_normalized {
            self.border.intersects(polygon)
        } else {
            // What is larger than half of the sphere does not fit into a hole.
            self.ring.intersects_ring(polygon.shell())
        }
    }

    pub(crate) fn contains_line(&self, line: &Line) -> Result<bool> {
        // Nothing of the line may be left outside.
        Ok(clip(line, self.border.rings(), self.is_normalized)?.is_empty())
    }

    pub(crate) fn intersects_line(&self, line: &Line) -> Result<bool> {
        let mut vertices = self.ring.vertices().to_vec();
        vertices.push(vertices[0]);
        Ok(Line::new(vertices).intersects(line)? || self.ring.contains(&line.vertices()[0])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(corners: &[(f64, f64)]) -> Ring {
        let vertices = corners.iter().map(|(lng, lat)| at(*lng, *lat)).collect();
        Ring::new(vertices)
            .and_then(Ring::normalized)
            .expect("unbounded")
    }

    fn at(lng: f64, lat: f64) -> Point {
        s2::latlng::LatLng::from_degrees(lat, lng).into()
    }

    fn square(low: f64, high: f64) -> Ring {
        ring(&[(low, low), (high, low), (high, high), (low, high)])
    }

    #[test]
    fn holes() {
        let donut = Polygon::new(vec![square(-10.0, 10.0), square(-5.0, 5.0)]);
        let contains = |lng: f64, lat: f64| donut.contains_point(&at(lng, lat)).expect("unbounded");
        assert!(contains(7.0, 7.0) && !contains(0.0, 0.0) && !contains(20.0, 0.0));
        let check = |other: &Polygon, contains: bool, intersects: bool| {
            assert_eq!(donut.contains(other).expect("unbounded"), contains);
            assert_eq!(donut.intersects(other).expect("unbounded"), intersects);
        };
        check(&Polygon::new(vec![square(6.0, 8.0)]), true, true);
        check(&Polygon::new(vec![square(-1.0, 1.0)]), false, false);
        check(&Polygon::new(vec![square(-6.0, 6.0)]), false, true);
        check(
            &Polygon::new(vec![square(-8.0, 8.0), square(-6.0, 6.0)]),
            true,
            true,
        );
        check(
            &Polygon::new(vec![square(-20.0, 20.0), square(-11.0, 11.0)]),
            false,
            false,
        );
    }

    #[test]
    fn lines() {
        let donut = Polygon::new(vec![square(-10.0, 10.0), square(-5.0, 5.0)]);
        let check = |line: &[(f64, f64)], contains: bool, intersects: bool| {
            let line = Line::new(line.iter().map(|(lng, lat)| at(*lng, *lat)).collect());
            assert_eq!(
                donut.contains_line(&line).expect("unbounded"),
                contains,
                "{line:?}"
            );
            assert_eq!(
                donut.intersects_line(&line).expect("unbounded"),
                intersects,
                "{line:?}"
            );
        };
        check(&[(6.0, 6.0), (7.0, 7.0), (7.0, -7.0)], true, true);
        check(&[(-7.0, 0.0), (7.0, 0.0)], false, true);
        check(&[(-1.0, 0.0), (1.0, 0.0)], false, false);
        check(&[(20.0, 0.0), (30.0, 0.0)], false, false);
        check(&[(-20.0, 1.0), (20.0, 1.0)], false, true);
    }

    #[test]
    fn faults() {
        let fault = |rings: &[Ring]| Polygon::fault(rings).expect("unbounded");
        assert_eq!(fault(&[square(0.0, 9.0), square(1.0, 2.0)]), None);
        let crossing = fault(&[square(0.0, 9.0), square(5.0, 12.0)]);
        assert_eq!(crossing.as_deref(), Some("Loop 0 crosses loop 1"));
        let same = fault(&[square(0.0, 9.0), square(0.0, 9.0)]);
        assert_eq!(
            same.as_deref(),
            Some("Duplicate edge: loop 1, edge 0 and loop 0, edge 0")
        );
    }

    #[test]
    fn a_ring_larger_than_half_of_the_sphere() {
        let small = square(-10.0, 10.0);
        let big = BigPolygon::new(small.inverted().expect("unbounded")).expect("unbounded");
        let inside = Polygon::new(vec![square(-1.0, 1.0)]);
        let outside = Polygon::new(vec![square(20.0, 30.0)]);
        assert!(!big.contains(&inside).expect("unbounded"));
        assert!(!big.intersects(&inside).expect("unbounded"));
        assert!(big.contains(&outside).expect("unbounded"));
        assert!(big.intersects(&outside).expect("unbounded"));
        let line =
            |from: (f64, f64), to: (f64, f64)| Line::new(vec![at(from.0, from.1), at(to.0, to.1)]);
        assert!(
            big.contains_line(&line((20.0, 0.0), (30.0, 0.0)))
                .expect("unbounded")
        );
        assert!(
            !big.contains_line(&line((0.0, 0.0), (30.0, 0.0)))
                .expect("unbounded")
        );
        assert!(
            big.intersects_line(&line((0.0, 0.0), (30.0, 0.0)))
                .expect("unbounded")
        );
        assert!(
            !big.intersects_line(&line((0.0, 0.0), (1.0, 0.0)))
                .expect("unbounded")
        );
    }
}
