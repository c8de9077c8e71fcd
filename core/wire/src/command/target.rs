//! What a command is on, as far as its body and its row say it.

use pinion_bson::{RawBsonRef, RawDocument};

use super::spec::{CommandNamespace, CommandSpec};

/// The collection that a command names. The first field of one that names none there counts too if
/// it is a text: logs and `currentOp` show it.
pub fn collection_named<'d>(spec: &CommandSpec, body: &'d RawDocument) -> Option<&'d str> {
    let name = match spec.namespace {
        CommandNamespace::CollectionField => pinion_bson::get(body, "collection"),
        _ => pinion_bson::elements(body).next().map(|(_, value)| value),
    };
    match name {
        Some(RawBsonRef::String(collection)) => Some(collection),
        _ => None,
    }
}

/// The namespace that a command is on; that of the database's commands where it names no
/// collection.
pub fn namespace_named(spec: &CommandSpec, db: &str, body: &RawDocument) -> String {
    let collection = collection_named(spec, body).unwrap_or("$cmd");
    // Cheaper than formatting, and every command does it.
    [db, ".", collection].concat()
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn namespaces() {
        let check = |namespace: CommandNamespace, body: &RawDocument, expected: &str| {
            let spec = CommandSpec {
                namespace,
                ..CommandSpec::of_task("x")
            };
            assert_eq!(namespace_named(&spec, "d", body), expected);
        };
        let first = CommandNamespace::FirstField;
        check(first, &rawdoc! { "find": "c" }, "d.c");
        check(first, &rawdoc! { "aggregate": 1 }, "d.$cmd");
        check(CommandNamespace::None, &rawdoc! { "ping": 1 }, "d.$cmd");
        check(CommandNamespace::None, &rawdoc! { "ping": "x" }, "d.x");
        let field = CommandNamespace::CollectionField;
        let body = rawdoc! { "getMore": 7i64, "collection": "c" };
        check(field, &body, "d.c");
        check(field, &rawdoc! { "getMore": "x" }, "d.$cmd");
    }
}
