//! The processes of the cluster: a config server and shards that answer out of the world.

use std::future::Future;
use std::rc::Rc;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, get, rawdoc};
use pinion_runtime::{Duration, random_stream, sleep};
use pinion_sharding_protocol::{
    DatabaseVersion, Form, ShardVersion, StaleDatabaseInfo, StaleInfo, StaleReason,
};
use pinion_wire::idl::{Namespace, Path, i64_exact};
use pinion_wire::{Error, ErrorCode, Invocation, Registry, Reply, Result};

use super::local::Local;
use super::world::{DB, OpenCursor, Shared, World, host_of, shard_name};

/// What a process is: the config server, or a shard.
#[derive(Clone)]
pub struct Member {
    pub world: Shared,
    /// `None`: the config server.
    pub shard: Option<usize>,
}

impl Member {
    fn node(&self) -> usize {
        self.shard.map_or(0, |shard| shard + 1)
    }

    async fn hello(self, _: Invocation) -> Result<Reply> {
        let mut reply = Reply::new();
        let name = match self.shard {
            None => "cfg".to_owned(),
            Some(shard) => format!("r{}", shard_name(shard)),
        };
        let host = host_of(self.node());
        reply.append("ismaster", true).append("secondary", false);
        reply
            .append("setName", name.as_str())
            .append("setVersion", 1i32);
        reply.start_array("hosts").push(host.as_str()).end();
        reply.append("me", host.as_str());
        reply.append("electionId", pinion_bson::ObjectId::from_bytes([1; 12]));
        reply.append("maxWireVersion", 25i32);
        Ok(reply)
    }

    /// Lets time pass, as work does.
    pub async fn work(&self) {
        let pause = random_stream("work").below(3000);
        sleep(Duration::from_micros(pause)).await;
    }

    async fn find(self, cmd: Invocation) -> Result<Reply> {
        let body = cmd.body();
        let Some(shard) = self.shard else {
            self.work().await;
            let filter = get(body, "filter").and_then(|filter| filter.as_document());
            let name = get(body, "find").and_then(|name| name.as_str());
            let (filter, name) = (filter.expect("a filter"), name.expect("a name"));
            let found = self.world.borrow_mut().config_find(name, filter);
            self.work().await;
            return Ok(self.cursor(&format!("config.{name}"), found, None));
        };
        let local = self.enter(&cmd, shard, body).await?;
        let found = local.find(body)?;
        let ns = format!("{}.{}", cmd.db(), collection_of(body));
        Ok(self.cursor(&ns, found, get(body, "batchSize").and_then(i64_exact)))
    }

    async fn aggregate(self, cmd: Invocation) -> Result<Reply> {
        let body = cmd.body();
        if super::feeds::is_changes(body) {
            self.work().await;
            return self.open_changes(&cmd);
        }
        let shard = self.shard.expect("config servers have no pipelines");
        let local = self.enter(&cmd, shard, body).await?;
        let found = local.aggregate(body).await?;
        let ns = format!("{}.{}", cmd.db(), collection_of(body));
        let size = pinion_bson::get_path(body, "cursor.batchSize").and_then(i64_exact);
        Ok(self.cursor(&ns, found, size))
    }

    async fn count(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers count nothing");
        let local = self.enter(&cmd, shard, cmd.body()).await?;
        let mut reply = Reply::new();
        reply.append("n", local.count(cmd.body())? as i32);
        Ok(reply)
    }

    async fn distinct(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers have no values");
        let local = self.enter(&cmd, shard, cmd.body()).await?;
        let mut reply = Reply::new();
        reply.append_all(&local.distinct(cmd.body())?);
        Ok(reply)
    }

    /// Says what it was asked to explain.
    async fn explain(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers explain nothing");
        let inner = get(cmd.body(), "explain").and_then(|inner| inner.as_document());
        let inner = inner.expect("a command");
        self.enter(&cmd, shard, inner).await?;
        let mut reply = Reply::new();
        reply.append("explainVersion", "1");
        reply.start_document("queryPlanner");
        reply.append(
            "namespace",
            format!("{DB}.{}", collection_of(inner)).as_str(),
        );
        reply
            .start_document("winningPlan")
            .append("stage", "FETCH")
            .end()
            .end();
        reply
            .start_document("executionStats")
            .append("executionSuccess", true);
        reply
            .append("nReturned", 2i32)
            .append("executionTimeMillis", 3i32);
        reply
            .append("totalKeysExamined", 4i32)
            .append("totalDocsExamined", 5i32);
        reply.end().append("command", inner);
        Ok(reply)
    }

