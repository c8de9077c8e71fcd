//! Reading a ring while it is written: what is in memory is copied, what is only in files is read
//! from them.
//!
//! The core that writes the ring answers with entries or with the names of segments; the reader
//! reads those by itself. Only what is on the device is looked for in files, so no frame is read
//! that is being written. A segment may be reused while it is read: its frames then look blank, and
//! the reader, which sees that the log's first timestamp has passed it, gives up.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use pinion_clock::Timestamp;

use super::documents::Documents;
use super::entry::{ENTRY_HEADER_BYTES, EntryKind};
use super::frame::{FRAME_BYTES, Stamps};
use super::reader::{Extent, LoggedEntry, RingReader};
use super::seek::Seeker;
use super::segment::RingDir;
use crate::limits::SCAN_CHUNK_BYTES;
use crate::manifest::Cuts;

/// An entry as a reader of the log gets it.
#[derive(Clone, Debug)]
pub(crate) struct LogEntry {
    pub(crate) ts: Timestamp,
    /// The timestamp allotted right before it, on whichever core.
    pub(crate) predecessor: Timestamp,
    pub(crate) kind: EntryKind,
    pub(crate) bytes: Bytes,
}

/// What a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSpan {
    pub(crate) generation: u64,
    /// The first entry that begins in it.
    pub(crate) first: Option<Timestamp>,
    /// No entry that touches it lies above.
    pub(crate) last: Timestamp,
    /// As far as it is written.
    pub(crate) bytes: u64,
    /// Of the entries that begin in it.
    pub(crate) documents: Documents,
}

/// What can be seen of a segment without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentLook {
    /// The first entry that begins in it and exists.
    pub(crate) first: Option<Timestamp>,
    /// As far as it is written.
    pub(crate) bytes: u64,
    /// Estimated, if there are many frames.
    pub(crate) documents: Documents,
}

/// Some segments of a ring, and what is needed to read them.
#[derive(Clone, Debug)]
pub(crate) struct RingFiles {
    pub(crate) dir: RingDir,
    pub(crate) directory: u64,
    pub(crate) stamps: Stamps,
    pub(crate) cuts: Cuts,
    /// Oldest first.
    pub(crate) segments: Vec<SegmentSpan>,
    /// Entries up to here are in the files.
    pub(crate) through: Timestamp,
}

/// What a ring answers.
pub(crate) struct RingPart {
    /// From memory, in the order of reading.
    pub(crate) entries: Vec<LogEntry>,
    /// Memory holds no more of what was asked for.
    pub(crate) complete: bool,
    /// Where the rest is, if not in memory.
    pub(crate) files: Option<RingFiles>,
}

/// Entries that a reader gets at once: as many as fit, but one at least.
pub(crate) struct Fetch {
    pub(crate) entries: Vec<LogEntry>,
    /// Bytes of entries that still fit, headers among them.
    left: usize,
    empty: bool,
}

impl Fetch {
    pub(super) fn new(max_bytes: usize) -> Fetch {
        Fetch {
            entries: Vec::new(),
            left: max_bytes,
            empty: true,
        }
    }

    /// Whether an entry of this size fits; its bytes are taken then.
    pub(super) fn has_room(&mut self, bytes: usize) -> bool {
        let fits = self.empty || bytes <= self.left;
        if fits {
            self.empty = false;
            self.left = self.left.saturating_sub(bytes);
        }
        fits
    }

    /// Takes an entry if it fits.
    pub(super) fn take(&mut self, entry: &LogEntry) -> bool {
        let fits = self.has_room(ENTRY_HEADER_BYTES + entry.bytes.len());
        if fits {
            self.entries.push(entry.clone());
        }
        fits
    }
}

impl From<LoggedEntry> for LogEntry {
    fn from(entry: LoggedEntry) -> LogEntry {
        LogEntry {
            ts: entry.ts,
            predecessor: entry.predecessor,
            kind: entry.kind,
            bytes: entry.bytes,
        }
    }
}

impl RingFiles {
    /// The segments that hold entries above `after`.
    pub(crate) fn segments_above(&self, after: Timestamp) -> Vec<SegmentSpan> {
        let above = self.segments.iter().filter(|span| span.last > after);
        above.copied().collect()
    }

    /// Looks at a few frames of a segment, among them this many samples.
    pub(crate) async fn look_into(&self, generation: u64, samples: u32) -> io::Result<SegmentLook> {
        let seeker = Seeker::open(self, generation).await?;
        let first = seeker.first().await?;
        let frames = seeker.written_frames().await?;
        let documents = match &first {
            Some(start) => {
                let frames = start.frame..frames;
                seeker.documents(frames, samples, &self.cuts).await?
            }
            None => Documents::default(),
        };
        seeker.close().await?;
        let exists = first.filter(|start| start.ts <= self.cuts.limit(start.epoch));
        Ok(SegmentLook {
            first: exists.map(|start| start.ts),
            bytes: u64::from(frames) * FRAME_BYTES as u64,
            documents,
        })
    }

