//! Entries of the oplog as writers hand them in: complete but for what is known only once a
//! timestamp is allotted.

use pinion_clock::Timestamp;

use crate::ring::{EntryKind, Reservation, Ring};
use crate::sequencer::Allotted;

/// Where an entry carries its timestamp: behind the document's length, the element's type and the
/// name `ts`.
pub const ENTRY_TS_OFFSET: usize = 8;

/// Where an entry carries its term: behind the timestamp, the element's type and the name `t`.
pub const ENTRY_TERM_OFFSET: usize = ENTRY_TS_OFFSET + 8 + TERM_ELEMENT.len();

/// What stands behind the term in an entry that is linked to one before it: the beginning of a
/// document with the optime of that one, `ts` and `t` again.
const PREVIOUS_ELEMENT: &[u8] = b"\x03prevOpTime\0";
const PREVIOUS_ELEMENT_OFFSET: usize = ENTRY_TERM_OFFSET + 8;
/// Where a linked entry carries the timestamp of the one before it, and its term.
const PREVIOUS_TS_OFFSET: usize =
    PREVIOUS_ELEMENT_OFFSET + PREVIOUS_ELEMENT.len() + 4 + TS_ELEMENT.len();
const PREVIOUS_TERM_OFFSET: usize = PREVIOUS_TS_OFFSET + 8 + TERM_ELEMENT.len();

/// The type and the name of the first element.
const TS_ELEMENT: &[u8] = b"\x11ts\0";
/// The type and the name of the second.
const TERM_ELEMENT: &[u8] = b"\x12t\0";

const _: () = assert!(ENTRY_TS_OFFSET == 4 + TS_ELEMENT.len() && ENTRY_TERM_OFFSET == 19);

/// A complete oplog document whose first elements are the timestamp `ts` and the term `t`, an i64.
/// Their values, 8 bytes each at [`ENTRY_TS_OFFSET`] and [`ENTRY_TERM_OFFSET`], are filled in when
/// the timestamp is allotted.
///
/// Entries whose third element is `prevOpTime: {ts, t}` form a chain. Of those that are executed
/// together each is linked to the one before it that took place; the first keeps what it came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The document's bytes.
    pub bytes: Vec<u8>,
    /// What has no room in the entry: the document as it was before the write, as a whole document
    /// of the oplog that writes nothing. It is logged with the timestamp right before that of the
    /// entry, and only together with it.
    pub image: Option<Vec<u8>>,
}

impl Entry {
    /// An entry that is one document.
    pub fn new(bytes: Vec<u8>) -> Entry {
        Entry { bytes, image: None }
    }

    /// The lengths of its documents, in their order in the log.
    pub(super) fn lens(&self) -> impl Iterator<Item = usize> {
        let image = self.image.as_ref().map(Vec::len);
        image.into_iter().chain([self.bytes.len()])
    }

    /// Whether each document begins with a timestamp `ts` and an i64 `t`.
    pub(in crate::engine) fn has_optime(&self) -> bool {
        has_optime(&self.bytes) && self.image.as_deref().is_none_or(has_optime)
    }

    /// Whether the entry names the one before it in its chain.
    pub(super) fn is_linked(&self) -> bool {
        let is_at =
            |at: usize, expected: &[u8]| self.bytes.get(at..at + expected.len()) == Some(expected);
        is_at(PREVIOUS_ELEMENT_OFFSET, PREVIOUS_ELEMENT)
            && is_at(PREVIOUS_TS_OFFSET - TS_ELEMENT.len(), TS_ELEMENT)
            && is_at(PREVIOUS_TERM_OFFSET - TERM_ELEMENT.len(), TERM_ELEMENT)
            && self.bytes.len() >= PREVIOUS_TERM_OFFSET + 8
    }

    /// Links the entry to the one at `ts` in `term`.
    pub(super) fn set_previous(&mut self, ts: Timestamp, term: i64) {
        assert!(
            self.is_linked(),
            "an entry of a chain names the one before it"
        );
        self.bytes[PREVIOUS_TS_OFFSET..PREVIOUS_TS_OFFSET + 8].copy_from_slice(&ts.to_bson_bytes());
        self.bytes[PREVIOUS_TERM_OFFSET..PREVIOUS_TERM_OFFSET + 8]
            .copy_from_slice(&term.to_le_bytes());
    }
}

fn has_optime(bytes: &[u8]) -> bool {
    let name_of = |value_at: usize, element: &[u8]| {
        bytes.get(value_at - element.len()..value_at) == Some(element)
    };
    bytes.len() >= ENTRY_TERM_OFFSET + 8
        && name_of(ENTRY_TS_OFFSET, TS_ELEMENT)
        && name_of(ENTRY_TERM_OFFSET, TERM_ELEMENT)
}

