//! Which accumulator, with what is constant about it.

use super::quantile::Quantiles;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// `$count`, and `$sum` of the constant 1.
    Count,
    Sum,
    Avg,
    Min,
    Max,
    First,
    Last,
    Push,
    AddToSet,
    MergeObjects,
    StdDevPop,
    StdDevSamp,
    SetUnion,
    ConcatArrays,
    FirstN,
    LastN,
    MinN,
    MaxN,
    Top,
    Bottom,
    TopN,
    BottomN,
    /// `$percentile` and `$median`.
    Quantiles(Quantiles),
}

impl Kind {
    /// The operator of this kind.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Kind::Count => "$count",
            Kind::Sum => "$sum",
            Kind::Avg => "$avg",
            Kind::Min => "$min",
            Kind::Max => "$max",
            Kind::First => "$first",
            Kind::Last => "$last",
            Kind::Push => "$push",
            Kind::AddToSet => "$addToSet",
            Kind::MergeObjects => "$mergeObjects",
            Kind::StdDevPop => "$stdDevPop",
            Kind::StdDevSamp => "$stdDevSamp",
            Kind::SetUnion => "$setUnion",
            Kind::ConcatArrays => "$concatArrays",
            Kind::FirstN => "$firstN",
            Kind::LastN => "$lastN",
            Kind::MinN => "$minN",
            Kind::MaxN => "$maxN",
            Kind::Top => "$top",
            Kind::Bottom => "$bottom",
            Kind::TopN => "$topN",
            Kind::BottomN => "$bottomN",
            Kind::Quantiles(_) => "$percentile",
        }
    }

    /// The accumulator of this name, where its operand is one expression.
    pub(crate) fn of_one_expression(name: &str) -> Option<Kind> {
        Some(match name {
            "$sum" => Kind::Sum,
            "$avg" => Kind::Avg,
            "$min" => Kind::Min,
            "$max" => Kind::Max,
            "$first" => Kind::First,
            "$last" => Kind::Last,
            "$push" => Kind::Push,
            "$addToSet" => Kind::AddToSet,
            "$mergeObjects" => Kind::MergeObjects,
            "$stdDevPop" => Kind::StdDevPop,
            "$stdDevSamp" => Kind::StdDevSamp,
            "$setUnion" => Kind::SetUnion,
            "$concatArrays" => Kind::ConcatArrays,
            _ => return None,
        })
    }
}
