//! The operations of a `bulkWrite` on their way to shards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_query::Variables;
use pinion_service::command_checks::check_batch_size;
use pinion_service::generate::new_object_id;
use pinion_service::interrupt::interruptible;
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::{RoutingTable, ShardId, Targets};
use pinion_wire::idl::{Namespace, Path, truthy};
use pinion_wire::{Documents, Error, Invocation, Reply, Result, document_section};

use super::named_in;
use super::operation::{One, Operation, target_of};
use super::results::{Results, has_refused};
use crate::cursor::{CursorKind, first_reply};
use crate::dispatch::{Answer, WhenAbsent, at_primary, may_route_again};
use crate::limits::NUMBER_BYTES;
use crate::placement::{Database, make_database, table_of};
use crate::reads::{definitions, reads_time, variables};
use crate::request::{Request, Versions};
use crate::writes::{
    Added, Plan, Rest, Statements, Unsharded, append_numbers, half_done, is_of_id, number_of,
    statement_numbers, write_one,
};

/// Where a namespace is.
enum Place {
    Sharded(Arc<RoutingTable>),
    At(Arc<Database>),
}

impl Place {
    /// The versions that a request for a shard goes by; `None` where the shard has nothing of it.
    fn versions(&self, shard: &ShardId) -> Option<Versions> {
        match self {
            Place::Sharded(table) => Some(Versions::of_shard(table.shard_version(shard))),
            Place::At(database) if database.primary == *shard => {
                Some(Versions::of_unsharded(Some(database.version)))
            }
            Place::At(_) => None,
        }
    }
}

/// The operations of a command.
pub(super) struct Bulk<'c> {
    pub cmd: &'c Invocation,
    operations: Documents,
    namespaces: Documents,
    /// Those of `nsInfo`; `None` where an entry names none.
    names: Vec<Option<Namespace>>,
    /// Where these are, as far as operations are sent one by one.
    places: Vec<Option<Place>>,
    is_ordered: bool,
    /// The client's own, where it numbers them.
    numbers: Option<Vec<i32>>,
    /// `None` until the filters are looked at.
    vars: Option<Variables>,
    /// Inserts of documents that got an `_id` here, since their keys have it.
    completed: BTreeMap<usize, RawDocumentBuf>,
    results: Results,
    /// What a name gives for an operation that has none.
    nowhere: Namespace,
}

impl<'c> Bulk<'c> {
    pub(super) fn of(cmd: &'c Invocation) -> Result<Bulk<'c>> {
        let operations = cmd.documents("ops")?;
        check_batch_size(&operations)?;
        let namespaces = cmd.documents("nsInfo")?;
        Ok(Bulk {
            names: namespaces.iter().map(named_in).collect(),
            places: Vec::new(),
            is_ordered: pinion_bson::get(cmd.body(), "ordered").is_none_or(truthy),
            numbers: statement_numbers(cmd.body()),
            vars: None,
            completed: BTreeMap::new(),
            results: Results::default(),
            nowhere: Namespace::new("admin", "$cmd.bulkWrite")?,
            cmd,
            operations,
            namespaces,
        })
    }

    /// # Panics
    /// Before operations are sent one by one.
    pub(super) fn vars(&self) -> &Variables {
        let vars = self.vars.as_ref();
        vars.expect("operations are read before they are looked at")
    }

    /// An operation as it is sent.
    pub(super) fn operation(&self, at: usize) -> &RawDocument {
        match self.completed.get(&at) {
            Some(completed) => completed,
            None => self.operations.get(at),
        }
    }

    fn read(&self, at: usize) -> Result<Operation<'_>> {
        let root = Path::root("bulkWrite");
        let path = root.field("ops");
        Operation::read(path.index(at), self.operation(at))
    }

    fn target(&self, at: usize) -> Option<usize> {
        target_of(self.operations.get(at)).filter(|target| *target < self.names.len())
    }

    fn name(&self, at: usize) -> Option<&Namespace> {
        self.names[self.target(at)?].as_ref()
    }

    fn place(&self, at: usize) -> Option<&Place> {
        self.places.get(self.target(at)?)?.as_ref()
    }

    /// The database that all operations are of, if they are of one. Where none names what there
    /// could be, a node says what is wrong with it.
    fn only_database(&self) -> Option<&str> {
        let db = |at| self.name(at).map(Namespace::db);
        let mut all = 0..self.operations.len();
        let Some(first) = all.clone().find_map(db) else {
            return Some("admin");
        };
        all.all(|at| db(at) == Some(first)).then_some(first)
    }

