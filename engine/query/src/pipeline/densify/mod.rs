//! `$densify`: documents for the numbers or dates that are missing in a sequence.

mod nested;
mod parse;
mod sequence;
mod step;

#[cfg(test)]
mod tests;

pub(super) use parse::{parse, parse_paths};
pub(super) use sequence::Densify;
pub(super) use step::Densifying;
