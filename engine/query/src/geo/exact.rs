//! Exact predicates on points of the sphere: orientation, order around a point, crossings of edges.
//!
//! The rules are those of Google's S2 library, whose answers MongoDB's are. No three points are
//! ever collinear: where the determinant is zero, all points are thought to be moved by
//! infinitesimals. So every answer fits every other one, also for points that lie on one meridian
//! or on the equator, which coordinates written by people often do. The determinants are computed
//! by `robust`: the crate `s2` leaves such points undecided.

use robust::{Coord, Coord3D, orient2d, orient3d};
use s2::point::Point;

/// Above this a determinant of unit vectors has the right sign whatever was rounded.
const DETERMINANT_ERROR: f64 = 1.8274 * f64::EPSILON;

/// 1 when the points are in counter-clockwise order, -1 when clockwise, 0 only when two of them are
/// the same.
pub(super) fn sign(a: &Point, b: &Point, c: &Point) -> i8 {
    let determinant = a.0.cross(&b.0).dot(&c.0);
    if determinant > DETERMINANT_ERROR {
        1
    } else if determinant < -DETERMINANT_ERROR {
        -1
    } else {
        exact_sign(a, b, c)
    }
}

#[cold]
fn exact_sign(a: &Point, b: &Point, c: &Point) -> i8 {
    if a == b || b == c || c == a {
        return 0;
    }
    // In lexicographic order, so that the perturbation is that of the points and not of their
    // order.
    let mut sorted = [a, b, c];
    let mut permutation = 1;
    for (i, j) in [(0, 1), (1, 2), (0, 1)] {
        if coordinates(sorted[i]) > coordinates(sorted[j]) {
            sorted.swap(i, j);
            permutation = -permutation;
        }
    }
    let [a, b, c] = sorted;
    let at = |p: &Point| Coord3D {
        x: p.0.x,
        y: p.0.y,
        z: p.0.z,
    };
    let origin = Coord3D {
        x: 0.0,
        y: 0.0,
        z: 0.0,
    };
    let determinant = signum(orient3d(at(a), at(b), at(c), origin));
    permutation
        * match determinant {
            0 => perturbed_sign(&coordinates(a), &coordinates(b), &coordinates(c)),
            sign => sign,
        }
}

fn coordinates(p: &Point) -> [f64; 3] {
    [p.0.x, p.0.y, p.0.z]
}

fn signum(x: f64) -> i8 {
    i8::from(x > 0.0) - i8::from(x < 0.0)
}

/// The sign of the determinant of three points, smallest first, that are moved by infinitesimals of
/// different orders: the first of its coefficients that is not zero.
fn perturbed_sign(a: &[f64; 3], b: &[f64; 3], c: &[f64; 3]) -> i8 {
    // The exact sign of `p[i] * q[j] - p[j] * q[i]`.
    let minor = |p: &[f64; 3], q: &[f64; 3], i: usize, j: usize| {
        let origin = Coord { x: 0.0, y: 0.0 };
        signum(orient2d(
            Coord { x: p[i], y: p[j] },
            Coord { x: q[i], y: q[j] },
            origin,
        ))
    };
    let coefficients: [&dyn Fn() -> i8; 12] = [
        &|| minor(b, c, 0, 1),
        &|| minor(b, c, 2, 0),
        &|| minor(b, c, 1, 2),
        &|| minor(c, a, 0, 1),
        &|| signum(c[0]),
        &|| -signum(c[1]),
        &|| minor(c, a, 2, 0),
        &|| signum(c[2]),
        &|| minor(a, b, 0, 1),
        &|| -signum(b[0]),
        &|| signum(b[1]),
        &|| signum(a[0]),
    ];
    coefficients
        .iter()
        .map(|coefficient| coefficient())
        .find(|sign| *sign != 0)
        .unwrap_or(1)
}

/// Whether the edges from `o` to `a`, `b` and `c` are met in this order when turning
/// counter-clockwise.
pub(super) fn ordered_ccw(a: &Point, b: &Point, c: &Point, o: &Point) -> bool {
    let turns =
        u8::from(sign(b, o, a) >= 0) + u8::from(sign(c, o, b) >= 0) + u8::from(sign(a, o, c) > 0);
    turns >= 2
}

/// How two edges meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crossing {
    Apart,
    /// They have an end in common.
    Touching,
    /// At a point that is an end of neither.
    Proper,
}

/// One edge against the edges of a chain.
pub(super) struct Crosser<'a> {
    a: &'a Point,
    b: &'a Point,
    /// The end of the chain's last edge, and on which side of the edge it is: -1 when on the left.
    c: &'a Point,
    side: i8,
}

