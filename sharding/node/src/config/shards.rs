//! Changes of `config.shards`.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, get, rawdoc};
use pinion_exec::replica_set;
use pinion_sharding_protocol::config::{
    AddShardRequest, ClusterView, KnownShard, NewShard, ShardAddition, ShardHello,
    add_shard as decide,
};
use pinion_sharding_protocol::documents::{DatabaseDocument, ShardDocument, ShardIdentityDocument};
use pinion_sharding_protocol::{ConnectionString, ShardId};
use pinion_storage::storage;
use pinion_wire::{Error, ErrorCode, HostPort, Result};

use super::catalog::ensure;
use super::changelog::note;
use super::databases::{DATABASES, first_version};
use super::settings::give_settings;
use crate::config_servers::{hello, run_on_host, with_majority};
use crate::limits::{MAX_ADDED_DATABASES, MAX_SHARDS};
use crate::local::{LocalClient, wait_majority};
use crate::part::part;

const SHARDS: (&str, &str) = ("config", "shards");

/// All shards of the cluster. A document that is none of a shard concerns no other shard, and is
/// passed over.
///
/// # Errors
/// They cannot be read.
pub(super) async fn known_shards(client: &LocalClient) -> Result<Vec<ShardDocument>> {
    let found = client.find(SHARDS, &rawdoc! {}, MAX_SHARDS).await?;
    Ok(readable(&found, |document| ShardDocument::parse(document)))
}

fn readable<D, T>(found: &[D], read: impl Fn(&D) -> Result<T>) -> Vec<T>
where
    D: std::fmt::Debug,
{
    let read = found.iter().filter_map(|document| match read(document) {
        Ok(shard) => Some(shard),
        Err(error) => {
            tracing::warn!(target: "SHARDING", id = 7_500_015u64, document = ?document, error = %error, "A document of config.shards is none of a shard, and is passed over");
            None
        }
    });
    read.collect()
}

fn known(shard: &ShardDocument) -> Result<KnownShard> {
    let string = ConnectionString::parse(&shard.host)?;
    Ok(KnownShard {
        id: shard.id.clone(),
        set: string.set,
        hosts: string.hosts,
    })
}

/// What a set has said that is to become a shard.
struct Candidate {
    /// Its primary.
    host: HostPort,
    hello: ShardHello,
    databases: Vec<String>,
}

/// Makes a replica set a shard, and gives its name. Sent again it gives the name again. Called on
/// core 0.
///
/// # Errors
/// As of [`decide`]; those of the candidate, and of a write.
pub(super) async fn add(request: AddShardRequest, from: &str) -> Result<ShardId> {
    let part = part();
    let _shards = part.core_0.shards_turn.acquire().await;
    let cluster = ensure().await?;
    let client = LocalClient::new()?;
    let asked = ask(&request).await;
    let new = match decision(&client, &request, asked.as_ref()).await? {
        ShardAddition::Exists(id) => {
            // Another attempt may have added it, and not have come to its end.
            wait_majority().await?;
            return Ok(id);
        }
        ShardAddition::New(new) => new,
    };
    let mut candidate = asked?;
    let identity = ShardIdentityDocument {
        shard: new.shard.id.clone(),
        cluster,
        config_servers: own_string()?,
        other: RawDocumentBuf::new(),
    };
    give_identity(&candidate.host, &identity).await?;
    give_settings(&candidate.host).await?;
    // Clients of the set may have made databases until now. From here on a database of the cluster
    // is made only behind this.
    candidate.databases = databases_of(&candidate.host).await?;
    let _databases = part.core_0.databases_turn.acquire().await;
    let new = match decision(&client, &request, Ok(&candidate)).await? {
        ShardAddition::Exists(id) => return Ok(id),
        ShardAddition::New(new) => new,
    };
    write(&client, &new).await?;
    if let Some(time) = new.shard.topology_time {
        storage().tick_topology_to(time);
    }
    let details = rawdoc! { "name": new.shard.id.as_str(), "host": new.shard.host.as_str() };
    note(&client, from, "addShard", "", details).await;
    Ok(new.shard.id)
}

/// Decides also where the candidate did not answer: it may be a shard already, or be refused by its
/// name alone.
async fn decision(
    client: &LocalClient,
    request: &AddShardRequest,
    asked: Result<&Candidate, &Error>,
) -> Result<ShardAddition> {
    let shards = readable(&known_shards(client).await?, known);
    let there = match asked {
        Ok(candidate) => named(client, &candidate.databases).await?,
        Err(_) => Vec::new(),
    };
    let set = replica_set().expect("a config server is a member");
    let view = ClusterView {
        shards: &shards,
        databases: &there,
        config_set: &set.view().set_name,
        config_is_local: own_hosts().iter().all(HostPort::is_localhost),
    };
    let silent = ShardHello::default();
    let (hello, databases): (&ShardHello, Vec<&str>) = match asked {
        Ok(candidate) => {
            let databases = candidate.databases.iter().map(String::as_str);
            (&candidate.hello, databases.collect())
        }
        Err(_) => (&silent, Vec::new()),
    };
    let time = storage().vector_time().cluster().next();
    match (
        decide(request, view, hello, &databases, time, first_version),
        asked,
    ) {
        (Err(error), Err(why)) if error.code == ErrorCode::NOT_WRITABLE_PRIMARY => Err(Error::new(
            ErrorCode::OPERATION_FAILED,
            format!("failed to run command hello when attempting to add shard: {why}"),
        )),
        (decided, _) => decided,
    }
}