    /// A reader of the segments from the `nth` on.
    fn reader(&self, nth: usize, extent: Extent) -> RingReader {
        let generations = self.segments[nth..].iter().map(|span| span.generation);
        RingReader::new(
            self.dir.clone(),
            self.directory,
            self.stamps,
            self.cuts.clone(),
            generations,
            true,
        )
        .within(extent)
    }
}

/// Reads files forwards.
pub(crate) struct FilesAfter {
    reader: RingReader,
    after: Timestamp,
    pub(crate) through: Timestamp,
}

impl FilesAfter {
    /// Behind `after`. Few frames are read to get there.
    pub(crate) async fn open(files: &RingFiles, after: Timestamp) -> io::Result<FilesAfter> {
        let begins_by = |span: &SegmentSpan| span.first.is_some_and(|first| first <= after);
        let (mut nth, mut frame) = (0, 0);
        if let Some(last) = files.segments.iter().rposition(begins_by) {
            let seeker = Seeker::open(files, files.segments[last].generation).await?;
            (nth, frame) = (last, seeker.around(after).await?.start);
            seeker.close().await?;
        }
        let extent = Extent {
            from: u64::from(frame) * FRAME_BYTES as u64,
            end: None,
        };
        Ok(FilesAfter {
            reader: files.reader(nth, extent),
            after,
            through: files.through,
        })
    }

    /// Appends entries of about `max_bytes` together; false when there are no more in the files.
    pub(crate) async fn read(
        &mut self,
        max_bytes: usize,
        into: &mut VecDeque<LogEntry>,
    ) -> io::Result<bool> {
        let mut bytes = 0;
        while bytes < max_bytes {
            let Some(entry) = self.reader.next().await? else {
                return Ok(false);
            };
            if entry.ts > self.through {
                return Ok(false);
            }
            if entry.ts > self.after {
                self.after = entry.ts;
                bytes += entry.bytes.len();
                into.push_back(entry.into());
            }
            if self.after == self.through {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Reads files backwards, some frames at a time.
pub(crate) struct FilesBefore {
    files: RingFiles,
    /// Entries below it are still to be read.
    before: Timestamp,
    /// Segments that may hold some.
    left: usize,
    /// In the last of them they begin before this frame. `None` until that was looked for.
    end_frame: Option<u32>,
}

impl FilesBefore {
    pub(crate) fn new(files: RingFiles, before: Timestamp) -> FilesBefore {
        let end = Timestamp::from_u64(files.through.as_u64().saturating_add(1));
        FilesBefore {
            before: before.min(end),
            left: files.segments.len(),
            end_frame: None,
            files,
        }
    }

    /// No entry that touches the segment which is read next lies above it.
    pub(crate) fn next_last(&self) -> Timestamp {
        let next = self.left.checked_sub(1);
        next.map_or(Timestamp::MIN, |nth| self.files.segments[nth].last)
    }

    /// Appends entries, newest first; false when there are no more in the files.
    pub(crate) async fn read(&mut self, into: &mut VecDeque<LogEntry>) -> io::Result<bool> {
        let mut window = (SCAN_CHUNK_BYTES / FRAME_BYTES) as u32;
        while let Some(nth) = self.left.checked_sub(1) {
            let span = self.files.segments[nth];
            if span.first.is_none_or(|first| first >= self.before) {
                (self.left, self.end_frame) = (nth, None);
                continue;
            }
            let end = match self.end_frame {
                Some(end) => end,
                None => self.find_end(span.generation).await?,
            };
            self.end_frame = Some(end);
            let begin = end.saturating_sub(window);
            let (entries, first_frame) = self.read_frames(nth, begin, end).await?;
            match first_frame {
                Some(frame) => {
                    self.before = entries[0].ts;
                    self.end_frame = Some(frame);
                    into.extend(entries.into_iter().rev());
                    return Ok(true);
                }
                // An entry of many frames ends here, or nothing that exists is left in this
                // segment.
                None if begin > 0 => window = window.saturating_mul(2),
                None => (self.left, self.end_frame) = (nth, None),
            }
        }
        Ok(false)
    }

    async fn find_end(&self, generation: u64) -> io::Result<u32> {
        let below = Timestamp::from_u64(self.before.as_u64() - 1);
        let seeker = Seeker::open(&self.files, generation).await?;
        let end = seeker.around(below).await?.end;
        seeker.close().await?;
        Ok(end)
    }

    /// The entries below `before` that begin in these frames, oldest first, and the frame of the
    /// first.
    async fn read_frames(
        &self,
        nth: usize,
        begin: u32,
        end: u32,
    ) -> io::Result<(Vec<LogEntry>, Option<u32>)> {
        let offset = |frame: u32| u64::from(frame) * FRAME_BYTES as u64;
        let extent = Extent {
            from: offset(begin),
            end: Some((self.files.segments[nth].generation, offset(end))),
        };
        let mut reader = self.files.reader(nth, extent);
        let (mut entries, mut first_frame) = (Vec::new(), None);
        while let Some(entry) = reader.next().await? {
            if entry.ts >= self.before {
                break;
            }
            first_frame.get_or_insert((entry.place.offset / FRAME_BYTES as u64) as u32);
            entries.push(LogEntry::from(entry));
        }
        Ok((entries, first_frame))
    }
}
