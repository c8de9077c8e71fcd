//! The rings under inspection: their frames, their entries, and whether the chain of entries is whole.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{File, OpenOptions, fs};

use super::directory::Inspector;
use super::problem::{InspectError, Problem};
use crate::recovery::{Chain, MergedLog, verify};
use crate::ring::{EntryKind, FRAME_BYTES, RingDir, RingReader, Stamps, list_rings};

/// What one ring holds.
#[derive(Clone, Debug)]
pub struct RingReport {
    /// Its number.
    pub ring: u16,
    /// Its directory.
    pub directory: PathBuf,
    /// Its segments, oldest first.
    pub segments: Vec<SegmentReport>,
    /// Frames that are what was written.
    pub valid_frames: u64,
    /// Frames that a crash left half written, and where the last of them are.
    pub torn_frames: u64,
    pub torn: Vec<Problem>,
    /// Frames that were written whole and have changed since.
    pub damaged_frames: u64,
    /// Entries, and those that a cut discarded.
    pub entries: u64,
    pub discarded: u64,
    /// The highest timestamp of any entry.
    pub highest: Timestamp,
}

/// One file of a ring.
#[derive(Clone, Debug)]
pub struct SegmentReport {
    /// The file.
    pub file: PathBuf,
    /// Counts the segments of the ring.
    pub generation: u64,
    /// Its length.
    pub bytes: u64,
    /// The last entry that touches it, if any does.
    pub last: Option<Timestamp>,
}

/// What all rings together hold.
#[derive(Clone, Debug, Default)]
pub struct RingsReport {
    /// Every ring.
    pub rings: Vec<RingReport>,
    /// Entries above the base, which a node would replay, and their bytes.
    pub to_replay: u64,
    pub to_replay_bytes: u64,
    /// The last entry of the chain.
    pub last: Timestamp,
    /// Entries behind a hole, which a node would discard: nobody was told that they are durable.
    pub beyond: u64,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
    /// Damaged frames beyond the number that is listed.
    pub more_problems: u64,
}

/// One oplog entry and where it lies.
#[derive(Clone, Debug)]
pub struct RingEntry {
    /// The ring.
    pub ring: u16,
    /// The segment in which it begins, and the frame's offset in it.
    pub file: PathBuf,
    pub offset: u64,
    /// The epoch in which it was written.
    pub epoch: u64,
    /// Its timestamp.
    pub ts: Timestamp,
    /// The timestamp allotted right before it.
    pub predecessor: Timestamp,
    /// The oplog document; none for an entry that only keeps the chain whole.
    pub document: Option<Bytes>,
}

/// The entries of the rings in timestamp order.
pub struct LogReader(MergedLog);

impl LogReader {
    /// The next entry that exists.
    pub async fn next(&mut self) -> io::Result<Option<RingEntry>> {
        let Some((reader, entry)) = self.0.next().await? else {
            return Ok(None);
        };
        let reader = &self.0.readers()[reader];
        Ok(Some(RingEntry {
            ring: entry.place.ring,
            file: reader.path(&entry.place),
            offset: entry.place.offset,
            epoch: entry.epoch,
            ts: entry.ts,
            predecessor: entry.predecessor,
            document: (entry.kind == EntryKind::Logged).then_some(entry.bytes),
        }))
    }
}

struct Found {
    log: MergedLog,
    files: Vec<(RingDir, Vec<(u64, u64)>)>,
}

impl Inspector {
    /// Readers over the rings, or over one of them.
    async fn find(&self, only: Option<u16>) -> Result<Found, InspectError> {
        let directory = self.newest().map_or(0, |superblock| superblock.directory);
        let (mut readers, mut files) = (Vec::new(), Vec::new());
        let rings = list_rings(&self.dir)
            .await
            .map_err(InspectError::io(&self.dir))?;
        for ring in rings {
            if only.is_some_and(|only| only != ring.ring) {
                continue;
            }
            let generations = ring
                .generations()
                .await
                .map_err(InspectError::io(&ring.path))?;
            let mut segments = Vec::new();
            for &generation in &generations {
                let path = ring.segment_path(generation);
                let bytes = fs::file_len(&path).await.map_err(InspectError::io(&path))?;
                segments.push((generation, bytes));
            }
            readers.push(RingReader::new(
                ring.clone(),
                directory,
                Stamps::new(u32::BITS),
                self.cuts(),
                generations,
                true,
            ));
            files.push((ring, segments));
        }
        Ok(Found {
            log: MergedLog::new(readers),
            files,
        })
    }

