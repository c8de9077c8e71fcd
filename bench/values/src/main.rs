//! Nanoseconds per key: encoding, decoding and comparing KeyStrings, beside validating and
//! comparing raw BSON.
//!
//! Each line is the best of several rounds over the same generated inputs, on one core:
//! `cargo run --release -p pinion-bench-values`.

use std::hint::black_box;
use std::time::Instant;

use pinion_bson::testing::{self, Rng};
use pinion_bson::{
    Decimal128, DocBuilder, ObjectId, RawBson, RawBsonRef, RawDocumentBuf, compare_documents,
    compare_values, elements, raw_elements, rawbson, rawdoc, validate,
};
use pinion_keystring::{Builder, KeyString, Ordering, decode, encode_id, encode_index_entry};

/// Inputs in each round: enough to leave the branch predictor guessing, few enough to stay in the
/// cache.
const INPUTS: usize = 4096;
const ROUNDS: usize = 64;

/// Makes one value of a kind.
type Make = fn(&mut Rng) -> RawBson;

fn main() {
    let mut rng = Rng::new(1);
    println!("{:<44} {:>10} {:>10}", "operation", "ns", "bytes/key");
    let kinds: [(&str, Make); 8] = [
        ("int32", |rng| rawbson!(rng.next_u64() as i32)),
        ("int64", |rng| rawbson!(rng.next_u64() as i64 >> 1)),
        ("double", |rng| {
            rawbson!(rng.below(1_000_000_000) as f64 / 1000.0)
        }),
        ("decimal, 2 places", |rng| {
            decimal(&format!("{}.{:02}", rng.below(1_000_000), rng.below(100)))
        }),
        ("decimal, 34 digits", |rng| {
            decimal(&format!(
                "{}.{:016}{:016}",
                rng.below(99),
                rng.below(1 << 50),
                rng.below(1 << 50)
            ))
        }),
        ("string, 16 bytes", |rng| {
            rawbson!(format!("{:016x}", rng.next_u64()))
        }),
        ("ObjectId", |rng| RawBson::ObjectId(object_id(rng))),
        (
            "document, 3 fields",
            |rng| rawbson!({ "a": rng.next_u64() as i32, "name": format!("{:08x}", rng.next_u64() as u32), "c": true }),
        ),
    ];
    for (name, make) in kinds {
        let values: Vec<RawBson> = (0..INPUTS).map(|_| make(&mut rng)).collect();
        bench_values(name, &values);
    }
    bench_compound(&mut rng);
    bench_documents(&mut rng);
}

fn bench_values(name: &str, values: &[RawBson]) {
    let refs: Vec<RawBsonRef<'_>> = values.iter().map(RawBson::as_raw_bson_ref).collect();
    let keys: Vec<KeyString> = refs
        .iter()
        .map(|v| Builder::new(Ordering::ascending()).append(*v).finish())
        .collect();
    let bytes = keys.iter().map(|k| k.bytes.len()).sum::<usize>() as f64 / INPUTS as f64;

    let mut builder = Builder::new(Ordering::ascending());
    report(&format!("{name}: encode"), bytes, || {
        for value in &refs {
            builder.reset().append(*value).end();
            black_box(builder.bytes());
        }
    });
    let mut builder = Builder::new(Ordering::from_bits(1));
    report(&format!("{name}: encode descending"), bytes, || {
        for value in &refs {
            builder.reset().append(*value).end();
            black_box(builder.bytes());
        }
    });
    report(&format!("{name}: encode_id"), bytes, || {
        for value in &refs {
            black_box(encode_id(*value));
        }
    });
    report(&format!("{name}: decode"), bytes, || {
        for key in &keys {
            black_box(decode(&key.bytes, Ordering::ascending(), &key.type_bits).expect("a key"));
        }
    });
    report(&format!("{name}: compare keys"), bytes, || {
        for pair in keys.windows(2) {
            black_box(pair[0].bytes.cmp(&pair[1].bytes));
        }
    });
    report(&format!("{name}: compare BSON"), bytes, || {
        for pair in refs.windows(2) {
            black_box(compare_values(pair[0], pair[1]));
        }
    });
}

