//! Reading a ring from its files: entries in order, and an account of everything that is not an
//! entry.
//!
//! Nothing in the files is trusted. Frames that are torn or damaged leave a gap; the stream is
//! picked up again at the next entry that begins in a valid frame. Whether a gap is a hole or
//! damage is for recovery to decide, by the chain of predecessors.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{DmaBuf, File, JoinHandle, OpenOptions, Queue, spawn};

use super::entry::{ENTRY_HEADER_BYTES, EntryHeader, EntryKind};
use super::frame::{
    FRAME_BYTES, FRAME_PAYLOAD_BYTES, FrameContext, FrameHeader, FrameState, Stamps, classify,
    payload,
};
use super::segment::RingDir;
use crate::limits::{FIRST_CHUNK_BYTES, SCAN_CHUNK_BYTES};
use crate::manifest::Cuts;

/// Bad frames remembered for the report; those before the last of them matter less and less.
const MAX_BAD_FRAMES: usize = 256;

/// An entry that exists: of an epoch no later cut of which lies below it.
#[derive(Clone, Debug)]
pub(crate) struct LoggedEntry {
    /// The frame it begins in, and that frame's epoch.
    pub(crate) place: Place,
    pub(crate) epoch: u64,
    pub(crate) ts: Timestamp,
    pub(crate) predecessor: Timestamp,
    pub(crate) kind: EntryKind,
    pub(crate) bytes: Bytes,
}

/// Where something lies on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) ring: u16,
    pub(crate) generation: u64,
    pub(crate) offset: u64,
}

/// A frame that is not what was written, or was never written whole.
#[derive(Clone, Debug)]
pub(crate) struct BadFrame {
    pub(crate) place: Place,
    /// `None` for a torn frame.
    pub(crate) damage: Option<&'static str>,
    /// The first existing entry found after it in the same ring.
    pub(crate) next: Option<Timestamp>,
}

/// What a reader has seen so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct RingScan {
    pub(crate) valid_frames: u64,
    pub(crate) torn_frames: u64,
    pub(crate) damaged_frames: u64,
    pub(crate) entries: u64,
    /// Entries that a cut discarded.
    pub(crate) discarded: u64,
    /// The highest timestamp of any entry, existing or not.
    pub(crate) highest: Timestamp,
    /// The highest `all_durable` that a frame records, as far as later cuts leave it standing.
    pub(crate) all_durable: Timestamp,
    pub(crate) bad: VecDeque<BadFrame>,
    /// The last frames whose stamps were not what was written, and all else was.
    pub(crate) mended: VecDeque<Place>,
    /// For each segment the last existing entry that touches it.
    pub(crate) segments: Vec<(u64, Timestamp)>,
}

impl RingScan {
    fn note_bad(&mut self, place: Place, damage: Option<&'static str>) {
        match damage {
            Some(_) => self.damaged_frames += 1,
            None => self.torn_frames += 1,
        }
        if self.bad.len() == MAX_BAD_FRAMES {
            self.bad.pop_front();
        }
        self.bad.push_back(BadFrame {
            place,
            damage,
            next: None,
        });
    }

    fn note_mended(&mut self, place: Place) {
        if self.mended.len() == MAX_BAD_FRAMES {
            self.mended.pop_front();
        }
        self.mended.push_back(place);
    }

    fn note_entry(&mut self, ts: Timestamp) {
        for bad in self
            .bad
            .iter_mut()
            .rev()
            .take_while(|bad| bad.next.is_none())
        {
            bad.next = Some(ts);
        }
    }
}

struct OpenSegment {
    generation: u64,
    file: File,
    len: u64,
    /// Of the next frame.
    offset: u64,
    chunk: DmaBuf,
    chunk_start: u64,
    /// The queue in which the chunk behind the one that is read is read meanwhile; none if it is
    /// not.
    ahead: Option<Queue>,
    /// How much is read at once: a reader of the live log may want but an entry.
    chunk_bytes: u64,
    next_chunk: Option<(u64, JoinHandle<io::Result<DmaBuf>>)>,
}

