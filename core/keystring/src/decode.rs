//! Values from keys, and the lengths of components without their values.

use core::fmt;
use std::borrow::Cow;

use pinion_bson::{DocBuilder, ElementType, RawDocumentBuf, View, with_view};

use crate::bytes::{Reader, unescape};
use crate::ctype;
use crate::encode::{LONG_BINARY, OLD_BINARY_SUBTYPE, invert};
use crate::limits::MAX_DECODE_DEPTH;
use crate::number;
use crate::ordering::Ordering;
use crate::strings::Strings;
use crate::type_bits::{self, TypeBits};

/// Why bytes are not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt(pub(crate) &'static str);

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed KeyString: {}", self.0)
    }
}

impl core::error::Error for Corrupt {}

/// The values of all components, each in a field with an empty name. What follows the end byte is
/// not read.
pub fn decode(
    bytes: &[u8],
    ordering: Ordering,
    type_bits: &TypeBits,
) -> Result<RawDocumentBuf, Corrupt> {
    decode_prefix(bytes, u32::MAX, ordering, type_bits).map(|(document, _)| document)
}

/// The values of the first `components` components, and how many bytes those take.
pub fn decode_prefix(
    bytes: &[u8],
    components: u32,
    ordering: Ordering,
    type_bits: &TypeBits,
) -> Result<(RawDocumentBuf, usize), Corrupt> {
    decode_prefix_as(bytes, components, ordering, type_bits, |_| Strings::Plain)
}

pub(crate) fn decode_prefix_as<'c>(
    bytes: &[u8],
    components: u32,
    ordering: Ordering,
    type_bits: &TypeBits,
    strings: impl Fn(u32) -> Strings<'c>,
) -> Result<(RawDocumentBuf, usize), Corrupt> {
    let mut builder = DocBuilder::new();
    let mut bits = type_bits::Reader::new(type_bits);
    let mut at = 0;
    for component in 0..components {
        let rest = &bytes[at..];
        if components == u32::MAX
            && matches!(
                rest.first(),
                None | Some(&(ctype::END | ctype::LESS | ctype::GREATER))
            )
        {
            break;
        }
        let descending = ordering.is_descending(component);
        let len = component_len(rest, descending)?;
        let ascending = if descending {
            Cow::Owned(inverted(&rest[..len]))
        } else {
            Cow::Borrowed(&rest[..len])
        };
        let mut decoder = Decoder {
            reader: Reader::new(&ascending),
            bits: &mut bits,
            out: &mut builder,
            strings_kept: strings(component).are_kept(),
        };
        let byte = decoder.reader.u8()?;
        decoder.value(byte, Destination::Named(""), 0)?;
        at += len;
    }
    Ok((builder.finish(), at))
}

/// The length of the component at the front of the bytes; type bits are not needed for it.
pub fn component_len(bytes: &[u8], descending: bool) -> Result<usize, Corrupt> {
    if !descending {
        return ascending_len(bytes);
    }
    // Only a walk through an inverted component finds its end, so all that could belong to it is
    // inverted. Most components are short: try their first bytes before the rest of the key.
    let mut prefix = SmallPrefix::default();
    let head = prefix.inverted(&bytes[..bytes.len().min(SmallPrefix::LEN)]);
    match ascending_len(head) {
        Ok(len) if len < SmallPrefix::LEN => Ok(len),
        _ => ascending_len(&inverted(bytes)),
    }
}

fn inverted(bytes: &[u8]) -> Vec<u8> {
    let mut inverted = bytes.to_vec();
    invert(&mut inverted);
    inverted
}

/// The first bytes of an inverted component, without an allocation.
struct SmallPrefix([u8; SmallPrefix::LEN]);

impl Default for SmallPrefix {
    fn default() -> SmallPrefix {
        SmallPrefix([0; SmallPrefix::LEN])
    }
}

impl SmallPrefix {
    const LEN: usize = 64;

    fn inverted(&mut self, bytes: &[u8]) -> &[u8] {
        let head = &mut self.0[..bytes.len()];
        head.copy_from_slice(bytes);
        invert(head);
        head
    }
}

/// The length of the first components.
pub fn prefix_len(bytes: &[u8], components: u32, ordering: Ordering) -> Result<usize, Corrupt> {
    let mut at = 0;
    for component in 0..components {
        at += component_len(&bytes[at..], ordering.is_descending(component))?;
    }
    Ok(at)
}

