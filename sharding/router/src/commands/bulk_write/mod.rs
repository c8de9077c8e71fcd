//! `bulkWrite`: operations on unsharded collections of one database are sent together; others are
//! sent in parts, each to the shard that owns what it is about. What a shard refuses since the
//! routing table is another is sent again, and nothing else.

mod operation;
mod results;
mod statements;

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_wire::idl::Namespace;
use pinion_wire::{Invocation, Reply, Result};

use self::statements::Bulk;
use crate::dispatch::{WhenAbsent, at_database};
use crate::reply::passed_on;
use crate::request::Request;
use crate::writes::run;

/// `bulkWrite`.
pub(super) async fn bulk_write(cmd: Invocation) -> Result<Reply> {
    run(Bulk::of(&cmd)?).await
}

/// `explain` of a `bulkWrite`: the primary shard says what it has to say of it.
pub(super) async fn explain(cmd: Invocation) -> Result<Reply> {
    let command = pinion_bson::get_path(cmd.body(), "explain.nsInfo");
    let first = match command {
        Some(RawBsonRef::Array(namespaces)) => pinion_bson::values(namespaces).next(),
        _ => None,
    };
    let ns = first.and_then(|ns| pinion_bson::get(ns.as_document()?, "ns"));
    let ns = ns.and_then(|ns| Namespace::parse(ns.as_str()?).ok());
    let db = ns.map_or_else(|| "admin".to_owned(), |ns| ns.db().to_owned());
    let answer = at_database(&cmd, &db, WhenAbsent::Answer, |version| {
        Request::of(&cmd, cmd.db(), version)
    })
    .await?;
    Ok(passed_on(answer.body()))
}

/// The namespace that an entry of `nsInfo` names.
fn named_in(entry: &RawDocument) -> Option<Namespace> {
    Namespace::parse(pinion_bson::get(entry, "ns")?.as_str()?).ok()
}
