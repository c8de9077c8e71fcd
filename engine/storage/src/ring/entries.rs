//! Entries on their way to the disk: a stream of bytes, of which large entries keep the memory that
//! they came in.

use std::ops::Range;

use bytes::Bytes;
use pinion_clock::Timestamp;

use super::documents::Documents;
use super::entry::{ENTRY_HEADER_BYTES, EntryHeader};
use super::frame::FRAME_PAYLOAD_BYTES;
use super::live::{Fetch, LogEntry};
use crate::limits::{ENTRY_CHUNK_BYTES, LARGE_VALUE_BYTES, LOG_PIECE_BYTES, SPARE_ENTRIES_USE};

/// Whole entries, with their headers, in timestamp order. The memory goes to and fro between the
/// ring and its flushes: taken again for each group it would be memory that the system must clear
/// first.
#[derive(Default)]
pub(super) struct Entries {
    /// The stream without its large entries.
    small: Chunks,
    large: Vec<Large>,
    /// Where in the stream each entry begins, and its timestamp.
    starts: Vec<(usize, Timestamp)>,
    len: usize,
}

/// A large entry, without its header.
struct Large {
    /// Where in the stream it lies.
    at: usize,
    bytes: Bytes,
}

impl Large {
    fn end(&self) -> usize {
        self.at + self.bytes.len()
    }
}

/// Bytes in chunks of one size: where they grow none is copied, and fresh memory is touched a chunk
/// at a time.
#[derive(Default)]
struct Chunks {
    chunks: Vec<Vec<u8>>,
    len: usize,
}

impl Chunks {
    fn extend_from_slice(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let nth = self.len / ENTRY_CHUNK_BYTES;
            if nth == self.chunks.len() {
                self.chunks.push(Vec::with_capacity(ENTRY_CHUNK_BYTES));
            }
            let chunk = &mut self.chunks[nth];
            let (here, later) = bytes.split_at(bytes.len().min(ENTRY_CHUNK_BYTES - chunk.len()));
            chunk.extend_from_slice(here);
            self.len += here.len();
            bytes = later;
        }
    }

    /// What lies together from this place on; empty at the end alone.
    fn piece(&self, at: usize) -> &[u8] {
        match self.chunks.get(at / ENTRY_CHUNK_BYTES) {
            Some(chunk) => &chunk[at % ENTRY_CHUNK_BYTES..],
            None => &[],
        }
    }

    fn copy(&self, range: Range<usize>) -> Vec<u8> {
        let mut copy = Vec::with_capacity(range.len());
        while copy.len() < range.len() {
            let piece = self.piece(range.start + copy.len());
            copy.extend_from_slice(&piece[..piece.len().min(range.len() - copy.len())]);
        }
        copy
    }

    /// Empties all, and frees the chunks if few of them were used.
    fn clear(&mut self) {
        let used = self.len.div_ceil(ENTRY_CHUNK_BYTES);
        if used * SPARE_ENTRIES_USE < self.chunks.len() {
            self.chunks.truncate(used);
        }
        self.chunks.iter_mut().for_each(Vec::clear);
        self.len = 0;
    }
}

impl Entries {
    /// Length of the stream.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Timestamp of the last entry.
    pub(super) fn last(&self) -> Option<Timestamp> {
        self.starts.last().map(|&(_, ts)| ts)
    }

    /// Timestamp of the last entry that begins before this place of the stream.
    pub(super) fn last_before(&self, end: usize) -> Option<Timestamp> {
        let before = self.starts.partition_point(|&(start, _)| start < end);
        self.starts[..before].last().map(|&(_, ts)| ts)
    }

    /// Timestamp of the first entry that begins in this part of the stream, and the documents of
    /// all that do.
    pub(super) fn beginning_in(&self, part: Range<usize>) -> (Option<Timestamp>, Documents) {
        let before = |at: usize| self.starts.partition_point(|&(start, _)| start < at);
        let beginning = before(part.start)..before(part.end);
        let first = self.starts[beginning.clone()].first().map(|&(_, ts)| ts);
        let mut documents = Documents::default();
        for nth in beginning {
            documents.add(self.len_of(nth) - ENTRY_HEADER_BYTES);
        }
        (first, documents)
    }

