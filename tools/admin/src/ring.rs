//! `pinion-admin ring`: the oplog as the rings hold it, and the rings themselves.

use pinion_bson::{JsonMode, RawBsonRef, RawDocument, get, to_extended_json, validate, values};
use pinion_clock::Timestamp;
use pinion_storage::{Inspector, OwnChange, RingEntry, RingReport, RingsReport, own_changes};
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
    if filter.own {
        return print_own(inspector, filter, mode, out).await;
    }
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

/// The writes that are not replicated. Their trees are named by their numbers, as `tree` shows
/// them.
async fn print_own(
    inspector: &Inspector,
    filter: &RingFilter,
    mode: JsonMode,
    out: &mut Output,
) -> Result<bool, Failure> {
    let mut sound = inspector.problems().is_empty();
    let Some(mut log) = inspector.own_entries().await? else {
        return Ok(sound);
    };
    let mut printed = 0;
    while filter.limit.is_none_or(|limit| printed < limit) {
        let Some(entry) = log.next().await? else {
            break;
        };
        let head = format!(
            "\"file\":{},\"offset\":{},\"epoch\":{},\"number\":{}",
            json!(entry.file.display().to_string()),
            entry.offset,
            entry.epoch,
            entry.ts.as_u64()
        );
        let changes = entry.document.as_deref().and_then(own_changes);
        match changes {
            Some(changes) => {
                let changes: Vec<String> = changes.iter().map(|c| change(c, mode)).collect();
                out.line(&format!("{{{head},\"changes\":[{}]}}", changes.join(",")))?;
            }
            None => {
                sound = false;
                let what = json!("it is not what was written");
                out.line(&format!("{{{head},\"error\":{what}}}"))?;
            }
        }
        printed += 1;
    }
    Ok(sound)
}

/// A change as JSON: a document as it is, other bytes in hexadecimal digits, and null for what is
/// gone.
fn change(change: &OwnChange, mode: JsonMode) -> String {
    let value = match &change.value {
        None => "null".to_owned(),
        Some(bytes) if validate(bytes).is_ok() => match RawDocument::from_bytes(bytes) {
            Ok(document) => to_extended_json(document, mode),
            Err(_) => json!(hex(bytes)).to_string(),
        },
        Some(bytes) => json!(hex(bytes)).to_string(),
    };
    format!(
        "{{\"tree\":{},\"key\":\"{}\",\"value\":{value}}}",
        change.tree.0,
        hex(&change.key)
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
        .retain(|ring| filter.ring.is_none_or(|only| only == ring.ring) && !filter.own);
    let mut own = match filter.ring {
        None => inspector.own().await?,
        Some(_) => None,
    };
    if let Some(own) = &mut own {
        problems.append(&mut own.problems);
    }
    if out.json {
        let mut value = rings_json(&report);
        value["own"] = own_json(own.as_ref());
        value["problems"] = output::problems(&problems);
        out.value(&value)?;
    } else {
        for line in rings_lines(&report) {
            out.line(&line)?;
        }
        for line in own_lines(own.as_ref()) {
            out.line(&line)?;
        }
        out.problems(&problems)?;
    }
    Ok(problems.is_empty())
}

/// Rings and segments as JSON, without problems.
pub fn rings_json(report: &RingsReport) -> Value {
    json!({
        "rings": each_ring(report, &|ring| json!(ring.ring), &timestamp),
        "entriesToReplay": report.to_replay,
        "bytesToReplay": report.to_replay_bytes,
        "entriesBehindHole": report.beyond,
        "last": timestamp(report.last),
    })
}

/// The ring of what is not replicated as JSON, where there is one: as the others, with numbers in
/// place of timestamps.
pub fn own_json(report: Option<&RingsReport>) -> Value {
    let Some(report) = report else {
        return Value::Null;
    };
    let number = |ts: Timestamp| json!(ts.as_u64());
    json!({
        "rings": each_ring(report, &|_| json!("own"), &number),
        "entriesToReplay": report.to_replay,
        "bytesToReplay": report.to_replay_bytes,
        "entriesBehindHole": report.beyond,
        "last": number(report.last),
    })
}

fn each_ring(
    report: &RingsReport,
    name: &dyn Fn(&RingReport) -> Value,
    place: &dyn Fn(Timestamp) -> Value,
) -> Vec<Value> {
    let rings = report.rings.iter().map(|ring| {
        let segments = ring.segments.iter().map(|segment| {
            json!({
                "file": segment.file.display().to_string(),
                "generation": segment.generation,
                "bytes": segment.bytes,
                "last": segment.last.map(place),
            })
        });
        json!({
            "ring": name(ring),
            "segments": segments.collect::<Vec<_>>(),
            "validFrames": ring.valid_frames,
            "tornFrames": ring.torn_frames,
            "torn": output::problems(&ring.torn),
            "damagedFrames": ring.damaged_frames,
            "entries": ring.entries,
            "entriesDiscarded": ring.discarded,
            "highest": place(ring.highest),
        })
    });
    rings.collect()
}

/// Rings and segments as lines, without problems.
pub fn rings_lines(report: &RingsReport) -> Vec<String> {
    lines(report, &|ring| ring.ring.to_string(), &|ts| ts.to_string())
}

/// As [`rings_lines`], of the ring of what is not replicated, where there is one.
pub fn own_lines(report: Option<&RingsReport>) -> Vec<String> {
    let number = |ts: Timestamp| ts.as_u64().to_string();
    report.map_or_else(Vec::new, |report| {
        lines(report, &|_| "own".to_owned(), &number)
    })
}

fn lines(
    report: &RingsReport,
    name: &dyn Fn(&RingReport) -> String,
    place: &dyn Fn(Timestamp) -> String,
) -> Vec<String> {
    let mut lines = Vec::new();
    for ring in &report.rings {
        lines.push(format!(
            "ring {}: {} segments, {} frames, {} torn, {} damaged, {} entries, {} discarded by cuts, highest {}",
            name(ring),
            ring.segments.len(),
            ring.valid_frames,
            ring.torn_frames,
            ring.damaged_frames,
            ring.entries,
            ring.discarded,
            place(ring.highest)
        ));
        for segment in &ring.segments {
            let last = match segment.last {
                Some(last) => format!("last entry {}", place(last)),
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
        place(report.last),
        report.beyond
    ));
    lines
}
