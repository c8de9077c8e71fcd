//! KeyString version 1 encoder and decoder, Ordering and TypeBits.
//!
//! A KeyString is a string of bytes for one or more values whose order under `memcmp` is the order
//! of the values. Values that compare equal have equal bytes; what distinguishes them, as 1 from
//! 1.0, is kept in `TypeBits` beside the key. The layout is MongoDB's, byte for byte:
//!
//! | type byte | value | what follows |
//! |---|---|---|
//! | 10, 15, 20, 240 | MinKey, undefined, null, MaxKey | nothing |
//! | 30-51 | numbers | magnitude, and for decimals a continuation: see `number.rs` |
//! | 60 | string, symbol | the bytes, a NUL inside written as 00 FF; 00. Of a string in a collation, those of its sort key |
//! | 70 | document | for each field its type (numbers 30, booleans 110), its name, 00, its value; 00 |
//! | 80 | array | the values; 00 |
//! | 90 | binary | length in a byte, or FF and four bytes; subtype; payload |
//! | 100 | ObjectId | 12 bytes |
//! | 110, 111 | false, true | nothing |
//! | 120 | date | milliseconds plus 2^63, 8 bytes, big endian |
//! | 130 | timestamp | 8 bytes, big endian |
//! | 140 | regular expression | pattern, 00, options, 00 |
//! | 150 | DBPointer | length of the namespace in 4 bytes, big endian; namespace; 12 bytes |
//! | 160 | code | as a string |
//! | 170 | code with scope | code as a string; the scope as a document without its type byte |
//!
//! A descending component has all its bytes inverted. After the last component come, in a bound, a
//! discriminator (1 before, 254 after all keys with these components), then the end byte 4, then
//! the RecordId if there is one.

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
mod strings;
#[cfg(test)]
mod tests;
mod type_bits;

pub use builder::{Builder, Discriminator, KeyString};
pub use decode::{Corrupt, component_len, decode, decode_prefix, prefix_len};
pub use index::{
    IndexEntry, RecordKey, decode_id, decode_index_entry, decode_index_field, decode_index_fields,
    encode_id, encode_id_in, encode_id_with_types, encode_index_entry, encode_index_entry_in,
    join_index_entry, split_index_entry,
};
pub use limits::{MAX_COMPONENTS, MAX_RECORD_ID_BYTES};
pub use ordering::Ordering;
pub use record_id::RecordId;
pub use strings::Strings;
pub use type_bits::TypeBits;
