//! Geospatial values and queries: GeoJSON on the sphere, legacy coordinates on the plane.

mod bound;
mod cover;
mod edges;
mod exact;
mod flat;
mod index;
mod line;
mod near;
mod parse;
mod plane_cells;
mod polygon;
mod query;
mod relate;
mod ring;
mod search;
mod shape;
mod sphere_cells;
mod values;
mod wedge;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_random;

pub(crate) use index::GeoIndex;
pub(crate) use near::{Near, is_near};
pub(crate) use parse::{flat_location, object};
pub(crate) use plane_cells::PlaneIndex;
pub(crate) use query::GeoPredicate;
pub(crate) use search::Search;
pub(crate) use sphere_cells::SphereIndex;
pub(crate) use values::values_at;
