//! `findAndModify`.

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{RetryImage, stored_document};
use pinion_command::syntax::FindAndModifySyntax;
use pinion_query::{Matcher, Metadata, Projection, Subject, Update, Variables};
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::metrics::metrics;
use pinion_service::operator_counts::compute_counted;
use pinion_wire::idl::CommandReader;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::acknowledge;
use super::variables::{sent_constants, variables_of_write};
use crate::acquire::{AcquiredCollection, acquire_write};
use crate::sessions::{self, RetryableWrite};
use crate::statements::{Executed, ExecutedChange};
use crate::write::{
    Change, ModifyOutcome, ModifyStatement, Validation, run_and_report, sort_beside,
};

/// A `findAndModify` as it is written, with its variables.
pub(super) struct FindAndModifyCommand<'d> {
    pub syntax: FindAndModifySyntax<'d>,
    vars: Variables,
}

/// A parsed `findAndModify`.
pub(super) struct FindAndModify {
    pub statement: ModifyStatement,
    pub remove: bool,
    new: bool,
    projection: Option<Projection>,
}

/// Reads the command.
pub(super) async fn read<'d>(
    ctx: &OpContext,
    body: &'d RawDocument,
    command: &'d str,
    db: &str,
) -> Result<FindAndModifyCommand<'d>> {
    let (syntax, constants) = {
        let reader = CommandReader::new(command, body)?;
        let constants = sent_constants(&reader)?;
        let syntax = FindAndModifySyntax::read_from(&reader, command, db)?;
        (syntax, constants)
    };
    let vars = variables_of_write(ctx, syntax.lets, constants).await?;
    Ok(FindAndModifyCommand { syntax, vars })
}

impl FindAndModifyCommand<'_> {
    /// Parses update, filter, sort and projection, for the collection that was acquired. Where
    /// there is none, and none is made, nothing is projected, and MongoDB does not look at how.
    pub(super) async fn parse(
        self,
        ctx: &OpContext,
        acquired: &AcquiredCollection,
        projects: bool,
    ) -> Result<FindAndModify> {
        let FindAndModifyCommand { syntax, vars } = self;
        let vars = syntax.collation.variables(&vars, acquired.collation());
        let change = match syntax.update {
            None => Change::Delete,
            Some(update) => {
                let parse = || Update::parse_with(update, syntax.filters, &vars);
                let update = compute_counted(ctx, parse).await?;
                Change::Update(update.keeping_empty_timestamps(syntax.keep_empty_timestamps))
            }
        };
        let empty = RawDocumentBuf::new();
        let query = syntax.query.unwrap_or(&empty);
        let matcher = compute_counted(ctx, || Matcher::parse_query(query, &vars)).await?;
        let sort = sort_beside(&matcher, query, syntax.sort)?;
        let projection = match syntax.fields {
            Some(fields) if projects && !fields.is_empty() => {
                let parse = || Projection::parse_find(fields, &vars);
                let projection = compute_counted(ctx, parse).await?;
                projection.check_filter(&matcher)?;
                projection.refuse_before_read()?;
                matcher.check_metadata(sort.as_ref(), Some(&projection))?;
                if syntax.new && projection.needs_position() {
                    return Err(Error::bad_value(
                        "cannot use a positional projection and return the new document",
                    ));
                }
                Some(projection)
            }
            _ => None,
        };
        let remove = matches!(change, Change::Delete);
        let filter = compute_bytes(query.as_bytes().len(), || query.to_owned()).await;
        let statement = ModifyStatement {
            upsert: syntax.upsert,
            hint: syntax.hint,
            sort,
            validation: Validation::unless(syntax.bypasses_validation),
            wants_documents: true,
            ..ModifyStatement::plain(matcher, filter, change)
        };
        Ok(FindAndModify {
            statement,
            remove,
            new: syntax.new,
            projection,
        })
    }
}

/// `findAndModify`.
pub(crate) async fn find_and_modify(cmd: Invocation) -> Result<Reply> {
    let name = cmd.message.command_name();
    let command = read(&cmd.ctx, cmd.body(), name, cmd.db()).await?;
    let retryable = sessions::begin(&cmd.ctx, command.syntax.ids.clone(), 1).await?;
    let executed = match &retryable {
        Some(retryable) => retryable.executed(0)?,
        None => None,
    };
    let acquired = acquire_write(&cmd.ctx, command.syntax.ns.clone(), command.syntax.uuid).await?;
    let projects = acquired.collection().is_some() || command.syntax.upsert || executed.is_some();
    let mut parsed = command.parse(&cmd.ctx, &acquired, projects).await?;
    let mut done = ModifyOutcome::default();
    match (&retryable, executed) {
        (Some(retryable), Some(executed)) => {
            drop(acquired);
            done = repeated(&parsed, retryable, executed).await?;
        }
        (retryable, _) => {
            parsed.statement = parsed.statement.bound(&acquired)?;
            if let Some(retryable) = retryable {
                let image = Some(parsed.image());
                parsed.statement.stamp = retryable.stamp(acquired.ns(), [0], image);
            }
            let (ctx, place) = (&cmd.ctx, (0, &parsed.statement));
            run_and_report(ctx, acquired, place, retryable.as_deref(), &mut done).await?;
            count(&parsed, &done);
        }
    }
    let mut out = reply(&cmd.ctx, &parsed, &done).await?;
    if let Some(retryable) = retryable {
        if let [stmt_id] = retryable.take_retried()[..] {
            out.append("retriedStmtId", stmt_id);
        }
        retryable.end();
    }
    acknowledge(&cmd.ctx, done.last, &mut out).await?;
    Ok(out)
}

