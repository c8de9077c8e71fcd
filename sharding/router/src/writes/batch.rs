//! The batches `insert`, `update` and `delete`: which parts of a client's command go where.

use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_command::syntax::{BatchSyntax, parse_delete, parse_update};
use pinion_query::{Pipeline, Variables};
use pinion_service::command_checks::check_batch_size;
use pinion_service::generate::new_object_id;
use pinion_service::interrupt::interruptible;
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::{RoutingTable, ShardId, Targets};
use pinion_wire::idl::{Namespace, Path, i64_exact, truthy};
use pinion_wire::{Documents, Error, ErrorCode, Invocation, Reply, Result, document_section};

use super::found::{OneDocument, Said, write_one};
use super::outcome::{
    MergedReply, append_numbers, errors_of, is_stale, number_of, statement_numbers,
};
use super::plan::{Plan, Rest};
use super::statement::{BATCH, Form, Modify, is_of_id};
use super::statements::{Added, Statements, Unsharded};
use crate::dispatch::{Answer, WhenAbsent, at_primary, may_route_again};
use crate::limits::NUMBER_BYTES;
use crate::placement::{table_of, write_error_is_stale};
use crate::reads::{definitions, reads_time, variables};
use crate::reply::passed_on;
use crate::request::{Request, Versions};

/// What the statements of a batch do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchKind {
    Insert,
    Update,
    Delete,
}

impl BatchKind {
    /// The argument that has the statements.
    pub(crate) fn field(self) -> &'static str {
        match self {
            BatchKind::Insert => "documents",
            BatchKind::Update => "updates",
            BatchKind::Delete => "deletes",
        }
    }
}

/// A client's batch.
pub(crate) struct Batch<'c> {
    cmd: &'c Invocation,
    ns: Namespace,
    kind: BatchKind,
    documents: Documents,
    is_ordered: bool,
    /// The client's own, where it numbers them.
    numbers: Option<Vec<i32>>,
    /// Those of the command's filters; `None` until they are looked at.
    vars: Option<Variables>,
    /// Documents that got an `_id` here, since their keys have it.
    completed: BTreeMap<usize, RawDocumentBuf>,
    /// By which statements are sent in this round.
    table: Option<Arc<RoutingTable>>,
    merged: MergedReply,
}

impl<'c> Batch<'c> {
    /// Reads a client's batch, but for its statements.
    ///
    /// # Errors
    /// `InvalidNamespace`, `InvalidLength`; the statements are no list of documents.
    pub(crate) fn read(cmd: &'c Invocation, kind: BatchKind) -> Result<Batch<'c>> {
        let reader = cmd.reader()?;
        let ns = reader.namespace(cmd.message.command_name(), cmd.db())?;
        let documents = cmd.documents(kind.field())?;
        check_batch_size(&documents)?;
        Ok(Batch {
            is_ordered: pinion_bson::get(cmd.body(), "ordered").is_none_or(truthy),
            numbers: statement_numbers(cmd.body()),
            vars: None,
            completed: BTreeMap::new(),
            table: None,
            merged: match kind {
                BatchKind::Update => MergedReply::of_updates(),
                _ => MergedReply::default(),
            },
            cmd,
            ns,
            kind,
            documents,
        })
    }

    /// Reads the statements, which go to shards one by one from here on. A mistake in one of them
    /// is one of the command, so it is known before the first is sent.
    ///
    /// # Errors
    /// Those of the syntax, as far as the router has to know it.
    async fn prepare(&mut self, table: &RoutingTable) -> Result<()> {
        self.complete(table);
        if self.vars.is_some() {
            return Ok(());
        }
        let name = self.cmd.message.command_name();
        let reader = self.cmd.reader()?;
        let options = BatchSyntax::read(&reader, self.cmd.db(), name, self.kind.field())?;
        if self.kind != BatchKind::Insert {
            let root = Path::root(name);
            let path = root.field(self.kind.field());
            for at in 0..self.documents.len() {
                pinion_runtime::yield_if_due().await;
                self.check_syntax(path.index(at), self.documents.get(at))?;
            }
        }
        self.vars = Some(variables(options.lets)?);
        Ok(())
    }

    /// # Errors
    /// Those of a statement's syntax.
    fn check_syntax(&self, path: Path<'_>, statement: &RawDocument) -> Result<()> {
        if self.kind == BatchKind::Delete {
            return parse_delete(path, statement, false).map(drop);
        }
        match parse_update(path, statement, false)?.u {
            RawBsonRef::Array(stages) => Pipeline::check_form(stages),
            _ => Ok(()),
        }
    }

    /// # Panics
    /// Before the batch is prepared.
    fn vars(&self) -> &Variables {
        let vars = self.vars.as_ref();
        vars.expect("a batch is prepared before its statements are looked at")
    }

    /// A statement as it is sent.
    fn statement(&self, at: usize) -> &RawDocument {
        match self.completed.get(&at) {
            Some(completed) => completed,
            None => self.documents.get(at),
        }
    }

    /// A statement of an update or a delete.
    ///
    /// # Errors
    /// Those of its syntax.
    fn modify(&self, at: usize) -> Result<Modify<'_>> {
        let name = self.cmd.message.command_name();
        let root = Path::root(name);
        let path = root.field(self.kind.field());
        let document = self.documents.get(at);
        match self.kind {
            BatchKind::Delete => Modify::of_delete(path.index(at), document),
            _ => Modify::of_update(path.index(at), document),
        }
    }