/// An index on an ascending string and a descending integer, as the executor writes it.
fn bench_compound(rng: &mut Rng) {
    let documents: Vec<RawDocumentBuf> = (0..INPUTS)
        .map(|_| {
            rawdoc! { "_id": object_id(rng), "name": format!("user{:06}", rng.below(1000)), "age": rng.below(100) as i32 }
        })
        .collect();
    let fields: Vec<[RawBsonRef<'_>; 3]> = documents
        .iter()
        .map(|d| {
            let mut values = elements(d).map(|(_, value)| value);
            [values.next(), values.next(), values.next()].map(|v| v.expect("three fields"))
        })
        .collect();
    let ordering = Ordering::from_bits(0b10);
    let entries: Vec<_> = fields
        .iter()
        .map(|f| encode_index_entry(&f[1..], ordering, f[0]))
        .collect();
    let bytes = entries.iter().map(|e| e.key.len()).sum::<usize>() as f64 / INPUTS as f64;
    report(
        "index entry (string, int descending): encode",
        bytes,
        || {
            for f in &fields {
                black_box(encode_index_entry(&f[1..], ordering, f[0]));
            }
        },
    );
    report("index entry: compare", bytes, || {
        for pair in entries.windows(2) {
            black_box(pair[0].key.cmp(&pair[1].key));
        }
    });
    report("the same fields: compare BSON", bytes, || {
        for pair in fields.windows(2) {
            let order = compare_values(pair[0][1], pair[1][1])
                .then_with(|| compare_values(pair[0][2], pair[1][2]).reverse())
                .then_with(|| compare_values(pair[0][0], pair[1][0]));
            black_box(order);
        }
    });
}

/// Whole documents of about 300 bytes, and mixed ones from the generator of the tests.
fn bench_documents(rng: &mut Rng) {
    let flat: Vec<RawDocumentBuf> = (0..INPUTS).map(|_| flat_document(rng)).collect();
    let mixed: Vec<RawDocumentBuf> = (0..INPUTS).map(|_| testing::document(rng)).collect();
    for (name, documents) in [("document, 10 fields", flat), ("generated document", mixed)] {
        let bytes =
            documents.iter().map(|d| d.as_bytes().len()).sum::<usize>() as f64 / INPUTS as f64;
        report(&format!("{name}: validate"), bytes, || {
            for document in &documents {
                black_box(validate(document.as_bytes()).expect("valid"));
            }
        });
        report(&format!("{name}: elements"), bytes, || {
            for document in &documents {
                black_box(elements(document).count());
            }
        });
        report(&format!("{name}: raw elements"), bytes, || {
            for document in &documents {
                black_box(raw_elements(document).count());
            }
        });
        report(&format!("{name}: compare"), bytes, || {
            for pair in documents.windows(2) {
                black_box(compare_documents(&pair[0], &pair[1]));
            }
        });
    }
}

fn flat_document(rng: &mut Rng) -> RawDocumentBuf {
    let mut builder = DocBuilder::new();
    builder.append("_id", object_id(rng));
    for i in 0..3 {
        builder.append(
            &format!("text{i}"),
            format!("{:032x}", rng.next_u64()).as_str(),
        );
        builder.append(&format!("number{i}"), rng.next_u64() as i64);
        builder.append(&format!("flag{i}"), rng.below(2) == 0);
    }
    builder.finish()
}

fn object_id(rng: &mut Rng) -> ObjectId {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&rng.next_u64().to_be_bytes());
    ObjectId::from_bytes(bytes)
}

fn decimal(text: &str) -> RawBson {
    RawBson::Decimal128(text.parse::<Decimal128>().expect("a decimal"))
}

/// Prints the best time of one input.
fn report(name: &str, bytes: f64, mut round: impl FnMut()) {
    #[allow(
        clippy::disallowed_methods,
        reason = "a benchmark outside a node measures real time"
    )]
    let now = Instant::now;
    let best = (0..ROUNDS)
        .map(|_| {
            let start = now();
            round();
            start.elapsed().as_nanos() as f64 / INPUTS as f64
        })
        .fold(f64::INFINITY, f64::min);
    println!("{name:<44} {best:>10.1} {bytes:>10.1}");
}
