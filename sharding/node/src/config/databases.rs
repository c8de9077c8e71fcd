//! Changes of `config.databases`.

use pinion_bson::{DocBuilder, RawDocumentBuf, Uuid, rawdoc};
use pinion_runtime::join_all;
use pinion_service::generate::random_bytes;
use pinion_sharding_protocol::config::{
    DatabaseCreation, DatabaseRequest, PrimaryChange, ShardSize, change_primary,
    create_database as decide,
};
use pinion_sharding_protocol::documents::{DatabaseDocument, ShardDocument};
use pinion_sharding_protocol::{ConnectionString, DatabaseVersion, Form, ShardId};
use pinion_storage::storage;
use pinion_wire::idl::i64_clamped;
use pinion_wire::{Error, ErrorCode, Result};

use super::changelog::note;
use super::shards::known_shards;
use crate::config_servers::run_on_set;
use crate::limits::SHARD_SIZE;
use crate::local::{LocalClient, wait_majority};
use crate::part::part;
use crate::planted::PlantedFault;

pub(super) const DATABASES: (&str, &str) = ("config", "databases");

/// The version of a database that is made now: later than those of all that were before.
pub(super) fn first_version() -> DatabaseVersion {
    let mut bytes = random_bytes::<16>();
    // Version 4.
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let time = storage().vector_time().cluster().next();
    DatabaseVersion::first(Uuid::from_bytes(bytes), time)
}

/// Makes a database on the shard that was asked for, or else on the smallest; one that is there
/// stays where it is. Called on core 0.
///
/// # Errors
/// As of [`decide`]; those of a write.
pub(super) async fn create(
    name: &str,
    primary: Option<&str>,
    from: &str,
) -> Result<DatabaseDocument> {
    let part = part();
    let client = LocalClient::new()?;
    // Shards are asked outside the turn, so that one that does not answer holds up no request for
    // another database.
    let mut asked = None;
    let (_turn, alike) = loop {
        if asked.is_none() && !is_there(&alike(&client, name).await?, name) {
            let known = known_shards(&client).await?;
            asked = Some(match primary {
                Some(_) => without_sizes(known),
                None => sizes(known).await?,
            });
        }
        let turn = part.core_0.databases_turn.acquire().await;
        let alike = alike(&client, name).await?;
        // Otherwise it was removed since.
        if asked.is_some() || is_there(&alike, name) {
            break (turn, alike);
        }
    };
    let shards = of_now(asked.unwrap_or_default(), &known_shards(&client).await?);
    let request = DatabaseRequest { name, primary };
    match decide(request, &alike, &shards, first_version())? {
        DatabaseCreation::Exists(found) => {
            // Another attempt may have made it, and not have come to its end.
            wait_majority().await?;
            Ok(found)
        }
        DatabaseCreation::Create(made) => {
            let insert = rawdoc! {
                "insert": "databases", "documents": [made.to_bson()], "$db": "config",
            };
            if part.planted_fault == PlantedFault::PlacementNotMajority {
                client.run(&insert).await?;
                return Ok(made);
            }
            client.write(&insert).await?;
            let mut details = DocBuilder::new();
            details.append("primaryShard", made.primary.as_str());
            made.version.append_to(&mut details, "version", Form::Own);
            note(&client, from, "createDatabase", name, details.finish()).await;
            Ok(made)
        }
    }
}

fn is_there(alike: &[DatabaseDocument], name: &str) -> bool {
    alike.iter().any(|found| found.name == name)
}

/// The shards that were asked, as far as they are still of the cluster, and as they are now.
fn of_now(asked: Vec<ShardSize>, shards: &[ShardDocument]) -> Vec<ShardSize> {
    let of_now = asked.into_iter().filter_map(|asked| {
        let now = shards.iter().find(|shard| shard.id == asked.id)?;
        Some(ShardSize {
            is_draining: now.is_draining,
            ..asked
        })
    });
    of_now.collect()
}

/// Those whose names are equal to this one but for case.
async fn alike(client: &LocalClient, name: &str) -> Result<Vec<DatabaseDocument>> {
    let filter = rawdoc! { "_id": { "$regex": pattern(name), "$options": "i" } };
    let found = client.find(DATABASES, &filter, MAX_ALIKE).await?;
    found
        .iter()
        .map(|found| DatabaseDocument::parse(found))
        .collect()
}

/// Two spellings never come to be, and what an older version let in is of no use beyond the first.
const MAX_ALIKE: i32 = 16;