    /// Gives documents an `_id` where that is part of the shard key: the shard that owns them
    /// follows from it.
    fn complete(&mut self, table: &RoutingTable) {
        if self.kind != BatchKind::Insert || !table.key.paths().any(is_of_id) {
            return;
        }
        for at in 0..self.documents.len() {
            let document = self.statement(at);
            if pinion_bson::get(document, "_id").is_some() {
                continue;
            }
            let mut out = DocBuilder::with_capacity(document.as_bytes().len() + 32);
            out.append("_id", new_object_id()).append_all(document);
            let completed = out.finish();
            self.completed.insert(at, completed);
        }
    }

    /// The request for some of the statements.
    fn request_for(&self, which: &[usize], versions: Versions) -> Request {
        let statements = which.iter().map(|at| self.statement(*at));
        let section = document_section(self.kind.field(), statements);
        self.request_of(section, which, versions)
    }

    /// The request for one statement in another form.
    fn request_in(&self, at: usize, form: &Form<'_>, versions: Versions) -> Request {
        let mut out = DocBuilder::new();
        form.append(&mut out, self.statement(at), BATCH);
        let statement = out.finish();
        let section = document_section(self.kind.field(), [&*statement]);
        self.request_of(section, &[at], versions)
    }

    fn request_of(&self, section: bytes::Bytes, which: &[usize], versions: Versions) -> Request {
        let cmd = self.cmd;
        let part = (self.kind.field(), section);
        Request::with_section(cmd, cmd.db(), versions, part, |out| {
            let is_retryable = cmd.ctx.args.txn_number.is_some() && !is_in(&cmd.ctx);
            // All of them have the numbers that the client gives them, or none.
            let is_part = which.len() < self.documents.len();
            if let Some(vars) = &self.vars
                && self.kind == BatchKind::Update
                && which
                    .iter()
                    .any(|at| reads_time(self.statement(*at).as_bytes()))
            {
                out.append("let", &*definitions(vars));
            }
            if is_part && (is_retryable || self.numbers.is_some()) {
                append_numbers(out, self.numbers.as_deref(), which);
            }
        })
    }
}

/// One statement of a batch, of which one document is changed.
struct One<'b> {
    batch: &'b Batch<'b>,
    at: usize,
    modify: Modify<'b>,
}

impl<'c> Batch<'c> {
    /// The statement at a place.
    ///
    /// # Errors
    /// Those of its syntax.
    fn one(&self, at: usize) -> Result<One<'_>> {
        Ok(One {
            batch: self,
            at,
            modify: self.modify(at)?,
        })
    }
}

impl OneDocument for One<'_> {
    fn cmd(&self) -> &Invocation {
        self.batch.cmd
    }

    fn ns(&self) -> &Namespace {
        &self.batch.ns
    }

    fn vars(&self) -> &Variables {
        self.batch.vars()
    }

    fn modify(&self) -> &Modify<'_> {
        &self.modify
    }

    fn request(&self, form: &Form<'_>, versions: Versions) -> Request {
        self.batch.request_in(self.at, form, versions)
    }

    fn said(&self, reply: &RawDocument) -> Said {
        Said {
            n: number_of(reply, "n"),
            is_retried: pinion_bson::get(reply, "retriedStmtIds").is_some(),
        }
    }

    fn error<'r>(&self, reply: &'r RawDocument) -> Option<(ErrorCode, &'r RawDocument)> {
        errors_of(reply)
            .next()
            .map(|(_, code, entry)| (code, entry))
    }
}

