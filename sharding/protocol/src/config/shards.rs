//! `addShard`: what a replica set must be to become a shard.

use pinion_bson::RawDocument;
use pinion_clock::Timestamp;
use pinion_wire::idl::truthy;
use pinion_wire::{Error, ErrorCode, HostPort, Result};

use crate::documents::{DatabaseDocument, ShardDocument};
use crate::shard_id::ShardId;
use crate::version::DatabaseVersion;

/// What the client asked for: `{addShard: "set/host,host", name?}`.
#[derive(Clone, Debug)]
pub struct AddShardRequest {
    /// The set's name; empty where only a host was named.
    pub set: String,
    pub hosts: Vec<HostPort>,
    pub name: Option<String>,
}

impl AddShardRequest {
    fn connection(&self) -> String {
        connection_string(&self.set, &self.hosts)
    }
}

fn connection_string(set: &str, hosts: &[HostPort]) -> String {
    let hosts: Vec<String> = hosts.iter().map(HostPort::to_string).collect();
    match set.is_empty() {
        true => hosts.join(","),
        false => format!("{set}/{}", hosts.join(",")),
    }
}

/// What the candidate answered to `hello`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShardHello {
    pub is_primary: bool,
    /// Empty where it is of no set.
    pub set: String,
    /// Members that hold data, those of priority zero last.
    pub hosts: Vec<HostPort>,
    pub arbiters: Vec<HostPort>,
    pub is_router: bool,
    pub is_config_server: bool,
}

impl ShardHello {
    /// Reads the reply of `hello` or `isMaster`. Hosts that cannot be read are passed over.
    pub fn parse(reply: &RawDocument) -> ShardHello {
        let hosts = |name| -> Vec<HostPort> {
            let values = pinion_bson::get(reply, name).and_then(|value| value.as_array());
            let values = values.into_iter().flat_map(pinion_bson::values);
            values
                .filter_map(|value| HostPort::parse(value.as_str()?).ok())
                .collect()
        };
        let text = |name| pinion_bson::get(reply, name).and_then(|value| value.as_str());
        let is_true = |name| pinion_bson::get(reply, name).is_some_and(truthy);
        let mut data = hosts("hosts");
        data.extend(hosts("passives"));
        ShardHello {
            is_primary: is_true("isWritablePrimary") || is_true("ismaster"),
            set: text("setName").unwrap_or_default().to_owned(),
            hosts: data,
            arbiters: hosts("arbiters"),
            is_router: text("msg") == Some("isdbgrid"),
            is_config_server: pinion_bson::get(reply, "configsvr").is_some(),
        }
    }
}

/// A shard of the cluster with its connection string read.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownShard {
    pub id: ShardId,
    pub set: String,
    pub hosts: Vec<HostPort>,
}

/// What the cluster has.
#[derive(Clone, Copy, Debug)]
pub struct ClusterView<'a> {
    pub shards: &'a [KnownShard],
    pub databases: &'a [DatabaseDocument],
    /// The name of the config servers' own set.
    pub config_set: &'a str,
    /// Whether the config servers are known by names that only this machine resolves.
    pub config_is_local: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardAddition {
    /// The same shard is there already: success.
    Exists(ShardId),
    New(NewShard),
}

/// To be written in one transaction, once the candidate has its identity.
#[derive(Clone, Debug, PartialEq)]
pub struct NewShard {
    pub shard: ShardDocument,
    pub databases: Vec<DatabaseDocument>,
}

