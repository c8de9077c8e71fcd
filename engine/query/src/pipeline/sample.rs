//! `$sample`: a number of documents chosen at random, in random order.

use pinion_bson::{Number, RawBsonRef};
use pinion_wire::Result;

use crate::error::error;
use crate::expression::{Random, Variables};
use crate::text::value_text;
use crate::value::{elements, type_name};

/// The stage's parsed specification.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub size: usize,
    pub random: Random,
    /// The documents leave with the number that each was drawn by: others merge them by that.
    pub gives_numbers: bool,
}

impl Sample {
    pub(super) fn parse(spec: RawBsonRef<'_>, variables: &Variables) -> Result<Sample> {
        let RawBsonRef::Document(spec) = spec else {
            return Err(error(
                28745,
                format!(
                    "the $sample stage specification must be an object, found {}",
                    type_name(spec)
                ),
            ));
        };
        let mut size = None;
        for (name, value) in elements(spec) {
            if name != "size" {
                return Err(error(
                    28748,
                    format!("unrecognized option to $sample: {name}"),
                ));
            }
            size = Some(parse_size(value)?);
        }
        Ok(Sample {
            size: size.ok_or_else(|| error(28749, "$sample stage must specify a size"))?,
            random: variables.random.clone(),
            gives_numbers: false,
        })
    }
}

fn parse_size(value: RawBsonRef<'_>) -> Result<usize> {
    let Some(number) = Number::from_value(value) else {
        return Err(error(
            28746,
            format!(
                "size argument to $sample must be a number, found {}",
                type_name(value)
            ),
        ));
    };
    // Decimals are rounded, and doubles lose their fraction.
    let whole = match number {
        Number::Decimal(_) if number.is_finite() => {
            let rounding = pinion_bson::decimal::Rounding::HalfEven;
            Number::Decimal(number.to_decimal().quantize(0, rounding).pack())
        }
        number => number,
    };
    // A quotient too long to be whole is far above what there is.
    let size = match whole {
        whole if whole.is_nan() && !number.is_nan() && !number.is_negative() => i64::MAX,
        whole => whole.to_i64_saturating(),
    };
    match usize::try_from(size) {
        Ok(size) if size > 0 => Ok(size),
        _ => Err(error(
            28747,
            format!(
                "size argument to $sample must be a positive integer, found {}",
                value_text(value)
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use crate::pipeline::window::tests::{check_error, run};
    use pinion_bson::{RawBson, RawDocumentBuf, rawbson, rawdoc};

    #[test]
    fn different_documents_by_chance() {
        let documents: Vec<RawDocumentBuf> = (0..1000).map(|i| rawdoc! { "_id": i }).collect();
        let sampled = |size: i32| {
            let stages = rawbson!([{ "$sample": { "size": size } }]);
            let found = run(&stages, &documents);
            let id = |document: &RawDocumentBuf| document.get_i32("_id").expect("an _id");
            found.iter().map(id).collect::<Vec<i32>>()
        };
        let mut few = sampled(10);
        assert_eq!(few.len(), 10);
        assert!(!few.is_sorted());
        few.sort_unstable();
        few.dedup();
        assert_eq!(few.len(), 10);
        let mut all = sampled(5000);
        assert!(!all.is_sorted());
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<i32>>());
        // Each has the same chance: of a hundred, about half lie in either half.
        let low = sampled(100).into_iter().filter(|id| *id < 500).count();
        assert!((25..75).contains(&low), "{low}");
    }

    #[test]
    fn errors() {
        let decimal = |text: &str| RawBson::Decimal128(text.parse().expect("a decimal"));
        for (spec, code) in [
            (rawbson!(5), 28745),
            (rawbson!({}), 28749),
            (rawbson!({ "size": 1, "x": 1 }), 28748),
            (rawbson!({ "size": "1" }), 28746),
            (rawbson!({ "size": { "$add": [1, 1] } }), 28746),
            (rawbson!({ "size": 0 }), 28747),
            (rawbson!({ "size": -1 }), 28747),
            (rawbson!({ "size": 0.9 }), 28747),
            (rawbson!({ "size": f64::NAN }), 28747),
            (rawbson!({ "size": (decimal("0.5")) }), 28747),
            (rawbson!({ "size": (decimal("-1E+6000")) }), 28747),
        ] {
            check_error(rawbson!([{ "$sample": spec }]), &[], code);
        }
        let huge = rawbson!([{ "$sample": { "size": (decimal("1E+6000")) } }]);
        assert_eq!(run(&huge, &[rawdoc! { "a": 1 }]).len(), 1);
    }
}
