//! An inconsistency, as the reply of `checkMetadataConsistency` has it.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid};
use pinion_wire::idl::Namespace;

use crate::limits::MAX_INCONSISTENCIES;
use crate::values::append_uuid;

/// Those that were found, up to a limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inconsistencies(Vec<RawDocumentBuf>);

impl Inconsistencies {
    /// Adds one of a collection: `{type, description, details: {namespace, ..}}`.
    pub(super) fn add(
        &mut self,
        kind: &str,
        description: &str,
        namespace: &str,
        details: impl FnOnce(&mut DocBuilder),
    ) {
        if self.0.len() >= MAX_INCONSISTENCIES {
            return;
        }
        let mut out = DocBuilder::new();
        out.append("type", kind).append("description", description);
        out.start_document("details").append("namespace", namespace);
        details(&mut out);
        out.end();
        self.0.push(out.finish());
    }

    /// Adds one of a collection with its UUID: `{namespace, collectionUUID, ..}`.
    pub(super) fn add_of(
        &mut self,
        kind: &str,
        description: &str,
        (ns, uuid): (&Namespace, Option<Uuid>),
        details: impl FnOnce(&mut DocBuilder),
    ) {
        self.add(kind, description, ns.as_str(), |out| {
            if let Some(uuid) = uuid {
                append_uuid(out, "collectionUUID", uuid);
            }
            details(out);
        });
    }

    /// Adds those that another check has found.
    pub fn extend(&mut self, other: Inconsistencies) {
        let room = MAX_INCONSISTENCIES - self.0.len();
        self.0.extend(other.0.into_iter().take(room));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn documents(&self) -> &[RawDocumentBuf] {
        &self.0
    }

    pub fn into_documents(self) -> Vec<RawDocumentBuf> {
        self.0
    }
}

impl From<Vec<RawDocumentBuf>> for Inconsistencies {
    fn from(documents: Vec<RawDocumentBuf>) -> Inconsistencies {
        Inconsistencies(documents)
    }
}

/// Those of a first look that a second one has found again: what was seen once alone may have been
/// under change.
pub fn confirmed(first: Inconsistencies, again: &Inconsistencies) -> Inconsistencies {
    let is_again = |found: &RawDocument| again.0.iter().any(|other| **other == *found);
    let kept = first.0.into_iter().filter(|found| is_again(found));
    Inconsistencies(kept.collect())
}
