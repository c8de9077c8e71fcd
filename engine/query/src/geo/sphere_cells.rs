//! Cells of the sphere as keys of an index: those that cover a geometry, and those in which what a
//! query asks for may be.
//!
//! A key is the number of a cell. All cells inside of a cell have numbers of one range around its
//! own.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_wire::Result;
use s2::cell::Cell;
use s2::cellid::{CellID, MAX_LEVEL};

use super::cover::{Limits, Region, cover, joined};
use super::shape::{Geometry, Part};
use crate::limits::{MAX_GEO_CELLS_PER_QUERY, MAX_GEO_CELLS_PER_VALUE};
use crate::number::truncated_i64;
use crate::value::field;

/// The options of a `2dsphere` index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SphereIndex {
    pub version: i64,
    coarsest: u8,
    finest: u8,
}

/// MongoDB's levels of cells where an index names none.
const COARSEST_LEVEL: i64 = 0;
const FINEST_LEVEL: i64 = 23;

impl SphereIndex {
    /// Reads the options of an index as it is listed.
    pub(crate) fn parse(listed: &RawDocument) -> SphereIndex {
        let number = |name: &str, default: i64| {
            field(listed, name)
                .and_then(truncated_i64)
                .unwrap_or(default)
        };
        let level =
            |name: &str, default: i64| number(name, default).clamp(0, MAX_LEVEL as i64) as u8;
        let coarsest = level("coarsestIndexedLevel", COARSEST_LEVEL);
        SphereIndex {
            version: number("2dsphereIndexVersion", 3),
            coarsest,
            finest: level("finestIndexedLevel", FINEST_LEVEL).max(coarsest),
        }
    }

    /// Whether documents without any of the geographical fields have no keys.
    pub(crate) fn leaves_out_missing(&self) -> bool {
        self.version >= 2
    }

    /// The keys of a stored value.
    pub(crate) fn keys(&self, value: RawBsonRef<'_>) -> Result<Vec<i64>> {
        let geometry = super::parse::stored(value)?;
        if matches!(geometry, Geometry::BigPolygon(_)) {
            return Err(crate::error::bad_value(
                "can't index geometry with strict winding order",
            ));
        }
        let is_simple = matches!(
            geometry,
            Geometry::Point(_) | Geometry::Line(_) | Geometry::Polygon(_)
        );
        if self.version < 2 && !is_simple {
            return Err(crate::error::bad_value(
                "given geometry can't be indexed in the old index format",
            ));
        }
        let Some(parts) = geometry.parts() else {
            return Err(crate::error::bad_value(format!(
                "can't project geometry into spherical CRS: {}",
                crate::text::value_text(value)
            )));
        };
        if let [Part::Point(point)] = &parts[..]
            && self.version >= 3
        {
            return Ok(vec![number(point.cell.id)]);
        }
        let limits = Limits {
            coarsest: self.coarsest,
            finest: self.finest,
            cells: MAX_GEO_CELLS_PER_VALUE,
        };
        let cells = cover_cells(&Parts(&parts), limits)?;
        let mut keys: Vec<i64> = cells.into_iter().map(number).collect();
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// The keys of everything that may have a point in common with the parts.
    pub(crate) fn ranges(&self, parts: &[Part<'_>]) -> Result<Vec<(i64, i64)>> {
        self.ranges_of(&Parts(parts))
    }

    pub(super) fn ranges_of(&self, region: &impl SphereRegion) -> Result<Vec<(i64, i64)>> {
        let limits = Limits {
            coarsest: 0,
            finest: self.finest.max(self.coarsest),
            cells: MAX_GEO_CELLS_PER_QUERY,
        };
        let mut ranges = Vec::new();
        for cell in cover_cells(region, limits)? {
            ranges.push((number(cell.range_min()), number(cell.range_max())));
            // What is larger than the cell has keys of cells around it.
            for level in u64::from(self.coarsest)..cell.level() {
                let around = number(cell.parent(level));
                ranges.push((around, around));
            }
        }
        Ok(joined(ranges))
    }
}

/// The order of numbers without a sign is kept within a face, and no range goes beyond one.
fn number(id: CellID) -> i64 {
    id.0 as i64
}

/// A region of the sphere.
pub(super) trait SphereRegion {
    fn meets(&self, cell: &Cell) -> Result<bool>;
    fn contains(&self, cell: &Cell) -> Result<bool>;
}

struct Parts<'a>(&'a [Part<'a>]);

impl SphereRegion for Parts<'_> {
    fn meets(&self, cell: &Cell) -> Result<bool> {
        for part in self.0 {
            if part.may_meet(cell)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn contains(&self, cell: &Cell) -> Result<bool> {
        for part in self.0 {
            if part.contains_cell(cell)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

struct OnSphere<'a, R>(&'a R);

impl<R: SphereRegion> Region for OnSphere<'_, R> {
    type Cell = CellID;

    fn level(&self, cell: &CellID) -> u8 {
        cell.level() as u8
    }

    fn children(&self, cell: &CellID) -> [CellID; 4] {
        cell.children()
    }

    fn meets(&self, cell: &CellID) -> Result<bool> {
        self.0.meets(&Cell::from(cell))
    }

    fn contains(&self, cell: &CellID) -> Result<bool> {
        self.0.contains(&Cell::from(cell))
    }
}

fn cover_cells(region: &impl SphereRegion, limits: Limits) -> Result<Vec<CellID>> {
    let faces: Vec<CellID> = (0..6).map(CellID::from_face).collect();
    cover(&OnSphere(region), &faces, limits)
}
