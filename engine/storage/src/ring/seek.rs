//! Finding a timestamp in a segment without reading it from the beginning.
//!
//! Every frame says where in it the first entry begins, so a few frames, read singly, show between
//! which of them a timestamp lies. Frames are written one behind the other: behind one that is
//! blank there is nothing that exists.

use std::io;
use std::ops::Range;

use pinion_clock::Timestamp;
use pinion_runtime::{DmaBuf, File, OpenOptions};

use super::documents::Documents;
use super::entry::{ENTRY_HEADER_BYTES, EntryHeader};
use super::frame::{FRAME_BYTES, FrameContext, FrameHeader, FrameState, classify, payload};
use super::live::RingFiles;
use super::segment::RingDir;
use crate::limits::{PROBE_FRAMES, SAMPLE_FRAMES, SCAN_CHUNK_BYTES, SEEK_FRAMES};
use crate::manifest::Cuts;

/// One segment, open to be searched.
pub(super) struct Seeker {
    dir: RingDir,
    file: File,
    context: FrameContext,
    frames: u32,
}

/// The first entry that begins in some frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) frame: u32,
    pub(super) epoch: u64,
    pub(super) ts: Timestamp,
}

impl Seeker {
    pub(super) async fn open(files: &RingFiles, generation: u64) -> io::Result<Seeker> {
        let path = files.dir.segment_path(generation);
        let file = File::open(path, OpenOptions::read()).await?;
        let frames = (file.len().await? / FRAME_BYTES as u64) as u32;
        Ok(Seeker {
            dir: files.dir.clone(),
            file,
            context: FrameContext {
                directory: files.directory,
                ring: files.dir.ring,
                generation,
                position: 0,
                stamps: files.stamps,
            },
            frames,
        })
    }

    pub(super) async fn close(self) -> io::Result<()> {
        self.file.close().await
    }

    /// Frames between which `ts` lies: the first entry of the one at the beginning is not above it,
    /// or that is the segment's first frame; no entry at or below it begins at the end or behind
    /// it.
    pub(super) async fn around(&self, ts: Timestamp) -> io::Result<Range<u32>> {
        let (mut low, mut high) = (0, self.frames);
        while high - low > SEEK_FRAMES {
            let middle = low + (high - low) / 2;
            match self.first_start(middle..high).await? {
                Some(start) if start.ts <= ts => low = start.frame,
                _ => high = middle,
            }
        }
        Ok(low..high)
    }

    /// How many frames were written, of which a crash may have left the last ones in part.
    pub(super) async fn written_frames(&self) -> io::Result<u32> {
        // Most are full: then one look is enough.
        let (mut low, mut high, mut look) = (0, self.frames, self.frames.saturating_sub(1));
        while low < high {
            let offset = u64::from(look) * FRAME_BYTES as u64;
            let chunk = self.file.read_at(offset, FRAME_BYTES).await?;
            match block(&chunk, 0).map(|block| self.state(block, look)) {
                None | Some(FrameState::Blank) => high = look,
                Some(_) => low = look + 1,
            }
            look = low + (high - low) / 2;
        }
        Ok(low)
    }

    /// The first entry of the segment.
    pub(super) async fn first(&self) -> io::Result<Option<Start>> {
        self.first_start(0..self.frames).await
    }

    /// The documents of the entries that begin in these frames, as far as `cuts` leave them:
    /// counted where they are few, or else estimated by this many samples, spread evenly.
    pub(super) async fn documents(
        &self,
        frames: Range<u32>,
        samples: u32,
        cuts: &Cuts,
    ) -> io::Result<Documents> {
        let there = frames.end.saturating_sub(frames.start).max(1);
        let looked = samples * SAMPLE_FRAMES;
        if there <= looked {
            let all = frames.start..frames.start + there;
            return self.documents_in(all, cuts).await;
        }
        let stride = there / samples;
        let mut documents = Documents::default();
        for nth in 0..samples {
            let begin = frames.start + nth * stride + (stride - SAMPLE_FRAMES) / 2;
            let sample = self.documents_in(begin..begin + SAMPLE_FRAMES, cuts);
            documents += sample.await?;
        }
        Ok(documents.scaled(u64::from(there), u64::from(looked)))
    }

    async fn documents_in(&self, frames: Range<u32>, cuts: &Cuts) -> io::Result<Documents> {
        let offset = u64::from(frames.start) * FRAME_BYTES as u64;
        let len = frames.len() * FRAME_BYTES;
        let chunk = self.file.read_at(offset, len).await?;
        let mut walk = HeaderWalk::default();
        for (nth, position) in frames.clone().enumerate() {
            let Some(block) = block(&chunk, nth) else {
                break;
            };
            match self.state(block, position) {
                FrameState::Valid(header) | FrameState::Mended(header) => {
                    walk.take(block, &header, cuts.limit(header.epoch));
                }
                FrameState::Blank | FrameState::Torn | FrameState::Damaged(_) => walk.at = None,
            }
        }
        if walk.ends_in_header() && frames.end == self.frames {
            self.append_next_segment(&mut walk.stream).await?;
            walk.count_next();
        }
        Ok(walk.documents)
    }

