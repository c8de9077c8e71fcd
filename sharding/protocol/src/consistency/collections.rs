//! The collections of a database: what each shard has of them, and what it is to have.

use std::collections::{BTreeMap, BTreeSet};

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, rawdoc};
use pinion_query::TimeSeries;

use super::facts::{BareSeries, CollectionOnShard, KnownTable};
use super::inconsistency::Inconsistencies;
use super::series::check_series;
use crate::documents::CollectionDocument;
use crate::key::ShardKeyPattern;
use crate::shard_id::ShardId;
use crate::values::append_uuid;

/// A sharded collection of the catalog.
#[derive(Clone, Debug)]
pub struct CatalogCollection {
    pub document: CollectionDocument,
    /// The shards that own chunks.
    pub owners: BTreeSet<ShardId>,
}

/// What one shard has of a database, or of one collection of it.
#[derive(Clone, Debug)]
pub struct ShardFacts {
    pub shard: ShardId,
    pub collections: Vec<CollectionOnShard>,
    pub bare_series: Vec<BareSeries>,
}

impl ShardFacts {
    fn collection(&self, ns: &str) -> Option<&CollectionOnShard> {
        self.collections
            .iter()
            .find(|found| found.ns.as_str() == ns)
    }
}

/// Compares what the shards have with the catalog. `checks_indexes`: also the indexes of the shards
/// with each other.
pub fn check_collections(
    primary: &ShardId,
    catalog: &[CatalogCollection],
    shards: &[ShardFacts],
    checks_indexes: bool,
) -> Inconsistencies {
    let mut found = Inconsistencies::default();
    let sharded: BTreeSet<&str> = catalog
        .iter()
        .map(|collection| collection.document.ns.as_str())
        .collect();
    for shard in shards.iter().filter(|shard| shard.shard != *primary) {
        for collection in &shard.collections {
            let ns = collection.ns.as_str();
            if !sharded.contains(ns) && !may_be_anywhere(collection.ns.collection()) {
                misplaced(&mut found, &shard.shard, collection);
            }
        }
    }
    for shard in shards {
        check_series(shard, &mut found);
    }
    for collection in catalog {
        let parts = shards.iter().map(|shard| {
            let part = shard.collection(collection.document.ns.as_str());
            (&shard.shard, part)
        });
        let of = OfCollection {
            collection,
            primary,
            parts: parts.collect(),
        };
        of.check_parts(&mut found);
        of.check_options(&mut found);
        if checks_indexes {
            of.check_indexes(&mut found);
        }
    }
    found
}

/// Whether any shard may have a collection of this name without the catalog knowing it: those of a
/// node itself, and what an operation has until it ends.
pub(super) fn may_be_anywhere(name: &str) -> bool {
    let is_system = name.starts_with("system.") && !name.starts_with("system.buckets.");
    is_system || name.starts_with("tmp.")
}

fn misplaced(found: &mut Inconsistencies, shard: &ShardId, collection: &CollectionOnShard) {
    found.add(
        "MisplacedCollection",
        "Found unsharded collection without the appropriate metadata on a shard different from \
         the database primary shard",
        collection.ns.as_str(),
        |out| {
            out.append("shard", shard.as_str());
            append_uuid(out, "localUUID", collection.uuid);
        },
    );
}

struct OfCollection<'a> {
    collection: &'a CatalogCollection,
    primary: &'a ShardId,
    /// Of every shard.
    parts: Vec<(&'a ShardId, Option<&'a CollectionOnShard>)>,
}

