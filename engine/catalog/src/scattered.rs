//! The collections of what retryable writes leave behind. A write puts its record into the
//! partition of the document that it changes, so that it stays a write of one partition; readers
//! see the newest record of each session.
//!
//! A record has fields that are not shown, such as the statement that it is of. There is one for
//! each statement: their keys begin with that of the session. The record of a statement that was
//! executed in an internal transaction also lies with its session, the parent of the transaction's,
//! and names the latter in `child`: so all statements of a retryable write are found in one place,
//! whichever session executed them.

use pinion_bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_storage::Key;
use pinion_wire::idl::{Lsid, Namespace};
use pinion_wire::{Error, ErrorCode, Result};

use crate::entry::{Collection, Placement};
use crate::keys::id_key;
use crate::lsid::lsid_document;
use crate::view::ResolvedView;

/// The last write of each session.
pub const SESSION_RECORDS: &str = "config.transactions";
/// The documents that retried `findAndModify` commands answer with.
pub const RETRY_IMAGES: &str = "config.image_collection";

pub(crate) fn is_scattered(ns: &Namespace) -> bool {
    matches!(ns.as_str(), SESSION_RECORDS | RETRY_IMAGES)
}

/// What the keys of all records of a session begin with, each of its statements has its own behind
/// that.
pub fn session_key(lsid: &Lsid) -> Key {
    id_key(pinion_bson::RawBsonRef::Document(&lsid_document(lsid)))
}

/// The key of the record of a statement.
pub fn statement_key(lsid: &Lsid, stmt_id: i32) -> Key {
    let mut key = session_key(lsid);
    key.extend_from_slice(&(stmt_id as u32).to_be_bytes());
    key
}

/// The key of a stored record: of a statement where it says which, otherwise of its session.
///
/// # Errors
/// It has no session.
pub fn scattered_key(record: &RawDocument) -> Result<Key> {
    let missing = || Error::failed_to_parse("a record of a retryable write has no session");
    let Some(id) = pinion_bson::get(record, "_id") else {
        return Err(missing());
    };
    let mut key = id_key(id);
    if let Some(RawBsonRef::Int32(stmt_id)) = pinion_bson::get(record, "stmtId") {
        key.extend_from_slice(&(stmt_id as u32).to_be_bytes());
    }
    Ok(key)
}

/// Refuses changes of what only retryable writes write.
///
/// # Errors
/// `IllegalOperation`.
pub fn check_not_scattered(ns: &Namespace) -> Result<()> {
    match is_scattered(ns) {
        true => Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            format!("{ns} is written by retryable writes alone"),
        )),
        false => Ok(()),
    }
}

impl Collection {
    /// What readers see of scattered documents: the newest form of each. `None` of any other
    /// collection.
    pub fn merged(&self) -> Option<ResolvedView> {
        if self.placement != Placement::Scattered {
            return None;
        }
        // Documents are compared by their first fields first, so these say which is the newest.
        let pipeline = match self.ns.as_str() {
            RETRY_IMAGES => {
                let newest = rawdoc! {
                    "txnNum": "$txnNum", "ts": "$ts", "imageKind": "$imageKind", "image": "$image",
                    "invalidated": "$invalidated", "invalidatedReason": "$invalidatedReason",
                };
                // It is shown as that of the session which executed the statement.
                let session = rawdoc! { "$ifNull": ["$child", "$_id"] };
                merging(session.into(), newest)
            }
            _ => {
                let newest = rawdoc! {
                    "parentLsid": "$parentLsid", "txnNum": "$txnNum", "lastWriteOpTime": "$lastWriteOpTime",
                    "lastWriteDate": "$lastWriteDate", "startOpTime": "$startOpTime", "state": "$state",
                };
                // The session that executed the statement has a record of its own.
                let own = rawdoc! { "$match": { "child": { "$exists": false } } };
                let merging = merging("$_id".into(), newest);
                std::iter::once(own).chain(merging).collect()
            }
        };
        Some(ResolvedView {
            on: self.ns.clone(),
            pipeline,
            collation: None,
            series: None,
        })
    }
}

fn merging(session: RawBson, newest: RawDocumentBuf) -> Vec<RawDocumentBuf> {
    vec![
        rawdoc! { "$group": { "_id": session, "newest": { "$max": newest } } },
        rawdoc! { "$replaceWith": { "$mergeObjects": [{ "_id": "$_id" }, "$newest"] } },
        rawdoc! { "$sort": { "_id": 1 } },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_wire::idl::ChildSession;

    #[test]
    fn statements_have_keys_behind_that_of_their_session() {
        let lsid = |id: u8| Lsid::of_client([id; 16], None);
        let (session, next) = (session_key(&lsid(1)), session_key(&lsid(2)));
        assert!(!next.starts_with(&session));
        let of = |stmt_id| statement_key(&lsid(1), stmt_id);
        assert!(of(0).starts_with(&session) && of(0) < of(1) && of(1) < of(256) && of(256) < next);
        let named = Lsid::of_client([1; 16], Some(pinion_wire::idl::NO_USER));
        assert_eq!(session_key(&named), session);
        // What is removed of a session is not what its children have.
        let child = ChildSession {
            txn_number: Some(1),
            txn_uuid: [2; 16],
        };
        let child = Lsid {
            child: Some(child),
            ..named
        };
        assert!(!session_key(&child).starts_with(&session));
    }
}
