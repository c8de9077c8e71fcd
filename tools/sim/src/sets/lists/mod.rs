//! Lists: transactions that append to them and read them, and the checker of what came of it.

mod check;
mod client;
mod graph;
#[cfg(test)]
mod tests;
mod txn;

pub use client::{COLLECTIONS, Lists, change};
pub use txn::Key;
