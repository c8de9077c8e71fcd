//! The server parameters of what this crate owns.

use pinion_service::parameters::Row;

/// The rows of this crate.
pub fn parameter_rows() -> Vec<Row> {
    crate::ttl::ROWS.to_vec()
}
