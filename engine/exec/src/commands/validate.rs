//! `validate`.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_catalog::{Collection, belongs, parse_index_spec};
use pinion_storage::{Direction, KeyRange, PartitionId, ReadAt, storage};
use pinion_wire::idl::{CommandReader, Namespace, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use crate::acquire::{Wanted, acquire};

/// What one partition's part of `validate` found.
#[derive(Default)]
struct Found {
    records: u64,
    invalid: u64,
    keys: Vec<u64>,
    /// Entries that the documents of this partition must have, over all indexes; compared with those there are.
    expected: Vec<u64>,
    errors: Vec<String>,
}

impl Found {
    fn of(collection: &Collection) -> Found {
        Found {
            keys: vec![0; collection.ready_indexes().count()],
            expected: vec![0; collection.ready_indexes().count()],
            ..Found::default()
        }
    }
}

/// What is to be looked at.
struct Options {
    full: bool,
    /// The catalog alone.
    metadata: bool,
    /// What would be mended, in MongoDB's word for it.
    repair_mode: &'static str,
}

fn options(reader: &CommandReader<'_>) -> Result<Options> {
    // MongoDB takes what is no boolean for true here, and passes over fields that it does not know.
    let flag = |name: &str| reader.value(name).is_some_and(truthy);
    let options = Options {
        full: flag("full"),
        metadata: flag("metadata"),
        repair_mode: match (flag("repair"), flag("fixMultikey")) {
            (true, _) => "FixErrors",
            (false, true) => "AdjustMultikey",
            (false, false) => "None",
        },
    };
    let other = [
        "full",
        "repair",
        "fixMultikey",
        "enforceFastCount",
        "checkBSONConformance",
        "background",
    ];
    if options.metadata && other.into_iter().any(flag) {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "Running the validate command with { metadata: true } is not supported with any other options",
        ));
    }
    let excluded = ["full", "enforceFastCount", "repair", "fixMultikey"];
    if flag("background")
        && let Some(other) = excluded.into_iter().find(|option| flag(option))
    {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!(
                "Running the validate command with both {{ background: true }} and {{ {other}: true }} is not supported."
            ),
        ));
    }
    // Others write on while a collection is validated, in the background or not; what they add meanwhile is counted.
    reader.unsupported_unless_empty("enforceFastCount")?;
    Ok(options)
}

/// `validate`: every document is well-formed and in its place, and every index has as many entries as the documents ask for.
pub(crate) async fn validate(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.namespace("validate", cmd.db())?;
    let options = options(&reader)?;
    let acquired = acquire(&cmd.ctx, Wanted::alone(ns.clone(), None)).await?;
    let Some(collection) = acquired.collection() else {
        return Err(Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("Collection '{ns}' does not exist to validate."),
        ));
    };
    let mut errors = index_specifications(collection);
    let found = if options.metadata {
        None
    } else {
        Some(contents(&cmd.ctx, collection, options.full, &mut errors).await?)
    };
    Ok(reply(&ns, collection, &options, found.as_ref(), &errors))
}

/// What is wrong with the specifications of the indexes.
fn index_specifications(collection: &Collection) -> Vec<String> {
    let check = |index: &Arc<pinion_catalog::Index>| {
        let error = parse_index_spec(&index.listed, false).err()?;
        Some(format!("index {}: {}", index.name(), error.message))
    };
    collection.ready_indexes().filter_map(check).collect()
}

/// Looks through all partitions.
async fn contents(
    ctx: &OpContext,
    collection: &Arc<Collection>,
    full: bool,
    errors: &mut Vec<String>,
) -> Result<Found> {
    let mut total = Found::of(collection);
    for number in 0..storage().partition_count() {
        crate::interrupt::check(ctx)?;
        let partition = PartitionId(number);
        let (collection, ctx) = (collection.clone(), ctx.clone());
        let found = pinion_runtime::submit_to(
            storage().owner(partition),
            pinion_runtime::Queue::Background,
            move || async move { validate_partition(&collection, partition, full, &ctx).await },
        )
        .await?;
        total.records += found.records;
        total.invalid += found.invalid;
        errors.extend(found.errors);
        for i in 0..total.keys.len() {
            total.keys[i] += found.keys[i];
            total.expected[i] += found.expected[i];
        }
    }
    for (i, index) in collection.ready_indexes().enumerate() {
        if total.keys[i] != total.expected[i] {
            errors.push(format!(
                "index {} has {} entries, the documents ask for {}",
                index.name(),
                total.keys[i],
                total.expected[i]
            ));
        }
    }
    Ok(total)
}

