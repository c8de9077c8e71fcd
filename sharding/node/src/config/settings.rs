//! Changes of settings that all shards have: what is stored of a change is performed, phase by
//! phase, until it is made, by whichever node is the primary.

use pinion_bson::{RawDocument, RawDocumentBuf, rawdoc};
use pinion_exec::cluster_parameter_store::{parameter_time, store, stored_parameter};
use pinion_exec::placement::FeatureVersionPhase;
use pinion_exec::topology::is_writable;
use pinion_runtime::{CoreId, Queue, join_all, sleep, submit_to};
use pinion_service::cluster_parameters::NAMES;
use pinion_service::feature_version::feature_version;
use pinion_service::query_settings::STORED_AS;
use pinion_sharding_protocol::ConnectionString;
use pinion_sharding_protocol::config::{BlockStep, CONFIG_COORDINATORS, SettingsChange};
use pinion_wire::{Error, ErrorCode, HostPort, Result, interruption};

use super::shards::known_shards;
use crate::config_servers::{run_on_host, run_on_set, with_majority};
use crate::limits::{MAX_SETTINGS_CHANGES, MAX_SHARDS_AT_ONCE, REMOTE_COMMAND, RETRY_PAUSE};
use crate::local::{LocalClient, wait_majority};
use crate::part::part;
use crate::user_writes::{blocked_here, context, perform};

/// Where the documents are.
fn place() -> (&'static str, &'static str) {
    CONFIG_COORDINATORS.split_once('.').expect("a namespace")
}

/// Has a new primary make what an earlier one has left. Called on core 0.
pub(crate) fn begin() {
    part().core_0.begin(async {
        if let Err(error) = make_all().await {
            tracing::info!(target: "SHARDING", id = 7_500_030u64, error = %error, "Changes of the cluster's settings are left to another primary");
        }
    });
}

/// Blocks writes of users, or lets them in again. Called on core 0.
///
/// # Errors
/// `ConflictingOperationInProgress` while the opposite is made; the node is no primary any more.
pub(super) async fn block_user_writes(blocks: bool) -> Result<()> {
    let core_0 = &part().core_0;
    let conflict = || {
        Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            "Another ConfigsvrCoordinator with different arguments is already running with the same id",
        ))
    };
    if core_0
        .blocking_user_writes
        .get()
        .is_some_and(|made| made != blocks)
    {
        return conflict();
    }
    let waiting = core_0.blocking_user_writes.get().is_some();
    core_0.blocking_user_writes.set(Some(blocks));
    let made = run(&SettingsChange::block(blocks)).await;
    if !waiting {
        core_0.blocking_user_writes.set(None);
    }
    made
}

/// Sets a cluster parameter, whose value is checked. Called on core 0.
///
/// # Errors
/// The node is no primary any more.
pub(super) async fn set_parameter(name: &str, value: RawDocumentBuf) -> Result<()> {
    run(&SettingsChange::Parameter {
        name: name.to_owned(),
        time: parameter_time(),
        value,
    })
    .await
}

/// Has all shards get what is stored here of a parameter.
pub(crate) async fn spread_parameter(name: String) -> Result<()> {
    submit_to(CoreId(0), Queue::Foreground, move || async move {
        let Some(stored) = stored_parameter(&name).await? else {
            return Ok(());
        };
        run(&SettingsChange::Parameter {
            name,
            time: stored.time,
            value: stored.value,
        })
        .await
    })
    .await
}

/// Stores a change, and makes it, behind those that are made already.
async fn run(change: &SettingsChange) -> Result<()> {
    let part = part();
    let _turn = part.core_0.settings_turn.acquire().await;
    make_stored().await?;
    keep(change).await?;
    make_stored().await
}

async fn make_all() -> Result<()> {
    let part = part();
    let _turn = part.core_0.settings_turn.acquire().await;
    make_stored().await
}

