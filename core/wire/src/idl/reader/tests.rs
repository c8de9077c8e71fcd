//! Table tests of the field reader.

use pinion_bson::{Binary, RawBson, RawDocumentBuf, cstr, rawdoc};

use super::*;

fn check<T: std::fmt::Debug + PartialEq>(
    document: RawDocumentBuf,
    read: impl FnOnce(&CommandReader<'_>) -> Result<T>,
    expected: std::result::Result<T, (i32, &str)>,
) {
    let reader = CommandReader::new("find", &document);
    let outcome =
        reader.and_then(|reader| read(&reader).and_then(|value| reader.finish().map(|()| value)));
    match (outcome, expected) {
        (Ok(value), Ok(expected)) => assert_eq!(value, expected, "{document:?}"),
        (Err(error), Err((code, message))) => {
            assert_eq!(
                (error.code.0, error.message.as_str()),
                (code, message),
                "{document:?}"
            );
        }
        (outcome, expected) => panic!("{document:?}: {outcome:?} instead of {expected:?}"),
    }
}

#[test]
fn unknown_missing_duplicate() {
    check(
        rawdoc! { "find": "c", "foo": 1 },
        |r| r.str("find").map(str::to_owned),
        Err((40415, "BSON field 'find.foo' is an unknown field.")),
    );
    check(
        rawdoc! { "$db": "x", "lsid": {}, "maxTimeMS": 1 },
        |_| Ok(()),
        Ok(()),
    );
    check(
        rawdoc! {},
        |r| r.doc("filter").map(|_| ()),
        Err((
            40414,
            "BSON field 'find.filter' is missing but a required field",
        )),
    );
    let mut twice = rawdoc! { "limit": 1 };
    twice.append(cstr!("limit"), 2);
    check(
        twice,
        |r| r.opt_i64("limit"),
        Err((40413, "BSON field 'find.limit' is a duplicate field")),
    );
}

#[test]
fn types() {
    let wrong_number = "BSON field 'find.limit' is the wrong type 'string', expected types '[long, int, decimal, double']";
    check(
        rawdoc! { "limit": "x" },
        |r| r.opt_i64("limit"),
        Err((14, wrong_number)),
    );
    check(
        rawdoc! { "limit": "x" },
        |r| r.opt_i32("limit"),
        Err((14, wrong_number)),
    );
    check(
        rawdoc! { "limit": RawBson::Null },
        |r| r.opt_i64("limit"),
        Ok(None),
    );
    check(
        rawdoc! { "limit": 2.7 },
        |r| r.opt_i64("limit"),
        Ok(Some(2)),
    );
    check(
        rawdoc! { "limit": 5_000_000_000i64 },
        |r| r.opt_i32("limit"),
        Ok(Some(i32::MAX)),
    );
    check(
        rawdoc! { "filter": "x" },
        |r| r.opt_doc("filter").map(|d| d.is_some()),
        Err((
            14,
            "BSON field 'find.filter' is the wrong type 'string', expected type 'object'",
        )),
    );
    check(
        rawdoc! { "filter": [] },
        |r| r.opt_owned_doc("filter").map(|d| d.is_some()),
        Err((14, "Expected field filterto be of type object")),
    );
    check(
        rawdoc! { "ordered": 1 },
        |r| r.opt_bool("ordered"),
        Err((
            14,
            "BSON field 'find.ordered' is the wrong type 'int', expected type 'bool'",
        )),
    );
    check(
        rawdoc! { "multi": 0.0 },
        |r| r.opt_safe_bool("multi"),
        Ok(Some(false)),
    );
    check(
        rawdoc! { "multi": {} },
        |r| r.opt_safe_bool("multi"),
        Err((
            14,
            "BSON field 'find.multi' is the wrong type 'object', expected types '[bool, long, int, decimal, double']",
        )),
    );
    check(
        rawdoc! { "tailable": RawBson::Null },
        |r| r.opt_flag("tailable"),
        Err((
            14,
            "Field 'tailable' should be a boolean value, but found: null",
        )),
    );
    check(
        rawdoc! { "tailable": 1 },
        |r| r.opt_flag("tailable"),
        Err((
            14,
            "Field 'tailable' should be a boolean value, but found: int",
        )),
    );
    check(
        rawdoc! { "txn": 1 },
        |r| r.opt_long("txn"),
        Err((
            14,
            "BSON field 'find.txn' is the wrong type 'int', expected type 'long'",
        )),
    );
    check(
        rawdoc! { "u": Binary { subtype: BinarySubtype::Generic, bytes: vec![0; 16] } },
        |r| r.opt_uuid("u"),
        Err((
            14,
            "BSON field 'find.u' is the wrong binData type 'general', expected type 'UUID'",
        )),
    );
}

#[test]
fn bounds_and_enumerations() {
    check(
        rawdoc! { "limit": -1 },
        |r| r.opt_non_negative("limit"),
        Err((
            2,
            "BSON field 'limit' value must be >= 0, actual value '-1'",
        )),
    );
    check(
        rawdoc! { "n": 7i64 },
        |r| r.opt_between("n", 0, 5),
        Err((2, "BSON field 'n' value must be <= 5, actual value '7'")),
    );
    let values = [("off", 0), ("on", 1)];
    check(
        rawdoc! { "mode": "on" },
        |r| r.opt_one_of("mode", &values),
        Ok(Some(1)),
    );
    check(
        rawdoc! { "mode": "On" },
        |r| r.opt_one_of("mode", &values),
        Err((
            2,
            "Enumeration value 'On' for field 'find.mode' is not a valid value.",
        )),
    );
}

#[test]
fn collections() {
    check(
        rawdoc! { "find": "c" },
        |r| r.namespace("find", "test").map(|n| n.to_string()),
        Ok("test.c".into()),
    );
    check(
        rawdoc! { "find": 1 },
        |r| r.namespace("find", "test").map(|n| n.to_string()),
        Err((73, "collection name has invalid type int")),
    );
    check(
        rawdoc! { "find": "" },
        |r| r.namespace("find", "test").map(|n| n.to_string()),
        Err((73, "Invalid namespace specified 'test.'")),
    );
}

#[test]
fn below() {
    check(
        rawdoc! { "cursor": { "batchSize": 3, "x": 1 } },
        |r| match r.opt_object("cursor")? {
            Some(cursor) => {
                let size = cursor.opt_non_negative("batchSize")?;
                cursor.finish()?;
                Ok(size)
            }
            None => Ok(None),
        },
        Err((40415, "BSON field 'find.cursor.x' is an unknown field.")),
    );
    let statements = |r: &CommandReader<'_>| {
        let mut found = Vec::new();
        let objects = r.opt_objects("updates")?.expect("updates");
        let path = objects.path();
        for object in objects {
            let (index, document) = object?;
            let path = path.index(index);
            let statement = FieldReader::object(path, document)?;
            statement.doc("q")?;
            found.push(statement.opt_safe_bool("multi")?);
            statement.finish()?;
        }
        Ok(found)
    };
    check(
        rawdoc! { "updates": [ { "q": {} }, { "q": {}, "multi": 1 } ] },
        statements,
        Ok(vec![None, Some(true)]),
    );
    check(
        rawdoc! { "updates": [ { "q": {} }, 5 ] },
        statements,
        Err((
            14,
            "BSON field 'find.updates.1' is the wrong type 'int', expected type 'object'",
        )),
    );
    check(
        rawdoc! { "updates": [ { "q": {} }, { "multi": true } ] },
        statements,
        Err((
            40414,
            "BSON field 'find.updates.1.q' is missing but a required field",
        )),
    );
    check(
        rawdoc! { "updates": [ { "q": 1 } ] },
        statements,
        Err((
            14,
            "BSON field 'find.updates.0.q' is the wrong type 'int', expected type 'object'",
        )),
    );
}

