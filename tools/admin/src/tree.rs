//! `pinion-admin tree`: the trees of collections and indexes, and the page files that hold them.

use std::collections::BTreeMap;

use pinion_bson::{RawDocument, validate};
use pinion_catalog::{Collection, is_row_of_collection};
use pinion_storage::{
    CATALOG_TREE, Inspector, PartitionId, PartitionReport, Problem, TreeId, TreeReport,
};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::{self, Output, bytes, table};

/// What a tree is called.
#[derive(Clone, Debug)]
struct Name {
    ident: String,
    ns: Option<String>,
    index: Option<String>,
}

/// The names of trees, from the rows of `_mdb_catalog`; and rows that cannot be understood.
fn names(report: &PartitionReport) -> (BTreeMap<TreeId, Name>, Vec<Problem>) {
    let (mut names, mut problems) = (BTreeMap::new(), Vec::new());
    for (key, row) in &report.catalog {
        let number = <[u8; 8]>::try_from(key.as_slice()).map(u64::from_be_bytes);
        if number.is_ok_and(|number| !is_row_of_collection(number)) {
            continue;
        }
        let collection = validate(row)
            .map_err(|error| error.to_string())
            .and_then(|_| RawDocument::from_bytes(row).map_err(|error| error.to_string()))
            .and_then(|row| Collection::from_row(row).map_err(|bad| bad.0));
        let collection = match collection {
            Ok(collection) => collection,
            Err(what) => {
                problems.push(Problem {
                    file: report.file.clone(),
                    offset: 0,
                    what: format!("the row {key:02x?} of _mdb_catalog cannot be read: {what}"),
                });
                continue;
            }
        };
        let ns = Some(collection.ns.as_str().to_owned());
        let name = Name {
            ident: format!("collection-{}", collection.number),
            ns: ns.clone(),
            index: None,
        };
        names.insert(collection.tree(), name);
        for index in &collection.indexes {
            let name = Name {
                ident: format!("index-{}", index.tree.0),
                ns: ns.clone(),
                index: Some(index.name().to_owned()),
            };
            names.insert(index.tree, name);
        }
    }
    (names, problems)
}

fn name_of(names: &BTreeMap<TreeId, Name>, tree: TreeId) -> Name {
    let known = |ident: &str| Name {
        ident: ident.to_owned(),
        ns: None,
        index: None,
    };
    match tree {
        TreeId(0) => known("tree of trees"),
        TreeId::SPILLED => known("spilled changes"),
        CATALOG_TREE => known("_mdb_catalog"),
        tree => names
            .get(&tree)
            .cloned()
            .unwrap_or_else(|| known(&format!("tree-{}", tree.0))),
    }
}

/// Sums over partitions.
fn add(sum: &mut TreeReport, part: &TreeReport) {
    sum.height = sum.height.max(part.height);
    sum.records += part.records;
    sum.key_bytes += part.key_bytes;
    sum.value_bytes += part.value_bytes;
    sum.leaves += part.leaves;
    sum.inner_pages += part.inner_pages;
    sum.overflow_values += part.overflow_values;
    sum.page_bytes += part.page_bytes;
    sum.spilled_changes += part.spilled_changes;
    sum.levels.resize(
        sum.levels.len().max(part.levels.len()),
        pinion_storage::LevelReport::default(),
    );
    for (sum, part) in sum.levels.iter_mut().zip(&part.levels) {
        sum.pages += part.pages;
        sum.bytes += part.bytes;
        sum.used_bytes += part.used_bytes;
    }
}

