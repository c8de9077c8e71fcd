//! A document on its way through a pipeline.

use std::ops::Deref;

use bytes::Bytes;
use pinion_bson::{RawDocument, RawDocumentBuf};

/// A document between two stages. Its bytes are shared: a copy of it copies none of them.
#[derive(Clone, Debug)]
pub struct Document {
    bytes: Bytes,
}

impl Document {
    /// The document's bytes.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

impl From<RawDocumentBuf> for Document {
    fn from(document: RawDocumentBuf) -> Document {
        Document {
            bytes: Bytes::from(document.into_bytes()),
        }
    }
}

impl From<Bytes> for Document {
    /// The bytes come from where they were checked to be a document.
    fn from(bytes: Bytes) -> Document {
        Document { bytes }
    }
}

impl Deref for Document {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        RawDocument::from_bytes(&self.bytes).expect("a pipeline is given documents")
    }
}
