//! Resume tokens: `{_data, _typeBits}`, where `_data` is the hexadecimal form of a KeyString of the
//! event's time, the form's version, the kind of token, the place in a transaction, whether an
//! invalidation made it, the collection's UUID, what distinguishes the event from others at this
//! place, and, of a part of a large event, the part's number. MongoDB 4.4 has another form of it.
//!
//! Tokens compare as their bytes do, which is the order of the events.

use std::cmp::Ordering as Order;

use pinion_bson::{
    BinarySubtype, DocBuilder, RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp,
};
use pinion_keystring::{Builder, Ordering, TypeBits, decode};
use pinion_wire::{Error, Result};

use crate::error::{error, failed_to_parse};
use crate::number::exact_i64;
use crate::text::document_text;
use crate::value::elements;

/// The form of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TokenForm {
    #[default]
    Newest,
    /// Version 1, the only one that MongoDB 4.4 reads: without a UUID nothing follows, and what
    /// distinguishes events is the document's key alone, where there is one.
    V44,
}

impl TokenForm {
    fn version(self) -> i32 {
        match self {
            TokenForm::Newest => 2,
            TokenForm::V44 => 1,
        }
    }
}

/// Kinds of tokens.
const HIGH_WATER_MARK: i32 = 0;
const EVENT: i32 = 128;

/// What a token says.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenData {
    pub cluster_time: Timestamp,
    /// The token is an event's; otherwise it says that everything before its time was seen.
    pub is_event: bool,
    /// Which operation of the entry it is of.
    pub operation: u64,
    pub from_invalidate: bool,
    /// The collection's UUID.
    pub uuid: Option<[u8; 16]>,
    /// `{operationType, documentKey}` or `{operationType, operationDescription}`; in the form of
    /// MongoDB 4.4 the document's key.
    pub identifier: Option<RawDocumentBuf>,
    /// Which part of a large event it is of, from 0 on.
    pub fragment: Option<u32>,
}

impl TokenData {
    /// That everything before this time was seen.
    pub fn high_water_mark(cluster_time: Timestamp) -> TokenData {
        TokenData {
            cluster_time,
            is_event: false,
            operation: 0,
            from_invalidate: false,
            uuid: None,
            identifier: None,
            fragment: None,
        }
    }

    /// The token.
    pub fn token(&self) -> ResumeToken {
        self.token_in(TokenForm::Newest)
    }

    /// The token in a form. Of a part of an event there is one in the newest alone.
    pub fn token_in(&self, form: TokenForm) -> ResumeToken {
        let mut key = Builder::new(Ordering::default());
        key.append(RawBsonRef::Timestamp(self.cluster_time))
            .append(RawBsonRef::Int32(form.version()))
            .append(RawBsonRef::Int32(match self.is_event {
                true => EVENT,
                false => HIGH_WATER_MARK,
            }));
        match i32::try_from(self.operation) {
            Ok(operation) => key.append(RawBsonRef::Int32(operation)),
            Err(_) => key.append(RawBsonRef::Int64(self.operation as i64)),
        };
        key.append(RawBsonRef::Boolean(self.from_invalidate));
        let is_newest = form == TokenForm::Newest;
        match &self.uuid {
            Some(uuid) => {
                key.append(RawBsonRef::Binary(RawBinaryRef {
                    subtype: BinarySubtype::Uuid,
                    bytes: uuid,
                }));
            }
            None if is_newest => {
                key.append(RawBsonRef::Null);
            }
            None => {}
        }
        if let Some(identifier) = &self.identifier
            && (is_newest || self.uuid.is_some())
        {
            key.append(RawBsonRef::Document(identifier));
        }
        if let Some(fragment) = self.fragment.filter(|_| is_newest) {
            key.append(RawBsonRef::Int32(fragment as i32));
        }
        let key = key.finish();
        ResumeToken {
            type_bits: match key.type_bits.is_all_zeros() {
                true => None,
                false => Some(key.type_bits.as_bytes().to_vec()),
            },
            bytes: key.bytes.to_vec(),
        }
    }
}

/// A token to resume from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResumeToken {
    /// The KeyString with its end byte.
    bytes: Vec<u8>,
    /// What distinguishes values that are equal in it, unless that is nothing.
    type_bits: Option<Vec<u8>>,
}

fn bad(code: i32, what: &str) -> Error {
    error(code, format!("Bad resume token: {what}"))
}

impl ResumeToken {
    /// Reads a token as clients hand it in.
    ///
    /// # Errors
    /// 40647 to 40649 and FailedToParse for what is no token's form.
    pub fn parse(document: &RawDocument) -> Result<ResumeToken> {
        let mut data = None;
        let mut type_bits = None;
        for (name, value) in elements(document) {
            match name {
                "_data" => data = Some(value),
                "_typeBits" => type_bits = Some(value),
                _ => {}
            }
        }
        let Some(RawBsonRef::String(data)) = data else {
            let what = format!(
                "_data of missing or of wrong type: {}",
                document_text(document)
            );
            return Err(bad(40647, &what));
        };
        let type_bits = match type_bits {
            None => None,
            Some(RawBsonRef::Binary(bits)) => Some(bits.bytes.to_vec()),
            Some(_) => {
                let what = format!("_typeBits of wrong type: {}", document_text(document));
                return Err(bad(40648, &what));
            }
        };
        let bytes = unhex(data)
            .ok_or_else(|| failed_to_parse("resume token string was not a valid hex string"))?;
        if bytes.is_empty() {
            return Err(error(40649, "invalid empty resume token"));
        }
        Ok(ResumeToken { bytes, type_bits })
    }