    async fn get_more(self, cmd: Invocation) -> Result<Reply> {
        self.work().await;
        let id = get(cmd.body(), "getMore")
            .and_then(i64_exact)
            .expect("an id");
        if let Some(reply) = self.more_changes(&cmd, id).await? {
            self.work().await;
            return Ok(reply);
        }
        let size = get(cmd.body(), "batchSize").and_then(i64_exact);
        let cursor = self.world.borrow_mut().cursors.remove(&id);
        let here = self.shard.unwrap_or(usize::MAX);
        let Some(cursor) = cursor.filter(|cursor| cursor.shard == here) else {
            return Err(Error::new(ErrorCode::CURSOR_NOT_FOUND, "no such cursor"));
        };
        let ns = format!("{}.{}", cmd.db(), "c");
        Ok(self.batch("nextBatch", &ns, id, cursor, size))
    }

    async fn kill_cursors(self, cmd: Invocation) -> Result<Reply> {
        if let Some(RawBsonRef::Array(ids)) = get(cmd.body(), "cursors") {
            for id in pinion_bson::values(ids).filter_map(i64_exact) {
                self.world.borrow_mut().cursors.remove(&id);
                self.world.borrow_mut().feeds.streams.remove(&id);
            }
        }
        Ok(Reply::new())
    }

    pub fn cursor(&self, ns: &str, found: Vec<RawDocumentBuf>, size: Option<i64>) -> Reply {
        let mut world = self.world.borrow_mut();
        world.next_cursor += 1;
        let id = world.next_cursor;
        drop(world);
        let cursor = OpenCursor {
            shard: self.shard.unwrap_or(usize::MAX),
            documents: found.into(),
        };
        let is_config = self.shard.is_none();
        // Of the routing table so little that one reading takes several batches.
        let size = size.or(Some(if is_config { 3 } else { 101 }));
        self.batch("firstBatch", ns, id, cursor, size)
    }

    fn batch(
        &self,
        name: &str,
        ns: &str,
        id: i64,
        mut cursor: OpenCursor,
        size: Option<i64>,
    ) -> Reply {
        let size = size.map_or(usize::MAX, |size| size as usize);
        let mut reply = Reply::new();
        reply.start_document("cursor").start_array(name);
        for _ in 0..size {
            let Some(document) = cursor.documents.pop_front() else {
                break;
            };
            reply.push(&*document);
        }
        // As with MongoDB, the end is found by the batch behind the last full one.
        let is_full = size != usize::MAX && !cursor.documents.is_empty();
        reply.end().append("id", if is_full { id } else { 0 });
        reply.append("ns", ns).end();
        if is_full {
            self.world.borrow_mut().cursors.insert(id, cursor);
        }
        reply
    }

    /// Checks the versions of a request, and gives what the shard has.
    pub async fn enter(
        &self,
        cmd: &Invocation,
        shard: usize,
        named: &RawDocument,
    ) -> Result<Local> {
        self.work().await;
        self.take_part(cmd, shard)?;
        let mut world = self.world.borrow_mut();
        *world.served.entry(shard).or_default() += 1;
        let collection = collection_of(named);
        let wanted = world.version(collection, shard);
        let sent = match get(cmd.body(), "shardVersion") {
            Some(sent) => ShardVersion::parse(Path::root("shardVersion"), sent)?,
            // An explained command has it beside its database's.
            None => {
                assert!(
                    !world.is_sharded(collection) || cmd.name() == "explain",
                    "{named:?}"
                );
                ShardVersion::Unsharded
            }
        };
        if !sent.is_placement_equal(wanted) {
            let info = stale_info(&mut world, collection, shard, sent);
            return Err(info.error(StaleReason::Mismatch, Form::Own));
        }
        check_database(&mut world, cmd, shard)?;
        let names = world.names();
        if collection == "v" && world.is_sharded("c") {
            // A view on the other one.
            let resolved = rawdoc! { "resolvedView": {
                "ns": "d.c",
                "pipeline": [{ "$match": { "b": { "$lt": 4 } } }],
                "collation": { "locale": "simple" },
            } };
            let code = ErrorCode::COMMAND_ON_SHARDED_VIEW_NOT_SUPPORTED_ON_MONGOD;
            return Err(Error::new(code, "a view").with_extra(resolved));
        }
        let text = pinion_query::document_text(named);
        let is_named = |name: &str| {
            ["from", "coll", "into"]
                .iter()
                .any(|field| text.contains(&format!("{field}: \"{name}\"")))
        };
        if let Some(nested) = names.iter().find(|name| {
            // The view is on `c`.
            let is_read = is_named(name) || *name == "c" && is_named("v");
            **name != collection && is_read && world.is_sharded(name)
        }) {
            // What a stage reads or writes beside the collection has a version of its own.
            let info = StaleInfo {
                ns: Namespace::new(DB, nested)?,
                received: ShardVersion::Unsharded,
                wanted: Some(world.version(nested, shard)),
                shard: shard_name(shard).as_str().into(),
            };
            return Err(info.error(StaleReason::Mismatch, Form::Own));
        }
        let mut parts = std::collections::BTreeMap::new();
        for name in names {
            // What is sharded is read by nothing but the command itself.
            if name == collection || !world.is_sharded(&name) {
                parts.insert(name.clone(), world.part(&name, shard));
            }
        }
        Ok(Local::new(parts))
    }

