//! The search of an index outward from a point: ring after ring, each as wide as makes it hold a
//! fair number of documents.

use std::f64::consts::PI;
use std::sync::Arc;

use pinion_bson::RawDocument;
use pinion_wire::Result;
use s2::cell::Cell;

use super::cover::{joined, without};
use super::flat::FlatBox;
use super::index::GeoIndex;
use super::near::Near;
use super::plane_cells::{Around, PlaneIndex, PlaneRegion};
use super::shape::{EARTH_RADIUS_M, Part, SphereCap};
use super::sphere_cells::SphereRegion;
use crate::path::Path;

/// A ring with fewer documents is followed by one twice as wide, one with more than the other by
/// one half as wide.
const FEW: usize = 300;
const MANY: usize = 600;

/// A search that has started.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    near: Arc<Near>,
    path: Path,
    index: GeoIndex,
    /// All keys of what is nearer than this have been given.
    reach: f64,
    /// How wide the next ring is.
    width: f64,
    /// What is farther is not sought.
    limit: f64,
    given: Vec<(i64, i64)>,
    done: bool,
}

impl Search {
    pub(crate) fn new(near: Arc<Near>, path: Path, index: GeoIndex) -> Search {
        let (farthest, width) = match (&index, near.spherical) {
            (_, true) => (PI * EARTH_RADIUS_M, 1000.0),
            (GeoIndex::Plane(index), _) => (index.diagonal(), index.diagonal() / 4096.0),
            (GeoIndex::Sphere(_), false) => (0.0, 1.0),
        };
        let reach = near.min;
        Search {
            limit: farthest.min(near.max),
            done: near.min > near.max,
            near,
            path,
            index,
            reach,
            width,
            given: Vec::new(),
        }
    }

    /// The keys of the next ring, which may be none, as closed ranges that were not given before;
    /// `None` at the end. `found` is how many documents the ring before had.
    pub(crate) fn next(&mut self, found: usize) -> Result<Option<Vec<(i64, i64)>>> {
        if self.done {
            return Ok(None);
        }
        // Nothing is changed before the work is done, for which the call may be refused.
        let width = match found {
            _ if self.reach <= self.near.min => self.width,
            0 => self.width * 4.0,
            few if few < FEW => self.width * 2.0,
            many if many > MANY => self.width / 2.0,
            _ => self.width,
        };
        let outer = (self.reach + width).min(self.limit);
        let fresh = without(&self.cover(outer)?, &self.given);
        self.width = width;
        self.given.extend(&fresh);
        self.given = joined(std::mem::take(&mut self.given));
        self.reach = outer;
        if outer >= self.limit {
            self.end();
        }
        Ok(Some(fresh))
    }

    /// Ends the search: everything has been given.
    pub(crate) fn end(&mut self) {
        self.done = true;
        self.reach = f64::INFINITY;
    }

    /// How far everything has been found.
    pub(crate) fn reach(&self) -> f64 {
        self.reach
    }

    /// The distance of a document that is sought.
    pub(crate) fn distance(&self, document: &RawDocument) -> Result<Option<f64>> {
        let found = self.near.document_distance(document, &self.path)?;
        let distance = found.map(|(distance, _)| distance);
        Ok(distance.filter(|distance| self.near.is_wanted(*distance)))
    }

    fn cover(&self, outer: f64) -> Result<Vec<(i64, i64)>> {
        match &self.index {
            GeoIndex::Sphere(index) => index.ranges_of(&Ring {
                inner: self.cap(self.reach - margin(self.reach)),
                outer: self.cap(outer + margin(outer)),
            }),
            GeoIndex::Plane(index) if self.near.spherical => {
                index.ranges_of(&Around::new(self.cap(outer + margin(outer))))
            }
            GeoIndex::Plane(index) => index.ranges_of(&FlatRing {
                near: &self.near,
                inner: self.reach,
                outer: outer + plane_margin(index, outer),
            }),
        }
    }

    /// What is within a distance in meters.
    fn cap(&self, distance: f64) -> SphereCap {
        let flat = self.near.center.flat;
        let center = match &self.near.center.sphere {
            Some(center) => center.point,
            None => s2::point::Point::origin(),
        };
        SphereCap::new(flat, center, distance.max(0.0) / EARTH_RADIUS_M)
    }
}

/// What rounding may do to a distance in meters.
fn margin(distance: f64) -> f64 {
    1e-5 + distance * 1e-9
}

fn plane_margin(index: &PlaneIndex, distance: f64) -> f64 {
    (distance + index.max.abs() + index.min.abs()) * 1e-12
}

/// What of the sphere is within one distance and not within another.
struct Ring {
    inner: SphereCap,
    outer: SphereCap,
}

impl SphereRegion for Ring {
    fn meets(&self, cell: &Cell) -> Result<bool> {
        Ok(
            Part::Cap(&self.outer).may_meet(cell)?
                && !Part::Cap(&self.inner).contains_cell(cell)?,
        )
    }

    fn contains(&self, cell: &Cell) -> Result<bool> {
        Ok(
            Part::Cap(&self.outer).contains_cell(cell)?
                && !Part::Cap(&self.inner).may_meet(cell)?,
        )
    }
}

/// The same of the plane.
struct FlatRing<'a> {
    near: &'a Near,
    inner: f64,
    outer: f64,
}

impl PlaneRegion for FlatRing<'_> {
    fn meets(&self, cell: &FlatBox) -> Result<bool> {
        let (least, most) = cell.distances(&self.near.center.flat);
        Ok(least <= self.outer && most >= self.inner)
    }

    fn contains(&self, cell: &FlatBox) -> Result<bool> {
        let (least, most) = cell.distances(&self.near.center.flat);
        Ok(most <= self.outer && least >= self.inner)
    }
}
