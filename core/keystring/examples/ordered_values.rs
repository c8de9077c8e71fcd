//! Prints generated values with their place in Pinion's order and their KeyString, for
//! `tools/order-check`: `ordered_values SEED COUNT` writes one BSON document after another to the
//! standard output.

use std::io::Write;

use pinion_bson::testing::{self, Rng};
use pinion_bson::{
    BinarySubtype, DocBuilder, JsonMode, RawBinaryRef, RawBson, RawDocumentBuf, compare_values,
    value_to_json,
};
use pinion_keystring::{Builder, KeyString, Ordering};

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|a| a.parse::<u64>().expect("a number"));
    let mut rng = Rng::new(arguments.next().unwrap_or(1));
    let count = arguments.next().unwrap_or(1000);
    let mut values: Vec<RawBson> = Vec::new();
    for _ in 0..count.div_ceil(2) {
        let (a, b) = testing::pair(&mut rng);
        values.extend([a, b]);
    }
    let mut order: Vec<usize> = (0..values.len()).collect();
    let compare = |a: usize, b: usize| {
        compare_values(values[a].as_raw_bson_ref(), values[b].as_raw_bson_ref())
    };
    order.sort_by(|a, b| compare(*a, *b));

    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut rank = 0;
    for (place, &index) in order.iter().enumerate() {
        if place > 0 && compare(order[place - 1], index).is_ne() {
            rank += 1;
        }
        out.write_all(describe(index as i32, rank, &values[index]).as_bytes())?;
    }
    out.flush()
}

/// The document to store; where Pinion puts it; and the end of its resume token if its `_id` is
/// `{ n, v }`.
fn describe(id: i32, rank: i32, value: &RawBson) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    let text = value_to_json(value.as_raw_bson_ref(), JsonMode::Canonical);
    out.append("id", id)
        .append("rank", rank)
        .append("text", text.as_str());
    out.start_document("sorted").append("_id", id);
    out.start_document("v")
        .append_raw("w", value.as_raw_bson_ref())
        .end()
        .end();
    out.start_document("keyed")
        .start_document("_id")
        .append("n", id);
    out.append_raw("v", value.as_raw_bson_ref()).end().end();
    let KeyString { bytes, type_bits } = resume_token_end(id, value);
    let binary = |bytes| RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes,
    };
    out.append("key", binary(bytes.as_slice()));
    out.append("typeBits", binary(type_bits.as_bytes().as_slice()));
    out.finish()
}

/// A resume token of MongoDB 4.4 is a KeyString whose only components with type bits are three
/// int32 values and then the document's key.
fn resume_token_end(id: i32, value: &RawBson) -> KeyString {
    let mut key = DocBuilder::new();
    key.start_document("_id")
        .append("n", id)
        .append_raw("v", value.as_raw_bson_ref())
        .end();
    let mut builder = Builder::new(Ordering::ascending());
    for _ in 0..3 {
        builder.append(0.into());
    }
    let header = builder.bytes().len();
    let document = key.finish();
    builder.append((&document).into());
    let mut whole = builder.finish();
    whole.bytes.drain(..header);
    whole
}