    pub fn registry(&self) -> Registry {
        let mut registry = Registry::new();
        self.attach(&mut registry, "hello", Member::hello);
        self.attach(&mut registry, "isMaster", Member::hello);
        self.attach(&mut registry, "find", Member::find);
        self.attach(&mut registry, "aggregate", Member::aggregate);
        self.attach(&mut registry, "count", Member::count);
        self.attach(&mut registry, "distinct", Member::distinct);
        self.attach(&mut registry, "explain", Member::explain);
        self.attach(&mut registry, "insert", Member::insert);
        self.attach(&mut registry, "update", Member::update);
        self.attach(&mut registry, "delete", Member::delete);
        self.attach(&mut registry, "bulkWrite", Member::bulk_write);
        self.attach(&mut registry, "findAndModify", Member::find_and_modify);
        self.attach(&mut registry, "commitTransaction", Member::end_transaction);
        self.attach(&mut registry, "abortTransaction", Member::end_transaction);
        self.attach(&mut registry, "getMore", Member::get_more);
        self.attach(&mut registry, "killCursors", Member::kill_cursors);
        self.attach(&mut registry, "create", Member::create);
        self.attach(&mut registry, "drop", Member::drop_unsharded);
        self.attach(&mut registry, "listCollections", Member::list_collections);
        let rename = "internalRenameIfOptionsAndIndexesMatch";
        self.attach(&mut registry, rename, Member::replace);
        let coordinator = &mut registry;
        self.attach(
            coordinator,
            "_shardsvrCreateCollection",
            Member::create_sharded,
        );
        self.attach(coordinator, "_shardsvrDropCollection", Member::drop_sharded);
        self.attach(coordinator, "_shardsvrDropDatabase", Member::drop_all);
        self.attach(
            coordinator,
            "_configsvrCreateDatabase",
            Member::create_database,
        );
        for name in [
            "_configsvrAddShardToZone",
            "_configsvrRemoveShardFromZone",
            "_configsvrUpdateZoneKeyRange",
        ] {
            self.attach(&mut registry, name, Member::change_zones);
        }
        self.attach(&mut registry, "ping", Member::ping);
        self.attach(&mut registry, "appendOplogNote", Member::note);
        for name in ["createIndexes", "dropIndexes", "collMod"] {
            self.attach(&mut registry, name, Member::define);
        }
        self.attach(&mut registry, "listIndexes", Member::list_indexes);
        self.attach(&mut registry, "collStats", Member::coll_stats);
        self.attach(&mut registry, "validate", Member::validate);
        self.attach(&mut registry, "dbStats", Member::db_stats);
        registry
    }

    fn attach<F, Fut>(&self, registry: &mut Registry, name: &str, handler: F)
    where
        F: Fn(Member, Invocation) -> Fut + 'static,
        Fut: Future<Output = Result<Reply>> + 'static,
    {
        let (member, handler) = (self.clone(), Rc::new(handler));
        registry.attach(pinion_command::row(name), move |cmd| {
            handler(member.clone(), cmd)
        });
    }
}

/// Checks the version of the database that a request goes by, if it has one.
pub fn check_database(world: &mut World, cmd: &Invocation, shard: usize) -> Result<()> {
    let Some(RawBsonRef::Document(sent)) = get(cmd.body(), "databaseVersion") else {
        return Ok(());
    };
    let sent = DatabaseVersion::parse(Path::root("databaseVersion"), sent)?;
    if sent.is_placement_equal(world.database) && shard == world.primary {
        return Ok(());
    }
    world.refused += 1;
    let info = StaleDatabaseInfo {
        db: DB.into(),
        received: sent,
        wanted: Some(world.database).filter(|_| !world.is_silent),
    };
    Err(info.error(Form::Own))
}

/// What a shard says of a version that is not its own.
pub fn stale_info(
    world: &mut World,
    collection: &str,
    shard: usize,
    received: ShardVersion,
) -> StaleInfo {
    world.refused += 1;
    StaleInfo {
        ns: Namespace::new(DB, collection).expect("a name"),
        received,
        wanted: Some(world.version(collection, shard)).filter(|_| !world.is_silent),
        shard: shard_name(shard).as_str().into(),
    }
}

pub fn collection_of(command: &RawDocument) -> &str {
    let (_, name) = pinion_bson::elements(command).next().expect("a command");
    name.as_str().expect("the name of a collection")
}
