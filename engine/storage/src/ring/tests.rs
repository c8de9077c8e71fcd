//! What readers make of the files of one ring: several epochs, and entries that lie across frames
//! and segments.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::{Queue, Rng, fs, sim, spawn};

use super::entry::{ENTRY_HEADER_BYTES, EntryKind};
use super::frame::{FRAME_BYTES, FRAME_PAYLOAD_BYTES, Stamps};
use super::live::{FilesAfter, FilesBefore, LogEntry, SegmentLook};
use super::reader::RingReader;
use super::segment::RingDir;
use super::writer::{Ring, RingStart};
use crate::limits::SAMPLE_FRAMES;
use crate::manifest::Cuts;
use crate::room::DiskRoom;

const DIRECTORY: u64 = 7;

fn dir() -> RingDir {
    RingDir {
        ring: 0,
        path: PathBuf::from("/data/ring-00"),
    }
}

fn stamps() -> Stamps {
    Stamps::new(u32::BITS)
}

async fn start(epoch: u64, generation: u64, segment_bytes: u64, tail_bytes: usize) -> Rc<Ring> {
    let start = RingStart {
        dir: dir(),
        directory: DIRECTORY,
        stamps: stamps(),
        epoch,
        segment_bytes,
        next_generation: generation,
        idle: Vec::new(),
        sealed: Vec::new(),
        cuts: Cuts::default(),
        tail_bytes,
    };
    Ring::start(start).await.unwrap()
}

async fn append(ring: &Rc<Ring>, ts: u64, mut bytes: Vec<u8>) {
    let mut space = ring
        .reserve([bytes.len()].into_iter())
        .await
        .expect("it runs");
    let (ts, before) = (Timestamp::from_u64(ts), Timestamp::from_u64(ts - 1));
    ring.append(&mut space, EntryKind::Logged, ts, before, &mut bytes);
}

async fn flush(ring: &Rc<Ring>) {
    let batch = ring.take_batch(Timestamp::MIN, 0).expect("there is room");
    batch.write(ring, true).await.unwrap();
}

/// Writes these entries in this epoch, into a segment of their own.
async fn write(epoch: u64, generation: u64, entries: &[u64]) {
    let ring = start(epoch, generation, 64 * 1024, 0).await;
    for &entry in entries {
        append(&ring, entry, b"abc".to_vec()).await;
    }
    flush(&ring).await;
}

/// The timestamps that a reader finds, and what it says of damage.
fn read(epochs: &'static [(u64, u64, &'static [u64])]) -> (Vec<u64>, Vec<&'static str>) {
    sim::block_on(1, async move {
        fs::create_dir_all(&dir().path).await.unwrap();
        for &(epoch, generation, entries) in epochs {
            write(epoch, generation, entries).await;
        }
        let generations = epochs.iter().map(|&(_, generation, _)| generation);
        let mut reader = RingReader::new(
            dir(),
            DIRECTORY,
            stamps(),
            Cuts::default(),
            generations,
            true,
        );
        let mut found = Vec::new();
        while let Some(entry) = reader.next().await.unwrap() {
            found.push(entry.ts.as_u64());
        }
        let damage = reader.scan.bad.iter().filter_map(|bad| bad.damage);
        (found, damage.collect())
    })
}

/// The cut that discarded 4 and 5 is forgotten once the base has passed them.
#[test]
fn a_later_epoch_may_begin_below_what_was_discarded() {
    let (found, damage) = read(&[(1, 1, &[1, 2, 4, 5]), (2, 2, &[3, 4, 6])]);
    assert_eq!(found, [1, 2, 4, 5, 3, 4, 6]);
    assert!(damage.is_empty(), "{damage:?}");
}

#[test]
fn within_an_epoch_what_does_not_ascend_is_damage() {
    let (found, damage) = read(&[(1, 1, &[1, 2, 4, 5]), (1, 2, &[3, 6])]);
    assert_eq!(found, [1, 2, 4, 5, 6]);
    assert_eq!(damage, ["an entry is out of order"]);
}

const SEGMENT_FRAMES: usize = 4;
/// What a segment holds of the stream.
const SEGMENT: usize = SEGMENT_FRAMES * FRAME_PAYLOAD_BYTES;

fn body(ts: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u64 * 7 + ts) as u8).collect()
}

/// All entries above `after`, from files and then from memory.
async fn read_forward(ring: &Ring, after: u64) -> Vec<LogEntry> {
    let mut after = Timestamp::from_u64(after);
    let mut read = VecDeque::new();
    loop {
        let part = ring.read_after(after, Timestamp::MAX, usize::MAX);
        let Some(files) = part.files else {
            assert!(part.complete);
            read.extend(part.entries);
            return read.into();
        };
        let mut forward = FilesAfter::open(&files, after).await.unwrap();
        while forward.read(1, &mut read).await.unwrap() {}
        after = files.through;
    }
}

/// All entries below `before`, from memory and then from files.
async fn read_backward(ring: &Ring, before: u64) -> Vec<LogEntry> {
    let before = Timestamp::from_u64(before);
    let part = ring.read_before(before, Timestamp::MIN, usize::MAX);
    let mut read = VecDeque::from(part.entries);
    if let Some(files) = part.files {
        let reached = read.back().map_or(before, |entry| entry.ts);
        let mut backward = FilesBefore::new(files, reached);
        while backward.read(&mut read).await.unwrap() {}
    }
    read.into()
}

