//! A document on its way through a pipeline.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use crate::error::bad_value;
use crate::expression::{Metadata, NO_METADATA, Subject};
use crate::spill::Spilled;

/// A document between two stages. Its bytes are shared: a copy of it copies none of them.
#[derive(Clone, Debug)]
pub struct Document {
    bytes: Bytes,
    /// None where nothing is known beside the fields.
    metadata: Option<Arc<Metadata>>,
    /// Orders the document, or the one that it was made of, among those of all parts, where a part
    /// needs that.
    order: Option<Arc<[u8]>>,
}

impl Document {
    /// The document's bytes.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// What is known of the document beside its fields.
    pub fn metadata(&self) -> &Metadata {
        self.metadata.as_deref().unwrap_or(&NO_METADATA)
    }

    /// What orders the document among those of all parts; empty where that is not known.
    pub(crate) fn order(&self) -> &[u8] {
        self.order.as_deref().unwrap_or_default()
    }

    /// The same document with what orders it among those of all parts.
    #[must_use]
    pub fn with_order(self, order: &[u8]) -> Document {
        Document {
            order: Some(order.into()),
            ..self
        }
    }

    /// The same document in the order of the one that it was made of.
    #[must_use]
    pub(crate) fn with_order_of(self, other: &Document) -> Document {
        Document {
            order: other.order.clone(),
            ..self
        }
    }

    /// The same document with other things known of it.
    #[must_use]
    pub fn with_metadata(self, metadata: Metadata) -> Document {
        let metadata = (!metadata.is_empty()).then(|| Arc::new(metadata));
        Document { metadata, ..self }
    }

    /// The same document with what is known of the one that it was made of, unless something is
    /// known of it.
    #[must_use]
    pub fn made_of(self, other: &Document) -> Document {
        Document {
            metadata: self.metadata.or_else(|| other.metadata.clone()),
            order: self.order.or_else(|| other.order.clone()),
            ..self
        }
    }
}

impl<'a> From<&'a Document> for Subject<'a> {
    fn from(document: &'a Document) -> Subject<'a> {
        Subject {
            document,
            metadata: document.metadata(),
        }
    }
}

impl From<RawDocumentBuf> for Document {
    fn from(document: RawDocumentBuf) -> Document {
        Document {
            bytes: Bytes::from(document.into_bytes()),
            metadata: None,
            order: None,
        }
    }
}

impl From<Bytes> for Document {
    /// The bytes come from where they were checked to be a document.
    fn from(bytes: Bytes) -> Document {
        Document {
            bytes,
            metadata: None,
            order: None,
        }
    }
}

impl Deref for Document {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        RawDocument::from_bytes(&self.bytes).expect("a pipeline is given documents")
    }
}

/// The document's bytes, and behind them what is known beside its fields, if anything is.
impl Spilled for Document {
    fn spilled_bytes(&self) -> usize {
        self.bytes.len() + self.metadata().bytes()
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes);
        if let Some(metadata) = &self.metadata {
            out.extend_from_slice(metadata.to_document().as_bytes());
        }
    }

    fn read(bytes: &[u8]) -> Result<Document> {
        let (document, metadata) = split_document(bytes)?;
        let read = Document::from(Bytes::copy_from_slice(document));
        if metadata.is_empty() {
            return Ok(read);
        }
        let (metadata, _) = split_document(metadata)?;
        let metadata = RawDocument::from_bytes(metadata).map_err(|_| unreadable())?;
        Ok(read.with_metadata(Metadata::from_document(metadata)))
    }
}

/// The first of several documents that follow each other, and the others.
pub(super) fn split_document(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let length = bytes
        .first_chunk()
        .map(|length| u32::from_le_bytes(*length));
    let parts = length.and_then(|length| bytes.split_at_checked(length as usize));
    parts.ok_or_else(unreadable)
}

fn unreadable() -> pinion_wire::Error {
    bad_value("a document that was spilled has a form that is not known")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::MetaKind;
    use pinion_bson::rawdoc;

    #[track_caller]
    fn check(metadata: Metadata) {
        let document = Document::from(rawdoc! { "a": 1 }).with_metadata(metadata);
        let mut bytes = Vec::new();
        document.write(&mut bytes);
        let read = Document::read(&bytes).expect("sound");
        assert_eq!(read.as_bytes(), document.as_bytes());
        assert_eq!(read.metadata(), document.metadata());
        assert!(Document::read(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn what_is_known_of_a_document_is_spilled_with_it() {
        check(Metadata::default());
        check(Metadata::default().with(MetaKind::TextScore, 1.5));
        check(
            Metadata::default()
                .with(MetaKind::IndexKey, rawdoc! { "b": 2 })
                .with(MetaKind::GeoNearDistance, 7.0),
        );
    }
}