/// The part of its segments that a reader goes through while the ring is in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Offset of the first frame, in the first segment.
    pub(crate) from: u64,
    /// Generation and offset of a frame: no entry is read that begins there or behind it.
    pub(crate) end: Option<(u64, u64)>,
}

/// Reads the entries of one ring in order.
pub(crate) struct RingReader {
    dir: RingDir,
    directory: u64,
    stamps: Stamps,
    cuts: Cuts,
    verify_checksums: bool,
    extent: Option<Extent>,
    waiting: VecDeque<u64>,
    open: Option<OpenSegment>,
    /// Bytes of the stream that are not yet handed out, from `at` on.
    stream: Vec<u8>,
    at: usize,
    in_step: bool,
    /// Where the entry at `at` begins, and the epoch of its first frame.
    entry_place: Place,
    entry_epoch: u64,
    /// Entry starts known from frame headers: stream position, place, epoch.
    starts: VecDeque<(usize, Place, u64)>,
    last: Timestamp,
    last_epoch: u64,
    pub(crate) scan: RingScan,
}

impl RingReader {
    /// A reader over the segments with these generations, ascending.
    pub(crate) fn new(
        dir: RingDir,
        directory: u64,
        stamps: Stamps,
        cuts: Cuts,
        generations: impl IntoIterator<Item = u64>,
        verify_checksums: bool,
    ) -> RingReader {
        let entry_place = Place {
            ring: dir.ring,
            generation: 0,
            offset: 0,
        };
        RingReader {
            dir,
            directory,
            stamps,
            cuts,
            verify_checksums,
            extent: None,
            waiting: generations.into_iter().collect(),
            open: None,
            stream: Vec::new(),
            at: 0,
            in_step: false,
            entry_place,
            entry_epoch: 0,
            starts: VecDeque::new(),
            last: Timestamp::MIN,
            last_epoch: 0,
            scan: RingScan::default(),
        }
    }

    /// Reads no more than this part. What lies behind a blank frame of a segment is not looked at
    /// then: nothing exists there.
    pub(crate) fn within(mut self, extent: Extent) -> RingReader {
        self.extent = Some(extent);
        self
    }

    pub(crate) fn ring(&self) -> u16 {
        self.dir.ring
    }

    pub(crate) fn path(&self, place: &Place) -> PathBuf {
        self.dir.segment_path(place.generation)
    }

    pub(crate) fn directory_path(&self) -> PathBuf {
        self.dir.path.clone()
    }

    /// The next existing entry, in timestamp order within the ring. Dropping the future loses
    /// nothing.
    pub(crate) async fn next(&mut self) -> io::Result<Option<LoggedEntry>> {
        loop {
            if let Some(entry) = self.take_entry() {
                return Ok(Some(entry));
            }
            if self.is_past_extent() || !self.read_frame().await? {
                return Ok(None);
            }
        }
    }

    /// Whether no entry is under way that begins within the extent, nor any more can begin there.
    fn is_past_extent(&self) -> bool {
        let Some(end) = self.extent.and_then(|extent| extent.end) else {
            return false;
        };
        let next = match (&self.open, self.waiting.front()) {
            (Some(open), _) => (open.generation, open.offset),
            (None, Some(&generation)) => (generation, 0),
            (None, None) => return false,
        };
        let under_way = (self.entry_place.generation, self.entry_place.offset);
        next >= end && (self.at == self.stream.len() || under_way >= end)
    }