    /// Appends an entry. The bytes of a large one are taken and not copied.
    pub(super) fn push(&mut self, header: &EntryHeader, entry: &mut Vec<u8>) {
        let header_bytes = header.encode();
        self.starts.push((self.len, header.ts));
        self.small.extend_from_slice(&header_bytes);
        self.len += header_bytes.len() + entry.len();
        if entry.len() < LARGE_VALUE_BYTES {
            self.small.extend_from_slice(entry);
        } else {
            self.large.push(Large {
                at: self.len - entry.len(),
                bytes: Bytes::from(std::mem::take(entry)),
            });
        }
    }

    /// The timestamp of the `nth` entry.
    pub(super) fn timestamp(&self, nth: usize) -> Timestamp {
        self.starts[nth].1
    }

    /// Bytes of the `nth` entry with its header.
    fn len_of(&self, nth: usize) -> usize {
        let end = self.starts.get(nth + 1).map_or(self.len, |&(at, _)| at);
        end - self.starts[nth].0
    }

    /// The last entries that have no more than `bytes` together.
    pub(super) fn last_within(&self, bytes: usize) -> Range<usize> {
        let begin = self.len.saturating_sub(bytes);
        self.starts.partition_point(|&(at, _)| at < begin)..self.starts.len()
    }

    /// Fetches entries above `after` and at or below `through`, oldest first; whether those were
    /// all.
    pub(super) fn read_after(
        &self,
        after: Timestamp,
        through: Timestamp,
        fetch: &mut Fetch,
    ) -> bool {
        let from = self.starts.partition_point(|&(_, ts)| ts <= after);
        let end = self.starts.partition_point(|&(_, ts)| ts <= through);
        let fitting = (from..end).take_while(|&nth| fetch.has_room(self.len_of(nth)));
        let to = from + fitting.count();
        fetch.entries.extend(self.copy(from..to));
        to >= end
    }

    /// Fetches entries below `before`, newest first; whether those were all.
    pub(super) fn read_before(&self, before: Timestamp, fetch: &mut Fetch) -> bool {
        let end = self.starts.partition_point(|&(_, ts)| ts < before);
        let fitting = (0..end)
            .rev()
            .take_while(|&nth| fetch.has_room(self.len_of(nth)));
        let from = end - fitting.count();
        fetch.entries.extend(self.copy(from..end).into_iter().rev());
        from == 0
    }

    /// Copies entries. Small ones that lie together share their memory, pieces of
    /// [`LOG_PIECE_BYTES`]; large ones share that which they are in.
    pub(super) fn copy(&self, range: Range<usize>) -> Vec<LogEntry> {
        let mut copies = Vec::with_capacity(range.len());
        let Some(&(begin, _)) = self.starts.get(range.start) else {
            return copies;
        };
        let before = self.large.partition_point(|large| large.at < begin);
        let passed: usize = self.large[..before].iter().map(|l| l.bytes.len()).sum();
        let mut large = self.large[before..].iter().peekable();
        let (mut small_at, mut nth) = (begin - passed, range.start);
        while nth < range.end {
            // Where each entry ends in the piece, and its bytes if they do not lie there.
            let (mut len, first) = (0, nth);
            let mut layout: Vec<(usize, Option<Bytes>)> = Vec::new();
            while nth < range.end && (nth == first || len + self.len_of(nth) <= LOG_PIECE_BYTES) {
                let body_at = self.starts[nth].0 + ENTRY_HEADER_BYTES;
                let own = large.next_if(|large| large.at == body_at);
                len += own.map_or(self.len_of(nth), |_| ENTRY_HEADER_BYTES);
                layout.push((len, own.map(|large| large.bytes.clone())));
                nth += 1;
            }
            let piece = Bytes::from(self.small.copy(small_at..small_at + len));
            small_at += len;
            let mut at = 0;
            for (end, own) in layout {
                let header = piece[at..].first_chunk().map(EntryHeader::decode);
                let header = header.expect("a header").expect("as it was encoded");
                let bytes = own.unwrap_or_else(|| piece.slice(at + ENTRY_HEADER_BYTES..end));
                assert_eq!(bytes.len(), header.len as usize, "an entry is copied whole");
                copies.push(LogEntry {
                    ts: header.ts,
                    predecessor: header.predecessor,
                    kind: header.kind,
                    bytes,
                });
                at = end;
            }
        }
        copies
    }