impl FindAndModify {
    /// Which document it answers with.
    fn image(&self) -> RetryImage {
        match self.new {
            true => RetryImage::Post,
            false => RetryImage::Pre,
        }
    }
}

/// What the command did when it was executed before.
async fn repeated(
    parsed: &FindAndModify,
    retryable: &RetryableWrite,
    executed: Executed,
) -> Result<ModifyOutcome> {
    let mut done = ModifyOutcome {
        last: Some(executed.safe_with()),
        ..ModifyOutcome::default()
    };
    let incompatible = |code| {
        let what =
            "findAndModify retry request is not compatible with previous write in the transaction";
        Error::new(ErrorCode(code), format!("{what}, at {}", executed.ts))
    };
    match &executed.change {
        ExecutedChange::Delete if !parsed.remove => return Err(incompatible(40606)),
        ExecutedChange::Insert { .. } if !parsed.statement.upsert => {
            return Err(incompatible(40608));
        }
        ExecutedChange::Update if parsed.remove => return Err(incompatible(40610)),
        ExecutedChange::Insert { id } => done.upserted = id.clone(),
        ExecutedChange::Update | ExecutedChange::Delete => {
            done.matched = 1;
            done.modified = 1;
        }
    }
    let kind = parsed.image();
    match (executed.image, kind) {
        (Some(RetryImage::Pre), RetryImage::Post) => return Err(incompatible(40611)),
        (Some(RetryImage::Post), RetryImage::Pre) => return Err(incompatible(40612)),
        _ => {}
    }
    // Nothing was there before an upsert.
    if done.upserted.is_some() && kind == RetryImage::Pre {
        return Ok(done);
    }
    let (lsid, txn_number) = (retryable.lsid(), retryable.txn_number());
    let image = crate::statements::image_of(lsid, txn_number, executed.ts, kind).await?;
    match kind {
        RetryImage::Pre => done.old = Some(image),
        RetryImage::Post => done.new = Some(image),
    }
    Ok(done)
}

fn count(parsed: &FindAndModify, done: &ModifyOutcome) {
    let metrics = metrics();
    let counters = &metrics.counters;
    if parsed.remove {
        counters.documents_deleted.add(done.modified as u64);
    } else {
        counters.documents_updated.add(done.modified as u64);
    }
    counters
        .documents_inserted
        .add(u64::from(done.upserted.is_some()));
}

async fn reply(ctx: &OpContext, parsed: &FindAndModify, done: &ModifyOutcome) -> Result<Reply> {
    let mut out = Reply::new();
    out.start_document("lastErrorObject");
    out.append(
        "n",
        done.matched as i32 + i32::from(done.upserted.is_some()),
    );
    if !parsed.remove {
        out.append("updatedExisting", done.matched > 0);
        if let Some(id) = &done.upserted {
            out.append("upserted", id.as_raw_bson_ref());
        }
    }
    out.end();
    let value = if parsed.new { &done.new } else { &done.old };
    match value {
        None => {
            out.append("value", RawBsonRef::Null);
        }
        Some(bytes) => {
            metrics().counters.documents_returned.inc();
            append_value(ctx, parsed, done, bytes, &mut out).await?;
        }
    }
    Ok(out)
}

async fn append_value(
    ctx: &OpContext,
    parsed: &FindAndModify,
    done: &ModifyOutcome,
    bytes: &Bytes,
    fields: &mut DocBuilder,
) -> Result<()> {
    let document = stored_document(bytes);
    let Some(projection) = &parsed.projection else {
        let append = || {
            fields.append("value", document);
        };
        compute_bytes(bytes.len(), append).await;
        return Ok(());
    };
    let metadata = metadata_of(ctx, &parsed.statement, projection, done);
    let metadata = &metadata.await?;
    let apply = || {
        // Where the filter matched, which is in the old document.
        let position = match projection.needs_position() {
            true => parsed.statement.matcher.matches_with_position(document)?,
            false => None,
        };
        let index = position.and_then(|position| position.array_index);
        projection.apply(Subject { document, metadata }, index)
    };
    let projected = compute(ctx, apply).await?;
    let append = || {
        fields.append("value", &*projected);
    };
    compute_bytes(projected.as_bytes().len(), append).await;
    Ok(())
}

/// What the projection reads beside the document: of what was found, before it changed.
async fn metadata_of(
    ctx: &OpContext,
    statement: &ModifyStatement,
    projection: &Projection,
    done: &ModifyOutcome,
) -> Result<Metadata> {
    let source = statement.matcher.meta_source_for(None, Some(projection));
    match (source, &done.old) {
        (Some(source), Some(old)) => {
            let old = stored_document(old);
            compute(ctx, || source.metadata(old)).await
        }
        _ => Ok(Metadata::default()),
    }
}
