//! The rings under inspection: their frames, their entries, and whether the chain of entries is
//! whole.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{File, LocalBoxFuture, OpenOptions, fs};

use super::directory::Inspector;
use super::problem::{InspectError, Problem};
use crate::engine::own_entry;
use crate::manifest::Cuts;
use crate::recovery::{Chain, MergedLog, verify};
use crate::ring::{EntryKind, FRAME_BYTES, RingDir, RingReader, Stamps, list_rings};
use crate::types::{Key, Op, TreeId, Write};

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
    /// Entries behind a hole, which a node would discard: never acknowledged as durable.
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
    /// The oplog document; none for an entry that only keeps the chain whole. Of the ring of what
    /// is not replicated, a write.
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
            document: (entry.kind != EntryKind::Link).then_some(entry.bytes),
        }))
    }
}

/// A change of [`Inspector::own_entries`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnChange {
    /// The tree.
    pub tree: TreeId,
    /// Where in it.
    pub key: Key,
    /// What is there now; `None` if that is nothing any more.
    pub value: Option<Bytes>,
}

/// What one write that is not replicated changes; `None` if the bytes are no such write.
pub fn own_changes(entry: &[u8]) -> Option<Vec<OwnChange>> {
    let change = |write: Write| OwnChange {
        tree: write.tree,
        key: write.key,
        value: match write.op {
            Op::Put(value) => Some(value),
            _ => None,
        },
    };
    Some(own_entry::decode(entry)?.into_iter().map(change).collect())
}

#[derive(Default)]
struct Found {
    readers: Vec<RingReader>,
    /// Each ring with the generations of its segments and their lengths.
    files: Vec<(RingDir, Vec<(u64, u64)>)>,
}

impl Found {
    fn log(self) -> MergedLog {
        MergedLog::new(self.readers)
    }
}

impl Inspector {
    /// Readers over the rings, or over one of them.
    async fn find(&self, only: Option<u16>) -> Result<Found, InspectError> {
        let mut found = Found::default();
        let rings = list_rings(&self.dir)
            .await
            .map_err(InspectError::io(&self.dir))?;
        for ring in rings {
            if only.is_none_or(|only| only == ring.ring) {
                self.add(&mut found, ring, self.cuts()).await?;
            }
        }
        Ok(found)
    }

    async fn add(&self, found: &mut Found, ring: RingDir, cuts: Cuts) -> Result<(), InspectError> {
        let directory = self.newest().map_or(0, |superblock| superblock.directory);
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
        found.readers.push(RingReader::new(
            ring.clone(),
            directory,
            Stamps::new(u32::BITS),
            cuts,
            generations,
            true,
        ));
        found.files.push((ring, segments));
        Ok(())
    }

    /// The entries of all rings, or of one.
    pub fn entries(
        &self,
        only: Option<u16>,
    ) -> LocalBoxFuture<'_, Result<LogReader, InspectError>> {
        Box::pin(async move { Ok(LogReader(self.find(only).await?.log())) })
    }

    /// Reads every frame and follows the chain of entries.
    pub fn rings(&self) -> LocalBoxFuture<'_, Result<RingsReport, InspectError>> {
        Box::pin(async move {
            let found = self.find(None).await?;
            // Without a manifest the beginning of the chain is unknown: only the frames themselves
            // can be checked.
            let chain = self.manifest().map(|manifest| Chain {
                base: manifest.base(),
                all_durable: Timestamp::from_u64(manifest.all_durable),
                check_links: true,
                limit: Timestamp::MAX,
            });
            self.report(found, chain).await
        })
    }

    /// The ring of what is not replicated; `None` where there is none.
    async fn find_own(&self) -> Result<Option<Found>, InspectError> {
        let ring = RingDir::own(&self.dir);
        let exists = fs::exists(&ring.path).await;
        if !exists.map_err(InspectError::io(&ring.path))? {
            return Ok(None);
        }
        let cuts = self.manifest().map(|manifest| manifest.own_cuts.clone());
        let mut found = Found::default();
        self.add(&mut found, ring, cuts.unwrap_or_default()).await?;
        Ok(Some(found))
    }

    /// Reads every frame of the ring of what is not replicated, and follows its writes, which have
    /// numbers where other rings have timestamps; `None` where there is no such ring.
    pub fn own(&self) -> LocalBoxFuture<'_, Result<Option<RingsReport>, InspectError>> {
        Box::pin(async move {
            let Some(found) = self.find_own().await? else {
                return Ok(None);
            };
            let chain = self.manifest().map(|manifest| {
                let base = Timestamp::from_u64(manifest.own_base);
                Chain {
                    base,
                    all_durable: base,
                    check_links: true,
                    limit: Timestamp::MAX,
                }
            });
            let mut report = self.report(found, chain).await?;
            if let Some(mut entries) = self.own_entries().await? {
                let io = || InspectError::io(&self.dir);
                while let Some(entry) = entries.next().await.map_err(io())? {
                    if entry
                        .document
                        .is_some_and(|bytes| own_changes(&bytes).is_none())
                    {
                        let what = "a write that is not replicated is not what was written";
                        let problem = Problem::new(entry.file, entry.offset, what);
                        report.problems.push(problem);
                    }
                }
            }
            Ok(Some(report))
        })
    }

    /// The writes that are not replicated, as [`own_changes`] reads them; `None` where there is no
    /// ring of them.
    pub fn own_entries(&self) -> LocalBoxFuture<'_, Result<Option<LogReader>, InspectError>> {
        Box::pin(async move {
            let found = self.find_own().await?;
            Ok(found.map(|found| LogReader(found.log())))
        })
    }

    async fn report(
        &self,
        found: Found,
        chain: Option<Chain>,
    ) -> Result<RingsReport, InspectError> {
        let files = found.files.clone();
        let mut log = found.log();
        let mut report = RingsReport::default();
        match chain {
            Some(chain) => {
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