impl<'a> OfCollection<'a> {
    fn document(&self) -> &'a CollectionDocument {
        &self.collection.document
    }

    fn is_owner(&self, shard: &ShardId) -> bool {
        self.collection.owners.contains(shard)
    }

    /// The parts that have to be alike: of the owners, and of the primary shard of the database.
    fn needed(&self) -> impl Iterator<Item = (&'a ShardId, &'a CollectionOnShard)> + '_ {
        let is_needed = |shard: &ShardId| self.is_owner(shard) || shard == self.primary;
        let parts = self.parts.iter().filter(move |(shard, _)| is_needed(shard));
        parts.filter_map(|(shard, part)| Some((*shard, (*part)?)))
    }

    fn check_parts(&self, found: &mut Inconsistencies) {
        let document = self.document();
        let of = (&document.ns, document.uuid);
        for (shard, part) in &self.parts {
            match part {
                Some(part) => self.check_part(shard, part, found),
                None if self.is_owner(shard) || *shard == self.primary => found.add_of(
                    "MissingLocalCollection",
                    "Found a sharded collection that the shard does not have locally",
                    of,
                    |out| {
                        out.append("shard", shard.as_str());
                    },
                ),
                None => {}
            }
        }
    }

    fn check_part(&self, shard: &ShardId, part: &CollectionOnShard, found: &mut Inconsistencies) {
        let document = self.document();
        let ns = document.ns.as_str();
        if document.uuid != Some(part.uuid) {
            found.add(
                "CollectionUUIDMismatch",
                "Found a collection on a shard with a UUID that differs from that of the catalog",
                ns,
                |out| {
                    out.append("shard", shard.as_str());
                    append_uuid(out, "localUUID", part.uuid);
                    if let Some(uuid) = document.uuid {
                        append_uuid(out, "UUID", uuid);
                    }
                },
            );
            return;
        }
        self.check_options_of(shard, part, found);
        if !self.is_owner(shard) {
            return;
        }
        if part.table == KnownTable::Unsharded {
            found.add_of(
                "ShardMissingCollectionRoutingInfo",
                "The shard has the collection locally, and no routing information of it",
                (&document.ns, document.uuid),
                |out| {
                    out.append("shard", shard.as_str());
                },
            );
        }
        // A hashed shard key needs no index.
        let key = ShardKeyPattern::parse(&document.key).ok();
        let key = key.filter(|key| !key.is_hashed());
        if key.is_some_and(|key| !part.has_index_of(&key)) {
            found.add(
                "MissingShardKeyIndex",
                "Found a sharded collection without an index that supports its shard key",
                ns,
                |out| {
                    out.append("shard", shard.as_str());
                    out.append("shardKey", &*document.key);
                },
            );
        }
    }

    /// What the catalog says of options.
    fn check_options_of(
        &self,
        shard: &ShardId,
        part: &CollectionOnShard,
        found: &mut Inconsistencies,
    ) {
        let document = self.document();
        let mismatch = |found: &mut Inconsistencies, here: RawDocumentBuf, there| {
            let lists = [(here, vec![shard.as_str()]), (there, vec![ShardId::CONFIG])];
            options_differ(found, document.ns.as_str(), &lists);
        };
        if pinion_bson::get(&part.options, "capped").is_some() && !document.is_unsplittable {
            let there = rawdoc! { "capped": false, "unsplittable": false };
            mismatch(found, rawdoc! { "capped": true }, there);
        }
        let none = RawDocumentBuf::new();
        let option = |name| {
            let option = pinion_bson::get(&part.options, name);
            let option = option.and_then(|option| option.as_document());
            option.unwrap_or(&none)
        };
        let local = option("timeseries");
        let known = document.time_series.as_ref();
        let known = known.map_or_else(RawDocumentBuf::new, TimeSeries::to_document);
        if *local != *known {
            mismatch(
                found,
                rawdoc! { "timeseriesFields": local.to_owned() },
                rawdoc! { "timeseriesFields": known },
            );
        }
        let local = option("collation");
        let known = document.default_collation.as_ref().unwrap_or(&none);
        if *local != **known {
            mismatch(
                found,
                rawdoc! { "defaultCollation": local.to_owned() },
                rawdoc! { "defaultCollation": known.clone() },
            );
        }
    }

    /// The options of the parts that have to be alike.
    fn check_options(&self, found: &mut Inconsistencies) {
        let mut lists: Vec<(RawDocumentBuf, Vec<&str>)> = Vec::new();
        for (shard, part) in self.needed() {
            match lists
                .iter_mut()
                .find(|(options, _)| *options == part.options)
            {
                Some((_, shards)) => shards.push(shard),
                None => lists.push((part.options.clone(), vec![shard])),
            }
        }
        if lists.len() > 1 {
            options_differ(found, self.document().ns.as_str(), &lists);
        }
    }

    /// The indexes of the owners.
    fn check_indexes(&self, found: &mut Inconsistencies) {
        let owners: Vec<_> = self
            .needed()
            .filter(|(shard, _)| self.is_owner(shard))
            .collect();
        let mut by_name: BTreeMap<&str, Vec<(&ShardId, &RawDocument)>> = BTreeMap::new();
        for (shard, part) in &owners {
            for index in &part.indexes {
                let name = pinion_bson::get(index, "name").and_then(|name| name.as_str());
                by_name
                    .entry(name.unwrap_or_default())
                    .or_default()
                    .push((*shard, &**index));
            }
        }
        for (name, specs) in by_name {
            let has = |shard: &ShardId| specs.iter().any(|(other, _)| *other == shard);
            let missing = owners.iter().map(|(shard, _)| *shard);
            let missing: Vec<&ShardId> = missing.filter(|shard| !has(shard)).collect();
            let properties = different_fields(&specs);
            if missing.is_empty() && properties.is_empty() {
                continue;
            }
            let document = self.document();
            found.add(
                "InconsistentIndex",
                "Found an index of a sharded collection that is inconsistent between shards",
                document.ns.as_str(),
                |out| {
                    out.start_document("info").append("indexName", name);
                    out.start_array("missingFromShards");
                    for shard in &missing {
                        out.push(shard.as_str());
                    }
                    out.end().start_array("inconsistentProperties");
                    for (name, value) in &properties {
                        out.push_document().append("k", name.as_str());
                        out.append_all(value).end();
                    }
                    out.end().end();
                },
            );
        }
    }
}

/// The fields of specifications that not all have alike, with each value: `{v}`.
fn different_fields(specs: &[(&ShardId, &RawDocument)]) -> Vec<(String, RawDocumentBuf)> {
    let mut counts: Vec<((String, RawDocumentBuf), usize)> = Vec::new();
    for (_, spec) in specs {
        for (name, value) in pinion_bson::elements(spec) {
            let mut out = DocBuilder::new();
            out.append_raw("v", value);
            let field = (name.to_owned(), out.finish());
            match counts.iter_mut().find(|(known, _)| *known == field) {
                Some((_, count)) => *count += 1,
                None => counts.push((field, 1)),
            }
        }
    }
    let different = counts.into_iter().filter(|(_, count)| *count < specs.len());
    different.map(|(field, _)| field).collect()
}

fn options_differ(found: &mut Inconsistencies, ns: &str, lists: &[(RawDocumentBuf, Vec<&str>)]) {
    found.add(
        "CollectionOptionsMismatch",
        "Found a collection with options that differ between shards, or from the catalog",
        ns,
        |out| {
            out.start_array("options");
            for (options, shards) in lists {
                out.push_document().append("options", &**options);
                out.start_array("shards");
                for shard in shards {
                    out.push(*shard);
                }
                out.end().end();
            }
            out.end();
        },
    );
}
