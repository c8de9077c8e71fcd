//! Shapes of the plane: boxes, circles and polygons of legacy coordinates.
//!
//! Which of them contains a point of its boundary is MongoDB's rule to the bit, so no library's: a
//! polygon has its lower and left edges, as they come out of counting crossings, and its vertices.

use pinion_wire::Result;

use crate::work;

/// A pair of legacy coordinates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FlatPoint {
    pub x: f64,
    pub y: f64,
}

impl FlatPoint {
    pub(crate) fn distance(&self, other: &FlatPoint) -> f64 {
        let (a, b) = (self.x - other.x, self.y - other.y);
        // One of the legs alone is exact.
        if a == 0.0 {
            b.abs()
        } else if b == 0.0 {
            a.abs()
        } else {
            (a * a + b * b).sqrt()
        }
    }
}

/// A box with its boundary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FlatBox {
    pub min: FlatPoint,
    pub max: FlatPoint,
}

impl FlatBox {
    /// The box between two opposite corners.
    pub(crate) fn new(a: FlatPoint, b: FlatPoint) -> FlatBox {
        FlatBox {
            min: FlatPoint {
                x: a.x.min(b.x),
                y: a.y.min(b.y),
            },
            max: FlatPoint {
                x: a.x.max(b.x),
                y: a.y.max(b.y),
            },
        }
    }

    pub(crate) fn contains(&self, p: &FlatPoint) -> bool {
        (self.min.x..=self.max.x).contains(&p.x) && (self.min.y..=self.max.y).contains(&p.y)
    }

    /// The least and the greatest distance of a point of the box from a point.
    pub(crate) fn distances(&self, p: &FlatPoint) -> (f64, f64) {
        let (left, right) = (self.min.x - p.x, p.x - self.max.x);
        let (below, above) = (self.min.y - p.y, p.y - self.max.y);
        let (dx, dy) = (left.max(right).max(0.0), below.max(above).max(0.0));
        let (far_x, far_y) = (left.abs().max(right.abs()), below.abs().max(above.abs()));
        (dx.hypot(dy), far_x.hypot(far_y))
    }

    pub(crate) fn intersects(&self, other: &FlatBox) -> bool {
        self.min.x <= other.max.x
            && other.min.x <= self.max.x
            && self.min.y <= other.max.y
            && other.min.y <= self.max.y
    }
}

/// A circle with its boundary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FlatCircle {
    pub center: FlatPoint,
    pub radius: f64,
}

impl FlatCircle {
    pub(crate) fn contains(&self, p: &FlatPoint) -> bool {
        let (a, b) = (p.x - self.center.x, p.y - self.center.y);
        if a == 0.0 {
            b.abs() <= self.radius
        } else if b == 0.0 {
            a.abs() <= self.radius
        } else {
            a * a + b * b <= self.radius * self.radius
        }
    }

    pub(crate) fn bound(&self) -> FlatBox {
        let FlatPoint { x, y } = self.center;
        FlatBox {
            min: FlatPoint {
                x: x - self.radius,
                y: y - self.radius,
            },
            max: FlatPoint {
                x: x + self.radius,
                y: y + self.radius,
            },
        }
    }
}

/// A polygon through these points, closed by an edge from the last to the first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FlatPolygon {
    points: Vec<FlatPoint>,
    bound: FlatBox,
}

impl FlatPolygon {
    /// A polygon of at least three points.
    pub(crate) fn new(points: Vec<FlatPoint>) -> FlatPolygon {
        let bound = points[1..]
            .iter()
            .fold(FlatBox::new(points[0], points[0]), |bound, p| {
                let own = FlatBox::new(*p, *p);
                FlatBox {
                    min: FlatPoint {
                        x: bound.min.x.min(own.min.x),
                        y: bound.min.y.min(own.min.y),
                    },
                    max: FlatPoint {
                        x: bound.max.x.max(own.max.x),
                        y: bound.max.y.max(own.max.y),
                    },
                }
            });
        FlatPolygon { points, bound }
    }

    pub(crate) fn bound(&self) -> FlatBox {
        self.bound
    }

    pub(crate) fn contains(&self, p: &FlatPoint) -> Result<bool> {
        if !self.bound.contains(p) {
            return Ok(false);
        }
        work::spend(self.points.len() as work::Units * work::ITEM)?;
        let mut crossings = 0;
        for (place, from) in self.points.iter().enumerate() {
            let to = &self.points[(place + 1) % self.points.len()];
            if p == from || p == to {
                return Ok(true);
            }
            let across = from.x.min(to.x)..=from.x.max(to.x);
            if from.y == to.y {
                if p.y == from.y && across.contains(&p.x) {
                    return Ok(true);
                }
                continue;
            }
            let within = p.y > from.y.min(to.y) && p.y <= from.y.max(to.y);
            if !within || p.x > from.x.max(to.x) {
                continue;
            }
            let upright = from.x == to.x;
            if upright && p.x == from.x {
                return Ok(true);
            }
            let crossing = (p.y - from.y) * (to.x - from.x) / (to.y - from.y) + from.x;
            if upright || p.x <= crossing {
                crossings += 1;
            }
        }
        Ok(crossings % 2 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(x: f64, y: f64) -> FlatPoint {
        FlatPoint { x, y }
    }

    #[test]
    fn boxes_and_circles_have_their_boundary() {
        let square = FlatBox::new(at(10.0, 0.0), at(0.0, 10.0));
        assert!(square.contains(&at(0.0, 5.0)) && square.contains(&at(10.0, 10.0)));
        assert!(!square.contains(&at(10.1, 5.0)));
        let circle = FlatCircle {
            center: at(0.0, 0.0),
            radius: 2f64.sqrt(),
        };
        assert!(circle.contains(&at(1.0, 1.0)) && !circle.contains(&at(1.01, 1.01)));
    }

    #[test]
    fn polygons() {
        let check = |corners: &[(f64, f64)], inside: &[(f64, f64)], outside: &[(f64, f64)]| {
            let polygon = FlatPolygon::new(corners.iter().map(|(x, y)| at(*x, *y)).collect());
            for (points, expected) in [(inside, true), (outside, false)] {
                for (x, y) in points {
                    let contains = polygon.contains(&at(*x, *y)).expect("unbounded");
                    assert_eq!(contains, expected, "{corners:?} {x} {y}");
                }
            }
        };
        let triangle = [(0.0, 0.0), (10.0, 10.0), (10.0, 0.0)];
        check(
            &triangle,
            &[(5.0, 1.0), (0.0, 0.0), (5.0, 0.0)],
            &[(5.0, 5.0), (15.0, 15.0)],
        );
        let bowtie = [(0.0, 0.0), (10.0, 10.0), (10.0, 0.0), (0.0, 10.0)];
        check(&bowtie, &[(2.0, 2.0), (5.0, 5.0)], &[(8.0, 8.0)]);
        check(&[(1.0, 1.0); 3], &[(1.0, 1.0)], &[(2.0, 2.0)]);
        let flat = [(0.0, 0.0), (5.0, 0.0), (10.0, 0.0)];
        check(&flat, &[(3.0, 0.0)], &[(3.0, 5.0)]);
        let upright = [(0.0, 0.0), (0.0, 5.0), (0.0, 10.0)];
        check(&upright, &[(0.0, 3.0)], &[(5.0, 3.0)]);
    }
}
