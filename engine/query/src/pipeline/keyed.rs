//! Documents with what a read knows of them, as it gives them to a pipeline that reads that: the
//! keys by which an index found them, and those under which the collection holds them.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use super::Document;
use super::step::{Accepted, Step};
use crate::error::bad_value;
use crate::expression::{MetaSet, Metadata};
use crate::value::field;
use crate::work::spend_bytes;

const DOCUMENT: &str = "document";
const METADATA: &str = "metadata";

/// The form in which a document and what is known of it are given to a pipeline.
pub fn keyed(document: &RawDocument, metadata: &Metadata) -> Result<RawDocumentBuf> {
    spend_bytes(document.as_bytes().len())?;
    let mut out = DocBuilder::new();
    out.append(DOCUMENT, RawBsonRef::Document(document));
    if !metadata.is_empty() {
        out.append(METADATA, RawBsonRef::Document(&metadata.to_document()));
    }
    Ok(out.finish())
}

/// The expression by which a pipeline gives documents in that form, with these kinds.
pub(super) fn keyed_value(metadata: MetaSet) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append(DOCUMENT, "$$ROOT").start_document(METADATA);
    for kind in metadata.iter() {
        out.start_document(kind.name())
            .append("$meta", kind.name())
            .end();
    }
    out.end();
    out.finish()
}

/// Takes the documents out of that form.
#[derive(Debug)]
pub(super) struct Unkeying;

impl Step for Unkeying {
    fn take(&mut self, given: &Document) -> Result<Accepted> {
        let Some(RawBsonRef::Document(document)) = field(given, DOCUMENT) else {
            return Err(bad_value("a read gave a document without its metadata"));
        };
        spend_bytes(document.as_bytes().len())?;
        let made = Document::from(document.to_owned());
        let metadata = match field(given, METADATA) {
            Some(RawBsonRef::Document(metadata)) => Metadata::from_document(metadata),
            _ => Metadata::default(),
        };
        Ok(Accepted::Made(made.with_metadata(metadata)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::MetaKind;
    use pinion_bson::rawdoc;

    #[test]
    fn keys_come_with_their_documents() {
        let document = rawdoc! { "_id": 1, "a": 5 };
        let check = |metadata: Metadata| {
            let given = keyed(&document, &metadata).expect("within the budget");
            let Ok(Accepted::Made(made)) = Unkeying.take(&given.into()) else {
                panic!("no document");
            };
            assert_eq!(made.as_bytes(), document.as_bytes());
            assert_eq!(made.metadata(), &metadata);
        };
        check(Metadata::default());
        let by_index = Metadata::default().with(MetaKind::IndexKey, rawdoc! { "a": 5 });
        check(by_index.clone());
        check(by_index.with(MetaKind::RecordId, 7_i64));
        assert!(Unkeying.take(&document.clone().into()).is_err());
    }
}
