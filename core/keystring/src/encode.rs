//! Values as bytes that sort as the values do.

use pinion_bson::{Number, RawBsonRef, RawElems, View, with_view};
use pinion_collation::Collation;
use smallvec::SmallVec;

use crate::bytes::{Sink, push_cstring, push_text};
use crate::ctype;
use crate::number::{push_date, push_integer, push_number};
use crate::strings::Strings;
use crate::type_bits::{NumberType, TypeBits};

/// The subtype whose payload repeats its length inside.
pub(crate) const OLD_BINARY_SUBTYPE: u8 = 2;
/// Payloads of this length and more have their length in four bytes after this one.
pub(crate) const LONG_BINARY: u8 = 0xff;

/// A document or array that is being written.
struct Level<'a> {
    elems: RawElems<'a>,
    /// Documents sort by type, then name, then value; in arrays the position says it all.
    named: bool,
}

/// Appends a value ascending, and its type bits.
#[inline]
pub(crate) fn push_value(
    out: &mut impl Sink,
    bits: &mut TypeBits,
    view: View<'_>,
    strings: Strings<'_>,
) {
    if let Some(level) = push_flat(out, bits, view, strings) {
        push_nested(out, bits, level, strings);
    }
}

/// Appends a value in the given direction. The types that keys are mostly made of take a short way.
#[inline]
pub(crate) fn push_component(
    out: &mut impl Sink,
    bits: &mut TypeBits,
    value: RawBsonRef<'_>,
    descending: bool,
    strings: Strings<'_>,
) {
    let start = out.position();
    match value {
        RawBsonRef::Int32(v) => {
            bits.push_number(NumberType::Int32);
            push_integer(out, i64::from(v));
        }
        RawBsonRef::Int64(v) => {
            bits.push_number(NumberType::Int64);
            push_integer(out, v);
        }
        RawBsonRef::String(text) => {
            bits.push_string();
            push_string(out, text.as_bytes(), strings);
        }
        RawBsonRef::ObjectId(id) => push_object_id(out, id.bytes()),
        other => push_any(out, bits, other, strings),
    }
    if descending {
        invert(out.since(start));
    }
}

#[inline(never)]
fn push_any(out: &mut impl Sink, bits: &mut TypeBits, value: RawBsonRef<'_>, strings: Strings<'_>) {
    with_view(value, |view| push_value(out, bits, view, strings));
}

/// Appends a string in the form that is wanted.
#[inline]
fn push_string(out: &mut impl Sink, text: &[u8], strings: Strings<'_>) {
    out.push(ctype::STRING);
    match strings {
        Strings::Plain => push_text(out, text),
        Strings::Collated(collation) => push_sort_key(out, text, collation),
        Strings::SortKeys => push_hexadecimal(out, text),
    }
}

#[inline(never)]
fn push_sort_key(out: &mut impl Sink, text: &[u8], collation: &Collation) {
    let mut key = Vec::with_capacity(2 * text.len() + 8);
    collation.sort_key(text, &mut key);
    push_text(out, &key);
}

/// Appends the bytes that a text `0x2d4f` stands for; one without digits stands for none.
#[inline(never)]
fn push_hexadecimal(out: &mut impl Sink, text: &[u8]) {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    let digits = text.strip_prefix(b"0x").unwrap_or_default();
    let key: Vec<u8> = digits
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |byte, next| byte << 4 | digit(*next)))
        .collect();
    push_text(out, &key);
}

#[inline]
fn push_object_id(out: &mut impl Sink, id: [u8; 12]) {
    let mut bytes = [ctype::OBJECT_ID; 13];
    bytes[1..].copy_from_slice(&id);
    out.extend_part(&bytes, 13);
}

/// Appends a value descending: all its bytes inverted.
#[inline]
pub(crate) fn push_descending(
    out: &mut impl Sink,
    bits: &mut TypeBits,
    view: View<'_>,
    strings: Strings<'_>,
) {
    let start = out.position();
    push_value(out, bits, view, strings);
    invert(out.since(start));
}

/// Inverts bytes in place.
#[inline]
pub(crate) fn invert(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = !*byte;
    }
}

