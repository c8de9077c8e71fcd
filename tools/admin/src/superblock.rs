//! `pinion-admin superblock`: the four superblocks, and the manifest of the newest.

use pinion_clock::Timestamp;
use pinion_storage::{Inspector, Manifest, Superblock, SuperblockCopy};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::{self, Output, bytes, timestamp};

pub fn print(inspector: &Inspector, out: &mut Output) -> Result<bool, Failure> {
    match out.json {
        true => out.value(&json!({
            "superblocks": inspector.superblocks().iter().map(copy_json).collect::<Vec<_>>(),
            "manifest": inspector.manifest().map(manifest_json),
            "problems": output::problems(inspector.problems()),
        }))?,
        false => print_lines(inspector, out)?,
    }
    Ok(inspector.problems().is_empty())
}

fn copy_json(copy: &SuperblockCopy) -> Value {
    let mut value = match &copy.content {
        Ok(superblock) => json!({
            "generation": superblock.generation,
            "epoch": superblock.epoch,
            "directory": format!("{:016x}", superblock.directory),
            "partitions": superblock.partitions,
            "hashVersion": superblock.hash_version,
            "manifestGeneration": superblock.manifest_generation,
            "manifestBytes": superblock.manifest_len,
            "manifestCrc32c": format!("{:08x}", superblock.manifest_crc),
            "allDurable": timestamp(superblock.all_durable),
            "base": timestamp(superblock.base),
        }),
        Err(what) => json!({ "error": what }),
    };
    value["slot"] = json!(copy.slot.to_string());
    value["copy"] = json!(copy.copy + 1);
    value["offset"] = json!(copy.offset);
    value
}

fn manifest_json(manifest: &Manifest) -> Value {
    let cuts = manifest.cuts.0.iter().map(|cut| {
        json!({
            "epoch": cut.epoch,
            "at": timestamp(Timestamp::from_u64(cut.at)),
            "discardedThrough": timestamp(Timestamp::from_u64(cut.discarded_through)),
        })
    });
    let partitions = manifest.roots.iter().enumerate().map(|(number, roots)| {
        json!({
            "partition": number,
            "checkpoint": roots.checkpoint(),
            "timestamp": timestamp(roots.timestamp()),
            "fileBytes": roots.file_bytes(),
        })
    });
    json!({
        "generation": manifest.generation,
        "epoch": manifest.epoch,
        "directory": format!("{:016x}", manifest.directory),
        "hashVersion": manifest.hash_version,
        "base": timestamp(Timestamp::from_u64(manifest.base)),
        "allDurable": timestamp(Timestamp::from_u64(manifest.all_durable)),
        "retainedAbove": timestamp(Timestamp::from_u64(manifest.retained_above)),
        "spilled": manifest.spilled,
        "cuts": cuts.collect::<Vec<_>>(),
        "partitions": partitions.collect::<Vec<_>>(),
    })
}

fn print_lines(inspector: &Inspector, out: &mut Output) -> Result<(), Failure> {
    let newest = inspector.newest().copied();
    for copy in inspector.superblocks() {
        let head = format!(
            "superblock {} copy {} at offset {}",
            copy.slot,
            copy.copy + 1,
            copy.offset
        );
        match &copy.content {
            Ok(superblock) => {
                let mark = if Some(*superblock) == newest {
                    ", newest"
                } else {
                    ""
                };
                out.line(&format!("{head}: {}{mark}", describe(superblock)))?;
            }
            Err(what) => out.line(&format!("{head}: invalid: {what}"))?,
        }
    }
    if let Some(manifest) = inspector.manifest() {
        out.line(&format!(
            "manifest {}: epoch {}, base {}, all durable {}, retained above {}{}",
            manifest.generation,
            manifest.epoch,
            Timestamp::from_u64(manifest.base),
            Timestamp::from_u64(manifest.all_durable),
            Timestamp::from_u64(manifest.retained_above),
            if manifest.spilled {
                ", with spilled changes"
            } else {
                ""
            },
        ))?;
        for cut in &manifest.cuts.0 {
            out.line(&format!(
                "  cut of epoch {}: nothing of earlier epochs exists above {}",
                cut.epoch,
                Timestamp::from_u64(cut.at)
            ))?;
        }
        for (number, roots) in manifest.roots.iter().enumerate() {
            out.line(&format!(
                "  partition {number}: checkpoint {} at {}, page file of {}",
                roots.checkpoint(),
                roots.timestamp(),
                bytes(roots.file_bytes())
            ))?;
        }
    }
    out.problems(inspector.problems())?;
    Ok(())
}

fn describe(superblock: &Superblock) -> String {
    format!(
        "generation {}, epoch {}, directory {:016x}, {} partitions, hash version {}, manifest {} of {} bytes with crc32c {:08x}, \
         all durable {}, base {}",
        superblock.generation,
        superblock.epoch,
        superblock.directory,
        superblock.partitions,
        superblock.hash_version,
        superblock.manifest_generation,
        superblock.manifest_len,
        superblock.manifest_crc,
        superblock.all_durable,
        superblock.base,
    )
}
