//! Faults that simulations of whole sets must be able to find.

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;

use crate::follower::Fetched;

/// A planted fault, or none.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlantedFault {
    #[default]
    None,
    /// What a member has logged counts as durable at once.
    DurableBeforeFlush,
    /// A vote is sent before it is on the device.
    VoteForgotten,
    /// A primary commits what a majority holds of an older term.
    CommitOverTerms,
    /// A member now and then does not apply an entry.
    EntrySkipped,
    /// A member now and then applies two changes of one document in the wrong order.
    EntriesReordered,
    /// After a rollback a write is still there that was to go.
    RollbackKeepsWrite,
    /// A new primary goes by what it knew of retryable writes when it was primary before.
    SessionsRemembered,
    /// An initial sync now and then does not apply an entry that came while it copied.
    InitialSyncSkips,
    /// Readers continue while a member applies a command that changes what they read.
    ReadersNotFenced,
}

impl PlantedFault {
    /// All faults, each of which a campaign plants and must find.
    pub const ALL: &[PlantedFault] = &[
        PlantedFault::DurableBeforeFlush,
        PlantedFault::VoteForgotten,
        PlantedFault::CommitOverTerms,
        PlantedFault::EntrySkipped,
        PlantedFault::EntriesReordered,
        PlantedFault::RollbackKeepsWrite,
        PlantedFault::SessionsRemembered,
        PlantedFault::InitialSyncSkips,
        PlantedFault::ReadersNotFenced,
    ];

    /// Spoils what is to be applied, where that is the fault.
    pub(crate) fn spoil(self, entries: &mut [Fetched]) {
        match self {
            PlantedFault::EntrySkipped => skip(entries),
            PlantedFault::EntriesReordered => reorder(entries),
            _ => {}
        }
    }

    /// What an initial sync applies in place of an entry.
    pub(crate) fn of_initial_sync(self, ts: Timestamp, entry: Bytes) -> Bytes {
        let skips = self == PlantedFault::InitialSyncSkips
            && is_due(ts, SYNC_SKIPPED_OF)
            && changed(&entry).is_some();
        match skips {
            true => Bytes::from(note_at(ts).into_bytes()),
            false => entry,
        }
    }

    /// Whether an entry that a rollback takes back is to stay applied.
    pub(crate) fn keeps(self, gone: &Fetched) -> bool {
        self == PlantedFault::RollbackKeepsWrite && is_insert(&gone.bytes)
    }
}

/// One entry of this number is skipped.
const SKIPPED_OF: u32 = 61;
const SYNC_SKIPPED_OF: u32 = 3;

fn is_due(ts: Timestamp, of: u32) -> bool {
    ts.secs().wrapping_add(ts.inc()).is_multiple_of(of)
}

fn skip(entries: &mut [Fetched]) {
    for entry in entries {
        let ts = entry.optime.ts;
        if changed(&entry.bytes).is_some() && is_due(ts, SKIPPED_OF) {
            entry.bytes = Bytes::from(note_at(ts).into_bytes());
        }
    }
}

fn note_at(ts: Timestamp) -> RawDocumentBuf {
    let ts = pinion_bson::Timestamp {
        time: ts.secs(),
        increment: ts.inc(),
    };
    rawdoc! { "ts": ts, "t": 1_i64, "v": 2_i64, "op": "n", "ns": "", "o": {} }
}

fn reorder(entries: &mut [Fetched]) {
    for at in 1..entries.len() {
        let (first, second) = (changed(&entries[at - 1].bytes), changed(&entries[at].bytes));
        if first.is_some() && first == second {
            let bytes = std::mem::take(&mut entries[at].bytes);
            let before = std::mem::replace(&mut entries[at - 1].bytes, bytes);
            entries[at].bytes = before;
        }
    }
}

/// The `_id` of the document that an update changes.
fn changed(entry: &[u8]) -> Option<String> {
    let document = RawDocument::from_bytes(entry).ok()?;
    if pinion_bson::get(document, "op") != Some(RawBsonRef::String("u")) {
        return None;
    }
    Some(format!("{:?}", pinion_bson::get(document, "o2")?))
}

fn is_insert(entry: &[u8]) -> bool {
    let document = RawDocument::from_bytes(entry).ok();
    let op = document.and_then(|document| pinion_bson::get(document, "op"));
    op == Some(RawBsonRef::String("i"))
}
