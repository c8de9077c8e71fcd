//! How the insides of two rings lie to each other at a vertex that both have.
//!
//! A wedge is the inside of a ring near one of its vertices: what lies left of the edges before and
//! after it. The rules are those of S2.

use s2::point::Point;

use super::exact::ordered_ccw;

/// A vertex of a ring with those before and after it.
#[derive(Clone, Copy)]
pub(super) struct Wedge<'a> {
    pub before: &'a Point,
    pub vertex: &'a Point,
    pub after: &'a Point,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    Equal,
    Contains,
    Contained,
    Overlaps,
    Disjoint,
}

impl Wedge<'_> {
    /// Whether the inside of `other` at the same vertex is within this one's.
    pub(super) fn contains(&self, other: &Wedge<'_>) -> bool {
        let o = self.vertex;
        ordered_ccw(self.after, other.after, other.before, o)
            && ordered_ccw(other.before, self.before, self.after, o)
    }

    /// Whether the two insides have more than edges in common.
    pub(super) fn intersects(&self, other: &Wedge<'_>) -> bool {
        let o = self.vertex;
        !(ordered_ccw(self.before, other.after, other.before, o)
            && ordered_ccw(other.before, self.after, self.before, o))
    }

    pub(super) fn relation(&self, other: &Wedge<'_>) -> Relation {
        let o = self.vertex;
        let (a0, a2, b0, b2) = (self.before, self.after, other.before, other.after);
        if a0 == b0 && a2 == b2 {
            return Relation::Equal;
        }
        if ordered_ccw(a0, a2, b2, o) {
            if ordered_ccw(b2, b0, a0, o) {
                return Relation::Contains;
            }
            return if a2 == b2 {
                Relation::Contained
            } else {
                Relation::Overlaps
            };
        }
        if ordered_ccw(a0, b0, b2, o) {
            return Relation::Contained;
        }
        if ordered_ccw(a0, b0, a2, o) {
            Relation::Disjoint
        } else {
            Relation::Overlaps
        }
    }
}

/// What is known of two rings from the vertices they share, to decide whether the first contains
/// the second or their boundaries cross.
#[derive(Default)]
pub(super) struct ContainsOrCrosses {
    crosses: bool,
    is_larger: bool,
    is_smaller: bool,
    is_apart: bool,
}

/// What one ring may be to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Containment {
    Crosses,
    No,
    Yes,
}

impl ContainsOrCrosses {
    /// Takes in a shared vertex; true when the boundaries are known to cross.
    pub(super) fn add(&mut self, a: &Wedge<'_>, b: &Wedge<'_>) -> bool {
        match a.relation(b) {
            Relation::Overlaps => self.crosses = true,
            Relation::Contains => self.is_larger = true,
            Relation::Contained => self.is_smaller = true,
            Relation::Disjoint => self.is_apart = true,
            Relation::Equal => {}
        }
        self.crosses |= self.is_larger && self.is_smaller;
        self.crosses
    }

    /// What the shared vertices allow; `Yes` where nothing speaks against it.
    pub(super) fn so_far(&self) -> Containment {
        if self.crosses {
            Containment::Crosses
        } else if self.is_apart || self.is_smaller {
            Containment::No
        } else {
            Containment::Yes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wedges_at_a_vertex() {
        let at =
            |lng: f64, lat: f64| -> Point { s2::latlng::LatLng::from_degrees(lat, lng).into() };
        let o = at(10.0, 10.0);
        // Directions by angle: 0 east, 90 north.
        let toward = |angle: f64| {
            let (sin, cos) = angle.to_radians().sin_cos();
            at(10.0 + cos, 10.0 + sin)
        };
        let check = |a: (f64, f64), b: (f64, f64), expected: Relation| {
            let ends = [toward(a.0), toward(a.1), toward(b.0), toward(b.1)];
            let wedge = |before: usize, after: usize| Wedge {
                before: &ends[before],
                vertex: &o,
                after: &ends[after],
            };
            let (a, b) = (wedge(1, 0), wedge(3, 2));
            assert_eq!(
                a.relation(&b),
                expected,
                "{a:?} {b:?}",
                a = ends[0],
                b = ends[2]
            );
            let contains = matches!(expected, Relation::Contains | Relation::Equal);
            assert_eq!(a.contains(&b), contains);
            assert_eq!(a.intersects(&b), expected != Relation::Disjoint);
        };
        // The inside turns from the first angle to the second.
        check((0.0, 90.0), (0.0, 90.0), Relation::Equal);
        check((0.0, 90.0), (10.0, 80.0), Relation::Contains);
        check((10.0, 80.0), (0.0, 90.0), Relation::Contained);
        check((0.0, 90.0), (45.0, 120.0), Relation::Overlaps);
        check((0.0, 90.0), (90.0, 180.0), Relation::Disjoint);
        check((0.0, 90.0), (100.0, 180.0), Relation::Disjoint);
    }
}