    /// The entries of all rings, or of one.
    pub async fn entries(&self, only: Option<u16>) -> Result<LogReader, InspectError> {
        Ok(LogReader(self.find(only).await?.log))
    }

    /// Reads every frame and follows the chain of entries.
    pub async fn rings(&self) -> Result<RingsReport, InspectError> {
        let Found { mut log, files } = self.find(None).await?;
        let mut report = RingsReport::default();
        // Without a manifest nobody knows where the chain begins: only the frames themselves can be checked.
        match self.manifest() {
            Some(manifest) => {
                let chain = Chain {
                    base: manifest.base(),
                    all_durable: Timestamp::from_u64(manifest.all_durable),
                    check_links: true,
                    limit: Timestamp::MAX,
                };
                let verified = verify(&mut log, &chain).await;
                match verified.map_err(InspectError::io(&self.dir))? {
                    Ok(verified) => {
                        report.to_replay = verified.entries;
                        report.to_replay_bytes = verified.bytes;
                        report.last = verified.last;
                        report.beyond = verified.beyond;
                    }
                    Err(damage) => {
                        report.last = damage.after;
                        report
                            .problems
                            .push(Problem::new(damage.file, damage.offset, damage.what));
                    }
                }
            }
            None => {
                while log
                    .next()
                    .await
                    .map_err(InspectError::io(&self.dir))?
                    .is_some()
                {}
            }
        }
        for (reader, (ring, segments)) in log.readers().iter().zip(files) {
            let scan = &reader.scan;
            let mut torn = Vec::new();
            let mut listed = 0;
            for bad in &scan.bad {
                let (file, offset) = (reader.path(&bad.place), bad.place.offset);
                match bad.damage {
                    None => torn.push(Problem::new(file, offset, "a crash left it half written")),
                    Some(what) => {
                        listed += 1;
                        let known =
                            |problem: &Problem| problem.file == file && problem.offset == offset;
                        if !report.problems.iter().any(known) {
                            report.problems.push(Problem::new(file, offset, what));
                        }
                    }
                }
            }
            for place in &scan.mended {
                let what =
                    "sector stamps are not what was written; a node reads the frame all the same";
                report
                    .problems
                    .push(Problem::new(reader.path(place), place.offset, what));
            }
            report.more_problems += scan.damaged_frames - listed;
            for &(generation, bytes) in &segments {
                let path = ring.segment_path(generation);
                let whole = bytes / FRAME_BYTES as u64 * FRAME_BYTES as u64;
                // A disk that is full leaves new segments of any length, and nothing in them.
                if holds_something(&path, whole)
                    .await
                    .map_err(InspectError::io(&path))?
                {
                    report
                        .problems
                        .push(Problem::new(path, whole, "the file ends within a frame"));
                }
            }
            report.rings.push(RingReport {
                ring: ring.ring,
                segments: segments
                    .iter()
                    .map(|&(generation, bytes)| SegmentReport {
                        file: ring.segment_path(generation),
                        generation,
                        bytes,
                        last: scan
                            .segments
                            .iter()
                            .find(|found| found.0 == generation)
                            .map(|&(_, last)| last)
                            .filter(|last| *last > Timestamp::MIN),
                    })
                    .collect(),
                directory: ring.path,
                valid_frames: scan.valid_frames,
                torn_frames: scan.torn_frames,
                torn,
                damaged_frames: scan.damaged_frames,
                entries: scan.entries,
                discarded: scan.discarded,
                highest: scan.highest,
            });
        }
        Ok(report)
    }
}

/// Whether there is anything but zeros behind the last whole frame of a segment, at `offset`.
async fn holds_something(path: &Path, offset: u64) -> io::Result<bool> {
    let file = File::open(path, OpenOptions::read()).await?;
    let rest = file.read_at(offset, FRAME_BYTES).await?;
    file.close().await?;
    Ok(rest.iter().any(|&byte| byte != 0))
}
