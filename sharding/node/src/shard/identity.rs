//! The identity of a shard: read at the start, and whenever it is written.

use std::sync::Arc;

use pinion_bson::{ObjectId, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_exec::local::document_by_id;
use pinion_exec::placement::WrittenEntries;
use pinion_runtime::{CoreId, core_id};
use pinion_sharding_protocol::documents::{IDENTITY, ShardIdentityDocument};
use pinion_sharding_router::Hosts;
use pinion_wire::{Error, ErrorCode, Result};

use super::collections::{distrust, settle};
use super::databases::forget_cached;
use crate::data::open_data;
use crate::local::LocalClient;
use crate::part::{Membership, Part, install_membership, part};

const OTHER_NAME: ErrorCode = ErrorCode(40_371);
const OTHER_CLUSTER: ErrorCode = ErrorCode(40_372);
const OTHER_CONFIG_SET: ErrorCode = ErrorCode(40_374);

/// Refuses to make a shard one of another name or cluster. Its config servers may get other hosts.
///
/// # Errors
/// 40371, 40372 and 40374.
pub(crate) fn check_same(known: &Membership, new: &Membership) -> Result<()> {
    let differs = |code, what: &str, known: &str, new: &str| {
        let message =
            format!("this shard has the {what} '{known}', which cannot be changed to '{new}'");
        Err(Error::new(code, message))
    };
    if known.shard() != new.shard() {
        return differs(OTHER_NAME, "name", known.shard(), new.shard());
    }
    let cluster = |of: &Membership| -> ObjectId { of.document.cluster };
    if cluster(known) != cluster(new) {
        let (known, new) = (cluster(known).to_hex(), cluster(new).to_hex());
        return differs(OTHER_CLUSTER, "cluster", &known, &new);
    }
    let set = |of: &Membership| of.config_servers.set.clone();
    if set(known) != set(new) {
        return differs(OTHER_CONFIG_SET, "config servers", &set(known), &set(new));
    }
    Ok(())
}

async fn stored() -> Result<Option<RawDocumentBuf>> {
    document_by_id(IDENTITY, RawBsonRef::String(ShardIdentityDocument::ID)).await
}

/// Reads the identity, and has every core use it. One that is not there any more, or another one,
/// was taken back with the history that had it. Called on core 0.
///
/// # Errors
/// It cannot be read, or is none.
pub(crate) async fn load() -> Result<()> {
    assert!(core_id() == CoreId(0), "the identity is core 0's");
    let part = part();
    let _turn = part.core_0.identity_turn.acquire().await;
    load_in_turn(&part).await
}

async fn load_in_turn(part: &Part) -> Result<()> {
    let document = {
        let _open = open_data().await;
        stored().await?
    };
    let found = document.map(|document| parse(&document)).transpose()?;
    let known = part.membership();
    if known.as_deref() == found.as_ref() {
        return Ok(());
    }
    let stays =
        |known: &Membership| (found.as_ref()).is_some_and(|found| check_same(known, found).is_ok());
    // Of another cluster, whose config servers may be called as those of this one.
    let left = known.filter(|known| !stays(known));
    let config_servers = found.as_ref().map(|found| found.config_servers.clone());
    let name = found.as_ref().map(|found| found.shard().to_string());
    install_membership(found.map(Arc::new)).await;
    if let Some(left) = left {
        forget_cached(&WrittenEntries::All).await;
        distrust(&WrittenEntries::All).await;
        part.core_0
            .begin(async { settle(&WrittenEntries::All).await });
        Hosts::here().unwatch(&left.config_servers.set).await;
    }
    let (Some(name), Some(config_servers)) = (name, config_servers) else {
        tracing::warn!(target: "SHARDING", id = 7_500_005u64, "The identity of this shard was taken back: it is of no cluster any more");
        return Ok(());
    };
    tracing::info!(target: "SHARDING", id = 22_072u64, shardName = name, configsvrConnectionString = %config_servers, "Initializing sharding state");
    part.core_0.begin(async move {
        Hosts::here().watch(&config_servers).await;
        // Times are verified with the cluster's keys from now on.
        pinion_exec::time_keys::wake().await;
    });
    Ok(())
}

fn parse(document: &RawDocument) -> Result<Membership> {
    Membership::of(ShardIdentityDocument::parse(document)?)
}

/// Gives the set its identity: a majority has it when this returns. Called on core 0 of the
/// primary.
///
/// # Errors
/// It has another one; those of a write.
pub(super) async fn give(new: Membership) -> Result<()> {
    assert!(core_id() == CoreId(0), "the identity is core 0's");
    let part = part();
    let _turn = part.core_0.identity_turn.acquire().await;
    let client = LocalClient::new()?;
    let known = stored().await?.map(|document| parse(&document));
    match known.transpose()? {
        // An insert, so that it does not replace what a client writes meanwhile.
        None => {
            let insert = rawdoc! {
                "insert": "system.version", "documents": [new.document.to_bson()], "$db": "admin",
            };
            client.write(&insert).await?;
        }
        Some(known) => {
            check_same(&known, &new)?;
            let config_servers = new.document.config_servers.as_str();
            let update = rawdoc! {
                "update": "system.version",
                "updates": [{
                    "q": { "_id": ShardIdentityDocument::ID },
                    "u": { "$set": { "configsvrConnectionString": config_servers } },
                }],
                "$db": "admin",
            };
            client.write(&update).await?;
        }
    }
    load_in_turn(&part).await
}

/// As [`load`], where there is no caller that could be answered.
pub(crate) async fn reload() {
    if let Err(error) = load().await {
        tracing::error!(target: "SHARDING", id = 7_500_002u64, error = %error, "The identity of this shard is of no use");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(name: &str, cluster: u8, config: &str) -> Membership {
        let document = ShardIdentityDocument {
            shard: name.into(),
            cluster: ObjectId::from_bytes([cluster; 12]),
            config_servers: config.into(),
            other: RawDocumentBuf::new(),
        };
        Membership::of(document).expect("an identity")
    }

    #[test]
    fn what_stays() {
        let known = membership("s1", 1, "cfg/a:1");
        let check = |name, cluster, config, expected: Option<i32>| {
            let outcome = check_same(&known, &membership(name, cluster, config));
            assert_eq!(
                outcome.err().map(|error| error.code.0),
                expected,
                "{config}"
            );
        };
        check("s1", 1, "cfg/a:1", None);
        check("s1", 1, "cfg/b:1,c:1", None);
        check("s2", 1, "cfg/a:1", Some(40_371));
        check("s1", 2, "cfg/a:1", Some(40_372));
        check("s1", 1, "other/a:1", Some(40_374));
    }
}
