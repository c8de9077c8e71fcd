//! Geospatial indexes: which of them serves what, and where in it to look.

use pinion_bson::RawDocument;
use pinion_wire::Result;

use super::near::Near;
use super::plane_cells::PlaneIndex;
use super::query::{GeoPredicate, Relation};
use super::sphere_cells::SphereIndex;

/// The options of a geospatial index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GeoIndex {
    Sphere(SphereIndex),
    Plane(PlaneIndex),
}

impl GeoIndex {
    pub(crate) fn sphere(listed: &RawDocument) -> GeoIndex {
        GeoIndex::Sphere(SphereIndex::parse(listed))
    }

    pub(crate) fn plane(listed: &RawDocument) -> GeoIndex {
        GeoIndex::Plane(PlaneIndex::parse(listed))
    }

    /// The keys of all that may satisfy a predicate, as closed ranges in ascending order; `None`
    /// when the index cannot give them.
    pub(crate) fn ranges(&self, predicate: &GeoPredicate) -> Result<Option<Vec<(i64, i64)>>> {
        match self {
            GeoIndex::Sphere(_) if predicate.shape.is_flat_area() => Ok(None),
            GeoIndex::Sphere(index) => match predicate.shape.parts() {
                Some(parts) => index.ranges(&parts).map(Some),
                None => Ok(None),
            },
            GeoIndex::Plane(index) if predicate.relation == Relation::Within => {
                index.ranges(&predicate.shape)
            }
            GeoIndex::Plane(_) => Ok(None),
        }
    }

    /// Whether the index holds what an order by this distance is about.
    pub(crate) fn serves(&self, near: &Near) -> bool {
        match self {
            GeoIndex::Sphere(_) => near.spherical,
            GeoIndex::Plane(_) => !near.wrapping,
        }
    }
}
