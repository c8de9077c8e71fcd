//! `explain` of statements that write into sharded collections: what each shard says of them.

use std::collections::BTreeSet;

use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_sharding_protocol::{RoutingTable, TargetedShards, Targets, WritePlan};
use pinion_wire::idl::{CommandReader, Namespace, Path, missing_field};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::plan::write_plan;
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
        "update" => Modify::of_update(Path::root("updates"), only(&reader, "updates")?)?,
        "delete" => Modify::of_delete(Path::root("deletes"), only(&reader, "deletes")?)?,
        _ => Modify::of_find_and_modify(&reader, &empty)?,
    };
    let vars = variables(reader.opt_doc("let")?)?;
    let target = |table: &RoutingTable| {
        let shards = match write_plan(table, &modify, &vars, true)? {
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
fn only<'d>(reader: &CommandReader<'d>, name: &str) -> Result<&'d RawDocument> {
    let Some(objects) = reader.opt_objects(name)? else {
        return Err(missing_field(reader.path().field(name)));
    };
    let statements: Vec<&RawDocument> =
        objects.map(|object| Ok(object?.1)).collect::<Result<_>>()?;
    match statements[..] {
        [only] => Ok(only),
        _ => Err(Error::new(
            ErrorCode::INVALID_LENGTH,
            format!(
                "explained write batches must be of size 1, but was {}",
                statements.len()
            ),
        )),
    }
}