/// Whether the shard asked for is there already, which is known before the candidate is asked.
///
/// # Errors
/// `IllegalOperation` where the set or a host of it is of a shard under another name, or the name
/// is another set's.
fn existing(request: &AddShardRequest, shards: &[KnownShard]) -> Result<Option<ShardId>> {
    for shard in shards {
        let is_same_name = match &request.name {
            Some(name) => shard.id == **name,
            None => true,
        };
        let is_same = is_same_name && shard.set == request.set;
        let illegal = |message| Err(Error::new(ErrorCode::ILLEGAL_OPERATION, message));
        if !request.set.is_empty() && shard.set == request.set {
            if is_same {
                return Ok(Some(shard.id.clone()));
            }
            return illegal(format!(
                "A shard already exists containing the replica set '{}'",
                shard.set
            ));
        }
        if let Some(host) = request.hosts.iter().find(|host| shard.hosts.contains(host)) {
            return illegal(format!(
                "'{host}' is already a member of the existing shard '{}' ({}).",
                connection_string(&shard.set, &shard.hosts),
                shard.id
            ));
        }
        if request.name.is_some() && is_same_name {
            return illegal(format!(
                "A shard named {} with the replica set '{}' already exists",
                shard.id, shard.set
            ));
        }
    }
    Ok(None)
}

/// Decides on a candidate by what it answered to `hello` and `listDatabases`. `topology_time` is
/// that of the addition; `version` makes the version of each of its databases.
///
/// # Errors
/// `BadValue` for a name that no shard may have; `InvalidOptions` for a name of this machine alone;
/// `IllegalOperation` where set, host or name are taken, and for a router; `NotWritablePrimary`;
/// `OperationFailed` for a config server, a set that is named as theirs, another set than named,
/// and databases that the cluster has.
pub fn add_shard(
    request: &AddShardRequest,
    cluster: ClusterView<'_>,
    hello: &ShardHello,
    databases: &[&str],
    topology_time: Timestamp,
    mut version: impl FnMut() -> DatabaseVersion,
) -> Result<ShardAddition> {
    if request.name.as_deref() == Some("") {
        return Err(Error::bad_value("shard name cannot be empty"));
    }
    check_local(request, cluster.config_is_local)?;
    if let Some(id) = existing(request, cluster.shards)? {
        return Ok(ShardAddition::Exists(id));
    }
    check_hello(request, cluster.config_set, hello)?;
    let name = request.name.as_ref().unwrap_or(&hello.set);
    if name == ShardId::CONFIG {
        return Err(Error::bad_value(
            "use of shard replica set with name 'config' is not allowed",
        ));
    }
    if let Some(taken) = cluster.shards.iter().find(|shard| shard.id == **name) {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            format!(
                "A shard named {name} with the replica set '{}' already exists",
                taken.set
            ),
        ));
    }
    let id = ShardId::new(name);
    let mut added = Vec::new();
    for db in databases
        .iter()
        .filter(|db| !matches!(**db, "admin" | "local" | "config"))
    {
        if let Some(there) = cluster.databases.iter().find(|there| there.name == **db) {
            return Err(Error::new(
                ErrorCode::OPERATION_FAILED,
                format!(
                    "can't add shard '{}' because a local database '{db}' exists in another {}",
                    request.connection(),
                    there.primary
                ),
            ));
        }
        added.push(DatabaseDocument::new(db, id.clone(), version()));
    }
    let host = connection_string(&hello.set, &hello.hosts);
    Ok(ShardAddition::New(NewShard {
        shard: ShardDocument::new(id, host, topology_time),
        databases: added,
    }))
}

fn check_local(request: &AddShardRequest, config_is_local: bool) -> Result<()> {
    match request
        .hosts
        .iter()
        .find(|host| host.is_localhost() != config_is_local)
    {
        None => Ok(()),
        Some(host) => Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!(
                "Can't use localhost as a shard since all shards need to communicate. Either use \
                 all shards and configdbs in localhost or all in actual IPs. host: {host} \
                 isLocalHost:{}",
                u8::from(host.is_localhost())
            ),
        )),
    }
}