fn ascending_len(bytes: &[u8]) -> Result<usize, Corrupt> {
    let mut reader = Reader::new(bytes);
    // The open documents (true) and arrays (false).
    let mut open = [false; MAX_DECODE_DEPTH];
    let mut depth = 0;
    loop {
        let mut byte = reader.u8()?;
        let mut opens = None;
        if depth > 0 {
            if byte == ctype::NUL {
                depth -= 1;
                if depth == 0 {
                    return Ok(reader.position());
                }
                continue;
            }
            if open[depth - 1] {
                reader.cstring()?;
                byte = reader.u8()?;
            }
        }
        match byte {
            ctype::MIN_KEY
            | ctype::UNDEFINED
            | ctype::NULL
            | ctype::FALSE
            | ctype::TRUE
            | ctype::MAX_KEY => {}
            ctype::NAN..=ctype::POSITIVE_LARGE => number::skip(&mut reader, byte)?,
            ctype::STRING | ctype::CODE => {
                reader.escaped_text()?;
            }
            ctype::OBJECT => opens = Some(true),
            ctype::ARRAY => opens = Some(false),
            ctype::BINARY => {
                binary(&mut reader)?;
            }
            ctype::OBJECT_ID => {
                reader.take(12)?;
            }
            ctype::DATE | ctype::TIMESTAMP => {
                reader.take(8)?;
            }
            ctype::REGEX => {
                reader.cstring()?;
                reader.cstring()?;
            }
            ctype::DB_POINTER => {
                db_pointer(&mut reader)?;
            }
            ctype::CODE_WITH_SCOPE => {
                reader.escaped_text()?;
                opens = Some(true);
            }
            _ => return Err(Corrupt("unknown type byte")),
        }
        if let Some(named) = opens {
            *open.get_mut(depth).ok_or(Corrupt("nested too deep"))? = named;
            depth += 1;
        } else if depth == 0 {
            return Ok(reader.position());
        }
    }
}

/// Subtype and payload as they stand in the key.
fn binary<'a>(reader: &mut Reader<'a>) -> Result<(u8, &'a [u8]), Corrupt> {
    let len = match reader.u8()? {
        LONG_BINARY => reader.u32()? as usize,
        short => usize::from(short),
    };
    let subtype = reader.u8()?;
    let payload = reader.take(len)?;
    Ok((subtype, payload))
}

fn db_pointer<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], [u8; 12]), Corrupt> {
    let len = reader.u32()? as usize;
    Ok((reader.take(len)?, reader.array()?))
}

/// Where a decoded value goes.
#[derive(Clone, Copy)]
enum Destination<'a> {
    Named(&'a str),
    /// The next position of the open array.
    Next,
}

struct Decoder<'a, 'b, 't> {
    reader: Reader<'a>,
    bits: &'b mut type_bits::Reader<'t>,
    out: &'b mut DocBuilder,
    /// Whether strings stand in the key as they are, or as sort keys.
    strings_kept: bool,
}

