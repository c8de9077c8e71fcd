//! `applyOps`: operations as the oplog has them, one after the other. Tools replay a dumped oplog
//! by it.

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_catalog::{Uuid, core_catalog};
use pinion_clock::Timestamp;
use pinion_exec::acquire::acquire_write;
use pinion_exec::commands::insert::InsertBatch;
use pinion_exec::commands::{acknowledge, capped, coll_mod, collections, create, indexes};
use pinion_exec::write::{
    BatchOutcome, Change, InsertOptions, ModifyOutcome, ModifyStatement, Validation, run,
};
use pinion_query::{Matcher, Update};
use pinion_runtime::LocalBoxFuture;
use pinion_service::interrupt::{check, interruptible, is_interruption};
use pinion_service::login::forget_users;
use pinion_wire::idl::{Namespace, Path, Types, missing_field, wrong_type};
use pinion_wire::{Error, ErrorCode, Invocation, Message, OpContext, Reply, Result};

use crate::applier::update_of;
use crate::limits::MAX_APPLY_OPS_DEPTH;

/// `applyOps`. Fields that it does not know it passes over, as MongoDB does.
pub(crate) async fn apply_ops(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    check_options(cmd.body())?;
    let bypassed = reader.opt_safe_bool("bypassDocumentValidation")?;
    let applying = Applying {
        cmd: &cmd,
        validation: Validation::unless(bypassed),
    };
    let operations = operations_of(cmd.body())?;
    let mut done = Done::default();
    let applied = applying.all(&operations, 0, &mut done).await;
    // Any of them may be about users.
    forget_users().await;
    let mut out = Reply::new();
    match applied {
        Err(error) if is_interruption(&error) => return Err(error),
        Err(error) => return Err(error.with_extra(done.document())),
        Ok(()) if done.results.contains(&false) => {
            let error = Error::new(
                ErrorCode::UNKNOWN_ERROR,
                "applyOps had one or more errors applying ops",
            );
            return Err(error.with_extra(done.document()));
        }
        Ok(()) => out.append_all(&done.document()),
    };
    acknowledge(&cmd.ctx, done.last, &mut out).await?;
    Ok(out)
}