    /// Empty, in the same memory, or in less if this was far less than it has room for.
    pub(super) fn emptied(mut self) -> Entries {
        self.small.clear();
        self.large.clear();
        self.starts.clear();
        self.len = 0;
        self
    }

    /// Reads the stream from here on, as payloads of frames.
    pub(super) fn read_from(&self, at: usize) -> PayloadReader<'_> {
        let next_large = self.large.partition_point(|large| large.end() <= at);
        let passed: usize = self.large[..next_large]
            .iter()
            .map(|large| large.bytes.len())
            .sum();
        // Within a large entry what comes next of the others is what lies behind it.
        let at_of_small = self
            .large
            .get(next_large)
            .map_or(at, |large| at.min(large.at));
        PayloadReader {
            entries: self,
            at,
            next_start: self.starts.partition_point(|&(start, _)| start < at),
            next_large,
            small_at: at_of_small - passed,
        }
    }
}

/// A place in the stream.
pub(super) struct PayloadReader<'a> {
    entries: &'a Entries,
    at: usize,
    next_start: usize,
    /// The first large entry that does not end before this place.
    next_large: usize,
    /// The place in the stream without large entries.
    small_at: usize,
}

impl<'a> PayloadReader<'a> {
    /// What the next frame holds of the stream, and where in that the first entry begins. `scratch`
    /// is used where it does not lie together.
    pub(super) fn next<'b>(
        &mut self,
        scratch: &'b mut [u8; FRAME_PAYLOAD_BYTES],
    ) -> (&'b [u8], Option<usize>)
    where
        'a: 'b,
    {
        let Entries { starts, len, .. } = self.entries;
        let from = self.at;
        let wanted = FRAME_PAYLOAD_BYTES.min(len - from);
        let first_entry = starts
            .get(self.next_start)
            .filter(|&&(start, _)| start < from + wanted)
            .map(|&(start, _)| start - from);
        while starts
            .get(self.next_start)
            .is_some_and(|&(start, _)| start < from + wanted)
        {
            self.next_start += 1;
        }
        let piece = self.piece();
        if piece.len() >= wanted {
            self.advance(wanted);
            return (&piece[..wanted], first_entry);
        }
        let mut filled = 0;
        while filled < wanted {
            let piece = self.piece();
            let take = piece.len().min(wanted - filled);
            scratch[filled..filled + take].copy_from_slice(&piece[..take]);
            self.advance(take);
            filled += take;
        }
        (&scratch[..wanted], first_entry)
    }

    /// What lies together from here on; empty at the end alone.
    fn piece(&self) -> &'a [u8] {
        let Entries { small, large, .. } = self.entries;
        match large.get(self.next_large) {
            Some(large) if self.at >= large.at => &large.bytes[self.at - large.at..],
            Some(large) => {
                let piece = small.piece(self.small_at);
                &piece[..piece.len().min(large.at - self.at)]
            }
            None => small.piece(self.small_at),
        }
    }

    /// Passes bytes of the piece that is here.
    fn advance(&mut self, bytes: usize) {
        match self.entries.large.get(self.next_large) {
            Some(large) if self.at >= large.at => {
                self.next_large += usize::from(self.at + bytes == large.end());
            }
            _ => self.small_at += bytes,
        }
        self.at += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::EntryKind;
    use super::*;

    fn header(len: usize, ts: u64) -> EntryHeader {
        EntryHeader {
            len: len as u32,
            kind: EntryKind::Logged,
            ts: Timestamp::from_u64(ts),
            predecessor: Timestamp::from_u64(ts - 1),
        }
    }

    /// Entries of these lengths, and the stream that they make.
    fn pushed(lens: &[usize]) -> (Entries, Vec<u8>) {
        let (mut entries, mut stream) = (Entries::default(), Vec::new());
        for (&len, ts) in lens.iter().zip(1..) {
            let mut bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
            stream.extend_from_slice(&header(len, ts).encode());
            stream.extend_from_slice(&bytes);
            entries.push(&header(len, ts), &mut bytes);
            assert_eq!(bytes.is_empty(), len == 0 || len >= LARGE_VALUE_BYTES);
        }
        (entries, stream)
    }

    fn check(lens: &[usize]) {
        let (entries, stream) = pushed(lens);
        assert_eq!(entries.len(), stream.len());
        let mut at = 0;
        let starts: Vec<usize> = lens
            .iter()
            .map(|len| {
                let start = at;
                at += ENTRY_HEADER_BYTES + len;
                start
            })
            .collect();
        let frames = stream.len().div_ceil(FRAME_PAYLOAD_BYTES);
        // From every frame on, as a flush in parts begins anywhere.
        for first in 0..frames {
            let mut reader = entries.read_from(first * FRAME_PAYLOAD_BYTES);
            let mut scratch = [0; FRAME_PAYLOAD_BYTES];
            // Each beginning is read a little way, the first one to the end.
            let to = if first == 0 {
                frames
            } else {
                frames.min(first + 3)
            };
            for frame in first..to {
                let from = frame * FRAME_PAYLOAD_BYTES;
                let to = stream.len().min(from + FRAME_PAYLOAD_BYTES);
                let (payload, first_entry) = reader.next(&mut scratch);
                assert!(payload == &stream[from..to], "{lens:?}, frame {frame}");
                let expected = starts.iter().find(|&&at| from <= at && at < to);
                assert_eq!(first_entry, expected.map(|at| at - from));
            }
        }
    }

    #[test]
    fn the_stream_is_the_same_wherever_its_bytes_lie() {
        const LARGE: usize = LARGE_VALUE_BYTES;
        check(&[3]);
        check(&[3, 5000, 0, 100]);
        check(&[LARGE]);
        check(&[LARGE - 1, LARGE, LARGE + 1]);
        check(&[10, LARGE, LARGE, 10, 9000, LARGE + 4004, 1]);
        let aligned = FRAME_PAYLOAD_BYTES * 70 - ENTRY_HEADER_BYTES;
        check(&[aligned, aligned, 1]);
        // Over the ends of chunks, and with one that is just full.
        let small = LARGE - 1;
        check(&[small; 9]);
        let rest = ENTRY_CHUNK_BYTES - 4 * ENTRY_HEADER_BYTES - 3 * (LARGE - 24);
        check(&[
            LARGE - 24,
            LARGE - 24,
            LARGE - 24,
            LARGE - 24,
            rest,
            7,
            LARGE,
            10,
        ]);
        let (entries, _) = pushed(&[]);
        let mut scratch = [0; FRAME_PAYLOAD_BYTES];
        let (payload, first) = entries.read_from(0).next(&mut scratch);
        assert!(payload.is_empty() && first.is_none());
    }

    #[test]
    fn what_was_emptied_holds_nothing_and_keeps_its_memory() {
        let (entries, _) = pushed(&[100_000, LARGE_VALUE_BYTES]);
        let emptied = entries.emptied();
        assert!(emptied.is_empty() && emptied.large.is_empty());
        assert_eq!(emptied.len(), 0);
        assert_eq!(emptied.small.chunks.len(), 1);
    }

    #[test]
    fn memory_that_one_group_needed_and_the_next_did_not_is_freed() {
        let chunks = SPARE_ENTRIES_USE + 1;
        let (entries, _) = pushed(&vec![100_000; chunks * ENTRY_CHUNK_BYTES / 100_000]);
        let mut emptied = entries.emptied();
        assert_eq!(emptied.small.chunks.len(), chunks);
        emptied.push(&header(10, 1), &mut vec![1; 10]);
        assert_eq!(emptied.emptied().small.chunks.len(), 1);
    }

    #[test]
    fn readers_get_each_entry_whole_and_as_many_as_fit() {
        const LARGE: usize = LARGE_VALUE_BYTES;
        let lens = [
            76,
            0,
            LARGE,
            LARGE - 1,
            3,
            LARGE + 5,
            LARGE,
            LARGE - 24,
            900_000,
            1,
        ];
        let (entries, stream) = pushed(&lens);
        let check = |read: &[LogEntry]| {
            for entry in read {
                let nth = entry.ts.as_u64() as usize - 1;
                let begin = entries.starts[nth].0 + ENTRY_HEADER_BYTES;
                assert!(
                    entry.bytes == stream[begin..begin + lens[nth]],
                    "entry {nth}"
                );
                assert_eq!(entry.predecessor.as_u64(), nth as u64);
            }
        };
        let ts = Timestamp::from_u64;
        let count = lens.len() as u64;
        for max_bytes in [1, 200, LARGE, 3 * LARGE, usize::MAX] {
            let (mut at, mut before) = (0, count + 1);
            loop {
                let mut fetch = Fetch::new(max_bytes);
                let all = entries.read_after(ts(at), ts(count - 1), &mut fetch);
                check(&fetch.entries);
                let read = fetch.entries.iter().map(|entry| entry.ts.as_u64());
                let end = at + fetch.entries.len() as u64;
                assert!(end > at && read.eq(at + 1..=end));
                assert_eq!(all, end == count - 1);
                at = end;
                if all {
                    break;
                }
            }
            while before > 1 {
                let mut fetch = Fetch::new(max_bytes);
                let all = entries.read_before(ts(before), &mut fetch);
                check(&fetch.entries);
                let read = fetch.entries.iter().map(|entry| entry.ts.as_u64());
                let begin = before - fetch.entries.len() as u64;
                assert!(begin < before && read.eq((begin..before).rev()));
                assert_eq!(all, begin == 1);
                before = begin;
            }
        }
    }

    #[test]
    fn entries_are_found_by_where_they_begin() {
        let (entries, _) = pushed(&[76, 1000, LARGE_VALUE_BYTES]);
        assert_eq!(entries.last(), Some(Timestamp::from_u64(3)));
        assert_eq!(entries.last_before(0), None);
        assert_eq!(entries.last_before(100), Some(Timestamp::from_u64(1)));
        assert_eq!(entries.last_before(101), Some(Timestamp::from_u64(2)));
        assert_eq!(entries.last_before(usize::MAX), entries.last());
        let check = |part: Range<usize>, expected: (Option<u64>, u64, usize)| {
            let (first, documents) = entries.beginning_in(part);
            let (count, bytes) = (documents.count, documents.bytes as usize);
            assert_eq!((first.map(|ts| ts.as_u64()), count, bytes), expected);
        };
        check(0..1, (Some(1), 1, 76));
        check(1..100, (None, 0, 0));
        check(1..101, (Some(2), 1, 1000));
        check(0..entries.len(), (Some(1), 3, 1076 + LARGE_VALUE_BYTES));
        // A link of the chain is an entry without a document.
        let (links, _) = pushed(&[0, 0, 5]);
        let (first, documents) = links.beginning_in(0..links.len());
        assert_eq!(first, Some(Timestamp::from_u64(1)));
        assert_eq!((documents.count, documents.bytes), (1, 5));
    }
}
