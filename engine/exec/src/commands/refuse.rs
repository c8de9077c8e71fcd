//! Fields that MongoDB has and this node does not: a wrong type is told first, then that they are not supported.

use pinion_bson::RawBsonRef;
use pinion_wire::Result;
use pinion_wire::idl::FieldReader;

/// Refuses `collation`, unless it asks for the simple one.
pub(super) fn collation(reader: &FieldReader<'_, '_>) -> Result<()> {
    reader.opt_doc("collation")?;
    reader.unsupported_unless("collation", is_simple_collation)
}

fn is_simple_collation(value: RawBsonRef<'_>) -> bool {
    let RawBsonRef::Document(collation) = value else {
        return false;
    };
    let locale = collation.get_str("locale");
    collation.is_empty() || locale.is_ok_and(|locale| locale == "simple")
}
