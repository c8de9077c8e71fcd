//! `bulkWrite`: inserts, updates and deletes of several collections in one command.

use std::sync::Arc;

use pinion_bson::RawDocument;
use pinion_clock::Timestamp;
use pinion_collation::Collation;
use pinion_command::syntax::{
    CollationOption, DeleteSpec, StatementIds, UpdateNames, UpdateSpec, hint, read_update,
};
use pinion_query::Variables;
use pinion_service::command_checks::check_batch_size;
use pinion_service::cursors::BULK_WRITE_CURSOR;
use pinion_service::login::{forget_users, holds_users};
use pinion_service::metrics::metrics;
use pinion_service::session_ids::is_in;
use pinion_wire::idl::{
    FieldReader, Namespace, Path, RoutingArguments, Types, missing_field, unknown_field,
};
use pinion_wire::{Documents, Error, ErrorCode, Invocation, LogicalOp, OpContext, Reply, Result};
use rustc_hash::FxHashSet;

use super::bulk_replies::{Done, Replies};
use super::cursors::{CursorRequest, batch_size_of, first_batch};
use super::delete::delete_statement;
use super::insert::InsertBatch;
use super::reply::append_retried;
use super::update::{UpdateOptions, update_statement};
use super::variables::variables_of_write;
use crate::acquire::acquire_write;
use crate::concern::{self, WriteKind, written};
use crate::open_transactions::{ends_command, fail};
use crate::placement::SentVersions;
use crate::profile::ProfiledStatement;
use crate::read::Stream;
use crate::sessions::{self, RetryableWrite};
use crate::statements::ExecutedChange;
use crate::topology::is_member;
use crate::write::{
    BatchOutcome, InsertOptions, ModifyOutcome, ModifyStatement, Stamps, Validation, parse_and_run,
};

const NAMES: UpdateNames = UpdateNames {
    filter: "filter",
    update: "updateMods",
    constants: "constants",
};

/// A namespace that operations name by its position.
struct Target {
    ns: Namespace,
    uuid: Option<[u8; 16]>,
    /// The part of the command that is about it, with the versions that a router goes by.
    ctx: OpContext,
}

/// One element of `ops`, syntax alone.
struct Op<'d> {
    /// As it was sent.
    document: &'d RawDocument,
    target: usize,
    kind: OpKind<'d>,
}