    /// Hands out the entry at the front of the stream, if it is complete and exists.
    fn take_entry(&mut self) -> Option<LoggedEntry> {
        loop {
            let rest = &self.stream[self.at..];
            let header: &[u8; ENTRY_HEADER_BYTES] = rest.first_chunk()?;
            let header = match EntryHeader::decode(header) {
                Ok(header) => header,
                Err(what) => {
                    self.scan.note_bad(self.entry_place.clone(), Some(what));
                    self.lose_step();
                    return None;
                }
            };
            let end = ENTRY_HEADER_BYTES + header.len as usize;
            if rest.len() < end {
                return None;
            }
            let bytes = Bytes::copy_from_slice(&rest[ENTRY_HEADER_BYTES..end]);
            self.at += end;
            let (place, epoch) = (self.entry_place.clone(), self.entry_epoch);
            self.find_start();
            self.scan.highest = self.scan.highest.max(header.ts);
            if header.ts > self.cuts.limit(epoch) {
                self.scan.discarded += 1;
                continue;
            }
            // Within an epoch entries ascend. The first ones of a later epoch may lie below the
            // last ones of an earlier that were discarded, once the base has passed them all and
            // their cut is forgotten.
            if header.ts <= self.last && epoch <= self.last_epoch {
                self.scan.note_bad(place, Some("an entry is out of order"));
                continue;
            }
            self.last = header.ts;
            self.last_epoch = epoch;
            self.scan.entries += 1;
            self.scan.note_entry(header.ts);
            for (generation, last) in self.scan.segments.iter_mut().rev() {
                *last = header.ts;
                if *generation <= place.generation {
                    break;
                }
            }
            return Some(LoggedEntry {
                place,
                epoch,
                ts: header.ts,
                predecessor: header.predecessor,
                kind: header.kind,
                bytes,
            });
        }
    }

    /// Learns place and epoch of the entry that begins at `at`: those of the last frame that begins
    /// at or before it.
    fn find_start(&mut self) {
        while self
            .starts
            .front()
            .is_some_and(|&(from, _, _)| from <= self.at)
        {
            let (_, place, epoch) = self.starts.pop_front().expect("just seen");
            self.entry_place = place;
            self.entry_epoch = epoch;
        }
    }

    fn lose_step(&mut self) {
        self.stream.clear();
        self.starts.clear();
        self.at = 0;
        self.in_step = false;
    }

    /// Reads one more frame; false at the end of the ring.
    async fn read_frame(&mut self) -> io::Result<bool> {
        let Some(place) = self.advance().await? else {
            return Ok(false);
        };
        let open = self.open.as_ref().expect("advance opened a segment");
        let context = FrameContext {
            directory: self.directory,
            ring: self.dir.ring,
            generation: open.generation,
            position: (place.offset / FRAME_BYTES as u64) as u32,
            stamps: self.stamps,
        };
        let from = (place.offset - open.chunk_start) as usize;
        match classify(
            &open.chunk[from..from + FRAME_BYTES],
            &context,
            self.verify_checksums,
        ) {
            FrameState::Blank => {
                self.lose_step();
                if self.extent.is_some() {
                    self.pass_segment();
                }
            }
            FrameState::Torn => {
                self.scan.note_bad(place, None);
                self.lose_step();
            }
            FrameState::Damaged(what) => {
                self.scan.note_bad(place, Some(what));
                self.lose_step();
            }
            FrameState::Mended(header) => {
                self.scan.note_mended(place.clone());
                self.take_frame(from, &header, place);
            }
            FrameState::Valid(header) => self.take_frame(from, &header, place),
        }
        Ok(true)
    }

    /// Continues with the next segment.
    fn pass_segment(&mut self) {
        let open = self.open.as_mut().expect("a segment is open");
        open.offset = open.len;
    }

    fn take_frame(&mut self, from: usize, header: &FrameHeader, place: Place) {
        self.scan.valid_frames += 1;
        let standing = header.all_durable.min(self.cuts.limit(header.epoch));
        self.scan.all_durable = self.scan.all_durable.max(standing);
        self.take_payload(from, header, place);
    }

    fn take_payload(&mut self, from: usize, header: &FrameHeader, place: Place) {
        self.stream.drain(..self.at);
        for (start, _, _) in &mut self.starts {
            *start -= self.at;
        }
        self.at = 0;
        let mut skip = 0;
        if !self.is_continued_by(header) {
            self.lose_step();
        }
        if !self.in_step {
            let Some(first) = header.first_entry else {
                return;
            };
            skip = usize::from(first);
            self.in_step = true;
        }
        self.starts
            .push_back((self.stream.len(), place, header.epoch));
        let chunk = &self.open.as_ref().expect("a segment is open").chunk;
        payload(
            &chunk[from..from + FRAME_BYTES],
            header,
            skip,
            &mut self.stream,
        );
        self.find_start();
    }

