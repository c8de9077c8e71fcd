//! Cells of the plane as keys of an index.
//!
//! A key interleaves the bits of both coordinates, the highest first, so that all points of a cell
//! have keys of one range.

use pinion_bson::RawDocument;
use pinion_wire::Result;

use super::cover::{Limits, Region, cover, joined};
use super::edges::{Edge, angle_to_edge};
use super::flat::{FlatBox, FlatPoint};
use super::shape::{Shape, SphereCap, sphere_point};
use crate::error::error;
use crate::limits::MAX_GEO_CELLS_PER_QUERY;
use crate::number::truncated_i64;
use crate::text::{document_text, format_general};
use crate::value::field;

/// The options of a `2d` index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlaneIndex {
    bits: u8,
    pub min: f64,
    pub max: f64,
}

const DEFAULT_BITS: i64 = 26;

impl PlaneIndex {
    /// Reads the options of an index as it is listed.
    pub(crate) fn parse(listed: &RawDocument) -> PlaneIndex {
        let number = |name: &str, default: f64| {
            let value = field(listed, name).and_then(pinion_bson::Number::from_value);
            value.map_or(default, pinion_bson::Number::to_f64)
        };
        let bits = field(listed, "bits").and_then(truncated_i64);
        PlaneIndex {
            bits: bits.unwrap_or(DEFAULT_BITS).clamp(1, 32) as u8,
            min: number("min", -180.0),
            max: number("max", 180.0),
        }
    }

    /// The key of a pair of coordinates.
    pub(crate) fn key(&self, at: &FlatPoint, document: &RawDocument) -> Result<i64> {
        let inside = self.min..=self.max;
        if !inside.contains(&at.x) || !inside.contains(&at.y) {
            return Err(error(
                13027,
                format!(
                    "point not in interval of [ {}, {} ] :: caused by :: {}",
                    format_general(self.min, 6),
                    format_general(self.max, 6),
                    document_text(document)
                ),
            ));
        }
        let scaled = |c: f64| {
            let part = (c - self.min) / (self.max - self.min);
            // The greatest coordinate belongs to the last cell.
            (part * 4_294_967_296.0).min(4_294_967_295.0) as u32
        };
        let kept = u32::MAX << (32 - u32::from(self.bits));
        Ok(signed(interleaved(
            scaled(at.x) & kept,
            scaled(at.y) & kept,
        )))
    }

    /// The longest distance in the plane between points that the index holds.
    pub(super) fn diagonal(&self) -> f64 {
        1.5 * (self.max - self.min)
    }

    /// The keys of what may be within a shape; `None` for a shape that the plane has not: what goes
    /// around the sphere.
    pub(crate) fn ranges(&self, shape: &Shape) -> Result<Option<Vec<(i64, i64)>>> {
        if let Shape::Cap(cap) = shape {
            if self.wraps(cap) {
                return Ok(None);
            }
            return self.ranges_of(&Around::new(cap.clone())).map(Some);
        }
        match Bounded::new(shape) {
            Some(region) => self.ranges_of(&region).map(Some),
            None => Ok(None),
        }
    }

    /// Whether a circle of the sphere may go over a pole or the antimeridian.
    fn wraps(&self, cap: &SphereCap) -> bool {
        let dy = cap.radius.to_degrees() + self.cell_degrees();
        let FlatPoint { x, y } = cap.flat;
        let narrow = |lat: f64| lat.clamp(-89.0, 89.0).to_radians().cos();
        let dx = dy / narrow(y + dy).min(narrow(y - dy));
        x + dx >= 180.0 || x - dx <= -180.0 || y + dy >= 90.0 || y - dy <= -90.0
    }

    fn cell_degrees(&self) -> f64 {
        (self.max - self.min) / 2f64.powi(i32::from(self.bits))
    }