/// Refuses what earlier versions took, and what only entries of transactions have.
fn check_options(body: &RawDocument) -> Result<()> {
    let root = Path::root("applyOps");
    let refused = |code, what: &str| Err(Error::new(ErrorCode(code), what));
    for (name, value) in pinion_bson::elements(body) {
        let is_bool = matches!(value, RawBsonRef::Boolean(_));
        match name {
            "alwaysUpsert" | "partialTxn" | "prepare" if !is_bool => {
                return Err(wrong_type(root.field(name), value, Types::BOOL));
            }
            "alwaysUpsert" if value == RawBsonRef::Boolean(true) => {
                return refused(6_711_601, "The alwaysUpsert option is no longer supported");
            }
            "preCondition" => {
                return refused(6_711_600, "The preCondition option is no longer supported");
            }
            "partialTxn" => {
                return refused(31_056, "applyOps command cannot have 'partialTxn' field");
            }
            "count" if !matches!(value, RawBsonRef::Int64(_)) => {
                return Err(wrong_type(root.field(name), value, Types::LONG));
            }
            "count" => return refused(31_056, "applyOps command cannot have 'count' field"),
            "prepare" => {
                return Err(Error::bad_value(
                    "applyOps command cannot have 'prepare' field",
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// One operation, as far as it was examined before any is applied.
struct Operation<'d> {
    op: &'d str,
    ns: &'d str,
    whole: &'d RawDocument,
}

/// The operations of the command's own field, each with an `op` and a namespace.
fn operations_of(body: &RawDocument) -> Result<Vec<Operation<'_>>> {
    let root = Path::root("applyOps");
    let list = match pinion_bson::get(body, "applyOps") {
        Some(RawBsonRef::Array(list)) => list,
        Some(other) => return Err(wrong_type(root.field("applyOps"), other, Types::ARRAY)),
        None => return Err(missing_field(root.field("applyOps"))),
    };
    let mut operations = Vec::new();
    for value in pinion_bson::values(list) {
        let RawBsonRef::Document(whole) = value else {
            let path = root.field("applyOps");
            return Err(wrong_type(
                path.index(operations.len()),
                value,
                Types::OBJECT,
            ));
        };
        operations.push(read_operation(whole)?);
    }
    Ok(operations)
}

fn read_operation(whole: &RawDocument) -> Result<Operation<'_>> {
    let illegal = |what: &str| Err(Error::new(ErrorCode::ILLEGAL_OPERATION, what));
    let op = match pinion_bson::get(whole, "op") {
        Some(RawBsonRef::String(op)) => op,
        Some(other) => {
            let found = pinion_bson::type_name(other.element_type());
            return Err(Error::type_mismatch(format!(
                "\"op\" had the wrong type. Expected string, found {found}"
            )));
        }
        None => {
            return Err(Error::new(
                ErrorCode::NO_SUCH_KEY,
                "Missing expected field \"op\"",
            ));
        }
    };
    if op.is_empty() {
        return illegal("An operation of applyOps has an empty 'op'");
    }
    let ns = match pinion_bson::get(whole, "ns") {
        Some(RawBsonRef::String(ns)) if !ns.is_empty() => ns,
        _ if op == "n" => "",
        _ => return illegal("An operation of applyOps has no namespace"),
    };
    if !matches!(op, "i" | "u" | "d" | "c" | "n") {
        return Err(Error::bad_value(format!(
            "Unrecognized op type '{op}' in an operation of applyOps"
        )));
    }
    Ok(Operation { op, ns, whole })
}

impl Operation<'_> {
    fn document(&self, name: &'static str) -> Result<&RawDocument> {
        let root = Path::root("OplogEntryBase");
        match pinion_bson::get(self.whole, name) {
            Some(RawBsonRef::Document(document)) => Ok(document),
            Some(other) => Err(wrong_type(root.field(name), other, Types::OBJECT)),
            None => Err(missing_field(root.field(name))),
        }
    }

    /// The collection, which has to be there: found by its UUID if that is given.
    fn namespace(&self) -> Result<Namespace> {
        let catalog = core_catalog().current();
        let found = match pinion_bson::get(self.whole, "ui") {
            Some(uuid) => Uuid::from_bson(uuid)
                .and_then(|uuid| catalog.by_uuid(uuid))
                .map(|collection| collection.ns.clone()),
            None => {
                let ns = Namespace::parse(self.ns)?;
                let is_there = catalog.get(&ns).is_some() || catalog.view(&ns).is_some();
                is_there.then_some(ns)
            }
        };
        found.ok_or_else(|| {
            Error::new(
                ErrorCode::NAMESPACE_NOT_FOUND,
                format!(
                    "Failed to apply operation due to missing collection: {}",
                    pinion_query::document_text(self.whole)
                ),
            )
        })
    }
}

/// What was applied.
#[derive(Default)]
struct Done {
    /// Of each operation whether it found what it changes.
    results: Vec<bool>,
    last: Option<Timestamp>,
}

impl Done {
    fn document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("applied", self.results.len() as i32);
        out.start_array("results");
        for result in &self.results {
            out.push(*result);
        }
        out.end();
        out.finish()
    }
}

/// The `_id` of what an operation is about, as a filter.
fn by_id(document: &RawDocument) -> Result<(Matcher, RawDocumentBuf)> {
    let Some(id) = pinion_bson::get(document, "_id") else {
        return Err(Error::new(
            ErrorCode::NO_SUCH_KEY,
            format!(
                "Failed to apply operation due to missing _id: {}",
                pinion_query::document_text(document)
            ),
        ));
    };
    let filter = rawdoc! { "_id": { "$eq": RawBson::from(id) } };
    Ok((Matcher::parse(&filter)?, filter))
}

/// Applies the operations of one command.
struct Applying<'c> {
    cmd: &'c Invocation,
    validation: Validation,
}

