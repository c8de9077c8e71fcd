//! Writes at the shards of the cluster.

use pinion_bson::{
    DocBuilder, ObjectId, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, get, rawdoc,
};
use pinion_query::{Matcher, SortPattern, Update, UpdateContext};
use pinion_sharding_protocol::{Form, ShardVersion, StaleReason};
use pinion_wire::idl::{Path, i64_exact, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::local::variables;
use super::nodes::{Member, collection_of, stale_info};
use super::world::{DB, Executed, World};

/// A statement that changes documents.
struct Statement<'d> {
    filter: &'d RawDocument,
    update: Option<RawBsonRef<'d>>,
    is_multi: bool,
    is_upsert: bool,
    sort: Option<&'d RawDocument>,
    /// Collation and variables.
    source: &'d RawDocument,
}

fn flag(document: &RawDocument, name: &str) -> bool {
    get(document, name).is_some_and(truthy)
}

fn document<'d>(of: &'d RawDocument, name: &str) -> Option<&'d RawDocument> {
    get(of, name).and_then(|value| value.as_document())
}

/// The session of a command, and the number of its transaction.
fn session(cmd: &Invocation) -> Option<(String, i64)> {
    let lsid = document(cmd.body(), "lsid")?;
    let number = get(cmd.body(), "txnNumber").and_then(i64_exact)?;
    Some((pinion_query::document_text(lsid), number))
}

fn context(is_insert: bool) -> UpdateContext {
    UpdateContext {
        now_ms: 0,
        timestamp: pinion_bson::Timestamp {
            time: 1,
            increment: 1,
        },
        insert: is_insert,
        position: None,
    }
}

/// Executes a statement at a shard.
fn modify(
    world: &mut World,
    collection: &str,
    shard: usize,
    statement: &Statement<'_>,
) -> Result<Executed> {
    let vars = variables(statement.source)?;
    let matcher = Matcher::parse_query(statement.filter, &vars)?;
    let update = match statement.update {
        Some(update) => Some(Update::parse_with(update, None, &vars)?),
        None => None,
    };
    let matches = |found: &RawDocument| matcher.matches(found).expect("it can be compared");
    let mut first = None;
    if let Some(sort) = statement.sort {
        let sort = SortPattern::parse_find(sort)?.with_collation(vars.collation.clone());
        let mut part = world.part(collection, shard);
        part.retain(|found| matches(found));
        part.sort_by_cached_key(|found| sort.sort_key(&**found).expect("a key"));
        first = part.into_iter().next();
    }
    let is_meant = |found: &RawDocument| match &first {
        Some(first) => **first == *found,
        None => matches(found),
    };
    let limit = if statement.is_multi { usize::MAX } else { 1 };
    let new = |old: &RawDocument| {
        let update = update.as_ref()?;
        let new = update.apply(old, &context(false)).expect("it applies");
        Some(new.unwrap_or_else(|| old.to_owned()))
    };
    let changed = world.change(collection, shard, is_meant, limit, new);
    if changed.is_empty() && statement.is_upsert {
        let update = update.expect("an upsert is an update");
        world.next_cursor += 1;
        let mut id = [0; 12];
        id[..8].copy_from_slice(&world.next_cursor.to_be_bytes());
        let id = ObjectId::from_bytes(id);
        let made = update.upsert(&matcher, &context(true), id)?;
        let id = get(&made, "_id").map(RawBson::from);
        insert(world, collection, shard, &made)?;
        return Ok(Executed {
            n: 1,
            upserted: id,
            new: Some(made),
            ..Executed::default()
        });
    }
    let differs = changed
        .iter()
        .filter(|(old, new)| Some(old) != new.as_ref());
    let n_modified = differs.count() as i32;
    let (old, new) = match changed.first().cloned() {
        Some((old, new)) => (Some(old), new),
        None => (None, None),
    };
    Ok(Executed {
        n: changed.len() as i32,
        n_modified,
        upserted: None,
        old,
        new,
    })
}

fn insert(world: &mut World, collection: &str, shard: usize, made: &RawDocument) -> Result<()> {
    assert!(world.owns(collection, shard, made), "{made:?}");
    let id = get(made, "_id");
    let part = world.part(collection, shard);
    if part.iter().any(|found| get(found, "_id") == id) {
        return Err(Error::new(ErrorCode::DUPLICATE_KEY, "E11000 duplicate key"));
    }
    world.insert(collection, vec![made.to_owned()]);
    Ok(())
}

