//! Results in the form in which MongoDB 4.4 merges what its shards have grouped.

use pinion_bson::RawBson;

use super::kind::Kind;
use super::state::Accumulator;

impl Kind {
    /// Whether MongoDB 4.4 has the accumulator, or merges what it gives by another one.
    pub(crate) fn is_mergeable_by_v44(&self) -> bool {
        match self {
            Kind::Count
            | Kind::Sum
            | Kind::Avg
            | Kind::Min
            | Kind::Max
            | Kind::First
            | Kind::Last
            | Kind::Push
            | Kind::AddToSet
            | Kind::MergeObjects
            | Kind::StdDevPop
            | Kind::StdDevSamp => true,
            Kind::SetUnion
            | Kind::ConcatArrays
            | Kind::FirstN
            | Kind::LastN
            | Kind::MinN
            | Kind::MaxN
            | Kind::Top
            | Kind::Bottom
            | Kind::TopN
            | Kind::BottomN
            | Kind::Quantiles(_) => false,
        }
    }
}

impl Accumulator {
    /// What MongoDB 4.4 merges. `orderless` says whether sums of doubles are those of all orders,
    /// as [`Accumulator::finish_orderless`] gives them.
    pub(crate) fn mergeable_by_v44(&self, orderless: bool) -> RawBson {
        match self {
            Accumulator::Sum(sum) => sum.mergeable_by_v44(orderless),
            Accumulator::Avg { sum, count } => sum.mergeable_average_by_v44(*count, orderless),
            Accumulator::StdDev { spread, .. } => spread.mergeable_by_v44(),
            // The result itself says all.
            _ => self.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawbson;

    /// What is given of values, as it comes and whatever their order.
    #[track_caller]
    fn check(kind: Kind, values: Vec<RawBson>, expected: RawBson) {
        let mut accumulator = Accumulator::new(&kind).orderless();
        for value in &values {
            let value = Some(value.as_raw_bson_ref());
            accumulator.add(value).expect("it accumulates");
        }
        for orderless in [false, true] {
            let found = accumulator.mergeable_by_v44(orderless);
            assert_eq!(found, expected, "{kind:?} {values:?} {orderless}");
        }
    }

    fn decimal(text: &str) -> RawBson {
        RawBson::Decimal128(text.parse().expect("a decimal"))
    }

    #[test]
    fn sums() {
        let max = || rawbson!(i64::MAX);
        check(Kind::Count, vec![rawbson!("x"); 3], rawbson!(3));
        check(Kind::Sum, vec![], rawbson!(0));
        check(Kind::Sum, vec![rawbson!(1), rawbson!(2)], rawbson!(3));
        check(
            Kind::Sum,
            vec![rawbson!(1), rawbson!(2_i64)],
            rawbson!(3_i64),
        );
        check(Kind::Sum, vec![rawbson!(1), rawbson!(0.5)], rawbson!(1.5));
        check(
            Kind::Sum,
            vec![decimal("1.25"), rawbson!(1)],
            decimal("2.25"),
        );
        check(Kind::Sum, vec![max(), rawbson!(-1)], rawbson!(i64::MAX - 1));
        // Integers beyond 64 bits: the sum as a double, and what is added to it.
        check(
            Kind::Sum,
            vec![max(), max()],
            rawbson!({ "subTotal": 18_446_744_073_709_551_616.0, "subTotalError": -2_i64 }),
        );
        check(
            Kind::Sum,
            vec![max(), max(), rawbson!(1.0)],
            rawbson!(18_446_744_073_709_551_616.0),
        );
    }

    #[test]
    fn averages() {
        let average = |total: f64, count: i64, rest: f64| rawbson!({ "subTotal": total, "count": count, "subTotalError": rest });
        check(Kind::Avg, vec![], average(0.0, 0, 0.0));
        check(Kind::Avg, vec![rawbson!("x")], average(0.0, 0, 0.0));
        check(
            Kind::Avg,
            vec![rawbson!(1), rawbson!(2_i64), rawbson!(0.5)],
            average(3.5, 3, 0.0),
        );
        let two_to_53 = rawbson!(1_i64 << 53);
        check(
            Kind::Avg,
            vec![two_to_53, rawbson!(1)],
            average(9_007_199_254_740_992.0, 2, 1.0),
        );
        check(
            Kind::Avg,
            vec![rawbson!(f64::INFINITY), rawbson!(1)],
            average(f64::INFINITY, 2, 0.0),
        );
        check(
            Kind::Avg,
            vec![decimal("1.5"), rawbson!(1)],
            rawbson!({ "subTotal": decimal("2.5"), "count": 2_i64 }),
        );
    }

    #[test]
    fn deviations() {
        for kind in [Kind::StdDevPop, Kind::StdDevSamp] {
            check(
                kind.clone(),
                vec![rawbson!(1), rawbson!(3), rawbson!("x")],
                rawbson!({ "m2": 2.0, "mean": 2.0, "count": 2_i64 }),
            );
            check(
                kind,
                vec![],
                rawbson!({ "m2": 0.0, "mean": 0.0, "count": 0_i64 }),
            );
        }
    }

    #[test]
    fn others_give_what_they_have() {
        let values = || vec![rawbson!(3), rawbson!(1), rawbson!(3)];
        check(Kind::Min, values(), rawbson!(1));
        check(Kind::Max, values(), rawbson!(3));
        check(Kind::Max, vec![], RawBson::Null);
        check(Kind::First, values(), rawbson!(3));
        check(Kind::Last, values(), rawbson!(3));
        check(Kind::Push, values(), rawbson!([3, 1, 3]));
        check(Kind::AddToSet, values(), rawbson!([3, 1]));
        check(
            Kind::MergeObjects,
            vec![rawbson!({ "a": 1 }), rawbson!({ "b": 2 })],
            rawbson!({ "a": 1, "b": 2 }),
        );
    }
}
