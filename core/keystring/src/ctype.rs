//! The byte that each value begins with: it puts the types into MongoDB's order.

use pinion_bson::ElementType;

pub(crate) const MIN_KEY: u8 = 10;
pub(crate) const UNDEFINED: u8 = 15;
pub(crate) const NULL: u8 = 20;
/// Any number where only the type matters: before a field's name.
pub(crate) const NUMERIC: u8 = 30;
pub(crate) const NAN: u8 = 30;
/// At or below -2^63.
pub(crate) const NEGATIVE_LARGE: u8 = 31;
/// Negative integers, and numbers with a fraction, whose integer part takes 8 bytes; 7 bytes and
/// fewer follow.
pub(crate) const NEGATIVE_8_BYTES: u8 = 32;
pub(crate) const NEGATIVE_1_BYTE: u8 = 39;
/// Between -1 and 0.
pub(crate) const NEGATIVE_SMALL: u8 = 40;
pub(crate) const ZERO: u8 = 41;
/// Between 0 and 1.
pub(crate) const POSITIVE_SMALL: u8 = 42;
pub(crate) const POSITIVE_1_BYTE: u8 = 43;
pub(crate) const POSITIVE_8_BYTES: u8 = 50;
/// At or above 2^63.
pub(crate) const POSITIVE_LARGE: u8 = 51;
pub(crate) const STRING: u8 = 60;
pub(crate) const OBJECT: u8 = 70;
pub(crate) const ARRAY: u8 = 80;
pub(crate) const BINARY: u8 = 90;
pub(crate) const OBJECT_ID: u8 = 100;
/// Any boolean where only the type matters.
pub(crate) const BOOLEAN: u8 = 110;
pub(crate) const FALSE: u8 = 110;
pub(crate) const TRUE: u8 = 111;
pub(crate) const DATE: u8 = 120;
pub(crate) const TIMESTAMP: u8 = 130;
pub(crate) const REGEX: u8 = 140;
pub(crate) const DB_POINTER: u8 = 150;
pub(crate) const CODE: u8 = 160;
pub(crate) const CODE_WITH_SCOPE: u8 = 170;
pub(crate) const MAX_KEY: u8 = 240;

/// Ends a key. Less than every type, ascending or inverted.
pub(crate) const END: u8 = 4;
/// Ends strings, names, documents and arrays.
pub(crate) const NUL: u8 = 0;
/// Follows the terminator's byte where a string holds it as a character.
pub(crate) const ESCAPED_NUL: u8 = 0xff;
/// Sorts a bound before every key with the same components.
pub(crate) const LESS: u8 = 1;
/// Sorts a bound after every key with the same components.
pub(crate) const GREATER: u8 = 254;

// A string's terminator is distinguished from an escaped NUL by what follows it, so nothing that
// can follow a component may look like the escape, ascending or inverted.
const _: () = assert!(MAX_KEY < GREATER && GREATER < ESCAPED_NUL && !MIN_KEY < ESCAPED_NUL);
const _: () = assert!(NUL < LESS && LESS < END && END < MIN_KEY && END < !MAX_KEY);
const _: () =
    assert!(POSITIVE_8_BYTES - POSITIVE_1_BYTE == 7 && NEGATIVE_1_BYTE - NEGATIVE_8_BYTES == 7);

/// The byte before a field's name inside a document, which sorts by type before it sorts by name.
#[inline]
pub(crate) fn generic(kind: ElementType) -> u8 {
    match kind {
        ElementType::MinKey => MIN_KEY,
        ElementType::Undefined => UNDEFINED,
        ElementType::Null => NULL,
        ElementType::Double | ElementType::Int32 | ElementType::Int64 | ElementType::Decimal128 => {
            NUMERIC
        }
        ElementType::String | ElementType::Symbol => STRING,
        ElementType::EmbeddedDocument => OBJECT,
        ElementType::Array => ARRAY,
        ElementType::Binary => BINARY,
        ElementType::ObjectId => OBJECT_ID,
        ElementType::Boolean => BOOLEAN,
        ElementType::DateTime => DATE,
        ElementType::Timestamp => TIMESTAMP,
        ElementType::RegularExpression => REGEX,
        ElementType::DbPointer => DB_POINTER,
        ElementType::JavaScriptCode => CODE,
        ElementType::JavaScriptCodeWithScope => CODE_WITH_SCOPE,
        ElementType::MaxKey => MAX_KEY,
    }
}