    pub(super) fn ranges_of(&self, region: &impl PlaneRegion) -> Result<Vec<(i64, i64)>> {
        let region = OnPlane {
            region,
            index: self,
        };
        let limits = Limits {
            coarsest: 0,
            finest: self.bits,
            cells: MAX_GEO_CELLS_PER_QUERY,
        };
        let everything = PlaneCell {
            x: 0,
            y: 0,
            level: 0,
        };
        let cells = cover(&region, &[everything], limits)?;
        Ok(joined(cells.iter().map(PlaneCell::range).collect()))
    }

    fn cell_box(&self, cell: &PlaneCell) -> FlatBox {
        let size = (self.max - self.min) / 2f64.powi(i32::from(cell.level));
        // Rounding must not put a point beside the cell that its key is in.
        let margin = 8.0 * f64::EPSILON * (self.max - self.min + self.max.abs() + self.min.abs());
        let low = |place: u32| self.min + size * f64::from(place) - margin;
        let high = |place: u32| self.min + size * (f64::from(place) + 1.0) + margin;
        FlatBox {
            min: FlatPoint {
                x: low(cell.x),
                y: low(cell.y),
            },
            max: FlatPoint {
                x: high(cell.x),
                y: high(cell.y),
            },
        }
    }
}

/// The bits of two numbers in turns, the highest first and the first number's before the second's.
fn interleaved(x: u32, y: u32) -> u64 {
    let spread = |v: u32| {
        let mut v = u64::from(v);
        for (shift, mask) in [
            (16, 0x0000_ffff_0000_ffff),
            (8, 0x00ff_00ff_00ff_00ff),
            (4, 0x0f0f_0f0f_0f0f_0f0f),
            (2, 0x3333_3333_3333_3333),
            (1, 0x5555_5555_5555_5555),
        ] {
            v = (v | (v << shift)) & mask;
        }
        v
    };
    (spread(x) << 1) | spread(y)
}

/// The same order among numbers with a sign.
fn signed(key: u64) -> i64 {
    (key ^ (1 << 63)) as i64
}

/// A square of the plane: one of `2^level` in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlaneCell {
    x: u32,
    y: u32,
    level: u8,
}

impl PlaneCell {
    /// The keys of its points.
    fn range(&self) -> (i64, i64) {
        if self.level == 0 {
            return (i64::MIN, i64::MAX);
        }
        let up = 32 - u32::from(self.level);
        let low = interleaved(self.x << up, self.y << up);
        let high = low | (u64::MAX.checked_shr(2 * u32::from(self.level)).unwrap_or(0));
        (signed(low), signed(high))
    }
}

/// A region of the plane.
pub(super) trait PlaneRegion {
    fn meets(&self, cell: &FlatBox) -> Result<bool>;
    fn contains(&self, cell: &FlatBox) -> Result<bool>;
}

struct OnPlane<'a, R> {
    region: &'a R,
    index: &'a PlaneIndex,
}

impl<R: PlaneRegion> Region for OnPlane<'_, R> {
    type Cell = PlaneCell;

    fn level(&self, cell: &PlaneCell) -> u8 {
        cell.level
    }

    fn children(&self, cell: &PlaneCell) -> [PlaneCell; 4] {
        [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(x, y)| PlaneCell {
            x: cell.x * 2 + x,
            y: cell.y * 2 + y,
            level: cell.level + 1,
        })
    }

    fn meets(&self, cell: &PlaneCell) -> Result<bool> {
        self.region.meets(&self.index.cell_box(cell))
    }

    fn contains(&self, cell: &PlaneCell) -> Result<bool> {
        self.region.contains(&self.index.cell_box(cell))
    }
}

/// A shape of the plane; of a polygon, the box around it.
struct Bounded {
    bound: FlatBox,
    circle: Option<super::flat::FlatCircle>,
    is_box: bool,
}

impl Bounded {
    fn new(shape: &Shape) -> Option<Bounded> {
        Some(match shape {
            Shape::Box(shape) => Bounded {
                bound: *shape,
                circle: None,
                is_box: true,
            },
            Shape::Circle(circle) => Bounded {
                bound: circle.bound(),
                circle: Some(*circle),
                is_box: false,
            },
            Shape::FlatPolygon(polygon) => Bounded {
                bound: polygon.bound(),
                circle: None,
                is_box: false,
            },
            Shape::Geometry(_) | Shape::Cap(_) => return None,
        })
    }
}

