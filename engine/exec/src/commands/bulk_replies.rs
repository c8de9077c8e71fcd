//! The results of a `bulkWrite`: one document for each operation, and what they come to together.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBson};
use pinion_wire::{Error, ErrorCode, Result};

use crate::limits::MAX_BULK_REPLY_BYTES;

/// What an operation that succeeded did.
pub(super) struct Done<'a> {
    pub n: i64,
    /// Of an update alone.
    pub modified: Option<i64>,
    pub upserted: Option<&'a RawBson>,
}

/// The results so far.
#[derive(Default)]
pub(super) struct Replies {
    /// Only failures are wanted.
    errors_only: bool,
    pub inserted: i64,
    pub matched: i64,
    pub modified: i64,
    pub upserted: i64,
    pub deleted: i64,
    /// The statements of a retryable write that were executed before.
    pub retried: Vec<i32>,
    errors: i64,
    bytes: usize,
    documents: VecDeque<Bytes>,
}

impl Replies {
    pub(super) fn new(errors_only: bool) -> Replies {
        Replies {
            errors_only,
            ..Replies::default()
        }
    }

    pub(super) fn succeeded(&mut self, index: usize, done: Done<'_>) -> Result<()> {
        if self.errors_only {
            return Ok(());
        }
        let mut out = DocBuilder::new();
        out.append("ok", 1.0)
            .append("idx", index as i32)
            .append("n", done.n as i32);
        if let Some(modified) = done.modified {
            out.append("nModified", modified as i32);
        }
        if let Some(id) = done.upserted {
            out.start_document("upserted");
            out.append("_id", id.as_raw_bson_ref()).end();
        }
        self.push(out)
    }

    pub(super) fn failed(&mut self, index: usize, error: &Error, is_update: bool) -> Result<()> {
        self.errors += 1;
        let mut out = DocBuilder::new();
        out.append("ok", 0.0)
            .append("idx", index as i32)
            .append("code", error.code.0)
            .append("errmsg", error.message.as_str());
        if let Some(extra) = &error.extra {
            out.append_all(extra);
        }
        out.append("n", 0);
        if is_update {
            out.append("nModified", 0);
        }
        self.push(out)
    }

    fn push(&mut self, document: DocBuilder) -> Result<()> {
        let document = Bytes::from(document.finish().into_bytes());
        self.bytes += document.len();
        if self.bytes > MAX_BULK_REPLY_BYTES {
            return Err(Error::new(
                ErrorCode(146),
                format!("BulkWrite response size exceeded limit ({MAX_BULK_REPLY_BYTES} bytes)"),
            ));
        }
        self.documents.push_back(document);
        Ok(())
    }

    pub(super) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    pub(super) fn take_documents(&mut self) -> VecDeque<Bytes> {
        std::mem::take(&mut self.documents)
    }

    pub(super) fn append_counts(&self, out: &mut DocBuilder) {
        for (name, count) in [
            ("nErrors", self.errors),
            ("nInserted", self.inserted),
            ("nMatched", self.matched),
            ("nModified", self.modified),
            ("nUpserted", self.upserted),
            ("nDeleted", self.deleted),
        ] {
            out.append(name, count as i32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocument, rawdoc};

    fn check(replies: &Replies, expected: &[pinion_bson::RawDocumentBuf]) {
        let documents: Vec<_> = replies
            .documents
            .iter()
            .map(|bytes| RawDocument::from_bytes(bytes).expect("valid").to_owned())
            .collect();
        assert_eq!(documents, expected);
    }

    #[test]
    fn results_are_kept_unless_errors_alone_are_wanted() {
        let run = |errors_only| {
            let mut replies = Replies::new(errors_only);
            let id = RawBson::Int32(7);
            let done = Done {
                n: 1,
                modified: Some(0),
                upserted: Some(&id),
            };
            replies.succeeded(0, done).expect("room");
            let mut error = Error::new(ErrorCode(11000), "taken");
            error.extra = Some(Box::new(rawdoc! { "keyPattern": { "_id": 1 } }));
            replies.failed(1, &error, false).expect("room");
            replies
        };
        let failure = rawdoc! { "ok": 0.0, "idx": 1, "code": 11000, "errmsg": "taken",
        "keyPattern": { "_id": 1 }, "n": 0 };
        let success =
            rawdoc! { "ok": 1.0, "idx": 0, "n": 1, "nModified": 0, "upserted": { "_id": 7 } };
        check(&run(false), &[success, failure.clone()]);
        check(&run(true), &[failure]);
        assert!(run(true).has_errors());
    }

    #[test]
    fn results_have_a_bound() {
        let mut replies = Replies::default();
        let error = Error::new(ErrorCode(2), "x".repeat(40 << 20));
        assert!(replies.failed(0, &error, true).is_ok() && replies.failed(1, &error, true).is_ok());
        let refused = replies.failed(2, &error, true).expect_err("too many");
        assert_eq!(refused.code, ErrorCode(146));
    }
}