fn check_hello(request: &AddShardRequest, config_set: &str, hello: &ShardHello) -> Result<()> {
    let failed = |message| Err(Error::new(ErrorCode::OPERATION_FAILED, message));
    let connection = request.connection();
    if hello.is_router {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "cannot add a mongos as a shard",
        ));
    }
    if !hello.is_primary {
        return Err(Error::new(
            ErrorCode::NOT_WRITABLE_PRIMARY,
            format!(
                "{connection} does not have a master. If this is a replica set, ensure that it \
                 has a healthy primary and that the set has been properly initiated."
            ),
        ));
    }
    if request.set.is_empty() && !hello.set.is_empty() {
        return failed(format!(
            "host is part of set {}; use replica set url format \
             <setname>/<server1>,<server2>, ...",
            hello.set
        ));
    }
    if hello.set.is_empty() {
        return failed(
            "host did not return a set name; is the replica set still initializing?".to_owned(),
        );
    }
    if request.set != hello.set {
        return failed(format!(
            "the provided connection string ({connection}) does not match the actual set name {}",
            hello.set
        ));
    }
    if hello.is_config_server {
        return failed(format!(
            "Cannot add {connection} as a shard since it is a config server"
        ));
    }
    // What nodes know of a set they find by its name.
    if hello.set == config_set {
        return failed(format!(
            "Cannot add {connection} as a shard since its set has the name of the config servers'"
        ));
    }
    let is_member = |host| hello.hosts.contains(host) || hello.arbiters.contains(host);
    if let Some(host) = request.hosts.iter().find(|host| !is_member(host)) {
        return failed(format!(
            "in seed list {connection}, host {host} does not belong to replica set {}; found {}",
            hello.set,
            connection_string(&hello.set, &hello.hosts)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pinion_bson::{Uuid, rawdoc};

    use super::*;

    fn hosts(text: &str) -> Vec<HostPort> {
        let parts = text.split(',').filter(|part| !part.is_empty());
        parts
            .map(|part| HostPort::parse(part).expect("a host"))
            .collect()
    }

    fn request(set: &str, text: &str, name: Option<&str>) -> AddShardRequest {
        AddShardRequest {
            set: set.into(),
            hosts: hosts(text),
            name: name.map(str::to_owned),
        }
    }

    fn hello(set: &str, text: &str) -> ShardHello {
        ShardHello {
            is_primary: true,
            set: set.into(),
            hosts: hosts(text),
            arbiters: hosts("arb:1"),
            ..ShardHello::default()
        }
    }

    fn version() -> DatabaseVersion {
        DatabaseVersion::first(Uuid::from_bytes([1; 16]), Timestamp::new(5, 0))
    }

    /// Against a cluster with shard `s0` = `rs0/a:1,b:1`, which has the database `sales`.
    fn add(request: &AddShardRequest, hello: &ShardHello, dbs: &[&str]) -> Result<ShardAddition> {
        let shards = [KnownShard {
            id: "s0".into(),
            set: "rs0".into(),
            hosts: hosts("a:1,b:1"),
        }];
        let databases = [DatabaseDocument::new("sales", "s0".into(), version())];
        let cluster = ClusterView {
            shards: &shards,
            databases: &databases,
            config_set: "cfg",
            config_is_local: false,
        };
        let time = Timestamp::new(9, 1);
        add_shard(request, cluster, hello, dbs, time, version)
    }

    #[test]
    fn a_set_becomes_a_shard() {
        let check = |name, expected: &str| {
            let wanted = request("rs1", "c:1", name);
            let databases = ["admin", "config", "local", "shop", "blog"];
            let found = add(&wanted, &hello("rs1", "c:1,d:1"), &databases).expect("added");
            let ShardAddition::New(new) = found else {
                panic!("{found:?}");
            };
            assert_eq!(
                (&*new.shard.id, &*new.shard.host),
                (expected, "rs1/c:1,d:1")
            );
            assert_eq!(new.shard.topology_time, Some(Timestamp::new(9, 1)));
            assert_eq!(new.shard.state, 1);
            let names: Vec<&str> = new.databases.iter().map(|db| &*db.name).collect();
            assert_eq!(names, ["shop", "blog"]);
            assert!(new.databases.iter().all(|db| db.primary == *expected));
        };
        check(None, "rs1");
        check(Some("west"), "west");
        // An arbiter may be a seed.
        let wanted = request("rs1", "arb:1,c:1", None);
        assert!(add(&wanted, &hello("rs1", "c:1"), &[]).is_ok());
    }

    #[test]
    fn the_same_shard_again() {
        // No answer of the candidate is needed.
        let nothing = ShardHello::default();
        for name in [None, Some("s0")] {
            for seeds in ["a:1", "b:1,a:1", "z:1"] {
                let found = add(&request("rs0", seeds, name), &nothing, &["sales"]);
                assert_eq!(found.ok(), Some(ShardAddition::Exists("s0".into())));
            }
        }
    }

    #[test]
    fn what_is_refused() {
        let good = hello("rs1", "c:1,d:1");
        let check =
            |wanted: AddShardRequest, hello: &ShardHello, dbs: &[&str], code, text: &str| {
                let error = add(&wanted, hello, dbs).expect_err(text);
                assert_eq!(error.code.0, code, "{error}");
                assert!(error.message.contains(text), "{}", error.message);
            };
        let seed = |name| request("rs1", "c:1", name);
        check(
            request("rs0", "a:1", Some("x")),
            &good,
            &[],
            20,
            "A shard already exists containing the replica set 'rs0'",
        );
        check(
            request("rs1", "b:1", None),
            &good,
            &[],
            20,
            "'b:1' is already a member of the existing shard 'rs0/a:1,b:1' (s0).",
        );
        check(
            seed(Some("s0")),
            &good,
            &[],
            20,
            "A shard named s0 with the replica set 'rs0' already exists",
        );
        check(
            request("s0", "c:1", None),
            &hello("s0", "c:1"),
            &[],
            20,
            "A shard named s0 with the replica set 'rs0' already exists",
        );
        check(seed(Some("")), &good, &[], 2, "shard name cannot be empty");
        check(
            seed(Some("config")),
            &good,
            &[],
            2,
            "name 'config' is not allowed",
        );
        check(
            request("config", "c:1", None),
            &hello("config", "c:1"),
            &[],
            2,
            "name 'config' is not allowed",
        );
        check(
            request("rs1", "localhost:1", None),
            &good,
            &[],
            72,
            "host: localhost:1 isLocalHost:1",
        );
        let with = |change: fn(&mut ShardHello)| {
            let mut changed = good.clone();
            change(&mut changed);
            changed
        };
        check(
            seed(None),
            &with(|h| h.is_router = true),
            &[],
            20,
            "cannot add a mongos as a shard",
        );
        check(
            seed(None),
            &with(|h| h.is_primary = false),
            &[],
            10107,
            "rs1/c:1 does not have a master",
        );
        check(
            seed(None),
            &with(|h| h.is_config_server = true),
            &[],
            96,
            "Cannot add rs1/c:1 as a shard since it is a config server",
        );
        check(
            request("cfg", "c:1", None),
            &hello("cfg", "c:1"),
            &[],
            96,
            "Cannot add cfg/c:1 as a shard since its set has the name of the config servers'",
        );
        check(
            seed(None),
            &with(|h| h.set.clear()),
            &[],
            96,
            "host did not return a set name",
        );
        check(
            request("", "c:1", None),
            &good,
            &[],
            96,
            "host is part of set rs1; use replica set url format",
        );
        check(
            request("rs2", "c:1", None),
            &good,
            &[],
            96,
            "the provided connection string (rs2/c:1) does not match the actual set name rs1",
        );
        check(
            request("rs1", "c:1,e:1", None),
            &good,
            &[],
            96,
            "in seed list rs1/c:1,e:1, host e:1 does not belong to replica set rs1",
        );
        check(
            seed(None),
            &good,
            &["shop", "sales"],
            96,
            "can't add shard 'rs1/c:1' because a local database 'sales' exists in another s0",
        );
    }

    #[test]
    fn replies_of_hello() {
        let reply = rawdoc! {
            "ismaster": true, "setName": "rs1", "hosts": ["c:1", "d:1"], "passives": ["p:1"],
            "arbiters": ["arb:1"],
        };
        let expected = hello("rs1", "c:1,d:1,p:1");
        assert_eq!(ShardHello::parse(&reply), expected);
        let router = ShardHello::parse(&rawdoc! { "isWritablePrimary": true, "msg": "isdbgrid" });
        assert!(router.is_router && router.is_primary && router.set.is_empty());
        assert!(ShardHello::parse(&rawdoc! { "configsvr": 2 }).is_config_server);
    }
}
