//! Accumulators of `$group` and its kin, shared with the expressions and window functions of the
//! same names.

mod digest;
mod exact;
mod kind;
mod list;
mod mergeable;
mod ordered;
mod parse;
mod partial;
mod quantile;
mod ranked;
mod spread;
mod state;
mod sum;

pub(crate) use kind::Kind;
pub(crate) use list::List;
pub(crate) use parse::{Accumulation, Input};
pub(crate) use quantile::{Quantiles, rank_of};
pub(crate) use state::Accumulator;
pub(crate) use sum::Sum;