/// The reply to a batch.
#[derive(Default)]
struct Batch {
    n: i32,
    n_modified: i32,
    upserted: Vec<(usize, RawBson)>,
    errors: Vec<RawDocumentBuf>,
    retried: Vec<i32>,
}

impl Batch {
    fn add(&mut self, at: usize, done: Executed) {
        self.n += done.n;
        self.n_modified += done.n_modified;
        self.upserted.extend(done.upserted.map(|id| (at, id)));
    }

    fn reply(self, is_update: bool) -> Reply {
        let mut reply = Reply::new();
        reply.append("n", self.n);
        if is_update {
            reply.append("nModified", self.n_modified);
        }
        if !self.upserted.is_empty() {
            reply.start_array("upserted");
            for (at, id) in &self.upserted {
                reply.push_document().append("index", *at as i32);
                reply.append_raw("_id", id.as_raw_bson_ref()).end();
            }
            reply.end();
        }
        if !self.errors.is_empty() {
            reply.start_array("writeErrors");
            for error in &self.errors {
                reply.push(&**error);
            }
            reply.end();
        }
        append_retried(&mut reply, &self.retried);
        reply
    }
}

fn append_retried(reply: &mut DocBuilder, retried: &[i32]) {
    if retried.is_empty() {
        return;
    }
    reply.start_array("retriedStmtIds");
    for id in retried {
        reply.push(*id);
    }
    reply.end();
}

/// The numbers of statements: those that are sent, or their places.
fn numbers_of(body: &RawDocument, count: usize) -> Vec<i32> {
    let numbers: Vec<i32> = match get(body, "stmtIds") {
        Some(RawBsonRef::Array(ids)) => pinion_bson::values(ids)
            .filter_map(|id| id.as_i32())
            .collect(),
        _ => (0..count as i32).collect(),
    };
    assert_eq!(numbers.len(), count);
    numbers
}

/// Executes an operation of a `bulkWrite`.
fn operate(
    world: &mut World,
    collection: &str,
    shard: usize,
    operation: &RawDocument,
) -> Result<Executed> {
    if let Some(made) = document(operation, "document") {
        insert(world, collection, shard, made)?;
        return Ok(Executed {
            n: 1,
            ..Executed::default()
        });
    }
    let statement = Statement {
        filter: document(operation, "filter").expect("a filter"),
        update: get(operation, "updateMods"),
        is_multi: flag(operation, "multi"),
        is_upsert: flag(operation, "upsert"),
        sort: document(operation, "sort"),
        source: operation,
    };
    modify(world, collection, shard, &statement)
}

impl Member {
    pub async fn insert(self, cmd: Invocation) -> Result<Reply> {
        self.statements(
            cmd,
            "documents",
            |world, collection, shard, statement, _| {
                insert(world, collection, shard, statement)?;
                Ok(Executed {
                    n: 1,
                    ..Executed::default()
                })
            },
        )
        .await
    }

    pub async fn update(self, cmd: Invocation) -> Result<Reply> {
        self.statements(cmd, "updates", |world, collection, shard, statement, _| {
            let statement = Statement {
                filter: document(statement, "q").expect("a filter"),
                update: get(statement, "u"),
                is_multi: flag(statement, "multi"),
                is_upsert: flag(statement, "upsert"),
                sort: document(statement, "sort"),
                source: statement,
            };
            modify(world, collection, shard, &statement)
        })
        .await
    }

    pub async fn delete(self, cmd: Invocation) -> Result<Reply> {
        self.statements(cmd, "deletes", |world, collection, shard, statement, _| {
            let statement = Statement {
                filter: document(statement, "q").expect("a filter"),
                update: None,
                is_multi: !flag(statement, "limit"),
                is_upsert: false,
                sort: None,
                source: statement,
            };
            modify(world, collection, shard, &statement)
        })
        .await
    }

