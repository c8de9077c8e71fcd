//! Following the chain through the rings: where it ends, and whether it should have gone further.
//!
//! Each entry names its predecessor, so the chain from the base on is unbroken as far as no entry
//! is missing. Behind the first break nothing counts. Whether the break is a *hole* (writes that a
//! crash interrupted before they were acknowledged as durable) or *damage* is decided by two pieces
//! of evidence:
//!
//! * some frame or manifest records an `all_durable` above the last entry before the break;
//! * a frame that was written whole no longer is what was written, and nothing behind it in its
//!   ring shows that all it held lies before the break.

use std::io;
use std::path::PathBuf;

use pinion_clock::Timestamp;

use super::merge::MergedLog;
use crate::ring::{BadFrame, RingScan};

/// The chain, followed to its end.
#[derive(Debug)]
pub(crate) struct Verified {
    /// The last valid entry, or the base's when none is newer.
    pub(crate) last: Timestamp,
    /// Entries and their bytes above the base, to be replayed.
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// Entries behind a break, which the cut discards.
    pub(crate) beyond: u64,
    /// The highest timestamp found in any ring.
    pub(crate) highest: Timestamp,
    /// The last valid entry of each segment, or `MIN`: ring, generation, timestamp.
    pub(crate) segments: Vec<(u16, u64, Timestamp)>,
    pub(crate) torn_frames: u64,
}

/// Why a directory is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) file: PathBuf,
    pub(crate) offset: u64,
    /// The last entry that is certainly valid.
    pub(crate) after: Timestamp,
    pub(crate) what: String,
}

/// What recovery knows before it looks at the rings.
pub(crate) struct Chain {
    pub(crate) base: Timestamp,
    pub(crate) all_durable: Timestamp,
    /// False only under a planted fault.
    pub(crate) check_links: bool,
    /// Where the chain is to end, however far it goes.
    pub(crate) limit: Timestamp,
}

/// Reads everything once and decides. The outer error is the device's.
pub(crate) async fn verify(
    log: &mut MergedLog,
    chain: &Chain,
) -> io::Result<Result<Verified, Damage>> {
    let mut last = chain.base;
    let (mut entries, mut bytes, mut beyond) = (0, 0, 0);
    let mut broken = false;
    // The chain was followed to the limit: an entry behind that links to the last one before.
    let mut reaches_limit = false;
    while let Some((_, entry)) = log.next().await? {
        if entry.ts <= chain.base {
            continue;
        }
        // The base may be at a timestamp that no entry has: the first above it then links to one
        // below.
        let is_linked = match last == chain.base {
            true => entry.predecessor <= last,
            false => entry.predecessor == last,
        };
        broken |= chain.check_links && !is_linked;
        reaches_limit |= !broken && entry.ts > chain.limit;
        if broken || reaches_limit {
            beyond += 1;
        } else {
            last = entry.ts;
            entries += 1;
            bytes += entry.bytes.len() as u64;
        }
    }
    let must_reach = match reaches_limit {
        true => last,
        false => chain.limit,
    };
    if let Some(damage) = find_damage(log, chain, last, must_reach) {
        return Ok(Err(damage));
    }
    let scans = || {
        log.readers()
            .iter()
            .map(|reader| (reader.ring(), &reader.scan))
    };
    let segments = scans()
        .flat_map(|(ring, scan)| {
            scan.segments
                .iter()
                .map(move |&(generation, ts)| (ring, generation, ts.min(last)))
        })
        .collect();
    Ok(Ok(Verified {
        last,
        entries,
        bytes,
        beyond,
        highest: scans()
            .map(|(_, scan)| scan.highest)
            .max()
            .unwrap_or_default()
            .max(last),
        segments,
        torn_frames: scans().map(|(_, scan)| scan.torn_frames).sum(),
    }))
}

/// Whether what a bad frame held may lie behind `last`.
fn may_hold_later(bad: &BadFrame, last: Timestamp) -> bool {
    bad.next.is_none_or(|next| next > last)
}

/// What shows that entries behind `last` are missing which were durable, as far as `must_reach`.
fn find_damage(
    log: &MergedLog,
    chain: &Chain,
    last: Timestamp,
    must_reach: Timestamp,
) -> Option<Damage> {
    let bad_frames = || {
        log.readers().iter().flat_map(|reader| {
            let scan: &RingScan = &reader.scan;
            scan.bad
                .iter()
                .filter(|bad| may_hold_later(bad, last))
                .map(move |bad| (reader, bad))
        })
    };
    if let Some((reader, bad)) = bad_frames().find(|(_, bad)| bad.damage.is_some()) {
        let what = bad.damage.unwrap_or_default();
        return Some(Damage {
            file: reader.path(&bad.place),
            offset: bad.place.offset,
            after: last,
            what: format!("{what}, and entries after {last} may be lost with this frame"),
        });
    }
    let durable = log
        .readers()
        .iter()
        .map(|reader| reader.scan.all_durable)
        .max()
        .unwrap_or_default()
        .max(chain.all_durable)
        .min(must_reach);
    if durable <= last {
        return None;
    }
    let what = format!(
        "entries up to {durable} were durable, and the chain of entries breaks after {last}"
    );
    // The most likely place: a torn frame where the lost entry should be, else the end of some
    // ring.
    Some(match bad_frames().next() {
        Some((reader, bad)) => Damage {
            file: reader.path(&bad.place),
            offset: bad.place.offset,
            after: last,
            what,
        },
        None => {
            let file = log
                .readers()
                .first()
                .map(|reader| reader.directory_path())
                .unwrap_or_default();
            Damage {
                file,
                offset: 0,
                after: last,
                what,
            }
        }
    })
}
