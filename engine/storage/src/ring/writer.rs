//! The writing side of a ring: reserve, append, flush in groups, recycle segments.
//!
//! Appending is a copy into memory and cannot fail: the caller has reserved frames before, and
//! waited for them then. A flush takes everything that is pending, lays it out in whole frames, and
//! writes it with one write a segment (some, if it is large) and one flush; meanwhile the next
//! group gathers. Each flush begins at a new frame with the beginning of an entry, so a frame is
//! written once.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::sync::{Notify, Semaphore};
use pinion_runtime::{DmaBuf, Duration, fs, now, sim};

use super::documents::Documents;
use super::entries::Entries;
use super::entry::{ENTRY_HEADER_BYTES, EntryHeader, EntryKind};
use super::frame::{FRAME_BYTES, FRAME_PAYLOAD_BYTES, FrameContext, FrameHeader, Stamps, encode};
use super::live::{Fetch, RingFiles, RingPart, SegmentSpan};
use super::segment::{RingDir, SegmentFile};
use super::tail::Tail;
use crate::limits::{
    FLUSH_STEP_FRAMES, MAX_ENTRY_BYTES, MAX_IDLE_SEGMENTS, MAX_PENDING_BYTES, SPARE_SEGMENTS,
};
use crate::manifest::Cuts;
use crate::opening::sync_dir;
use crate::room::DiskRoom;

/// What a ring needs to know when it starts.
pub(crate) struct RingStart {
    pub(crate) dir: RingDir,
    /// The random identity of the data directory.
    pub(crate) directory: u64,
    pub(crate) stamps: Stamps,
    pub(crate) epoch: u64,
    pub(crate) segment_bytes: u64,
    /// Above every generation this ring ever had.
    pub(crate) next_generation: u64,
    /// Files whose content is not needed.
    pub(crate) idle: Vec<PathBuf>,
    /// Segments whose content is needed until the log's first timestamp has passed them.
    pub(crate) sealed: Vec<SegmentSpan>,
    /// What earlier epochs lost.
    pub(crate) cuts: Cuts,
    /// Memory for the latest entries that are on the device already.
    pub(crate) tail_bytes: usize,
}

struct Current {
    segment: SegmentFile,
    /// The next frame to write.
    next: u32,
    /// The first entry that begins in this segment.
    first: Option<Timestamp>,
    /// The last timestamp of any entry that touches this segment.
    last: Timestamp,
    /// Of the entries that begin in it.
    documents: Documents,
}

struct State {
    current: Option<Current>,
    /// Segments ready to be written.
    ready: VecDeque<SegmentFile>,
    idle: VecDeque<PathBuf>,
    sealed: VecDeque<SegmentSpan>,
    next_generation: u64,
    pending: Entries,
    /// What is on its way to the device, while it is.
    writing: Option<Rc<Entries>>,
    /// The memory of the flush before.
    spare: Entries,
    /// The most frames that pending entries can take, whatever flushes they are divided into.
    pending_frames: u64,
    reserved_frames: u64,
    reserved_bytes: usize,
    /// Frames that the writer at the head of the queue waits for.
    wanted_frames: u64,
    tail: Tail,
    stats: RingStats,
}

/// Counters of one ring since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RingStats {
    pub(crate) entries: u64,
    pub(crate) entry_bytes: u64,
    pub(crate) flushes: u64,
    pub(crate) frames: u64,
    pub(crate) segments_created: u64,
    pub(crate) segments_reused: u64,
    pub(crate) segments_removed: u64,
    /// Segments that were given up at the beginning, and how long that took.
    pub(crate) truncations: u64,
    pub(crate) truncating: Duration,
}

/// One core's ring.
pub(crate) struct Ring {
    dir: RingDir,
    directory: u64,
    stamps: Stamps,
    epoch: u64,
    segment_bytes: u64,
    frames_per_segment: u64,
    cuts: Cuts,
    state: RefCell<State>,
    /// Held by the one writer that waits for space, so that waiting is first come, first served.
    turnstile: Semaphore,
    space: Notify,
    preparation: Notify,
    /// Storage has failed: nothing makes room any more.
    stopped: Cell<bool>,
}

/// Storage has failed, and there is no room.
#[derive(Debug)]
pub(crate) struct RingStopped;

/// Frames and bytes set aside for entries still to be appended.
pub(crate) struct Reservation {
    ring: Rc<Ring>,
    frames: u64,
    bytes: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.frames == 0 && self.bytes == 0 {
            return;
        }
        {
            let mut state = self.ring.state.borrow_mut();
            state.reserved_frames -= self.frames;
            state.reserved_bytes -= self.bytes;
        }
        self.ring.space.notify_all();
    }
}

