//! `hint`.

use pinion_bson::RawBsonRef;
use pinion_query::Hint;
use pinion_wire::Result;
use pinion_wire::idl::FieldReader;

/// Reads the option `hint`: the name of an index, its key, or `$natural`. An empty document names
/// none. A mongos of MongoDB 4.4, where the command may be `of_mongos`, has the name in a document:
/// `{$hint: <name>}`.
///
/// # Errors
/// It is none of these.
pub fn hint(reader: &FieldReader<'_, '_>, of_mongos: bool) -> Result<Option<Hint>> {
    let Some(value) = reader.value("hint") else {
        return Ok(None);
    };
    let name = match value {
        RawBsonRef::Document(hint) if of_mongos => pinion_bson::get(hint, "$hint"),
        _ => None,
    };
    Hint::parse(name.unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};
    use pinion_wire::idl::CommandReader;

    use super::*;

    fn read(hint_of: RawDocumentBuf, of_mongos: bool) -> Result<Option<Hint>> {
        let command = rawdoc! { "find": "c", "hint": hint_of };
        hint(&CommandReader::new("find", &command)?, of_mongos)
    }

    #[test]
    fn names_as_mongos_sends_them() {
        let named = || rawdoc! { "$hint": "a_1" };
        assert!(matches!(read(named(), true), Ok(Some(Hint::Name(name))) if name == "a_1"));
        assert!(read(named(), false).is_err());
        assert!(matches!(
            read(rawdoc! { "a": 1 }, true),
            Ok(Some(Hint::Pattern(_)))
        ));
    }
}
