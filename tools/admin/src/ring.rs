//! `pinion-admin ring`: the oplog as the rings hold it, and the rings themselves.

use pinion_bson::{JsonMode, RawBsonRef, RawDocument, get, to_extended_json, validate, values};
use pinion_clock::Timestamp;
use pinion_storage::{Inspector, RingEntry, RingsReport};
use serde_json::{Value, json};

use crate::Failure;
use crate::options::RingFilter;
use crate::output::{self, Output, bytes, timestamp};

pub async fn print(
    inspector: &Inspector,
    filter: &RingFilter,
    out: &mut Output,
) -> Result<bool, Failure> {
    if filter.summary {
        return summary(inspector, filter, out).await;
    }
    let mode = match filter.canonical {
        true => JsonMode::Canonical,
        false => JsonMode::Relaxed,
    };
    let mut sound = inspector.problems().is_empty();
    let mut log = inspector.entries(filter.ring).await?;
    let mut printed = 0;
    while filter.limit.is_none_or(|limit| printed < limit) {
        let Some(entry) = log.next().await? else {
            break;
        };
        if filter.to.is_some_and(|to| entry.ts > to) {
            break;
        }
        if filter.from.is_some_and(|from| entry.ts < from) {
            continue;
        }
        let document = match document(&entry) {
            Ok(document) => document,
            Err(what) => {
                sound = false;
                out.line(&format!("{{{},\"error\":{}}}", head(&entry), json!(what)))?;
                printed += 1;
                continue;
            }
        };
        if let Some(wanted) = &filter.namespace
            && !document.is_some_and(|document| concerns(document, wanted))
        {
            continue;
        }
        let shown = document.map_or("null".to_owned(), |document| {
            to_extended_json(document, mode)
        });
        out.line(&format!("{{{},\"entry\":{shown}}}", head(&entry)))?;
        printed += 1;
    }
    Ok(sound)
}

/// What storage knows of an entry, as the first fields of its line.
fn head(entry: &RingEntry) -> String {
    format!(
        "\"ring\":{},\"file\":{},\"offset\":{},\"epoch\":{},\"ts\":{},\"predecessor\":{}",
        entry.ring,
        json!(entry.file.display().to_string()),
        entry.offset,
        entry.epoch,
        stamp(entry.ts),
        stamp(entry.predecessor)
    )
}

/// A timestamp in extended JSON, its parts in BSON's order.
fn stamp(ts: Timestamp) -> String {
    format!(
        "{{\"$timestamp\":{{\"t\":{},\"i\":{}}}}}",
        ts.secs(),
        ts.inc()
    )
}

fn document(entry: &RingEntry) -> Result<Option<&RawDocument>, String> {
    let Some(bytes) = &entry.document else {
        return Ok(None);
    };
    validate(bytes).map_err(|error| format!("the entry is not BSON: {error}"))?;
    RawDocument::from_bytes(bytes)
        .map(Some)
        .map_err(|error| format!("the entry is not BSON: {error}"))
}

/// Whether an oplog document, or an operation inside an `applyOps`, has this namespace.
fn concerns(document: &RawDocument, wanted: &str) -> bool {
    if document.get_str("ns").is_ok_and(|ns| ns == wanted) {
        return true;
    }
    let Ok(command) = document.get_document("o") else {
        return false;
    };
    let Some(RawBsonRef::Array(operations)) = get(command, "applyOps") else {
        return false;
    };
    values(operations).any(|operation| {
        operation
            .as_document()
            .is_some_and(|operation| operation.get_str("ns").is_ok_and(|ns| ns == wanted))
    })
}

async fn summary(
    inspector: &Inspector,
    filter: &RingFilter,
    out: &mut Output,
) -> Result<bool, Failure> {
    let mut report = inspector.rings().await?;
    let mut problems = inspector.problems().to_vec();
    problems.append(&mut report.problems);
    report
        .rings
        .retain(|ring| filter.ring.is_none_or(|only| only == ring.ring));
    if out.json {
        let mut value = rings_json(&report);
        value["problems"] = output::problems(&problems);
        out.value(&value)?;
    } else {
        for line in rings_lines(&report) {
            out.line(&line)?;
        }
        out.problems(&problems)?;
    }
    Ok(problems.is_empty())
}

/// Rings and segments as JSON, without problems.
pub fn rings_json(report: &RingsReport) -> Value {
    let last = |last: Option<Timestamp>| last.map(timestamp);
    let rings = report.rings.iter().map(|ring| {
        let segments = ring.segments.iter().map(|segment| {
            json!({
                "file": segment.file.display().to_string(),
                "generation": segment.generation,
                "bytes": segment.bytes,
                "last": last(segment.last),
            })
        });
        json!({
            "ring": ring.ring,
            "segments": segments.collect::<Vec<_>>(),
            "validFrames": ring.valid_frames,
            "tornFrames": ring.torn_frames,
            "torn": output::problems(&ring.torn),
            "damagedFrames": ring.damaged_frames,
            "entries": ring.entries,
            "entriesDiscarded": ring.discarded,
            "highest": timestamp(ring.highest),
        })
    });
    json!({
        "rings": rings.collect::<Vec<_>>(),
        "entriesToReplay": report.to_replay,
        "bytesToReplay": report.to_replay_bytes,
        "entriesBehindHole": report.beyond,
        "last": timestamp(report.last),
    })
}

/// Rings and segments as lines, without problems.
pub fn rings_lines(report: &RingsReport) -> Vec<String> {
    let mut lines = Vec::new();
    for ring in &report.rings {
        lines.push(format!(
            "ring {}: {} segments, {} frames, {} torn, {} damaged, {} entries, {} discarded by cuts, highest {}",
            ring.ring,
            ring.segments.len(),
            ring.valid_frames,
            ring.torn_frames,
            ring.damaged_frames,
            ring.entries,
            ring.discarded,
            ring.highest
        ));
        for segment in &ring.segments {
            let last = match segment.last {
                Some(last) => format!("last entry {last}"),
                None => "no entries".to_owned(),
            };
            lines.push(format!(
                "  {}: {}, {last}",
                segment.file.display(),
                bytes(segment.bytes)
            ));
        }
        for torn in &ring.torn {
            lines.push(format!("  torn: {torn}"));
        }
    }
    lines.push(format!(
        "{} entries of {} to replay, up to {}; {} behind a hole",
        report.to_replay,
        bytes(report.to_replay_bytes),
        report.last,
        report.beyond
    ));
    lines
}