/// Asks the hosts of a request, one after the other, for the primary of their set.
async fn ask(request: &AddShardRequest) -> Result<Candidate> {
    let mut failed = None;
    for host in &request.hosts {
        match ask_by(host).await {
            Ok(candidate) => return Ok(candidate),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| Error::failed_to_parse("a shard has at least one host")))
}

async fn ask_by(host: &HostPort) -> Result<Candidate> {
    let mut host = host.clone();
    let mut reply = run_on_host(&host, &hello()).await?;
    let mut said = ShardHello::parse(&reply);
    if !said.is_primary
        && let Some(RawBsonRef::String(primary)) = get(&reply, "primary")
    {
        host = HostPort::parse(primary)?;
        reply = run_on_host(&host, &hello()).await?;
        said = ShardHello::parse(&reply);
    }
    let databases = match said.is_primary && !said.is_router && !said.is_config_server {
        true => databases_of(&host).await?,
        false => Vec::new(),
    };
    Ok(Candidate {
        host,
        hello: said,
        databases,
    })
}

async fn databases_of(host: &HostPort) -> Result<Vec<String>> {
    let list = rawdoc! { "listDatabases": 1, "nameOnly": true, "$db": "admin" };
    let reply = run_on_host(host, &list).await?;
    let names = names_of(&reply)?;
    match names.len() > MAX_ADDED_DATABASES {
        true => Err(Error::new(
            ErrorCode::OPERATION_FAILED,
            format!(
                "the replica set has {} databases; a shard is added with {MAX_ADDED_DATABASES} at most",
                names.len()
            ),
        )),
        false => Ok(names),
    }
}

/// The names that `listDatabases` gives.
fn names_of(reply: &RawDocument) -> Result<Vec<String>> {
    let malformed = || Error::failed_to_parse("listDatabases has answered no databases");
    let Some(RawBsonRef::Array(databases)) = get(reply, "databases") else {
        return Err(malformed());
    };
    let names = pinion_bson::values(databases).map(|database| {
        let name = database
            .as_document()
            .and_then(|database| get(database, "name"));
        name.and_then(|name| name.as_str())
            .map(str::to_owned)
            .ok_or_else(malformed)
    });
    names.collect()
}

/// The databases of the cluster that have one of these names.
async fn named(client: &LocalClient, names: &[String]) -> Result<Vec<DatabaseDocument>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut filter = DocBuilder::new();
    filter.start_document("_id").start_array("$in");
    for name in names {
        filter.push(name.as_str());
    }
    filter.end().end();
    let filter = filter.finish();
    let found = client
        .find(DATABASES, &filter, MAX_ADDED_DATABASES as i32)
        .await?;
    found
        .iter()
        .map(|found| DatabaseDocument::parse(found))
        .collect()
}

/// Has the candidate be a shard of this cluster: without the sessions that it has kept as a plain
/// set, and with its identity.
async fn give_identity(host: &HostPort, identity: &ShardIdentityDocument) -> Result<()> {
    let drop = with_majority(rawdoc! { "drop": "system.sessions", "$db": "config" });
    match run_on_host(host, &drop).await {
        Err(error) if error.code != ErrorCode::NAMESPACE_NOT_FOUND => return Err(error),
        _ => {}
    }
    let add = with_majority(rawdoc! {
        "_addShard": 1, "shardIdentity": identity.to_bson(), "$db": "admin",
    });
    run_on_host(host, &add).await.map(|_| ())
}

/// Writes the shard and its databases together.
async fn write(client: &LocalClient, new: &NewShard) -> Result<()> {
    let shard = rawdoc! {
        "insert": "shards", "documents": [new.shard.to_bson()], "$db": "config",
    };
    let mut commands = vec![shard];
    if !new.databases.is_empty() {
        let mut insert = DocBuilder::new();
        insert
            .append("insert", "databases")
            .start_array("documents");
        for database in &new.databases {
            insert.push(&*database.to_bson());
        }
        insert.end().append("$db", "config");
        commands.push(insert.finish());
    }
    client.run_together(&commands).await.map(|_| ())
}

/// The config servers' own members that hold data, as their configuration names them.
fn own_hosts() -> Vec<HostPort> {
    let set = replica_set().expect("a config server is a member");
    ShardHello::parse(&set.view().hello).hosts
}

fn own_string() -> Result<String> {
    let set = replica_set().expect("a config server is a member");
    let hosts = own_hosts();
    match hosts.is_empty() {
        true => Err(Error::new(
            ErrorCode::NOT_YET_INITIALIZED,
            "the config servers have no configuration",
        )),
        false => Ok(ConnectionString::new(set.view().set_name.clone(), hosts).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_databases() {
        let reply = rawdoc! { "databases": [{ "name": "a" }, { "name": "b", "x": 1 }] };
        assert_eq!(names_of(&reply).expect("two"), ["a", "b"]);
        assert!(names_of(&rawdoc! { "databases": [{}] }).is_err());
        assert!(names_of(&rawdoc! { "ok": 1 }).is_err());
    }
}
