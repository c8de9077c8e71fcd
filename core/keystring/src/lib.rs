//! KeyString version 1 encoder and decoder, Ordering and TypeBits.
//!
//! A KeyString is a string of bytes for one or more values whose order under `memcmp` is the order of the values.
//! Values that compare equal have equal bytes; what tells them apart, as 1 from 1.0, is kept in `TypeBits` beside the
//! key. The layout is MongoDB's.

mod builder;
mod bytes;
mod ctype;
mod decode;
mod encode;
mod index;
mod limits;
mod number;
mod ordering;
mod record_id;
#[cfg(test)]
mod tests;
mod type_bits;

pub use builder::{Builder, Discriminator, KeyString};
pub use decode::{Corrupt, component_len, decode, decode_prefix, prefix_len};
pub use index::{
    IndexEntry, RecordKey, decode_id, decode_index_entry, encode_id, encode_id_with_types,
    encode_index_entry, join_index_entry, split_index_entry,
};
pub use limits::{MAX_COMPONENTS, MAX_RECORD_ID_BYTES};
pub use ordering::Ordering;
pub use record_id::RecordId;
pub use type_bits::TypeBits;
