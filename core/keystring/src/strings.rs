//! What a key holds in place of the strings of a value.

use pinion_collation::Collation;

/// How the strings of a component are written, at any depth of its value.
#[derive(Clone, Copy, Debug)]
pub enum Strings<'c> {
    /// As they are.
    Plain,
    /// As their sort keys in a collation.
    Collated(&'c Collation),
    /// They are the sort keys of other strings, in hexadecimal: `0x2d4f`. That is the form in which
    /// decoding gives sort keys, since there is no way back to the strings. An empty text stands
    /// before all of them.
    SortKeys,
}

impl<'c> Strings<'c> {
    /// The form that a collation wants; without one, strings are written as they are.
    pub fn of(collation: Option<&'c Collation>) -> Strings<'c> {
        match collation {
            None => Strings::Plain,
            Some(collation) => Strings::Collated(collation),
        }
    }

    /// Whether the key holds the strings themselves.
    pub fn are_kept(self) -> bool {
        matches!(self, Strings::Plain)
    }
}