/// Writes entries of these lengths, each group with one flush, and reads them from every place in
/// both directions.
fn check_reading(tail_bytes: usize, flushes: Vec<Vec<usize>>) {
    sim::block_on(1, async move {
        fs::create_dir_all(&dir().path).await.unwrap();
        let ring = start(1, 1, (SEGMENT_FRAMES * FRAME_BYTES) as u64, tail_bytes).await;
        let preparing = ring.clone();
        spawn(Queue::Background, async move {
            preparing.keep_prepared(&DiskRoom::default()).await
        });
        let lens: Vec<usize> = flushes.concat();
        let mut end = 0;
        for group in &flushes {
            for &len in group {
                end += 1;
                append(&ring, end, body(end, len)).await;
            }
            flush(&ring).await;
        }
        for span in ring.spans() {
            let part = ring.read_after(Timestamp::MIN, Timestamp::MAX, usize::MAX);
            let found = match part.files {
                Some(files) => files.look_into(span.generation, 1).await.unwrap(),
                None => continue,
            };
            let expected = SegmentLook {
                first: span.first,
                bytes: span.bytes,
                documents: span.documents,
            };
            assert_eq!(found, expected, "{flushes:?}");
        }
        let check = |read: Vec<LogEntry>, expected: Vec<u64>| {
            let found: Vec<u64> = read.iter().map(|entry| entry.ts.as_u64()).collect();
            assert_eq!(found, expected, "{flushes:?}");
            for (ts, entry) in found.into_iter().zip(read) {
                assert!(
                    entry.bytes == body(ts, lens[ts as usize - 1]),
                    "{flushes:?}"
                );
            }
        };
        for from in 0..=end {
            check(read_forward(&ring, from).await, (from + 1..=end).collect());
            check(
                read_backward(&ring, from + 1).await,
                (1..=from).rev().collect(),
            );
        }
    })
}

#[test]
fn an_entry_is_read_whole_wherever_its_header_lies() {
    for cut in 0..=ENTRY_HEADER_BYTES {
        // The second entry begins `cut` bytes before the end of a frame, or of a segment.
        for end in [FRAME_PAYLOAD_BYTES, SEGMENT, 2 * SEGMENT] {
            let first = end - cut - ENTRY_HEADER_BYTES;
            check_reading(0, vec![vec![first, 100, 10]]);
            check_reading(0, vec![vec![first, 3 * SEGMENT], vec![5, 5]]);
        }
    }
}

/// The segment in which the last entry that is only in files ends has a first entry of its own,
/// which is in memory.
#[test]
fn what_is_in_memory_follows_what_is_in_files() {
    check_reading(1000, vec![vec![100, SEGMENT], vec![5, 5]]);
    check_reading(1000, vec![vec![100, 3 * SEGMENT], vec![5], vec![5]]);
    check_reading(1000, vec![vec![100, 3 * SEGMENT, 500, 400]]);
}

#[test]
fn entries_of_all_lengths_are_found_from_everywhere() {
    let mut rng = Rng::from_seed(5);
    for _ in 0..40 {
        let largest = [20, 2_000, 2 * SEGMENT as u64][rng.below(3) as usize];
        let mut flushes = Vec::new();
        for _ in 0..1 + rng.below(5) {
            let group = 0..1 + rng.below(12);
            flushes.push(group.map(|_| rng.below(largest) as usize).collect());
        }
        let tail_bytes = [0, 1000, 10_000][rng.below(3) as usize];
        check_reading(tail_bytes, flushes);
    }
}

#[test]
fn documents_of_a_segment_of_many_frames_are_estimated() {
    const FRAMES: usize = 2048;
    sim::block_on(1, async {
        fs::create_dir_all(&dir().path).await.unwrap();
        let ring = start(1, 1, (FRAMES * FRAME_BYTES) as u64, 0).await;
        let mut ts = 0;
        // At first each entry is alone in its frame, later many share one.
        for (flushes, entries, len) in [(600, 1, 300), (200, 100, 90)] {
            for _ in 0..flushes {
                for _ in 0..entries {
                    ts += 1;
                    append(&ring, ts, body(ts, len)).await;
                }
                flush(&ring).await;
            }
        }
        let [span] = ring.spans()[..] else {
            panic!("all is in one segment");
        };
        assert_eq!(span.documents.count, ts);
        let part = ring.read_after(Timestamp::MIN, Timestamp::MAX, usize::MAX);
        let files = part.files.expect("nothing is in memory");
        for samples in [8, 16] {
            let look = files.look_into(span.generation, samples).await.unwrap();
            let about = |exact: u64| exact * 8 / 10..=exact * 12 / 10;
            let (judged, exact) = (look.documents, span.documents);
            assert!(
                about(exact.count).contains(&judged.count),
                "{look:?}, {span:?}"
            );
            assert!(
                about(exact.bytes).contains(&judged.bytes),
                "{look:?}, {span:?}"
            );
        }
        let all = FRAMES as u32 / SAMPLE_FRAMES;
        let look = files.look_into(span.generation, all).await.unwrap();
        assert_eq!(look.documents, span.documents);
    })
}
