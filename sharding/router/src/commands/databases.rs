//! `listDatabases` and `dropDatabase`.

use std::collections::BTreeMap;

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_service::command_checks::check_drop_database;
use pinion_sharding_protocol::ShardId;
use pinion_wire::idl::{i64_exact, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::dispatch::{WhenAbsent, at_database, at_every_shard};
use crate::placement::{database, flush_database};
use crate::reply::{append_passed_on, refused};
use crate::request::Request;
use crate::shards::current_shards;

/// A database on some shards.
#[derive(Default)]
struct Listed {
    /// Bytes on each shard that has it.
    sizes: BTreeMap<ShardId, i64>,
    is_empty: bool,
}

/// `listDatabases`: those of all shards, and those that are on the config servers.
pub(super) async fn list_databases(cmd: Invocation) -> Result<Reply> {
    let names_only = pinion_bson::get(cmd.body(), "nameOnly").is_some_and(truthy);
    let config = ShardId::new(ShardId::CONFIG);
    let shards = current_shards().await?;
    let mut asked: Vec<ShardId> = shards.iter().map(|shard| ShardId::new(&shard.id)).collect();
    if !asked.contains(&config) {
        asked.push(config.clone());
    }
    let outcomes = at_every_shard(&cmd, &asked, |_| Request::of(&cmd, cmd.db(), None)).await?;
    let mut listed: BTreeMap<String, Listed> = BTreeMap::new();
    for (shard, outcome) in outcomes {
        let answer = outcome.map_err(refused)?;
        for (name, size, is_empty) in databases_in(answer.body()) {
            // Each node has its own `local`, and what routers see of these two is the config
            // servers' alone.
            let is_of_config = matches!(name, "config" | "admin");
            if name == "local" || is_of_config != (shard == config) {
                continue;
            }
            let entry = listed.entry(name.to_owned()).or_insert_with(|| Listed {
                is_empty: true,
                ..Listed::default()
            });
            entry.is_empty &= is_empty;
            entry.sizes.insert(shard.clone(), size);
        }
    }
    let mut out = Reply::new();
    out.start_array("databases");
    let mut total = 0;
    for (name, database) in &listed {
        let size: i64 = database.sizes.values().sum();
        total += size;
        out.push_document().append("name", name.as_str());
        if !names_only {
            out.append("sizeOnDisk", size)
                .append("empty", database.is_empty);
            out.start_document("shards");
            for (shard, size) in &database.sizes {
                out.append(shard, *size);
            }
            out.end();
        }
        out.end();
    }
    out.end();
    if !names_only {
        out.append("totalSize", total)
            .append("totalSizeMb", total / (1 << 20));
    }
    Ok(out)
}

/// Name, size and emptiness of the databases in a node's reply.
fn databases_in(reply: &RawDocument) -> impl Iterator<Item = (&str, i64, bool)> {
    let list = match pinion_bson::get(reply, "databases") {
        Some(RawBsonRef::Array(list)) => Some(list),
        _ => None,
    };
    let list = list.into_iter().flat_map(pinion_bson::values);
    list.filter_map(|database| {
        let database = database.as_document()?;
        let name = pinion_bson::get(database, "name")?.as_str()?;
        let size = pinion_bson::get(database, "sizeOnDisk").and_then(i64_exact);
        let is_empty = pinion_bson::get(database, "empty").is_some_and(truthy);
        Some((name, size.unwrap_or(0), is_empty))
    })
}

/// `dropDatabase`: its primary shard removes it, with its sharded collections on all shards, and
/// has the config servers forget it.
pub(super) async fn drop_database(cmd: Invocation) -> Result<Reply> {
    let db = cmd.db();
    if matches!(db, "config" | "admin") {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            format!("Cannot drop '{db}' database in a sharded cluster"),
        ));
    }
    check_drop_database(&cmd)?;
    let mut out = Reply::new();
    if database(db).await?.is_none() {
        return Ok(out);
    }
    let dropped = at_database(&cmd, db, WhenAbsent::Answer, |version| {
        match version.database {
            Some(_) => Request::own(db, version, |out| {
                out.append("_shardsvrDropDatabase", 1i32);
                match pinion_bson::get(cmd.body(), "writeConcern") {
                    Some(concern) => out.append_raw("writeConcern", concern),
                    None => out
                        .start_document("writeConcern")
                        .append("w", "majority")
                        .end(),
                };
            }),
            // Another router has dropped it meanwhile.
            None => Request::of(&cmd, db, version),
        }
    })
    .await;
    flush_database(db).await;
    append_passed_on(&mut out, dropped?.body(), |name| name != b"dropped");
    Ok(out)
}
