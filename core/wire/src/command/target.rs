//! What a command is on, as far as its body says that to anybody.

use pinion_bson::{RawBsonRef, RawDocument};

/// The collection that a command names: in its first field, or a `getMore` in its second.
pub fn collection_named<'d>(command: &str, body: &'d RawDocument) -> Option<&'d str> {
    let name = match command {
        "getMore" => pinion_bson::get(body, "collection"),
        _ => pinion_bson::elements(body).next().map(|(_, value)| value),
    };
    match name {
        Some(RawBsonRef::String(collection)) => Some(collection),
        _ => None,
    }
}

/// The namespace that a command is on; that of the database's commands where it names no
/// collection.
pub fn namespace_named(command: &str, db: &str, body: &RawDocument) -> String {
    let collection = collection_named(command, body).unwrap_or("$cmd");
    // Cheaper than formatting, and every command does it.
    [db, ".", collection].concat()
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn namespaces() {
        let check = |command: &str, body: &RawDocument, expected: &str| {
            assert_eq!(namespace_named(command, "d", body), expected);
        };
        check("find", &rawdoc! { "find": "c" }, "d.c");
        check("ping", &rawdoc! { "ping": 1 }, "d.$cmd");
        check(
            "getMore",
            &rawdoc! { "getMore": 7i64, "collection": "c" },
            "d.c",
        );
        check("getMore", &rawdoc! { "getMore": "x" }, "d.$cmd");
    }
}
