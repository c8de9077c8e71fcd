//! What a new primary does about the definitions of the one before.

use std::collections::BTreeSet;
use std::rc::Rc;

use pinion_bson::{RawBsonRef, RawDocumentBuf, rawdoc};
use pinion_exec::local::document_by_id;
use pinion_runtime::{on_all_cores, sleep};
use pinion_sharding_protocol::ddl::{
    CriticalSectionDocument, DDL_COORDINATORS, DdlDocument, DdlId, DdlMachine,
};
use pinion_wire::Result;

use super::coordinator::{self, Left};
use super::leadership::Leadership;
use super::perform::COORDINATORS;
use super::sections;
use crate::limits::{MAX_DEFINITIONS, RETRY_PAUSE};
use crate::local::LocalClient;
use crate::part::part;
use crate::replies;

/// Closes the gates that are to be closed, and resumes all definitions; no version is gone by
/// before that. Called on core 0.
pub(crate) fn begin_as_primary() {
    let leadership = Rc::new(Leadership::default());
    part().core_0.definitions.replace(Some(leadership.clone()));
    part().core_0.begin(async move {
        let work = async {
            while let Err(error) = resume(&leadership).await {
                tracing::warn!(target: "SHARDING", id = 7_500_022u64, error = %error, "Definitions of the cluster could not be resumed; it is tried again");
                sleep(RETRY_PAUSE).await;
            }
            set_resumed(true).await;
        };
        if leadership.unless_over(work).await.is_ok() {
            leadership.is_resumed.set(true);
            part().core_0.definitions.notify();
        }
    });
}

/// Drops the machines: the node leads no longer. Their documents stay. Called on core 0.
pub(crate) async fn stop_leading() {
    // Before their gates open.
    set_resumed(false).await;
    part().core_0.definitions.replace(None);
}

async fn set_resumed(is_resumed: bool) {
    on_all_cores(move |_| async move { part().definitions_resumed.set(is_resumed) }).await;
}

async fn resume(leadership: &Rc<Leadership>) -> Result<()> {
    let client = LocalClient::new()?;
    let mut left = Vec::new();
    for id in ids(&client).await? {
        let document = document_by_id(DDL_COORDINATORS, RawBsonRef::Document(&id)).await?;
        let Some(document) = document else {
            continue;
        };
        match read(&document) {
            Ok(found) => left.push(found),
            Err(error) => {
                tracing::error!(target: "SHARDING", id = 7_500_023u64, error = %error, "The state of a definition of the cluster cannot be read, and is left as it is");
            }
        }
    }
    let running = left.iter().map(|left: &Left| left.machine.id().clone());
    let running: BTreeSet<DdlId> = running.collect();
    let all = rawdoc! {};
    for document in client.find(sections::COLLECTION, &all, most()).await? {
        let section = CriticalSectionDocument::parse(&document)?;
        match section.coordinator.is_some() || running.contains(&section.reason) {
            true => sections::close(leadership, &section).await?,
            false => {
                tracing::warn!(target: "SHARDING", id = 7_500_024u64, namespace = section.namespace, reason = %section.reason, "A critical section has no definition that keeps it");
            }
        }
    }
    for left in left {
        if !leadership.running.borrow().contains_key(left.machine.id()) {
            coordinator::resume(leadership, left)?;
        }
    }
    Ok(())
}

fn most() -> i32 {
    i32::try_from(MAX_DEFINITIONS).unwrap_or(i32::MAX)
}

/// The ids alone: the documents may be large.
async fn ids(client: &LocalClient) -> Result<Vec<RawDocumentBuf>> {
    let (db, collection) = COORDINATORS;
    let command = rawdoc! {
        "find": collection, "projection": { "_id": 1 }, "limit": most(), "batchSize": most(),
        "singleBatch": true, "readConcern": { "level": "local" }, "$db": db,
    };
    let found = replies::only_batch(client.run(&command).await?.body())?;
    let id = |document: &RawDocumentBuf| match pinion_bson::get(document, "_id") {
        Some(RawBsonRef::Document(id)) => Some(id.to_owned()),
        _ => None,
    };
    Ok(found.iter().filter_map(id).collect())
}

fn read(document: &RawDocumentBuf) -> Result<Left> {
    let document = DdlDocument::parse(document)?;
    let machine = DdlMachine::resume(document.clone())?;
    Ok(Left { machine, document })
}
