//! A cursor at the primary of another set of the cluster, read batch by batch.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, get};
use pinion_server::Resend;
use pinion_sharding_protocol::ConnectionString;
use pinion_sharding_router::Hosts;
use pinion_wire::{Error, HostPort, Result};

use crate::config_servers::run_on_primary_of;
use crate::limits::{CLONE_BATCH, REMOTE_COMMAND};

pub(crate) struct RemoteCursor {
    set: String,
    host: HostPort,
    /// Zero once it is at its end.
    id: i64,
    db: String,
    collection: String,
    first: Option<Vec<RawDocumentBuf>>,
}

/// A cursor's reply.
struct Batch {
    id: i64,
    ns: String,
    documents: Vec<RawDocumentBuf>,
}

impl RemoteCursor {
    /// Opens a cursor by a command.
    ///
    /// # Errors
    /// As of [`run_on_primary_of`]; the reply has no cursor.
    pub(crate) async fn open(
        set: &ConnectionString,
        command: &RawDocument,
    ) -> Result<RemoteCursor> {
        let (host, reply) = run_on_primary_of(set, command, REMOTE_COMMAND).await?;
        let batch = Batch::read(&reply, "firstBatch")?;
        let (db, collection) = batch.ns.split_once('.').ok_or_else(malformed)?;
        Ok(RemoteCursor {
            set: set.set.clone(),
            host,
            id: batch.id,
            db: db.to_owned(),
            collection: collection.to_owned(),
            first: Some(batch.documents),
        })
    }

    /// The next documents; `None` at the end.
    ///
    /// # Errors
    /// The member does not answer; those of `getMore`. The cursor is of no use then.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<RawDocumentBuf>>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        if self.id == 0 {
            return Ok(None);
        }
        let mut more = DocBuilder::new();
        more.append("getMore", self.id)
            .append("collection", self.collection.as_str())
            .append("batchSize", CLONE_BATCH)
            .append("$db", self.db.as_str());
        let more = more.finish();
        let hosts = Hosts::here();
        let reply = hosts.run_at(&self.set, &self.host, &more, REMOTE_COMMAND, Resend::Never);
        let reply = reply.await.map_err(|error| error.into_error())?;
        let batch = Batch::read(reply.body(), "nextBatch")?;
        self.id = batch.id;
        Ok(Some(batch.documents))
    }

    /// All documents that are left: of a listing, which is not long.
    ///
    /// # Errors
    /// As of [`RemoteCursor::next`].
    pub(crate) async fn all(mut self) -> Result<Vec<RawDocumentBuf>> {
        let mut all = Vec::new();
        while let Some(documents) = self.next().await? {
            all.extend(documents);
        }
        Ok(all)
    }
}

fn malformed() -> Error {
    Error::failed_to_parse("the reply has no cursor")
}

impl Batch {
    fn read(reply: &RawDocument, name: &str) -> Result<Batch> {
        let cursor = get(reply, "cursor").and_then(|cursor| cursor.as_document());
        let cursor = cursor.ok_or_else(malformed)?;
        let documents = get(cursor, name).and_then(|batch| batch.as_array());
        let documents = pinion_bson::values(documents.ok_or_else(malformed)?);
        let documents = documents.map(|document| match document {
            RawBsonRef::Document(document) => Ok(document.to_owned()),
            _ => Err(malformed()),
        });
        let (Some(RawBsonRef::Int64(id)), Some(RawBsonRef::String(ns))) =
            (get(cursor, "id"), get(cursor, "ns"))
        else {
            return Err(malformed());
        };
        Ok(Batch {
            id,
            ns: ns.to_owned(),
            documents: documents.collect::<Result<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn batches() {
        let reply = rawdoc! {
            "cursor": { "id": 7i64, "ns": "d.c", "firstBatch": [{ "_id": 1 }] }, "ok": 1,
        };
        let read = Batch::read(&reply, "firstBatch").expect("a cursor");
        assert_eq!((read.id, &*read.ns), (7, "d.c"));
        assert_eq!(read.documents, [rawdoc! { "_id": 1 }]);
        assert!(Batch::read(&reply, "nextBatch").is_err());
        assert!(Batch::read(&rawdoc! { "ok": 1 }, "firstBatch").is_err());
    }
}
