//! What a part hands to the merge.

use bytes::Bytes;
use pinion_service::spill::SpillCounts;
use pinion_wire::Error;
use smallvec::SmallVec;

use crate::limits::{PART_BATCH_BYTES, PART_BATCH_DOCUMENTS};

/// Bytes that order a document among others: those of a KeyString. A node's storage has the same
/// type for its keys, so none is copied on the way.
pub type OrderKey = SmallVec<[u8; 32]>;

/// One document of a part, with the key that orders it among the documents of all parts.
#[derive(Clone, Debug)]
pub struct Item {
    /// Of two parts none has the same, unless several find the same document. What is made of one
    /// document has one key.
    pub order: OrderKey,
    /// The document's key in its collection, where the same document may come from several parts.
    pub id: Option<OrderKey>,
    /// Or why it has no form to be given in, which counts only once it is this document's turn: one
    /// that is skipped, or lies behind the limit, is not projected in MongoDB.
    pub document: Result<Bytes, Box<Error>>,
}

impl Item {
    /// The bytes of the key, and of the document or of what is wrong with it.
    pub fn size(&self) -> usize {
        let document = match &self.document {
            Ok(document) => document.len(),
            Err(error) => error.message.len(),
        };
        self.order.len() + document
    }
}

/// What a part has done so far, for `explain`, `serverStatus` and the profiler's fields of
/// `currentOp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCounters {
    pub keys_examined: u64,
    pub docs_examined: u64,
    pub returned: u64,
    /// Documents that the filter let pass.
    pub matched: u64,
    /// Documents that the shard does not own.
    pub chunk_skips: u64,
    pub seeks: u64,
    pub dups_dropped: u64,
    pub sort_bytes: u64,
    pub spilled: SpillCounts,
    pub works: u64,
}

impl PartCounters {
    /// Adds what another step, or another part, has done.
    pub fn add(&mut self, other: &PartCounters) {
        self.keys_examined += other.keys_examined;
        self.docs_examined += other.docs_examined;
        self.returned += other.returned;
        self.matched += other.matched;
        self.chunk_skips += other.chunk_skips;
        self.seeks += other.seeks;
        self.dups_dropped += other.dups_dropped;
        self.sort_bytes += other.sort_bytes;
        self.spilled.add(&other.spilled);
        self.works += other.works;
    }
}

/// One step of a part.
#[derive(Debug, Default)]
pub struct Batch {
    pub items: Vec<Item>,
    /// No item follows. The part is gone. A batch without items is the last one.
    pub done: bool,
    /// Since the step before.
    pub counters: PartCounters,
}

/// How much a part hands over in one step: it ends with the item that reaches either.
#[derive(Clone, Copy, Debug)]
pub struct StepSize {
    pub documents: usize,
    pub bytes: usize,
}

impl StepSize {
    /// A step as large as what is wanted, so that a small batch does not read ahead far.
    pub fn for_wanted(documents: usize) -> StepSize {
        StepSize {
            documents: documents.clamp(1, PART_BATCH_DOCUMENTS),
            bytes: PART_BATCH_BYTES,
        }
    }
}