impl<'a> Crosser<'a> {
    /// The edge from `a` to `b`, against a chain that begins at `c`.
    pub(super) fn new(a: &'a Point, b: &'a Point, c: &'a Point) -> Crosser<'a> {
        Crosser {
            a,
            b,
            c,
            side: -sign(a, b, c),
        }
    }

    /// Continues along the chain to `d`.
    pub(super) fn next(&mut self, d: &'a Point) -> Crossing {
        let (a, b, c) = (self.a, self.b, self.c);
        let (from, to) = (self.side, sign(a, b, d));
        self.c = d;
        self.side = -to;
        // Both ends are strictly on one side.
        if from == -to && to != 0 {
            return Crossing::Apart;
        }
        if a == c || a == d || b == c || b == d {
            return Crossing::Touching;
        }
        if a == b || c == d || to != from {
            return Crossing::Apart;
        }
        // The edges cross exactly when all four triangles that they span turn the same way.
        if -sign(c, d, b) == from && sign(c, d, a) == from {
            Crossing::Proper
        } else {
            Crossing::Apart
        }
    }

    /// As `next`; an end in common counts as a crossing by the rule of `vertex_crossing`.
    pub(super) fn next_counts(&mut self, d: &'a Point) -> bool {
        let c = self.c;
        match self.next(d) {
            Crossing::Apart => false,
            Crossing::Proper => true,
            Crossing::Touching => vertex_crossing(self.a, self.b, c, d),
        }
    }
}

/// How the edge from `a` to `b` meets the one from `c` to `d`.
pub(super) fn crossing(a: &Point, b: &Point, c: &Point, d: &Point) -> Crossing {
    Crosser::new(a, b, c).next(d)
}

/// Whether edges with an end in common cross in the sense that lets a ring's containment of a point
/// be decided by counting: the one does when it is met after the other while turning
/// counter-clockwise from a direction that is fixed for the point.
pub(super) fn vertex_crossing(a: &Point, b: &Point, c: &Point, d: &Point) -> bool {
    if a == b || c == d {
        return false;
    }
    if a == c {
        b == d || ordered_ccw(&a.ortho(), d, b, a)
    } else if b == d {
        ordered_ccw(&b.ortho(), c, a, b)
    } else if a == d {
        b == c || ordered_ccw(&a.ortho(), c, b, a)
    } else if b == c {
        ordered_ccw(&b.ortho(), d, a, b)
    } else {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lng: f64, lat: f64) -> Point {
        s2::latlng::LatLng::from_degrees(lat, lng).into()
    }

    #[test]
    fn orientation() {
        let [x, y, z] = [
            Point::from_coords(1.0, 0.0, 0.0),
            Point::from_coords(0.0, 1.0, 0.0),
            Point::from_coords(0.0, 0.0, 1.0),
        ];
        assert_eq!(sign(&x, &y, &z), 1);
        assert_eq!(sign(&y, &x, &z), -1);
        assert_eq!(sign(&x, &x, &z), 0);
        // So near to a plane that the rounded determinant says nothing.
        let near = Point::from_coords(1.0, 1.0, 1e-18);
        assert_eq!(exact_sign(&x, &y, &near), 1);
        let below = Point::from_coords(1.0, 1.0, -1e-18);
        assert_eq!(exact_sign(&x, &y, &below), -1);
    }

    #[test]
    fn collinear_points_are_decided_alike_in_every_order() {
        let meridian = [at(0.0, -10.0), at(0.0, 0.0), at(0.0, 20.0)];
        let equator = [at(0.0, 0.0), at(5.0, 0.0), at(170.0, 0.0)];
        for [a, b, c] in [meridian, equator] {
            let turn = sign(&a, &b, &c);
            assert_ne!(turn, 0);
            assert_eq!(sign(&b, &c, &a), turn);
            assert_eq!(sign(&c, &a, &b), turn);
            assert_eq!(sign(&b, &a, &c), -turn);
            assert_eq!(sign(&a, &c, &b), -turn);
        }
    }

    #[test]
    fn crossings() {
        let cross = |a: (f64, f64), b: (f64, f64), c: (f64, f64), d: (f64, f64)| {
            crossing(&at(a.0, a.1), &at(b.0, b.1), &at(c.0, c.1), &at(d.0, d.1))
        };
        let across = cross((-1.0, -1.0), (1.0, 1.0), (-1.0, 1.0), (1.0, -1.0));
        assert_eq!(across, Crossing::Proper);
        let apart = cross((-1.0, -1.0), (1.0, 1.0), (5.0, 1.0), (6.0, -1.0));
        assert_eq!(apart, Crossing::Apart);
        let touching = cross((0.0, 0.0), (1.0, 1.0), (1.0, 1.0), (2.0, 0.0));
        assert_eq!(touching, Crossing::Touching);
        // The prolongations cross, the edges do not.
        let short = cross((-1.0, 0.0), (1.0, 0.0), (0.5, 1.0), (0.5, 0.25));
        assert_eq!(short, Crossing::Apart);
    }
}