fn set_optime(bytes: &mut [u8], ts: Timestamp, term: i64) {
    // Anything else would overwrite another field, in the log and on every member that fetches the
    // entry.
    assert!(has_optime(bytes), "an entry begins with ts and t");
    bytes[ENTRY_TS_OFFSET..ENTRY_TS_OFFSET + 8].copy_from_slice(&ts.to_bson_bytes());
    bytes[ENTRY_TERM_OFFSET..ENTRY_TERM_OFFSET + 8].copy_from_slice(&term.to_le_bytes());
}

/// How many timestamps a statement takes: one for each document of its entry, and one for a link.
pub(super) fn timestamps_of(entry: Option<&Entry>) -> u64 {
    entry.map_or(1, |entry| entry.lens().count() as u64)
}

/// The last of the linked entries that were appended together.
#[derive(Default)]
pub(in crate::engine) struct Chain(Option<Timestamp>);

/// Appends the log entry of a statement in `term`, with the timestamps of the range from the
/// `first`th on; without an entry that is a link. Gives the last of them, at which the statement
/// takes place.
pub(in crate::engine) fn append_to(
    ring: &Ring,
    reservation: &mut Reservation,
    entry: &mut Option<Entry>,
    chain: &mut Chain,
    (range, first): (&Allotted, u64),
    term: i64,
) -> Timestamp {
    let Some(entry) = entry else {
        let (ts, predecessor) = range.nth(first);
        ring.append(
            reservation,
            EntryKind::Link,
            ts,
            predecessor,
            &mut Vec::new(),
        );
        return ts;
    };
    let mut place = first;
    if let Some(image) = &mut entry.image {
        let (ts, predecessor) = range.nth(place);
        set_optime(image, ts, term);
        ring.append(reservation, EntryKind::Logged, ts, predecessor, image);
        place += 1;
    }
    let (ts, predecessor) = range.nth(place);
    set_optime(&mut entry.bytes, ts, term);
    if entry.is_linked()
        && let Some(previous) = chain.0.replace(ts)
    {
        entry.set_previous(previous, term);
    }
    ring.append(
        reservation,
        EntryKind::Logged,
        ts,
        predecessor,
        &mut entry.bytes,
    );
    ts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_begins_with_a_timestamp_and_a_term() {
        let check = |bytes: &[u8], expected: bool| {
            let entry = Entry::new(bytes.to_vec());
            assert_eq!(entry.has_optime(), expected, "{bytes:?}");
        };
        check(b"", false);
        check(b"\x1c\0\0\0\x11ts\0........\x12t\0........\0", true);
        check(b"\x1b\0\0\0\x11ts\0........\x12t\0.......", false);
        check(b"\x18\0\0\0\x11ts\0........\x10t\0........\0", false);
        check(b"\x1c\0\0\0\x11ts\0........\x12v\0........\0", false);
        check(b"\x1c\0\0\0\x12ts\0........\x12t\0........\0", false);
    }

    #[test]
    fn a_linked_entry_names_the_one_before_it() {
        let linked = b"....\x11ts\0........\x12t\0........\x03prevOpTime\0....\x11ts\0........\x12t\0........\0\0";
        let check = |bytes: &[u8], expected: bool| {
            let entry = Entry::new(bytes.to_vec());
            assert_eq!(entry.is_linked(), expected, "{bytes:?}");
        };
        check(linked, true);
        check(&linked[..linked.len() - 3], false);
        check(b"\x1c\0\0\0\x11ts\0........\x12t\0........\0", false);
        let mut entry = Entry::new(linked.to_vec());
        entry.set_previous(Timestamp::new(0x0403_0201, 0x0807_0605), 0x7f);
        let expected = b"....\x11ts\0........\x12t\0........\x03prevOpTime\0....\x11ts\0\x05\x06\x07\x08\x01\x02\x03\x04\x12t\0\x7f\0\0\0\0\0\0\0\0\0";
        assert_eq!(entry.bytes, expected);
    }

    #[test]
    fn the_optime_is_all_that_is_filled_in() {
        let mut bytes = b"\x1c\0\0\0\x11ts\0........\x12t\0........\0".to_vec();
        set_optime(&mut bytes, Timestamp::new(0x0403_0201, 0x0807_0605), 0x7f);
        // In BSON a timestamp's increment comes first.
        let expected =
            b"\x1c\0\0\0\x11ts\0\x05\x06\x07\x08\x01\x02\x03\x04\x12t\0\x7f\0\0\0\0\0\0\0\0";
        assert_eq!(bytes, expected);
    }
}