impl Statements for Batch<'_> {
    fn cmd(&self) -> &Invocation {
        self.cmd
    }

    fn len(&self) -> usize {
        self.documents.len()
    }

    fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    fn ns(&self, _: usize) -> &Namespace {
        &self.ns
    }

    fn size_of(&self, at: usize) -> usize {
        self.statement(at).as_bytes().len() + NUMBER_BYTES
    }

    fn changes_one(&self, at: usize) -> bool {
        match self.kind {
            BatchKind::Insert => true,
            _ => self.modify(at).is_ok_and(|modify| !modify.is_multi),
        }
    }

    async fn look_up(&mut self) -> Result<bool> {
        let table = table_of(&self.ns, Targets::Unknown);
        self.table = interruptible(&self.cmd.ctx, table).await??;
        if let Some(table) = self.table.clone() {
            self.prepare(&table).await?;
        }
        Ok(self.table.is_some())
    }

    fn table(&self, _: usize) -> Option<&Arc<RoutingTable>> {
        self.table.as_ref()
    }

    async fn run_unsharded(&mut self, which: Vec<usize>) -> Result<Unsharded> {
        let cmd = self.cmd;
        let is_first = self.merged.is_empty() && which.len() == self.documents.len();
        let make = |versions: Versions| match is_first {
            true => Request::of(cmd, cmd.db(), versions),
            false => self.request_for(&which, versions),
        };
        let answer = match at_primary(cmd, cmd.db(), WhenAbsent::Make, make).await {
            Ok(answer) => answer,
            Err(error) if may_route_again(cmd, &error, 0) => {
                return Ok(Unsharded::Left(which, Some(error)));
            }
            Err(error) => return Ok(Unsharded::Failed(error)),
        };
        let (refused, stale) = self.refused_in(answer.body(), &which).await?;
        if is_first && refused.is_empty() {
            return Ok(Unsharded::Passed(passed_on(answer.body())));
        }
        let place = (&self.ns, None);
        self.merged.add(place, answer.body(), &which, &refused);
        match self.is_ordered && self.merged.has_errors() {
            true => Ok(Unsharded::Left(Vec::new(), None)),
            false => Ok(Unsharded::Left(refused, stale)),
        }
    }

    fn plan(&self, at: usize, rest: Option<&Rest>) -> Result<Plan> {
        let Some(table) = &self.table else {
            return Err(Error::internal("a batch is planned by a table"));
        };
        match (rest, self.kind) {
            (Some(rest), _) => Plan::of_rest(table, rest),
            (None, BatchKind::Insert) => Plan::of_insert(table, self.statement(at)),
            (None, _) => {
                let may_broadcast = !is_in(&self.cmd.ctx);
                let modify = self.modify(at)?;
                // Where the filter is wrong too, the update is reported.
                modify.check_update(self.vars(), table)?;
                Plan::of_modify(table, &modify, self.vars(), may_broadcast)
            }
        }
    }

    fn request(&self, which: &[usize], shard: &ShardId) -> Request {
        let version = self.table.as_ref().map(|table| table.shard_version(shard));
        let versions = version.map(Versions::of_shard).unwrap_or_default();
        self.request_for(which, versions)
    }

    async fn find_and_write(&self, at: usize) -> Result<Option<Answer>> {
        write_one(&self.one(at)?).await
    }

    async fn add(&mut self, answer: &Answer, sent: &[usize]) -> Result<Added> {
        let (refused, stale) = self.refused_in(answer.body(), sent).await?;
        let place = (&self.ns, Some(&answer.shard));
        self.merged.add(place, answer.body(), sent, &refused);
        Ok(Added {
            refused,
            stale,
            changed: pinion_bson::get(answer.body(), "n").and_then(i64_exact),
        })
    }

    fn fail(&mut self, failed: &[usize], error: &Error) {
        self.merged.fail(failed, error);
    }

    fn has_errors(&self) -> bool {
        self.merged.has_errors()
    }

    fn has_failed(&self, at: usize) -> bool {
        self.merged.has_failed(at)
    }

    fn progress(&self) -> usize {
        self.merged.progress()
    }

    async fn into_reply(self) -> Result<Reply> {
        Ok(self.merged.finish())
    }
}

impl Batch<'_> {
    /// Which statements of those that were sent the shard has refused since the sender's version
    /// was old, by their places in the client's batch, and one of the errors; where there is an
    /// order, what stands behind one was not executed either. In a transaction they are errors: it
    /// has ended.
    async fn refused_in(
        &self,
        reply: &RawDocument,
        sent: &[usize],
    ) -> Result<(Vec<usize>, Option<Error>)> {
        let (mut refused, mut stale) = (Vec::new(), None);
        if is_in(&self.cmd.ctx) {
            return Ok((refused, stale));
        }
        for (at, code, entry) in errors_of(reply) {
            let Some(place) = sent.get(at).filter(|_| is_stale(code)) else {
                continue;
            };
            if stale.is_none() {
                stale = Some(write_error_is_stale(self.cmd.db(), entry).await?);
            }
            refused.push(*place);
        }
        if self.is_ordered
            && let Some(first) = refused.first()
        {
            refused = sent.iter().copied().filter(|at| at >= first).collect();
        }
        Ok((refused, stale))
    }
}
