//! As much BSON as requests and replies need, written and read in place. It is not Pinion's own, so
//! that a fault in that one cannot hide itself.

pub const DOUBLE: u8 = 1;
pub const STRING: u8 = 2;
pub const DOCUMENT: u8 = 3;
pub const ARRAY: u8 = 4;
pub const BINARY: u8 = 5;
const BOOLEAN: u8 = 8;
const DATE: u8 = 9;
const INT32: u8 = 16;
const INT64: u8 = 18;

/// Appends a document whose elements `fill` appends.
pub fn document(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    out.push(0);
    let length = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn head(out: &mut Vec<u8>, tag: u8, name: &str) {
    out.push(tag);
    out.extend_from_slice(name.as_bytes());
    out.push(0);
}

pub fn nested(out: &mut Vec<u8>, name: &str, fill: impl FnOnce(&mut Vec<u8>)) {
    head(out, DOCUMENT, name);
    document(out, fill);
}

pub fn array(out: &mut Vec<u8>, name: &str, fill: impl FnOnce(&mut Vec<u8>)) {
    head(out, ARRAY, name);
    document(out, fill);
}

/// A string whose bytes `fill` appends; they must be UTF-8.
pub fn string_with(out: &mut Vec<u8>, name: &str, fill: impl FnOnce(&mut Vec<u8>)) {
    head(out, STRING, name);
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    out.push(0);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

pub fn string(out: &mut Vec<u8>, name: &str, text: &str) {
    string_with(out, name, |out| out.extend_from_slice(text.as_bytes()));
}

/// Binary data (subtype 0, or 4 for UUIDs) whose bytes `fill` appends.
pub fn binary_with(out: &mut Vec<u8>, name: &str, subtype: u8, fill: impl FnOnce(&mut Vec<u8>)) {
    head(out, BINARY, name);
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, subtype]);
    fill(out);
    let length = (out.len() - start - 5) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

pub fn boolean(out: &mut Vec<u8>, name: &str, value: bool) {
    head(out, BOOLEAN, name);
    out.push(u8::from(value));
}

pub fn int32(out: &mut Vec<u8>, name: &str, value: i32) {
    head(out, INT32, name);
    out.extend_from_slice(&value.to_le_bytes());
}

pub fn int64(out: &mut Vec<u8>, name: &str, value: i64) {
    head(out, INT64, name);
    out.extend_from_slice(&value.to_le_bytes());
}

pub fn date(out: &mut Vec<u8>, name: &str, unix_ms: i64) {
    head(out, DATE, name);
    out.extend_from_slice(&unix_ms.to_le_bytes());
}

/// One element: its type, name and the bytes of its value.
#[derive(Clone, Copy)]
pub struct Element<'a> {
    pub tag: u8,
    pub name: &'a [u8],
    pub value: &'a [u8],
}

impl<'a> Element<'a> {
    pub fn number(&self) -> Option<f64> {
        match self.tag {
            DOUBLE => Some(f64::from_le_bytes(*self.value.first_chunk()?)),
            INT32 => Some(f64::from(i32::from_le_bytes(*self.value.first_chunk()?))),
            INT64 => Some(i64::from_le_bytes(*self.value.first_chunk()?) as f64),
            BOOLEAN => Some(f64::from(self.value[0])),
            _ => None,
        }
    }

    /// A string's bytes, or a binary's.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        match self.tag {
            STRING => self.value.get(4..self.value.len() - 1),
            BINARY => self.value.get(5..),
            _ => None,
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes().unwrap_or_default()).into_owned()
    }
}

/// The elements of a document; ends early, with `None`, at bytes that are not BSON, which `whole`
/// reports.
pub struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Elements<'a> {
    /// None if the length does not fit.
    pub fn new(document: &'a [u8]) -> Option<Self> {
        let length = u32::from_le_bytes(*document.first_chunk()?) as usize;
        if length != document.len() || length < 5 || document[length - 1] != 0 {
            return None;
        }
        Some(Self {
            rest: &document[4..length - 1],
        })
    }

    /// Whether everything was read.
    pub fn whole(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    fn next(&mut self) -> Option<Element<'a>> {
        let (&tag, rest) = self.rest.split_first()?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        let (name, value) = (&rest[..end], &rest[end + 1..]);
        let prefix = || {
            value
                .first_chunk()
                .map(|length| u32::from_le_bytes(*length) as usize)
        };
        let length = match tag {
            DOUBLE | DATE | 17 | INT64 => 8,
            STRING | 13 | 14 => prefix()?.checked_add(4).filter(|&length| length > 4)?,
            DOCUMENT | ARRAY | 15 => prefix()?,
            BINARY => prefix()?.checked_add(5)?,
            6 | 10 | 127 | 255 => 0,
            7 => 12,
            BOOLEAN => 1,
            INT32 => 4,
            19 => 16,
            _ => return None,
        };
        let (value, rest) = value.split_at_checked(length)?;
        self.rest = rest;
        Some(Element { tag, name, value })
    }
}

/// The first element of that name.
pub fn get<'a>(document: &'a [u8], name: &str) -> Option<Element<'a>> {
    Elements::new(document)?.find(|element| element.name == name.as_bytes())
}