/// What the writer at the head of the queue waits for, until it has it or goes away.
struct Wish<'a>(&'a Ring);

impl Wish<'_> {
    fn set(&self, frames: u64) {
        self.0.state.borrow_mut().wanted_frames = frames;
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Everything that was pending, with its places on disk.
pub(crate) struct FlushBatch {
    entries: Rc<Entries>,
    runs: Vec<FrameRun>,
    /// What the headers of all frames say.
    directory: u64,
    ring: u16,
    stamps: Stamps,
    epoch: u64,
    all_durable: Timestamp,
    written_at_secs: u32,
    pub(crate) changed_segment: bool,
}

/// Frames of a batch that follow each other in one segment.
struct FrameRun {
    segment: SegmentFile,
    /// The place of the first in its segment.
    position: u32,
    /// Which of the batch's frames these are.
    frames: Range<u64>,
}

/// The most frames an entry can take.
fn frames_for(entry_len: usize) -> u64 {
    (ENTRY_HEADER_BYTES + entry_len).div_ceil(FRAME_PAYLOAD_BYTES) as u64
}

impl Current {
    fn span(&self) -> SegmentSpan {
        SegmentSpan {
            generation: self.segment.generation,
            first: self.first,
            last: self.last,
            bytes: u64::from(self.next) * FRAME_BYTES as u64,
            documents: self.documents,
        }
    }
}

impl State {
    /// What the segments hold, oldest first.
    fn spans(&self) -> impl Iterator<Item = SegmentSpan> {
        let current = self.current.as_ref().map(Current::span);
        self.sealed.iter().copied().chain(current)
    }

    /// Entries that are not on the device yet, oldest first.
    fn undurable(&self) -> impl DoubleEndedIterator<Item = &Entries> {
        let writing = self.writing.iter().map(Rc::as_ref);
        writing.chain([&self.pending])
    }

    fn available_frames(&self, per_segment: u64) -> u64 {
        let current = self.current.as_ref().map_or(0, |current| {
            u64::from(current.segment.frames - current.next)
        });
        current + self.ready.len() as u64 * per_segment
    }

    fn spoken_for(&self) -> u64 {
        self.pending_frames + self.reserved_frames
    }
}

impl Ring {
    /// Makes the ring writable: its directory and one segment exist afterwards.
    pub(crate) async fn start(start: RingStart) -> io::Result<Rc<Ring>> {
        let written = start.sealed.iter().map(|span| span.last).max();
        let ring = Rc::new(Ring {
            dir: start.dir,
            directory: start.directory,
            stamps: start.stamps,
            epoch: start.epoch,
            segment_bytes: start.segment_bytes,
            frames_per_segment: start.segment_bytes / FRAME_BYTES as u64,
            cuts: start.cuts,
            state: RefCell::new(State {
                current: None,
                ready: VecDeque::new(),
                idle: VecDeque::new(),
                sealed: start.sealed.into(),
                next_generation: start.next_generation,
                pending: Entries::default(),
                writing: None,
                spare: Entries::default(),
                pending_frames: 0,
                reserved_frames: 0,
                reserved_bytes: 0,
                wanted_frames: 0,
                tail: Tail::new(start.tail_bytes, written.unwrap_or_default()),
                stats: RingStats::default(),
            }),
            turnstile: Semaphore::new(1),
            space: Notify::new(),
            preparation: Notify::new(),
            stopped: Cell::new(false),
        });
        ring.retire(start.idle).await?;
        // The first segment of a new ring is only reserved: zeroing it would hold up the start.
        ring.prepare_segment(false).await?;
        Ok(ring)
    }

    pub(crate) fn stats(&self) -> RingStats {
        self.state.borrow().stats
    }

    /// Sets space aside for entries of these lengths; waits until there is some, or the ring is
    /// stopped. Entries longer than `MAX_ENTRY_BYTES` are the caller's to refuse, and more of them
    /// than a unit may have.
    pub(crate) async fn reserve(
        self: &Rc<Ring>,
        lens: impl Iterator<Item = usize>,
    ) -> Result<Reservation, RingStopped> {
        let (mut frames, mut bytes) = (0, 0);
        for len in lens {
            assert!(len <= MAX_ENTRY_BYTES, "an entry of {len} bytes");
            frames += frames_for(len);
            bytes += ENTRY_HEADER_BYTES + len;
        }
        if self.turnstile.available() == 0 || !self.try_reserve(frames, bytes) {
            // In a box, as few reservations ever need its room.
            Box::pin(self.wait_for_room(frames, bytes)).await?;
        }
        Ok(Reservation {
            ring: self.clone(),
            frames,
            bytes,
        })
    }

    /// Reserves behind those that wait already.
    async fn wait_for_room(&self, frames: u64, bytes: usize) -> Result<(), RingStopped> {
        let _turn = self.turnstile.acquire().await;
        let wish = Wish(self);
        while !self.try_reserve(frames, bytes) {
            if self.stopped.get() {
                return Err(RingStopped);
            }
            wish.set(frames);
            self.preparation.notify_one();
            self.space.notified().await;
        }
        Ok(())
    }

    /// Ends the waits for space, and prepares no more of it: storage has failed, or is closed.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        self.space.notify_all();
        self.preparation.notify_all();
    }

    fn try_reserve(&self, frames: u64, bytes: usize) -> bool {
        let mut state = self.state.borrow_mut();
        let before = state.pending.len() + state.reserved_bytes;
        // What no ring could hold beside other things comes alone.
        let fits = before == 0 || before + bytes <= MAX_PENDING_BYTES;
        let available = state.available_frames(self.frames_per_segment);
        if !fits || state.spoken_for() + frames > available {
            return false;
        }
        state.reserved_frames += frames;
        state.reserved_bytes += bytes;
        true
    }

    /// Whether a writer waits for space, or enough is pending that a flush should not wait for its
    /// interval.
    pub(crate) fn is_pressed(&self) -> bool {
        let state = self.state.borrow();
        !state.pending.is_empty()
            && (state.wanted_frames > 0 || state.pending.len() >= MAX_PENDING_BYTES / 16)
    }

    /// Appends one entry. Entries come in the order of their timestamps. The memory of a large one
    /// is taken over: nothing awaits around here, so nothing large is copied.
    pub(crate) fn append(
        &self,
        reservation: &mut Reservation,
        kind: EntryKind,
        ts: Timestamp,
        predecessor: Timestamp,
        entry: &mut Vec<u8>,
    ) {
        let header = EntryHeader {
            len: entry.len() as u32,
            kind,
            ts,
            predecessor,
        };
        let (frames, bytes) = (frames_for(entry.len()), ENTRY_HEADER_BYTES + entry.len());
        assert!(
            frames <= reservation.frames && bytes <= reservation.bytes,
            "appended more than was reserved"
        );
        reservation.frames -= frames;
        reservation.bytes -= bytes;
        let mut state = self.state.borrow_mut();
        let last = state.pending.last();
        assert!(
            last.is_none_or(|last| last < ts),
            "ring entries out of order"
        );
        state.reserved_frames -= frames;
        state.reserved_bytes -= bytes;
        state.pending_frames += frames;
        state.stats.entries += 1;
        state.stats.entry_bytes += entry.len() as u64;
        state.pending.push(&header, entry);
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.state.borrow().pending.is_empty()
    }

    /// Lays out everything pending. Without anything pending the batch is one empty frame, which
    /// only records `all_durable`; `None` if there is no room for that now.
    pub(crate) fn take_batch(&self, all_durable: Timestamp, wall_secs: u32) -> Option<FlushBatch> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let mut frames = state.pending.len().div_ceil(FRAME_PAYLOAD_BYTES) as u64;
        let available = state.available_frames(self.frames_per_segment);
        if frames == 0 {
            if state.spoken_for() + 1 > available {
                self.preparation.notify_one();
                return None;
            }
            frames = 1;
        }
        assert!(
            frames <= available,
            "a flush of {frames} frames, and {available} are available"
        );
        let spare = std::mem::take(&mut state.spare);
        let entries = Rc::new(std::mem::replace(&mut state.pending, spare));
        let before = state.writing.replace(entries.clone());
        assert!(before.is_none(), "one flush at a time");
        state.pending_frames = 0;
        let mut runs = Vec::new();
        let mut changed_segment = false;
        let mut frame = 0u64;
        while frame < frames {
            if state
                .current
                .as_ref()
                .is_none_or(|current| current.next == current.segment.frames)
            {
                changed_segment = true;
                if let Some(full) = state.current.take() {
                    state.sealed.push_back(full.span());
                }
                let segment = state.ready.pop_front().expect("frames were available");
                state.current = Some(Current {
                    segment,
                    next: 0,
                    first: None,
                    last: Timestamp::MIN,
                    documents: Documents::default(),
                });
            }
            let current = state.current.as_mut().expect("just made sure");
            let here = (frames - frame).min(u64::from(current.segment.frames - current.next));
            runs.push(FrameRun {
                segment: current.segment.clone(),
                position: current.next,
                frames: frame..frame + here,
            });
            current.next += here as u32;
            let begin = frame as usize * FRAME_PAYLOAD_BYTES;
            frame += here;
            // The last entry that begins before the end of what this segment holds touches it.
            let end = (frame as usize * FRAME_PAYLOAD_BYTES).min(entries.len());
            if let Some(last) = entries.last_before(end) {
                current.last = current.last.max(last);
            }
            let (first, beginning) = entries.beginning_in(begin..end);
            current.first = current.first.or(first);
            current.documents += beginning;
        }
        state.stats.flushes += 1;
        state.stats.frames += frames;
        if state.available_frames(self.frames_per_segment) < self.low_water(state) {
            self.preparation.notify_one();
        }
        self.space.notify_all();
        Some(FlushBatch {
            entries,
            runs,
            directory: self.directory,
            ring: self.dir.ring,
            stamps: self.stamps,
            epoch: self.epoch,
            all_durable,
            written_at_secs: wall_secs,
            changed_segment,
        })
    }

    /// Frees what is kept for the next batch: nothing has been appended for an interval.
    pub(crate) fn drop_spare(&self) {
        self.state.borrow_mut().spare = Entries::default();
    }

    fn low_water(&self, state: &State) -> u64 {
        state.spoken_for() + state.wanted_frames + self.frames_per_segment * SPARE_SEGMENTS as u64
    }

    /// Keeps enough segments ready; runs as a background task until an error ends it, or the ring
    /// is stopped. While the disk is full it waits for room.
    pub(crate) async fn keep_prepared(&self, room: &DiskRoom) -> io::Result<()> {
        while !self.stopped.get() {
            let lacking = {
                let state = self.state.borrow();
                state.available_frames(self.frames_per_segment) < self.low_water(&state)
            };
            if lacking {
                let prepared = room.repeat("the log", async || match self.stopped.get() {
                    true => Ok(()),
                    false => self.prepare_segment(true).await,
                });
                prepared.await?;
            } else {
                self.preparation.notified().await;
            }
        }
        Ok(())
    }

    async fn prepare_segment(&self, zeroed: bool) -> io::Result<()> {
        let (generation, reusable) = {
            let mut state = self.state.borrow_mut();
            (state.next_generation, state.idle.pop_front())
        };
        let reused = reusable.is_some();
        let segment = match reusable {
            Some(old) => {
                SegmentFile::reuse(&self.dir, &old, generation, self.segment_bytes).await?
            }
            None => SegmentFile::create(&self.dir, generation, self.segment_bytes, zeroed).await?,
        };
        {
            let mut state = self.state.borrow_mut();
            assert!(
                state.next_generation == generation,
                "one is prepared at a time"
            );
            state.next_generation += 1;
            state.ready.push_back(segment);
            if reused {
                state.stats.segments_reused += 1;
                sim::count("segments reused", 1);
            } else {
                state.stats.segments_created += 1;
            }
        }
        self.space.notify_all();
        Ok(())
    }

    /// The entries above `after` and at or below `through`, oldest first.
    pub(crate) fn read_after(
        &self,
        after: Timestamp,
        through: Timestamp,
        max_bytes: usize,
    ) -> RingPart {
        let state = self.state.borrow();
        let mut fetch = Fetch::new(max_bytes);
        let in_memory = after >= state.tail.floor();
        let complete = in_memory
            && state.tail.read_after(after, through, &mut fetch)
            && state
                .undurable()
                .all(|entries| entries.read_after(after, through, &mut fetch));
        RingPart {
            entries: fetch.entries,
            complete,
            files: (!in_memory).then(|| self.files_after(&state, after)),
        }
    }

    /// The entries below `before` and above `after`, newest first.
    pub(crate) fn read_before(
        &self,
        before: Timestamp,
        after: Timestamp,
        max_bytes: usize,
    ) -> RingPart {
        let state = self.state.borrow();
        let mut fetch = Fetch::new(max_bytes);
        let complete = state
            .undurable()
            .rev()
            .all(|entries| entries.read_before(before, &mut fetch))
            && state.tail.read_before(before, &mut fetch);
        let files = complete && after < state.tail.floor();
        RingPart {
            entries: fetch.entries,
            complete,
            files: files.then(|| self.files_after(&state, after)),
        }
    }

    /// What the segments hold that have entries.
    pub(crate) fn spans(&self) -> Vec<SegmentSpan> {
        self.state.borrow().spans().collect()
    }

    /// The segments that hold entries above `after` which are not in memory any more.
    fn files_after(&self, state: &State, after: Timestamp) -> RingFiles {
        let through = state.tail.floor();
        let mut segments: Vec<SegmentSpan> =
            state.spans().filter(|span| span.last > after).collect();
        // The last entry may end in a segment whose own first entry lies behind it.
        let begins_later = |span: &SegmentSpan| span.first.is_some_and(|first| first > through);
        if let Some(beyond) = segments.iter().position(begins_later) {
            segments.truncate(beyond + 1);
        }
        RingFiles {
            dir: self.dir.clone(),
            directory: self.directory,
            stamps: self.stamps,
            cuts: self.cuts.clone(),
            segments,
            through,
        }
    }

    /// Gives up the segments all of whose entries lie at or below `below`, which a durable manifest
    /// records as the first retained timestamp.
    pub(crate) async fn recycle(&self, below: Timestamp) -> io::Result<()> {
        let mut done = Vec::new();
        {
            let mut state = self.state.borrow_mut();
            while let Some(oldest) = state.sealed.pop_front_if(|span| span.last <= below) {
                done.push(self.dir.segment_path(oldest.generation));
            }
        }
        let (count, began) = (done.len() as u64, now());
        self.retire(done).await?;
        if count > 0 {
            let stats = &mut self.state.borrow_mut().stats;
            stats.truncations += count;
            stats.truncating += began.elapsed();
        }
        Ok(())
    }

    /// Keeps some of the files for reuse and removes the rest.
    async fn retire(&self, files: Vec<PathBuf>) -> io::Result<()> {
        let mut removed = 0;
        for path in files {
            let room = self.state.borrow().idle.len() < MAX_IDLE_SEGMENTS;
            if room && fs::file_len(&path).await? == self.segment_bytes {
                self.state.borrow_mut().idle.push_back(path);
            } else {
                fs::remove_file(&path).await?;
                removed += 1;
            }
        }
        if removed > 0 {
            sync_dir(&self.dir.path).await?;
            self.state.borrow_mut().stats.segments_removed += removed;
        }
        Ok(())
    }
}