    /// The request for operations, with the versions by which the namespaces at places of `nsInfo`
    /// are sent. Those that a client names are not passed on.
    pub(super) fn request_of(
        &self,
        section: Bytes,
        which: &[usize],
        versions: impl Fn(usize) -> Option<Versions>,
    ) -> Request {
        let cmd = self.cmd;
        Request::with_section(cmd, cmd.db(), None, ("ops", section), |out| {
            out.start_array("nsInfo");
            for (at, ns) in self.namespaces.iter().enumerate() {
                out.push_document();
                for elem in pinion_bson::raw_elements(ns) {
                    if !matches!(elem.name, b"shardVersion" | b"databaseVersion") {
                        out.append_elem(&elem);
                    }
                }
                if let Some(versions) = versions(at) {
                    versions.append_to(out);
                }
                out.end();
            }
            out.end();
            // All results are collected here, whatever batches the client wants.
            out.start_document("cursor").end();
            let reads_time = |at: &usize| reads_time(self.operation(*at).as_bytes());
            if let Some(vars) = self.vars.as_ref().filter(|_| which.iter().any(reads_time)) {
                out.append("let", &*definitions(vars));
            }
            let is_retryable = cmd.ctx.args.txn_number.is_some() && !is_in(&cmd.ctx);
            // All of them have the numbers that the client gives them, or none.
            let is_part = which.len() < self.operations.len();
            if is_part && (is_retryable || self.numbers.is_some()) {
                append_numbers(out, self.numbers.as_deref(), which);
            }
        })
    }

    /// The request for operations on unsharded collections of one database, with the client's
    /// cursor where all are sent.
    fn request_at(&self, db: &str, which: &[usize], versions: Versions) -> Request {
        let operations = which.iter().map(|at| self.operations.get(*at));
        let section = document_section("ops", operations);
        // A version that a command names stands with its collection: this one names many.
        let versions = Versions::of_unsharded(versions.database);
        let is_of_db = |at: usize| {
            let ns: &Option<Namespace> = &self.names[at];
            ns.as_ref().is_some_and(|ns| ns.db() == db)
        };
        let of = |at: usize| is_of_db(at).then_some(versions);
        let request = self.request_of(section, which, of);
        if which.len() < self.operations.len() {
            return request;
        }
        let mut body = DocBuilder::with_capacity(request.body.as_bytes().len());
        for elem in pinion_bson::raw_elements(&request.body) {
            if elem.name != b"cursor" {
                body.append_elem(&elem);
            }
        }
        if let Some(cursor) = pinion_bson::get(self.cmd.body(), "cursor") {
            body.append_raw("cursor", cursor);
        }
        Request {
            body: body.finish(),
            sections: request.sections,
        }
    }

    /// Reads all operations: a mistake in one of them is one of the command, so it is known before
    /// the first is sent.
    async fn prepare(&mut self) -> Result<()> {
        if self.vars.is_none() {
            let reader = self.cmd.reader()?;
            self.vars = Some(variables(reader.opt_doc("let")?)?);
            for at in 0..self.operations.len() {
                pinion_runtime::yield_if_due().await;
                self.read(at)?;
            }
        }
        for at in 0..self.operations.len() {
            self.complete(at);
        }
        Ok(())
    }

    /// Gives a document an `_id` where that is part of the shard key.
    fn complete(&mut self, at: usize) {
        let needs_id = match self.place(at) {
            Some(Place::Sharded(table)) => table.key.paths().any(is_of_id),
            _ => false,
        };
        if !needs_id {
            return;
        }
        let operation = self.operation(at);
        let document = pinion_bson::get(operation, "document");
        let Some(document) = document.and_then(|document| document.as_document()) else {
            return;
        };
        if pinion_bson::get(document, "_id").is_some() {
            return;
        }
        let mut out = DocBuilder::with_capacity(operation.as_bytes().len() + 32);
        for elem in pinion_bson::raw_elements(operation) {
            match elem.name {
                b"document" => {
                    out.start_document("document")
                        .append("_id", new_object_id());
                    out.append_all(document).end();
                }
                _ => {
                    out.append_elem(&elem);
                }
            }
        }
        let completed = out.finish();
        self.completed.insert(at, completed);
    }
}

