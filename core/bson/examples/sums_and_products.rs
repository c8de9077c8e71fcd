//! Prints generated pairs of numbers with their sum and product, for `tools/order-check`:
//! `sums_and_products SEED COUNT` writes one BSON document after another to the standard output.

use std::io::Write;

use pinion_bson::testing::{self, Rng};
use pinion_bson::{Decimal, DocBuilder, JsonMode, Number, value_to_json};

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|a| a.parse::<u64>().expect("a number"));
    let mut rng = Rng::new(arguments.next().unwrap_or(1));
    let count = arguments.next().unwrap_or(1000);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for id in 0..count as i32 {
        let (a, b) = testing::number_pair(&mut rng);
        let (a, b) = (plain(a), plain(b));
        let json = |n: Number| value_to_json(n.to_value(), JsonMode::Canonical);
        let mut builder = DocBuilder::new();
        builder.append("id", id);
        builder.append("text", format!("{} and {}", json(a), json(b)).as_str());
        builder
            .start_document("stored")
            .append("_id", id)
            .append("a", a.to_value())
            .end();
        builder
            .start_document("operand")
            .append("a", b.to_value())
            .end();
        for (name, result) in [("$inc", a.checked_add(b)), ("$mul", a.checked_mul(b))] {
            if let Some(result) = result {
                // An update that leaves type and value changes nothing, not even an exponent.
                let same = result.kind() == a.kind() && result.compare(a).is_eq();
                let result = if same { a } else { result };
                builder
                    .start_document(name)
                    .append("_id", id)
                    .append("a", result.to_value())
                    .end();
            }
        }
        out.write_all(builder.finish().as_bytes())?;
    }
    out.flush()
}

/// Sign and payload of a NaN are not defined by the documentation and not kept by Pinion.
fn plain(number: Number) -> Number {
    match number {
        Number::Double(_) if number.is_nan() => Number::Double(f64::NAN),
        Number::Decimal(_) if number.is_nan() => Number::Decimal(Decimal::Nan.pack()),
        other => other,
    }
}