/// Makes all changes that are stored.
async fn make_stored() -> Result<()> {
    loop {
        check_leads()?;
        match make_next().await {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(error) => {
                check_leads()?;
                tracing::warn!(target: "SHARDING", id = 7_500_031u64, error = %error, "A setting of the cluster could not be changed on all shards; it is tried again");
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

fn check_leads() -> Result<()> {
    match is_writable() && !part().core_0.is_stopping() {
        true => Ok(()),
        false => Err(interruption(
            ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
        )),
    }
}

/// Performs a phase of a change that is stored; whether there was one.
async fn make_next() -> Result<bool> {
    let client = LocalClient::new()?;
    let found = client
        .find(place(), &rawdoc! {}, MAX_SETTINGS_CHANGES)
        .await?;
    for document in found {
        let change = match SettingsChange::parse(&document) {
            Ok(change) => change,
            Err(error) => {
                tracing::error!(target: "SHARDING", id = 7_500_032u64, error = %error, "A change of the cluster's settings cannot be read, and is left as it is");
                continue;
            }
        };
        // A shard that is added meanwhile would get neither this nor what follows from it.
        let part = part();
        let _shards = part.core_0.shards_turn.acquire().await;
        on_all_shards(&client, &change.to_command()).await?;
        perform_here(&change).await?;
        wait_majority().await?;
        match change.next() {
            Some(next) => keep(&next).await?,
            None => forget(&change).await?,
        }
        return Ok(true);
    }
    Ok(false)
}

async fn perform_here(change: &SettingsChange) -> Result<()> {
    match change {
        SettingsChange::UserWriteBlock(step) => perform(context(), *step).await,
        SettingsChange::Parameter { name, time, value } => {
            store(context(), name.clone(), value.clone(), Some(*time)).await
        }
    }
}

async fn keep(change: &SettingsChange) -> Result<()> {
    let (db, collection) = place();
    let command = rawdoc! {
        "update": collection, "$db": db,
        "updates": [{ "q": { "_id": change.id() }, "u": change.to_bson(), "upsert": true }],
    };
    LocalClient::new()?.write(&command).await
}

async fn forget(change: &SettingsChange) -> Result<()> {
    let (db, collection) = place();
    let command = rawdoc! {
        "delete": collection, "$db": db,
        "deletes": [{ "q": { "_id": change.id() }, "limit": 1 }],
    };
    LocalClient::new()?.write(&command).await
}

/// Sends a command to all shards, some of them at once. A majority of each set has what it does.
async fn on_all_shards(client: &LocalClient, command: &RawDocument) -> Result<()> {
    let shards = known_shards(client).await?;
    let command = with_majority(command.to_owned());
    for some in shards.chunks(MAX_SHARDS_AT_ONCE) {
        let asking = some.iter().map(|shard| async {
            let set = ConnectionString::parse(&shard.host)?;
            let answered = run_on_set(&set, &command, REMOTE_COMMAND).await;
            answered.map_err(|error| error.context(format!("on shard {}", shard.id)))
        });
        for answered in join_all(asking).await {
            answered?;
        }
    }
    Ok(())
}

/// Has all shards go through a phase of the change to this node's feature compatibility version.
pub(crate) async fn raise_shards(phase: FeatureVersionPhase) -> Result<()> {
    submit_to(CoreId(0), Queue::Foreground, move || async move {
        let part = part();
        let _shards = part.core_0.shards_turn.acquire().await;
        let client = LocalClient::new()?;
        on_all_shards(&client, &version_command(Some(phase))).await
    })
    .await
}

fn version_command(phase: Option<FeatureVersionPhase>) -> RawDocumentBuf {
    let mut command = pinion_bson::DocBuilder::new();
    command
        .append("setFeatureCompatibilityVersion", feature_version().as_str())
        .append("fromConfigServer", true);
    if let Some(phase) = phase {
        command.append("phase", phase.name());
    }
    command.append("$db", "admin");
    command.finish()
}

/// Gives a set that becomes a shard the settings that the others have. Called with the turn of the
/// shards.
///
/// # Errors
/// The set cannot be reached, or refuses.
pub(super) async fn give_settings(host: &HostPort) -> Result<()> {
    run_on_host(host, &with_majority(version_command(None))).await?;
    for step in BlockStep::to_reach(blocked_here()) {
        run_on_host(host, &with_majority(step.to_command())).await?;
    }
    for name in NAMES.into_iter().chain([STORED_AS]) {
        let Some(stored) = stored_parameter(name).await? else {
            continue;
        };
        let set = SettingsChange::Parameter {
            name: name.to_owned(),
            time: stored.time,
            value: stored.value,
        };
        run_on_host(host, &with_majority(set.to_command())).await?;
    }
    Ok(())
}
