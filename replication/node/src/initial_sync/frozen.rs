//! The frozen checkpoint of a source, as its copier sees it.

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument, rawdoc};
use pinion_clock::Timestamp;
use pinion_replication_protocol::config::HostPort;
use pinion_runtime::sleep;
use pinion_storage::{CopiedEntry, MAX_COPIED_ENTRY_BYTES};
use pinion_wire::idl::i64_exact;

use super::source::{Source, batch_of};
use super::{Failed, Halt};
use crate::fetch::{bson_ts, cursor_of};
use crate::follower::Fetched;
use crate::limits::KEEP_FROZEN;

/// What the source reports of it.
pub(super) struct Frozen {
    pub number: u64,
    pub bytes: u64,
    pub manifest: Bytes,
}

fn malformed(command: &str) -> Failed {
    Failed::new(format!("a reply to {command} has another shape"))
}

fn number_of(reply: &RawDocument, name: &str) -> Option<u64> {
    let number = pinion_bson::get(reply, name).and_then(i64_exact)?;
    u64::try_from(number).ok()
}

fn data_of<'r>(reply: &'r RawDocument, name: &str) -> Option<&'r [u8]> {
    match pinion_bson::get(reply, name)? {
        RawBsonRef::Binary(binary) => Some(binary.bytes),
        _ => None,
    }
}

/// The offset and the pages of a reply to `_replReadCheckpoint`.
pub(super) fn read_frozen(reply: &RawDocument) -> Result<(u64, &[u8]), Failed> {
    let (offset, data) = (number_of(reply, "offset"), data_of(reply, "data"));
    offset
        .zip(data)
        .ok_or_else(|| malformed("_replReadCheckpoint"))
}

impl Source {
    /// Has the source freeze a checkpoint for this node, which it calls so.
    pub(super) async fn freeze_checkpoint(&mut self, copier: &HostPort) -> Result<Frozen, Failed> {
        let ask = rawdoc! {
            "_replFreezeCheckpoint": 1,
            "copier": copier.to_string(),
            "$db": "admin",
        };
        let reply = self.run(&ask).await?;
        let body = reply.body();
        let frozen = || {
            Some(Frozen {
                number: number_of(body, "number")?,
                bytes: number_of(body, "bytes")?,
                manifest: Bytes::copy_from_slice(data_of(body, "manifest")?),
            })
        };
        frozen().ok_or_else(|| malformed("_replFreezeCheckpoint"))
    }

    /// Releases the checkpoint at the source. If the message is lost, the source releases it after
    /// a while.
    pub(super) async fn release_checkpoint(&mut self, number: u64) {
        let ask = rawdoc! {
            "_replReleaseCheckpoint": 1,
            "number": number as i64,
            "$db": "admin",
        };
        let _ = self.run_once(&ask).await;
    }

    /// The entries of the source's oplog from one timestamp to another, which both have one.
    pub(super) async fn entries_between(
        &mut self,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<Fetched>, Failed> {
        let mut entries: Vec<Fetched> = Vec::new();
        let mut bytes = 0;
        let mut ask = rawdoc! {
            "find": "oplog.rs",
            "filter": { "ts": { "$gte": bson_ts(from), "$lte": bson_ts(to) } },
            "sort": { "$natural": 1 },
            "readConcern": { "level": "local" },
            "$db": "local",
            "$readPreference": { "mode": "secondaryPreferred" },
        };
        loop {
            let reply = self.run_once(&ask).await?;
            for entry in pinion_bson::values(batch_of(reply.body())?) {
                let RawBsonRef::Document(entry) = entry else {
                    return Err(Failed::new("an entry of the source is no document"));
                };
                bytes += entry.as_bytes().len();
                if bytes > MAX_COPIED_ENTRY_BYTES {
                    return Err(Failed::new(format!(
                        "transactions that are open at the source need more than {MAX_COPIED_ENTRY_BYTES} bytes of its oplog"
                    )));
                }
                entries.push(Fetched::read(Bytes::copy_from_slice(entry.as_bytes()))?);
            }
            let cursor = cursor_of(reply.body());
            if cursor == 0 {
                break;
            }
            ask = rawdoc! {
                "getMore": cursor,
                "collection": "oplog.rs",
                "$db": "local",
                "$readPreference": { "mode": "secondaryPreferred" },
            };
        }
        let ends = entries.first().zip(entries.last());
        match ends {
            Some((first, last)) if first.optime.ts == from && last.optime.ts == to => Ok(entries),
            _ => Err(Failed::new(format!(
                "the source's oplog does not have its entries from {from} to {to}"
            ))),
        }
    }

    /// The last entry that the source knows a majority to have.
    pub(super) async fn committed(&mut self) -> Result<Timestamp, Failed> {
        let hello = self.run(&rawdoc! { "hello": 1, "$db": "admin" }).await?;
        let committed = hello
            .body()
            .get_document("lastWrite")
            .and_then(|last| last.get_document("majorityOpTime"))
            .and_then(|committed| committed.get_timestamp("ts"));
        // A source that knows of none does not report one.
        Ok(committed.map_or(Timestamp::MIN, |ts| Timestamp::new(ts.time, ts.increment)))
    }
}

/// Keeps the checkpoint frozen while its pages are not read, until it is dropped.
pub(super) async fn keep_frozen(host: HostPort, halt: Halt, number: u64) {
    let mut source = Source::new(host, halt);
    let ask = rawdoc! {
        "_replReadCheckpoint": 1,
        "number": number as i64,
        "$db": "admin",
    };
    loop {
        sleep(KEEP_FROZEN).await;
        // Its users find out whether it is there.
        let _ = source.run_once(&ask).await;
    }
}

/// What the log of a copy begins with.
pub(super) fn first_entries(entries: &[Fetched]) -> Vec<CopiedEntry> {
    let copied = entries.iter().map(|entry| CopiedEntry {
        ts: entry.optime.ts,
        bytes: entry.bytes.clone(),
    });
    copied.collect()
}