impl Decoder<'_, '_, '_> {
    /// Reads a value whose type byte has been read.
    fn value(&mut self, byte: u8, place: Destination<'_>, depth: usize) -> Result<(), Corrupt> {
        if depth >= MAX_DECODE_DEPTH {
            return Err(Corrupt("nested too deep"));
        }
        let reader = &mut self.reader;
        match byte {
            ctype::MIN_KEY => self.put(place, View::MinKey),
            ctype::UNDEFINED => self.put(place, View::Undefined),
            ctype::NULL => self.put(place, View::Null),
            ctype::MAX_KEY => self.put(place, View::MaxKey),
            ctype::FALSE => self.put(place, View::Boolean(false)),
            ctype::TRUE => self.put(place, View::Boolean(true)),
            ctype::NAN..=ctype::POSITIVE_LARGE => {
                let value = number::read(reader, byte, self.bits)?;
                with_view(value, |view| self.put(place, view));
            }
            ctype::STRING => {
                let symbol = self.bits.is_symbol()?;
                let (text, escapes) = reader.escaped_text()?;
                self.text(
                    place,
                    text,
                    escapes,
                    if symbol {
                        ElementType::Symbol
                    } else {
                        ElementType::String
                    },
                )?;
            }
            ctype::CODE => {
                let (text, escapes) = reader.escaped_text()?;
                self.text(place, text, escapes, ElementType::JavaScriptCode)?;
            }
            ctype::OBJECT_ID => {
                let id = reader.array()?;
                self.put(place, View::ObjectId(id));
            }
            ctype::DATE => {
                let value = number::read_date(reader)?;
                with_view(value, |view| self.put(place, view));
            }
            ctype::TIMESTAMP => {
                let value = reader.u64()?;
                self.put(place, View::Timestamp(value));
            }
            ctype::BINARY => {
                let (subtype, payload) = binary(reader)?;
                let bytes = if subtype == OLD_BINARY_SUBTYPE {
                    let (repeated, bytes) = payload
                        .split_first_chunk()
                        .ok_or(Corrupt("no repeated length"))?;
                    if u32::from_le_bytes(*repeated) as usize != bytes.len() {
                        return Err(Corrupt("the repeated length differs"));
                    }
                    bytes
                } else {
                    payload
                };
                self.put(place, View::Binary { subtype, bytes });
            }
            ctype::REGEX => {
                let (pattern, options) = (reader.cstring()?, reader.cstring()?);
                utf8(pattern)?;
                utf8(options)?;
                self.put(place, View::Regex { pattern, options });
            }
            ctype::DB_POINTER => {
                let (namespace, id) = db_pointer(reader)?;
                utf8(namespace)?;
                self.put(place, View::DbPointer { namespace, id });
            }
            ctype::OBJECT => {
                match place {
                    Destination::Named(name) => self.out.start_document(name),
                    Destination::Next => self.out.push_document(),
                };
                self.fields(depth)?;
                self.out.end();
            }
            ctype::ARRAY => {
                match place {
                    Destination::Named(name) => self.out.start_array(name),
                    Destination::Next => self.out.push_array(),
                };
                loop {
                    match self.reader.u8()? {
                        ctype::NUL => break,
                        byte => self.value(byte, Destination::Next, depth + 1)?,
                    }
                }
                self.out.end();
            }
            ctype::CODE_WITH_SCOPE => {
                let (text, escapes) = reader.escaped_text()?;
                let code = if escapes {
                    unescape(text)
                } else {
                    text.to_vec()
                };
                utf8(&code)?;
                // A scope is written apart, for its length stands before it.
                let mut scope = DocBuilder::new();
                let mut inner = Decoder {
                    reader: self.reader.clone(),
                    bits: &mut *self.bits,
                    out: &mut scope,
                    strings_kept: self.strings_kept,
                };
                inner.fields(depth)?;
                self.reader = inner.reader;
                let scope = scope.finish_bytes();
                self.put(
                    place,
                    View::CodeWithScope {
                        code: &code,
                        scope: &scope,
                    },
                );
            }
            _ => return Err(Corrupt("unknown type byte")),
        }
        Ok(())
    }

    /// The fields of the open document up to its terminator.
    fn fields(&mut self, depth: usize) -> Result<(), Corrupt> {
        while self.reader.u8()? != ctype::NUL {
            let name = utf8(self.reader.cstring()?)?;
            let byte = self.reader.u8()?;
            self.value(byte, Destination::Named(name), depth + 1)?;
        }
        Ok(())
    }

    fn text(
        &mut self,
        place: Destination<'_>,
        text: &[u8],
        escapes: bool,
        kind: ElementType,
    ) -> Result<(), Corrupt> {
        let text = if escapes {
            Cow::Owned(unescape(text))
        } else {
            Cow::Borrowed(text)
        };
        if kind == ElementType::String && !self.strings_kept {
            self.put(place, View::String(hexadecimal(&text).as_bytes()));
            return Ok(());
        }
        utf8(&text)?;
        let view = match kind {
            ElementType::Symbol => View::Symbol(&text),
            ElementType::JavaScriptCode => View::Code(&text),
            _ => View::String(&text),
        };
        self.put(place, view);
        Ok(())
    }

    fn put(&mut self, place: Destination<'_>, view: View<'_>) {
        match place {
            Destination::Named(name) => self.out.append_view(name, view),
            Destination::Next => self.out.push_view(view),
        };
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, Corrupt> {
    core::str::from_utf8(bytes).map_err(|_| Corrupt("text that is not UTF-8"))
}

/// `0x2d4f`
fn hexadecimal(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 + 2 * bytes.len());
    out.push_str("0x");
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            out.push(char::from_digit(digit.into(), 16).expect("a digit"));
        }
    }
    out
}
