//! `update`.

use std::sync::Arc;

use pinion_bson::RawBsonRef;
use pinion_collation::Collation;
use pinion_command::syntax::{BatchSyntax, StatementIds, UpdateSpec, parse_update};
use pinion_query::{Matcher, Pipeline, Update, Variables};
use pinion_service::command_checks::check_batch_size;
use pinion_service::compute::compute;
use pinion_service::metrics::metrics;
use pinion_service::node_info::is_behind_v44;
use pinion_wire::idl::{CommandReader, Namespace, Path};
use pinion_wire::{Error, ErrorCode, Invocation, LogicalOp, OpContext, Reply, Result};

use super::reply::acknowledged;
use super::variables::{sent_constants, variables_of_write, with_constants};
use crate::acquire::acquire_statement;
use crate::concern::{self, WriteKind};
use crate::profile::ProfiledStatement;
use crate::sessions;
use crate::write::{
    BatchOutcome, Change, ModifyOutcome, ModifyStatement, Upserted, Validation, parse_and_run,
    sort_beside,
};

/// Parses filter and update of a statement.
pub(super) fn update_statement(
    spec: &UpdateSpec<'_>,
    vars: &Variables,
    default: Option<&Arc<Collation>>,
    options: UpdateOptions,
) -> Result<ModifyStatement> {
    let vars = &spec.collation.variables(vars, default);
    if spec.multi && Update::is_replacement_document(spec.u) {
        return Err(Error::failed_to_parse(
            "multi update is not supported for replacement-style update",
        ));
    }
    let is_pipeline = matches!(spec.u, RawBsonRef::Array(_));
    // The update is parsed before the filter: where both are wrong, MongoDB reports the update.
    let update = match spec.constants {
        Some(_) if !is_pipeline => {
            return Err(Error::new(
                ErrorCode(51198),
                "Constant values may only be specified for pipeline updates",
            ));
        }
        Some(constants) => {
            let vars = with_constants(vars, constants);
            Update::parse_with(spec.u, spec.array_filters, &vars)?
        }
        None => Update::parse_with(spec.u, spec.array_filters, vars)?,
    };
    let update = update.keeping_empty_timestamps(options.keep_empty_timestamps);
    let matcher = Matcher::parse_query(spec.q, vars)?;
    let sort = sort_beside(&matcher, spec.q, spec.sort)?;
    Ok(ModifyStatement {
        multi: spec.multi,
        upsert: spec.upsert,
        hint: spec.hint.clone(),
        sort,
        validation: options.validation,
        ..ModifyStatement::plain(matcher, spec.q.to_owned(), Change::Update(update))
    })
}

/// Options that `update` and `delete` share.
pub(super) struct BatchOptions {
    pub ns: Namespace,
    pub uuid: Option<[u8; 16]>,
    pub ordered: bool,
    pub ids: StatementIds,
    pub vars: Variables,
    pub update: UpdateOptions,
}

/// Options of all updates of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateOptions {
    pub validation: Validation,
    pub keep_empty_timestamps: bool,
}

/// Reads the options beside the statements.
pub(super) async fn batch_options(
    cmd: &Invocation,
    command: &str,
    statements: &str,
) -> Result<BatchOptions> {
    read_options(&cmd.ctx, &cmd.reader()?, cmd.db(), command, statements).await
}

/// Reads the options of a command, or of one that is explained.
pub(super) async fn read_options(
    ctx: &OpContext,
    reader: &CommandReader<'_>,
    db: &str,
    command: &str,
    statements: &str,
) -> Result<BatchOptions> {
    let constants = sent_constants(reader)?;
    let options = BatchSyntax::read(reader, db, command, statements)?;
    Ok(BatchOptions {
        ns: options.ns,
        uuid: options.uuid,
        ordered: options.ordered,
        ids: options.ids,
        vars: variables_of_write(ctx, options.lets, constants).await?,
        update: UpdateOptions {
            validation: Validation::unless(options.bypasses_validation),
            keep_empty_timestamps: options.keep_empty_timestamps,
        },
    })
}

/// `update`.
pub(crate) async fn update(cmd: Invocation) -> Result<Reply> {
    let options = batch_options(&cmd, "update", "updates").await?;
    let documents = cmd.documents("updates")?;
    check_batch_size(&documents)?;
    let root = Path::root("update");
    let path = root.field("updates");
    let mut specs = Vec::with_capacity(documents.len());
    let of_mongos = is_behind_v44();
    for (index, document) in documents.iter().enumerate() {
        pinion_runtime::yield_if_due().await;
        let spec = parse_update(path.index(index), document, of_mongos)?;
        // What is no stage at all is reported before any statement runs.
        if let RawBsonRef::Array(stages) = spec.u {
            compute(&cmd.ctx, || Pipeline::check_form(stages)).await?;
        }
        specs.push(spec);
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
        counters.update.inc();
        concern::count_writes(&cmd.ctx, WriteKind::Update, 1).await;
        let mut done = ModifyOutcome::default();
        let profiled = ProfiledStatement::begin(
            &cmd.ctx,
            LogicalOp::Update,
            &options.ns,
            documents.get(index),
        );
        let ctx = profiled.as_ref().map_or(&cmd.ctx, ProfiledStatement::ctx);
        let is_retryable = stamp.is_some();
        let parse = |default: Option<&Arc<Collation>>| {
            check_retryable(spec.multi && is_retryable, "multi=true")?;
            update_statement(spec, &options.vars, default, options.update)
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
        counters.documents_updated.add(done.modified as u64);
        if let Some(ts) = done.last {
            outcome.wrote(ts);
        }
        if result.is_ok() {
            // A statement that failed half way counts nothing, though what it wrote stays written.
            outcome.n += done.matched;
            outcome.modified += done.modified;
        }
        if let Some(id) = done.upserted {
            outcome.n += 1;
            outcome.upserted.push(Upserted { index, id });
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
    acknowledged(&cmd.ctx, &outcome, true).await
}

/// Refuses what changes several documents as one statement: how far it came would be unknown.
pub(super) fn check_retryable(is_refused: bool, option: &str) -> Result<()> {
    if !is_refused {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::INVALID_OPTIONS,
        format!("Cannot use (or request) retryable writes with {option}"),
    ))
}
