//! Transactions of several entries, which stand one behind the other in the log: their operations
//! are kept until the last entry is there, with which they are applied. If something else comes in
//! its place the transaction was never committed.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::ApplyMode;
use pinion_clock::Timestamp;
use pinion_exec::read::from_log_error;
use pinion_exec::statements::TransactionStamp;
use pinion_storage::{ApplyError, storage};
use pinion_wire::Result;

use super::chains::{Piece, piece_of};
use super::entry::{Entry, damaged, field, validated};
use super::prepared::{PreparedStep, forget_all_kept, is_prepare, keep, take_kept};
use crate::limits::{CHAIN_READ_BYTES, CHAIN_READ_ENTRIES};

/// The first entries of a transaction.
pub(super) struct Chain {
    stamp: TransactionStamp,
    /// The number of the first, unless it counts as applied already.
    first: Option<u64>,
    /// The time of the first.
    first_ts: Timestamp,
    parts: Vec<Bytes>,
}

/// The first entry of the transaction that the log ends with, where its last one has not come; on
/// the core that applies.
#[derive(Default)]
pub struct OpenChain(Cell<Option<Timestamp>>);

fn open_chain() -> Rc<OpenChain> {
    pinion_runtime::core_local()
}

impl Chain {
    /// Its entries count as applied, though the transaction is not.
    pub(super) fn let_pass(&mut self) {
        self.first = None;
    }

    /// The number of the first entry that does not count as applied.
    pub(super) fn floor(&self) -> Option<u64> {
        self.first
    }

    fn begin(stamp: TransactionStamp, ts: Timestamp, first: Option<u64>) -> Chain {
        // The log is kept from there, and recovery looks back to there.
        storage().transaction_begins(ts);
        open_chain().0.set(Some(ts));
        Chain {
            stamp,
            first,
            first_ts: ts,
            parts: Vec::new(),
        }
    }
}

/// Takes in the next entry. Gives what is kept then, and the entry that is to be applied now.
///
/// # Errors
/// The entry continues a transaction whose first entries cannot be found.
pub(super) async fn link(
    chain: Option<Chain>,
    entry: Entry,
    mode: ApplyMode,
) -> std::result::Result<(Option<Chain>, Option<Entry>), ApplyError> {
    let is_part = {
        let document = RawDocument::from_bytes(&entry.bytes).ok();
        document.and_then(part_of)
    };
    let Some((piece, stamp)) = is_part else {
        end_chain(entry.ts);
        return Ok((None, Some(entry)));
    };
    let continues = |chain: &Chain| chain.stamp == stamp && piece != Piece::First;
    let chain = chain.filter(continues);
    let mut chain = match (chain, piece) {
        (Some(chain), _) => chain,
        (None, Piece::First) => {
            end_chain(entry.ts);
            Chain::begin(stamp, entry.ts, Some(entry.number))
        }
        (None, _) => match find(&entry, stamp, mode).await {
            Ok(chain) => chain,
            Err(error) => return Err(entry.failed(error)),
        },
    };
    if piece != Piece::Last {
        chain.parts.push(entry.bytes);
        return Ok((Some(chain), None));
    }
    match prepares(&entry.bytes) {
        // It stays open until its outcome.
        true => open_chain().0.set(None),
        false => end_chain(entry.ts),
    }
    let complete = Entry {
        number: chain.first.unwrap_or(entry.number),
        first: chain.first_ts,
        before: chain.parts.into(),
        ..entry
    };
    Ok((None, Some(complete)))
}

/// The transaction whose first entries this node has applied, or found in its log, by whatever
/// applier, ends with the entry at `ts`: that is its last one, or something else in the place of
/// what was yet to come.
fn end_chain(ts: Timestamp) {
    if let Some(first_ts) = open_chain().0.take() {
        storage().transaction_ends(first_ts, ts);
    }
}

/// The transaction whose first entries were applied is of no meaning any more.
pub(super) fn forget_open_chain() {
    if let Some(first_ts) = open_chain().0.take() {
        storage().transaction_ends(first_ts, first_ts);
    }
}

