//! The collections that pipelines write into: where they are, and what is known of them.

use pinion_bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_query::{Variables, parse_collation};
use pinion_sharding_protocol::{RoutingTable, TargetedShards, Targets};
use pinion_wire::idl::{Namespace, i64_exact, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, Result};

use crate::dispatch::{Answer, WhenAbsent, at_primary};
use crate::gather::ask_wherever;
use crate::placement::{database, table_of};
use crate::request::{Request, Versions};

/// What a stage writes into.
pub(in crate::reads) struct Destination {
    /// `$out` or `$merge`.
    stage: &'static str,
    pub ns: Namespace,
}

/// The collections that a pipeline writes into, as far as they can be named so.
pub(in crate::reads) fn destinations_of(stages: &RawArray, db: &str) -> Vec<Destination> {
    let stages = pinion_bson::values(stages).filter_map(|stage| stage.as_document());
    let stages = stages.filter_map(|stage| pinion_bson::elements(stage).next());
    let target = |(name, value): (&str, RawBsonRef<'_>)| {
        let (stage, into) = match (name, value) {
            ("$out", into) => ("$out", into),
            ("$merge", RawBsonRef::Document(spec)) => ("$merge", pinion_bson::get(spec, "into")?),
            ("$merge", into) => ("$merge", into),
            _ => return None,
        };
        let ns = match into {
            RawBsonRef::String(name) => Namespace::sought(db, name).ok()?,
            RawBsonRef::Document(into) => {
                let part = |name| pinion_bson::get(into, name).and_then(|part| part.as_str());
                let db = part("db").filter(|db| !db.is_empty()).unwrap_or(db);
                Namespace::sought(db, part("coll")?).ok()?
            }
            _ => return None,
        };
        Some(Destination { stage, ns })
    };
    stages.filter_map(target).collect()
}

impl Destination {
    /// Whether the router has to write, for a pipeline over a database: the collection is sharded,
    /// or on another shard than the database.
    ///
    /// # Errors
    /// `NamespaceCannotBeSharded` for `$out`; the config servers do not answer.
    pub(in crate::reads) async fn is_routed(&self, source: &str) -> Result<bool> {
        let is_sharded = table_of(&self.ns, Targets::Unknown).await?.is_some();
        if is_sharded && self.stage == "$out" {
            return Err(no_sharded_output());
        }
        if is_sharded || self.ns.db() == source {
            return Ok(is_sharded);
        }
        let (source, target) = (database(source).await?, database(self.ns.db()).await?);
        let primaries = source.zip(target);
        Ok(primaries.is_some_and(|(source, target)| source.primary != target.primary))
    }
}

pub(super) fn no_sharded_output() -> Error {
    Error::new(
        ErrorCode::NAMESPACE_CANNOT_BE_SHARDED,
        "$out to a sharded collection is not allowed",
    )
}

/// The first documents of an answer's cursor, which are all there are.
fn whole_batch(answer: &Answer) -> Result<Vec<RawDocumentBuf>> {
    let cursor = pinion_bson::get(answer.body(), "cursor").and_then(|cursor| cursor.as_document());
    let whole = cursor.filter(|cursor| {
        let id = pinion_bson::get(cursor, "id").and_then(i64_exact);
        id == Some(0)
    });
    let batch = whole.and_then(|cursor| pinion_bson::get(cursor, "firstBatch")?.as_array());
    let Some(batch) = batch else {
        return Err(Error::internal("a shard's list has no end"));
    };
    let documents = pinion_bson::values(batch).filter_map(|found| found.as_document());
    Ok(documents.map(RawDocument::to_owned).collect())
}

/// More than a collection has of anything that is listed.
const WHOLE: i64 = 1_000;

/// The indexes of a collection as commands write them, at the shard that owns the lowest key;
/// `None` where there is no collection.
///
/// # Errors
/// Those of the shard, and of the way there.
pub(super) async fn indexes_of(
    cmd: &Invocation,
    ns: &Namespace,
) -> Result<Option<Vec<RawDocumentBuf>>> {
    let owner_of_least = |table: &RoutingTable| {
        Ok(TargetedShards {
            shards: [table.owner(&table.key.min(), None)?].into(),
            key: None,
        })
    };
    let make = |versions: Versions| {
        Request::own(ns.db(), versions, |out| {
            out.append("listIndexes", ns.collection());
            out.start_document("cursor").append("batchSize", WHOLE);
            out.end();
        })
    };
    let answers = match ask_wherever(cmd, ns, owner_of_least, make).await {
        Err(error) if error.code == ErrorCode::NAMESPACE_NOT_FOUND => return Ok(None),
        answers => answers?,
    };
    match answers.first() {
        Some(answer) => whole_batch(answer).map(Some),
        None => Err(Error::internal("a collection has no shard")),
    }
}

