//! `explain` of statements that write into sharded collections: what each shard says of them.

use std::collections::BTreeSet;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_sharding_protocol::{ModifyStatement, RoutingTable, TargetedShards, Targets, WritePlan};
use pinion_wire::idl::{CommandReader, Namespace, Path};
use pinion_wire::{Error, Invocation, Reply, Result};

use super::statement::Modify;
use crate::gather::{ShardCall, ask_shards};
use crate::placement::table_of;
use crate::reads::{explained_write, variables};
use crate::request::{Request, Versions};

/// The command that is explained, if it writes.
fn written(cmd: &Invocation) -> Option<(&str, &RawDocument, &str)> {
    let (_, inner) = pinion_bson::elements(cmd.body()).next()?;
    let inner = inner.as_document()?;
    let (name, collection) = pinion_bson::elements(inner).next()?;
    let writes = matches!(
        name,
        "update" | "delete" | "findAndModify" | "findandmodify"
    );
    let collection = collection.as_str().filter(|_| writes)?;
    Some((name, inner, collection))
}

/// `explain` of an update, a delete or a `findAndModify`; `None` where it is of something else, or
/// the collection is not sharded.
///
/// # Errors
/// Those of the statement, of the shards, and of the way there.
pub(crate) async fn explain(cmd: &Invocation) -> Result<Option<Reply>> {
    let Some((name, inner, collection)) = written(cmd) else {
        return Ok(None);
    };
    let Ok(ns) = Namespace::sought(cmd.db(), collection) else {
        return Ok(None);
    };
    if table_of(&ns, Targets::Unknown).await?.is_none() {
        return Ok(None);
    }
    let empty = RawDocumentBuf::new();
    let reader = CommandReader::new(name, inner)?;
    let modify = match name {
        "update" => Modify::of_update(Path::root("updates"), only(inner, "updates")?)?,
        "delete" => Modify::of_delete(Path::root("deletes"), only(inner, "deletes")?)?,
        _ => Modify::of_find_and_modify(&reader, &empty)?,
    };
    let vars = variables(reader.opt_doc("let")?)?;
    let target = |table: &RoutingTable| {
        let matcher = modify.matcher(&vars, Some(table))?;
        let plan = table.target_modify(&ModifyStatement {
            matcher: &matcher,
            is_multi: modify.is_multi,
            is_upsert: modify.is_upsert,
            may_broadcast: true,
        })?;
        let shards = match plan {
            WritePlan::One(shard) => BTreeSet::from([shard]),
            WritePlan::Each(all) | WritePlan::ById(all) | WritePlan::Found(all) => all,
        };
        Ok(TargetedShards { shards, key: None })
    };
    let make = |call: &ShardCall<'_>| Request::of(cmd, cmd.db(), Versions::of_shard(call.version));
    let Some(gathered) = ask_shards(cmd, &ns, target, make).await? else {
        return Ok(None);
    };
    let (_, answers) = gathered.all()?;
    Ok(Some(explained_write(&answers, inner)))
}

/// The one statement of a batch that is explained.
fn only<'d>(command: &'d RawDocument, name: &str) -> Result<&'d RawDocument> {
    let statements = match pinion_bson::get(command, name) {
        Some(RawBsonRef::Array(statements)) => statements,
        _ => {
            return Err(Error::bad_value(
                "explained write batches must be of size 1",
            ));
        }
    };
    let mut statements = pinion_bson::values(statements).map(|statement| statement.as_document());
    match (statements.next(), statements.next()) {
        (Some(Some(only)), None) => Ok(only),
        _ => Err(Error::bad_value(
            "explained write batches must be of size 1",
        )),
    }
}
