//! The documents of one collection: read in their order at the source, and put into this node's
//! partitions.

use std::sync::Arc;

use bytes::Bytes;
use pinion_apply::{CloneTarget, ClonedDocument};
use pinion_bson::{
    Binary, BinarySubtype, DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc,
};
use pinion_exec::replication_parameters;
use pinion_replication_protocol::config::HostPort;
use pinion_runtime::{Duration, now};
use pinion_server::RemoteReply;
use pinion_wire::ErrorCode;

use super::source::{Source, batch_of, database_of};
use super::status::CopyCounters;
use super::{Failed, Halt};
use crate::limits::{FIRST_FETCH_TIME, RETRY_PAUSE};

/// In which form a source has its collections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SourceForm {
    /// As this node has them, so their rows and documents come as they are.
    Rows,
    /// As a member of MongoDB's: as it lists them and gives them to any client.
    Listed,
}

/// A collection that is to be copied. It may go to another core.
pub(super) struct Job {
    pub target: CloneTarget,
    pub source: HostPort,
    pub form: SourceForm,
    pub halt: Halt,
    pub counters: Arc<CopyCounters>,
}

/// How far a collection is copied.
struct CopyProgress {
    /// The database that it is in at the source.
    db: String,
    /// The `_id` of the last document that is here.
    last: Option<RawBson>,
    /// Documents may come that are here already.
    over: bool,
}

/// Copies all documents of a collection that there are at some time from now on. A connection that
/// breaks is opened again, and what was copied is not read again where documents come in the order
/// of their `_id`.
///
/// # Errors
/// The source cannot be read any more; the attempt is given up; storage has failed.
pub(super) async fn copy(job: Job) -> Result<(), Failed> {
    let mut source = Source::new(job.source.clone(), job.halt.clone());
    let mut place = CopyProgress {
        db: job.target.ns().db().to_owned(),
        last: None,
        over: job.target.is_scattered(),
    };
    let (documents, bytes) = source
        .size_of(&place.db, job.target.ns().collection())
        .await;
    job.counters.expect(documents, bytes);
    // Since when nothing more has come.
    let mut failing_since = None;
    loop {
        let before = job.counters.documents();
        let failed = match read(&job, &mut source, &mut place).await {
            Ok(()) => return Ok(()),
            Err(failed) => failed,
        };
        if job.counters.documents() > before {
            failing_since = None;
        }
        let since = *failing_since.get_or_insert_with(now);
        let is_gone = |code| {
            matches!(
                code,
                ErrorCode::NAMESPACE_NOT_FOUND | ErrorCode::QUERY_PLAN_KILLED
            )
        };
        if failed.code.is_some_and(is_gone) && job.form == SourceForm::Listed {
            // A collection keeps its UUID in its database as long as it lives.
            if failed.code == Some(ErrorCode::NAMESPACE_NOT_FOUND) {
                return Ok(());
            }
        } else if failed.code.is_some_and(is_gone) {
            match whereabouts(&mut source, &job.target).await? {
                // Its documents are gone with it, and the entry that says so follows.
                None => return Ok(()),
                Some(db) => place.db = db,
            }
        } else if !failed.is_broken() && failed.code != Some(ErrorCode::CURSOR_NOT_FOUND) {
            return Err(failed);
        }
        let secs = replication_parameters().initial_sync_retry_secs;
        if since.elapsed() >= Duration::from_secs(secs.unsigned_abs().into()) {
            return Err(failed);
        }
        place.over = true;
        job.halt.pause(RETRY_PAUSE).await?;
    }
}

/// The database that a collection is in now; `None` if it was dropped.
async fn whereabouts(source: &mut Source, target: &CloneTarget) -> Result<Option<String>, Failed> {
    let found = source.catalog_rows(target.number() - 1).await?;
    let row = found.rows.first();
    Ok(row.and_then(|row| database_of(row, &target.uuid().0)))
}

