//! `delete`.

use std::sync::Arc;

use pinion_collation::Collation;
use pinion_command::syntax::{DeleteSpec, parse_delete};
use pinion_query::{Matcher, Variables};
use pinion_service::command_checks::check_batch_size;
use pinion_service::metrics::metrics;
use pinion_service::node_info::is_behind_v44;
use pinion_wire::idl::Path;
use pinion_wire::{Invocation, LogicalOp, Reply, Result};

use super::reply::acknowledged;
use super::update::{batch_options, check_retryable};
use crate::acquire::acquire_statement;
use crate::concern::{self, WriteKind};
use crate::profile::ProfiledStatement;
use crate::sessions;
use crate::write::{BatchOutcome, Change, ModifyOutcome, ModifyStatement, parse_and_run};

/// Parses the filter of a statement.
pub(super) fn delete_statement(
    spec: &DeleteSpec<'_>,
    vars: &Variables,
    default: Option<&Arc<Collation>>,
) -> Result<ModifyStatement> {
    let vars = spec.collation.variables(vars, default);
    let matcher = Matcher::parse_query(spec.q, &vars)?;
    Ok(ModifyStatement {
        multi: spec.multi,
        hint: spec.hint.clone(),
        ..ModifyStatement::plain(matcher, spec.q.to_owned(), Change::Delete)
    })
}

/// `delete`.
pub(crate) async fn delete(cmd: Invocation) -> Result<Reply> {
    let options = batch_options(&cmd, "delete", "deletes").await?;
    let documents = cmd.documents("deletes")?;
    check_batch_size(&documents)?;
    let root = Path::root("delete");
    let path = root.field("deletes");
    let mut specs = Vec::with_capacity(documents.len());
    let of_mongos = is_behind_v44();
    for (index, document) in documents.iter().enumerate() {
        pinion_runtime::yield_if_due().await;
        specs.push(parse_delete(path.index(index), document, of_mongos)?);
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
            delete_statement(spec, &options.vars, default)
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
        if let Err(error) = result
            && outcome.fail_from(&cmd.ctx, index..specs.len(), options.ordered, error)?
        {
            break;
        }
    }
    if let Some(retryable) = retryable {
        outcome.retried = retryable.take_retried();
        retryable.end();
    }
    acknowledged(&cmd.ctx, &outcome, false).await
}
