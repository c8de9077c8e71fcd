//! Sessions of internal transactions that execute a retryable write of their parent, and what of
//! them excludes what.
//!
//! A write is executed once, by whichever of these transactions commits: so of those that execute
//! the same one a single one is open at a time, and none beside the write itself. The first that
//! meets another aborts it, because the client of that one may be gone; later ones wait, so two
//! that keep retrying do not abort each other for ever. One that is prepared is always waited for.
//!
//! Source: sharding document, "Retryable Internal Transactions", "Handling retry conflicts".

use pinion_runtime::sync::Notify;
use pinion_wire::idl::Lsid;

use super::catalog::Session;
use crate::open_transactions::transactions;
use crate::sessions::session_catalog;

/// What is to become of an internal transaction that is in the way.
pub(super) enum Conflict {
    /// Its end is waited for, or that a command of it has ended.
    Waits(Notify),
    /// It is aborted.
    GivesWay(Lsid),
}

/// The internal transaction that is in the way of what a session, or its child `by`, begins with
/// this number. The caller holds the session.
pub(super) fn conflict(
    parent: &Lsid,
    session: &Session,
    number: i64,
    by: Option<Lsid>,
) -> Option<Conflict> {
    let transactions = transactions();
    let prepared = &transactions.prepared;
    for (of_write, child) in prepared.children(parent) {
        if Some(child) != by && of_write <= number {
            return prepared.ended(&child).map(Conflict::Waits);
        }
    }
    for (of_write, child, known) in session_catalog().open_children(parent) {
        if Some(child) == by || of_write != number {
            continue;
        }
        if session.gave_way.replace(Some(number)) == Some(number) {
            return Some(Conflict::Waits(known.freed.clone()));
        }
        return Some(Conflict::GivesWay(child));
    }
    None
}

/// The latest number of a session's write that one of its children executes just now.
pub(super) fn latest_of_children(parent: &Lsid) -> Option<i64> {
    let prepared = transactions().prepared.children(parent).into_iter();
    let open = session_catalog().open_children(parent).into_iter();
    let numbers = prepared.map(|(number, _)| number);
    numbers.chain(open.map(|(number, ..)| number)).max()
}