/// What the primary shard of its database lists of an unsharded collection.
///
/// # Errors
/// Those of the shard, and of the way there.
pub(super) async fn listed(cmd: &Invocation, ns: &Namespace) -> Result<Option<RawDocumentBuf>> {
    let make = |versions: Versions| {
        Request::own(ns.db(), versions.database, |out| {
            out.append("listCollections", 1i32);
            out.start_document("filter").append("name", ns.collection());
            out.end().start_document("cursor").end();
        })
    };
    let answer = at_primary(cmd, ns.db(), WhenAbsent::Answer, make).await?;
    Ok(whole_batch(&answer)?.into_iter().next())
}

/// The collation of an unsharded collection, or of a view.
///
/// # Errors
/// As [`listed`].
pub(in crate::reads) async fn collation_of(
    cmd: &Invocation,
    ns: &Namespace,
) -> Result<Option<RawDocumentBuf>> {
    let found = listed(cmd, ns).await?;
    let spec = found
        .as_deref()
        .and_then(|found| pinion_bson::get_path(found, "options.collation")?.as_document());
    Ok(spec.map(RawDocument::to_owned))
}

/// Whether no two documents have the same values in some fields because of an index, as strings
/// compare under the collation of the variables.
///
/// # Errors
/// The index has a collation that cannot be read.
pub(super) fn makes_unique(index: &RawDocument, fields: &[&str], vars: &Variables) -> Result<bool> {
    let document = |name| pinion_bson::get(index, name).and_then(|value| value.as_document());
    let Some(key) = document("key") else {
        return Ok(false);
    };
    let names: Vec<&str> = pinion_bson::elements(key).map(|(name, _)| name).collect();
    let is_unique = names == ["_id"] || pinion_bson::get(index, "unique").is_some_and(truthy);
    let is_of_fields =
        names.len() == fields.len() && fields.iter().all(|field| names.contains(field));
    if !is_unique || !is_of_fields || document("partialFilterExpression").is_some() {
        return Ok(false);
    }
    let own = match document("collation") {
        Some(spec) => parse_collation(spec)?,
        None => None,
    };
    Ok(own == vars.collation)
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawArrayBuf, rawdoc};

    use super::*;

    #[test]
    fn destinations() {
        let check = |stage: RawDocumentBuf, expected: Option<(&str, &str)>| {
            let mut stages = RawArrayBuf::new();
            stages.push(rawdoc! { "$match": {} });
            stages.push(stage);
            let found = destinations_of(&stages, "d");
            let found = found.first().map(|found| (found.stage, found.ns.as_str()));
            assert_eq!(found, expected);
        };
        check(rawdoc! { "$out": "x" }, Some(("$out", "d.x")));
        let out = rawdoc! { "$out": { "db": "e", "coll": "x" } };
        check(out, Some(("$out", "e.x")));
        check(rawdoc! { "$merge": "x" }, Some(("$merge", "d.x")));
        let into = rawdoc! { "$merge": { "into": "x", "on": "a" } };
        check(into, Some(("$merge", "d.x")));
        let into = rawdoc! { "$merge": { "into": { "db": "e", "coll": "x" } } };
        check(into, Some(("$merge", "e.x")));
        let into = rawdoc! { "$merge": { "into": { "db": "", "coll": "x" } } };
        check(into, Some(("$merge", "d.x")));
        check(rawdoc! { "$merge": 3 }, None);
        check(rawdoc! { "$limit": 3 }, None);
    }

    #[test]
    fn unique_indexes() {
        let german = Variables {
            collation: parse_collation(&rawdoc! { "locale": "de" }).expect("a collation"),
            ..Variables::default()
        };
        let check = |index: RawDocumentBuf, fields: &[&str], expected: (bool, bool)| {
            let simple = Variables::default();
            let simple = makes_unique(&index, fields, &simple).expect("it can be read");
            let other = makes_unique(&index, fields, &german).expect("it can be read");
            assert_eq!((simple, other), expected, "{index:?}");
        };
        check(rawdoc! { "key": { "_id": 1 } }, &["_id"], (true, false));
        check(rawdoc! { "key": { "a": 1 } }, &["a"], (false, false));
        let unique = rawdoc! { "key": { "a": 1, "b": -1 }, "unique": true };
        check(unique.clone(), &["b", "a"], (true, false));
        check(unique, &["a"], (false, false));
        let partial = rawdoc! {
            "key": { "a": 1 }, "unique": true, "partialFilterExpression": { "b": 1 },
        };
        check(partial, &["a"], (false, false));
        let german = rawdoc! { "key": { "a": 1 }, "unique": true, "collation": { "locale": "de" } };
        check(german, &["a"], (false, true));
    }
}