impl Statements for Bulk<'_> {
    fn cmd(&self) -> &Invocation {
        self.cmd
    }

    fn len(&self) -> usize {
        self.operations.len()
    }

    fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    fn ns(&self, at: usize) -> &Namespace {
        self.name(at).unwrap_or(&self.nowhere)
    }

    fn size_of(&self, at: usize) -> usize {
        self.operation(at).as_bytes().len() + NUMBER_BYTES
    }

    fn changes_one(&self, at: usize) -> bool {
        match self.read(at) {
            Ok(Operation::Insert(_)) => true,
            Ok(Operation::Modify(modify)) => !modify.is_multi,
            _ => false,
        }
    }

    async fn look_up(&mut self) -> Result<bool> {
        let ctx = &self.cmd.ctx;
        let mut places = Vec::with_capacity(self.names.len());
        for ns in &self.names {
            let Some(ns) = ns else {
                places.push(None);
                continue;
            };
            let table = interruptible(ctx, table_of(ns, Targets::Unknown)).await??;
            places.push(table.map(Place::Sharded));
        }
        let is_sharded = places.iter().any(Option::is_some);
        if !is_sharded && self.only_database().is_some() {
            self.places = Vec::new();
            return Ok(false);
        }
        let used: BTreeSet<usize> = (0..self.operations.len())
            .filter_map(|at| self.target(at))
            .collect();
        for at in used {
            if let (None, Some(ns)) = (&places[at], &self.names[at])
                && ns.db() != "local"
            {
                let database = interruptible(ctx, make_database(ns.db(), None)).await??;
                places[at] = Some(Place::At(database));
            }
        }
        self.places = places;
        self.prepare().await?;
        Ok(true)
    }

    fn table(&self, at: usize) -> Option<&Arc<RoutingTable>> {
        match self.place(at) {
            Some(Place::Sharded(table)) => Some(table),
            _ => None,
        }
    }

    async fn run_unsharded(&mut self, which: Vec<usize>) -> Result<Unsharded> {
        let cmd = self.cmd;
        let db = self.only_database().unwrap_or("admin").to_owned();
        let make = |versions: Versions| self.request_at(&db, &which, versions);
        let answer = match at_primary(cmd, &db, WhenAbsent::Make, make).await {
            Ok(answer) => answer,
            Err(error) if may_route_again(cmd, &error, 0) => {
                return Ok(Unsharded::Left(which, Some(error)));
            }
            Err(error) => return Ok(Unsharded::Failed(error)),
        };
        let is_whole = which.len() == self.operations.len();
        if is_whole && (is_in(&cmd.ctx) || !has_refused(answer.body())) {
            let reply = first_reply(cmd, &answer, CursorKind::default())?;
            return Ok(Unsharded::Passed(reply));
        }
        let added = self.add(&answer, &which).await?;
        match self.is_ordered && self.results.has_errors() {
            true => Ok(Unsharded::Left(Vec::new(), None)),
            false => Ok(Unsharded::Left(added.refused, added.stale)),
        }
    }

    fn plan(&self, at: usize, rest: Option<&Rest>) -> Result<Plan> {
        let table = match self.place(at) {
            Some(Place::Sharded(table)) => table,
            Some(Place::At(_)) if rest.is_some() => return Err(half_done(self.ns(at))),
            Some(Place::At(database)) => {
                return Ok(Plan::Sent(BTreeSet::from([database.primary.clone()])));
            }
            // What names no database is refused by the node that gets it.
            None => return Ok(Plan::Sent(BTreeSet::from([ShardId::new(ShardId::CONFIG)]))),
        };
        if let Some(rest) = rest {
            return Plan::of_rest(table, rest);
        }
        match self.read(at)? {
            Operation::Insert(document) => Plan::of_insert(table, document),
            Operation::Modify(modify) => {
                let may_broadcast = !is_in(&self.cmd.ctx);
                Plan::of_modify(table, &modify, self.vars(), may_broadcast)
            }
            Operation::Unknown => {
                let first = table.shard(table.owner(&table.key.min(), None)?);
                Ok(Plan::Sent(BTreeSet::from([first.clone()])))
            }
        }
    }

    fn request(&self, which: &[usize], shard: &ShardId) -> Request {
        let operations = which.iter().map(|at| self.operation(*at));
        let section = document_section("ops", operations);
        let used: BTreeSet<usize> = which.iter().filter_map(|at| self.target(*at)).collect();
        self.request_of(section, which, |at| {
            let place = self.places.get(at)?.as_ref();
            place.filter(|_| used.contains(&at))?.versions(shard)
        })
    }

    async fn find_and_write(&self, at: usize) -> Result<Option<Answer>> {
        let Operation::Modify(modify) = self.read(at)? else {
            return Err(Error::internal("an insert has no document to find"));
        };
        write_one(&One {
            bulk: self,
            at,
            modify,
            ns: self.ns(at),
        })
        .await
    }

    async fn add(&mut self, answer: &Answer, sent: &[usize]) -> Result<Added> {
        let names: Vec<Option<Namespace>> = match number_of(answer.body(), "nErrors") > 0 {
            true => sent.iter().map(|at| self.name(*at).cloned()).collect(),
            false => Vec::new(),
        };
        let mut added = self.results.add(self.cmd, answer, sent, &names).await?;
        if self.is_ordered
            && let Some(first) = added.refused.iter().min().copied()
        {
            added.refused = sent.iter().copied().filter(|at| *at >= first).collect();
        }
        Ok(added)
    }

    fn fail(&mut self, failed: &[usize], error: &Error) {
        self.results.fail(&self.operations, failed, error);
    }

    fn has_errors(&self) -> bool {
        self.results.has_errors()
    }

    fn has_failed(&self, at: usize) -> bool {
        self.results.has_failed(at)
    }

    fn progress(&self) -> usize {
        self.results.progress()
    }

    async fn into_reply(self) -> Result<Reply> {
        self.results.into_reply(self.cmd).await
    }
}