    /// The token as clients get it.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::with_capacity(self.bytes.len() * 2 + 32);
        self.append_to(&mut out);
        out.finish()
    }

    pub(super) fn append_to(&self, out: &mut DocBuilder) {
        out.append("_data", hex(&self.bytes).as_str());
        if let Some(bits) = &self.type_bits {
            let subtype = BinarySubtype::Generic;
            out.append(
                "_typeBits",
                RawBsonRef::Binary(RawBinaryRef {
                    subtype,
                    bytes: bits,
                }),
            );
        }
    }

    /// What the token says.
    ///
    /// # Errors
    /// 50811 where it is no KeyString, 50790 and others for what is none of a token's.
    pub fn data(&self) -> Result<TokenData> {
        let bits = match &self.type_bits {
            Some(bits) => TypeBits::from_bytes(bits),
            None => Ok(TypeBits::new()),
        };
        let values = bits.and_then(|bits| decode(&self.bytes, Ordering::default(), &bits));
        let values =
            values.map_err(|corrupt| error(50811, format!("Bad resume token: {corrupt}")))?;
        let mut values = elements(&values).map(|(_, value)| value).peekable();
        let Some(RawBsonRef::Timestamp(cluster_time)) = values.next() else {
            return Err(bad(40649, "it does not begin with a timestamp"));
        };
        let version = values.next().and_then(exact_i64);
        let Some(version @ 0..=2) = version else {
            return Err(bad(50791, "it has a version that is not known"));
        };
        let is_event = match version {
            0 => true,
            _ => match values.next().and_then(exact_i64) {
                Some(0) => false,
                Some(128) => true,
                _ => return Err(bad(51055, "it has a type that is not known")),
            },
        };
        let operation = values.next().and_then(exact_i64);
        let Some(operation) = operation.and_then(|at| u64::try_from(at).ok()) else {
            return Err(bad(50793, "it has no place in its transaction"));
        };
        let from_invalidate = match (version, values.peek()) {
            (0, _) | (_, None) => false,
            (_, Some(RawBsonRef::Boolean(from_invalidate))) => {
                let from_invalidate = *from_invalidate;
                values.next();
                from_invalidate
            }
            _ => {
                return Err(bad(
                    50872,
                    "it does not say whether it is of an invalidation",
                ));
            }
        };
        let uuid = match values.next() {
            None | Some(RawBsonRef::Null) => None,
            Some(RawBsonRef::Binary(RawBinaryRef {
                subtype: BinarySubtype::Uuid,
                bytes,
            })) if bytes.len() == 16 => bytes.try_into().ok(),
            Some(_) => return Err(bad(50795, "it has no UUID where there should be one")),
        };
        let identifier = match values.next() {
            None => None,
            Some(RawBsonRef::Document(identifier)) => Some(identifier.to_owned()),
            Some(_) => {
                return Err(bad(
                    50797,
                    "what tells its event from others is no document",
                ));
            }
        };
        let fragment = match values.next() {
            None => None,
            Some(number) => match exact_i64(number).and_then(|number| u32::try_from(number).ok()) {
                Some(number) => Some(number),
                None => return Err(bad(7182501, "it has a part that is no number")),
            },
        };
        Ok(TokenData {
            cluster_time,
            is_event,
            operation,
            from_invalidate,
            uuid,
            identifier,
            fragment,
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some((digit(*high)? << 4 | digit(*low)?) as u8),
            _ => None,
        })
        .collect()
}

/// Where a stream is resumed: everything up to an event was seen, and the event must be there.
#[derive(Clone, Debug, PartialEq)]
pub struct Resume {
    /// The token as it came.
    pub token: ResumeToken,
    pub data: TokenData,
    /// The token of the whole event.
    whole: ResumeToken,
    was_found: bool,
}

/// What an event is to a stream that is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The client has it.
    Yes,
    /// The client has this number of its first parts.
    Parts(u32),
    No,
}

impl Resume {
    pub(super) fn new(token: ResumeToken) -> Result<Resume> {
        let data = token.data()?;
        let whole = match data.fragment {
            None => token.clone(),
            Some(_) => TokenData {
                fragment: None,
                ..data.clone()
            }
            .token(),
        };
        Ok(Resume {
            was_found: !data.is_event,
            token,
            data,
            whole,
        })
    }

    /// The event need not be here: it is of this shard or of another one.
    pub fn allow_missing(&mut self) {
        self.was_found = true;
    }

    /// Whether this is the event that the stream is resumed from.
    pub fn is_of(&self, token: &ResumeToken) -> bool {
        self.data.is_event && token.bytes == self.whole.bytes
    }

    /// Looks at the token of the next event.
    ///
    /// # Errors
    /// `ChangeStreamFatalError` when the event that was resumed from should have come before this
    /// one.
    pub fn look(&mut self, token: &ResumeToken) -> Result<Seen> {
        match token.bytes.cmp(&self.whole.bytes) {
            Order::Less => Ok(Seen::Yes),
            Order::Equal => {
                self.was_found = true;
                match self.data.fragment {
                    Some(last) => Ok(Seen::Parts(last + 1)),
                    None => Ok(Seen::Yes),
                }
            }
            Order::Greater if self.was_found => Ok(Seen::No),
            Order::Greater => Err(error(
                280,
                format!(
                    "cannot resume stream; the resume token was not found. {}",
                    document_text(&token.to_document())
                ),
            )),
        }
    }
}
