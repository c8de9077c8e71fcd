//! The requests: OP_MSG bytes, and what a right answer looks like.

use pinion_bson::{RawDocument, RawDocumentBuf, rawdoc};

const OP_MSG: i32 = 2013;
/// Header, flag bits and the kind of the first section.
pub const BODY_OFFSET: usize = 21;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Inserts keys 0..n once each.
    Load,
    /// Finds a document by `_id`.
    Find,
    /// Sets one field of a document by `_id`.
    Update,
    /// Inserts a document with a new `_id`.
    Insert,
    /// The same, acknowledged after the journal is on disk.
    InsertJournaled,
}

impl Operation {
    /// The name on the command line.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "load" => Self::Load,
            "find" => Self::Find,
            "update" => Self::Update,
            "insert" => Self::Insert,
            "insert-journaled" => Self::InsertJournaled,
            _ => return None,
        })
    }
}

/// A small, fast random stream (splitmix64).
pub struct Random(pub u64);

impl Random {
    /// The next 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Random printable text.
    pub fn text(&mut self, bytes: usize) -> String {
        (0..bytes)
            .map(|_| char::from(b' ' + (self.next() % 95) as u8))
            .collect()
    }
}

/// Makes the requests of a run.
pub struct Requests {
    operation: Operation,
    collection: String,
    keys: u64,
    next_key: u64,
    texts: Vec<String>,
    random: Random,
    request_id: i32,
}

impl Requests {
    /// `first_key`: where inserts begin.
    pub fn new(
        operation: Operation,
        collection: &str,
        keys: u64,
        value_bytes: usize,
        first_key: u64,
    ) -> Self {
        let mut random = Random(first_key ^ 0x5eed);
        // Cut from a pool, so that making text does not bound the client.
        let texts = (0..64).map(|_| random.text(value_bytes)).collect();
        Self {
            operation,
            collection: collection.into(),
            keys,
            next_key: first_key,
            texts,
            random,
            request_id: 0,
        }
    }

    /// The next request's bytes into `out`; false when there is nothing left to send.
    pub fn next(&mut self, out: &mut Vec<u8>) -> bool {
        let text = &self.texts[(self.random.next() % self.texts.len() as u64) as usize];
        let random_key = (self.random.next() % self.keys) as i64;
        let collection = self.collection.as_str();
        let body: RawDocumentBuf = match self.operation {
            Operation::Find => {
                rawdoc! { "find": collection, "filter": { "_id": random_key }, "limit": 1_i32, "singleBatch": true, "$db": "bench" }
            }
            Operation::Update => rawdoc! {
                "update": collection,
                "updates": [{ "q": { "_id": random_key }, "u": { "$set": { "value": text.as_str() } } }],
                "$db": "bench",
            },
            Operation::Load | Operation::Insert | Operation::InsertJournaled => {
                if self.operation == Operation::Load && self.next_key >= self.keys {
                    return false;
                }
                let key = self.next_key as i64;
                self.next_key += 1;
                let documents = rawdoc! { "_id": key, "value": text.as_str() };
                if self.operation == Operation::InsertJournaled {
                    rawdoc! { "insert": collection, "documents": [documents], "writeConcern": { "w": 1_i32, "j": true }, "$db": "bench" }
                } else {
                    rawdoc! { "insert": collection, "documents": [documents], "$db": "bench" }
                }
            }
        };
        self.request_id = self.request_id.wrapping_add(1);
        frame(self.request_id, &body, out);
        true
    }

    /// Whether a reply is what the operation must give.
    pub fn right(&self, reply: &RawDocument) -> bool {
        let ok = matches!(reply.get("ok"), Ok(Some(value)) if value.as_f64() == Some(1.0));
        if !ok || !matches!(reply.get("writeErrors"), Ok(None)) {
            return false;
        }
        if self.operation == Operation::Find {
            let cursor = reply.get_document("cursor");
            return cursor
                .and_then(|cursor| cursor.get_array("firstBatch"))
                .is_ok_and(|batch| batch.into_iter().count() == 1);
        }
        matches!(reply.get("n"), Ok(Some(n)) if n.as_i32() == Some(1))
    }
}

fn frame(request_id: i32, body: &RawDocumentBuf, out: &mut Vec<u8>) {
    out.clear();
    let length = (BODY_OFFSET + body.as_bytes().len()) as i32;
    for word in [length, request_id, 0, OP_MSG, 0] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.push(0);
    out.extend_from_slice(body.as_bytes());
}
