//! Cursors at members of other sets, read to their end at once.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, get, rawdoc};
use pinion_runtime::Duration;
use pinion_server::Resend;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, HostPort};

use super::Hosts;
use crate::limits::MAX_READ_BYTES;

impl Hosts {
    /// All documents of a cursor of a member, whose first reply is there. Each further one takes at
    /// most `limit`, and is given to `learn` for the times behind it.
    ///
    /// # Errors
    /// Those of [`Hosts::run_at`]; `ExceededMemoryLimit` where the documents are too many.
    pub async fn read_to_end(
        &self,
        set: &str,
        host: &HostPort,
        ns: &Namespace,
        first: &RawDocument,
        limit: Duration,
        learn: impl Fn(&RawDocument),
    ) -> Result<Vec<RawDocumentBuf>, Error> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        let mut id = take_batch(first, "firstBatch", &mut found, &mut bytes)?;
        while id != 0 {
            if bytes > MAX_READ_BYTES {
                self.close_cursor(set, host, ns, id, limit).await;
                return Err(Error::new(
                    ErrorCode::EXCEEDED_MEMORY_LIMIT,
                    format!("documents of {ns} exceed {MAX_READ_BYTES} bytes"),
                ));
            }
            let mut more = DocBuilder::new();
            more.append("getMore", id)
                .append("collection", ns.collection())
                .append("$db", ns.db());
            let reply = self
                .run_at(set, host, &more.finish(), limit, Resend::Never)
                .await
                .map_err(|error| error.into_error())?;
            learn(reply.body());
            id = take_batch(reply.body(), "nextBatch", &mut found, &mut bytes)?;
        }
        Ok(found)
    }

    async fn close_cursor(
        &self,
        set: &str,
        host: &HostPort,
        ns: &Namespace,
        id: i64,
        limit: Duration,
    ) {
        let kill = rawdoc! {
            "killCursors": ns.collection(), "cursors": [id], "$db": ns.db(),
        };
        // One that is not closed times out there.
        let closed = self.run_at(set, host, &kill, limit, Resend::Never);
        drop(closed.await);
    }
}

/// Takes the documents of a cursor's reply, and counts their bytes. Gives the cursor's id.
fn take_batch(
    reply: &RawDocument,
    batch: &str,
    into: &mut Vec<RawDocumentBuf>,
    bytes: &mut usize,
) -> Result<i64, Error> {
    let malformed = || Error::internal("a reply has no cursor");
    let cursor = get(reply, "cursor").and_then(|cursor| cursor.as_document());
    let cursor = cursor.ok_or_else(malformed)?;
    let documents = get(cursor, batch).and_then(|batch| batch.as_array());
    for document in pinion_bson::values(documents.ok_or_else(malformed)?) {
        if let RawBsonRef::Document(document) = document {
            *bytes += document.as_bytes().len();
            into.push(document.to_owned());
        }
    }
    match get(cursor, "id") {
        Some(RawBsonRef::Int64(id)) => Ok(id),
        _ => Err(malformed()),
    }
}
