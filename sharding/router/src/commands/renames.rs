//! `renameCollection`, `convertToCapped`, `cloneCollectionAsCapped`.

use pinion_bson::DocBuilder;
use pinion_sharding_protocol::ddl::RenameRequest;
use pinion_sharding_protocol::has_fixed_placement;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::collections::known_table;
use super::reads;
use super::sharding::append_majority;
use crate::dispatch::{
    Answer, WhenAbsent, at_coordinator, at_database, at_primary, before_routing_again,
    may_route_again, named_collection,
};
use crate::placement::{database, flush_collection, forget_database, make_database};
use crate::reply::passed_on;
use crate::request::{Request, Versions};

fn illegal(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::ILLEGAL_OPERATION, message)
}

/// `renameCollection`: the primary shard of the database renames the collection, on all shards
/// where it has to.
pub(super) async fn rename_collection(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let from = Namespace::parse(reader.str("renameCollection")?)?;
    let request = RenameRequest::read(&reader)?;
    reader.finish()?;
    let to = &request.to;
    if from == *to {
        return Err(illegal("Can't rename a collection to itself"));
    }
    if from.db() != to.db() || has_fixed_placement(from.db()) {
        return on_one_shard(&cmd, &from, to).await;
    }
    for attempt in 0.. {
        let source = known_table(&cmd, &from).await?;
        let request = RenameRequest {
            known_uuid: source.as_ref().and_then(|table| table.uuid),
            ..request.clone()
        };
        let outcome = send(&cmd, &from, &request).await;
        // Also where it failed: it may be renamed all the same.
        flush_collection(&from).await;
        flush_collection(to).await;
        match outcome {
            Err(error) if may_route_again(&cmd, &error, attempt) => {
                before_routing_again(&cmd, None, &error, attempt).await?;
            }
            outcome => return Ok(passed_on(outcome?.body())),
        }
    }
    unreachable!("it returns at the last attempt")
}

/// A request that says which collection it is about comes to the same however often it is sent.
async fn send(cmd: &Invocation, from: &Namespace, request: &RenameRequest) -> Result<Answer> {
    let make = |versions: Versions| match versions.database {
        Some(_) => Request::own(from.db(), versions, |out| {
            out.append("_shardsvrRenameCollection", from.collection());
            request.append_to(out);
            append_majority(out, cmd);
        }),
        // There is no such database, as its node says.
        None => Request::of(cmd, cmd.db(), versions),
    };
    match request.known_uuid {
        Some(_) => at_coordinator(cmd, from.db(), WhenAbsent::Answer, make).await,
        None => at_primary(cmd, from.db(), WhenAbsent::Answer, make).await,
    }
}

/// Renames a collection of one shard, maybe into another database there.
async fn on_one_shard(cmd: &Invocation, from: &Namespace, to: &Namespace) -> Result<Reply> {
    for ns in [from, to] {
        if known_table(cmd, ns).await?.is_some() {
            return Err(Error::new(
                ErrorCode::COMMAND_FAILED,
                format!(
                    "Source and destination collections must be on the same database because {ns} is sharded."
                ),
            ));
        }
    }
    if from.db() != to.db() {
        // No version of the target goes with the command: where it is has to be known now.
        forget_database(to.db()).await;
        let source = database(from.db()).await?;
        if let Some(source) = &source {
            let target = match database(to.db()).await? {
                Some(target) => target,
                None => make_database(to.db(), Some(&source.primary)).await?,
            };
            if target.primary != source.primary {
                return Err(Error::new(
                    ErrorCode::COMMAND_FAILED,
                    "Source and destination collections must be on same shard",
                ));
            }
        }
    }
    let answer = at_database(cmd, from.db(), WhenAbsent::Answer, |version| {
        Request::of(cmd, cmd.db(), version)
    })
    .await?;
    Ok(passed_on(answer.body()))
}

/// `convertToCapped`, of a collection that is not sharded.
pub(super) async fn convert_to_capped(cmd: Invocation) -> Result<Reply> {
    let named = named_collection(&cmd, cmd.db());
    let Some(ns) = named.filter(|ns| !has_fixed_placement(ns.db())) else {
        return reads::plain(cmd).await;
    };
    let make = |versions: Versions| match versions.database {
        Some(_) => Request::own(ns.db(), versions, |out: &mut DocBuilder| {
            out.append("_shardsvrConvertToCapped", ns.collection());
            if let Some(size) = pinion_bson::get(cmd.body(), "size") {
                out.append_raw("size", size);
            }
            append_majority(out, &cmd);
        }),
        None => Request::of(&cmd, ns.db(), versions),
    };
    for attempt in 0.. {
        if known_table(&cmd, &ns).await?.is_some() {
            return Err(illegal("You can't convertToCapped a sharded collection"));
        }
        match at_primary(&cmd, ns.db(), WhenAbsent::Answer, make).await {
            Err(error) if may_route_again(&cmd, &error, attempt) => {
                before_routing_again(&cmd, Some(&ns), &error, attempt).await?;
            }
            outcome => return Ok(passed_on(outcome?.body())),
        }
    }
    unreachable!("it returns at the last attempt")
}

/// `cloneCollectionAsCapped`, from and to collections that are not sharded.
pub(super) async fn clone_collection_as_capped(cmd: Invocation) -> Result<Reply> {
    let target = pinion_bson::get(cmd.body(), "toCollection").and_then(|name| name.as_str());
    let target = target.and_then(|name| Namespace::sought(cmd.db(), name).ok());
    for ns in named_collection(&cmd, cmd.db()).iter().chain(&target) {
        if known_table(&cmd, ns).await?.is_some() {
            return Err(illegal(format!(
                "Can't do command: cloneCollectionAsCapped on a sharded collection: {ns}"
            )));
        }
    }
    reads::plain(cmd).await
}
