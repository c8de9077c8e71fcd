//! The catalog of a new cluster: its identity, its collections and their indexes. A primary makes
//! what is missing of them.

use pinion_bson::{ObjectId, RawBson, RawDocumentBuf, rawdoc};
use pinion_catalog::{
    CollMod, Collection, ValidationAction, ValidationLevel, coll_mod, core_catalog,
};
use pinion_exec::replica_set;
use pinion_runtime::{now, sleep};
use pinion_service::generate::new_object_id;
use pinion_sharding_protocol::config::settings_validator;
use pinion_sharding_protocol::documents::{
    CHANGELOG_BYTES, CatalogIndex, INDEXES, VersionDocument,
};
use pinion_wire::idl::Namespace;
use pinion_wire::{CommandSpec, ErrorCode, OpContext, Result};

use super::topology;
use crate::limits::RETRY_PAUSE;
use crate::local::{LocalClient, wait_majority};
use crate::part::part;

const VERSION: (&str, &str) = ("config", "version");

/// What changes the catalog here, in the place of a command.
static TASK: CommandSpec = CommandSpec::of_task("configCatalog");

/// Has a new primary make what is missing, until it has done that or is none any more. Called on
/// core 0.
pub(crate) fn begin() {
    part().core_0.begin(async {
        while is_primary() && !part().core_0.is_stopping() {
            match ensure().await {
                Ok(_) => {
                    topology::follow();
                    return;
                }
                Err(error) => {
                    tracing::warn!(target: "SHARDING", id = 7_500_010u64, error = %error, "The catalog of the cluster could not be made; it is tried again");
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    });
}

fn is_primary() -> bool {
    replica_set().is_some_and(|set| set.view().writable)
}

/// Makes what is missing, and gives the cluster's identity. A majority has it then. Called on core
/// 0.
///
/// # Errors
/// Those of a write.
pub(super) async fn ensure() -> Result<ObjectId> {
    let part = part();
    let _turn = part.core_0.catalog_turn.acquire().await;
    let client = LocalClient::new()?;
    for command in definitions() {
        let made = client.run(&command).await;
        if let Err(error) = made
            && error.code != ErrorCode::NAMESPACE_EXISTS
        {
            return Err(error);
        }
    }
    validate_settings().await?;
    if let Some(found) = identity(&client).await? {
        // Another attempt may have made it, and not have come to its end.
        wait_majority().await?;
        return Ok(found);
    }
    let document = VersionDocument::new(new_object_id());
    let insert = rawdoc! {
        "insert": "version", "documents": [document.to_bson()], "$db": "config",
    };
    client.write(&insert).await?;
    tracing::info!(target: "SHARDING", id = 7_500_011u64, clusterId = document.cluster.to_hex(), "The catalog of a new cluster was made");
    Ok(document.cluster)
}

/// Has settings refused that are none, also in a collection that a command has made. Commands give
/// the collections of `config` no validator.
async fn validate_settings() -> Result<()> {
    let ns = Namespace::new("config", "settings").expect("a name");
    let validator = settings_validator();
    let is_set = |known: &Collection| known.options.validator.as_deref() == Some(&*validator);
    if core_catalog().get(&ns).is_some_and(|known| is_set(&known)) {
        return Ok(());
    }
    let change = CollMod {
        command: rawdoc! {
            "collMod": ns.collection(), "validator": validator.clone(),
            "validationLevel": "strict", "validationAction": "error",
        },
        validator: Some(validator),
        validation_level: Some(ValidationLevel::Strict),
        validation_action: Some(ValidationAction::Error),
        ..CollMod::default()
    };
    let ctx = OpContext::internal(0, &TASK, ns.db(), now().as_nanos());
    coll_mod(&ctx, ns, change).await.map(drop)
}

async fn identity(client: &LocalClient) -> Result<Option<ObjectId>> {
    let found = client
        .find(VERSION, &rawdoc! { "_id": VersionDocument::ID }, 1)
        .await?;
    let Some(found) = found.first() else {
        return Ok(None);
    };
    Ok(Some(VersionDocument::parse(found)?.cluster))
}

/// Commands that make the collections and indexes, and do nothing where these are there.
fn definitions() -> Vec<RawDocumentBuf> {
    let mut commands: Vec<RawDocumentBuf> = INDEXES.iter().map(creation).collect();
    for name in ["databases", "collections", "settings"] {
        commands.push(rawdoc! { "create": name, "$db": "config" });
    }
    commands.push(rawdoc! {
        "create": "changelog", "capped": true, "size": CHANGELOG_BYTES, "$db": "config",
    });
    commands
}

fn creation(index: &CatalogIndex) -> RawDocumentBuf {
    let collection = index.ns.split_once('.').map_or(index.ns, |(_, name)| name);
    let mut spec = rawdoc! { "key": index.key(), "name": index.name() };
    if index.is_unique {
        spec.append(pinion_bson::cstr!("unique"), RawBson::Boolean(true));
    }
    rawdoc! { "createIndexes": collection, "indexes": [spec], "$db": "config" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made() {
        let commands = definitions();
        let unique = rawdoc! {
            "createIndexes": "chunks",
            "indexes": [{ "key": { "uuid": 1, "min": 1 }, "name": "uuid_1_min_1", "unique": true }],
            "$db": "config",
        };
        assert_eq!(commands[0], unique);
        let names = commands.iter().map(|command| {
            let (_, name) = pinion_bson::elements(command).next().expect("a name");
            name.as_str().expect("a text")
        });
        let mut names: Vec<&str> = names.collect();
        names.dedup();
        let expected = [
            "chunks",
            "shards",
            "tags",
            "locks",
            "lockpings",
            "databases",
            "collections",
            "settings",
            "changelog",
        ];
        assert_eq!(names, expected);
    }
}