impl PlaneRegion for Bounded {
    fn meets(&self, cell: &FlatBox) -> Result<bool> {
        let near = self
            .circle
            .is_none_or(|circle| cell.distances(&circle.center).0 <= circle.radius);
        Ok(near && self.bound.intersects(cell))
    }

    fn contains(&self, cell: &FlatBox) -> Result<bool> {
        Ok(match &self.circle {
            Some(circle) => cell.distances(&circle.center).1 <= circle.radius,
            None => self.is_box && self.bound.contains(&cell.min) && self.bound.contains(&cell.max),
        })
    }
}

/// What is within a distance along the sphere, of the longitudes and latitudes of a plane.
pub(super) struct Around {
    cap: SphereCap,
}

impl Around {
    pub(super) fn new(cap: SphereCap) -> Around {
        Around { cap }
    }
}

impl PlaneRegion for Around {
    fn meets(&self, cell: &FlatBox) -> Result<bool> {
        let at = self.cap.flat;
        let (south, north) = (cell.min.y.max(-90.0), cell.max.y.min(90.0));
        if south > north || cell.max.x < -180.0 || cell.min.x > 180.0 {
            // No point of the sphere has such coordinates.
            return Ok(false);
        }
        let radius = self.cap.radius * (1.0 + 1e-12) + 1e-12;
        let beside = (south - at.y).max(at.y - north).max(0.0).to_radians();
        if beside > radius {
            return Ok(false);
        }
        // A point on the antimeridian has two longitudes.
        let turns = [0.0, -360.0, 360.0];
        if turns
            .iter()
            .any(|turn| (cell.min.x..=cell.max.x).contains(&(at.x + turn)))
        {
            return Ok(true);
        }
        // Otherwise the nearest point is on the meridian of one of the sides.
        for side in [cell.min.x.max(-180.0), cell.max.x.min(180.0)] {
            let ends = [south, north].map(|y| sphere_point(&FlatPoint { x: side, y }));
            if let [Some(from), Some(to)] = &ends
                && angle_to_edge(&self.cap.center, &Edge { from, to }) <= radius
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn contains(&self, _: &FlatBox) -> Result<bool> {
        // The covering may be finer than it need be, and is bounded by the number of its cells.
        Ok(self.cap.radius >= std::f64::consts::PI)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawdoc;

    #[test]
    fn keys_lie_in_the_ranges_of_the_cells_around_them() {
        let index = PlaneIndex::parse(&rawdoc! {});
        let empty = rawdoc! {};
        let key = |x: f64, y: f64| index.key(&FlatPoint { x, y }, &empty);
        assert_eq!(key(-180.0, -180.0).expect("inside"), i64::MIN);
        assert!(key(180.0, 180.0).expect("inside") > key(179.0, 179.0).expect("inside"));
        let refused = key(180.1, 0.0).expect_err("outside");
        assert_eq!(
            (refused.code.0, refused.message.as_str()),
            (
                13027,
                "point not in interval of [ -180, 180 ] :: caused by :: {}"
            )
        );
        let shape = Shape::Circle(super::super::flat::FlatCircle {
            center: FlatPoint { x: 10.0, y: 20.0 },
            radius: 3.0,
        });
        let ranges = index
            .ranges(&shape)
            .expect("unbounded")
            .expect("of the plane");
        assert!(ranges.len() <= MAX_GEO_CELLS_PER_QUERY);
        for (x, y, within) in [
            (10.0, 20.0, true),
            (12.9, 20.0, true),
            (100.0, -20.0, false),
        ] {
            let key = key(x, y).expect("inside");
            let found = ranges
                .iter()
                .any(|(low, high)| (*low..=*high).contains(&key));
            assert_eq!(found, within, "{x} {y}");
        }
    }
}