/// Reads from where the copy is to the end.
async fn read(job: &Job, source: &mut Source, place: &mut CopyProgress) -> Result<(), Failed> {
    let mut remote = source.take().await?;
    let find = find(job, place);
    let mut reply = job
        .halt
        .within(FIRST_FETCH_TIME, remote.run(&find))
        .await??;
    loop {
        let (id, ns) = cursor_of(reply.body())?;
        put(job, &reply, place).await?;
        if id == 0 {
            source.give_back(remote);
            return Ok(());
        }
        job.halt.check()?;
        if !reply.more_to_come() {
            let (db, collection) = ns.split_once('.').unwrap_or((&place.db, &ns));
            let more = rawdoc! {
                "getMore": id,
                "collection": collection,
                "$db": db,
                "$readPreference": { "mode": "secondaryPreferred" },
            };
            job.halt
                .within(FIRST_FETCH_TIME, remote.stream(&more))
                .await??;
        }
        reply = job.halt.within(FIRST_FETCH_TIME, remote.next()).await??;
    }
}

fn find(job: &Job, place: &CopyProgress) -> RawDocumentBuf {
    let target = &job.target;
    let uuid = RawBson::Binary(Binary {
        subtype: BinarySubtype::Uuid,
        bytes: target.uuid().0.to_vec(),
    });
    let mut find = DocBuilder::new();
    find.append("find", uuid.as_raw_bson_ref())
        .append("noCursorTimeout", true)
        .append("showRecordId", target.is_ordered_by_record());
    if job.form == SourceForm::Listed {
        in_order_of_id(&mut find, target, place);
    } else if target.is_scattered() {
        find.append("rawData", true).append("allowDiskUse", true);
        find.start_document("sort")
            .append("txnNum", 1)
            .append("lastWriteOpTime", 1)
            .append("ts", 1);
        find.end();
    } else if place.last.is_some() {
        in_order_of_id(&mut find, target, place);
    }
    // Members of MongoDB 4.4 require it on connections of members.
    find.start_document("readConcern")
        .append("level", "local")
        .end();
    find.append("$db", place.db.as_str());
    find.start_document("$readPreference")
        .append("mode", "secondaryPreferred");
    find.end();
    find.finish()
}

/// Asks for the documents in the order of their `_id`, from the last one on that is here; for
/// records in their own order.
fn in_order_of_id(find: &mut DocBuilder, target: &CloneTarget, place: &CopyProgress) {
    if target.is_ordered_by_record() {
        return;
    }
    find.start_document("hint").append("_id", 1).end();
    if let Some(last) = &place.last {
        find.start_document("min")
            .append_raw("_id", last.as_raw_bson_ref());
        find.end();
    }
}

pub(super) fn cursor_of(reply: &RawDocument) -> Result<(i64, String), Failed> {
    let malformed = |_| Failed::new("a reply of the source has no cursor");
    let cursor = reply.get_document("cursor").map_err(malformed)?;
    let id = cursor.get_i64("id").map_err(malformed)?;
    let ns = cursor.get_str("ns").map_err(malformed)?;
    Ok((id, ns.to_owned()))
}

async fn put(job: &Job, reply: &RemoteReply, place: &mut CopyProgress) -> Result<(), Failed> {
    let by_record = job.target.is_ordered_by_record();
    let whole = reply.body_bytes();
    let mut documents = Vec::new();
    let (mut bytes, mut last) = (0, None);
    for value in pinion_bson::values(batch_of(reply.body())?) {
        let RawBsonRef::Document(document) = value else {
            return Err(Failed::new(
                "a batch of the source holds a value that is no document",
            ));
        };
        bytes += document.as_bytes().len() as u64;
        documents.push(match by_record {
            true => with_record(document)?,
            false => {
                last = Some(document);
                ClonedDocument {
                    bytes: whole.slice_ref(document.as_bytes()),
                    record: None,
                }
            }
        });
    }
    let count = documents.len() as u64;
    job.target.put(documents, place.over).await?;
    job.counters.add(count, bytes);
    if let Some(id) = last.and_then(|last| pinion_bson::get(last, "_id")) {
        place.last = Some(RawBson::from(id));
    }
    Ok(())
}

/// The document without the number of its record, and that.
fn with_record(shown: &RawDocument) -> Result<ClonedDocument, Failed> {
    let mut document = DocBuilder::new();
    let mut record = None;
    for (name, value) in pinion_bson::elements(shown) {
        match (name, value) {
            ("$recordId", RawBsonRef::Int64(number)) => record = Some(number),
            _ => {
                document.append_raw(name, value);
            }
        }
    }
    if record.is_none() {
        return Err(Failed::new(
            "the source does not tell the number of a record",
        ));
    }
    Ok(ClonedDocument {
        bytes: Bytes::from(document.finish_bytes()),
        record,
    })
}
