//! `delete`.

use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_collation::Collation;
use pinion_query::{Hint, Matcher, Variables};
use pinion_service::command_checks::check_batch_size;
use pinion_service::metrics::metrics;
use pinion_service::session_ids::is_in;
use pinion_wire::idl::{FieldReader, Path, Types, f64_lossy, missing_field};
use pinion_wire::{Error, Invocation, LogicalOp, Reply, Result};

use super::collation::CollationOption;
use super::reply::acknowledged;
use super::update::{batch_options, check_retryable};
use crate::acquire::acquire_statement;
use crate::concern::{self, WriteKind};
use crate::open_transactions::ends_command;
use crate::profile::ProfiledStatement;
use crate::read::parse_hint;
use crate::sessions;
use crate::write::{BatchOutcome, Change, ModifyOutcome, ModifyStatement, parse_and_run};

/// One element of `deletes`, syntax alone.
pub(super) struct DeleteSpec<'d> {
    pub q: &'d RawDocument,
    pub multi: bool,
    pub hint: Option<Hint>,
    pub collation: CollationOption,
}

/// Reads one element of `deletes`.
pub(super) fn parse_delete<'d>(
    path: Path<'_>,
    document: &'d RawDocument,
) -> Result<DeleteSpec<'d>> {
    let reader = FieldReader::object(path, document)?;
    reader.only(&["q", "limit", "hint", "collation", "sampleId"])?;
    let q = reader.doc("q")?;
    let limit = match reader.value("limit") {
        Some(limit) => limit,
        None => return Err(missing_field(reader.path().field("limit"))),
    };
    let hint = parse_hint(reader.value("hint"))?;
    let collation = CollationOption::read(&reader)?;
    reader.unsupported("sampleId", Types::BIN_DATA)?;
    Ok(DeleteSpec {
        q,
        multi: deletes_all(limit)?,
        hint,
        collation,
    })
}

/// What `limit` asks for: 0 is every document, 1 a single one, and a fraction neither. A value that
/// is no number counts as 0, which is part of MongoDB's stable API.
fn deletes_all(limit: RawBsonRef<'_>) -> Result<bool> {
    match f64_lossy(limit).unwrap_or(0.0) {
        0.0 => Ok(true),
        1.0 => Ok(false),
        other => Err(Error::failed_to_parse(format!(
            "The limit field in delete objects must be 0 or 1. Got {other}"
        ))),
    }
}

impl DeleteSpec<'_> {
    /// Parses the filter.
    pub(super) fn statement(
        &self,
        vars: &Variables,
        default: Option<&Arc<Collation>>,
    ) -> Result<ModifyStatement> {
        let vars = self.collation.variables(vars, default);
        let matcher = Matcher::parse_query(self.q, &vars)?;
        Ok(ModifyStatement {
            multi: self.multi,
            hint: self.hint.clone(),
            ..ModifyStatement::plain(matcher, self.q.to_owned(), Change::Delete)
        })
    }
}

/// `delete`.
pub(crate) async fn delete(cmd: Invocation) -> Result<Reply> {
    let options = batch_options(&cmd, "delete", "deletes").await?;
    let documents = cmd.documents("deletes")?;
    check_batch_size(&documents)?;
    let root = Path::root("delete");
    let path = root.field("deletes");
    let mut specs = Vec::with_capacity(documents.len());
    for (index, document) in documents.iter().enumerate() {
        pinion_runtime::yield_if_due().await;
        specs.push(parse_delete(path.index(index), document)?);
    }
    let retryable = sessions::begin(&cmd.ctx, options.ids, specs.len()).await?;
    let mut outcome = BatchOutcome::default();
    let metrics = metrics();
    let counters = &metrics.counters;
    for (index, spec) in specs.iter().enumerate() {
        pinion_runtime::yield_if_due().await;
        let retryable = retryable.as_deref();
        if outcome.was_executed(index, retryable)? {
            continue;
        }
        let stamp = retryable.and_then(|retryable| retryable.stamp(&options.ns, [index], None));
        counters.delete.inc();
        concern::count_writes(&cmd.ctx, WriteKind::Delete, 1).await;
        let mut done = ModifyOutcome::default();
        let profiled = ProfiledStatement::begin(
            &cmd.ctx,
            LogicalOp::Remove,
            &options.ns,
            documents.get(index),
        );
        let ctx = profiled.as_ref().map_or(&cmd.ctx, ProfiledStatement::ctx);
        let is_retryable = stamp.is_some();
        let parse = |default: Option<&Arc<Collation>>| {
            check_retryable(spec.multi && is_retryable, "limit=0")?;
            spec.statement(&options.vars, default)
        };
        let result = match acquire_statement(ctx, &options.ns, options.uuid, index).await? {
            Ok(acquired) => {
                let at = (index, stamp);
                parse_and_run(ctx, acquired, parse, at, retryable, &mut done).await
            }
            Err(stale) => Err(stale),
        };
        if let Some(profiled) = profiled {
            Box::pin(profiled.end(&cmd.ctx, result.as_ref().err())).await;
        }
        if result.is_ok() {
            outcome.n += done.modified;
        }
        counters.documents_deleted.add(done.modified as u64);
        if let Some(ts) = done.last {
            outcome.wrote(ts);
        }
        if let Err(error) = result {
            if ends_command(&cmd.ctx, &error) {
                return Err(error);
            }
            outcome.failed(index, error);
            if options.ordered || is_in(&cmd.ctx) {
                break;
            }
        }
    }
    if let Some(retryable) = retryable {
        outcome.retried = retryable.take_retried();
        retryable.end();
    }
    acknowledged(&cmd.ctx, &outcome, false).await
}
