//! The buffers keys are written to, and the reader they are read with.

use pinion_bson::find_nul;
use smallvec::{Array, SmallVec};

use crate::{Corrupt, ctype};

/// A buffer that grows at its end.
pub(crate) trait Sink {
    fn push(&mut self, byte: u8);
    fn extend(&mut self, bytes: &[u8]);
    /// Appends the first `len` bytes of an array: a copy of fixed size is faster than one of any
    /// size.
    fn extend_part<const N: usize>(&mut self, bytes: &[u8; N], len: usize);
    /// How much has been written.
    fn position(&self) -> usize;
    /// What was written since `start`.
    fn since(&mut self, start: usize) -> &mut [u8];
}

impl Sink for Vec<u8> {
    #[inline]
    fn push(&mut self, byte: u8) {
        Vec::push(self, byte);
    }

    #[inline]
    fn extend(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn extend_part<const N: usize>(&mut self, bytes: &[u8; N], len: usize) {
        self.extend_from_slice(bytes);
        self.truncate(self.len() - (N - len));
    }

    #[inline]
    fn position(&self) -> usize {
        self.len()
    }

    #[inline]
    fn since(&mut self, start: usize) -> &mut [u8] {
        &mut self[start..]
    }
}

impl<A: Array<Item = u8>> Sink for SmallVec<A> {
    #[inline]
    fn push(&mut self, byte: u8) {
        SmallVec::push(self, byte);
    }

    #[inline]
    fn extend(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn extend_part<const N: usize>(&mut self, bytes: &[u8; N], len: usize) {
        self.extend_from_slice(bytes);
        self.truncate(self.len() - (N - len));
    }

    #[inline]
    fn position(&self) -> usize {
        self.len()
    }

    #[inline]
    fn since(&mut self, start: usize) -> &mut [u8] {
        &mut self[start..]
    }
}

/// Appends a string with its terminator, NULs inside it escaped.
#[inline]
pub(crate) fn push_text(out: &mut impl Sink, text: &[u8]) {
    let mut rest = text;
    while let Some(nul) = find_nul(rest) {
        out.extend(&rest[..=nul]);
        out.push(ctype::ESCAPED_NUL);
        rest = &rest[nul + 1..];
    }
    out.extend(rest);
    out.push(ctype::NUL);
}

/// Appends text that holds no NUL, with its terminator.
#[inline]
pub(crate) fn push_cstring(out: &mut impl Sink, text: &[u8]) {
    out.extend(text);
    out.push(ctype::NUL);
}

/// Reads ascending bytes from the front; a descending component is inverted before it is read.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

const SHORT: Corrupt = Corrupt("the key is cut off");

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Corrupt> {
        let byte = self.peek().ok_or(SHORT)?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Corrupt> {
        let end = self.at.checked_add(len).ok_or(SHORT)?;
        let bytes = self.bytes.get(self.at..end).ok_or(SHORT)?;
        self.at = end;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        Ok(self.take(N)?.try_into().expect("the slice has this length"))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Corrupt> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Corrupt> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// The bytes after those of a number, inverted if the number is negative.
    pub(crate) fn continuation(&mut self, negative: bool) -> Result<u64, Corrupt> {
        self.be_bytes(8, negative)
    }

    /// A big-endian integer of up to eight bytes, inverted if it belongs to a negative number.
    pub(crate) fn be_bytes(&mut self, len: usize, negative: bool) -> Result<u64, Corrupt> {
        let bytes = self.take(len)?;
        let flip = if negative { 0xff } else { 0 };
        Ok(bytes
            .iter()
            .fold(0, |value, &b| value << 8 | u64::from(b ^ flip)))
    }

    /// Text up to its terminator, which it cannot hold.
    pub(crate) fn cstring(&mut self) -> Result<&'a [u8], Corrupt> {
        let len = find_nul(&self.bytes[self.at..]).ok_or(SHORT)?;
        let text = self.take(len)?;
        self.at += 1;
        Ok(text)
    }

    /// A string still with its escapes, and whether it has any.
    pub(crate) fn escaped_text(&mut self) -> Result<(&'a [u8], bool), Corrupt> {
        let start = self.at;
        let mut escapes = false;
        loop {
            self.cstring()?;
            if self.peek() != Some(ctype::ESCAPED_NUL) {
                return Ok((&self.bytes[start..self.at - 1], escapes));
            }
            escapes = true;
            self.at += 1;
        }
    }
}

/// Takes the escapes out of a string.
pub(crate) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        out.push(byte);
        if byte == ctype::NUL {
            // Only an escape follows a NUL inside a string.
            bytes.next();
        }
    }
    out
}
