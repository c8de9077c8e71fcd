//! `fullDocument: "updateLookup"`: the document of an event as a majority of the shard that has it
//! now holds it. It may have moved since the event.

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_query::{Matcher, ResumeToken, Variables, parse_collation};
use pinion_service::interrupt::interruptible;
use pinion_sharding_protocol::RoutingTable;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Result};

use super::super::options::shards_of;
use crate::clock::bson_time;
use crate::cursor::{CursorKind, RemoteStream};
use crate::dispatch::Answer;
use crate::gather::ask_wherever;
use crate::request::{Request, Versions};

/// An event with its document, if it is one of an update; otherwise as it is.
///
/// # Errors
/// Those of the shards, and of the way there.
pub(super) async fn with_full_document(
    cmd: &Invocation,
    ctx: &OpContext,
    event: Bytes,
    token: &ResumeToken,
) -> Result<Bytes> {
    let document = RawDocument::from_bytes(&event);
    let document = document.map_err(|error| Error::internal(error.to_string()))?;
    let operation = pinion_bson::get(document, "operationType");
    let key = pinion_bson::get(document, "documentKey").and_then(|key| key.as_document());
    let text = |path| pinion_bson::get_path(document, path).and_then(|name| name.as_str());
    let (Some(RawBsonRef::String("update")), Some(key), Some(db), Some(collection)) =
        (operation, key, text("ns.db"), text("ns.coll"))
    else {
        return Ok(event);
    };
    let ns = Namespace::new(db, collection)?;
    let found = find(cmd, ctx, &ns, key, token).await?;
    let mut out = DocBuilder::with_capacity(event.len() + 1024);
    for elem in pinion_bson::raw_elements(document) {
        if elem.name == b"ns" {
            match &found {
                Some(found) => out.append("fullDocument", &**found),
                None => out.append_raw("fullDocument", RawBsonRef::Null),
            };
        }
        out.append_elem(&elem);
    }
    Ok(Bytes::from(out.finish().into_bytes()))
}

async fn find(
    cmd: &Invocation,
    ctx: &OpContext,
    ns: &Namespace,
    key: &RawDocument,
    token: &ResumeToken,
) -> Result<Option<RawDocumentBuf>> {
    // It runs as long as what asked for it now, which is a `getMore`.
    let mut cmd = cmd.clone();
    cmd.ctx = cmd.ctx.clone().with_deadline(ctx.deadline_ns);
    let data = token.data()?;
    let time = data.cluster_time;
    let after = pinion_clock::Timestamp::new(time.time, time.increment);
    let target = |table: &RoutingTable| {
        let collation = match &table.default_collation {
            Some(spec) => parse_collation(spec)?,
            None => None,
        };
        let vars = Variables {
            collation,
            ..Variables::default()
        };
        shards_of(&cmd, table, &Matcher::parse_query(key, &vars)?)
    };
    let make = |versions: Versions| {
        Request::own(ns.db(), versions, |out| {
            out.append("find", ns.collection())
                .append("filter", key)
                .append("limit", 1i32)
                .append("singleBatch", true);
            out.start_document("readConcern")
                .append("level", "majority")
                .append("afterClusterTime", bson_time(after))
                .end();
            if let Some(uuid) = data.uuid {
                let uuid = pinion_bson::Uuid::from_bytes(uuid);
                let uuid = pinion_bson::Binary::from(uuid);
                out.append_raw("collectionUUID", RawBsonRef::from(&uuid));
            }
            if let Some(preference) = &cmd.ctx.args.read_preference {
                out.append("$readPreference", &*preference.to_document());
            }
        })
    };
    let asked = interruptible(ctx, ask_wherever(&cmd, ns, target, make)).await?;
    let answers = match asked {
        // The collection is another one by now, or a view.
        Err(error)
            if matches!(
                error.code,
                ErrorCode::COLLECTION_UUID_MISMATCH | ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW
            ) =>
        {
            return Ok(None);
        }
        answers => answers?,
    };
    of_key(&answers, key)
}

/// The document of exactly this key: by the collation of the collection others may be equal.
fn of_key(answers: &[Answer], key: &RawDocument) -> Result<Option<RawDocumentBuf>> {
    for answer in answers {
        let (_, batch) = RemoteStream::open(answer, CursorKind::default())?;
        for document in &batch.documents {
            let document = RawDocument::from_bytes(document);
            let document = document.map_err(|error| Error::internal(error.to_string()))?;
            if has_key(document, key) {
                return Ok(Some(document.to_owned()));
            }
        }
    }
    Ok(None)
}

fn has_key(document: &RawDocument, key: &RawDocument) -> bool {
    pinion_bson::elements(key)
        .all(|(path, value)| pinion_bson::get_path(document, path) == Some(value))
}
