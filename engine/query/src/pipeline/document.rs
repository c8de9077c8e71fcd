//! A document on its way through a pipeline.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{RawDocument, RawDocumentBuf};

use crate::expression::{Metadata, NO_METADATA, Subject};

/// A document between two stages. Its bytes are shared: a copy of it copies none of them.
#[derive(Clone, Debug)]
pub struct Document {
    bytes: Bytes,
    /// None where nothing is known beside the fields.
    metadata: Option<Arc<Metadata>>,
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
        }
    }
}

impl From<Bytes> for Document {
    /// The bytes come from where they were checked to be a document.
    fn from(bytes: Bytes) -> Document {
        Document {
            bytes,
            metadata: None,
        }
    }
}

impl Deref for Document {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        RawDocument::from_bytes(&self.bytes).expect("a pipeline is given documents")
    }
}