/// A pattern of exactly this text.
fn pattern(name: &str) -> String {
    let mut pattern = String::from("^");
    for letter in name.chars() {
        if letter.is_ascii() && !letter.is_ascii_alphanumeric() && letter != '_' {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('$');
    pattern
}

/// The shards where their sizes are of no consequence.
fn without_sizes(shards: Vec<ShardDocument>) -> Vec<ShardSize> {
    let all = shards.into_iter().map(|shard| sized(shard, 0));
    all.collect()
}

fn sized(shard: ShardDocument, size_bytes: u64) -> ShardSize {
    ShardSize {
        id: shard.id,
        is_draining: shard.is_draining,
        size_bytes,
    }
}

/// The shards with the size of their data, without those that do not answer.
///
/// # Errors
/// `HostUnreachable` where none of those that stay answers: that is no lack of shards.
async fn sizes(shards: Vec<ShardDocument>) -> Result<Vec<ShardSize>> {
    let found = shards.into_iter().map(|shard| async move {
        match size(&shard).await {
            Ok(size_bytes) => Ok(sized(shard, size_bytes)),
            Err(error) => Err((shard, error)),
        }
    });
    let (mut answered, mut silent) = (Vec::new(), None);
    for outcome in join_all(found).await {
        match outcome {
            Ok(shard) => answered.push(shard),
            Err((shard, error)) => {
                tracing::warn!(target: "SHARDING", id = 7_500_014u64, shard = shard.id.as_str(), error = %error, "A shard does not say how large it is, and gets no new database");
                if !shard.is_draining {
                    silent = Some((shard.id, error));
                }
            }
        }
    }
    match silent {
        Some((shard, error)) if answered.iter().all(|shard| shard.is_draining) => Err(Error::new(
            ErrorCode::HOST_UNREACHABLE,
            format!(
                "no shard says how large it is, {shard} since {}",
                error.message
            ),
        )),
        _ => Ok(answered),
    }
}

async fn size(shard: &ShardDocument) -> Result<u64> {
    let set = ConnectionString::parse(&shard.host)?;
    let command = rawdoc! { "listDatabases": 1, "$db": "admin" };
    let reply = run_on_set(&set, &command, SHARD_SIZE).await?;
    let total = pinion_bson::get(&reply, "totalSize").and_then(i64_clamped);
    Ok(total.map_or(0, |bytes| bytes.max(0) as u64))
}

/// Removes the entry of a database in this version. That it is not there, or one of another
/// version, means that it was removed before. Called on core 0.
///
/// # Errors
/// Those of a write.
pub(super) async fn remove(name: &str, version: DatabaseVersion, from: &str) -> Result<()> {
    let part = part();
    let _turn = part.core_0.databases_turn.acquire().await;
    let client = LocalClient::new()?;
    let found = client.find(DATABASES, &rawdoc! { "_id": name }, 1).await?;
    let found = found.first().map(|found| DatabaseDocument::parse(found));
    let found = found.transpose()?;
    if found.is_none_or(|found| !found.version.is_placement_equal(version)) {
        return wait_majority().await;
    }
    let delete = rawdoc! {
        "delete": "databases", "deletes": [{ "q": { "_id": name }, "limit": 1 }], "$db": "config",
    };
    client.write(&delete).await?;
    note(&client, from, "dropDatabase", name, RawDocumentBuf::new()).await;
    Ok(())
}

/// Gives a database of this version another primary shard. Called on core 0.
///
/// # Errors
/// As of [`change_primary`]; those of a write.
pub(super) async fn move_primary(
    name: &str,
    expected: DatabaseVersion,
    to: &ShardId,
    from: &str,
) -> Result<()> {
    let part = part();
    // No shard is removed meanwhile.
    let _shards_turn = part.core_0.shards_turn.acquire().await;
    let _turn = part.core_0.databases_turn.acquire().await;
    let client = LocalClient::new()?;
    let found = client.find(DATABASES, &rawdoc! { "_id": name }, 1).await?;
    let found = found.first().map(|found| DatabaseDocument::parse(found));
    let found = found.transpose()?;
    let shards = known_shards(&client).await?;
    match change_primary(name, found.as_ref(), &shards, expected, to)? {
        // Another attempt may have written it, and not have come to its end.
        PrimaryChange::Done => wait_majority().await,
        PrimaryChange::Write(moved) => {
            let update = rawdoc! {
                "update": "databases", "$db": "config",
                "updates": [{ "q": { "_id": name }, "u": moved.to_bson() }],
            };
            client.write(&update).await?;
            let before = found.map(|found| found.primary.to_string());
            let details = rawdoc! { "from": before.unwrap_or_default(), "to": to.as_str() };
            note(&client, from, "movePrimary", name, details).await;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_changed_while_they_were_asked() {
        let size = |id: &str, is_draining| ShardSize {
            id: id.into(),
            is_draining,
            size_bytes: 7,
        };
        let document = |id: &str, is_draining| ShardDocument {
            is_draining,
            ..ShardDocument::new(id.into(), String::new(), pinion_clock::Timestamp::MIN)
        };
        let asked = vec![size("a", false), size("b", false), size("gone", false)];
        let now = [
            document("a", true),
            document("b", false),
            document("new", false),
        ];
        assert_eq!(of_now(asked, &now), [size("a", true), size("b", false)]);
    }

    #[test]
    fn patterns_of_names() {
        for (name, expected) in [("d", "^d$"), ("a-b+c", "^a\\-b\\+c$"), ("ü_1", "^ü_1$")] {
            assert_eq!(pattern(name), expected);
        }
    }
}
