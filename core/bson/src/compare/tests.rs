//! The order of values, shown on one ladder of ascending groups.

use super::*;
use bson::raw::{CString, RawJavaScriptCodeWithScope};
use bson::spec::BinarySubtype;
use bson::{
    Binary, DateTime, Decimal128, RawBson, Regex, Timestamp, oid::ObjectId, rawbson, rawdoc,
};

use crate::DocBuilder;

fn decimal(text: &str) -> RawBson {
    RawBson::Decimal128(text.parse::<Decimal128>().expect("a decimal"))
}

fn binary(subtype: u8, bytes: &[u8]) -> RawBson {
    RawBson::Binary(Binary {
        subtype: BinarySubtype::from(subtype),
        bytes: bytes.to_vec(),
    })
}

fn regex(pattern: &str, options: &str) -> RawBson {
    let cstring = |s: &str| CString::try_from(s).expect("no NUL");
    RawBson::RegularExpression(Regex {
        pattern: cstring(pattern),
        options: cstring(options),
    })
}

fn db_pointer(namespace: &str, id: [u8; 12]) -> RawBson {
    let mut builder = DocBuilder::new();
    builder.append_view(
        "p",
        View::DbPointer {
            namespace: namespace.as_bytes(),
            id,
        },
    );
    let document = builder.finish();
    let value = document.get("p").expect("well formed").expect("present");
    value.into()
}

fn code(code: &str, scope: bson::RawDocumentBuf) -> RawBson {
    RawBson::JavaScriptCodeWithScope(RawJavaScriptCodeWithScope {
        code: code.to_owned(),
        scope,
    })
}