impl FlushBatch {
    /// Writes the frames and, with `sync`, flushes them to the device. `sync` is false only under a
    /// planted fault. Of a large batch a part is laid out at a time: filling the memory takes
    /// longer than writing what it holds. `ring` gets the memory back for a later batch.
    pub(crate) async fn write(self, ring: &Ring, sync: bool) -> io::Result<()> {
        // What one write holds, one request can make durable.
        let at_once = matches!(&self.runs[..], [run] if run.frames.end - run.frames.start <= FLUSH_STEP_FRAMES);
        for run in &self.runs {
            let file = &run.segment.file;
            let mut from = run.frames.start;
            while from < run.frames.end {
                let to = run.frames.end.min(from + FLUSH_STEP_FRAMES);
                let position = run.position + (from - run.frames.start) as u32;
                let buffer = self.lay_out(from..to, &run.segment, position);
                let offset = u64::from(position) * FRAME_BYTES as u64;
                if at_once && sync {
                    file.write_durable_at(offset, buffer).await?;
                } else {
                    file.write_at(offset, buffer).await?;
                }
                from = to;
            }
        }
        if sync && !at_once {
            for run in &self.runs {
                run.segment.file.datasync().await?;
            }
        }
        let mut state = ring.state.borrow_mut();
        state.tail.flushed(&self.entries);
        state.writing = None;
        let entries = Rc::into_inner(self.entries).expect("readers copy what they want");
        state.spare = entries.emptied();
        Ok(())
    }

