//! Fields that MongoDB has and this node does not: a wrong type is told first, then that they are not supported.

use pinion_wire::Result;
use pinion_wire::idl::FieldReader;

use super::collections::is_simple_collation;

/// Refuses `collation`, unless it asks for the simple one.
pub(super) fn collation(reader: &FieldReader<'_, '_>) -> Result<()> {
    reader.opt_doc("collation")?;
    reader.unsupported_unless("collation", is_simple_collation)
}