    /// The first entry that begins in one of these frames, before any that is blank.
    async fn first_start(&self, frames: Range<u32>) -> io::Result<Option<Start>> {
        let (mut at, mut probe) = (frames.start, PROBE_FRAMES);
        while at < frames.end {
            // One more, since a header may lie across two frames.
            let here = probe.min(frames.end - at);
            let read = (here + 1).min(self.frames - at);
            let offset = u64::from(at) * FRAME_BYTES as u64;
            let len = read as usize * FRAME_BYTES;
            let chunk = self.file.read_at(offset, len).await?;
            for (nth, position) in (0..here as usize).zip(at..) {
                let Some(block) = block(&chunk, nth) else {
                    return Ok(None);
                };
                let header = match self.state(block, position) {
                    FrameState::Valid(header) | FrameState::Mended(header) => header,
                    FrameState::Blank => return Ok(None),
                    FrameState::Torn | FrameState::Damaged(_) => continue,
                };
                let Some(first) = header.first_entry else {
                    continue;
                };
                let mut bytes = Vec::with_capacity(2 * FRAME_BYTES);
                payload(block, &header, usize::from(first), &mut bytes);
                if bytes.len() < ENTRY_HEADER_BYTES {
                    match position + 1 < self.frames {
                        true => {
                            append_payload(self.context, position + 1, &chunk, nth + 1, &mut bytes)
                        }
                        false => self.append_next_segment(&mut bytes).await?,
                    }
                }
                let entry = bytes.first_chunk().map(EntryHeader::decode);
                if let Some(Ok(entry)) = entry {
                    return Ok(Some(Start {
                        frame: position,
                        epoch: header.epoch,
                        ts: entry.ts,
                    }));
                }
            }
            at += here;
            probe = (probe * 4).min((SCAN_CHUNK_BYTES / FRAME_BYTES) as u32);
        }
        Ok(None)
    }

    /// Appends what the first frame of the next segment holds: a header that begins in the last
    /// frame of this one may end there. Without that segment the entry was not written to its end.
    async fn append_next_segment(&self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let generation = self.context.generation + 1;
        let path = self.dir.segment_path(generation);
        let file = match File::open(path, OpenOptions::read()).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let chunk = file.read_at(0, FRAME_BYTES).await?;
        file.close().await?;
        let context = FrameContext {
            generation,
            ..self.context
        };
        append_payload(context, 0, &chunk, 0, bytes);
        Ok(())
    }

    fn state(&self, block: &[u8], position: u32) -> FrameState {
        classify(block, &at_position(self.context, position), true)
    }
}

/// Counts entries by their headers, in a part of the stream.
#[derive(Default)]
struct HeaderWalk {
    stream: Vec<u8>,
    /// Where in the stream the next entry begins, as far as that is known.
    at: Option<usize>,
    /// Entries above it do not exist.
    limit: Timestamp,
    documents: Documents,
}

impl HeaderWalk {
    fn take(&mut self, block: &[u8], header: &FrameHeader, limit: Timestamp) {
        let before = self.stream.len();
        payload(block, header, 0, &mut self.stream);
        let first = header.first_entry.map(|first| before + usize::from(first));
        self.at = self.at.or(first);
        self.limit = limit;
        while self.count_next() {}
    }

    /// Counts the next entry, if its header is there.
    fn count_next(&mut self) -> bool {
        let next = self.at.and_then(|at| self.stream.get(at..));
        let Some(header) = next.and_then(|rest| rest.first_chunk()) else {
            return false;
        };
        let Ok(header) = EntryHeader::decode(header) else {
            self.at = None;
            return false;
        };
        let len = header.len as usize;
        if header.ts <= self.limit {
            self.documents.add(len);
        }
        self.at = self.at.map(|at| at + ENTRY_HEADER_BYTES + len);
        true
    }

    /// Whether an entry begins of whose header a part is there.
    fn ends_in_header(&self) -> bool {
        self.at.is_some_and(|at| at < self.stream.len())
    }
}

fn at_position(context: FrameContext, position: u32) -> FrameContext {
    FrameContext {
        position,
        ..context
    }
}

/// The `nth` frame of a chunk, which may be shorter than the file said.
fn block(chunk: &DmaBuf, nth: usize) -> Option<&[u8]> {
    chunk.get(nth * FRAME_BYTES..(nth + 1) * FRAME_BYTES)
}

/// Appends the payload of the `nth` frame of a chunk, if that is what was written at this position.
fn append_payload(
    context: FrameContext,
    position: u32,
    chunk: &DmaBuf,
    nth: usize,
    bytes: &mut Vec<u8>,
) {
    let Some(block) = block(chunk, nth) else {
        return;
    };
    let state = classify(block, &at_position(context, position), true);
    if let FrameState::Valid(header) | FrameState::Mended(header) = state {
        payload(block, &header, 0, bytes);
    }
}