    /// Executes the statements of a batch with time between them, in which versions may change.
    async fn statements(
        self,
        cmd: Invocation,
        field: &str,
        execute: impl Fn(&mut World, &str, usize, &RawDocument, usize) -> Result<Executed>,
    ) -> Result<Reply> {
        let Some(shard) = self.shard else {
            // Routers note there that they are alive.
            return Err(Error::new(
                ErrorCode::COMMAND_NOT_FOUND,
                "not in this world",
            ));
        };
        self.enter(&cmd, shard, cmd.body()).await?;
        let collection = collection_of(cmd.body()).to_owned();
        let sent = get(cmd.body(), "shardVersion").expect("a version");
        let sent = ShardVersion::parse(Path::root("shardVersion"), sent)?;
        let is_ordered = get(cmd.body(), "ordered").is_none_or(truthy);
        let statements = cmd.documents(field)?;
        let numbers = numbers_of(cmd.body(), statements.len());
        let is_retryable = get(cmd.body(), "autocommit").is_none();
        let session = session(&cmd).filter(|_| is_retryable);
        let mut batch = Batch::default();
        for (at, statement) in statements.iter().enumerate() {
            if at > 0 {
                self.work().await;
            }
            let mut world = self.world.borrow_mut();
            let wanted = world.version(&collection, shard);
            if !sent.is_placement_equal(wanted) {
                let info = stale_info(&mut world, &collection, shard, sent);
                let error = info.write_error(at as i32, StaleReason::Mismatch, Form::Own);
                batch.errors.push(error);
            } else if !world.is_sharded(&collection) && shard != world.primary {
                world.refused += 1;
                let mut error = rawdoc! { "index": at as i32, "code": 249, "errmsg": "moved" };
                error.append(pinion_bson::cstr!("db"), DB);
                batch.errors.push(error);
            } else {
                let number = session
                    .as_ref()
                    .map(|(lsid, number)| (shard, lsid.clone(), *number, numbers[at]));
                let before = number
                    .as_ref()
                    .and_then(|key| world.executed.get(key).cloned());
                if let Some(before) = before {
                    batch.add(at, before);
                    batch.retried.push(numbers[at]);
                    continue;
                }
                match execute(&mut world, &collection, shard, statement, at) {
                    Ok(done) => {
                        if let Some(number) = number.filter(|_| done.n > 0) {
                            world.executed.insert(number, done.clone());
                        }
                        batch.add(at, done);
                        continue;
                    }
                    Err(error) => batch.errors.push(rawdoc! {
                        "index": at as i32, "code": error.code.0, "errmsg": error.message,
                    }),
                }
            }
            if is_ordered {
                break;
            }
        }
        Ok(batch.reply(field == "updates"))
    }

    /// Executes the operations of a `bulkWrite`, as batches.
    pub async fn bulk_write(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers are not written");
        self.work().await;
        let (namespaces, operations) = (cmd.documents("nsInfo")?, cmd.documents("ops")?);
        let numbers = numbers_of(cmd.body(), operations.len());
        let is_ordered = get(cmd.body(), "ordered").is_none_or(truthy);
        let session = session(&cmd);
        let mut counts = [0; 5];
        let (mut results, mut retried, mut errors) = (Vec::new(), Vec::new(), 0);
        for (at, operation) in operations.iter().enumerate() {
            let (kind, target) = pinion_bson::elements(operation).next().expect("a kind");
            let ns = namespaces.get(i64_exact(target).expect("a place") as usize);
            let collection = get(ns, "ns").and_then(|ns| ns.as_str()).expect("a name");
            let collection = collection.strip_prefix("d.").expect("of the database");
            let sent = get(ns, "shardVersion").expect("a version");
            let sent = ShardVersion::parse(Path::root("shardVersion"), sent)?;
            self.work().await;
            let mut world = self.world.borrow_mut();
            let number = session.as_ref();
            let number = number.map(|(lsid, txn)| (shard, lsid.clone(), *txn, numbers[at]));
            let before = number
                .as_ref()
                .and_then(|key| world.executed.get(key).cloned());
            let outcome = if !sent.is_placement_equal(world.version(collection, shard)) {
                let info = stale_info(&mut world, collection, shard, sent);
                Err(info.error(StaleReason::Mismatch, Form::Own))
            } else if !world.is_sharded(collection) && shard != world.primary {
                world.refused += 1;
                Err(Error::new(ErrorCode::STALE_DB_VERSION, "moved"))
            } else if let Some(before) = before {
                retried.push(numbers[at]);
                Ok(before)
            } else {
                operate(&mut world, collection, shard, operation)
            };
            let mut out = DocBuilder::new();
            out.append("ok", if outcome.is_ok() { 1.0 } else { 0.0 });
            out.append("idx", at as i32);
            let done = match outcome {
                Ok(done) => done,
                Err(error) => {
                    out.append("code", error.code.0)
                        .append("errmsg", &*error.message);
                    if let Some(extra) = &error.extra {
                        out.append_all(extra);
                    }
                    errors += 1;
                    Executed::default()
                }
            };
            out.append("n", done.n);
            let inserts = done.upserted.is_some();
            match kind {
                "insert" => counts[0] += done.n,
                "delete" => counts[4] += done.n,
                _ => {
                    out.append("nModified", done.n_modified);
                    counts[1] += if inserts { 0 } else { done.n };
                    counts[2] += done.n_modified;
                    counts[3] += i32::from(inserts);
                }
            }
            let result = out.finish();
            let has_failed = get(&result, "code").is_some();
            results.push(result);
            if let Some(number) = number.filter(|_| done.n > 0) {
                world.executed.insert(number, done);
            }
            if has_failed && is_ordered {
                break;
            }
        }
        let mut reply = Reply::new();
        reply.start_document("cursor").start_array("firstBatch");
        for result in &results {
            reply.push(&**result);
        }
        reply
            .end()
            .append("id", 0i64)
            .append("ns", "admin.$cmd.bulkWrite")
            .end();
        reply.append("nErrors", errors);
        let names = [
            "nInserted",
            "nMatched",
            "nModified",
            "nUpserted",
            "nDeleted",
        ];
        for (name, count) in names.into_iter().zip(counts) {
            reply.append(name, count);
        }
        append_retried(&mut reply, &retried);
        Ok(reply)
    }

