//! What indexes know of arrays, compared with the documents and, where that is asked for, set to
//! what these have.

use std::sync::Arc;

use pinion_catalog::{Collection, FindArrays, adjust_multikey, core_catalog};
use pinion_query::{IndexKind, MultikeyPaths};
use pinion_service::interrupt::interruptible;
use pinion_storage::{ReadAt, TreeId};
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use super::findings::{Findings, Notes};
use super::job::Job;

/// Notes the indexes that do not know of arrays that documents have. What is known of them only
/// grows while documents are written, so what the catalog knows by now is compared with what was
/// read before.
pub(super) fn check(job: &Job, findings: &mut Findings) {
    let current = core_catalog().get(&job.collection.ns);
    let current: &Collection = current.as_deref().unwrap_or(&job.collection);
    for (index, found) in job.indexes().zip(&mut findings.indexes) {
        let newest = current
            .indexes
            .iter()
            .find(|newest| newest.tree == index.tree);
        let spec = &newest.unwrap_or(index).spec;
        let name = index.name();
        if spec.kind == IndexKind::Hashed && spec.is_multikey() {
            let note = format!("Hashed index is incorrectly marked multikey: {name}");
            found.errors.add(note);
        }
        let Some((paths, document)) = &found.uncovered else {
            continue;
        };
        if spec.knows_multikey(paths) {
            continue;
        }
        let record = job.record_text(document);
        found.errors.add(match spec.is_multikey() {
            false => format!(
                "Index {name} is not multikey but has more than one key in document {record}"
            ),
            true => {
                format!("Index {name} multikey paths do not cover a document. RecordId: {record}")
            }
        });
    }
}

/// Whether some index knows more or less of arrays than documents have.
pub(super) fn differs(job: &Job, findings: &Findings) -> bool {
    let known = job.indexes().map(|index| &index.spec.multikey);
    known
        .zip(&findings.indexes)
        .any(|(known, found)| *known != found.multikey)
}

/// Sets what the indexes know to what the documents have. The caller has left the gate of the
/// collection; writers wait while its documents are looked through.
pub(super) async fn adjust(
    ctx: &OpContext,
    job: &Arc<Job>,
    ns: &Namespace,
    warnings: &mut Notes,
) -> Result<bool> {
    let uuid = job.collection.uuid;
    let job = job.clone();
    let find: FindArrays = Box::new(move |collection| {
        Box::pin(async move { arrays(&job.with_collection(collection)).await })
    });
    let adjusting = adjust_multikey(ctx, ns.clone(), uuid, find);
    let changed = interruptible(ctx, adjusting).await??;
    for (name, is_multikey) in &changed {
        warnings.add(match is_multikey {
            true => format!("Updated index multikey metadata: {name}"),
            false => format!("Unset index multikey metadata: {name}"),
        });
    }
    Ok(!changed.is_empty())
}

/// Where the documents have arrays, in each index.
async fn arrays(job: &Arc<Job>) -> Result<Vec<(TreeId, Option<MultikeyPaths>)>> {
    let findings = super::command::first_phase(job, ReadAt::Newest).await?;
    // What cannot be read may have arrays that no check sees.
    if findings.is_damaged {
        return Ok(Vec::new());
    }
    let trees = job.indexes().map(|index| index.tree);
    let paths = findings.indexes.into_iter().map(|found| found.multikey);
    Ok(trees.zip(paths).collect())
}
