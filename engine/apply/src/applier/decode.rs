//! Entries checked, and taken apart by the cores that own what they are about.

use pinion_bson::RawDocument;
use pinion_catalog::{ApplyMode, partition_of};
use pinion_exec::session_refresh::is_removal;
use pinion_exec::statements::{RecordCollections, TransactionStamp};
use pinion_runtime::{CoreId, core_count, yield_if_due};
use pinion_service::compute::compute_bytes;
use pinion_storage::{ApplyError, Key, storage};
use pinion_wire::{Error, ErrorCode, Result};
use smallvec::SmallVec;

use super::documents::Target;
use super::entry::{Entry, damaged, document, is_check, operations, text, validated};

/// One operation of an entry, on one document.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub place: Place,
    /// The document's key in its collection's tree.
    pub key: Key,
}

/// Where an operation stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// The entry is no more than this.
    Whole,
    /// In the `applyOps` of one of the entries that take place together, by its place there.
    Listed { part: usize, place: usize },
    /// In none: it records the commit of the entry's transaction.
    Commit,
}

pub(super) type Operations = SmallVec<[Operation; 1]>;

/// An entry of documents, and what of it each core has to do.
#[derive(Debug)]
pub(super) struct Decoded {
    pub entry: Entry,
    pub by_owner: SmallVec<[(CoreId, Operations); 1]>,
    /// Operations that need not be applied.
    pub passed_over: u64,
}

/// Decodes entries none of which is a fence, with the catalog that this core has. The bytes are
/// valid afterwards.
///
/// # Errors
/// The first that cannot be applied.
pub(super) async fn decode(
    batch: Vec<Entry>,
    mode: ApplyMode,
) -> std::result::Result<Vec<Decoded>, ApplyError> {
    let mut decoded = Vec::with_capacity(batch.len());
    for entry in batch {
        let bytes = entry.len();
        let validate = || entry.parts().try_for_each(|part| validated(part).map(drop));
        let taken_apart = compute_bytes(bytes, validate).await;
        let taken_apart = taken_apart.and_then(|()| take_apart(&entry, mode));
        let (by_owner, passed_over) = taken_apart.map_err(|error| entry.failed(error))?;
        decoded.push(Decoded {
            entry,
            by_owner,
            passed_over,
        });
        yield_if_due().await;
    }
    Ok(decoded)
}

fn push(by_owner: &mut ByOwner, owner: CoreId, operation: Operation) {
    match by_owner.iter_mut().find(|(known, _)| *known == owner) {
        Some((_, operations)) => operations.push(operation),
        None => by_owner.push((owner, SmallVec::from_iter([operation]))),
    }
}

type ByOwner = SmallVec<[(CoreId, Operations); 1]>;

fn take_apart(entry: &Entry, mode: ApplyMode) -> Result<(ByOwner, u64)> {
    let whole = pinion_catalog::stored_document(&entry.bytes);
    let (mut by_owner, mut passed_over) = (ByOwner::new(), 0);
    let mut add = |place: Place, operation: &RawDocument| -> Result<()> {
        check_namespace(operation)?;
        let Some(target) = Target::of(operation, mode)? else {
            passed_over += 1;
            return Ok(());
        };
        if is_removal(operation, &target.collection) {
            // Whatever it wrote, the session has records beside that.
            for core in 0..core_count() as u16 {
                let key = target.key.clone();
                push(&mut by_owner, CoreId(core), Operation { place, key });
            }
            return Ok(());
        }
        let owner = storage().owner(partition_of(&target.collection, &target.key));
        let key = target.key;
        push(&mut by_owner, owner, Operation { place, key });
        Ok(())
    };
    match text(whole, "op")? {
        "i" | "u" | "d" => add(Place::Whole, whole)?,
        "n" => {}
        "c" if is_check(document(whole, "o")?) => {}
        "c" => {
            for (part, bytes) in entry.parts().enumerate() {
                let whole = pinion_catalog::stored_document(bytes);
                let list = operations(document(whole, "o")?)?;
                let list = list.expect("other commands are fences");
                for (place, operation) in list.enumerate() {
                    let operation = operation?;
                    match text(operation, "op")? {
                        "i" | "u" | "d" => add(Place::Listed { part, place }, operation)?,
                        "n" => {}
                        other => return Err(unknown(other)),
                    }
                }
            }
            if let (Some(commit), Some(found)) =
                (TransactionStamp::of(whole), RecordCollections::find())
            {
                let key = commit.key();
                let owner = storage().owner(partition_of(&found.records, &key));
                let place = Place::Commit;
                push(&mut by_owner, owner, Operation { place, key });
            }
        }
        other => return Err(unknown(other)),
    }
    Ok((by_owner, passed_over))
}

pub(super) fn unknown(op: &str) -> Error {
    damaged(format!("an oplog entry has the unknown op '{op}'"))
}

/// Refuses what members keep for themselves.
pub(super) fn check_namespace(operation: &RawDocument) -> Result<()> {
    let ns = text(operation, "ns")?;
    match ns.strip_prefix("local.") {
        None => Ok(()),
        Some(_) => Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("an oplog entry is about {ns}, which is not replicated"),
        )),
    }
}