    /// Whether the frame's first entry begins where the entry at the front of the stream ends.
    fn is_continued_by(&self, header: &FrameHeader) -> bool {
        let Some(front) = self.stream.first_chunk() else {
            // At most the beginning of a header is left: this frame completes it.
            return match self.stream.is_empty() {
                true => header.first_entry == Some(0) || header.payload_len == 0,
                false => header.first_entry != Some(0),
            };
        };
        let Ok(front) = EntryHeader::decode(front) else {
            return false;
        };
        let missing = (ENTRY_HEADER_BYTES + front.len as usize).saturating_sub(self.stream.len());
        match header.first_entry {
            Some(first) => missing == usize::from(first),
            None => missing >= usize::from(header.payload_len),
        }
    }

    /// Goes to the next frame, opening segments and reading chunks as needed.
    async fn advance(&mut self) -> io::Result<Option<Place>> {
        loop {
            if self.open.is_none() {
                let Some(&generation) = self.waiting.front() else {
                    return Ok(None);
                };
                let file =
                    File::open(self.dir.segment_path(generation), OpenOptions::read()).await?;
                let len = file.len().await? / FRAME_BYTES as u64 * FRAME_BYTES as u64;
                self.waiting.pop_front();
                if self
                    .scan
                    .segments
                    .last()
                    .is_some_and(|&(before, _)| before + 1 != generation)
                {
                    self.lose_step();
                }
                let offset = match (self.scan.segments.last(), self.extent) {
                    (None, Some(extent)) => extent.from,
                    _ => 0,
                };
                self.scan.segments.push((generation, Timestamp::MIN));
                let chunk = DmaBuf::zeroed(0);
                self.open = Some(OpenSegment {
                    generation,
                    file,
                    len,
                    offset,
                    ahead: match self.extent {
                        None => Some(Queue::Foreground),
                        Some(Extent { end: None, .. }) => Some(Queue::Background),
                        Some(Extent { end: Some(_), .. }) => None,
                    },
                    chunk_bytes: match self.extent {
                        Some(Extent { end: None, .. }) => FIRST_CHUNK_BYTES as u64,
                        _ => SCAN_CHUNK_BYTES as u64,
                    },
                    chunk,
                    chunk_start: 0,
                    next_chunk: None,
                });
            }
            let open = self.open.as_mut().expect("just opened");
            if open.offset + FRAME_BYTES as u64 > open.len {
                let open = self.open.take().expect("just seen");
                open.file.close().await?;
                continue;
            }
            let offset = open.offset;
            if offset + FRAME_BYTES as u64 > open.chunk_start + open.chunk.len() as u64 {
                open.read_chunk(offset).await?;
                if open.chunk.len() < FRAME_BYTES {
                    // Shorter than it said: nothing more to read here.
                    open.len = offset;
                    continue;
                }
            }
            open.offset += FRAME_BYTES as u64;
            let place = Place {
                ring: self.dir.ring,
                generation: open.generation,
                offset,
            };
            return Ok(Some(place));
        }
    }
}

impl OpenSegment {
    /// Reads the chunk at `offset` and starts reading the one after it.
    async fn read_chunk(&mut self, offset: u64) -> io::Result<()> {
        let ahead = self.next_chunk.take().filter(|(at, _)| *at == offset);
        self.chunk = match ahead {
            Some((_, task)) => task
                .await
                .map_err(|cancelled| io::Error::other(cancelled.to_string()))??,
            None => self.file.read_at(offset, self.chunk_len(offset)).await?,
        };
        self.chunk_start = offset;
        let after = offset + self.chunk.len() as u64;
        self.chunk_bytes = (self.chunk_bytes * 4).min(SCAN_CHUNK_BYTES as u64);
        if let Some(queue) = self.ahead
            && after < self.len
            && self.chunk.len().is_multiple_of(FRAME_BYTES)
            && !self.chunk.is_empty()
        {
            let (file, len) = (self.file.clone(), self.chunk_len(after));
            self.next_chunk = Some((
                after,
                spawn(queue, async move { file.read_at(after, len).await }),
            ));
        }
        Ok(())
    }

    fn chunk_len(&self, offset: u64) -> usize {
        (self.len - offset).min(self.chunk_bytes) as usize
    }
}

const _: () = assert!(FRAME_PAYLOAD_BYTES > ENTRY_HEADER_BYTES);
