//! `local.system.healthlog`: what checks have found on this member. A capped collection, made when
//! it is first needed.

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{Uuid, core_catalog, from_fatal};
use pinion_exec::acquire::acquire_write;
use pinion_exec::capped::ensure_capped;
use pinion_exec::own_collections::HEALTH_LOG;
use pinion_exec::write::{
    BatchOutcome, InsertOptions, Validation, insert_documents, prepare_for_insert,
};
use pinion_runtime::sleep;
use pinion_service::generate::new_object_id;
use pinion_service::interrupt::interruptible;
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::entry::cut;
use crate::db_check::db_check_tasks;
use crate::limits::{CHECK_RETRY, HEALTH_LOG_BYTES, HEALTH_LOG_PATIENCE, MAX_CHECK_REASON_BYTES};

const DATABASE: &str = "local";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Severity {
    Info,
    Warning,
    Error,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// MongoDB's words for what a note is about.
pub(super) const OF_CLUSTER: &str = "cluster";
pub(super) const OF_INDEX: &str = "index";
pub(super) const OF_DOCUMENT: &str = "document";

pub(super) const START: &str = "dbCheckStart";
pub(super) const BATCH: &str = "dbCheckBatch";
pub(super) const STOP: &str = "dbCheckStop";

/// What is written down.
#[derive(Clone, Debug)]
pub(super) struct Note<'a> {
    pub severity: Severity,
    pub scope: &'static str,
    pub msg: &'a str,
    pub operation: &'static str,
    pub ns: &'a Namespace,
    pub uuid: Option<Uuid>,
    pub data: RawDocumentBuf,
}

impl Note<'_> {
    fn document(&self) -> RawDocumentBuf {
        let with = |data: &RawDocument| {
            let mut out = DocBuilder::new();
            let now = DateTime::from_millis(pinion_runtime::wall_ms());
            out.append("_id", new_object_id())
                .append("namespace", self.ns.as_str());
            if let Some(uuid) = &self.uuid {
                out.append("collectionUUID", uuid.to_bson());
            }
            out.append("timestamp", RawBsonRef::DateTime(now))
                .append("severity", self.severity.name())
                .append("scope", self.scope)
                .append("msg", self.msg)
                .append("operation", self.operation)
                .append("data", data);
            out.finish()
        };
        let document = with(&self.data);
        match document.as_bytes().len() <= pinion_bson::MAX_USER_DOCUMENT_BYTES {
            true => document,
            // Values of `_id` may be nearly as long as a document.
            false => with(&failure("what was found is too long for the health log")),
        }
    }

    /// Writes it down, and what is no information into the log of the node too.
    pub(super) async fn write(&self) {
        let document = self.document();
        if self.severity != Severity::Info {
            tracing::warn!(
                target: "COMMAND",
                id = 7_300_070u64,
                severity = self.severity.name(),
                namespace = self.ns.as_str(),
                operation = self.operation,
                data = logged_text(&self.data),
                "dbCheck: {}",
                self.msg
            );
        }
        let tasks = &db_check_tasks();
        if tasks.has_given_up.get() {
            return;
        }
        loop {
            match insert(&document).await {
                Ok(()) => return,
                // Nothing is written while the node is locked, and one that closes does not wait
                // for the lock.
                Err(error) if is_passing(&error) && !tasks.stopping.get() => {
                    sleep(CHECK_RETRY).await;
                }
                // It was late, and is there.
                Err(error) if error.code == ErrorCode::DUPLICATE_KEY => return,
                Err(error) => {
                    tracing::warn!(
                        target: "COMMAND",
                        id = 7_300_071u64,
                        namespace = self.ns.as_str(),
                        error = cut(&error.message),
                        "The health log cannot be written"
                    );
                    tasks.has_given_up.set(tasks.stopping.get());
                    return;
                }
            }
        }
    }
}

fn is_passing(error: &Error) -> bool {
    error.code == ErrorCode::MAX_TIME_MS_EXPIRED || error.code == ErrorCode::TEMPORARILY_UNAVAILABLE
}

/// A note as the log of the node shows it: keys and values of `_id` may be nearly as long as a
/// document.
fn logged_text(data: &RawDocument) -> String {
    let mut out = DocBuilder::new();
    for (name, value) in pinion_bson::elements(data) {
        let mut one = DocBuilder::new();
        one.append_raw(name, value);
        let one = one.finish();
        match value {
            RawBsonRef::String(text) => out.append(name, cut(text)),
            _ if one.as_bytes().len() <= MAX_CHECK_REASON_BYTES => out.append_all(&one),
            _ => out.append(name, format!("{} bytes", one.as_bytes().len()).as_str()),
        };
    }
    pinion_query::document_text(&out.finish())
}

/// What is said where nothing was found because something failed.
pub(super) fn failure(error: &str) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("success", false).append("error", error);
    out.finish()
}

async fn insert(document: &RawDocument) -> Result<()> {
    let now = pinion_runtime::now();
    let ctx = OpContext::internal(0, pinion_command::row("insert"), DATABASE, now.as_nanos());
    let ctx = ctx.with_deadline(Some((now + HEALTH_LOG_PATIENCE).as_nanos()));
    let ns = Namespace::new(DATABASE, HEALTH_LOG)?;
    let found = core_catalog().get(&ns);
    if found.is_some_and(|found| found.options.capped.is_none()) {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            format!("{ns} is no capped collection: drop it, and the node makes its own"),
        ));
    }
    if core_catalog().get(&ns).is_none() {
        ensure_capped(&ctx, &ns, HEALTH_LOG_BYTES).await?;
    }
    let acquired = acquire_write(&ctx, ns, None).await?;
    let document = prepare_for_insert(document, true).await?;
    let mut outcome = BatchOutcome::default();
    let options = InsertOptions {
        validation: Validation::Bypassed,
        ..InsertOptions::default()
    };
    insert_documents(&ctx, acquired, vec![(0, document)], options, &mut outcome).await?;
    if let Some(failure) = outcome.errors.pop() {
        return Err(failure.error);
    }
    // What a crash takes is not found again: nothing is compared twice.
    let durable = interruptible(&ctx, storage().wait_unreplicated()).await?;
    durable.map_err(from_fatal)
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn long_values_are_cut_in_the_log_of_the_node() {
        let long = "é".repeat(100_000);
        let note = rawdoc! { "success": false, "error": long.as_str(), "batchEnd": { "_id": long.as_str() } };
        let text = logged_text(&note);
        assert!(text.len() < 2 * MAX_CHECK_REASON_BYTES, "{}", text.len());
        assert!(text.contains("200030 bytes"), "{text}");
        let short = rawdoc! { "success": true, "batchEnd": { "_id": 5 } };
        assert_eq!(logged_text(&short), pinion_query::document_text(&short));
    }
}