/// The data is gone, and with it what was known of transactions whose entries are in the log; on
/// this core.
pub fn forget_transactions() {
    open_chain().0.set(None);
    forget_all_kept();
}

/// What the log ends with is no transaction any more of which more may come: this node writes its
/// own entries behind it. Runs on the core that applies.
pub fn end_open_chain() {
    end_chain(storage().last_allotted());
}

/// Takes in an entry that is applied already, or was never to be: it may be the first of a
/// transaction whose last one is not.
pub(super) fn look_back(chain: Option<Chain>, ts: Timestamp, bytes: Bytes) -> Option<Chain> {
    let document = RawDocument::from_bytes(&bytes).ok();
    let Some((piece, stamp)) = document.and_then(part_of) else {
        end_chain(ts);
        match document.map(PreparedStep::of) {
            Some(Ok(Some(PreparedStep::Prepared(stamp)))) => keep(stamp, (ts, ts), vec![bytes]),
            Some(Ok(Some(PreparedStep::Ended(stamp, _)))) => drop(take_kept(stamp, ts)),
            // What is wrong with it was found when it was applied.
            _ => {}
        }
        return None;
    };
    let mut chain = match (chain, piece) {
        (Some(chain), Piece::Middle | Piece::Last) if chain.stamp == stamp => chain,
        (_, piece) => {
            end_chain(ts);
            if piece != Piece::First {
                return None;
            }
            Chain::begin(stamp, ts, None)
        }
    };
    if piece != Piece::Last {
        chain.parts.push(bytes);
        return Some(chain);
    }
    if prepares(&bytes) {
        open_chain().0.set(None);
        chain.parts.push(bytes);
        keep(chain.stamp, (chain.first_ts, ts), chain.parts);
    } else {
        end_chain(ts);
    }
    None
}

/// Whether the transaction that an entry is the last of is prepared by it.
fn prepares(entry: &Bytes) -> bool {
    let entry = RawDocument::from_bytes(entry).ok();
    let o = entry.and_then(|entry| field(entry, "o"));
    o.and_then(|o| o.as_document()).is_some_and(is_prepare)
}

/// Which part of which transaction an entry is.
fn part_of(entry: &RawDocument) -> Option<(Piece, TransactionStamp)> {
    if field(entry, "op") != Some(RawBsonRef::String("c")) {
        return None;
    }
    Some((piece_of(entry)?, TransactionStamp::of(entry)?))
}

/// Finds the first entries of a transaction in the log: they were there before this applier was.
async fn find(entry: &Entry, stamp: TransactionStamp, mode: ApplyMode) -> Result<Chain> {
    let lost = || {
        damaged("an oplog entry goes on with a transaction whose first entries are not before it")
    };
    // It was shown them before.
    if mode == ApplyMode::Recovery {
        return Err(lost());
    }
    let previous = field(validated(&entry.bytes)?, "prevOpTime")
        .and_then(|previous| previous.as_document())
        .and_then(|previous| match field(previous, "ts") {
            Some(RawBsonRef::Timestamp(ts)) => Some(Timestamp::new(ts.time, ts.increment)),
            _ => None,
        });
    let mut log = storage().log_backward(previous.ok_or_else(lost)?);
    let mut parts = Vec::new();
    loop {
        let read = log.next_batch(CHAIN_READ_ENTRIES, CHAIN_READ_BYTES).await;
        let read = read.map_err(from_log_error)?;
        if read.is_empty() {
            return Err(lost());
        }
        for (ts, bytes) in read {
            let piece = match part_of(validated(&bytes)?) {
                Some((piece, of)) if of == stamp && piece != Piece::Last => piece,
                _ => return Err(lost()),
            };
            parts.push(bytes);
            if piece == Piece::First {
                let mut chain = Chain::begin(stamp, ts, None);
                parts.reverse();
                chain.parts = parts;
                return Ok(chain);
            }
        }
    }
}