    /// Some of the batch's frames, the first of which goes to this place of its segment.
    fn lay_out(&self, frames: Range<u64>, segment: &SegmentFile, position: u32) -> DmaBuf {
        let mut buffer = DmaBuf::with_capacity((frames.end - frames.start) as usize * FRAME_BYTES);
        let begins = frames.start as usize * FRAME_PAYLOAD_BYTES;
        let mut reader = self.entries.read_from(begins);
        let mut payload = [0; FRAME_PAYLOAD_BYTES];
        for position in (position..).take((frames.end - frames.start) as usize) {
            // Cleared a frame at a time, so that it is in the processor's cache when it is filled.
            let at = buffer.len();
            buffer.pad_to(at + FRAME_BYTES);
            let block = &mut buffer[at..];
            let (payload, first_entry) = reader.next(&mut payload);
            let context = FrameContext {
                directory: self.directory,
                ring: self.ring,
                generation: segment.generation,
                position,
                stamps: self.stamps,
            };
            let header = FrameHeader {
                epoch: self.epoch,
                all_durable: self.all_durable,
                payload_len: payload.len() as u16,
                first_entry: first_entry.map(|at| at as u16),
                written_at_secs: self.written_at_secs,
            };
            encode(block, &context, &header, payload);
        }
        buffer
    }
}