/// `found` is what the documents and entries told, if they were looked at.
fn reply(
    ns: &Namespace,
    collection: &Collection,
    options: &Options,
    found: Option<&Found>,
    errors: &[String],
) -> Reply {
    let mut out = Reply::new();
    out.append("ns", ns.as_str())
        .append("uuid", collection.uuid.to_bson());
    if let Some(found) = found {
        append_count(&mut out, "nInvalidDocuments", found.invalid);
        append_count(&mut out, "nNonCompliantDocuments", 0);
        append_count(&mut out, "nrecords", found.records);
    }
    out.append("nIndexes", collection.index_count() as i32);
    out.start_document("keysPerIndex");
    if let Some(found) = found {
        if collection.tree_is_id_index() {
            append_count(&mut out, "_id_", found.records);
        }
        for (index, keys) in collection.ready_indexes().zip(&found.keys) {
            append_count(&mut out, index.name(), *keys);
        }
    }
    out.end().start_document("indexDetails");
    let id_index = collection
        .tree_is_id_index()
        .then(|| collection.options.id_index());
    let in_tree = id_index.as_deref().map(|listed| ("_id_", listed, true));
    let others = collection.ready_indexes().enumerate().map(|(i, index)| {
        let complete = found.is_none_or(|found| found.keys[i] == found.expected[i]);
        (index.name(), &*index.listed, complete)
    });
    for (name, listed, valid) in in_tree.into_iter().chain(others) {
        out.start_document(name)
            .append("valid", valid)
            .append("spec", listed)
            .end();
    }
    out.end();
    out.append("valid", errors.is_empty())
        .append("repaired", false)
        .append("repairMode", options.repair_mode)
        .start_array("warnings");
    if !errors.is_empty() && options.repair_mode != "None" {
        // Flags of multikey indexes are set before the first entry that needs them, and are never wrong.
        out.push("Nothing was repaired: an index with errors has to be dropped and made again");
    }
    out.end().start_array("errors");
    for error in errors {
        out.push(error.as_str());
    }
    out.end()
        .start_array("extraIndexEntries")
        .end()
        .start_array("missingIndexEntries")
        .end()
        .start_array("corruptRecords")
        .end();
    out
}

/// A count as MongoDB's `appendNumber` writes it: an int where it fits.
fn append_count(out: &mut DocBuilder, name: &str, count: u64) {
    match i32::try_from(count) {
        Ok(count) => out.append(name, count),
        Err(_) => out.append(name, count as i64),
    };
}

async fn validate_partition(
    collection: &Arc<Collection>,
    partition: PartitionId,
    full: bool,
    ctx: &OpContext,
) -> Result<Found> {
    let owned = storage().partition(partition).expect("asked its owner");
    let mut found = Found::of(collection);
    let mut cursor = owned.cursor(
        collection.tree(),
        KeyRange::all(),
        Direction::Forward,
        ReadAt::NewestDecided,
    );
    while let Some((key, read)) = cursor
        .next()
        .await
        .map_err(pinion_catalog::from_read_error)?
    {
        found.records += 1;
        let document = match pinion_bson::validate(&read.value) {
            Ok(document) => document,
            Err(error) => {
                found.invalid += 1;
                found
                    .errors
                    .push(format!("a document is malformed: {error}"));
                continue;
            }
        };
        let id = pinion_bson::get(document, "_id").unwrap_or(RawBsonRef::Null);
        let record = collection.record_of(&key);
        if !belongs(collection, id, &key, partition) {
            found.errors.push(format!(
                "the document with _id {} is not where it belongs",
                pinion_query::value_text(id)
            ));
        }
        for (i, index) in collection.ready_indexes().enumerate() {
            found.expected[i] += pinion_catalog::entries_of(collection, index, document, record)?
                .entries
                .len() as u64;
        }
        crate::interrupt::pause(ctx).await?;
    }
    for (i, index) in collection.ready_indexes().enumerate() {
        if full {
            let mut cursor = owned.cursor(
                index.tree,
                KeyRange::all(),
                Direction::Forward,
                ReadAt::NewestDecided,
            );
            while cursor
                .next()
                .await
                .map_err(pinion_catalog::from_read_error)?
                .is_some()
            {
                found.keys[i] += 1;
            }
        } else {
            found.keys[i] += owned.tree_stats(index.tree).records;
        }
    }
    Ok(found)
}
