//! Metrics as rows of a table: what each counts, in which unit, and where it is shown.
//!
//! A row names the place of its metric in `serverStatus` and reads it off a source, a snapshot of
//! figures of any type. What prints metrics knows rows alone, so a metric is written down once for
//! all of them.

mod row;
mod section;

pub use row::{Kind, Row, Unit, Value};
pub use section::{append_fields, append_section, describe};