enum OpKind<'d> {
    Insert(&'d RawDocument),
    Update(UpdateSpec<'d>),
    Delete(DeleteSpec<'d>),
}

/// The options beside operations and namespaces.
struct Options {
    ordered: bool,
    errors_only: bool,
    ids: StatementIds,
    update: UpdateOptions,
    vars: Variables,
    batch_size: Option<usize>,
}

impl Options {
    /// Parses an update or a delete.
    fn statement(
        &self,
        kind: &OpKind<'_>,
        default: Option<&Arc<Collation>>,
    ) -> Result<ModifyStatement> {
        let vars = &self.vars;
        match kind {
            OpKind::Update(spec) => update_statement(spec, vars, default, self.update),
            OpKind::Delete(spec) => delete_statement(spec, vars, default),
            OpKind::Insert(_) => Err(Error::internal("an insert has no statement")),
        }
    }
}

async fn read_options(cmd: &Invocation) -> Result<Options> {
    let reader = cmd.reader()?;
    // The command's own value has no meaning.
    reader.ignore(&["bulkWrite", "ops", "nsInfo"]);
    let ordered = reader.opt_bool("ordered")?.unwrap_or(true);
    let errors_only = reader.opt_bool("errorsOnly")?.unwrap_or(false);
    let validation = Validation::unless(reader.opt_safe_bool("bypassDocumentValidation")?);
    let keep_empty_timestamps = reader
        .opt_safe_bool("bypassEmptyTsReplacement")?
        .unwrap_or(false);
    let ids = StatementIds::read(&reader)?;
    let batch_size = batch_size_of(reader.opt_doc("cursor")?, "bulkWrite")?;
    let vars = variables_of_write(&cmd.ctx, reader.opt_doc("let")?, None).await?;
    reader.finish()?;
    Ok(Options {
        ordered,
        errors_only,
        ids,
        update: UpdateOptions {
            validation,
            keep_empty_timestamps,
        },
        vars,
        batch_size,
    })
}

fn read_target(ctx: &OpContext, path: Path<'_>, document: &RawDocument) -> Result<Target> {
    let reader = FieldReader::object(path, document)?;
    reader.only(&[
        "ns",
        "collectionUUID",
        "encryptionInformation",
        "shardVersion",
        "databaseVersion",
    ])?;
    // What may be made or written is for each operation to say.
    let ns = Namespace::parse_sought(reader.str("ns")?)?;
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.unsupported("encryptionInformation", Types::OBJECT)?;
    let versions = RoutingArguments::of_namespace(&reader)?;
    SentVersions::of(&versions).check_accepted(ns.db())?;
    let ctx = match versions == RoutingArguments::default() {
        true => ctx.clone(),
        false => ctx.about(&ns, versions),
    };
    Ok(Target { ns, uuid, ctx })
}

fn read_targets(ctx: &OpContext, documents: &Documents) -> Result<Vec<Target>> {
    let root = Path::root("bulkWrite");
    let path = root.field("nsInfo");
    let mut seen = FxHashSet::default();
    let mut targets = Vec::with_capacity(documents.len());
    for (index, document) in documents.iter().enumerate() {
        let target = read_target(ctx, path.index(index), document)?;
        if !seen.insert(target.ns.as_str().to_owned()) {
            return Err(Error::bad_value(format!(
                "Found duplicate namespace entries in nsInfo: {}",
                target.ns
            )));
        }
        targets.push(target);
    }
    Ok(targets)
}

/// Reads one operation; its first field says which kind it is.
fn read_op<'d>(path: Path<'_>, document: &'d RawDocument, targets: usize) -> Result<Op<'d>> {
    let name = pinion_bson::elements(document).next().map(|(name, _)| name);
    let reader = FieldReader::object(path, document)?;
    let (field, kind) = match name {
        Some("insert") => {
            reader.only(&["insert", "document"])?;
            ("insert", OpKind::Insert(reader.doc("document")?))
        }
        Some("update") => {
            reader.only(&[
                "update",
                "filter",
                "updateMods",
                "multi",
                "upsert",
                "hint",
                "sort",
                "arrayFilters",
                "constants",
                "collation",
                "upsertSupplied",
                "sampleId",
            ])?;
            (
                "update",
                OpKind::Update(read_update(&reader, &NAMES, false)?),
            )
        }
        Some("delete") => {
            reader.only(&["delete", "filter", "multi", "hint", "collation", "sampleId"])?;
            reader.unsupported("sampleId", Types::BIN_DATA)?;
            let spec = DeleteSpec {
                q: reader.doc("filter")?,
                multi: reader.opt_bool("multi")?.unwrap_or(false),
                hint: hint(&reader, false)?,
                collation: CollationOption::read(&reader)?,
            };
            ("delete", OpKind::Delete(spec))
        }
        name => return Err(unknown_field(path.field(name.unwrap_or_default()))),
    };
    let target = reader
        .opt_at_least(field, 0)?
        .ok_or_else(|| missing_field(reader.path().field(field)))? as usize;
    if target >= targets {
        return Err(Error::bad_value(
            "BulkWrite ops entry has an invalid nsInfo index.",
        ));
    }
    Ok(Op {
        document,
        target,
        kind,
    })
}

/// `bulkWrite`.
pub(crate) async fn bulk_write(cmd: Invocation) -> Result<Reply> {
    let options = read_options(&cmd).await?;
    let documents = cmd.documents("ops")?;
    check_batch_size(&documents)?;
    let targets = read_targets(&cmd.ctx, &cmd.documents("nsInfo")?)?;
    for target in &targets {
        if let Some(routed) = &target.ctx.routed {
            let (ns, versions) = (&target.ns, SentVersions::of(&routed.versions));
            Box::pin(versions.admit(&cmd.ctx, Some(ns), ns.db())).await?;
        }
    }
    let root = Path::root("bulkWrite");
    let path = root.field("ops");
    let mut ops = Vec::with_capacity(documents.len());
    for (index, document) in documents.iter().enumerate() {
        pinion_runtime::yield_if_due().await;
        ops.push(read_op(path.index(index), document, targets.len())?);
    }
    let mut options = options;
    // Behind the first that fails a transaction is over.
    options.ordered |= is_in(&cmd.ctx);
    let retryable = sessions::begin(&cmd.ctx, options.ids.clone(), ops.len()).await?;
    let mut bulk = Bulk {
        ctx: &cmd.ctx,
        retryable,
        replies: Replies::new(options.errors_only),
        options,
        targets,
        last: None,
    };
    let has_users = bulk.targets.iter().any(|target| holds_users(&target.ns));
    let ran = bulk.run(&ops).await;
    if has_users {
        forget_users().await;
    }
    ran?;
    if let Some(retryable) = bulk.retryable.take() {
        bulk.replies.retried = retryable.take_retried();
        retryable.end();
    }
    bulk.reply(&cmd).await
}

/// The operations while they run.
struct Bulk<'c> {
    ctx: &'c OpContext,
    /// The command, if it is retryable.
    retryable: Option<Box<RetryableWrite>>,
    options: Options,
    targets: Vec<Target>,
    replies: Replies,
    /// The newest timestamp, which a journaled acknowledgement waits for.
    last: Option<Timestamp>,
}

impl Bulk<'_> {
    /// Runs the operations in their order; neighbouring inserts into one collection together.
    async fn run(&mut self, ops: &[Op<'_>]) -> Result<()> {
        let mut at = 0;
        while at < ops.len() {
            pinion_runtime::yield_if_due().await;
            if self.was_executed(at, &ops[at])? {
                at += 1;
                continue;
            }
            let target = ops[at].target;
            let inserts = (ops[at..].iter().zip(at..))
                .map_while(|(op, place)| match op.kind {
                    OpKind::Insert(document) if op.target == target && self.is_new(place) => {
                        Some(document)
                    }
                    _ => None,
                })
                .collect::<Vec<_>>();
            if inserts.is_empty() {
                self.run_one(at, &ops[at]).await?;
            } else {
                self.insert(at, &ops[at], &inserts).await?;
            }
            at += inserts.len().max(1);
            if self.options.ordered && self.replies.has_errors() {
                break;
            }
        }
        Ok(())
    }

    /// Whether an operation was not executed when the command was sent before.
    fn is_new(&self, place: usize) -> bool {
        let retryable = self.retryable.as_deref();
        retryable.is_none_or(|retryable| retryable.is_new(place))
    }

    /// Answers for an operation that was executed when the command was sent before.
    fn was_executed(&mut self, index: usize, op: &Op<'_>) -> Result<bool> {
        let Some(retryable) = &self.retryable else {
            return Ok(false);
        };
        let Some(executed) = retryable.executed(index)? else {
            return Ok(false);
        };
        self.last = self.last.max(Some(executed.safe_with()));
        let is_update = matches!(op.kind, OpKind::Update(_));
        let (mut upserted, mut modified) = (None, 0);
        match executed.change {
            ExecutedChange::Insert { id } if is_update => {
                self.replies.upserted += 1;
                upserted = id;
            }
            ExecutedChange::Insert { .. } => self.replies.inserted += 1,
            ExecutedChange::Update => {
                self.replies.matched += 1;
                self.replies.modified += 1;
                modified = 1;
            }
            ExecutedChange::Delete => self.replies.deleted += 1,
        }
        let done = Done {
            n: 1,
            modified: is_update.then_some(modified),
            upserted: upserted.as_ref(),
        };
        self.replies.succeeded(index, done)?;
        Ok(true)
    }

    async fn insert(
        &mut self,
        first: usize,
        op: &Op<'_>,
        documents: &[&RawDocument],
    ) -> Result<()> {
        let target = &self.targets[op.target];
        let ns = &target.ns;
        let mut outcome = BatchOutcome::default();
        let of_target = &target.ctx;
        let profiled = ProfiledStatement::begin(of_target, LogicalOp::Insert, ns, op.document);
        let ctx = profiled.as_ref().map_or(of_target, ProfiledStatement::ctx);
        match acquire_write(ctx, ns.clone(), target.uuid).await {
            Ok(acquired) => {
                let batch = InsertBatch {
                    options: InsertOptions {
                        ordered: self.options.ordered,
                        validation: self.options.update.validation,
                        stamps: self
                            .retryable
                            .as_deref()
                            .map_or(Stamps::None, Stamps::Batch),
                        ..InsertOptions::default()
                    },
                    keep_empty_timestamps: self.options.update.keep_empty_timestamps,
                };
                let places = documents
                    .iter()
                    .enumerate()
                    .map(|(place, document)| (first + place, *document));
                batch.insert(ctx, acquired, places, &mut outcome).await?;
            }
            Err(error) if ends_command(ctx, &error) => return Err(error),
            Err(error) => {
                let failing = if self.options.ordered {
                    1
                } else {
                    documents.len()
                };
                for place in 0..failing {
                    outcome.failed(first + place, error.clone());
                }
            }
        }
        if let Some(profiled) = profiled {
            let error = outcome.errors.first().map(|failure| &failure.error);
            Box::pin(profiled.end(self.ctx, error)).await;
        }
        self.last = self.last.max(outcome.last);
        self.replies.inserted += outcome.n;
        let mut errors = outcome.errors.iter().peekable();
        for index in first..first + documents.len() {
            if let Some(failure) = errors.next_if(|failure| failure.index == index) {
                self.replies.failed(index, &failure.error, false)?;
                if self.options.ordered {
                    break;
                }
                continue;
            }
            let done = Done {
                n: 1,
                modified: None,
                upserted: None,
            };
            self.replies.succeeded(index, done)?;
        }
        Ok(())
    }

    /// Runs an update or a delete.
    async fn run_one(&mut self, index: usize, op: &Op<'_>) -> Result<()> {
        let metrics = metrics();
        let counters = &metrics.counters;
        let is_update = matches!(op.kind, OpKind::Update(_));
        let kind = match is_update {
            true => WriteKind::Update,
            false => WriteKind::Delete,
        };
        if is_update {
            counters.update.inc();
        } else {
            counters.delete.inc();
        }
        concern::count_writes(self.ctx, kind, 1).await;
        let mut done = ModifyOutcome::default();
        let result = self.modify(index, op, &mut done).await;
        self.last = self.last.max(done.last);
        if is_update {
            counters.documents_updated.add(done.modified as u64);
        } else {
            counters.documents_deleted.add(done.modified as u64);
        }
        match result {
            Err(error) if ends_command(self.ctx, &error) => Err(error),
            Err(error) => self.replies.failed(index, &error, is_update),
            Ok(()) if is_update => {
                self.replies.matched += done.matched;
                self.replies.modified += done.modified;
                self.replies.upserted += i64::from(done.upserted.is_some());
                let done = Done {
                    n: done.matched + i64::from(done.upserted.is_some()),
                    modified: Some(done.modified),
                    upserted: done.upserted.as_ref(),
                };
                self.replies.succeeded(index, done)
            }
            Ok(()) => {
                self.replies.deleted += done.modified;
                let done = Done {
                    n: done.modified,
                    modified: None,
                    upserted: None,
                };
                self.replies.succeeded(index, done)
            }
        }
    }

    async fn modify(&self, index: usize, op: &Op<'_>, done: &mut ModifyOutcome) -> Result<()> {
        let target = &self.targets[op.target];
        let ns = &target.ns;
        let kind = match op.kind {
            OpKind::Delete(_) => LogicalOp::Remove,
            _ => LogicalOp::Update,
        };
        let Some(profiled) = ProfiledStatement::begin(&target.ctx, kind, ns, op.document) else {
            return self
                .modify_with(&target.ctx, target, (index, op), done)
                .await;
        };
        let result = self
            .modify_with(profiled.ctx(), target, (index, op), done)
            .await;
        Box::pin(profiled.end(self.ctx, result.as_ref().err())).await;
        result
    }

    async fn modify_with(
        &self,
        ctx: &OpContext,
        target: &Target,
        (index, op): (usize, &Op<'_>),
        done: &mut ModifyOutcome,
    ) -> Result<()> {
        let ns = &target.ns;
        let acquired = acquire_write(ctx, ns.clone(), target.uuid).await?;
        let (retryable, options) = (self.retryable.as_deref(), &self.options);
        let stamp = retryable.and_then(|retryable| retryable.stamp(ns, [index], None));
        let is_retryable = stamp.is_some();
        let parse = |default: Option<&Arc<Collation>>| {
            let statement = options.statement(&op.kind, default)?;
            if is_retryable && statement.multi {
                return Err(Error::new(
                    ErrorCode::INVALID_OPTIONS,
                    "Cannot use retryable writes with multi=true",
                ));
            }
            Ok(statement)
        };
        parse_and_run(ctx, acquired, parse, (index, stamp), retryable, done).await
    }

    async fn reply(mut self, cmd: &Invocation) -> Result<Reply> {
        if self.replies.has_errors() {
            fail(&cmd.ctx);
        }
        let mut out = Reply::new();
        let concern = cmd.ctx.args.write_concern.as_ref();
        if concern.is_some_and(pinion_wire::idl::WriteConcern::is_unacknowledged) {
            if let Some(ts) = self.last {
                written(&cmd.ctx, ts).await;
            }
            return Ok(out);
        }
        let request = CursorRequest::of_list(
            Namespace::parse(BULK_WRITE_CURSOR)?,
            Some(self.options.batch_size.unwrap_or(usize::MAX)),
        );
        let results = Box::new(Stream::List(self.replies.take_documents()));
        first_batch(cmd, results, request, &mut out).await?;
        self.replies.append_counts(&mut out);
        append_retried(&mut out, &self.replies.retried);
        let changed_nothing = self.last.is_none() && self.replies.has_errors();
        if !changed_nothing || is_member() {
            super::acknowledge(&cmd.ctx, self.last, &mut out).await?;
        }
        Ok(out)
    }
}