    pub async fn find_and_modify(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers are not written");
        self.enter(&cmd, shard, cmd.body()).await?;
        let (body, empty) = (cmd.body(), RawDocumentBuf::new());
        let collection = collection_of(body).to_owned();
        let is_removal = flag(body, "remove");
        let statement = Statement {
            filter: document(body, "query").unwrap_or(&empty),
            update: get(body, "update").filter(|_| !is_removal),
            is_multi: false,
            is_upsert: flag(body, "upsert"),
            sort: document(body, "sort"),
            source: body,
        };
        let mut world = self.world.borrow_mut();
        let is_retryable = get(body, "autocommit").is_none();
        let session = session(&cmd).filter(|_| is_retryable);
        let number = session.map(|(lsid, number)| (shard, lsid, number, 0));
        let before = number
            .as_ref()
            .and_then(|key| world.executed.get(key).cloned());
        let is_retried = before.is_some();
        let done = match before {
            Some(before) if before.upserted.is_some() && !statement.is_upsert => {
                return Err(Error::new(ErrorCode(40608), "it was an upsert"));
            }
            Some(before) => before,
            None => modify(&mut world, &collection, shard, &statement)?,
        };
        if let Some(number) = number.filter(|_| done.n > 0) {
            world.executed.insert(number, done.clone());
        }
        let mut out = DocBuilder::new();
        out.start_document("lastErrorObject").append("n", done.n);
        if !is_removal {
            out.append("updatedExisting", done.old.is_some());
        }
        if let Some(id) = &done.upserted {
            out.append_raw("upserted", id.as_raw_bson_ref());
        }
        out.end();
        match if flag(body, "new") {
            &done.new
        } else {
            &done.old
        } {
            Some(value) => out.append("value", &**value),
            None => out.append("value", RawBsonRef::Null),
        };
        if is_retried {
            out.append("retriedStmtId", 0i32);
        }
        let mut reply = Reply::new();
        reply.append_all(&out.finish());
        Ok(reply)
    }

    /// Notes that a shard takes part in a transaction, which it starts when it is said to.
    pub fn take_part(&self, cmd: &Invocation, shard: usize) -> Result<()> {
        let is_in = get(cmd.body(), "autocommit").is_some();
        let Some((lsid, number)) = session(cmd).filter(|_| is_in) else {
            return Ok(());
        };
        let mut world = self.world.borrow_mut();
        let known = world.parts.get(&(shard, lsid.clone())).copied();
        if flag(cmd.body(), "startTransaction") {
            assert_ne!(known, Some(number), "it was started before");
            world.parts.insert((shard, lsid), number);
            return Ok(());
        }
        assert_eq!(known, Some(number), "{:?}", cmd.body());
        Ok(())
    }

    pub async fn end_transaction(self, cmd: Invocation) -> Result<Reply> {
        self.work().await;
        let shard = self.shard.expect("config servers are in no transaction");
        let (lsid, _) = session(&cmd).expect("a session");
        let mut world = self.world.borrow_mut();
        world.parts.remove(&(shard, lsid));
        world.ends.push((shard, cmd.name()));
        Ok(Reply::new())
    }
}
