//! `pinion-admin verify`: every checksum of a data directory, and whether its files agree with each
//! other.

use pinion_storage::{Inspector, PartitionId, PartitionReport, Problem, RingsReport};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::{self, Output};
use crate::{ring, tree};

/// Everything that was read.
struct Findings {
    partitions: Vec<(u16, PartitionReport)>,
    rings: RingsReport,
    /// The ring of what is not replicated.
    own: Option<RingsReport>,
    problems: Vec<Problem>,
    more_problems: u64,
}

pub async fn print(
    inspector: &Inspector,
    extents: bool,
    out: &mut Output,
) -> Result<bool, Failure> {
    let mut found = Findings {
        partitions: Vec::new(),
        rings: RingsReport::default(),
        own: None,
        problems: inspector.problems().to_vec(),
        more_problems: 0,
    };
    let count = inspector
        .manifest()
        .map_or(0, |manifest| manifest.partitions);
    for number in 0..count {
        let mut report = inspector.partition(PartitionId(number)).await;
        found.problems.append(&mut report.problems);
        found.more_problems += report.pages.more_problems;
        found.partitions.push((number, report));
    }
    found.rings = inspector.rings().await?;
    found.problems.append(&mut found.rings.problems);
    found.more_problems += found.rings.more_problems;
    found.own = inspector.own().await?;
    if let Some(own) = &mut found.own {
        found.problems.append(&mut own.problems);
        found.more_problems += own.more_problems;
    }
    match out.json {
        true => print_json(inspector, &found, extents, out)?,
        false => print_lines(inspector, &found, out)?,
    }
    Ok(found.problems.is_empty())
}

fn print_lines(inspector: &Inspector, found: &Findings, out: &mut Output) -> Result<(), Failure> {
    let valid = inspector
        .superblocks()
        .iter()
        .filter(|copy| copy.content.is_ok());
    out.line(&format!("superblocks: {} of 4 valid", valid.count()))?;
    for (path, bytes) in inspector.manifests() {
        out.line(&format!("{}: {bytes} bytes", path.display()))?;
    }
    for (number, report) in &found.partitions {
        out.line(&tree::partition_line(*number, report))?;
    }
    if inspector.manifest().is_none() {
        out.line(
            "without a sound manifest the page files and the chain of entries cannot be verified",
        )?;
    }
    for line in ring::rings_lines(&found.rings) {
        out.line(&line)?;
    }
    for line in ring::own_lines(found.own.as_ref()) {
        out.line(&line)?;
    }
    out.problems(&found.problems)?;
    if found.more_problems > 0 {
        out.line(&format!("damage: {} more places", found.more_problems))?;
    }
    out.line(&match found.problems.len() as u64 + found.more_problems {
        0 => "nothing is wrong".to_owned(),
        count => format!("{count} problems"),
    })?;
    Ok(())
}

fn print_json(
    inspector: &Inspector,
    found: &Findings,
    extents: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    let partitions = found.partitions.iter().map(|(number, report)| {
        json!({
            "partition": number,
            "file": report.file.display().to_string(),
            "fileBytes": report.pages.file_bytes,
            "freeBytes": report.pages.free_bytes,
            "pages": report.pages.pages,
            "trees": report.pages.trees.len(),
        })
    });
    let manifests = inspector
        .manifests()
        .iter()
        .map(|(path, bytes)| json!({ "file": path.display().to_string(), "bytes": bytes }));
    let valid = inspector
        .superblocks()
        .iter()
        .filter(|copy| copy.content.is_ok());
    let mut value = json!({
        "validSuperblocks": valid.count(),
        "manifests": manifests.collect::<Vec<_>>(),
        "partitions": partitions.collect::<Vec<_>>(),
        "oplog": ring::rings_json(&found.rings),
        "own": ring::own_json(found.own.as_ref()),
        "problems": output::problems(&found.problems),
        "moreProblems": found.more_problems,
    });
    if extents {
        value["extents"] = page_extents(found);
    }
    out.value(&value)?;
    Ok(())
}

/// Where the pages lie that are in use.
fn page_extents(found: &Findings) -> Value {
    let mut all = Vec::new();
    for (_, report) in &found.partitions {
        for (offset, bytes) in &report.pages.extents {
            all.push(json!({ "file": report.file.display().to_string(), "offset": offset, "bytes": bytes }));
        }
    }
    Value::Array(all)
}
