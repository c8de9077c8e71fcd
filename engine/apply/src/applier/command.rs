//! Entries that may change the catalog: everything before them is applied, nothing behind them is.

use pinion_bson::RawDocument;
use pinion_catalog::{ApplyMode, LoggedCommand, Uuid, apply_command, apply_view_document};
use pinion_clock::Timestamp;
use pinion_exec::session_refresh::{is_removal, removals};
use pinion_runtime::LocalBoxFuture;
use pinion_service::metrics::metrics;
use pinion_storage::{ApplyError, storage};
use pinion_wire::{Error, Result};

use super::decode::{check_namespace, unknown};
use super::documents::{Target, commit_write, view_document, writes_of};
use super::entry::{Entry, damaged, document, field, is_of_views, operations, text, validated};
use super::prepared::{PreparedStep, apply_step};
use super::settings::Changed;

/// Applies an entry, on core 0. Gives how many operations were passed over.
///
/// # Errors
/// It cannot be applied.
pub(super) fn apply_fence(
    entry: Entry,
    mode: ApplyMode,
) -> LocalBoxFuture<'static, std::result::Result<u64, ApplyError>> {
    Box::pin(async move {
        let applied = async {
            let mut settings = Changed::default();
            let mut passed_over = 0;
            if let Some(step) = PreparedStep::of(validated(&entry.bytes)?)? {
                passed_over = apply_step(&entry, step, mode, &mut settings).await?;
                settings.take_effect(mode).await;
                return Ok(passed_over);
            }
            for part in entry.parts() {
                let whole = validated(part)?;
                passed_over += apply(entry.ts, (whole, whole), mode, &mut settings).await?;
            }
            let record = commit_write(validated(&entry.bytes)?)?;
            if !record.is_empty() {
                let applied = storage().apply_at(entry.ts, record).await;
                applied.map_err(|error| Error::internal(error.0))?;
            }
            settings.take_effect(mode).await;
            Ok(passed_over)
        };
        applied.await.map_err(|error| entry.failed(error))
    })
}

/// Counts an operation of another member.
fn count(op: &str, mode: ApplyMode) {
    if mode != ApplyMode::Recovery {
        metrics().counters.applied(op);
    }
}

/// The namespace of commands on the database that members keep for themselves.
const LOCAL_COMMANDS: &str = "local.$cmd";

/// Programs before this one let clients drop or rename the oplog, or index it, and logged that. It
/// concerned no data.
fn warn_of_local_command(ts: Timestamp, entry: &RawDocument) {
    let o = document(entry, "o").ok();
    let name = o.and_then(|o| pinion_bson::elements(o).next());
    tracing::warn!(
        target: "REPL", id = 7_400_031u64, timestamp = %ts, command = name.map_or("", |(name, _)| name),
        "Passed over an oplog entry about the local database, which is not replicated"
    );
}

/// Applies an entry, or an operation of one, which is `whole`.
pub(super) async fn apply(
    ts: Timestamp,
    (entry, whole): (&RawDocument, &RawDocument),
    mode: ApplyMode,
    settings: &mut Changed,
) -> Result<u64> {
    let op = text(entry, "op")?;
    if op == "c" && text(entry, "ns")? == LOCAL_COMMANDS {
        warn_of_local_command(ts, entry);
        return Ok(1);
    }
    check_namespace(entry)?;
    match op {
        "i" | "u" | "d" if is_of_views(entry) => {
            let holder = field(entry, "ui").and_then(Uuid::from_bson);
            let holder = holder.ok_or_else(|| damaged("an oplog entry has no ui"))?;
            let (id, view) = view_document(entry).await?;
            let is_changed = apply_view_document(ts, holder, &id, view.as_deref(), mode).await?;
            count(op, mode);
            Ok(u64::from(!is_changed))
        }
        "i" | "u" | "d" => {
            let writes = match Target::of(entry, mode)? {
                Some(target) if is_removal(entry, &target.collection) => {
                    Some(removals(target.collection.tree(), &target.key).await?)
                }
                Some(target) if target.is_unresolved() => match target.resolved(entry).await? {
                    Some(target) => writes_of(entry, whole, &target, mode).await?,
                    None => None,
                },
                Some(target) => {
                    settings.note(&target.collection.ns, entry);
                    writes_of(entry, whole, &target, mode).await?
                }
                None => None,
            };
            let Some(writes) = writes else {
                return Ok(1);
            };
            let applied = storage().apply_at(ts, writes).await;
            applied.map_err(|error| Error::internal(error.0))?;
            count(op, mode);
            Ok(0)
        }
        "c" | "n" => {
            let o = document(entry, "o")?;
            if op == "c"
                && let Some(list) = operations(o)?
            {
                let mut passed_over = 0;
                for operation in list {
                    let operation = (operation?, whole);
                    passed_over += Box::pin(apply(ts, operation, mode, settings)).await?;
                }
                return Ok(passed_over);
            }
            let command = LoggedCommand {
                ts,
                ns: text(entry, "ns")?,
                uuid: field(entry, "ui").and_then(Uuid::from_bson),
                is_command: op == "c",
                o,
                o2: field(entry, "o2").and_then(|o2| o2.as_document()),
            };
            let did_something = apply_command(command, mode).await?;
            if did_something {
                count(op, mode);
            }
            if op == "c" {
                let db = text(entry, "ns")?.split('.').next().unwrap_or_default();
                settings.note_command(db, o);
                if field(o, "dropDatabase").is_some() && mode == ApplyMode::Secondary {
                    pinion_service::profile_settings::forget(db).await;
                }
            }
            Ok(u64::from(!did_something))
        }
        other => Err(unknown(other)),
    }
}