#[test]
fn unsupported() {
    check(
        rawdoc! { "collation": { "locale": "fr" } },
        |r| r.unsupported("collation", Types::OBJECT),
        Err((
            238,
            "BSON field 'find.collation' is not supported by this server",
        )),
    );
    check(
        rawdoc! { "collation": {} },
        |r| r.unsupported_unless_empty("collation", Types::OBJECT),
        Ok(()),
    );
    check(
        rawdoc! { "capped": false },
        |r| r.unsupported_unless_empty("capped", Types::BOOL),
        Ok(()),
    );
    check(
        rawdoc! { "capped": true },
        |r| r.unsupported_unless_empty("capped", Types::BOOL),
        Err((
            238,
            "BSON field 'find.capped' is not supported by this server",
        )),
    );
    check(
        rawdoc! { "capped": 0 },
        |r| r.unsupported_unless_empty("capped", Types::BOOL),
        Err((
            14,
            "BSON field 'find.capped' is the wrong type 'int', expected type 'bool'",
        )),
    );
    check(
        rawdoc! { "x": 1, "y": 2 },
        |r| {
            r.ignore(&["x", "y"]);
            Ok(())
        },
        Ok(()),
    );
}

#[test]
fn a_document_of_many_fields() {
    // Some hundred are looked up in a table, and one that stands there twice is found.
    for (first, second) in [(0, 1), (3, 31), (3, 32), (31, 32), (5, 500), (400, 900)] {
        let mut document = RawDocumentBuf::new();
        for at in 0..=second {
            let at = if at == second { first } else { at };
            let name = pinion_bson::CString::try_from(format!("f{at}")).expect("no null byte");
            document.append(name, 1);
        }
        let message = format!("BSON field 'find.f{first}' is a duplicate field");
        check(document, |_| Ok(()), Err((40413, &message)));
    }
    // Of far too many the first duplicate is reported, or the first that is never asked for,
    // without reading all.
    let mut builder = pinion_bson::DocBuilder::new();
    builder.append("find", "c");
    for at in 0..2_000_000 {
        builder.append("x", at);
    }
    let reader = CommandReader::new("find", &builder.finish()).map(|_| ());
    assert_eq!(reader.map_err(|error| error.code.0), Err(40413));
    let mut builder = pinion_bson::DocBuilder::new();
    builder.append("find", "c");
    for at in 0..200_000 {
        builder.append(&format!("f{at}"), at);
    }
    check(
        builder.finish(),
        |r| r.str("find").map(str::to_owned),
        Err((40415, "BSON field 'find.f0' is an unknown field.")),
    );
}