pub async fn print(
    inspector: &Inspector,
    only: Option<u16>,
    out: &mut Output,
) -> Result<bool, Failure> {
    let mut problems = inspector.problems().to_vec();
    let Some(manifest) = inspector.manifest() else {
        out.problems(&problems)?;
        out.flush()?;
        return Err(Failure::Line(
            "without a sound manifest nobody knows where the trees are".to_owned(),
        ));
    };
    let count = manifest.partitions;
    if let Some(only) = only
        && only >= count
    {
        return Err(Failure::Line(format!(
            "the data directory has {count} partitions, and {only} is none of them"
        )));
    }
    // Partition 0 has the catalog, so it is read for the names in any case.
    let mut names_found = BTreeMap::new();
    let mut partitions = Vec::new();
    for number in (0..count).filter(|&number| number == 0 || only.is_none_or(|only| only == number))
    {
        let mut report = inspector.partition(PartitionId(number)).await;
        if number == 0 {
            let (names, unreadable) = names(&report);
            names_found = names;
            problems.extend(unreadable);
        }
        if only.is_none_or(|only| only == number) {
            problems.append(&mut report.problems);
            partitions.push((number, report));
        }
    }
    let mut sums: BTreeMap<TreeId, TreeReport> = BTreeMap::new();
    for tree in partitions
        .iter()
        .flat_map(|(_, report)| &report.pages.trees)
    {
        sums.entry(tree.tree)
            .and_modify(|sum| add(sum, tree))
            .or_insert_with(|| tree.clone());
    }
    if out.json {
        let parts = partitions
            .iter()
            .map(|(number, report)| partition_json(*number, report, &names_found));
        let trees = sums.values().map(|tree| tree_json(tree, &names_found));
        out.value(&json!({
            "trees": trees.collect::<Vec<_>>(),
            "partitions": parts.collect::<Vec<_>>(),
            "problems": output::problems(&problems),
        }))?;
    } else {
        for line in tree_lines(sums.values(), &names_found) {
            out.line(&line)?;
        }
        for (number, report) in &partitions {
            out.line(&partition_line(*number, report))?;
        }
        out.problems(&problems)?;
    }
    Ok(problems.is_empty())
}

fn tree_json(tree: &TreeReport, names: &BTreeMap<TreeId, Name>) -> Value {
    let name = name_of(names, tree.tree);
    let levels = tree.levels.iter().map(
        |level| json!({ "pages": level.pages, "bytes": level.bytes, "usedBytes": level.used_bytes }),
    );
    json!({
        "tree": tree.tree.0,
        "ident": name.ident,
        "ns": name.ns,
        "index": name.index,
        "records": tree.records,
        "keyBytes": tree.key_bytes,
        "valueBytes": tree.value_bytes,
        "height": tree.height,
        "leaves": tree.leaves,
        "innerPages": tree.inner_pages,
        "overflowValues": tree.overflow_values,
        "pageBytes": tree.page_bytes,
        "spilledChanges": tree.spilled_changes,
        "levels": levels.collect::<Vec<_>>(),
    })
}

fn partition_json(number: u16, report: &PartitionReport, names: &BTreeMap<TreeId, Name>) -> Value {
    let trees = report.pages.trees.iter().map(|tree| tree_json(tree, names));
    json!({
        "partition": number,
        "file": report.file.display().to_string(),
        "fileBytes": report.pages.file_bytes,
        "freeBytes": report.pages.free_bytes,
        "freeExtents": report.pages.free_extents,
        "pages": report.pages.pages,
        "trees": trees.collect::<Vec<_>>(),
    })
}

fn tree_lines<'a>(
    trees: impl Iterator<Item = &'a TreeReport>,
    names: &BTreeMap<TreeId, Name>,
) -> Vec<String> {
    let head = [
        "ident",
        "entries",
        "height",
        "pages by level",
        "fill",
        "large values",
        "key bytes",
        "value bytes",
        "page bytes",
        "spilled changes",
        "name",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for tree in trees {
        let name = name_of(names, tree.tree);
        let used: u64 = tree.levels.iter().map(|level| level.used_bytes).sum();
        let all: u64 = tree.levels.iter().map(|level| level.bytes).sum();
        let by_level: Vec<String> = tree
            .levels
            .iter()
            .map(|level| level.pages.to_string())
            .collect();
        let shown = match (name.ns, name.index) {
            (Some(ns), Some(index)) => format!("{ns} {index}"),
            (Some(ns), None) => ns,
            _ => String::new(),
        };
        rows.push(vec![
            name.ident,
            tree.records.to_string(),
            tree.height.to_string(),
            by_level.join("/"),
            format!("{} %", (used * 100).checked_div(all).unwrap_or(0)),
            tree.overflow_values.to_string(),
            bytes(tree.key_bytes),
            bytes(tree.value_bytes),
            bytes(tree.page_bytes),
            tree.spilled_changes.to_string(),
            shown,
        ]);
    }
    table(&rows)
}

/// One page file in a line.
pub fn partition_line(number: u16, report: &PartitionReport) -> String {
    format!(
        "partition {number}: {} pages in {} trees, {} free of {} in {} extents, {}",
        report.pages.pages,
        report.pages.trees.len(),
        bytes(report.pages.free_bytes),
        bytes(report.pages.file_bytes),
        report.pages.free_extents,
        report.file.display()
    )
}
