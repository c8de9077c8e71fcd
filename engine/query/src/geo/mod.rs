//! Geospatial values and queries: GeoJSON on the sphere, legacy coordinates on the plane.

mod cover;
mod edges;
mod exact;
mod flat;
mod line;
mod near;
mod parse;
mod plane_cells;
mod polygon;
mod query;
mod relate;
mod ring;
mod shape;
mod sphere_cells;
mod values;
mod wedge;

#[cfg(test)]
mod tests;

pub(crate) use near::{Near, is_near};
pub(crate) use query::GeoPredicate;
pub(crate) use values::values_at;
