//! Definitions at the nodes of the cluster: what coordinators and config servers do, at once.

use pinion_bson::{RawBsonRef, RawDocument, get};
use pinion_runtime::Rng;
use pinion_sharding_protocol::{DatabaseVersion, Form, StaleDatabaseInfo};
use pinion_wire::idl::Path;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::nodes::{Member, collection_of};
use super::world::DB;

impl Member {
    /// Checks a request for a coordinator, and notes it.
    fn enter_coordinator(&self, cmd: &Invocation) -> Result<()> {
        let mut world = self.world.borrow_mut();
        let body = cmd.body();
        assert!(get(body, "shardVersion").is_none(), "{body:?}");
        let w = pinion_bson::get_path(body, "writeConcern.w").and_then(|w| w.as_str());
        assert_eq!(w, Some("majority"), "{body:?}");
        let sent = get(body, "databaseVersion").expect("it has the database's version");
        let sent = sent.as_document().expect("a version");
        let sent = DatabaseVersion::parse(Path::root("databaseVersion"), sent)?;
        if !sent.is_placement_equal(world.database) || self.shard != Some(world.primary) {
            world.refused += 1;
            let info = StaleDatabaseInfo {
                db: DB.into(),
                received: sent,
                wanted: Some(world.database),
            };
            return Err(info.error(Form::Own));
        }
        world.definitions.push(body.to_owned());
        Ok(())
    }

    /// The reply of something that was done, unless the shard has another primary by now.
    fn done(&self) -> Result<Reply> {
        let mut world = self.world.borrow_mut();
        if world.lost_replies > 0 {
            world.lost_replies -= 1;
            let code = ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE;
            return Err(Error::new(code, "the primary has stepped down"));
        }
        Ok(Reply::new())
    }

    pub async fn create_sharded(self, cmd: Invocation) -> Result<Reply> {
        self.work().await;
        self.enter_coordinator(&cmd)?;
        let (name, key) = (collection_of(cmd.body()), document(cmd.body(), "shardKey"));
        let mut world = self.world.borrow_mut();
        if !world.is_sharded(name) {
            world.shard(name, key.to_owned(), 5, &mut Rng::from_seed(7));
        }
        drop(world);
        self.done()
    }

    pub async fn drop_sharded(self, cmd: Invocation) -> Result<Reply> {
        self.work().await;
        self.enter_coordinator(&cmd)?;
        self.world.borrow_mut().drop(collection_of(cmd.body()));
        self.done()
    }

    pub async fn drop_all(self, cmd: Invocation) -> Result<Reply> {
        self.work().await;
        self.enter_coordinator(&cmd)?;
        let mut world = self.world.borrow_mut();
        for name in world.names() {
            world.drop(&name);
        }
        world.is_there = false;
        Ok(Reply::new())
    }

    pub async fn drop_unsharded(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers drop nothing");
        self.enter(&cmd, shard, cmd.body()).await?;
        self.world.borrow_mut().drop(collection_of(cmd.body()));
        let mut reply = Reply::new();
        reply.append("nIndexesWas", 1i32);
        Ok(reply)
    }

    /// As nodes do, which have no options but `capped`.
    pub async fn create(self, cmd: Invocation) -> Result<Reply> {
        let shard = self.shard.expect("config servers make nothing");
        self.enter(&cmd, shard, cmd.body()).await?;
        let name = collection_of(cmd.body());
        let mut world = self.world.borrow_mut();
        assert_eq!(shard, world.primary);
        let is_other = get(cmd.body(), "capped").is_some();
        match world.names().iter().any(|found| found == name) && is_other {
            true => Err(Error::new(
                ErrorCode::NAMESPACE_EXISTS,
                format!("Collection {DB}.{name} already exists."),
            )),
            false => {
                world.insert(name, Vec::new());
                Ok(Reply::new())
            }
        }
    }

    pub async fn create_database(self, cmd: Invocation) -> Result<Reply> {
        self.work().await;
        let mut world = self.world.borrow_mut();
        world.definitions.push(cmd.body().to_owned());
        world.make_database();
        Ok(Reply::new())
    }

    pub async fn change_zones(self, cmd: Invocation) -> Result<Reply> {
        self.work().await;
        let mut world = self.world.borrow_mut();
        world.definitions.push(cmd.body().to_owned());
        if let Some(RawBsonRef::String(zone)) = get(cmd.body(), "zone")
            && cmd.name() == "_configsvrAddShardToZone"
        {
            let shard = collection_of(cmd.body());
            let number = shard.trim_start_matches('s').parse().unwrap_or(usize::MAX);
            if number >= world.shards {
                let message = format!("shard {shard} does not exist");
                return Err(Error::new(ErrorCode::SHARD_NOT_FOUND, message));
            }
            world.tags.entry(number).or_default().push(zone.to_owned());
        }
        Ok(Reply::new())
    }
}

fn document<'c>(command: &'c RawDocument, name: &str) -> &'c RawDocument {
    let value = get(command, name).and_then(|value| value.as_document());
    value.expect("it has one")
}
