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
    /// A vote is told before it is on the device.
    VoteForgotten,
    /// A member now and then does not apply an entry.
    EntrySkipped,
    /// A member now and then applies two changes of one document in the wrong order.
    EntriesReordered,
}

impl PlantedFault {
    /// All faults, for a campaign that plants each.
    pub const ALL: [PlantedFault; 4] = [
        PlantedFault::DurableBeforeFlush,
        PlantedFault::VoteForgotten,
        PlantedFault::EntrySkipped,
        PlantedFault::EntriesReordered,
    ];

    /// Spoils what is to be applied, where that is the fault.
    pub(crate) fn spoil(self, entries: &mut [Fetched]) {
        match self {
            PlantedFault::EntrySkipped => skip(entries),
            PlantedFault::EntriesReordered => reorder(entries),
            PlantedFault::None | PlantedFault::DurableBeforeFlush | PlantedFault::VoteForgotten => {
            }
        }
    }
}

/// One entry of so many is skipped.
const SKIPPED_OF: u32 = 61;

fn skip(entries: &mut [Fetched]) {
    for entry in entries {
        let ts = entry.optime.ts;
        if changed(entry).is_some() && ts.secs().wrapping_add(ts.inc()) % SKIPPED_OF == 0 {
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
        let (first, second) = (changed(&entries[at - 1]), changed(&entries[at]));
        if first.is_some() && first == second {
            let bytes = std::mem::take(&mut entries[at].bytes);
            let before = std::mem::replace(&mut entries[at - 1].bytes, bytes);
            entries[at].bytes = before;
        }
    }
}

/// The `_id` of the document that an update changes.
fn changed(entry: &Fetched) -> Option<String> {
    let document = RawDocument::from_bytes(&entry.bytes).ok()?;
    if pinion_bson::get(document, "op") != Some(RawBsonRef::String("u")) {
        return None;
    }
    Some(format!("{:?}", pinion_bson::get(document, "o2")?))
}