/// Groups of equal values, ascending.
pub(crate) fn ladder() -> Vec<Vec<RawBson>> {
    let oid = |b: u8| RawBson::ObjectId(ObjectId::from_bytes([b; 12]));
    let time = |time, increment| RawBson::Timestamp(Timestamp { time, increment });
    vec![
        vec![RawBson::MinKey],
        vec![RawBson::Undefined],
        vec![RawBson::Null],
        vec![
            rawbson!(f64::NAN),
            rawbson!(-f64::NAN),
            decimal("NaN"),
            decimal("-NaN"),
        ],
        vec![rawbson!(f64::NEG_INFINITY), decimal("-Infinity")],
        vec![decimal("-9.999999999999999999999999999999999E+6144")],
        vec![rawbson!(f64::MIN)],
        vec![decimal("-9223372036854775809")],
        vec![
            rawbson!(i64::MIN),
            rawbson!(-9_223_372_036_854_775_808.0),
            decimal("-9223372036854775808"),
        ],
        vec![rawbson!(i64::MIN + 1)],
        vec![rawbson!(-9_007_199_254_740_993i64)],
        vec![
            rawbson!(-9_007_199_254_740_992i64),
            rawbson!(-9_007_199_254_740_992.0),
        ],
        vec![rawbson!(-1.5), decimal("-1.5")],
        vec![
            rawbson!(-1i32),
            rawbson!(-1i64),
            rawbson!(-1.0),
            decimal("-1"),
            decimal("-1.000"),
        ],
        vec![rawbson!(-5e-324)],
        vec![decimal("-1E-6176")],
        vec![
            rawbson!(0i32),
            rawbson!(0i64),
            rawbson!(0.0),
            rawbson!(-0.0),
            decimal("0"),
            decimal("-0E+3"),
        ],
        vec![decimal("1E-6176")],
        vec![rawbson!(5e-324)],
        vec![decimal("0.1")],
        vec![decimal("0.1000000000000000055511151231257827")],
        vec![rawbson!(0.1)],
        vec![decimal("0.1000000000000000055511151231257828")],
        vec![
            rawbson!(1i32),
            rawbson!(1i64),
            rawbson!(1.0),
            decimal("1"),
            decimal("1.0"),
        ],
        vec![rawbson!(1.0 + f64::EPSILON)],
        vec![
            rawbson!(i32::MAX),
            rawbson!(i64::from(i32::MAX)),
            rawbson!(f64::from(i32::MAX)),
        ],
        vec![
            rawbson!(9_007_199_254_740_992i64),
            rawbson!(9_007_199_254_740_992.0),
        ],
        vec![
            rawbson!(9_007_199_254_740_993i64),
            decimal("9007199254740993"),
        ],
        vec![
            rawbson!(9_007_199_254_740_994i64),
            rawbson!(9_007_199_254_740_994.0),
        ],
        vec![rawbson!(i64::MAX), decimal("9223372036854775807")],
        vec![
            rawbson!(9_223_372_036_854_775_808.0),
            decimal("9223372036854775808"),
        ],
        vec![rawbson!(f64::MAX)],
        vec![decimal("1E+6144")],
        vec![rawbson!(f64::INFINITY), decimal("Infinity")],
        vec![rawbson!(""), RawBson::Symbol(String::new())],
        vec![rawbson!("\0")],
        vec![rawbson!("a"), RawBson::Symbol("a".into())],
        vec![rawbson!("a\0")],
        vec![rawbson!("a\0b")],
        vec![rawbson!("ab")],
        vec![rawbson!("b")],
        vec![rawbson!("é")],
        vec![rawbson!({})],
        // The type of the first field outranks its name.
        vec![rawbson!({ "b": 1 }), rawbson!({ "b": 1.0 })],
        vec![rawbson!({ "b": 1, "a": 1 })],
        vec![rawbson!({ "b": 2 })],
        vec![rawbson!({ "c": 0 })],
        vec![rawbson!({ "a": "x" })],
        vec![rawbson!({ "a": {} })],
        vec![rawbson!([])],
        vec![rawbson!([1]), rawbson!([1.0])],
        vec![rawbson!([1, 1])],
        vec![rawbson!([2])],
        vec![rawbson!(["a"])],
        vec![rawbson!([[]])],
        vec![binary(0, b"")],
        vec![binary(128, b"")],
        vec![binary(0, b"b")],
        vec![binary(5, b"a")],
        vec![binary(0, b"aaaaa")],
        // The repeated length of subtype 2 counts.
        vec![binary(2, b"a")],
        vec![binary(0, b"aaaaaa")],
        vec![oid(0)],
        vec![oid(255)],
        vec![rawbson!(false)],
        vec![rawbson!(true)],
        vec![RawBson::DateTime(DateTime::MIN)],
        vec![RawBson::DateTime(DateTime::from_millis(-1))],
        vec![RawBson::DateTime(DateTime::from_millis(0))],
        vec![RawBson::DateTime(DateTime::MAX)],
        vec![time(0, 0)],
        vec![time(1, u32::MAX)],
        vec![time(2, 0)],
        vec![time(u32::MAX, 0)],
        vec![regex("", "")],
        vec![regex("a", "")],
        vec![regex("a", "i")],
        vec![regex("ab", "")],
        vec![db_pointer("b", [0; 12])],
        vec![db_pointer("b", [1; 12])],
        vec![db_pointer("aa", [0; 12])],
        vec![RawBson::JavaScriptCode("a".into())],
        vec![RawBson::JavaScriptCode("b".into())],
        vec![code("a", rawdoc! {})],
        vec![code("a", rawdoc! { "a": 1 })],
        vec![code("b", rawdoc! {})],
        vec![RawBson::MaxKey],
    ]
}

#[test]
fn every_pair_of_the_ladder() {
    let ladder = ladder();
    for (i, group) in ladder.iter().enumerate() {
        for (j, other) in ladder.iter().enumerate() {
            for a in group {
                for b in other {
                    let (a, b) = (a.as_raw_bson_ref(), b.as_raw_bson_ref());
                    assert_eq!(compare_values(a, b), i.cmp(&j), "{a:?} {b:?}");
                    let (x, y) = (rawdoc! { "f": a }, rawdoc! { "f": b });
                    assert_eq!(
                        compare_documents(&x, &y),
                        i.cmp(&j),
                        "in a document: {a:?} {b:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn names_of_array_fields_do_not_matter() {
    let (a, b) = (rawdoc! { "0": 1 }, rawdoc! { "7": 1 });
    let (a, b) = (crate::array_of(&a), crate::array_of(&b));
    assert_eq!(
        compare_values(RawBsonRef::Array(a), RawBsonRef::Array(b)),
        Ordering::Equal
    );
}

#[test]
fn documents_deeper_than_any_stack_are_ordered_too() {
    let nested = |innermost: i32| {
        let mut document = rawdoc! { "x": innermost };
        for _ in 0..5_000 {
            document = rawdoc! { "a": document };
        }
        document
    };
    assert_eq!(compare_documents(&nested(1), &nested(2)), Ordering::Less);
}