/// Writes documents and arrays without recursion, so depth costs no stack. What is malformed counts
/// as its end.
fn push_nested<'a>(
    out: &mut impl Sink,
    bits: &mut TypeBits,
    outermost: Level<'a>,
    strings: Strings<'_>,
) {
    let mut levels: SmallVec<[Level<'a>; 8]> = SmallVec::new();
    levels.push(outermost);
    while let Some(level) = levels.last_mut() {
        let Some((elem, view)) = level.elems.next().and_then(|e| Some((e, e.view()?))) else {
            out.push(ctype::NUL);
            levels.pop();
            continue;
        };
        if level.named {
            out.push(ctype::generic(elem.kind));
            push_cstring(out, elem.name);
        }
        if let Some(inner) = push_flat(out, bits, view, strings) {
            levels.push(inner);
        }
    }
}

/// Appends a value; of a document or an array only the beginning, and gives what is inside.
#[inline]
fn push_flat<'a>(
    out: &mut impl Sink,
    bits: &mut TypeBits,
    view: View<'a>,
    strings: Strings<'_>,
) -> Option<Level<'a>> {
    match view {
        View::Int32(v) => push_number(out, bits, Number::Int32(v)),
        View::Int64(v) => push_number(out, bits, Number::Int64(v)),
        View::Double(v) => push_number(out, bits, Number::Double(v)),
        View::Decimal128(v) => push_number(
            out,
            bits,
            Number::Decimal(pinion_bson::Decimal128::from_bytes(v)),
        ),
        View::String(text) => {
            bits.push_string();
            push_string(out, text, strings);
        }
        View::Symbol(text) => {
            bits.push_symbol();
            out.push(ctype::STRING);
            push_text(out, text);
        }
        View::ObjectId(id) => push_object_id(out, id),
        View::Document(bytes) => {
            out.push(ctype::OBJECT);
            return Some(Level {
                elems: RawElems::new(bytes),
                named: true,
            });
        }
        View::Array(bytes) => {
            out.push(ctype::ARRAY);
            return Some(Level {
                elems: RawElems::new(bytes),
                named: false,
            });
        }
        View::Boolean(v) => out.push(if v { ctype::TRUE } else { ctype::FALSE }),
        View::DateTime(millis) => push_date(out, millis),
        View::Timestamp(v) => {
            out.push(ctype::TIMESTAMP);
            out.extend(&v.to_be_bytes());
        }
        View::Null => out.push(ctype::NULL),
        View::Undefined => out.push(ctype::UNDEFINED),
        View::MinKey => out.push(ctype::MIN_KEY),
        View::MaxKey => out.push(ctype::MAX_KEY),
        View::Binary { subtype, bytes } => push_binary(out, subtype, bytes),
        View::Regex { pattern, options } => {
            out.push(ctype::REGEX);
            push_cstring(out, pattern);
            push_cstring(out, options);
        }
        View::DbPointer { namespace, id } => {
            out.push(ctype::DB_POINTER);
            out.extend(&length(namespace));
            out.extend(namespace);
            out.extend(&id);
        }
        View::Code(code) => {
            out.push(ctype::CODE);
            push_text(out, code);
        }
        View::CodeWithScope { code, scope } => {
            out.push(ctype::CODE_WITH_SCOPE);
            push_text(out, code);
            return Some(Level {
                elems: RawElems::new(scope),
                named: true,
            });
        }
    }
    None
}

/// Binary sorts by length, then subtype, then bytes. The length that subtype 2 repeats is part of
/// its payload.
fn push_binary(out: &mut impl Sink, subtype: u8, bytes: &[u8]) {
    let old = subtype == OLD_BINARY_SUBTYPE;
    let len = bytes.len() + if old { 4 } else { 0 };
    out.push(ctype::BINARY);
    match u8::try_from(len) {
        Ok(short) if short < LONG_BINARY => out.push(short),
        _ => {
            out.push(LONG_BINARY);
            out.extend(
                &u32::try_from(len)
                    .expect("a payload is shorter than its document")
                    .to_be_bytes(),
            );
        }
    }
    out.push(subtype);
    if old {
        out.extend(&u32::from_be_bytes(length(bytes)).to_le_bytes());
    }
    out.extend(bytes);
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len())
        .expect("a part is shorter than its document")
        .to_be_bytes()
}
