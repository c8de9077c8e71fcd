//! What a reader makes of several epochs of one ring.

use std::path::PathBuf;
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::{fs, sim};

use super::entry::EntryKind;
use super::frame::Stamps;
use super::reader::RingReader;
use super::segment::RingDir;
use super::writer::{Ring, RingStart};
use crate::manifest::Cuts;

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

/// Writes these entries in this epoch, into a segment of their own.
async fn write(epoch: u64, generation: u64, entries: &[u64]) {
    let ring: Rc<Ring> = Ring::start(RingStart {
        dir: dir(),
        directory: DIRECTORY,
        stamps: stamps(),
        epoch,
        segment_bytes: 64 * 1024,
        next_generation: generation,
        idle: Vec::new(),
        sealed: Vec::new(),
    })
    .await
    .unwrap();
    for &entry in entries {
        let mut space = ring.reserve([3].into_iter()).await.expect("it runs");
        let (ts, before) = (Timestamp::from_u64(entry), Timestamp::from_u64(entry - 1));
        ring.append(
            &mut space,
            EntryKind::Logged,
            ts,
            before,
            &mut b"abc".to_vec(),
        );
    }
    let batch = ring.take_batch(Timestamp::MIN, 0).expect("there is room");
    batch.write(&ring, true).await.unwrap();
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