impl Applying<'_> {
    /// Applies operations up to the first that is wrong. One that does not find its document is
    /// reported in the results.
    async fn all(&self, operations: &[Operation<'_>], depth: usize, done: &mut Done) -> Result<()> {
        for operation in operations {
            check(&self.cmd.ctx)?;
            let applied = match operation.op {
                "n" => continue,
                "i" => self.insert(operation, done).await,
                "u" => self.update(operation, done).await,
                "d" => self.delete(operation, done).await,
                _ => Box::pin(self.command(operation, depth, done)).await,
            };
            match applied {
                Ok(found) => done.results.push(found),
                Err(error) => {
                    done.results.push(false);
                    return Err(error);
                }
            }
            pinion_runtime::yield_if_due().await;
        }
        Ok(())
    }

    /// Inserts a document; one that is there with its `_id` is replaced.
    async fn insert(&self, operation: &Operation<'_>, done: &mut Done) -> Result<bool> {
        let document = operation.document("o")?;
        let (matcher, filter) = by_id(document)?;
        let ns = operation.namespace()?;
        let acquired = acquire_write(&self.cmd.ctx, ns.clone(), None).await?;
        let batch = InsertBatch {
            options: InsertOptions {
                validation: self.validation,
                ..InsertOptions::default()
            },
            keep_empty_timestamps: true,
        };
        let mut outcome = BatchOutcome::default();
        let documents = [(0, document)].into_iter();
        (batch.insert(&self.cmd.ctx, acquired, documents, &mut outcome)).await?;
        done.last = done.last.max(outcome.last);
        match outcome.errors.pop() {
            None => Ok(true),
            Some(failure) if failure.error.code == ErrorCode::DUPLICATE_KEY => {
                let change = Change::Update(Update::from_logged(document));
                self.modify(ns, (matcher, filter), change, done).await?;
                Ok(true)
            }
            Some(failure) => Err(failure.error),
        }
    }

    async fn update(&self, operation: &Operation<'_>, done: &mut Done) -> Result<bool> {
        let o = operation.document("o")?;
        let target = by_id(operation.document("o2")?)?;
        let ns = operation.namespace()?;
        let update = update_of(o)?;
        self.modify(ns, target, Change::Update(update), done).await
    }

    /// Deletes a document. That it is gone already is no error.
    async fn delete(&self, operation: &Operation<'_>, done: &mut Done) -> Result<bool> {
        let target = by_id(operation.document("o")?)?;
        let ns = operation.namespace()?;
        self.modify(ns, target, Change::Delete, done).await?;
        Ok(true)
    }

    /// Changes the one document; false where it is not there.
    async fn modify(
        &self,
        ns: Namespace,
        (matcher, filter): (Matcher, RawDocumentBuf),
        change: Change,
        done: &mut Done,
    ) -> Result<bool> {
        let statement = ModifyStatement {
            validation: self.validation,
            ..ModifyStatement::plain(matcher, filter, change)
        };
        let acquired = acquire_write(&self.cmd.ctx, ns, None).await?;
        let mut outcome = ModifyOutcome::default();
        let changed = run(&self.cmd.ctx, acquired, &statement, &mut outcome).await;
        done.last = done.last.max(outcome.last);
        changed?;
        Ok(outcome.matched > 0)
    }

    /// Runs the command that an entry of a change of the catalog means.
    async fn command(
        &self,
        operation: &Operation<'_>,
        depth: usize,
        done: &mut Done,
    ) -> Result<bool> {
        let o = operation.document("o")?;
        let Some(db) = operation.ns.strip_suffix(".$cmd") else {
            return Err(Error::new(
                ErrorCode::INVALID_NAMESPACE,
                format!("invalid ns: {}", operation.ns),
            ));
        };
        let name = pinion_bson::elements(o).next().map_or("", |(name, _)| name);
        if name == "applyOps" {
            if depth >= MAX_APPLY_OPS_DEPTH {
                return Err(Error::failed_to_parse(
                    "applyOps operations stand in one another too deep",
                ));
            }
            self.all(&operations_of(o)?, depth + 1, done).await?;
            return Ok(true);
        }
        let Some(body) = command_of(name, o)? else {
            return Ok(true);
        };
        // The context of the inner command is one of its database, and is not killed with this one.
        let ran = run_command(name, self.invocation(db, body));
        match interruptible(&self.cmd.ctx, ran).await? {
            Ok(_) => Ok(true),
            Err(error) if is_done_already(name, &error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// A command on a database, as a part of this one.
    fn invocation(&self, db: &str, body: RawDocumentBuf) -> Invocation {
        let outer = &self.cmd.ctx;
        let (client, args) = (outer.client.clone(), outer.args.clone());
        let ctx = OpContext::new(
            outer.op_id,
            client,
            outer.command,
            db,
            args,
            outer.started_ns,
        );
        Invocation {
            message: Message::from_body(body),
            ctx: ctx.with_deadline(outer.deadline_ns),
            ..self.cmd.clone()
        }
    }
}

fn run_command(name: &str, invocation: Invocation) -> LocalBoxFuture<'_, Result<Reply>> {
    Box::pin(async move {
        match name {
            "create" => create::create(invocation).await,
            "collMod" => coll_mod::coll_mod(invocation).await,
            "drop" => collections::drop(invocation).await,
            "dropDatabase" => collections::drop_database(invocation).await,
            "renameCollection" => collections::rename_collection(invocation).await,
            "convertToCapped" => capped::convert_to_capped(invocation).await,
            "createIndexes" | "commitIndexBuild" => indexes::create_indexes(invocation).await,
            "dropIndexes" | "deleteIndexes" | "deleteIndex" | "dropIndex" => {
                indexes::drop_indexes(invocation).await
            }
            other => Err(Error::bad_value(format!(
                "Invalid key '{other}' found in field 'o'"
            ))),
        }
    })
}

/// The command that an entry of the oplog means; `None` where nothing is to be done.
fn command_of(name: &str, o: &RawDocument) -> Result<Option<RawDocumentBuf>> {
    let mut out = DocBuilder::new();
    match name {
        // An index is built when its build is complete.
        "startIndexBuild" | "abortIndexBuild" => return Ok(None),
        // The entry of one index has its specification beside the name of the collection.
        "createIndexes" if pinion_bson::get(o, "indexes").is_none() => {
            let mut fields = pinion_bson::elements(o);
            if let Some((_, collection)) = fields.next() {
                out.append_raw("createIndexes", collection);
            }
            out.start_array("indexes").push_document();
            for (field, value) in fields {
                out.append_raw(field, value);
            }
            out.end().end();
        }
        "commitIndexBuild" => {
            let indexes = pinion_bson::get(o, "indexes");
            let (Some((_, collection)), Some(indexes)) = (pinion_bson::elements(o).next(), indexes)
            else {
                return Err(missing_field(
                    Path::root("commitIndexBuild").field("indexes"),
                ));
            };
            out.append_raw("createIndexes", collection)
                .append_raw("indexes", indexes);
        }
        "deleteIndexes" | "deleteIndex" | "dropIndex" => {
            for (field, value) in pinion_bson::elements(o) {
                let field = if field == name { "dropIndexes" } else { field };
                out.append_raw(field, value);
            }
        }
        _ => {
            out.append_all(o);
        }
    }
    Ok(Some(out.finish()))
}

/// Whether an error says that what is asked for is done: a log may be applied to data to which it
/// was applied before.
fn is_done_already(command: &str, error: &Error) -> bool {
    let done: &[ErrorCode] = match command {
        "create" => &[ErrorCode::NAMESPACE_EXISTS],
        "drop" | "dropDatabase" | "convertToCapped" => &[ErrorCode::NAMESPACE_NOT_FOUND],
        "renameCollection" => &[ErrorCode::NAMESPACE_NOT_FOUND, ErrorCode::NAMESPACE_EXISTS],
        "createIndexes" | "commitIndexBuild" => &[
            ErrorCode::INDEX_ALREADY_EXISTS,
            ErrorCode::NAMESPACE_NOT_FOUND,
        ],
        "collMod" | "dropIndexes" | "deleteIndexes" | "deleteIndex" | "dropIndex" => {
            &[ErrorCode::INDEX_NOT_FOUND, ErrorCode::NAMESPACE_NOT_FOUND]
        }
        _ => &[],
    };
    done.contains(&error.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(operation: RawDocumentBuf, expected: std::result::Result<&str, i32>) {
        let body = rawdoc! { "applyOps": [operation] };
        let found = operations_of(&body).map(|operations| operations[0].op.to_owned());
        let expected = expected.map(str::to_owned);
        assert_eq!(found.map_err(|error| error.code.0), expected, "{body:?}");
    }

    #[test]
    fn what_operations_have() {
        check(
            rawdoc! { "op": "i", "ns": "d.c", "o": { "_id": 1 } },
            Ok("i"),
        );
        check(rawdoc! { "op": "n" }, Ok("n"));
        check(rawdoc! {}, Err(4));
        check(rawdoc! { "op": 1, "ns": "d.c" }, Err(14));
        check(rawdoc! { "op": "", "ns": "d.c" }, Err(20));
        check(rawdoc! { "op": "i" }, Err(20));
        check(rawdoc! { "op": "i", "ns": "" }, Err(20));
        check(rawdoc! { "op": "x", "ns": "d.c" }, Err(2));
        let body = rawdoc! { "applyOps": [1] };
        let wrong = operations_of(&body);
        assert!(wrong.is_err_and(|error| error.code == ErrorCode::TYPE_MISMATCH));
    }

    #[test]
    fn entries_of_indexes_are_commands() {
        let check = |o: RawDocumentBuf, expected: Option<RawDocumentBuf>| {
            let (name, _) = pinion_bson::elements(&o).next().expect("a name");
            assert_eq!(command_of(name, &o).expect("well formed"), expected);
        };
        let made = rawdoc! { "createIndexes": "c", "indexes": [{ "v": 2, "key": { "a": 1 }, "name": "a_1" }] };
        check(
            rawdoc! { "createIndexes": "c", "v": 2, "key": { "a": 1 }, "name": "a_1" },
            Some(made.clone()),
        );
        check(
            rawdoc! { "commitIndexBuild": "c", "indexBuildUUID": 1, "indexes": [{ "v": 2, "key": { "a": 1 }, "name": "a_1" }] },
            Some(made),
        );
        check(rawdoc! { "startIndexBuild": "c" }, None);
        check(
            rawdoc! { "deleteIndexes": "c", "index": "a_1" },
            Some(rawdoc! { "dropIndexes": "c", "index": "a_1" }),
        );
    }
}
