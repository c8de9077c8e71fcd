//! One key of a document in an index: values of the document itself, or values made out of it.

use std::borrow::Cow;

use pinion_bson::{RawBson, RawBsonRef};
use smallvec::SmallVec;

use crate::keygen::Key;

/// The values of one key, one for each component of the index;
/// `pinion_keystring::encode_index_entry` joins them with `_id`.
#[derive(Clone, Debug, PartialEq)]
pub enum IndexKey<'a> {
    /// Values that stand in the document.
    Borrowed(Key<'a>),
    /// Values of which some were made: hashes, paths, terms, cells.
    Owned(SmallVec<[RawBson; 4]>),
}

impl IndexKey<'_> {
    /// The values, as they are to be encoded.
    pub fn values(&self) -> Cow<'_, [RawBsonRef<'_>]> {
        match self {
            IndexKey::Borrowed(values) => Cow::Borrowed(values),
            IndexKey::Owned(values) => {
                Cow::Owned(values.iter().map(RawBson::as_raw_bson_ref).collect())
            }
        }
    }
}
