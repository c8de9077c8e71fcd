//! Caps around points and arcs, by which most of what is far away is passed over.

use s2::point::Point;
use s2::r3::vector::Vector;

/// A part of the sphere outside of which nothing of what it bounds lies.
#[derive(Clone, Debug)]
pub(super) enum Bound {
    Everything,
    /// What is within this chord of the center; less than a hemisphere.
    Cap {
        center: Point,
        chord: f64,
    },
}

/// What is added to a chord for rounding.
const MARGIN: f64 = 1e-12;

impl Bound {
    /// The bound of points and the arcs between them.
    pub(super) fn of(points: &[Point]) -> Bound {
        let sum = points
            .iter()
            .fold(Vector::new(0.0, 0.0, 0.0), |sum, p| sum + p.0);
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
            chord: chord2.sqrt() + MARGIN,
        }
    }

    pub(super) fn contains(&self, p: &Point) -> bool {
        match self {
            Bound::Everything => true,
            Bound::Cap { center, chord } => (p.0 - center.0).norm2() <= chord * chord,
        }
    }

    pub(super) fn intersects(&self, other: &Bound) -> bool {
        match (self, other) {
            (
                Bound::Cap {
                    center: a,
                    chord: r,
                },
                Bound::Cap {
                    center: b,
                    chord: s,
                },
            ) => {
                // Chords are no longer than what they span together.
                let sum = r + s;
                (a.0 - b.0).norm2() <= sum * sum
            }
            _ => true,
        }
    }
}

/// The short way between two points.
pub(super) struct Arc {
    /// Of the great circle through both; `None` where they are too near to each other, or to
    /// opposites, to decide.
    normal: Option<Vector>,
    middle: Vector,
    /// From the middle to the ends.
    chord: f64,
}

impl Arc {
    pub(super) fn new(a: &Point, b: &Point) -> Arc {
        let cross = a.0.cross(&b.0);
        let sum = a.0 + b.0;
        let normal = (cross.norm2() > 1e-12).then(|| cross.normalize());
        let middle = sum.normalize();
        Arc {
            normal,
            middle,
            chord: (middle - a.0).norm() + MARGIN,
        }
    }

    /// Whether something in a bound may meet the arc.
    pub(super) fn may_meet(&self, bound: &Bound) -> bool {
        let (Bound::Cap { center, chord }, Some(normal)) = (bound, &self.normal) else {
            return true;
        };
        let reach = self.chord + chord;
        center.0.dot(normal).abs() <= chord + MARGIN
            && (center.0 - self.middle).norm2() <= reach * reach
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lng: f64, lat: f64) -> Point {
        s2::latlng::LatLng::from_degrees(lat, lng).into()
    }

    #[test]
    fn bounds_and_arcs() {
        let bound = Bound::of(&[at(0.0, 0.0), at(10.0, 0.0), at(5.0, 5.0)]);
        assert!(bound.contains(&at(5.0, 0.0)) && !bound.contains(&at(20.0, 0.0)));
        assert!(matches!(
            Bound::of(&[at(0.0, 0.0), at(120.0, 0.0), at(-120.0, 0.0)]),
            Bound::Everything
        ));
        let near = Bound::of(&[at(9.0, 0.0), at(14.0, 0.0)]);
        let far = Bound::of(&[at(40.0, 0.0), at(41.0, 0.0)]);
        assert!(bound.intersects(&near) && !bound.intersects(&far));
        let arc = Arc::new(&at(-20.0, 1.0), &at(20.0, 1.0));
        assert!(arc.may_meet(&bound) && arc.may_meet(&near) && !arc.may_meet(&far));
        assert!(!arc.may_meet(&Bound::of(&[at(0.0, 20.0), at(1.0, 21.0)])));
        // Of opposite points any great circle may be the one.
        assert!(Arc::new(&at(0.0, 0.0), &at(180.0, 0.0)).may_meet(&far));
    }
}
