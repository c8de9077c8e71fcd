//! Critical sections of definitions: gates that are kept closed, also over failovers.

use pinion_bson::rawdoc;
use pinion_catalog::{GateMode, Hold, hold_database_but, hold_together};
use pinion_runtime::now;
use pinion_sharding_protocol::ddl::CriticalSectionDocument;
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use super::leadership::Leadership;
use crate::limits::HOLD_WAIT;
use crate::local::LocalClient;
use crate::part::part;
use crate::planted::PlantedFault;

pub(super) const COLLECTION: (&str, &str) = ("config", "collectionCriticalSections");

/// A closed gate.
pub(super) struct Section {
    hold: Hold,
    blocks_reads: bool,
}

fn mode(blocks_reads: bool) -> GateMode {
    match blocks_reads {
        true => GateMode::Closed,
        false => GateMode::NoWrites,
    }
}

/// Closes the gate of a document, unless it is closed as much already.
///
/// # Errors
/// `LockTimeout` where what is behind the gate does not end.
pub(super) async fn close(
    leadership: &Leadership,
    section: &CriticalSectionDocument,
) -> Result<()> {
    let name = section.namespace.clone();
    let blocks_reads = section.blocks_reads;
    let deadline = now() + HOLD_WAIT;
    let known = leadership.sections.borrow_mut().remove(&name);
    let (closed, outcome) = match known {
        Some(known) if known.blocks_reads >= blocks_reads => (known, Ok(())),
        Some(known) => {
            let set = known.hold.set_mode(mode(blocks_reads), deadline).await;
            let blocks_reads = known.blocks_reads || set.is_ok();
            (
                Section {
                    blocks_reads,
                    ..known
                },
                set,
            )
        }
        None => {
            let hold = match Namespace::parse_sought(&name) {
                Ok(ns) => {
                    let all: Vec<Namespace> = [ns].into_iter().chain(section.to.clone()).collect();
                    hold_together(&all, mode(blocks_reads), deadline).await?
                }
                Err(_) => {
                    let open = section.open.iter().map(|ns| Namespace::parse_sought(ns));
                    let open = open.collect::<Result<_>>()?;
                    hold_database_but(name.clone(), open, mode(blocks_reads), deadline).await?
                }
            };
            (Section { hold, blocks_reads }, Ok(()))
        }
    };
    if !leadership.is_over() {
        leadership.sections.borrow_mut().insert(name, closed);
    }
    outcome
}

/// Closes the gate, and has a majority know it: the next primary closes it too. What was behind the
/// gate has ended before.
pub(super) async fn enter(
    leadership: &Leadership,
    section: &CriticalSectionDocument,
) -> Result<()> {
    close(leadership, section).await?;
    let (db, collection) = COLLECTION;
    let command = rawdoc! {
        "update": collection, "$db": db,
        "updates": [{
            "q": { "_id": section.namespace.as_str() }, "u": section.to_bson(), "upsert": true,
        }],
    };
    LocalClient::new()?.write(&command).await
}

/// Opens the gate, once no primary closes it again.
pub(super) async fn leave(leadership: &Leadership, namespace: &str) -> Result<()> {
    if part().planted_fault == PlantedFault::CriticalSectionLeaked {
        return Ok(());
    }
    let (db, collection) = COLLECTION;
    let command = rawdoc! {
        "delete": collection, "$db": db, "deletes": [{ "q": { "_id": namespace }, "limit": 1 }],
    };
    LocalClient::new()?.write(&command).await?;
    let section = leadership.sections.borrow_mut().remove(namespace);
    if let Some(section) = section {
        section.hold.release().await;
    }
    part().core_0.definitions.notify();
    Ok(())
}

/// Whether the gates of a database are closed to reads by a definition: where it is, may change.
/// Called on core 0.
pub(crate) fn is_closed_to_reads(db: &str) -> bool {
    let leadership = part().core_0.definitions.current();
    leadership.is_ok_and(|leadership| {
        let sections = leadership.sections.borrow();
        sections.get(db).is_some_and(|section| section.blocks_reads)
    })
}

/// Waits until they are not. Called on core 0.
pub(crate) async fn until_open(db: &str) {
    let part = part();
    let is_open = || (!is_closed_to_reads(db) || part.core_0.is_stopping()).then_some(());
    part.core_0.definitions.until(is_open).await;
}

/// An operation of this node that passes the gate which is kept closed here, of the collection or
/// its database.
pub(super) fn within(leadership: &Leadership, ctx: OpContext, db: &str, ns: &str) -> OpContext {
    let sections = leadership.sections.borrow();
    match sections.get(ns).or_else(|| sections.get(db)) {
        Some(section) => section.hold.admit(&ctx),
        None => ctx,
    }
}
